"""The consumer against real sockets and a scripted cluster: which records are read, from where, and which errors are raised."""

from __future__ import annotations

import asyncio
import json
import struct

import pytest
from structlog.testing import capture_logs
from waiting import until

from strandline.client import Consumer, Producer, TopicPartition
from strandline.client.errors import (
    ClientClosed,
    ClientError,
    CorruptRecords,
    LogTruncated,
    NoBrokersAvailable,
    OffsetOutOfRange,
    RequestFailed,
    RequestTimeout,
    UnknownTopic,
    UsageError,
)
from strandline.protocol.apis import LIST_OFFSETS
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.data import LATEST_TIMESTAMP
from strandline.protocol.records.batch import CRC_POS, HEADER_SIZE, compute_crc
from strandline.protocol.records.builder import encode_batch

from .scripted import ScriptedCluster

ORDERS = TopicPartition("orders", 0)


def fill(cluster: ScriptedCluster, topic: str, count: int, index: int = 0, per_batch: int = 10, first: int = 0) -> None:
    """Records named by their number, in batches."""
    partition = cluster.partition(topic, index)
    for start in range(first, first + count, per_batch):
        numbers = range(start, min(start + per_batch, first + count))
        batch = encode_batch([(b"k", b"%d" % n, [], 1_700_000_000_000 + n) for n in numbers])
        partition.append(memoryview(bytearray(batch)))


async def read(consumer: Consumer, count: int, within_s: float = 5) -> list[bytes]:
    values: list[bytes] = []
    async with asyncio.timeout(within_s):
        while len(values) < count:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                values += [record.value for record in records]
    return values


def earliest(cluster: ScriptedCluster, *topics: str, **options: object) -> Consumer:
    return Consumer(*topics, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", **options)


async def test_all_partitions_are_read_in_order() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 6)
        for index in range(6):
            fill(cluster, "orders", 500, index)
        async with earliest(cluster, "orders", max_partition_fetch_bytes=2000) as consumer:
            seen: dict[int, list[int]] = {}
            async with asyncio.timeout(5):
                async for record in consumer:
                    seen.setdefault(record.partition, []).append(record.offset)
                    assert record.value == b"%d" % record.offset
                    if sum(map(len, seen.values())) == 3000:
                        break
            assert seen == {index: list(range(500)) for index in range(6)}
            assert consumer.metrics()["partitions"]["orders-0"]["lag"] == 0


async def test_new_records_wake_a_waiting_consumer() -> None:
    """The append answers the waiting fetch, not its timeout."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 2)
        async with (
            earliest(cluster, "orders", fetch_max_wait_ms=10_000) as consumer,
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
        ):
            for i in range(20):
                await producer.send_and_wait("orders", b"%d" % i, key=b"%d" % i, headers=[("h", b"x")])
                record = await consumer.getone(timeout_ms=2000)
                assert (record.key, record.value, list(record.headers)) == (b"%d" % i, b"%d" % i, [("h", b"x")])


async def test_latest_begins_at_the_end() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 100)
        async with Consumer("orders", bootstrap_servers=cluster.bootstrap) as consumer:
            assert await consumer.position(ORDERS) == 100
            fill(cluster, "orders", 1, first=100)
            assert await read(consumer, 1) == [b"100"]


async def test_records_before_the_position_are_skipped() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 30)
        async with earliest(cluster) as consumer:
            await consumer.assign([ORDERS])
            consumer.seek(ORDERS, 7)
            assert await read(consumer, 23) == [b"%d" % n for n in range(7, 30)]


async def test_max_records_splits_batches_exactly() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 100)
        async with earliest(cluster, "orders") as consumer:
            values: list[bytes] = []
            while len(values) < 100:
                got = await consumer.getmany(timeout_ms=1000, max_records=7)
                records = got[ORDERS]
                assert len(records) <= 7
                values += [record.value for record in records]
                assert await consumer.position(ORDERS) == len(values)
            assert values == [b"%d" % n for n in range(100)]


async def test_leaving_an_async_for_loses_nothing() -> None:
    """The position moves with each record of the loop body; getone and a second loop continue after it."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 50)
        async with earliest(cluster, "orders") as consumer:
            async for record in consumer:
                if record.offset == 12:
                    break
            assert await consumer.position(ORDERS) == 13
            assert (await consumer.getone()).offset == 13
            async for record in consumer:
                assert record.offset == 14
                break
            assert [r.offset for r in (await consumer.getmany(timeout_ms=100))[ORDERS]] == list(range(15, 50))


async def test_seek_inside_a_loop_takes_effect_at_once() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 50)
        async with earliest(cluster, "orders") as consumer:
            seen = []
            async with asyncio.timeout(5):
                async for record in consumer:
                    seen.append(record.offset)
                    if len(seen) == 5:
                        consumer.seek(ORDERS, 40)
                    if record.offset == 49:
                        break
            assert seen == [0, 1, 2, 3, 4, *range(40, 50)]


async def test_seek_to_the_position_keeps_the_buffer() -> None:
    """It would only fetch the same records again."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 50)
        async with earliest(cluster, "orders") as consumer:
            assert (await consumer.getone()).offset == 0
            fetched = consumer.metrics()["fetched_bytes"]
            consumer.seek(ORDERS, 1)
            assert await consumer.position(ORDERS) == 1
            assert await read(consumer, 49) == [b"%d" % n for n in range(1, 50)]
            assert consumer.metrics()["fetched_bytes"] == fetched
            consumer.seek(ORDERS, 1)
            assert await read(consumer, 49) == [b"%d" % n for n in range(1, 50)]
            assert consumer.metrics()["fetched_bytes"] > fetched


async def test_seek_does_not_wait_for_the_parked_fetch() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 2)
        fill(cluster, "orders", 20)
        async with earliest(cluster, "orders", fetch_max_wait_ms=10_000) as consumer:
            await read(consumer, 20)
            consumer.seek(ORDERS, 5)
            assert await read(consumer, 15, within_s=2) == [b"%d" % n for n in range(5, 20)]
            consumer.seek(ORDERS, 18)
            fill(cluster, "orders", 5, first=20)
            assert await read(consumer, 7, within_s=2) == [b"%d" % n for n in range(18, 25)]


async def test_resume_continues_where_pause_stopped() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 2)
        for index in range(2):
            fill(cluster, "orders", 50, index)
        async with earliest(cluster, "orders") as consumer:
            first = await consumer.getone(ORDERS)
            assert first.offset == 0
            consumer.pause(ORDERS)
            assert consumer.paused() == {ORDERS}
            others = await read(consumer, 50)
            assert others == [b"%d" % n for n in range(50)]
            assert await consumer.getmany(timeout_ms=50) == {}
            consumer.resume(ORDERS)
            assert await read(consumer, 49) == [b"%d" % n for n in range(1, 50)]


async def test_compacted_batch_moves_the_position_to_its_end() -> None:
    """Compaction removes records at the end of a batch and keeps its last offset: the next fetch begins after that."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        partition = cluster.partition("orders")
        batch = bytearray(encode_batch([(None, b"kept", [], 1)]))
        batch[23:27] = (9).to_bytes(4, "big")  # last offset delta 9: offsets 1..9 were removed
        from strandline.protocol.records.batch import CRC_POS, compute_crc

        batch[CRC_POS : CRC_POS + 4] = compute_crc(batch, 0, len(batch)).to_bytes(4, "big")
        partition.append(memoryview(batch))
        partition.log.values += [b""] * 9
        fill(cluster, "orders", 1, first=10)
        async with earliest(cluster, "orders") as consumer:
            assert await read(consumer, 2) == [b"kept", b"10"]
            assert await consumer.position(ORDERS) == 11


async def test_control_batches_are_skipped_and_counted() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        control = encode_batch([(b"\0\0\0\0", b"\0\0\0\0\0\0", [], 1)], is_control=True)
        cluster.partition("orders").append(memoryview(bytearray(control)))
        async with earliest(cluster, "orders") as consumer:
            assert await consumer.getmany(timeout_ms=100) == {}
            fill(cluster, "orders", 1, first=1)
            record = await consumer.getone(timeout_ms=1000)
            assert (record.offset, record.value) == (1, b"1")


async def test_offsets_by_time_beginning_and_end() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 3)
        fill(cluster, "orders", 30, 0)
        cluster.partition("orders", 0).start_offset = 10
        async with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
            places = [TopicPartition("orders", index) for index in range(3)]
            assert await consumer.beginning_offsets(places) == {places[0]: 10, places[1]: 0, places[2]: 0}
            assert await consumer.end_offsets(places) == {places[0]: 30, places[1]: 0, places[2]: 0}
            found = await consumer.offsets_for_times({places[0]: 1_700_000_000_015, places[1]: 5})
            assert found[places[0]].offset == 10
            assert found[places[1]] is None
            await consumer.assign(places)
            await consumer.seek_to_beginning()
            assert await consumer.position(places[0]) == 10
            await consumer.seek_to_end(places[0])
            assert await consumer.position(places[0]) == 30


async def test_new_partitions_are_read_from_their_beginning() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 1)
        async with Consumer("orders", bootstrap_servers=cluster.bootstrap, metadata_max_age_ms=50) as consumer:
            assert await consumer.position(ORDERS) == 0
            cluster.create("orders", 3)
            fill(cluster, "orders", 5, 2)
            assert await read(consumer, 5) == [b"%d" % n for n in range(5)]
            assert len(consumer.assignment()) == 3


# -- leaders ----------------------------------------------------------------------------------------------------------


async def test_reading_survives_killed_leaders_and_lost_sessions() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 3)
        for index in range(3):
            fill(cluster, "orders", 20, index)
        async with earliest(cluster, "orders") as consumer:
            await read(consumer, 60)
            cluster.brokers[2].sessions.clear()
            await cluster.brokers[1].stop()
            cluster.move_leader("orders", 0, 3)
            for index in range(3):
                fill(cluster, "orders", 20, index, first=20)
            assert sorted(await read(consumer, 60)) == sorted([b"%d" % n for n in range(20, 40)] * 3)


async def test_leader_change_validates_the_position() -> None:
    """S28: read to 100 in epoch 0; the new leader has only 80 of them. The consumer must not silently read other records at the
    old offsets."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 100)
        async with earliest(cluster, "orders") as consumer:
            await read(consumer, 100)
            partition = cluster.partition("orders")
            del partition.log.values[80:]
            partition.log.batches = [item for item in partition.log.batches if item[0] < 80]
            cluster.move_leader("orders", 0, 2)
            fill(cluster, "orders", 50, first=80)
            with pytest.raises(LogTruncated) as lost:
                await read(consumer, 1)
            error = lost.value
            assert (error.position, error.position_epoch, error.diverging_offset, error.diverging_epoch) == (100, 0, 80, 0)
            assert "orders-0" in str(error)
            with pytest.raises(LogTruncated):
                await consumer.getmany(timeout_ms=100)
            assert consumer.health()["state"] == "degraded"
            consumer.seek(ORDERS, error.diverging_offset)
            assert await read(consumer, 50) == [b"%d" % n for n in range(80, 130)]


async def test_seek_with_leader_epoch_is_validated() -> None:
    """A checkpoint of last week: the log was truncated and has grown again since, so the offset alone proves nothing."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 80)
        cluster.move_leader("orders", 0, 2)
        fill(cluster, "orders", 50, first=80)
        async with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
            (end,) = (await consumer.list_offsets({ORDERS: LATEST_TIMESTAMP})).values()
            assert end is not None
            assert end.offset == 130
            await consumer.assign([ORDERS])
            consumer.seek(ORDERS, 100, leader_epoch=0)
            with pytest.raises(LogTruncated) as lost:
                await read(consumer, 1)
            assert (lost.value.position_epoch, lost.value.diverging_offset) == (0, 80)
            consumer.seek(ORDERS, 100, leader_epoch=1)
            assert await read(consumer, 30) == [b"%d" % n for n in range(100, 130)]


async def test_harmless_leader_change_is_not_noticed() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 100)
        async with earliest(cluster, "orders") as consumer:
            await read(consumer, 100)
            cluster.move_leader("orders", 0, 2)
            fill(cluster, "orders", 10, first=100)
            assert await read(consumer, 10) == [b"%d" % n for n in range(100, 110)]


# -- positions that a leader cannot say yet ---------------------------------------------------------------------------


async def test_failing_look_up_is_repeated_with_growing_pauses() -> None:
    """Otherwise a hundred consumers would each ask a leader that cannot answer yet fifty times per second."""
    async with ScriptedCluster(1) as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 10)
        cluster.offsets_fate = ErrorCode.OFFSET_NOT_AVAILABLE
        async with earliest(cluster, "orders") as consumer:
            assert await consumer.getmany(timeout_ms=1500) == {}
            assert 3 <= len(cluster.offsets_requests) <= 8
            cluster.offsets_fate = ErrorCode.NONE
            assert len(await read(consumer, 10)) == 10


async def test_look_up_that_a_leader_leaves_out_is_repeated_with_pauses() -> None:
    async with ScriptedCluster(1) as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 10)
        cluster.offsets_fate = None
        async with earliest(cluster, "orders") as consumer:
            assert await consumer.getmany(timeout_ms=700) == {}
            assert 2 <= len(cluster.offsets_requests) <= 7
            assert "leaves the partition out" in consumer.health()["last_error"]
            cluster.offsets_fate = ErrorCode.NONE
            assert len(await read(consumer, 10)) == 10


async def test_failing_validation_is_repeated_with_growing_pauses() -> None:
    async with ScriptedCluster(2) as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 10)
        async with earliest(cluster, "orders") as consumer:
            await read(consumer, 10)
            cluster.offsets_requests.clear()
            cluster.offsets_fate = ErrorCode.OFFSET_NOT_AVAILABLE
            cluster.move_leader("orders", 0, 2)
            assert await consumer.getmany(timeout_ms=1500) == {}
            assert 3 <= len(cluster.offsets_requests) <= 8
            cluster.offsets_fate = ErrorCode.NONE
            fill(cluster, "orders", 10, first=10)
            assert len(await read(consumer, 10)) == 10


async def test_reason_of_a_failing_look_up_is_shown() -> None:
    """Without the reason, a consumer that waits for its first position looks like one without new records."""
    async with ScriptedCluster(1) as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 10)
        cluster.offsets_fate = ErrorCode.OFFSET_NOT_AVAILABLE
        with capture_logs() as logs:
            async with earliest(cluster, "orders") as consumer:
                while not (warnings := [line for line in logs if line["log_level"] == "warning"]):
                    assert await consumer.getmany(timeout_ms=100) == {}
                health = consumer.health()
                cluster.offsets_fate = ErrorCode.NONE
                await read(consumer, 10)
                assert (consumer.health()["state"], consumer.health()["last_error"]) == ("ok", None)
        assert health["state"] == "degraded"
        assert "the new leader does not know the high watermark yet" in health["last_error"]
        (warning,) = warnings
        assert (warning["event"], warning["topic"], warning["partition"]) == ("consumer.position_lookup_failed", "orders", 0)
        assert "the new leader does not know the high watermark yet" in warning["reason"]


async def test_seek_overrides_a_look_up_in_flight() -> None:
    """The late response must not move the position back to the start of the log."""
    async with ScriptedCluster(1) as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 10)
        async with earliest(cluster) as consumer:
            broker = cluster.brokers[1]
            assert broker.server is not None
            answer = broker.server.handlers[LIST_OFFSETS]
            broker.server.handlers[LIST_OFFSETS] = broker.held.append
            await consumer.assign([ORDERS])
            await until(lambda: broker.held)
            consumer.seek(ORDERS, 7)
            for request in broker.held:
                answer(request)
            assert await read(consumer, 3) == [b"7", b"8", b"9"]
            assert await consumer.getmany(timeout_ms=200) == {}


async def test_position_names_the_reason_of_its_timeout() -> None:
    async with ScriptedCluster(1) as cluster:
        cluster.create("orders")
        cluster.offsets_fate = ErrorCode.OFFSET_NOT_AVAILABLE
        async with earliest(cluster, "orders", max_block_ms=1000) as consumer:
            await consumer.getmany(timeout_ms=100)
            with pytest.raises(RequestTimeout, match=r"not known yet: .*does not know the high watermark yet"):
                await consumer.position(ORDERS)
            assert len(cluster.offsets_requests) <= 8


async def test_refused_look_up_is_an_error_and_is_not_repeated() -> None:
    async with ScriptedCluster(1) as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 10)
        cluster.offsets_fate = ErrorCode.INVALID_REQUEST
        async with earliest(cluster, "orders") as consumer:
            with pytest.raises(RequestFailed, match="orders-0"):
                await consumer.getmany(timeout_ms=2000)
            with pytest.raises(RequestFailed):
                await consumer.getmany(timeout_ms=300)
            assert len(cluster.offsets_requests) == 1
            cluster.offsets_fate = ErrorCode.NONE
            await consumer.seek_to_beginning(ORDERS)
            assert len(await read(consumer, 10)) == 10


# -- errors -----------------------------------------------------------------------------------------------------------


async def test_position_outside_the_log_follows_the_policy() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 30)
        cluster.partition("orders").start_offset = 20
        async with earliest(cluster) as consumer:
            await consumer.assign([ORDERS])
            consumer.seek(ORDERS, 5)
            assert await read(consumer, 10) == [b"%d" % n for n in range(20, 30)]
        async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="error") as strict:
            await strict.assign([ORDERS])
            with pytest.raises(OffsetOutOfRange, match="no position"):
                await strict.getone(timeout_ms=1000)
            strict.seek(ORDERS, 5)
            with pytest.raises(OffsetOutOfRange, match="5 is outside the log") as refused:
                await strict.getone(timeout_ms=1000)
            assert "-1" not in str(refused.value)  # a broker that refuses a fetch leaves the bounds out
            strict.seek(ORDERS, 25)
            assert (await strict.getone(timeout_ms=1000)).offset == 25


async def test_corrupt_batch_does_not_lose_records_before_it() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 30)
        base, batch = cluster.partition("orders").log.batches[1]
        broken = bytearray(batch)
        broken[-3] ^= 1
        cluster.partition("orders").log.batches[1] = (base, bytes(broken))
        async with earliest(cluster, "orders") as consumer:
            assert await read(consumer, 10) == [b"%d" % n for n in range(10)]
            with pytest.raises(CorruptRecords, match="offset 10"):
                await consumer.getone(timeout_ms=1000)
            assert await consumer.position(ORDERS) == 10
            consumer.seek(ORDERS, 20)
            assert (await consumer.getone(timeout_ms=1000)).offset == 20


async def test_news_is_noticed_while_a_failed_partition_is_paused() -> None:
    """With a failed partition, a call that returns records yields to other tasks once. Records that arrived in that moment used
    to be missed: the call slept until the next event, or forever. A program pauses a partition that has failed, and a rebalance
    holds it: so `getone` of a new member with `auto_offset_reset="none"` hung."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders", partitions=2)
        fill(cluster, "orders", 2, index=1)
        failing, fine = ORDERS, TopicPartition("orders", 1)
        async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="error") as consumer:
            await consumer.assign([failing, fine])
            consumer.seek(fine, 0)
            with pytest.raises(OffsetOutOfRange):
                await consumer.getone(failing)
            consumer.pause(failing)
            assert (await consumer.getone(fine, timeout_ms=5000)).value == b"0"
            consumer.pause(fine)
            call = asyncio.create_task(consumer.getone())
            await asyncio.sleep(0)
            consumer.resume(fine)
            async with asyncio.timeout(5):
                assert (await call).value == b"1"


async def test_loop_that_ignores_an_error_lets_others_run() -> None:
    """`getone` used to raise without an await in between: no other task ran, not even the one that would have ended the loop."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="error") as consumer:
            await consumer.assign([ORDERS])
            others = asyncio.create_task(asyncio.sleep(0))
            for _ in range(100):
                with pytest.raises(OffsetOutOfRange):
                    await consumer.getone()
            assert others.done()


def malform(kind: str, batch: bytes) -> bytes:
    """A batch that an older broker accepted, with a valid checksum; or one that was damaged later."""
    broken = bytearray(batch)
    if kind == "damaged":
        broken[-3] ^= 1
        return bytes(broken)
    if kind == "noise":
        broken[HEADER_SIZE:] = bytes(range(256)) * 100 if len(broken) > 25_000 else b"\xff" * (len(broken) - HEADER_SIZE)
    elif kind == "codec":
        broken[22] |= 4  # zstd
    elif kind == "count":
        broken[HEADER_SIZE - 1] -= 1
    struct.pack_into(">I", broken, CRC_POS, compute_crc(broken, 0, len(broken)))
    return bytes(broken)


@pytest.mark.parametrize("kind", ["damaged", "noise", "codec", "count"])
@pytest.mark.parametrize("how", ["getone", "getmany", "fetch_batches", "async for"])
async def test_batch_that_cannot_be_read_is_skipped_on_demand(kind: str, how: str) -> None:
    """By default each poll raises the error of the batch, and the error says how to continue."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 30)
        base, batch = cluster.partition("orders").log.batches[1]
        cluster.partition("orders").log.batches[1] = (base, malform(kind, batch))
        with capture_logs() as logs:
            async with earliest(cluster, "orders") as consumer:
                assert await read(consumer, 10) == [b"%d" % n for n in range(10)]
                with pytest.raises(CorruptRecords, match=r'offset 10 \(to 19\).*on_corrupt_batch="skip" or seek to 20') as raised:
                    await consumer.getone(timeout_ms=1000)
        assert (raised.value.first_offset, raised.value.last_offset) == (10, 19)
        assert not [entry for entry in logs if entry["event"] == "consumer.batch_skipped"]
        with capture_logs() as logs:
            async with earliest(cluster, "orders", on_corrupt_batch="skip") as consumer, asyncio.timeout(5):
                offsets = await offsets_read(consumer, how, 20)
                assert offsets == [*range(10), *range(20, 30)]
                assert await consumer.position(ORDERS) == 30
                metrics = consumer.metrics()
                assert (metrics["skipped_batches"], metrics["skipped_offsets"]) == (1, 10)
    (skipped,) = [entry for entry in logs if entry["event"] == "consumer.batch_skipped"]
    fields = ("topic", "partition", "first_offset", "last_offset")
    assert tuple(skipped[field] for field in fields) == ("orders", 0, 10, 19)


def damage_header(field: str, batch: bytes) -> bytes:
    """One flipped bit in a header, and the checksum as it was."""
    at, bit = {"end": (23, 1), "near end": (26, 32), "control": (22, 32), "count": (60, 2)}[field]
    broken = bytearray(batch)
    broken[at] ^= bit
    return bytes(broken)


@pytest.mark.parametrize("how", ["getone", "getmany", "fetch_batches", "async for"])
@pytest.mark.parametrize("field", ["end", "near end", "control", "count"])
async def test_skipping_a_damaged_header_loses_no_other_batch(field: str, how: str) -> None:
    """The client used to trust the end offset that the header claims: the position moved there, and the reset policy applied."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 100)
        base, batch = cluster.partition("orders").log.batches[1]
        cluster.partition("orders").log.batches[1] = (base, damage_header(field, batch))
        async with earliest(cluster, "orders", on_corrupt_batch="skip") as consumer, asyncio.timeout(5):
            assert await offsets_read(consumer, how, 90) == [*range(10), *range(20, 100)]
            assert await consumer.position(ORDERS) == 100
            assert consumer.metrics()["skipped_offsets"] == 10


async def test_batch_whose_end_is_not_known_is_not_skipped() -> None:
    """The log has no later batch yet that would show where the damaged one ends, so continuing could miss the next batch."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 20)
        base, batch = cluster.partition("orders").log.batches[1]
        cluster.partition("orders").log.batches[1] = (base, damage_header("end", batch))
        async with earliest(cluster, "orders", on_corrupt_batch="skip") as consumer:
            assert await read(consumer, 10) == [b"%d" % n for n in range(10)]
            with pytest.raises(CorruptRecords, match=r"offset 10 cannot be read.*its end is not known: seek behind it"):
                await consumer.getone(timeout_ms=1000)
            consumer.seek(ORDERS, 20)
            fill(cluster, "orders", 1, first=20)
            assert (await consumer.getone(timeout_ms=1000)).value == b"20"


async def test_damaged_batch_is_not_skipped_as_a_control_batch() -> None:
    """The checksums of batches without records for the program used not to be verified."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 30)
        base, batch = cluster.partition("orders").log.batches[1]
        cluster.partition("orders").log.batches[1] = (base, damage_header("control", batch))
        async with earliest(cluster, "orders") as consumer:
            assert await read(consumer, 10) == [b"%d" % n for n in range(10)]
            with pytest.raises(CorruptRecords, match=r"offset 10 .to 19. cannot be read.*checksum"):
                await consumer.getone(timeout_ms=1000)


async def offsets_read(consumer: Consumer, how: str, count: int) -> list[int]:
    offsets: list[int] = []
    if how == "async for":
        async for record in consumer:
            offsets.append(record.offset)
            if len(offsets) == count:
                break
        await consumer.getmany()
    while len(offsets) < count:
        if how == "getone":
            offsets.append((await consumer.getone()).offset)
        elif how == "getmany":
            offsets += [record.offset for records in (await consumer.getmany(timeout_ms=100)).values() for record in records]
        else:
            for batches in (await consumer.fetch_batches(timeout_ms=100)).values():
                offsets += [offset for batch in batches for offset in batch.offsets]
    return offsets


async def test_failing_deserializer_keeps_records_before_it() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        values = [b'{"n": 1}', b'{"n": 2}', b"not json", b'{"n": 4}']
        batch = encode_batch([(b"key", value, [], 1) for value in values])
        cluster.partition("orders").append(memoryview(bytearray(batch)))
        async with earliest(cluster, "orders", value_deserializer=json.loads, key_deserializer=bytes.decode) as consumer:
            first, second = await consumer.getone(), await consumer.getone()
            assert (first.key, first.value, second.value) == ("key", {"n": 1}, {"n": 2})
            with pytest.raises(ClientError, match="offset 2"):
                await consumer.getone(timeout_ms=1000)
            consumer.seek(ORDERS, 3)
            assert (await consumer.getone(timeout_ms=1000)).value == {"n": 4}


async def test_missing_topic_is_raised_and_stalls_no_other() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 10)
        async with earliest(cluster, "orders", "ordres") as consumer:
            assert len(await read(consumer, 10)) == 10
            with pytest.raises(UnknownTopic, match="ordres"):
                await consumer.getone(timeout_ms=5000)
        async with earliest(cluster, "later", on_missing_topic="wait") as consumer:
            assert await consumer.getmany(timeout_ms=50) == {}
            cluster.create("later")
            fill(cluster, "later", 3)
            assert len(await read(consumer, 3)) == 3


async def test_calls_are_bounded_when_the_cluster_is_dead() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 5)
        consumer = earliest(cluster, "orders", max_block_ms=200)
        await consumer.start()
        await read(consumer, 5)
        for broker in cluster.brokers.values():
            await broker.stop()
        async with asyncio.timeout(3):
            assert await consumer.getmany(timeout_ms=100) == {}
            with pytest.raises(RequestTimeout):
                await consumer.getone(timeout_ms=100)
            with pytest.raises((RequestTimeout, NoBrokersAvailable)):
                await consumer.end_offsets([ORDERS])
            with pytest.raises((RequestTimeout, NoBrokersAvailable)):
                await consumer.partitions_for_topic("other")
            waiting = asyncio.create_task(consumer.getone())
            assert consumer.health()["state"] == "degraded"
            await consumer.stop()
            with pytest.raises(ClientClosed):
                await waiting


@pytest.mark.parametrize("wanted", [{"pattern": "orders.*"}, {"on_revoked": print}])
async def test_what_belongs_to_a_group_needs_one(wanted: dict[str, object]) -> None:
    """Without a coordinator, the pattern would not be evaluated, and the callbacks would never be called."""
    consumer = Consumer(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(UsageError, match="need a group_id"):
        consumer.subscribe(**wanted)
    for options in ({"group_instance_id": "a"}, {"group_remote_assignor": "range"}):
        with pytest.raises(UsageError, match="need a group_id"):
            Consumer(bootstrap_servers="127.0.0.1:1", **options)


async def test_idle_consumer_parks_one_fetch_per_broker() -> None:
    """KIP-227: after the first request a partition is listed again only when its position moved."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 9)
        async with earliest(cluster, "orders", fetch_max_wait_ms=30) as consumer:
            await consumer.getmany(timeout_ms=300)
            assert [len(request.partitions) for request in cluster.fetch_requests[-3:]] == [0, 0, 0]
            fill(cluster, "orders", 1, 4)
            await consumer.getone(timeout_ms=1000)
            await consumer.getmany(timeout_ms=100)
            listed = [request for request in cluster.fetch_requests if request.session_epoch > 0 and request.partitions]
            assert [len(request.partitions) for request in listed] == [1]


async def test_new_assignment_forgets_old_partitions() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 2)
        cluster.create("other")
        fill(cluster, "orders", 50)
        fill(cluster, "other", 5)
        async with earliest(cluster, "orders", fetch_max_wait_ms=10_000) as consumer:
            await consumer.getone()
            consumer.subscribe("other")
            assert await read(consumer, 5) == [b"%d" % n for n in range(5)]
            assert consumer.assignment() == {TopicPartition("other", 0)}
            await consumer.assign([ORDERS])
            assert await read(consumer, 50) == [b"%d" % n for n in range(50)]
            await consumer.assign([ORDERS, ("other", 0)])
            assert await consumer.position(ORDERS) == 50
            assert await read(consumer, 5) == [b"%d" % n for n in range(5)]
            consumer.unsubscribe()
            assert consumer.assignment() == set()
            with pytest.raises(UsageError):
                consumer.seek(ORDERS, 1)


async def test_topics_may_be_subscribed_as_a_list() -> None:
    """aiokafka and the other clients take a list; here a list used to be rejected as a wrong name."""
    async with ScriptedCluster() as cluster:
        for topic in ("orders", "other"):
            cluster.create(topic)
            fill(cluster, topic, 5)
        async with earliest(cluster) as consumer:
            for topics in ((["orders", "other"],), ("orders", "other"), (("orders",), {"other"})):
                consumer.subscribe(*topics)
                assert len(await read(consumer, 10)) == 10
                assert consumer.assignment() == {ORDERS, TopicPartition("other", 0)}
                consumer.unsubscribe()
        async with earliest(cluster, ["orders", "other"]) as consumer:  # type: ignore[arg-type]
            assert len(await read(consumer, 10)) == 10
            with pytest.raises(UsageError, match="non-empty str, not 7"):
                consumer.subscribe(["orders", 7])  # type: ignore[list-item]


async def test_record_has_aiokafkas_name_of_the_timestamp() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 1)
        async with earliest(cluster, "orders") as consumer:
            record = await consumer.getone(timeout_ms=5000)
            assert record.timestamp == record.timestamp_ms == 1_700_000_000_000
            found = await consumer.offsets_for_times({ORDERS: 0})
            assert (first := found[ORDERS]) is not None
            assert first.timestamp == first.timestamp_ms


@pytest.mark.parametrize(
    "read_one", [lambda c: c.getone(), lambda c: c.getmany(), lambda c: c.fetch_batches(), lambda c: anext(c.__aiter__())]
)
async def test_assign_without_await_fails_the_next_read(read_one) -> None:
    """aiokafka's assign is a plain call. Here it does nothing without `await`, and the read after it would wait without bound."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 2)
        fill(cluster, "orders", 5)
        async with earliest(cluster) as consumer:
            forgotten = consumer.assign([ORDERS, ("orders", 1)])
            for _ in range(2):
                with pytest.raises(UsageError, match=r"assign\(\) of orders-0, orders-1 was not awaited.*`await consumer.assign"):
                    async with asyncio.timeout(2):
                        await read_one(consumer)
            with pytest.raises(UsageError, match=r"was not awaited"):
                consumer.seek(ORDERS, 0)
            await consumer.assign([ORDERS])
            assert len(await read(consumer, 5)) == 5
            forgotten.close()


async def test_assign_may_run_as_a_task() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 5)
        async with earliest(cluster) as consumer:
            task = asyncio.create_task(consumer.assign([ORDERS]))
            assert (await consumer.getone(timeout_ms=5000)).value == b"0"
            await task


async def test_assign_may_be_called_outside_the_loop_that_runs_it() -> None:
    """`run_coroutine_threadsafe(consumer.assign(...), loop)` is the advised way to call from another thread: the call happens in
    that thread, and the coroutine that it returns runs in the loop."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        fill(cluster, "orders", 5)
        async with earliest(cluster) as consumer:
            loop = asyncio.get_running_loop()
            await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(consumer.assign([ORDERS]), loop).result(5))
            assert len(await read(consumer, 5)) == 5


@pytest.mark.parametrize(
    ("timeout_ms", "wanted_ms", "wait_ms"), [(400, 500, 200), (30_000, 20_000, 20_000), (30_000, 29_000, 25_000)]
)
async def test_broker_holds_a_fetch_for_less_than_the_request_timeout(timeout_ms: int, wanted_ms: int, wait_ms: int) -> None:
    """Otherwise each fetch of an idle consumer failed, with a warning, a refresh of the metadata and a new fetch session. A wait
    that leaves time for the response stays as it is: a program that wants few requests has chosen it."""
    async with ScriptedCluster(1) as cluster:
        cluster.create("orders")
        async with earliest(cluster, "orders", request_timeout_ms=timeout_ms, fetch_max_wait_ms=wanted_ms):
            await until(lambda: bool(cluster.fetch_requests))
            assert {request.max_wait_ms for request in cluster.fetch_requests} == {wait_ms}
