"""A log: the batches of one partition (or of the metadata quorum) in segments, with the state derived from them.

         log start          high watermark        log end (LEO)
             |   committed        |   not yet         |
    ... gone [====================|===================)          log start <= HW <= LEO, always

- **Append** stamps offsets and the leader epoch into the producer's own buffer, writes that buffer, and keeps a reference to
  it in the recent tail. It is all or nothing: state changes only after the write has succeeded.
- **Read** returns whole batches: from the tail by reference, older ones from the file after a CRC check (`log_read.py`).
- **Derived state** (indexes, epoch cache, producer states) is stored beside the batches and rebuilt from them if it does not
  match (`recovery.py`).
- **A damaged batch in the middle** of flushed or committed data is not cut off, because that would drop the batches after it.
  `corrupt_at` is its offset, and nothing at or above it is served. The replica must stop leading, and repair itself from a peer
  with `truncate_to(corrupt_at)`.

The class is synchronous, and its owner calls it from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Never

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import (
    CONTROL_MASK,
    HEADER_SIZE,
    TRANSACTIONAL_MASK,
    BatchHeader,
    base_offset_at,
    read_header,
)
from strandline.protocol.records.fence import NO_TOKEN, make_fence
from strandline.protocol.records.filler import without_filled_before
from strandline.protocol.records.marker import EndTransactionMarker, encode_marker, read_marker
from strandline.storage.disk import Buffer, DiskError, Files
from strandline.storage.log import log_read, recovery, replacement, retention, truncation
from strandline.storage.log.aborted_transactions import add_aborted, collect_aborted, save_aborted
from strandline.storage.log.appending import (
    AppendInfo,
    FencedToken,
    UnexpectedLogEnd,
    duplicate_info,
    stamp_batches,
    writable,
)
from strandline.storage.log.batch_iteration import rewrite_segment
from strandline.storage.log.batch_search import BatchSearches
from strandline.storage.log.epoch_cache import LeaderEpochCache
from strandline.storage.log.flushing import DirFailure, FlushWork
from strandline.storage.log.log_config import FOREVER, LogConfig
from strandline.storage.log.log_read import LogRead
from strandline.storage.log.log_state import LogState
from strandline.storage.log.producer_state import TRANSACTION_VERSION_2, AppendedBatch, Pending, ProducerStates
from strandline.storage.log.replacement import CleanedSegment
from strandline.storage.log.segment import Segment
from strandline.storage.log.tail import TailBudget
from strandline.storage.log.transaction_index import AbortedTransaction
from strandline.storage.log.validation import NONE_CHECKED, CheckedTimes, check_fetched, check_produced, for_one_segment
from strandline.storage.metrics import LogMetrics

__all__ = ["AppendInfo", "DirFailure", "FlushWork", "Log", "LogConfig", "LogRead", "TailBudget"]

METADATA_TOPIC = "__cluster_metadata"


def _no_name(number: int) -> bool:
    return False


def _check_no_transaction(headers: list[BatchHeader]) -> None:
    for header in headers:
        if header.attributes & TRANSACTIONAL_MASK:
            raise BrokerError(ErrorCode.INVALID_RECORD, "a batch is marked as transactional, but its request has no transaction")


class Log(LogState):
    """One log. Open it with `Log.open`."""

    def __init__(
        self, files: Files, dir: str, topic: str, partition: int, topic_id: bytes, config: LogConfig, budget: TailBudget
    ) -> None:
        super().__init__(files, dir, topic, partition, topic_id, config, budget)
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
        first_dirty_offset: int = 0,
        tombstones_removed_below: int = 0,
        superseded_below: int = 0,
        clean_shutdown: bool,
        now_ms: int,
        keep_below: int = 0,
        budget: TailBudget | None = None,
        failure: DirFailure | None = None,
        metrics: LogMetrics | None = None,
        random: Random | None = None,
    ) -> Log:
        """Open the log in `dir`, or create it. After an unclean stop the log is scanned from the recovery point on.

        `keep_below`: if the scan finds damage below this offset, it raises `DamagedBatch` and cuts nothing, even if the damage
        looks like a torn tail: a later start may read the bytes correctly. `random`: None means that segments have no jitter."""
        log = cls(files, dir, topic, partition, topic_id, config, budget or TailBudget())
        log.failure, log.metrics = failure or log.failure, metrics or log.metrics
        log.random = random
        log.log_start_offset = log_start_offset
        log.recovery_point = recovery_point
        log.high_watermark = high_watermark
        log.first_dirty_offset = first_dirty_offset
        log.tombstones_removed_below = tombstones_removed_below
        log.superseded_below = superseded_below
        try:
            recovery.load(log, clean_shutdown=clean_shutdown, keep_below=keep_below, now_ms=now_ms)
        except BaseException:
            log.abandon()
            raise
        return log

    def __repr__(self) -> str:
        bounds = f"{self.log_start_offset} <= HW {self.high_watermark} <= LEO {self.log_end_offset}"
        return f"<Log {self.name}-{self.partition} {bounds}, {len(self.segments)} segments>"

    # -- appending ------------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        now_ms: int,
        checked: CheckedTimes = NONE_CHECKED,
        expected_offset: int = -1,
        fencing_token: int = NO_TOKEN,
        is_transactional: bool = False,
    ) -> AppendInfo:
        """Append a producer's batches, all or none: check them, stamp `records` in place, write it. `checked`: the times of
        batches that `conversion.prepare` has checked.

        `expected_offset`: append new batches only if the log end is there; -1: wherever it is. `fencing_token`: append new
        batches only if no append has carried a higher token; if none has carried this one, a fence is written before them.
        NO_TOKEN: the log's token does not matter. Duplicates are recognised before these conditions are checked, so the retry of
        an append that succeeded is not rejected. `is_transactional`: whether the batches may be marked as transactional.

        Raises CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP,
        OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, UNKNOWN_PRODUCER_ID,
        INVALID_TXN_STATE, UNSUPPORTED_COMPRESSION_TYPE, FENCED_LEADER_EPOCH, KAFKA_STORAGE_ERROR if the log is offline or
        damaged, ConditionFailed, and DiskError if the write fails.
        """
        self._check_writable()
        if leader_epoch < self.epochs.latest_epoch:
            self._refuse_epoch(leader_epoch)
        records = writable(records)
        headers = check_produced(records, self.config, now_ms, self._accepts_control, checked)
        if not is_transactional and (headers[0].attributes & TRANSACTIONAL_MASK or len(headers) > 1):
            _check_no_transaction(headers)
        if NO_TOKEN < fencing_token < self.producers.fences.token:
            duplicates = self._find_unfenced(headers, fencing_token)
        else:
            duplicates = self._find_duplicates(headers)
        if duplicates:
            return duplicate_info(duplicates)
        if expected_offset >= 0 and expected_offset != self.log_end_offset:
            raise UnexpectedLogEnd(expected_offset, self.log_end_offset)
        if fencing_token > self.producers.fences.token:
            return self._append_behind_fence(records, headers, fencing_token, leader_epoch, now_ms)
        stamped, log_append_time_ms = stamp_batches(records, headers, self.log_end_offset, leader_epoch, self.config, now_ms)
        self.assign_epoch_start_offset(leader_epoch, self.log_end_offset)
        return self.append_batches(records, stamped, now_ms, log_append_time_ms)

    def _append_behind_fence(
        self, records: Buffer, headers: list[BatchHeader], token: int, leader_epoch: int, now_ms: int
    ) -> AppendInfo:
        """Append the batches behind a fence with their token, in one write."""
        offset = self.log_end_offset
        fence = make_fence(token, offset, leader_epoch)
        behind, time_ms = stamp_batches(writable(records), headers, offset + 1, leader_epoch, self.config, now_ms)
        self.assign_epoch_start_offset(leader_epoch, offset)
        info = self.append_batches(b"".join((fence, records)), [read_header(fence), *behind], now_ms, time_ms)
        return info._replace(first_offset=offset + 1)

    def append_marker(
        self,
        marker: EndTransactionMarker,
        producer_id: int,
        producer_epoch: int,
        leader_epoch: int,
        now_ms: int,
        transaction_version: int = TRANSACTION_VERSION_2,
    ) -> AppendInfo:
        """Append the marker that ends the transaction of a producer in this log. Without an open transaction it is appended as
        well, and changes nothing for readers.

        Raises INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, INVALID_RECORD, FENCED_LEADER_EPOCH, KAFKA_STORAGE_ERROR,
        and DiskError."""
        self._check_writable()
        if leader_epoch < self.epochs.latest_epoch:
            self._refuse_epoch(leader_epoch)
        self.producers.check_marker(marker, producer_id, producer_epoch, transaction_version)
        offset = self.log_end_offset
        data = encode_marker(marker, producer_id, producer_epoch, now_ms, base_offset=offset, leader_epoch=leader_epoch)
        self.assign_epoch_start_offset(leader_epoch, offset)
        return self.append_batches(data, [read_header(data)], now_ms, -1)

    def _refuse_epoch(self, leader_epoch: int) -> Never:
        text = f"leader epoch {leader_epoch} is over: the log has epoch {self.epochs.latest_epoch}"
        raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH, text)

    def append_as_follower(self, records: Buffer, max_epoch: int) -> AppendInfo | None:
        """Append fetched batches unchanged; their offsets must continue exactly at the LEO. Only the first batch of an empty log
        may begin earlier: the log start may lie inside a batch (DeleteRecords). If the first batch is a filler that begins
        earlier, the rest of it is appended.

        Only the batches before the first one with an epoch newer than `max_epoch` are appended, where `max_epoch` is the epoch
        of the fetch request (KAFKA-18723), and at most as many offsets as one segment can hold. Returns None if that leaves no
        batch. Raises BrokerError CORRUPT_MESSAGE if any of them is invalid (then none is appended), KAFKA_STORAGE_ERROR if the
        log is offline or damaged, and DiskError."""
        self._check_writable()
        end, start = self.log_end_offset, self.log_start_offset
        is_empty = False
        if len(records) >= HEADER_SIZE and base_offset_at(records, 0) < end:
            is_empty = not self.segments[0].size and len(self.segments) == 1
            records = without_filled_before(records, end)
        headers = check_fetched(records, end, max_epoch, self._last_record_epoch(), is_empty=is_empty)
        if not headers:
            return None
        size = headers[0].size
        if len(headers) > 1:
            headers = for_one_segment(headers)
            size = sum(header.size for header in headers)
        if size < len(records):
            records = memoryview(records)[:size]
        if headers[0].base_offset < end:
            with self._take_offline_on_error():
                truncation.begin_segment_at(self, headers[0].base_offset)
        for header in headers:
            first = header.base_offset
            self.assign_epoch_start_offset(header.leader_epoch, first if first > start else start)
        return self.append_batches(records, headers, headers[-1].max_timestamp, -1)

    def append_batches(self, records: Buffer, headers: list[BatchHeader], now_ms: int, log_append_time_ms: int) -> AppendInfo:
        """Write batches that were checked and have their offsets and epochs. A leader's and a follower's append both end here."""
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
        if self.config.flush_ms != FOREVER and self.dirty_since_ms is None:
            self.dirty_since_ms = now_ms
        if self.log_end_offset - self.recovery_point >= self.config.flush_messages:
            self.flush()
        return AppendInfo(first.base_offset, last_offset, size, log_append_time_ms, False, max_timestamp)

    def _remember(self, records: Buffer, headers: list[BatchHeader]) -> None:
        """Add the batches to the recent tail and to the producer states."""
        if len(headers) == 1:
            header = headers[0]
            self.tail.add(header.base_offset, header.base_offset + header.last_offset_delta + 1, records)
            if header.producer_id >= 0:
                self.producers.update(header, header.last_offset)
                if header.attributes & TRANSACTIONAL_MASK:
                    self._remember_transaction(records, 0, header)
            return
        view, position = memoryview(records), 0
        for header in headers:
            self.tail.add(header.base_offset, header.next_offset, view[position : position + header.size])
            if header.producer_id >= 0:
                self.producers.update(header, header.last_offset)
                if header.attributes & TRANSACTIONAL_MASK:
                    self._remember_transaction(view, position, header)
            position += header.size

    def _remember_transaction(self, records: Buffer, position: int, header: BatchHeader) -> None:
        """Note a transactional batch or a marker, which lies in the last segment."""
        marker = read_marker(records, position, header) if header.attributes & CONTROL_MASK else None
        aborted = self.producers.update_transaction(header, marker, self.high_watermark)
        if aborted is not None:
            add_aborted(self.segments[-1], aborted)

    def _find_duplicates(self, headers: list[BatchHeader]) -> list[AppendedBatch]:
        """The earlier appends of these batches; empty if all batches are new."""
        pending: Pending = {}
        found = []
        for header in headers:
            if header.producer_id >= 0 and not header.attributes & CONTROL_MASK:
                batch = self.producers.check(header, pending)
                if batch is not None:
                    found.append(batch)
        if found and len(found) < len(headers):
            raise BrokerError(
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "some batches of the request were appended before, others were not"
            )
        return found

    def _find_unfenced(self, headers: list[BatchHeader], token: int) -> list[AppendedBatch]:
        """The earlier appends of these batches, whose token is lower than that of the log. Raises FencedToken if they are new,
        and also if there is a gap before them: the missing batches may have been rejected for the same token."""
        try:
            found = self._find_duplicates(headers)
        except BrokerError as e:
            if e.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
            found = []
        if not found:
            raise FencedToken(token, self.producers.fences.newest)
        return found

    def _check_writable(self) -> None:
        if self.failure.error is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory is offline: {self.failure.error}")
        if self.corrupt_at is not None:
            raise BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the log takes no records: the batch at offset {self.corrupt_at} is damaged on disk",
            )

    def _last_record_epoch(self) -> int:
        """The epoch of the newest record, -1 if there is none. Epochs without records do not count."""
        if self.log_end_offset == self.log_start_offset:
            return -1
        return self.epochs.epoch_for_offset(self.log_end_offset - 1)

    def _maybe_roll(self, size: int, last_offset: int, timestamp: int, now_ms: int) -> None:
        segment, config = self.segments[-1], self.config
        if not segment.size:
            return
        first = segment.first_timestamp
        waited = timestamp - first if first >= 0 and timestamp >= 0 else now_ms - segment.created_ms
        jitter_ms = segment.roll_jitter_ms
        if jitter_ms is None:
            jitter_ms = self._draw_roll_jitter(segment)
        if waited > config.segment_ms - jitter_ms or not segment.has_room(
            size, last_offset, config.segment_bytes, config.segment_index_bytes
        ):
            self.roll(now_ms)

    def _draw_roll_jitter(self, segment: Segment) -> int:
        """Draw the segment's jitter. Without a configured jitter no number is drawn, because that would change a seeded run."""
        limit = min(self.config.segment_jitter_ms, self.config.segment_ms)
        jitter_ms = self.random.randrange(limit) if limit and self.random is not None else 0
        segment.roll_jitter_ms = jitter_ms
        return jitter_ms

    def roll(self, now_ms: int | None = None) -> None:
        """Begin a new segment, unless the last one is still empty."""
        old = self.segments[-1]
        if not old.size:
            return
        old.save_indexes()
        save_aborted(self, old)
        created_ms = old.created_ms if now_ms is None else now_ms
        self.segments.append(Segment.create(self.files, self.dir, self.log_end_offset, created_ms))
        self.unsynced[self.dir] = None
        self.save_producers()

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, end_offset: int, *, min_one: bool = True, may_block: bool = True) -> LogRead:
        """Read whole batches, from the one that contains `offset` up to `end_offset` (exclusive: HW, LSO or LEO).

        The result has at most `max_bytes`, but with `min_one` at least one batch, even if it is larger. Raises
        OFFSET_OUT_OF_RANGE outside the log, CORRUPT_MESSAGE at a damaged batch, and ColdRead if the bytes are not in the page
        cache and `may_block` is False."""
        return log_read.read(self, offset, max_bytes, end_offset, min_one, may_block)

    def aborted_transactions(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that have offsets within `offset` to `end_offset` (exclusive), in the order of their first
        offsets. A reader of committed records drops their records."""
        return collect_aborted(self, offset, end_offset)

    def offset_for_timestamp(self, timestamp_ms: int, searches: BatchSearches | None = None) -> tuple[int, int, int] | None:
        """Find the first record at or after `timestamp_ms`; returns (timestamp, offset, leader epoch), or None if there is
        none. With `searches`, raises SlowSearch instead of decoding a compressed batch."""
        return log_read.offset_for_timestamp(self, timestamp_ms, searches)

    def max_timestamp_offset(self, searches: BatchSearches | None = None) -> tuple[int, int, int] | None:
        """Find the first record with the newest timestamp; returns (timestamp, offset, leader epoch), or None for an empty
        log. `searches` as in `offset_for_timestamp`."""
        return log_read.max_timestamp_offset(self, searches)

    # -- offsets and epochs ---------------------------------------------------------------------------------------

    def update_high_watermark(self, high_watermark: int) -> bool:
        """Raise the HW, at most to the LEO. False if it did not change; it is never lowered here (I10)."""
        high_watermark = min(high_watermark, self.log_end_offset)
        if high_watermark <= self.high_watermark:
            return False
        self.high_watermark = high_watermark
        return True

    def increment_log_start_offset(self, offset: int) -> bool:
        """Raise the log start to `offset`, at most to the HW. False if it did not change.

        Records below it are no longer readable; `delete_old_segments` removes their segments."""
        offset = min(offset, self.high_watermark)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return True

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch that the log knows; -1 if there is none."""
        return self.epochs.latest_epoch

    def assign_epoch_start_offset(self, epoch: int, offset: int) -> None:
        """Record that `epoch` begins at `offset`. A new leader calls it with its LEO before it serves requests."""
        epochs = self.epochs
        latest = epochs.latest_epoch
        if epoch > latest:
            epochs.assign(epoch, offset)
        elif epoch < latest and epochs.latest_start >= offset:
            # Epochs that wrote no record here give way to an older epoch that did.
            epochs.truncate_from_end(offset)
            epochs.assign(epoch, offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest known epoch <= `epoch` and its exclusive end offset; (-1, -1) if `epoch` is newer than all known
        epochs. If it is older than all: `epoch` and the start of the oldest known one."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def truncate_to(self, offset: int) -> bool:
        """Truncate the log to `offset`, or to the start of the batch that contains it. Returns False if no record was removed.

        Epochs that began at or after `offset` are dropped in any case (KAFKA-10706). Raises DamagedBatch if a batch below
        `offset` cannot be read; then only `corrupt_at` has changed."""
        with self._take_offline_on_error():
            return truncation.truncate_to(self, offset)

    def end_after_truncation(self, offset: int) -> int:
        """The log end that `truncate_to(offset)` would produce. Changes nothing; raises what `truncate_to` raises."""
        with self._take_offline_on_error():
            return truncation.end_after_truncation(self, offset)

    def truncate_fully_and_start_at(self, offset: int, producers: ProducerStates | None = None) -> None:
        """Drop all batches; the empty log continues at `offset`. `producers`: states of producers whose batches all lie before
        it."""
        with self._take_offline_on_error():
            truncation.truncate_fully_and_start_at(self, offset, ProducerStates() if producers is None else producers)

    # -- durability -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """fsync everything that is not durable yet. An error takes the directory offline, because no later fsync proves
        anything."""
        self._check_flushable()
        with self.metrics.flushing(), self._take_offline_on_error():
            for segment in self.segments[self.segment_for(self.recovery_point) :]:
                segment.file.fsync()
            self.sync_names()
        self.on_all_flushed()

    def unflushed_paths(self) -> list[str]:
        """The files and directories that `flush` would fsync."""
        segments = self.segments[self.segment_for(self.recovery_point) :] if self.recovery_point < self.log_end_offset else []
        return [segment.file.path for segment in segments] + list(self.unsynced)

    def on_all_flushed(self) -> None:
        """Called when all paths that `unflushed_paths` returned are flushed. Nothing may have changed in between."""
        self.unsynced.clear()
        self.recovery_point = self.log_end_offset
        self.dirty_since_ms = None

    def rewrite_from(self, offset: int) -> None:
        """Write the segments from the one with `offset` on again, as they are read, so that the next flush makes them durable.

        Needed if the process that wrote the log may have ended with a failed fsync. The kernel has then marked the dirty pages as
        clean: reads still return their bytes while they are in the page cache, but no fsync writes them.

        Raises DamagedBatch if a batch reads differently from what this log holds; that batch is not written.
        """
        self.recovery_point = min(self.recovery_point, offset)
        with self._take_offline_on_error():
            for segment in self.segments[self.segment_for(offset) :]:
                rewrite_segment(self, segment)

    def sync_names(self) -> None:
        """fsync the directories and small files in `unsynced`."""
        for path in list(self.unsynced):
            self.files.fsync_path(path)
        self.unsynced.clear()

    def maybe_flush(self, now_ms: int) -> bool:
        """Flush if `flush.ms` has passed since the first unflushed append. Called by a timer of the broker."""
        if self.dirty_since_ms is None or now_ms - self.dirty_since_ms < self.config.flush_ms:
            return False
        self.flush()
        return True

    def flush_work(self, *, with_last: bool = False) -> FlushWork | None:
        """Return the closed segments above the recovery point; `with_last`: also the last one, as it is now. The caller fsyncs
        them on a thread, then calls `on_flushed`. None if there are none."""
        end = self.log_end_offset if with_last else self.segments[-1].base_offset
        if self.recovery_point >= end or self.failure.error is not None:
            return None
        segments = self.segments[self.segment_for(self.recovery_point) : None if with_last else -1]
        paths = [segment.file.path for segment in segments] + list(self.unsynced)
        return FlushWork(self.files, paths, end, self.truncations, self.metrics.stopwatch, [])

    def on_flushed(self, work: FlushWork) -> None:
        """Raise the recovery point after `work.run()`, unless the log was truncated meanwhile."""
        self.metrics.on_flushed(work.took_s)
        if work.truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, min(work.end_offset, self.log_end_offset))

    def _check_flushable(self) -> None:
        if self.failure.error is not None:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory is offline: {self.failure.error}")

    # -- moving to another directory ------------------------------------------------------------------------------

    def take_over(self, other: Log) -> None:
        """Take over the settings of `other`, of whose records this log is a complete copy, and the state that it keeps beside the
        batches. Raises DiskError."""
        self.config, self.producers = other.config, other.producers
        self.log_start_offset, self.high_watermark = other.log_start_offset, other.high_watermark
        self.first_dirty_offset = other.first_dirty_offset
        self.tombstones_removed_below = other.tombstones_removed_below
        self.superseded_below = other.superseded_below
        self.possible_data_loss = other.possible_data_loss
        self.future_timestamp_ms, self.dirty_since_ms = other.future_timestamp_ms, other.dirty_since_ms
        self.epochs = LeaderEpochCache(other.epochs.entries, self.save_epochs)
        self.save_epochs()

    def relocate(self, dir: str) -> None:
        """Close the descriptors, and open the files in `dir` from now on, because the log's directory is about to be renamed to
        it."""
        before, self.dir = self.dir, dir
        for segment in self.segments:
            segment.relocate(dir)
        self.unsynced = {dir + path.removeprefix(before) if path.startswith(before) else path: None for path in self.unsynced}

    # -- life -----------------------------------------------------------------------------------------------------

    def delete_old_segments(self, now_ms: int) -> list[str]:
        """Apply retention: remove segments that are too old, exceed the size limit, or lie below the log start.

        Segments that end above the HW stay. If no segment would be left, the log begins a new one first. Returns the paths of the
        renamed files; the caller unlinks them outside the event loop, because that may be slow."""
        with self._take_offline_on_error():
            count = retention.deletable(self, now_ms)
            self.future_timestamp_ms = retention.future_timestamp(self, count, now_ms)
            if count == len(self.segments):
                self.roll(now_ms)
            return retention.delete_segments(self, count)

    def replace_segments(self, old: Sequence[Segment], cleaned: CleanedSegment, truncations: int) -> list[str]:
        """Put the rewritten segment in the place of consecutive closed ones. Returns the paths of the renamed old files, which
        the caller unlinks outside the event loop.

        The caller raises `superseded_below`, and `tombstones_removed_below` if the rewritten segment lacks tombstones, and makes
        them durable first.
        `truncations`: the log's count when the cleaning began. Raises CleaningAborted if the log was truncated or the segments
        were deleted since then; nothing has changed then, and the caller removes the rewritten files."""
        with self._take_offline_on_error():
            return replacement.replace_segments(self, old, cleaned, truncations)

    def drop_indexes(self) -> None:
        """Free the indexes of all segments but the last; they are loaded again when needed. They take 5 MB per GiB of log."""
        with self._take_offline_on_error():
            for segment in self.segments[:-1]:
                segment.drop_indexes()

    def expire_producers(self, now_ms: int, knows_name: Callable[[int], bool] = _no_name) -> None:
        """Forget producers that wrote nothing for `producer.id.expiration.ms`. A named producer is kept while `knows_name` of its
        number is true."""
        self.producers.transactions.first_unstable(self.high_watermark)  # forgets the markers that are committed by now
        self.producers.expire(now_ms, self.config.producer_id_expiration_ms, knows_name)

    def close(self) -> None:
        """Close in order: flush, and save indexes and producer states, so that the next open need not scan."""
        if self.failure.error is None:
            with self._take_offline_on_error():
                self._close_orderly()
        self.abandon()

    def _close_orderly(self) -> None:
        for segment in self.segments:
            segment.save_indexes()
            save_aborted(self, segment)
        if self.log_end_offset > self.log_start_offset or len(self.producers) or self.producers.fences:
            self.save_producers()
        if self.recovery_point < self.log_end_offset or self.unsynced:
            self.flush()

    def abandon(self) -> None:
        """Release file descriptors and memory without writing to the disk."""
        self.tail.clear()
        self.cursors.clear()
        for segment in self.segments:
            segment.file.close()

    def delete(self) -> None:
        """Remove the log and its directory. May be slow; `LogDir.delete_log` only renames it, and a thread removes it."""
        self.abandon()
        self.files.remove_tree(self.dir)
