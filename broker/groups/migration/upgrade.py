"""The conversion of a classic group to a group of the newer protocol.

The epoch of the new group is the generation. Each member is STABLE in this epoch, and owns its last assignment and the
partitions that its subscription names as owned. The second part matters for a cooperative member: if its last assignment
takes partitions from it, it may still be reading them, and no other member gets them until it joins again. (Kafka looks at
the assignment alone.)

The conversion itself moves no partition. The heartbeat that causes it always computes a target: the classic group may have
been in a rebalance, or its leader may not have noticed new partitions. So the epoch's record has no metadata hash, and the
heartbeat finds that the topics have changed.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.broker.groups.classic.embedded import MalformedMetadata
from strandline.broker.groups.classic.group import ClassicGroup
from strandline.broker.groups.classic.member import ClassicMember
from strandline.broker.groups.classic.subscription import Subscription, parse_subscription
from strandline.broker.groups.consumer.group import ConsumerGroup, Member
from strandline.broker.groups.migration.assignment import by_id, parse_assignment
from strandline.broker.groups.records.types import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMetadataRecord,
    ConsumerGroupMetadataValue,
    CurrentAssignmentRecord,
    CurrentAssignmentValue,
    GroupRecord,
    MemberMetadataRecord,
    MemberMetadataValue,
    MemberState,
    Partitions,
    TargetAssignmentMemberRecord,
    TargetAssignmentMetadataRecord,
    TargetAssignmentMetadataValue,
)
from strandline.controller.metadata.image import MetadataImage


class CannotUpgrade(ValueError):
    """The group has content that a group of the newer protocol cannot keep."""


class _Owners:
    """The owners of the partitions. If a leader has assigned a partition to two members, because of a bug, the first one
    owns it."""

    def __init__(self) -> None:
        self._taken: dict[tuple[bytes, int], None] = {}
        self._owned: dict[str, dict[bytes, list[int]]] = {}

    def claim(self, member_id: str, partitions: Partitions) -> None:
        owned = self._owned.setdefault(member_id, {})
        for topic_id, numbers in partitions.items():
            for number in sorted(numbers):
                if (topic_id, number) not in self._taken:
                    self._taken[topic_id, number] = None
                    owned.setdefault(topic_id, []).append(number)

    def of(self, member_id: str) -> dict[bytes, list[int]]:
        return self._owned[member_id]


def upgraded(group: ClassicGroup, image: MetadataImage) -> ConsumerGroup:
    """The classic group as a group of the newer protocol. Raises `CannotUpgrade`."""
    # A group in its first rebalance has generation 0, and the member epoch 0 means "join". Its members have no generation yet.
    epoch = max(group.generation, 1)
    result, owners = ConsumerGroup(group.group_id), _owners(group, image)
    for member in group.members.values():
        owned = owners.of(member.member_id)
        epochs = {topic_id: dict.fromkeys(numbers, epoch) for topic_id, numbers in owned.items()}
        result.put_member(member.member_id, _metadata(member, _subscription(member, group.protocol)))
        result.put_target(member.member_id, {topic_id: frozenset(numbers) for topic_id, numbers in owned.items()})
        result.put_current(member.member_id, CurrentAssignmentValue(epoch, epoch, MemberState.STABLE, epochs, {}))
    result.put_epoch(ConsumerGroupMetadataValue(epoch))
    result.put_assignment_epoch(TargetAssignmentMetadataValue(epoch))
    return result


def _owners(group: ClassicGroup, image: MetadataImage) -> _Owners:
    """The owners of the partitions. Assignments have precedence over owned partitions, which a member may have sent long ago."""
    owners, members = _Owners(), group.members.values()
    for member in members:
        owners.claim(member.member_id, _assigned(member, image))
    for member in members:
        owners.claim(member.member_id, by_id(_subscription(member, group.protocol).owned_partitions, image))
    return owners


def _assigned(member: ClassicMember, image: MetadataImage) -> Partitions:
    try:
        assignment = parse_assignment(member.assignment)
    except MalformedMetadata as e:
        raise CannotUpgrade(f"the assignment of the member {member.member_id} cannot be read: {e}") from None
    if assignment.user_data:
        reason = "contains user data of a client-side assignor, which cannot be kept"
        raise CannotUpgrade(f"the assignment of the member {member.member_id} {reason}")
    return by_id(assignment.partitions, image)


def _subscription(member: ClassicMember, protocol: str | None) -> Subscription:
    """The member's subscription, which all of its protocols contain. A member that has joined for the next generation may no
    longer support the present protocol. Raises `CannotUpgrade`."""
    name = protocol if protocol in member.protocols else next(iter(member.protocols))
    try:
        return parse_subscription(member.metadata(name))
    except MalformedMetadata as e:
        raise CannotUpgrade(f"the subscription of the member {member.member_id} cannot be read: {e}") from None


def _metadata(member: ClassicMember, subscription: Subscription) -> MemberMetadataValue:
    return MemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=subscription.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        subscribed_topic_regex=None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=None,
        classic_member_metadata=classic_metadata(member.session_timeout_ms, member.protocols),
    )


def classic_metadata(session_timeout_ms: int, protocols: dict[str, bytes]) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(session_timeout_ms, tuple(ClassicProtocol(*item) for item in protocols.items()))


def records_of(group: ConsumerGroup) -> Iterator[GroupRecord]:
    """The records of an upgraded group. The order is Kafka's."""
    group_id, members = group.group_id, group.members.values()
    yield from (MemberMetadataRecord(group_id, member.member_id, member.metadata) for member in members)
    yield ConsumerGroupMetadataRecord(group_id, ConsumerGroupMetadataValue(group.epoch))
    yield from (TargetAssignmentMemberRecord(group_id, m.member_id, group.targets[m.member_id]) for m in members)
    yield TargetAssignmentMetadataRecord(group_id, TargetAssignmentMetadataValue(group.assignment_epoch))
    yield from (_current_record(group_id, member) for member in members)


def _current_record(group_id: str, member: Member) -> CurrentAssignmentRecord:
    return CurrentAssignmentRecord(group_id, member.member_id, member.current)
