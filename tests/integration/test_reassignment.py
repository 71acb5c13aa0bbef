"""Partitions that move to other brokers (KIP-455) in a running cluster: nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from waiting import until
from wire_cluster import WireCluster

from strandline.client import Admin, ConsumerRecord, Producer, RequestFailed, TopicPartition
from strandline.controller.metadata.features import LEVEL_0_ONLY
from strandline.protocol.errors import ErrorCode
from strandline.protocol.records.reader import iter_records
from strandline.testing.kit.hosted import HostedNodes
from strandline.testing.kit.nodes import Nodes

ORDERS = TopicPartition("orders", 0)


@asynccontextmanager
async def load(cluster: WireCluster) -> AsyncIterator[list[bytes]]:
    """Send numbered records to orders-0 during the block; yields those that are acknowledged so far."""
    acknowledged: list[bytes] = []
    stopped = asyncio.Event()

    async def send() -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap_servers, delivery_timeout_ms=60_000) as producer:
            number = 0
            while not stopped.is_set():
                value = b"%06d" % number
                await producer.send_and_wait("orders", value, partition=0)
                acknowledged.append(value)
                number += 1

    task = asyncio.ensure_future(send())
    try:
        yield acknowledged
    finally:
        stopped.set()
        await asyncio.wait_for(task, 60)


async def moved(admin: Admin) -> None:
    """Wait until no reassignment is left."""
    async with asyncio.timeout(60):
        while await admin.list_partition_reassignments():
            await asyncio.sleep(0.01)


async def read_all(cluster: WireCluster, count: int) -> list[bytes]:
    values: list[bytes] = []
    async with cluster.consumer() as consumer, asyncio.timeout(60):
        await consumer.assign([ORDERS])
        await consumer.seek_to_beginning(ORDERS)
        while len(values) < count:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                values += [_value(record) for record in records]
    return values


def _value(record: ConsumerRecord) -> bytes:
    assert record.value is not None
    return bytes(record.value)


async def test_a_partition_moves_to_other_brokers_under_load() -> None:
    """All of its replicas change, the leader too. The brokers that it leaves delete their logs, and clients notice nothing."""
    async with WireCluster(brokers=6, min_insync_replicas=2) as cluster, cluster.admin() as admin:
        topic = await cluster.create("orders", replicas=[[1, 2, 3]])
        async with load(cluster) as acknowledged:
            await until(lambda: len(acknowledged) > 50, "some records before")
            (result,) = await admin.alter_partition_reassignments({ORDERS: [4, 5, 6]})
            assert (result.partition, result.code, result.message) == (ORDERS, ErrorCode.NONE, None)
            await moved(admin)
            after = len(acknowledged)
            await until(lambda: len(acknowledged) > after + 50, "some records after")
        (described,) = (await admin.describe_topics(["orders"]))[0].partitions
        assert (described.replicas, set(described.isr)) == ((4, 5, 6), {4, 5, 6})
        assert described.leader_id in (4, 5, 6)
        await cluster.in_step(topic.topic_id, [4, 5, 6])
        stored = [bytes(r.value or b"") for r in iter_records(cluster.log_bytes(4, topic.topic_id))]
        assert stored == acknowledged == await read_all(cluster, len(acknowledged))
        for node in (1, 2, 3):
            files = cluster.disk(node)
            await until(lambda files=files, node=node: not has_log(files, node), f"broker {node} has deleted its log")


def has_log(files: object, node: int) -> bool:
    names = files.list(f"/data/broker-{node}")  # type: ignore[attr-defined]
    return any(str(name).startswith("orders-0") for name in names)


async def test_a_removed_replica_that_was_away_does_not_come_back_with_its_log() -> None:
    """The broker is down while its replica is removed (like KAFKA-14616). Its log is not served, neither then nor when the
    broker gets the partition again: then it copies what the cluster has now."""
    async with WireCluster(brokers=4) as cluster, cluster.admin() as admin:
        topic = await cluster.create("orders", replicas=[[1, 2, 3]])
        await cluster.produce(topic, "1", "2")
        await cluster.in_step(topic.topic_id, [1, 2, 3])
        await cluster.stop(3)
        await admin.alter_partition_reassignments({ORDERS: [1, 2, 4]})
        await moved(admin)
        await cluster.produce(topic, "3")
        await cluster.start(3)
        files = cluster.disk(3)
        await until(lambda: not has_log(files, 3), "the log of the removed replica is deleted")
        assert (topic.topic_id, 0) not in cluster.server(3).replicas.partitions
        await admin.alter_partition_reassignments({ORDERS: [1, 2, 3]})
        await moved(admin)
        await cluster.in_step(topic.topic_id, [1, 2, 3])
        assert [bytes(r.value or b"") for r in iter_records(cluster.log_bytes(3, topic.topic_id))] == [b"1", b"2", b"3"]


async def test_a_move_waits_for_a_dead_target_and_can_be_cancelled_or_led_elsewhere() -> None:
    async with WireCluster(brokers=5) as cluster, cluster.admin() as admin:
        topic = await cluster.create("orders", replicas=[[3, 1, 2]])
        await cluster.produce(topic, "1")
        await cluster.kill(4)
        await admin.alter_partition_reassignments({ORDERS: [4, 1, 2]}, throttle_rate=1_000_000)
        running = await admin.list_partition_reassignments()
        assert list(running) == [ORDERS]
        found = running[ORDERS]
        assert (found.replicas, found.target_replicas, found.throttle_rate) == ((4, 1, 2, 3), (4, 1, 2), 1_000_000)
        assert (found.adding_replicas, found.removing_replicas, found.original_replicas) == ((4,), (3,), (3, 1, 2))
        assert await admin.list_partition_reassignments([("orders", 7)]) == {}

        await admin.alter_partition_reassignments({ORDERS: None})
        assert await admin.list_partition_reassignments() == {}
        (described,) = (await admin.describe_topics(["orders"]))[0].partitions
        assert described.replicas == (3, 1, 2)
        (again,) = await admin.alter_partition_reassignments({ORDERS: None})
        assert (again.code, again.message) == (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "orders-0 is not being reassigned")

        await admin.alter_partition_reassignments({ORDERS: [4, 1]})
        await admin.alter_partition_reassignments({ORDERS: [5, 1]})
        await moved(admin)
        await cluster.in_step(topic.topic_id, [5, 1])
        (refused,) = await admin.alter_partition_reassignments({ORDERS: [9]})
        assert refused.message == "the target [9] names broker 9, which is not registered"


class OldCluster(WireCluster):
    """The metadata has level 0."""

    def _hosted(self) -> Nodes:
        nodes = super()._hosted()
        assert isinstance(nodes, HostedNodes)
        for node in nodes.nodes.values():
            node.levels = LEVEL_0_ONLY
        return nodes


async def test_a_cluster_of_level_0_refuses_in_one_sentence() -> None:
    async with OldCluster(brokers=1) as cluster, cluster.admin() as admin:
        await cluster.create("orders")
        with pytest.raises(RequestFailed, match="a reassignment needs level 1") as raised:
            await admin.alter_partition_reassignments({ORDERS: [1]})
        assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION
