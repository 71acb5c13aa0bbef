"""Materialise: a topic as a Parquet table with the last value of each key, like a compacted topic.

A run reads the records since the last run, merges them with the former version, and writes a new version, which replaces the
former in one step (`materialize_folder.py`). A run may die at any moment and be started again: the former version stays until the
new one is whole, and the same records give the same table.

Which record is the last one of a key?

    in one partition        the one with the highest offset; one without a value (a tombstone) takes the key away
    in several partitions   `across="refuse"`: the order is not known, so the run fails and names the key.
                            `across="timestamp"`: of the last ones of each partition the youngest; of those that are as young
                            the one in the highest partition

A key has one partition, unless a producer chose partitions itself, or partitions were added to the topic. With "timestamp" the
table needs a memory: the last record of each key in each other partition, and tombstones, or what is read in two runs would give
another table than what is read in one. That is the "rest" of a version, and it grows with the keys that there ever were. With
"refuse" a key that was deleted is forgotten. Records without a key have no place in a table: they are counted and left out, or
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
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

KEEP = 3
"""How many versions are kept: a reader of one version has the time of two more runs."""


@dataclass(frozen=True, slots=True)
class Materialized:
    """The result of a run."""

    version: int
    rows: int
    """Keys that have a value."""
    records: int
    """That were read."""
    tombstones: int
    without_key: int
    is_new: bool = True
    """Whether there is a new version; there is none when there was nothing to read."""


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
    """Runs once, and returns what the run read and wrote.

    `across`: by default that of the snapshot, or "refuse" for a new one. With `lake`, records are read there instead of from the
    log. `keep`: how many versions stay. `options` are those of the source (docs/spark.md), such as failOnDataLoss. Raises
    UsageError for contradicting arguments, refused records, or another run at work; DataLoss if records are gone."""
    if keep < 1:
        raise UsageError(f"at least 1 version is kept, not {keep}")
    folder = SnapshotFolder(root)
    with folder.at_work():
        former = folder.newest()
        if former is not None and former.topic != topic:
            raise UsageError(f"the snapshot {folder.root} is one of topic {former.topic}, not of {topic}")
        rule = across or (former.across if former else "refuse")
        since = None if former is None else former.until
        if lake is None:
            changes = from_log(spark, servers, topic, since, options or {})
        else:
            is_strict = (options or {}).get("failOnDataLoss", "true").lower() == "true"
            changes = from_lake(spark, lake, topic, since, is_strict)
        if former is not None and changes.is_empty and rule == former.across:
            return Materialized(former.number, former.rows, 0, 0, 0, is_new=False)
        return _Run(spark, folder, former, topic, rule).make(changes, without_key, keep)


def read_snapshot(spark: SparkSession, path: str | os.PathLike[str], version: int | None = None) -> DataFrame:
    """The newest version, or `version`, with the columns key, value, partition, offset and timestamp. A version stays readable
    until `keep` newer ones exist. Raises UsageError if it does not exist."""
    folder = SnapshotFolder(path)
    return _table(spark, folder, folder.version(version).table)


def _table(spark: SparkSession, folder: SnapshotFolder, files: tuple[SnapshotFile, ...]) -> DataFrame:
    if not files:
        return spark.createDataFrame([], SCHEMA)
    return spark.read.schema(SCHEMA).parquet(*folder.paths(files))


# -- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    spark: SparkSession
    folder: SnapshotFolder
    former: Version | None
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
        """`SCHEMA` and the column kind (table or rest), of all that the new version consists of; and how many partitions
        each key is in."""
        from pyspark.sql import Window
        from pyspark.sql.functions import col, count, lit, row_number, struct, when
        from pyspark.sql.functions import max as max_
        from pyspark.sql.functions import min as min_

        rows = changes.where(col("key").isNotNull())
        if self.former is not None:
            known = (*self.former.table, *self.former.rest)
            rows = _table(self.spark, self.folder, known).unionByName(rows)
        last = rows.groupBy("key", "partition").agg(max_(struct("offset", "timestamp", "value")).alias("last"))
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
        number = self.former.number + 1 if self.former else 1
        token = work.name.rsplit("-", 1)[1]
        files = {kind: self._files(number, kind, work, token) for kind in ("table", "rest")}
        until = {**(self.former.until if self.former else {}), **changes.until}
        return Version(number=number, topic=self.topic, across=self.across, until=until, **files)

    def _files(self, number: int, kind: str, work: Path, token: str) -> tuple[SnapshotFile, ...]:
        from pyarrow.parquet import read_metadata

        written = sorted((work / f"kind={kind}").glob("*.parquet"))
        rows = [read_metadata(path).num_rows for path in written]
        return self.folder.bring(number, kind, written, rows, token)


def _counts() -> tuple[Column, ...]:
    """Of the records that were read."""
    from pyspark.sql.functions import col, count, lit, when

    return (
        count(lit(1)).alias("records"),
        count(when(col("key").isNull(), 1)).alias("without_key"),
        count(when(col("key").isNotNull() & col("value").isNull(), 1)).alias("tombstones"),
    )


def _seen(observation: Observation) -> dict[str, Any] | None:
    """None where Spark has left out that part of its plan, because it saw in time that nothing would come of it."""
    from py4j.protocol import Py4JError

    try:
        return observation.get or None
    except Py4JError:
        return None


def _observed(merged: DataFrame, observation: Observation, across: Across) -> DataFrame:
    """What is written; which keys are in several partitions is counted on the way."""
    from pyspark.sql.functions import col, count, struct, when
    from pyspark.sql.functions import max as max_

    several = (col("partitions") > 1) & (col("rank") == 1)
    example = struct("key", "first_partition", "last_partition")
    seen = merged.observe(observation, count(when(several, 1)).alias("keys"), max_(when(several, example)).alias("example"))
    if across == "refuse":
        seen = seen.where(col("kind") == "table")
    return seen.select("key", "value", "partition", "offset", "timestamp", "kind")


def _check(topic: str, read: Mapping[str, Any], merged: Mapping[str, Any], without_key: str, across: Across) -> None:
    """Before the version is published: raises UsageError if records without a key, or keys in several partitions, are refused."""
    if without_key == "refuse" and read["without_key"]:
        raise UsageError(f"{read['without_key']} of the {read['records']} records of {topic} that were read have no key")
    if across == "refuse" and merged["keys"]:
        key, first, last = merged["example"]
        raise UsageError(
            f"{merged['keys']} keys of {topic} have records in several partitions, such as {bytes(key)!r} in {first} and {last}, "
            'so the last one is not known; with across="timestamp" the youngest counts'
        )
