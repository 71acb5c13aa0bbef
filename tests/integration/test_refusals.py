"""Starts and requests that a broker refuses, and its end when it cannot continue (F15, F16, F22, F24, S51)."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import Any

import pytest
from waiting import free_port, until
from wire_cluster import CLUSTER_ID, WireCluster

from strandline.broker.process.server import BrokerServer
from strandline.protocol import apis
from strandline.protocol.doors import real_doors
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.messages.admin import ApiVersionsRequest
from strandline.protocol.messages.cluster import (
    AlterPartitionPartition,
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerState,
)
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.connection import Connection
from strandline.storage.files import File, MemoryFiles


async def refused_start(cluster: WireCluster, node: int, files: MemoryFiles | None = None, **changes: Any) -> str:
    """Start a broker that must refuse; returns its sentence, and checks that it leaves no lock and no port."""
    broker = BrokerServer(cluster.broker_config(node, **changes), real_doors(), files or MemoryFiles())
    with pytest.raises(UsageError) as e:
        await broker.start()
    await broker.stop()
    return str(e.value)


async def test_controllers_of_another_cluster_are_refused() -> None:
    async with WireCluster() as cluster:
        sentence = await refused_start(cluster, 2, cluster_id="other-cluster")
    assert "and this broker to another cluster, 'other-cluster'" in sentence


async def test_a_directory_of_another_node_or_cluster_is_refused() -> None:
    async with WireCluster() as cluster:
        directory = f"{cluster.hosted.folder}/broker-1"
        files = cluster.disk(1)
        await cluster.stop(1)
        assert "node 1" in await refused_start(cluster, 2, files, log_dirs=directory)
        assert CLUSTER_ID in await refused_start(cluster, 1, files, cluster_id="other")
        await cluster.start(1)


async def test_a_second_process_on_a_directory_is_refused() -> None:
    async with WireCluster() as cluster:
        sentence = await refused_start(cluster, 1, cluster.disk(1), listeners=f"PLAINTEXT://127.0.0.1:{free_port()}")
    assert "in use" in sentence


async def test_an_occupied_port_is_one_sentence() -> None:
    async with WireCluster() as cluster:
        port = cluster.port(1)
        sentence = await refused_start(cluster, 2, listeners=f"PLAINTEXT://127.0.0.1:{port}")
    assert f"cannot listen on 127.0.0.1:{port}" in sentence


async def test_a_second_process_with_the_same_id_is_refused() -> None:
    async with WireCluster(broker_session_timeout_ms=300, broker_heartbeat_interval_ms=50) as cluster:
        topic = await cluster.create("orders")
        sentence = await refused_start(cluster, 1, listeners=f"PLAINTEXT://127.0.0.1:{free_port()}")
        assert "another live process is registered as broker 1" in sentence
        await cluster.produce(topic, "a")


async def test_a_start_without_a_controller_ends_with_a_sentence() -> None:
    async with WireCluster() as cluster:
        await cluster.stop()
        sentence = await refused_start(cluster, 1, initial_broker_registration_timeout_ms=200)
    assert "the broker found no controller in 0.2 s" in sentence
    assert "Connection refused" in sentence


async def test_an_interrupted_start_leaves_no_lock_and_no_port() -> None:
    """F22: a SIGTERM while the broker still looks for a controller must free its lock and its port."""
    async with WireCluster() as cluster:
        await cluster.kill(1, 101)
        await cluster.start(1, wait=False)
        process = cluster.hosted.nodes[1].process
        await until(lambda: process and process.server and process.server.port, "it listens")
        await cluster.stop(1)
        with pytest.raises(BrokerError):
            await Connection.connect("127.0.0.1", cluster.port(1), client_id="test")
        lock = cluster.disk(1).lock(f"{cluster.hosted.folder}/broker-1/.lock")
        lock.release()


async def test_a_failed_disk_moves_the_leaders_and_ends_the_broker() -> None:
    async with WireCluster(brokers=3) as cluster:
        topic = await cluster.create("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")
        await cluster.produce(topic, "a")
        cluster.disk(1).fail_next("write", "*.log", errno.EIO)
        answer = await cluster.produce_to(1, topic.topic_id, "b")
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await cluster.produce(topic, "b")
        assert (await cluster.topic("orders", 2)).partitions[0].leader_id in (2, 3)
        await until(lambda: cluster.node(1).state == "failed", "broker 1 ends")
        assert "data directory" in cluster.node(1).note
        await cluster.in_step(topic.topic_id, [2, 3])


# -- forged and misdirected requests (F15) ------------------------------------------------------------------------------


async def controller_code(cluster: WireCluster, node: int, api_key: int, body: Message) -> ErrorCode:
    connection = await Connection.connect("127.0.0.1", cluster.port(node), client_id="test")
    try:
        response: Any = await connection.request(api_key, body, timeout_ms=5000)
    except BrokerError as e:
        return e.code
    finally:
        connection.close()
    return ErrorCode(response.error_code)


async def test_standby_controllers_reject_decisions() -> None:
    async with WireCluster(controllers=3) as cluster:
        active = await cluster.active_controller()
        heartbeat = BrokerHeartbeatRequest(1, cluster.server(1).lifecycle.broker_epoch, 100, False, False)
        for node in cluster.controllers:
            code = await controller_code(cluster, node, apis.BROKER_HEARTBEAT, heartbeat)
            assert code == (ErrorCode.NONE if node == active else ErrorCode.NOT_CONTROLLER)


@pytest.mark.parametrize("off_by", [-1, 1, 1000])
async def test_a_forged_broker_epoch_changes_nothing(off_by: int) -> None:
    async with WireCluster() as cluster:
        topic = await cluster.create("orders")
        epoch = cluster.server(1).lifecycle.broker_epoch + off_by
        before = cluster.server(1).metadata.image.partition((topic.topic_id, 0))
        assert before is not None
        forged = AlterPartitionPartition(
            topic.topic_id, 0, before.leader_epoch, [BrokerState(1, epoch)], 0, before.partition_epoch
        )
        for api_key, body in (
            (apis.BROKER_HEARTBEAT, BrokerHeartbeatRequest(1, epoch, 100, True, True)),
            (apis.ALTER_PARTITION, AlterPartitionRequest(1, epoch, [forged])),
        ):
            assert await controller_code(cluster, 101, api_key, body) == ErrorCode.STALE_BROKER_EPOCH
        await cluster.produce(topic, "a")
        assert cluster.server(1).metadata.image.partition((topic.topic_id, 0)) == before
        assert cluster.server(1).ready.is_set()


async def test_the_handshake_names_the_node() -> None:
    async with WireCluster() as cluster:
        answer = await cluster.ask(1, apis.API_VERSIONS, ApiVersionsRequest())
        assert (answer.role, answer.node_id, answer.cluster_id) == ("broker", 1, CLUSTER_ID)
        assert answer.incarnation_id == cluster.server(1).incarnation_id


class GatedFiles:
    """A disk that has become slow: opening a log's file waits until the gate is open."""

    def __init__(self, files: MemoryFiles) -> None:
        self._files = files
        self.gate = threading.Event()
        self.waited = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open(self, path: str, *, create: bool) -> File:
        if path.endswith(".log") and not self.gate.is_set():
            self.waited.set()
            assert self.gate.wait(10)
        return self._files.open(path, create=create)


async def test_a_stop_during_recovery_ends_after_the_current_log() -> None:
    """F22: afterwards the broker is not registered, has no port and no lock, and the directory still counts as unclean."""
    async with WireCluster() as cluster:
        topic = await cluster.create("orders", partitions=3)
        for partition in range(3):
            await cluster.produce(topic, "a", partition=partition)
        await cluster.kill(1)
        files = cluster.disk(1)
        slow = GatedFiles(files)
        cluster.hosted.disk(1).files = slow  # type: ignore[assignment]
        await cluster.start(1, wait=False)
        await until(slow.waited.is_set, "it recovers")
        stop = asyncio.ensure_future(cluster.stop(1))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not stop.done(), "a log that is being opened is not left behind half open"
        slow.gate.set()
        await stop
        assert not files.exists("/data/broker-1/.kafka_cleanshutdown")
        await cluster.start(1)
        for partition in range(3):
            assert (await cluster.fetch(1, topic.topic_id, partition=partition))[1] == ["a"]


async def test_a_replaced_process_never_leads_for_its_successor() -> None:
    """I1: after a long pause the old process reads metadata that is meant for the new process with its broker id."""
    async with WireCluster(brokers=2) as cluster:
        topic = await cluster.create("orders", replicas=[[1, 2]])
        old, controller = cluster.server(2), cluster.server(101).controller
        await cluster.inside(2, old.lifecycle.stop)
        await cluster.inside(101, lambda: controller.fence(2, old.lifecycle.broker_epoch, "it is paused"))
        config = cluster.broker_config(2, listeners=f"PLAINTEXT://127.0.0.1:{free_port()}", log_dirs="/data/new")
        new = BrokerServer(config, real_doors(), MemoryFiles())
        await new.start()
        key = (topic.topic_id, 0)

        def old_leads() -> bool:
            replica = old.replicas.partitions.get(key)
            return replica is not None and replica.leader_state is not None

        await until(lambda: 2 in controller.image.partition(key).isr, "the successor is in the ISR")
        await cluster.kill(1)
        await until(lambda: new.replicas.partitions[key].leader_state is not None, "the successor leads")
        await until(lambda: old.metadata.image.offset >= new.metadata.image.offset or old.failure.done())
        assert not old_leads()
        assert old.failure.done()
        assert "another process has registered as broker 2" in str(old.failure.result())
        await until(lambda: cluster.node(2).state == "failed", "the old process ends", 2)
        await new.stop()
