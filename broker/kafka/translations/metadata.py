"""Metadata: the brokers, as this listener's clients reach them, and the topics.

    topics    null: all; empty: none, but in version 0 all
    by id     from version 12 on, with a null name; if one topic has an id, topics without an id are left out

A topic that does not exist is created if the client and `auto.create.topics.enable` allow it, with the rights of the client. The
answer is LEADER_NOT_AVAILABLE until this broker knows the topic, and while a temporary reason prevents the creation; then the
client asks again.

A broker that does not know the cluster yet answers with an error, for which there is no field below version 13. An answer without
brokers would mean that there are none (librdkafka drops those that it knows), so the connection is closed. A broker that starts
accepts Kafka's clients only later (`broker/process/server.py`)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.broker.kafka.inner_request import ask
from strandline.broker.kafka.translations.authorized_operations import (
    NOT_ASKED,
    authorized_operations,
    cluster_operations,
)
from strandline.broker.kafka.translations.topics_by_name import access_of, code_by_name
from strandline.controller.metadata.topic_names import name_problem
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    MetadataTopicRequest,
)
from strandline.protocol.messages.common import ZERO_UUID
from strandline.protocol.messages.security import DESCRIBE, TOPIC_RESOURCE
from strandline.protocol.rpc.server_connection import Handler, ServerRequest

_CREATION_MS = 2000
"""The time for which the client waits for a creation. Its next requests wait, too, even those for existing topics."""
_FIRST_WITH_IDS = 12


def _to_ours(call: KafkaCall) -> MetadataRequest:
    topics = call.fields.topics
    if topics is None or (call.version == 0 and not topics):
        return MetadataRequest(None)
    asked = dict.fromkeys((topic.name, topic.get("topic_id", ZERO_UUID)) for topic in topics)
    if call.version < _FIRST_WITH_IDS and any(name is None or topic_id != ZERO_UUID for name, topic_id in asked):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"version {call.version} asks for topics by their names only")
    ids = dict.fromkeys(topic_id for _, topic_id in asked if topic_id != ZERO_UUID)
    if ids:
        return MetadataRequest([MetadataTopicRequest(None, topic_id) for topic_id in ids])
    return MetadataRequest([MetadataTopicRequest(name) for name, _ in asked])


def _serve(request: ServerRequest, call: KafkaCall, handler: Handler) -> Awaitable[None] | None:
    request.body = _to_ours(call)
    missing = _missing(call, request.body)
    if missing:
        return _create_first(request, call, handler, missing)
    return handler(request)


def _missing(call: KafkaCall, body: MetadataRequest) -> list[str]:
    """The names of the topics to create. A topic that the client may not describe is not created."""
    if not call.context.auto_create_topics or not call.fields.get("allow_auto_topic_creation", True):
        return []
    names = [t.name for t in body.topics or () if t.name is not None and call.context.topic_id(t.name) is None]
    access = access_of(call) if names else None
    return names if access is None else [name for name in names if access.sees(DESCRIBE, TOPIC_RESOURCE, name)]


async def _create_first(request: ServerRequest, call: KafkaCall, handler: Handler, names: list[str]) -> None:
    call.notes = await _create(request, call, names)
    result = handler(request)
    if result is not None:
        await result


async def _create(request: ServerRequest, call: KafkaCall, names: list[str]) -> dict[str, int]:
    """Create topics with the cluster's defaults, and internal topics as their coordinators create them. Returns the error code of
    each name, which the client gets until this broker knows the topic."""
    internal = call.context.internal_topics
    topics = [internal[name].creatable() if name in internal else CreatableTopic(name) for name in names]
    try:
        answer = await ask(request, apis.CREATE_TOPICS, CreateTopicsRequest(topics, _CREATION_MS))
    except BrokerError as e:
        return dict.fromkeys(names, _until_known(e.code))
    return {topic.name: _until_known(topic.error_code) for topic in answer.topics}


_FINAL = (
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_REPLICATION_FACTOR,
    ErrorCode.INVALID_PARTITIONS,
    ErrorCode.INVALID_CONFIG,
    ErrorCode.POLICY_VIOLATION,
)
"""Errors of a creation that a retry would not remove."""


def _until_known(code: int) -> int:
    return code if code in _FINAL else ErrorCode.LEADER_NOT_AVAILABLE


def _to_kafka(call: KafkaCall, body: MetadataResponse) -> dict[str, Any]:
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "brokers": [{"node_id": b.node_id, "host": b.host, "port": b.port, "rack": b.rack} for b in body.brokers],
        "cluster_id": body.cluster_id,
        "controller_id": controller_of(call, [broker.node_id for broker in body.brokers]),
        "topics": [_topic(call, topic) for topic in body.topics],
        "cluster_authorized_operations": cluster_operations(
            call, call.fields.get("include_cluster_authorized_operations", False)
        ),
        "error_code": ErrorCode.NONE,
    }


def _code(call: KafkaCall, topic: MetadataTopic) -> int:
    """The error code of a topic. That of a topic that does not exist says whether it will exist soon, has an impossible name, or
    is hidden from the client."""
    name = topic.name
    if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or name is None:
        return topic.error_code
    created: int | None = call.notes.get(name) if call.notes else None
    if created is not None:
        return created
    if name_problem(name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return code_by_name(call, name, topic.error_code, DESCRIBE)


def _topic(call: KafkaCall, topic: MetadataTopic) -> dict[str, Any]:
    code = _code(call, topic)
    asks = code != ErrorCode.TOPIC_AUTHORIZATION_FAILED and call.fields.get("include_topic_authorized_operations", False)
    return {
        "error_code": code,
        "name": topic.name if topic.name is not None or call.version >= 12 else "",
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [partition_fields(partition) for partition in topic.partitions],
        "topic_authorized_operations": (
            authorized_operations(call, TOPIC_RESOURCE, topic.name) if asks and topic.name is not None else NOT_ASKED
        ),
    }


def partition_fields(partition: MetadataPartition) -> dict[str, Any]:
    """The fields of a partition that Metadata and DescribeTopicPartitions have in common."""
    return {
        "error_code": partition.error_code,
        "partition_index": partition.partition,
        "leader_id": partition.leader_id,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replica_nodes,
        "isr_nodes": partition.isr_nodes,
        "offline_replicas": partition.offline_replicas,
    }


def controller_of(call: KafkaCall, alive: list[int]) -> int:
    """The broker that clients take for the controller: this broker, or another one that is alive. Each broker forwards requests
    to the real controller."""
    own = call.connection.server.node_id
    return own if own in alive else next(iter(alive), -1)


_HAS_TOP_ERROR = 13


def _refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    """The error in each topic that the request names, because below version 13 the response has no error at the top."""
    if code == ErrorCode.BROKER_NOT_AVAILABLE and call.version < _HAS_TOP_ERROR:
        call.connection.close()  # so that these fields are not sent
    topics = [
        {
            "error_code": code,
            "name": topic.name or "",
            "topic_id": topic.get("topic_id", ZERO_UUID),
            "is_internal": False,
            "partitions": [],
        }
        for topic in call.fields.topics or []
    ]
    return {**refused_at_top(call, code, message), "topics": topics}


APIS = (KafkaApi(3, "Metadata", apis.METADATA, 0, 13, _to_ours, _to_kafka, _refused, serve=_serve),)
