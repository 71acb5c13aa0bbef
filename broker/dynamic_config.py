"""A broker's current configuration: its file, overridden by the values that were set while it runs.

    value of one broker  >  value of all brokers  >  the broker's file  >  default

The values above the file are in the metadata log (`strandline config set`, IncrementalAlterConfigs). A part of the broker that
uses a dynamic key gets each change by a callback, and never polls. The defaults of topics (`log.segment.bytes`, ...) are not
applied here, because a topic may override them, but by `metadata_applier.py` with `MetadataImage.topic_config`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strandline.broker.config import BrokerConfig
from strandline.controller.metadata.config_keys import Update
from strandline.controller.metadata.image import MetadataDelta, MetadataImage
from strandline.controller.metadata.node_keys import BROKER_KEYS, DYNAMIC_BROKER_CONFIGS
from strandline.protocol.errors import UsageError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import RESOURCE_BROKER

logger = get_logger(__name__)

OnChange = Callable[[BrokerConfig], None]


@dataclass(frozen=True, slots=True)
class _Listener:
    watched_keys: frozenset[str]
    on_change: OnChange


class DynamicConfig:
    """Follows the metadata image and calls the listeners of the keys that a change concerns."""

    def __init__(self, static: BrokerConfig) -> None:
        self._static = static
        self.current = static
        """The configuration that the broker acts on."""
        self._listeners: list[_Listener] = []

    def listen(self, key: str, on_change: OnChange) -> None:
        """Call `on_change` with the new configuration whenever this dynamic key has another value than before. A key that ends
        with a dot stands for all dynamic keys that begin with it."""
        found = frozenset(name for name in _NAMES if name == key or (key.endswith(".") and name.startswith(key)))
        assert found, f"{key} is no dynamic key of a broker"
        self._listeners.append(_Listener(found, on_change))

    def apply_delta(self, delta: MetadataDelta) -> None:
        """Apply the values of the image after the delta."""
        own = (RESOURCE_BROKER, str(self._static.node_id))
        if (RESOURCE_BROKER, "") in delta.changed_configs or own in delta.changed_configs:
            self._take_over(delta.image)

    def _take_over(self, image: MetadataImage) -> None:
        before, after = self.current, self._static.changed_by(dict(_valid_values(image, self._static.node_id)))
        changed = frozenset(name for name in _NAMES if before.values[name] != after.values[name])
        self.current = after
        for name in sorted(changed):
            logger.info("config.changed", key=name, value=after.text(name), previous_value=before.text(name))
        for listener in self._listeners:
            if listener.watched_keys & changed:
                listener.on_change(after)


_NAMES = tuple(key.name for key in BROKER_KEYS if key.update is not Update.RESTART)


def _valid_values(image: MetadataImage, broker_id: int) -> Iterator[tuple[str, Any]]:
    """The parsed values, first those for all brokers, then those for this one, which override them. A value that this version
    does not accept was stored by another version; it is left out and logged, so the value that it overrides is used."""
    layers: tuple[Mapping[str, str], ...] = (image.config(RESOURCE_BROKER, ""), image.broker_overrides(broker_id))
    for layer in layers:
        for name in _NAMES:
            if name in layer:
                try:
                    yield name, DYNAMIC_BROKER_CONFIGS[name].parse(layer[name])
                except UsageError as e:
                    logger.warning("config.value_ignored", key=name, value=layer[name], reason=str(e))
