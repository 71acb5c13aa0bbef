"""How configurations look to who asks for them: every key, its value, and where the value comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.controller.metadata.config_keys import DYNAMIC_BROKER_CONFIGS, TOPIC_CONFIGS, ConfigKey
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.messages.admin import (
    CONFIG_SOURCE_DEFAULT,
    CONFIG_SOURCE_DYNAMIC_BROKER,
    CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER,
    CONFIG_SOURCE_DYNAMIC_TOPIC,
    CONFIG_SOURCE_STATIC_BROKER,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    DescribedConfig,
)

_Layers = list[tuple[int, Mapping[str, Any]]]
"""(source, values) with the strongest first; values under the broker's name of a key, but for a topic's own."""


def describe_topic(
    image: MetadataImage,
    name: str,
    *,
    broker_id: int | None = None,
    static: Mapping[str, Any] | None = None,
    documentation: bool = False,
) -> list[DescribedConfig]:
    """All topic keys. A broker adds its own id and file (`static`, by broker key names)."""
    own = image.config(RESOURCE_TOPIC, name)
    below = _broker_layers(image, None if broker_id is None else str(broker_id), static)
    described = []
    for key in TOPIC_CONFIGS.values():
        if key.name in own:
            value, source = own[key.name], CONFIG_SOURCE_DYNAMIC_TOPIC
        else:
            value, source = _find(key.synonym or key.name, below, key)
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
    """A broker's keys (`name` its id), or with the empty name only what is set as default of all brokers.

    `static` are the broker's own values and `static_keys` its whole table; keys outside the dynamic ones are read-only.
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
