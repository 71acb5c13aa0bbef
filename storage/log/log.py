"""A log: the batches of one partition (or of the metadata quorum), in segments, with all that is known of them.

         log start          high watermark        log end (LEO)
             |   committed        |   not yet         |
    ... gone [====================|===================)          log start <= HW <= LEO, always

- **Append** stamps offsets and the leader epoch into the producer's own buffer, writes that buffer, and keeps a
  reference to it in the recent tail. All or nothing: state moves only after the write has succeeded.
- **Read** hands out whole batches: from the tail by reference, older ones from the file, checked against their CRC
  before anybody sees them (`log_read.py`).
- **What follows from the batches** (indexes, epoch cache, producer states) is kept beside them and rebuilt when it does
  not fit (`recovery.py`).
- **A damaged batch in the middle** of data that was flushed or committed is not cut off, for that would throw away what
  follows it. `corrupt_at` tells its offset, and nothing at or beyond it is served: the replica must stop leading and
  repair itself from a peer by `truncate_to(corrupt_at)`.

Plain and synchronous: whoever owns the log calls it from one thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Never

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.protocol.records.batch import (
    BatchHeader,
    max_timestamp_at,
    stamp,
    stamp_log_append_time,
    stamp_max_timestamp,
)
from strandline.storage.checkpoints import LEADER_EPOCHS, LeaderEpochCheckpoint
from strandline.storage.disk import Buffer, DiskError, Files, join, parent
from strandline.storage.log import log_read, recovery, retention, truncation
from strandline.storage.log.epoch_cache import LeaderEpochCache
from strandline.storage.log.flushing import DirFailure, FlushWork
from strandline.storage.log.log_config import LOG_APPEND_TIME, LogConfig
from strandline.storage.log.log_read import LogRead
from strandline.storage.log.producer_state import AppendedBatch, Pending, ProducerStates
from strandline.storage.log.segment import SNAPSHOT_SUFFIX, DamagedBatch, Segment, file_name
from strandline.storage.log.tail import RecentTail, TailBudget
from strandline.storage.log.validation import check_fetched, check_produced
from strandline.storage.metrics import LogMetrics

__all__ = ["AppendInfo", "DirFailure", "FlushWork", "Log", "LogConfig", "LogRead", "TailBudget"]

logger = get_logger(__name__)

METADATA_TOPIC = "__cluster_metadata"


def _no_name(number: int) -> bool:
    return False


class AppendInfo(NamedTuple):
    """What an append did. A duplicate wrote nothing (`size` 0) and has the offsets of the first time."""

    first_offset: int
    last_offset: int
    size: int
    log_append_time_ms: int
    """-1 unless the topic uses LogAppendTime."""
    duplicate: bool
    max_timestamp: int


class Log:
    def __init__(
        self, files: Files, dir: str, topic: str, partition: int, topic_id: bytes, config: LogConfig, budget: TailBudget
    ) -> None:
        """Use `Log.open`."""
        self.files = files
        self.dir = dir
        self.name = topic
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.log_start_offset = 0
        """The first offset that may be read."""
        self.log_end_offset = 0
        """LEO: the offset that the next record gets."""
        self.high_watermark = 0
        """As told by the leader (or computed, when leading); log start <= HW <= LEO. Never decreases but by a truncation."""
        self.recovery_point = 0
        """All below is durable. Never above the LEO."""
        self.corrupt_at: int | None = None
        """The offset of the first batch known to be damaged; nothing from there on is served."""
        self.possible_data_loss = False
        """It was opened with less than it had (a torn tail, an end below its own HW, nothing at all in a new directory), or
        nobody can tell (the page cache was lost). Until it has followed a leader, acknowledged records may be missing here."""
        self.segments: list[Segment] = []
        """By base offset, at least one; only the last is written to."""
        self.epochs = LeaderEpochCache()
        self.producers = ProducerStates()
        self.tail = RecentTail(budget)
        self.cursors: dict[int, tuple[Segment, int]] = {}
        """Where sequential readers of old segments will go on: next offset -> segment and position."""
        self.failure = DirFailure()
        self.metrics = LogMetrics()
        self.unsynced: dict[str, None] = {}
        """Names and small files that the next flush makes durable before the recovery point relies on them."""
        self.truncations = 0
        self.dirty_since_ms: int | None = None
        """When the first append after the last flush was made; kept only where `flush.ms` is set."""
        self.on_lowered: Callable[[Log], None] | None = None
        """Told when a truncation has lowered the recovery point or the HW, before anything is appended: the checkpoints on
        the disk must not vouch for records that come later."""
        self._accepts_control = topic == METADATA_TOPIC

    @classmethod
    def open(
        cls,
        files: Files,
        dir: str,
        *,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        high_watermark: int = 0,
        clean_shutdown: bool,
        now_ms: int,
        kept_to: int = 0,
        budget: TailBudget | None = None,
        failure: DirFailure | None = None,
        metrics: LogMetrics | None = None,
    ) -> Log:
        """Open the log in `dir`, or make one. After an unclean stop the tail is scanned from the recovery point on.

        `kept_to`: damage that the scan finds below raises `DamagedBatch`, and nothing is cut: not even where it looks like a torn
        tail. A later start may read the same bytes as they were written."""
        log = cls(files, dir, topic, partition, topic_id, config, budget or TailBudget())
        log.failure, log.metrics = failure or log.failure, metrics or log.metrics
        log.log_start_offset = log_start_offset
        log.recovery_point = recovery_point
        log.high_watermark = high_watermark
        try:
            recovery.load(log, clean_shutdown=clean_shutdown, kept_to=kept_to, now_ms=now_ms)
        except BaseException:
            log.abandon()
            raise
        return log

    def __repr__(self) -> str:
        bounds = f"{self.log_start_offset} <= HW {self.high_watermark} <= LEO {self.log_end_offset}"
        return f"<Log {self.name}-{self.partition} {bounds}, {len(self.segments)} segments>"

    # -- appending ------------------------------------------------------------------------------------------------

    def append_as_leader(self, records: Buffer, leader_epoch: int, now_ms: int) -> AppendInfo:
        """Append a producer's batches: check, stamp in place, write, remember. All of them or none.

        BrokerError: CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP,
        OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, UNKNOWN_PRODUCER_ID,
        FENCED_LEADER_EPOCH; DiskError.
        """
        self._check_writable()
        if leader_epoch < self.epochs.latest_epoch:
            raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH, f"the log has records of epoch {self.epochs.latest_epoch}")
        records = writable(records)
        headers = check_produced(records, self.config, now_ms, self._accepts_control)
        duplicates = self._find_duplicates(headers)
        if duplicates:
            return _duplicate_info(duplicates)
        stamped, log_append_time_ms = self._stamp(records, headers, leader_epoch, now_ms)
        self.assign_epoch_start_offset(leader_epoch, self.log_end_offset)
        return self._append(records, stamped, now_ms, log_append_time_ms)

    def append_as_follower(self, records: Buffer, max_epoch: int) -> AppendInfo | None:
        """Append what was fetched from the leader, as it is: offsets must go on exactly at the LEO.

        Takes only the batches before the first one of an epoch newer than `max_epoch`, the epoch that was fetched with
        (KAFKA-18723); None when that leaves none. One invalid batch refuses all of them.
        """
        self._check_writable()
        headers = check_fetched(records, self.log_end_offset, max_epoch, self._last_record_epoch())
        if not headers:
            return None
        size = sum(header.size for header in headers)
        if size < len(records):
            records = memoryview(records)[:size]
        for header in headers:
            self.assign_epoch_start_offset(header.leader_epoch, header.base_offset)
        return self._append(records, headers, headers[-1].max_timestamp, -1)

    def _append(self, records: Buffer, headers: list[BatchHeader], now_ms: int, log_append_time_ms: int) -> AppendInfo:
        first = headers[0]
        size = len(records)
        if len(headers) == 1:
            last_offset, max_timestamp = first.base_offset + first.last_offset_delta, first.max_timestamp
            batches: Sequence[tuple[int, int, int]] = ((last_offset, size, max_timestamp),)
        else:
            batches = [(h.base_offset + h.last_offset_delta, h.size, h.max_timestamp) for h in headers]
            last_offset = batches[-1][0]
            max_timestamp = max(timestamp for _, _, timestamp in batches)
        try:
            self._maybe_roll(size, last_offset, max_timestamp, now_ms)
            self.segments[-1].append((records,), batches, self.config.index_interval_bytes)
        except DiskError as e:
            self._fail(e)
        self._remember(records, headers)
        self.log_end_offset = last_offset + 1
        if self.config.flush_ms != _FOREVER and self.dirty_since_ms is None:
            self.dirty_since_ms = now_ms
        if self.log_end_offset - self.recovery_point >= self.config.flush_messages:
            self.flush()
        return AppendInfo(first.base_offset, last_offset, size, log_append_time_ms, False, max_timestamp)

    def _remember(self, records: Buffer, headers: list[BatchHeader]) -> None:
        """The recent tail and the producers' states."""
        if len(headers) == 1:
            header = headers[0]
            self.tail.add(header.base_offset, header.base_offset + header.last_offset_delta + 1, records)
            if header.producer_id >= 0:
                self.producers.update(header, header.last_offset)
            return
        view, position = memoryview(records), 0
        for header in headers:
            self.tail.add(header.base_offset, header.next_offset, view[position : position + header.size])
            position += header.size
            if header.producer_id >= 0:
                self.producers.update(header, header.last_offset)

    def _stamp(
        self, records: bytearray | memoryview, headers: list[BatchHeader], leader_epoch: int, now_ms: int
    ) -> tuple[list[BatchHeader], int]:
        """Write offsets and epoch (and the time, for LogAppendTime) into the batches; returns the headers as they are now."""
        by_broker = self.config.message_timestamp_type == LOG_APPEND_TIME
        position, offset, stamped = 0, self.log_end_offset, []
        for header in headers:
            stamp(records, position, offset, leader_epoch)
            timestamp = header.max_timestamp
            if by_broker:
                stamp_log_append_time(records, position, header.size, now_ms)
                timestamp = now_ms
            elif timestamp != max_timestamp_at(records, position):
                stamp_max_timestamp(records, position, header.size, timestamp)
            # Field by field: `_replace` takes four times as long.
            fields = (offset, header.size, leader_epoch, *header[3:8], timestamp, *header[9:])
            stamped.append(tuple.__new__(BatchHeader, fields))
            position += header.size
            offset += header.last_offset_delta + 1
        return stamped, now_ms if by_broker else -1

    def _find_duplicates(self, headers: list[BatchHeader]) -> list[AppendedBatch]:
        """The first appearances of batches that were appended before; empty when all are new."""
        pending: Pending = {}
        found = []
        for header in headers:
            if header.producer_id >= 0 and not header.is_control:
                batch = self.producers.check(header, pending)
                if batch is not None:
                    found.append(batch)
        if found and len(found) < len(headers):
            raise BrokerError(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "some batches of the request were appended before, some not")
        return found

    def _check_writable(self) -> None:
        if self.failure.error is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory is offline: {self.failure.error}")
        if self.corrupt_at is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"the batch at offset {self.corrupt_at} is damaged on this disk")

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except DiskError as e:
            self._fail(e)

    def _fail(self, e: DiskError) -> Never:
        """The directory is offline from now on: what this error left behind is known only after a recovery."""
        if self.failure.error is None:
            self.failure.error = e
            logger.error("log_dir.failed", log_dir=parent(self.dir), operation=e.operation, path=e.path, reason=str(e))
        raise e

    def _last_record_epoch(self) -> int:
        """The epoch of the newest record; an entry without records does not count."""
        if self.log_end_offset == self.log_start_offset:
            return -1
        return self.epochs.epoch_for_offset(self.log_end_offset - 1)

    def _maybe_roll(self, size: int, last_offset: int, timestamp: int, now_ms: int) -> None:
        segment, config = self.segments[-1], self.config
        if not segment.size:
            return
        first = segment.first_timestamp
        waited = timestamp - first if first >= 0 and timestamp >= 0 else now_ms - segment.created_ms
        if waited > config.segment_ms or not segment.has_room(
            size, last_offset, config.segment_bytes, config.segment_index_bytes
        ):
            self.roll(now_ms)

    def roll(self, now_ms: int | None = None) -> None:
        """Begin a new segment; nothing when the last one is still empty."""
        old = self.segments[-1]
        if not old.size:
            return
        old.save_indexes()
        created_ms = old.created_ms if now_ms is None else now_ms
        self.segments.append(Segment.create(self.files, self.dir, self.log_end_offset, created_ms))
        self.unsynced[self.dir] = None
        self.save_producers()

    def save_producers(self) -> None:
        """A snapshot of the producers' states at the log's end, without waiting for the disk."""
        path = join(self.dir, file_name(self.log_end_offset, SNAPSHOT_SUFFIX))
        self.files.write(path, self.producers.encode())

    def keep_producers(self, start: int) -> None:
        """Batches below `start`, the first offset of a segment, are about to go; what they say of named producers is to stay
        whatever happens: durably, in the snapshot there."""
        self.keep_names(self.producers.before(start), start)

    def keep_names(self, producers: ProducerStates, start: int) -> None:
        """Durably, where a start of the log that begins at `start` looks for names of which no batch is there."""
        if producers.has_named:
            path = join(self.dir, file_name(start, SNAPSHOT_SUFFIX))
            self.files.write_atomic(path, producers.encode())

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, end_offset: int, *, min_one: bool = True, may_block: bool = True) -> LogRead:
        """Whole batches from the one that contains `offset` up to `end_offset` (exclusive: HW, LSO or LEO).

        About `max_bytes`; with `min_one` at least one batch even when it is larger. OFFSET_OUT_OF_RANGE outside of the
        log, CORRUPT_MESSAGE at damage, ColdRead when it would wait for the disk and must not.
        """
        return log_read.read(self, offset, max_bytes, end_offset, min_one, may_block)

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record that is not older, None when all are."""
        return log_read.offset_for_timestamp(self, timestamp_ms)

    def max_timestamp_offset(self) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with the newest timestamp, None for an empty log."""
        return log_read.max_timestamp_offset(self)

    def segment_for(self, offset: int) -> int:
        """The index of the segment that holds the offset (the first one for older offsets)."""
        return max(0, bisect_right(self.segments, offset, key=_base_offset) - 1)

    def mark_corrupt(self, offset: int) -> None:
        if self.corrupt_at is None or offset < self.corrupt_at:
            self.corrupt_at = offset
            self.metrics.corrupt_ranges += 1
            logger.error("log.damaged", **self.fields, offset=offset, path=self.dir)

    # -- offsets and epochs ---------------------------------------------------------------------------------------

    def update_high_watermark(self, high_watermark: int) -> bool:
        """Raise the HW, at most to the LEO; False when it stays. It never goes down here (I10)."""
        high_watermark = min(high_watermark, self.log_end_offset)
        if high_watermark <= self.high_watermark:
            return False
        self.high_watermark = high_watermark
        return True

    def increment_log_start_offset(self, offset: int) -> bool:
        """Records below `offset` are deleted, at most up to the HW; their segments go with `delete_old_segments`."""
        offset = min(offset, self.high_watermark)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return True

    @property
    def fields(self) -> dict[str, object]:
        """For every log line about this log. A log knows no role: the leader epoch is that of what was appended last."""
        return {
            "topic": self.name,
            "partition": self.partition,
            "leader_epoch": self.epochs.latest_epoch,
            "log_start_offset": self.log_start_offset,
            "high_watermark": self.high_watermark,
            "log_end_offset": self.log_end_offset,
        }

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch that the log knows, -1 for none."""
        return self.epochs.latest_epoch

    def assign_epoch_start_offset(self, epoch: int, offset: int) -> None:
        """A leader epoch begins here; a new leader calls it with its LEO before it serves anybody."""
        epochs = self.epochs
        if epoch > epochs.latest_epoch:
            epochs.assign(epoch, offset)
        elif epoch < epochs.latest_epoch and epochs.latest_start >= offset:
            # Epochs of ours that wrote nothing stand in the way of an older one's real records.
            epochs.truncate_from_end(offset)
            epochs.assign(epoch, offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest known epoch <= `epoch`, its exclusive end offset); (-1, -1) when `epoch` is newer than all known ones."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def save_epochs(self) -> None:
        path = join(self.dir, LEADER_EPOCHS)
        with self._disk():
            self.files.write(path, LeaderEpochCheckpoint.encode(self.epochs.entries))
        self.unsynced[path] = None
        self.unsynced[self.dir] = None

    def truncate_to(self, offset: int) -> bool:
        """Cut the log's end back to `offset` (to the start of the batch that holds it). False when no record went; epochs
        that began at or after it go in any case (KAFKA-10706). DamagedBatch when something below `offset` cannot be read:
        nothing was changed then but `corrupt_at`."""
        with self._disk():
            return truncation.truncate_to(self, offset)

    def end_after_truncation(self, offset: int) -> int:
        """Where `truncate_to(offset)` would end the log. Changes nothing; raises as it does."""
        with self._disk():
            return truncation.end_after_truncation(self, offset)

    def truncate_fully_and_start_at(self, offset: int, producers: ProducerStates | None = None) -> None:
        """Drop everything; the log is empty and goes on at `offset`. `producers`: what is known of those whose batches all lie
        before it."""
        with self._disk():
            truncation.truncate_fully_and_start_at(self, offset, producers or ProducerStates())

    # -- durability -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """fsync all that is not durable yet. After an error the directory is offline: no later fsync proves anything."""
        self._check_flushable()
        with self.metrics.flushing(), self._disk():
            for segment in self.segments[self.segment_for(self.recovery_point) :]:
                segment.file.fsync()
            self.sync_names()
        self.recovery_point = self.log_end_offset
        self.dirty_since_ms = None

    def write_again(self, offset: int) -> None:
        """Write all from `offset` on once more, as it is read, so that the next flush brings it to the disk.

        For who opens the log of a process that may have ended with an fsync that failed. The kernel has dropped the dirty
        pages then, and may show their bytes until they leave its cache: they are read, they are in order, and no fsync
        writes them. DamagedBatch when what is read is not what this log holds: it is not written.
        """
        self.recovery_point = min(self.recovery_point, offset)
        with self._disk():
            for segment in self.segments[self.segment_for(offset) :]:
                self._write_segment_again(segment)

    def _write_segment_again(self, segment: Segment) -> None:
        for position, base_offset, data in recovery.whole_batches(self, segment, _WRITE_AGAIN):
            if data is None:
                self.mark_corrupt(base_offset)
                raise DamagedBatch(position, base_offset, "it reads otherwise than a moment ago")
            segment.file.pwrite(data, position)

    def sync_names(self) -> None:
        for path in list(self.unsynced):
            self.files.fsync_path(path)
        self.unsynced.clear()

    def maybe_flush(self, now_ms: int) -> bool:
        """For the broker's timer: flush when `flush.ms` has passed since the first unflushed append."""
        if self.dirty_since_ms is None or now_ms - self.dirty_since_ms < self.config.flush_ms:
            return False
        self.flush()
        return True

    def flush_work(self) -> FlushWork | None:
        """The closed segments beyond the recovery point, to be fsynced on a thread; then `on_flushed`. None: nothing to do."""
        end = self.segments[-1].base_offset
        if self.recovery_point >= end or self.failure.error is not None:
            return None
        segments = self.segments[self.segment_for(self.recovery_point) : -1]
        paths = [segment.file.path for segment in segments] + list(self.unsynced)
        return FlushWork(self.files, paths, end, self.truncations, self.metrics.stopwatch, [])

    def on_flushed(self, work: FlushWork) -> None:
        """The work was done: unless the log was truncated meanwhile, the recovery point moves up."""
        self.metrics.on_flushed(work.took_s)
        if work.truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, min(work.end_offset, self.log_end_offset))

    def _check_flushable(self) -> None:
        if self.failure.error is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory is offline: {self.failure.error}")

    # -- life -----------------------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def delete_old_segments(self, now_ms: int) -> list[str]:
        """Retention: take out segments that are too old, too many, or below the log start; never what is at or above the
        HW, never the last one. Returns the renamed files: unlinking may be slow and is the caller's, off the loop."""
        with self._disk():
            return retention.delete_old_segments(self, now_ms)

    def forget_indexes(self) -> None:
        """Of the segments that are not written to: loaded again at need. Kept, they would be 5 MB per GiB of log."""
        with self._disk():
            for segment in self.segments[:-1]:
                segment.drop_indexes()

    def expire_producers(self, now_ms: int, knows_name: Callable[[int], bool] = _no_name) -> None:
        """Forget who was silent for long; of named producers only those whose number `knows_name` denies."""
        self.producers.expire(now_ms, self.config.producer_id_expiration_ms, knows_name)

    def close(self) -> None:
        """An orderly end: all durable, indexes and producer states saved, so that the next open need not scan."""
        if self.failure.error is None:
            with self._disk():
                self._close_orderly()
        self.abandon()

    def _close_orderly(self) -> None:
        for segment in self.segments:
            segment.save_indexes()
        if self.log_end_offset > self.log_start_offset or len(self.producers):
            self.save_producers()
        if self.recovery_point < self.log_end_offset or self.unsynced:
            self.flush()

    def abandon(self) -> None:
        """Give up descriptors and memory without touching the disk."""
        self.tail.clear()
        self.cursors.clear()
        for segment in self.segments:
            segment.file.close()

    def delete(self) -> None:
        """Remove the log and its directory (may be slow; `LogDir.delete_log` renames it and leaves this to a thread)."""
        self.abandon()
        self.files.remove_tree(self.dir)


_FOREVER = 2**63 - 1
_WRITE_AGAIN = 1 << 20


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _duplicate_info(duplicates: list[AppendedBatch]) -> AppendInfo:
    return AppendInfo(duplicates[0].first_offset, duplicates[-1].last_offset, 0, -1, True, duplicates[-1].timestamp)


def writable(records: Buffer) -> bytearray | memoryview:
    """The buffer itself when it can be stamped in place; a copy of one that cannot."""
    if isinstance(records, bytearray):
        return records
    if isinstance(records, memoryview) and not records.readonly:
        return records
    return bytearray(records)
