"""The source of a materialisation: reads the records after those that the snapshot has, from the log or from a lake.

The driver fixes the end offsets before any task begins. They go into the manifest with their leader epochs, and the next run
begins there. If retention, truncation or a deletion removed records before a run could read them, it raises `DataLoss`, unless
`failOnDataLoss` is false.
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
from strandline.pipeline.errors import DataLoss
from strandline.pipeline.jobs.lake_folder import read_manifest
from strandline.pipeline.jobs.tasks import rows_of
from strandline.pipeline.offsets import ReadPosition, ReadPositions
from strandline.pipeline.options import read_options, with_committed
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
    """The offset of each partition at which the next run begins, with the leader epoch before it."""
    is_empty: bool


# -- from the log -----------------------------------------------------------------------------------------------------


def from_log(spark: SparkSession, servers: str, topic: str, since: ReadPositions | None, written: Mapping[str, str]) -> Changes:
    """The records of a topic after the positions `since`; None: there was no run before. `written` are options of the source
    (docs/spark.md). Raises DataLoss if records were deleted."""
    wanted = with_committed({"bootstrap.servers": servers, "subscribe": topic, **written})
    options = read_options(wanted, is_stream=False)
    view = ClusterView(options.client, options.subscription)
    tps = view.partitions()
    earliest, latest = view.earliest(tps), view.not_below(view.latest(tps), since or {})
    ranges = planned(since, earliest, latest, options.fail_on_data_loss)
    pieces = split(ranges, options.min_partitions, options.max_records_per_partition)
    reader = task_reader(options)
    rows = rows_of(spark, [ReadRange(reader, piece) for piece in pieces], SCHEMA)
    return Changes(rows, latest, not pieces)


def planned(
    since: ReadPositions | None, earliest: Mapping[TopicPartition, int], latest: ReadPositions, fail_on_data_loss: bool
) -> list[Range]:
    """For each partition, the range from `since` to its end. The first run begins at the earliest offsets. In later runs, a new
    partition must still have its first record. Raises DataLoss if offsets are missing; with `fail_on_data_loss` false it logs a
    warning and begins at the nearest offset."""

    def lost(tp: TopicPartition, what: str) -> None:
        if fail_on_data_loss:
            raise DataLoss(what, topic=tp.topic, partition=tp.partition)
        logger.warning("pipeline.data_lost", topic=tp.topic, partition=tp.partition, reason=what)

    for tp in sorted(set(since or ()) - set(latest)):
        lost(tp, f"the snapshot has records of {tp}, but the topic no longer has this partition")
    ranges = []
    for tp, end in sorted(latest.items()):
        first = ReadPosition(earliest[tp]) if since is None else since.get(tp, ReadPosition(0))
        if first.offset < earliest[tp]:
            lost(tp, f"offset {first.offset} of {tp} was deleted before it was read; the earliest is {earliest[tp]}")
            first = ReadPosition(earliest[tp])
        if first.offset > end.offset:
            lost(tp, f"{tp} was read up to offset {first.offset}, but its log ends at {end.offset}")
            first = end
        ranges.append(Range(*tp, first.offset, end.offset, first.leader_epoch))
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
    between lake and log. Raises UsageError if there is no lake or it does not have the topic, DataLoss if the lake's next record
    comes after `since` (only with `fail_on_data_loss`), LakeDamaged as `read_manifest` does."""
    from pyspark.sql.functions import col

    whole = read_manifest(lake)
    ends = {tp: end for tp, end in whole.ends.items() if tp.topic == topic}
    if not ends:
        raise UsageError(f"the lake {lake} has no records of topic {topic}")
    begun = since or {}
    files = [file for file in whole.files if file.topic == topic and file.last >= begun.get(file.tp, ReadPosition(0)).offset]
    firsts: dict[TopicPartition, int] = {}
    for file in files:
        firsts.setdefault(file.tp, file.first)
    for tp, first in sorted(firsts.items()):
        if tp in begun and first > begun[tp].offset and fail_on_data_loss:
            text = f"the snapshot continues at offset {begun[tp].offset} of {tp}, but the lake at {first}"
            raise DataLoss(text, topic=topic, partition=tp.partition)
    until = {**begun, **{p: ReadPosition(end) for p, end in ends.items() if end > begun.get(p, ReadPosition(0)).offset}}
    if not files:
        return Changes(spark.createDataFrame([], SCHEMA), until, True)
    paths = [str(whole.root / file.path) for file in files]
    wanted = [(col("partition") == p.partition) & (col("offset") >= begun.get(p, ReadPosition(0)).offset) for p in firsts]
    rows = spark.read.schema(SCHEMA).parquet(*paths).select(*COLUMNS).where(reduce(or_, wanted))
    return Changes(rows, until, False)
