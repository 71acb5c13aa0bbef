"""A follower that was removed from the ISR must catch up again before the high watermark waits for it.

Outside the ISR a follower is not needed for safety: it can be elected only after the leader has proposed it, and from the
proposal on it is in the maximal ISR. Its progress *before* it was fenced says nothing about the present: its connection may be
dead, or it may have come back as a process that has to copy a million records first.
"""

from __future__ import annotations

import pytest
from replica_world import LAG_S, Node, P, ReplicaWorld, begin_shutdown, commit, fence, refuse, register, want

from strandline.controller.metadata.records import PartitionChangeRecord
from strandline.protocol.errors import ErrorCode

CUT_OFF_S = 3.0
"""A session: much less than the lag time."""


def led_by_1(world: ReplicaWorld, *, count: int = 5, isr: tuple[int, ...] = (1, 2, 3)) -> Node:
    """A leader with some records that every replica has."""
    world.topic(isr=isr)
    leader = world[1]
    for i in range(count):
        leader.produce(f"r{i}", acks=1)
    for follower in (2, 3):
        leader.said_by(follower, count, epoch=1)
    return leader


def cut_off_3(world: ReplicaWorld) -> None:
    """Broker 3 is silent for a session and fenced; then a heartbeat reaches a controller."""
    world.loop.advance(CUT_OFF_S)
    world.change(PartitionChangeRecord(*P, isr=(1, 2)), fence(3))


def test_an_unfenced_broker_holds_up_nothing_before_it_fetches() -> None:
    """Its heartbeats arrive at once, but its fetch connection may take seconds: it was in sync a moment ago, and is not now.
    Kafka waits for it until its lag time is over."""
    world = ReplicaWorld()
    leader = led_by_1(world)
    leader.produce("while it is cut off", acks=1)
    leader.said_by(2, 6, epoch=1)
    assert leader.hw == 5
    cut_off_3(world)
    assert leader.hw == 6
    world.change(fence(3, fenced=-1))
    request = leader.produce("after it was unfenced")
    leader.said_by(2, 7, epoch=1)
    assert request.is_answered
    assert leader.hw == 7


def test_an_idle_partitions_follower_is_not_proposed_before_it_was_heard_again() -> None:
    """Its log is as long as the leader's, so it would join the ISR at once, and all produces would wait for a dead connection."""
    world = ReplicaWorld()
    leader = led_by_1(world)
    cut_off_3(world)
    world.change(fence(3, fenced=-1))
    assert leader.alter.pending == {}
    request = leader.produce("after it was unfenced")
    leader.said_by(2, 6, epoch=1)
    assert request.is_answered
    leader.said_by(3, 6, epoch=1)
    assert leader.alter.pending[P].isr[-1] == (3, 13)


def test_a_follower_that_fetched_while_fenced_is_proposed_when_unfenced() -> None:
    """Only its way to the controllers was cut: it has fetched all the time, and its next fetch may be a long poll away."""
    world = ReplicaWorld()
    leader = led_by_1(world)
    session_id = _open_session(leader, 5)
    cut_off_3(world)
    world.loop.advance(0.5)
    _go_on(leader, session_id, 1)
    world.change(fence(3, fenced=-1))
    assert leader.alter.pending[P].isr[-1] == (3, 13)


def test_a_fetch_from_before_the_fencing_does_not_count() -> None:
    """The session remembers the fetch that was parked when the cable was pulled."""
    world = ReplicaWorld()
    leader = led_by_1(world)
    session_id = _open_session(leader, 5)
    world.loop.advance(0.5)
    _go_on(leader, session_id, 1)
    cut_off_3(world)
    world.change(fence(3, fenced=-1))
    request = leader.produce("after it was unfenced")
    leader.said_by(2, 6, epoch=1)
    assert request.is_answered


def test_a_returning_follower_is_not_dropped_at_the_next_check() -> None:
    """It joined because of fetches that did not name the partition; the next append must find it caught up."""
    world = ReplicaWorld()
    leader = led_by_1(world)
    session_id = _open_session(leader, 5)
    cut_off_3(world)
    world.loop.advance(0.5)
    _go_on(leader, session_id, 1)
    world.change(fence(3, fenced=-1))
    commit(leader.alter.take())
    leader.produce("more", acks=1)
    leader.manager.maybe_shrink_isrs()
    assert leader.isr == [1, 2, 3]
    assert leader.alter.pending == {}


def test_the_high_watermark_does_not_wait_for_a_returning_follower() -> None:
    """Its first fetch has an old position. That it reaches the log end from *before the cut* proves nothing."""
    world = ReplicaWorld()
    leader = led_by_1(world)
    cut_off_3(world)
    for i in range(10):
        leader.produce(f"missed {i}", acks=1)
    leader.said_by(2, 15, epoch=1)
    world.change(fence(3, fenced=-1))
    leader.said_by(3, 5, epoch=1)
    request = leader.produce("while it copies")
    leader.said_by(2, 16, epoch=1)
    assert request.is_answered


@pytest.mark.parametrize("heard_of_both", [True, False], ids=["fenced, then unfenced", "in one step"])
def test_a_new_process_of_a_follower_is_not_taken_for_the_old_one(heard_of_both: bool) -> None:
    """The process was killed and has restarted within the lag time, but has everything still to copy."""
    world = ReplicaWorld()
    leader = led_by_1(world)
    records = [PartitionChangeRecord(*P, isr=(1, 2)), register(3, epoch=99, fenced=True)]
    unfenced = fence(3, fenced=-1, epoch=99)
    if heard_of_both:
        world.change(*records)
        world.change(unfenced)
    else:
        world.change(*records, unfenced)
    leader.said_by(3, 0, epoch=1, broker_epoch=99)
    request = leader.produce("while it copies")
    leader.said_by(2, 6, epoch=1)
    assert request.is_answered


def test_a_new_process_outside_the_isr_starts_without_progress() -> None:
    world = ReplicaWorld()
    leader = led_by_1(world, isr=(1, 2))
    refuse(leader.alter.take(), ErrorCode.INELIGIBLE_REPLICA)
    world.change(register(3, epoch=99))
    leader.said_by(3, 0, epoch=1, broker_epoch=99)
    request = leader.produce("while it copies")
    leader.said_by(2, 6, epoch=1)
    assert request.is_answered


def test_a_member_that_lost_its_records_is_not_waited_for_once_it_is_out() -> None:
    """Its log is damaged: it fetches records that it had before, and was removed for that, although it was caught up a moment
    ago."""
    world = ReplicaWorld()
    leader = led_by_1(world)
    leader.said_by(3, 2, epoch=1)
    commit(leader.alter.take())
    assert leader.isr == [1, 2]
    request = leader.produce("while it copies")
    leader.said_by(2, 6, epoch=1)
    assert request.is_answered


def test_a_follower_that_shuts_down_is_not_waited_for_when_it_is_back() -> None:
    world = ReplicaWorld()
    leader = led_by_1(world)
    world.change(PartitionChangeRecord(*P, isr=(1, 2)), begin_shutdown(3))
    world.change(register(3, epoch=99))
    leader.said_by(3, 4, epoch=1, broker_epoch=99)
    request = leader.produce("while it copies")
    leader.said_by(2, 6, epoch=1)
    assert request.is_answered


def test_a_follower_that_is_back_and_in_step_is_waited_for_again() -> None:
    """The reason for the rule: it may join the ISR a moment later, and must then have every committed record."""
    world = ReplicaWorld()
    leader = led_by_1(world)
    cut_off_3(world)
    world.change(fence(3, fenced=-1))
    leader.said_by(3, 5, epoch=1)
    refuse(leader.alter.take(), ErrorCode.INELIGIBLE_REPLICA)
    request = leader.produce("not at broker 3")
    leader.said_by(2, 6, epoch=1)
    assert not request.is_answered
    world.loop.advance(LAG_S + 1)
    leader.said_by(2, 6, epoch=1)
    leader.manager.maybe_shrink_isrs()
    assert leader.hw == 6


def _open_session(leader: Node, offset: int) -> int:
    wanted = want(offset, epoch=1, last_epoch=1)
    answer = leader.fetch(wanted, replica_id=3, replica_epoch=13, session_epoch=0)
    return int(answer.answer.session_id)


def _go_on(leader: Node, session_id: int, epoch: int) -> None:
    """An incremental fetch that names no partition, as an idle follower sends it."""
    leader.fetch(replica_id=3, replica_epoch=13, session_id=session_id, session_epoch=epoch)
