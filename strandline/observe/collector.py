"""A node's metrics for prometheus_client: one registry per node, filled at each scrape.

The readings (`broker.py`, `controller.py`, `reading.py`) read the present state of a server and yield values under the
catalogue's names; here they are grouped into metric families. Nothing is kept between two scrapes. If a part of the
readings fails, it is omitted, counted and logged, and the other metrics are still printed.

`collect` must run on the node's event loop, because it reads the loop's state. `snapshot` allows the slower half, the
rendering as text, to run on another thread.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from itertools import accumulate
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from strandline.observe.broker import broker_readings
from strandline.observe.catalog import ROWS, Row
from strandline.observe.controller import controller_readings
from strandline.observe.loop_lag import LoopLag
from strandline.observe.reading import Reading, Total
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.metrics import Histogram

logger = structlog.get_logger()

_VERSION = version("strandline")
"""Read at import time, because it reads a file and must not block the loop."""


def make_registry(role: str, server: Any, *, loop_lag: LoopLag | None = None) -> CollectorRegistry:
    """The registry of one node. `server`: its BrokerServer or ControllerServer, in any phase."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(role, server, loop_lag))
    ProcessCollector(registry=registry)
    return registry


def snapshot(registry: CollectorRegistry) -> CollectorRegistry:
    """A registry with the present values, which no longer accesses the node's state. Call it on the node's event loop."""
    return _Snapshot(list(registry.collect()))


class _Snapshot(CollectorRegistry):
    def __init__(self, families: list[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class NodeCollector(Collector):
    def __init__(self, role: str, server: Any, loop_lag: LoopLag | None = None) -> None:
        self._role = role
        self._server = server
        self._loop_lag = loop_lag
        self._parts = broker_readings() if role == "broker" else controller_readings()
        self._errors = 0
        self._limits = LineLimits()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for part in self._parts:
            self._read(part(self._server), families)
        self._read(self._own(), families)
        yield from families.values()

    def _read(self, readings: Iterator[Reading], families: dict[str, Metric]) -> None:
        try:
            for name, value, labels in readings:
                if name not in families:
                    row = ROWS[name]
                    families[name] = _FAMILIES[row.kind](name, row.help, labels=row.labels)
                if isinstance(value, Histogram):
                    _add_histogram(families[name], ROWS[name], value, labels)
                elif isinstance(value, Total):
                    _add_total(families[name], ROWS[name], value, labels)
                else:
                    # `add_metric` does the same and takes three times as long; there are thousands of samples.
                    families[name].samples.append(Sample(name, dict(zip(ROWS[name].labels, labels, strict=False)), value))
        except Exception as e:
            self._errors += 1
            suppressed = self._limits.admit(type(e).__name__, asyncio.get_running_loop().time())
            if suppressed is not None:
                logger.error("metrics.reading_failed", exc_info=e, **suppressed.fields)

    def _own(self) -> Iterator[Reading]:
        python = ".".join(map(str, sys.version_info[:3]))
        yield Reading("strandline_build_info", 1, (_VERSION, python, self._role, str(self._server.config.node_id)))
        yield Reading("strandline_scrape_errors_total", self._errors)
        if self._loop_lag is not None:
            yield Reading("strandline_event_loop_lag_seconds", self._loop_lag.histogram)
            yield Reading("strandline_event_loop_lag_max_seconds", self._loop_lag.recent_max_s)


_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,  # it removes `_total` from the name itself
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "summary": SummaryMetricFamily,
}


def _add_total(family: Any, row: Row, value: Total, labels: tuple[str, ...]) -> None:
    family.add_metric(labels, count_value=value.times, sum_value=value.sum * row.per_second)


def _add_histogram(family: Any, row: Row, value: Histogram, labels: tuple[str, ...]) -> None:
    ends = _ends(tuple(value.bounds), row.per_second)
    family.add_metric(labels, list(zip(ends, accumulate(value.counts), strict=True)), value.sum * row.per_second)


@cache
def _ends(bounds: tuple[float, ...], per_second: float) -> tuple[str, ...]:
    """The `le` label of each bucket, in the row's unit."""
    return (*(repr(round(bound * per_second, 9)) for bound in bounds), "+Inf")
