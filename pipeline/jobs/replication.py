"""A report on replication from the nodes' logs: leaders and ISRs of each partition, fail-over times, and truncations.

    report = replication(spark, ["cluster/"])
    report.found.verdict
    report.elections.where("what = 'failover'").groupBy("topic").agg(percentile_approx("ms", 0.95)).show()

`paths` are files, folders (of `strandline up`, of a chaos run), or URLs that Spark can read. Executors read the lines. Spark's
JSON functions drop the lines that do not concern replication, and Python parses the rest (`replication_facts.py`). The driver
collects the facts about brokers, controllers and topics (`replication_cluster.py`). One task per partition turns that partition's
facts into findings (`replication_partition.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from strandline.pipeline.jobs.replication_cluster import ClusterTimeline, cluster_timeline
from strandline.pipeline.jobs.replication_facts import CUT, EVENTS, FOREIGN, Fact, read_line
from strandline.pipeline.jobs.replication_partition import ELECTION, INTERVAL, LAG, STATE, TRUNCATION, Row, rows_of_partition
from strandline.pipeline.jobs.replication_result import Read, Replication, replication_of
from strandline.pipeline.jobs.spark_paths import literal_path
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW = (
    "kind string, topic string, partition int, incarnation int, what string, from_us bigint, until_us bigint, is_open boolean, "
    "broker int, previous_broker int, leader_epoch int, partition_epoch int, isr array<int>, previous_isr array<int>, "
    "replicas array<int>, min_isr int, cause string, detail string, lost_us bigint, elected_us bigint, first_offset bigint, "
    "end_offset bigint, records bigint, below_hw bigint"
)
"""The fields of `Row`, in their order."""
_TIMES = {"from_us": "from", "until_us": "until", "lost_us": "lost", "elected_us": "elected"}
_COLUMNS = {
    STATE: "from until is_open ms broker leader_epoch partition_epoch isr previous_isr replicas min_isr cause detail",
    INTERVAL: "what from until is_open ms broker isr replicas cause",
    ELECTION: "what lost elected until ms previous_broker broker leader_epoch partition_epoch isr cause detail",
    TRUNCATION: "what from broker first_offset end_offset records below_hw leader_epoch detail",
    LAG: "what from broker records detail",
}


@dataclass(frozen=True, slots=True)
class ReplicationFrames:
    """The findings as Python objects and as DataFrames, with times as timestamps. docs/spark-jobs.md lists the columns."""

    found: Replication
    events: DataFrame
    """A row for each event about replication: at, node, event, topic, partition, fact (JSON)."""
    states: DataFrame
    """A row for each state of a partition: a leader with an ISR."""
    intervals: DataFrame
    """A row for each interval; `what` is under_replicated, under_min_isr, without_leader, or out_of_isr (of one broker)."""
    elections: DataFrame
    """A row for each new leader; `what` is failover or handover."""
    truncations: DataFrame
    lags: DataFrame
    topic_hours: DataFrame
    broker_hours: DataFrame


def replication(
    spark: SparkSession,
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    since_us: int | None = None,
    until_us: int | None = None,
    topics: Sequence[str] = (),
) -> ReplicationFrames:
    """Reads the logs and reports on the range from `since_us` to `until_us` (exclusive; microseconds since 1970).

    Earlier lines are read as well, because the state of a partition at `since_us` follows from them. An empty `topics` means all.
    Raises UsageError if a path does not exist or has no log."""
    found, events = _found(spark, paths, since_us, until_us, topics)
    return frames_of(spark, events.frame, found)


def findings(
    spark: SparkSession,
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    since_us: int | None = None,
    until_us: int | None = None,
    topics: Sequence[str] = (),
) -> Replication:
    """The findings of `replication` alone, for callers that need no DataFrames. The arguments and errors are the same."""
    found, events = _found(spark, paths, since_us, until_us, topics)
    events.frame.unpersist()
    return found


def _found(
    spark: SparkSession,
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    since_us: int | None,
    until_us: int | None,
    topics: Sequence[str],
) -> tuple[Replication, Events]:
    files = log_files(paths)
    # The option is unique: otherwise Spark takes this plan for that of an earlier call, and returns the events persisted then.
    names = [file if "://" in file else literal_path(file) for file in files]
    lines = spark.read.option("strandline.call", uuid4().hex).text(names)
    events = read_events(lines, files=len(files))
    rows_frame, timeline = partition_findings(events)
    found = replication_of(timeline, rows_of_frame(rows_frame), events.read, since_us=since_us, until_us=until_us, topics=topics)
    return found, events


def log_files(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """The log files in `paths`: each file that is named, and in folders the files that are named like logs. Raises UsageError if
    there are none, or if Spark cannot read one."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    files: list[str] = []
    for path in [os.fspath(path) for path in given]:
        if "://" in path:
            files.append(path)
        elif Path(path).is_dir():
            files += [str(file) for file in sorted(Path(path).rglob("*")) if is_log(file)]
        elif Path(path).is_file():
            if Path(path).name.startswith(HIDDEN):
                raise UsageError(f"Spark reads no file whose name begins with a dot or an underscore: rename {path}")
            files.append(path)
        else:
            raise UsageError(f"there is no file or folder {path}")
    if not files:
        raise UsageError(
            f"there is no log in {', '.join(map(str, given)) or 'no path'}: no *.jsonl, *.log or *.txt, rotated or compressed"
        )
    unreadable = [file for file in files if file.endswith(OTHER_COMPRESSIONS)]
    if unreadable:
        raise UsageError(f"{unreadable[0]} is compressed, but not with gzip or bzip2: decompress it first")
    return files


HIDDEN = (".", "_")
"""Spark ignores files whose names begin with one of these."""
OTHER_COMPRESSIONS = (".xz", ".zst", ".zip", ".lz4", ".lzma", ".7z", ".Z", ".br", ".snappy")


def is_log(path: Path) -> bool:
    """Whether the file is named like a log: `log.jsonl`, `log.jsonl.1`, `broker.log.gz`. A segment (twenty digits and `.log`) is
    not a log in this sense."""
    parts = path.name.split(".")
    is_segment = len(parts[0]) == 20 and parts[0].isdigit()
    if is_segment or path.name.startswith(HIDDEN):
        return False
    return path.is_file() and bool({"jsonl", "ndjson", "log", "txt"} & set(parts[1:]))


# -- lines ------------------------------------------------------------------------------------------------------------


class Events(NamedTuple):
    frame: DataFrame
    """A persisted DataFrame with a row for each fact, and for each line that could not be parsed."""
    read: Read
    begin_us: int
    end_us: int
    """Times of the first and last event in the logs, including events that do not concern replication."""
    facts: list[Fact]
    """The facts on the driver: those about the cluster, or all (see `read_events`)."""


def read_events(lines: DataFrame, *, files: int = 0, with_partitions: bool = False) -> Events:
    """Parses lines, the column `value` of `lines`. Runs two Spark jobs: one counts the lines, one parses them.

    With `with_partitions` the driver gets all facts, otherwise only those that concern no single partition."""
    from pyspark.sql import functions as f

    brace = f.instr("value", "{")
    json = f.expr("substring(value, instr(value, '{'))")
    named = {name: f.get_json_object(json, f"$.{name}") for name in ("event", "node", "timestamp")}
    fields = lines.where(f.length(f.trim("value")) > 0).select(
        "value", (brace > 0).alias("has_brace"), *(column.alias(name) for name, column in named.items())
    )
    at = f.when(f.isnotnull("event") & f.isnotnull("node") & f.col("timestamp").rlike(STAMP), f.expr(_MICROS))
    counted = fields.groupBy(
        f.coalesce("node", f.lit("")).alias("node"), f.isnotnull("event").alias("is_event"), "has_brace"
    ).agg(f.count("*").alias("lines"), f.min(at).alias("first"), f.max(at).alias("last"))
    candidates = fields.where(f.col("event").isin(sorted(EVENTS)) | (f.col("event").isNull() & f.col("has_brace")))
    events = candidates.select(f.explode(_parse_udf()(f.col("value"))).alias("line")).select("line.*").persist()
    to_driver = events if with_partitions else events.where("topic is null")
    found = {
        row.problem: row
        for row in to_driver.groupBy("problem").agg(f.count("*").alias("lines"), f.collect_list("fact")).collect()
    }
    facts = [Fact.from_json(text) for text in found[""][2]] if "" in found else []
    problems = {problem: row.lines for problem, row in found.items()}
    return Events(events, *_counts(counted.collect(), problems, files), facts)


STAMP = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$"
_MICROS = "unix_micros(try_cast(timestamp as timestamp))"
"""The time in microseconds. Null for an impossible time, such as 25:00: one such line must not change the range of the logs."""


def _parse_udf() -> Any:
    """`parse` as a UDF of Spark, without Arrow, because an Arrow UDF needs pandas."""
    from pyspark.sql import functions as f

    schema = "array<struct<problem string, at timestamp, node string, event string, topic string, partition int, fact string>>"
    return f.udf(parse, schema, useArrow=False)


def parse(text: str) -> list[tuple[Any, ...]]:
    """The rows of one line: one row if it could not be parsed, else one for each fact in it, which may be none."""
    from datetime import UTC, datetime

    line = read_line(text)
    if line.problem:
        return [(line.problem, None, None, None, None, None, None)]
    return [
        (
            "",
            datetime.fromtimestamp(fact.at_us / 1_000_000, UTC),
            fact.node,
            fact.event,
            fact.topic,
            fact.partition,
            fact.to_json(),
        )
        for fact in line.facts
    ]


def _counts(counted: Sequence[Any], problems: Mapping[str, int], files: int) -> tuple[Read, int, int]:
    times = [us for row in counted for us in (row["first"], row["last"]) if us is not None]
    total, cut = sum(row.lines for row in counted), problems.get(CUT, 0)
    foreign = problems.get(FOREIGN, 0) + sum(row.lines for row in counted if not row.has_brace)
    nodes = tuple(sorted({row.node for row in counted if row.is_event and row.node}))
    read_ = Read(files=files, lines=total, events=total - foreign - cut, foreign=foreign, cut=cut, nodes=nodes)
    return read_, min(times, default=0), max(times, default=0)


# -- findings ---------------------------------------------------------------------------------------------------------


def partition_findings(events: Events) -> tuple[DataFrame, ClusterTimeline]:
    """A DataFrame with a row for each finding, which tasks compute partition by partition, and the timeline of the cluster."""
    from pyspark.sql import functions as f

    timeline = cluster_timeline(events.facts, events.begin_us, events.end_us)
    takeovers = events.frame.where("event = 'partition.became_leader'")
    last = f.max_by(f.get_json_object("fact", "$[5].min_insync_replicas").cast("int"), "at").alias("min_isr")
    timeline.min_isr = {row.topic: row.min_isr for row in takeovers.groupBy("topic").agg(last).collect() if row.min_isr}

    def find(topic: str, partition: int, facts: Sequence[str]) -> list[tuple[Any, ...]]:
        return [as_tuple(row) for row in rows_of_partition(timeline, topic, partition, map(Fact.from_json, facts))]

    find_udf = f.udf(find, f"array<struct<{', '.join(_struct_fields())}>>", useArrow=False)
    grouped = events.frame.where("topic is not null").groupBy("topic", "partition").agg(f.collect_list("fact").alias("facts"))
    return grouped.select(f.explode(find_udf("topic", "partition", "facts")).alias("row")).select("row.*"), timeline


def _struct_fields() -> Iterator[str]:
    for column in ROW.split(", "):
        name, kind = column.split(" ")
        yield f"{name}: {kind}"


def as_tuple(row: Row) -> tuple[Any, ...]:
    return tuple(getattr(row, column.split(" ")[0]) for column in ROW.split(", "))


def rows_of_frame(frame: DataFrame) -> Iterable[Row]:
    return [Row(**row.asDict()) for row in frame.collect()]


# -- frames -----------------------------------------------------------------------------------------------------------


def frames_of(spark: SparkSession, events: DataFrame, found: Replication) -> ReplicationFrames:
    """The DataFrames of the report. All except `events` contain only the range of time of `found`."""
    from pyspark.sql import functions as f

    rows = spark.createDataFrame([as_tuple(row) for row in found.rows], ROW)
    times = {name: f.expr(f"timestamp_micros({column})") for column, name in _TIMES.items()}
    rows = rows.withColumn("ms", f.expr("(until_us - from_us) / 1000")).withColumns(times)
    named = {
        kind: rows.where(f.col("kind") == kind).select("topic", "partition", *columns.split())
        for kind, columns in _COLUMNS.items()
    }

    def hours(table: Sequence[Any], schema: str) -> DataFrame:
        frame = spark.createDataFrame([tuple(asdict(hour).values()) for hour in table], schema)
        return frame.withColumn("hour_us", f.expr("timestamp_micros(hour_us)")).withColumnRenamed("hour_us", "hour")

    return ReplicationFrames(
        found, events.where("problem = ''").drop("problem"), named[STATE], named[INTERVAL], named[ELECTION], named[TRUNCATION],
        named[LAG], hours(found.topic_hours(), TOPIC_HOUR), hours(found.broker_hours(), BROKER_HOUR),
    )  # fmt: skip


TOPIC_HOUR = (
    "topic string, hour_us bigint, under_replicated_ms double, under_min_isr_ms double, without_leader_ms double, shrinks int, "
    "expansions int, failovers int, handovers int, failover_ms_max double, truncations int, records_cut bigint"
)
BROKER_HOUR = (
    "broker int, hour_us bigint, out_of_isr_ms double, left_isr int, joined_isr int, leads_lost int, leads_won int, "
    "truncations int, records_cut bigint"
)
