"""Heartbeats of members of the newer protocol: which members may join, what changes a group, and what a member receives.

The cases are those of the consumer-group part of Kafka's GroupMetadataManagerTest, and those in which we differ on purpose.
"""

from __future__ import annotations

import pytest
from consumer_world import CONFIG, GROUP, ConsumerWorld, copy_of

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.consumer.protocol import WAITING_INTERVAL_MS
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    GroupTopicPartitions,
)

JOIN = ConsumerGroupHeartbeatRequest(
    GROUP, "A", 0, rebalance_timeout_ms=60_000, subscribed_topic_names=["orders"], topic_partitions=[]
)

INVALID = {
    "no member id": copy_of(JOIN, member_id=""),
    "blank member id": copy_of(JOIN, member_id="  "),
    "no group id": copy_of(JOIN, group_id=""),
    "empty instance id": copy_of(JOIN, instance_id=""),
    "empty rack id": copy_of(JOIN, rack_id=" "),
    "join without rebalance timeout": copy_of(JOIN, rebalance_timeout_ms=-1),
    "join that does not say what it owns": copy_of(JOIN, topic_partitions=None),
    "join with partitions": copy_of(JOIN, topic_partitions=[GroupTopicPartitions(bytes(16), [1])]),
    "join without a subscription": copy_of(JOIN, subscribed_topic_names=None),
    "dynamic member that leaves for a moment": copy_of(JOIN, member_epoch=-2),
    "unknown special epoch": copy_of(JOIN, member_epoch=-3),
    "empty member id in a later heartbeat": copy_of(JOIN, member_id="", member_epoch=1),
    "empty member id of a member that leaves": copy_of(JOIN, member_id="", member_epoch=-1),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_heartbeat_is_refused(name: str) -> None:
    assert ConsumerWorld(orders=1).send(INVALID[name]) is ErrorCode.INVALID_REQUEST


def test_member_may_join_without_topics() -> None:
    """An empty list means no topics; null would mean that the subscription has not changed."""
    world = ConsumerWorld()
    world.join("A")
    world.join("B", subscribed_topic_names=None, subscribed_topic_regex="")
    world.check(
        """
        > A joins
          log: A subscribes to nothing
          log: group epoch 1
          log: target of A: nothing
          log: target epoch 1
          log: A is STABLE in epoch 1 (before: 0) with nothing
          A: epoch 1, nothing
        > B joins subscribed_topic_names=None subscribed_topic_regex=
          log: B subscribes to nothing
          log: B is STABLE in epoch 1 (before: 0) with nothing
          B: epoch 1, nothing
        """
    )


def test_unknown_assignor_is_refused() -> None:
    world = ConsumerWorld(orders=1)
    assert world.join("A", "orders", server_assignor="sticky") is ErrorCode.UNSUPPORTED_ASSIGNOR


def test_assignor_that_most_members_ask_for_is_used() -> None:
    """If several assignors have equally many votes, the first one in the configuration is used."""
    world = ConsumerWorld(orders=2, bills=2)
    world.join("A", "orders", "bills", server_assignor="range")
    assert world.consumer.describe(GROUP).assignor_name == "range"
    world.join("B", "orders", "bills", server_assignor="uniform")
    assert world.consumer.describe(GROUP).assignor_name == "uniform"
    world.join("C", "orders", "bills", server_assignor="range")
    assert world.consumer.describe(GROUP).assignor_name == "range"
    assert world.targets() == {"A": "bills 0 orders 0", "B": "bills 1 orders 1", "C": ""}


def test_first_member_creates_the_group_and_is_assigned_at_once() -> None:
    world = ConsumerWorld(orders=6)
    world.join("A", "orders", "missing")
    world.check(
        """
        > A joins orders missing
          log: A subscribes to missing orders
          log: group epoch 1
          log: target of A: orders 0-5
          log: target epoch 1
          log: A is STABLE in epoch 1 (before: 0) with orders 0-5
          A: epoch 1, orders 0-5
        """
    )
    assert world.group.state_name == "Stable"


def test_only_a_join_creates_a_group_or_a_member() -> None:
    world = ConsumerWorld(orders=1)
    assert world.beat("A", epoch=1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.leave("A") is ErrorCode.GROUP_ID_NOT_FOUND
    world.join("A", "orders")
    assert world.beat("B", epoch=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.leave("B") is ErrorCode.UNKNOWN_MEMBER_ID


def test_full_group_takes_no_more_members() -> None:
    """It still accepts its own members, and a process that takes the place of a static member. Kafka refuses the latter."""
    world = ConsumerWorld(GroupConfig(group_consumer_max_size=2), orders=2)
    world.join("A", "orders")
    world.join("B", "orders", instance_id="b")
    assert world.join("C", "orders") is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.join("C", "orders", instance_id="c") is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.beat("C", epoch=3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert isinstance(world.join("A", "orders"), ConsumerGroupHeartbeatResponse)
    world.leave("B", epoch=-2, instance_id="b")
    assert isinstance(world.join("B2", "orders", instance_id="b"), ConsumerGroupHeartbeatResponse)


def test_reconciliation_of_three_members() -> None:
    """The story of Kafka's testReconciliationProcess: a third member joins, and no partition ever has two owners."""
    world = ConsumerWorld(a=4, b=2)
    world.join("A", "a", "b")
    world.join("B", "a", "b")
    world.beat("A", owns={"a": [0, 1], "b": [0]})
    world.beat("A", owns={"a": [0, 1, 2]})
    world.beat("B")
    world.forget()
    world.join("C", "a", "b")
    world.check(
        """
        > C joins a b
          log: C subscribes to a b
          log: group epoch 3
          log: target of A: a 0-1
          log: target of B: a 3 b 0
          log: target of C: a 2 b 1
          log: target epoch 3
          log: C is UNRELEASED_PARTITIONS in epoch 3 (before: 0) with nothing
          C: epoch 3, nothing (500 ms)
        """
    )
    world.beat("A", owns={"a": [0, 1, 2]})
    world.beat("C")
    world.check(
        """
        > A beats owns a 0-2
          log: A is UNREVOKED_PARTITIONS in epoch 2 (before: 2) with a 0-1@1, revokes a 2@1
          A: epoch 2, a 0-1
        > C beats
          C: epoch 3 (500 ms)
        """
    )
    world.beat("A", owns={"a": [0, 1]})
    world.beat("C", owns={})
    world.check(
        """
        > A beats owns a 0-1
          log: A is STABLE in epoch 3 (before: 2) with a 0-1@1
          A: epoch 3
        > C beats owns nothing
          log: C is UNRELEASED_PARTITIONS in epoch 3 (before: 3) with a 2
          C: epoch 3, a 2 (500 ms)
        """
    )
    world.beat("B", owns={"a": [3], "b": [0, 1]})
    world.beat("C", owns={"a": [2]})
    world.beat("B", owns={"a": [3], "b": [0]})
    world.beat("C", owns={"a": [2]})
    world.check(
        """
        > B beats owns a 3 b 0-1
          log: B is UNREVOKED_PARTITIONS in epoch 2 (before: 2) with a 3 b 0, revokes b 1
          B: epoch 2, a 3 b 0
        > C beats owns a 2
          C: epoch 3 (500 ms)
        > B beats owns a 3 b 0
          log: B is STABLE in epoch 3 (before: 2) with a 3@2 b 0@2
          B: epoch 3
        > C beats owns a 2
          log: C is STABLE in epoch 3 (before: 3) with a 2 b 1
          C: epoch 3, a 2 b 1
        """
    )
    assert world.group.state_name == "Stable"


def test_steady_heartbeat_changes_nothing() -> None:
    """A heartbeat that repeats all fields changes nothing either, and gets the whole assignment again."""
    world = ConsumerWorld(orders=2)
    world.join("A", "orders", rack_id="r", server_assignor="uniform")
    world.forget()
    world.beat("A")
    world.beat("A", owns={"orders": [0, 1]})
    world.beat("A", subscribed_topic_names=["orders"], server_assignor="uniform", rack_id="r")
    world.beat("A", owns={"orders": [0]}, subscribed_topic_names=["orders"], rebalance_timeout_ms=60_000)
    world.check(
        """
        > A beats
          A: epoch 1
        > A beats owns orders 0-1
          A: epoch 1
        > A beats subscribed_topic_names=['orders'] server_assignor=uniform rack_id=r
          A: epoch 1
        > A beats owns orders 0 subscribed_topic_names=['orders'] rebalance_timeout_ms=60000
          A: epoch 1, orders 0-1
        """
    )


def test_field_that_is_left_out_stays_as_it_is() -> None:
    world = ConsumerWorld(orders=2)
    world.join("A", "orders", rack_id="r", server_assignor="range", instance_id="a")
    world.beat("A", rack_id="q", instance_id="a")
    metadata = world.group.members["A"].metadata
    assert (metadata.rack_id, metadata.server_assignor, metadata.instance_id) == ("q", "range", "a")
    assert (metadata.subscribed_topic_names, metadata.rebalance_timeout_ms) == (("orders",), 60_000)


def test_member_moves_to_another_host() -> None:
    """The record is for operators: the assignment does not depend on the host."""
    world = ConsumerWorld(orders=2)
    world.join("A", "orders")
    world.forget()
    world.beat("A", host="elsewhere")
    world.beat("A", host="elsewhere")
    world.check(
        """
        > A beats host=elsewhere
          log: A subscribes to orders
          A: epoch 1
        > A beats host=elsewhere
          A: epoch 1
        """
    )
    assert world.group.members["A"].metadata.client_host == "elsewhere"


def test_changed_subscription_changes_the_assignment() -> None:
    world = ConsumerWorld(orders=2, bills=2)
    world.join("A", "orders")
    world.forget()
    world.beat("A", subscribed_topic_names=["bills", "bills"])
    world.beat("A", owns={})
    world.check(
        """
        > A beats subscribed_topic_names=['bills', 'bills']
          log: A subscribes to bills
          log: group epoch 2
          log: target of A: bills 0-1
          log: target epoch 2
          log: A is UNREVOKED_PARTITIONS in epoch 1 (before: 1) with nothing, revokes orders 0-1
          A: epoch 1, nothing
        > A beats owns nothing
          log: A is STABLE in epoch 2 (before: 1) with bills 0-1
          A: epoch 2, bills 0-1
        """
    )


def test_topic_without_subscription_is_given_up_before_the_next_target() -> None:
    """The next target may have to wait for its interval."""
    world = ConsumerWorld(GroupConfig(group_consumer_assignment_interval_ms=1000), orders=2, bills=2)
    world.join("A", "orders", "bills")
    world.forget()
    world.beat("A", subscribed_topic_names=["bills"])
    world.beat("A", owns={"bills": [0, 1]})
    world.pass_time(1)
    world.beat("A")
    world.check(
        """
        > A beats subscribed_topic_names=['bills']
          log: A subscribes to bills
          log: group epoch 2
          log: A is UNREVOKED_PARTITIONS in epoch 1 (before: 1) with bills 0-1, revokes orders 0-1
          A: epoch 1, bills 0-1 (500 ms)
        > A beats owns bills 0-1
          log: A is STABLE in epoch 1 (before: 1) with bills 0-1
          A: epoch 1 (500 ms)
        > 1 s pass
          log: target of A: bills 0-1
          log: target epoch 2
        > A beats
          log: A is STABLE in epoch 2 (before: 1) with bills 0-1@1
          A: epoch 2
        """
    )


# -- epochs -----------------------------------------------------------------------------------------------------------


def a_member_with_a_previous_epoch() -> ConsumerWorld:
    """A is in epoch 2, was in epoch 1 before, and owns orders 0-2."""
    world = ConsumerWorld(orders=6)
    world.join("A", "orders")
    world.join("B", "orders")
    world.beat("A", owns={"orders": range(3)})
    assert world.epochs["A"] == 2
    world.forget()
    return world


def test_lost_response_is_repeated() -> None:
    """The member missed its new epoch. It owns nothing that it may not own, so it gets epoch and assignment again."""
    world = a_member_with_a_previous_epoch()
    world.beat("A", epoch=1, owns={"orders": [0, 1]})
    world.beat("A", epoch=1, owns={})
    world.check(
        """
        > A beats in epoch 1 owns orders 0-1
          A: epoch 2, orders 0-2
        > A beats in epoch 1 owns nothing
          A: epoch 2, orders 0-2
        """
    )


FENCED = {
    "newer epoch": (3, {"orders": [0]}),
    "older epoch": (-10, {}),
    "previous epoch, without what it owns": (1, None),
    "previous epoch, with a partition that it may not own": (1, {"orders": [2, 3]}),
    "previous epoch, with a topic that it may not own": (1, {"bills": [0]}),
}


@pytest.mark.parametrize("name", FENCED)
def test_other_epoch_is_fenced(name: str) -> None:
    epoch, owns = FENCED[name]
    world = a_member_with_a_previous_epoch()
    world.topics.create(bills=1)
    if epoch < 0:
        # Advance the epoch twice more, so that 1 is older than the previous epoch.
        for member in "CD":
            world.join(member, "orders")
            world.beat("A", owns={"orders": world.group.targets["A"][world.topics.topic_id("orders")]})
        epoch = 1
    before = list(world.log)
    assert world.beat("A", epoch=epoch, owns=owns) is ErrorCode.FENCED_MEMBER_EPOCH
    assert world.log == before


def test_fenced_member_joins_again_with_epoch_0() -> None:
    """KAFKA-19233: the coordinator still counts its old partitions, although the member owns none. It gets those of its target
    again, and the ones that it had to give up are free at once."""
    world = ConsumerWorld(orders=4)
    world.join("A", "orders")
    world.join("B", "orders")
    world.beat("A", owns={"orders": range(4)})
    assert world.beat("A", epoch=7) is ErrorCode.FENCED_MEMBER_EPOCH
    world.forget()
    world.join("A", "orders")
    world.beat("B")
    world.check(
        """
        > A joins orders
          log: A is STABLE in epoch 2 (before: 1) with orders 0-1@1
          A: epoch 2, orders 0-1
        > B beats
          log: B is STABLE in epoch 2 (before: 2) with orders 2-3
          B: epoch 2, orders 2-3
        """
    )


def test_lost_response_to_a_join_is_repeated() -> None:
    world = ConsumerWorld(orders=2)
    world.join("A", "orders")
    world.forget()
    world.join("A", "orders")
    world.check(
        """
        > A joins orders
          A: epoch 1, orders 0-1
        """
    )


def test_member_that_joins_again_may_subscribe_otherwise() -> None:
    world = ConsumerWorld(orders=2, bills=1)
    world.join("A", "orders")
    world.forget()
    world.join("A", "bills")
    world.check(
        """
        > A joins bills
          log: A subscribes to bills
          log: group epoch 2
          log: target of A: bills 0
          log: target epoch 2
          log: A is STABLE in epoch 2 (before: 1) with bills 0
          A: epoch 2, bills 0
        """
    )


# -- leaving, sessions, time to give up -------------------------------------------------------------------------------


def test_member_leaves() -> None:
    """Its partitions are assigned to the other members at once, which receive them with their next heartbeats."""
    world = ConsumerWorld(orders=4)
    world.join("A", "orders")
    world.join("B", "orders")
    world.beat("A", owns={"orders": [0, 1]})
    world.forget()
    world.leave("B")
    world.settle()
    world.beat("A")
    world.check(
        """
        > B leaves
          log: B owns nothing
          log: no target of B
          log: B is gone
          log: group epoch 3
          B: epoch -1
          log: target of A: orders 0-3
          log: target epoch 3
        > A beats
          log: A is STABLE in epoch 3 (before: 2) with orders 0-1@1,2-3
          A: epoch 3, orders 0-3
        """
    )


def test_last_member_leaves_an_empty_group_without_a_lag() -> None:
    """KAFKA-20442: otherwise the assignment epoch of the empty group would stay behind for ever, and tools would wait for it."""
    world = ConsumerWorld(orders=1)
    world.join("A", "orders")
    world.forget()
    world.leave("A")
    world.check(
        """
        > A leaves
          log: A owns nothing
          log: no target of A
          log: A is gone
          log: group epoch 2
          log: target epoch 2
          A: epoch -1
        """
    )
    group = world.group
    assert (group.state_name, group.is_empty, group.epoch, group.assignment_epoch) == ("Empty", True, 2, 2)
    assert group.empty_since_ms == world.now_ms
    world.pass_time(60)
    world.join("B", "orders")
    assert group.empty_since_ms == -1


def test_silent_member_is_removed_after_its_session() -> None:
    world = ConsumerWorld(orders=2)
    world.join("A", "orders")
    world.join("B", "orders")
    world.forget()
    world.pass_time(8)
    world.beat("B")
    world.pass_time(1)
    world.beat("B")
    world.pass_time(8)
    world.check(
        """
        > 8 s pass
        > B beats
          B: epoch 2 (500 ms)
        > 1 s pass
          log: A owns nothing
          log: no target of A
          log: A is gone
          log: group epoch 3
          log: target of B: orders 0-1
          log: target epoch 3
        > B beats
          log: B is STABLE in epoch 3 (before: 2) with orders 0-1
          B: epoch 3, orders 0-1
        > 8 s pass
        """
    )
    assert world.beat("A") is ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeat_that_is_refused_does_not_keep_a_session_alive() -> None:
    world = ConsumerWorld(orders=2)
    world.join("A", "orders")
    world.pass_time(8)
    assert world.beat("A", epoch=5) is ErrorCode.FENCED_MEMBER_EPOCH
    world.pass_time(1)
    assert world.group.is_empty


def test_member_that_does_not_give_up_in_time_is_removed() -> None:
    """It sends heartbeats and keeps its session, but the other members wait for its partitions."""
    world = ConsumerWorld(
        GroupConfig(group_consumer_session_timeout_ms=1_000_000, group_consumer_assignment_interval_ms=0), orders=2
    )
    world.join("A", "orders", rebalance_timeout_ms=20_000)
    world.join("B", "orders")
    world.beat("A", owns={"orders": [0, 1]})
    world.forget()
    world.pass_time(19)
    world.beat("A", owns={"orders": [0, 1]})
    world.pass_time(1)
    world.check(
        """
        > 19 s pass
        > A beats owns orders 0-1
          A: epoch 1
        > 1 s pass
          log: A owns nothing
          log: no target of A
          log: A is gone
          log: group epoch 3
          log: target of B: orders 0-1
          log: target epoch 3
        """
    )


def test_member_that_has_given_up_has_no_deadline() -> None:
    world = ConsumerWorld(orders=2)
    world.join("A", "orders", rebalance_timeout_ms=5_000)
    world.join("B", "orders")
    world.beat("A", owns={"orders": [0, 1]})
    world.pass_time(4)
    world.beat("A", owns={"orders": [0]})
    world.pass_time(4)
    assert sorted(world.group.members) == ["A", "B"]


def test_member_that_has_to_give_up_again_has_the_whole_time() -> None:
    world = ConsumerWorld(orders=3)
    world.join("A", "orders", rebalance_timeout_ms=5_000)
    world.join("B", "orders")
    world.beat("A", owns={"orders": [0, 1, 2]})
    world.pass_time(4)
    world.join("C", "orders")
    world.beat("A", owns={"orders": [0, 1]})
    world.forget()
    world.pass_time(4)
    world.beat("A", owns={"orders": [0]})
    world.check(
        """
        > 4 s pass
        > A beats owns orders 0
          log: A is STABLE in epoch 3 (before: 1) with orders 0@1
          A: epoch 3
        """
    )


def test_waiting_member_is_asked_for_the_next_heartbeat_soon() -> None:
    """A member that waits for the next target is asked, too. Otherwise it would wait for a whole heartbeat interval."""
    world = ConsumerWorld(GroupConfig(group_consumer_assignment_interval_ms=1000), orders=2)
    first = world.join("A", "orders")
    second = world.join("B", "orders")
    assert isinstance(first, ConsumerGroupHeartbeatResponse)
    assert isinstance(second, ConsumerGroupHeartbeatResponse)
    assert (first.heartbeat_interval_ms, second.heartbeat_interval_ms) == (3000, WAITING_INTERVAL_MS)
    world.pass_time(1)
    third = world.beat("B")
    assert isinstance(third, ConsumerGroupHeartbeatResponse)
    assert (world.group.members["B"].current.state.name, third.heartbeat_interval_ms) == ("UNRELEASED_PARTITIONS", 500)


# -- the interval of target assignments -------------------------------------------------------------------------------


def test_joins_of_many_members_cost_few_assignments() -> None:
    """KAFKA-20291: the first target is computed at once, the next ones at least a second apart, without a heartbeat."""
    world = ConsumerWorld(GroupConfig(group_consumer_assignment_interval_ms=1000), orders=12)
    for index in range(100):
        world.join(f"m{index}", "orders")
        world.pass_time(0.01)
    world.pass_time(5)
    assert sum("target epoch" in line for line in world.story) == 2
    assert (world.group.epoch, world.group.assignment_epoch) == (100, 100)


def test_target_waits_for_its_interval() -> None:
    world = ConsumerWorld(GroupConfig(group_consumer_assignment_interval_ms=1000), orders=2)
    world.join("A", "orders")
    world.pass_time(0.4)
    world.join("B", "orders")
    assert world.group.state_name == "Assigning"
    world.pass_time(0.5)
    world.beat("B")
    world.pass_time(0.1)
    world.check(
        """
        > A joins orders
          log: A subscribes to orders
          log: group epoch 1
          log: target of A: orders 0-1
          log: target epoch 1
          log: A is STABLE in epoch 1 (before: 0) with orders 0-1
          A: epoch 1, orders 0-1
        > 0.4 s pass
        > B joins orders
          log: B subscribes to orders
          log: group epoch 2
          log: B is STABLE in epoch 1 (before: 0) with nothing
          B: epoch 1, nothing (500 ms)
        > 0.5 s pass
        > B beats
          B: epoch 1 (500 ms)
        > 0.1 s pass
          log: target of A: orders 0
          log: target of B: orders 1
          log: target epoch 2
        """
    )
    assert world.group.state_name == "Reconciling"


def test_change_after_the_interval_is_assigned_at_once() -> None:
    world = ConsumerWorld(GroupConfig(group_consumer_assignment_interval_ms=1000), orders=2)
    world.join("A", "orders")
    world.pass_time(1)
    world.join("B", "orders")
    assert world.group.assignment_epoch == world.group.epoch == 2


def test_first_member_of_an_empty_group_does_not_wait() -> None:
    """The only consumer of a group restarts."""
    world = ConsumerWorld(GroupConfig(group_consumer_assignment_interval_ms=1000), orders=2)
    world.join("A", "orders")
    world.leave("A")
    world.forget()
    world.join("A2", "orders")
    world.check(
        """
        > A2 joins orders
          log: A2 subscribes to orders
          log: group epoch 3
          log: target of A2: orders 0-1
          log: target epoch 3
          log: A2 is STABLE in epoch 3 (before: 0) with orders 0-1
          A2: epoch 3, orders 0-1
        """
    )


# -- connections ------------------------------------------------------------------------------------------------------


def test_member_whose_connection_is_lost_has_a_short_grace() -> None:
    """The connections of a killed process close. A process that lives returns at once, if its heartbeats have said so."""
    world = ConsumerWorld(orders=2)
    world.join("A", "orders", returns_at_once=True)
    world.consumer.on_connection_lost(GROUP, "A", world.now)
    world.pass_time(0.9)
    world.beat("A", returns_at_once=True)
    world.pass_time(8)
    assert "A" in world.group.members
    world.beat("A", returns_at_once=True)
    world.consumer.on_connection_lost(GROUP, "A", world.now)
    world.pass_time(1)
    assert world.group.is_empty


def test_lost_connection_never_prolongs_a_session() -> None:
    world = ConsumerWorld(orders=2)
    world.join("A", "orders", returns_at_once=True)
    world.pass_time(8.5)
    world.consumer.on_connection_lost(GROUP, "A", world.now)
    world.pass_time(0.5)
    assert world.group.is_empty


@pytest.mark.parametrize("kind", ["other clients", "static", "not any more", "unknown"])
def test_other_members_keep_their_sessions_without_a_connection(kind: str) -> None:
    """Other clients connect again only for their next heartbeat, and a static member may be restarting."""
    world = ConsumerWorld(orders=2)
    world.join("A", "orders", returns_at_once=kind != "other clients", **({"instance_id": "a"} if kind == "static" else {}))
    if kind == "not any more":
        world.beat("A")
    world.consumer.on_connection_lost(GROUP, "Z" if kind == "unknown" else "A", world.now)
    world.pass_time(8)
    assert "A" in world.group.members


# -- appends that fail ------------------------------------------------------------------------------------------------


def test_join_that_is_not_appended_changes_nothing() -> None:
    world = ConsumerWorld(orders=2)
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.join("A", "orders") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.groups.get(GROUP) is None
    world.append_error = None
    world.pass_time(20)
    assert world.log == []
    world.forget()
    world.join("A", "orders")
    world.check(
        """
        > A joins orders
          log: A subscribes to orders
          log: group epoch 1
          log: target of A: orders 0-1
          log: target epoch 1
          log: A is STABLE in epoch 1 (before: 0) with orders 0-1
          A: epoch 1, orders 0-1
        """
    )


def test_removal_that_is_not_appended_is_repeated() -> None:
    world = ConsumerWorld(orders=2)
    world.join("A", "orders")
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.pass_time(10)
    assert "A" in world.group.members
    world.append_error = None
    world.pass_time(0.5)
    assert world.group.is_empty
    world.forget()
    world.pass_time(100)
    world.check(
        """
        > 100 s pass
        """
    )


def test_leave_that_is_not_appended_does_not_touch_the_session() -> None:
    """Kafka cancels the session before the write. If that fails, the member stays until it sends another request."""
    world = ConsumerWorld(orders=2)
    world.join("A", "orders")
    world.pass_time(5)
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.leave("A") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.append_error = None
    world.pass_time(3.9)
    assert "A" in world.group.members
    world.pass_time(0.1)
    assert world.group.is_empty


def test_leave_that_is_not_appended_does_not_touch_the_grace_of_a_lost_connection() -> None:
    world = ConsumerWorld(orders=2)
    world.join("A", "orders", returns_at_once=True)
    world.consumer.on_connection_lost(GROUP, "A", world.now)
    world.pass_time(0.5)
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.leave("A", returns_at_once=True) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.append_error = None
    world.pass_time(0.4)
    assert "A" in world.group.members
    world.pass_time(0.1)
    assert world.group.is_empty


def test_removal_of_a_slow_member_that_is_not_appended_is_repeated() -> None:
    world = ConsumerWorld(orders=2)
    world.join("A", "orders", rebalance_timeout_ms=1000)
    world.join("B", "orders")
    world.beat("A", owns={"orders": [0, 1]})
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.pass_time(2)
    world.append_error = None
    world.pass_time(0.5)
    assert list(world.group.members) == ["B"]


@pytest.mark.parametrize("interval_ms", [0, 1000])
def test_target_that_is_not_appended_is_computed_again(interval_ms: int) -> None:
    world = ConsumerWorld(GroupConfig(group_consumer_assignment_interval_ms=interval_ms), orders=2)
    world.join("A", "orders")
    world.join("B", "orders", instance_id="b")
    world.pass_time(2)
    world.leave("B", instance_id="b")
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.settle()
    world.pass_time(1)
    world.append_error = None
    world.pass_time(1)
    assert world.targets() == {"A": "orders 0-1"}
    assert world.group.assignment_epoch == world.group.epoch


def test_config_has_sessions_shorter_than_kafkas() -> None:
    """A crashed member is noticed within ten seconds, and the broker says how often to send heartbeats."""
    assert CONFIG.group_consumer_session_timeout_ms < 10_000
    assert CONFIG.group_consumer_heartbeat_interval_ms * 3 <= CONFIG.group_consumer_session_timeout_ms
