"""The operations that a client may perform on a resource, as a set of bits: bit n for the operation with the number n. A response
has the set if the request asks for it. Without an authorizer the client may perform all operations."""

from __future__ import annotations

from strandline.broker.kafka.call import KafkaCall
from strandline.broker.kafka.translations.topics_by_name import access_of
from strandline.protocol.messages.security import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER_ACTION,
    CLUSTER_NAME,
    CLUSTER_RESOURCE,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP_RESOURCE,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC_RESOURCE,
    WRITE,
)

NOT_ASKED = -(2**31)
"""The value of the field if the client has not asked."""
_OPERATIONS = {
    TOPIC_RESOURCE: (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    GROUP_RESOURCE: (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    CLUSTER_RESOURCE: (CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE),
}
"""The operations that exist on resources of a type, in Kafka 4.3."""


def cluster_operations(call: KafkaCall, is_asked: bool) -> int:
    """The operations that the client may perform on the cluster; 0 if it may not even describe the cluster."""
    if not is_asked:
        return NOT_ASKED
    access = access_of(call)
    if access is not None and not access.may(DESCRIBE, CLUSTER_RESOURCE, CLUSTER_NAME):
        return 0
    return authorized_operations(call, CLUSTER_RESOURCE, CLUSTER_NAME)


def authorized_operations(call: KafkaCall, resource_type: int, name: str) -> int:
    access = access_of(call)
    operations = _OPERATIONS[resource_type]
    return sum(1 << operation for operation in operations if access is None or access.sees(operation, resource_type, name))
