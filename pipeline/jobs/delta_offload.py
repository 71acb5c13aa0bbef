"""Offload into a Delta table. Delta's own sink writes; this module finds where a new checkpoint must begin.

    TABLE/_delta_log/                                         Delta's: which files count
    TABLE/topic=orders/date=2025-01-31/part-....parquet
    TABLE/_checkpoint/                                        Spark's

A batch is one transaction of the table, which names the query and the batch, so Delta skips a batch that is run again. Spark's
checkpoint has the offsets of each batch. So each record is in the table once, as long as the checkpoint exists.

If the checkpoint is lost, **the table itself shows where to continue**: a batch is in the table as a whole or not at all, so the
table has every record up to the last offset of a partition, and none after it. A recreated topic has other records at these
offsets. So the last record of each partition must have the same timestamp in log and table; otherwise nothing is written.

A second offload that runs at the same time is not detected: Delta accepts concurrent appends.
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
from strandline.pipeline.jobs.spark_paths import literal_path
from strandline.pipeline.option_names import CLIENT_PREFIXES
from strandline.pipeline.options import read_options
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTITIONED_BY = ("topic", "date")
DATE = "date_from_unix_date(int((unix_micros(timestamp) - pmod(unix_micros(timestamp), 86400000000L)) div 86400000000L))"
"""The date of a record in UTC, independent of the session's time zone."""
NO_TABLE = {"PATH_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE"}
STARTS = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy")
"""Options of the source that say where it starts, in lower case: Spark accepts them in any case."""

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class Reached(NamedTuple):
    """The last record of a partition in the table."""

    offset: int
    us: int
    """Timestamp in microseconds since the epoch."""


def writer(
    spark: SparkSession,
    table: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str] | None,
    source: Mapping[str, str],
    columns: tuple[str, ...],
) -> DataStreamWriter:
    """A writer of a stream into the table, not started; `source` are the options of the source. Raises UsageError if log, table
    and checkpoint do not fit together."""
    path = table_path(table)
    folder = table_path(checkpoint) if checkpoint else f"{path}/{CHECKPOINT}"
    with delta_errors():
        there = opened(spark, path)
    if there is None and has_batches(spark, f"{folder}/commits"):
        raise UsageError(f"there is no table in {path}, but the checkpoint {folder} has written one: give a new checkpoint")
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
    """The path or URL of the table for Spark, in any file system that Spark supports."""
    text = os.fspath(path).rstrip("/") or "/"
    return text if _URI.match(text) else str(Path(text).absolute())


def check_is_no_lake(table: str | os.PathLike[str]) -> None:
    """Raises UsageError for a lake of Parquet files."""
    path = table_path(table)
    if os.path.isdir(os.path.join(path, MANIFESTS)):
        raise UsageError(f"{path} is a lake of Parquet files: give a Delta table a folder of its own")


# -- the table --------------------------------------------------------------------------------------------------------


def opened(spark: SparkSession, path: str, version: int | None = None) -> DataFrame | None:
    """The rows of the table; None if there is no table."""
    from pyspark.errors import AnalysisException

    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    try:
        rows = reader.load(path)
        rows.schema  # noqa: B018 - Spark may look for the table only when the schema is read.
    except AnalysisException as e:
        if e.getCondition() in NO_TABLE:
            return None
        raise
    return rows


def newest(spark: SparkSession, path: str) -> DataFrame:
    """The rows of the table's current version, unaffected by later writes. Raises UsageError if there is no table of an
    offload."""
    with delta_errors():
        rows = opened(spark, path)
        if rows is None:
            raise UsageError(f"there is no Delta table in {path}")
        check_columns(path, rows)
        version = spark.sql("DESCRIBE HISTORY delta.`{}` LIMIT 1".format(path.replace("`", "``"))).collect()[0]["version"]
        return opened(spark, path, version) or rows


def check_columns(path: str, rows: DataFrame) -> None:
    """Raises UsageError if the table lacks a column that every offload writes."""
    missing = {"topic", "partition", "offset", "timestamp", "date"}.difference(rows.columns)
    if missing:
        raise UsageError(f"{path} is not a table of an offload: it has no column {' and no '.join(sorted(missing))}")


def has_batches(spark: SparkSession, folder: str) -> bool:
    """Whether a folder of a checkpoint has files, in any file system."""
    from pyspark.errors import AnalysisException

    try:
        return not spark.read.text(literal_path(folder)).isEmpty()
    except AnalysisException as e:
        if e.getCondition() == "PATH_NOT_FOUND":
            return False
        raise


def reached(rows: DataFrame, topics: list[str]) -> dict[TopicPartition, Reached]:
    """The last record of each partition of these topics, from the offset and time of every row."""
    from pyspark.sql import functions as f

    last = f.max(f.struct("offset", f.unix_micros("timestamp").alias("us"))).alias("last")
    found = rows.filter(f.col("topic").isin(topics)).groupBy("topic", "partition").agg(last).collect()
    return {TopicPartition(row.topic, row.partition): Reached(row.last.offset, row.last.us) for row in found}


# -- a new checkpoint -------------------------------------------------------------------------------------------------


def behind(spark: SparkSession, rows: DataFrame, source: Mapping[str, str]) -> dict[str, str]:
    """The options of the source with which a new checkpoint begins after the records in the table."""
    options = read_options(source, is_stream=True)
    view = ClusterView(options.client, options.subscription)
    tps = view.partitions()
    there = reached(rows, sorted({tp.topic for tp in tps}))
    if not there:
        return dict(source)
    first, end = view.earliest(tps), {tp: at.offset for tp, at in view.latest(tps).items()}
    check_ends(there, {**end, **view.log_ends(tp for tp in end.keys() & there if there[tp].offset >= end[tp])})
    check_times(there, times_in_log(spark, source, {p: last.offset for p, last in there.items() if last.offset >= first[p]}))
    begin = {**starts_of(options, view.at, first, end), **{tp: last.offset + 1 for tp, last in there.items()}}
    return beginning_at(source, begin)


def beginning_at(source: Mapping[str, str], begin: Mapping[TopicPartition, int]) -> dict[str, str]:
    """The options of the source with these start offsets in place of its own."""
    others = {name: value for name, value in source.items() if name.lower() not in STARTS}
    return {**others, "startingOffsets": offsets_json(begin)}


def check_ends(there: Mapping[TopicPartition, Reached], ends: Mapping[TopicPartition, int]) -> None:
    """Raises UsageError if the table has records after the end of a log."""
    for tp, last in sorted(there.items()):
        if tp not in ends:
            raise UsageError(f"the table has records of {tp}, but the topic has no such partition{_RECREATED}")
        if last.offset >= ends[tp]:
            raise UsageError(f"the table has {tp} up to offset {last.offset}, but its log ends at {ends[tp]}{_RECREATED}")


def check_times(there: Mapping[TopicPartition, Reached], in_log: Mapping[TopicPartition, int]) -> None:
    """Raises UsageError if the log has another record at the last offset of a partition in the table."""
    for tp, us in sorted(in_log.items()):
        last = there[tp]
        if us != last.us:
            times = f"has the timestamp {last.us // 1000} in the table, but {us // 1000} in the log"
            raise UsageError(f"offset {last.offset} of {tp} {times}{_RECREATED}")


_RECREATED = ": was the topic recreated? Start another table, or give the old checkpoint"


def times_in_log(
    spark: SparkSession, source: Mapping[str, str], offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The timestamps of the records at these offsets, in microseconds; records that were deleted are left out."""
    if not offsets:
        return {}
    from pyspark.sql import functions as f

    fixed = {
        "assign": assign_json(offsets),
        "startingOffsets": offsets_json(offsets),
        "endingOffsets": offsets_json({tp: offset + 1 for tp, offset in offsets.items()}),
    }
    rows = spark.read.format("strandline").options(**client_of(source), **fixed).load()
    found = rows.select("topic", "partition", f.unix_micros("timestamp").alias("us")).collect()
    return {TopicPartition(row.topic, row.partition): row.us for row in found}


def client_of(source: Mapping[str, str]) -> dict[str, str]:
    """The options of the source that say how to reach the cluster."""
    prefixes = ("bootstrap.servers", "clientconfig", *CLIENT_PREFIXES)
    return {name: value for name, value in source.items() if name.lower().startswith(prefixes)}


def assign_json(tps: Mapping[TopicPartition, int]) -> str:
    """The partitions as JSON, in the form of the option `assign`."""
    of_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(tps):
        of_topic.setdefault(topic, []).append(partition)
    return json.dumps(of_topic)
