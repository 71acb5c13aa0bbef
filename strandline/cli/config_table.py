"""Configurations as tables: each value with where it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strandline.client import ConfigEntry

SOURCES = {
    "topic": "set on the topic",
    "broker": "set on the broker",
    "cluster": "set for all brokers",
    "static": "the broker's file",
    "default": "default",
}
"""The source of a `ConfigEntry` -> words for a person."""


def is_given(config: ConfigEntry) -> bool:
    """Somebody chose this value."""
    return config.source != "default"
