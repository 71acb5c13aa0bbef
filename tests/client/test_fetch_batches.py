"""`Consumer.fetch_batches`: what `getmany` reads, by column, with the same positions, waits and errors."""

from __future__ import annotations

import asyncio
import json

import pytest

from strandline.client import Consumer, FetchedBatch, TopicPartition, arrow_batches
from strandline.client.errors import CorruptRecords, LogTruncated, OffsetOutOfRange, UnknownTopic, UsageError
from strandline.protocol.records.batch import CRC_POS, compute_crc
from strandline.protocol.records.builder import RecordTuple, encode_batch

from .scripted import ScriptedCluster

ORDERS = TopicPartition("orders", 0)
TIME = 1_700_000_000_000


def fill(cluster: ScriptedCluster, count: int, index: int = 0, per_batch: int = 10, first: int = 0) -> None:
    """Records named by their number, in batches."""
    for start in range(first, first + count, per_batch):
        numbers = range(start, min(start + per_batch, first + count))
        append(cluster, [(b"k", b"%d" % n, [], TIME + n) for n in numbers], index)


def append(cluster: ScriptedCluster, records: list[RecordTuple], index: int = 0) -> None:
    cluster.partition("orders", index).append(memoryview(bytearray(encode_batch(records))))


def earliest(cluster: ScriptedCluster, *topics: str, **options: object) -> Consumer:
    return Consumer(*topics, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", **options)


def offsets(batches: list[FetchedBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.offsets]


async def read(consumer: Consumer, count: int, within_s: float = 5, **limits: int) -> list[FetchedBatch]:
    batches: list[FetchedBatch] = []
    async with asyncio.timeout(within_s):
        while sum(map(len, batches)) < count:
            for more in (await consumer.fetch_batches(timeout_ms=1000, **limits)).values():
                batches += more
    return batches


MIXED: list[list[RecordTuple]] = [
    [(None, b"%03d" % n, [], TIME) for n in range(100)],
    [(b"k%d" % n, None if n % 3 else b"v" * n, [("h", b"x")] * (n % 2), TIME + n) for n in range(30)],
    [(None, b"v" * n, [], TIME) for n in range(70)],
    [(b"k", b"", [], TIME)],
]


async def test_it_returns_what_getmany_returns() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 3)
        for index in range(3):
            for records in MIXED[index:]:
                append(cluster, records, index)
        by_record, by_column = [], []
        async with earliest(cluster, "orders", max_partition_fetch_bytes=3000) as consumer:
            while len(by_record) < 201 + 101 + 71:
                polled = await consumer.getmany(timeout_ms=1000)
                by_record += [r for records in polled.values() for r in records]
        async with earliest(cluster, "orders", max_partition_fetch_bytes=3000) as consumer:
            for batch in await read(consumer, 201 + 101 + 71):
                shown = batch.headers or [()] * len(batch)
                places = [(batch.topic, batch.partition, batch.leader_epoch)] * len(batch)
                by_column += zip(places, batch.offsets, batch.timestamps_ms, batch.keys, batch.values, shown, strict=True)
            assert consumer.metrics()["partitions"]["orders-0"]["lag"] == 0
        expected = [
            ((r.topic, r.partition, r.leader_epoch), r.offset, r.timestamp_ms, r.key, r.value, tuple(r.headers))
            for r in by_record
        ]
        assert sorted(by_column, key=lambda row: row[:2]) == sorted(expected, key=lambda row: row[:2])


async def test_what_was_read_becomes_arrow() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, 95)
        async with earliest(cluster, "orders") as consumer:
            batches = [batch.clip(3, 77) for batch in await read(consumer, 95)]
            found = [offset for rows in arrow_batches(batches, rows=30) for offset in rows.column("offset").to_pylist()]
            assert found == list(range(3, 77))


# -- positions --------------------------------------------------------------------------------------------------------


async def test_batch_begins_at_the_position() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, 30)
        async with earliest(cluster) as consumer:
            await consumer.assign([ORDERS])
            consumer.seek(ORDERS, 7)
            assert offsets(await read(consumer, 23)) == list(range(7, 30))
            assert await consumer.position(ORDERS) == 30
            consumer.seek(ORDERS, 28)
            assert offsets(await read(consumer, 2)) == [28, 29]


async def test_batches_and_single_records_alternate() -> None:
    """`fetch_batches` returns the rest of a batch whose first records were returned one by one, and no record twice."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, 50)
        async with earliest(cluster, "orders") as consumer:
            assert [(await consumer.getone()).offset for _ in range(3)] == [0, 1, 2]
            batches = (await consumer.fetch_batches(timeout_ms=1000, max_records=10))[ORDERS]
            assert offsets(batches) == list(range(3, 10))
            assert await consumer.position(ORDERS) == 10
            assert [r.offset for r in (await consumer.getmany(max_records=4))[ORDERS]] == list(range(10, 14))
            assert consumer.metrics()["buffered_bytes"] > 0
            assert offsets(await read(consumer, 36)) == list(range(14, 50))
            assert consumer.metrics()["buffered_bytes"] == 0


async def test_fetch_batches_inside_a_loop_continues_it() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, 30)
        async with earliest(cluster, "orders") as consumer:
            seen, taken = [], []
            async with asyncio.timeout(5):
                async for record in consumer:
                    seen.append(record.offset)
                    if record.offset in (4, 19):
                        taken += offsets((await consumer.fetch_batches(max_records=1)).get(ORDERS, []))
                    if len(seen) + len(taken) == 30:
                        break
            assert taken == [*range(5, 10), *range(20, 30)]
            assert seen == [*range(5), *range(10, 20)]


async def test_only_requested_unpaused_partitions_are_read() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 2)
        other = TopicPartition("orders", 1)
        fill(cluster, 20, 0)
        fill(cluster, 20, 1)
        async with earliest(cluster, "orders") as consumer:
            found: list[FetchedBatch] = []
            while len(offsets(found)) < 20:
                polled = await consumer.fetch_batches(other, timeout_ms=1000)
                assert set(polled) == {other}
                found += polled[other]
            consumer.pause(ORDERS)
            assert await consumer.fetch_batches(timeout_ms=50) == {}
            consumer.resume(ORDERS)
            assert offsets(await read(consumer, 20)) == list(range(20))


async def test_control_batches_only_move_the_position() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        partition = cluster.partition("orders")
        control = encode_batch([(b"\0\0\0\0", b"\0\0\0\0\0\0", [], 1)], is_control=True)
        partition.append(memoryview(bytearray(control)))
        batch = bytearray(encode_batch([(None, b"kept", [], 1)]))
        batch[23:27] = (9).to_bytes(4, "big")  # last offset delta 9: offsets 2..10 were removed
        batch[CRC_POS : CRC_POS + 4] = compute_crc(batch, 0, len(batch)).to_bytes(4, "big")
        partition.append(memoryview(batch))
        partition.log.values += [b""] * 9
        async with earliest(cluster, "orders") as consumer:
            (kept,) = await read(consumer, 1)
            assert (list(kept.offsets), kept.next_offset) == ([1], 11)
            assert await consumer.position(ORDERS) == 11
            assert await consumer.fetch_batches(timeout_ms=50) == {}
            fill(cluster, 1, first=11)
            assert offsets(await read(consumer, 1)) == [11]


# -- limits -----------------------------------------------------------------------------------------------------------


async def test_limits_keep_batches_whole() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, 100)
        async with earliest(cluster, "orders") as consumer:
            sizes = []
            for limits in ({"max_records": 25}, {"max_records": 9}, {"max_bytes": 1}, {"max_bytes": 450}):
                batches = (await consumer.fetch_batches(timeout_ms=1000, **limits))[ORDERS]
                sizes.append(len(offsets(batches)))
            assert sizes == [20, 10, 10, 20]
            assert offsets(await read(consumer, 40)) == list(range(60, 100))


async def test_partition_without_room_keeps_its_turn() -> None:
    """A partition of large batches must not starve beside one of small batches, for which there is always room."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 2)
        fill(cluster, 40, 0, per_batch=4)
        fill(cluster, 40, 1, per_batch=8)
        async with earliest(cluster, "orders") as consumer:
            for index in range(2):
                await consumer.getone(TopicPartition("orders", index))
            turns: list[tuple[int, int]] = []
            while sum(count for _, count in turns) < 78:
                polled = await consumer.fetch_batches(timeout_ms=1000, max_records=8)
                turns += [(place.partition, len(offsets(batches))) for place, batches in polled.items()]
            assert turns[:4] == [(0, 7), (1, 7), (0, 8), (1, 8)]


async def test_limits_below_one_are_refused() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with earliest(cluster, "orders") as consumer:
            with pytest.raises(UsageError, match="max_records is a whole number of at least 1"):
                await consumer.fetch_batches(max_records=0)
            with pytest.raises(UsageError, match="max_bytes is a whole number of at least 1"):
                await consumer.fetch_batches(max_bytes=-1)
            with pytest.raises(UsageError, match="max_records is a whole number of at least 1"):
                await consumer.getmany(max_records=-1)


async def test_max_poll_records_is_its_limit_too() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, 100)
        async with earliest(cluster, "orders", max_poll_records=30) as consumer:
            assert offsets((await consumer.fetch_batches(timeout_ms=1000))[ORDERS]) == list(range(30))


# -- errors -----------------------------------------------------------------------------------------------------------


async def test_corrupt_batch_does_not_lose_batches_before_it() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, 30)
        base, batch = cluster.partition("orders").log.batches[1]
        broken = bytearray(batch)
        broken[-3] ^= 1
        cluster.partition("orders").log.batches[1] = (base, bytes(broken))
        async with earliest(cluster, "orders") as consumer:
            assert offsets(await read(consumer, 10)) == list(range(10))
            with pytest.raises(CorruptRecords, match="offset 10"):
                await consumer.fetch_batches(timeout_ms=1000)
            assert await consumer.position(ORDERS) == 10
            consumer.seek(ORDERS, 20)
            assert offsets(await read(consumer, 10)) == list(range(20, 30))


async def test_invalid_positions_are_errors() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, 100)
        async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="error") as consumer:
            await consumer.assign([ORDERS])
            consumer.seek(ORDERS, 500)
            with pytest.raises(OffsetOutOfRange, match="500 is outside the log"):
                await consumer.fetch_batches(timeout_ms=1000)
            consumer.seek(ORDERS, 0)
            await read(consumer, 100)
            partition = cluster.partition("orders")
            del partition.log.values[80:]
            partition.log.batches = [item for item in partition.log.batches if item[0] < 80]
            cluster.move_leader("orders", 0, 2)
            fill(cluster, 50, first=80)
            with pytest.raises(LogTruncated) as lost:
                await read(consumer, 1)
            assert (lost.value.position, lost.value.diverging_offset) == (100, 80)


async def test_a_missing_topic_and_a_dead_cluster() -> None:
    async with ScriptedCluster() as cluster:
        async with earliest(cluster, "ordres") as consumer:
            with pytest.raises(UnknownTopic, match="ordres"):
                await consumer.fetch_batches(timeout_ms=5000)
        cluster.create("orders")
        async with earliest(cluster, "orders") as consumer:
            for broker in cluster.brokers.values():
                await broker.stop()
            async with asyncio.timeout(3):
                assert await consumer.fetch_batches(timeout_ms=100) == {}


async def test_deserializers_do_not_apply() -> None:
    """A record that they cannot read blocks nothing here, even if records before it were deserialized."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        append(cluster, [(b"key", value, [], 1) for value in (b'{"n": 1}', b'{"n": 2}', b"not json")])
        async with earliest(cluster, "orders", value_deserializer=json.loads) as consumer:
            assert (await consumer.getone(timeout_ms=1000)).value == {"n": 1}
            (batch,) = (await consumer.fetch_batches(timeout_ms=1000))[ORDERS]
            assert list(batch.values) == [b'{"n": 2}', b"not json"]
            assert await consumer.position(ORDERS) == 3
