"""DescribeAcls, CreateAcls and DeleteAcls. Our rules have Kafka's fields and numbers."""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.security import (
    AclBinding,
    AclFilter,
    AclResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteAclsResult,
    DescribeAclsRequest,
    DescribeAclsResponse,
)


def _filter(fields: Any) -> AclFilter:
    return AclFilter(
        fields.resource_type_filter,
        fields.resource_name_filter,
        fields.pattern_type_filter,
        fields.principal_filter,
        fields.host_filter,
        fields.operation,
        fields.permission_type,
    )


# -- DescribeAcls -----------------------------------------------------------------------------------------------------


def _describe(call: KafkaCall) -> DescribeAclsRequest:
    return DescribeAclsRequest(_filter(call.fields))


def _described(call: KafkaCall, body: DescribeAclsResponse) -> dict[str, Any]:
    resources: dict[tuple[int, str, int], list[dict[str, Any]]] = {}
    for acl in body.acls:
        rows = resources.setdefault((acl.resource_type, acl.resource_name, acl.pattern_type), [])
        rows.append(
            {
                "principal": acl.principal,
                "host": acl.host,
                "operation": acl.operation,
                "permission_type": acl.permission_type,
            }
        )
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": body.error_code,
        "error_message": body.error_message,
        "resources": [
            {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": rows}
            for (kind, name, pattern), rows in resources.items()
        ],
    }


# -- CreateAcls -------------------------------------------------------------------------------------------------------


def _create(call: KafkaCall) -> CreateAclsRequest:
    return CreateAclsRequest(
        [
            AclBinding(
                c.resource_type,
                c.resource_name,
                c.resource_pattern_type,
                c.principal,
                c.host,
                c.operation,
                c.permission_type,
            )
            for c in call.fields.creations
        ]
    )


def _created(call: KafkaCall, body: CreateAclsResponse) -> dict[str, Any]:
    rows = [{"error_code": result.error_code, "error_message": result.error_message} for result in body.results]
    return {"throttle_time_ms": body.throttle_time_ms, "results": rows}


def _create_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return _created(call, CreateAclsResponse([AclResult(code, message) for _ in call.fields.creations]))


# -- DeleteAcls -------------------------------------------------------------------------------------------------------


def _delete(call: KafkaCall) -> DeleteAclsRequest:
    return DeleteAclsRequest([_filter(fields) for fields in call.fields.filters])


def _deleted(call: KafkaCall, body: DeleteAclsResponse) -> dict[str, Any]:
    rows = [
        {
            "error_code": result.error_code,
            "error_message": result.error_message,
            "matching_acls": [_matching(acl) for acl in result.deleted],
        }
        for result in body.results
    ]
    return {"throttle_time_ms": body.throttle_time_ms, "filter_results": rows}


def _matching(acl: AclBinding) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "resource_type": acl.resource_type,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission_type,
    }


def _delete_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return _deleted(call, DeleteAclsResponse([DeleteAclsResult(code, message) for _ in call.fields.filters]))


APIS = (
    KafkaApi(29, "DescribeAcls", apis.DESCRIBE_ACLS, 1, 3, _describe, _described, refused_at_top),
    KafkaApi(30, "CreateAcls", apis.CREATE_ACLS, 1, 3, _create, _created, _create_refused),
    KafkaApi(31, "DeleteAcls", apis.DELETE_ACLS, 1, 3, _delete, _deleted, _delete_refused),
)
