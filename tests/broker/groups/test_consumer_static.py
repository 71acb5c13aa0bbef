"""Static members of the newer protocol: a process that restarts within a session gets the partitions of the one before it.

The cases are those of Kafka's GroupMetadataManagerTest, and those in which we differ on purpose.
"""

from __future__ import annotations

from consumer_world import GROUP, ConsumerWorld

from strandline.broker.groups.config import GroupConfig
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import ConsumerGroupHeartbeatResponse, LeavingMember


def two_static_members() -> ConsumerWorld:
    world = ConsumerWorld(orders=4)
    world.join("A", "orders", instance_id="a")
    world.join("B", "orders", instance_id="b")
    world.beat("A", owns={"orders": [0, 1, 2, 3]}, instance_id="a")
    world.beat("A", owns={"orders": [0, 1]}, instance_id="a")
    world.beat("B", instance_id="b")
    world.forget()
    return world


def test_restarted_process_takes_over() -> None:
    """The group epoch stays, and no target is computed, so the other member keeps what it has."""
    world = two_static_members()
    world.leave("B", epoch=-2, instance_id="b")
    assert world.group.state_name == "Reconciling"
    world.join("B2", "orders", instance_id="b")
    world.beat("A", instance_id="a")
    world.check(
        """
        > B leaves for a moment instance_id=b
          log: B is STABLE in epoch -2 (before: 2) with orders 2-3@0
          B: epoch -2
        > B2 joins orders instance_id=b
          log: B owns nothing
          log: no target of B
          log: B is gone
          log: B2 subscribes to orders instance=b
          log: target of B2: orders 2-3
          log: B2 is STABLE in epoch 0 (before: 0) with orders 2-3
          log: B2 subscribes to orders instance=b
          log: B2 is STABLE in epoch 2 (before: 0) with orders 2-3@0
          B2: epoch 2, orders 2-3
        > A beats instance_id=a
          A: epoch 2
        """
    )
    assert world.group.static_members == {"a": "A", "b": "B2"}


def test_process_that_returns_with_the_same_id_takes_over_from_itself() -> None:
    """It has a session again, and is removed if that ends."""
    world = two_static_members()
    world.leave("B", epoch=-2, instance_id="b")
    world.join("B", "orders", instance_id="b")
    world.check(
        """
        > B leaves for a moment instance_id=b
          log: B is STABLE in epoch -2 (before: 2) with orders 2-3@0
          B: epoch -2
        > B joins orders instance_id=b
          log: B is STABLE in epoch 2 (before: -2) with orders 2-3@0
          B: epoch 2, orders 2-3
        """
    )
    for _ in range(2):
        world.beat("A", instance_id="a")
        world.pass_time(8)
    assert sorted(world.group.members) == ["A"]


def test_restarted_process_may_subscribe_otherwise() -> None:
    world = two_static_members()
    world.topics.create(bills=1)
    world.publish()
    world.leave("B", epoch=-2, instance_id="b")
    world.forget()
    world.join("B2", "bills", instance_id="b")
    world.beat("A", owns={"orders": [0, 1]}, instance_id="a")
    world.check(
        """
        > B2 joins bills instance_id=b
          log: B owns nothing
          log: no target of B
          log: B is gone
          log: B2 subscribes to orders instance=b
          log: target of B2: orders 2-3
          log: B2 is STABLE in epoch 0 (before: 0) with orders 2-3
          log: B2 subscribes to bills instance=b
          log: group epoch 3
          log: target of A: orders 0-3
          log: target of B2: bills 0
          log: target epoch 3
          log: B2 is STABLE in epoch 3 (before: 0) with bills 0
          B2: epoch 3, bills 0
        > A beats owns orders 0-1 instance_id=a
          log: A is STABLE in epoch 3 (before: 2) with orders 0-1@1,2-3
          A: epoch 3, orders 0-3
        """
    )


def test_restarted_process_keeps_what_it_can() -> None:
    """The next target is computed from the one of the process before it."""
    world = two_static_members()
    world.topics.create(bills=2)
    world.publish()
    world.leave("B", epoch=-2, instance_id="b")
    world.join("B2", "orders", "bills", instance_id="b")
    assert world.targets() == {"A": "orders 0-1,3", "B2": "bills 0-1 orders 2"}


def test_process_that_does_not_return_is_removed_after_a_session() -> None:
    """The session begins when it leaves."""
    world = two_static_members()
    world.pass_time(5)
    world.beat("A", instance_id="a")
    world.leave("B", epoch=-2, instance_id="b")
    world.pass_time(8)
    assert "B" in world.group.members
    world.beat("A", instance_id="a")
    world.pass_time(1)
    world.check(
        """
        > 5 s pass
        > A beats instance_id=a
          A: epoch 2
        > B leaves for a moment instance_id=b
          log: B is STABLE in epoch -2 (before: 2) with orders 2-3@0
          B: epoch -2
        > 8 s pass
        > A beats instance_id=a
          A: epoch 2
        > 1 s pass
          log: B owns nothing
          log: no target of B
          log: B is gone
          log: group epoch 3
          log: target of A: orders 0-3
          log: target epoch 3
        """
    )
    assert world.group.static_members == {"a": "A"}


def test_static_member_leaves_for_good() -> None:
    world = two_static_members()
    world.leave("B", instance_id="b")
    assert world.group.static_members == {"a": "A"}
    assert world.group.epoch == 3


def test_instance_id_is_held_by_one_process() -> None:
    """A second process with the instance id of a living one waits, and does not push it out. Kafka's classic protocol did."""
    world = two_static_members()
    assert world.join("B2", "orders", instance_id="b") is ErrorCode.UNRELEASED_INSTANCE_ID
    assert sorted(world.group.members) == ["A", "B"]


def test_lost_response_to_the_join_of_a_static_member_is_repeated() -> None:
    """Kafka answers UNRELEASED_INSTANCE_ID, which is fatal for a client: it is its own instance id."""
    world = two_static_members()
    world.join("B", "orders", instance_id="b")
    world.check(
        """
        > B joins orders instance_id=b
          B: epoch 2, orders 2-3
        """
    )


def test_fenced_static_member_joins_again() -> None:
    """aiokafka#1188, #847: a fenced static member was stuck. Here it gets its partitions again."""
    world = two_static_members()
    assert world.beat("B", epoch=9, instance_id="b") is ErrorCode.FENCED_MEMBER_EPOCH
    answer = world.join("B", "orders", instance_id="b")
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    assert answer.member_epoch == 2


def test_process_that_was_replaced_is_fenced() -> None:
    """It must not continue, and when it leaves, the new process must keep its partitions."""
    world = two_static_members()
    world.leave("B", epoch=-2, instance_id="b")
    world.join("B2", "orders", instance_id="b")
    for refused in (
        world.beat("B", epoch=2, instance_id="b"),
        world.leave("B", instance_id="b"),
        world.leave("B", epoch=-2, instance_id="b"),
    ):
        assert refused is ErrorCode.FENCED_INSTANCE_ID
    assert world.beat("B", epoch=2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert sorted(world.group.members) == ["A", "B2"]


def test_process_that_left_for_a_moment_joins_before_it_goes_on() -> None:
    world = two_static_members()
    world.leave("B", epoch=-2, instance_id="b")
    assert world.beat("B", epoch=2, owns={"orders": [2, 3]}, instance_id="b") is ErrorCode.FENCED_MEMBER_EPOCH


def test_unknown_instance_id_is_refused() -> None:
    world = two_static_members()
    assert world.beat("C", epoch=1, instance_id="c") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.leave("C", instance_id="c") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.leave("A", epoch=-2, instance_id="c") is ErrorCode.UNKNOWN_MEMBER_ID


def test_what_it_had_to_give_up_is_free_when_it_leaves_for_a_moment() -> None:
    """The process that had them has ended. The rest of its partitions is kept for the next process with the instance id,
    however many heartbeats the other members send."""
    world = ConsumerWorld(orders=4)
    world.join("A", "orders", instance_id="a")
    world.join("B", "orders", instance_id="b")
    world.beat("A", owns={"orders": range(4)}, instance_id="a")
    world.forget()
    world.leave("A", epoch=-2, instance_id="a")
    world.beat("B", instance_id="b")
    world.join("A2", "orders", instance_id="a")
    world.check(
        """
        > A leaves for a moment instance_id=a
          log: A is UNREVOKED_PARTITIONS in epoch -2 (before: 1) with orders 0-1@0
          A: epoch -2
        > B beats instance_id=b
          log: B is STABLE in epoch 2 (before: 2) with orders 2-3
          B: epoch 2, orders 2-3
        > A2 joins orders instance_id=a
          log: A owns nothing
          log: no target of A
          log: A is gone
          log: A2 subscribes to orders instance=a
          log: target of A2: orders 0-1
          log: A2 is UNREVOKED_PARTITIONS in epoch 0 (before: 0) with orders 0-1
          log: A2 subscribes to orders instance=a
          log: A2 is STABLE in epoch 2 (before: 0) with orders 0-1@0
          A2: epoch 2, orders 0-1
        """
    )


def test_rebalance_timeout_does_not_remove_a_process_that_is_away() -> None:
    world = ConsumerWorld(orders=4)
    world.join("A", "orders", instance_id="a", rebalance_timeout_ms=1000)
    world.join("B", "orders")
    world.beat("A", owns={"orders": range(4)}, instance_id="a")
    world.leave("A", epoch=-2, instance_id="a")
    world.pass_time(5)
    assert sorted(world.group.members) == ["A", "B"]


def test_partitions_of_a_process_that_is_away_can_be_assigned_to_others() -> None:
    """A third member joins meanwhile. Its share is free only when the process has returned without it, or is removed."""
    world = two_static_members()
    world.leave("B", epoch=-2, instance_id="b")
    world.join("C", "orders")
    world.forget()
    world.beat("A", owns={"orders": [0, 1]}, instance_id="a")
    world.beat("C")
    world.join("B2", "orders", instance_id="b")
    world.beat("C")
    world.check(
        """
        > A beats owns orders 0-1 instance_id=a
          log: A is STABLE in epoch 3 (before: 2) with orders 0-1@1
          A: epoch 3
        > C beats
          C: epoch 3 (500 ms)
        > B2 joins orders instance_id=b
          log: B owns nothing
          log: no target of B
          log: B is gone
          log: B2 subscribes to orders instance=b
          log: target of B2: orders 2
          log: B2 is STABLE in epoch 0 (before: 0) with orders 2-3
          log: B2 subscribes to orders instance=b
          log: B2 is STABLE in epoch 3 (before: 0) with orders 2@0
          B2: epoch 3, orders 2
        > C beats
          log: C is STABLE in epoch 3 (before: 3) with orders 3
          C: epoch 3, orders 3
        """
    )


def test_member_may_become_static() -> None:
    """It may change its instance id, too, which frees the old one. In Kafka, the old one is never freed."""
    world = ConsumerWorld(orders=1)
    world.join("A", "orders")
    world.join("A", "orders", instance_id="a")
    world.join("A", "orders", instance_id="a2")
    assert world.group.static_members == {"a2": "A"}
    assert isinstance(world.join("B", "orders", instance_id="a"), ConsumerGroupHeartbeatResponse)


# -- an operator removes members --------------------------------------------------------------------------------------


def test_operator_removes_members() -> None:
    """Static members are removed by their instance ids. Each member that cannot be removed has its own error."""
    world = two_static_members()
    world.join("C", "orders")
    world.forget()
    removed = world.remove(
        LeavingMember("", "a"),
        LeavingMember("B2", "b"),
        LeavingMember("C"),
        LeavingMember("C"),
        LeavingMember("Z"),
        LeavingMember("", "z"),
    )
    assert removed == [
        ("a", "NONE"),
        ("B2", "FENCED_INSTANCE_ID"),
        ("C", "NONE"),
        ("C", "NONE"),
        ("Z", "UNKNOWN_MEMBER_ID"),
        ("z", "UNKNOWN_MEMBER_ID"),
    ]
    world.settle()
    world.check(
        """
        > an operator removes instance a B2 C C Z instance z
          log: A owns nothing
          log: no target of A
          log: A is gone
          log: C owns nothing
          log: no target of C
          log: C is gone
          log: group epoch 4
          log: target of B: orders 0-3
          log: target epoch 4
        """
    )


def test_removal_of_an_unknown_member_changes_nothing() -> None:
    world = two_static_members()
    before = list(world.log)
    assert world.remove(LeavingMember("Z")) == [("Z", "UNKNOWN_MEMBER_ID")]
    assert world.log == before


def test_removed_member_joins_again() -> None:
    world = ConsumerWorld(GroupConfig(), orders=1)
    world.join("A", "orders")
    world.remove(LeavingMember("A"))
    assert world.beat("A", epoch=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert isinstance(world.join("A", "orders"), ConsumerGroupHeartbeatResponse)
    assert world.groups.get(GROUP) is not None
