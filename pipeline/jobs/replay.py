"""Replay: writes records of a log or a lake to a topic again, in order, with their keys, headers and timestamps.

A replay is a folder (`replay_plan.py`). The first run plans what is written. If it ends early, a run with the same folder
continues where it ended, and each record is written once. Named producers make that possible: the target's log holds how far each
partition has come. The cluster keeps these names for 30 days (`producer.name.expiration.ms`); an older replay cannot be
continued.

The order of a partition is kept, as a task reads whole partitions. There are as many tasks as Spark runs at a time, at most
one for each partition.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from strandline.pipeline.jobs.tasks import rows_of
from strandline.pipeline.option_names import CLIENT_PREFIXES
from strandline.pipeline.options import ReadOptions, WriteOptions, read_options, write_options
from strandline.pipeline.planning import Range
from strandline.pipeline.session import session
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMESTAMP_TYPE = "message.timestamp.type"


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
    """Checked, and what to connect to."""

    topic: str
    to: str
    lake: Lake | None
    read: ReadOptions
    write: WriteOptions
    wanted_place: Literal["auto", "same", "key"]
    words: Mapping[str, Any]


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
    tell: Callable[[int, int], object] | None = None,
    warn: Callable[[str], object] | None = None,
) -> Replayed:
    """Records of `topic`, from the log or from `lake`, into the topic `to`.

    `options` are the source's (docs/spark.md): where to begin and to end; `to_options` the sink's, for its client. `place`: the
    partition that a record had ("same"), or the one of its key; "auto" is "same" where the target has enough of them. `tell`
    is called every few seconds with the records that are written and the offsets of all ranges."""
    asked = _check(servers, topic, to, lake, to_servers, place, options or {}, to_options or {})
    for limit in (records_per_s, bytes_per_s):
        if limit is not None and limit <= 0:
            raise UsageError(f"a limit is a number above 0, not {limit:g}")
    folder = Checkpoint(checkpoint)
    with folder.at_work():
        plan = folder.plan()
        if plan is None:
            plan = _new_plan(spark, asked, name)
            folder.write_plan(plan)
        else:
            _check_same(folder, plan, asked, name)
        if (done := folder.done()) is not None:
            return Replayed(plan.name, done["records"], done["records"], 0)
        if warn is not None and (what := _rewritten(asked)):
            warn(what)
        replayed = _run(spark, asked, plan, Pace(records_per_s, bytes_per_s), tell)
        folder.write_done(asdict(replayed))
    return replayed


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
        raise UsageError(f"{topic} into itself would double what is there; name another topic")
    read = read_options({"bootstrap.servers": servers, "subscribe": topic, "includeHeaders": "true", **options}, is_stream=False)
    words = {
        "topic": topic,
        "to": to,
        "lake": None if lake is None else str(local_path(lake)),
        "place": place,
        "options": {name: options[name] for name in sorted(options) if not name.lower().startswith(CLIENT_PREFIXES)},
    }
    write = write_options({"bootstrap.servers": target, "topic": to, **to_options})
    return _Asked(topic, to, None if lake is None else read_manifest(lake), read, write, place, words)


# -- the plan ---------------------------------------------------------------------------------------------------------


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
            f"{asked.to} has {there} records of a replay {name} already, and this checkpoint knows nothing of them: "
            "give the checkpoint that it had, or another name"
        )
    return plan


def _check_same(folder: Checkpoint, plan: Plan, asked: _Asked, name: str | None) -> None:
    if name is not None and name != plan.name:
        raise UsageError(f"the replay in {folder.folder} is named {plan.name}, not {name}")
    for what, was in plan.asked.items():
        if asked.words[what] != was:
            raise UsageError(f"the replay in {folder.folder} was begun with {what} = {was!r}, not {asked.words[what]!r}")


def _log_ranges(asked: _Asked) -> list[Range]:
    view = ClusterView(asked.read.client, asked.read.subscription)
    places = view.partitions()
    latest = {place: end.offset for place, end in view.latest(places).items()}
    return ranges_of(asked.read, view.at, view.earliest(places), latest)


def _lake_ranges(spark: SparkSession, asked: _Asked, lake: Lake) -> list[Range]:
    files = [file for file in lake.files if file.topic == asked.topic]
    firsts: dict[TopicPartition, int] = {}
    for file in files:
        firsts.setdefault(file.place, file.first)
    if not firsts:
        raise UsageError(f"the lake {lake.root} has nothing of topic {asked.topic}")
    ends = {place: lake.ends[place] for place in firsts}
    return ranges_of(asked.read, lambda times: _first_since(spark, files, lake.root, times), firsts, ends)


def ranges_of(options: ReadOptions, at: LookUp, earliest: Offsets, latest: Offsets) -> list[Range]:
    """One for each partition. What was asked for by its offset and is not there is a DataLoss, or left out."""
    starts, ends = starts_of(options, at, earliest, latest), ends_of(options, at, earliest, latest)
    for what, offsets in (("start", starts), ("end", ends)):
        for place, offset in offsets.items():
            first, last = earliest[place], latest[place]
            if not first <= offset <= last and options.fail_on_data_loss:
                text = f"the {what} offset {offset} of {place} was asked for, and there are {first} to {last}"
                raise DataLoss(text, topic=place.topic, partition=place.partition)
            offsets[place] = min(max(offset, first), last)
    return [Range(*place, starts[place], max(starts[place], ends[place])) for place in sorted(starts)]


def _first_since(spark: SparkSession, files: Sequence[DataFile], root: Path, times: Offsets) -> dict[TopicPartition, int | None]:
    """The first offset of each partition whose time is as young. Looked for by tasks."""
    from pyspark.sql.functions import col, lit
    from pyspark.sql.functions import min as min_

    rows = spark.read.schema("partition int, offset bigint, timestamp timestamp").parquet(*(str(root / f.path) for f in files))
    young = [
        (col("partition") == place.partition) & (col("timestamp") >= lit(time_ms / 1000).cast("timestamp"))
        for place, time_ms in times.items()
    ]
    found = rows.where(reduce(or_, young)).groupBy("partition").agg(min_("offset").alias("first")).collect()
    by_partition = {row.partition: row.first for row in found}
    return {place: by_partition.get(place.partition) for place in times}


# -- the run ----------------------------------------------------------------------------------------------------------


def _run(spark: SparkSession, asked: _Asked, plan: Plan, pace: Pace, tell: Callable[[int, int], object] | None) -> Replayed:
    there = _written(asked, plan)
    left = {r.partition: max(1, r.size - there.get(r.partition, 0)) for r in plan.ranges if r.size}
    total = sum(left.values())
    sources = {r.partition: _source(asked, r) for r in plan.ranges}
    tasks = [
        ReplayTask(
            plan,
            [sources[partition] for partition in hand],
            asked.write.client,
            pace.share(sum(left[partition] for partition in hand) / total),
            asked.write.write_timeout_ms,
        )
        for hand in dealt(left, _slots(spark))
    ]
    offsets = sum(r.size for r in plan.ranges)
    with watching(asked.write.client, plan, None if tell is None else lambda rows: tell(rows, offsets)):
        rows = rows_of(spark, tasks, RESULT).collect()
    return Replayed(plan.name, sum(r.records for r in rows), sum(r.found for r in rows), sum(r.bytes for r in rows))


def _source(asked: _Asked, wanted: Range) -> LogRange | LakeRange:
    lake = asked.lake
    if lake is None:
        return LogRange(wanted, task_reader(asked.read))
    files = [f for f in lake.files if f.place == wanted.place and f.last >= wanted.start and f.first < wanted.end]
    return LakeRange(wanted, tuple((file.first, str(lake.root / file.path)) for file in files))


def _slots(spark: SparkSession) -> int:
    """Tasks that run at a time. Spark Connect does not tell; there each partition is a task."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except AttributeError:
        return 1 << 30


# -- the target -------------------------------------------------------------------------------------------------------


def _target(asked: _Asked) -> ClusterView:
    options = read_options({"bootstrap.servers": asked.write.client["bootstrap_servers"], "subscribe": asked.to}, is_stream=False)
    return ClusterView(options.client, options.subscription)


def _written(asked: _Asked, plan: Plan) -> dict[int, int]:
    async def ask() -> dict[int, int]:
        async with admin_of(asked.write.client) as admin:
            return await rows_written(admin, plan)

    return session().run(ask())


def _rewritten(asked: _Asked) -> str:
    """What of the records would not stay as it was."""

    async def ask() -> str:
        async with admin_of(asked.write.client) as admin:
            (entry,) = await admin.describe_configs("topic", asked.to, [TIMESTAMP_TYPE])
            return str(entry.value)

    if session().run(ask()) != "LogAppendTime":
        return ""
    return f"{asked.to} has {TIMESTAMP_TYPE}=LogAppendTime: its brokers put their own time into each record"
