"""Order and exactly-once of one partition, under every failure that a network and a moving leader can make."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.client.errors import DeliveryTimeout
from strandline.client.producer.batch import Batch
from strandline.client.producer.partition_queue import IN_FLIGHT_MAX, PRODUCER_EPOCH_MAX, PartitionQueue, QueueState
from strandline.protocol.errors import ErrorCode
from strandline.protocol.producer_names import named_producer_id
from strandline.protocol.records.batch import read_header

from .model_log import ModelLog

C = ErrorCode
PRODUCER_ID = 7


class Line:
    """A queue, a model of the log, and the requests between them (one pipe, in order)."""

    def __init__(self) -> None:
        self.queue = PartitionQueue("orders", 0, idempotent=True)
        self.queue.set_producer_id(PRODUCER_ID, 0)
        self.log = ModelLog()
        self.pipe: deque[tuple[Batch, int, bytes]] = deque()
        self.late: list[bytes] = []
        self.batches: list[Batch] = []
        self.values: dict[Batch, list[bytes]] = {}
        self.produced = 0

    def establish(self) -> None:
        """Acknowledge one record, so that the broker knows the producer from here on."""
        self.produce(1)
        self.settle()

    def produce(self, records: int) -> Batch:
        batch = Batch("orders", 0, 1000, 1000, 0.0, 100.0, 1_700_000_000_000)
        self.values[batch] = [b"%d" % (self.produced + i) for i in range(records)]
        self.produced += records
        for value in self.values[batch]:
            batch.append(None, value, None, None, len(value))
        self.queue.ready.append(batch)
        self.batches.append(batch)
        return batch

    def pump(self) -> None:
        while (batch := self.queue.take(0.0, partial=True)) is not None:
            assert batch.data is not None
            self.pipe.append((batch, batch.attempts, bytes(batch.data)))

    def answer(self, batch: Batch, attempt: int, code: ErrorCode, base_offset: int) -> None:
        """Act on an answer as the sender does: an answer to an old attempt is ignored."""
        if not batch.expects(attempt):
            return
        if code == C.NONE:
            self.queue.on_acked(batch)
            batch.complete(base_offset)
        elif code == C.MESSAGE_TOO_LARGE and self.queue.may_split(batch):
            self.queue.split(batch)
        elif not self.queue.on_failed(batch, code, 0.0):
            batch.fail(DeliveryTimeout(code.name))

    def deliver(self, fate: str) -> None:
        if not self.pipe:
            return
        batch, attempt, data = self.pipe.popleft()
        if fate == "ok":
            self.answer(batch, attempt, *self.log.append(data))
        elif fate == "response lost":
            self.log.append(data)
            self.answer(batch, attempt, C.NETWORK_EXCEPTION, -1)
        elif fate == "request timed out, arrives later":
            self.late.append(data)
            self.answer(batch, attempt, C.REQUEST_TIMED_OUT, -1)
        else:
            self.answer(batch, attempt, C[fate], -1)

    def move_leader(self, appended: int) -> None:
        """The old leader commits the first `appended` requests of the pipe; its answers never arrive."""
        for _, _, data in list(self.pipe)[:appended]:
            self.log.append(data)
        self.pipe.clear()
        self.queue.abandon_attempts()

    def expire_oldest(self) -> None:
        waiting = [*self.queue.in_flight, *self.queue.ready]
        if waiting:
            self.late.clear()
            self.queue.remove(waiting[0])
            waiting[0].fail(DeliveryTimeout("too late"))

    def settle(self) -> None:
        for _ in range(200):
            self.pump()
            if not self.pipe:
                return
            while self.pipe:
                self.deliver("ok")
        raise AssertionError("the queue does not come to rest")

    def check(self) -> None:
        offsets = []
        for batch in self.batches:
            for index, value in enumerate(self.values[batch]):
                try:
                    offset = batch.metadata(index).offset
                except DeliveryTimeout:
                    continue
                offsets.append(offset)
                assert self.log.values[offset] == value, f"{batch} was acknowledged with an offset that holds something else"
        assert len(set(self.log.values)) == len(self.log.values), "a record is in the log twice"
        assert self.log.values == sorted(self.log.values, key=int), "the log is out of order"
        assert offsets == sorted(offsets)


STEPS = st.one_of(
    st.tuples(st.just("produce"), st.integers(1, 4)),
    st.tuples(st.just("pump"), st.just(0)),
    st.tuples(
        st.sampled_from(
            [
                "ok",
                "response lost",
                "request timed out, arrives later",
                "NETWORK_EXCEPTION",
                "NOT_LEADER_OR_FOLLOWER",
                "NOT_ENOUGH_REPLICAS",
                "INVALID_RECORD",
                "MESSAGE_TOO_LARGE",
            ]
        ),
        st.just(0),
    ),
    st.tuples(st.just("move"), st.integers(0, 5)),
    st.tuples(st.just("late"), st.integers(0, 3)),
    st.tuples(st.just("expire"), st.just(0)),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_acknowledged_records_are_in_the_log_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    """Five in flight, lost requests and responses, late copies, leader moves, refusals, expiries (S38, S39)."""
    line = Line()
    for what, n in steps:
        if what == "produce":
            line.produce(n)
        elif what == "pump":
            line.pump()
        elif what == "move":
            line.move_leader(n)
        elif what == "late":
            if n < len(line.late):
                line.log.append(line.late.pop(n))
        elif what == "expire":
            line.expire_oldest()
        else:
            line.deliver(what)
        assert len(line.queue.in_flight) <= IN_FLIGHT_MAX
    line.settle()
    assert all(batch.done for batch in line.batches), "a batch was forgotten"
    line.check()


def test_retry_after_lost_response_gets_original_offset() -> None:
    """S38: the retry to the new leader finds the batch by its sequence; there is one copy."""
    line = Line()
    line.establish()
    first, second = line.produce(5), line.produce(5)
    line.pump()
    line.deliver("ok")
    line.deliver("response lost")
    line.move_leader(0)
    line.settle()
    assert (first.base_offset, second.base_offset) == (1, 6)
    assert len(line.log.values) == 11


def test_retries_keep_sequence_order() -> None:
    """S39: no batch overtakes another, in whatever order the responses arrive."""
    line = Line()
    line.establish()
    batches = [line.produce(1) for _ in range(7)]
    line.pump()
    assert len(line.pipe) == 5
    for _ in range(5):
        line.deliver("response lost")
    line.pump()
    assert [batch for batch, _, _ in line.pipe] == batches[:5]
    line.settle()
    assert [batch.base_offset for batch in batches] == list(range(1, 8))


def test_batch_in_doubt_stays_within_five_batches() -> None:
    """A broker keeps only the last five batches of a producer. A retry of an older one would get no offset, or be appended as
    new."""
    line = Line()
    line.establish()
    lost = line.produce(1)
    for _ in range(12):
        line.produce(1)
    for _ in range(4):
        line.pump()
        line.deliver("response lost")
        while line.pipe:
            line.deliver("ok")
    assert len(line.log.values) == 6, "five places, the settled ones included"
    line.settle()
    line.check()
    assert lost.base_offset == 1
    assert line.queue.producer_epoch == 0


def test_retry_waits_for_attempts_in_flight() -> None:
    """Rule 2: a retry beside an attempt in flight could overtake it."""
    line = Line()
    line.establish()
    for _ in range(3):
        line.produce(1)
    line.pump()
    line.deliver("NETWORK_EXCEPTION")
    line.pump()
    assert len(line.pipe) == 2
    line.deliver("ok")
    line.deliver("ok")
    line.settle()
    line.check()
    assert len(line.log.values) == 4


def test_batch_given_up_does_not_block_later_ones() -> None:
    """The gap is refused as out of order, which proves that the rest is not in the log: a new epoch, numbers from 0."""
    line = Line()
    line.produce(1)
    line.settle()
    lost, after = line.produce(2), line.produce(2)
    line.pump()
    line.deliver("NETWORK_EXCEPTION")
    line.expire_oldest()
    line.deliver("ok")
    line.settle()
    assert isinstance(lost.error, DeliveryTimeout)
    assert after.error is None
    assert line.queue.producer_epoch == 1
    assert line.log.values == [b"0", b"3", b"4"]


def test_batch_given_up_but_written_leaves_no_gap() -> None:
    """A batch that was given up may be written: then the next one continues, and no epoch is used up."""
    line = Line()
    line.establish()
    line.produce(2)
    after = line.produce(2)
    line.pump()
    line.deliver("response lost")
    line.expire_oldest()
    line.deliver("ok")
    line.settle()
    assert after.base_offset == 3
    assert line.queue.producer_epoch == 0


def test_unknown_producer_has_one_batch_in_flight() -> None:
    """Rule 5: a broker without state accepts any sequence number, so a second batch could overtake a failed first one."""
    line = Line()
    line.produce(1), line.produce(1)
    line.pump()
    assert len(line.pipe) == 1
    line.deliver("NOT_ENOUGH_REPLICAS")
    line.pump()
    line.deliver("ok")
    line.settle()
    line.check()
    assert len(line.log.values) == 2


def test_exhausted_epoch_needs_new_producer_id() -> None:
    line = Line()
    line.queue = queue = PartitionQueue("orders", 0, idempotent=True)
    line.produce(1)
    assert queue.needs_producer_id
    queue.set_producer_id(1, PRODUCER_EPOCH_MAX)
    assert not queue.needs_producer_id
    queue.state = QueueState.RENUMBERING
    assert queue.needs_producer_id


def test_idle_queue_of_a_transaction_that_has_ended_takes_no_producer_id() -> None:
    """The sender may still look at it, for example when its broker is back. The epoch of that moment belongs to the next
    transaction, and this partition may not be part of that: then the one after it would write with an old epoch."""
    line = Line()
    line.queue = queue = PartitionQueue("orders", 0, idempotent=True, transactional=True)
    queue.set_producer_id(PRODUCER_ID, 3)
    queue.remove(line.produce(1))
    queue.end_transaction()
    assert not queue.needs_producer_id
    line.produce(1)
    assert queue.needs_producer_id


def test_exhausted_epoch_waits_for_batches_in_flight() -> None:
    """The batch may have been written under the old id; with a new id the broker would not recognise a retry."""
    line = Line()
    line.produce(1)
    line.pump()
    line.queue.producer_epoch, line.queue.state = PRODUCER_EPOCH_MAX, QueueState.RENUMBERING
    assert not line.queue.needs_producer_id
    line.queue.abandon_attempts()
    assert line.queue.needs_producer_id


def test_batch_in_doubt_is_not_split() -> None:
    """A broker recognises a duplicate by its first and last sequence: it would append the halves again."""
    line = Line()
    batch = line.produce(2)
    line.pump()
    assert line.queue.may_split(batch)
    line.queue.abandon_attempts()
    assert not line.queue.may_split(batch)


@pytest.mark.parametrize("code", [C.INVALID_RECORD, C.MESSAGE_TOO_LARGE, C.INVALID_TOPIC_EXCEPTION])
def test_final_rejection_fails_one_batch(code: ErrorCode) -> None:
    line = Line()
    refused, after = line.produce(1), line.produce(1)
    line.pump()
    line.deliver(code.name)
    line.settle()
    assert refused.error is not None
    assert after.error is None


# -- row numbers of a named producer ----------------------------------------------------------------------------------


def named_queue(next_row: int = 0) -> Line:
    line = Line()
    line.queue = PartitionQueue("orders", 0, idempotent=True, named=True)
    line.queue.resume(named_producer_id(7, 0), 1, next_row)
    return line


def sequences(line: Line) -> list[int]:
    return [read_header(data).base_sequence for _, _, data in line.pipe]


def test_named_producer_continues_with_several_batches_in_flight() -> None:
    """A broker rejects a first row with any other number than the next one, so a second batch cannot overtake a failed first
    one."""
    line = named_queue(40)
    for count in (3, 2, 4):
        line.produce(count)
    line.pump()
    assert not line.queue.needs_producer_id
    assert sequences(line) == [40, 43, 45]


@pytest.mark.parametrize("code", [C.OUT_OF_ORDER_SEQUENCE_NUMBER, C.UNKNOWN_PRODUCER_ID, C.INVALID_PRODUCER_EPOCH])
def test_named_producer_is_never_renumbered(code: ErrorCode) -> None:
    line = named_queue(40)
    first = line.produce(3)
    line.pump()
    assert not line.queue.on_failed(first, code, 0.0)
    assert line.queue.state is not QueueState.RENUMBERING
    assert (line.queue.producer_epoch, line.queue.next_sequence) == (1, 43)


def test_out_of_order_for_a_later_batch_is_retried() -> None:
    line = named_queue(40)
    first, second = line.produce(3), line.produce(2)
    line.pump()
    assert line.queue.on_failed(first, C.NOT_LEADER_OR_FOLLOWER, 0.0)
    assert line.queue.on_failed(second, C.OUT_OF_ORDER_SEQUENCE_NUMBER, 0.0)
    line.pipe.clear()
    line.pump()
    assert sequences(line) == [40, 43]


def test_fenced_epoch_fails_later_batches_too() -> None:
    line = named_queue(40)
    line.produce(3)
    second = line.produce(2)
    line.pump()
    assert not line.queue.on_failed(second, C.INVALID_PRODUCER_EPOCH, 0.0)


def test_row_numbers_do_not_wrap() -> None:
    line = named_queue(2**31 - 2)
    line.produce(2)
    last = line.produce(1)
    line.pump()
    assert sequences(line) == [2**31 - 2]
    assert "2147483648 rows" in str(line.queue.failed)
    assert list(line.queue.ready) == [last]


def test_queue_with_records_cannot_resume() -> None:
    line = named_queue()
    line.produce(1)
    with pytest.raises(AssertionError):
        line.queue.resume(named_producer_id(7, 0), 1, 5)
