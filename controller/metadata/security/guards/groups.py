"""Guards of consumer groups and their committed offsets.

A group on which the sender lacks the right is refused, whether it exists or not. Topics in a request are named by id."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from strandline.controller.metadata.security.access import DENIED_BY_TYPE, Access
from strandline.controller.metadata.security.guards.common import Guard, Handler, items, pass_filtered, pass_items
from strandline.controller.metadata.security.partial_request import PartialRequest
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import (
    KEY_TYPE_GROUP,
    KEY_TYPE_TRANSACTION,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    Coordinator,
    DeletedGroup,
    DescribedConsumerGroup,
    DescribedGroup,
    FindCoordinatorRequest,
    GroupTopicPartitions,
    ListGroupsResponse,
    OffsetCommitPartition,
    OffsetCommitPartitionResponse,
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from strandline.protocol.messages.security import (
    CLUSTER_NAME,
    CLUSTER_RESOURCE,
    DELETE,
    DESCRIBE,
    GROUP_RESOURCE,
    READ,
    TOPIC_RESOURCE,
    TRANSACTIONAL_ID_RESOURCE,
)

_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED


def member(access: Access, request: Any, handler: Handler) -> Any:
    """READ on the group, of JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""
    access.require(READ, GROUP_RESOURCE, request.body.group_id)
    return handler(request)


def consumer_group_heartbeat(access: Access, request: Any, handler: Handler) -> Any:
    """READ on the group, and DESCRIBE on each topic that the heartbeat subscribes to by its name."""
    body: ConsumerGroupHeartbeatRequest = request.body
    access.require(READ, GROUP_RESOURCE, body.group_id)
    for name in body.subscribed_topic_names or ():
        access.require(DESCRIBE, TOPIC_RESOURCE, name)
    return handler(request)


# -- FindCoordinator --------------------------------------------------------------------------------------------------

_TYPE_OF_KEYS = {KEY_TYPE_GROUP: GROUP_RESOURCE, KEY_TYPE_TRANSACTION: TRANSACTIONAL_ID_RESOURCE}


def find_coordinator(access: Access, request: Any, handler: Handler) -> Any:
    """DESCRIBE on each group or transactional id."""
    body: FindCoordinatorRequest = request.body
    resource_type = _TYPE_OF_KEYS.get(body.key_type)
    if resource_type is None:
        return handler(request)  # which refuses it
    refused = {
        index: Coordinator(key, error_code=DENIED_BY_TYPE[resource_type])
        for index, key in enumerate(body.keys)
        if not access.may(DESCRIBE, resource_type, key)
    }
    return pass_items(request, handler, "keys", "coordinators", refused)


# -- committed offsets ------------------------------------------------------------------------------------------------


def _refuse_commit(access: Access, item: OffsetCommitPartition) -> OffsetCommitPartitionResponse | None:
    code = access.topic_refusal(item.topic_id, READ)
    return None if code is None else OffsetCommitPartitionResponse(item.topic_id, item.partition, code)


_COMMITS = items("partitions", "partitions", _refuse_commit, asks_for_none=True)


def offset_commit(access: Access, request: Any, handler: Handler) -> Any:
    """READ on the group and on each topic."""
    access.require(READ, GROUP_RESOURCE, request.body.group_id)
    return _COMMITS(access, request, handler)


def offset_delete(access: Access, request: Any, handler: Handler) -> Any:
    """DELETE on the group, and READ on each topic."""
    body: OffsetDeleteRequest = request.body
    access.require(DELETE, GROUP_RESOURCE, body.group_id)
    left, rows = split_topics(access, body.topics, READ)
    refused = [OffsetDeletePartition(*row) for row in rows]
    if not refused:
        return handler(request)

    def complete(response: OffsetDeleteResponse) -> None:
        response.partitions = [*response.partitions, *refused]

    return handler(PartialRequest(request, replace(body, topics=left), complete))


def split_topics(
    access: Access, topics: list[GroupTopicPartitions], operation: int
) -> tuple[list[GroupTopicPartitions], list[tuple[bytes, int, ErrorCode]]]:
    """The topics on which the sender has the right, and the other partitions with their errors."""
    left, refused = [], []
    for topic in topics:
        code = access.topic_refusal(topic.topic_id, operation)
        if code is None:
            left.append(topic)
        else:
            refused += [(topic.topic_id, partition, code) for partition in topic.partitions]
    return left, refused


def offset_fetch(access: Access, request: Any, handler: Handler) -> Any:
    """DESCRIBE on each group and each topic. A request for all offsets of a group gets those of the topics that the sender may
    describe."""
    body: OffsetFetchRequest = request.body
    refused_groups: dict[int, OffsetFetchGroupResponse] = {}
    rows_of: list[list[OffsetFetchPartition]] = []
    left: list[OffsetFetchGroup] = []
    for index, asked in enumerate(body.groups):
        if not access.may(DESCRIBE, GROUP_RESOURCE, asked.group_id):
            refused_groups[index] = OffsetFetchGroupResponse(asked.group_id, _DENIED)
            left.append(asked)
            rows_of.append([])
            continue
        topics, rows = (None, []) if asked.topics is None else split_topics(access, asked.topics, DESCRIBE)
        left.append(replace(asked, topics=topics) if rows else asked)
        rows_of.append([OffsetFetchPartition(*row[:2], metadata="", error_code=row[2]) for row in rows])

    def complete(response: OffsetFetchResponse) -> None:
        """The rows of refused groups are in the response by now."""
        for index, answer in enumerate(response.groups):
            if index in refused_groups:
                continue
            if left[index].topics is None:
                answer.partitions = [part for part in answer.partitions if _sees_id(access, part.topic_id)]
            elif not answer.error_code:
                answer.partitions = [*answer.partitions, *rows_of[index]]

    changed = PartialRequest(request, replace(body, groups=left), complete)
    return pass_items(changed, handler, "groups", "groups", refused_groups)


def _sees_id(access: Access, topic_id: bytes) -> bool:
    topic = access.image.topics_by_id.get(topic_id)
    return topic is not None and access.sees(DESCRIBE, TOPIC_RESOURCE, topic.name)


# -- looking at groups ------------------------------------------------------------------------------------------------


def list_groups(access: Access, request: Any, handler: Handler) -> Any:
    """All groups with DESCRIBE on the cluster, otherwise those that the sender may describe."""
    if access.sees(DESCRIBE, CLUSTER_RESOURCE, CLUSTER_NAME):
        return handler(request)

    def complete(response: ListGroupsResponse) -> None:
        response.groups = [group for group in response.groups if access.sees(DESCRIBE, GROUP_RESOURCE, group.group_id)]

    return pass_filtered(request, handler, complete)


def _refuse_description(access: Access, group_id: str) -> DescribedGroup | None:
    return None if access.may(DESCRIBE, GROUP_RESOURCE, group_id) else DescribedGroup(group_id, _DENIED)


describe_groups: Guard = items("groups", "groups", _refuse_description)
"""DESCRIBE on each group."""


def _refuse_consumer_description(access: Access, group_id: str) -> DescribedConsumerGroup | None:
    return None if access.may(DESCRIBE, GROUP_RESOURCE, group_id) else DescribedConsumerGroup(group_id, _DENIED)


_CONSUMER_GROUPS = items("group_ids", "groups", _refuse_consumer_description)


def consumer_group_describe(access: Access, request: Any, handler: Handler) -> Any:
    """DESCRIBE on each group, and on each topic that it has: a group with another topic is not described, as in Kafka."""

    def complete(response: ConsumerGroupDescribeResponse) -> None:
        response.groups = [group if _sees_topics_of(access, group) else _hidden(group) for group in response.groups]

    return _CONSUMER_GROUPS(access, PartialRequest(request, request.body, complete), handler)


def _sees_topics_of(access: Access, group: DescribedConsumerGroup) -> bool:
    names = {
        topic.topic_name
        for member in group.members
        for topics in (member.assignment, member.target_assignment)
        for topic in topics
    }
    names.update(name for member in group.members for name in member.subscribed_topic_names)
    return all(access.sees(DESCRIBE, TOPIC_RESOURCE, name) for name in sorted(names))


def _hidden(group: DescribedConsumerGroup) -> DescribedConsumerGroup:
    text = "the group has topics that the sender may not describe"
    return DescribedConsumerGroup(group.group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)


def _refuse_group_deletion(access: Access, group_id: str) -> DeletedGroup | None:
    return None if access.may(DELETE, GROUP_RESOURCE, group_id) else DeletedGroup(group_id, _DENIED)


delete_groups: Guard = items("groups", "results", _refuse_group_deletion)
"""DELETE on each group."""
