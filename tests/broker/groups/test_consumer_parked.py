"""Heartbeats that wait for news: which of them are answered, when, and that none is forgotten."""

from __future__ import annotations

from consumer_world import CONFIG, ConsumerWorld, RecordedAsker

from strandline.broker.groups.config import GroupConfig
from strandline.protocol.messages.groups import ConsumerGroupHeartbeatResponse

INTERVAL_S = CONFIG.group_consumer_heartbeat_interval_ms / 1000


def answer_of(asker: RecordedAsker) -> ConsumerGroupHeartbeatResponse:
    (answer,) = asker.answers
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


def shared_by_two() -> ConsumerWorld:
    """A and B are stable, with two partitions each."""
    world = ConsumerWorld(orders=4)
    world.join("A", "orders")
    world.join("B", "orders")
    world.beat("A")
    world.beat("A", owns={"orders": [0, 1]})
    world.beat("B")
    world.forget()
    assert world.owners() == {"A": "orders 0-1", "B": "orders 2-3"}
    return world


def test_heartbeat_without_news_waits_for_the_interval() -> None:
    """At rest a member sends one request per interval, whether it waits or not."""
    world = shared_by_two()
    asker = world.park("A")
    world.pass_time(INTERVAL_S - 0.01)
    assert asker.answers == []
    world.pass_time(0.02)
    answer = answer_of(asker)
    assert answer.next_at_once
    assert (answer.member_epoch, answer.assignment) == (world.epochs["A"], None)


def test_shorter_wait_of_the_member_counts() -> None:
    world = shared_by_two()
    asker = world.park("A", max_wait_ms=200)
    world.pass_time(0.21)
    assert answer_of(asker).next_at_once


def test_new_target_wakes_the_members() -> None:
    """Otherwise each step of a rebalance would take a heartbeat interval."""
    world = shared_by_two()
    asker = world.park("A")
    world.join("C", "orders")
    assert answer_of(asker).member_epoch == world.epochs["A"]


def test_member_that_leaves_wakes_the_others() -> None:
    world = shared_by_two()
    asker = world.park("A")
    world.leave("B")
    world.settle()
    assert answer_of(asker).next_at_once
    world.beat("A")
    assert world.owners() == {"A": "orders 0-3"}


def test_freed_partition_wakes_the_member_that_waits_for_it() -> None:
    """There is no new target: the other member has given up the partition."""
    world = ConsumerWorld(orders=2)
    world.join("A", "orders")
    world.join("B", "orders")
    waiting = world.park("B")
    world.beat("A")
    assert waiting.answers == []
    world.beat("A", owns={"orders": [0]})
    assert answer_of(waiting).assignment is None
    world.beat("B")
    assert world.owners() == {"A": "orders 0", "B": "orders 1"}


def test_steps_of_others_do_not_wake_a_member() -> None:
    """A thousand members that reconcile must not ask a thousand times each."""
    world = shared_by_two()
    world.join("C", "orders")
    world.beat("A")
    asker = world.park("A")
    world.beat("B")
    world.beat("B", owns={"orders": [2, 3]})
    assert asker.answers == []


def test_news_are_answered_at_once() -> None:
    world = shared_by_two()
    world.join("C", "orders")
    for member in ("A", "B"):
        answer = answer_of(world.park(member))
        assert (answer.member_epoch > world.epochs[member]) or answer.assignment is not None
        assert answer.next_at_once


def test_newer_heartbeat_ends_the_wait() -> None:
    """The member has given up partitions while its heartbeat waits."""
    world = shared_by_two()
    first = world.park("A")
    second = world.park("A", owns={"orders": [0, 1]})
    assert answer_of(first).next_at_once
    assert answer_of(second).next_at_once, "it says something, and so does not wait"
    third, fourth = world.park("A"), world.park("A")
    assert len(third.answers) == 1
    world.pass_time(INTERVAL_S)
    assert answer_of(fourth).next_at_once
    assert len(first.answers) == 1


def test_wait_does_not_shorten_or_extend_the_session() -> None:
    world = shared_by_two()
    world.park("A")
    world.pass_time(CONFIG.group_consumer_session_timeout_ms / 1000 + 0.1)
    assert not world.group.members


def test_removed_member_is_answered() -> None:
    """Its next heartbeat is refused, and it joins again."""
    world = ConsumerWorld(
        GroupConfig(group_consumer_assignment_interval_ms=0, group_consumer_heartbeat_interval_ms=30_000), orders=1
    )
    world.join("A", "orders")
    asker = world.park("A")
    world.pass_time(9.1)
    assert not world.group.members
    assert len(asker.answers) == 1


def test_end_of_the_leadership_hands_back_all_that_wait() -> None:
    world = shared_by_two()
    askers = [world.park("A"), world.park("B")]
    assert world.consumer.take_waiting() == askers
    world.pass_time(INTERVAL_S)
    assert [asker.answers for asker in askers] == [[], []]


def test_member_that_does_not_wait_gets_the_interval() -> None:
    """Clients of Kafka's protocol do not wait."""
    world = shared_by_two()
    answer = world.beat("A")
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    assert not answer.next_at_once
    assert answer.heartbeat_interval_ms == CONFIG.group_consumer_heartbeat_interval_ms
