"""Materialise: makes a Parquet table of a topic with the last value of each key, like a compacted topic.

A run reads the records since the last run, merges them with the previous version of the table, and writes a new version, which
replaces the previous one in one step (`materialize_folder.py`). A run may be killed at any moment and started again: the previous
version stays until the new one is complete, and the same records give the same table.

Which record is the last one of a key?

    in one partition        the record with the highest offset; a record without a value (a tombstone) deletes the key
    in several partitions   `across="refuse"`: the order is not known, so the run fails and names the key
                            `across="timestamp"`: the latest one of the last records of each partition; among equal timestamps
                            the one in the highest partition

A key has one partition, unless a producer chose partitions itself, or partitions were added to the topic. With "timestamp", two
runs must give the same table as one. So a version also keeps tombstones and, for each key, the last record of each other
partition. These records are the "rest" of a version; it grows with the number of keys that ever existed. With "refuse" there is
no rest, and nothing is kept of deleted keys. Records without a key cannot be in the table: they are counted and skipped, or
refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from strandline.pipeline.jobs.materialize_folder import Across, SnapshotFile, SnapshotFolder, Version
from strandline.pipeline.jobs.materialize_source import SCHEMA, Changes, from_lake, from_log
from strandline.pipeline.jobs.spark_paths import literal_path
from strandline.pipeline.offsets import ReadPositions
from strandline.pipeline.options import fails_on_data_loss, read_options, with_committed
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

KEEP = 3
"""How many versions stay by default. A reader of a version can finish while two more runs end."""


@dataclass(frozen=True, slots=True)
class Materialized:
    """The result of a run."""

    version: int
    rows: int
    """Keys that have a value."""
    records: int
    """Number of records that the run read, with tombstones and records without a key."""
    tombstones: int
    without_key: int
    is_new: bool = True
    """Whether the run wrote a new version. It writes none if there are no new records, unless it accepted a loss: then the new
    version has the position after the loss."""


def materialize(
    spark: SparkSession,
    servers: str,
    topic: str,
    root: str | os.PathLike[str],
    *,
    lake: str | os.PathLike[str] | None = None,
    across: Across | None = None,
    without_key: Literal["skip", "refuse"] = "skip",
    keep: int = KEEP,
    options: Mapping[str, str] | None = None,
) -> Materialized:
    """Brings the table in the folder `root` up to date with the topic, and returns what the run read and wrote.

    `across`: by default that of the snapshot, or "refuse" for a new one. With `lake`, records are read from that lake instead of
    the log. `keep`: how many versions stay. `options` are those of the source (docs/spark.md), such as failOnDataLoss. Raises
    UsageError for contradicting arguments, refused records, or another active run; DataLoss if records were deleted before they
    were read."""
    if keep < 1:
        raise UsageError(f"at least 1 version must be kept, not {keep}")
    folder = SnapshotFolder(root)
    with folder.at_work():
        previous = folder.newest()
        if previous is not None and previous.topic != topic:
            raise UsageError(f"the snapshot {folder.root} is of topic {previous.topic}, not of {topic}")
        rule = across or (previous.across if previous else "refuse")
        changes = _changes(spark, servers, topic, lake, None if previous is None else previous.until, options or {})
        if previous is not None and changes.is_empty and rule == previous.across:
            return Materialized(previous.number, previous.rows, 0, 0, 0, is_new=False)
        return _Run(spark, folder, previous, topic, rule).make(changes, without_key, keep)


def _changes(
    spark: SparkSession,
    servers: str,
    topic: str,
    lake: str | os.PathLike[str] | None,
    since: ReadPositions | None,
    options: Mapping[str, str],
) -> Changes:
    if lake is not None:
        return from_lake(spark, lake, topic, since, fails_on_data_loss(options))
    wanted = with_committed({"bootstrap.servers": servers, "subscribe": topic, **options})
    return from_log(spark, read_options(wanted, is_stream=False), since)


def read_snapshot(spark: SparkSession, path: str | os.PathLike[str], version: int | None = None) -> DataFrame:
    """The rows of the newest version, or of `version`, with the columns key, value, partition, offset and timestamp. A version
    stays readable until `keep` newer ones exist. Raises UsageError if the version does not exist."""
    folder = SnapshotFolder(path)
    return _table(spark, folder, folder.version(version).table)


def _table(spark: SparkSession, folder: SnapshotFolder, files: tuple[SnapshotFile, ...]) -> DataFrame:
    if not files:
        return spark.createDataFrame([], SCHEMA)
    return spark.read.schema(SCHEMA).parquet(*map(literal_path, folder.paths(files)))


# -- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    spark: SparkSession
    folder: SnapshotFolder
    previous: Version | None
    topic: str
    across: Across

    def make(self, changes: Changes, without_key: str, keep: int) -> Materialized:
        from pyspark.sql import Observation

        read, merged = Observation("read"), Observation("merged")
        work = self.folder.work_folder()
        try:
            rows = _observed(self._merged(changes.rows.observe(read, *_counts())), merged, self.across)
            rows.write.partitionBy("kind").parquet(str(work))
            counts = _seen(read) or changes.rows.agg(*_counts()).collect()[0].asDict()
            _check(self.topic, counts, _seen(merged) or {"keys": 0}, without_key, self.across)
            version = self._bring(work, changes)
            self.folder.publish(version, keep)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return Materialized(version.number, version.rows, counts["records"], counts["tombstones"], counts["without_key"])

    def _merged(self, changes: DataFrame) -> DataFrame:
        """The rows of the new version: the columns of `SCHEMA`, kind (table or rest), and the number of the key's partitions."""
        from pyspark.sql import Window
        from pyspark.sql.functions import col, count, lit, row_number, struct, when
        from pyspark.sql.functions import max as max_
        from pyspark.sql.functions import min as min_

        rows = changes.where(col("key").isNotNull()).withColumn("is_new", lit(True))
        if self.previous is not None:
            known = (*self.previous.table, *self.previous.rest)
            rows = _table(self.spark, self.folder, known).withColumn("is_new", lit(False)).unionByName(rows)
        # The offsets of a truncated log or a recreated topic may be lower than those of the previous version.
        last = rows.groupBy("key", "partition").agg(max_(struct("is_new", "offset", "timestamp", "value")).alias("last"))
        of_key = Window.partitionBy("key")
        youngest = of_key.orderBy(col("timestamp").desc(), col("partition").desc())
        ranked = (
            last.select("key", "last.value", "partition", "last.offset", "last.timestamp")
            .withColumn("rank", row_number().over(youngest))
            .withColumn("partitions", count(lit(1)).over(of_key))
            .withColumn("first_partition", min_("partition").over(of_key))
            .withColumn("last_partition", max_("partition").over(of_key))
        )
        is_row = (col("rank") == 1) & col("value").isNotNull()
        return ranked.withColumn("kind", when(is_row, "table").otherwise("rest"))

    def _bring(self, work: Path, changes: Changes) -> Version:
        number = self.previous.number + 1 if self.previous else 1
        token = work.name.rsplit("-", 1)[1]
        files = {kind: self._files(number, kind, work, token) for kind in ("table", "rest")}
        return Version(number=number, topic=self.topic, across=self.across, until=changes.until, **files)

    def _files(self, number: int, kind: str, work: Path, token: str) -> tuple[SnapshotFile, ...]:
        from pyarrow.parquet import read_metadata

        written = sorted((work / f"kind={kind}").glob("*.parquet"))
        rows = [read_metadata(path).num_rows for path in written]
        return self.folder.bring(number, kind, written, rows, token)


def _counts() -> tuple[Column, ...]:
    """Aggregates of the records that were read: all, those without a key, and tombstones."""
    from pyspark.sql.functions import col, count, lit, when

    return (
        count(lit(1)).alias("records"),
        count(when(col("key").isNull(), 1)).alias("without_key"),
        count(when(col("key").isNotNull() & col("value").isNull(), 1)).alias("tombstones"),
    )


def _seen(observation: Observation) -> dict[str, Any] | None:
    """The observed values. None if Spark removed that part of its plan because it yields no rows."""
    from py4j.protocol import Py4JError

    try:
        return observation.get or None
    except Py4JError:
        return None


def _observed(merged: DataFrame, observation: Observation, across: Across) -> DataFrame:
    """The rows to write. The observation counts the keys that are in several partitions, and has one of them as an example."""
    from pyspark.sql.functions import col, count, struct, when
    from pyspark.sql.functions import max as max_

    several = (col("partitions") > 1) & (col("rank") == 1)
    example = struct("key", "first_partition", "last_partition")
    seen = merged.observe(observation, count(when(several, 1)).alias("keys"), max_(when(several, example)).alias("example"))
    if across == "refuse":
        seen = seen.where(col("kind") == "table")
    return seen.select("key", "value", "partition", "offset", "timestamp", "kind")


def _check(topic: str, read: Mapping[str, Any], merged: Mapping[str, Any], without_key: str, across: Across) -> None:
    """Raises UsageError, before the version is published, if there are records without a key or keys in several partitions, and
    they are refused."""
    if without_key == "refuse" and read["without_key"]:
        raise UsageError(f"{read['without_key']} of {read['records']} new records of {topic} have no key")
    if across == "refuse" and merged["keys"]:
        key, first, last = merged["example"]
        raise UsageError(
            f"{merged['keys']} keys of {topic} have records in several partitions, such as {bytes(key)!r} in {first} and {last}, "
            'so the last record is not known; with across="timestamp" the one with the latest timestamp counts'
        )
