"""A row of the catalogue: one metric with its meaning, roles, labels and Kafka's MBean."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram", "summary"]

BROKER = ("broker",)
CONTROLLER = ("controller",)
BOTH = ("broker", "controller")


class Row(NamedTuple):
    name: str
    """The metric's name: with `_total` if it is a counter, without `_bucket`, `_sum` and `_count`."""
    kind: Kind
    help: str
    roles: tuple[str, ...]
    labels: tuple[str, ...] = ()
    mbean: str = ""
    """Kafka's MBean and attribute; empty if Kafka has no such metric."""
    per_second: float = 1.0
    """Factor from seconds to the printed unit: 1000 if the name ends in ms. Histograms and summaries only."""


class Section(NamedTuple):
    title: str
    text: str
    rows: tuple[Row, ...]
