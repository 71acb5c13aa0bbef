"""Reads a batch: the driver fixes the start and end offset of each partition before any task begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.bounds import Offsets, ends_of, or_end, starts_of
from strandline.pipeline.cluster_view import ClusterView
from strandline.pipeline.errors import DataLoss
from strandline.pipeline.filters import Bounds, take_all
from strandline.pipeline.options import ReadOptions
from strandline.pipeline.packing import packed
from strandline.pipeline.planning import Range
from strandline.pipeline.task_reader import TaskReader
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    import pyarrow


class RangePartition(InputPartition):
    """The input of one Spark task: one range, or several small ones."""

    def __init__(self, value: tuple[Range, ...]) -> None:
        super().__init__(value)

    def __repr__(self) -> str:
        return f"RangePartition({', '.join(map(str, self.value))})"


def task_reader(options: ReadOptions) -> TaskReader:
    """The part of the options that a task needs, in a form that Spark can pickle."""
    return TaskReader(
        options.client, options.include_headers, options.fail_on_data_loss, options.read_timeout_ms, options.rows_per_batch
    )


class BatchReader(DataSourceReader):
    """Reads topics between offsets that are known when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._bounds = Bounds()
        self._task = task_reader(options)

    def partitions(self) -> list[InputPartition]:
        # Spark needs at least one task.
        return [RangePartition(task) for task in packed(self._ranges(), self._options.packing)] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return iter(()) if partition.value is None else self._task.read(*partition.value)

    # -- planning -----------------------------------------------------------------------------------------------------

    def _ranges(self) -> list[Range]:
        view = ClusterView(self._options.client, self._options.subscription)
        tps = view.partitions()
        earliest = view.earliest(tps)
        latest = {tp: end.offset for tp, end in view.latest(tps).items()}
        starts = starts_of(self._options, view.at, earliest, latest)
        ends = ends_of(self._options, view.at, earliest, latest)
        wanted = [tp for tp in tps if self._bounds.wants(tp)]
        latest, log_ends = self._ends_now(view, wanted, latest, starts, ends)
        since = self._since(view, wanted, latest)
        ranges = []
        for tp in wanted:
            start = self._checked("start", tp, starts[tp], earliest[tp], log_ends[tp])
            end = self._checked("end", tp, ends[tp], earliest[tp], log_ends[tp])
            start, end = self._bounds.clip(max(start, since.get(tp, 0)), end)
            if end > start:
                check_is_stable(tp, end, latest[tp])
            ranges.append(Range(*tp, start, end, topic_id=view.topic_ids[tp.topic]))
        return ranges

    def _ends_now(
        self, view: ClusterView, tps: list[TopicPartition], latest: dict[TopicPartition, int], starts: Offsets, ends: Offsets
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """The ends of what can be read, and of the logs. Where the options name offsets above `latest`, the ends are looked up
        again: the log may have grown since, and records of open transactions cannot be read yet."""
        above = [tp for tp in tps if max(starts[tp], ends[tp]) > latest[tp]]
        latest = {**latest, **{tp: at.offset for tp, at in view.latest(above).items()}}
        return latest, {**latest, **(view.log_ends(above) if self._options.reads_committed else {})}

    def _since(self, view: ClusterView, tps: list[TopicPartition], latest: Offsets) -> dict[TopicPartition, int]:
        """The start offsets that a filter on the timestamp allows; empty if there is no such filter."""
        since_ms = self._bounds.since_ms
        return {} if since_ms is None else or_end(view.at(dict.fromkeys(tps, max(0, since_ms))), latest)

    def _checked(self, what: str, tp: TopicPartition, offset: int, earliest: int, latest: int) -> int:
        """Returns the offset if the log has it. Otherwise raises DataLoss, or with `failOnDataLoss=false` returns the nearest
        offset in the log."""
        if earliest <= offset <= latest:
            return offset
        if self._options.fail_on_data_loss:
            text = f"the {what} offset {offset} of {tp} is not in the log, which has the offsets {earliest} to {latest}"
            raise DataLoss(text, topic=tp.topic, partition=tp.partition)
        return min(max(offset, earliest), latest)


def check_is_stable(tp: TopicPartition, end: int, stable: int) -> None:
    """Raises UsageError if a batch that reads committed records is to end above the last stable offset: the task would wait
    for the end of the open transaction."""
    if end > stable:
        raise UsageError(
            f"the end offset {end} of {tp} cannot be read with isolation.level=read_committed: a transaction that begins at "
            f"offset {stable} is open; end there, or read again when it has ended"
        )


class FilteringBatchReader(BatchReader):
    """A separate class because Spark rejects a reader with `pushFilters` if filter pushdown is switched off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return take_all(filters, self._bounds)
