"""Members of the classic protocol in a group of the newer one: they join, sync, send heartbeats, commit and leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from consumer_world import CONFIG
from migration_world import GROUP, MigrationWorld

from strandline.broker.groups.records.types import MemberState
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import JoinGroupProtocol, JoinGroupRequest, JoinGroupResponse, SyncGroupResponse


def a_world(**config: Any) -> MigrationWorld:
    """N of the newer protocol owns orders 0-3."""
    world = MigrationWorld(replace(CONFIG, **config), orders=4)
    world.join("N", "orders")
    world.forget()
    return world


def with_c(**config: Any) -> MigrationWorld:
    """C of the classic protocol has joined, and each has its share."""
    world = a_world(**config)
    world.classic_join("C", "orders")
    world.beat("N", owns={"orders": [0, 1]})
    world.classic_join("C")
    world.sync("C")
    world.beat("N")
    assert world.group.state_name == "Stable"
    world.forget()
    return world


def request(**fields: Any) -> JoinGroupRequest:
    values = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": "m",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [JoinGroupProtocol("range", bytes.fromhex("00000000000100066f7264657273ffffffff"))],
        **fields,
    }
    return JoinGroupRequest(GROUP, **values)


# -- joining ----------------------------------------------------------------------------------------------------------


def test_a_member_joins_in_two_steps_and_gets_partitions_when_they_are_free() -> None:
    world = a_world()
    world.classic_join("C", "orders")
    world.sync("C")
    world.classic_beat("C")
    world.beat("N")
    world.beat("N", owns={"orders": [0, 1]})
    world.classic_beat("C")
    world.classic_join("C")
    world.sync("C")
    world.classic_beat("C")
    world.check(
        """
        > C joins orders (classic)
          log: C subscribes to orders
          log: group epoch 2
          log: target of N: orders 0-1
          log: target of C: orders 2-3
          log: target epoch 2
          log: C is UNRELEASED_PARTITIONS in epoch 2 (before: 0) with nothing
          C: generation 2, range
        > C syncs
          C: has nothing
        > C beats (classic)
          C: ok
        > N beats
          log: N is UNREVOKED_PARTITIONS in epoch 1 (before: 1) with orders 0-1, revokes orders 2-3
          N: epoch 1, orders 0-1
        > N beats owns orders 0-1
          log: N is STABLE in epoch 2 (before: 1) with orders 0-1@1
          N: epoch 2
        > C beats (classic)
          C: REBALANCE_IN_PROGRESS
        > C joins orders (classic)
          log: C is STABLE in epoch 2 (before: 2) with orders 2-3
          C: generation 2, range
        > C syncs
          C: has orders 2-3
        > C beats (classic)
          C: ok
    """
    )


def test_first_join_gets_an_id_and_leaves_no_member() -> None:
    """The process may never come back with the id, so the coordinator keeps nothing of it."""
    world = a_world()
    world.process("C")
    asker = world.ask("C", request(member_id=""))
    assert isinstance(asker.answer, JoinGroupResponse)
    assert asker.answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert asker.answer.member_id.startswith("client-C-")
    assert list(world.group.members) == ["N"]


@pytest.mark.parametrize(
    ("config", "fields", "code"),
    [
        ({}, {"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({}, {"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({}, {"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({}, {"protocols": [JoinGroupProtocol("range", b"?")]}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({}, {"group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_consumer_max_size": 1}, {}, ErrorCode.GROUP_MAX_SIZE_REACHED),
        ({"group_consumer_max_size": 1}, {"member_id": ""}, ErrorCode.GROUP_MAX_SIZE_REACHED),
        ({"group_consumer_migration_policy": "disabled"}, {}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_invalid_join_is_refused(config: dict[str, Any], fields: dict[str, Any], code: ErrorCode) -> None:
    world = a_world(**config)
    world.process("C")
    assert world.ask("C", request(**fields)).answers == [code]
    assert list(world.group.members) == ["N"]


@pytest.mark.parametrize("policy", ["upgrade", "downgrade", "bidirectional"])
def test_any_policy_but_disabled_takes_classic_members(policy: str) -> None:
    """An upgrade by mistake can be undone under either policy."""
    world = a_world(group_consumer_migration_policy=policy)
    world.process("C")
    assert isinstance(world.ask("C", request()).answer, JoinGroupResponse)


def test_classic_members_share_a_protocol() -> None:
    """The members need a common protocol if the group becomes a classic one."""
    world = with_c()
    world.process("D")
    sticky = [JoinGroupProtocol("sticky", bytes.fromhex("00000000000100066f7264657273ffffffff"))]
    assert world.ask("D", request(protocols=sticky)).answers == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL]
    both = [*sticky, *request().protocols]
    answer = world.ask("D", request(protocols=both)).answer
    assert isinstance(answer, JoinGroupResponse)
    assert answer.protocol_name == "sticky", "the coordinator assigns, so it does not matter"


def test_a_full_group_takes_its_own_members() -> None:
    world = with_c(group_consumer_max_size=2)
    assert isinstance(world.classic_join("C").answer, JoinGroupResponse)


def test_other_topics_raise_the_epoch() -> None:
    world = with_c()
    world.topics.create(payments=1)
    world.publish()
    world.forget()
    world.classic_join("C", "orders", "payments")
    world.check(
        """
        > C joins orders payments (classic)
          log: C subscribes to orders payments
          log: group epoch 3
          log: target of C: orders 2-3 payments 0
          log: target epoch 3
          log: C is STABLE in epoch 3 (before: 2) with orders 2-3@2 payments 0
          C: generation 3, range
    """
    )


def test_the_same_join_again_changes_nothing() -> None:
    """Its response was lost."""
    world = with_c()
    world.classic_join("C")
    world.check("""
        > C joins orders (classic)
          C: generation 2, range
    """)


def test_a_join_that_cannot_be_written_leaves_no_deadline() -> None:
    world = a_world()
    before = len(world.deadlines)
    world.append_error = ErrorCode.NOT_COORDINATOR
    assert world.classic_join("C", "orders").answers == [ErrorCode.NOT_COORDINATOR]
    world.append_error = None
    world.pass_time(0.6)
    world.beat("N")
    assert len(world.deadlines) <= before
    assert list(world.group.members) == ["N"]


# -- static members ---------------------------------------------------------------------------------------------------


def test_a_static_member_returns_under_a_new_id() -> None:
    world = a_world()
    world.classic_join("C", "orders", instance_id="c")
    world.beat("N", owns={"orders": [0, 1]})
    world.classic_join("C")
    world.forget()
    world.classic_join("C", new_id=True)
    world.sync("C")
    world.check("""
        > C joins orders as a new process (classic)
          log: C owns nothing
          log: no target of C
          log: C is gone
          log: C' subscribes to orders instance=c
          log: target of C': orders 2-3
          log: C' is STABLE in epoch 0 (before: 0) with orders 2-3@2
          log: C' is STABLE in epoch 2 (before: 0) with orders 2-3
          C: generation 2, range
        > C syncs
          C: has orders 2-3
    """)


def test_the_earlier_self_is_fenced() -> None:
    world = a_world()
    world.classic_join("C", "orders", instance_id="c")
    earlier = world.processes["C"].member_id
    world.classic_join("C", new_id=True)
    fields: dict[str, Any] = {"member_id": earlier}
    assert world.classic_beat("C", **fields).answers == [ErrorCode.FENCED_INSTANCE_ID]
    assert world.sync("C", **fields).answers == [ErrorCode.FENCED_INSTANCE_ID]
    assert world.classic_join("C", member_id=earlier).answers == [ErrorCode.FENCED_INSTANCE_ID]
    assert world.classic_beat("C", **fields, group_instance_id=None).answers == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.classic_beat("C").answers != [ErrorCode.FENCED_INSTANCE_ID]


def test_a_static_member_of_a_full_group_returns() -> None:
    world = a_world(group_consumer_max_size=2)
    world.classic_join("C", "orders", instance_id="c")
    assert isinstance(world.classic_join("C", new_id=True).answer, JoinGroupResponse)


def test_a_classic_process_takes_over_from_one_of_the_newer_protocol_that_has_not_left() -> None:
    """An application is downgraded process by process: the newer one is stopped without a word, or is slow to stop."""
    world = a_world()
    world.join("M", "orders", instance_id="m")
    world.forget()
    world.classic_join("X", "orders", instance_id="m")
    assert "M" not in world.group.members
    assert world.beat("M", instance_id="m") is ErrorCode.FENCED_INSTANCE_ID


def test_its_expression_goes_with_it() -> None:
    """A member of the classic protocol has none."""
    world = a_world()
    world.join("M", subscribed_topic_regex="o.*", subscribed_topic_names=None, instance_id="m")
    world.settle()
    assert world.group.resolved
    world.classic_join("X", "orders", instance_id="m")
    assert not world.group.resolved
    assert world.group.members[world.processes["X"].member_id].metadata.subscribed_topic_regex is None


# -- SyncGroup --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_the_assignment_has_the_version_of_the_subscription(version: int) -> None:
    world = MigrationWorld(orders=2)
    world.join("N", "payments")
    world.classic_join("C", "orders", version=version)
    answer = world.sync("C").answer
    assert isinstance(answer, SyncGroupResponse)
    assert answer.assignment.hex().startswith(f"{version:04x}" + "00000001" + "0006" + b"orders".hex() + "00000002")
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": "elsewhere"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "N", "generation_id": 2}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 1}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 3}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_syncs_that_are_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    world = with_c()
    assert world.sync("C", **fields).answers == [code]


@pytest.mark.parametrize("fields", [{}, {"protocol_type": "consumer", "protocol_name": "range"}])
def test_syncs_that_are_answered(fields: dict[str, Any]) -> None:
    assert isinstance(with_c().sync("C", **fields).answer, SyncGroupResponse)


def test_a_sync_of_a_member_with_malformed_metadata_is_refused() -> None:
    """An upgrade reads the metadata of one protocol, and the response is for another one."""
    world = with_c()
    member_id = world.processes["C"].member_id
    metadata = world.group.members[member_id].metadata
    classic = metadata.classic_member_metadata
    assert classic is not None
    protocols = (replace(classic.supported_protocols[0], metadata=b"?"), *classic.supported_protocols)
    world.group.put_member(member_id, replace(metadata, classic_member_metadata=replace(classic, supported_protocols=protocols)))
    assert world.sync("C").answers == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL]


def test_a_sync_in_an_older_epoch_has_to_join_again() -> None:
    """An assignment of the older epoch would be out of date at once."""
    world = with_c()
    world.join("M", "orders")
    assert world.sync("C").answers == [ErrorCode.REBALANCE_IN_PROGRESS]


def test_a_member_that_has_to_give_up_partitions_syncs_in_its_epoch() -> None:
    """It has joined already, and the sync returns the partitions that it may keep."""
    world = with_c()
    world.process("C").version, world.process("C").owned = 1, {"orders": (2, 3)}
    world.join("M", "orders")
    world.classic_join("C")
    member = world.group.members[world.processes["C"].member_id]
    assert member.current.state is MemberState.UNREVOKED_PARTITIONS
    assert isinstance(world.sync("C").answer, SyncGroupResponse)


# -- the two kinds of rebalances --------------------------------------------------------------------------------------


def test_an_eager_member_gives_up_all_and_comes_to_its_target_at_once() -> None:
    """Its subscription (version 0) names no partitions that it owns."""
    world = with_c()
    world.join("M", "orders")
    world.classic_beat("C")
    world.forget()
    world.classic_join("C")
    world.sync("C")
    world.check("""
        > C joins orders (classic)
          log: C is STABLE in epoch 3 (before: 2) with orders 2@2
          C: generation 3, range
        > C syncs
          C: has orders 2
    """)


def test_a_cooperative_member_keeps_what_it_may_and_joins_once_more() -> None:
    world = with_c()
    world.process("C").version, world.process("C").owned = 1, {"orders": (2, 3)}
    world.join("M", "orders")
    world.classic_beat("C")
    world.forget()
    world.classic_join("C")
    world.sync("C")
    world.classic_beat("C")
    world.process("C").owned = {"orders": (2,)}
    world.classic_join("C")
    world.sync("C")
    world.beat("M")
    world.classic_beat("C")
    world.check("""
        > C joins orders (classic)
          log: C subscribes to orders
          log: C is UNREVOKED_PARTITIONS in epoch 2 (before: 2) with orders 2, revokes orders 3
          C: generation 2, range
        > C syncs
          C: has orders 2
        > C beats (classic)
          C: REBALANCE_IN_PROGRESS
        > C joins orders (classic)
          log: C subscribes to orders
          log: C is STABLE in epoch 3 (before: 2) with orders 2@2
          C: generation 3, range
        > C syncs
          C: has orders 2
        > M beats
          log: M is STABLE in epoch 3 (before: 3) with orders 3
          M: epoch 3, orders 3
        > C beats (classic)
          C: ok
    """)


def test_a_member_that_gives_up_a_topic_joins_again_in_its_epoch() -> None:
    """The next target waits for its interval, but partitions of a topic that the member no longer subscribes to are free at
    once."""
    world = MigrationWorld(replace(CONFIG, group_consumer_assignment_interval_ms=5_000), orders=2, payments=2)
    world.join("N", "other")
    world.pass_time(5)
    world.beat("N")
    world.classic_join("C", "orders", "payments", version=1)
    world.sync("C")
    world.process("C").owned = {"orders": (0, 1), "payments": (0, 1)}
    world.forget()
    world.classic_join("C", "orders")
    world.sync("C")
    world.classic_beat("C")
    world.process("C").owned = {"orders": (0, 1)}
    world.classic_join("C")
    world.classic_beat("C")
    world.check("""
        > C joins orders (classic)
          log: C subscribes to orders
          log: group epoch 3
          log: C is UNREVOKED_PARTITIONS in epoch 2 (before: 2) with orders 0-1, revokes payments 0-1
          C: generation 2, range
        > C syncs
          C: has orders 0-1
        > C beats (classic)
          C: REBALANCE_IN_PROGRESS
        > C joins orders (classic)
          log: C subscribes to orders
          log: C is STABLE in epoch 2 (before: 2) with orders 0-1
          C: generation 2, range
        > C beats (classic)
          C: ok
    """)


# -- heartbeats and deadlines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": "elsewhere"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "N", "generation_id": 2}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 1}, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_heartbeats_that_are_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    assert with_c().classic_beat("C", **fields).answers == [code]


def test_heartbeats_keep_the_session_that_the_member_asked_for() -> None:
    world = with_c(group_consumer_session_timeout_ms=3_600_000)
    for _ in range(3):
        world.pass_time(9.9)
        world.classic_beat("C")
    world.pass_time(9.9)
    assert len(world.group.members) == 2
    world.pass_time(0.1)
    assert list(world.group.members) == ["N"]


def test_a_heartbeat_answered_with_a_rebalance_keeps_the_session() -> None:
    world = with_c(group_consumer_session_timeout_ms=3_600_000)
    world.join("M", "orders")
    world.pass_time(9.9)
    assert world.classic_beat("C").answers == [ErrorCode.REBALANCE_IN_PROGRESS]
    world.pass_time(9.9)
    assert len(world.group.members) == 3


def test_a_member_has_its_rebalance_timeout_to_join() -> None:
    """A second REBALANCE_IN_PROGRESS does not extend it, because another member may be waiting for the partitions."""
    world = with_c(group_consumer_session_timeout_ms=3_600_000)
    world.processes["C"].rebalance_timeout_ms = 20_000
    world.classic_join("C")
    world.sync("C")
    world.join("M", "orders")
    for _ in range(4):
        world.classic_beat("C")
        world.pass_time(4.9)
    assert len(world.group.members) == 3
    world.pass_time(0.5)
    assert list(world.group.members) == ["N", "M"]


def test_a_sync_answered_with_a_rebalance_has_the_same_time() -> None:
    world = with_c(group_consumer_session_timeout_ms=3_600_000)
    world.process("C").session_timeout_ms = 300_000
    world.classic_join("C")
    world.sync("C")
    world.join("M", "orders")
    world.sync("C")
    world.pass_time(60)
    assert list(world.group.members) == ["N", "M"]


def test_a_member_that_joins_in_time_stays() -> None:
    world = with_c(group_consumer_session_timeout_ms=3_600_000)
    world.process("C").session_timeout_ms = 300_000
    world.classic_join("C")
    world.join("M", "orders")
    world.classic_beat("C")
    world.pass_time(59)
    world.classic_join("C")
    world.sync("C")
    world.pass_time(100)
    assert len(world.group.members) == 3


def test_a_member_that_does_not_sync_is_removed() -> None:
    world = with_c(group_consumer_session_timeout_ms=3_600_000)
    world.process("C").session_timeout_ms = 300_000
    world.classic_join("C")
    world.pass_time(59.9)
    assert len(world.group.members) == 2
    world.pass_time(0.1)
    assert list(world.group.members) == ["N"]


def test_a_removal_that_cannot_be_written_is_tried_again() -> None:
    world = with_c(group_consumer_session_timeout_ms=3_600_000)
    world.process("C").session_timeout_ms = 300_000
    world.classic_join("C")
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.pass_time(60)
    assert len(world.group.members) == 2
    world.append_error = None
    world.pass_time(0.5)
    assert list(world.group.members) == ["N"]


def test_a_member_that_has_changed_its_protocol_need_not_sync() -> None:
    """A process restarts with the newer protocol and the member id that it had."""
    world = with_c(group_consumer_session_timeout_ms=3_600_000)
    member_id = world.processes["C"].member_id
    world.classic_join("C")
    world.join(member_id, "orders")
    world.pass_time(60)
    assert member_id in world.group.members


def test_another_coordinator_gives_members_their_own_sessions() -> None:
    world = with_c(group_consumer_session_timeout_ms=4_000)
    world.process("C").session_timeout_ms = 30_000
    world.classic_join("C")
    world.sync("C")
    world.move()
    for _ in range(3):
        world.beat("N")
        world.pass_time(3.9)
    assert len(world.group.members) == 2


# -- commits and the end ----------------------------------------------------------------------------------------------


def test_a_member_commits_in_its_generation() -> None:
    """In an older generation it commits only for partitions that it owned then and still owns (KIP-1251)."""
    world = with_c()
    assert world.commit("C", ("orders", 2)) == ["NONE"]
    assert world.commit("C", ("orders", 2), generation=3) == ["ILLEGAL_GENERATION"]
    world.join("M", "orders")
    world.classic_join("C")
    assert world.processes["C"].generation == 3
    assert world.commit("C", ("orders", 2), ("orders", 3), generation=2) == ["NONE", "ILLEGAL_GENERATION"]


def test_members_of_both_protocols_leave_in_one_request() -> None:
    world = with_c()
    world.process("N").member_id = "N"
    world.classic_leave("C", "N")
    world.check("""
        > C N leave (classic)
          log: C owns nothing
          log: no target of C
          log: C is gone
          log: N owns nothing
          log: no target of N
          log: N is gone
          log: group epoch 3
          log: target epoch 3
          C: left: ok ok
    """)


def test_an_empty_group_of_the_newer_protocol_knows_no_classic_member() -> None:
    world = a_world()
    world.leave("N")
    world.process("C").member_id = "m"
    assert world.sync("C").answers == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.classic_beat("C").answers == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert world.ask("C", request()).answers == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_classic_members_alone_go_on() -> None:
    """The policy forbids that the group becomes a classic one, so the coordinator still assigns."""
    world = with_c(group_consumer_migration_policy="upgrade")
    world.leave("N")
    world.pass_time(0)
    world.classic_beat("C")
    world.forget()
    world.classic_join("C")
    world.sync("C")
    world.check(
        """
        > C joins orders (classic)
          log: C is STABLE in epoch 3 (before: 2) with orders 0-1,2-3@2
          C: generation 3, range
        > C syncs
          C: has orders 0-3
        """
    )
