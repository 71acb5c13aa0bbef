"""The topic `jobs`: a client writes to it, enlarges it, and deletes and recreates it, while groups read it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from strandline.client import NewTopic
from strandline.protocol.errors import StrandlineError
from strandline.testing.simulation.cluster.cluster import Client
from strandline.testing.simulation.cluster.groups.program import Surroundings
from strandline.testing.simulation.group_plans import JOBS

PATIENCE_MS = 1500
PARTITIONS_MAX = 5
RECORDS_MAX = 5


class Jobs:
    def __init__(self, around: Surroundings, draw: Random) -> None:
        self.around = around
        self.draw = draw
        self.going = True
        self._sent = 0

    async def work(self, client: Client, admin: Any) -> None:
        """Write to the topic and change it until the faults end."""
        options = {"request_timeout_ms": 1000, "max_block_ms": 1000, "connect_timeout_ms": 500, "delivery_timeout_ms": 1500}
        producer = await self.around.started(lambda: client.producer(**options))
        if producer is None:
            return
        try:
            await self._work(client, admin, producer)
        finally:
            await producer.stop()

    async def _work(self, client: Client, admin: Any, producer: Any) -> None:
        while self.going and self.around.going():
            what = self.draw.choice(("write", "write", "write", "write", "grow", "recreate"))
            try:
                await getattr(self, f"_{what}")(admin, producer)
            except (StrandlineError, TimeoutError) as e:
                self.around.gave_up(client, f"{what} of {JOBS}", e)
            await asyncio.sleep(self.draw.uniform(0.05, 0.6))

    async def _create(self, admin: Any) -> None:
        replicas = min(self.around.options.brokers, 3)
        await admin.create_topics([NewTopic(JOBS, self.draw.choice((1, 2, 3)), replicas)], timeout_ms=PATIENCE_MS)

    async def _write(self, admin: Any, producer: Any) -> None:
        if self.around.cluster.image().topic(JOBS) is None:
            await self._create(admin)
        for _ in range(self.draw.randint(1, RECORDS_MAX)):
            self._sent += 1
            await producer.send_and_wait(JOBS, b"job %d" % self._sent)

    async def _grow(self, admin: Any, producer: Any) -> None:
        topic = self.around.cluster.image().topic(JOBS)
        if topic is not None and len(topic.partitions) < PARTITIONS_MAX:
            await admin.create_partitions(JOBS, len(topic.partitions) + 1, timeout_ms=PATIENCE_MS)

    async def _recreate(self, admin: Any, producer: Any) -> None:
        if self.around.cluster.image().topic(JOBS) is not None:
            await admin.delete_topics([JOBS], timeout_ms=PATIENCE_MS)
        await self._create(admin)
