"""The target assignment of a group: the partitions that each member is to own in the group's epoch.

The assignor that most members request computes it from the previous one. It is written as one record for each member whose
partitions change or that had no target, and one record for the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from strandline.broker.groups.consumer.assignors import ASSIGNORS
from strandline.broker.groups.consumer.assignors.spec import GroupSpec, MemberSpec
from strandline.broker.groups.consumer.group import Member
from strandline.broker.groups.consumer.subscriptions import Subscriptions
from strandline.broker.groups.records.types import (
    GroupRecord,
    Partitions,
    TargetAssignmentMemberRecord,
    TargetAssignmentMetadataRecord,
    TargetAssignmentMetadataValue,
)
from strandline.controller.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True)
class TargetAssignment:
    epoch: int
    partitions: Mapping[str, Partitions]
    """Member id -> the partitions that it is to own. A member that is not in it is to own none."""

    def of(self, member_id: str) -> Partitions:
        return self.partitions.get(member_id, {})


def preferred_assignor(members: Iterable[Member], assignors: Sequence[str]) -> str:
    """The assignor that most members request. At a tie, and if no member requests any, it is the one of them that the
    configuration names first."""
    votes = Counter(member.metadata.server_assignor for member in members)
    return max(assignors, key=lambda name: votes[name])


def compute_target(
    members: Mapping[str, Member],
    previous: Mapping[str, Partitions],
    assignor: str,
    subscriptions: Subscriptions,
    image: MetadataImage,
    epoch: int,
) -> TargetAssignment:
    specs = {
        member_id: MemberSpec(member.metadata.instance_id, subscriptions.topics_of(member.metadata))
        for member_id, member in members.items()
    }
    counts = {topic_id: len(image.topics_by_id[topic_id].partitions) for topic_id in subscriptions.all_topics()}
    return TargetAssignment(epoch, ASSIGNORS[assignor](GroupSpec(specs, counts, previous)))


def target_records(group_id: str, previous: Mapping[str, Partitions], target: TargetAssignment, now_ms: int) -> list[GroupRecord]:
    """The records that change the previous target assignment to this one. Members that left have tombstones of their own."""
    records: list[GroupRecord] = []
    for member_id in sorted(target.partitions):
        partitions, known = target.partitions[member_id], previous.get(member_id)
        if partitions is not known and partitions != known:
            records.append(TargetAssignmentMemberRecord(group_id, member_id, partitions))
    return [*records, target_epoch_record(group_id, target.epoch, now_ms)]


def target_epoch_record(group_id: str, epoch: int, now_ms: int) -> TargetAssignmentMetadataRecord:
    return TargetAssignmentMetadataRecord(group_id, TargetAssignmentMetadataValue(epoch, now_ms))
