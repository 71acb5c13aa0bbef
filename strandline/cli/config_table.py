"""Words for the sources of configuration values, in tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strandline.client import ConfigEntry

SOURCES = {
    "topic": "set on the topic",
    "group": "set for the group",
    "broker": "set on the broker",
    "cluster": "set for all brokers",
    "static": "the broker's file",
    "default": "default",
}
"""The source of a `ConfigEntry` -> words for a person."""


def is_given(config: ConfigEntry) -> bool:
    """Return True if the value was set on the topic, the group or a broker, and False if it is the default."""
    return config.source != "default"
