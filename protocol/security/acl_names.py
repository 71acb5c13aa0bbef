"""Kafka's names of the operations, resource types, pattern types and permissions of access rules."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.protocol.messages import security

OPERATION_NAMES: Mapping[int, str] = {
    security.ALL: "ALL",
    security.READ: "READ",
    security.WRITE: "WRITE",
    security.CREATE: "CREATE",
    security.DELETE: "DELETE",
    security.ALTER: "ALTER",
    security.DESCRIBE: "DESCRIBE",
    security.CLUSTER_ACTION: "CLUSTER_ACTION",
    security.DESCRIBE_CONFIGS: "DESCRIBE_CONFIGS",
    security.ALTER_CONFIGS: "ALTER_CONFIGS",
    security.IDEMPOTENT_WRITE: "IDEMPOTENT_WRITE",
}
RESOURCE_TYPE_NAMES: Mapping[int, str] = {
    security.TOPIC_RESOURCE: "TOPIC",
    security.GROUP_RESOURCE: "GROUP",
    security.CLUSTER_RESOURCE: "CLUSTER",
    security.TRANSACTIONAL_ID_RESOURCE: "TRANSACTIONAL_ID",
    security.USER_RESOURCE: "USER",
}
PATTERN_TYPE_NAMES: Mapping[int, str] = {security.LITERAL_PATTERN: "LITERAL", security.PREFIXED_PATTERN: "PREFIXED"}
PERMISSION_NAMES: Mapping[int, str] = {security.DENY: "DENY", security.ALLOW: "ALLOW"}


def operation_name(operation: int) -> str:
    """The name of an operation; its number if this version does not know it."""
    return OPERATION_NAMES.get(operation, str(operation))


def resource_name(resource_type: int, name: str) -> str:
    """A resource as it is printed in messages: `TOPIC:orders`."""
    return f"{RESOURCE_TYPE_NAMES.get(resource_type, resource_type)}:{name}"
