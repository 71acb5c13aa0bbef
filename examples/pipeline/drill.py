"""The drill: kills every kind of process of a cluster and a Spark job, and checks that no record is lost or doubled.

    python examples/pipeline/drill.py --minutes 3

A producer writes to a cluster of three brokers and records the acknowledgements in a ledger. A Spark driver offloads the topic
into a lake and copies it into another topic. Meanwhile SIGKILL hits brokers, the driver, its executors and their Python
processes, in an order that a seed determines. Brokers and the driver are restarted without knowledge of what they were doing.
At the end the streams process the remaining records. An audit compares ledger, log, lake and copy, record by record, and writes
`report.html`. When the cluster is stopped, `verify` compares the brokers' directories with each other, the ledger, the lake and
the copy, and writes `verify.html`.

Needs Linux and `pip install '.[spark]'` in a clone. The exit code is 3 if a record is lost or doubled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from drill_driver import CONF, streams
from drill_processes import by_role, end_sessions, kill

from strandline.client import Admin, NewTopic, Producer
from strandline.client.producer.receipts import Receipt
from strandline.local_cluster import LocalCluster
from strandline.pipeline.jobs.audit import audit
from strandline.pipeline.jobs.audit_ledger import Ledger
from strandline.pipeline.jobs.audit_page import page
from strandline.pipeline.jobs.audit_result import Audit
from strandline.pipeline.jobs.verify import verify
from strandline.pipeline.jobs.verify_page import page as verify_page
from strandline.pipeline.jobs.verify_result import Verification
from strandline.pipeline.spark import spark_session
from strandline.protocol.errors import StrandlineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC, COPY = "orders", "orders-copy"
PARTITIONS = 4
BURST, BURST_MS = 20, 20
"""The producer sends `BURST` records every `BURST_MS` milliseconds, if the buffer has room."""
KILL_EVERY_S = (2.0, 6.0)
AT_LEAST = ("broker", "driver", "executor")
"""The first kills hit one of each of these roles, in an order drawn from the seed."""
VICTIMS = {"broker": 3, "driver": 2, "executor": 3, "worker": 3, "daemon": 1, "planner": 1}
"""Role -> its weight in the random choice of the next victim."""
FATAL = ("driver", "planner", "executor")
"""Roles whose death repeats much work. Between two such kills at least one batch must finish, because streams without progress
would prove nothing."""
BROKER_AWAY_S = (0.5, 4.0)
DRAIN_ATTEMPTS = 5
HEAL_TIMEOUT_S = 300
INTERVAL_S = 5
"""Length of the report's intervals, in seconds (by default they are hours)."""


@dataclass(slots=True)
class Drill:
    folder: Path
    cluster: LocalCluster
    rng: random.Random
    master: str
    say: Callable[[str], None]
    sent: int = 0
    acknowledged: int = 0
    unknown: int = 0
    """Records without an acknowledgement in time: they may or may not be in the log."""
    starts: int = 0
    """Number of times that the driver was started."""
    marks: list[tuple[float, str]] = field(default_factory=list)
    """Time (seconds since 1970) and name of each killed process."""
    kills: Counter[str] = field(default_factory=Counter)
    sessions: set[int] = field(default_factory=set)
    """Process session ids of all drivers, to find and kill every process that they leave behind."""
    driver: asyncio.subprocess.Process | None = None
    progress_before: int = 0
    """Finished batches at the last start of the driver or the last kill of a `FATAL` role."""
    coming_back: asyncio.Task[None] | None = None
    """Kills a broker and restarts it; done when the broker is ready again."""
    is_over: bool = False
    all_sent: bool = False
    """True when the producer sends no more records; some may still wait for their acknowledgement."""

    # -- the producer -------------------------------------------------------------------------------------------------

    async def produce(self) -> None:
        """Send records until `is_over`. Write each acknowledgement to the ledger, in the order of the sends."""
        waiting: deque[tuple[Receipt, bytes]] = deque()
        with Ledger(self.folder / "ledger.jsonl") as ledger:
            async with Producer(bootstrap_servers=self.cluster.bootstrap, linger_ms=5) as producer:
                noting = asyncio.create_task(self._note(waiting, ledger))
                while not self.is_over:
                    for _ in range(BURST):
                        value = b"%010d %s" % (self.sent, b"." * 90)
                        waiting.append((await producer.send(TOPIC, value, key=b"customer-%d" % (self.sent % 997)), value))
                        self.sent += 1
                    await asyncio.sleep(BURST_MS / 1000)
                self.all_sent = True
                await noting

    async def _note(self, waiting: deque[tuple[Receipt, bytes]], ledger: Ledger) -> None:
        while waiting or not self.all_sent:
            if not waiting:
                await asyncio.sleep(BURST_MS / 1000)
                continue
            receipt, value = waiting.popleft()
            try:
                ledger.add(await receipt, value)
                self.acknowledged += 1
            except StrandlineError:
                self.unknown += 1

    # -- the driver ---------------------------------------------------------------------------------------------------

    async def supervise(self) -> None:
        """Start the driver, and restart it whenever it ends, until `is_over`."""
        while not self.is_over:
            await self.start_driver()
            assert self.driver is not None
            await self.driver.wait()
            if not self.is_over:
                self.say(f"the driver ended ({self.driver.returncode}) and is started again")

    async def start_driver(self) -> None:
        self.starts += 1
        self.progress_before = self.progress
        command = [sys.executable, str(Path(__file__).with_name("drill_driver.py")), "--servers", self.cluster.bootstrap]
        command += ["--topic", TOPIC, "--copy", COPY, "--folder", str(self.folder), "--master", self.master]
        with open(self.folder / "driver.log", "ab") as log:  # noqa: ASYNC230
            self.driver = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, start_new_session=True)
        self.sessions.add(self.driver.pid)

    @property
    def progress(self) -> int:
        """Number of finished batches of both streams."""
        return sum(1 for _ in self.folder.glob("lake/_manifest/*.json")) + sum(
            1 for _ in self.folder.glob("copy-checkpoint/commits/[0-9]*")
        )

    # -- chaos --------------------------------------------------------------------------------------------------------

    async def harass(self, seconds: float) -> None:
        """Kill processes for `seconds`, or longer until each role of `AT_LEAST` was hit; RuntimeError if one is not."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (missing := [role for role in AT_LEAST if not self.kills[role]]) or loop.time() < end:
            if loop.time() > end + HEAL_TIMEOUT_S:
                raise RuntimeError(f"no {missing[0]} was killed within {seconds + HEAL_TIMEOUT_S:.0f} s")
            await asyncio.sleep(self.rng.uniform(*KILL_EVERY_S))
            victim = self.rng.choice(missing) if missing else self.rng.choices(list(VICTIMS), list(VICTIMS.values()))[0]
            if victim != "broker":
                self._kill_spark(victim)
            elif self.coming_back is None or self.coming_back.done():
                self.coming_back = asyncio.create_task(self._kill_broker())
        if self.coming_back is not None:
            await self.coming_back
        await self._batch_after_the_last_kill()

    async def _batch_after_the_last_kill(self) -> None:
        """Wait for a batch after the last kill, which may have hit the driver. Raises RuntimeError if none finishes."""
        end = asyncio.get_running_loop().time() + HEAL_TIMEOUT_S
        while self.progress <= self.progress_before:
            if asyncio.get_running_loop().time() > end:
                raise RuntimeError(f"no batch was done within {HEAL_TIMEOUT_S} s after the last kill")
            await asyncio.sleep(0.1)

    async def _kill_broker(self) -> None:
        """Kill one broker and restart it. Two of three replicas stay, so the cluster continues."""
        node = self.rng.choice(self.cluster.brokers)
        away_s = self.rng.uniform(*BROKER_AWAY_S)
        self._mark("broker", node.name)
        self.cluster.kill(node.name)
        await self.cluster.wait_ended(node.name)
        await asyncio.sleep(away_s)
        await self.cluster.start_node(node.name)
        await self.cluster.wait_ready(timeout_ms=HEAL_TIMEOUT_S * 1000)

    def _kill_spark(self, role: str) -> None:
        if self.driver is None or self.driver.returncode is not None:
            return
        if role in FATAL and self.progress <= self.progress_before:
            return
        pids = by_role({self.driver.pid})
        if role == "driver":
            self._mark(role, f"driver {self.driver.pid}")
            kill(self.driver.pid)
            for pid in pids.get("jvm", ()):
                kill(pid)
        elif victims := pids.get(role):
            pid = self.rng.choice(victims)
            self._mark(role, f"{role} {pid}")
            kill(pid)

    def _mark(self, role: str, name: str) -> None:
        if role in FATAL:
            self.progress_before = self.progress
        self.kills[role] += 1
        self.marks.append((time.time(), name))
        self.say(f"SIGKILL to {name} ({self.acknowledged:,} acknowledged, {self.progress} batches done)")

    # -- the whole ----------------------------------------------------------------------------------------------------

    async def run(self, seconds: float) -> Audit:
        async with Admin(bootstrap_servers=self.cluster.bootstrap) as admin:
            settings = {"min.insync.replicas": "2"}
            await admin.create_topics([NewTopic(name, PARTITIONS, 3, settings) for name in (TOPIC, COPY)])
        producing, supervising = asyncio.create_task(self.produce()), asyncio.create_task(self.supervise())
        try:
            await self._first_progress(producing, supervising)
            await self.harass(seconds)
            self.is_over = True
            self.say("no more kills; the records in flight arrive")
            await producing
            assert self.driver is not None
            if self.driver.returncode is None:
                self.driver.terminate()
            await supervising
        finally:
            for task in (producing, supervising):
                task.cancel()
            end_sessions(self.sessions)
        return await asyncio.to_thread(self._settle)

    async def _first_progress(self, *tasks: asyncio.Task[None]) -> None:
        deadline = time.monotonic() + HEAL_TIMEOUT_S
        while self.progress < 2:
            for task in tasks:
                if task.done():
                    await task
            if time.monotonic() > deadline:
                raise RuntimeError(f"the driver has done nothing within {HEAL_TIMEOUT_S} s; see {self.folder / 'driver.log'}")
            await asyncio.sleep(0.2)

    def _settle(self) -> Audit:
        """Process the remaining records without faults, then audit. The checkpoints allow another Spark master."""
        spark = spark_session("drill audit", "local[2]", CONF)
        try:
            self._drain(spark)
            self.say("the audit begins")
            return audit(
                spark,
                self.cluster.bootstrap,
                TOPIC,
                lake=self.folder / "lake",
                ledger=[self.folder / "ledger.jsonl"],
                copies={TOPIC: COPY},
                is_complete=True,
                interval_s=INTERVAL_S,
            )
        finally:
            spark.stop()

    def _drain(self, spark: SparkSession) -> None:
        from pyspark.errors import StreamingQueryException

        for attempt in range(DRAIN_ATTEMPTS):
            try:
                for query in streams(spark, self.cluster.bootstrap, TOPIC, COPY, self.folder, drain=True):
                    if not query.awaitTermination(HEAL_TIMEOUT_S):
                        raise RuntimeError(f"the remaining records were not processed within {HEAL_TIMEOUT_S} s")
                return
            except StreamingQueryException as e:
                self.say(f"attempt {attempt + 1} to process the remaining records failed: {e}")
                for query in spark.streams.active:
                    query.stop()
        raise RuntimeError(f"the remaining records were not processed in {DRAIN_ATTEMPTS} attempts")


def verify_at_rest(folder: Path) -> Verification:
    """Compare the brokers' directories with ledger, lake and copy, without the data source and the client that wrote them."""
    spark = spark_session("drill verify", "local[2]", CONF)
    try:
        return verify(
            [folder / "cluster"],
            [TOPIC],
            lake=folder / "lake",
            ledger=[folder / "ledger.jsonl"],
            copies={TOPIC: COPY},
            is_complete=True,
            spark=spark,
        )
    finally:
        spark.stop()


async def drill(folder: Path, seed: int, seconds: float, master: str, say: Callable[[str], None]) -> dict[str, object]:
    """Run the drill in `folder`; returns the figures of the JSON line. `ok` is True if no record is lost or doubled."""
    async with LocalCluster(folder / "cluster") as cluster:
        say(f"seed {seed}: {len(cluster.brokers)} brokers at {cluster.bootstrap}; everything is in {folder}")
        run = Drill(folder, cluster, random.Random(seed), master, say)
        found = await run.run(seconds)
    report = folder / "report.html"
    report.write_text(page(found, f"Drill, seed {seed}", run.marks))
    for finding in found.findings:
        say(finding.sentence + "".join(f"\n    {example}" for example in finding.examples))
    say(f"{found.verdict}; report in {report}")
    at_rest = await asyncio.to_thread(verify_at_rest, folder)
    (folder / "verify.html").write_text(verify_page(at_rest, f"Drill, seed {seed}: the brokers' directories"))
    for sentence in (*(one.sentence for one in at_rest.bad), *(one.sentence for one in at_rest.compared)):
        say(sentence)
    say(f"directories: {at_rest.verdict}; report in {folder / 'verify.html'}")
    counts = {source: found.count(source) for source in found.sources}
    counts["copy"] = sum(row.copied for row in found.copies)
    lost = sum(finding.count for finding in found.bad if finding.kind.startswith("lost"))
    doubled = sum(finding.count for finding in found.bad if finding.kind.startswith(("doubled", "acknowledged_twice")))
    return {
        "ok": found.is_ok and at_rest.is_ok,
        "seed": seed,
        "kills": dict(run.kills),
        "driver_starts": run.starts,
        "sent": run.sent,
        "acknowledged": run.acknowledged,
        "unknown": run.unknown,
        "counts": counts,
        "lost": lost,
        "doubled": doubled,
        "bad": {finding.kind: finding.count for finding in found.bad},
        "at_rest": at_rest.verdict,
        "bad_at_rest": [one.sentence for one in at_rest.bad] + [one.sentence for one in at_rest.compared],
        "report": str(report),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=3.0, help="duration of the kills")
    parser.add_argument(
        "--seed", type=int, default=None, help="determines the order of the kills; by default a random one, which is printed"
    )
    parser.add_argument("--folder", type=Path, default=None, help="for all files; by default a new temporary folder")
    parser.add_argument(
        "--master", default="local-cluster[2,1,1024]", help="Spark's master; it must start executors as processes"
    )
    given = parser.parse_args()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="strandline-drill-"))
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:6.1f} s  {text}", file=sys.stderr, flush=True)

    result = asyncio.run(drill(folder.absolute(), seed, given.minutes * 60, given.master, say))
    print(json.dumps(result))
    sys.exit(0 if result["ok"] else 3)


if __name__ == "__main__":
    main()
