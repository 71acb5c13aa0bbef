"""DescribeConfigs: every key of a topic or broker, its value, and where the value comes from.

A broker adds its own configuration file to what the metadata log holds; a controller does not know that file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from strandline.controller.metadata.config_keys import DYNAMIC_BROKER_CONFIGS, TOPIC_CONFIGS, ConfigKey, as_topic_values
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    CONFIG_SOURCE_DEFAULT,
    CONFIG_SOURCE_DYNAMIC_BROKER,
    CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER,
    CONFIG_SOURCE_DYNAMIC_TOPIC,
    CONFIG_SOURCE_STATIC_BROKER,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribedConfig,
)

_Layers = list[tuple[int, Mapping[str, Any]]]
"""(source, values by the name of the key), the strongest first. A topic's own values are in no layer."""
Describe = Callable[[int, str, bool], list[DescribedConfig]]
"""Describes a resource by its type and name, with documentation or without; raises BrokerError if it cannot."""


def describe_resources(request: DescribeConfigsRequest, describe: Describe) -> DescribeConfigsResponse:
    """Each requested resource by itself: an error of one is in its own result."""
    documentation = request.include_documentation
    return DescribeConfigsResponse([_describe_resource(resource, describe, documentation) for resource in request.resources])


def _describe_resource(resource: DescribeConfigsResource, describe: Describe, documentation: bool) -> DescribeConfigsResult:
    kind, name, wanted = resource.resource_type, resource.resource_name, resource.configuration_keys
    try:
        described = describe(kind, name, documentation)
    except BrokerError as e:
        return DescribeConfigsResult(e.code, e.message, kind, name)
    configs = [config for config in described if wanted is None or config.name in wanted]
    return DescribeConfigsResult(0, None, kind, name, configs)


def describe_topic(
    image: MetadataImage,
    name: str,
    *,
    broker_id: int | None = None,
    static: Mapping[str, Any] | None = None,
    documentation: bool = False,
) -> list[DescribedConfig]:
    """All keys of a topic. A broker passes its own id and the values of its file (`static`, by the broker's names of the keys).
    Raises BrokerError UNKNOWN_TOPIC_OR_PARTITION."""
    if image.topic(name) is None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    own = image.config(RESOURCE_TOPIC, name)
    broker = None if broker_id is None else str(broker_id)
    below: _Layers = [(source, as_topic_values(values)) for source, values in _broker_layers(image, broker, static)]
    described = []
    for key in TOPIC_CONFIGS.values():
        if key.name in own:
            value, source = own[key.name], CONFIG_SOURCE_DYNAMIC_TOPIC
        else:
            value, source = _find(key.name, below, key)
        described.append(_describe(key, value, source, read_only=False, documentation=documentation))
    return described


def describe_broker(
    image: MetadataImage,
    name: str,
    *,
    static: Mapping[str, Any] | None = None,
    static_keys: Mapping[str, ConfigKey] | None = None,
    documentation: bool = False,
) -> list[DescribedConfig]:
    """The keys of the broker whose id is `name`; for the empty name, only those that are set as defaults of all brokers.

    A broker passes the values of its own file (`static`) and all its keys (`static_keys`); those that are not dynamic are
    read-only.
    """
    if name == "":
        defaults = image.config(RESOURCE_BROKER, "")
        keys = [key for key in DYNAMIC_BROKER_CONFIGS.values() if key.name in defaults]
        source = CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER
        return [_describe(k, defaults[k.name], source, read_only=False, documentation=documentation) for k in keys]
    layers = _broker_layers(image, name, static)
    described = []
    for key in {**(static_keys or {}), **DYNAMIC_BROKER_CONFIGS}.values():
        value, source = _find(key.name, layers, key)
        read_only = key.name not in DYNAMIC_BROKER_CONFIGS
        described.append(_describe(key, value, source, read_only=read_only, documentation=documentation))
    return described


def _broker_layers(image: MetadataImage, broker: str | None, static: Mapping[str, Any] | None) -> _Layers:
    return [
        (CONFIG_SOURCE_DYNAMIC_BROKER, image.config(RESOURCE_BROKER, broker) if broker else {}),
        (CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER, image.config(RESOURCE_BROKER, "")),
        (CONFIG_SOURCE_STATIC_BROKER, static or {}),
    ]


def _find(name: str, layers: _Layers, key: ConfigKey) -> tuple[Any, int]:
    for source, values in layers:
        if name in values:
            return values[name], source
    return key.default, CONFIG_SOURCE_DEFAULT


def _describe(key: ConfigKey, value: Any, source: int, *, read_only: bool, documentation: bool) -> DescribedConfig:
    return DescribedConfig(
        key.name,
        key.text(value),
        read_only,
        source,
        config_type=key.type,
        documentation=key.meaning if documentation else None,
    )
