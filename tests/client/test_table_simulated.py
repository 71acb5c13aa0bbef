"""Tables on machines of their own race for counters, while leaders die and messages are lost. On virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.client.errors import StrandlineError
from strandline.client.table.table import Table
from strandline.client.table.writer import MARK
from strandline.testing import simulated
from strandline.testing.kit.simulated.cluster import SimulatedCluster

TABLES, COUNTERS = 3, 2


class Racer:
    """A program with a table. It counts the increments that succeeded, and those that raised an error."""

    def __init__(self, cluster: SimulatedCluster, number: int) -> None:
        self.client = cluster.simulated.client(f"racer-{number}")
        self.servers = cluster.bootstrap_servers
        self.done = self.failed = 0
        self.metrics: dict[str, Any] = {}
        self.is_stopped = False
        self.task = self.client.spawn(self._race(number))

    async def _race(self, number: int) -> dict[bytes, bytes]:
        options: dict[str, Any] = {"delivery_timeout_ms": 700, "request_timeout_ms": 400, "max_block_ms": 20_000}
        async with Table("counters", bootstrap_servers=self.servers, doors=self.client.doors, **options) as table:
            turn = number
            while not self.is_stopped:
                turn += 1
                try:
                    await table.update(b"counter-%d" % (turn % COUNTERS), lambda n: b"%d" % (int(n or 0) + 1))
                    self.done += 1
                except StrandlineError:
                    self.failed += 1
                await asyncio.sleep(0.1)
            self.metrics = table.metrics()
            await table.caught_up()
            return dict(table.items())


async def kill_leaders(cluster: SimulatedCluster, times: int) -> None:
    for _ in range(times):
        with cluster.drop("Produce", where="response"):
            await asyncio.sleep(0.8)
        leader = await cluster.leader_of("counters")
        await cluster.kill(leader)
        await asyncio.sleep(0.5)
        await cluster.make_whole()


@simulated(seeds=1, faults=None)
async def test_sum_of_the_increments_is_the_value(cluster: SimulatedCluster) -> None:
    """The sum would differ if an increment were lost, or repeated because its acknowledgement was lost."""
    await cluster.create_topic("counters", cleanup_policy="compact")
    racers = [Racer(cluster, number) for number in range(TABLES)]
    await kill_leaders(cluster, 2)
    for racer in racers:
        racer.is_stopped = True
    contents = [await cluster.simulated.world.join(racer.task) for racer in racers]
    records = await cluster.read_all("counters")
    assert contents.count(contents[0]) == TABLES
    total = sum(map(int, contents[0].values()))
    assert total == len(records) == sum(racer.done for racer in racers)
    assert sum(racer.failed for racer in racers) == 0, "each write in doubt was looked up"
    assert total > 5
    marks = [dict(record.headers)[MARK] for record in records]
    assert len(set(marks)) == len(marks)
    assert sum(racer.metrics["conditional_attempts"] - racer.metrics["conditional_writes"] for racer in racers) > 0
    assert sum(racer.metrics["writes_in_doubt"] for racer in racers) > 0
