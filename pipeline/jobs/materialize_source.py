"""The source of a materialisation: reads the records after those that the snapshot has, from the log or from a lake.

The driver fixes the end offsets before any task begins. They go into the manifest with their leader epochs and the topic's id,
and the next run begins there. If retention, truncation or a deletion removed records before a run could read them, it raises
`DataLoss`, unless `failOnDataLoss` is false.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.batch_reader import task_reader
from strandline.pipeline.cluster_view import ClusterView
from strandline.pipeline.errors import DataLoss, recreated
from strandline.pipeline.jobs.lake import DataFile
from strandline.pipeline.jobs.lake_folder import Lake, read_manifest
from strandline.pipeline.jobs.spark_paths import literal_path
from strandline.pipeline.jobs.tasks import rows_of
from strandline.pipeline.offsets import ReadPosition, ReadPositions
from strandline.pipeline.options import ReadOptions
from strandline.pipeline.planning import Range, split
from strandline.pipeline.task_reader import TaskReader
from strandline.protocol.errors import UsageError
from strandline.protocol.loggers import get_logger

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

logger = get_logger(__name__)

COLUMNS = ("key", "value", "partition", "offset", "timestamp")
SCHEMA = "key binary, value binary, partition int, offset bigint, timestamp timestamp"


@dataclass(frozen=True, slots=True)
class Changes:
    """Records that a snapshot does not have yet."""

    rows: DataFrame
    """The records, with the columns of `SCHEMA`."""
    until: ReadPositions
    """The offset of each partition at which the next run begins, with the leader epoch before it and the topic's id."""
    is_empty: bool
    """Whether there are no records, and no loss was accepted that the next run would report again."""


# -- from the log -----------------------------------------------------------------------------------------------------


def from_log(spark: SparkSession, options: ReadOptions, since: ReadPositions | None) -> Changes:
    """The records of a topic after the positions `since`; None: there was no run before. The options name the topic. Raises
    DataLoss if records were deleted."""
    view = ClusterView(options.client, options.subscription)
    tps = view.partitions()
    earliest, latest = view.earliest(tps), view.not_below(view.latest(tps), since or {})
    ranges = planned(since, earliest, latest, options.fail_on_data_loss)
    pieces = split(ranges, options.min_partitions, options.max_records_per_partition)
    reader = task_reader(options)
    rows = rows_of(spark, [ReadRange(reader, piece) for piece in pieces], SCHEMA)
    return Changes(rows, latest, not pieces and not has_moved(since or {}, latest))


def has_moved(since: ReadPositions, until: ReadPositions) -> bool:
    """Whether a run without records still ends elsewhere than it began: a loss was accepted."""
    begun = {tp: since.get(tp, ReadPosition(0)) for tp in until}
    other = any(at.offset != until[tp].offset or at.is_of_another_topic(until[tp]) for tp, at in begun.items())
    return other or not since.keys() <= until.keys()


def planned(
    since: ReadPositions | None, earliest: Mapping[TopicPartition, int], latest: ReadPositions, fail_on_data_loss: bool
) -> list[Range]:
    """For each partition, the range from `since` to its end. The first run begins at the earliest offsets. In later runs, a new
    partition must still have its first record. Raises DataLoss if offsets are missing or the topic was recreated; with
    `fail_on_data_loss` false it logs a warning, and begins at the nearest offset, or at the first one of a recreated topic."""

    def lost(tp: TopicPartition, what: str) -> None:
        if fail_on_data_loss:
            raise DataLoss(what, topic=tp.topic, partition=tp.partition)
        logger.warning("pipeline.data_lost", topic=tp.topic, partition=tp.partition, reason=what)

    ranges = []
    for tp, end in sorted(latest.items()):
        first = ReadPosition(earliest[tp]) if since is None else since.get(tp, ReadPosition(0))
        if first.is_of_another_topic(end):
            lost(tp, recreated(tp, first.offset, "make a new snapshot"))
            first = ReadPosition(earliest[tp])
        if first.offset < earliest[tp]:
            lost(tp, f"offset {first.offset} of {tp} was deleted before it was read; the earliest is {earliest[tp]}")
            first = ReadPosition(earliest[tp])
        if first.offset > end.offset:
            lost(tp, f"{tp} was read up to offset {first.offset}, but its log ends at {end.offset}")
            first = end
        ranges.append(Range(*tp, first.offset, end.offset, first.leader_epoch, end.topic_id))
    for tp in sorted(set(since or ()) - set(latest)):
        lost(tp, f"the snapshot has records of {tp}, but the topic no longer has this partition")
    return ranges


@dataclass(frozen=True, slots=True)
class ReadRange:
    """A task that reads one range of a partition."""

    task: TaskReader
    range: Range

    def run(self) -> Iterator[pyarrow.RecordBatch]:
        return (rows.select(COLUMNS) for rows in self.task.read(self.range))


# -- from a lake ------------------------------------------------------------------------------------------------------


def from_lake(
    spark: SparkSession, lake: str | os.PathLike[str], topic: str, since: ReadPositions | None, fail_on_data_loss: bool = True
) -> Changes:
    """The records of a topic in a lake after the positions `since`. A lake has the offsets of the log, so runs may alternate
    between lake and log. Raises UsageError and DataLoss as `files_after`, LakeDamaged as `read_manifest`."""
    from pyspark.sql.functions import col

    whole, begun = read_manifest(lake), since or {}
    files, until = files_after(whole, topic, begun, fail_on_data_loss)
    if not files:
        return Changes(spark.createDataFrame([], SCHEMA), until, True)
    paths = [literal_path(str(whole.root / file.path)) for file in files]
    tps = sorted({file.tp for file in files})
    wanted = [(col("partition") == p.partition) & (col("offset") >= begun.get(p, ReadPosition(0)).offset) for p in tps]
    rows = spark.read.schema(SCHEMA).parquet(*paths).select(*COLUMNS).where(reduce(or_, wanted))
    return Changes(rows, until, False)


def files_after(lake: Lake, topic: str, begun: ReadPositions, fail_on_data_loss: bool) -> tuple[list[DataFile], ReadPositions]:
    """The files that have records after the positions `begun`, and the positions at which the next run begins.

    Raises UsageError if the lake does not have the topic, and DataLoss (only with `fail_on_data_loss`) if the lake begins after
    the position of a partition. A gap between two files is no loss: the markers of transactions, and records that were aborted or
    compacted, have no row in the lake."""
    files = [file for file in lake.files if file.topic == topic]
    if not files:
        raise UsageError(f"the lake {lake.root} has no records of topic {topic}")
    firsts: dict[TopicPartition, int] = {}
    for file in files:
        firsts[file.tp] = min(file.first, firsts.get(file.tp, file.first))
    for tp, first in sorted(firsts.items()):
        if tp in begun and first > begun[tp].offset and fail_on_data_loss:
            text = f"the snapshot continues at offset {begun[tp].offset} of {tp}, but the lake begins at {first}"
            raise DataLoss(text, topic=topic, partition=tp.partition)
    positions = {tp: begun.get(tp, ReadPosition(0)) for tp in firsts}
    newer = {tp: ReadPosition(end, topic_id=at.topic_id) for tp, at in positions.items() if (end := lake.ends[tp]) > at.offset}
    return [file for file in files if file.last >= positions[file.tp].offset], {**begun, **newer}
