"""The records of `__consumer_offsets`, as the coordinator sees them. Each has a key; `value` None is a tombstone.

    type   record                                  key                        what it says
    1      OffsetCommit                            group, topic, partition    how far the group has read
    2      GroupMetadata                           group                      a classic group: generation, members, assignments
    3      ConsumerGroupMetadata                   group                      the epoch of a group of the newer protocol
    5      ConsumerGroupMemberMetadata             group, member              what a member subscribes to
    6      ConsumerGroupTargetAssignmentMetadata   group                      the group epoch of the target assignment
    7      ConsumerGroupTargetAssignmentMember     group, member              what a member is to own
    8      ConsumerGroupCurrentMemberAssignment    group, member              what it owns, and what it has to give up
    16     ConsumerGroupRegularExpression          group, expression          the topics that match it

Names and meanings are Kafka's (4.3). A group with a GroupMetadata record is classic, and a group with a ConsumerGroupMetadata
record has the newer protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from strandline.protocol.messages.common import ZERO_UUID

Partitions = Mapping[bytes, frozenset[int]]
"""Topic id -> partition numbers. No topic has an empty set."""
PartitionEpochs = Mapping[bytes, Mapping[int, int]]
"""Topic id -> partition number -> the member epoch in which it was assigned (KIP-1251). No topic is empty."""


class MemberState(IntEnum):
    """The progress of a member of the newer protocol towards its target assignment. The numbers are in the records."""

    STABLE = 0
    """The member owns all that it may own in its epoch."""
    UNREVOKED_PARTITIONS = 1
    """The member still owns partitions that it has to give up, and stays in its epoch until it has done so."""
    UNRELEASED_PARTITIONS = 2
    """The member waits for partitions that other members still own."""


class CommittedOffset(msgspec.Struct, frozen=True, gc=False):
    """A position of a group in one partition: the offset of the next record to read.

    A broker may hold a million of them, so the garbage collector does not track them: they refer to no containers."""

    offset: int
    leader_epoch: int = -1
    """The leader epoch of the record before the offset; -1: unknown."""
    metadata: str = ""
    """A text that the program stores with the offset."""
    commit_timestamp: int = -1
    """When it was committed, in ms since 1970."""
    expire_timestamp: int = -1
    """When it expires, in ms since 1970, if the commit named a retention time; -1: as the broker is configured."""
    topic_id: bytes = ZERO_UUID
    """The id of the topic that had the name when the offset was committed; ZERO_UUID: unknown."""


@dataclass(frozen=True, slots=True)
class OffsetCommitRecord:
    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class ClassicMemberValue:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    """The metadata of the chosen protocol."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class ClassicGroupValue:
    protocol_type: str
    generation_id: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int
    """When the state changed last, in ms since 1970; -1: unknown."""
    members: tuple[ClassicMemberValue, ...]


@dataclass(frozen=True, slots=True)
class GroupMetadataRecord:
    group_id: str
    value: ClassicGroupValue | None


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataValue:
    epoch: int
    metadata_hash: int = 0
    """The hash of the topics to which the group subscribed when this epoch began."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadataRecord:
    group_id: str
    value: ConsumerGroupMetadataValue | None


@dataclass(frozen=True, slots=True)
class ClassicProtocol:
    """A protocol that a classic member of a group of the newer protocol supports."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class ClassicMemberMetadata:
    session_timeout_ms: int
    supported_protocols: tuple[ClassicProtocol, ...]


@dataclass(frozen=True, slots=True)
class MemberMetadataValue:
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    """Sorted, each once."""
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_member_metadata: ClassicMemberMetadata | None = None
    """Not None for a member that speaks the classic protocol (online migration)."""


@dataclass(frozen=True, slots=True)
class MemberMetadataRecord:
    group_id: str
    member_id: str
    value: MemberMetadataValue | None


@dataclass(frozen=True, slots=True)
class TargetAssignmentMetadataValue:
    assignment_epoch: int
    assignment_timestamp: int = 0
    """When the assignor had finished, in ms since 1970."""


@dataclass(frozen=True, slots=True)
class TargetAssignmentMetadataRecord:
    group_id: str
    value: TargetAssignmentMetadataValue | None


@dataclass(frozen=True, slots=True)
class TargetAssignmentMemberRecord:
    group_id: str
    member_id: str
    value: Partitions | None


@dataclass(frozen=True, slots=True)
class CurrentAssignmentValue:
    member_epoch: int
    previous_member_epoch: int
    """The epoch before the last advance. A member that did not receive the new epoch still sends this one."""
    state: MemberState
    assigned: PartitionEpochs
    pending_revocation: PartitionEpochs


@dataclass(frozen=True, slots=True)
class CurrentAssignmentRecord:
    group_id: str
    member_id: str
    value: CurrentAssignmentValue | None


@dataclass(frozen=True, slots=True)
class RegularExpressionValue:
    topics: tuple[str, ...]
    """Sorted, each once."""
    version: int
    """The metadata offset at which the expression was resolved."""
    timestamp: int
    """When it was resolved, in ms since 1970."""


@dataclass(frozen=True, slots=True)
class RegularExpressionRecord:
    group_id: str
    regex: str
    value: RegularExpressionValue | None


GroupRecord = (
    OffsetCommitRecord
    | GroupMetadataRecord
    | ConsumerGroupMetadataRecord
    | MemberMetadataRecord
    | TargetAssignmentMetadataRecord
    | TargetAssignmentMemberRecord
    | CurrentAssignmentRecord
    | RegularExpressionRecord
)
