"""DescribeTopicPartitions: topics with the eligible leader replicas of their partitions, page by page (KIP-966).

The topics are sorted by name. A page has as many partitions as the client wants, and at most `PAGE_MAX`; `next_cursor` names the
first partition of the next page."""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall
from strandline.broker.kafka.translations.authorized_operations import authorized_operations
from strandline.broker.kafka.translations.metadata import partition_fields
from strandline.broker.kafka.translations.topics_by_name import code_by_name
from strandline.controller.metadata.topic_names import name_problem
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    MetadataTopicRequest,
)
from strandline.protocol.messages.common import ZERO_UUID
from strandline.protocol.messages.security import DESCRIBE, TOPIC_RESOURCE

PAGE_MAX = 2000
"""Kafka's `max.request.partition.size.limit`."""


def _to_ours(call: KafkaCall) -> MetadataRequest:
    """An empty list of names asks for all topics. The cursor must be at one of the names."""
    names, cursor = dict.fromkeys(topic.name for topic in call.fields.topics), call.fields.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "the partition of the cursor is negative")
    if not names:
        return MetadataRequest(None)
    if cursor is not None and cursor.topic_name not in names:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"the cursor is at topic {cursor.topic_name!r}, which is not asked for")
    left = (name for name in names if cursor is None or name >= cursor.topic_name)
    return MetadataRequest([MetadataTopicRequest(name) for name in sorted(left)])


def _to_kafka(call: KafkaCall, body: MetadataResponse) -> dict[str, Any]:
    fields, cursor = call.fields, call.fields.cursor
    left = max(1, min(fields.response_partition_limit, PAGE_MAX))
    topics: list[dict[str, Any]] = []
    next_cursor = None
    for topic in sorted(body.topics, key=lambda topic: topic.name or ""):
        name = topic.name or ""
        if cursor is not None and name < cursor.topic_name:
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        partitions = [p for p in topic.partitions if p.partition >= first]
        if topics and not left:
            next_cursor = {"topic_name": name, "partition_index": first}
            break
        topics.append(_topic(call, topic, partitions[:left]))
        if len(partitions) > left:
            next_cursor = {"topic_name": name, "partition_index": partitions[left].partition}
            break
        left -= len(partitions)
    return {"throttle_time_ms": body.throttle_time_ms, "topics": topics, "next_cursor": next_cursor}


def _topic(call: KafkaCall, topic: MetadataTopic, partitions: list[MetadataPartition]) -> dict[str, Any]:
    name, code = topic.name or "", topic.error_code
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and name_problem(name):
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return {
        "error_code": code_by_name(call, name, code, DESCRIBE),
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [_partition(partition) for partition in partitions],
        "topic_authorized_operations": authorized_operations(call, TOPIC_RESOURCE, name),
    }


def _partition(partition: MetadataPartition) -> dict[str, Any]:
    return {
        **partition_fields(partition),
        "eligible_leader_replicas": partition.eligible_leader_replicas,
        "last_known_elr": partition.last_known_elr,
    }


def _refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    rows = [{"error_code": code, "name": topic.name, "topic_id": ZERO_UUID, "partitions": []} for topic in call.fields.topics]
    return {"throttle_time_ms": 0, "topics": rows, "next_cursor": None}


APIS = (KafkaApi(75, "DescribeTopicPartitions", apis.METADATA, 0, 0, _to_ours, _to_kafka, _refused),)
