"""Replay: writes records of a log or a lake to a topic again, in order, with their keys, headers and timestamps.

The progress of a replay is in a checkpoint folder (`replay_plan.py`). The first run plans which records are written. If it ends
early, a run with the same folder continues where it ended, and each record is written once. Named producers make that possible:
the target's brokers know how many rows each name has written. They keep a name for 30 days (`producer.name.expiration.ms`), so an
older replay cannot be continued.

A task reads whole partitions, so the order within a partition stays. There are as many tasks as Spark runs at the same time, at
most one for each partition.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.batch_reader import task_reader
from strandline.pipeline.bounds import LookUp, Offsets, ends_of, starts_of
from strandline.pipeline.cluster_view import ClusterView
from strandline.pipeline.errors import DataLoss
from strandline.pipeline.jobs.lake import DataFile
from strandline.pipeline.jobs.lake_folder import Lake, local_path, read_manifest
from strandline.pipeline.jobs.replay_pace import Pace, dealt
from strandline.pipeline.jobs.replay_plan import Checkpoint, Plan, chosen_place
from strandline.pipeline.jobs.replay_task import RESULT, LakeRange, LogRange, ReplayTask
from strandline.pipeline.jobs.replay_watch import admin_of, rows_written, watching
from strandline.pipeline.jobs.spark_paths import literal_path
from strandline.pipeline.jobs.tasks import rows_of, slots
from strandline.pipeline.option_names import CLIENT_PREFIXES
from strandline.pipeline.options import (
    ReadOptions,
    Subscription,
    WriteOptions,
    consumer_options,
    read_options,
    with_committed,
    write_options,
)
from strandline.pipeline.planning import Range
from strandline.pipeline.session import session
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMESTAMP_TYPE = "message.timestamp.type"
Progress = Callable[[int, int], object]
"""Called every few seconds with the number of records that the target has, and the number of offsets in all ranges: the replay
has at most as many records."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a run."""

    name: str
    records: int
    """Number of records of the whole replay."""
    found: int
    """Number of records that earlier runs wrote."""
    bytes: int
    """Bytes of keys and values that this run wrote."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """The checked arguments of a run."""

    topic: str
    to: str
    lake: Lake | None
    read: ReadOptions
    write: WriteOptions
    wanted_place: Literal["auto", "same", "key"]
    words: Mapping[str, Any]
    """The arguments that the plan stores; a later run must have the same."""


def replay(
    spark: SparkSession,
    servers: str,
    topic: str,
    to: str,
    checkpoint: str | os.PathLike[str],
    *,
    lake: str | os.PathLike[str] | None = None,
    to_servers: str | None = None,
    name: str | None = None,
    place: Literal["auto", "same", "key"] = "auto",
    records_per_s: float | None = None,
    bytes_per_s: float | None = None,
    options: Mapping[str, str] | None = None,
    to_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], object] | None = None,
) -> Replayed:
    """Writes records of `topic`, read from the log or from `lake`, to the topic `to`, and returns when all are written.

    `options` are those of the source (docs/spark.md), such as where to begin and to end; `to_options` those of the sink's client.
    `place`: a record goes to the partition that it had ("same"), or to that of its key ("key"); "auto" is "same" if the target
    has enough partitions. `warn` is called with a sentence if the target changes timestamps. Raises UsageError for contradicting
    arguments, a checkpoint of another replay, or another active run; DataLoss if records are gone; RowsDiffer if the source no
    longer has the records that an earlier run wrote."""
    asked = _check(servers, topic, to, lake, to_servers, place, options or {}, to_options or {})
    pace = _checked_pace(records_per_s, bytes_per_s)
    folder = Checkpoint(checkpoint)
    with folder.at_work():
        plan = _plan(spark, folder, asked, name)
        if (done := folder.done()) is not None:
            return Replayed(plan.name, done["records"], done["records"], 0)
        if warn is not None and (what := _rewritten(asked)):
            warn(what)
        replayed = _run(spark, asked, plan, pace, progress)
        folder.write_done(asdict(replayed))
    return replayed


def _checked_pace(records_per_s: float | None, bytes_per_s: float | None) -> Pace:
    for limit in (records_per_s, bytes_per_s):
        if limit is not None and limit <= 0:
            raise UsageError(f"a limit must be a number above 0, not {limit:g}")
    return Pace(records_per_s, bytes_per_s)


def _check(
    servers: str,
    topic: str,
    to: str,
    lake: str | os.PathLike[str] | None,
    to_servers: str | None,
    place: Literal["auto", "same", "key"],
    options: Mapping[str, str],
    to_options: Mapping[str, str],
) -> _Asked:
    target = to_servers or servers
    if lake is None and topic == to and target == servers:
        raise UsageError(f"a replay of {topic} into itself would double its records; name another topic")
    wanted = with_committed({"bootstrap.servers": servers, "subscribe": topic, "includeHeaders": "true", **options})
    read = read_options(wanted, is_stream=False)
    words = {
        "topic": topic,
        "to": to,
        "lake": None if lake is None else str(local_path(lake)),
        "place": place,
        "options": {name: options[name] for name in sorted(options) if _is_of_plan(name)},
        "isolation.level": read.client["isolation_level"],
    }
    write = write_options({"bootstrap.servers": target, "topic": to, **to_options})
    return _Asked(topic, to, None if lake is None else read_manifest(lake), read, write, place, words)


def _is_of_plan(name: str) -> bool:
    """Whether the plan stores this option among the others. Options of the client change no rows, except the isolation level,
    which is stored by itself: it may be given under several names, or not at all."""
    return not name.lower().startswith((*CLIENT_PREFIXES, "isolation.level", "clientconfig"))


# -- the plan ---------------------------------------------------------------------------------------------------------


def _plan(spark: SparkSession, folder: Checkpoint, asked: _Asked, name: str | None) -> Plan:
    """The plan in the folder; the first run makes it. UsageError if the folder's plan is for other arguments."""
    plan = folder.plan()
    if plan is not None:
        _check_same(folder, plan, asked, name)
        return plan
    plan = _new_plan(spark, asked, name)
    folder.write_plan(plan)
    return plan


def _new_plan(spark: SparkSession, asked: _Asked, name: str | None) -> Plan:
    count = len(_target(asked).partitions())
    ranges = _lake_ranges(spark, asked, asked.lake) if asked.lake else _log_ranges(asked)
    plan = Plan(
        name=name or f"{asked.topic}-{secrets.token_hex(6)}",
        asked=asked.words,
        place=chosen_place(asked.wanted_place, ranges, count),
        count=count,
        ranges=tuple(ranges),
        begun_ms=int(time.time() * 1000),
    )
    if name and (there := sum(_written(asked, plan).values())):
        raise UsageError(
            f"{asked.to} already has {there} records of a replay named {name}, and this checkpoint has no plan of it: "
            "give the checkpoint of that replay, or another name"
        )
    return plan


def _check_same(folder: Checkpoint, plan: Plan, asked: _Asked, name: str | None) -> None:
    if name is not None and name != plan.name:
        raise UsageError(f"the replay in {folder.folder} is named {plan.name}, not {name}")
    for what, was in plan.asked.items():
        if _folded(asked.words[what]) != _folded(was):
            raise UsageError(f"the replay in {folder.folder} was started with {what} = {was!r}, not {asked.words[what]!r}")


def _folded(word: Any) -> Any:
    """The value of an argument, with the names of options in lower case, because Spark accepts them in any case."""
    return {name.lower(): value for name, value in word.items()} if isinstance(word, Mapping) else word


def _log_ranges(asked: _Asked) -> list[Range]:
    view = ClusterView(asked.read.client, asked.read.subscription)
    tps = view.partitions()
    latest = {tp: end.offset for tp, end in view.latest(tps).items()}
    ranges = ranges_of(asked.read, view.at, view.earliest(tps), latest)
    return [replace(each, topic_id=view.topic_ids[each.topic]) for each in ranges]


def _lake_ranges(spark: SparkSession, asked: _Asked, lake: Lake) -> list[Range]:
    files = [file for file in lake.files if file.topic == asked.topic]
    firsts: dict[TopicPartition, int] = {}
    for file in files:
        firsts.setdefault(file.tp, file.first)
    if not firsts:
        raise UsageError(f"the lake {lake.root} has no records of topic {asked.topic}")
    ends = {tp: lake.ends[tp] for tp in firsts}
    return ranges_of(asked.read, lambda times: _first_since(spark, files, lake.root, times), firsts, ends)


def ranges_of(options: ReadOptions, at: LookUp, earliest: Offsets, latest: Offsets) -> list[Range]:
    """A range for each partition that the options name, within what the log still has. Raises DataLoss if the options name an
    offset outside of the log; with `failOnDataLoss=false` the range is cut instead."""
    starts, ends = starts_of(options, at, earliest, latest), ends_of(options, at, earliest, latest)
    for what, offsets in (("start", starts), ("end", ends)):
        for tp, offset in offsets.items():
            first, last = earliest[tp], latest[tp]
            if not first <= offset <= last and options.fail_on_data_loss:
                text = f"the {what} offset {offset} of {tp} is not available: there are {first} to {last}"
                raise DataLoss(text, topic=tp.topic, partition=tp.partition)
            offsets[tp] = min(max(offset, first), last)
    return [Range(*tp, starts[tp], max(starts[tp], ends[tp])) for tp in sorted(starts)]


def _first_since(spark: SparkSession, files: Sequence[DataFile], root: Path, times: Offsets) -> dict[TopicPartition, int | None]:
    """For each partition, the first offset whose timestamp is not before the given time (in ms); None if there is none. Spark's
    executors read the files."""
    from pyspark.sql.functions import col, lit
    from pyspark.sql.functions import min as min_

    paths = [literal_path(str(root / file.path)) for file in files]
    rows = spark.read.schema("partition int, offset bigint, timestamp timestamp").parquet(*paths)
    young = [
        (col("partition") == tp.partition) & (col("timestamp") >= lit(time_ms / 1000).cast("timestamp"))
        for tp, time_ms in times.items()
    ]
    found = rows.where(reduce(or_, young)).groupBy("partition").agg(min_("offset").alias("first")).collect()
    by_partition = {row.partition: row.first for row in found}
    return {tp: by_partition.get(tp.partition) for tp in times}


# -- the run ----------------------------------------------------------------------------------------------------------


def _run(spark: SparkSession, asked: _Asked, plan: Plan, pace: Pace, progress: Progress | None) -> Replayed:
    there = _written(asked, plan)
    left = {r.partition: max(1, r.size - there.get(r.partition, 0)) for r in plan.ranges if r.size}
    total = sum(left.values())
    sources = {r.partition: _source(asked, r) for r in plan.ranges}
    tasks = [
        ReplayTask(
            plan,
            [sources[partition] for partition in hand],
            asked.write,
            pace.share(sum(left[partition] for partition in hand) / total),
        )
        for hand in dealt(left, slots(spark, otherwise=len(left)))
    ]
    offsets = sum(r.size for r in plan.ranges)
    with watching(asked.write.client, plan, None if progress is None else lambda rows: progress(rows, offsets)):
        rows = rows_of(spark, tasks, RESULT).collect()
    return Replayed(plan.name, sum(r.records for r in rows), sum(r.found for r in rows), sum(r.bytes for r in rows))


def _source(asked: _Asked, wanted: Range) -> LogRange | LakeRange:
    lake = asked.lake
    if lake is None:
        return LogRange(wanted, task_reader(asked.read))
    files = [f for f in lake.files if f.tp == wanted.tp and f.last >= wanted.start and f.first < wanted.end]
    return LakeRange(wanted, tuple((file.first, str(lake.root / file.path)) for file in files))


# -- the target -------------------------------------------------------------------------------------------------------


def _target(asked: _Asked) -> ClusterView:
    return ClusterView(consumer_options(asked.write.client), Subscription((asked.to,)))


def _written(asked: _Asked, plan: Plan) -> dict[int, int]:
    return session().run(rows_written(asked.write.client, plan))


def _rewritten(asked: _Asked) -> str:
    """A sentence if the target replaces the timestamps of records; else empty."""

    async def ask() -> str:
        async with admin_of(asked.write.client) as admin:
            (entry,) = await admin.describe_configs("topic", asked.to, [TIMESTAMP_TYPE])
            return str(entry.value)

    if session().run(ask()) != "LogAppendTime":
        return ""
    return f"{asked.to} has {TIMESTAMP_TYPE}=LogAppendTime: its brokers replace the timestamp of each record with their own time"
