"""Sink and offload on a standalone cluster: other processes, another Python, the package shipped with the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet
import pytest
from standalone import StandaloneCluster

from strandline.client.records import TopicPartition
from strandline.pipeline.jobs.lake_folder import read_manifest
from strandline.pipeline.jobs.materialize_folder import SnapshotFolder

if TYPE_CHECKING:
    from strandline.testing import ThreadedCluster

JOB = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from strandline.pipeline.jobs.offload import offload
from strandline.pipeline.spark import register

servers, topic, lake = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)


@udf("string")
def where(number):
    import os, strandline
    return f"{number} {os.getppid()} {strandline.__file__}"


rows = spark.range(0, 4000, numPartitions=4).select(where("id").alias("value"))
rows.write.format("strandline").mode("append").option("bootstrap.servers", servers).option("topic", topic).save()
offload(spark, servers, topic, lake).awaitTermination()
spark.stop()
"""

MORE = """
import sys
from pyspark.sql import SparkSession
from strandline.pipeline.jobs.materialize import materialize
from strandline.pipeline.jobs.replay import replay
from strandline.pipeline.jobs.simulate import summary
from strandline.pipeline.jobs.simulate_task import Seeds

servers, topic, to, folder = sys.argv[1:]
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
materialize(spark, servers, topic, folder + "/snapshot")
replay(spark, servers, topic, to, folder + "/replay", records_per_s=100_000)
assert summary(spark, Seeds(4, scenario="S03"), folder + "/runs", runs_per_task=2).good
spark.stop()
"""


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster.running(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.mark.spark
def test_sink_and_offload_run_on_workers_that_have_the_package_from_the_job_alone(
    standalone: StandaloneCluster, log: ThreadedCluster, tmp_path: Path
) -> None:
    """A session on one machine hides what a cluster needs: everything that tasks import is here importable from what was
    shipped, and everything that goes to them is pickled."""
    topic = log.create_topic(partitions=2)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    done = standalone.submit(job, log.bootstrap_servers, topic, str(tmp_path / "lake"))
    assert done.returncode == 0, done.stderr[-3000:]
    written = [(record.value or b"").decode().split(" ") for record in log.read_all(topic)]
    assert Counter(int(number) for number, _, _ in written) == Counter(range(4000))
    assert all(standalone.package.name in file for _, _, file in written), written[0]
    assert len({daemon for _, daemon, _ in written}) == 2, "both executors have written"
    lake = read_manifest(tmp_path / "lake", checksums=True)
    assert sum(file.count for file in lake.files) == 4000
    ends = Counter(record.partition for record in log.read_all(topic))
    assert lake.ends == {TopicPartition(topic, p): count for p, count in ends.items()}


@pytest.mark.spark
def test_snapshots_replays_and_simulations_run_there_too(
    standalone: StandaloneCluster, log: ThreadedCluster, tmp_path: Path
) -> None:
    """A simulation starts a process of its own beside the task: that one has to find the package, too."""
    topic, to = log.create_topic(partitions=2), log.create_topic(partitions=2)
    for n in range(10):
        log.send(topic, b"old %d" % n, b"new %d" % n, key=b"%d" % n)
    job = tmp_path / "job.py"
    job.write_text(MORE)
    done = standalone.submit(job, log.bootstrap_servers, topic, to, str(tmp_path), timeout_s=400)
    assert done.returncode == 0, done.stderr[-3000:]
    assert SnapshotFolder(tmp_path / "snapshot").version().rows == 10
    copied, whole = (sorted((r.partition, r.offset, r.value) for r in log.read_all(each)) for each in (to, topic))
    assert copied == whole
    runs = pyarrow.parquet.read_table(tmp_path / "runs")
    assert (sorted(runs["seed"].to_pylist()), set(runs["verdict"].to_pylist())) == ([0, 1, 2, 3], {"ok"})
