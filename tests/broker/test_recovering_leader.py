"""A leader after an unclean election is RECOVERING: it is alone in the ISR until the controller has accepted the end of
its recovery."""

from __future__ import annotations

from replica_world import Node, P, ReplicaWorld, commit, fence, refuse

from strandline.broker.partition.alter_partition import RETRY_BACKOFF_MS
from strandline.controller.metadata.records import RECOVERED, RECOVERING, PartitionChangeRecord
from strandline.protocol.errors import ErrorCode


def recovering() -> tuple[ReplicaWorld, Node]:
    """Broker 2 leads in epoch 2 after an unclean election."""
    world = ReplicaWorld()
    world.topic(isr=(1,))
    world.change(PartitionChangeRecord(*P, isr=(2,), leader=2, leader_recovery_state=RECOVERING))
    return world, world[2]


def test_it_proposes_the_end_of_its_recovery_at_once() -> None:
    _, leader = recovering()
    item = leader.alter.pending[P]
    assert [broker_id for broker_id, _ in item.isr] == [2]
    assert item.leader_recovery_state == RECOVERED


def test_it_does_not_expand_the_isr_before() -> None:
    _, leader = recovering()
    refuse(leader.alter.take(), ErrorCode.INELIGIBLE_REPLICA)
    leader.said_by(3, 0, epoch=2)
    assert leader.alter.pending == {}, "broker 3 is in sync, and waits"


def test_it_repeats_the_proposal_until_it_is_accepted() -> None:
    _, leader = recovering()
    for code in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.REQUEST_TIMED_OUT):
        refuse(leader.alter.take(), code)
        leader.manager.maybe_shrink_isrs()
        assert [broker_id for broker_id, _ in leader.alter.pending[P].isr] == [2]


def test_it_repeats_the_proposal_after_a_short_pause() -> None:
    """It does not wait for the next check for slow followers, which is seconds away."""
    world, leader = recovering()
    for _ in range(3):
        refuse(leader.alter.take(), ErrorCode.INELIGIBLE_REPLICA)
        assert leader.alter.pending == {}
        world.loop.advance(RETRY_BACKOFF_MS / 1000)
        assert [broker_id for broker_id, _ in leader.alter.pending[P].isr] == [2]
    commit(leader.alter.take())
    world.loop.advance(RETRY_BACKOFF_MS / 1000)
    assert leader.alter.pending == {}


def test_a_fenced_leader_repeats_the_proposal_when_it_is_unfenced() -> None:
    world, leader = recovering()
    world.change(fence(2))
    refuse(leader.alter.take(), ErrorCode.INELIGIBLE_REPLICA)
    world.loop.advance(1)
    assert leader.alter.pending == {}
    world.change(fence(2, fenced=-1))
    assert [broker_id for broker_id, _ in leader.alter.pending[P].isr] == [2]


def test_a_leader_that_has_resigned_proposes_nothing() -> None:
    world, leader = recovering()
    refuse(leader.alter.take(), ErrorCode.INELIGIBLE_REPLICA)
    world.change(PartitionChangeRecord(*P, isr=(1,), leader=1, leader_recovery_state=RECOVERING))
    world.loop.advance(1)
    assert leader.alter.pending == {}


def test_it_expands_the_isr_afterwards() -> None:
    _, leader = recovering()
    commit(leader.alter.take())
    leader.said_by(3, 0, epoch=2)
    item = leader.alter.pending[P]
    assert [broker_id for broker_id, _ in item.isr] == [2, 3]


def test_it_learns_from_the_metadata_that_its_recovery_has_ended() -> None:
    """The answer to its proposal was lost."""
    world, leader = recovering()
    world.change(PartitionChangeRecord(*P, isr=(2,), leader_recovery_state=RECOVERED))
    assert leader.alter.pending == {}
    leader.said_by(3, 0, epoch=2)
    assert [broker_id for broker_id, _ in leader.alter.pending[P].isr] == [2, 3]
