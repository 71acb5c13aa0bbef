"""One group of the newer protocol: the state that its records describe.

A group has three kinds of epochs (KIP-848). Each follows the one above it:

    group epoch         rises when a member joins, leaves or changes its subscription, and when a subscribed topic changes
    assignment epoch    the group epoch for which the target assignment was computed
    member epoch        one per member: the assignment epoch that the member has reached

and four states:

    Empty           it has no members
    Assigning       the target assignment is older than the group epoch
    Reconciling     a member has not reached the target assignment
    Stable          all members have reached it

The state changes only when a record is replayed (`put_*`). A compaction may leave records in any order: a member's assignment
before its metadata, members before the group's epoch, tombstones of something that was never seen (KAFKA-17306).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from strandline.broker.groups.records.types import (
    ConsumerGroupMetadataRecord,
    ConsumerGroupMetadataValue,
    CurrentAssignmentRecord,
    CurrentAssignmentValue,
    GroupRecord,
    MemberMetadataRecord,
    MemberMetadataValue,
    MemberState,
    Partitions,
    RegularExpressionRecord,
    RegularExpressionValue,
    TargetAssignmentMemberRecord,
    TargetAssignmentMetadataRecord,
    TargetAssignmentMetadataValue,
)
from strandline.broker.groups.state import CONSUMER
from strandline.protocol.errors import BrokerError, ErrorCode

NO_METADATA = MemberMetadataValue(None, None, "", "", (), None, -1, None)
NOT_ASSIGNED = CurrentAssignmentValue(0, 0, MemberState.STABLE, {}, {})
"""The assignment of a member that joins."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group of the newer protocol, as its records describe it."""

    member_id: str
    metadata: MemberMetadataValue = NO_METADATA
    current: CurrentAssignmentValue = NOT_ASSIGNED

    @property
    def epoch(self) -> int:
        """The member epoch. It is LEAVE_FOR_A_MOMENT while a static member is away."""
        return self.current.member_epoch

    @property
    def is_classic(self) -> bool:
        """Whether the member speaks the classic protocol."""
        return self.metadata.classic_member_metadata is not None

    @property
    def session_timeout_ms(self) -> int | None:
        """The session timeout that a member of the classic protocol requested; None for other members, whose session timeout the
        coordinator sets."""
        classic = self.metadata.classic_member_metadata
        return None if classic is None else classic.session_timeout_ms

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.current.state is MemberState.STABLE and self.current.member_epoch == assignment_epoch

    def assignment_epoch(self, topic_id: bytes, partition: int) -> int | None:
        """The member epoch in which the partition was assigned; None if the member does not own it. The member owns a partition
        that it has to revoke until it has revoked it."""
        for partitions in self.current.assigned, self.current.pending_revocation:
            epoch = partitions.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


class ConsumerGroup:
    """One group of the newer protocol. It has the methods of `Group` (`state.py`)."""

    group_type = CONSUMER
    protocol_type = "consumer"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        """The hash of the subscribed topics, as they were when `epoch` began (`subscriptions.py`)."""
        self.assignment_epoch = 0
        """The group epoch for which the target assignment was computed; at most `epoch`."""
        self.assignment_timestamp = 0
        """When the target assignment was computed, in ms since 1970."""
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        """Instance id -> member id."""
        self.targets: dict[str, Partitions] = {}
        """Member id -> the partitions that it is to own. No partition is in two targets."""
        self.resolved: dict[str, RegularExpressionValue] = {}
        """Regular expression -> the topics that match it. An expression whose topics are being looked up is missing."""
        self.owners: dict[bytes, dict[int, str]] = {}
        """Topic id -> partition -> the member that owns it, or still has to revoke it. A partition has at most one owner, and
        only a change of that member frees it (KAFKA-16147)."""
        self.topic_counts: Counter[str] = Counter()
        """Topic -> the number of members that name it plus the number of expressions that match it. No count is 0."""
        self.regex_counts: Counter[str] = Counter()
        """Regular expression -> the number of members that subscribe with it. No count is 0."""
        self.is_regex_stale = False
        """Whether a look-up of topics succeeded and the append of its result failed. No record contains this."""
        self.is_metadata_stale = True
        """Whether `metadata_hash` must be compared with the present metadata. No record contains this: a new coordinator compares
        it in any case."""

    # -- questions of offset requests and operators -------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        reconciled = all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values())
        return "Stable" if reconciled else "Reconciling"

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def empty_since_ms(self) -> int:
        """The time of the target assignment, which is computed when the last member leaves."""
        return self.assignment_timestamp if self.is_empty and self.assignment_timestamp else -1

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topic_counts or any(regex not in self.resolved for regex in self.regex_counts)

    def may_expire_offset(self, topic: str) -> bool:
        return not self.is_subscribed_to(topic)

    def check_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        partitions: list[tuple[bytes, int]],
        now: float,
        *,
        is_transactional: bool = False,
    ) -> list[int]:
        """A member may commit in its epoch for any partition, and in an older epoch for partitions that it owned then and still
        owns (KIP-1251). If the request names another partition, Kafka refuses all of them; here only that one is refused."""
        if epoch < 0 and not self.members:
            return [ErrorCode.NONE] * len(partitions)
        member = self.member(member_id)
        stale = ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
        if epoch > member.epoch:
            raise BrokerError(stale, f"the member epoch {epoch} is newer than the present one, {member.epoch}")
        if epoch == member.epoch:
            return [ErrorCode.NONE] * len(partitions)
        since = (member.assignment_epoch(topic_id, partition) for topic_id, partition in partitions)
        return [stale if assigned is None or epoch < assigned else ErrorCode.NONE for assigned in since]

    def check_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        if not member_id and epoch < 0:
            return
        member = self.member(member_id or "")
        if epoch != member.epoch:
            stale = ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
            raise BrokerError(stale, f"the member epoch {epoch} is not the present one, {member.epoch}")

    def tombstones(self) -> list[GroupRecord]:
        """The tombstones of all records of the group, in Kafka's order: the group's own tombstone is the last one."""
        members = sorted({**self.members, **self.targets})
        return [
            *(CurrentAssignmentRecord(self.group_id, member_id, None) for member_id in members),
            *(TargetAssignmentMemberRecord(self.group_id, member_id, None) for member_id in members),
            TargetAssignmentMetadataRecord(self.group_id, None),
            *(MemberMetadataRecord(self.group_id, member_id, None) for member_id in members),
            *(RegularExpressionRecord(self.group_id, regex, None) for regex in sorted(self.resolved)),
            ConsumerGroupMetadataRecord(self.group_id, None),
        ]

    # -- questions of decisions ---------------------------------------------------------------------------------------

    def member(self, member_id: str) -> Member:
        """The member with this id. Raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"the group {self.group_id} has no member {member_id}")
        return member

    def owner_of(self, topic_id: bytes, partition: int) -> str | None:
        return self.owners.get(topic_id, {}).get(partition)

    def static_member(self, instance_id: str) -> Member | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    # -- replay -------------------------------------------------------------------------------------------------------

    def put_epoch(self, value: ConsumerGroupMetadataValue) -> None:
        self.epoch = value.epoch
        self.metadata_hash = value.metadata_hash

    def put_assignment_epoch(self, value: TargetAssignmentMetadataValue | None) -> None:
        self.assignment_epoch = 0 if value is None else value.assignment_epoch
        self.assignment_timestamp = 0 if value is None else value.assignment_timestamp

    def put_target(self, member_id: str, value: Partitions | None) -> None:
        if value is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = value

    def put_member(self, member_id: str, value: MemberMetadataValue | None) -> None:
        """A tombstone removes the member with its partitions and its target, even if their tombstones were not seen."""
        known = self.members.get(member_id)
        if known is not None:
            self._unsubscribe(known)
        if value is not None:
            member = self.members[member_id] = Member(member_id, value, NOT_ASSIGNED if known is None else known.current)
            self._subscribe(member)
        elif known is not None:
            self._set_owned(known, NOT_ASSIGNED)
            del self.members[member_id]
            self.targets.pop(member_id, None)

    def put_current(self, member_id: str, value: CurrentAssignmentValue | None) -> None:
        """A tombstone frees the partitions. The member exists until the tombstone of its metadata."""
        member = self.members.get(member_id)
        if member is None:
            if value is None:
                return
            member = Member(member_id)
        current = NOT_ASSIGNED if value is None else value
        self._set_owned(member, current)
        self.members[member_id] = Member(member_id, member.metadata, current)

    def put_regex(self, regex: str, value: RegularExpressionValue | None) -> None:
        known = self.resolved.pop(regex, None)
        if known is not None:
            self._uncount(known.topics)
        if value is not None:
            self.resolved[regex] = value
            self.topic_counts.update(value.topics)

    def _subscribe(self, member: Member) -> None:
        metadata = member.metadata
        self.topic_counts.update(metadata.subscribed_topic_names)
        if metadata.subscribed_topic_regex:
            self.regex_counts[metadata.subscribed_topic_regex] += 1
        if metadata.instance_id is not None:
            self.static_members[metadata.instance_id] = member.member_id

    def _unsubscribe(self, member: Member) -> None:
        metadata = member.metadata
        self._uncount(metadata.subscribed_topic_names)
        if metadata.subscribed_topic_regex:
            _decrement(self.regex_counts, metadata.subscribed_topic_regex)
        instance_id = metadata.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]

    def _uncount(self, topics: tuple[str, ...]) -> None:
        for topic in topics:
            _decrement(self.topic_counts, topic)

    def _set_owned(self, member: Member, current: CurrentAssignmentValue) -> None:
        """A load can replay an old assignment of one member and the present one of another, because the cleaner has removed the
        records in between. So a member becomes the owner of a partition even if another one seems to own it, and frees a
        partition only if it is the owner."""
        for partitions in member.current.assigned, member.current.pending_revocation:
            for topic_id, numbers in partitions.items():
                self._release(member.member_id, topic_id, numbers)
        for partitions in current.assigned, current.pending_revocation:
            for topic_id, numbers in partitions.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(numbers, member.member_id))

    def _release(self, member_id: str, topic_id: bytes, numbers: Mapping[int, int]) -> None:
        owners = self.owners.get(topic_id)
        if owners is None:
            return
        for number in numbers:
            if owners.get(number) == member_id:
                del owners[number]
        if not owners:
            del self.owners[topic_id]


def _decrement(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
