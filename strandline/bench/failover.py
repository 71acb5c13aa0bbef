"""Fail-over as a producer sees it: a steady load on every partition while the leader of some of them is killed.

The gap of a partition is the longest time between two acknowledgements of its records around the fault; the result is the
longest gap of all partitions. The load starts its own cluster, because it kills one of the nodes.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Literal

from strandline.bench.figures import Figures, longest_gap, payloads, percentile
from strandline.client import Admin, NewTopic, Producer
from strandline.local_cluster import ClusterError, LocalCluster
from strandline.protocol.errors import StrandlineError
from strandline.reach import reach

TOPIC = "bench-failover"
INTERVAL_S = 0.001
BEFORE_S, AFTER_S = 1.0, 2.0
RECOVERY_MS = 30_000

Fault = Literal["kill-leader", "stop-leader", "kill-controller"]


class _Trickle:
    """Sends one record per partition and millisecond, and notes the times of the acknowledgements."""

    def __init__(self, producer: Producer, partitions: int, record_size: int) -> None:
        self.acked_at: list[list[float]] = [[] for _ in range(partitions)]
        self.latencies_ms: list[float] = []
        self.errors: list[str] = []
        self._producer = producer
        self._value = payloads(record_size, 1)[0]
        self._tasks: set[asyncio.Task[None]] = set()
        self._going = True

    async def run(self) -> None:
        due = perf_counter()
        while self._going:
            for partition in range(len(self.acked_at)):
                task = asyncio.create_task(self._send(partition))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            due += INTERVAL_S
            await asyncio.sleep(max(0.0, due - perf_counter()))
        await asyncio.gather(*self._tasks)

    async def _send(self, partition: int) -> None:
        sent_at = perf_counter()
        try:
            await self._producer.send_and_wait(TOPIC, self._value, partition=partition)
        except StrandlineError as e:
            self.errors.append(str(e))
            return
        now = perf_counter()
        self.acked_at[partition].append(now)
        self.latencies_ms.append((now - sent_at) * 1000)

    def stop(self) -> None:
        self._going = False

    async def until_all_acked_after(self, moment: float) -> None:
        while any(not times or times[-1] <= moment for times in self.acked_at):
            if perf_counter() > moment + RECOVERY_MS / 1000:
                raise ClusterError(f"not every partition was acknowledged again within {RECOVERY_MS} ms")
            await asyncio.sleep(0.01)


async def failover(*, fault: Fault = "kill-leader", partitions: int = 6, record_size: int = 100) -> Figures:
    with tempfile.TemporaryDirectory(prefix="strandline-failover-", ignore_cleanup_errors=True) as folder:
        async with LocalCluster(Path(folder)) as cluster:
            return await _measure(cluster, fault, partitions, record_size)


async def _measure(cluster: LocalCluster, fault: Fault, partitions: int, record_size: int) -> Figures:
    async with Admin(**reach(cluster.bootstrap)) as admin:
        await admin.create_topics([NewTopic(TOPIC, partitions=partitions, replication_factor=min(3, len(cluster.brokers)))])
        async with Producer(**reach(cluster.bootstrap), acks="all", linger_ms=0) as producer:
            trickle = _Trickle(producer, partitions, record_size)
            running = asyncio.create_task(trickle.run())
            started = perf_counter()
            await asyncio.sleep(BEFORE_S)
            victim = await _victim(cluster, admin, fault)
            moment = perf_counter()
            if fault == "stop-leader":
                cluster.terminate(victim)
            else:
                cluster.kill(victim)
            await asyncio.sleep(AFTER_S)
            await trickle.until_all_acked_after(moment + AFTER_S / 2)
            trickle.stop()
            await running
            seconds = perf_counter() - started
    if trickle.errors:
        raise ClusterError(f"{len(trickle.errors)} records were not delivered, the first: {trickle.errors[0]}")
    records = sum(map(len, trickle.acked_at))
    return Figures(
        records=records,
        seconds=seconds,
        value_bytes=records * record_size,
        p50_ms=percentile(trickle.latencies_ms, 0.5),
        p99_ms=percentile(trickle.latencies_ms, 0.99),
        max_gap_ms=max(longest_gap([t for t in times if t > moment - BEFORE_S / 2]) for times in trickle.acked_at) * 1000,
    )


async def _victim(cluster: LocalCluster, admin: Admin, fault: Fault) -> str:
    if fault == "kill-controller":
        return cluster.node(f"controller-{(await admin.describe_quorum()).leader_id}").name
    return cluster.broker((await admin.describe_topics([TOPIC]))[0].partitions[0].leader_id).name
