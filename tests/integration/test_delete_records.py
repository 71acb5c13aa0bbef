"""Records that are deleted by offset, on real servers: what consumers of every kind read, and replicas that begin there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from waiting import until
from wire_cluster import WireCluster

from strandline.client import Consumer, DeletedRecords, TopicPartition

PLACE = TopicPartition("orders", 0)
VALUES = [b"%d" % n for n in range(10)]
START = 6
"""Lies inside the second batch, which has the records 4 to 9."""


async def filled(cluster: WireCluster, **options: object) -> bytes:
    topic = await cluster.create("orders", **options)
    await cluster.produce(topic, "0", "1", "2", "3")
    await cluster.produce(topic, "4", "5", "6", "7", "8", "9")
    return topic.topic_id


async def trim(cluster: WireCluster, offset: int = START) -> None:
    async with cluster.admin() as admin:
        assert await admin.delete_records({PLACE: offset}) == {PLACE: DeletedRecords(offset)}


async def by_getmany(consumer: Consumer) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while not found or found[-1][0] < 9:
        for records in (await consumer.getmany(timeout_ms=5000)).values():
            found += [(r.offset, bytes(r.value or b"")) for r in records]
    return found


async def by_getone(consumer: Consumer) -> list[tuple[int, bytes]]:
    records = [await consumer.getone(timeout_ms=5000) for _ in range(10 - START)]
    return [(r.offset, bytes(r.value or b"")) for r in records]


async def by_iteration(consumer: Consumer) -> list[tuple[int, bytes]]:
    found = []
    async for r in consumer:
        found.append((r.offset, bytes(r.value or b"")))
        if r.offset == 9:
            break
    return found


async def by_batches(consumer: Consumer) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while not found or found[-1][0] < 9:
        for batches in (await consumer.fetch_batches(timeout_ms=5000)).values():
            for batch in batches:
                found += [(offset, bytes(batch.values[row] or b"")) for row, offset in enumerate(batch.offsets)]
    return found


async def by_arrow(consumer: Consumer) -> list[tuple[int, bytes]]:
    from strandline.client import arrow_batches

    found: list[tuple[int, bytes]] = []
    while not found or found[-1][0] < 9:
        for batches in (await consumer.fetch_batches(timeout_ms=5000)).values():
            for table in arrow_batches(batches):
                rows = table.to_pylist()
                found += [(row["offset"], row["value"]) for row in rows]
    return found


@pytest.mark.parametrize("read", [by_getmany, by_getone, by_iteration, by_batches, by_arrow])
@pytest.mark.parametrize("compression", ["producer", "zstd"])
async def test_consumers_begin_inside_a_batch(
    read: Callable[[Consumer], Awaitable[list[tuple[int, bytes]]]], compression: str
) -> None:
    """The broker returns the batch whole, and no consumer shows its deleted records."""
    async with WireCluster() as cluster:
        await filled(cluster, compression_type=compression)
        await trim(cluster)
        async with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            await consumer.assign([PLACE])
            assert await consumer.beginning_offsets([PLACE]) == {PLACE: START}
            assert await read(consumer) == [(offset, VALUES[offset]) for offset in range(START, 10)]


async def test_consumer_below_the_start_is_reset() -> None:
    async with WireCluster() as cluster:
        await filled(cluster)
        async with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            await consumer.assign([PLACE])
            await trim(cluster)
            consumer.seek(PLACE, 2)
            assert [offset for offset, _ in await by_getmany(consumer)] == [*range(START, 10)]


async def test_timestamps_of_deleted_records_find_the_first_one_left() -> None:
    async with WireCluster() as cluster:
        await filled(cluster)
        await trim(cluster)
        async with cluster.admin() as admin:
            found = (await admin.list_offsets({PLACE: 0}))[PLACE]
        assert found is not None
        assert found.offset == START


async def test_replica_without_its_log_begins_inside_a_batch() -> None:
    """It lost its disk while the records were deleted (KAFKA-6975). It gets the batch whole, and may lead."""
    async with WireCluster(brokers=3) as cluster:
        topic_id = await filled(cluster, replicas=[[1, 2, 3]], min_insync_replicas="2")
        await cluster.kill(3)
        await trim(cluster)
        cluster.disk(3).remove_tree("/data/broker-3/orders-0")
        await cluster.start(3)
        leader = cluster.replica(1, topic_id)
        await until(lambda: leader.leader_state is not None and len(leader.leader_state.isr.isr) == 3, "3 is back in the ISR")
        log = cluster.replica(3, topic_id).log
        assert (log.log_start_offset, log.log_end_offset, log.segments[0].base_offset) == (START, 10, 4)
        assert await cluster.force_election("orders", leader=3) == 3
        answer, values = await cluster.fetch(3, topic_id, START)
        assert (answer.log_start_offset, values[-1]) == (START, "9")
        await cluster.kill(3)
        await cluster.start(3)
        await until(lambda: cluster.replica(3, topic_id).log.high_watermark == 10, "3 has recovered its log")
        assert cluster.replica(3, topic_id).log.log_start_offset == START


async def test_deleted_records_stay_away_when_all_brokers_die() -> None:
    async with WireCluster(brokers=3) as cluster:
        topic_id = await filled(cluster, replicas=[[1, 2, 3]], min_insync_replicas="2")
        await trim(cluster)
        # A follower writes its log start after the leader has heard of it.
        files = {f"/data/broker-{node}/log-start-offset-checkpoint": cluster.disk(node) for node in (1, 2, 3)}

        def are_saved() -> bool:
            return all(disk.exists(path) and b"orders 0 6" in disk.read(path) for path, disk in files.items())

        await until(are_saved, "the starts are saved")
        await cluster.kill(1, 2, 3)
        await cluster.start(1, 2, 3)
        leader = await cluster.leader_of("orders")
        await until(lambda: cluster.replica(leader, topic_id).leader_state is not None, "there is a leader")
        assert {cluster.replica(node, topic_id).log.log_start_offset for node in (1, 2, 3)} == {START}
