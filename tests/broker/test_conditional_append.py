"""Conditional appends: a batch that names the offset that it must get is appended there or not at all."""

from __future__ import annotations

import pytest
from handled_request import HandledRequest
from replica_world import NOW_MS, Node, P, ReplicaWorld, batch, code, log_values, produced

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import ProducePartition, ProduceRequest
from strandline.storage.log.appending import UnexpectedLogEnd

OK, CONFLICT = ErrorCode.NONE, ErrorCode.UNEXPECTED_LOG_END


def three(**options: object) -> tuple[ReplicaWorld, Node]:
    world = ReplicaWorld()
    world.topic(**options)  # type: ignore[arg-type]
    return world, world[1]


def commit(leader: Node) -> None:
    for broker_id in (2, 3):
        leader.said_by(broker_id, leader.leo)


@pytest.mark.parametrize("acks", [1, -1])
def test_append_at_the_expected_offset_succeeds(acks: int) -> None:
    _, leader = three()
    for offset in range(3):
        request = leader.produce("a", acks=acks, expected_offset=offset)
        commit(leader)
        assert (code(request), produced(request).base_offset) == (OK, offset)
    assert leader.leo == 3


@pytest.mark.parametrize("expected", [0, 1, 3, 2**40])
def test_append_at_another_offset_is_rejected_with_the_log_end(expected: int) -> None:
    """Below the log end, another record has the offset; above it, a record would be missing before it."""
    _, leader = three()
    leader.produce("a", "b", acks=1)
    commit(leader)
    request = leader.produce("c", expected_offset=expected)
    assert (code(request), produced(request).log_end_offset, produced(request).base_offset) == (CONFLICT, 2, -1)
    assert produced(request).error_message == f"the append expects offset {expected}, but the log end is 2"
    assert leader.leo == 2
    assert leader.p.metrics.failed_produces == 1


def test_of_two_appends_that_expect_one_offset_one_succeeds() -> None:
    """Both arrive before either is committed. The second one is answered when the first one is committed."""
    _, leader = three()
    first, second = leader.produce("first", expected_offset=0), leader.produce("second", expected_offset=0)
    assert not first.is_answered
    assert not second.is_answered
    commit(leader)
    assert (code(first), produced(first).base_offset) == (OK, 0)
    assert (code(second), produced(second).log_end_offset) == (CONFLICT, 1)
    assert log_values(leader.p) == [(0, b"first")]


def test_rejection_waits_until_the_other_record_is_committed() -> None:
    """The other record may be lost with this leader. The offset would then be free again, and the rejection would have been
    wrong."""
    world, leader = three()
    leader.produce("uncommitted", acks=1)
    request = leader.produce("mine", expected_offset=0)
    assert not request.is_answered
    world.elect(2)
    assert code(request) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produced(request).log_end_offset == -1
    assert leader.p.metrics.failed_produces == 1, "it is one failure, however often its answer changes"
    again = world[2].produce("mine", acks=1, expected_offset=0)
    assert (code(again), produced(again).base_offset) == (OK, 0)


def test_rejection_that_waits_too_long_times_out() -> None:
    world, leader = three()
    leader.produce("uncommitted", acks=1)
    request = leader.produce("mine", expected_offset=0, timeout_ms=500)
    world.loop.advance(0.6)
    assert (code(request), produced(request).log_end_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert leader.p.metrics.failed_produces == 1


def test_acks_1_is_rejected_at_once() -> None:
    _, leader = three()
    leader.produce("uncommitted", acks=1)
    assert code(leader.produce("mine", acks=1, expected_offset=0)) == CONFLICT


def test_acks_0_that_is_rejected_closes_the_connection() -> None:
    _, leader = three()
    leader.produce("a", acks=1)
    request = leader.produce("mine", acks=0, expected_offset=0)
    assert request.answers == [None]
    assert request.connection.closed


def test_retry_of_a_successful_append_is_a_success() -> None:
    """Its response was lost; the log end has moved on, but the batch is at its offset."""
    _, leader = three()
    mine = [batch("mine", producer_id=7, producer_epoch=0, sequence=sequence) for sequence in (0, 0)]
    leader.produce(mine[0], acks=1, expected_offset=0)
    leader.produce("other", acks=1)
    commit(leader)
    retry = leader.produce(mine[1], expected_offset=0)
    assert (code(retry), produced(retry).base_offset) == (OK, 0)
    assert leader.leo == 2


def test_retry_at_the_next_leader_is_a_success() -> None:
    """The new leader has the producer's state from the replicated batch."""
    world, leader = three()
    leader.produce(batch("mine", producer_id=7, producer_epoch=0, sequence=0), acks=1, expected_offset=0)
    world.replicate(2, 1)
    world.elect(2)
    retry = world[2].produce(batch("mine", producer_id=7, producer_epoch=0, sequence=0), acks=1, expected_offset=0)
    assert (code(retry), produced(retry).base_offset) == (OK, 0)
    assert world[2].leo == 1


def test_rejected_batch_leaves_no_trace_of_its_producer() -> None:
    """The producer may give its sequence number to another batch."""
    _, leader = three()
    leader.produce("other", acks=1)
    assert code(leader.produce(batch("mine", producer_id=7, producer_epoch=0, sequence=0), acks=1, expected_offset=0)) == CONFLICT
    again = leader.produce(batch("again", producer_id=7, producer_epoch=0, sequence=0), acks=1, expected_offset=1)
    assert (code(again), produced(again).base_offset) == (OK, 1)


def test_partitions_of_a_request_are_judged_one_by_one() -> None:
    world, leader = three(partitions=2)
    other = (P[0], 1)
    items = [ProducePartition(*P, 5), ProducePartition(*other, 0)]
    request = HandledRequest(ProduceRequest(None, 1, 1000, items, [memoryview(batch("a")), memoryview(batch("b"))]))
    leader.handlers[0](request)  # type: ignore[arg-type]
    world.loop.end_turn()
    assert [code(request, index) for index in (0, 1)] == [CONFLICT, OK]
    assert (leader[P].log.log_end_offset, leader[other].log.log_end_offset) == (0, 1)


def test_under_min_isr_no_conflict_is_reported() -> None:
    """As for any append with acks=all, the error is retriable."""
    _, leader = three(isr=(1,), min_isr=2)
    assert code(leader.produce("a", expected_offset=4)) == ErrorCode.NOT_ENOUGH_REPLICAS


def test_request_with_an_expected_offset_needs_version_1() -> None:
    """An older broker would ignore the field, and append."""
    partitions = [ProducePartition(*P), ProducePartition(P[0], 1)]
    request = ProduceRequest(None, -1, 1000, partitions, [])
    assert request.version() == 0
    partitions[1].expected_offset = 0
    assert request.version() == 1


def test_log_checks_and_appends_in_one_step() -> None:
    log = three()[1].p.log
    log.append_as_leader(memoryview(batch("a")), 1, NOW_MS, expected_offset=0)
    with pytest.raises(UnexpectedLogEnd) as caught:
        log.append_as_leader(memoryview(batch("b")), 1, NOW_MS, expected_offset=0)
    assert isinstance(caught.value, BrokerError)
    assert caught.value.log_end_offset == log.log_end_offset == 1
