"""Real brokers: how long `Table` takes to load a topic, from the log and from a snapshot, and its calls one by one.

    python benchmarks/table.py [--keys 1000000] [--value 100] [--partitions 1] [--runs 5] [--brokers 1]

A producer writes each key once, in batches of 16 KiB. Each run starts the table in this process (that is `load`), then once more
with a snapshot on the disk (`snapshot`), and a consumer reads the same log with `fetch_batches` (`columns`), which is the least
that a table can cost. Seconds are those of the wall clock and those of the CPU: of this process, and of the broker beside it. The
report has medians. `--partitions` above 1 also measures the search for keys that several partitions have.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from strandline.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from strandline.client.table.table import Table
from strandline.local_cluster import LocalCluster

TOPIC, SMALL = "table", "small"
CALLS = 1000
Figures = dict[str, list[float]]


class Bench:
    """One cluster with a filled topic."""

    def __init__(self, cluster: LocalCluster, folder: str, args: argparse.Namespace) -> None:
        self.cluster = cluster
        self.folder = folder
        self.args = args
        self.figures: Figures = {}

    async def fill(self) -> None:
        args = self.args
        async with Admin(bootstrap_servers=self.cluster.bootstrap) as admin:
            replicas, configs = len(self.cluster.brokers), {"cleanup.policy": "compact"}
            await admin.create_topics(
                [
                    NewTopic(TOPIC, partitions=args.partitions, replication_factor=replicas, configs=configs),
                    NewTopic(SMALL, partitions=1, replication_factor=replicas, configs=configs),
                ]
            )
        noise = os.urandom(1 << 20)
        source = random.Random(1)
        async with Producer(bootstrap_servers=self.cluster.bootstrap) as producer:
            for number in range(args.keys):
                at = source.randrange(len(noise) - args.value)
                await producer.send(TOPIC, noise[at : at + args.value], b"user-%010d" % number)

    async def run(self) -> None:
        await self._measure("load", self._load)
        await self._measure("columns", self._columns)
        await self._load(self.folder)  # Writes the snapshot when it stops.
        await self._measure("snapshot", lambda: self._load(self.folder))

    async def _load(self, snapshot_dir: str | None = None) -> float:
        began = time.perf_counter()
        async with Table(TOPIC, bootstrap_servers=self.cluster.bootstrap, snapshot_dir=snapshot_dir) as table:
            took = time.perf_counter() - began
            assert len(table) == self.args.keys
        return took

    async def _columns(self) -> float:
        began, rows = time.perf_counter(), 0
        async with Consumer(bootstrap_servers=self.cluster.bootstrap, max_partition_fetch_bytes=4_194_304) as consumer:
            await consumer.assign([TopicPartition(TOPIC, index) for index in range(self.args.partitions)])
            await consumer.seek_to_beginning()
            while rows < self.args.keys:
                for batches in (await consumer.fetch_batches(timeout_ms=1000)).values():
                    rows += sum(map(len, batches))
        return time.perf_counter() - began

    async def _measure(self, name: str, work: Callable[[], Awaitable[float]]) -> None:
        """The time that `work` returns, and the CPU of this process and of the brokers until it has ended."""
        gc.collect()
        ours, theirs = time.process_time(), self._broker_cpu_s()
        took = await work()
        self._add(f"{name}, s", took)
        self._add(f"{name}, CPU s of the client", time.process_time() - ours)
        self._add(f"{name}, CPU s of the brokers", self._broker_cpu_s() - theirs)

    def _broker_cpu_s(self) -> float:
        ticks = 0
        for broker in self.cluster.brokers:
            fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    async def calls(self) -> None:
        """Single calls of a small table."""
        async with Table(SMALL, bootstrap_servers=self.cluster.bootstrap) as table:
            for name, call in (
                ("put", lambda number: table.put(b"key", b"%d" % number)),
                ("put with expect", lambda number: table.put(b"key", b"%d" % number, expect=table.version(b"key"))),
            ):
                times = []
                for number in range(CALLS):
                    began = time.perf_counter()
                    await call(number)
                    times.append((time.perf_counter() - began) * 1000)
                self._add(f"{name}, p50 in ms", statistics.median(times))
            began = time.perf_counter()
            for _ in range(100 * CALLS):
                table.get(b"key")
            self._add("get, us", (time.perf_counter() - began) / (100 * CALLS) * 1e6)

    def _add(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)

    def report(self) -> None:
        args = self.args
        print(f"{args.keys:,} keys of 15 bytes, values of {args.value}, {args.partitions} partitions, {args.runs} runs; medians")
        for name, values in self.figures.items():
            print(f"{name:32} {statistics.median(values):8.3f}   {min(values):.3f} to {max(values):.3f}")
        print(f"{'memory of the client, MB':32} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:8.0f}")


async def main(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with LocalCluster(f"{folder}/cluster", brokers=args.brokers, controllers=1) as cluster:
            bench = Bench(cluster, f"{folder}/snapshots", args)
            await bench.fill()
            for _ in range(args.runs):
                await bench.run()
                await bench.calls()
            bench.report()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("keys", 1_000_000), ("value", 100), ("partitions", 1), ("runs", 5), ("brokers", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    uvloop.run(main(parser.parse_args()))
