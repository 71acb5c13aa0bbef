"""Offload into a lake with a real Spark, with restarts. The tests read the lake by its manifests, with pyarrow alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.errors import StreamingQueryException

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.jobs.delta_offload import has_batches
from strandline.pipeline.jobs.lake_folder import read_manifest
from strandline.pipeline.jobs.lake_writer import file_schema
from strandline.pipeline.jobs.offload import offload
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.testing import ThreadedCluster


class Job:
    """An offload into one lake, which a test may run several times."""

    def __init__(self, spark: SparkSession, log: ThreadedCluster, root: Path) -> None:
        self.spark, self.log, self.root = spark, log, root

    def run(self, topics: str = "", **options: Any) -> None:
        query = offload(self.spark, self.log.bootstrap_servers, topics, self.root, **options)
        assert query.awaitTermination(120)

    def fill(self, topic: str, partition: int, count: int, headers: Any = None) -> None:
        async def send() -> None:
            async with self.log.cluster.producer() as producer:
                for n in range(count):
                    await producer.send(topic, b"%d" % n, key=b"k", partition=partition, headers=headers)

        self.log.run(send())

    @property
    def manifests(self) -> list[Path]:
        return sorted((self.root / "_manifest").glob("*.json"))

    @property
    def tables(self) -> dict[str, pyarrow.Table]:
        files = read_manifest(self.root, checksums=True).files
        return {file.path: pyarrow.parquet.read_table(self.root / file.path, partitioning=None) for file in files}

    def offsets(self, topic: str, partition: int) -> list[int]:
        of_place = [f.path for f in read_manifest(self.root).files if f.tp == (topic, partition)]
        tables = self.tables
        return [offset for path in of_place for offset in tables[path]["offset"].to_pylist()]


@pytest.fixture
def job(spark: SparkSession, log: ThreadedCluster, tmp_path: Path) -> Job:
    return Job(spark, log, tmp_path / "lake")


def test_every_record_is_in_the_lake_once_with_all_columns(job: Job, log: ThreadedCluster) -> None:
    topic = log.create_topic(partitions=2)
    job.fill(topic, 0, 30, [("h", b"1")])
    job.fill(topic, 1, 10)
    job.run(topic, include_headers=True, max_offsets_per_trigger=20)
    assert (job.offsets(topic, 0), job.offsets(topic, 1)) == (list(range(30)), list(range(10)))
    assert len(job.manifests) == 2
    table = pyarrow.concat_tables(job.tables.values())
    assert table.schema == file_schema(include_headers=True)
    by_client = {(r.partition, r.offset): r for r in log.read_all(topic)}
    for row in table.to_pylist():
        record = by_client[row["partition"], row["offset"]]
        assert (row["topic"], row["key"], row["value"]) == (topic, b"k", record.value)
        assert (row["timestamp"].timestamp() * 1000, row["timestampType"]) == (pytest.approx(record.timestamp_ms), 0)
        assert [(h["key"], h["value"]) for h in row["headers"] or []] == list(record.headers)


def test_restart_reads_new_partitions_from_their_first_record(job: Job, log: ThreadedCluster) -> None:
    topic = log.create_topic(partitions=1)
    job.fill(topic, 0, 10)
    job.run(topic)

    async def grow() -> None:
        async with log.cluster.admin() as admin:
            await admin.create_partitions(topic, 2)

    log.run(grow())
    job.fill(topic, 0, 5)
    job.fill(topic, 1, 20)
    job.run(topic)
    job.run(topic)
    assert (job.offsets(topic, 0), job.offsets(topic, 1)) == (list(range(15)), list(range(20)))


@pytest.mark.parametrize("is_listed", [True, False])
def test_repeated_batch_makes_the_same_lake(job: Job, log: ThreadedCluster, is_listed: bool) -> None:
    """Spark may die after the lake's commit and before its own commit, or before both, when the files already exist."""
    topic = log.create_topic(partitions=2)
    for partition in (0, 1):
        job.fill(topic, partition, 20)
    job.run(topic, max_offsets_per_trigger=20)
    before, on_disk = read_manifest(job.root, checksums=True), sorted(job.root.rglob("*.parquet"))
    for path in (job.root / "_checkpoint" / "commits").glob("*1*"):
        path.unlink()
    if not is_listed:
        job.manifests[-1].unlink()
        assert read_manifest(job.root) != before
    job.run(topic, max_offsets_per_trigger=20)
    assert read_manifest(job.root, checksums=True) == before
    assert sorted(job.root.rglob("*.parquet")) == on_disk


def test_pattern_includes_topics_created_later(job: Job, log: ThreadedCluster) -> None:
    first = log.create_topic(partitions=1)
    prefix = re.escape(first) + ".*"
    job.fill(first, 0, 5)
    job.run(pattern=prefix)
    second = log.create_topic(first + "-more", partitions=1)
    job.fill(second, 0, 7)
    job.run(pattern=prefix)
    assert read_manifest(job.root).ends == {TopicPartition(first, 0): 5, TopicPartition(second, 0): 7}


def test_checkpoint_is_found_if_its_name_is_like_a_pattern(spark: SparkSession, tmp_path: Path) -> None:
    """An offload into a Delta table would take the checkpoint for lost."""
    (folder := tmp_path / "table[1]" / "offsets").mkdir(parents=True)
    assert not has_batches(spark, str(folder))
    (folder / "0").write_text("v1")
    assert has_batches(spark, str(folder))


def test_lost_checkpoint_does_not_fill_the_lake_twice(job: Job, log: ThreadedCluster, tmp_path: Path) -> None:
    topic = log.create_topic(partitions=1)
    job.fill(topic, 0, 10)
    job.run(topic)
    before = read_manifest(job.root, checksums=True)
    with pytest.raises(
        StreamingQueryException, match=rf"offset 0 of {topic}-0 is already in the lake, which has this partition up to"
    ):
        job.run(topic, checkpoint=tmp_path / "another")
    assert read_manifest(job.root, checksums=True) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "say what to offload"),
        ({"topics": "a", "pattern": "b"}, "exactly one of the two"),
        ({"topics": "_hidden"}, "readers skip folders"),
        ({"topics": "a", "root": "s3://bucket"}, "which s3:// is not"),
    ],
)
def test_wrong_arguments_are_rejected_before_the_query_starts(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        offload(spark, "127.0.0.1:1", **arguments)
