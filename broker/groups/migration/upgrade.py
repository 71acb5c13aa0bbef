"""The group of the newer protocol that a classic group becomes.

Its epoch is the generation, and each member is STABLE in it with the partitions of its last assignment, which are also its
target: so nothing moves by the change itself. The process that causes it joins afterwards, and raises the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from strandline.broker.groups.classic.embedded import MalformedMetadata
from strandline.broker.groups.classic.group import ClassicGroup
from strandline.broker.groups.classic.member import ClassicMember
from strandline.broker.groups.classic.subscription import parse_subscription
from strandline.broker.groups.consumer.group import ConsumerGroup, Member
from strandline.broker.groups.consumer.subscriptions import metadata_hash
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


@dataclass(frozen=True, slots=True)
class _Owned:
    """The partitions that are assigned to members so far. A leader with a bug may assign one to two members."""

    members: dict[tuple[bytes, int], str]

    def claim(self, member_id: str, partitions: Partitions) -> Partitions:
        """What of these the member gets: those that no other member has."""
        claimed: dict[bytes, frozenset[int]] = {}
        for topic_id, numbers in partitions.items():
            own = frozenset(n for n in sorted(numbers) if self.members.setdefault((topic_id, n), member_id) == member_id)
            if own:
                claimed[topic_id] = own
        return claimed


def upgraded(group: ClassicGroup, image: MetadataImage) -> ConsumerGroup:
    """Raises `CannotUpgrade`."""
    # A group in its first rebalance has generation 0, which would mean "join" as an epoch. Its members know no generation yet.
    epoch = max(group.generation, 1)
    result, owned = ConsumerGroup(group.group_id), _Owned({})
    for member in group.members.values():
        try:
            metadata, assigned = _metadata(member, group.protocol), _assigned(member, image)
        except MalformedMetadata as e:
            raise CannotUpgrade(f"the metadata of the member {member.member_id} cannot be read: {e}") from None
        claimed = owned.claim(member.member_id, assigned)
        epochs = {topic_id: dict.fromkeys(sorted(numbers), epoch) for topic_id, numbers in claimed.items()}
        result.put_member(member.member_id, metadata)
        result.put_target(member.member_id, claimed)
        result.put_current(member.member_id, CurrentAssignmentValue(epoch, epoch, MemberState.STABLE, epochs, {}))
    result.put_epoch(ConsumerGroupMetadataValue(epoch, metadata_hash(result.topic_counts, image)))
    result.put_assignment_epoch(TargetAssignmentMetadataValue(epoch))
    result.is_metadata_stale = False
    return result


def _metadata(member: ClassicMember, protocol: str | None) -> MemberMetadataValue:
    """The subscription is the same in all protocols of a member. One that has joined for the next generation may not have that of
    the present one any more."""
    name = protocol if protocol in member.protocols else next(iter(member.protocols))
    subscription = parse_subscription(member.metadata(name))
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


def _assigned(member: ClassicMember, image: MetadataImage) -> Partitions:
    assignment = parse_assignment(member.assignment)
    if assignment.user_data:
        raise CannotUpgrade(f"the assignment of the member {member.member_id} has data of an assignor that the broker lacks")
    return by_id(assignment.partitions, image)


def records_of(group: ConsumerGroup) -> Iterator[GroupRecord]:
    """The records of a group that has no regular expressions. The order is Kafka's."""
    group_id, members = group.group_id, group.members.values()
    yield from (MemberMetadataRecord(group_id, member.member_id, member.metadata) for member in members)
    yield ConsumerGroupMetadataRecord(group_id, ConsumerGroupMetadataValue(group.epoch, group.metadata_hash))
    yield from (TargetAssignmentMemberRecord(group_id, m.member_id, group.targets[m.member_id]) for m in members)
    yield TargetAssignmentMetadataRecord(group_id, TargetAssignmentMetadataValue(group.assignment_epoch))
    yield from (_current_record(group_id, member) for member in members)


def _current_record(group_id: str, member: Member) -> CurrentAssignmentRecord:
    return CurrentAssignmentRecord(group_id, member.member_id, member.current)
