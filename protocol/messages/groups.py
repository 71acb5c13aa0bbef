"""Consumer groups: FindCoordinator, the two group protocols, committed offsets, and the requests that list, describe and delete
groups.

A group belongs to one coordinator: the leader of one partition of `__consumer_offsets`. A member of the newer protocol (KIP-848)
sends ConsumerGroupHeartbeat and nothing else; the coordinator assigns the partitions. A member of the classic protocol sends
JoinGroup, SyncGroup, Heartbeat and LeaveGroup; one member, the group's leader, assigns them.

Topics are named by their ids, except where Kafka's records of the classic protocol have names.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from strandline.protocol.messages.common import (
    MANY,
    Count,
    Epoch,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Name,
    NodeId,
    PartitionIndex,
    Text,
    Uuid,
)

GroupId = Annotated[str, Meta(max_length=32767)]
MemberId = Annotated[str, Meta(max_length=32767)]
MemberEpoch = Int32
"""-1: leave; -2: a static member leaves for a moment (KIP-848); 0: join."""
ManyPartitions = Annotated[list[PartitionIndex], MANY]
Bytes = Annotated[bytes, Meta(max_length=8 * 1024 * 1024)]

# -- FindCoordinator --------------------------------------------------------------------------------------------------

KEY_TYPE_GROUP, KEY_TYPE_TRANSACTION = 0, 1


class FindCoordinatorRequest(Message):
    """Asks any broker for the coordinators of these groups or transactional ids. If the internal topic does not exist, the
    broker has it created, and answers COORDINATOR_NOT_AVAILABLE meanwhile. `key_type`: 0 for groups, 1 for transactional
    ids."""

    keys: Annotated[list[GroupId], MANY]
    key_type: Int8 = KEY_TYPE_GROUP


class Coordinator(Message):
    key: GroupId
    node_id: NodeId = -1
    host: Name = ""
    port: Annotated[int, Meta(ge=-1, le=65535)] = -1
    error_code: Int16 = 0
    error_message: Text | None = None


class FindCoordinatorResponse(Message):
    coordinators: list[Coordinator]
    throttle_time_ms: Count = 0


# -- ConsumerGroupHeartbeat -------------------------------------------------------------------------------------------


class GroupTopicPartitions(Message):
    topic_id: Uuid
    partitions: ManyPartitions


class ConsumerGroupHeartbeatRequest(Message):
    """Keeps a member in its group, and reports to the coordinator what has changed (KIP-848).

    The member chooses its `member_id`, a random UUID as text (KIP-1082). A field that is nil has not changed since the last
    heartbeat; the heartbeat that joins (`member_epoch` 0) sets them all. `topic_partitions`: what the member owns now; a member
    that has to revoke partitions names what is left once it has revoked them.

    `max_wait_ms`: how long the coordinator may hold back the response, at most the heartbeat interval. It does so if all other
    fields are nil and nothing has changed for the member. A change for the member, or its next heartbeat, ends the wait.

    `returns_at_once`: if the connection breaks, the member connects again and sends a heartbeat at once. If none arrives within
    `connection_loss_grace_ms`, the coordinator removes the member without waiting for the end of its session. Static members
    keep their whole session.
    """

    group_id: GroupId
    member_id: MemberId
    member_epoch: MemberEpoch
    instance_id: Name | None = None
    rack_id: Name | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: Annotated[list[Name], MANY] | None = None
    subscribed_topic_regex: Text | None = None
    server_assignor: Name | None = None
    topic_partitions: Annotated[list[GroupTopicPartitions], MANY] | None = None
    returns_at_once: bool = False
    max_wait_ms: Count = 0


class ConsumerGroupHeartbeatResponse(Message):
    """`assignment`: the partitions that the member may own in `member_epoch`; nil if they have not changed. `next_at_once`: send
    the next heartbeat now instead of after `heartbeat_interval_ms`, because it may wait.

    A member is removed `session_timeout_ms` after its last heartbeat, or `connection_loss_grace_ms` after its connection broke if
    its heartbeats have `returns_at_once`. 0: the coordinator does not report the duration, or it does not apply."""

    error_code: Int16 = 0
    error_message: Text | None = None
    member_id: MemberId | None = None
    member_epoch: MemberEpoch = 0
    heartbeat_interval_ms: Count = 0
    assignment: list[GroupTopicPartitions] | None = None
    throttle_time_ms: Count = 0
    next_at_once: bool = False
    session_timeout_ms: Count = 0
    connection_loss_grace_ms: Count = 0


# -- the classic protocol ---------------------------------------------------------------------------------------------


class JoinGroupProtocol(Message):
    """An assignor that the member supports, and the member's metadata for it (its subscription), for the group's leader."""

    name: Name
    metadata: Bytes


class JoinGroupRequest(Message):
    """Joins a group of the classic protocol, or joins again for a rebalance. The response is sent when the rebalance has its
    members. Without a `member_id` the response is MEMBER_ID_REQUIRED and names one (KIP-394), except for static members.

    `requires_known_member_id`, `supports_skip_assignment`: false for old clients of Kafka's protocol, which do not know that
    answer, or that field of the response."""

    group_id: GroupId
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32
    member_id: MemberId
    group_instance_id: Name | None
    protocol_type: Name
    protocols: Annotated[list[JoinGroupProtocol], MANY]
    reason: Text | None = None
    requires_known_member_id: bool = True
    supports_skip_assignment: bool = True


class JoinGroupMember(Message):
    member_id: MemberId
    group_instance_id: Name | None
    metadata: Bytes


class JoinGroupResponse(Message):
    """`members`: all members, for the leader only; the others get an empty list. `skip_assignment`: the leader must not assign
    partitions, because nothing has changed (KIP-814)."""

    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Name | None = None
    protocol_name: Name | None = None
    leader: MemberId = ""
    skip_assignment: bool = False
    member_id: MemberId = ""
    members: list[JoinGroupMember] = []
    throttle_time_ms: Count = 0


class SyncGroupAssignment(Message):
    member_id: MemberId
    assignment: Bytes


class SyncGroupRequest(Message):
    """Asks for the member's assignment. The leader's request has the `assignments` of all members; the coordinator holds back the
    responses to the other members until it arrives."""

    group_id: GroupId
    generation_id: Int32
    member_id: MemberId
    group_instance_id: Name | None = None
    protocol_type: Name | None = None
    protocol_name: Name | None = None
    assignments: Annotated[list[SyncGroupAssignment], MANY] = []


class SyncGroupResponse(Message):
    error_code: Int16 = 0
    protocol_type: Name | None = None
    protocol_name: Name | None = None
    assignment: Bytes = b""
    throttle_time_ms: Count = 0


class HeartbeatRequest(Message):
    group_id: GroupId
    generation_id: Int32
    member_id: MemberId
    group_instance_id: Name | None = None


class HeartbeatResponse(Message):
    error_code: Int16 = 0
    throttle_time_ms: Count = 0


class LeavingMember(Message):
    member_id: MemberId
    group_instance_id: Name | None = None
    reason: Text | None = None


class LeaveGroupRequest(Message):
    """Removes members: the sender, or (by an operator) others, static ones by their instance id. Members of the newer protocol
    can be removed as well."""

    group_id: GroupId
    members: Annotated[list[LeavingMember], MANY]


class LeftMember(Message):
    member_id: MemberId
    group_instance_id: Name | None = None
    error_code: Int16 = 0


class LeaveGroupResponse(Message):
    error_code: Int16 = 0
    members: list[LeftMember] = []
    throttle_time_ms: Count = 0


# -- committed offsets ------------------------------------------------------------------------------------------------


class OffsetCommitPartition(Message):
    """`committed_leader_epoch`: the leader epoch of the record before the offset; -1: unknown."""

    topic_id: Uuid
    partition: PartitionIndex
    committed_offset: Int64
    committed_leader_epoch: Epoch = -1
    committed_metadata: Text | None = None


class OffsetCommitRequest(Message):
    """Commits offsets of a group. A member sends its id, and its generation (classic) or member epoch. A program that is not a
    member sends an empty id and -1, which is accepted only while the group has no members. `retention_time_ms`: how long the
    offsets are kept; -1: as the broker is configured."""

    group_id: GroupId
    generation_id_or_member_epoch: Int32
    member_id: MemberId
    group_instance_id: Name | None
    partitions: Annotated[list[OffsetCommitPartition], MANY]
    retention_time_ms: Int64 = -1


class OffsetCommitPartitionResponse(Message):
    topic_id: Uuid
    partition: PartitionIndex
    error_code: Int16 = 0


class OffsetCommitResponse(Message):
    partitions: list[OffsetCommitPartitionResponse]
    throttle_time_ms: Count = 0


class OffsetFetchGroup(Message):
    """`topics`: nil for all committed offsets of the group. A member of the newer protocol names itself and its epoch, and gets
    STALE_MEMBER_EPOCH if that has changed."""

    group_id: GroupId
    member_id: MemberId | None = None
    member_epoch: Int32 = -1
    topics: Annotated[list[GroupTopicPartitions], MANY] | None = None


class OffsetFetchRequest(Message):
    """Asks for committed offsets. `require_stable`: UNSTABLE_OFFSET_COMMIT for offsets that an open transaction will replace
    (KIP-447)."""

    groups: Annotated[list[OffsetFetchGroup], MANY]
    require_stable: bool = False


class OffsetFetchPartition(Message):
    """`committed_offset`: -1 if there is none."""

    topic_id: Uuid
    partition: PartitionIndex
    committed_offset: Int64 = -1
    committed_leader_epoch: Epoch = -1
    metadata: Text | None = None
    commit_timestamp: Int64 = -1
    error_code: Int16 = 0


class OffsetFetchGroupResponse(Message):
    group_id: GroupId
    error_code: Int16 = 0
    error_message: Text | None = None
    partitions: list[OffsetFetchPartition] = []


class OffsetFetchResponse(Message):
    groups: list[OffsetFetchGroupResponse]
    throttle_time_ms: Count = 0


class OffsetDeleteRequest(Message):
    """Deletes committed offsets of topics to which no member is subscribed; GROUP_SUBSCRIBED_TO_TOPIC for others (KIP-496)."""

    group_id: GroupId
    topics: Annotated[list[GroupTopicPartitions], MANY]


class OffsetDeletePartition(Message):
    topic_id: Uuid
    partition: PartitionIndex
    error_code: Int16 = 0


class OffsetDeleteResponse(Message):
    error_code: Int16 = 0
    error_message: Text | None = None
    partitions: list[OffsetDeletePartition] = []
    throttle_time_ms: Count = 0


# -- looking at groups ------------------------------------------------------------------------------------------------


class ListGroupsRequest(Message):
    """Asks a broker for the groups that it coordinates. Empty filters: all. States and types: as Kafka spells them, in any case
    (`Stable`, `consumer`)."""

    states: Annotated[list[Name], MANY] = []
    types: Annotated[list[Name], MANY] = []


class ListedGroup(Message):
    """`group_type`: `consumer` or `classic`. `protocol_type`: `consumer`; empty for a classic group without members."""

    group_id: GroupId
    protocol_type: Name
    group_state: Name
    group_type: Name


class ListGroupsResponse(Message):
    error_code: Int16 = 0
    groups: list[ListedGroup] = []
    throttle_time_ms: Count = 0


class DescribeGroupsRequest(Message):
    """Asks the coordinator for groups of the classic protocol; a group of the other type is GROUP_ID_NOT_FOUND."""

    groups: Annotated[list[GroupId], MANY]


class DescribedMember(Message):
    member_id: MemberId
    group_instance_id: Name | None
    client_id: Name
    client_host: Name
    member_metadata: Bytes
    member_assignment: Bytes


class DescribedGroup(Message):
    group_id: GroupId
    error_code: Int16 = 0
    error_message: Text | None = None
    group_state: Name = ""
    protocol_type: Name = ""
    protocol_data: Name = ""
    """The name of the chosen protocol."""
    members: list[DescribedMember] = []


class DescribeGroupsResponse(Message):
    groups: list[DescribedGroup]
    throttle_time_ms: Count = 0


class ConsumerGroupDescribeRequest(Message):
    """Asks the coordinator for groups of the newer protocol; a group of the other type is GROUP_ID_NOT_FOUND."""

    group_ids: Annotated[list[GroupId], MANY]


class NamedTopicPartitions(Message):
    topic_id: Uuid
    topic_name: Name
    partitions: ManyPartitions


class ConsumerGroupMemberDescription(Message):
    """`member_type`: 1 for a member of the newer protocol, 0 for one of the classic protocol (online migration), -1 unknown.
    `assignment`: the partitions that the member owns; `target_assignment`: those that the coordinator has assigned to it."""

    member_id: MemberId
    instance_id: Name | None
    rack_id: Name | None
    member_epoch: Int32
    client_id: Name
    client_host: Name
    subscribed_topic_names: list[Name]
    subscribed_topic_regex: Text | None
    assignment: list[NamedTopicPartitions]
    target_assignment: list[NamedTopicPartitions]
    member_type: Int8 = -1


class DescribedConsumerGroup(Message):
    group_id: GroupId
    error_code: Int16 = 0
    error_message: Text | None = None
    group_state: Name = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: Name = ""
    members: list[ConsumerGroupMemberDescription] = []


class ConsumerGroupDescribeResponse(Message):
    groups: list[DescribedConsumerGroup]
    throttle_time_ms: Count = 0


class DeleteGroupsRequest(Message):
    """Deletes groups without members, and their offsets; NON_EMPTY_GROUP for others."""

    groups: Annotated[list[GroupId], MANY]


class DeletedGroup(Message):
    group_id: GroupId
    error_code: Int16 = 0
    error_message: Text | None = None


class DeleteGroupsResponse(Message):
    results: list[DeletedGroup]
    throttle_time_ms: Count = 0
