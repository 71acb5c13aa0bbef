"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: groups of the newer protocol (KIP-848).

In version 0 of the heartbeat the broker chooses the id of a member that joins. The id is derived from values that are unique
together (the broker's incarnation, the connection, and the request), and has the form of Kafka's ids."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Any
from uuid import UUID, uuid5

from strandline.broker.kafka.call import KafkaApi, KafkaCall
from strandline.broker.kafka.translations.authorized_operations import NOT_ASKED, authorized_operations
from strandline.broker.kafka.translations.client_hosts import client_host
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupMemberDescription,
    DescribedConsumerGroup,
    GroupTopicPartitions,
    NamedTopicPartitions,
)
from strandline.protocol.messages.security import GROUP_RESOURCE

# -- ConsumerGroupHeartbeat -------------------------------------------------------------------------------------------

_JOIN = 0


def _heartbeat(call: KafkaCall) -> ConsumerGroupHeartbeatRequest:
    fields = call.fields
    if not fields.group_id:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "the group id must not be empty")
    owned = fields.topic_partitions
    return ConsumerGroupHeartbeatRequest(
        group_id=fields.group_id,
        member_id=fields.member_id or _new_member_id(call),
        member_epoch=fields.member_epoch,
        instance_id=fields.instance_id,
        rack_id=fields.rack_id,
        rebalance_timeout_ms=fields.rebalance_timeout_ms,
        subscribed_topic_names=fields.subscribed_topic_names,
        subscribed_topic_regex=fields.get("subscribed_topic_regex"),
        server_assignor=fields.server_assignor,
        topic_partitions=None if owned is None else [GroupTopicPartitions(o.topic_id, o.partitions) for o in owned],
    )


def _new_member_id(call: KafkaCall) -> str:
    """The id of a member that joins; empty, which is refused, if the member must have one. Its first bit is 0, so it does not
    begin with a dash (`new_uuid`)."""
    if call.version > 0 or call.fields.member_epoch != _JOIN:
        return ""
    connection: Any = call.connection
    name = f"{connection.id} {call.correlation_id} {call.fields.group_id}"
    unique = bytearray(uuid5(UUID(bytes=connection.server.incarnation_id), name).bytes)
    unique[0] &= 0x7F
    return urlsafe_b64encode(unique).decode().rstrip("=")


def _beaten(call: KafkaCall, body: ConsumerGroupHeartbeatResponse) -> dict[str, Any]:
    assigned = body.assignment
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": body.error_code,
        "error_message": body.error_message,
        "member_id": body.member_id,
        "member_epoch": body.member_epoch,
        "heartbeat_interval_ms": body.heartbeat_interval_ms,
        "assignment": None
        if assigned is None
        else {"topic_partitions": [{"topic_id": a.topic_id, "partitions": a.partitions} for a in assigned]},
    }


def _heartbeat_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return _beaten(call, ConsumerGroupHeartbeatResponse(code, message))


# -- ConsumerGroupDescribe --------------------------------------------------------------------------------------------


def _describe(call: KafkaCall) -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(call.fields.group_ids)


def _described(call: KafkaCall, body: ConsumerGroupDescribeResponse) -> dict[str, Any]:
    groups = {group.group_id: _group(call, group) for group in body.groups}
    return {"throttle_time_ms": body.throttle_time_ms, "groups": [groups[group_id] for group_id in call.fields.group_ids]}


def _group(call: KafkaCall, group: DescribedConsumerGroup) -> dict[str, Any]:
    code = group.error_code if group.group_id else ErrorCode.INVALID_GROUP_ID
    is_asked = call.fields.include_authorized_operations and not code
    return {
        "error_code": code,
        "error_message": group.error_message,
        "group_id": group.group_id,
        "group_state": group.group_state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor_name,
        "members": [_member(member) for member in group.members],
        "authorized_operations": authorized_operations(call, GROUP_RESOURCE, group.group_id) if is_asked else NOT_ASKED,
    }


def _member(member: ConsumerGroupMemberDescription) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": client_host(member.client_host),
        "subscribed_topic_names": member.subscribed_topic_names,
        "subscribed_topic_regex": member.subscribed_topic_regex or "",
        "assignment": _assignment(member.assignment),
        "target_assignment": _assignment(member.target_assignment),
        "member_type": member.member_type,
    }


def _assignment(topics: list[NamedTopicPartitions]) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": topic.topic_id, "topic_name": topic.topic_name, "partitions": topic.partitions} for topic in topics
        ]
    }


def _describe_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    groups = [DescribedConsumerGroup(group_id, code, message) for group_id in call.fields.group_ids]
    return _described(call, ConsumerGroupDescribeResponse(groups))


APIS = (
    KafkaApi(68, "ConsumerGroupHeartbeat", apis.CONSUMER_GROUP_HEARTBEAT, 0, 1, _heartbeat, _beaten, _heartbeat_refused),
    KafkaApi(69, "ConsumerGroupDescribe", apis.CONSUMER_GROUP_DESCRIBE, 0, 1, _describe, _described, _describe_refused),
)
