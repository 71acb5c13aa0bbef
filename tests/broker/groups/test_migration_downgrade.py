"""A group of the newer protocol becomes a classic one, when its last member of the newer protocol has gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from consumer_world import CONFIG
from migration_world import GROUP, MigrationWorld

from strandline.broker.groups.classic.group import State
from strandline.broker.groups.state import CLASSIC, CONSUMER
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import JoinGroupResponse, LeaveGroupRequest, LeavingMember

C_AND_D = {"C": {"orders": [0, 1]}, "D": {"orders": [2, 3]}}


def a_world(**config: Any) -> MigrationWorld:
    """C and D of the classic protocol and N of the newer one, which all own their share."""
    world = MigrationWorld(replace(CONFIG, **config), orders=4)
    world.stable("C", "D", assign=C_AND_D)
    world.join("N", "orders")
    for name in ("C", "D"):
        world.classic_join(name)
        world.sync(name)
    world.beat("N")
    assert world.group.state_name == "Stable"
    world.forget()
    return world


# -- the last member leaves -------------------------------------------------------------------------------------------


def test_the_others_rebalance_by_the_classic_protocol() -> None:
    world = a_world()
    world.leave("N")
    world.classic_beat("C")
    world.classic_join("C")
    world.classic_join("D")
    world.sync("C", C_AND_D)
    world.sync("D")
    world.check("""
        > N leaves
          log: N owns nothing
          log: C owns nothing
          log: D owns nothing
          log: no target of N
          log: no target of C
          log: no target of D
          log: no target epoch
          log: N is gone
          log: C is gone
          log: D is gone
          log: the group is gone
          log: classic generation 2, range, leader None: C orders 0-1; D orders 2
          N: epoch -1
        > C beats (classic)
          C: REBALANCE_IN_PROGRESS
        > C joins orders (classic)
        > D joins orders (classic)
          C: generation 3, range, leader C, members C D
          D: generation 3, range, leader C
        > C syncs with C: orders 0-1, D: orders 2-3
          log: classic generation 3, range, leader C: C orders 0-1; D orders 2-3
          C: has orders 0-1
        > D syncs
          D: has orders 2-3
    """)


def test_members_commit_before_they_join() -> None:
    """The rebalance begins in the epoch that the members have, so that they can commit before they join again."""
    world = a_world()
    world.leave("N")
    assert world.commit("C", ("orders", 0)) == ["NONE"]
    assert world.commit("C", ("orders", 0), generation=3) == ["ILLEGAL_GENERATION"]


def test_another_coordinator_begins_the_rebalance_again() -> None:
    """The rebalance is in no record. If the new coordinator took the group for stable, no member would read the partitions of the
    one that left."""
    world = a_world()
    world.leave("N")
    world.move()
    assert (world.classic.state, world.classic.generation) == (State.PREPARING, 2)
    assert world.commit("C", ("orders", 0)) == ["NONE"]
    world.move()
    world.forget()
    world.classic_beat("D")
    world.classic_join("D")
    world.classic_join("C")
    world.sync("C", C_AND_D)
    world.move()
    assert world.classic.state is State.STABLE
    world.check("""
        > D beats (classic)
          D: REBALANCE_IN_PROGRESS
        > D joins orders (classic)
        > C joins orders (classic)
          C: generation 3, range, leader C, members C D
          D: generation 3, range, leader C
        > C syncs with C: orders 0-1, D: orders 2-3
          log: classic generation 3, range, leader C: C orders 0-1; D orders 2-3
          C: has orders 0-1
        > the coordinator moves
    """)


def test_a_static_member_that_returns_to_another_coordinator_takes_part_in_the_rebalance() -> None:
    """If the group were stable, the member would get its old partitions without a rebalance, and no member would read the
    rest."""
    world = MigrationWorld(orders=4)
    world.join("N", "orders")
    world.classic_join("C", "orders", instance_id="c")
    world.leave("N")
    world.move()
    world.forget()
    world.classic_join("C", new_id=True)
    world.check("""
        > C joins orders as a new process (classic)
          C: generation 3, range, leader C', members C'
    """)


def test_the_sessions_go_on() -> None:
    world = a_world()
    world.leave("N")
    world.pass_time(9.9)
    assert len(world.classic.members) == 2
    world.classic_beat("C")
    world.pass_time(0.1)
    assert list(world.classic.members) == [world.processes["C"].member_id]


def test_a_member_that_does_not_join_is_removed() -> None:
    world = a_world()
    for name in ("C", "D"):
        world.process(name).session_timeout_ms = 200_000
        world.classic_join(name)
        world.sync(name)
    world.leave("N")
    world.classic_join("C")
    world.forget()
    world.pass_time(60)
    world.check("""
        > 60 s pass
          C: generation 3, range, leader C, members C
    """)


def test_deadlines_of_the_newer_protocol_are_gone() -> None:
    """The group may return to the newer protocol before they have passed. They would then remove a member that has joined long
    since."""
    world = a_world()
    world.processes["C"].rebalance_timeout_ms = 20_000
    for name in ("C", "D"):
        world.process(name).session_timeout_ms = 300_000
        world.classic_join(name)
        world.sync(name)
    world.join("M", "orders")
    world.classic_beat("C")
    world.classic_join("D")
    world.leave("M")
    world.leave("N")
    assert world.group_type == CLASSIC
    world.classic_join("C")
    world.classic_join("D")
    world.sync("C", C_AND_D)
    world.sync("D")
    for _ in range(30):
        world.join("N", "orders") if world.group_type == CLASSIC else world.beat("N")
        world.pass_time(1)
    assert len(world.group.members) == 3


def test_members_bring_all_their_protocols() -> None:
    """The protocols that the group does not use now are kept, too."""
    world = MigrationWorld(orders=4)
    world.stable("C", assign={"C": {"orders": [0]}}, names=("range", "sticky"))
    world.join("N", "orders")
    world.classic_join("C")
    world.leave("N")
    (member,) = world.classic.members.values()
    assert list(member.protocols) == ["range", "sticky"]
    assert world.classic.supports("consumer", {"sticky": b""})


def test_the_session_of_the_last_member_ends() -> None:
    world = a_world(group_consumer_session_timeout_ms=5_000)
    world.pass_time(5)
    assert world.group_type == CLASSIC
    assert len(world.classic.members) == 2


def test_the_last_member_does_not_give_up_its_partitions_in_time() -> None:
    world = a_world(group_consumer_session_timeout_ms=60_000)
    world.join("N", "orders", "payments", owns={}, rebalance_timeout_ms=5_000)
    for name in ("C", "D"):
        world.process(name).session_timeout_ms = 60_000
        world.classic_join(name)
        world.sync(name)
    world.beat("N", subscribed_topic_names=["payments"])
    assert world.group.members["N"].current.pending_revocation
    world.pass_time(5)
    assert world.group_type == CLASSIC


def test_an_operator_removes_the_last_member() -> None:
    world = a_world()
    asker = world.ask("operator", LeaveGroupRequest(GROUP, [LeavingMember("N")]))
    assert len(asker.answers) == 1
    assert world.group_type == CLASSIC


def test_the_last_member_and_a_classic_one_leave_together() -> None:
    world = a_world()
    body = LeaveGroupRequest(GROUP, [LeavingMember("N"), LeavingMember(world.processes["D"].member_id)])
    world.ask("operator", body)
    assert list(world.classic.members) == [world.processes["C"].member_id]


# -- what stays of the newer protocol ---------------------------------------------------------------------------------


def test_a_group_with_another_member_of_the_newer_protocol_stays() -> None:
    world = a_world()
    world.join("M", "orders")
    world.leave("N")
    assert world.group_type == CONSUMER


def test_a_group_that_a_classic_member_leaves_stays() -> None:
    world = a_world()
    world.classic_leave("C")
    assert world.group_type == CONSUMER
    assert sorted(world._labelled(member) for member in world.group.members) == ["D", "N"]


def test_a_group_without_members_stays() -> None:
    """No member is left that speaks the classic protocol."""
    world = a_world()
    world.classic_leave("C", "D")
    world.leave("N")
    assert world.group_type == CONSUMER
    assert world.group.is_empty


def test_a_static_member_that_leaves_for_a_moment_keeps_its_group() -> None:
    world = MigrationWorld(orders=4)
    world.stable("C", assign={"C": {"orders": [0, 1]}})
    world.join("N", "orders", instance_id="n")
    world.leave("N", -2, instance_id="n")
    assert world.group_type == CONSUMER


@pytest.mark.parametrize(
    "config",
    [
        {"group_consumer_migration_policy": "upgrade"},
        {"group_max_size": 1},
    ],
)
def test_the_settings_may_forbid_it(config: dict[str, Any]) -> None:
    """The migration policy forbids it, or the classic group would be too large. The members stay in the group of the newer
    protocol."""
    world = a_world(group_max_size=2)
    world.config = replace(world.config, **config)
    world.move()
    world.leave("N")
    assert world.group_type == CONSUMER
    world.pass_time(0)
    assert world.classic_beat("C").answers == [ErrorCode.REBALANCE_IN_PROGRESS]


def test_a_group_stays_if_a_subscription_cannot_be_read() -> None:
    """The subscription has the version in which the member's assignment is encoded. Such a member cannot join, but it may be in
    the log."""
    world = a_world()
    member_id = world.processes["C"].member_id
    metadata = world.group.members[member_id].metadata
    classic = metadata.classic_member_metadata
    assert classic is not None
    broken = replace(classic, supported_protocols=(replace(classic.supported_protocols[0], metadata=b"?"),))
    world.group.put_member(member_id, replace(metadata, classic_member_metadata=broken))
    world.leave("N")
    assert world.group_type == CONSUMER
    assert "N" not in world.group.members


def test_a_conversion_that_cannot_be_written_is_tried_again() -> None:
    """The session of the last member has ended, and the member is removed as soon as the records can be written."""
    world = a_world(group_consumer_session_timeout_ms=5_000)
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.pass_time(5)
    assert world.group_type == CONSUMER
    world.append_error = None
    world.pass_time(0.5)
    assert world.group_type == CLASSIC


def test_a_leave_that_cannot_be_written_is_refused() -> None:
    world = a_world()
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.leave("N") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.group_type == CONSUMER
    world.append_error = None
    assert world.classic_beat("C").answers != [ErrorCode.REBALANCE_IN_PROGRESS]


# -- the last member is replaced --------------------------------------------------------------------------------------


def a_static_world(**config: Any) -> MigrationWorld:
    """C of the classic protocol and the static N of the newer one have joined, and each owns its share."""
    world = MigrationWorld(replace(CONFIG, **config), orders=4)
    world.stable("C", assign={"C": {"orders": [0, 1, 2, 3]}})
    world.join("N", "orders", instance_id="n")
    world.classic_join("C")
    world.sync("C")
    world.beat("N", instance_id="n")
    world.forget()
    return world


def test_a_static_member_returns_as_a_classic_one() -> None:
    """It takes over the partitions, and the other members keep theirs."""
    world = a_static_world()
    asker = world.classic_join("X", "orders", instance_id="n")
    world.sync("X")
    world.classic_beat("C")
    world.check("""
        > X joins orders (classic)
          log: N owns nothing
          log: C owns nothing
          log: no target of N
          log: no target of C
          log: no target epoch
          log: N is gone
          log: C is gone
          log: the group is gone
          log: classic generation 2, range, leader C: C orders 0-1; X orders 2-3
          X: generation 2, range, leader C
        > X syncs
          X: has orders 2-3
        > C beats (classic)
          C: ok
    """)
    assert isinstance(asker.answer, JoinGroupResponse)
    assert world.group_type == CLASSIC


def test_the_only_member_returns_as_a_classic_one() -> None:
    """It leads the group and has nothing to assign, because it keeps its partitions."""
    world = MigrationWorld(orders=2)
    world.join("N", "orders", instance_id="n")
    world.leave("N", -2, instance_id="n")
    world.forget()
    world.classic_join("X", "orders", instance_id="n")
    world.check("""
        > X joins orders (classic)
          log: N owns nothing
          log: no target of N
          log: no target epoch
          log: N is gone
          log: the group is gone
          log: classic generation 1, range, leader X: X orders 0-1
          X: generation 1, range, leader X, members X, skip the assignment
    """)


def test_a_static_member_that_returns_with_other_topics_causes_a_rebalance() -> None:
    world = a_static_world()
    world.classic_join("X", "orders", "payments", instance_id="n")
    world.classic_beat("C")
    world.classic_join("C")
    world.check(
        """
        > X joins orders payments (classic)
          log: N owns nothing
          log: C owns nothing
          log: no target of N
          log: no target of C
          log: no target epoch
          log: N is gone
          log: C is gone
          log: the group is gone
          log: classic generation 2, range, leader None: C orders 0-1; X orders 2-3
        > C beats (classic)
          C: REBALANCE_IN_PROGRESS
        > C joins orders (classic)
          C: generation 3, range, leader C, members C X
          X: generation 3, range, leader C
    """
    )


def test_a_group_that_has_not_settled_rebalances() -> None:
    """A member that waits for partitions of another one must not get them with the conversion (KAFKA-16147)."""
    world = MigrationWorld(orders=4)
    world.stable("C", assign={"C": {"orders": [0, 1, 2, 3]}})
    world.join("N", "orders", instance_id="n")
    assert world.group.state_name == "Reconciling"
    asker = world.classic_join("X", "orders", instance_id="n")
    assert asker.answer is None
    assert world.classic.state is State.PREPARING
    value = world.log[-1].value
    assert [m.assignment for m in value.members][1:] == [bytes.fromhex("000000000000ffffffff")]  # type: ignore[union-attr]


def test_a_member_that_returns_before_it_had_its_share_causes_a_rebalance() -> None:
    """Its partitions are free, but it has not got them yet."""
    world = MigrationWorld(orders=4)
    world.stable("C", assign={"C": {"orders": [0, 1, 2, 3]}})
    world.join("N", "orders", instance_id="n")
    world.classic_join("C")
    world.sync("C")
    assert world.group.members[world.processes["C"].member_id].is_reconciled_to(world.group.epoch)
    assert world.classic_join("X", "orders", instance_id="n").answer is None
    assert world.classic.state is State.PREPARING


def test_a_member_that_returns_before_another_had_its_share_causes_a_rebalance() -> None:
    world = a_static_world()
    world.join("M", "orders")
    world.classic_join("C")
    world.sync("C")
    world.beat("N", owns={"orders": [2]}, instance_id="n")
    world.leave("M")
    world.pass_time(0)
    world.beat("N", instance_id="n")
    owned = {topic: set(numbers) for topic, numbers in world.group.members["N"].current.assigned.items()}
    assert owned == world.group.targets["N"]
    assert world.classic_join("X", "orders", instance_id="n").answer is None
    assert world.classic.state is State.PREPARING


def test_a_member_that_returns_while_the_target_is_out_of_date_causes_a_rebalance() -> None:
    world = MigrationWorld(orders=2)
    world.join("N", "orders", instance_id="n")
    world.topics.create(orders=4)
    world.publish()
    asker = world.classic_join("X", "orders", instance_id="n")
    assert isinstance(asker.answer, JoinGroupResponse)
    assert not asker.answer.skip_assignment


def test_a_member_that_returns_without_its_expression_causes_a_rebalance() -> None:
    world = MigrationWorld(orders=2, payments=2)
    world.join("N", "orders", subscribed_topic_regex="p.*", instance_id="n")
    world.settle()
    world.beat("N", instance_id="n")
    asker = world.classic_join("X", "orders", instance_id="n")
    assert isinstance(asker.answer, JoinGroupResponse)
    assert not asker.answer.skip_assignment


def test_a_process_with_a_wrong_id_is_fenced() -> None:
    """The group stays as it is, although a return with the right id would convert it."""
    world = a_static_world()
    asker = world.classic_join("X", "orders", instance_id="n", member_id="elsewhere")
    assert asker.answers == [ErrorCode.FENCED_INSTANCE_ID]
    assert world.group_type == CONSUMER


def test_a_static_member_that_is_not_the_last_one_is_replaced_in_the_group() -> None:
    world = a_static_world()
    world.join("M", "orders")
    world.forget()
    world.classic_join("X", "orders", instance_id="n")
    assert world.group_type == CONSUMER
    assert "N" not in world.group.members


def test_a_static_member_returns_while_the_policy_forbids_the_conversion() -> None:
    world = a_static_world(group_consumer_migration_policy="upgrade")
    world.classic_join("X", "orders", instance_id="n")
    world.sync("X")
    world.check("""
        > X joins orders (classic)
          log: N owns nothing
          log: no target of N
          log: N is gone
          log: X subscribes to orders instance=n
          log: target of X: orders 2-3
          log: X is STABLE in epoch 0 (before: 0) with orders 2-3@2
          log: X subscribes to orders instance=n
          log: X is STABLE in epoch 2 (before: 0) with orders 2-3
          X: generation 2, range
        > X syncs
          X: has orders 2-3
    """)


def test_the_return_of_the_last_member_cannot_be_written() -> None:
    world = a_static_world()
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    asker = world.classic_join("X", "orders", instance_id="n")
    assert asker.answers == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.append_error = None
    assert world.beat("N", instance_id="n") is not ErrorCode.FENCED_INSTANCE_ID
