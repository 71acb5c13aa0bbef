"""Transactions without asyncio: a `with` block, and what becomes of records that are on their way to the loop's thread."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from strandline import (
    DeliveryFailed,
    ProducerFenced,
    RecordTooLarge,
    StrandlineError,
    TopicPartition,
    TransactionAbortable,
    UsageError,
)
from strandline.sync import Consumer, Producer

from .group_world import scripted_on_a_thread
from .scripted_transactions import ScriptedTransactions

P0 = TopicPartition("orders", 0)


@pytest.fixture
def tx() -> Iterator[ScriptedTransactions]:
    made: list[ScriptedTransactions] = []
    with scripted_on_a_thread(records=0, on_made=lambda groups: made.append(ScriptedTransactions(groups))):
        yield made[0]


@pytest.fixture
def producer(tx: ScriptedTransactions) -> Iterator[Producer]:
    with Producer(bootstrap_servers=tx.cluster.bootstrap, transactional_id="tx") as producer:
        yield producer


def test_block_commits_what_was_sent_in_it(tx: ScriptedTransactions, producer: Producer) -> None:
    """The records take all ways to the loop: plain values and others through the mailbox, or calls on the loop."""
    for start in (0, 100):
        with producer.transaction() as same:
            assert same is producer
            for number in range(start, start + 100):
                producer.send("orders", b"%03d" % number, key=b"k" if number % 10 == 0 else None)
            producer.send_many("orders", [b"many"])
            producer.send_and_wait("orders", b"wait")
    assert sorted(tx.committed()) == sorted([b"%03d" % number for number in range(200)] + [b"many", b"wait"] * 2)
    assert tx.ends() == [True, True]


def test_exception_aborts_the_block(tx: ScriptedTransactions, producer: Producer) -> None:
    receipts = []

    def work() -> None:
        with producer.transaction():
            receipts.extend(producer.send("orders", b"%d" % number) for number in range(50))
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            work()
    with producer.transaction():
        producer.send("orders", b"b")
    assert tx.committed() == [b"b"]
    assert all(receipt.done for receipt in receipts), "none of them is left for the next transaction"


def test_names_of_aiokafka_do_the_same(tx: ScriptedTransactions, producer: Producer) -> None:
    producer.begin_transaction()
    producer.send("orders", b"a")
    producer.commit_transaction()
    producer.begin_transaction()
    receipt = producer.send("orders", b"b")
    producer.abort_transaction()
    with pytest.raises((DeliveryFailed, UsageError)):
        receipt.result()
    assert tx.committed() == [b"a"]


def test_records_outside_a_transaction_are_refused_by_the_call(tx: ScriptedTransactions, producer: Producer) -> None:
    for value in (b"a", b"b"):
        with pytest.raises(UsageError, match="in a transaction"):
            producer.send("orders", value)
        with pytest.raises(UsageError, match="in a transaction"):
            producer.send_nowait("orders", value, key=b"k")
        with producer.transaction():
            producer.send("orders", value)
            with pytest.raises(UsageError, match="has not ended"):
                producer.begin_transaction()
    assert sorted(tx.committed()) == [b"a", b"b"]


def test_record_that_is_refused_on_its_way_makes_the_transaction_abortable(tx: ScriptedTransactions) -> None:
    """The call has returned a receipt by then, which the program may never await."""
    with Producer(bootstrap_servers=tx.cluster.bootstrap, transactional_id="tx", buffer_memory=1000, batch_size=500) as producer:
        producer._client._accumulator._record_bytes_max = 100

        def work() -> None:
            with producer.transaction():
                producer.send("orders", b"a")
                producer.send("orders", bytes(200))

        with pytest.raises(TransactionAbortable) as caught:
            work()
        assert isinstance(caught.value.__cause__, RecordTooLarge)
    assert (tx.committed(), tx.ends()) == ([], [False])


def test_threads_share_the_transaction(tx: ScriptedTransactions, producer: Producer) -> None:
    def send(first: int) -> None:
        for number in range(first, first + 200):
            producer.send("orders", b"%d" % number)

    for _ in range(3):
        with producer.transaction():
            threads = [threading.Thread(target=send, args=[first]) for first in (0, 200, 400)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert sorted(tx.committed()) == sorted(b"%d" % number for number in [*range(600)] * 3)


def test_offsets_are_those_of_a_consumer_on_another_thread(tx: ScriptedTransactions, producer: Producer) -> None:
    options = {"bootstrap_servers": tx.cluster.bootstrap, "group_id": "g", "enable_auto_commit": False}
    with Consumer("orders", **options) as consumer:
        while len(consumer.assignment()) < 4:
            consumer.getmany(timeout_ms=10)
        with producer.transaction():
            producer.send_offsets_to_transaction({P0: 3}, consumer)
        assert tx.groups.offset("orders") == 3
        consumer.unsubscribe()
        with pytest.raises(TransactionAbortable), producer.transaction():
            producer.send_offsets_to_transaction({P0: 5}, consumer)
    assert tx.groups.offset("orders") == 3


def test_fenced_producer_says_so(tx: ScriptedTransactions, producer: Producer) -> None:
    producer.begin_transaction()
    producer.send_and_wait("orders", b"a")
    with Producer(bootstrap_servers=tx.cluster.bootstrap, transactional_id="tx"):
        with pytest.raises(ProducerFenced):
            producer.commit_transaction()
        with pytest.raises(StrandlineError):
            producer.send("orders", b"b")
    assert tx.committed() == []


def test_stop_aborts_an_open_transaction(tx: ScriptedTransactions) -> None:
    producer = Producer(bootstrap_servers=tx.cluster.bootstrap, transactional_id="tx")
    producer.start()
    producer.begin_transaction()
    producer.send_and_wait("orders", b"a")
    producer.stop()
    assert tx.ends() == [False]


# -- interrupts -------------------------------------------------------------------------------------------------------


def interrupt_when(condition: Callable[[], bool], then: Callable[[], object] = bool) -> threading.Thread:
    """Send SIGINT (Ctrl-C) to this thread when the condition is true. After that, `then` is called."""

    def act() -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        then()

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_interrupt_while_records_are_awaited_aborts_the_block(tx: ScriptedTransactions, producer: Producer) -> None:
    """The call that would end the transaction is cancelled: none may stay open, or the next block is refused forever."""
    tx.cluster.produce_fate = lambda broker_id, key: "silence"
    interrupter = interrupt_when(lambda: producer.health()["transaction"] == "committing")
    with pytest.raises(KeyboardInterrupt), producer.transaction():
        producer.send("orders", b"a", partition=0)
    interrupter.join(10)
    tx.cluster.produce_fate = lambda broker_id, key: "ok"
    with producer.transaction():
        producer.send("orders", b"b", partition=0)
    assert (tx.committed(), tx.ends()) == ([b"b"], [False, True])


def test_interrupt_that_comes_too_late_says_so(tx: ScriptedTransactions, producer: Producer) -> None:
    """The commit was decided, and its answer was lost."""
    fates = iter(["response lost"])
    late = threading.Event()
    tx.fate = lambda request: "ok" if late.is_set() else next(fates, "COORDINATOR_LOAD_IN_PROGRESS")
    interrupter = interrupt_when(lambda: bool(tx.ends()), late.set)
    with pytest.raises(KeyboardInterrupt) as caught, producer.transaction():
        producer.send_and_wait("orders", b"a", partition=0)
    interrupter.join(10)
    assert any("the transaction was committed" in note for note in caught.value.__notes__)
    with producer.transaction():
        producer.send("orders", b"b", partition=0)
    assert tx.committed() == [b"a", b"b"]


def test_interrupt_after_the_begin_leaves_no_transaction_open(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt arrives when the loop has begun the transaction, and the caller does not know it yet: `with` does not call
    `__exit__` then."""
    run = producer._run

    def interrupted(*args: Any) -> None:
        monkeypatch.undo()
        run(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(producer, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt), producer.transaction():
        pass
    with producer.transaction():
        producer.send("orders", b"b", partition=0)
