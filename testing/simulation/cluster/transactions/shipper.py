"""A program that consumes, transforms and produces: for each committed record of `sales` and `stock` it sends one to `shipped`,
in a transaction with its offsets (`Consumer.run(transactional=True)`). At the end the output must equal the input, exactly
once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from strandline.client import Backoff
from strandline.client.errors import StrandlineError
from strandline.testing.simulation.transaction_plans import SHIPPED, SHIPPED_PARTITIONS, TOPICS, WriterPlan

GROUP = "shippers"
LOOK_S = 0.05
DRAIN_MS = 1000


class Failed(Exception):
    """The handler of a record fails, and so does the transaction."""


class Shipper:
    """The program in one process."""

    def __init__(
        self, plan: WriterPlan, draw: Random, *, going: Callable[[], bool], gave_up: Callable[[str, Exception], None]
    ) -> None:
        self.plan = plan
        self.draw = draw
        self._going = going
        self._gave_up = gave_up

    async def work(self, start_producer: Callable[[], Any], start_consumer: Callable[[], Any]) -> None:
        """Ship records until the run is over. The arguments return started clients, or None when the run is over."""
        while self._going():
            producer = await start_producer()
            if producer is None:
                return
            try:
                consumer = await start_consumer()
                if consumer is not None:
                    await self._use(consumer, producer)
            finally:
                await producer.stop()
            await asyncio.sleep(self.draw.uniform(0, 4 * self.plan.pause_s))

    async def _use(self, consumer: Any, producer: Any) -> None:
        try:
            consumer.subscribe(TOPICS)
            await self._run(consumer, producer)
        except StrandlineError as e:
            self._gave_up("a transactional run", e)
        finally:
            await consumer.stop()

    async def _run(self, consumer: Any, producer: Any) -> None:
        async def handle(record: Any) -> None:
            if self.draw.random() < self.plan.dawdles / 10:
                await asyncio.sleep(self.plan.options["transaction_timeout_ms"] / 1000 * self.draw.uniform(0.2, 1.5))
            if self.draw.random() < self.plan.aborts / 10:
                raise Failed
            partition = (record.partition + len(record.topic)) % SHIPPED_PARTITIONS
            await producer.send(SHIPPED, record.value, partition=partition)

        running = asyncio.get_running_loop().create_task(
            consumer.run(
                handle,
                transactional=True,
                producer=producer,
                retry=Backoff(first_ms=5, max_ms=50, attempts=1000),
                max_in_flight=self.plan.appends_max,
                drain_timeout_ms=DRAIN_MS,
            )
        )
        try:
            while self._going() and not running.done():
                await asyncio.wait([running], timeout=LOOK_S)
            consumer.end_run()
            await running
        finally:
            running.cancel()
