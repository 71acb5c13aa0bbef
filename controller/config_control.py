"""Configurations of topics, brokers and groups: IncrementalAlterConfigs and DescribeConfigs.

The metadata log holds the values that were set, as text; it holds no defaults. A topic's value overrides the broker's
(`segment.bytes` overrides `log.segment.bytes`), which overrides the cluster-wide default (the broker with the empty name).
A group's value overrides the broker's, too (`metadata/group_configs.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from strandline.controller.decision import Decision
from strandline.controller.metadata.config_describe import describe_broker, describe_group, describe_resources, describe_topic
from strandline.controller.metadata.config_keys import (
    TOPIC_CONFIGS,
    ConfigKey,
    Update,
    as_topic_values,
    by_name,
    check_topic_values,
    list_items,
    parse,
    unknown_key,
)
from strandline.controller.metadata.group_configs import (
    GROUP_CONFIGS,
    NODE_DEFAULTS,
    check_group_name,
    check_group_values,
    unknown_group_key,
)
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.node_keys import BROKER_KEYS, CONTROLLER_KEYS, NODE_CONFIGS
from strandline.controller.metadata.records import AnyRecord, ConfigRecord
from strandline.controller.min_isr_warnings import warnings_of_cluster, warnings_of_topic
from strandline.controller.request_limits import check_amount
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.messages.admin import (
    CONFIG_APPEND,
    CONFIG_DELETE,
    CONFIG_SET,
    CONFIG_SUBTRACT,
    RESOURCE_BROKER,
    RESOURCE_GROUP,
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

_OPERATIONS = {CONFIG_SET: "set", CONFIG_DELETE: "delete", CONFIG_APPEND: "append", CONFIG_SUBTRACT: "subtract"}


def check_config(key: ConfigKey, value: str) -> str:
    """The value as it is stored. Raises BrokerError INVALID_CONFIG with the reason."""
    try:
        return key.text(key.parse(value)) or ""
    except UsageError as e:
        raise BrokerError(ErrorCode.INVALID_CONFIG, str(e)) from None


def topic_key(name: str) -> ConfigKey:
    """The key of a topic. Raises BrokerError INVALID_CONFIG, which names the nearest known key for an unknown one."""
    key = TOPIC_CONFIGS.get(name)
    if key is None:
        raise BrokerError(ErrorCode.INVALID_CONFIG, str(unknown_key(name, TOPIC_CONFIGS)))
    return key


def group_key(name: str) -> ConfigKey:
    """The key of a group. Raises BrokerError INVALID_CONFIG."""
    key = GROUP_CONFIGS.get(name)
    if key is None:
        raise BrokerError(ErrorCode.INVALID_CONFIG, str(unknown_group_key(name)))
    return key


def dynamic_key(name: str, broker: str) -> ConfigKey:
    """The key of a broker resource; `broker`: its id, or empty for all brokers. Raises BrokerError INVALID_CONFIG if the key is
    unknown, cannot be changed while the nodes run, or cannot be changed there."""
    key = NODE_CONFIGS.get(name)
    if key is None:
        raise BrokerError(ErrorCode.INVALID_CONFIG, str(unknown_key(name, NODE_CONFIGS)))
    if key.update is Update.RESTART:
        text = f"cannot be changed while the {_users(name)} run: set it in their configuration files, and restart them"
    elif key.update is Update.CLUSTER and broker:
        text = "has one value for the whole cluster, and not one for each broker: set it for the cluster"
    elif key.update is Update.BROKER and not broker:
        text = "has a value for each broker, and not one for the whole cluster: set it for a broker"
    else:
        return key
    raise BrokerError(ErrorCode.INVALID_CONFIG, f"config {name} {text}")


def _key_of(resource: AlterConfigsResource, name: str) -> ConfigKey:
    """The key of this name. Raises BrokerError INVALID_CONFIG."""
    if resource.resource_type == RESOURCE_TOPIC:
        return topic_key(name)
    return group_key(name) if resource.resource_type == RESOURCE_GROUP else dynamic_key(name, resource.resource_name)


def _users(name: str) -> str:
    of_brokers, of_controllers = name in by_name(BROKER_KEYS), name in by_name(CONTROLLER_KEYS)
    return "nodes" if of_brokers and of_controllers else "brokers" if of_brokers else "controllers"


# -- altering ---------------------------------------------------------------------------------------------------------


class _Change(NamedTuple):
    records: list[AnyRecord]
    warnings: list[str]


def incremental_alter_configs(
    image: MetadataImage, request: IncrementalAlterConfigsRequest, node_values: Mapping[str, Any] = NODE_DEFAULTS
) -> Decision[IncrementalAlterConfigsResponse]:
    """Change keys of resources (IncrementalAlterConfigs, KIP-339): set, delete, append to a list, subtract from a list. Each
    resource is changed as a whole or not at all; its error names everything that is wrong with it. `node_values`: those of the
    controller's keys. Raises BrokerError POLICY_VIOLATION for too many resources or changes."""
    check_amount(len(request.resources), "name", "resources")
    check_amount(sum(len(resource.configs) for resource in request.resources), "change", "configurations")
    decision: Decision[IncrementalAlterConfigsResponse] = Decision(IncrementalAlterConfigsResponse([]))
    times = Counter((r.resource_type, r.resource_name) for r in request.resources)
    for resource in request.resources:
        result = AlterConfigsResourceResponse(0, None, resource.resource_type, resource.resource_name)
        decision.reply.responses.append(result)
        try:
            if times[(resource.resource_type, resource.resource_name)] > 1:
                raise BrokerError(ErrorCode.INVALID_REQUEST, f"resource {resource.resource_name!r} is named twice in the request")
            change = _alter_resource(image, resource, node_values)
        except BrokerError as e:
            result.error_code, result.error_message = e.code, e.message
            continue
        result.warnings = change.warnings
        if not request.validate_only:
            decision.records += change.records
    return decision


def _alter_resource(image: MetadataImage, resource: AlterConfigsResource, node_values: Mapping[str, Any]) -> _Change:
    now_set = image.config(resource.resource_type, resource.resource_name)
    _check_resource(image, resource, now_set)
    wanted = _wanted_values(image, resource, now_set)
    if resource.resource_type == RESOURCE_GROUP:
        _check_group(now_set, wanted, node_values)
    else:
        _check_together(image, resource, {**now_set, **wanted})
    records: list[AnyRecord] = [
        ConfigRecord(resource.resource_type, resource.resource_name, name, value)
        for name, value in wanted.items()
        if value != now_set.get(name)
    ]
    return _Change(records, [*_warnings(image, resource, wanted), *_needless_subtractions(image, resource)])


def _wanted_values(image: MetadataImage, resource: AlterConfigsResource, now_set: Mapping[str, str]) -> dict[str, str | None]:
    """Key -> its new text, or None to remove it. Raises BrokerError with the texts of all errors and the code of the first."""
    wanted: dict[str, str | None] = {}
    errors: list[BrokerError] = []
    for config in resource.configs:
        try:
            if config.name in wanted:
                raise BrokerError(ErrorCode.INVALID_CONFIG, f"config {config.name} is given twice")
            wanted[config.name] = None
            wanted[config.name] = _wanted_value(image, resource, now_set, config)
        except BrokerError as e:
            errors.append(e)
    if errors:
        raise BrokerError(errors[0].code, "; ".join(e.message or e.code.name for e in errors))
    return wanted


def _wanted_value(
    image: MetadataImage, resource: AlterConfigsResource, now_set: Mapping[str, str], config: AlterableConfig
) -> str | None:
    operation = _OPERATIONS.get(config.config_operation)
    if operation is None:
        known = ", ".join(f"{number} ({name})" for number, name in _OPERATIONS.items())
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"config operation {config.config_operation} is none of {known}")
    if config.config_operation == CONFIG_DELETE and config.name in now_set:
        return None  # A key that this version does not accept is removed, too: another version may have stored it.
    key = _key_of(resource, config.name)
    if config.config_operation == CONFIG_DELETE:
        return None
    if config.value is None:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"config {config.name}: the {operation} operation needs a value")
    if config.config_operation == CONFIG_SET:
        return check_config(key, config.value)
    if key.type != "list":
        text = f"config {config.name} is not a list, so the {operation} operation does not apply; set its value"
        raise BrokerError(ErrorCode.INVALID_CONFIG, text)
    before = _list_in_effect(image, resource, key)
    items = list_items(config.value)
    if config.config_operation == CONFIG_APPEND:
        after = before + [item for item in dict.fromkeys(items) if item not in before]
    else:
        after = [item for item in before if item not in items]
        if after == before:
            return now_set.get(config.name)  # Kafka stores the inherited value in this case, and so pins it.
    return check_config(key, ",".join(after))


def _list_in_effect(image: MetadataImage, resource: AlterConfigsResource, key: ConfigKey) -> list[str]:
    """The list to append to or subtract from: the value of the resource, or else the one that applies to it now, as far as the
    metadata log has it. (Kafka takes the default in place of the cluster's value.)"""
    name, own = resource.resource_name, image.config(resource.resource_type, resource.resource_name).get(key.name)
    if own is not None:
        return list_items(own)
    if resource.resource_type == RESOURCE_TOPIC:
        return list(image.topic_config(name)[key.name])  # type: ignore[arg-type]
    of_cluster = image.config(RESOURCE_BROKER, "").get(key.name) if name else None
    return list(key.default or []) if of_cluster is None else list_items(of_cluster)


def _check_together(image: MetadataImage, resource: AlterConfigsResource, values: Mapping[str, str | None]) -> None:
    """Refuse values that contradict other values of the same resource. For a broker, these are the defaults of its topics."""
    given = {name: value for name, value in values.items() if value is not None}
    if resource.resource_type == RESOURCE_BROKER:
        check_topic_configs(image, as_topic_values(given))
    else:
        check_topic_configs(image, given)


def _check_group(now_set: Mapping[str, str], wanted: Mapping[str, str | None], node_values: Mapping[str, Any]) -> None:
    try:
        check_group_values({**now_set, **wanted}, wanted, node_values)
    except UsageError as e:
        raise BrokerError(ErrorCode.INVALID_CONFIG, str(e)) from None


def check_topic_configs(image: MetadataImage, configs: Mapping[str, str]) -> None:
    """Check the values of a topic together with the defaults of the cluster. BrokerError INVALID_CONFIG."""
    defaults = image.config(RESOURCE_BROKER, "")
    try:
        check_topic_values(parse(TOPIC_CONFIGS, {**as_topic_values(defaults), **configs}))
    except UsageError as e:
        raise BrokerError(ErrorCode.INVALID_CONFIG, str(e)) from None


def _warnings(image: MetadataImage, resource: AlterConfigsResource, wanted: Mapping[str, str | None]) -> list[str]:
    min_isr = wanted.get("min.insync.replicas")
    if min_isr is None:
        return []
    if resource.resource_type == RESOURCE_BROKER:
        return warnings_of_cluster(image, int(min_isr))
    topic = image.topic(resource.resource_name)
    return [] if topic is None else warnings_of_topic(topic.name, int(min_isr), topic.partitions.values())


def _needless_subtractions(image: MetadataImage, resource: AlterConfigsResource) -> list[str]:
    """A sentence for each list from which nothing was subtracted, because it contains none of the items."""
    sentences = []
    for config in resource.configs:
        if config.config_operation == CONFIG_SUBTRACT and config.value is not None:
            key = _key_of(resource, config.name)
            items = list_items(config.value)
            if not set(items) & set(_list_in_effect(image, resource, key)):
                absent = " or ".join(items) or "an empty item"
                sentences.append(f"{config.name} does not contain {absent}, so nothing was subtracted from it")
    return sentences


# -- resources --------------------------------------------------------------------------------------------------------


def _check_resource(image: MetadataImage, resource: AlterConfigsResource, now_set: Mapping[str, str]) -> None:
    """Raises BrokerError if the resource does not exist. The values that an unregistered broker left behind may be removed."""
    only_removes = all(config.config_operation == CONFIG_DELETE for config in resource.configs)
    if not (now_set and only_removes and resource.resource_type == RESOURCE_BROKER):
        check_resource(image, resource.resource_type, resource.resource_name)


def check_resource(image: MetadataImage, resource_type: int, name: str) -> None:
    """Raises BrokerError if the resource does not exist. A broker resource is a registered broker's id, or empty for all. A group
    need not exist."""
    if resource_type == RESOURCE_TOPIC:
        if image.topic(name) is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    elif resource_type == RESOURCE_GROUP:
        check_group_name(name)
    elif resource_type != RESOURCE_BROKER:
        text = f"resource type {resource_type} is not a topic (2), broker (4) or group (32)"
        raise BrokerError(ErrorCode.INVALID_REQUEST, text)
    elif name:
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"a broker resource is named by its id, not {name!r}")
        if name != str(int(name)) or int(name) not in image.brokers:
            raise BrokerError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {name} is not registered")


def removal_of_broker_configs(image: MetadataImage, broker_id: int) -> list[AnyRecord]:
    """Records that remove the values of a broker that is unregistered, so that another machine does not inherit them with the
    broker id. (Kafka keeps them, and then refuses to remove them.)"""
    name = str(broker_id)
    return [ConfigRecord(RESOURCE_BROKER, name, key, None) for key in image.config(RESOURCE_BROKER, name)]


def describe_configs(image: MetadataImage, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Describe configurations by the values in the metadata log (DescribeConfigs). The values of a broker's own configuration
    file are not there; only that broker can describe them."""

    def describe(resource_type: int, name: str) -> list[DescribedConfig]:
        check_resource(image, resource_type, name)
        if resource_type == RESOURCE_GROUP:
            return describe_group(image, name)
        return describe_topic(image, name) if resource_type == RESOURCE_TOPIC else describe_broker(image, name)

    return describe_resources(request, describe)
