"""Faults at random on the processes of a cluster and on those of its clients, one fault after the other."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

from strandline.local_cluster import LocalCluster, Node


class Clients(Protocol):
    """The processes of clients, by name. Each runs, or is down."""

    @property
    def running(self) -> Collection[str]: ...

    async def start(self, name: str) -> None: ...

    async def end(self, name: str, number: signal.Signals) -> None: ...


class FaultSchedule:
    """Runs faults one after the other. At most one node and two clients are down at a time."""

    word: str
    """The word for a client in the names of the faults: `kill <word>`, `stop <word>`."""
    faults: Mapping[str, int]
    """Name -> weight."""

    def __init__(self, rng: random.Random, cluster: LocalCluster, clients: Clients, names: Sequence[str]) -> None:
        self.rng, self.cluster, self.clients, self.names = rng, cluster, clients, names
        self.done: Counter[str] = Counter()
        self._down: Node | None = None
        self._actions: dict[str, Callable[[], Awaitable[None]]] = {
            f"kill {self.word}": lambda: self._end(signal.SIGKILL),
            f"stop {self.word}": lambda: self._end(signal.SIGTERM),
            "kill broker": lambda: self._kill(rng.choice(cluster.brokers)),
            "kill coordinator": self._kill_coordinator,
            "kill controller": lambda: self._kill(rng.choice(cluster.controllers)),
        }

    async def coordinator(self) -> int:
        """The id of the broker that coordinates the clients; -1 if it is not known now."""
        raise NotImplementedError

    async def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            name = self.rng.choices(list(self.faults), list(self.faults.values()))[0]
            await self._actions[name]()
            self.done[name] += 1
            await self._pass()
            await self._heal(most=2)
        await self._heal(most=0)

    async def _pass(self) -> None:
        await asyncio.sleep(self.rng.choice((0.1, 0.5, 1.5, 3.0)) * self.rng.uniform(0.5, 1.5))  # a fault is a span of time

    async def _heal(self, most: int) -> None:
        """Start the node that is down, and clients until at most `most` - 1 of them are down."""
        if self._down is not None:
            await self.cluster.start_node(self._down.name)
            self._down = None
        missing = [name for name in self.names if name not in self.clients.running]
        for name in missing[: max(0, len(missing) - most + 1)]:
            await self.clients.start(name)

    async def _end(self, number: signal.Signals) -> None:
        await self.clients.end(self.rng.choice(sorted(self.clients.running)), number)

    async def _kill(self, node: Node) -> None:
        self.cluster.kill(node.name)
        await self.cluster.wait_ended(node.name)
        self._down = node

    async def _kill_coordinator(self) -> None:
        id = await self.coordinator()
        await self._kill(self.cluster.broker(id) if id > 0 else self.rng.choice(self.cluster.brokers))
