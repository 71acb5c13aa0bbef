"""Requests that name their topics, while requests in Strandline's protocol have the topics' ids.

A name that does not exist never reaches a handler: the items under it get UNKNOWN_TOPIC_OR_PARTITION. Kafka checks the rights of
the client first, so that a client without a right on the name cannot find out whether the topic exists. So a client without the
right gets TOPIC_AUTHORIZATION_FAILED, whether there is such a topic or not (`code_by_name`). A handler may answer
UNKNOWN_TOPIC_ID for a topic whose name was found, because the topic has been deleted since, or is hidden from the client. Then
the client gets one of the same two codes.

    names of the request --resolve, ask--> items with ids --handler--> rows --answered, by_topic--> rows under names
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from strandline.broker.kafka.call import KafkaCall
from strandline.controller.metadata.security.access import Access
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.security import TOPIC_RESOURCE
from strandline.protocol.security.principal import Principal

_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def resolve(call: KafkaCall, names: Iterable[str]) -> dict[str, bytes]:
    """The ids of the topics that exist, by name."""
    by_name = call.context.image().topics_by_name
    found = {}
    for name in names:
        topic_id = by_name.get(name)
        if topic_id is not None:
            found[name] = topic_id
    return found


def code_by_name(call: KafkaCall, name: str, code: int, operation: int) -> int:
    """The error code of an item that the request has under a topic's name. `operation`: the right that the item needs."""
    return code_unless_denied(call, name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, operation) if code in _UNKNOWN else code


def code_unless_denied(call: KafkaCall, name: str, code: int, operation: int) -> int:
    """The error code of an item that does not reach the handler. A client without the right gets TOPIC_AUTHORIZATION_FAILED
    instead, because any other code would reveal that the topic exists."""
    access = access_of(call)
    return code if access is None or access.may(operation, TOPIC_RESOURCE, name) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def judged_first(call: KafkaCall, name: str, number: int, operation: int) -> int:
    """The error code of a partition that Kafka finds before it checks the member or the producer: the client does not have the
    right on the topic, or the partition does not exist. NONE otherwise."""
    is_known = is_known_partition(call, name, number)
    return code_unless_denied(call, name, ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, operation)


def is_known_partition(call: KafkaCall, name: str, number: int) -> bool:
    """Whether the cluster has the partition, on whichever brokers."""
    topic = call.context.image().topic(name)
    return topic is not None and number in topic.partitions


def code_by_id(call: KafkaCall, topic_id: bytes, code: int, operation: int) -> int:
    """The error code of an item that the request has under a topic's id. A client that knows the id of a topic without having the
    right on it gets TOPIC_AUTHORIZATION_FAILED, as in Kafka: with UNKNOWN_TOPIC_ID, librdkafka would wait silently after the
    right is revoked."""
    name = call.context.topic_name(topic_id)
    if code != ErrorCode.UNKNOWN_TOPIC_ID or name is None:
        return code
    return code_unless_denied(call, name, code, operation)


def access_of(call: KafkaCall) -> Access | None:
    """The rights of the client; None: it may do everything."""
    rights = call.context.rights
    if rights is None:
        return None
    connection = call.connection
    return rights.access_of(
        _Sender(connection.principal, connection.host, call.api.ours, connection.client_id, connection.last_received_at)
    )


class _Sender(NamedTuple):
    """The sender of a request, with the fields that `Access` reads."""

    principal: Principal
    client_host: str
    api_key: int
    client_id: str | None
    received_at: float


# -- items of a request, and the rows of its response -----------------------------------------------------------------


class Asked(NamedTuple):
    """A partition of the request, under the name of its topic."""

    name: str
    topic_id: bytes
    """Empty: there is no such topic, or no such partition, because its number is below zero."""
    item: Any
    is_passed: bool
    """Whether the item is in the request that the handler gets."""


def ask(
    call: KafkaCall,
    topics: Iterable[Any],
    name_field: str = "name",
    items_field: str = "partitions",
    leave_out: Callable[[Any], bool] = lambda item: False,
) -> list[Asked]:
    """The partitions of a request that the handler gets, in their order: those of topics that exist, except where `leave_out` is
    true. All partitions, with and without handler, are kept in `call.notes` for `answered`."""
    topics = list(topics)
    ids = resolve(call, (getattr(topic, name_field) for topic in topics))
    call.notes = notes = []
    for topic in topics:
        name = getattr(topic, name_field)
        topic_id = ids.get(name, b"")
        for item in getattr(topic, items_field) or ():
            if number_of(item) < 0:
                notes.append(Asked(name, b"", item, False))
            else:
                notes.append(Asked(name, topic_id, item, bool(topic_id) and not leave_out(item)))
    return [asked for asked in notes if asked.is_passed]


def number_of(item: Any) -> int:
    """The number of a partition in a request."""
    if isinstance(item, int):
        return item
    number: int = item.partition_index if hasattr(item, "partition_index") else item.partition
    return number


def existing(numbers: Iterable[int]) -> list[int]:
    """The numbers that are not below zero. A handler would refuse the whole request because of the others."""
    return [number for number in numbers if number >= 0]


def answered(call: KafkaCall, rows: Iterable[Any]) -> Iterator[tuple[Asked, Any]]:
    """The partitions of the request, each with its row of the handler's response, which has the same order; None in place of a
    row if the handler did not get the partition."""
    left = iter(rows)
    for asked in call.notes:
        yield asked, next(left) if asked.is_passed else None


def by_topic(rows: Iterable[tuple[Any, dict[str, Any]]], name_field: str = "name", rows_field: str = "partitions") -> list[Any]:
    """Rows of partitions, grouped by topic. The topics are in the order of their first rows."""
    topics: dict[Any, list[dict[str, Any]]] = {}
    for name, row in rows:
        topics.setdefault(name, []).append(row)
    return [{name_field: name, rows_field: found} for name, found in topics.items()]
