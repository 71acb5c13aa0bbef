"""A driver is killed in the middle of three jobs: an offload, a copy and a replay. The next run of each job continues it.

One driver runs all three, because a Spark takes longer to start than to be killed. It is killed with its JVM and its workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from cli_world import ENVIRONMENT
from stored import stored_values
from test_spark_offload import Job
from test_spark_replay import Source
from test_spark_sink import Copy, each_once

from strandline.pipeline.jobs.lake_folder import read_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.testing import ThreadedCluster

DRIVER = """
import sys
from strandline.cli import main
from strandline.pipeline.jobs.offload import offload
from strandline.pipeline.spark import spark_session

servers, topic, lake, source, target, checkpoint, *words = sys.argv[1:]
spark = spark_session("to be killed", "local[4]", {"spark.sql.shuffle.partitions": "2"})
offload(spark, servers, topic, lake, max_offsets_per_trigger=50)
rows = spark.readStream.format("strandline").option("bootstrap.servers", servers).option("subscribe", source)
rows = rows.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "100").option("minPartitions", "2").load()
rows = rows.selectExpr("cast(value as string) value").writeStream.format("strandline").option("bootstrap.servers", servers)
rows = rows.option("topic", target).option("checkpointLocation", checkpoint).option("strandline.linger_ms", "0")
rows.trigger(availableNow=True).start()
sys.argv[1:] = words
main()
"""
"""Two streams in the background, and a replay as the command runs it: so slow that a kill hits all three."""
OFFLOADED, COPIED, REPLAYED = 1500, 6000, 400
"""The numbers of records: of each partition; of both; of both."""


class Killed(NamedTuple):
    job: Job
    copy: Copy
    source: Source


@pytest.fixture(scope="module")
def killed(spark: SparkSession, log: ThreadedCluster) -> Iterator[Killed]:
    """The folders and topics that the killed driver left behind."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "copy").mkdir()
        world = Killed(Job(spark, log, root / "lake"), Copy(spark, log, root / "copy"), Source(spark, log, root))
        topic = log.create_topic(partitions=2)
        for partition in (0, 1):
            world.job.fill(topic, partition, OFFLOADED)
        world.copy.fill(0, COPIED)
        world.source.fill(REPLAYED)
        kill_in_the_middle(world, topic)
        yield world


def kill_in_the_middle(world: Killed, topic: str) -> None:
    job, copy, source = world
    servers = job.log.bootstrap_servers
    words = ["pipeline", "replay", "--topic", source.topic, "--to", source.to, "--checkpoint", str(source.checkpoint)]
    words += ["--bootstrap-servers", servers, "--master", "local[4]", "--records-per-s", "10"]
    streams = [servers, topic, str(job.root), copy.source, copy.target, str(copy.folder / "checkpoint")]
    command = [sys.executable, "-c", DRIVER, *streams, *words]
    driver = subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: driver.poll() is not None or all(begun(world)))
        ended = driver.poll()
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        _, told = driver.communicate()
    assert ended is None, told


def begun(world: Killed) -> Iterator[bool]:
    yield len(world.job.manifests) >= 2
    yield len(world.copy.log.read_all(world.copy.target)) > 200
    yield bool(world.source.log.read_all(world.source.to))


def until(condition: Callable[[], bool], within_s: float = 240) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_offload_of_a_killed_driver_has_each_offset_once(killed: Killed) -> None:
    job = killed.job
    assert 2 <= len(job.manifests) < 2 * OFFLOADED / 50
    (topic,) = {file.topic for file in read_manifest(job.root).files}
    job.run(topic)
    assert (job.offsets(topic, 0), job.offsets(topic, 1)) == (list(range(OFFLOADED)), list(range(OFFLOADED)))


@pytest.mark.slow
def test_next_driver_continues_the_stream_of_a_killed_one(killed: Killed) -> None:
    """The query does not promise an order of rows."""
    copy = killed.copy
    written = stored_values(copy.log, copy.target).total()
    assert 200 < written < COPIED, "it was through before it was killed"
    copy.run(rowOrder="unknown")
    assert stored_values(copy.log, copy.target) == each_once(COPIED)


@pytest.mark.slow
def test_killed_replay_is_continued(killed: Killed) -> None:
    """The command is slow enough to be killed in the middle."""
    source = killed.source
    assert 0 < len(source.log.read_all(source.to)) < REPLAYED
    done = source.run()
    assert (done.records, 0 < done.found < REPLAYED) == (REPLAYED, True)
    source.expect_copy()
