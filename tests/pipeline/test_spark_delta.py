"""Offload into a Delta table with a real Spark and a real Delta, with kills and restarts.

`make test-delta` runs this in an environment of its own: Delta needs the PySpark for which it was built, which may not be the
newest. The session's time zone is far from UTC, so that a date in local time would be wrong.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import recipes_page
from cli_world import run

from strandline.pipeline.jobs.audit import audit
from strandline.pipeline.jobs.delta import delta_session, versions
from strandline.pipeline.jobs.offload import offload
from strandline.protocol.errors import UsageError

try:
    versions()
except UsageError as e:
    pytest.skip(f"`make test-delta` runs this in an environment of its own; here, {e}", allow_module_level=True)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.testing import ThreadedCluster

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Settings for JVMs that live for seconds."""
CONF = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.session.timeZone": "Pacific/Auckland",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
DRIVER = f"""
import sys
from strandline.pipeline.jobs.delta import delta_session
from strandline.pipeline.jobs.offload import offload
servers, topic, table, most = sys.argv[1:]
spark = delta_session("offload", "local[2]", {CONF!r})
offload(spark, servers, topic, table, format="delta", max_offsets_per_trigger=int(most)).awaitTermination()
"""
WITHOUT_DELTA = f"""
import sys
from strandline.pipeline.jobs.offload import offload
from strandline.pipeline.spark import spark_session
spark = spark_session("no Delta", "local[1]", {CONF!r})
try:
    offload(spark, "127.0.0.1:1", "orders", sys.argv[1], format="delta")
except Exception as e:
    print(type(e).__name__, e)
spark.stop()
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session with Delta, instead of the one that other tests share: jars must be named before Spark starts."""
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        pytest.skip("this process has a Spark without Delta already: `make test-delta` runs these tests alone")
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_START)
    session = delta_session("strandline tests", "local[2]", CONF)
    yield session
    session.stop()


class Job:
    """An offload into one table, which a test may run several times."""

    def __init__(self, spark: SparkSession, log: ThreadedCluster, folder: Path) -> None:
        self.spark, self.log = spark, log
        self.table, self.checkpoint = folder / "table", folder / "checkpoint"

    def run(self, topics: str = "", **options: Any) -> None:
        given = {"checkpoint": self.checkpoint, "format": "delta", **options}
        assert offload(self.spark, self.log.bootstrap_servers, topics, self.table, **given).awaitTermination(180)

    def fill(self, topic: str, partition: int, count: int, headers: Any = None, timestamp_ms: int | None = None) -> None:
        async def send() -> None:
            async with self.log.cluster.producer() as producer:
                for n in range(count):
                    value, key = b"%d" % n, b"k"
                    await producer.send(topic, value, key, partition, headers=headers, timestamp_ms=timestamp_ms)

        self.log.run(send())

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint)

    @property
    def rows(self) -> DataFrame:
        return self.spark.read.format("delta").load(str(self.table))

    @property
    def versions(self) -> list[str]:
        return sorted(path.name for path in (self.table / "_delta_log").glob("*.json"))

    def offsets(self, topic: str) -> dict[int, list[int]]:
        """The sorted offsets of each partition; a doubled record is in the list twice."""
        found: dict[int, list[int]] = {}
        rows = self.rows.filter(f"topic = '{topic}'").select("partition", "offset")
        for row in rows.orderBy("partition", "offset").collect():
            found.setdefault(row["partition"], []).append(row["offset"])
        return found


@pytest.fixture
def job(spark: SparkSession, log: ThreadedCluster, tmp_path: Path) -> Job:
    return Job(spark, log, tmp_path)


def test_every_record_is_in_the_table_once_under_its_topic_and_date(job: Job, log: ThreadedCluster) -> None:
    """Dates are in UTC, as in a lake of Parquet files, whatever the time zone of the session that wrote the table."""
    topic = log.create_topic(partitions=2)
    before, after = (datetime(2025, 1, 31, 23, 59, 59, 999_000, UTC), datetime(2025, 2, 1, tzinfo=UTC))
    for partition, at in enumerate((before, after)):
        job.fill(topic, partition, 30, [("h", b"1")], timestamp_ms=int(at.timestamp() * 1000))
    job.run(topic, include_headers=True, max_offsets_per_trigger=20)
    assert job.offsets(topic) == {0: list(range(30)), 1: list(range(30))}
    assert len(job.versions) == 3
    detail = job.spark.sql(f"DESCRIBE DETAIL delta.`{job.table}`").collect()[0]
    assert detail["partitionColumns"] == ["topic", "date"]
    row = job.rows.filter("partition = 0 and offset = 7").collect()[0].asDict(recursive=True)
    assert row.pop("timestamp").timestamp() == before.timestamp()
    known = {
        "topic": topic,
        "partition": 0,
        "offset": 7,
        "timestampType": 0,
        "key": b"k",
        "value": b"7",
        "date": date(2025, 1, 31),
    }
    assert row == {**known, "headers": [{"key": "h", "value": b"1"}]}
    assert {(r["partition"], r["date"]) for r in job.rows.select("partition", "date").distinct().collect()} == {
        (0, date(2025, 1, 31)),
        (1, date(2025, 2, 1)),
    }


def test_restart_without_new_records_adds_nothing(job: Job, log: ThreadedCluster) -> None:
    topic = log.create_topic(partitions=2)
    job.fill(topic, 0, 10)
    job.run(topic)
    before = job.versions
    job.run(topic)
    assert job.versions == before
    job.fill(topic, 0, 5)
    job.fill(topic, 1, 7, [("h", b"1")])
    job.run(topic, include_headers=True)  # Headers may be requested later.
    assert job.offsets(topic) == {0: list(range(15)), 1: list(range(7))}
    assert job.rows.filter("headers is not null").count() == 7


def test_repeated_batch_is_in_the_table_once(job: Job, log: ThreadedCluster) -> None:
    """Spark may die after the table's commit and before its own commit."""
    topic = log.create_topic(partitions=1)
    job.fill(topic, 0, 20)
    job.run(topic, max_offsets_per_trigger=10)
    before = job.versions
    for path in (job.checkpoint / "commits").glob("*1*"):
        path.unlink()
    job.run(topic, max_offsets_per_trigger=10)
    assert (job.offsets(topic), job.versions) == ({0: list(range(20))}, before)


def test_killed_driver_leaves_each_offset_once(job: Job, log: ThreadedCluster, tmp_path: Path) -> None:
    """The next driver continues with the checkpoint, and also without it, in a copy of the table."""
    topic = log.create_topic(partitions=2)
    for partition in (0, 1):
        job.fill(topic, partition, 1500)
    assert killed_behind(job, topic, versions=3)
    assert 0 < job.rows.count() < 3000
    without = Job(job.spark, log, tmp_path / "without")
    shutil.copytree(job.table, without.table)
    shutil.rmtree(without.table / "_checkpoint")
    for each in (job, without):
        each.checkpoint = each.table / "_checkpoint"
        each.run(topic)
        assert each.offsets(topic) == {0: list(range(1500)), 1: list(range(1500))}


def killed_behind(job: Job, topic: str, versions: int) -> bool:
    """Kills a driver and all its processes when the table has `versions` versions. Returns False if the driver ended before."""
    command = [sys.executable, "-c", DRIVER, job.log.bootstrap_servers, topic, str(job.table), "100"]
    driver = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(job.versions) >= versions or driver.poll() is not None)
    finally:
        was_running = driver.poll() is None
        if was_running:
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    return was_running


def until(condition: Callable[[], bool], within_s: float = 240) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# -- the checkpoint is lost, or the table -----------------------------------------------------------------------------


def test_new_checkpoint_continues_after_the_table(job: Job, log: ThreadedCluster) -> None:
    """Delta's own compaction, and new partitions and topics, must not change where each partition continues."""
    topic, other = log.create_topic(partitions=1), log.create_topic(partitions=1)
    job.fill(topic, 0, 10)
    job.run(topic)
    job.spark.sql(f"OPTIMIZE delta.`{job.table}`")
    job.lose_checkpoint()

    async def grow() -> None:
        async with log.cluster.admin() as admin:
            await admin.create_partitions(topic, 2)

    log.run(grow())
    for place, count in (((topic, 0), 5), ((topic, 1), 20), ((other, 0), 3)):
        job.fill(*place, count)
    job.run(f"{topic},{other}")
    assert job.offsets(topic) == {0: list(range(15)), 1: list(range(20))}
    assert job.offsets(other) == {0: [0, 1, 2]}


def test_recreated_topic_is_refused(job: Job, log: ThreadedCluster) -> None:
    """The first records of the new topic would be left out without an error."""
    topic = log.create_topic(partitions=1)
    job.fill(topic, 0, 10)
    job.run(topic)
    job.lose_checkpoint()
    before = job.versions

    async def anew() -> None:
        async with log.cluster.admin() as admin:
            await admin.delete_topics([topic])

    log.run(anew())
    log.create_topic(topic, partitions=1)
    job.fill(topic, 0, 5)
    with pytest.raises(UsageError, match=f"has {topic}-0 up to offset 9, but its log ends at 5: was the topic recreated?"):
        job.run(topic)
    job.fill(topic, 0, 50)
    with pytest.raises(UsageError, match=f"offset 9 of {topic}-0 has the timestamp .* was the topic recreated?"):
        job.run(topic)
    assert job.versions == before


def test_checkpoint_without_its_table_is_refused(job: Job, log: ThreadedCluster) -> None:
    """The stream would continue in an empty table, in the middle of the log."""
    topic = log.create_topic(partitions=1)
    job.fill(topic, 0, 10)
    job.run(topic)
    shutil.rmtree(job.table)
    with pytest.raises(UsageError, match=r"there is no table in .* has written one: give a new checkpoint"):
        job.run(topic)
    job.lose_checkpoint()
    job.run(topic)
    assert job.offsets(topic) == {0: list(range(10))}


def test_table_of_another_program_is_refused(job: Job, log: ThreadedCluster) -> None:
    job.spark.range(3).write.format("delta").save(str(job.table))
    with pytest.raises(UsageError, match="is not a table of an offload: it has no column date and no offset and no partition"):
        job.run(log.create_topic())
    assert job.rows.count() == 3


def test_session_without_delta_gets_advice(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DELTA, str(tmp_path / "table")], capture_output=True, text=True, timeout=180
    )
    assert done.stdout.startswith("UsageError this Spark session has no Delta: create it with"), done.stdout + done.stderr[-2000:]


# -- audit, and the commands ------------------------------------------------------------------------------------------


def test_audit_finds_lost_and_doubled_rows_of_a_table(job: Job, log: ThreadedCluster) -> None:
    topic = log.create_topic(partitions=2)
    for partition in (0, 1):
        job.fill(topic, partition, 40)
    job.run(topic)

    def found() -> Any:
        return audit(job.spark, log.bootstrap_servers, topic, lake=job.table, is_complete=True)

    well = found()
    assert (well.is_ok, well.count("lake")) == (True, 80)
    job.spark.sql(f"DELETE FROM delta.`{job.table}` WHERE partition = 0 AND offset = 7")
    job.rows.filter("partition = 1 and offset = 8").write.format("delta").mode("append").save(str(job.table))
    harmed = found()
    kinds = {(finding.kind, finding.where, finding.examples[0]) for finding in harmed.findings if finding.is_bad}
    assert kinds == {("lost_in_lake", f"{topic}-0", "offset 7"), ("doubled_in_lake", f"{topic}-1", "offset 8")}


def test_commands_fill_and_audit_a_table(spark: SparkSession, log: ThreadedCluster, tmp_path: Path) -> None:
    topic = log.create_topic(partitions=1)
    log.send(topic, *(b"%d" % n for n in range(10)))
    table = str(tmp_path / "table")
    where = ["--bootstrap-servers", log.bootstrap_servers, "--master", "local[1]", "--topic", topic]
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in CONF.items()))
    quick = {"SPARK_CONF_DIR": str(tmp_path), "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"]}
    done = run("pipeline", "offload", *where, "--to", table, "--format", "delta", timeout_s=240, env=quick)
    assert done.code == 0, done.err
    found = run("pipeline", "audit", *where, "--lake", table, "--complete", "--json", timeout_s=240, env=quick)
    assert (found.code, found.json()["findings"]) == (0, []), found.err


@pytest.mark.parametrize("heading", recipes_page.WITH_DELTA)
def test_recipe_prints_what_the_page_shows(
    heading: str, spark: SparkSession, log: ThreadedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first block asks for a session without Delta, and gets this one, which exists already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRANDLINE_BOOTSTRAP", log.bootstrap_servers)
    for printed, expected in recipes_page.run(heading, tmp_path):
        assert printed == expected
