"""A row of the catalogue: one metric, and what there is to say of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram", "summary"]

BROKER = ("broker",)
CONTROLLER = ("controller",)
BOTH = ("broker", "controller")


class Row(NamedTuple):
    name: str
    """With `_total` where it is a counter; without `_bucket`, `_sum` and `_count`."""
    kind: Kind
    help: str
    roles: tuple[str, ...]
    labels: tuple[str, ...] = ()
    mbean: str = ""
    """Kafka's MBean and attribute; empty where Kafka has no such thing."""
    per_second: float = 1.0
    """How many of the printed unit are a second: 1000 where the name ends in ms. Histograms and summaries only."""


class Section(NamedTuple):
    title: str
    text: str
    rows: tuple[Row, ...]
