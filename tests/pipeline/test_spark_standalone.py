"""Strandline on a standalone cluster of Spark: shipped with the job, or installed from a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.parquet
import pytest

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.java import use_java
from strandline.pipeline.jobs.lake_folder import read_manifest
from strandline.pipeline.jobs.materialize_folder import SnapshotFolder

if TYPE_CHECKING:
    from standalone import StandaloneCluster

    from strandline.testing import ThreadedCluster

JOB = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from strandline.pipeline.jobs.materialize import materialize
from strandline.pipeline.jobs.offload import offload
from strandline.pipeline.jobs.replay import replay
from strandline.pipeline.jobs.simulate import summary
from strandline.pipeline.jobs.simulate_task import Seeds
from strandline.pipeline.spark import register

servers, written, keyed, copy, folder = sys.argv[1:]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
register(spark)


@udf("string")
def where(number):
    import os, strandline
    return f"{number} {os.getppid()} {strandline.__file__}"


rows = spark.range(0, 4000, numPartitions=4).select(where("id").alias("value"))
rows.write.format("strandline").mode("append").option("bootstrap.servers", servers).option("topic", written).save()
offload(spark, servers, written, folder + "/lake").awaitTermination()
materialize(spark, servers, keyed, folder + "/snapshot")
replay(spark, servers, keyed, copy, folder + "/replay", records_per_s=100_000)
assert summary(spark, Seeds(4, scenario="S03"), folder + "/runs", runs_per_task=2).good
spark.stop()
"""


OF_ONES_OWN = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
df = spark.read.format("strandline").option("bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2]).load()
import strandline.pipeline
print("rows", df.count(), "from", strandline.pipeline.__file__)
spark.stop()
"""


class Done(NamedTuple):
    """The results of the job."""

    written: str
    keyed: str
    copy: str
    folder: Path


@pytest.fixture(scope="module")
def done(standalone: StandaloneCluster, log: ThreadedCluster, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Runs one job that does everything, because a driver and its executors take longer to start than to run it."""
    done = Done(*(log.create_topic(partitions=2) for _ in range(3)), tmp_path_factory.mktemp("done"))
    for n in range(10):
        log.send(done.keyed, b"old %d" % n, b"new %d" % n, key=b"%d" % n)
    job = done.folder / "job.py"
    job.write_text(JOB)
    ended = standalone.submit(job, log.bootstrap_servers, *map(str, done), timeout_s=400)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return done


@pytest.mark.spark
def test_sink_and_offload_run_with_the_shipped_package(standalone: StandaloneCluster, log: ThreadedCluster, done: Done) -> None:
    """A local session hides two faults: an import that the shipped package lacks, and an object for tasks that cannot be
    pickled."""
    written = [(record.value or b"").decode().split(" ") for record in log.read_all(done.written)]
    assert Counter(int(number) for number, _, _ in written) == Counter(range(4000))
    assert all(standalone.package.name in file for _, _, file in written), written[0]
    assert len({daemon for _, daemon, _ in written}) == 2, "both executors have written"
    lake = read_manifest(done.folder / "lake", checksums=True)
    assert sum(file.count for file in lake.files) == 4000
    ends = Counter(record.partition for record in log.read_all(done.written))
    assert lake.ends == {TopicPartition(done.written, p): count for p, count in ends.items()}


@pytest.mark.spark
def test_snapshot_replay_and_simulation_run_with_the_shipped_package(
    standalone: StandaloneCluster, log: ThreadedCluster, done: Done
) -> None:
    """A simulation starts a process beside the task, which must find the package as well."""
    assert SnapshotFolder(done.folder / "snapshot").version().rows == 10
    copied, whole = (sorted((r.partition, r.offset, r.value) for r in log.read_all(each)) for each in (done.copy, done.keyed))
    assert copied == whole
    runs = pyarrow.parquet.read_table(done.folder / "runs")
    assert (sorted(runs["seed"].to_pylist()), set(runs["verdict"].to_pylist())) == ([0, 1, 2, 3], {"ok"})


@pytest.mark.slow
@pytest.mark.spark
def test_installed_package_is_found_without_registration(
    standalone: StandaloneCluster, log: ThreadedCluster, tmp_path: Path
) -> None:
    """A user installs the wheel and creates a session without calling `register`."""
    packages = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(packages), str(standalone.wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    topic = log.create_topic()
    log.send(topic, b"1", b"2", b"3")
    (tmp_path / "job.py").write_text(OF_ONES_OWN)
    environ = {**os.environ, "PYTHONPATH": str(packages), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    use_java(environ)
    command = [sys.executable, str(tmp_path / "job.py"), log.bootstrap_servers, topic]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert f"rows 3 from {packages}" in done.stdout, done.stderr[-3000:]
