"""What a broker refuses, at its start and on the wire, and how it ends when it can not go on (F15, F16, F22, F24, S51)."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import Any

import pytest
from cluster import CLUSTER_ID, Cluster, free_port, wait_until

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


async def refused_start(cluster: Cluster, node: int, files: MemoryFiles | None = None, **changes: Any) -> str:
    """The one sentence with which a broker refuses to start; it leaves nothing behind."""
    config = cluster.broker_config(node, **{key.replace("_", "."): value for key, value in changes.items()})
    broker = BrokerServer(config, real_doors(), files or MemoryFiles())
    with pytest.raises(UsageError) as e:
        await broker.start()
    await broker.stop()
    return str(e.value)


async def test_another_clusters_controllers_are_refused_with_a_clear_sentence() -> None:
    async with Cluster() as cluster:
        sentence = await refused_start(cluster, 2, cluster_id="other-cluster")
    assert "and this broker to another cluster, 'other-cluster'" in sentence


async def test_a_directory_of_another_node_or_cluster_is_refused() -> None:
    async with Cluster() as cluster:
        directory = f"{cluster.data}/broker-1"
        files = cluster.files[1]
        await cluster.stop(1)
        assert "node 1" in await refused_start(cluster, 2, files, log_dirs=directory)  # type: ignore[arg-type]
        assert CLUSTER_ID in await refused_start(cluster, 1, files, cluster_id="other")  # type: ignore[arg-type]
        await cluster.start(1)
        await cluster.ready()


async def test_two_processes_on_one_directory_are_one_too_many() -> None:
    async with Cluster() as cluster:
        sentence = await refused_start(
            cluster,
            1,
            cluster.files[1],
            listeners=f"PLAINTEXT://127.0.0.1:{free_port()}",  # type: ignore[arg-type]
        )
    assert "in use" in sentence


async def test_an_occupied_port_is_one_sentence() -> None:
    async with Cluster() as cluster:
        sentence = await refused_start(cluster, 2, listeners=f"PLAINTEXT://127.0.0.1:{cluster.ports[1]}")
    assert f"cannot listen on 127.0.0.1:{cluster.ports[1]}" in sentence


async def test_a_second_live_process_with_the_same_id_is_refused_and_the_first_goes_on() -> None:
    async with Cluster(broker_session_timeout_ms=300, broker_heartbeat_interval_ms=50) as cluster:
        topic = await cluster.create_topic("orders")
        sentence = await refused_start(cluster, 1, listeners=f"PLAINTEXT://127.0.0.1:{free_port()}")
        assert "another live process is registered as broker 1" in sentence
        await cluster.produce(topic, "a")


async def test_a_start_without_a_controller_ends_with_a_sentence() -> None:
    cluster = Cluster(initial_broker_registration_timeout_ms=200)
    sentence = await refused_start(cluster, 1)
    assert "the broker found no controller in 0.2 s" in sentence
    assert "Connection refused" in sentence


async def test_a_start_that_is_interrupted_leaves_no_lock_and_no_port() -> None:
    """F22: SIGTERM while the broker still looks for a controller."""
    cluster = Cluster()
    config = cluster.broker_config(1)
    broker = BrokerServer(config, real_doors(), cluster.files[1])
    start = asyncio.ensure_future(broker.start())
    await wait_until(lambda: broker.port)
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)
    await broker.stop()
    with pytest.raises(BrokerError):
        await Connection.connect("127.0.0.1", broker.port, client_id="test")
    lock = cluster.files[1].lock(f"{cluster.data}/broker-1/.lock")
    lock.release()


async def test_a_failed_disk_moves_the_leaders_and_ends_the_broker() -> None:
    async with Cluster(brokers=3) as cluster:
        topic = await cluster.create_topic("orders", replicas=[[1, 2, 3]], min_insync_replicas="2")
        await cluster.produce(topic, "a")
        files = cluster.files[1]
        assert isinstance(files, MemoryFiles)
        files.fail_next("write", "*.log", errno.EIO)
        answer = await cluster.produce_to(1, topic.topic_id, "b")
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await cluster.produce(topic, "b")
        assert (await cluster.topic("orders", 2)).partitions[0].leader_id in (2, 3)
        async with asyncio.timeout(10):
            failure = await cluster.brokers[1].failure
        assert "data directory" in str(failure)
        await cluster.in_step(topic.topic_id, [2, 3])


# -- forged and misdirected requests (F15) ------------------------------------------------------------------------------


async def controller_code(cluster: Cluster, node: int, api_key: int, body: Message) -> ErrorCode:
    port = cluster.controllers[node].port
    connection = await Connection.connect("127.0.0.1", port, client_id="test")
    try:
        response: Any = await connection.request(api_key, body, timeout_ms=5000)
    except BrokerError as e:
        return e.code
    finally:
        connection.close()
    return ErrorCode(response.error_code)


async def test_standby_controllers_refuse_what_only_the_active_one_decides() -> None:
    async with Cluster(controllers=3) as cluster:
        active = next(node for node, c in cluster.controllers.items() if c.quorum.is_leader)
        heartbeat = BrokerHeartbeatRequest(1, cluster.brokers[1].lifecycle.broker_epoch, 100, False, False)
        for node in cluster.controllers:
            code = await controller_code(cluster, node, apis.BROKER_HEARTBEAT, heartbeat)
            assert code == (ErrorCode.NONE if node == active else ErrorCode.NOT_CONTROLLER)


@pytest.mark.parametrize("off_by", [-1, 1, 1000])
async def test_a_forged_broker_epoch_changes_nothing(off_by: int) -> None:
    async with Cluster() as cluster:
        topic = await cluster.create_topic("orders")
        epoch = cluster.brokers[1].lifecycle.broker_epoch + off_by
        before = cluster.brokers[1].metadata.image.partition((topic.topic_id, 0))
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
        assert cluster.brokers[1].metadata.image.partition((topic.topic_id, 0)) == before
        assert cluster.brokers[1].ready.is_set()


async def test_the_handshake_says_who_answers() -> None:
    async with Cluster() as cluster:
        answer = await cluster.ask(1, apis.API_VERSIONS, ApiVersionsRequest())
        assert (answer.role, answer.node_id, answer.cluster_id) == ("broker", 1, CLUSTER_ID)
        assert answer.incarnation_id == cluster.brokers[1].incarnation_id


class GatedFiles(MemoryFiles):
    """A slow disk: opening a log's file waits until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waited = threading.Event()

    def open(self, path: str, *, create: bool) -> File:
        if path.endswith(".log") and not self.gate.is_set():
            self.waited.set()
            assert self.gate.wait(10)
        return super().open(path, create=create)


async def test_a_stop_during_recovery_ends_it_after_the_log_at_hand_and_the_next_start_recovers() -> None:
    """F22. Nothing is registered, listened to or locked afterwards, and the directory still counts as not clean."""
    async with Cluster(files=GatedFiles) as cluster:
        topic = await cluster.create_topic("orders", partitions=3)
        for partition in range(3):
            await cluster.produce(topic, "a", partition=partition)
        await cluster.kill(1)
        files = cluster.files[1]
        assert isinstance(files, GatedFiles)
        files.gate.clear()
        start = asyncio.ensure_future(cluster.start(1))
        await wait_until(files.waited.is_set, what="it recovers")
        start.cancel()
        await asyncio.sleep(0)
        assert not start.done(), "a log that is being opened is not left behind half open"
        files.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not files.exists("/data/broker-1/.kafka_cleanshutdown")
        await cluster.start(1)
        await cluster.ready()
        for partition in range(3):
            assert (await cluster.fetch(1, topic.topic_id, partition=partition))[1] == ["a"]


async def test_a_process_that_was_replaced_while_it_stood_still_never_leads_in_the_name_of_its_successor() -> None:
    """I1: after a long pause it reads in the metadata what is meant for the new process with its broker id."""
    async with Cluster(brokers=2) as cluster:
        topic = await cluster.create_topic("orders", replicas=[[1, 2]])
        old = cluster.brokers[2]
        await old.lifecycle.stop()
        cluster.controllers[101].controller.fence(2, old.lifecycle.broker_epoch, "it stands still")
        config = cluster.broker_config(2, **{"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}", "log.dirs": "/data/new"})
        new = BrokerServer(config, real_doors(), MemoryFiles())
        await new.start()
        key = (topic.topic_id, 0)
        image = lambda: cluster.controllers[101].controller.image  # noqa: E731
        await wait_until(lambda: 2 in image().partition(key).isr, what="the successor is in the ISR")
        await cluster.kill(1)
        await wait_until(lambda: new.replicas.partitions[key].leader_state is not None, what="the successor leads")
        await wait_until(lambda: old.metadata.image.offset >= new.metadata.image.offset or old.failure.done())
        assert old.replicas.partitions[key].leader_state is None
        assert old.failure.done()
        assert "another process has registered as broker 2" in str(old.failure.result())
        async with asyncio.timeout(2):
            await old.stop()
        await new.stop()
