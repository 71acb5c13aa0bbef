"""A client that moves replicas between the log directories of their brokers (KIP-113), and cordons directories (KIP-1066), while
faults happen."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from strandline.client import TopicPartition
from strandline.client.errors import StrandlineError
from strandline.protocol.errors import ErrorCode
from strandline.testing.simulation.cluster.cluster import Client
from strandline.testing.simulation.kernel.world import World
from strandline.testing.simulation.options import Options

PATIENCE_MS = 1500
EXPECTED = (
    ErrorCode.NONE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ErrorCode.REPLICA_NOT_AVAILABLE,
)
"""Errors that are no problem of the run: a directory or a replica may be offline, a directory may be cordoned, and a broker may
not have the replica."""


class LogMover:
    """Moves and cordons of one run."""

    def __init__(self, world: World, options: Options, problems: list[str]) -> None:
        self.world = world
        self.options = options
        self.problems = problems
        self.going = True

    async def work(self, client: Client, admin: Any, draw: Random) -> None:
        """Move and cordon until the faults end."""
        while True:
            await asyncio.sleep(draw.uniform(0.1, 0.8))
            if not self.going:
                return
            what = draw.choice(("move", "move", "move", "cordon"))
            try:
                await (self._move(admin, draw) if what == "move" else self._cordon(admin, draw))
            except (StrandlineError, TimeoutError) as e:
                self.world.trace.emit("client.gave_up", client.machine.id, what=f"{what} of log directories", reason=str(e))

    async def _move(self, admin: Any, draw: Random) -> None:
        broker, path = self._broker(draw), draw.choice(self.options.log_dirs)
        place = TopicPartition(*draw.choice([place for topic in self.options.topics for place in topic.places]))
        for result in await admin.alter_replica_log_dirs(broker, {place: path}, timeout_ms=PATIENCE_MS):
            if result.code not in EXPECTED:
                text = f"broker {broker} refuses to move {place.topic}-{place.partition} to {path}: {result.code.name}"
                self.problems.append(f"{text}, {result.message}")

    async def _cordon(self, admin: Any, draw: Random) -> None:
        paths = draw.choice((None, None, *self.options.log_dirs, "*"))
        await admin.alter_configs("broker", self._broker(draw), {"cordoned.log.dirs": paths}, timeout_ms=PATIENCE_MS)

    def _broker(self, draw: Random) -> int:
        return draw.randint(1, self.options.brokers)
