"""A load on a cluster of processes: two producers and a consumer that record a history of sends and reads.

Every wait has a condition and a time limit. `strandline.testing.history` judges the recorded history.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from strandline.chaos.load import SteadyLoad, until
from strandline.client import Admin
from strandline.protocol.errors import StrandlineError
from strandline.testing.replicas import Comparison, compare_replicas

BOUND_S = 30.0

__all__ = ["Load", "until"]


class Replica(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def data(self) -> Path: ...


class Loaded(Protocol):
    """A cluster of processes whose data directories can be compared: `LocalCluster`, or `NetCluster` (`netns.py`)."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def brokers(self) -> Sequence[Replica]: ...


class Load(SteadyLoad):
    """Two idempotent producers with acks=all and a consumer that follows them, on one topic."""

    def __init__(self, cluster: Loaded, topic: str, *, partitions: int = 3, interval_ms: int = 2) -> None:
        super().__init__(cluster.bootstrap, topic, partitions=partitions, interval_ms=interval_ms, producers=2)
        self.cluster = cluster

    async def __aenter__(self) -> Self:
        await self.create_topic()
        self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await (self.abandon() if error else self.stop())

    async def progress(self, records: int = 600, within_s: float = BOUND_S) -> None:
        await super().progress(records, within_s)

    async def fully_replicated(self) -> None:
        """Wait until every replica is in the ISR of its partition."""

        async def whole() -> bool:
            try:
                async with Admin(bootstrap_servers=self.bootstrap, request_timeout_ms=2000) as admin:
                    (topic,) = await admin.describe_topics([self.topic])
            except StrandlineError:
                return False
            return all(p.leader_id >= 0 and set(p.isr) == set(p.replicas) for p in topic.partitions)

        await until(whole, "every replica is in sync again", BOUND_S)

    def replicas(self) -> list[Comparison]:
        return compare_replicas({n.name: n.data for n in self.cluster.brokers}, self.topic)
