"""Which records a program has finished: derived from the calls by which it asks for more."""

from __future__ import annotations

import pytest

from strandline.client.consumer.group.handed_over import HandedOver
from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.records import ConsumerRecord, TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def state(tp: TopicPartition, position: int) -> PartitionState:
    made = PartitionState(tp, bytes(16), {}, lambda error: False)
    if position >= 0:
        made.seek(position)
    return made


def record(offset: int) -> ConsumerRecord:
    return ConsumerRecord("orders", 0, offset, 0, None, b"", (), 0)


def hand_over(handed: HandedOver, partition: PartitionState, end: int) -> None:
    """Return the records up to `end`, as a call of the program does."""
    handed.on_returned(partition)
    partition.seek(end)


def test_without_a_position_nothing_is_finished() -> None:
    handed, a = HandedOver(), state(P0, -1)
    assert handed.finished(a) is None
    assert not handed.has_unfinished([a])


def test_returned_records_are_finished_by_the_next_call() -> None:
    handed, a, b = HandedOver(), state(P0, 5), state(P1, 7)
    hand_over(handed, a, 9)
    assert [handed.finished(s) for s in (a, b)] == [(5, -1), (7, -1)]
    assert handed.has_unfinished([a, b])
    assert not handed.has_unfinished([b])
    handed.on_poll(None)
    assert handed.finished(a) == (9, -1)
    assert not handed.has_unfinished([a])


def test_two_returns_within_one_call_begin_at_the_first() -> None:
    """This happens in `getone` if a deserializer skips records, or if a call loops twice."""
    handed, a = HandedOver(), state(P0, 5)
    hand_over(handed, a, 9)
    hand_over(handed, a, 12)
    assert handed.finished(a) == (5, -1)


@pytest.mark.parametrize("only", [{P1}, set()])
def test_call_for_another_partition_finishes_nothing(only: set[TopicPartition]) -> None:
    handed, a = HandedOver(), state(P0, 5)
    hand_over(handed, a, 9)
    handed.on_poll(only)
    assert handed.finished(a) == (5, -1)
    handed.on_poll({P0, P1})
    assert handed.finished(a) == (9, -1)


def test_a_loop_finishes_what_is_before_its_record() -> None:
    handed, a = HandedOver(), state(P0, 5)
    handed.on_iterated(a)
    assert (handed.finished(a), handed.has_unfinished([a])) == ((5, -1), False)
    a.cursor = record(6)
    assert a.position == 7
    assert (handed.finished(a), handed.has_unfinished([a])) == ((6, -1), True)
    handed.on_poll(None)
    assert (handed.finished(a), handed.has_unfinished([a])) == ((7, 0), False)


def test_calls_for_other_partitions_leave_a_loop_alone() -> None:
    handed, a = HandedOver(), state(P0, 5)
    handed.on_iterated(a)
    a.cursor = record(6)
    handed.on_poll({P1})
    assert handed.finished(a) == (6, -1)
    handed.on_poll({P0})
    assert handed.finished(a) == (7, 0)


def test_a_seek_is_a_decision_of_the_program() -> None:
    handed, a = HandedOver(), state(P0, 5)
    hand_over(handed, a, 9)
    a.seek(2)
    handed.forget(a)
    assert handed.finished(a) == (2, -1)


def test_everything_can_be_finished_at_once() -> None:
    handed, a, b = HandedOver(), state(P0, 5), state(P1, 5)
    hand_over(handed, a, 9)
    handed.on_iterated(b)
    b.cursor = record(6)
    handed.finish_all()
    assert (handed.finished(a), handed.finished(b)) == ((9, -1), (7, 0))


def test_dropped_partition_is_remembered_while_its_records_are_in_work() -> None:
    """The program may try to commit these records, and should get an error."""
    handed, a, b = HandedOver(), state(P0, 5), state(P1, 5)
    hand_over(handed, a, 9)
    handed.drop(a)
    handed.drop(b)
    assert list(handed.dropped) == [P0]
    handed.on_poll({P1})
    assert list(handed.dropped) == [P0]
    handed.on_poll({P0})
    assert not handed.dropped
