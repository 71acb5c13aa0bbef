"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs and ListConfigResources.

The configuration of topics, brokers and groups. Kafka has two more types of resources, which Strandline does not have:

    broker loggers      INVALID_REQUEST
    client metrics      nothing is set: described without keys, and every change is refused

A group has the keys `consumer.*`. There are no share groups and no streams groups. So Kafka's keys `share.*` and `streams.*` are
not described, setting one is refused with INVALID_CONFIG, and unsetting one changes nothing.

AlterConfigs replaces all values of a resource by those of the request. The broker translates it to IncrementalAlterConfigs with
the difference to the present values. A concurrent change may get lost, which is why Kafka has deprecated AlterConfigs (KIP-339).
"""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.broker.kafka.translations.topics_by_name import access_of
from strandline.controller.metadata.group_configs import OTHER_GROUPS
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    CONFIG_DELETE,
    CONFIG_SET,
    RESOURCE_BROKER,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    MetadataRequest,
    MetadataResponse,
)
from strandline.protocol.messages.security import DESCRIBE_CONFIGS

BROKER_LOGGER, CLIENT_METRICS = 8, 16
"""Kafka's numbers of the types of resources that Strandline does not have."""
_MISSING = (BROKER_LOGGER, CLIENT_METRICS)
_TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7, "class": 8, "password": 9}
_THROTTLED = ".replication.throttled."
_NOT_HERE = {
    "leader.replication.throttled.rate",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.rate",
    "follower.replication.throttled.replicas",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "local.retention.bytes",
    "local.retention.ms",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
}
"""Kafka's keys that Strandline does not have. They are never set, so unsetting one changes nothing. Kafka's tool for
reassignments unsets the keys of its throttles after each reassignment. (Kafka accepts the deletion of any key; here the deletion
of a mistyped key is refused.)"""


# -- DescribeConfigs --------------------------------------------------------------------------------------------------


def _describe(call: KafkaCall) -> DescribeConfigsRequest:
    """An empty list of keys asks for all keys, as null does. A resource that the request names several times is described once: a
    description has a thousand times the bytes of a name, and clients find a description by the name of its resource."""
    fields = call.fields
    unique: dict[tuple[int, str], Any] = {}
    for resource in fields.resources:
        unique.setdefault((resource.resource_type, resource.resource_name), resource)
    call.notes = list(unique.values())
    asked = [resource for resource in call.notes if resource.resource_type not in _MISSING]
    return DescribeConfigsRequest(
        [DescribeConfigsResource(r.resource_type, r.resource_name, r.configuration_keys or None) for r in asked],
        fields.get("include_documentation", False),
        fields.include_synonyms,
    )


def _described(call: KafkaCall, body: DescribeConfigsResponse) -> dict[str, Any]:
    rows = iter(body.results)
    results = [_result(_of_missing_type(resource) or next(rows)) for resource in call.notes]
    return {"throttle_time_ms": body.throttle_time_ms, "results": results}


def _of_missing_type(resource: Any) -> DescribeConfigsResult | None:
    kind, name = resource.resource_type, resource.resource_name
    if kind == CLIENT_METRICS:
        return DescribeConfigsResult(ErrorCode.NONE, None, kind, name)
    if kind == BROKER_LOGGER:
        return DescribeConfigsResult(ErrorCode.INVALID_REQUEST, "the levels of loggers are not configured here", kind, name)
    return None


def _result(row: DescribeConfigsResult) -> dict[str, Any]:
    return {
        "error_code": row.error_code,
        "error_message": row.error_message,
        "resource_type": row.resource_type,
        "resource_name": row.resource_name,
        "configs": [_described_config(config) for config in row.configs],
    }


def _described_config(config: DescribedConfig) -> dict[str, Any]:
    return {
        **config_value(config),
        "synonyms": [
            {"name": s.name, "value": s.value, "source": s.source}
            for s in config.synonyms
            if s.value is not None or config.is_sensitive
        ],
        "config_type": _TYPES.get(config.config_type, 0),
        "documentation": config.documentation,
    }


def config_value(config: DescribedConfig) -> dict[str, Any]:
    """One key with its value, as the responses of DescribeConfigs and CreateTopics have it."""
    return {
        "name": config.name,
        "value": None if config.is_sensitive else config.value,
        "read_only": config.read_only,
        "config_source": config.config_source,
        "is_sensitive": config.is_sensitive,
    }


def _describe_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    rows = [DescribeConfigsResult(code, message, r.resource_type, r.resource_name) for r in call.fields.resources]
    return {"throttle_time_ms": 0, "results": [_result(row) for row in rows]}


# -- changes ----------------------------------------------------------------------------------------------------------


def _alter_incrementally(call: KafkaCall) -> IncrementalAlterConfigsRequest:
    return _changes(call, [_changed(resource, _operations(resource)) for resource in _of(call)])


def _operations(resource: Any) -> list[AlterableConfig]:
    return [
        AlterableConfig(config.name, config.config_operation, config.value)
        for config in resource.configs
        if config.config_operation != CONFIG_DELETE or not _is_not_here(resource.resource_type, config.name)
    ]


def _is_not_here(resource_type: int, name: str) -> bool:
    return name.startswith(OTHER_GROUPS) if resource_type == RESOURCE_GROUP else name in _NOT_HERE


def _replace(call: KafkaCall) -> IncrementalAlterConfigsRequest:
    return _changes(call, [_changed(resource, _difference(call, resource)) for resource in _of(call)])


def _changes(call: KafkaCall, resources: list[AlterConfigsResource]) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(resources, call.fields.validate_only)


def _of(call: KafkaCall) -> list[Any]:
    """The resources whose changes are sent to the controller."""
    return [resource for resource in call.fields.resources if _problem(resource) is None]


def _problem(resource: Any) -> tuple[ErrorCode, str] | None:
    """The error of a change that is not sent to the controller; None if it is sent."""
    if resource.resource_type in _MISSING:
        return ErrorCode.INVALID_REQUEST, f"resources of type {resource.resource_type} have no configuration here"
    if len({config.name for config in resource.configs}) < len(resource.configs):
        return ErrorCode.INVALID_REQUEST, "a key is named twice"
    changed = [c for c in resource.configs if c.get("config_operation", CONFIG_SET) != CONFIG_DELETE]
    throttles = [config.name for config in changed if _THROTTLED in config.name]
    if throttles:
        reason = (
            "replication has no throttle of this kind here; a reassignment has one of its own (`strandline reassign --throttle`)"
        )
        return ErrorCode.INVALID_CONFIG, f"{', '.join(throttles)}: {reason}"
    without = [config.name for config in changed if config.value is None]
    return (ErrorCode.INVALID_REQUEST, f"{', '.join(without)}: there is no value") if without else None


def _changed(resource: Any, configs: list[AlterableConfig]) -> AlterConfigsResource:
    return AlterConfigsResource(resource.resource_type, resource.resource_name, configs)


def _difference(call: KafkaCall, resource: Any) -> list[AlterableConfig]:
    """The changes after which the resource has exactly the values of the request."""
    wanted = {config.name: config.value for config in resource.configs}
    present = call.context.image().config(resource.resource_type, resource.resource_name)
    gone = [AlterableConfig(name, CONFIG_DELETE) for name in present if name not in wanted]
    return gone + [AlterableConfig(name, CONFIG_SET, value) for name, value in wanted.items()]


def _altered(call: KafkaCall, body: IncrementalAlterConfigsResponse) -> dict[str, Any]:
    rows = iter(body.responses)
    responses = [_response(_unasked(resource) or next(rows)) for resource in call.fields.resources]
    return {"throttle_time_ms": body.throttle_time_ms, "responses": responses}


def _unasked(resource: Any) -> AlterConfigsResourceResponse | None:
    problem = _problem(resource)
    if problem is None:
        return None
    return AlterConfigsResourceResponse(*problem, resource.resource_type, resource.resource_name)


def _response(row: AlterConfigsResourceResponse) -> dict[str, Any]:
    return {
        "error_code": row.error_code,
        "error_message": row.error_message,
        "resource_type": row.resource_type,
        "resource_name": row.resource_name,
    }


def _alter_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    rows = [AlterConfigsResourceResponse(code, message, r.resource_type, r.resource_name) for r in call.fields.resources]
    return {"throttle_time_ms": 0, "responses": [_response(row) for row in rows]}


# -- ListConfigResources ----------------------------------------------------------------------------------------------

_ALL_TYPES = (RESOURCE_TOPIC, RESOURCE_BROKER, BROKER_LOGGER, CLIENT_METRICS, RESOURCE_GROUP)


def _list(call: KafkaCall) -> MetadataRequest:
    """Ask the handler of Metadata for the topics and brokers that the client may see. The groups are those with a value of their
    own; a client with the right to list resources sees all of them, as in Kafka. Version 0 asks for client metrics alone."""
    access = access_of(call)
    if access is not None:
        access.require_cluster(DESCRIBE_CONFIGS)
    wanted = call.fields.get("resource_types", [CLIENT_METRICS]) or _ALL_TYPES
    unknown = sorted(kind for kind in wanted if kind not in _ALL_TYPES)
    if unknown:
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"unknown resource types: {', '.join(map(str, unknown))}")
    call.notes = wanted
    return MetadataRequest(None if RESOURCE_TOPIC in wanted else [])


def _listed(call: KafkaCall, body: MetadataResponse) -> dict[str, Any]:
    found: list[tuple[int, str]] = []
    if RESOURCE_GROUP in call.notes:
        found += sorted(resource for resource in call.context.image().configs if resource[0] == RESOURCE_GROUP)
    if RESOURCE_TOPIC in call.notes:
        found += [(RESOURCE_TOPIC, topic.name or "") for topic in body.topics if not topic.error_code]
    for kind in (RESOURCE_BROKER, BROKER_LOGGER):
        if kind in call.notes:
            found += [(kind, str(broker.node_id)) for broker in body.brokers]
    rows = [{"resource_name": name, "resource_type": kind} for kind, name in found]
    return {"throttle_time_ms": body.throttle_time_ms, "error_code": ErrorCode.NONE, "config_resources": rows}


APIS = (
    KafkaApi(32, "DescribeConfigs", apis.DESCRIBE_CONFIGS, 1, 4, _describe, _described, _describe_refused),
    KafkaApi(33, "AlterConfigs", apis.INCREMENTAL_ALTER_CONFIGS, 0, 2, _replace, _altered, _alter_refused),
    KafkaApi(44, "IncrementalAlterConfigs", apis.INCREMENTAL_ALTER_CONFIGS, 0, 1, _alter_incrementally, _altered, _alter_refused),
    KafkaApi(74, "ListConfigResources", apis.METADATA, 0, 1, _list, _listed, refused_at_top),
)
