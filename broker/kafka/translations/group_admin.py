"""ListGroups, DescribeGroups and DeleteGroups: requests of operators about groups of both protocols.

DescribeGroups describes groups of the classic protocol. The response for a group that does not exist, or has the newer protocol,
is GROUP_ID_NOT_FOUND from version 6 on. Below that it is a group in the state Dead, which is no error. A group that the request
names twice is described twice."""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.broker.kafka.translations.authorized_operations import NOT_ASKED, authorized_operations
from strandline.broker.kafka.translations.client_hosts import client_host
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import (
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from strandline.protocol.messages.security import GROUP_RESOURCE

# -- ListGroups -------------------------------------------------------------------------------------------------------


def _list(call: KafkaCall) -> ListGroupsRequest:
    return ListGroupsRequest(call.fields.get("states_filter", []), call.fields.get("types_filter", []))


def _listed(call: KafkaCall, body: ListGroupsResponse) -> dict[str, Any]:
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": body.error_code,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.group_state,
                "group_type": group.group_type,
            }
            for group in body.groups
        ],
    }


# -- DescribeGroups ---------------------------------------------------------------------------------------------------

_KNOWS_NOT_FOUND = 6
DEAD = "Dead"


def _describe(call: KafkaCall) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(call.fields.groups)


def _described(call: KafkaCall, body: DescribeGroupsResponse) -> dict[str, Any]:
    groups = {group.group_id: _group(call, group) for group in body.groups}
    return {"throttle_time_ms": body.throttle_time_ms, "groups": [groups[group_id] for group_id in call.fields.groups]}


def _group(call: KafkaCall, group: DescribedGroup) -> dict[str, Any]:
    code, state, message = group.error_code, group.group_state, group.error_message
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        code, state = (code if call.version >= _KNOWS_NOT_FOUND else ErrorCode.NONE), DEAD
    is_asked = call.fields.get("include_authorized_operations", False) and not code
    return {
        "error_code": code,
        "error_message": message,
        "group_id": group.group_id,
        "group_state": state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_data,
        "members": [_member(member) for member in group.members],
        "authorized_operations": authorized_operations(call, GROUP_RESOURCE, group.group_id) if is_asked else NOT_ASKED,
    }


def _member(member: DescribedMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": client_host(member.client_host),
        "member_metadata": member.member_metadata,
        "member_assignment": member.member_assignment,
    }


def _describe_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return _described(call, DescribeGroupsResponse([DescribedGroup(g, code, message) for g in call.fields.groups]))


# -- DeleteGroups -----------------------------------------------------------------------------------------------------


def _delete(call: KafkaCall) -> DeleteGroupsRequest:
    return DeleteGroupsRequest(call.fields.groups_names)


def _deleted(call: KafkaCall, body: DeleteGroupsResponse) -> dict[str, Any]:
    results = [{"group_id": result.group_id, "error_code": result.error_code} for result in body.results]
    return {"throttle_time_ms": body.throttle_time_ms, "results": results}


def _delete_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return _deleted(call, DeleteGroupsResponse([DeletedGroup(group_id, code) for group_id in call.fields.groups_names]))


APIS = (
    KafkaApi(15, "DescribeGroups", apis.DESCRIBE_GROUPS, 0, 6, _describe, _described, _describe_refused),
    KafkaApi(16, "ListGroups", apis.LIST_GROUPS, 0, 5, _list, _listed, refused_at_top),
    KafkaApi(42, "DeleteGroups", apis.DELETE_GROUPS, 0, 2, _delete, _deleted, _delete_refused),
)
