"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: members of the classic protocol.

The metadata and the assignments that members and their leader exchange are not decoded here. Versions differ in this:

    JoinGroup 0       has no rebalance timeout; the session timeout replaces it
    JoinGroup 4       the response gives a new member its id, and the member joins again with it (KIP-394)
    JoinGroup 9       the response can tell a static leader that returns to skip the assignment (KIP-814)
    SyncGroup 5       must name the protocol
    LeaveGroup 3      names many members, each with an error of its own

Java's consumers take COORDINATOR_LOAD_IN_PROGRESS for a fatal error in responses to Heartbeat and SyncGroup. While the
coordinator loads the group, the response to a Heartbeat is NONE, as in Kafka. The response to a SyncGroup is
REBALANCE_IN_PROGRESS, because the rebalance ended with the previous coordinator.

If the group changes to the newer protocol while a JoinGroup waits, the member must join again. Kafka's response is
REBALANCE_IN_PROGRESS, which ends an aiokafka consumer. Here it is COORDINATOR_LOAD_IN_PROGRESS, after which all clients retry."""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)

# -- JoinGroup --------------------------------------------------------------------------------------------------------

_KNOWS_MEMBER_ID_REQUIRED = 4
_NULL_PROTOCOL = 7
_KNOWS_SKIP_ASSIGNMENT = 9


def _join(call: KafkaCall) -> JoinGroupRequest:
    fields = call.fields
    return JoinGroupRequest(
        group_id=fields.group_id,
        session_timeout_ms=fields.session_timeout_ms,
        rebalance_timeout_ms=fields.get("rebalance_timeout_ms", -1),
        member_id=fields.member_id,
        group_instance_id=fields.get("group_instance_id"),
        protocol_type=fields.protocol_type,
        protocols=[JoinGroupProtocol(protocol.name, protocol.metadata) for protocol in fields.protocols],
        reason=fields.get("reason"),
        requires_known_member_id=call.version >= _KNOWS_MEMBER_ID_REQUIRED,
        supports_skip_assignment=call.version >= _KNOWS_SKIP_ASSIGNMENT,
    )


def _joined(call: KafkaCall, body: JoinGroupResponse) -> dict[str, Any]:
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": body.error_code,
        "generation_id": body.generation_id,
        "protocol_type": body.protocol_type,
        "protocol_name": body.protocol_name or (None if call.version >= _NULL_PROTOCOL else ""),
        "leader": body.leader,
        "skip_assignment": body.skip_assignment,
        "member_id": body.member_id,
        "members": [_joined_member(member) for member in body.members],
    }


def _joined_member(member: JoinGroupMember) -> dict[str, Any]:
    return {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "metadata": member.metadata}


def _join_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    again = code == ErrorCode.REBALANCE_IN_PROGRESS
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if again else code
    return _joined(call, JoinGroupResponse(code, member_id=call.fields.member_id))


# -- SyncGroup --------------------------------------------------------------------------------------------------------

_MUST_NAME_PROTOCOL = 5


def _sync(call: KafkaCall) -> SyncGroupRequest:
    fields = call.fields
    protocol_type, protocol_name = fields.get("protocol_type"), fields.get("protocol_name")
    if call.version >= _MUST_NAME_PROTOCOL and None in (protocol_type, protocol_name):
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "SyncGroup must name the protocol and its type")
    return SyncGroupRequest(
        group_id=fields.group_id,
        generation_id=fields.generation_id,
        member_id=fields.member_id,
        group_instance_id=fields.get("group_instance_id"),
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=[SyncGroupAssignment(item.member_id, item.assignment) for item in fields.assignments],
    )


def _synced(call: KafkaCall, body: SyncGroupResponse) -> dict[str, Any]:
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": body.error_code,
        "protocol_type": body.protocol_type,
        "protocol_name": body.protocol_name,
        "assignment": body.assignment,
    }


def _sync_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    is_loading = code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return _synced(call, SyncGroupResponse(ErrorCode.REBALANCE_IN_PROGRESS if is_loading else code))


# -- Heartbeat --------------------------------------------------------------------------------------------------------


def _heartbeat(call: KafkaCall) -> HeartbeatRequest:
    fields = call.fields
    return HeartbeatRequest(fields.group_id, fields.generation_id, fields.member_id, fields.get("group_instance_id"))


def _beaten(call: KafkaCall, body: HeartbeatResponse) -> dict[str, Any]:
    return {"throttle_time_ms": body.throttle_time_ms, "error_code": body.error_code}


def _heartbeat_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    is_loading = code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return _beaten(call, HeartbeatResponse(ErrorCode.NONE if is_loading else code))


# -- LeaveGroup -------------------------------------------------------------------------------------------------------

_MANY_MEMBERS = 3


def _leave(call: KafkaCall) -> LeaveGroupRequest:
    fields = call.fields
    if call.version < _MANY_MEMBERS:
        return LeaveGroupRequest(fields.group_id, [LeavingMember(fields.member_id)])
    members = [LeavingMember(m.member_id, m.group_instance_id, m.get("reason")) for m in fields.members]
    return LeaveGroupRequest(fields.group_id, members)


def _left(call: KafkaCall, body: LeaveGroupResponse) -> dict[str, Any]:
    code = body.error_code
    if call.version < _MANY_MEMBERS:
        code = code or next((member.error_code for member in body.members if member.error_code), 0)
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": code,
        "members": [
            {"member_id": m.member_id, "group_instance_id": m.group_instance_id, "error_code": m.error_code} for m in body.members
        ],
    }


APIS = (
    KafkaApi(11, "JoinGroup", apis.JOIN_GROUP, 0, 9, _join, _joined, _join_refused),
    KafkaApi(12, "Heartbeat", apis.HEARTBEAT, 0, 4, _heartbeat, _beaten, _heartbeat_refused),
    KafkaApi(13, "LeaveGroup", apis.LEAVE_GROUP, 0, 5, _leave, _left, refused_at_top),
    KafkaApi(14, "SyncGroup", apis.SYNC_GROUP, 0, 5, _sync, _synced, _sync_refused),
)
