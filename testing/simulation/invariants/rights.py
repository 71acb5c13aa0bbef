"""I47 to I49: requests take effect only with the rights that they need, and nodes are not throttled.

I47  the guards of a handler pass no request whose sender lacks the right for it
I48  no consumer receives records of a topic that it may not read, and each decision about a right agrees with the rules
I49  requests between nodes are never throttled, and their connections are never muted

This module has a table of rights of its own, and decides with all rules of the committed metadata, one after the other
(`is_allowed`). The product decides with an index, a cache of decisions and deltas of its image. A node is judged by the metadata
that it has applied: a rule counts there as soon as the node has applied it, and not before.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from strandline.protocol import apis
from strandline.protocol.messages import security as m
from strandline.testing.simulation.invariants.violation import Violation

if TYPE_CHECKING:
    from strandline.controller.metadata.image import MetadataImage
    from strandline.testing.simulation.invariants.ghosts import Ghosts

Right = tuple[int, int, str]
"""Operation, resource type, name."""
Needs = Iterable[tuple[Right, ...]]
"""The needs of a request: of each tuple, the sender must have at least one right."""

_IMPLYING = {
    m.DESCRIBE: (m.DESCRIBE, m.READ, m.WRITE, m.DELETE, m.ALTER),
    m.DESCRIBE_CONFIGS: (m.DESCRIBE_CONFIGS, m.ALTER_CONFIGS),
}


# -- the oracle -------------------------------------------------------------------------------------------------------


def is_super_user(principal: Any) -> bool:
    """The nodes and the administrator, as `cluster/identities.py` configures them."""
    return str(principal) == "User:admin" or str(principal).startswith("User:node-")


def is_allowed(rules: Iterable[Any], principal: Any, host: str, right: Right) -> bool:
    """Decide by Kafka's rules, as plainly as possible."""
    if is_super_user(principal):
        return True
    operation, resource_type, name = right
    about = [
        rule for rule in rules if rule.resource_type == resource_type and _covers(rule, name) and _is_for(rule, principal, host)
    ]
    if any(rule.permission_type == m.DENY and rule.operation in (operation, m.ALL) for rule in about):
        return False
    permitting = (m.ALL, *_IMPLYING.get(operation, (operation,)))
    return any(rule.permission_type == m.ALLOW and rule.operation in permitting for rule in about)


def _covers(rule: Any, name: str) -> bool:
    if rule.pattern_type == m.PREFIXED_PATTERN:
        return bool(name.startswith(rule.resource_name))
    return rule.resource_name in ("*", name)


def _is_for(rule: Any, principal: Any, host: str) -> bool:
    if rule.principal not in (str(principal), "User:*"):
        return False
    if "/" in rule.host:
        return ipaddress.ip_address(host) in ipaddress.ip_network(rule.host)
    return rule.host in ("*", host)


# -- what requests need -----------------------------------------------------------------------------------------------

_NODE = ((m.CLUSTER_ACTION, m.CLUSTER_RESOURCE, m.CLUSTER_NAME),)


def _cluster(*operations: int) -> Callable[[Any, Any], Needs]:
    rights = tuple((operation, m.CLUSTER_RESOURCE, m.CLUSTER_NAME) for operation in operations)
    return lambda body, image: [rights]


def _of_topics(operation: int) -> Callable[[Any, Any], Needs]:
    def needs(body: Any, image: Any) -> Iterator[tuple[Right, ...]]:
        for item in body.partitions:
            topic = image.topics_by_id.get(item.topic_id)
            if topic is not None:
                yield ((operation, m.TOPIC_RESOURCE, topic.name),)

    return needs


def _produce(body: Any, image: Any) -> Iterator[tuple[Right, ...]]:
    yield from _of_topics(m.WRITE)(body, image)
    if body.transactional_id is not None:
        yield ((m.WRITE, m.TRANSACTIONAL_ID_RESOURCE, body.transactional_id),)


def _fetch(body: Any, image: Any) -> Needs:
    return [_NODE] if body.replica_id >= 0 else []


def _group(operation: int) -> Callable[[Any, Any], Needs]:
    return lambda body, image: [((operation, m.GROUP_RESOURCE, body.group_id),)]


def _transaction(body: Any, image: Any) -> Needs:
    named = body.transactional_id
    return [] if named is None else [((m.WRITE, m.TRANSACTIONAL_ID_RESOURCE, named),)]


def _named_topics(operation: int, of_cluster: int | None = None) -> Callable[[Any, Any], Needs]:
    def needs(body: Any, image: Any) -> Iterator[tuple[Right, ...]]:
        for item in body.topics:
            name = item.name or getattr(image.topics_by_id.get(getattr(item, "topic_id", b"")), "name", None)
            if name is not None:
                more = () if of_cluster is None else ((of_cluster, m.CLUSTER_RESOURCE, m.CLUSTER_NAME),)
                yield ((operation, m.TOPIC_RESOURCE, name), *more)

    return needs


NEEDS: dict[int, Callable[[Any, Any], Needs]] = {
    apis.PRODUCE: _produce,
    apis.FETCH: _fetch,
    apis.DELETE_RECORDS: _of_topics(m.DELETE),
    apis.OFFSET_COMMIT: _group(m.READ),
    apis.JOIN_GROUP: _group(m.READ),
    apis.SYNC_GROUP: _group(m.READ),
    apis.HEARTBEAT: _group(m.READ),
    apis.CONSUMER_GROUP_HEARTBEAT: _group(m.READ),
    apis.OFFSET_DELETE: _group(m.DELETE),
    apis.INIT_PRODUCER_ID: _transaction,
    apis.END_TXN: _transaction,
    apis.ADD_OFFSETS_TO_TXN: _transaction,
    apis.TXN_OFFSET_COMMIT: _transaction,
    apis.WRITE_TXN_MARKERS: _cluster(m.CLUSTER_ACTION, m.ALTER),
    apis.GET_REPLICA_LOG_INFO: _cluster(m.CLUSTER_ACTION),
    apis.CREATE_TOPICS: _named_topics(m.CREATE, m.CREATE),
    apis.DELETE_TOPICS: _named_topics(m.DELETE, m.DELETE),
    apis.CREATE_PARTITIONS: _named_topics(m.ALTER),
    **dict.fromkeys(
        (
            apis.ELECT_LEADERS,
            apis.ALTER_PARTITION_REASSIGNMENTS,
            apis.ALTER_REPLICA_LOG_DIRS,
            apis.UNREGISTER_BROKER,
            apis.UPDATE_FEATURES,
            apis.CREATE_ACLS,
            apis.DELETE_ACLS,
            apis.ALTER_USER_SCRAM_CREDENTIALS,
        ),
        _cluster(m.ALTER),
    ),
    apis.ALTER_CLIENT_QUOTAS: _cluster(m.ALTER_CONFIGS),
    **dict.fromkeys(
        (
            apis.VOTE,
            apis.BEGIN_QUORUM_EPOCH,
            apis.END_QUORUM_EPOCH,
            apis.FETCH_SNAPSHOT,
            apis.BROKER_REGISTRATION,
            apis.BROKER_HEARTBEAT,
            apis.ALTER_PARTITION,
            apis.ASSIGN_REPLICAS_TO_DIRS,
            apis.ALLOCATE_PRODUCER_IDS,
            apis.INIT_NAMED_PRODUCER,
        ),
        _cluster(m.CLUSTER_ACTION),
    ),
}
"""API key -> the rights that a request needs to reach its handler."""
FORWARDED = frozenset(
    {
        apis.CREATE_TOPICS,
        apis.DELETE_TOPICS,
        apis.CREATE_PARTITIONS,
        apis.ELECT_LEADERS,
        apis.ALTER_PARTITION_REASSIGNMENTS,
        apis.UNREGISTER_BROKER,
        apis.UPDATE_FEATURES,
        apis.CREATE_ACLS,
        apis.DELETE_ACLS,
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        apis.ALTER_CLIENT_QUOTAS,
    }
)
"""The API keys of requests that a broker forwards without a check of its own, because the controller decides."""


# -- the checks -------------------------------------------------------------------------------------------------------


def check_passed(ghosts: Ghosts, node: int, is_broker: bool, image: MetadataImage, request: Any) -> None:
    """I47: a request has passed its guards. `image`: the metadata that the node has applied."""
    key = request.api_key
    if (is_broker and key in FORWARDED) or is_super_user(request.principal):
        return
    if key == apis.FETCH and not is_broker:
        needs: Needs = [_NODE]
    elif key in NEEDS:
        needs = NEEDS[key](request.body, image)
    else:
        return
    rules = _rules(ghosts, image)
    for rights in needs:
        if not any(is_allowed(rules, request.principal, request.client_host, right) for right in rights):
            text = (
                f"{apis.api_name(key)} of {request.principal} reaches its handler on node {node}, but no rule at metadata "
                f"offset {image.offset} gives it a right of {rights}"
            )
            raise Violation("I47", text, node=node)


def check_envelope(node: int, request: Any) -> None:
    """I47: only a node may name the sender of a request that it forwards."""
    sender = request.connection.principal
    if not is_super_user(sender):
        text = f"controller {node} accepts an Envelope of {sender}, with {apis.api_name(request.api_key)} of {request.principal}"
        raise Violation("I47", text, node=node)


def check_decision(ghosts: Ghosts, node: int, access: Any, right: Right, is_granted: bool) -> None:
    """I48: a decision agrees with the rules in the metadata that the node has applied."""
    if access.image.offset < 0:
        return
    if is_allowed(_rules(ghosts, access.image), access.principal, access.host, right) != is_granted:
        text = (
            f"node {node} {'grants' if is_granted else 'denies'} {access.principal} {right}, against the rules at offset "
            f"{access.image.offset}"
        )
        raise Violation("I48", text, node=node)


def check_given(ghosts: Ghosts, node: int, image: MetadataImage, principal: Any, host: str, topic_id: bytes) -> None:
    """I48: a broker sends records of this topic to a consumer, which must have the right to read it."""
    topic = image.topics_by_id.get(topic_id)
    if topic is not None and not is_allowed(_rules(ghosts, image), principal, host, (m.READ, m.TOPIC_RESOURCE, topic.name)):
        text = f"broker {node} gives {principal} records of {topic.name}, which it may not read at metadata offset {image.offset}"
        raise Violation("I48", text, node=node)


def check_unthrottled(node: int, principal: Any, what: str) -> None:
    """I49: Violation if the principal, whose connection was throttled, is a node."""
    if str(principal).startswith("User:node-"):
        raise Violation("I49", f"node {node} {what} of {principal}, which is a node", node=node)


def _rules(ghosts: Ghosts, image: MetadataImage) -> list[Any]:
    """The rules of the committed metadata at the offset of this image."""
    committed = ghosts.metadata.image_at(image.offset)
    return list((image if committed is None else committed).acls.values())
