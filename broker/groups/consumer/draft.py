"""A decision about a group while it is prepared: its records, and the group as it will be after their replay.

The group itself does not change. The draft collects the records in the order of their replay. Later steps of the decision ask the
draft, and not the group, for the state after the earlier steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from strandline.broker.coordination.replies import Replies
from strandline.broker.groups.consumer.group import NO_METADATA, ConsumerGroup, Member
from strandline.broker.groups.consumer.requests import JOIN
from strandline.broker.groups.consumer.subscriptions import Subscriptions, metadata_hash
from strandline.broker.groups.consumer.target import (
    TargetAssignment,
    compute_target,
    preferred_assignor,
    target_epoch_record,
    target_records,
)
from strandline.broker.groups.records.types import (
    ConsumerGroupMetadataRecord,
    ConsumerGroupMetadataValue,
    CurrentAssignmentRecord,
    CurrentAssignmentValue,
    GroupRecord,
    MemberMetadataRecord,
    MemberMetadataValue,
    Partitions,
    RegularExpressionRecord,
    RegularExpressionValue,
    TargetAssignmentMemberRecord,
)
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.errors import BrokerError

OnAppend = Callable[[BrokerError | None], Replies]


class Draft:
    """One decision about one group."""

    def __init__(self, group: ConsumerGroup, image: MetadataImage, records: list[GroupRecord] | None = None) -> None:
        """`records`: the first records of the decision."""
        self.group = group
        self.image = image
        self.records: list[GroupRecord] = [] if records is None else records
        self.epoch = group.epoch
        self._updated: dict[str, Member] = {}
        self._removed: dict[str, None] = {}
        self._replaced: dict[str, str] = {}
        """Member id -> the id that it replaces."""
        self._resolved: dict[str, RegularExpressionValue | None] = {}
        """Expression -> its new topics; None if it is dropped."""
        self._topic_changes: dict[str, int] = {}
        """Topic -> the change of `ConsumerGroup.topic_counts`."""
        self._regex_changes: dict[str, int] = {}
        self.on_append: OnAppend | None = None
        """Called like `Result.on_append`: changes the state that is in no record."""

    # -- changes ------------------------------------------------------------------------------------------------------

    def put_metadata(self, member: Member, metadata: MemberMetadataValue) -> None:
        """Add a member, or change its metadata. `member`: the member with its previous metadata."""
        self._count(member.metadata if self._has(member.member_id) else NO_METADATA, -1)
        self._count(metadata, 1)
        self._updated[member.member_id] = replace(member, metadata=metadata)
        self.records.append(MemberMetadataRecord(self.group.group_id, member.member_id, metadata))

    def put_current(self, member_id: str, current: CurrentAssignmentValue) -> None:
        self.records.append(CurrentAssignmentRecord(self.group.group_id, member_id, current))

    def remove(self, member: Member) -> None:
        """Remove a member. The tombstones are in Kafka's order, which Kafka checks when it replays them."""
        group_id, member_id = self.group.group_id, member.member_id
        self._count(member.metadata, -1)
        self._updated.pop(member_id, None)
        self._removed[member_id] = None
        self.records += (
            CurrentAssignmentRecord(group_id, member_id, None),
            TargetAssignmentMemberRecord(group_id, member_id, None),
            MemberMetadataRecord(group_id, member_id, None),
        )

    def replace(self, member: Member, member_id: str) -> Member:
        """Replace a static member that returns under a new id: a new member in epoch 0 gets the metadata, target and partitions
        of the old one."""
        group_id = self.group.group_id
        target = self.group.targets.get(member.member_id, {})
        current = replace(member.current, member_epoch=JOIN, previous_member_epoch=JOIN)
        self.remove(member)
        returned = Member(member_id, member.metadata, current)
        self.put_metadata(returned, member.metadata)
        self.records.append(TargetAssignmentMemberRecord(group_id, member_id, target))
        self.put_current(member_id, current)
        self._replaced[member_id] = member.member_id
        return returned

    def put_regex(self, regex: str, value: RegularExpressionValue | None) -> None:
        known = self.group.resolved.get(regex)
        if known is not None:
            _count(self._topic_changes, known.topics, -1)
        if value is not None:
            _count(self._topic_changes, value.topics, 1)
        self._resolved[regex] = value
        self.records.append(RegularExpressionRecord(self.group.group_id, regex, value))

    def drop_unused_regexes(self) -> None:
        """Drop the topics of expressions that are no longer in any member's subscription."""
        counts = self.group.regex_counts
        for regex in sorted(self._regex_changes):
            if counts[regex] + self._regex_changes[regex] <= 0 and regex in self.group.resolved:
                self.put_regex(regex, None)

    def bump_epoch(self) -> None:
        """Raise the group's epoch: the target assignment must be computed again."""
        self.epoch += 1
        value = ConsumerGroupMetadataValue(self.epoch, self.metadata_hash())
        self.records.append(ConsumerGroupMetadataRecord(self.group.group_id, value))

    def assign(self, assignors: tuple[str, ...], now_ms: int) -> TargetAssignment:
        """Compute the target assignment of the group's epoch."""
        members, previous = self.members(), self._targets()
        if members:
            assignor = preferred_assignor(members.values(), assignors)
            target = compute_target(members, previous, assignor, self.subscriptions(), self.image, self.epoch)
            self.records += target_records(self.group.group_id, previous, target, now_ms)
        else:
            target = TargetAssignment(self.epoch, {})
            self.records.append(target_epoch_record(self.group.group_id, self.epoch, now_ms))
        return target

    # -- the group as it will be --------------------------------------------------------------------------------------

    def members(self) -> dict[str, Member]:
        members = {member_id: member for member_id, member in self.group.members.items() if member_id not in self._removed}
        return {**members, **self._updated}

    @property
    def is_empty(self) -> bool:
        return not self._updated and self._removed.keys() >= self.group.members.keys()

    @property
    def has_new_topics(self) -> bool:
        """Whether the draft sets the topics of an expression that was looked up."""
        return any(value is not None for value in self._resolved.values())

    def target(self, member_id: str) -> TargetAssignment:
        """The present target assignment of one member. A static member that returns has the target of the member that it
        replaces."""
        partitions = self.group.targets.get(self._replaced.get(member_id, member_id), {})
        return TargetAssignment(self.group.assignment_epoch, {member_id: partitions})

    def is_free_for(self, member_id: str, topic_id: bytes, partition: int) -> bool:
        """Whether no other member owns this partition."""
        owner = self.group.owner_of(topic_id, partition)
        return owner is None or owner == member_id or owner in self._removed

    def subscriptions(self) -> Subscriptions:
        return Subscriptions(self.image, self._all_resolved() if self._resolved else self.group.resolved)

    def is_metadata_changed(self) -> bool:
        """Whether the set of subscribed topics, or one of these topics, has changed since the group's epoch began."""
        return self.metadata_hash() != self.group.metadata_hash

    def metadata_hash(self) -> int:
        changed = {topic for topic, change in self._topic_changes.items() if self._is_toggled(topic, change)}
        if not changed and not self.group.is_metadata_stale:
            return self.group.metadata_hash
        return metadata_hash(sorted(self.group.topic_counts.keys() ^ changed), self.image)

    def _is_toggled(self, topic: str, change: int) -> bool:
        before = self.group.topic_counts[topic]
        return (before > 0) != (before + change > 0)

    def _targets(self) -> dict[str, Partitions]:
        targets = {member_id: target for member_id, target in self.group.targets.items() if member_id not in self._removed}
        for member_id, replaced_id in self._replaced.items():
            targets[member_id] = self.group.targets.get(replaced_id, {})
        return targets

    def _all_resolved(self) -> dict[str, RegularExpressionValue]:
        merged = {**self.group.resolved, **self._resolved}
        return {regex: value for regex, value in merged.items() if value is not None}

    def _has(self, member_id: str) -> bool:
        return member_id in self._updated or (member_id in self.group.members and member_id not in self._removed)

    def _count(self, metadata: MemberMetadataValue, sign: int) -> None:
        _count(self._topic_changes, metadata.subscribed_topic_names, sign)
        if metadata.subscribed_topic_regex:
            _count(self._regex_changes, (metadata.subscribed_topic_regex,), sign)


def _count(changes: dict[str, int], keys: Iterable[str], sign: int) -> None:
    for key in keys:
        changes[key] = changes.get(key, 0) + sign
