"""Reads the ranges of one task from the log into Arrow batches.

A task returns every record in its ranges, or it fails: with `DataLoss` if the log no longer has them, with `RequestTimeout` if
none arrive in time. Offsets without a record (control records, compaction, aborted transactions) are legal gaps. Rows are built
from whole record batches, without a Python object per record.

A task returns range after range, in the planned order. So a task that runs again returns the same rows in the same order, on
which sinks with `rowOrder=stable` rely. One consumer fetches all ranges of a group at the same time: the records of the second
range arrive while those of the first are returned. `PREFETCH_BYTES` bounds the size of a group.

The consumer is kept from task to task, so its metadata may be old. A task need not refresh it: a range holds its topic's id, and
a broker that is no longer the leader rejects the fetch, after which the consumer refreshes its metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from strandline.client import Consumer, LogTruncated, OffsetOutOfRange, RequestTimeout, TopicRecreated, UnknownTopic
from strandline.client.consumer.batches import ARROW_BYTES_MAX, FetchedBatch, arrow_batches
from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import ClientError
from strandline.pipeline.errors import DataLoss, recreated
from strandline.pipeline.offsets import UNKNOWN_ID
from strandline.pipeline.options import reads_committed
from strandline.pipeline.planning import Range
from strandline.pipeline.session import Session, session
from strandline.protocol.loggers import get_logger

if TYPE_CHECKING:
    import pyarrow

logger = get_logger(__name__)

TOPIC_RETRY_S, TOPIC_GRACE_S = 0.05, 2.0
"""Brokers know of a recreated topic within `TOPIC_GRACE_S`, unless they are disconnected from the controllers."""
FETCH_WAIT_MS = 1000
"""The longest wait of one fetch. `read_timeout_ms` bounds the wait for the next records."""
PREFETCH_BYTES = 64 * 1024 * 1024
"""Approximate limit of the buffers of all ranges that are fetched at the same time."""


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads the ranges of a task. It is pickled with each task, so it holds plain values."""

    client: Mapping[str, Any]
    include_headers: bool
    fail_on_data_loss: bool
    read_timeout_ms: int
    rows_per_batch: int

    def read(self, *wanted: Range) -> Iterator[pyarrow.RecordBatch]:
        """Yields Arrow batches of about `rows_per_batch` rows: range after range, each in the order of the log.

        Raises DataLoss if records of a range are gone and the user does not accept that, and RequestTimeout if no records arrive
        for `read_timeout_ms`."""
        here = session()
        options = {**self.client, "auto_offset_reset": "error"}
        has_ids = all(each.topic_id != UNKNOWN_ID for each in wanted)
        with here.client(Consumer, options, up_to_date=not has_ids) as consumer:
            most = max(1, PREFETCH_BYTES // consumer.options.max_partition_fetch_bytes)
            batches = (_Group(self, here, consumer, group).batches() for group in groups(wanted, most))
            rows = arrow_batches(chain.from_iterable(batches), rows=self.rows_per_batch, include_headers=self.include_headers)
            yield from rows if len(wanted) == 1 else joined(rows, self.rows_per_batch)


def joined(batches: Iterable[pyarrow.RecordBatch], rows: int) -> Iterator[pyarrow.RecordBatch]:
    """Joins small batches, in order, up to `rows` rows each: small ranges give small batches, and each batch costs Spark time."""
    from pyarrow import concat_batches

    group: list[pyarrow.RecordBatch] = []
    count = size = 0
    for batch in batches:
        if group and (count + batch.num_rows > rows or size + batch.nbytes > ARROW_BYTES_MAX):
            yield concat_batches(group)
            group, count, size = [], 0, 0
        group.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
    if group:
        yield concat_batches(group)


def groups(wanted: Sequence[Range], most: int) -> Iterator[list[Range]]:
    """Splits the ranges, in order, into groups of at most `most`. No group has two ranges of one partition, because a consumer
    has one position per partition."""
    group: dict[TopicPartition, Range] = {}
    for each in wanted:
        if len(group) == most or each.tp in group:
            yield list(group.values())
            group = {}
        group[each.tp] = each
    if group:
        yield list(group.values())


class _Group:
    """Ranges that one consumer fetches at the same time."""

    def __init__(self, task: TaskReader, here: Session, consumer: Consumer, ranges: Sequence[Range]) -> None:
        self._task, self._here, self._consumer = task, here, consumer
        self._left = {each.tp: each for each in ranges}
        """The ranges that are not yet read to their end."""

    def batches(self) -> Iterator[FetchedBatch]:
        for wanted in self._begin():
            if wanted.tp in self._left:
                yield from self._batches(wanted)
                self._finish(wanted)

    def _begin(self) -> list[Range]:
        """Assigns the partitions and seeks to the starts; returns the ranges that can be read."""
        others = self._assign_topics()
        consumer = self._consumer
        consumer.resume(*consumer.paused())
        for wanted in list(self._left.values()):
            consumer.fetch_until(wanted.tp, wanted.end)
            if wanted not in others:
                consumer.seek(wanted.tp, wanted.start, wanted.leader_epoch)
            elif not self._go_on(wanted, wanted.start, _recreated(consumer, wanted)):
                self._finish(wanted)
        return list(self._left.values())

    def _assign_topics(self) -> list[Range]:
        """Assigns the partitions; returns the ranges that were planned for another topic of the same name. A broker with old
        metadata may still name the older topic, so the consumer asks again for `TOPIC_GRACE_S`."""
        here, consumer = self._here, self._consumer
        deadline = here.loop.time() + TOPIC_GRACE_S
        self._assign()
        while others := [r for r in self._left.values() if r.topic_id not in (UNKNOWN_ID, consumer.topic_id(r.tp))]:
            if here.loop.time() > deadline:
                return others
            here.run(consumer.refresh_metadata())
            self._assign()
            here.run(asyncio.sleep(TOPIC_RETRY_S))
        return []

    def _assign(self) -> None:
        """Assigns the partitions that are left. A deleted topic or partition is a loss; if the user accepts it, it is left
        out."""
        while True:
            try:
                return self._here.run(self._consumer.assign(list(self._left)))
            except UnknownTopic as e:
                gone = [r for r in self._left.values() if r.topic == e.topic and e.partition in (None, r.partition)]
                if not gone:
                    raise
                for wanted in gone:
                    self._go_on(wanted, wanted.start, e)
                    del self._left[wanted.tp]

    def _finish(self, wanted: Range) -> None:
        """Ends the range and pauses its partition; later errors of this partition are ignored."""
        self._left.pop(wanted.tp, None)
        self._consumer.pause(wanted.tp)

    def _batches(self, wanted: Range) -> Iterator[FetchedBatch]:
        here, consumer, timeout_ms = self._here, self._consumer, self._task.read_timeout_ms
        position = here.run(consumer.position(wanted.tp))
        silent_since = here.loop.time()
        while position < wanted.end:
            before = position
            try:
                batches, position = here.run(_step(consumer, wanted.tp, min(FETCH_WAIT_MS, timeout_ms)))
            except (OffsetOutOfRange, LogTruncated, TopicRecreated, UnknownTopic) as e:
                self._on_loss(wanted, e)
                if wanted.tp not in self._left:
                    return
                position = here.run(consumer.position(wanted.tp))
                continue
            for batch in batches:
                yield batch.clip(wanted.start, wanted.end)
            if batches or position > before:
                silent_since = here.loop.time()
            elif here.loop.time() - silent_since > timeout_ms / 1000:
                held_back = ", and whether an open transaction holds them back" if reads_committed(self._task.client) else ""
                text = (
                    f"no records of {wanted} arrived from offset {position} on within readTimeoutMs: check that its leader is up"
                )
                raise RequestTimeout(
                    text + held_back,
                    topic=wanted.topic,
                    partition=wanted.partition,
                    elapsed_ms=timeout_ms,
                )

    def _on_loss(self, current: Range, error: ClientError) -> None:
        """Handles a loss. The consumer raises errors of all its partitions, so the error may concern a later range."""
        tp = TopicPartition(error.topic or current.topic, current.partition if error.partition is None else error.partition)
        wanted = self._left.get(tp, current)
        position = self._here.run(self._consumer.position(wanted.tp))
        if not self._go_on(wanted, position, error):
            self._finish(wanted)

    def _go_on(self, wanted: Range, position: int, error: Exception) -> bool:
        """Seeks past the lost records, or raises DataLoss if the user does not accept losses. False if nothing of the range is
        left to read."""
        here, consumer, tp = self._here, self._consumer, wanted.tp
        earliest = latest = -1
        if not isinstance(error, UnknownTopic):
            earliest = here.run(consumer.beginning_offsets([tp]))[tp]
            latest = here.run(consumer.end_offsets([tp]))[tp]
        if self._task.fail_on_data_loss:
            raise DataLoss(
                _what_is_gone(wanted, position, earliest, latest, error), topic=tp.topic, partition=tp.partition
            ) from error
        go_on_at = max(position, earliest)
        logger.warning(
            "pipeline.data_lost", topic=tp.topic, partition=tp.partition, position=position, log_start_offset=earliest,
            log_end_offset=latest,
        )  # fmt: skip
        if go_on_at >= min(wanted.end, latest):
            return False
        consumer.seek(tp, go_on_at)
        return True


async def _step(consumer: Consumer, tp: TopicPartition, timeout_ms: int) -> tuple[list[FetchedBatch], int]:
    """Fetches the next batches of this partition; returns them with the position after them."""
    polled = await consumer.fetch_batches(tp, timeout_ms=timeout_ms)
    return polled.get(tp, []), await consumer.position(tp)


def _recreated(consumer: Consumer, wanted: Range) -> TopicRecreated:
    found = consumer.topic_id(wanted.tp)
    return TopicRecreated(topic=wanted.topic, partition=wanted.partition, position=wanted.start, topic_id=found)


def _what_is_gone(wanted: Range, position: int, earliest: int, latest: int, error: Exception) -> str:
    if isinstance(error, LogTruncated):
        return f"the log of {wanted.tp} was truncated below the offset that was read: {error}"
    if isinstance(error, UnknownTopic):
        return f"{wanted.tp} was read up to offset {position} when its topic was deleted"
    if isinstance(error, TopicRecreated):
        return f"{recreated(wanted.tp, position)} (it has the offsets {earliest} to {latest})"
    if position < earliest:
        return f"offset {position} of {wanted.tp} is next to read, and the log now begins at {earliest}"
    return f"offset {position} of {wanted.tp} is next to read, and the log ends at {latest}"
