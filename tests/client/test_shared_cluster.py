"""Producers one after the other on the same connections: changes of the cluster between them cause neither errors nor waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from strandline.client import NoBrokersAvailable, Producer, TopicPartition
from strandline.client.cluster import refresh_gap
from strandline.client.cluster.shared_cluster import TOPICS_MAX, SharedCluster

from .scripted import ScriptedCluster

P0 = TopicPartition("orders", 0)


@pytest_asyncio.fixture
async def scripted() -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 3)
        yield cluster


@pytest_asyncio.fixture
async def shared(scripted: ScriptedCluster) -> AsyncIterator[SharedCluster]:
    cluster = SharedCluster(bootstrap_servers=scripted.bootstrap)
    yield cluster
    await cluster.close()


async def task(shared: SharedCluster, work_epoch: int, partitions: int = 3) -> None:
    """Write one row to each partition, under the next work epoch of a name. A task takes milliseconds, a repeated refresh at
    least 20 of them; the bound is far above both and far below every timeout of a client."""
    shared.want(["orders"])
    name = {"producer_name": "sink", "producer_work_epoch": work_epoch}
    async with asyncio.timeout(2), Producer(cluster=shared, **name) as producer:
        assert await producer.partitions_for("orders") == list(range(partitions))
        for partition in range(partitions):
            await producer.send_and_wait("orders", b"%d" % work_epoch, partition=partition)


def stored(scripted: ScriptedCluster) -> dict[int, list[bytes]]:
    topic_id = scripted.topics["orders"]
    return {index: p.log.values for (owner, index), p in sorted(scripted.partitions.items()) if owner == topic_id}


def handshakes(scripted: ScriptedCluster) -> int:
    return sum(broker.handshakes for broker in scripted.brokers.values())


async def test_next_producer_connects_to_no_broker(scripted: ScriptedCluster, shared: SharedCluster) -> None:
    await task(shared, 0)
    before = handshakes(scripted), scripted.metadata_requests
    for work_epoch in range(1, 6):
        await task(shared, work_epoch)
    assert (handshakes(scripted), scripted.metadata_requests) == (before[0], before[1] + 5)
    assert stored(scripted) == {index: [b"0", b"1", b"2", b"3", b"4", b"5"] for index in range(3)}
    assert len(shared.cluster.listeners) == 0


async def test_next_producer_does_not_wait_between_refreshes(
    scripted: ScriptedCluster, shared: SharedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause between repeated refreshes grows to 250 ms after 120 of them: each task of a stream of small batches waited for
    it."""
    monkeypatch.setattr(refresh_gap, "REFRESH_GAP_MS", (60_000,) * 3)
    for work_epoch in range(3):
        await task(shared, work_epoch)


@pytest.mark.parametrize("brokers", [1, 3])
async def test_connections_that_brokers_closed_are_replaced(brokers: int) -> None:
    async with ScriptedCluster(brokers) as scripted:
        scripted.create("orders", 3)
        shared = SharedCluster(bootstrap_servers=scripted.bootstrap)
        for work_epoch in range(3):
            await task(shared, work_epoch)
            for broker in scripted.brokers.values():
                broker.cut_connections()
        assert stored(scripted) == {index: [b"0", b"1", b"2"] for index in range(3)}
        await shared.close()


async def test_leader_that_moved_is_found(scripted: ScriptedCluster, shared: SharedCluster) -> None:
    await task(shared, 0)
    scripted.move_leader("orders", 0, leader=3)
    await task(shared, 1)
    scripted.move_leader("orders", 0, leader=2)
    await scripted.brokers[3].stop()
    scripted.move_leader("orders", 2, leader=1)
    await task(shared, 2)
    assert stored(scripted) == {index: [b"0", b"1", b"2"] for index in range(3)}


@pytest.mark.parametrize("partitions", [1, 3, 5])
async def test_recreated_topic_is_written_with_its_own_partitions(
    scripted: ScriptedCluster, shared: SharedCluster, partitions: int
) -> None:
    """With the old number of partitions, rows with a key would be sent to other partitions than by other clients."""
    await task(shared, 0)
    scripted.recreate("orders", partitions)
    await task(shared, 1, partitions)
    assert stored(scripted) == {index: [b"1"] for index in range(partitions)}


async def test_added_partitions_are_known_to_the_next_producer(scripted: ScriptedCluster, shared: SharedCluster) -> None:
    await task(shared, 0)
    scripted.create("orders", 4)
    await task(shared, 1, partitions=4)


async def test_later_attempt_finds_the_rows_of_an_earlier_one(scripted: ScriptedCluster, shared: SharedCluster) -> None:
    await task(shared, 7)
    async with Producer(cluster=shared, producer_name="sink", producer_work_epoch=7) as again:
        assert not again.is_first_attempt
        assert await again.written([P0]) == {P0: 1}


async def test_topics_of_many_tasks_are_forgotten(scripted: ScriptedCluster, shared: SharedCluster) -> None:
    shared.want(f"topic-{number}" for number in range(TOPICS_MAX + 1))
    await task(shared, 0)
    assert shared.cluster.metadata.topics_wanted == 1


async def test_cluster_that_is_down_is_reported_in_time(scripted: ScriptedCluster) -> None:
    shared = SharedCluster(bootstrap_servers=scripted.bootstrap, connect_timeout_ms=300)
    await task(shared, 0)
    for broker in scripted.brokers.values():
        await broker.stop()
    with pytest.raises(NoBrokersAvailable):
        await task(shared, 1)
    await shared.close()
