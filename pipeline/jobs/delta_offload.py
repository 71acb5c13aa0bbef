"""Offload into a Delta table. Delta's own sink writes; what is added here is where a checkpoint that is new begins.

    TABLE/_delta_log/                                         Delta's: which files count
    TABLE/topic=orders/date=2025-01-31/part-....parquet
    TABLE/_checkpoint/                                        Spark's

A batch is one transaction of the table, which names the query and the batch: one that is run again is found to be there, and
left out. Spark's checkpoint has the offsets of each batch. So each record is in the table once, as long as there is the
checkpoint.

When it was lost, **the table itself says where to go on**: batches are whole or not there at all, so behind the last offset of a
partition nothing is, and before it everything. A topic that was made anew has other records at these offsets. Therefore the
last record of each partition must be the same in log and table, by its time; otherwise nothing is written.

What this cannot see is another offload that is at work: appends to a Delta table pass each other.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.bounds import starts_of
from strandline.pipeline.cluster_view import ClusterView
from strandline.pipeline.jobs.audit_files import offsets_json
from strandline.pipeline.jobs.delta import delta_errors
from strandline.pipeline.jobs.lake import CHECKPOINT, MANIFESTS
from strandline.pipeline.option_names import CLIENT_PREFIXES
from strandline.pipeline.options import read_options
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTITIONED_BY = ("topic", "date")
DATE = "date_from_unix_date(int((unix_micros(timestamp) - pmod(unix_micros(timestamp), 86400000000L)) div 86400000000L))"
"""In UTC, whatever the session's time zone."""
NO_TABLE = {"PATH_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE"}
STARTS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy")

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class Reached(NamedTuple):
    """The last record of a partition that a table has."""

    offset: int
    us: int
    """Its time, microseconds since the epoch."""


def writer(
    spark: SparkSession,
    table: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str] | None,
    source: Mapping[str, str],
    columns: tuple[str, ...],
) -> DataStreamWriter:
    """A stream into the table, not yet started; `source` are the options to read with. Raises UsageError when log, table and
    checkpoint do not go together."""
    path = table_path(table)
    folder = table_path(checkpoint) if checkpoint else f"{path}/{CHECKPOINT}"
    with delta_errors():
        there = opened(spark, path)
    if there is None and has_batches(spark, f"{folder}/commits"):
        raise UsageError(f"there is no table in {path}, and the checkpoint {folder} has written one: give a new checkpoint")
    if there is not None:
        check_columns(path, there)
        if not has_batches(spark, f"{folder}/offsets"):
            source = behind(spark, there, source)
    rows = spark.readStream.format("strandline").options(**source).load()
    stream = rows.selectExpr(*columns, f"{DATE} AS date").writeStream.format("delta").outputMode("append")
    # Headers may be asked for when the table is there already; nothing else of its schema changes.
    stream = stream.option("mergeSchema", str("headers" in columns).lower()).partitionBy(*PARTITIONED_BY)
    return stream.option("path", path).option("checkpointLocation", folder)


def table_path(path: str | os.PathLike[str]) -> str:
    """As Spark is to see it: whatever file system it knows."""
    text = os.fspath(path).rstrip("/") or "/"
    return text if _URI.match(text) else str(Path(text).absolute())


def check_is_no_lake(table: str | os.PathLike[str]) -> None:
    """Raises UsageError for a lake of Parquet files."""
    path = table_path(table)
    if os.path.isdir(os.path.join(path, MANIFESTS)):
        raise UsageError(f"{path} is a lake of Parquet files: give a Delta table a folder of its own")


# -- the table --------------------------------------------------------------------------------------------------------


def opened(spark: SparkSession, path: str, version: int | None = None) -> DataFrame | None:
    """Its rows; None: there is no table."""
    from pyspark.errors import AnalysisException

    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    try:
        rows = reader.load(path)
        rows.schema  # noqa: B018 - Spark may put off looking until somebody asks.
    except AnalysisException as e:
        if e.getCondition() in NO_TABLE:
            return None
        raise
    return rows


def newest(spark: SparkSession, path: str) -> DataFrame:
    """Its rows as they are now, whatever is written while they are read. Raises UsageError when there is no table of ours."""
    with delta_errors():
        rows = opened(spark, path)
        if rows is None:
            raise UsageError(f"there is no Delta table in {path}")
        check_columns(path, rows)
        version = spark.sql("DESCRIBE HISTORY delta.`{}` LIMIT 1".format(path.replace("`", "``"))).collect()[0]["version"]
        return opened(spark, path, version) or rows


def check_columns(path: str, rows: DataFrame) -> None:
    """Raises UsageError for somebody else's table."""
    missing = {"topic", "partition", "offset", "timestamp", "date"}.difference(rows.columns)
    if missing:
        raise UsageError(f"{path} is no table of an offload: it has no column {' and no '.join(sorted(missing))}")


def has_batches(spark: SparkSession, folder: str) -> bool:
    """Whether a folder of a checkpoint has something in it, wherever it lies."""
    from pyspark.errors import AnalysisException

    try:
        return not spark.read.text(folder).isEmpty()
    except AnalysisException as e:
        if e.getCondition() == "PATH_NOT_FOUND":
            return False
        raise


def reached(rows: DataFrame, topics: list[str]) -> dict[TopicPartition, Reached]:
    """Of these topics, by a look at every row's offset and time."""
    from pyspark.sql import functions as f

    last = f.max(f.struct("offset", f.unix_micros("timestamp").alias("us"))).alias("last")
    found = rows.filter(f.col("topic").isin(topics)).groupBy("topic", "partition").agg(last).collect()
    return {TopicPartition(row.topic, row.partition): Reached(row.last.offset, row.last.us) for row in found}


# -- a new checkpoint -------------------------------------------------------------------------------------------------


def behind(spark: SparkSession, rows: DataFrame, source: Mapping[str, str]) -> dict[str, str]:
    """The options to read with, so that a new checkpoint begins behind what the table has."""
    options = read_options(source, is_stream=True)
    view = ClusterView(options.client, options.subscription)
    places = view.partitions()
    there = reached(rows, sorted({place.topic for place in places}))
    if not there:
        return dict(source)
    first, end = view.earliest(places), {place: at.offset for place, at in view.latest(places).items()}
    check_ends(there, end)
    check_times(there, times_in_log(spark, source, {p: last.offset for p, last in there.items() if last.offset >= first[p]}))
    begin = {**starts_of(options, view.at, first, end), **{place: last.offset + 1 for place, last in there.items()}}
    others = {name: value for name, value in source.items() if name not in STARTS}
    return {**others, "startingOffsets": offsets_json(begin)}


def check_ends(there: Mapping[TopicPartition, Reached], ends: Mapping[TopicPartition, int]) -> None:
    """Raises UsageError when a log is shorter than what the table has of it."""
    for place, last in sorted(there.items()):
        if place not in ends:
            raise UsageError(f"the table has records of {place}, and the topic has no such partition{_ANEW}")
        if last.offset >= ends[place]:
            raise UsageError(f"the table has {place} up to offset {last.offset}, and its log ends at {ends[place]}{_ANEW}")


def check_times(there: Mapping[TopicPartition, Reached], in_log: Mapping[TopicPartition, int]) -> None:
    """Raises UsageError when the last record of a partition is another in the log."""
    for place, us in sorted(in_log.items()):
        last = there[place]
        if us != last.us:
            times = f"has the timestamp {last.us // 1000} in the table, and {us // 1000} in the log"
            raise UsageError(f"offset {last.offset} of {place} {times}{_ANEW}")


_ANEW = ": was the topic made anew? Begin another table, or give the old checkpoint"


def times_in_log(
    spark: SparkSession, source: Mapping[str, str], offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """When the records at these offsets are from, in microseconds; what is not there any more is left out."""
    if not offsets:
        return {}
    from pyspark.sql import functions as f

    client = {k: v for k, v in source.items() if k == "bootstrap.servers" or k.lower().startswith(CLIENT_PREFIXES)}
    fixed = {
        "assign": assign_json(offsets),
        "startingOffsets": offsets_json(offsets),
        "endingOffsets": offsets_json({place: offset + 1 for place, offset in offsets.items()}),
    }
    rows = spark.read.format("strandline").options(**client, **fixed).load()
    found = rows.select("topic", "partition", f.unix_micros("timestamp").alias("us")).collect()
    return {TopicPartition(row.topic, row.partition): row.us for row in found}


def assign_json(places: Mapping[TopicPartition, int]) -> str:
    """As the option `assign` wants it."""
    of_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        of_topic.setdefault(topic, []).append(partition)
    return json.dumps(of_topic)
