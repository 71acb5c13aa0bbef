"""Transactional producers against a scripted coordinator: all of a transaction is visible, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs
from waiting import until

from strandline.client import Consumer, ConsumerGroupMetadata, Producer, TopicPartition
from strandline.client.errors import (
    ClientClosed,
    CommitFailed,
    DeliveryFailed,
    ProducerFenced,
    RequestFailed,
    TransactionAbortable,
    TransactionFailed,
    TransactionOutcomeUnknown,
    TransactionTimedOut,
    UnknownTopic,
    UsageError,
)
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.transactions import EndTxnRequest, TxnOffsetCommitRequest

from .scripted import ScriptedCluster
from .scripted_groups import ScriptedGroups
from .scripted_transactions import ScriptedTransactions

P0 = TopicPartition("orders", 0)


@pytest_asyncio.fixture
async def tx() -> AsyncIterator[ScriptedTransactions]:
    cluster = ScriptedCluster()
    tx = ScriptedTransactions(ScriptedGroups(cluster))
    cluster.create("orders", 3)
    cluster.create("paid", 1)
    async with cluster:
        yield tx


def producer_of(tx: ScriptedTransactions, **options: Any) -> Producer:
    return Producer(bootstrap_servers=tx.cluster.bootstrap, **{"transactional_id": "tx", **options})


def ends(request: object) -> bool:
    return isinstance(request, EndTxnRequest)


# -- commit and abort -------------------------------------------------------------------------------------------------


async def test_block_commits_records_of_several_partitions(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:
        for number in range(3):
            async with producer.transaction() as same:
                assert same is producer
                for partition in range(3):
                    await producer.send("orders", b"%d" % number, partition=partition)
                producer.send_nowait("paid", b"p%d" % number)
                assert tx.committed() == [b"%d" % n for _ in range(3) for n in range(number)], "nothing of it is visible yet"
        assert producer.metrics()["transactions_committed"] == 3
    assert tx.committed() == [b"0", b"1", b"2"] * 3
    assert tx.committed("paid") == [b"p0", b"p1", b"p2"]
    assert tx.ends() == [True] * 3


async def test_exception_aborts_the_block(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with producer.transaction():
                await producer.send_and_wait("orders", b"a", partition=0)
                raise ZeroDivisionError
        async with producer.transaction():
            await producer.send("orders", b"b", partition=0)
    assert tx.committed() == [b"b"]
    assert tx.ends() == [False, True]


async def test_cancellation_aborts_the_block(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:

        async def work() -> None:
            async with producer.transaction():
                await producer.send_and_wait("orders", b"a", partition=0)
                await asyncio.get_running_loop().create_future()

        task = asyncio.ensure_future(work())
        await until(lambda: bool(tx.open))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert tx.ends() == [False]
        async with producer.transaction():
            await producer.send("orders", b"b", partition=0)
    assert tx.committed() == [b"b"]


async def test_all_ways_to_send_are_part_of_the_transaction(tx: ScriptedTransactions) -> None:
    async with producer_of(tx, linger_ms=50) as producer:
        async with producer.transaction():
            producer.send_nowait("paid", b"1")
            await producer.send("paid", b"2", key=b"k")
            producer.send_many("paid", [b"3", b"4"])
            await producer.send_columns("paid", [b"5", b"6"], keys=[b"k", b"k"])
            assert (await producer.send_and_wait("paid", b"7")).offset == 6
            await producer.flush()
            receipt = producer.send_nowait("paid", b"8")
        assert receipt.done, "a commit waits for the records, and does not let them linger"
    assert tx.committed("paid") == [b"%d" % n for n in range(1, 9)]


async def test_names_of_aiokafka_do_the_same(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:
        await producer.begin_transaction()
        await producer.send("orders", b"a", partition=0)
        await producer.commit_transaction()
        await producer.begin_transaction()
        dropped = await producer.send("orders", b"b", partition=0)
        await producer.abort_transaction()
        with pytest.raises(DeliveryFailed, match="aborted"):
            await dropped
        assert producer.health()["transaction"] == "ready"
    assert tx.committed() == [b"a"]


async def test_empty_transaction_sends_nothing(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:
        async with producer.transaction():
            pass
        await producer.begin_transaction()
        await producer.abort_transaction()
    assert tx.ends() == []


async def test_block_that_ends_its_transaction_itself_is_left_as_it_is(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:
        async with producer.transaction():
            await producer.send("orders", b"a", partition=0)
            await producer.commit_transaction()
        async with producer.transaction():
            await producer.send("orders", b"b", partition=0)
            await producer.abort_transaction()
    assert (tx.committed(), tx.ends()) == ([b"a"], [True, False])


# -- misuse -----------------------------------------------------------------------------------------------------------


async def test_records_outside_a_transaction_are_refused(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:
        for number in range(2):
            with pytest.raises(UsageError, match=r"producer\.transaction\(\)"):
                producer.send_nowait("orders", b"a")
            with pytest.raises(UsageError):
                await producer.send("orders", b"a")
            with pytest.raises(UsageError):
                producer.send_many("orders", [b"a"])
            with pytest.raises(UsageError):
                await producer.send_columns("orders", [b"a"])
            with pytest.raises(UsageError):
                await producer.send_offsets_to_transaction({P0: 1}, "g")
            for call in (producer.commit_transaction, producer.abort_transaction):
                with pytest.raises(UsageError, match="no transaction"):
                    await call()
            async with producer.transaction():
                await producer.send("orders", b"%d" % number, partition=0)
                with pytest.raises(UsageError, match="has not ended"):
                    await producer.begin_transaction()
                with pytest.raises(UsageError, match="without a transactional_id"):
                    producer.send_nowait("orders", b"a", partition=0, expect_offset=1)
    assert tx.committed() == [b"0", b"1"]


async def test_transactional_id_may_be_as_long_as_kafkas(tx: ScriptedTransactions) -> None:
    async with producer_of(tx, transactional_id="x" * 32_767) as producer, producer.transaction():
        await producer.send("orders", b"a", partition=0)
    assert tx.committed() == [b"a"]


async def test_producer_without_id_has_no_transactions(tx: ScriptedTransactions) -> None:
    async with producer_of(tx, transactional_id=None) as producer:
        with pytest.raises(UsageError, match="has no transactional_id"):
            producer.transaction()
        with pytest.raises(UsageError, match="has no transactional_id"):
            await producer.begin_transaction()
        await producer.send_and_wait("orders", b"a", partition=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"acks": 1},
        {"enable_idempotence": False},
        {"producer_name": "sink"},
        {"fencing_token": 1},
        {"transactional_id": ""},
        {"transaction_timeout_ms": 0},
    ],
)
def test_options_that_contradict_transactions_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Producer(**{"transactional_id": "tx", **wrong})


def test_names_of_kafka_are_understood() -> None:
    producer = Producer(config={"transactional.id": "tx", "transaction.timeout.ms": "5000"})
    assert (producer.options.transactional_id, producer.options.transaction_timeout_ms) == ("tx", 5000)


async def test_record_whose_call_waits_goes_into_no_later_transaction(tx: ScriptedTransactions) -> None:
    """A call that waits for room, while its transaction is aborted and the next one begins, raises an error: its record is part
    of no transaction."""
    tx.cluster.produce_fate = lambda broker_id, key: "silence"
    async with producer_of(tx, buffer_memory=200, batch_size=100) as producer:
        await producer.begin_transaction()
        await producer.send("orders", bytes(100), partition=0)
        late = asyncio.ensure_future(producer.send("orders", bytes(100), partition=0))
        await until(lambda: producer.metrics()["calls_waiting"] == 1)
        tx.cluster.produce_fate = lambda broker_id, key: "ok"
        await producer.abort_transaction()
        await producer.begin_transaction()
        with pytest.raises(UsageError, match=r"has ended|takes no more"):
            await late
        await producer.send("orders", b"b", partition=0)
        await producer.commit_transaction()
    assert tx.committed() == [b"b"]


# -- failures of records ----------------------------------------------------------------------------------------------


async def test_record_that_fails_makes_the_transaction_abortable(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:
        with pytest.raises(TransactionAbortable, match="RECORD_LIST_TOO_LARGE") as caught:  # noqa: PT012
            async with producer.transaction():
                await producer.send_and_wait("paid", b"a")
                tx.cluster.produce_fate = lambda broker_id, key: "RECORD_LIST_TOO_LARGE"
                producer.send_nowait("orders", b"b", partition=0)
        assert isinstance(caught.value.__cause__, DeliveryFailed)
        tx.cluster.produce_fate = lambda broker_id, key: "ok"
        async with producer.transaction():
            await producer.send("orders", b"c", partition=0)
    assert (tx.committed("paid"), tx.committed()) == ([], [b"c"])
    assert tx.ends() == [False, True]


async def test_failed_record_ends_the_others(tx: ScriptedTransactions) -> None:
    """Nothing waits for records of a transaction that can no longer be committed, and no further records are accepted."""
    paid = (tx.cluster.topics["paid"], 0)
    tx.cluster.produce_fate = lambda broker_id, key: "RECORD_LIST_TOO_LARGE" if key == paid else "silence"
    async with producer_of(tx) as producer:
        await producer.begin_transaction()
        stuck = await producer.send("orders", b"a", partition=0)
        with pytest.raises(DeliveryFailed, match="RECORD_LIST_TOO_LARGE"):
            await producer.send_and_wait("paid", b"b")
        with pytest.raises(DeliveryFailed, match="not written, because the transaction"):
            await stuck
        with pytest.raises(TransactionAbortable):
            producer.send_nowait("orders", b"c")
        with pytest.raises(TransactionAbortable):
            await producer.commit_transaction()
        await producer.abort_transaction()
    assert tx.ends() == [False]


async def test_topic_that_does_not_exist_makes_the_transaction_abortable(tx: ScriptedTransactions) -> None:
    async with producer_of(tx, max_block_ms=200) as producer:
        with pytest.raises(TransactionAbortable) as caught:  # noqa: PT012
            async with producer.transaction():
                await producer.send("orders", b"a", partition=0)
                producer.send_nowait("nowhere", b"b")
        assert isinstance(caught.value.__cause__, UnknownTopic)
    assert tx.committed() == []


async def test_partition_that_does_not_exist_makes_the_transaction_abortable(tx: ScriptedTransactions) -> None:
    """Its record was handed over before the metadata said how many partitions there are."""
    async with producer_of(tx) as producer:
        with pytest.raises(TransactionAbortable, match="has 1 partition "):
            async with producer.transaction():
                producer.send_nowait("paid", b"b", partition=7)
    assert tx.committed("paid") == []


async def test_lost_answers_write_nothing_twice(tx: ScriptedTransactions) -> None:
    fates = iter(["ok", "response lost", "request lost", "response lost"] + ["ok"] * 100)
    tx.cluster.produce_fate = lambda broker_id, key: next(fates)
    values = [b"%d" % n for n in range(30)]
    async with producer_of(tx, batch_size=100) as producer:
        for start in range(0, 30, 10):
            async with producer.transaction():
                for value in values[start : start + 10]:
                    await producer.send("orders", value, partition=0)
    assert tx.committed() == values


async def test_batches_of_an_aborted_transaction_come_too_late(tx: ScriptedTransactions) -> None:
    """A request of an aborted transaction that a slow connection still holds is refused for its epoch (KIP-890)."""
    tx.cluster.produce_fate = lambda broker_id, key: "silence"
    async with producer_of(tx) as producer:
        await producer.begin_transaction()
        await producer.send("orders", b"late", partition=0)
        await until(lambda: bool(tx.cluster.produce_requests))
        late = tx.cluster.produce_requests[0][0][1]
        tx.cluster.produce_fate = lambda broker_id, key: "ok"
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("orders", b"b", partition=0)
        key = (tx.cluster.topics["orders"], 0)
        assert tx._admit("tx", key, late) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert tx.committed() == [b"b"]


async def test_first_batches_wait_for_the_markers_of_the_transaction_before(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:
        tx.holds_markers = True
        async with producer.transaction():
            await producer.send("orders", b"a", partition=0)
        await producer.begin_transaction()
        receipt = await producer.send("orders", b"b", partition=0)
        await until(lambda: len(tx.cluster.produce_requests) >= 3)
        assert not receipt.done
        tx.write_markers()
        await producer.commit_transaction()
    assert tx.committed() == [b"a", b"b"]


async def test_abort_waits_for_the_markers_of_the_transaction_before(tx: ScriptedTransactions) -> None:
    """No record of the second transaction has reached a leader yet, so the abort is the first request about it."""
    async with producer_of(tx) as producer:
        tx.holds_markers = True
        async with producer.transaction():
            await producer.send("orders", b"a", partition=0)
        await producer.begin_transaction()
        producer.send_nowait("orders", b"b", partition=0)
        aborting = asyncio.ensure_future(producer.abort_transaction())
        await until(lambda: len(tx.ends()) > 2)
        tx.write_markers()
        await aborting
        async with producer.transaction():
            await producer.send("orders", b"c", partition=0)
    assert tx.committed() == [b"a", b"c"]


# -- the coordinator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["response lost", "request lost", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"])
@pytest.mark.parametrize("commits", [True, False])
async def test_end_is_sent_again_until_it_is_answered(tx: ScriptedTransactions, fate: str, commits: bool) -> None:
    async with producer_of(tx) as producer:
        for value in (b"a", b"b"):
            left = iter([fate, fate])
            tx.fate = lambda request, left=left: next(left, "ok") if ends(request) else "ok"
            await producer.begin_transaction()
            await producer.send_and_wait("orders", value, partition=0)
            await (producer.commit_transaction() if commits else producer.abort_transaction())
    assert tx.committed() == ([b"a", b"b"] if commits else [])
    assert tx.ends() == [commits] * 6


async def test_end_follows_the_coordinator(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:
        async with producer.transaction():
            await producer.send("orders", b"a", partition=0)
            tx.groups.coordinator = 2
        assert tx.committed() == [b"a"]


async def test_unknown_outcome_of_a_commit_is_an_error_of_its_own(tx: ScriptedTransactions) -> None:
    """The program may ask again, and the retry gets the answer of the first request."""
    tx.fate = lambda request: "response lost" if ends(request) else "ok"
    async with producer_of(tx, max_block_ms=300) as producer:
        with pytest.raises(TransactionOutcomeUnknown, match="not known whether the transaction of 'tx' is committed"):
            async with producer.transaction():
                await producer.send("orders", b"a", partition=0)
        with pytest.raises(UsageError, match="may be decided"):
            await producer.abort_transaction()
        with pytest.raises(UsageError):
            producer.send_nowait("orders", b"b", partition=0)
        with pytest.raises(UsageError):
            await producer.begin_transaction()
        with pytest.raises(TransactionOutcomeUnknown):
            await producer.commit_transaction()
        tx.fate = lambda request: "ok"
        await producer.commit_transaction()
        async with producer.transaction():
            await producer.send("orders", b"b", partition=0)
    assert tx.committed() == [b"a", b"b"]


async def test_cancelled_commit_is_not_left_open(tx: ScriptedTransactions) -> None:
    """The task is cancelled while the commit is in flight: the block waits for the outcome, and reports it."""
    gate = asyncio.Event()
    async with producer_of(tx) as producer:

        async def work() -> None:
            async with producer.transaction():
                await producer.send("orders", b"a", partition=0)
                tx.fate = lambda request: "ok" if gate.is_set() or not ends(request) else "COORDINATOR_LOAD_IN_PROGRESS"

        task = asyncio.ensure_future(work())
        await until(lambda: bool(tx.ends()))
        task.cancel()
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert "was committed" in "".join(caught.value.__notes__)
        async with producer.transaction():
            await producer.send("orders", b"b", partition=0)
    assert tx.committed() == [b"a", b"b"]


async def test_commit_that_was_cancelled_may_be_called_again(tx: ScriptedTransactions) -> None:
    tx.fate = lambda request: "COORDINATOR_LOAD_IN_PROGRESS" if ends(request) else "ok"
    async with producer_of(tx) as producer:
        await producer.begin_transaction()
        await producer.send("orders", b"a", partition=0)
        task = asyncio.ensure_future(producer.commit_transaction())
        await until(lambda: bool(tx.ends()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        tx.fate = lambda request: "ok"
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.abort_transaction()
    assert tx.committed() == [b"a"]


async def test_commit_that_is_cancelled_while_it_waits_for_records_decides_nothing(tx: ScriptedTransactions) -> None:
    tx.cluster.produce_fate = lambda broker_id, key: "silence"
    async with producer_of(tx) as producer:
        await producer.begin_transaction()
        await producer.send("orders", b"a", partition=0)
        task = asyncio.ensure_future(producer.commit_transaction())
        await until(lambda: producer.health()["transaction"] == "committing")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert producer.health()["transaction"] == "in transaction"
        tx.cluster.produce_fate = lambda broker_id, key: "ok"
        for broker in tx.cluster.brokers.values():
            broker.cut_connections()
        await producer.commit_transaction()
    assert tx.committed() == [b"a"]


# -- fencing ----------------------------------------------------------------------------------------------------------


async def test_newer_producer_fences_the_older_one_and_ends_its_transaction(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as zombie:
        await zombie.begin_transaction()
        await zombie.send_and_wait("orders", b"a", partition=0)
        async with producer_of(tx) as newer:
            async with newer.transaction():
                await newer.send("orders", b"b", partition=0)
            with pytest.raises(ProducerFenced, match="'tx'"):
                await zombie.commit_transaction()
            for call in (zombie.abort_transaction, zombie.begin_transaction):
                with pytest.raises(ProducerFenced):
                    await call()
            with pytest.raises(ProducerFenced):
                zombie.send_nowait("orders", b"c", partition=0)
    assert tx.committed() == [b"b"]


async def test_block_of_a_fenced_producer_says_so(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as zombie, producer_of(tx) as newer:
        with pytest.raises(ProducerFenced, match="has lost the transactional id 'tx'") as caught:
            async with zombie.transaction():
                zombie.send_nowait("orders", b"a", partition=0)
        assert isinstance(caught.value.__cause__, TransactionAbortable), "a leader cannot tell it from one that timed out"
        with pytest.raises(ProducerFenced):
            await zombie.begin_transaction()
        async with newer.transaction():
            await newer.send("orders", b"b", partition=0)
    assert tx.committed() == [b"b"]


async def test_start_waits_for_the_end_of_the_transaction_before(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as zombie:
        await zombie.begin_transaction()
        await zombie.send_and_wait("orders", b"a", partition=0)
        tx.holds_markers = True
        newer = producer_of(tx)
        starting = asyncio.ensure_future(newer.start())
        await until(lambda: bool(tx.held))
        assert not starting.done()
        tx.write_markers()
        await starting
        await newer.stop()


async def test_timeout_that_brokers_do_not_allow_is_an_error_of_start(tx: ScriptedTransactions) -> None:
    with pytest.raises(RequestFailed, match=r"transaction\.max\.timeout\.ms") as caught:
        await producer_of(tx, transaction_timeout_ms=10_000_000).start()
    assert caught.value.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("sends_more", [False, True])
async def test_transaction_that_takes_too_long_can_be_followed_by_another(tx: ScriptedTransactions, sends_more: bool) -> None:
    async with producer_of(tx, transaction_timeout_ms=50) as producer:
        with pytest.raises(TransactionTimedOut, match="transaction_timeout_ms is 50 ms"):  # noqa: PT012
            async with producer.transaction():
                await producer.send_and_wait("orders", b"a", partition=0)
                tx.now_ms += 60
                tx.expire()
                await asyncio.sleep(0.06)
                if sends_more:
                    producer.send_nowait("orders", b"a", partition=0)
        async with producer.transaction():
            await producer.send("orders", b"b", partition=0)
    assert tx.committed() == [b"b"]


async def test_producer_of_an_expired_id_is_fenced(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:
        tx.shard.transactions.clear()
        with pytest.raises(ProducerFenced, match="INVALID_PRODUCER_ID_MAPPING"):
            async with producer.transaction():
                await producer.send("orders", b"a", partition=0)


async def test_refusal_for_good_ends_the_producer(tx: ScriptedTransactions) -> None:
    tx.fate = lambda request: "INVALID_REQUEST" if ends(request) else "ok"
    async with producer_of(tx) as producer:
        with pytest.raises(TransactionFailed, match="was not committed"):
            async with producer.transaction():
                await producer.send("orders", b"a", partition=0)
        with pytest.raises(TransactionFailed):
            await producer.begin_transaction()


# -- stop -------------------------------------------------------------------------------------------------------------


async def test_stop_aborts_an_open_transaction(tx: ScriptedTransactions) -> None:
    producer = producer_of(tx)
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait("orders", b"a", partition=0)
    with capture_logs() as logs:
        await producer.stop()
    assert tx.ends() == [False]
    assert "producer.stopped_in_transaction" in [line["event"] for line in logs]


async def test_block_whose_producer_was_stopped_raises(tx: ScriptedTransactions) -> None:
    producer = producer_of(tx)
    await producer.start()
    with pytest.raises(ClientClosed, match="aborted"):  # noqa: PT012
        async with producer.transaction():
            await producer.send_and_wait("orders", b"a", partition=0)
            await producer.stop()
    assert (tx.ends(), tx.committed()) == ([False], [])


async def test_abort_without_answer_is_logged_and_does_not_hide_the_error(tx: ScriptedTransactions) -> None:
    async with producer_of(tx, max_block_ms=200) as producer:
        with capture_logs() as logs, pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012
            async with producer.transaction():
                await producer.send_and_wait("orders", b"a", partition=0)
                tx.fate = lambda request: "request lost" if ends(request) else "ok"
                raise ZeroDivisionError
        assert "not known whether the transaction is aborted" in "".join(caught.value.__notes__)
        assert "producer.transaction_left_open" in [line["event"] for line in logs]
        tx.fate = lambda request: "ok"
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("orders", b"b", partition=0)
    assert tx.committed() == [b"b"]


async def test_commit_that_waits_for_records_is_not_sent_after_stop(tx: ScriptedTransactions) -> None:
    """Another task stops the producer, which drops the records: a commit would be one of half a transaction."""
    tx.cluster.produce_fate = lambda broker_id, key: "silence"
    producer = producer_of(tx)
    await producer.start()
    await producer.begin_transaction()
    await producer.send("orders", b"a", partition=0)
    committing = asyncio.ensure_future(producer.commit_transaction())
    await until(lambda: producer.health()["transaction"] == "committing")
    await producer.stop(200)
    with pytest.raises(ClientClosed, match="before the commit was sent"):
        await committing
    assert (tx.ends(), tx.committed()) == ([False], [])


@pytest.mark.parametrize("commits", [True, False])
async def test_stop_while_the_end_is_not_answered_leaves_the_outcome_unknown(tx: ScriptedTransactions, commits: bool) -> None:
    """The call that waits raises TransactionOutcomeUnknown, and not CancelledError: its task was not cancelled."""
    producer = producer_of(tx)
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait("orders", b"a", partition=0)
    tx.fate = lambda request: "silence" if ends(request) else "ok"
    ending = asyncio.ensure_future(producer.commit_transaction() if commits else producer.abort_transaction())
    await until(lambda: bool(tx.ends()))
    await producer.stop(50)
    with pytest.raises(TransactionOutcomeUnknown, match="was stopped"):
        await ending


async def test_offsets_that_wait_are_refused_by_stop(tx: ScriptedTransactions) -> None:
    producer = producer_of(tx)
    await producer.start()
    await producer.begin_transaction()
    tx.fate = lambda request: "COORDINATOR_LOAD_IN_PROGRESS" if isinstance(request, TxnOffsetCommitRequest) else "ok"
    waiting = asyncio.ensure_future(producer.send_offsets_to_transaction({P0: 3}, "g"))
    await until(lambda: any(isinstance(each, TxnOffsetCommitRequest) for each in tx.requests))
    await producer.stop(200)
    with pytest.raises(ClientClosed):
        await waiting


async def test_second_cancellation_says_what_is_not_known(tx: ScriptedTransactions) -> None:
    """A block that is cancelled once more while it waits for its abort: the exception that the program gets has the note. The
    next transaction waits for the end of this one, whatever that is."""
    async with producer_of(tx) as producer:

        async def work() -> None:
            async with producer.transaction():
                await producer.send("orders", b"a", partition=0)

        tx.fate = lambda request: "silence" if ends(request) else "ok"
        task = asyncio.ensure_future(work())
        await until(lambda: bool(tx.ends()))
        task.cancel()
        await until(lambda: producer._transactions is not None and producer._transactions._cleaning is not None)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert "not known whether the transaction is aborted" in "".join(caught.value.__notes__)
        tx.fate = lambda request: "TRANSACTION_ABORTABLE" if ends(request) and request.committed else "ok"
        beginning = asyncio.ensure_future(producer.begin_transaction())
        for broker in tx.cluster.brokers.values():
            broker.cut_connections()
        await beginning
        tx.fate = lambda request: "ok"
        await producer.send("orders", b"b", partition=0)
        await producer.commit_transaction()
    assert tx.committed() == [b"b"]


# -- offsets ----------------------------------------------------------------------------------------------------------


async def test_offsets_count_when_the_transaction_is_committed(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:
        for offset, commits in ((5, True), (7, False), (9, True)):
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({P0: offset}, "g")
            before = tx.groups.offset("orders")
            assert before != offset
            await (producer.commit_transaction() if commits else producer.abort_transaction())
            assert tx.groups.offset("orders") == (offset if commits else before)


async def test_offsets_are_those_of_the_member(tx: ScriptedTransactions) -> None:
    options: Any = {"bootstrap_servers": tx.cluster.bootstrap, "group_id": "g", "auto_offset_reset": "earliest"}
    async with producer_of(tx) as producer, Consumer("orders", **options, enable_auto_commit=False) as consumer:
        await until(lambda: len(consumer.assignment()) == 3)
        async with producer.transaction():
            await producer.send_offsets_to_transaction({P0: 3, ("orders", 1): (4, "text")}, consumer)
        (request,) = [each for each in tx.requests if isinstance(each, TxnOffsetCommitRequest)]
        me = consumer.group_metadata()
        assert (request.member_id, request.generation_id_or_member_epoch) == (me.member_id, me.generation_id)
        assert [tx.groups.offset("orders", index) for index in range(3)] == [3, 4, None]
        async with producer.transaction():
            await producer.send_offsets_to_transaction({P0: 8}, me)
        assert tx.groups.offset("orders") == 8


async def test_offsets_of_a_member_that_was_removed_abort_the_transaction(tx: ScriptedTransactions) -> None:
    """Another member may have read the records (KIP-447)."""
    old = ConsumerGroupMetadata("g", 3, "gone")
    async with producer_of(tx) as producer:
        with pytest.raises(TransactionAbortable) as caught:  # noqa: PT012
            async with producer.transaction():
                await producer.send("orders", b"a", partition=0)
                await producer.send_offsets_to_transaction({P0: 3}, old)
        assert isinstance(caught.value.__cause__, CommitFailed)
        assert (tx.committed(), tx.groups.offset("orders")) == ([], None)


async def test_offsets_of_partitions_that_are_not_assigned_abort_the_transaction(tx: ScriptedTransactions) -> None:
    options: Any = {"bootstrap_servers": tx.cluster.bootstrap, "group_id": "g"}
    async with producer_of(tx) as producer, Consumer("orders", **options, enable_auto_commit=False) as consumer:
        await until(lambda: len(consumer.assignment()) == 3)
        with pytest.raises(TransactionAbortable, match="not assigned"):
            async with producer.transaction():
                await producer.send_offsets_to_transaction({("paid", 0): 3}, consumer)


async def test_consumer_that_commits_by_itself_is_refused(tx: ScriptedTransactions) -> None:
    options: Any = {"bootstrap_servers": tx.cluster.bootstrap, "group_id": "g"}
    async with producer_of(tx) as producer, Consumer("orders", **options) as consumer, producer.transaction():
        with pytest.raises(UsageError, match="enable_auto_commit=False"):
            await producer.send_offsets_to_transaction({P0: 3}, consumer)
        with pytest.raises(UsageError, match="group id"):
            await producer.send_offsets_to_transaction({P0: 3}, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("fate", ["response lost", "request lost", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"])
async def test_offsets_are_sent_again_until_they_are_answered(tx: ScriptedTransactions, fate: str) -> None:
    left = iter([fate, fate])
    tx.fate = lambda request: next(left, "ok") if isinstance(request, TxnOffsetCommitRequest) else "ok"
    async with producer_of(tx) as producer, producer.transaction():
        await producer.send_offsets_to_transaction({P0: 3}, "g")
    assert tx.groups.offset("orders") == 3


async def test_offsets_of_unknown_fate_abort_the_transaction(tx: ScriptedTransactions) -> None:
    """This holds also if the program stops waiting: a commit after that could leave the offsets out."""
    tx.fate = lambda request: "silence" if isinstance(request, TxnOffsetCommitRequest) else "ok"
    async with producer_of(tx) as producer:
        with pytest.raises(TransactionAbortable):  # noqa: PT012
            async with producer.transaction():
                try:
                    async with asyncio.timeout(0.05):
                        await producer.send_offsets_to_transaction({P0: 3}, "g")
                except TimeoutError:
                    pass
    assert tx.ends() == [False]


async def test_offsets_of_an_aborted_transaction_go_into_no_later_one(tx: ScriptedTransactions) -> None:
    """A call that still tries to send offsets, while its transaction is aborted and the next one begins, raises an error: they
    would count with records that do not belong to them."""
    tx.fate = lambda request: "COORDINATOR_LOAD_IN_PROGRESS" if isinstance(request, TxnOffsetCommitRequest) else "ok"
    async with producer_of(tx) as producer:
        await producer.begin_transaction()
        late = asyncio.ensure_future(producer.send_offsets_to_transaction({P0: 3}, "g"))
        await until(lambda: any(isinstance(each, TxnOffsetCommitRequest) for each in tx.requests))
        await producer.abort_transaction()
        await producer.begin_transaction()
        tx.fate = lambda request: "ok"
        with pytest.raises(UsageError, match=r"has ended|takes no more"):
            await late
        await producer.send("orders", b"b", partition=0)
        await producer.commit_transaction()
    assert (tx.committed(), tx.groups.offset("orders")) == ([b"b"], None)


async def test_offsets_of_a_partition_that_does_not_exist_are_refused_soon(tx: ScriptedTransactions) -> None:
    """The topic was deleted, or a number is wrong: there is nothing to wait for until `max_block_ms`."""
    tx.groups.commit_codes[(tx.cluster.topics["orders"], 99)] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    async with asyncio.timeout(20), producer_of(tx) as producer:
        with pytest.raises(TransactionAbortable, match="orders-99"):
            async with producer.transaction():
                await producer.send_offsets_to_transaction({("orders", 99): 3}, "g")
        tx.groups.commit_codes.clear()
        async with producer.transaction():
            await producer.send_offsets_to_transaction({P0: 3}, "g")
    assert tx.groups.offset("orders") == 3


async def test_log_says_that_a_cancellation_has_ended_the_transaction(tx: ScriptedTransactions) -> None:
    tx.fate = lambda request: "silence" if isinstance(request, TxnOffsetCommitRequest) else "ok"
    async with producer_of(tx) as producer:
        with capture_logs() as logs, pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), producer.transaction():
                await producer.send_offsets_to_transaction({P0: 3}, "g")
    assert [line["reason"] for line in logs if line["event"] == "producer.transaction_failed"] == ["CancelledError"]
