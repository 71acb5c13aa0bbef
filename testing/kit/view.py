"""What is seen of a cluster at one moment: the picture that conditions, reports and oracles look at.

Nodes in the test's process are looked into; of processes it is what they answer. Nothing here waits or decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PartitionView:
    topic: str
    partition: int
    leader: int | None
    """None: nobody leads."""
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: frozenset[int]
    high_watermark: int | None
    """The leader's; None when it cannot be asked."""
    is_caught_up: bool
    """Every replica is in the ISR and has everything that the leader has, and all of it is committed."""
    log_ends: Mapping[int, int] = field(default_factory=dict)
    """The log ends (LEO) of the replicas that can be looked into, by broker: none, where they are other processes."""

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
    id: int
    name: str
    """Such as `broker-1`."""
    state: str
    """"running", "paused", "killed", "stopped", "failed", "starting"."""
    note: str = ""
    """Why it failed; what is wrong with its disk."""

    @property
    def is_up(self) -> bool:
        return self.state in ("running", "paused", "starting")


class View(Protocol):
    """A cluster, as conditions see it. What is not known is None: a condition about it does not hold."""

    def partition(self, topic: str, partition: int) -> PartitionView | None: ...

    def partitions(self) -> Sequence[PartitionView]:
        """All, by topic and index."""
        ...

    def controller(self) -> int | None:
        """The active controller."""
        ...

    def fenced(self) -> frozenset[int] | None:
        """The brokers that are registered and fenced."""
        ...
