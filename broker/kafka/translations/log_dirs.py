"""DescribeLogDirs and AlterReplicaLogDirs: the log directories of the broker that gets the request."""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.broker.kafka.translations.topics_by_name import existing, is_known_partition
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import (
    AlterReplicaLogDir,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsTopic,
)

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _describe(call: KafkaCall) -> DescribeLogDirsRequest:
    topics = call.fields.topics
    return DescribeLogDirsRequest(None if topics is None else [_asked(t) for t in topics])


def _asked(topic: Any) -> DescribableLogDirTopic:
    return DescribableLogDirTopic(topic.topic, existing(topic.partitions))


def _described(call: KafkaCall, body: DescribeLogDirsResponse) -> dict[str, Any]:
    results = [
        {
            "error_code": result.error_code,
            "log_dir": result.log_dir,
            "topics": [_topic(topic) for topic in result.topics],
            "total_bytes": result.total_bytes,
            "usable_bytes": result.usable_bytes,
            "is_cordoned": result.is_cordoned,
        }
        for result in body.results
    ]
    return {"throttle_time_ms": body.throttle_time_ms, "error_code": body.error_code, "results": results}


def _topic(topic: DescribeLogDirsTopic) -> dict[str, Any]:
    rows = [
        {
            "partition_index": p.partition_index,
            "partition_size": p.partition_size,
            "offset_lag": p.offset_lag,
            "is_future_key": p.is_future_key,
        }
        for p in topic.partitions
    ]
    return {"name": topic.name, "partitions": rows}


def _move(call: KafkaCall) -> AlterReplicaLogDirsRequest:
    dirs = call.fields.dirs
    return AlterReplicaLogDirsRequest(
        [AlterReplicaLogDir(d.path, [AlterReplicaLogDirTopic(t.name, existing(t.partitions)) for t in d.topics]) for d in dirs]
    )


def _moved(call: KafkaCall, body: AlterReplicaLogDirsResponse) -> dict[str, Any]:
    results = [
        {
            "topic_name": topic.topic_name,
            "partitions": [
                {"partition_index": p.partition_index, "error_code": _code(call, topic.topic_name, p)} for p in topic.partitions
            ],
        }
        for topic in body.results
    ]
    results += [
        {"topic_name": topic.name, "partitions": [{"partition_index": number, "error_code": _UNKNOWN}]}
        for log_dir in call.fields.dirs
        for topic in log_dir.topics
        for number in topic.partitions
        if number < 0
    ]
    return {"throttle_time_ms": body.throttle_time_ms, "results": results}


def _code(call: KafkaCall, name: str, row: AlterReplicaLogDirPartitionResult) -> int:
    """The error code of a partition. Kafka has two codes where the handler has one: for a partition that does not exist, and for
    one without a replica on this broker."""
    has_none = row.error_code == ErrorCode.REPLICA_NOT_AVAILABLE
    return _UNKNOWN if has_none and not is_known_partition(call, name, row.partition_index) else row.error_code


def _move_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    results = [
        {"topic_name": topic.name, "partitions": [{"partition_index": index, "error_code": code} for index in topic.partitions]}
        for log_dir in call.fields.dirs
        for topic in log_dir.topics
    ]
    return {"throttle_time_ms": 0, "results": results}


APIS = (
    KafkaApi(35, "DescribeLogDirs", apis.DESCRIBE_LOG_DIRS, 1, 5, _describe, _described, refused_at_top),
    KafkaApi(34, "AlterReplicaLogDirs", apis.ALTER_REPLICA_LOG_DIRS, 1, 2, _move, _moved, _move_refused),
)
