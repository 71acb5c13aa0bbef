"""Workers that read, write and commit offsets in transactions are killed at random with the brokers, as real processes.

A chain of three topics: three workers of one group copy each record of the first topic to the second, and each of the second to
the third (`transaction_worker.py`). A schedule from a seed kills workers (`kill -9`), stops them in order, kills brokers, the
coordinators of transactions, and controllers, and starts them again. At the end, a consumer of committed records must find each
acknowledged record of the first topic exactly once in each of the others, in order. The test prints its seed;
`STRANDLINE_TRANSACTIONS_SEED` repeats the schedule.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import pytest
from fault_schedule import FaultSchedule
from load import until

from strandline.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from strandline.local_cluster import LocalCluster
from strandline.protocol.errors import StrandlineError

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="session")]

PARTITIONS = 4
PAUSE_S = 0.01
BOUND_S = 90.0
PROGRAM = Path(__file__).with_name("transaction_worker.py")
WORKERS = ("worker-1", "worker-2", "worker-3")
"""They are the transactional ids, too."""
FAULTS = {"kill worker": 5, "stop worker": 1, "kill broker": 2, "kill coordinator": 2, "kill controller": 1}
"""Each with its weight."""


class Workers:
    """The worker processes: one for each id, or none while it is down."""

    def __init__(self, folder: Path, bootstrap: str, group: str, topics: list[str]) -> None:
        self.folder, self.arguments = folder, (bootstrap, group)
        self.topics = topics
        self.running: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str) -> None:
        bootstrap, group = self.arguments
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = await asyncio.create_subprocess_exec(
                sys.executable,
                str(PROGRAM),
                bootstrap,
                group,
                f"{group}-{name}",
                *self.topics,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def end(self, name: str, number: signal.Signals) -> None:
        process = self.running.pop(name)
        assert process.returncode is None, f"{name} ended by itself: {self.log(name)}"
        process.send_signal(number)
        code = await asyncio.wait_for(process.wait(), BOUND_S)
        assert code in (0, -number), f"{name} ended with {code}: {self.log(name)}"

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-4000:]

    def kill_rest(self) -> None:
        for process in self.running.values():
            if process.returncode is None:
                process.kill()


class Source:
    """Writes numbered records to the first topic, and notes those that are acknowledged, by partition and in order."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.acknowledged: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
        self.is_done = False

    async def run(self) -> None:
        number = 0
        async with Producer(bootstrap_servers=self.bootstrap, delivery_timeout_ms=60_000) as producer:
            while not self.is_done:
                sent = [
                    (p, b"%d" % (number + p), await producer.send(self.topic, b"%d" % (number + p), partition=p))
                    for p in range(PARTITIONS)
                ]
                number += PARTITIONS
                for p, value, receipt in sent:
                    await receipt
                    self.acknowledged[p].append(value)
                await asyncio.sleep(PAUSE_S)


class Schedule(FaultSchedule):
    """Faults of a chain of transactions, its workers and its cluster."""

    word = "worker"
    faults = FAULTS

    def __init__(self, rng: random.Random, cluster: LocalCluster, workers: Workers) -> None:
        super().__init__(rng, cluster, workers, WORKERS)
        _, self.group = workers.arguments

    async def coordinator(self) -> int:
        """The coordinator of a worker's transactional id."""
        name = f"{self.group}-{self.rng.choice(WORKERS)}"
        async with Admin(bootstrap_servers=self.cluster.bootstrap, request_timeout_ms=2000) as admin:
            try:
                return (await admin.describe_transactions([name], timeout_ms=3000))[name].coordinator
            except StrandlineError:
                return -1


async def committed(bootstrap: str, topic: str) -> dict[int, list[bytes]]:
    """Partition -> all committed records of a topic up to its end."""
    places = [TopicPartition(topic, p) for p in range(PARTITIONS)]
    async with (
        Admin(bootstrap_servers=bootstrap) as admin,
        Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed") as consumer,
    ):
        found = await admin.list_offsets(dict.fromkeys(places, -1), isolation_level="read_committed")
        ends = {tp: end.offset for tp, end in found.items() if end is not None}
        assert len(ends) == PARTITIONS, "every leader answers"
        await consumer.assign(places)
        values: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
        while any([await consumer.position(tp) < ends[tp] for tp in places]):
            for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                values[tp.partition] += [record.value for record in records if record.offset < ends[tp]]
        return values


async def perform(cluster: LocalCluster, folder: Path, name: str, seconds: float) -> None:
    seed = int(os.environ.get("STRANDLINE_TRANSACTIONS_SEED") or random.randrange(1 << 32))
    print(f"STRANDLINE_TRANSACTIONS_SEED={seed}", file=sys.stderr)
    topics = [f"{name}-{stage}" for stage in ("first", "second", "third")]
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, partitions=PARTITIONS, replication_factor=3) for topic in topics])
    workers, source = Workers(folder, cluster.bootstrap, name, topics), Source(cluster.bootstrap, topics[0])
    schedule = Schedule(random.Random(seed), cluster, workers)
    writing = asyncio.create_task(source.run())
    third: dict[int, list[bytes]] = {}

    async def all_arrived() -> bool:
        nonlocal third
        third = await committed(cluster.bootstrap, topics[2])
        return sum(map(len, third.values())) >= sum(map(len, source.acknowledged.values()))

    try:
        for worker in WORKERS:
            await workers.start(worker)
        await schedule.run(seconds)
        source.is_done = True
        await asyncio.wait_for(writing, BOUND_S)
        await cluster.wait_ready()
        await until(all_arrived, "every record has reached the third topic", BOUND_S)
        for worker in WORKERS:
            await workers.end(worker, signal.SIGTERM)
    finally:
        workers.kill_rest()
        writing.cancel()
    sent = sum(map(len, source.acknowledged.values()))
    print(f"faults: {dict(sorted(schedule.done.items()))}; {sent} records through the chain", file=sys.stderr)
    hint = f"STRANDLINE_TRANSACTIONS_SEED={seed}, logs in {folder}"
    assert await committed(cluster.bootstrap, topics[1]) == source.acknowledged, hint
    assert await committed(cluster.bootstrap, topics[2]) == source.acknowledged, hint
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        places = [TopicPartition(topic, p) for topic in topics for p in range(PARTITIONS)]
        assert not await admin.open_transactions(places), hint
    assert sum(schedule.done.values()) >= seconds / 10


async def test_chain_of_transactions_is_exactly_once_while_processes_are_killed(cluster: LocalCluster, tmp_path: Path) -> None:
    """Each record of the first topic reaches the others once and in order, whichever processes die."""
    await perform(cluster, tmp_path, "chain", 12.0)


@pytest.mark.slow
async def test_chain_of_transactions_is_exactly_once_in_five_minutes_of_kills(cluster: LocalCluster, tmp_path: Path) -> None:
    """The same for longer."""
    await perform(cluster, tmp_path, "long-chain", 300.0)
