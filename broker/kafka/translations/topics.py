"""CreateTopics, DeleteTopics and CreatePartitions, which the broker forwards to the controller."""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall
from strandline.broker.kafka.codec import EncodedItems, Struct, Write, struct_codec
from strandline.broker.kafka.translations.configs import config_value
from strandline.broker.kafka.translations.topics_by_name import access_of, code_by_name
from strandline.controller.metadata.config_describe import topic_value_describer
from strandline.controller.metadata.config_keys import TOPIC_CONFIGS
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    TopicConfig,
)
from strandline.protocol.messages.common import ZERO_UUID
from strandline.protocol.messages.security import DELETE, DESCRIBE_CONFIGS, TOPIC_RESOURCE

# -- CreateTopics -----------------------------------------------------------------------------------------------------


def _create(call: KafkaCall) -> CreateTopicsRequest:
    fields = call.fields
    return CreateTopicsRequest([_creatable(topic) for topic in fields.topics], max(fields.timeout_ms, 0), fields.validate_only)


def _creatable(topic: Any) -> CreatableTopic:
    return CreatableTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [_assignment(a) for a in topic.assignments],
        [TopicConfig(config.name, config.value) for config in topic.configs],
    )


_NO_PARTITION = 2**31 - 1


def _assignment(assignment: Any) -> CreatableReplicaAssignment:
    """Partitions and brokers below zero become others that do not exist either. So the controller refuses only the topic that has
    them, and not the whole request."""
    number = assignment.partition_index
    return CreatableReplicaAssignment(number if number >= 0 else _NO_PARTITION, _ids(assignment.broker_ids))


def _ids(broker_ids: list[int]) -> list[int]:
    return [max(id_, -1) for id_ in broker_ids]


def _created(call: KafkaCall, body: CreateTopicsResponse) -> dict[str, Any]:
    configs = _Configs(call)
    return {"throttle_time_ms": body.throttle_time_ms, "topics": [_creation(call, topic, configs) for topic in body.topics]}


def _creation(call: KafkaCall, topic: CreatableTopicResult, configs: _Configs) -> dict[str, Any]:
    """The row of a created topic: with its configuration if the client may see that, else with null and an error code
    (KIP-525)."""
    access = access_of(call)
    may_see = access is None or access.sees(DESCRIBE_CONFIGS, TOPIC_RESOURCE, topic.name)
    has_configs = may_see and not topic.error_code
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "error_code": topic.error_code,
        "error_message": topic.error_message,
        "topic_config_error_code": 0 if may_see else ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "num_partitions": topic.num_partitions if may_see else -1,
        "replication_factor": topic.replication_factor if may_see else -1,
        "configs": configs.of(topic.name) if has_configs else ([] if may_see else None),
    }


class _Configs:
    """The configurations of the topics that a request creates. The values come from the request, because a topic that was only
    validated is not in the metadata.

    Ten thousand topics have a third of a million values, and most of them are the same. So each different one is encoded once."""

    def __init__(self, call: KafkaCall) -> None:
        self._own = {topic.name: {c.name: c.value for c in topic.configs} for topic in call.fields.topics}
        self._describe = topic_value_describer(call.context.image())
        self._write = _writer_of_configs(call)
        self._written: dict[tuple[str, str | None], bytes] = {}

    def of(self, name: str) -> EncodedItems:
        own = self._own.get(name, {})
        rows = [self._row(key, own.get(key)) for key in TOPIC_CONFIGS]
        return EncodedItems(len(rows), b"".join(rows))

    def _row(self, key: str, value: str | None) -> bytes:
        row = self._written.get((key, value))
        if row is None:
            out = bytearray()
            self._write(out, config_value(self._describe(key, value)))
            row = self._written[key, value] = bytes(out)
        return row


def _writer_of_configs(call: KafkaCall) -> Write:
    """Writes one configuration of a topic in a response of the call's version; nothing in a version without configurations."""
    response = call.context.schemas.response(call.api.key, call.version).struct
    (topic,) = (field.kind for field in response.fields if field.name == "topics")
    assert isinstance(topic, Struct)
    kinds = [field.kind for field in topic.fields if field.name == "configs"]
    return struct_codec(kinds[0])[1] if kinds and isinstance(kinds[0], Struct) else lambda out, value: None


def _create_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    topics = [CreatableTopicResult(topic.name, error_code=code, error_message=message) for topic in call.fields.topics]
    return _created(call, CreateTopicsResponse(topics))


# -- DeleteTopics -----------------------------------------------------------------------------------------------------

_FIRST_WITH_IDS = 6


def _delete(call: KafkaCall) -> DeleteTopicsRequest:
    fields = call.fields
    if call.version < _FIRST_WITH_IDS:
        topics = [DeleteTopicState(name) for name in fields.topic_names]
    else:
        topics = [DeleteTopicState(topic.name, topic.topic_id) for topic in fields.topics]
    return DeleteTopicsRequest(topics, max(fields.timeout_ms, 0))


def _deleted(call: KafkaCall, body: DeleteTopicsResponse) -> dict[str, Any]:
    rows = [
        {
            "name": topic.name,
            "topic_id": topic.topic_id,
            "error_code": _code(call, topic),
            "error_message": topic.error_message,
        }
        for topic in body.topics
    ]
    return {"throttle_time_ms": body.throttle_time_ms, "responses": rows}


def _code(call: KafkaCall, topic: DeletableTopicResult) -> int:
    is_named = topic.name is not None and (call.version < _FIRST_WITH_IDS or topic.topic_id == ZERO_UUID)
    return code_by_name(call, topic.name or "", topic.error_code, DELETE) if is_named else topic.error_code


def _delete_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    topics = [DeletableTopicResult(topic.name, topic.topic_id, code, message) for topic in _delete(call).topics]
    return _deleted(call, DeleteTopicsResponse(topics))


# -- CreatePartitions -------------------------------------------------------------------------------------------------


def _extend(call: KafkaCall) -> CreatePartitionsRequest:
    fields = call.fields
    topics = [CreatePartitionsTopic(topic.name, topic.count, _replicas(topic.assignments)) for topic in fields.topics]
    return CreatePartitionsRequest(topics, max(fields.timeout_ms, 0), fields.validate_only)


def _replicas(assignments: Any) -> list[list[int]] | None:
    return None if assignments is None else [_ids(assignment.broker_ids) for assignment in assignments]


def _extended(call: KafkaCall, body: CreatePartitionsResponse) -> dict[str, Any]:
    rows = [{"name": r.name, "error_code": r.error_code, "error_message": r.error_message} for r in body.results]
    return {"throttle_time_ms": body.throttle_time_ms, "results": rows}


def _extend_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    rows = [{"name": topic.name, "error_code": code, "error_message": message} for topic in call.fields.topics]
    return {"throttle_time_ms": 0, "results": rows}


APIS = (
    KafkaApi(19, "CreateTopics", apis.CREATE_TOPICS, 2, 7, _create, _created, _create_refused),
    KafkaApi(20, "DeleteTopics", apis.DELETE_TOPICS, 1, 6, _delete, _deleted, _delete_refused),
    KafkaApi(37, "CreatePartitions", apis.CREATE_PARTITIONS, 0, 3, _extend, _extended, _extend_refused),
)
