"""Scrapes nodes in this process, and parses the text as Prometheus would."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from wire_cluster import WireCluster

from strandline.observe.catalog import ROWS
from strandline.observe.collector import make_registry
from strandline.observe.loop_lag import LoopLag
from strandline.protocol.metrics import Histogram

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Scrape:
    """The parsed metrics of one scrape of one node."""

    def __init__(self, registry: CollectorRegistry, accept: str = "") -> None:
        encode, content_type = choose_encoder(accept)
        self.text = encode(registry).decode()
        parse = parse_openmetrics if "openmetrics" in content_type else parse_text
        self.samples = [sample for family in parse(self.text) for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """Return the value of the one sample with exactly these labels."""
        found = [s.value for s in self.samples if s.name == name and s.labels == labels]
        assert len(found) == 1, (name, labels, [s for s in self.samples if s.name == name])
        return found[0]

    def sum(self, name: str, **labels: str) -> float:
        """Sum all samples that have at least these labels."""
        return sum(s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items())

    @property
    def rows(self) -> set[str]:
        """Return the catalogue's names of the scraped metrics, or the sample's name if the catalogue has none."""
        return {row_of(sample.name) for sample in self.samples}


def row_of(name: str) -> str:
    candidates = (name, *(name.removesuffix(suffix) for suffix in ("_bucket", "_sum", "_count")))
    return next((candidate for candidate in candidates if candidate in ROWS), name)


def role_of(node: int) -> str:
    return "broker" if node < 100 else "controller"


class Watch:
    """The registries of a cluster's nodes. Each is created once, as a node does."""

    def __init__(self, cluster: WireCluster) -> None:
        self.cluster = cluster
        self._registries: dict[int, tuple[Any, CollectorRegistry]] = {}

    def node(self, node: int, accept: str = "") -> Scrape:
        server = self.cluster.server(node)
        known = self._registries.get(node)
        if known is None or known[0] is not server:
            lag = LoopLag(asyncio.get_running_loop(), Histogram())
            known = self._registries[node] = server, make_registry(role_of(node), server, loop_lag=lag)
        return Scrape(known[1], accept)

    def brokers(self) -> Iterator[Scrape]:
        return (self.node(node) for node in self.cluster.running)

    def controllers(self) -> Iterator[Scrape]:
        return (self.node(node) for node in self.cluster.controllers if self.cluster.server(node) is not None)

    def sum(self, name: str, **labels: str) -> float:
        """Sum a metric over the brokers."""
        return sum(scrape.sum(name, **labels) for scrape in self.brokers())

    @property
    def active(self) -> Scrape:
        """Return a metric of the active controller."""
        (active,) = [scrape for scrape in self.controllers() if scrape.value(ACTIVE_CONTROLLERS)]
        return active


ACTIVE_CONTROLLERS = "kafka_controller_kafkacontroller_activecontrollercount"
UNDER_REPLICATED = "kafka_server_replicamanager_underreplicatedpartitions"
UNDER_MIN_ISR = "kafka_server_replicamanager_underminisrpartitioncount"
AT_MIN_ISR = "kafka_server_replicamanager_atminisrpartitioncount"
OFFLINE = "kafka_controller_kafkacontroller_offlinepartitionscount"
SHRINKS = "kafka_server_replicamanager_isrshrinks_total"
EXPANDS = "kafka_server_replicamanager_isrexpands_total"
LEADERS = "kafka_server_replicamanager_leadercount"
MAX_LAG = "kafka_server_replicafetchermanager_maxlag"
REQUESTS = "kafka_network_requestmetrics_requests_total"
ERRORS = "kafka_network_requestmetrics_errors_total"


def traffic(name: str) -> str:
    return f"kafka_server_brokertopicmetrics_{name}_total"
