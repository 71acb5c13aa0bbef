"""Compaction with a real Spark, between the batches of an offload. An audit checks the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from test_spark_offload import Job

from strandline.pipeline.jobs.audit import audit
from strandline.pipeline.jobs.compact import Compacted, compact
from strandline.pipeline.jobs.lake_folder import read_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.testing import ThreadedCluster


def test_lake_compacted_between_batches_has_every_record_once(spark: SparkSession, log: ThreadedCluster, tmp_path: Path) -> None:
    job = Job(spark, log, tmp_path / "lake")
    topic = log.create_topic(partitions=2)
    for partition in (0, 1):
        job.fill(topic, partition, 40)
    job.run(topic, max_offsets_per_trigger=20)
    assert compact(spark, job.root) == Compacted(files_before=8, files_after=2, joined=8, manifests=4, deleted=0)
    job.fill(topic, 1, 10)
    job.run(topic)
    assert compact(spark, job.root, keep_s=0) == Compacted(files_before=3, files_after=2, joined=2, manifests=1, deleted=14)
    assert [file.count for file in read_manifest(job.root, checksums=True).files] == [40, 50]
    found = audit(spark, log.bootstrap_servers, topic, lake=job.root, is_complete=True)
    assert (found.is_ok, found.count("lake")) == (True, 90)
    assert compact(spark, job.root, keep_s=0) == Compacted(files_before=2, files_after=2, joined=0, manifests=0, deleted=0)
