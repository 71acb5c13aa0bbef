"""The state of a cluster at one moment, for conditions, reports and oracles.

For nodes in the test's process it is read from their objects, for processes from their responses. Nothing here waits or
decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PartitionView:
    """State of one partition at one moment, as `cluster.describe()` returns it. Nodes are named by their ids."""

    topic: str
    partition: int
    leader: int | None
    """None: the partition has no leader."""
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: frozenset[int]
    high_watermark: int | None
    """The leader's high watermark; None if it is not known."""
    is_caught_up: bool
    """All replicas are in the ISR and have all records of the leader, and all records are committed."""
    log_ends: Mapping[int, int] = field(default_factory=dict)
    """Broker -> log end offset (LEO) of its replica; empty if the nodes are processes."""
    is_cleaned: bool | None = None
    """The cleaners of all replicas have been over all closed segments, at least one each. None: the topic is not compacted, or it
    is not known, because the nodes are processes."""

    def __str__(self) -> str:
        leader = "no leader" if self.leader is None else f"leader {self.leader}"
        isr = ",".join(map(str, sorted(self.isr)))
        replicas = ",".join(map(str, self.replicas))
        hw = "?" if self.high_watermark is None else self.high_watermark
        ends = ", ".join(f"{broker}: {end}" for broker, end in sorted(self.log_ends.items()))
        told = f", log ends {{{ends}}}" if ends else ""
        return f"{self.topic}-{self.partition}: {leader}, epoch {self.leader_epoch}, ISR {isr} of {replicas}, HW {hw}{told}"


@dataclass(frozen=True, slots=True)
class NodeView:
    """Name and state of one node at one moment, as `cluster.node()` returns it."""

    id: int
    name: str
    """Such as `broker-1`."""
    state: str
    """"running", "paused", "killed", "stopped", "failed", "starting"."""
    note: str = ""
    """The reason if it failed, and the active faults of its disk."""

    @property
    def is_up(self) -> bool:
        return self.state in ("running", "paused", "starting")


class View(Protocol):
    """The state of a cluster, as conditions read it. None stands for unknown: a condition about it does not hold."""

    def partition(self, topic: str, partition: int) -> PartitionView | None: ...

    def partitions(self) -> Sequence[PartitionView]:
        """All partitions, sorted by topic and index."""
        ...

    def controller(self) -> int | None:
        """Id of the active controller."""
        ...

    def fenced(self) -> frozenset[int] | None:
        """Ids of the brokers that are registered and fenced."""
        ...
