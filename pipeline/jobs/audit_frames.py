"""The DataFrames of an audit: executors count rows from log, lake and ledger by offset; the driver gets one row per interval.

One shuffle, by blocks of offsets, brings all sides together: a row has topic, partition, offset, time, and a hash of the rest.

    log  ─┐
    lake ─┼─ topic, partition, offset, time, hash ── by offset: how often, and equal? ── by interval: how many of each kind
    ledger┘

A compacted topic may lack records. The newest record of a key in log and lake is missing only by a loss, unless it is a deletion;
so the records of such topics are also grouped by key. A ledger has no keys, so compaction may have removed a record that only the
ledger has.

Records of aborted transactions are in the log, but no reader of committed records gets them, so they are not in the lake either.
A ledger may have them. `unread` finds them, for a ledger that seems to have more than the log.

A copy has other offsets and perhaps other partitions, so its records are identified by content: a hash of 128 bits over key and
value (and headers, with `include_headers`), counted on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, Window
from pyspark.sql import functions as f

from strandline.pipeline.jobs.audit_ledger import COLUMNS
from strandline.pipeline.jobs.audit_result import BAD, EXAMPLES, NOTES, SOURCES
from strandline.pipeline.jobs.spark_paths import literal_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOCK = 65_536
"""How many offsets are sorted together to find gaps."""
PLACE = ("topic", "partition")
TORN = "_torn"
ABSENT = "absent"
"""The kind of an offset inside the log that has no record there, but has one in the lake or the ledger."""


# -- rows -------------------------------------------------------------------------------------------------------------


def log_rows(records: DataFrame, *, has_ledger: bool) -> DataFrame:
    return _record_rows("log", records, f.crc32("value") if has_ledger else f.lit(None).cast("bigint"))


def lake_rows(records: DataFrame) -> DataFrame:
    return _record_rows("lake", records, f.lit(None).cast("bigint"))


def _record_rows(source: str, records: DataFrame, crc: Column) -> DataFrame:
    return _rows(source, records, f.col("timestamp"), _content_hash(), crc, f.xxhash64("key"), _is_deletion())


def ledger_lines(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """The lines of the ledger files. A line that cannot be parsed has its text in the column `TORN`."""
    reader = spark.read.schema(f"{COLUMNS}, {TORN} string").option("columnNameOfCorruptRecord", TORN)
    parquet = [literal_path(path) for path in paths if path.endswith(".parquet")]
    lines = [literal_path(path) for path in paths if not path.endswith(".parquet")]
    frames = [reader.json(lines)] if lines else []
    if parquet:
        frames.append(spark.read.schema(COLUMNS).parquet(*parquet).withColumn(TORN, f.lit(None).cast("string")))
    return reduce(lambda a, b: a.unionByName(b), frames)


def ledger_rows(lines: DataFrame, topics: Sequence[str], uncommitted: DataFrame | None = None) -> DataFrame:
    """A row for each acknowledged record. Those at the offsets of `uncommitted` are marked."""
    usable = lines.filter(f.col("offset") >= 0).filter(f.col("topic").isin(list(topics)))
    count = f.greatest(f.coalesce(f.col("count"), f.lit(1)), f.lit(1))
    records = usable.select(
        *PLACE,
        f.explode(f.sequence(f.col("offset"), f.col("offset") + count - 1)).alias("offset"),
        f.timestamp_millis("timestamp").alias("timestamp"),
        f.when(count == 1, f.col("crc32")).alias("crc"),
    )
    none = f.lit(None).cast("bigint")
    rows = _rows("ledger", records, f.col("timestamp"), none, f.col("crc"), none, f.lit(None).cast("boolean"))
    if uncommitted is None:
        return rows
    marked = rows.drop("is_uncommitted").join(uncommitted.withColumn("is_uncommitted", f.lit(True)), [*PLACE, "offset"], "left")
    return marked.withColumn("is_uncommitted", f.coalesce("is_uncommitted", f.lit(False)))


def unread(records: DataFrame, committed: DataFrame) -> DataFrame:
    """Topic, partition and offset of the records that a reader of committed records does not get."""
    place = [*PLACE, "offset"]
    return records.select(*place).join(committed.select(*place), place, "left_anti")


def _rows(
    source: str, records: DataFrame, time: Column, hashed: Column, crc: Column, key: Column, is_deletion: Column
) -> DataFrame:
    return records.select(
        *PLACE,
        "offset",
        f.lit(SOURCES.index(source)).alias("source"),
        f.unix_micros(time).alias("us"),
        hashed.alias("hash"),
        crc.alias("crc"),
        key.alias("key"),
        is_deletion.alias("is_deletion"),
        f.lit(False).alias("is_uncommitted"),
    )


def superseded(rows: DataFrame, compacted: Sequence[str]) -> DataFrame:
    """Adds a column: whether compaction may remove the record, because its key has a newer one, or because it is a deletion.
    Null in other topics, and for the ledger. Costs a shuffle of the compacted topics."""
    if not compacted:
        return rows.withColumn("is_superseded", f.lit(None).cast("boolean"))
    is_judged = f.col("topic").isin(list(compacted)) & (f.col("source") != SOURCES.index("ledger"))
    newest = f.max("offset").over(Window.partitionBy(*PLACE, "key"))
    is_superseded = f.col("is_deletion") | (f.col("offset") < newest)
    others = rows.filter(~is_judged).withColumn("is_superseded", f.lit(None).cast("boolean"))
    return rows.filter(is_judged).withColumn("is_superseded", is_superseded).unionByName(others)


def _is_deletion() -> Column:
    """Whether compaction removes the record in any case: later, or at once if it has no key."""
    return f.isnull("key") | f.isnull("value")


def _content_hash() -> Column:
    """The hash of time, key and value. A null does not change the hash, so a flag for each null is hashed as well."""
    return f.xxhash64(f.unix_micros("timestamp"), f.isnull("key"), "key", f.isnull("value"), "value")


# -- by offset --------------------------------------------------------------------------------------------------------


def by_offset(rows: DataFrame, bounds: DataFrame) -> DataFrame:
    """A row for each offset that any side has, with the number of its records of each kind."""
    placed = rows.join(f.broadcast(bounds), list(PLACE)).filter(
        (f.col("source") != SOURCES.index("ledger")) | (f.col("offset") < f.col("ledger_end"))
    )
    blocks = placed.withColumn("block", f.expr(f"offset div {BLOCK}")).repartition(*PLACE, "block")
    known = ("log_start", "log_end", "lake_first", "lake_due", "is_compacted")
    counted = blocks.groupBy(*PLACE, "block", "offset").agg(
        *(_count_of(source) for source in SOURCES),
        *(_time_of(source) for source in SOURCES),
        (f.min("hash") != f.max("hash")).alias("is_other"),
        (f.min("crc") != f.max("crc")).alias("is_other_than_acknowledged"),
        f.max("is_superseded").alias("is_superseded"),
        f.max("is_uncommitted").alias("is_uncommitted"),
        *(f.first(name).alias(name) for name in known),
    )
    there = f.when(f.col("log") > 0, f.col("offset"))
    before = Window.partitionBy(*PLACE, "block").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    begin = f.greatest(f.col("log_start"), f.col("block") * BLOCK)
    gaps = f.when(f.col("log") > 0, f.col("offset") - 1 - f.coalesce(f.max(there).over(before), begin - 1))
    with_gaps = counted.withColumn("gaps", f.coalesce(gaps, f.lit(0)))
    return with_gaps.select("*", *(kind.cast("bigint").alias(name) for name, kind in _kinds().items()))


def _count_of(source: str) -> Column:
    return f.count_if(f.col("source") == SOURCES.index(source)).alias(source)


def _time_of(source: str) -> Column:
    return f.min(f.when(f.col("source") == SOURCES.index(source), f.col("us"))).alias(f"{source}_us")


def _kinds() -> dict[str, Column]:
    """The number of records of each kind at an offset. A value that a side does not have (null) is not a finding."""
    offset, log, lake, ledger = (f.col(name) for name in ("offset", "log", "lake", "ledger"))
    is_left = offset >= f.col("log_start")
    may_be_compacted = f.col("is_compacted") & (log == 0) & ((lake == 0) | f.col("is_superseded"))
    is_compacted = is_left & f.coalesce(may_be_compacted, f.lit(False))
    is_uncommitted = f.col("is_uncommitted") & (log == 0)
    is_claimed = ((log > 0) | (ledger > 0)) & ~is_compacted & ~is_uncommitted
    kinds = {
        "lost_in_log": (ledger > 0) & (log == 0) & is_left & ~is_compacted & ~is_uncommitted,
        "lost_in_lake": is_claimed & (lake == 0) & (offset >= f.col("lake_first")) & (offset < f.col("lake_due")),
        "doubled_in_log": f.greatest(log - 1, f.lit(0)),
        "doubled_in_lake": f.greatest(lake - 1, f.lit(0)),
        "foreign_in_lake": (lake > 0) & (log == 0) & is_left & ~is_compacted,
        "differs": (log > 0) & (lake > 0) & f.col("is_other"),
        "acknowledged_twice": f.greatest(ledger - 1, f.lit(0)),
        "acknowledged_other": (log > 0) & (ledger > 0) & f.col("is_other_than_acknowledged"),
        "pending": (log > 0) & (lake == 0) & (offset >= f.col("lake_due")),
        "expired": (lake > 0) & (log == 0) & ~is_left,
        "compacted": is_compacted,
        "uncommitted": (ledger > 0) & is_uncommitted,
        "unheld": (ledger > 0) & (log == 0) & (lake == 0) & ~is_left & ~f.coalesce(offset >= f.col("lake_first"), f.lit(False)),
    }
    kinds[ABSENT] = (log == 0) & is_left & (offset < f.col("log_end"))
    return {name: f.coalesce(kind.cast("bigint"), f.lit(0)) for name, kind in kinds.items()}


# -- rows for the driver ----------------------------------------------------------------------------------------------


def by_interval(offsets: DataFrame, interval_s: int) -> DataFrame:
    """A row for each partition and interval, whatever the number of records."""
    seen = [column for source in SOURCES for column in _seen(source)]
    kinds = [f.sum(name).alias(name) for name in (*BAD, *NOTES, ABSENT)]
    return offsets.groupBy(*PLACE, _interval(interval_s)).agg(*seen, *kinds)


def _seen(source: str) -> list[Column]:
    count, time = f.col(source), f.col(f"{source}_us")
    offset = f.when(count > 0, f.col("offset"))
    return [
        f.sum(count).alias(source),
        f.min(offset).alias(f"{source}_first"),
        f.max(offset).alias(f"{source}_last"),
        f.expr(f"min({source}_us) div 1000").alias(f"{source}_first_ms"),
        f.max(time / 1000).cast("bigint").alias(f"{source}_last_ms"),
    ]


def _interval(interval_s: int) -> Column:
    us = f.coalesce(*(f.col(f"{source}_us") for source in SOURCES))
    return (f.floor(us / (interval_s * 1_000_000)) * interval_s).cast("bigint").alias("at_s")


def examples(offsets: DataFrame) -> DataFrame:
    """The first offsets of each bad kind in each partition."""
    kinds = f.array_compact(f.array(*(f.when(f.col(name) > 0, f.lit(name)) for name in BAD)))
    bad = offsets.select(*PLACE, "offset", f.explode(kinds).alias("kind"))
    order = Window.partitionBy(*PLACE, "kind").orderBy("offset")
    return bad.withColumn("n", f.row_number().over(order)).filter(f.col("n") <= EXAMPLES)


# -- copies -----------------------------------------------------------------------------------------------------------


def by_content(source: DataFrame, copy: DataFrame, due_ms: int, include_headers: bool) -> DataFrame:
    """A row for each distinct record: how often it is in the source and in the copy, and its kinds."""
    both = _contents(source, f.lit(1), include_headers).unionByName(_contents(copy, f.lit(0), include_headers))
    counted = both.groupBy("a", "b").agg(
        f.sum("is_source").alias("sources"),
        f.sum(f.col("is_source") * (f.col("us") <= due_ms * 1000).cast("bigint")).alias("due"),
        f.sum(1 - f.col("is_source")).alias("copies"),
        f.min(f.when(f.col("is_source") == 1, f.col("us"))).alias("source_us"),
        f.min("us").alias("us"),
        f.min(f.struct("partition", "offset")).alias("one"),
    )
    more = f.greatest(f.col("copies") - f.col("sources"), f.lit(0))
    return counted.select(
        "*",
        f.greatest(f.col("due") - f.col("copies"), f.lit(0)).alias("lost_in_copy"),
        f.when(f.col("sources") > 0, more).otherwise(0).cast("bigint").alias("doubled_in_copy"),
        f.when(f.col("sources") == 0, more).otherwise(0).cast("bigint").alias("foreign_in_copy"),
    )


def _contents(records: DataFrame, is_source: Column, include_headers: bool) -> DataFrame:
    what: list[Column | str] = [f.isnull("key"), "key", f.isnull("value"), "value"]
    if include_headers:
        what.append(f.coalesce(f.col("headers"), f.array().cast("array<struct<key: string, value: binary>>")))
    return records.select(
        "partition",
        "offset",
        is_source.cast("bigint").alias("is_source"),
        f.unix_micros("timestamp").alias("us"),
        f.xxhash64(*what).alias("a"),
        f.xxhash64(f.lit(1), *what).alias("b"),
    )


def copy_by_interval(contents: DataFrame, interval_s: int, kinds: Mapping[str, str]) -> DataFrame:
    us = f.coalesce("source_us", "us")
    at = (f.floor(us / (interval_s * 1_000_000)) * interval_s).cast("bigint").alias("at_s")
    sums = [f.sum(name).alias(name) for name in ("sources", "copies", *kinds)]
    return contents.groupBy(at).agg(*sums)


def copy_examples(contents: DataFrame, kinds: Mapping[str, str]) -> DataFrame:
    """Some examples of each kind, those with the lowest partition and offset."""
    found = [
        contents.filter(f.col(kind) > 0).select(f.lit(kind).alias("kind"), "one.*").orderBy("partition", "offset").limit(EXAMPLES)
        for kind in kinds
    ]
    return reduce(lambda a, b: a.unionByName(b), found)
