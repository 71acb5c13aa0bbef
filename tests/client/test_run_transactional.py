"""`Consumer.run(transactional=True)` against a scripted cluster: whatever fails, the results and the offsets are those of one
call for each record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import pytest_asyncio
from waiting import until

from strandline.client import Backoff, Consumer, ConsumerRecord, Producer, attempt_of
from strandline.client.errors import ClientError, HandlerFailed, ProducerFenced, TransactionAbortable, UsageError
from strandline.protocol.messages.transactions import EndTxnRequest, TxnOffsetCommitRequest

from .group_world import member
from .run_world import DEAD, add
from .scripted import ScriptedCluster
from .scripted_groups import ScriptedGroups
from .scripted_transactions import ScriptedTransactions

NOW = Backoff(first_ms=0, max_ms=0, attempts=3)


@pytest_asyncio.fixture
async def tx() -> AsyncIterator[ScriptedTransactions]:
    """A cluster whose topic `orders` has a partition with the records a, b, c and one with d, e."""
    cluster = ScriptedCluster()
    tx = ScriptedTransactions(ScriptedGroups(cluster))
    for topic, partitions in (("orders", 2), ("bills", 2), (DEAD, 1)):
        cluster.create(topic, partitions)
    async with cluster:
        add(cluster, 0, "abc")
        add(cluster, 1, "de")
        yield tx


def reader(tx: ScriptedTransactions, **options: Any) -> Consumer:
    return member(tx.cluster, enable_auto_commit=False, isolation_level="read_committed", **options)


def writer(tx: ScriptedTransactions, **options: Any) -> Producer:
    return Producer(bootstrap_servers=tx.cluster.bootstrap, **{"transactional_id": "billing", **options})


class Bills:
    """A handler that sends one record for each record that it gets, with the letter as its value."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.calls: list[str] = []
        self.fails_at: dict[str, int] = {}
        """The number of times the handler fails, by letter."""

    async def __call__(self, record: ConsumerRecord) -> None:
        letter = record.key.decode()
        self.calls.append(letter)
        await self.producer.send("bills", record.key)
        if self.fails_at.get(letter, 0) >= attempt_of(record):
            raise ValueError(letter)


@asynccontextmanager
async def running(
    tx: ScriptedTransactions, options: dict[str, Any] | None = None, **run: Any
) -> AsyncIterator[tuple[Bills, Any]]:
    async with writer(tx, **(options or {})) as producer, reader(tx) as consumer:
        handler = Bills(producer)
        task = asyncio.ensure_future(consumer.run(handler, transactional=True, producer=producer, **run))
        await asyncio.sleep(0)
        try:
            yield handler, task
        finally:
            consumer.end_run()
            with suppress(Exception):
                await task


def bills(tx: ScriptedTransactions) -> list[bytes]:
    return sorted(tx.committed("bills"))


def offsets(tx: ScriptedTransactions) -> list[int | None]:
    return [tx.groups.offset("orders", index) for index in (0, 1)]


ALL = [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("concurrency", ["partition", "key", 2])
async def test_results_and_offsets_are_committed_together(tx: ScriptedTransactions, concurrency: Any) -> None:
    async with running(tx, concurrency=concurrency):
        await until(lambda: offsets(tx) == [3, 2])
        assert bills(tx) == ALL
        add(tx.cluster, 0, "fg")
        await until(lambda: offsets(tx) == [5, 2])
    assert bills(tx) == [*ALL, b"f", b"g"]


async def test_failed_record_is_handled_again_with_all_of_its_transaction(tx: ScriptedTransactions) -> None:
    async with running(tx, retry=NOW) as (handler, _):
        handler.fails_at = {"b": 2}
        await until(lambda: offsets(tx) == [3, 2])
        assert handler.calls.count("a") == handler.calls.count("b") == 3
    assert bills(tx) == ALL


async def test_record_that_is_given_up_is_a_dead_letter_of_the_transaction(tx: ScriptedTransactions) -> None:
    async with running(tx, retry=NOW, dlq=DEAD) as (handler, _):
        handler.fails_at = {"b": 99}
        await until(lambda: offsets(tx) == [3, 2])
    assert (bills(tx), tx.committed(DEAD)) == ([b"a", b"c", b"d", b"e"], [b"0:1"])


async def test_record_that_is_given_up_is_left_out(tx: ScriptedTransactions) -> None:
    async with running(tx, on_failure="skip") as (handler, _):
        handler.fails_at = {"e": 99}
        await until(lambda: offsets(tx) == [3, 2])
    assert bills(tx) == [b"a", b"b", b"c", b"d"]


async def test_run_without_another_way_ends_with_the_error(tx: ScriptedTransactions) -> None:
    async with running(tx) as (handler, task):
        handler.fails_at = {"b": 99}
        with pytest.raises(HandlerFailed, match="the record at offset 1"):
            await task
    assert (bills(tx), offsets(tx)) == ([], [None, None])


async def test_batch_that_fails_is_divided(tx: ScriptedTransactions) -> None:
    calls: list[str] = []
    async with writer(tx) as producer, reader(tx) as consumer:

        async def handle(records: list[ConsumerRecord]) -> None:
            letters = "".join(record.key.decode() for record in records)
            calls.append(letters)
            for record in records:
                await producer.send("bills", record.key)
            if "b" in letters:
                raise ValueError

        run = consumer.run(handler=handle, transactional=True, producer=producer, batch_size=10, dlq=DEAD)
        task = asyncio.ensure_future(run)
        await until(lambda: offsets(tx) == [3, 2])
        consumer.end_run()
        await task
    assert bills(tx) == [b"a", b"c", b"d", b"e"]
    assert "abc" in calls
    assert calls[-1] in ("c", "de")


@pytest.mark.parametrize("kind", [EndTxnRequest, TxnOffsetCommitRequest])
@pytest.mark.parametrize("fate", ["response lost", "request lost", "NOT_COORDINATOR"])
async def test_lost_answers_repeat_nothing(tx: ScriptedTransactions, kind: type, fate: str) -> None:
    left = iter([fate] * 3)
    tx.fate = lambda request: next(left, "ok") if isinstance(request, kind) else "ok"
    async with running(tx):
        await until(lambda: offsets(tx) == [3, 2])
    assert bills(tx) == ALL


async def test_commit_of_unknown_outcome_is_asked_for_again(tx: ScriptedTransactions) -> None:
    """The run asks until the outcome is known: the next transaction would otherwise handle records whose results are already
    visible."""
    tx.fate = lambda request: "response lost" if isinstance(request, EndTxnRequest) else "ok"
    async with running(tx, {"max_block_ms": 100}) as (handler, task):
        await until(lambda: len(tx.ends()) > 10)
        assert not task.done()
        assert len(set(handler.calls)) == len(handler.calls)
        tx.fate = lambda request: "ok"
        add(tx.cluster, 0, "f")
        await until(lambda: offsets(tx) == [4, 2])
    assert bills(tx) == [*ALL, b"f"]


async def test_transaction_of_a_removed_member_is_aborted(tx: ScriptedTransactions) -> None:
    """Another member may handle the records: the coordinator of the group refuses the offsets."""
    gate = asyncio.Event()
    async with running(tx) as (handler, _):
        handler.producer.send = _gated(handler.producer.send, gate)  # type: ignore[method-assign]
        await until(lambda: bool(handler.calls))
        tx.groups.group().remove([tx.groups.member().member_id])
        gate.set()
        await until(lambda: offsets(tx) == [3, 2])
        assert tx.ends()[0] is False
    assert bills(tx) == ALL


def _gated(send: Any, gate: asyncio.Event) -> Any:
    async def wait_and_send(*arguments: Any, **options: Any) -> Any:
        await gate.wait()
        return await send(*arguments, **options)

    return wait_and_send


async def test_transaction_that_took_too_long_is_repeated(tx: ScriptedTransactions) -> None:
    gate = asyncio.Event()
    async with running(tx, {"transaction_timeout_ms": 50}) as (handler, _):
        handler.producer.send_offsets_to_transaction = _gated(  # type: ignore[method-assign]
            handler.producer.send_offsets_to_transaction, gate
        )
        await until(lambda: len(tx.open) > 0)
        await handler.producer.flush()
        await asyncio.sleep(0.06)
        tx.now_ms += 60
        tx.expire()
        gate.set()
        await until(lambda: offsets(tx) == [3, 2])
    assert bills(tx) == ALL


async def test_record_that_is_not_delivered_ends_the_run(tx: ScriptedTransactions) -> None:
    """The handler has not awaited its receipt. Another attempt would fail, too."""
    tx.cluster.produce_fate = lambda broker_id, key: "RECORD_LIST_TOO_LARGE"
    async with running(tx) as (_, task):
        with pytest.raises(TransactionAbortable, match="RECORD_LIST_TOO_LARGE"):
            await task
    assert (bills(tx), offsets(tx)) == ([], [None, None])


async def test_fenced_run_ends(tx: ScriptedTransactions) -> None:
    async with running(tx) as (_, task):
        await until(lambda: offsets(tx) == [3, 2])
        async with writer(tx):
            add(tx.cluster, 0, "f")
            with pytest.raises(ProducerFenced):
                await task
    assert bills(tx) == ALL


async def test_cancelled_run_aborts_and_another_one_goes_on(tx: ScriptedTransactions) -> None:
    gate = asyncio.Event()
    async with writer(tx) as producer, reader(tx) as consumer:
        handler = Bills(producer)
        producer.send = _gated(producer.send, gate)  # type: ignore[method-assign]
        task = asyncio.ensure_future(consumer.run(handler, transactional=True, producer=producer, drain_timeout_ms=50))
        await until(lambda: bool(handler.calls))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        again = asyncio.ensure_future(consumer.run(handler, transactional=True, producer=producer))
        await until(lambda: offsets(tx) == [3, 2])
        consumer.end_run()
        await again
    assert bills(tx) == ALL


async def test_cancelled_background_task_ends_the_run(tx: ScriptedTransactions) -> None:
    """A program that cancels all its tasks must not believe that the run has ended well."""
    async with running(tx) as (_, task):
        await until(lambda: offsets(tx) == [3, 2])
        for each in asyncio.all_tasks():
            if each.get_name() == "run: transactions":
                each.cancel()
        with pytest.raises(ClientError, match="background task"):
            await task


async def test_run_that_ends_finishes_its_transaction(tx: ScriptedTransactions) -> None:
    gate = asyncio.Event()
    async with writer(tx) as producer, reader(tx) as consumer:
        handler = Bills(producer)
        producer.send = _gated(producer.send, gate)  # type: ignore[method-assign]
        task = asyncio.ensure_future(consumer.run(handler, transactional=True, producer=producer))
        await until(lambda: bool(handler.calls))
        consumer.end_run()
        gate.set()
        await task
    assert bills(tx) in (ALL, [b"a", b"b", b"c"], [b"d", b"e"])
    assert len(bills(tx)) == sum(offset or 0 for offset in offsets(tx))


@pytest.mark.parametrize(
    ("options", "of_consumer", "run"),
    [
        ({"transactional_id": None}, {}, {}),
        ({}, {"enable_auto_commit": True}, {}),
        ({}, {"isolation_level": "read_uncommitted"}, {}),
        ({}, {}, {"retry": NOW, "retry_topic": "orders.retry"}),
        ({"value_serializer": str.encode}, {}, {"dlq": DEAD}),
    ],
)
async def test_arguments_that_contradict_transactions_are_refused(
    tx: ScriptedTransactions, options: dict[str, Any], of_consumer: dict[str, Any], run: dict[str, Any]
) -> None:
    given = {"enable_auto_commit": False, "isolation_level": "read_committed", **of_consumer}
    async with writer(tx, **options) as producer, member(tx.cluster, **given) as consumer:
        with pytest.raises(UsageError):
            await consumer.run(Bills(producer), transactional=True, producer=producer, **run)


async def test_handler_on_a_thread_is_refused(tx: ScriptedTransactions) -> None:
    async with writer(tx) as producer, reader(tx) as consumer:
        with pytest.raises(UsageError, match="coroutine function"):
            await consumer.run(print, transactional=True, producer=producer)
        with pytest.raises(UsageError, match="producer="):
            await consumer.run(Bills(producer), transactional=True)
