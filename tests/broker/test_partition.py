"""One partition: roles, the high watermark, the ISR, fencing, divergence, and the follower's side."""

from __future__ import annotations

import pytest
from replica_world import (
    LAG_S,
    NOW_MS,
    Node,
    P,
    ReplicaWorld,
    batch,
    begin_shutdown,
    commit,
    deliver,
    fence,
    log_values,
    refuse,
    register,
    remove_topic,
)
from structlog.testing import capture_logs

from strandline.broker.partition.partition import FetchPosition, Role
from strandline.broker.partition.partition_state import CommittedIsr, PendingExpandIsr, PendingShrinkIsr
from strandline.controller.metadata.image import PartitionRegistration
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.cluster import AlterPartitionPartitionResponse
from strandline.protocol.messages.common import EpochEndOffset
from strandline.protocol.messages.data import FetchPartitionResponse


def leader_of(world: ReplicaWorld) -> Node:
    return world[1]


def registration(*, epoch: int, partition_epoch: int, leader: int = 1, isr: tuple[int, ...] = (1, 2, 3)) -> PartitionRegistration:
    return PartitionRegistration((1, 2, 3), isr, leader, epoch, partition_epoch)


def fill(node: Node, count: int) -> None:
    for i in range(count):
        node.produce(f"r{i}", acks=1)


# -- roles ------------------------------------------------------------------------------------------------------------


def test_a_new_leader_records_where_its_epoch_begins_before_it_serves_anyone() -> None:
    """An idle leader must be able to tell where its epoch begins (KAFKA-7415)."""
    world = ReplicaWorld()
    world.topic(epoch=4)
    assert world[1].p.log.epochs.entries == [(4, 0)]
    fill(world[1], 3)
    world.elect(1)
    assert world[1].p.log.epochs.entries == [(4, 0), (5, 3)]


def test_a_registration_with_an_older_partition_epoch_is_refused() -> None:
    world = ReplicaWorld()
    world.topic(epoch=4)
    assert not world[1].p.make_follower(registration(epoch=4, partition_epoch=3, leader=2))
    assert world[1].p.role is Role.LEADER
    assert not world[1].p.make_leader(registration(epoch=9, partition_epoch=3))
    assert world[1].p.leader_epoch == 4


def test_the_same_leader_epoch_keeps_the_followers_progress() -> None:
    world = ReplicaWorld()
    world.topic(epoch=1)
    leader = leader_of(world)
    fill(leader, 2)
    leader.said_by(2, 2, epoch=1)
    world.set_isr(1, 2)
    assert leader.p.leader_state is not None
    assert leader.p.leader_state.replicas[2].log_end_offset == 2
    assert leader.isr == [1, 2]


def test_a_new_leader_epoch_forgets_the_followers_progress() -> None:
    """Another leader may have truncated their logs between the two epochs."""
    world = ReplicaWorld()
    world.topic(epoch=1)
    leader = leader_of(world)
    fill(leader, 2)
    leader.said_by(2, 2, epoch=1)
    world.elect(1)
    assert leader.p.leader_state is not None
    assert leader.p.leader_state.replicas[2].log_end_offset == -1
    leader.said_by(3, 2, epoch=2)
    assert leader.hw == 0


def test_only_isr_members_have_the_lag_time_for_their_first_fetch() -> None:
    world = ReplicaWorld()
    world.topic(isr=(1, 2))
    leader = leader_of(world)
    fill(leader, 1)
    leader_state = leader.p.leader_state
    assert leader_state is not None
    assert leader_state.out_of_sync() == ()
    assert not leader_state.replicas[3].is_caught_up(1, world.loop.time, LAG_S)
    world.loop.advance(LAG_S + 1)
    assert leader_state.out_of_sync() == (2,)


def test_a_leader_that_is_alone_in_the_isr_commits_its_log() -> None:
    world = ReplicaWorld()
    world.topic(min_isr=1)
    leader = leader_of(world)
    fill(leader, 3)
    assert leader.hw == 0
    world.set_isr(1)
    assert leader.hw == 3


def test_a_follower_has_no_leadership_and_a_former_leader_neither() -> None:
    world = ReplicaWorld()
    world.topic()
    assert world[2].p.leader_state is None
    world.elect(2)
    assert (world[1].p.role, world[1].p.leader_state, world[1].p.leader_id) == (Role.FOLLOWER, None, 2)


def test_the_fetcher_starts_over_only_if_the_leader_epoch_advanced() -> None:
    world = ReplicaWorld()
    world.topic()
    world.set_isr(1, 2)
    assert world[2].fetchers.starts == [(P, 1)]
    world.elect(1)
    assert world[2].fetchers.starts == [(P, 1), (P, 1)]


def test_without_a_leader_no_fetcher_runs() -> None:
    world = ReplicaWorld()
    world.topic()
    world.elect(-1)
    assert world[2].fetchers.following == {}
    assert world[1].p.role is Role.FOLLOWER


# -- the high watermark -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("isr", "min_isr", "fetches", "expected"),
    [
        pytest.param((1, 2, 3), 1, {2: 10, 3: 7}, 7, id="the smallest log end of the ISR"),
        pytest.param((1, 2, 3), 1, {2: 10}, 0, id="a member that has not fetched yet holds it"),
        pytest.param((1, 2, 3), 1, {2: 10, 3: 10}, 10, id="all have everything"),
        pytest.param((1, 2), 1, {2: 8}, 8, id="one outside the ISR that never caught up does not count"),
        pytest.param((1, 2), 1, {2: 8, 3: 5}, 8, id="one outside that is behind and never caught up does not count"),
        pytest.param((1,), 1, {}, 10, id="alone in the ISR: the own log end"),
        pytest.param((1,), 2, {}, 0, id="under min ISR it stands"),
        pytest.param((1, 2), 3, {2: 10}, 0, id="under min ISR it stands, however far the others are"),
        pytest.param((1, 2), 2, {2: 10}, 10, id="at min ISR it moves"),
        pytest.param((1, 2, 3), 7, {2: 10, 3: 9}, 9, id="min ISR above the number of replicas is capped by it"),
    ],
)
def test_high_watermark_rule(isr: tuple[int, ...], min_isr: int, fetches: dict[int, int], expected: int) -> None:
    world = ReplicaWorld()
    world.topic(isr=isr, min_isr=min_isr)
    leader = leader_of(world)
    fill(leader, 10)
    for broker_id, offset in fetches.items():
        leader.said_by(broker_id, offset, epoch=1)
    assert leader.hw == expected


def test_a_caught_up_replica_outside_the_isr_holds_back_the_high_watermark() -> None:
    """It may join the ISR a moment later, and must then have every committed record."""
    world = ReplicaWorld()
    world.topic(isr=(1, 2))
    leader = leader_of(world)
    fill(leader, 5)
    leader.said_by(3, 5, epoch=1)
    refuse(leader.alter.take(), ErrorCode.INELIGIBLE_REPLICA)
    fill(leader, 5)
    leader.said_by(2, 10, epoch=1)
    assert leader.hw == 5


@pytest.mark.parametrize("gone", [fence(3), begin_shutdown(3), register(3, epoch=99)])
def test_a_replica_outside_the_isr_that_is_not_eligible_holds_nothing_back(gone: object) -> None:
    world = ReplicaWorld()
    world.topic(isr=(1, 2))
    leader = leader_of(world)
    fill(leader, 5)
    leader.said_by(3, 5, epoch=1)
    refuse(leader.alter.take(), ErrorCode.INELIGIBLE_REPLICA)
    fill(leader, 5)
    leader.said_by(2, 10, epoch=1)
    world.change(gone)  # type: ignore[arg-type]
    assert leader.hw == 10


def test_a_refused_expansion_in_doubt_is_withdrawn_by_a_proposal() -> None:
    """The controller may refuse one copy of the proposal because the replica is fenced, and accept another one that arrives late,
    when the replica is unfenced: the partition epoch is still the same. Until that epoch has changed, the replica counts."""
    world = ReplicaWorld()
    world.topic(isr=(1, 2))
    leader = leader_of(world)
    fill(leader, 5)
    leader.said_by(3, 5, epoch=1)
    refuse(leader.alter.take(), ErrorCode.INELIGIBLE_REPLICA, is_doubtful=True)
    withdrawal = leader.alter.take()
    assert [member for member, _ in withdrawal.isr] == [1, 2]
    world.change(fence(3))  # type: ignore[arg-type]
    fill(leader, 5)
    leader.said_by(2, 10, epoch=1)
    assert leader.hw == 5, "the late copy may have put it into the ISR"
    commit(withdrawal)
    assert leader.hw == 10


def test_the_withdrawal_is_repeated_until_it_is_decided() -> None:
    world = ReplicaWorld()
    world.topic(isr=(1, 2))
    leader = leader_of(world)
    leader.said_by(3, 0, epoch=1)
    refuse(leader.alter.take(), ErrorCode.INELIGIBLE_REPLICA, is_doubtful=True)
    refuse(leader.alter.take(), ErrorCode.INELIGIBLE_REPLICA)
    leader.manager.maybe_shrink_isrs()
    again = leader.alter.take()
    assert [member for member, _ in again.isr] == [1, 2]
    commit(again)
    assert leader.p.leader_state is not None
    assert isinstance(leader.p.leader_state.isr, CommittedIsr)
    assert leader.isr == [1, 2]


def repeated(*, lost: bool, broker_epoch: int | None) -> list[tuple[int, int]]:
    """The proposal that the leader repeats after the controller answered with an unknown error and broker 3 has fetched once
    more."""
    world = ReplicaWorld()
    world.topic(isr=(1, 2))
    leader = leader_of(world)
    fill(leader, 5)
    leader.said_by(2, 5, epoch=1)
    leader.said_by(3, 5, epoch=1)
    first = leader.alter.take()
    assert [member for member, _ in first.isr] == [1, 2, 3]
    refuse(first, ErrorCode.UNKNOWN_SERVER_ERROR)
    if broker_epoch is not None:
        world.change(register(3, epoch=broker_epoch))
    leader.said_by(3, 0 if lost else 5, epoch=1)
    leader.manager.maybe_shrink_isrs()
    again = leader.alter.take()
    assert leader.p.leader_state is not None
    assert 3 in leader.p.leader_state.isr.maximal, "a copy of the first proposal may have been accepted"
    return [(member, epoch) for member, epoch in again.isr if member == 3]


def test_an_expansion_is_proposed_again_as_long_as_it_is_right() -> None:
    ((_, epoch),) = repeated(lost=False, broker_epoch=None)
    assert epoch == register(3).broker_epoch


def test_an_expansion_is_not_repeated_for_another_process_of_the_replica() -> None:
    """The new process would be elected as if it had the records of the earlier one. The leader withdraws, and checks the new
    process."""
    assert repeated(lost=True, broker_epoch=99) == []
    assert repeated(lost=False, broker_epoch=99) == []


def test_an_expansion_is_not_repeated_after_the_replica_lost_records() -> None:
    assert repeated(lost=True, broker_epoch=None) == []


def test_a_proposal_names_the_process_that_was_in_sync() -> None:
    """Fetches of another process of the replica in the meantime do not change it."""
    world = ReplicaWorld()
    world.topic(isr=(1, 2))
    leader = leader_of(world)
    leader.said_by(3, 0, epoch=1)
    leader_state = leader.p.leader_state
    assert leader_state is not None
    pending = leader_state.isr
    first = leader.alter.take()
    leader_state.replicas[3].broker_epoch = 99
    leader_state.propose(pending)  # type: ignore[arg-type]
    assert leader.alter.take().isr == first.isr


def test_such_a_replica_that_falls_behind_sets_the_high_watermark_free_in_time() -> None:
    """No follower fetches, so only the timer can check."""
    world = ReplicaWorld()
    world.topic(isr=(1, 2))
    leader = leader_of(world)
    fill(leader, 5)
    leader.said_by(3, 5, epoch=1)
    refuse(leader.alter.take(), ErrorCode.INELIGIBLE_REPLICA)
    fill(leader, 5)
    leader.said_by(2, 10, epoch=1)
    world.loop.advance(LAG_S + 1)
    leader.said_by(2, 10, epoch=1)
    leader.manager.maybe_shrink_isrs()
    assert leader.hw == 10


def test_the_high_watermark_never_decreases() -> None:
    world = ReplicaWorld()
    world.topic()
    leader = leader_of(world)
    fill(leader, 5)
    leader.said_by(2, 5, epoch=1)
    leader.said_by(3, 5, epoch=1)
    leader.said_by(3, 2, epoch=1)
    assert leader.hw == 5


def test_a_lower_min_isr_sets_the_high_watermark_free() -> None:
    world = ReplicaWorld()
    world.topic(isr=(1,), min_isr=2)
    leader = leader_of(world)
    fill(leader, 3)
    leader.p.set_min_insync_replicas(1)
    assert leader.hw == 3


# -- expanding the ISR ------------------------------------------------------------------------------------------------


def test_a_follower_at_the_high_watermark_and_epoch_start_is_proposed() -> None:
    world = ReplicaWorld()
    world.topic(isr=(1, 2))
    leader = leader_of(world)
    fill(leader, 5)
    leader.said_by(2, 5, epoch=1)
    leader.said_by(3, 4, epoch=1)
    assert leader.alter.pending == {}
    leader.said_by(3, 5, epoch=1)
    item = leader.alter.pending[P]
    assert item.isr == ((1, 11), (2, 12), (3, 13))
    assert (item.leader_epoch, item.partition_epoch) == (1, 1)
    assert isinstance(leader.p.leader_state and leader.p.leader_state.isr, PendingExpandIsr)


@pytest.mark.parametrize("gone", [fence(3), begin_shutdown(3)])
def test_a_follower_that_is_not_active_is_not_proposed(gone: object) -> None:
    world = ReplicaWorld()
    world.topic(isr=(1, 2))
    world.change(gone)  # type: ignore[arg-type]
    leader_of(world).said_by(3, 0, epoch=1)
    assert leader_of(world).alter.pending == {}


def test_a_follower_of_another_broker_epoch_is_not_proposed() -> None:
    world = ReplicaWorld()
    world.topic(isr=(1, 2))
    leader_of(world).said_by(3, 0, epoch=1, broker_epoch=99)
    assert leader_of(world).alter.pending == {}


def test_a_fetch_of_an_earlier_process_is_refused() -> None:
    world = ReplicaWorld()
    world.topic(isr=(1, 2, 3))
    leader = leader_of(world)
    fill(leader, 2)
    world.change(register(3, epoch=99))
    request = leader.said_by(3, 2, epoch=1, broker_epoch=13)
    assert request.answer.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert leader.p.leader_state is not None
    assert leader.p.leader_state.replicas[3].log_end_offset == -1


def test_a_caught_up_follower_is_proposed_when_it_is_unfenced() -> None:
    """Its next fetch may be a long poll away."""
    world = ReplicaWorld()
    world.topic(isr=(1, 2))
    world.change(fence(3))
    leader_of(world).said_by(3, 0, epoch=1)
    world.change(fence(3, fenced=-1))
    assert leader_of(world).alter.pending[P].isr[-1] == (3, 13)


def test_one_proposal_at_a_time() -> None:
    world = ReplicaWorld()
    world.topic(isr=(1,))
    leader_of(world).said_by(2, 0, epoch=1)
    leader_of(world).said_by(3, 0, epoch=1)
    assert [item.isr for item in leader_of(world).alter.submitted] == [((1, 11), (2, 12))]
    commit(leader_of(world).alter.take())
    leader_of(world).said_by(3, 0, epoch=1)
    assert leader_of(world).alter.pending[P].isr == ((1, 11), (2, 12), (3, 13))


# -- shrinking the ISR ------------------------------------------------------------------------------------------------


def test_stuck_and_slow_members_are_dropped_and_those_that_keep_up_stay() -> None:
    world = ReplicaWorld()
    world.topic(replicas=(1, 2, 3))
    leader = leader_of(world)
    for i in range(12):
        fill(leader, 10)
        leader.said_by(2, i * 10 + 8, epoch=1)  # closes the gap of the fetch before, never this one
        if i % 5 == 0:
            leader.said_by(3, i, epoch=1)
        world.loop.advance(1)
    leader.manager.maybe_shrink_isrs()
    assert leader.alter.pending[P].isr == ((1, 11), (2, 12))
    assert isinstance(leader.p.leader_state and leader.p.leader_state.isr, PendingShrinkIsr)


def test_an_idle_partition_is_never_shrunk() -> None:
    world = ReplicaWorld()
    world.topic()
    leader_of(world).said_by(2, 0, epoch=1)
    leader_of(world).said_by(3, 0, epoch=1)
    world.loop.advance(1000)
    leader_of(world).manager.maybe_shrink_isrs()
    assert leader_of(world).alter.pending == {}


# -- answers to a proposal --------------------------------------------------------------------------------------------


def expanding() -> tuple[ReplicaWorld, Node]:
    world = ReplicaWorld()
    world.topic(isr=(1, 2))
    world[1].said_by(3, 0, epoch=1)
    return world, world[1]


def test_success_installs_the_committed_state() -> None:
    _, leader = expanding()
    commit(leader.alter.take())
    assert leader.isr == [1, 2, 3]
    assert leader.p.partition_epoch == 2


@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST])
def test_a_refusal_goes_back_to_the_last_committed_state(code: ErrorCode) -> None:
    _, leader = expanding()
    refuse(leader.alter.take(), code)
    assert leader.p.leader_state is not None
    assert isinstance(leader.p.leader_state.isr, CommittedIsr)
    assert leader.isr == [1, 2]


@pytest.mark.parametrize("code", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NEW_LEADER_ELECTED, ErrorCode.FENCED_LEADER_EPOCH])
def test_a_lost_race_waits_for_the_metadata(code: ErrorCode) -> None:
    world, leader = expanding()
    refuse(leader.alter.take(), code)
    assert leader.p.leader_state is not None
    assert leader.p.leader_state.isr.maximal == {1, 2, 3}
    leader.said_by(3, 0, epoch=1)
    leader.manager.maybe_shrink_isrs()
    assert leader.alter.pending == {}
    world.set_isr(1, 2)
    assert leader.p.leader_state.isr.maximal == {1, 2}


def test_a_proposal_without_a_decision_is_repeated_by_the_timer() -> None:
    _, leader = expanding()
    first = leader.alter.take()
    refuse(first, ErrorCode.REQUEST_TIMED_OUT)
    leader.manager.maybe_shrink_isrs()
    assert leader.alter.pending[P].isr == first.isr
    commit(leader.alter.take())
    assert leader.isr == [1, 2, 3]


@pytest.mark.parametrize(("leader_epoch", "partition_epoch"), [(2, 9), (1, 0)])
def test_a_success_of_other_epochs_installs_nothing(leader_epoch: int, partition_epoch: int) -> None:
    _, leader = expanding()
    item = leader.alter.take()
    item.on_result(AlterPartitionPartitionResponse(*P, 0, 1, leader_epoch, [1, 2, 3], 0, partition_epoch), False)
    assert (leader.isr, leader.p.partition_epoch) == ([1, 2], 1)
    assert leader.p.leader_state is not None
    assert leader.p.leader_state.isr.maximal == {1, 2, 3}, "the metadata log will bring the present ISR"


def test_a_submitter_that_is_busy_leaves_the_state_as_it_was() -> None:
    world = ReplicaWorld()
    world.topic(isr=(1, 2))
    leader = leader_of(world)
    leader.alter.is_busy = True
    leader.said_by(3, 0, epoch=1)
    assert leader.p.leader_state is not None
    assert isinstance(leader.p.leader_state.isr, CommittedIsr)
    leader.alter.is_busy = False
    leader.said_by(3, 0, epoch=1)
    assert leader.p.leader_state.isr.is_in_flight


def test_metadata_that_overtakes_the_answer_cancels_the_proposal() -> None:
    world, leader = expanding()
    item = leader.alter.pending[P]
    world.set_isr(1, 2, 3)
    assert leader.alter.cancelled == [item]
    assert leader.isr == [1, 2, 3]
    refuse(item, ErrorCode.INVALID_UPDATE_VERSION)
    assert leader.isr == [1, 2, 3]


@pytest.mark.parametrize("end", ["it follows", "the partition stops"])
def test_a_leadership_that_ends_cancels_its_proposal(end: str) -> None:
    """Otherwise a late answer would change the partition epoch of a follower, and the next leadership could not propose
    anything."""
    world, leader = expanding()
    item = leader.alter.pending[P]
    if end == "it follows":
        world.elect(2)
    else:
        leader.p.stop(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert leader.alter.cancelled == [item]
    known = leader.p.partition_epoch
    item.on_result(AlterPartitionPartitionResponse(*P, 0, 1, 1, [1, 2, 3], 0, known + 7), False)
    assert leader.p.partition_epoch == known


def test_a_repeated_registration_keeps_the_proposal() -> None:
    """If the proposal were dropped, the high watermark could pass a replica that the controller may have added."""
    _, leader = expanding()
    leader.p.make_leader(registration(epoch=1, partition_epoch=1, isr=(1, 2)))
    assert leader.p.leader_state is not None
    assert leader.p.leader_state.isr.maximal == {1, 2, 3}


# -- fencing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "expected"), [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH), (5, None), (-1, None)]
)
def test_both_sides_must_mean_the_same_epoch(epoch: int, expected: ErrorCode | None) -> None:
    world = ReplicaWorld()
    world.topic(epoch=5)
    if expected is None:
        world[1].p.leading(epoch)
        return
    with pytest.raises(BrokerError) as e:
        world[1].p.leading(epoch)
    assert e.value.code == expected


def test_the_epoch_is_judged_before_the_role() -> None:
    world = ReplicaWorld()
    world.topic(epoch=5)
    for epoch, expected in [(4, ErrorCode.FENCED_LEADER_EPOCH), (5, ErrorCode.NOT_LEADER_OR_FOLLOWER)]:
        with pytest.raises(BrokerError) as e:
            world[2].p.leading(epoch)
        assert e.value.code == expected


def test_a_follower_has_to_name_the_epoch() -> None:
    world = ReplicaWorld()
    world.topic()
    request = world[1].said_by(2, 0, epoch=-1)
    assert request.answer.partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


# -- divergence -------------------------------------------------------------------------------------------------------


def forked_leader() -> Node:
    """Epoch 1: 0..9, epoch 3: 10..14, epoch 6 (now): nothing."""
    world = ReplicaWorld()
    world.topic(epoch=1)
    leader = world[1]
    fill(leader, 10)
    for _ in range(2):
        world.elect(1)
    fill(leader, 5)
    for _ in range(3):
        world.elect(1)
    assert leader.p.log.epochs.entries[:1] == [(1, 0)]
    return leader


@pytest.mark.parametrize(
    ("offset", "last_epoch", "expected"),
    [
        pytest.param(15, 6, None, id="at the end, in the newest epoch"),
        pytest.param(16, 6, (6, 15), id="beyond the end, in the newest epoch"),
        pytest.param(10, 1, None, id="at the end of an old epoch"),
        pytest.param(5, 1, None, id="inside an old epoch"),
        pytest.param(12, 1, (1, 10), id="beyond the end of an old epoch"),
        pytest.param(0, -1, None, id="an empty log"),
    ],
)
def test_divergence_of_a_follower(offset: int, last_epoch: int, expected: tuple[int, int] | None) -> None:
    leader = forked_leader()
    found = leader.p.divergence(offset, last_epoch)
    assert (found and (found.epoch, found.end_offset)) == expected


def test_below_the_log_start_is_out_of_range_even_when_the_epochs_diverge() -> None:
    """S08: only a restart at the leader's log start helps, so the error must be OFFSET_OUT_OF_RANGE (KAFKA-12996)."""
    leader = forked_leader()
    leader.p.log.update_high_watermark(15)
    leader.p.log.increment_log_start_offset(12)
    for last_epoch in (1, 2, 6, -1):
        with pytest.raises(BrokerError) as e:
            leader.p.divergence(7, last_epoch)
        assert e.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_follower_does_not_judge_a_consumers_position() -> None:
    world = ReplicaWorld()
    world.topic()
    with pytest.raises(BrokerError) as e:
        world[2].p.divergence(7, 1)
    assert e.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


# -- the follower's side ----------------------------------------------------------------------------------------------


def two_logs() -> tuple[ReplicaWorld, Node, Node]:
    """Leader 1 in epoch 1 with four records, of which follower 2 has two."""
    world = ReplicaWorld()
    world.topic(replicas=(1, 2))
    fill(world[1], 2)
    world.replicate(2, 1)
    fill(world[1], 2)
    return world, world[1], world[2]


def test_a_response_is_appended_as_it_is_and_brings_the_leaders_high_watermark() -> None:
    world, leader, follower = two_logs()
    world.replicate(2, 1)
    assert log_values(follower.p) == log_values(leader.p)
    assert follower.hw == 2
    world.replicate(2, 1)
    assert follower.hw == 4
    assert follower.p.log.epochs.entries == [(1, 0)]


@pytest.mark.parametrize("change", ["epoch", "role", "position", "deleted"])
def test_a_response_to_another_position_changes_nothing(change: str) -> None:
    world, leader, follower = two_logs()
    partition = follower.p
    position = partition.fetch_position()
    request = leader.fetch_from(follower)
    if change == "epoch":
        world.elect(1)
    elif change == "role":
        world.elect(2)
    elif change == "position":
        world.replicate(2, 1)
    else:
        world.change(remove_topic())
    before = partition.log.log_end_offset
    assert not deliver(partition, position, request)
    assert partition.log.log_end_offset == before


def test_only_records_up_to_the_epoch_of_the_fetch_are_appended() -> None:
    """S12: the leader was deposed and elected again while it built the response (KAFKA-18723)."""
    world, leader, follower = two_logs()
    position = follower.p.fetch_position()
    world.elect(2, at=(1,))
    world.elect(1, at=(1,))
    leader.p.log.append_as_leader(memoryview(batch("newer")), 3, NOW_MS)
    records = leader.p.log.read(2, 1 << 20, 10)
    response = FetchPartitionResponse(*P, high_watermark=5)
    assert follower.p.append_fetched(position, response, memoryview(bytearray(b"".join(records.buffers))))
    assert [value for _, value in log_values(follower.p)] == [b"r0", b"r1", b"r0", b"r1"]
    assert follower.hw == 0, "the high watermark of another epoch is not taken"


def test_the_leaders_log_start_is_taken_up_to_our_high_watermark() -> None:
    _, _, follower = two_logs()
    position = follower.p.fetch_position()
    ahead = FetchPartitionResponse(*P, high_watermark=1, log_start_offset=2)
    assert follower.p.append_fetched(position, ahead, memoryview(b""))
    assert follower.p.log.log_start_offset == 0
    fits = FetchPartitionResponse(*P, high_watermark=2, log_start_offset=2)
    assert follower.p.append_fetched(position, fits, memoryview(b""))
    assert follower.p.log.log_start_offset == 2


@pytest.mark.parametrize(
    ("ours", "answer", "end"),
    [
        pytest.param([(1, 10)], (1, 6), 6, id="the leader's end of a common epoch is lower"),
        pytest.param([(1, 4), (2, 6)], (1, 8), 4, id="our end of a common epoch is lower"),
        pytest.param([(1, 4), (3, 6)], (2, 8), 4, id="we only know a smaller epoch: its end, then ask again"),
        pytest.param([(3, 10)], (2, 4), 0, id="all our epochs are newer: nothing is common"),
        pytest.param([(1, 10)], (1, 20), 10, id="never beyond our end"),
    ],
)
def test_truncation_table(ours: list[tuple[int, int]], answer: tuple[int, int], end: int) -> None:
    """KIP-101 and KIP-279. `ours` is our history as (epoch, number of records)."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), epoch=5)
    follower = world[2].p
    for epoch, count in ours:
        for _ in range(count):
            follower.log.append_as_leader(memoryview(batch("x")), epoch, NOW_MS)
    follower.truncate_to_divergence(follower.fetch_position(), EpochEndOffset(*answer))
    assert follower.log.log_end_offset == end
    assert follower.log.latest_epoch <= answer[0]


def test_truncation_within_a_batch_logs_all_records_that_go() -> None:
    """The batch [4, 7) contains the target 6, so the log is truncated to 4 and three records are removed, not one."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), epoch=5)
    follower = world[2].p
    for values in (("a", "b", "c", "d"), ("e", "f", "g")):
        follower.log.append_as_leader(memoryview(batch(*values)), 1, NOW_MS)
    with capture_logs() as lines:
        follower.truncate_to_divergence(follower.fetch_position(), EpochEndOffset(1, 6))
    [cut] = [line for line in lines if line["event"] == "partition.truncated"]
    assert (cut["offset"], cut["records"], cut["log_end_offset"]) == (4, 3, 4)


@pytest.mark.parametrize(
    ("isr", "leader_start", "is_unknown"),
    [((1,), 9, False), ((1,), 10, True), ((1,), 12, True), ((1, 2), 10, False)],
    ids=["it starts in our log", "it starts at our end", "it starts behind our end", "we are in the ISR"],
)
def test_history_is_unknown_at_the_leaders_log_start(isr: tuple[int, ...], leader_start: int, is_unknown: bool) -> None:
    """The leader's epochs begin at its log start, so it finds no divergence there. The follower's records below may be a fork,
    which the high watermark of the response would cover. The records of a member of the ISR are no fork."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), isr=isr, epoch=5)
    follower = world[2].p
    for _ in range(10):
        follower.log.append_as_leader(memoryview(batch("x")), 1, NOW_MS)
    assert follower.has_unknown_history(follower.fetch_position(), leader_start) is is_unknown
    stale = FetchPosition(4, 10, 1, 0)
    assert not follower.has_unknown_history(stale, leader_start), "the response of an earlier epoch says nothing"
    follower.truncate_fully_and_start_at(follower.fetch_position(), leader_start)
    assert not follower.has_unknown_history(follower.fetch_position(), leader_start), "it has no records any more"


def test_follower_with_an_unknown_history_does_not_join_the_isr() -> None:
    """It starts over, which must not happen to a member of the ISR: it could lead with a fork, or from below the high
    watermark."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), isr=(1,), epoch=5)
    leader = world[1].p
    for _ in range(4):
        world[1].produce("x", acks=1)
    leader.log.increment_log_start_offset(4)
    state = leader.leader_state
    for _ in range(4):
        world[2].p.log.append_as_leader(memoryview(batch("fork")), 1, NOW_MS)
    world[1].fetch_from(world[2])
    assert state.isr.maximal == {1}
    world[2].p.truncate_fully_and_start_at(world[2].p.fetch_position(), 4)
    world[1].fetch_from(world[2])
    assert state.isr.maximal == {1, 2}


def test_a_stale_divergence_truncates_nothing() -> None:
    _, _, follower = two_logs()
    follower.p.truncate_to_divergence(FetchPosition(0, 2, 1, 0), EpochEndOffset(1, 0))
    assert follower.leo == 2


def test_a_stale_epoch_entry_without_records_is_dropped() -> None:
    """S06: the log ends are equal, the epochs are not. Otherwise each fetch would find the divergence again (KAFKA-10706)."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), epoch=1)
    fill(world[1], 10)
    world.replicate(2, 1)
    world.elect(2, at=(2,))
    world.elect(1)
    fetches = 0
    while world[2].p.log.epochs.entries != [(1, 0)]:
        world.replicate(2, 1)
        fetches += 1
        assert fetches <= 2
    fill(world[1], 1)
    world.replicate(2, 1)
    assert world[2].leo == 11


def test_a_truncation_below_the_log_start_leaves_an_empty_log_there() -> None:
    _, _, follower = two_logs()
    log = follower.p.log
    log.update_high_watermark(2)
    log.increment_log_start_offset(2)
    follower.p.truncate_to_leader_end(follower.p.fetch_position(), 1)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1, 1, 1)


@pytest.mark.parametrize("stale", [FetchPosition(1, 1, 1, 0), FetchPosition(0, 2, 1, 0)])
def test_a_stale_answer_about_the_leaders_log_truncates_nothing(stale: FetchPosition) -> None:
    """The follower has fetched, or followed another leader, since it asked where the leader's log begins and ends."""
    _, _, follower = two_logs()
    follower.p.truncate_to_leader_end(stale, 0)
    follower.p.truncate_fully_and_start_at(stale, 50)
    assert (follower.p.log.log_start_offset, follower.leo) == (0, 2)


def test_out_of_range_recovery_cuts_or_restarts() -> None:
    _, _, follower = two_logs()
    follower.p.truncate_to_leader_end(follower.p.fetch_position(), 1)
    assert follower.leo == 1
    follower.p.truncate_fully_and_start_at(follower.p.fetch_position(), 50)
    log = follower.p.log
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (50, 50, 50)
