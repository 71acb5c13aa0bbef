"""Measures what partitions cost: three brokers and three controllers on this machine, RF 3, and no clients.

    python benchmarks/partitions.py --partitions 10000          (--partitions 1000 for the small row)
    python benchmarks/partitions.py --partitions 10000 --idle 60 --folder /data/bench

Prints one JSON object: times in seconds, CPU in percent of a core, memory in MB. "until led" ends when every partition has a
living leader in the metadata of a broker, "until in sync" when each has all its replicas in the ISR.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from strandline.client import Admin, NewTopic, PartitionDescription
from strandline.local_cluster import LocalCluster, Node
from strandline.protocol.errors import StrandlineError

PER_TOPIC = 500
PATIENCE_S = 900
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SAMPLE_S = 0.1


def cpu_s(node: Node) -> float:
    """User and system time of the node's process."""
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_mb(node: Node) -> float:
    status = Path(f"/proc/{node.pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


class Measurement:
    def __init__(self, cluster: LocalCluster, partitions: int) -> None:
        self.cluster, self.partitions = cluster, partitions
        self.figures: dict[str, Any] = {"partitions": partitions}

    def note(self, name: str, value: float | list[float]) -> None:
        rounded = [round(v, 2) for v in value] if isinstance(value, list) else round(value, 2)
        self.figures[name] = rounded
        print(f"{name}: {rounded}", flush=True)

    async def timed(self, name: str, work: Awaitable[Any]) -> None:
        began = perf_counter()
        await work
        self.note(name, perf_counter() - began)

    async def until(self, holds: Callable[[PartitionDescription], bool], broker_id: int) -> None:
        """Wait until each partition is so in the metadata of this broker."""
        deadline = perf_counter() + PATIENCE_S
        while perf_counter() < deadline:
            try:
                async with Admin(bootstrap_servers=f"127.0.0.1:{self.cluster.broker(broker_id).port}") as admin:
                    topics = await admin.describe_topics()
                found = [p for topic in topics for p in topic.partitions]
                if len(found) >= self.partitions and all(map(holds, found)):
                    return
            except StrandlineError:
                pass
            await asyncio.sleep(SAMPLE_S)
        raise TimeoutError(f"not within {PATIENCE_S} s")

    async def create(self) -> None:
        async with Admin(bootstrap_servers=self.cluster.bootstrap, request_timeout_ms=120_000) as admin:
            for number in range(-(-self.partitions // PER_TOPIC)):
                count = min(PER_TOPIC, self.partitions - number * PER_TOPIC)
                await admin.create_topics([NewTopic(f"many-{number}", count, 3)], timeout_ms=120_000)

    async def idle(self, seconds: float, name: str) -> None:
        nodes = [*self.cluster.brokers, *self.cluster.controllers]
        before = [cpu_s(node) for node in nodes]
        await asyncio.sleep(seconds)
        used = [100 * (cpu_s(node) - was) / seconds for node, was in zip(nodes, before, strict=True)]
        self.note(f"{name}: CPU of each broker, %", used[:3])
        self.note(f"{name}: CPU of each controller, %", used[3:])

    async def restart(self, node: Node) -> None:
        await self.cluster.start_node(node.name)
        await self.until(in_sync, 1)


def led(partition: PartitionDescription) -> bool:
    return partition.leader_id >= 0


def in_sync(partition: PartitionDescription) -> bool:
    return led(partition) and len(partition.isr) == 3


async def measure(cluster: LocalCluster, partitions: int, idle_s: float) -> dict[str, Any]:
    at = Measurement(cluster, partitions)
    await at.timed("create, until answered", at.create())
    await at.timed("create, until in sync after that", at.until(in_sync, 1))
    await at.idle(5, "the first seconds")
    await at.idle(idle_s, "idle")
    at.note("idle: memory of each broker, MB", [memory_mb(n) for n in cluster.brokers])
    at.note("idle: open files of each broker", [len(os.listdir(f"/proc/{n.pid}/fd")) for n in cluster.brokers])
    at.note("idle: memory of each controller, MB", [memory_mb(n) for n in cluster.controllers])
    victim = cluster.broker(3)
    cluster.kill(victim.name)
    await at.timed("kill -9 of a broker, until led", at.until(lambda p: led(p) and p.leader_id != 3, 1))
    await at.timed("its start, until in sync", at.restart(victim))
    await at.idle(idle_s, "idle again")
    stopping = perf_counter()
    await cluster.stop()
    at.note("orderly stop of all", perf_counter() - stopping)
    starting = perf_counter()
    await cluster.start(timeout_ms=PATIENCE_S * 1000)
    at.note("start of all, until ready", perf_counter() - starting)
    await at.timed("start of all, until in sync after that", at.until(in_sync, 1))
    at.note("after the start: memory of each broker, MB", [memory_mb(n) for n in cluster.brokers])
    return at.figures


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--idle", type=float, default=30, metavar="SECONDS")
    parser.add_argument("--folder", help="where the cluster keeps its files; a temporary folder by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="partitions-", dir=options.folder, ignore_cleanup_errors=True) as folder:
        async with LocalCluster(folder) as cluster:
            figures = await measure(cluster, options.partitions, options.idle)
    print(json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(main())
