"""DescribeConfigs: every key of a topic, broker or group, its value, and the sources that set it.

A broker adds the values of its own configuration file to those of the metadata log; a controller does not know that file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from strandline.controller.metadata.config_keys import TOPIC_CONFIGS, ConfigKey, Update, broker_key_of
from strandline.controller.metadata.group_configs import GROUP_CONFIGS
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.node_keys import BROKER_KEYS, DYNAMIC_BROKER_CONFIGS
from strandline.controller.metadata.topic_names import name_problem
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    CONFIG_SOURCE_DEFAULT,
    CONFIG_SOURCE_DYNAMIC_BROKER,
    CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER,
    CONFIG_SOURCE_DYNAMIC_GROUP,
    CONFIG_SOURCE_DYNAMIC_TOPIC,
    CONFIG_SOURCE_STATIC_BROKER,
    RESOURCE_BROKER,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    ConfigSynonym,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribedConfig,
)

_Layers = list[tuple[int, Mapping[str, Any]]]
"""(source, values by the broker's name of the key), the strongest first. The own values of a topic or group are in no layer."""
Describe = Callable[[int, str], list[DescribedConfig]]
"""Describes a resource by its type and name; raises BrokerError if it cannot."""


def describe_resources(request: DescribeConfigsRequest, describe: Describe) -> DescribeConfigsResponse:
    """Describe each requested resource; an error of one is in its own result."""
    return DescribeConfigsResponse([_describe_resource(request, resource, describe) for resource in request.resources])


def _describe_resource(
    request: DescribeConfigsRequest, resource: DescribeConfigsResource, describe: Describe
) -> DescribeConfigsResult:
    kind, name, wanted = resource.resource_type, resource.resource_name, resource.configuration_keys
    try:
        described = describe(kind, name)
    except BrokerError as e:
        return DescribeConfigsResult(e.code, e.message, kind, name)
    configs = [config for config in described if wanted is None or config.name in wanted]
    for config in configs:
        if not request.include_documentation:
            config.documentation = None
        if not request.include_synonyms:
            config.synonyms = []
    return DescribeConfigsResult(0, None, kind, name, configs)


def describe_topic(
    image: MetadataImage, name: str, *, broker_id: int | None = None, static: Mapping[str, Any] | None = None
) -> list[DescribedConfig]:
    """All keys of a topic. A broker passes its own id and the values of its file (`static`, by the broker's names of the keys).
    Raises BrokerError UNKNOWN_TOPIC_OR_PARTITION, or INVALID_TOPIC_EXCEPTION if no topic can have the name."""
    if image.topic(name) is None:
        problem = name_problem(name)
        if problem is not None:
            raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    own, layers = image.config(RESOURCE_TOPIC, name), _broker_layers(image, broker_id, static)
    return [_describe_above(key, own, (CONFIG_SOURCE_DYNAMIC_TOPIC, Update.TOPIC), layers) for key in TOPIC_CONFIGS.values()]


def topic_value_describer(image: MetadataImage) -> Callable[[str, str | None], DescribedConfig]:
    """A function that describes a key, given its value on a topic, or None if the topic does not set it. The topic need not
    exist."""
    layers = _broker_layers(image, None, None)

    def describe(name: str, value: str | None) -> DescribedConfig:
        own = {} if value is None else {name: value}
        return _describe_above(TOPIC_CONFIGS[name], own, (CONFIG_SOURCE_DYNAMIC_TOPIC, Update.TOPIC), layers)

    return describe


def describe_group(
    image: MetadataImage, name: str, *, broker_id: int | None = None, static: Mapping[str, Any] | None = None
) -> list[DescribedConfig]:
    """All keys of a group, which need not exist. A broker passes its own id and the values of its file."""
    own, layers = image.config(RESOURCE_GROUP, name), _broker_layers(image, broker_id, static)
    return [_describe_above(key, own, (CONFIG_SOURCE_DYNAMIC_GROUP, Update.GROUP), layers) for key in GROUP_CONFIGS.values()]


def _describe_above(key: ConfigKey, own: Mapping[str, str], kind: tuple[int, Update], layers: _Layers) -> DescribedConfig:
    """`kind`: the source of the resource's own values, and where its keys can be changed."""
    values = list(_values_above(key, own, kind[0], layers))
    return _describe(key, values[0][0], [synonym for _, synonym in values], kind[1])


def describe_broker(image: MetadataImage, name: str, *, static: Mapping[str, Any] | None = None) -> list[DescribedConfig]:
    """The keys of the broker whose id is `name`; for the empty name, only those that are set as defaults of all brokers. A broker
    passes the values of its own file (`static`)."""
    if name == "":
        defaults = image.config(RESOURCE_BROKER, "")
        layers: _Layers = [(CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER, defaults)]
        keys = [key for key in DYNAMIC_BROKER_CONFIGS.values() if key.name in defaults]
    else:
        layers, keys = _broker_layers(image, int(name), static), list(BROKER_KEYS)
    described = []
    for key in keys:
        values = list(_values_of_key(key, layers))
        described.append(_describe(key, values[0].value, values, key.update))
    return described


def _broker_layers(image: MetadataImage, broker_id: int | None, static: Mapping[str, Any] | None) -> _Layers:
    return [
        (CONFIG_SOURCE_DYNAMIC_BROKER, image.broker_overrides(broker_id)),
        (CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER, image.config(RESOURCE_BROKER, "")),
        (CONFIG_SOURCE_STATIC_BROKER, static or {}),
    ]


def _values_of_key(key: ConfigKey, layers: _Layers) -> Iterator[ConfigSynonym]:
    for source, values in layers:
        if key.name in values:
            yield ConfigSynonym(key.name, key.text(values[key.name]), source)
    yield ConfigSynonym(key.name, key.text(key.default), CONFIG_SOURCE_DEFAULT)


def _values_above(
    key: ConfigKey, own: Mapping[str, str], source_of_own: int, layers: _Layers
) -> Iterator[tuple[str | None, ConfigSynonym]]:
    """The values of a key of a topic or group in the topic key's unit, each with its source as a synonym: its own value first,
    then those of the brokers. If a broker has the value in hours, the synonym has it in hours."""
    if key.name in own:
        yield own[key.name], ConfigSynonym(key.name, own[key.name], source_of_own)
    for source, values in layers:
        found = broker_key_of(key, values)
        if found is not None:
            name, value = found
            yield key.text(value), ConfigSynonym(name, key.text(values[name]), source)
    default = key.text(key.default)
    yield default, ConfigSynonym(key.synonym or key.name, default, CONFIG_SOURCE_DEFAULT)


def _describe(key: ConfigKey, value: str | None, synonyms: list[ConfigSynonym], update: Update) -> DescribedConfig:
    """`synonyms`: the effective one first."""
    return DescribedConfig(
        key.name,
        value,
        update is Update.RESTART,
        synonyms[0].source,
        is_sensitive=key.sensitive,
        config_type=key.type,
        documentation=key.meaning,
        synonyms=synonyms,
        update=update,
    )
