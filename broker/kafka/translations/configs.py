"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs and ListConfigResources.

The configuration of topics and brokers. Kafka has more types of resources; of those that Strandline lacks:

    broker loggers                       INVALID_REQUEST
    client metrics, groups               nothing is set: described without keys, and every change is refused

AlterConfigs replaces all that is set by what the request names. It becomes the difference to what is set now, as
IncrementalAlterConfigs; a change by somebody else in between may get lost, which is why Kafka has deprecated it (KIP-339).
"""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    CONFIG_DELETE,
    CONFIG_SET,
    RESOURCE_BROKER,
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

BROKER_LOGGER, CLIENT_METRICS, GROUP = 8, 16, 32
"""Kafka's numbers of the types of resources that are not there."""
_EMPTY = (CLIENT_METRICS, GROUP)
_TYPES = {"boolean": 1, "string": 2, "int": 3, "short": 4, "long": 5, "double": 6, "list": 7, "class": 8, "password": 9}
_OF_THROTTLES = {
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
}
"""Kafka's tool for reassignments unsets these after each one. Here a throttle is no configuration, so they are never set."""


# -- DescribeConfigs --------------------------------------------------------------------------------------------------


def _describe(call: KafkaCall) -> DescribeConfigsRequest:
    fields = call.fields
    asked = [resource for resource in fields.resources if resource.resource_type not in (*_EMPTY, BROKER_LOGGER)]
    return DescribeConfigsRequest(
        [DescribeConfigsResource(r.resource_type, r.resource_name, r.configuration_keys) for r in asked],
        fields.get("include_documentation", False),
        fields.include_synonyms,
    )


def _described(call: KafkaCall, body: DescribeConfigsResponse) -> dict[str, Any]:
    rows = iter(body.results)
    results = [_result(_of_missing_type(resource) or next(rows)) for resource in call.fields.resources]
    return {"throttle_time_ms": body.throttle_time_ms, "results": results}


def _of_missing_type(resource: Any) -> DescribeConfigsResult | None:
    kind, name = resource.resource_type, resource.resource_name
    if kind in _EMPTY:
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
        "synonyms": [{"name": s.name, "value": s.value, "source": s.source} for s in config.synonyms],
        "config_type": _TYPES.get(config.config_type, 0),
        "documentation": config.documentation,
    }


def config_value(config: DescribedConfig) -> dict[str, Any]:
    """One key with its value, as CreateTopics shows it, too."""
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
        if config.name not in _OF_THROTTLES or config.config_operation != CONFIG_DELETE
    ]


def _replace(call: KafkaCall) -> IncrementalAlterConfigsRequest:
    return _changes(call, [_changed(resource, _difference(call, resource)) for resource in _of(call)])


def _changes(call: KafkaCall, resources: list[AlterConfigsResource]) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(resources, call.fields.validate_only)


def _of(call: KafkaCall) -> list[Any]:
    """The resources that the controller is asked about."""
    return [resource for resource in call.fields.resources if resource.resource_type not in (*_EMPTY, BROKER_LOGGER)]


def _changed(resource: Any, configs: list[AlterableConfig]) -> AlterConfigsResource:
    return AlterConfigsResource(resource.resource_type, resource.resource_name, configs)


def _difference(call: KafkaCall, resource: Any) -> list[AlterableConfig]:
    """The changes that leave exactly what the request names. A null value unsets its key."""
    wanted = {config.name: config.value for config in resource.configs}
    present = call.context.image().config(resource.resource_type, resource.resource_name)
    gone = [AlterableConfig(name, CONFIG_DELETE) for name in present if wanted.get(name) is None]
    return gone + [AlterableConfig(name, CONFIG_SET, value) for name, value in wanted.items() if value is not None]


def _altered(call: KafkaCall, body: IncrementalAlterConfigsResponse) -> dict[str, Any]:
    rows = iter(body.responses)
    responses = [_response(_missing(resource) or next(rows)) for resource in call.fields.resources]
    return {"throttle_time_ms": body.throttle_time_ms, "responses": responses}


def _missing(resource: Any) -> AlterConfigsResourceResponse | None:
    if resource.resource_type not in (*_EMPTY, BROKER_LOGGER):
        return None
    message = f"resources of type {resource.resource_type} have no configuration here"
    return AlterConfigsResourceResponse(ErrorCode.INVALID_REQUEST, message, resource.resource_type, resource.resource_name)


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

_ALL_TYPES = (RESOURCE_TOPIC, RESOURCE_BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)


def _list(call: KafkaCall) -> MetadataRequest:
    """Metadata has all topics and brokers that the client may see. Version 0 asks for client metrics alone."""
    wanted = call.fields.get("resource_types", [CLIENT_METRICS]) or _ALL_TYPES
    if any(kind not in _ALL_TYPES for kind in wanted):
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, "there is no resource of one of the types")
    call.notes = wanted
    return MetadataRequest(None if RESOURCE_TOPIC in wanted else [])


def _listed(call: KafkaCall, body: MetadataResponse) -> dict[str, Any]:
    found: list[tuple[int, str]] = []
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
