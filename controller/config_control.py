"""Configurations of topics and brokers: IncrementalAlterConfigs and DescribeConfigs.

The metadata log holds the values that were set, as text; it holds no defaults. A topic's value overrides the broker's
(`segment.bytes` overrides `log.segment.bytes`), which overrides the cluster-wide default (the broker with the empty name).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from strandline.controller.decision import Decision
from strandline.controller.metadata.config_describe import describe_broker, describe_resources, describe_topic
from strandline.controller.metadata.config_keys import (
    DYNAMIC_BROKER_CONFIGS,
    TOPIC_CONFIGS,
    ConfigKey,
    as_topic_values,
    check_topic_values,
    parse,
    unknown_key,
)
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import AnyRecord, ConfigRecord
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.messages.admin import (
    CONFIG_DELETE,
    CONFIG_SET,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


def check_config(keys: Mapping[str, ConfigKey], name: str, value: str) -> str:
    """The value as it is stored. Raises BrokerError INVALID_CONFIG with the reason; for an unknown key it names the nearest
    known one."""
    try:
        key = keys.get(name)
        if key is None:
            raise unknown_key(name, keys)
        return key.text(key.parse(value)) or ""
    except UsageError as e:
        raise BrokerError(ErrorCode.INVALID_CONFIG, str(e)) from None


def incremental_alter_configs(
    image: MetadataImage, request: IncrementalAlterConfigsRequest
) -> Decision[IncrementalAlterConfigsResponse]:
    """Each resource is changed as a whole or not at all."""
    decision: Decision[IncrementalAlterConfigsResponse] = Decision(IncrementalAlterConfigsResponse([]))
    times = Counter((r.resource_type, r.resource_name) for r in request.resources)
    for resource in request.resources:
        result = AlterConfigsResourceResponse(0, None, resource.resource_type, resource.resource_name)
        decision.reply.responses.append(result)
        try:
            if times[(resource.resource_type, resource.resource_name)] > 1:
                raise BrokerError(ErrorCode.INVALID_REQUEST, f"resource {resource.resource_name!r} is named twice in the request")
            records = _alter_resource(image, resource)
        except BrokerError as e:
            result.error_code, result.error_message = e.code, e.message
            continue
        if not request.validate_only:
            decision.records += records
    return decision


def _alter_resource(image: MetadataImage, resource: AlterConfigsResource) -> list[AnyRecord]:
    keys = _keys_of_resource(image, resource.resource_type, resource.resource_name)
    now_set = image.config(resource.resource_type, resource.resource_name)
    wanted: dict[str, str | None] = {}
    records: list[AnyRecord] = []
    seen: dict[str, None] = {}
    for config in resource.configs:
        if config.name in seen:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"config {config.name} is given twice")
        seen[config.name] = None
        value = wanted[config.name] = _requested_value(keys, config)
        if value != now_set.get(config.name):
            records.append(ConfigRecord(resource.resource_type, resource.resource_name, config.name, value))
    _check_together(image, resource, wanted)
    return records


def _check_together(image: MetadataImage, resource: AlterConfigsResource, wanted: Mapping[str, str | None]) -> None:
    """Refuse values that contradict other values of the same resource. For a broker, these are the defaults of its topics."""
    values = {**image.config(resource.resource_type, resource.resource_name), **wanted}
    given = {name: value for name, value in values.items() if value is not None}
    if resource.resource_type == RESOURCE_BROKER:
        check_topic_configs(image, as_topic_values(given))
    else:
        check_topic_configs(image, given)


def check_topic_configs(image: MetadataImage, configs: Mapping[str, str]) -> None:
    """Check the values of a topic together with the defaults of the cluster. BrokerError INVALID_CONFIG."""
    defaults = image.config(RESOURCE_BROKER, "")
    try:
        check_topic_values(parse(TOPIC_CONFIGS, {**as_topic_values(defaults), **configs}))
    except UsageError as e:
        raise BrokerError(ErrorCode.INVALID_CONFIG, str(e)) from None


def _requested_value(keys: Mapping[str, ConfigKey], config: AlterableConfig) -> str | None:
    if config.config_operation == CONFIG_DELETE:
        if config.name not in keys:
            raise BrokerError(ErrorCode.INVALID_CONFIG, str(unknown_key(config.name, keys)))
        return None
    if config.config_operation != CONFIG_SET:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"config operation {config.config_operation} is not supported, only set and delete"
        )
    if config.value is None:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"config {config.name}: the set operation needs a value")
    return check_config(keys, config.name, config.value)


def _keys_of_resource(image: MetadataImage, resource_type: int, name: str) -> Mapping[str, ConfigKey]:
    """The keys that the resource may have. Raises BrokerError if the resource does not exist."""
    if resource_type == RESOURCE_TOPIC:
        if image.topic(name) is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return TOPIC_CONFIGS
    if resource_type == RESOURCE_BROKER:
        check_broker_resource(image, name)
        return DYNAMIC_BROKER_CONFIGS
    raise BrokerError(ErrorCode.INVALID_REQUEST, f"resource type {resource_type} is neither topic (2) nor broker (4)")


def check_broker_resource(image: MetadataImage, name: str) -> None:
    """A broker resource is a registered broker's id, or empty for all of them."""
    if name == "":
        return
    if not (name.isascii() and name.isdigit() and len(name) <= 10):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"a broker resource is named by its id, not {name!r}")
    if name != str(int(name)) or int(name) not in image.brokers:
        raise BrokerError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {name} is not registered")


def describe_configs(image: MetadataImage, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """What the metadata log holds. Only a broker itself knows the values of its own configuration file."""

    def describe(resource_type: int, name: str, documentation: bool) -> list[DescribedConfig]:
        _keys_of_resource(image, resource_type, name)
        describe_one = describe_topic if resource_type == RESOURCE_TOPIC else describe_broker
        return describe_one(image, name, documentation=documentation)

    return describe_resources(request, describe)
