"""Sink and offload on a standalone cluster: other processes, another Python, the package shipped with the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from standalone import StandaloneCluster

from strandline.client.records import TopicPartition
from strandline.pipeline.jobs.lake_folder import read_manifest

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
