"""Named producers against a scripted cluster: each attempt learns where to continue, and each row is written once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from passing_time import let_pass
from waiting import until

from strandline.client import Admin, Producer, TopicPartition
from strandline.client.errors import (
    DeliveryFailed,
    DeliveryTimeout,
    ProducerFenced,
    RequestFailed,
    RequestTimeout,
    UnknownTopic,
    UsageError,
)
from strandline.protocol.errors import ErrorCode
from strandline.protocol.producer_names import named_producer_id

from .scripted import ScriptedCluster

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ROWS = [b"row-%d" % i for i in range(40)]


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster() as cluster:
        cluster.create("orders", 2)
        yield cluster


def attempt(cluster: ScriptedCluster, work_epoch: int = 0, **options: Any) -> Producer:
    given = {"producer_name": "sink", "producer_work_epoch": work_epoch, "batch_size": 64, **options}
    return Producer(bootstrap_servers=cluster.bootstrap, **given)


async def write(producer: Producer, first: int, last: int, partition: int = 0) -> None:
    """Send the rows first..last-1 together."""
    receipts = [producer.send_nowait("orders", ROWS[i], partition=partition) for i in range(first, last)]
    for receipt in receipts:
        await receipt


# -- attempts ---------------------------------------------------------------------------------------------------------


async def test_next_attempt_continues_after_the_last_row(cluster: ScriptedCluster) -> None:
    async with attempt(cluster) as first:
        assert await first.written([P0, P1]) == {P0: 0, P1: 0}
        await write(first, 0, 7)
        await write(first, 0, 2, partition=1)
    async with attempt(cluster) as second:
        assert await second.written([P0, ("orders", 1)]) == {P0: 7, P1: 2}
        await write(second, 7, 20)
    assert cluster.partition("orders").log.values == ROWS[:20]
    async with attempt(cluster) as third:
        assert await third.written([P0]) == {P0: 20}


async def test_new_work_epoch_has_no_rows(cluster: ScriptedCluster) -> None:
    async with attempt(cluster, 3) as producer:
        await write(producer, 0, 5)
    async with attempt(cluster, 4) as producer:
        assert await producer.written([P0]) == {P0: 0}
        await write(producer, 0, 2)
    with pytest.raises(ProducerFenced, match="there is work epoch 4") as caught:
        await attempt(cluster, 3).start()
    assert (caught.value.retriable, caught.value.code) == (False, ErrorCode.PRODUCER_FENCED)


async def test_older_attempt_stays_fenced(cluster: ScriptedCluster) -> None:
    async with attempt(cluster) as zombie, attempt(cluster) as newer:
        await write(zombie, 0, 5)
        assert await newer.written([P0]) == {P0: 5}
        await write(newer, 5, 10)
        receipts = [zombie.send_nowait("orders", row, partition=p) for p in (0, 1) for row in ROWS[5:9]]
        for receipt in receipts[:4]:
            with pytest.raises(ProducerFenced, match="INVALID_PRODUCER_EPOCH"):
                await receipt
        with pytest.raises(ProducerFenced):
            zombie.send_nowait("orders", b"more", partition=1)
        with pytest.raises(ProducerFenced):
            await zombie.written([P0])
        assert "INVALID_PRODUCER_EPOCH" in zombie.health()["last_error"]
        await write(newer, 10, 12)
    assert cluster.partition("orders").log.values == ROWS[:12]


async def test_written_reports_that_the_attempt_is_fenced(cluster: ScriptedCluster) -> None:
    async with attempt(cluster) as zombie, attempt(cluster) as newer, attempt(cluster, 1) as newest:
        await write(newer, 0, 3)
        with pytest.raises(ProducerFenced, match="work epoch 0, epoch 1 of this name has written here"):
            await zombie.written([P0])
        await write(newest, 0, 1)
        with pytest.raises(ProducerFenced, match="work epoch 1, epoch 0"):
            await newer.written([P0])


async def test_late_rows_of_older_attempt_are_not_written_twice(cluster: ScriptedCluster) -> None:
    async with attempt(cluster) as zombie, attempt(cluster) as newer:
        await write(zombie, 0, 5)
        assert await newer.written([P0]) == {P0: 5}
        await write(zombie, 5, 9)
        with pytest.raises(DeliveryFailed, match=r"another attempt has written these rows; call written\(\)") as e:
            await write(newer, 5, 20)
        assert (e.value.retriable, e.value.code) == (False, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        there = (await newer.written([P0]))[P0]
        assert there >= 9, "what it had sent behind them may be in its place"
        await write(newer, there, 20)
        with pytest.raises(ProducerFenced):
            await write(zombie, 9, 10)
    assert cluster.partition("orders").log.values == ROWS[:20]


async def test_attempt_without_written_writes_no_duplicates(cluster: ScriptedCluster) -> None:
    async with attempt(cluster) as first:
        await write(first, 0, 5)
    async with attempt(cluster) as careless:
        with pytest.raises(DeliveryFailed):
            await write(careless, 0, 5)
    assert cluster.partition("orders").log.values == ROWS[:5]


# -- what is committed ------------------------------------------------------------------------------------------------


async def test_only_committed_rows_count(cluster: ScriptedCluster) -> None:
    partition = cluster.partition("orders")
    async with attempt(cluster) as first:
        await write(first, 0, 5)
    partition.high_watermark = 3
    async with attempt(cluster) as second:
        with pytest.raises(RequestTimeout, match="up to offset 4 are not committed yet"):
            await second.written([P0], timeout_ms=100)
        question = asyncio.ensure_future(second.written([P0]))
        partition.high_watermark = 5
        assert await question == {P0: 5}


async def test_rows_that_a_new_leader_lacks_do_not_count(cluster: ScriptedCluster) -> None:
    """A leader dies before the rows that it reported are committed: the next leader's answer counts, and the rows are written
    again."""
    partition = cluster.partition("orders")
    async with attempt(cluster) as first:
        await write(first, 0, 5)
        kept = list(partition.log.batches), list(partition.log.values)
        known = partition.log.named.before(5)
        await write(first, 5, 9)
    partition.high_watermark = 5
    async with attempt(cluster) as second:
        before = cluster.metadata_requests
        question = asyncio.ensure_future(second.written([P0]))
        await until(lambda: question.done() or cluster.metadata_requests >= before)
        assert not question.done()
        (partition.log.batches, partition.log.values), partition.log.named = kept, known
        cluster.move_leader("orders", 0, 2)
        assert await question == {P0: 5}
        await write(second, 5, 9)
    assert partition.log.values == ROWS[:9]


async def test_silent_or_dead_leader_is_replaced(cluster: ScriptedCluster) -> None:
    async with attempt(cluster) as first:
        await write(first, 0, 5)
    async with attempt(cluster, request_timeout_ms=300) as second:
        cluster.brokers[1].fall_silent()
        question = asyncio.ensure_future(second.written([P0, P1]))
        await until(lambda: cluster.brokers[1].held)
        cluster.move_leader("orders", 0, 3)
        assert await question == {P0: 5, P1: 0}


async def test_a_request_without_an_answer_ends(cluster: ScriptedCluster) -> None:
    async with attempt(cluster, request_timeout_ms=50) as producer:
        cluster.partition("orders").leader = -1
        with pytest.raises(RequestTimeout, match="orders-0"):
            await producer.written([P0], timeout_ms=200)
        with pytest.raises(UnknownTopic):
            await producer.written([("orders", 9)])


async def test_time_limit_of_written_alone_says_what_is_unsure(cluster: ScriptedCluster) -> None:
    """The message ended with "None" while the first request was not answered."""
    async with attempt(cluster) as producer:
        for broker in cluster.brokers.values():
            broker.hanging = True
        with pytest.raises(RequestTimeout, match=r"^older epochs may still write \("):
            await producer.written([P0], alone=True, timeout_ms=100)
        for broker in cluster.brokers.values():
            broker.answer_late()


async def test_error_that_has_passed_is_no_reason(cluster: ScriptedCluster) -> None:
    """Otherwise `health` would show it for ever, and the next time limit would name it as its cause."""
    async with attempt(cluster) as producer:
        cluster.name_fate = ErrorCode.BROKER_NOT_AVAILABLE
        with pytest.raises(RequestTimeout, match=r"older epochs may still write: .*BROKER_NOT_AVAILABLE"):
            await producer.written([P0], alone=True, timeout_ms=100)
        assert producer.health()["state"] == "ok", "the program has the error, and records can be sent"
        asked = asyncio.ensure_future(producer.written([P0], alone=True))
        await until(lambda: producer.health()["state"] == "degraded")
        cluster.name_fate = ErrorCode.NONE
        await asked
        assert producer.health()["state"] == "ok"


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["response lost", "request lost", "NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS"])
async def test_rows_are_written_once_through_transient_failures(cluster: ScriptedCluster, fate: str) -> None:
    fates = iter([fate, "ok", fate, fate])
    cluster.produce_fate = lambda broker_id, key: next(fates, "ok")
    async with attempt(cluster, retry_backoff_ms=5) as producer:
        await write(producer, 0, 40)
    assert cluster.partition("orders").log.values == ROWS


@pytest.mark.parametrize("code", ["OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID", "MESSAGE_TOO_LARGE"])
async def test_failed_row_fails_all_behind_it(cluster: ScriptedCluster, code: str) -> None:
    """It is neither renumbered nor left out: all rows behind it fail, and the log says where to continue."""
    fates = iter(["ok", code])
    async with attempt(cluster, batch_size=1) as producer:
        await write(producer, 0, 1)
        cluster.produce_fate = lambda broker_id, key: next(fates, "ok") if key[1] == 0 else "ok"
        receipts = [producer.send_nowait("orders", ROWS[i], partition=0) for i in range(1, 6)]
        other = producer.send_nowait("orders", b"other", partition=1)
        await receipts[0]
        for receipt in receipts[1:]:
            with pytest.raises(DeliveryFailed) as caught:
                await receipt
            assert not caught.value.retriable
        with pytest.raises(DeliveryFailed, match="before these were not delivered"):
            await producer.send_and_wait("orders", b"later", partition=0)
        assert (await other).offset == 0, "another partition has rows of its own"
        there = await producer.written([P0])
        await write(producer, there[P0], 10)
    assert cluster.partition("orders").log.values == ROWS[:10]


async def test_expired_rows_are_written_once_after_written(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader has appended them and does not answer. The producer gives them up, but they are in the log."""
    cluster.produce_fate = lambda broker_id, key: "silence"
    async with attempt(cluster, delivery_timeout_ms=20_000) as producer:
        receipts = [producer.send_nowait("orders", row, partition=0) for row in ROWS[:12]]
        await until(lambda: cluster.partition("orders").log.values)
        let_pass(monkeypatch, 21_000)
        with pytest.raises(DeliveryTimeout):
            await receipts[0]
        with pytest.raises(DeliveryFailed):
            await receipts[-1]
        cluster.produce_fate = lambda broker_id, key: "ok"
        there = (await producer.written([P0]))[P0]
        assert there > 0
        cluster.brokers[1].answer_late()
        await write(producer, there, 12)
    assert cluster.partition("orders").log.values == ROWS[:12]


async def test_rejected_name_fails_the_start(cluster: ScriptedCluster) -> None:
    cluster.name_fate = ErrorCode.INVALID_REQUEST
    with pytest.raises(RequestFailed, match="INVALID_REQUEST"):
        await attempt(cluster).start()
    cluster.name_fate = ErrorCode.BROKER_NOT_AVAILABLE
    with pytest.raises(RequestTimeout, match="no producer id"):
        await attempt(cluster, max_block_ms=1000).start()
    starting = attempt(cluster)
    start = asyncio.ensure_future(starting.start())
    cluster.name_fate = ErrorCode.NONE
    await start
    await starting.stop()


# -- misuse -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"producer_name": ""}, "1 to 255 characters"),
        ({"producer_name": "x" * 256}, "1 to 255 characters"),
        ({"producer_name": 7}, "1 to 255 characters"),
        ({"producer_name": "x", "producer_work_epoch": -1}, "from 0 to 2147483647"),
        ({"producer_name": "x", "producer_work_epoch": 2**31}, "from 0 to 2147483647"),
        ({"producer_work_epoch": 1}, "need a producer_name"),
        ({"producer_name": "x", "acks": 1}, "needs idempotence"),
        ({"producer_name": "x", "enable_idempotence": False}, "needs idempotence"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Producer(**options)


async def test_record_without_partition_is_rejected(cluster: ScriptedCluster) -> None:
    async with attempt(cluster) as producer:
        for send in (producer.send_nowait, lambda topic, value: producer.send_many(topic, [value])):
            with pytest.raises(UsageError, match="partition"):
                send("orders", b"somewhere")
        await producer.send_and_wait("orders", b"keyed", key=b"k")
        receipt = producer.send_nowait("orders", b"x", partition=0)
        with pytest.raises(UsageError, match="flush"):
            await producer.written([P0])
        await receipt
    async with Producer(bootstrap_servers=cluster.bootstrap) as ordinary:
        with pytest.raises(UsageError, match="producer_name"):
            await ordinary.written([P0])


# -- the admin's question ---------------------------------------------------------------------------------------------


async def test_the_admin_sees_what_the_logs_know(cluster: ScriptedCluster) -> None:
    async with attempt(cluster, 6) as producer:
        await write(producer, 0, 3)
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        found = await admin.describe_producers([P0, ("orders", 1)])
        assert list(found) == [P0, P1]
        (known,) = found[P0].producers
        assert (known.producer_id, known.producer_epoch) == (named_producer_id(0, 6), 0)
        assert (known.work_epoch, known.is_named, known.last_sequence, known.last_offset) == (6, True, 2, 2)
        assert (found[P0].leader_id, found[P0].high_watermark, found[P1].producers) == (1, 3, [])
        assert (await admin.describe_producers([P0], [5]))[P0].producers == []
        with pytest.raises(UnknownTopic):
            await admin.describe_producers([("orders", 9)])
