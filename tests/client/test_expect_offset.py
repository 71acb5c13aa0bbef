"""`send(..., expect_offset=n)`: the record gets this offset, or a typed error says where the log ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from strandline.client.errors import BufferFull, ClientClosed, DeliveryFailed, OffsetConflict, RecordTooLarge, UsageError
from strandline.client.options import ProducerOptions
from strandline.client.producer.accumulator import Accumulator
from strandline.client.producer.batch import Conditions
from strandline.client.producer.partition_queue import PartitionQueue, QueueState
from strandline.client.producer.producer import Producer
from strandline.client.producer.receipts import BatchMetadata, Receipts
from strandline.protocol.errors import ErrorCode
from strandline.protocol.records.batch import read_header
from strandline.protocol.records.reader import iter_records

from .scripted import ScriptedCluster


async def test_record_gets_the_expected_offset() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for offset in range(3):
                where = await producer.send_and_wait("orders", b"%d" % offset, partition=0, expect_offset=offset)
                assert where.offset == offset
            receipt = producer.send_nowait("orders", b"3", key=b"k", expect_offset=3)
            assert (await receipt).offset == 3
            assert (await producer.send_and_wait("orders", b"4", partition=0)).offset == 4


@pytest.mark.parametrize("expected", [0, 1])
async def test_conflict_names_the_log_end(expected: int) -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("orders", b"0")
            await producer.send_and_wait("orders", b"1")
            with pytest.raises(OffsetConflict) as caught:
                await producer.send_and_wait("orders", b"2", partition=0, expect_offset=expected)
            conflict = caught.value
            assert (conflict.expected_offset, conflict.log_end_offset) == (expected, 2)
            assert (conflict.topic, conflict.partition, conflict.attempts) == ("orders", 0, 1)
            assert conflict.code == ErrorCode.UNEXPECTED_LOG_END
            assert not conflict.retriable
            assert str(conflict).startswith(f"the record expects offset {expected}, but the log end is 2; nothing was written (")
            assert (await producer.send_and_wait("orders", b"2", partition=0, expect_offset=conflict.log_end_offset)).offset == 2
            metrics = producer.metrics()
            assert (metrics["conflicts"], metrics["failed_records"], metrics["retries"]) == (1, 0, 0)
            assert not await producer.stop(), "the program has its answer; nothing was lost"
        assert cluster.values("orders") == [b"0", b"1", b"2"]


async def test_leader_is_asked_again_if_records_are_missing() -> None:
    """A leader that was deposed and has not noticed it lacks the records of its successor, which the program may have read."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for value in (b"0", b"1"):
                await producer.send_and_wait("orders", value, partition=0)
            cluster.produce_fate = lambda broker_id, key: "deposed" if broker_id == 1 else "ok"
            asked = cluster.metadata_requests
            asyncio.get_running_loop().call_later(0.01, cluster.move_leader, "orders", 0, 2)
            assert (await producer.send_and_wait("orders", b"2", partition=0, expect_offset=2)).offset == 2
            assert cluster.metadata_requests > asked
        assert cluster.values("orders") == [b"0", b"1", b"2"]


async def test_missing_records_are_a_conflict_if_the_leader_is_the_same() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("orders", b"0")
            with pytest.raises(OffsetConflict) as caught:
                await producer.send_and_wait("orders", b"2", partition=0, expect_offset=2)
            assert (caught.value.log_end_offset, caught.value.attempts) == (1, 2)
            assert producer.metrics()["conflicts"] == 1
            assert not await producer.stop()


@pytest.mark.parametrize("moves", [False, True])
async def test_retry_of_a_successful_append_is_no_conflict(moves: bool) -> None:
    """The record was appended, and its response lost; perhaps another broker leads since."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        lost: list[int] = []

        def lose_first(broker_id: int, key: object) -> str:
            lost.append(broker_id)
            if len(lost) > 1:
                return "ok"
            if moves:
                asyncio.get_running_loop().call_soon(cluster.move_leader, "orders", 0, 2)
            return "response lost"

        cluster.produce_fate = lose_first
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            assert (await producer.send_and_wait("orders", b"mine", partition=0, expect_offset=0)).offset == 0
        assert len(lost) > 1
        assert cluster.values("orders") == [b"mine"]


async def test_conditional_append_keeps_its_place_in_the_order() -> None:
    """The records before it are sent in the batch that was open, those after it in another one, also before metadata is known."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=50) as producer:
            for known in (False, True):
                start = len(cluster.values("orders"))
                assert ("orders" in producer._accumulator.topics) == known
                receipts = [
                    producer.send_nowait("orders", b"a"),
                    producer.send_nowait("orders", b"b"),
                    producer.send_nowait("orders", b"c", partition=0, expect_offset=start + 2),
                    producer.send_nowait("orders", b"d", partition=0, expect_offset=start + 3),
                    producer.send_nowait("orders", b"e"),
                ]
                assert [(await receipt).offset - start for receipt in receipts] == [0, 1, 2, 3, 4]
        assert cluster.values("orders") == [b"a", b"b", b"c", b"d", b"e"] * 2


async def test_records_behind_a_conflict_are_delivered() -> None:
    """Their sequence numbers follow that of the rejected batch, so the leader rejects them at first."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("orders", b"0")
            wrong = [producer.send_nowait("orders", b"x", partition=0, expect_offset=7 + n) for n in range(3)]
            after = [producer.send_nowait("orders", b"%d" % n, partition=0) for n in (1, 2)]
            assert [(await receipt).offset for receipt in after] == [1, 2]
            for receipt in wrong:
                with pytest.raises(OffsetConflict):
                    await receipt
        assert cluster.values("orders") == [b"0", b"1", b"2"]


async def test_writers_of_one_offset_have_one_winner() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        won: dict[int, list[int]] = {}
        ends: list[tuple[int, int]] = []

        async def write(number: int) -> None:
            async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
                for offset in range(20):
                    try:
                        await producer.send_and_wait("orders", b"%d" % number, partition=0, expect_offset=offset)
                        won.setdefault(offset, []).append(number)
                    except OffsetConflict as e:
                        ends.append((offset, e.log_end_offset))

        await asyncio.gather(*map(write, range(5)))
        assert all(end > offset for offset, end in ends)
        assert {offset: len(winners) for offset, winners in won.items()} == dict.fromkeys(range(20), 1)
        assert [int(value) for value in cluster.values("orders")] == [won[offset][0] for offset in range(20)]


async def test_old_broker_fails_only_the_conditional_append() -> None:
    """During an upgrade one broker may be of the version before."""
    async with ScriptedCluster(1) as cluster:
        cluster.create("orders", 2)
        cluster.newest_produce_version = 0
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=20) as producer:
            await producer.partitions_for("orders")
            plain = producer.send_nowait("orders", b"plain", partition=1)
            conditional = producer.send_nowait("orders", b"x", partition=0, expect_offset=0)
            with pytest.raises(DeliveryFailed, match="the broker is of an older version, which has no conditional appends") as e:
                await conditional
            assert e.value.code == ErrorCode.UNSUPPORTED_VERSION
            assert (await plain).offset == 0


async def test_rejection_does_not_hide_that_the_record_may_be_written() -> None:
    """Its first attempt was appended, and the response lost; then the broker returns with an older version."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")

        def fate(broker_id: int, key: object) -> str:
            cluster.newest_produce_version = 0
            return "response lost"

        cluster.produce_fate = fate
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            with pytest.raises(DeliveryFailed, match="an earlier attempt was not answered, and may be in the log") as caught:
                await producer.send_and_wait("orders", b"x", partition=0, expect_offset=0)
            assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
        assert cluster.values("orders") == [b"x"]


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, {}, "expect_offset needs the partition"),
        ({"acks": 1}, {"partition": 0}, "expect_offset needs an idempotent producer"),
        ({"enable_idempotence": False}, {"partition": 0}, "expect_offset needs an idempotent producer"),
        ({"producer_name": "sink"}, {"partition": 0}, "expect_offset needs a producer without a name"),
        ({}, {"partition": 0, "expect_offset": -1}, "expect_offset is a whole number of at least 0, not -1"),
        ({}, {"partition": 0, "expect_offset": "1"}, "expect_offset is a whole number"),
        ({}, {"partition": 0, "expect_offset": 2**63}, "expect_offset is a whole number"),
    ],
)
async def test_impossible_expectation_is_a_usage_error(options: dict, arguments: dict, message: str) -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap, **options) as producer:
            for call in (producer.send, producer.send_and_wait):
                with pytest.raises(UsageError, match=message):
                    await call("orders", b"x", **{"expect_offset": 0, **arguments})
            with pytest.raises(UsageError, match=message):
                producer.send_nowait("orders", b"x", **{"expect_offset": 0, **arguments})
        assert cluster.values("orders") == []


# -- many values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_known", [False, True])
async def test_many_values_get_the_offsets_from_the_expected_one_on(is_known: bool) -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap, batch_size=100) as producer:
            if is_known:
                await producer.partitions_for("orders")
            first = producer.send_nowait("orders", b"first", partition=0)
            many = producer.send_many("orders", [b"%d" % n for n in range(1000)], partition=0, expect_offset=1)
            last = producer.send_nowait("orders", b"last", partition=0)
            assert [(each.offset, each.records) for each in await _runs(many)] == [(1, 1000)]
            assert [(await receipt).offset for receipt in (first, many[999], last)] == [0, 1000, 1001]
        assert cluster.values("orders") == [b"first", *(b"%d" % n for n in range(1000)), b"last"]
        sizes = [read_header(data).record_count for sent in cluster.produce_requests for _, data in sent]
        assert sorted(sizes) == [1, 1, 1000], "all values are in one batch, also if it is larger than batch_size"


async def _runs(receipts: Receipts) -> list[BatchMetadata]:
    """The result of `await receipts`, with the runs of one batch joined: each parked record has a run of its own."""
    joined: list[BatchMetadata] = []
    for each in await receipts:
        if joined and joined[-1].offset + joined[-1].records == each.offset:
            joined[-1] = joined[-1]._replace(records=joined[-1].records + each.records)
        else:
            joined.append(each)
    return joined


@pytest.mark.parametrize("is_known", [False, True])
async def test_of_many_values_none_is_written_after_a_conflict(is_known: bool) -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as other:
            await other.send_and_wait("orders", b"other")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            if is_known:
                await producer.partitions_for("orders")
            receipts = producer.send_many("orders", [b"a", b"b", b"c"], partition=0, expect_offset=0)
            for receipt in receipts:
                with pytest.raises(OffsetConflict) as caught:
                    await receipt
                assert caught.value.log_end_offset == 1
        assert cluster.values("orders") == [b"other"]


async def test_many_values_go_through_serializer_and_key() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 4)
        async with Producer(
            bootstrap_servers=cluster.bootstrap, value_serializer=lambda n: b"%d" % n, key_serializer=str.encode
        ) as producer:
            receipts = producer.send_many("orders", [1, None, 3], key="alice", expect_offset=0)
            partition = (await receipts)[0].partition
            assert partition == (await producer.send_and_wait("orders", 4, key="alice")).partition
        ((_, data), *_) = [sent for request in cluster.produce_requests for sent in request]
        assert [record.value for record in iter_records(data)] == [b"1", None, b"3"]
        assert {record.key for record in iter_records(data)} == {b"alice"}


async def test_batch_of_many_values_is_never_split() -> None:
    """Its halves would be appended one by one, and another writer could append between them."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        cluster.max_message_bytes = 500
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            receipts = producer.send_many("orders", [bytes(100)] * 10, partition=0, expect_offset=0)
            with pytest.raises(DeliveryFailed) as caught:
                await receipts
            assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
        assert cluster.values("orders") == []


async def test_too_many_values_for_one_batch_are_refused() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap, max_request_size=20_000) as producer:
            with pytest.raises(
                RecordTooLarge, match=r"300 records of \d+ bytes for orders do not fit max_request_size \(20000 bytes"
            ):
                producer.send_many("orders", [bytes(100)] * 300, partition=0, expect_offset=0)
        assert cluster.values("orders") == []


async def test_no_values_are_no_batch() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for _ in range(2):
                assert len(producer.send_many("orders", [], partition=0, expect_offset=7)) == 0
                await producer.partitions_for("orders")
        assert cluster.produce_requests == []


async def test_parked_values_of_one_call_are_counted_each() -> None:
    """The topic's metadata is not known yet."""
    async with ScriptedCluster() as cluster, Producer(bootstrap_servers=cluster.bootstrap) as producer:
        receipts = [producer.send_many("missing", [b"a", b"b"], partition=0, expect_offset=n) for n in (0, 2)]
        assert [len(piece) for piece in producer._accumulator.parked["missing"].pieces()] == [2, 2]
        undelivered = await producer.stop(timeout_ms=0)
        assert undelivered.by_partition == {"missing": 4}
        for receipt in (*receipts[0], *receipts[1]):
            with pytest.raises(ClientClosed):
                await receipt


# -- the cores ----------------------------------------------------------------------------------------------------------


def accumulator(**options: object) -> Accumulator:
    made = Accumulator(
        ProducerOptions(**options),  # type: ignore[arg-type]
        now=lambda: 0.0,
        wall_clock_ms=lambda: 1_700_000_000_000,
        on_ready=lambda queue: None,
        first_sticky=lambda n: 0,
    )
    made.update_topic("t", 1, [0])
    return made


def sent(batches: Accumulator, *expected: int) -> PartitionQueue:
    """The queue of a partition with one acknowledged record, after a conditional append for each of these offsets was sent."""
    batches.append("t", 0, None, b"first", None, None)
    queue = batches.topics["t"].queues[0]
    queue.set_producer_id(1, 0)
    first = batches.take(queue, 0.0, partial=True)
    assert first is not None
    queue.on_acked(first)
    for offset in expected:
        batches.append_alone("t", 0, None, [b"x"], None, None, Conditions(offset))
        assert batches.take(queue, 0.0, partial=False) is not None
    return queue


def test_rejected_batch_gives_its_number_back() -> None:
    """Otherwise each conflict costs the next batch a round trip and a producer epoch."""
    batches = accumulator()
    queue = sent(batches, 5)
    queue.on_condition_failed(queue.in_flight[0])
    batches.append("t", 0, None, b"next", None, None)
    following = batches.take(queue, 0.0, partial=True)
    assert following is not None
    assert (following.sequence, following.index_in_epoch, queue.state) == (1, 1, QueueState.SENDING)


def lose_an_attempt(queue: PartitionQueue) -> None:
    queue.on_failed(queue.in_flight[0], ErrorCode.NETWORK_EXCEPTION, 0.0)


def send_another(queue: PartitionQueue) -> None:
    """Do nothing: the batch behind the first one already has the next sequence number."""


@pytest.mark.parametrize("before", [lose_an_attempt, send_another])
def test_number_is_kept_if_a_copy_may_arrive_or_another_follows(before: Callable[[PartitionQueue], None]) -> None:
    batches = accumulator()
    queue = sent(batches, 5, 6) if before is send_another else sent(batches, 5)
    before(queue)
    queue.on_condition_failed(queue.in_flight[0])
    assert queue.next_sequence == (3 if before is send_another else 2)


def test_conditional_append_reserves_only_its_own_bytes() -> None:
    batches = accumulator(buffer_memory=20_000, batch_size=16_384)
    for offset in range(100):
        batches.append_alone("t", 0, None, [b"x"], None, None, Conditions(offset))
    assert batches.buffered_bytes < 100 * 110
    with pytest.raises(BufferFull):
        _ = [batches.append_alone("t", 0, None, [bytes(100)], None, None, Conditions(offset)) for offset in range(1000)]
    assert batches.buffered_bytes <= 20_000


async def test_expected_offset_is_one_of_the_topic_that_was_known() -> None:
    """A recreated topic may end at the same offset by chance. Its records are others than the program has read."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("orders", b"old", partition=0)
            cluster.recreate("orders")
            async with Producer(bootstrap_servers=cluster.bootstrap) as other:
                await other.send_and_wait("orders", b"new", partition=0)
            behind = producer.send_nowait("orders", b"behind", partition=0, expect_offset=1)
            without = producer.send_nowait("orders", b"without a condition", partition=0)
            with pytest.raises(DeliveryFailed, match="deleted and recreated") as caught:
                await behind
            assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_ID
            assert (await without).offset == 1
            assert (await producer.send_and_wait("orders", b"2", partition=0, expect_offset=2)).offset == 2
        assert cluster.values("orders") == [b"new", b"without a condition", b"2"]
