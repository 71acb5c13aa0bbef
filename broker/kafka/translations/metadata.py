"""Metadata: the brokers, as this listener's clients reach them, and the topics.

    topics    null: all; empty: none, but in version 0 all
    by id     from version 10 on, with a null name

A topic that does not exist is created if the client allows it and `auto.create.topics.enable` does, with the rights of the
client. Such a topic is answered as Kafka answers: LEADER_NOT_AVAILABLE, and the client asks again."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.broker.kafka.inner_request import ask
from strandline.broker.kafka.translations.authorized_operations import NOT_ASKED, authorized_operations
from strandline.broker.kafka.translations.topics_by_name import code_by_name
from strandline.controller.metadata.topic_names import name_problem
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    MetadataTopicRequest,
)
from strandline.protocol.messages.common import ZERO_UUID
from strandline.protocol.messages.security import CLUSTER_NAME, CLUSTER_RESOURCE, DESCRIBE, TOPIC_RESOURCE
from strandline.protocol.rpc.server_connection import Handler, ServerRequest

_CREATION_MS = 15_000


def _to_ours(call: KafkaCall) -> MetadataRequest:
    topics = call.fields.topics
    if topics is None or (call.version == 0 and not topics):
        return MetadataRequest(None)
    return MetadataRequest([MetadataTopicRequest(t.name or None, t.get("topic_id", ZERO_UUID)) for t in topics])


def _serve(request: ServerRequest, call: KafkaCall, handler: Handler) -> Awaitable[None] | None:
    request.body = _to_ours(call)
    missing = _missing(call)
    if missing:
        return _create_first(request, call, handler, missing)
    return handler(request)


def _missing(call: KafkaCall) -> list[str]:
    """The names of the topics to create."""
    if not call.context.auto_create_topics or not call.fields.get("allow_auto_topic_creation", True):
        return []
    names = dict.fromkeys(topic.name for topic in call.fields.topics or [] if topic.name)
    return [name for name in names if call.context.topic_id(name) is None]


async def _create_first(request: ServerRequest, call: KafkaCall, handler: Handler, names: list[str]) -> None:
    call.notes = await _create(request, names)
    result = handler(request)
    if result is not None:
        await result


async def _create(request: ServerRequest, names: list[str]) -> dict[str, int]:
    """Create topics with the cluster's defaults. Returns what each name is answered with, until the topic is known here."""
    creation = CreateTopicsRequest([CreatableTopic(name) for name in names], _CREATION_MS)
    try:
        answer = await ask(request, apis.CREATE_TOPICS, creation)
    except BrokerError as e:
        return dict.fromkeys(names, e.code)
    return {topic.name: topic.error_code or ErrorCode.LEADER_NOT_AVAILABLE for topic in answer.topics}


_ALREADY_THERE = (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NONE)


def _to_kafka(call: KafkaCall, body: MetadataResponse) -> dict[str, Any]:
    ids = [broker.node_id for broker in body.brokers]
    own = call.connection.server.node_id
    asks_cluster = call.fields.get("include_cluster_authorized_operations", False)
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "brokers": [{"node_id": b.node_id, "host": b.host, "port": b.port, "rack": b.rack} for b in body.brokers],
        "cluster_id": body.cluster_id,
        "controller_id": own if own in ids else next(iter(ids), -1),
        "topics": [_topic(call, topic) for topic in body.topics],
        "cluster_authorized_operations": (
            authorized_operations(call, CLUSTER_RESOURCE, CLUSTER_NAME) if asks_cluster else NOT_ASKED
        ),
        "error_code": ErrorCode.NONE,
    }


def _code(call: KafkaCall, topic: MetadataTopic) -> int:
    """A topic that is missing: whether it will be there soon, cannot be there, or must not be asked for."""
    name = topic.name
    if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or name is None:
        return topic.error_code
    created = call.notes.get(name) if call.notes else None
    if created is not None:
        return ErrorCode.LEADER_NOT_AVAILABLE if created in _ALREADY_THERE else created
    if name_problem(name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return code_by_name(call, name, topic.error_code, DESCRIBE)


def _topic(call: KafkaCall, topic: MetadataTopic) -> dict[str, Any]:
    asks = call.fields.get("include_topic_authorized_operations", False)
    return {
        "error_code": _code(call, topic),
        "name": topic.name if topic.name is not None or call.version >= 12 else "",
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [
            {
                "error_code": p.error_code,
                "partition_index": p.partition,
                "leader_id": p.leader_id,
                "leader_epoch": p.leader_epoch,
                "replica_nodes": p.replica_nodes,
                "isr_nodes": p.isr_nodes,
                "offline_replicas": p.offline_replicas,
            }
            for p in topic.partitions
        ],
        "topic_authorized_operations": (
            authorized_operations(call, TOPIC_RESOURCE, topic.name) if asks and topic.name else NOT_ASKED
        ),
    }


def _refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    """The error of each topic that was named, because below version 13 there is none at the top."""
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
