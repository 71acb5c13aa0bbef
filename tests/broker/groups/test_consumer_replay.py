"""Replay: any compacted log gives the same state as all records (KAFKA-17306)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from consumer_world import CONFIG, GROUP, ConsumerWorld, durable

from strandline.broker.groups.consumer.group import ConsumerGroup
from strandline.broker.groups.records.types import (
    ClassicGroupValue,
    ConsumerGroupMetadataRecord,
    ConsumerGroupMetadataValue,
    CurrentAssignmentRecord,
    CurrentAssignmentValue,
    GroupMetadataRecord,
    GroupRecord,
    MemberMetadataRecord,
    MemberState,
    RegularExpressionRecord,
    TargetAssignmentMemberRecord,
    TargetAssignmentMetadataRecord,
)
from strandline.broker.groups.state import CLASSIC
from strandline.protocol.errors import ErrorCode, InternalError

TOMBSTONES: list[GroupRecord] = [
    CurrentAssignmentRecord(GROUP, "A", None),
    TargetAssignmentMemberRecord(GROUP, "A", None),
    TargetAssignmentMetadataRecord(GROUP, None),
    MemberMetadataRecord(GROUP, "A", None),
    RegularExpressionRecord(GROUP, "a.*", None),
    ConsumerGroupMetadataRecord(GROUP, None),
]


def key_of(record: GroupRecord) -> tuple[object, ...]:
    names = (getattr(record, name, None) for name in ("group_id", "member_id", "regex"))
    return (type(record), *names)


def compacted(log: list[GroupRecord], until: int, *, keeps_tombstones: bool = True) -> list[GroupRecord]:
    """The log after a cleaner has compacted the first `until` records: of these, it keeps the last one of each key."""
    last = {key_of(record): index for index, record in enumerate(log[:until])}
    kept = [record for index, record in enumerate(log[:until]) if last[key_of(record)] == index]
    return [record for record in kept if keeps_tombstones or record.value is not None] + log[until:]


def a_long_story() -> ConsumerWorld:
    """Members join, leave and return; topics and expressions change; at the end there is a group with members."""
    world = ConsumerWorld(orders=4, bills=2)
    world.join("A", "orders", instance_id="a")
    world.join("B", "bills", subscribed_topic_regex="o.*")
    world.beat("A", owns={"orders": range(4)}, instance_id="a")
    world.beat("A", owns={"orders": range(2)}, instance_id="a")
    world.beat("B", owns={})
    world.topics.create(others=2)
    world.publish()
    world.leave("A", epoch=-2, instance_id="a")
    world.join("A2", "orders", "bills", instance_id="a")
    world.join("C", "orders", subscribed_topic_regex="b.*")
    world.beat("B", owns={})
    world.beat("B", owns={})
    world.beat("A2", owns={"orders": range(2)}, instance_id="a")
    world.leave("C")
    world.settle()
    world.beat("B", owns={"others": [0]})
    world.beat("A2", owns={"orders": range(2)}, instance_id="a")
    return world


def replayed(log: list[GroupRecord]) -> ConsumerGroup | None:
    world = ConsumerWorld(CONFIG)
    for record in log:
        world.consumer.replay(record)
    group = world.groups.get(GROUP)
    assert group is None or isinstance(group, ConsumerGroup)
    return group


def test_replay_gives_the_same_state() -> None:
    world = a_long_story()
    copy = replayed(world.log)
    assert copy is not None
    assert durable(copy) == durable(world.group)
    assert len(world.group.members) == 2


def test_every_compaction_gives_the_same_state() -> None:
    """Compaction also leaves records in an order that no coordinator writes: members before the group, assignments before
    subscriptions."""
    world = a_long_story()
    orders = set()
    for until in range(len(world.log) + 1):
        for keeps_tombstones in True, False:
            log = compacted(world.log, until, keeps_tombstones=keeps_tombstones)
            copy = replayed(log)
            assert copy is not None
            assert durable(copy) == durable(world.group), (until, keeps_tombstones)
            orders.add(tuple(type(record).__name__ for record in log[:3]))
    assert len(orders) > 3


def test_deleted_group_is_gone_after_every_compaction() -> None:
    world = a_long_story()
    for member in list(world.group.members):
        world.leave(member)
    for record in world.group.tombstones():
        world.log.append(record)
        world.consumer.replay(record)
    assert world.groups.get(GROUP) is None
    for until in range(len(world.log) + 1):
        assert replayed(compacted(world.log, until)) is None, until
    assert replayed(compacted(world.log, len(world.log), keeps_tombstones=False)) is None


def test_tombstones_name_everything() -> None:
    """The group has members. The tombstones are in an order in which each one refers to something that exists."""
    world = a_long_story()
    tombstones = world.group.tombstones()
    assert {key_of(record) for record in tombstones} >= {
        key_of(record) for record in compacted(world.log, len(world.log), keeps_tombstones=False)
    }
    assert all(record.value is None for record in tombstones)
    assert isinstance(tombstones[-1], ConsumerGroupMetadataRecord)
    assert replayed([*world.log, *tombstones]) is None


@pytest.mark.parametrize("tombstone", TOMBSTONES, ids=lambda record: type(record).__name__)
def test_tombstone_of_what_is_unknown_is_ignored(tombstone: GroupRecord) -> None:
    """The group does not exist, or has no such member."""
    assert replayed([tombstone]) is None
    world = ConsumerWorld(orders=1)
    world.join("B", "orders")
    before = durable(world.group)
    if not isinstance(tombstone, (ConsumerGroupMetadataRecord, TargetAssignmentMetadataRecord)):
        world.consumer.replay(tombstone)
        assert durable(world.group) == before


def test_tombstone_removes_a_member_whose_other_tombstones_are_missing() -> None:
    world = ConsumerWorld(orders=2)
    world.join("A", "orders", instance_id="a")
    world.join("B", "orders")
    world.consumer.replay(MemberMetadataRecord(GROUP, "A", None))
    assert list(world.group.members) == list(world.group.targets) == ["B"]
    assert world.owners() == {}
    assert world.group.static_members == {}
    world.pass_time(8)
    world.beat("B")
    world.pass_time(8)
    assert list(world.group.members) == ["B"], "the session of A has no deadline any more"


def test_stale_assignment_does_not_free_a_partition_of_another_member() -> None:
    """KAFKA-16147: if the cleaner has removed the records in between, a load finds an old assignment of A beside the present one
    of B. When it replays the present one of A, the partition must stay B's."""

    def owns(member: str, epoch: int, *numbers: int) -> CurrentAssignmentRecord:
        assigned = {bytes(16): dict.fromkeys(numbers, epoch)} if numbers else {}
        return CurrentAssignmentRecord(GROUP, member, CurrentAssignmentValue(epoch, epoch, MemberState.STABLE, assigned, {}))

    group = replayed([owns("A", 1, 0), owns("B", 2, 0), owns("A", 2, 1)])
    assert group is not None
    assert group.owners == {bytes(16): {0: "B", 1: "A"}}


def test_partition_is_not_given_to_a_second_member_in_the_same_epoch() -> None:
    """KAFKA-16147: A owns the partition and B has it in its target, both in one epoch, and A gives up and gets again in
    between."""
    world = ConsumerWorld(orders=2)
    world.join("A", "orders")
    world.join("B", "orders")
    world.beat("A", owns={"orders": [0, 1]})
    world.leave("B")
    world.settle()
    world.beat("A", owns={"orders": [0]})
    world.join("C", "orders")
    world.beat("C", owns={})
    assert world.owners() == {"A": "orders 0-1"}


def test_group_of_another_protocol_is_left_alone() -> None:
    """The tombstones are left from the time when the id belonged to a group of the newer protocol."""

    class ClassicStub:
        group_id, group_type, is_empty = GROUP, CLASSIC, False

    world = ConsumerWorld(orders=1)
    stub = ClassicStub()
    world.groups.put(stub)  # type: ignore[arg-type]
    for tombstone in TOMBSTONES:
        world.consumer.replay(tombstone)
    assert world.groups.get(GROUP) is stub
    assert world.join("A", "orders") is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.beat("A", epoch=1) is ErrorCode.GROUP_ID_NOT_FOUND


def test_empty_classic_group_makes_room() -> None:
    """The tombstone of the classic group comes first, in the same batch as the new group's records."""

    class ClassicStub:
        group_id, group_type, is_empty = GROUP, CLASSIC, True

        def tombstones(self) -> list[GroupRecord]:
            return [GroupMetadataRecord(GROUP, None)]

    world = ConsumerWorld(orders=1)
    world.groups.put(ClassicStub())  # type: ignore[arg-type]
    assert world.beat("A", epoch=1) is ErrorCode.GROUP_ID_NOT_FOUND
    body = world.request("A", 0, {}, rebalance_timeout_ms=1, subscribed_topic_names=["orders"])
    seen: list[GroupRecord] = []

    def decide(context: object) -> object:
        result = world.consumer.heartbeat(body, context)  # type: ignore[arg-type]
        seen.extend(result.records)
        world.groups.remove(GROUP)
        result.records = result.records[1:]
        return result

    world.decide(decide, "A")  # type: ignore[arg-type]
    assert seen[0] == GroupMetadataRecord(GROUP, None)
    assert list(world.group.members) == ["A"]


def test_record_of_another_protocol_is_a_bug() -> None:
    world = ConsumerWorld()
    value = ClassicGroupValue("consumer", 1, None, None, -1, ())
    with pytest.raises(InternalError):
        world.consumer.replay(GroupMetadataRecord(GROUP, value))


# -- a new coordinator ------------------------------------------------------------------------------------------------


def test_sessions_begin_anew() -> None:
    """The new coordinator cannot know when the old one had the last heartbeat of a member."""
    world = ConsumerWorld(orders=1)
    world.join("A", "orders")
    world.pass_time(8)
    world.move()
    world.pass_time(8)
    assert "A" in world.group.members
    world.pass_time(1)
    assert world.group.is_empty


def test_time_to_give_up_begins_anew() -> None:
    world = ConsumerWorld(orders=2)
    world.join("A", "orders", rebalance_timeout_ms=5000)
    world.join("B", "orders")
    world.beat("A", owns={"orders": [0, 1]})
    world.pass_time(4)
    world.move()
    world.pass_time(4)
    assert sorted(world.group.members) == ["A", "B"]
    world.pass_time(1)
    assert sorted(world.group.members) == ["B"]


def test_member_without_metadata_goes_with_its_session() -> None:
    """This is half of a batch pair that was cut off: no process sends heartbeats for this member."""
    value = CurrentAssignmentValue(1, 0, MemberState.STABLE, {bytes(16): {0: 1}}, {})
    log: list[GroupRecord] = [
        ConsumerGroupMetadataRecord(GROUP, ConsumerGroupMetadataValue(1)),
        CurrentAssignmentRecord(GROUP, "A", value),
    ]
    world = ConsumerWorld(CONFIG, log, orders=1)
    assert world.group.members["A"].metadata.subscribed_topic_names == ()
    world.pass_time(10)
    assert world.group.is_empty
    assert world.owners() == {}


def test_member_whose_assignment_is_missing_joins_again() -> None:
    """This is the other half of a batch pair that was cut off."""
    world = ConsumerWorld(orders=1)
    world.join("A", "orders")
    log = [record for record in world.log if not isinstance(record, CurrentAssignmentRecord)]
    world.move(log)
    assert world.beat("A", epoch=1) is ErrorCode.FENCED_MEMBER_EPOCH
    world.join("A", "orders")
    assert world.owners() == {"A": "orders 0"}


def test_two_holders_of_an_instance_id_leave_one() -> None:
    """The last record wins, and the removal of the other holder does not take the id away."""
    world = ConsumerWorld(orders=1)
    world.join("A", "orders", instance_id="a")
    metadata = replace(world.group.members["A"].metadata)
    world.consumer.replay(MemberMetadataRecord(GROUP, "A2", metadata))
    assert world.group.static_members == {"a": "A2"}
    world.consumer.replay(MemberMetadataRecord(GROUP, "A", None))
    assert world.group.static_members == {"a": "A2"}
