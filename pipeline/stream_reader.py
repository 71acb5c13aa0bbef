"""Reads a stream. Only Spark's checkpoint holds the progress; a batch that is run again gets the same ranges in the same tasks.

`latestOffset` chooses the end of the next batch, and `partitions` cuts the batch into tasks. Both run in one long-lived process
beside the driver. `read` runs in other processes, so a range carries all that its task needs. Partitions that are added later
are read from their first record. Records that retention, truncation or a deletion removed before they were read are a loss:
an error, or with `failOnDataLoss=false` a warning.

With `isolation.level=read_committed` the end of the log is the last stable offset, and the offsets before it have rows only of
committed records. While a transaction is open, the stream waits in front of its first record, and logs that after a minute.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.batch_reader import RangePartition, task_reader
from strandline.pipeline.bounds import starts_of
from strandline.pipeline.cluster_view import ClusterView
from strandline.pipeline.errors import DataLoss, recreated
from strandline.pipeline.offsets import ReadPosition, ReadPositions, from_json, to_json
from strandline.pipeline.options import ReadOptions
from strandline.pipeline.packing import packed
from strandline.pipeline.planning import Range, limited
from strandline.pipeline.stopped_ends import StoppedEnds
from strandline.protocol.loggers import get_logger

if TYPE_CHECKING:
    import pyarrow

logger = get_logger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's `DataSourceStreamReader` for topics. Every method may raise UsageError or DataLoss."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._task = task_reader(options)
        self._stop_at: ReadPositions | None = None
        """With Trigger.AvailableNow: the end positions when the query started. None: no such trigger."""
        self._known_end: ReadPositions = {}
        """The end positions of the last request, for `reportLatestOffset`."""
        self._last_batch_at: float | None = None
        self._stopped = StoppedEnds()

    # -- offsets ------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """The positions at which a query without a checkpoint begins."""
        view = self._view()
        tps = view.partitions()
        latest = view.latest(tps)
        ends = {tp: end.offset for tp, end in latest.items()}
        starts = starts_of(self._options, view.at, view.earliest(tps), ends)
        return to_json(
            {
                tp: latest[tp] if ends[tp] == start else ReadPosition(start, topic_id=latest[tp].topic_id)
                for tp, start in starts.items()
            }
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._stop_at = self._latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch: the end of the logs, or as far as `limit` allows. Returns `start` if there is nothing
        new."""
        stored = from_json(start)
        begin, end = stored, self._available(stored)
        self._known_end = end
        begin = {tp: begin.get(tp, ReadPosition(0, topic_id=at.topic_id)) for tp, at in end.items()}
        if not self._is_worth_a_batch(begin, end, limit):
            return start
        if isinstance(limit, ReadMaxRows):
            end = limited(begin, end, limit.max_rows)
        until = {tp: _advanced(begin[tp], at) for tp, at in end.items()}
        return start if until == stored else to_json(until, self._options.packing.to_json())

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the logs, from which Spark computes progress and lag."""
        return to_json(self._known_end) if self._known_end else None

    def _available(self, begin: ReadPositions) -> ReadPositions:
        end = self._latest() if self._stop_at is None else self._stop_at
        self._check_none_is_gone(begin, end)
        return self._not_before(begin, self._view().not_below(end, begin))

    def _latest(self) -> ReadPositions:
        view = self._view()
        end = view.latest(view.partitions())
        if self._options.reads_committed:
            self._log_open_transactions(view, end)
        return end

    def _log_open_transactions(self, view: ClusterView, end: ReadPositions) -> None:
        """Logs a warning for each partition in which an open transaction has stopped the stream for a while."""
        stopped = self._stopped.take({tp: at.offset for tp, at in end.items()}, time.monotonic())
        for tp, log_end in view.log_ends(stopped).items():
            if log_end > end[tp].offset:
                logger.warning(
                    "pipeline.transaction_awaited", topic=tp.topic, partition=tp.partition, offset=end[tp].offset,
                    log_end_offset=log_end,
                )  # fmt: skip

    def _not_before(self, begin: ReadPositions, end: ReadPositions) -> ReadPositions:
        """Raises DataLoss if a topic was recreated or its log ends before what was read, unless the user accepts losses."""
        for tp, at in end.items():
            read = begin.get(tp)
            if read is not None and read.is_of_another_topic(at):
                self._lost(tp, recreated(tp, read.offset))
            elif read is not None and at.offset < read.offset:
                self._lost(tp, f"{tp} was read up to offset {read.offset}, and its log now ends at {at.offset}")
        return end

    def _check_none_is_gone(self, begin: ReadPositions, end: ReadPositions) -> None:
        for tp in sorted(begin.keys() - end.keys()):
            read = f"{tp} was read up to offset {begin[tp].offset}"
            self._lost(tp, f"{read}, and is gone: it was deleted, or the options no longer name it")

    def _is_worth_a_batch(self, begin: ReadPositions, end: ReadPositions, limit: ReadLimit) -> bool:
        """Whether `minOffsetsPerTrigger` offsets are available or `maxTriggerDelay` is over. AvailableNow never waits."""
        least = limit.min_rows if isinstance(limit, ReadMinRows) else self._options.min_offsets_per_trigger
        if least is None or self._stop_at is not None:
            return True
        now = time.monotonic()
        if self._last_batch_at is None:
            self._last_batch_at = now
        count = sum(max(0, at.offset - begin[tp].offset) for tp, at in end.items())
        if count < least and now - self._last_batch_at < self._options.max_trigger_delay_ms / 1000:
            return False
        self._last_batch_at = now
        return True

    # -- the batch ----------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, stop = from_json(start), from_json(end)
        new = sorted(set(stop) - set(begin))
        firsts = self._view().earliest(new) if new else {}
        ranges = []
        for tp, at in sorted(stop.items()):
            first = begin[tp] if tp in begin else ReadPosition(self._first_of_new(tp, firsts[tp]))
            if first.is_of_another_topic(at):
                first = ReadPosition(first.offset, topic_id=at.topic_id)  # The user accepts this loss.
            topic_id = at.topic_id or first.topic_id
            ranges.append(Range(*tp, first.offset, at.offset, first.leader_epoch, topic_id=topic_id))
        return [RangePartition(task) for task in packed(ranges, self._options.packing.of_batch(end))]

    def _first_of_new(self, tp: TopicPartition, earliest: int) -> int:
        if earliest > 0:
            self._lost(tp, f"{tp} is new, and its log already begins at offset {earliest} instead of 0")
        return earliest

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return self._task.read(*partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the checkpoint holds the progress, and Spark never commits the last batch of an AvailableNow run."""

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _view(self) -> ClusterView:
        return ClusterView(self._options.client, self._options.subscription)

    def _lost(self, tp: TopicPartition, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(what, topic=tp.topic, partition=tp.partition)
        logger.warning("pipeline.data_lost", topic=tp.topic, partition=tp.partition, reason=what)


def _advanced(begin: ReadPosition, at: ReadPosition) -> ReadPosition:
    """`at`, or `begin` unchanged if there is nothing new: with an equal offset, Spark runs no empty batch."""
    return begin if begin.offset == at.offset and not begin.is_of_another_topic(at) else at
