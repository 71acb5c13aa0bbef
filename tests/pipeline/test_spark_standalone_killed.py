"""Kills on a cluster of Spark: each kind of process is killed while two streams write, and each row is stored once.

One stream copies a topic in the order of its log (`rowOrder=stable`); in the other one a shuffle deals the rows out (`rowOrder`
unknown), so that a task that is run again compares rows. A seed chooses the order of the kills; it is printed, and
`STRANDLINE_KILLS_SEED` repeats it. The replicas' segments are the judge.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from standalone import children, kill, until
from stored import stored_values

if TYPE_CHECKING:
    from standalone import StandaloneCluster

    from strandline.testing import ThreadedCluster

STREAMS = """
import sys
from pyspark.sql import SparkSession
from strandline.pipeline.spark import register

servers, source, straight, shuffled, folder = sys.argv[1:]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
register(spark)

def start(rows, target, row_order):
    writer = rows.writeStream.format("strandline").option("bootstrap.servers", servers).option("topic", target)
    writer = writer.option("rowOrder", row_order).option("strandline.linger_ms", "0")
    return writer.option("checkpointLocation", f"{folder}/{target}").start()

def rows():
    reader = spark.readStream.format("strandline").option("bootstrap.servers", servers).option("subscribe", source)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "200").option("minPartitions", "2")
    return reader.load().select("key", "value")

start(rows(), straight, "stable")
start(rows().repartition(2, "key"), shuffled, "unknown")
spark.streams.awaitAnyTermination()
"""
VICTIMS = ("executor", "worker", "broker", "driver")
ROWS = 600
"""Rows that are sent to the source before each kill: some batches of each stream."""
WITHIN_S = 240


class Drill:
    def __init__(self, spark: StandaloneCluster, log: ThreadedCluster, folder: Path, rng: random.Random) -> None:
        self.spark, self.log, self.folder, self.rng = spark, log, folder, rng
        self.source, *self.targets = (log.create_topic(partitions=2) for _ in range(3))
        self.sent = 0
        self.starts = 0
        self.driver: subprocess.Popen[bytes] | None = None

    def fill(self) -> None:
        async def send() -> None:
            async with self.log.cluster.producer() as producer:
                for n in range(self.sent, self.sent + ROWS):
                    await producer.send(self.source, b"%0200d" % n, key=b"%d" % (n % 50))

        self.log.run(send())
        self.sent += ROWS

    def expected(self) -> Counter[bytes | None]:
        return Counter(b"%0200d" % n for n in range(self.sent))

    # -- the driver ---------------------------------------------------------------------------------------------------

    def start_driver(self) -> None:
        """Starts a driver in a process session of its own, which all its processes except executors share."""
        job = self.folder / "streams.py"
        job.write_text(STREAMS)
        conf = ("--conf", "spark.task.maxFailures=20", "--conf", "spark.deploy.maxExecutorRetries=-1")
        words = [self.log.bootstrap_servers, self.source, *self.targets, str(self.folder)]
        self.starts += 1
        with (self.folder / "driver.log").open("ab") as told:
            self.driver = subprocess.Popen(
                [*self.spark.submit_command(), *conf, str(job), *words],
                env=self.spark.driver_environ(),
                cwd=self.folder,
                stdout=told,
                stderr=told,
                start_new_session=True,
            )

    def end_driver(self) -> None:
        if self.driver is not None:
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait()

    def supervise(self) -> None:
        """Restarts a driver whose query has failed, as a user's supervisor does."""
        assert self.driver is not None
        if self.driver.poll() is not None:
            assert self.starts < 8, (self.folder / "driver.log").read_text()[-3000:]
            self.start_driver()

    # -- progress -----------------------------------------------------------------------------------------------------

    def stored(self) -> list[int]:
        async def ends() -> list[int]:
            async with self.log.cluster.consumer() as consumer:
                places = [[(topic, p) for p in (0, 1)] for topic in self.targets]
                found = [await consumer.end_offsets(each) for each in places]
            return [sum(each.values()) for each in found]

        return self.log.run(ends())

    def until_stored(self, least: int) -> None:
        def there() -> bool:
            self.supervise()
            return min(self.stored()) >= least

        until(there, f"{least} rows in both targets", WITHIN_S)

    # -- victims ------------------------------------------------------------------------------------------------------

    def strike(self, victim: str) -> None:
        if victim == "driver":
            self.end_driver()
            self.start_driver()
        elif victim == "broker":
            leader = self.log.leader_of(self.rng.choice(self.targets))
            self.log.kill(leader)
            self.log.start(leader)
        else:
            until(lambda: bool(self.pids(victim)), f"a running {victim}", WITHIN_S)
            kill(self.rng.choice(self.pids(victim)))

    def pids(self, victim: str) -> list[int]:
        executors = self.spark.executors()
        if victim == "executor":
            return executors
        daemons = [daemon for executor in executors for daemon in children(executor)]
        return sorted(worker for daemon in daemons for worker in children(daemon))


@pytest.mark.slow
@pytest.mark.spark
def test_each_row_is_stored_once_despite_kills(standalone: StandaloneCluster, log: ThreadedCluster, tmp_path: Path) -> None:
    seed = int(os.environ.get("STRANDLINE_KILLS_SEED") or random.randrange(1 << 32))
    rng = random.Random(seed)
    victims = rng.sample(VICTIMS, len(VICTIMS))
    print(f"STRANDLINE_KILLS_SEED={seed}: {', '.join(victims)}", file=sys.stderr)
    drill = Drill(standalone, log, tmp_path, rng)
    drill.start_driver()
    try:
        for victim in victims:
            drill.fill()
            drill.until_stored(drill.sent - ROWS + 1)
            drill.strike(victim)
        drill.until_stored(drill.sent)
    finally:
        drill.end_driver()
    for target in drill.targets:
        assert stored_values(log, target) == drill.expected(), f"STRANDLINE_KILLS_SEED={seed}"
