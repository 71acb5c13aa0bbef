"""What a run of a materialisation reads: the records behind those that the snapshot has, from the log or from a lake.

Where reading ends is fixed on the driver before any task begins, and goes into the manifest with the leader epochs. The next
run begins there. What retention, truncation or a deletion took away in between is a `DataLoss`, unless the user wants
to go on without it.
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
from strandline.pipeline.options import read_options
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
    """`SCHEMA`."""
    until: ReadPositions
    """Where the next run begins."""
    is_empty: bool


# -- from the log -----------------------------------------------------------------------------------------------------


def from_log(spark: SparkSession, servers: str, topic: str, since: ReadPositions | None, written: Mapping[str, str]) -> Changes:
    """`since`: where the last run ended; None: there was none. `written`: options of the source (docs/spark.md)."""
    options = read_options({"bootstrap.servers": servers, "subscribe": topic, **written}, is_stream=False)
    view = ClusterView(options.client, options.subscription)
    places = view.partitions()
    earliest, latest = view.earliest(places), view.latest(places)
    ranges = planned(since, earliest, latest, options.fail_on_data_loss)
    pieces = split(ranges, options.min_partitions, options.max_records_per_partition)
    reader = task_reader(options)
    rows = rows_of(spark, [ReadRange(reader, piece) for piece in pieces], SCHEMA)
    return Changes(rows, latest, not pieces)


def planned(
    since: ReadPositions | None, earliest: Mapping[TopicPartition, int], latest: ReadPositions, fail_on_data_loss: bool
) -> list[Range]:
    """From where each partition was read to its end. The first run takes what is left; a partition that comes later has
    to be there from its first record."""

    def lost(place: TopicPartition, what: str) -> None:
        if fail_on_data_loss:
            raise DataLoss(what, topic=place.topic, partition=place.partition)
        logger.warning("pipeline.data_lost", topic=place.topic, partition=place.partition, reason=what)

    for place in sorted(set(since or ()) - set(latest)):
        lost(place, f"the snapshot has {place}, and the topic does not have this partition any more")
    ranges = []
    for place, end in sorted(latest.items()):
        first = ReadPosition(earliest[place]) if since is None else since.get(place, ReadPosition(0))
        if first.offset < earliest[place]:
            lost(place, f"offset {first.offset} of {place} comes next, and the earliest that is left is {earliest[place]}")
            first = ReadPosition(earliest[place])
        if first.offset > end.offset:
            lost(place, f"{place} was read up to offset {first.offset}, and its log ends at {end.offset}")
            first = end
        ranges.append(Range(*place, first.offset, end.offset, first.leader_epoch))
    return ranges


@dataclass(frozen=True, slots=True)
class ReadRange:
    """A task."""

    task: TaskReader
    range: Range

    def run(self) -> Iterator[pyarrow.RecordBatch]:
        return (rows.select(COLUMNS) for rows in self.task.read(self.range))


# -- from a lake ------------------------------------------------------------------------------------------------------


def from_lake(
    spark: SparkSession, lake: str | os.PathLike[str], topic: str, since: ReadPositions | None, fail_on_data_loss: bool = True
) -> Changes:
    """What an offload has brought so far. Its offsets are the log's, so a snapshot may come from either, in turns."""
    from pyspark.sql.functions import col

    whole = read_manifest(lake)
    ends = {place: end for place, end in whole.ends.items() if place.topic == topic}
    if not ends:
        raise UsageError(f"the lake {lake} has nothing of topic {topic}")
    begun = since or {}
    files = [file for file in whole.files if file.topic == topic and file.last >= begun.get(file.place, ReadPosition(0)).offset]
    firsts: dict[TopicPartition, int] = {}
    for file in files:
        firsts.setdefault(file.place, file.first)
    for place, first in sorted(firsts.items()):
        if place in begun and first > begun[place].offset and fail_on_data_loss:
            text = f"offset {begun[place].offset} of {place} comes next, and the lake goes on at {first}"
            raise DataLoss(text, topic=topic, partition=place.partition)
    until = {**begun, **{p: ReadPosition(end) for p, end in ends.items() if end > begun.get(p, ReadPosition(0)).offset}}
    if not files:
        return Changes(spark.createDataFrame([], SCHEMA), until, True)
    paths = [str(whole.root / file.path) for file in files]
    wanted = [(col("partition") == p.partition) & (col("offset") >= begun.get(p, ReadPosition(0)).offset) for p in firsts]
    rows = spark.read.schema(SCHEMA).parquet(*paths).select(*COLUMNS).where(reduce(or_, wanted))
    return Changes(rows, until, False)
