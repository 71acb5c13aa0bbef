"""A classic group with members becomes a group of the newer protocol."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from consumer_world import CONFIG
from migration_world import GROUP, MigrationWorld, subscription

from strandline.broker.groups.classic.group import State
from strandline.broker.groups.migration.assignment import encode_assignment
from strandline.broker.groups.records.types import ClassicGroupValue, ClassicMemberValue, GroupMetadataRecord
from strandline.broker.groups.state import CLASSIC, CONSUMER
from strandline.protocol.errors import ErrorCode

C_AND_D = {"C": {"orders": [0, 1]}, "D": {"orders": [2, 3]}}


def a_world(**config: Any) -> MigrationWorld:
    world = MigrationWorld(replace(CONFIG, **config), orders=4)
    world.stable("C", "D", assign=C_AND_D)
    return world


def a_record(*members: ClassicMemberValue, protocol_type: str = "consumer", generation: int = 3) -> GroupMetadataRecord:
    value = ClassicGroupValue(protocol_type, generation, "range", members[0].member_id, 5, members)
    return GroupMetadataRecord(GROUP, value)


def a_member(
    name: str, metadata: bytes = subscription(1, ["orders"], {}), assignment: bytes = b"", instance_id: str | None = None
) -> ClassicMemberValue:
    return ClassicMemberValue(name, instance_id, f"client-{name}", "h", 60_000, 10_000, metadata, assignment)


# -- the conversion ---------------------------------------------------------------------------------------------------


def test_a_stable_group_is_converted_as_it_is() -> None:
    """The classic members keep their partitions. The answers to their next heartbeats ask them to join again."""
    world = a_world()
    world.join("N", "orders")
    world.classic_beat("C")
    world.check("""
        > N joins orders
          log: no classic group
          log: C subscribes to orders
          log: D subscribes to orders
          log: group epoch 1
          log: target of C: orders 0-1
          log: target of D: orders 2-3
          log: target epoch 1
          log: C is STABLE in epoch 1 (before: 1) with orders 0-1
          log: D is STABLE in epoch 1 (before: 1) with orders 2-3
          log: N subscribes to orders
          log: group epoch 2
          log: target of N: orders 3
          log: target of D: orders 2
          log: target epoch 2
          log: N is UNRELEASED_PARTITIONS in epoch 2 (before: 0) with nothing
          N: epoch 2, nothing (500 ms)
        > C beats (classic)
          C: REBALANCE_IN_PROGRESS
    """)
    assert world.group_type == CONSUMER


def test_classic_members_keep_their_metadata() -> None:
    world = MigrationWorld(orders=2)
    options = {"version": 3, "rack": "r", "names": ("range", "sticky")}
    world.classic_join("C", "orders", **options, session_timeout_ms=12_000, rebalance_timeout_ms=30_000)
    world.pass_time(3)
    world.sync("C", {"C": {"orders": [0, 1]}})
    world.join("N", "orders")
    metadata = world.group.members[world.processes["C"].member_id].metadata
    assert (metadata.client_id, metadata.client_host, metadata.rebalance_timeout_ms) == ("client-C", "h", 30_000)
    assert (metadata.subscribed_topic_names, metadata.rack_id) == (("orders",), "r")
    classic = metadata.classic_member_metadata
    assert classic is not None
    assert classic.session_timeout_ms == 12_000
    assert [protocol.name for protocol in classic.supported_protocols] == ["range", "sticky"]


def test_the_sessions_are_those_of_the_members() -> None:
    """The shorter session that the coordinator sets for members of the newer protocol does not apply to classic ones."""
    world = a_world(group_consumer_session_timeout_ms=4_000)
    world.process("C").session_timeout_ms = 10_000
    world.join("N", "orders")
    world.pass_time(3.9)
    world.beat("N")
    world.pass_time(3.9)
    world.beat("N")
    world.pass_time(2.3)
    world.beat("N")
    assert list(world.group.members) == ["N"]


def test_the_session_of_the_one_that_joins_is_its_own() -> None:
    """It is removed soon after its connection breaks, because its join has said that it would return at once."""
    world = a_world()
    world.join("N", "orders", returns_at_once=True)
    world.consumer.on_connection_lost(GROUP, "N", world.now)
    world.pass_time(1)
    assert world.group_type == CLASSIC, "the last member of the newer protocol is gone"


def test_after_the_rebalance_all_own_their_share() -> None:
    world = a_world()
    world.join("N", "orders")
    for name in ("C", "D"):
        world.classic_beat(name)
        world.classic_join(name)
        world.sync(name)
    world.forget()
    world.beat("N")
    world.classic_beat("C")
    world.check("""
        > N beats
          log: N is STABLE in epoch 2 (before: 2) with orders 3
          N: epoch 2, orders 3
        > C beats (classic)
          C: ok
    """)
    assert world.group.state_name == "Stable"
    assert sorted(world.owners().values()) == ["orders 0-1", "orders 2", "orders 3"]


def test_joins_that_wait_are_answered() -> None:
    """The members get an error, join again, and get an assignment at once."""
    world = a_world()
    world.classic_join("D", topics=("orders", "payments"))
    world.forget()
    asker = world.classic_join("D")
    assert asker.answer is None
    world.join("N", "orders")
    assert asker.answers == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert world.classic_join("D").answer is not None


def test_syncs_that_wait_are_answered() -> None:
    world = a_world()
    world.classic_join("C")
    world.classic_join("D")
    waiting = world.sync("D")
    assert waiting.answer is None
    world.join("N", "orders")
    assert waiting.answers == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert world.sync("C", C_AND_D).answers == [ErrorCode.REBALANCE_IN_PROGRESS]


def test_a_group_in_its_first_rebalance_is_converted() -> None:
    """The group has no generation and no protocol yet. (Kafka fails with an internal error.) Its epoch must not be 0, because a
    heartbeat with epoch 0 is a join."""
    world = MigrationWorld(orders=4)
    first = world.classic_join("C", "orders")
    world.join("N", "orders")
    assert first.answers == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert (world.group.epoch, world.group.members[world.processes["C"].member_id].epoch) == (2, 1)
    world.forget()
    world.classic_join("C")
    world.sync("C")
    world.check("""
        > C joins orders (classic)
          log: C is STABLE in epoch 2 (before: 1) with orders 2-3
          C: generation 2, range
        > C syncs
          C: has orders 2-3
    """)


def test_a_member_that_changed_its_protocols_for_the_next_generation_is_converted() -> None:
    world = MigrationWorld(orders=4)
    world.stable("C", assign={"C": {"orders": [0, 1, 2, 3]}}, names=("range", "sticky"))
    world.classic_join("D", "orders", names=("sticky",))
    world.classic_join("C", names=("sticky",))
    assert world.classic.state is State.COMPLETING
    world.classic_join("D", "payments")
    world.join("N", "orders")
    assert world.group_type == CONSUMER


def test_a_static_member_is_replaced_by_itself() -> None:
    """A rolling upgrade restarts each process: the new one has the instance id of the old one, and its partitions. Its
    subscription is the same, but the target is computed all the same: the leader may have assigned fewer partitions."""
    world = MigrationWorld(orders=2)
    world.stable("C", assign={"C": {"orders": [0]}}, instance_id="c")
    world.join("N", "orders", instance_id="c")
    world.check("""
        > N joins orders instance_id=c
          log: no classic group
          log: C subscribes to orders instance=c
          log: group epoch 1
          log: target of C: orders 0
          log: target epoch 1
          log: C is STABLE in epoch 1 (before: 1) with orders 0
          log: C owns nothing
          log: no target of C
          log: C is gone
          log: N subscribes to orders instance=c
          log: target of N: orders 0
          log: N is STABLE in epoch 0 (before: 0) with orders 0@1
          log: N subscribes to orders instance=c
          log: group epoch 2
          log: target of N: orders 0-1
          log: target epoch 2
          log: N is STABLE in epoch 2 (before: 0) with orders 0@1,1
          N: epoch 2, orders 0-1
    """)
    assert world.classic_beat("C").answers == [ErrorCode.FENCED_INSTANCE_ID]


def test_what_a_cooperative_member_has_to_give_up_is_not_free() -> None:
    """Its last assignment lacks some of its partitions, which it still reads until it has given them up (KAFKA-16147)."""
    world = MigrationWorld(orders=3)
    world.stable("C", assign={"C": {"orders": [0, 1, 2]}}, version=1)
    world.process("C").owned = {"orders": (0, 1, 2)}
    world.classic_join("C")
    world.sync("C", {"C": {"orders": [0]}})
    world.forget()
    world.join("N", "orders")
    world.check("""
        > N joins orders
          log: no classic group
          log: C subscribes to orders
          log: group epoch 2
          log: target of C: orders 0-2
          log: target epoch 2
          log: C is STABLE in epoch 2 (before: 2) with orders 0-2
          log: N subscribes to orders
          log: group epoch 3
          log: target of N: orders 2
          log: target of C: orders 0-1
          log: target epoch 3
          log: N is UNRELEASED_PARTITIONS in epoch 3 (before: 0) with nothing
          N: epoch 3, nothing (500 ms)
    """)


def test_a_cooperative_member_whose_assignment_was_not_written_owns_what_it_had() -> None:
    world = MigrationWorld(orders=2)
    world.stable("C", assign={"C": {"orders": [0, 1]}}, version=1)
    world.classic_join("C")
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.sync("C", {"C": {"orders": [0, 1]}})
    world.append_error = None
    world.join("N", "orders")
    assert world._labelled(str(world.owners())) == str({"C": "orders 0-1"})


def test_what_was_assigned_comes_before_what_a_member_said() -> None:
    """The member may have named the partitions long ago."""
    said = subscription(1, ["orders"], {"orders": [0, 1]})
    given = encode_assignment(0, {"orders": [1]})
    world = MigrationWorld(log=[a_record(a_member("C", said), a_member("D", assignment=given))], orders=2)
    world.join("N", "payments")
    assert world.owners() == {"C": "orders 0", "D": "orders 1"}


def test_topics_that_do_not_exist_are_left_out() -> None:
    record = a_record(a_member("C", assignment=encode_assignment(0, {"orders": [0], "gone": [1]})))
    world = MigrationWorld(log=[record], orders=1)
    world.join("N", "orders")
    assert world.targets()["C"] == "orders 0"


def test_a_partition_that_a_leader_gave_to_two_members_has_one_owner() -> None:
    """A client's assignor may have a bug. In the newer protocol, a partition never has two owners (KAFKA-16147)."""
    both = encode_assignment(0, {"orders": [0, 1]})
    record = a_record(a_member("C", assignment=both), a_member("D", assignment=both))
    world = MigrationWorld(log=[record], orders=2)
    world.join("N", "payments")
    assert world.owners() == {"C": "orders 0-1"}


def test_a_member_that_was_given_an_id_may_join() -> None:
    """A group of the newer protocol accepts every member id."""
    world = a_world()
    world.classic_join("E", "orders")
    world.join("N", "orders")
    world.forget()
    world.classic_join("E")
    world.check("""
        > E joins orders (classic)
          log: E is UNRELEASED_PARTITIONS in epoch 2 (before: 1) with nothing
          E: generation 2, range
    """)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_the_policy_may_forbid_it(policy: str) -> None:
    world = a_world(group_consumer_migration_policy=policy)
    assert world.join("N", "orders") is ErrorCode.GROUP_ID_NOT_FOUND
    world.classic_beat("C")
    world.check("""
        > N joins orders
          N: GROUP_ID_NOT_FOUND
        > C beats (classic)
          C: ok
    """)


@pytest.mark.parametrize("policy", ["upgrade", "bidirectional"])
def test_the_policy_may_allow_it(policy: str) -> None:
    world = a_world(group_consumer_migration_policy=policy)
    world.join("N", "orders")
    assert world.group_type == CONSUMER


def test_a_group_that_is_too_large_stays_classic() -> None:
    world = a_world(group_consumer_max_size=1)
    assert world.join("N", "orders") is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_that_becomes_too_large_stays_classic() -> None:
    """It has room for its own members, but not for the one that joins."""
    world = a_world(group_consumer_max_size=2)
    assert world.join("N", "orders") is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.group_type == CLASSIC
    assert world.classic.state is State.STABLE


@pytest.mark.parametrize(
    "record",
    [
        a_record(a_member("C"), protocol_type="connect"),
        a_record(a_member("C", metadata=b"?")),
        a_record(a_member("C", metadata=b"\0\1\0\0\0\0")),
        a_record(a_member("C", assignment=b"?")),
        a_record(a_member("C", assignment=encode_assignment(0, {})[:-4] + b"\0\0\0\1x")),
    ],
)
def test_content_that_would_be_lost_forbids_it(record: GroupMetadataRecord) -> None:
    """Members of another program, a subscription or an assignment that cannot be read, or the data of a custom assignor."""
    world = MigrationWorld(log=[record], orders=1)
    assert world.join("N", "orders") is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.group_type == CLASSIC
    assert world.log == [record]


def test_only_a_member_that_joins_converts_a_group() -> None:
    world = a_world()
    assert world.send(world.request("N", 1, {})) is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.send(world.request("N", -1)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.group_type == CLASSIC


def test_a_conversion_that_cannot_be_written_has_not_happened() -> None:
    """Waiting requests are still waiting."""
    world = a_world()
    waiting = world.classic_join("D", topics=("orders", "payments"))
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.join("N", "orders") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.append_error = None
    assert waiting.answers == []
    world.classic_join("C")
    assert len(waiting.answers) == 1
    assert world.group_type == CLASSIC


def test_a_group_without_members_makes_room() -> None:
    """An empty group of either type is deleted, and the id gets a new group."""
    world = a_world()
    world.classic_leave("C", "D")
    world.pass_time(0)
    world.forget()
    world.join("N", "orders")
    world.leave("N")
    world.classic_join("C", new_id=True)
    world.check("""
        > N joins orders
          log: no classic group
          log: N subscribes to orders
          log: group epoch 1
          log: target of N: orders 0-3
          log: target epoch 1
          log: N is STABLE in epoch 1 (before: 0) with orders 0-3
          N: epoch 1, orders 0-3
        > N leaves
          log: N owns nothing
          log: no target of N
          log: N is gone
          log: group epoch 2
          log: target epoch 2
          N: epoch -1
        > C joins orders as a new process (classic)
          log: no target epoch
          log: the group is gone
          log: classic generation 0, empty
    """)


def test_another_coordinator_finds_the_converted_group() -> None:
    world = a_world()
    world.join("N", "orders")
    world.move()
    assert sorted(world._labelled(member) for member in world.group.members) == ["C", "D", "N"]
    assert world.classic_beat("C").answers == [ErrorCode.REBALANCE_IN_PROGRESS]
