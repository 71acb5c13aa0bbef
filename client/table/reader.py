"""Keeps the contents of a table up to date: reads all partitions of its topic in a background task, without a group.

All decisions about one partition are in progress.py, and the records that are read are put into rows.py. The table's consumer has
no reset policy, so each break in the sequence of a log is an error here, after which the partition is read again from its
beginning. Meanwhile the table shows its old contents.

Records are applied in the same step of the event loop in which `fetch_batches` returns them. So whenever other code runs, the
table shows exactly the records below `applied`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import pairwise

from strandline.client.consumer.batches import FetchedBatch
from strandline.client.consumer.columns import BinaryColumn
from strandline.client.consumer.consumer import Consumer
from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import (
    ClientError,
    CorruptRecords,
    LogTruncated,
    OffsetOutOfRange,
    RequestTimeout,
    StrandlineError,
    TopicRecreated,
    UsageError,
    copy_of,
)
from strandline.client.table.progress import Phase, Progress
from strandline.client.table.rows import Row, Rows
from strandline.client.table.snapshot import Place
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

POLL_MS = 100.0
"""If the position moves over records that no program gets (fences), the calls that wait for that are woken within this time."""

Snapshot = tuple[Place, dict[bytes, Row]]


class OwnWrite:
    """A conditional record that this table may have written at `offset`."""

    def __init__(self, offset: int, mark: tuple[str, bytes]) -> None:
        self.offset = offset
        self.mark = mark
        """The name and value of a header that no other record has."""
        self.is_there: bool | None = None
        """Whether the record at the offset is this one; None: it was not read yet, or the cleaner has removed it."""
        self.is_lost = False
        """The partition is read from its beginning again, so the table may never see the record at the offset."""


class Reader:
    """Reads the topic of one table."""

    def __init__(
        self, topic: str, consumer: Consumer, rows: Rows, *, now_ms: Callable[[], int], block_ms: float, backoff_ms: float
    ) -> None:
        self._topic = topic
        self._consumer = consumer
        self._rows = rows
        self._now_ms = now_ms
        self._block_ms = block_ms
        self._backoff_s = max(backoff_ms, 1) / 1000
        self.progress: dict[int, Progress] = {}
        """The progress of each assigned partition."""
        self.tombstones_kept_ms: float | None = None
        """The topic's `delete.retention.ms`; None: not known."""
        self.records = self.reloads = 0
        self.last_error: StrandlineError | None = None
        """Why the last attempt to read has failed; None if it succeeded. The reader tries again."""
        self.failure: BaseException | None = None
        """Why the table cannot go on."""
        self.own_writes: dict[int, OwnWrite] = {}
        """By partition, the conditional record of the write that is in progress: the reader checks whether it is in the log."""
        self._waits: dict[int, list[tuple[int, int, asyncio.Future[None]]]] = {}
        """By partition, a heap of the offsets for which calls wait."""
        self._wait_count = 0
        self._task: asyncio.Task[None] | None = None
        self._is_outdated = False
        """The assigned partitions are those of a topic that was recreated."""

    # -- life ---------------------------------------------------------------------------------------------------------

    async def open(self, snapshots: Mapping[int, Snapshot]) -> None:
        """Find the partitions, and begin to load them."""
        await self._assign()
        if snapshots:
            await self._continue_snapshots(snapshots)
        await self._load_new()
        self._task = asyncio.get_running_loop().create_task(self._read())
        self._task.add_done_callback(self.on_end)

    async def loaded(self) -> None:
        """Wait until all partitions are loaded. RequestTimeout if no record was read for `max_block_ms`."""
        loop = asyncio.get_running_loop()
        seen, deadline = self.records, loop.time() + self._block_ms / 1000
        while any(each.phase is not Phase.LIVE for each in self.progress.values()):
            partition = next(p for p, each in self.progress.items() if each.phase is not Phase.LIVE)
            try:
                await self.wait_applied(partition, 0, deadline)
            except RequestTimeout:
                if self.records == seen:
                    raise
                seen, deadline = self.records, loop.time() + self._block_ms / 1000

    async def close(self) -> None:
        """Stop reading. The calls that wait end when the table calls `fail`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def on_end(self, task: asyncio.Task[None]) -> None:
        """A background task of the table has ended. If it failed, so does the table."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self.failure is None:
            logger.error("table.reading_failed", topic=self._topic, reason=str(error), exc_info=error)
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """The table cannot go on: every call that waits, and every later call, raises this."""
        self.failure = error
        for heap in self._waits.values():
            for _, _, future in heap:
                if not future.done():
                    future.set_exception(copy_of(error))
        self._waits.clear()
        for watcher in self._rows.watchers():
            watcher.end()

    # -- waiting ------------------------------------------------------------------------------------------------------

    def applied(self, partition: int) -> int:
        """The table shows all records of the partition below this offset; -1 while it is loaded."""
        found = self.progress.get(partition)
        return -1 if found is None else found.applied

    async def wait_applied(self, partition: int, offset: int, deadline: float) -> None:
        """Wait until the table shows all records below `offset`. RequestTimeout at the deadline (on the loop's clock)."""
        if self.failure is not None:
            raise copy_of(self.failure)
        if self.applied(partition) >= offset:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._wait_count += 1
        heappush(self._waits.setdefault(partition, []), (offset, self._wait_count, future))
        try:
            async with asyncio.timeout_at(deadline):
                await future
        except TimeoutError:
            why = f": {self.last_error}" if self.last_error is not None else ""
            text = f"the table has not read up to offset {offset} in time, but up to {self.applied(partition)}{why}"
            raise RequestTimeout(text, topic=self._topic, partition=partition) from None

    def _wake(self, partition: int, applied: int) -> None:
        heap = self._waits.get(partition)
        while heap and heap[0][0] <= applied:
            future = heappop(heap)[2]
            if not future.done():
                future.set_result(None)

    async def catch_up(self, deadline: float, only: int | None = None) -> None:
        """Wait until the table has read up to the present log ends of all partitions, or of one. RequestTimeout at the
        deadline."""
        asked_at_ms = self._now_ms()
        partitions = list(self.progress) if only is None else [only]
        try:
            async with asyncio.timeout_at(deadline):
                ends = await self._consumer.end_offsets([TopicPartition(self._topic, p) for p in partitions])
        except TimeoutError:
            raise RequestTimeout("the brokers did not say in time where the log ends", topic=self._topic) from None
        for tp, end in ends.items():
            await self.wait_applied(tp.partition, end, deadline)
            self._check_fresh(tp.partition, asked_at_ms)

    def _check_fresh(self, partition: int, asked_at_ms: int) -> None:
        """The table has read up to the log end of that time. If it had not done so for too long, it may have missed tombstones,
        so it reads the partition again."""
        found, now_ms = self.progress.get(partition), self._now_ms()
        if found is None or found.phase is not Phase.LIVE or found.was_confirmed_since(asked_at_ms, now_ms):
            return
        if found.may_have_missed_tombstones(now_ms, self.tombstones_kept_ms):
            self._restart(partition, "tombstones may have been removed before the table has read them")
        else:
            found.confirm(asked_at_ms)

    async def learn_partitions(self) -> None:
        """Refresh the metadata, so that the reader finds partitions that were added."""
        await self._consumer.refresh_metadata()

    # -- loading ------------------------------------------------------------------------------------------------------

    async def _assign(self) -> None:
        """Read all partitions that the topic has now."""
        indexes = sorted(await self._consumer.partitions_for_topic(self._topic))
        await self._consumer.assign([TopicPartition(self._topic, index) for index in indexes])
        for gone in self.progress.keys() - {*indexes}:
            del self.progress[gone]
            self._lose_own_write(gone)
            self._rows.drop(gone)
        for index in indexes:
            topic_id = self._consumer.topic_id((self._topic, index))
            known = self.progress.get(index)
            if known is None or known.topic_id != topic_id:
                self.progress[index] = Progress(topic_id)
                self._lose_own_write(index)
        self._is_outdated = False

    async def _continue_snapshots(self, snapshots: Mapping[int, Snapshot]) -> None:
        """Begin with the rows of the snapshots, and continue to read where they end."""
        asked_at_ms = self._now_ms()
        ends = await self._consumer.end_offsets([TopicPartition(self._topic, p) for p in snapshots])
        for partition, (place, rows) in snapshots.items():
            found = self.progress.get(partition)
            if found is None or found.topic_id != place.topic_id:
                continue
            self._consumer.seek((self._topic, partition), place.next_offset, place.leader_epoch)
            self._rows.begin_with(partition, rows)
            found.load(ends[TopicPartition(self._topic, partition)], asked_at_ms, place.fresh_at_ms)
            found.read(place.leader_epoch, place.next_offset)

    async def _load_new(self) -> None:
        """Begin to load the partitions that are new, or must be read again."""
        new = [partition for partition, each in self.progress.items() if each.phase is Phase.NEW]
        if not new:
            return
        asked_at_ms = self._now_ms()
        tps = [TopicPartition(self._topic, partition) for partition in new]
        await self._consumer.seek_to_beginning(*tps)
        ends = await self._consumer.end_offsets(tps)
        for tp in tps:
            found = self.progress[tp.partition]
            found.topic_id = self._consumer.topic_id(tp)
            self._rows.begin(tp.partition)
            found.load(ends[tp], asked_at_ms)

    def _restart(self, partition: int, reason: str) -> None:
        found = self.progress.get(partition)
        if found is None or found.phase is Phase.NEW:
            return
        logger.info("table.partition_reloaded", topic=self._topic, partition=partition, offset=found.applied, reason=reason)
        self.reloads += 1
        found.restart()
        self._lose_own_write(partition)

    def _lose_own_write(self, partition: int) -> None:
        own = self.own_writes.get(partition)
        if own is not None and own.is_there is None:
            own.is_lost = True

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            try:
                await self._step()
                self.last_error = None
            except (OffsetOutOfRange, LogTruncated) as e:
                self._restart(-1 if e.partition is None else e.partition, str(e))
            except TopicRecreated as e:
                self._is_outdated = True
                await self._pause(e)
            except (CorruptRecords, UsageError):
                raise
            except StrandlineError as e:
                await self._pause(e)

    async def _pause(self, error: StrandlineError) -> None:
        self.last_error = error
        await asyncio.sleep(self._backoff_s)

    async def _step(self) -> None:
        """Begin to load new partitions, apply the next records, and look for partitions that were added."""
        if self._is_outdated:
            await self._assign()
        await self._load_new()
        batches = await self._consumer.fetch_batches(timeout_ms=POLL_MS)
        for tp, found in batches.items():
            self._take(tp.partition, found)
        await self._note_positions()
        if len(await self._consumer.partitions_for_topic(self._topic)) > len(self.progress):
            await self._assign()

    def _take(self, partition: int, batches: list[FetchedBatch]) -> None:
        progress, own = self.progress.get(partition), self.own_writes.get(partition)
        if progress is None or progress.phase is Phase.NEW:
            return  # The batches follow records that the table has not read.
        for batch in batches:
            self._rows.apply(partition, fields(batch.keys), fields(batch.values), batch.offsets)
            self.records += len(batch)
            if own is not None and own.is_there is None and batch.first_offset <= own.offset < batch.next_offset:
                own.is_there = _has_mark(batch, own)
        progress.read(batches[-1].leader_epoch, batches[-1].next_offset)

    async def _note_positions(self) -> None:
        """Take over the positions from the consumer. The awaits return at once, because all positions are known. So other code
        runs only when rows and positions agree."""
        for partition, progress in self.progress.items():
            if progress.phase is Phase.NEW:
                continue
            position = await self._consumer.position((self._topic, partition))
            if progress.phase is Phase.LOADING and position >= progress.target:
                self._finish(partition, progress, position)
            if progress.phase is Phase.LIVE:
                progress.applied = position
                self._wake(partition, position)

    def _finish(self, partition: int, progress: Progress, position: int) -> None:
        is_continued, now_ms = progress.fresh_at_ms != progress.target_at_ms, self._now_ms()
        if is_continued and not progress.has_seen_tombstones(now_ms, self.tombstones_kept_ms):
            self._restart(partition, "tombstones may have been removed since the snapshot")
            return
        self._rows.finish(partition)
        progress.fresh_at_ms = progress.target_at_ms
        progress.go_live(position, now_ms)


def fields(column: BinaryColumn) -> list[bytes | None]:
    """The fields of a column, as a list."""
    if column.validity is not None:
        return [column[row] for row in range(len(column))]
    data, bounds = column.data, column.offsets[column.first : column.first + column.count + 1].tolist()
    return [data[start:end] for start, end in pairwise(bounds)]


def _has_mark(batch: FetchedBatch, own: OwnWrite) -> bool | None:
    """Whether the record at the offset of a write has its mark; None if the cleaner has removed that record."""
    row = bisect_left(batch.offsets, own.offset)
    if row >= len(batch) or batch.offsets[row] != own.offset:
        return None
    return batch.headers is not None and own.mark in batch.headers[row]


def failed(topic: str, error: BaseException) -> StrandlineError:
    """The error of a table whose background task has ended."""
    if isinstance(error, StrandlineError):
        return error
    return ClientError(f"the table has stopped reading: {type(error).__name__}: {error}", topic=topic)
