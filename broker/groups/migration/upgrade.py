"""The group of the newer protocol that a classic group becomes.

Its epoch is the generation, and each member is STABLE in it with what it may own: its last assignment, and what its subscription
names as owned. The second is for a cooperative member that was to give up partitions when the group changed: until it joins
again, no other member gets them. (Kafka looks at the assignment alone.)

Nothing moves by the change itself. The target is computed with the join of the process that causes it, whatever that changes: the
classic group may have been in the midst of a rebalance, or its leader may not know the topics of today. So the record of the
epoch says nothing of topics yet, and the join finds that they have changed.
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
    """The group has content that would be lost."""


class _Owners:
    """Who owns each partition. A leader with a bug may have assigned one to two members: then the first one has it."""

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
    """Raises `CannotUpgrade`."""
    # A group in its first rebalance has generation 0, which would mean "join" as an epoch. Its members know no generation yet.
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
    """What was assigned comes before what members said when they joined, which may be older."""
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
        raise CannotUpgrade(f"the assignment of the member {member.member_id} has data of an assignor that the broker lacks")
    return by_id(assignment.partitions, image)


def _subscription(member: ClassicMember, protocol: str | None) -> Subscription:
    """The same in all protocols of a member. One that has joined for the next generation may not have that of the present one any
    more."""
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
