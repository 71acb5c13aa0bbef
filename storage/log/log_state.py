"""The state of one log, and the operations on it that reading, truncation, retention and recovery share.

The functions of `log_read.py`, `truncation.py`, `retention.py`, `recovery.py` and `producer_recovery.py` take a `LogState`.
`Log` (`log.py`) derives from it, adds appending and flushing, and is what the other rooms use.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Never

from strandline.protocol.loggers import get_logger
from strandline.storage.checkpoints import LEADER_EPOCHS, LeaderEpochCheckpoint
from strandline.storage.disk import DiskError, Files, join, parent
from strandline.storage.log.epoch_cache import LeaderEpochCache
from strandline.storage.log.flushing import DirFailure
from strandline.storage.log.log_config import LogConfig
from strandline.storage.log.producer_state import ProducerStates
from strandline.storage.log.segment import SNAPSHOT_SUFFIX, Segment, file_name
from strandline.storage.log.tail import RecentTail, TailBudget
from strandline.storage.log.transaction_index import TRANSACTION_INDEX_SUFFIX
from strandline.storage.metrics import LogMetrics

logger = get_logger(__name__)


class LogState:
    """The state of one log: its offsets, its segments, and the leader epochs and producer states derived from its batches."""

    def __init__(
        self, files: Files, dir: str, topic: str, partition: int, topic_id: bytes, config: LogConfig, budget: TailBudget
    ) -> None:
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
        """Records below this offset are committed. log start <= HW <= LEO; only a truncation lowers it."""
        self.recovery_point = 0
        """Records below this offset are durable. Never above the LEO."""
        self.first_dirty_offset = 0
        """Every record below this offset is clean: no record below it is superseded by another one below it. The next cleaning of
        the log begins here. An offset outside the log counts as the log start."""
        self.tombstones_removed_below = 0
        """Every tombstone that a cleaner (here, or on the leader that the records were copied from) has removed because its
        delete horizon had passed lies below this offset; and so does every marker of a transaction. It is durable before the
        tombstone vanishes. A replica whose log ends below it may hold values that such a tombstone has deleted, or records of a
        transaction that such a marker has ended."""
        self.superseded_below = 0
        """Every record that the cleaner has removed here because a newer record of its key superseded it was superseded by one
        below this offset. It is durable before the older record vanishes, and a truncation does not lower it: a log that ends
        below it has lost newer records, and may lack the last value of a key, which was removed because of them. Only a leader
        lowers it, because no replica has more than a leader, and a log that starts over."""
        self.corrupt_at: int | None = None
        """The offset of the first batch known to be damaged. Nothing at or above it is served."""
        self.possible_data_loss = False
        """Whether acknowledged records may be missing here: the log was opened with less than it had (a torn tail, an end below
        its own HW, an empty new directory), or the page cache may have been lost. The partition sets it to False when it becomes
        a follower of a leader, or a leader that has logged the possible loss."""
        self.segments: list[Segment] = []
        """Ordered by base offset, at least one. Only the last one is appended to."""
        self.epochs = LeaderEpochCache()
        self.producers = ProducerStates()
        self.tail = RecentTail(budget)
        self.cursors: dict[int, tuple[Segment, int]] = {}
        """Where sequential reads of old segments continue: next offset -> segment and position in its file."""
        self.future_timestamp_ms = -1
        """A timestamp in the future that keeps the oldest segment from being deleted by age, as of the last retention check; -1
        if there is none."""
        self.failure = DirFailure()
        self.metrics = LogMetrics()
        self.random: Random | None = None
        """The source of the segments' jitter; None: no segment has any."""
        self.unsynced: dict[str, None] = {}
        """Directories and small files that the next flush must fsync before the recovery point may rely on them."""
        self.truncations = 0
        """Number of truncations so far. A flush on a thread, or a cleaning, compares it to detect a truncation in between."""
        self.lowest_cut: int | None = None
        """The lowest log end that truncations have left since a copier of the log last reset this to None; -1 if one of them
        dropped the whole log. A copy that ends above it has records that this log no longer has."""
        self.is_being_moved = False
        """Whether the log is being copied to another directory. No round of the log cleaner begins then: a copy with segments
        from before and after a round could lack a tombstone and still hold the value that the tombstone deletes."""
        self.is_being_cleaned = False
        """Whether a round of the log cleaner is under way. Retention waits for its end, because a round ends without a result if
        its segments are deleted: a large log with frequent deletions would never become clean."""
        self.dirty_since_ms: int | None = None
        """The time (ms) of the first append after the last flush. It is kept only if `flush.ms` is set."""
        self.on_lowered: Callable[[], None] | None = None
        """Called when a truncation has lowered the recovery point or the HW, before the next append. The owner then rewrites the
        checkpoints on the disk, which must not cover offsets that later records will get."""

    @property
    def fields(self) -> dict[str, object]:
        """Fields of every log line about this log. A log has no role, so the leader epoch is that of its newest batch."""
        return {
            "topic": self.name,
            "partition": self.partition,
            "leader_epoch": self.epochs.latest_epoch,
            "log_start_offset": self.log_start_offset,
            "high_watermark": self.high_watermark,
            "log_end_offset": self.log_end_offset,
        }

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def segments_with_ends(self) -> Iterator[tuple[Segment, int]]:
        """Each segment with its exclusive end offset."""
        ends = [segment.base_offset for segment in self.segments[1:]]
        return zip(self.segments, [*ends, self.log_end_offset], strict=True)

    @property
    def last_stable_offset(self) -> int:
        """LSO: below it, no record belongs to a transaction that is open, or whose marker is not committed. At most the HW."""
        high_watermark = self.high_watermark
        transactions = self.producers.transactions
        return max(transactions.first_unstable(high_watermark), self.log_start_offset) if transactions else high_watermark

    def segment_for(self, offset: int) -> int:
        """The index in `segments` of the segment that holds `offset`; 0 for offsets below the first segment."""
        return max(0, bisect_right(self.segments, offset, key=_base_offset) - 1)

    def remove_files(self, segment: Segment, *, is_rewritten: bool = False) -> list[str]:
        """Rename the segment's files, as `Segment.remove` does. The next flush does not look for them."""
        if segment.aborted is not None and not is_rewritten:
            self.unsynced.pop(segment.path(TRANSACTION_INDEX_SUFFIX), None)
        return segment.remove(is_rewritten=is_rewritten)

    def mark_corrupt(self, offset: int, reason: str = "not a valid batch") -> None:
        """Record that the batch at `offset` is damaged. The lowest such offset counts."""
        if self.corrupt_at is None or offset < self.corrupt_at:
            self.corrupt_at = offset
            self.metrics.corrupt_ranges += 1
            logger.error("log.damaged", **self.fields, offset=offset, path=self.dir, reason=reason)

    # -- files beside the segments ------------------------------------------------------------------------------------

    def save_epochs(self) -> None:
        """Write the epoch checkpoint. The next flush makes it durable."""
        path = join(self.dir, LEADER_EPOCHS)
        with self._take_offline_on_error():
            self.files.write(path, LeaderEpochCheckpoint.encode(self.epochs.entries))
        self.unsynced[path] = None
        self.unsynced[self.dir] = None

    def save_producers(self) -> None:
        """Write a snapshot of the producer states at the log end, without an fsync.

        If the log has no batch, the snapshot takes the place of the one that `save_named_producers` has made durable, so it must
        be as durable."""
        path = join(self.dir, file_name(self.log_end_offset, SNAPSHOT_SUFFIX))
        is_only_source = self.log_end_offset == self.segments[0].base_offset and self.producers.outlives_batches
        write = self.files.write_atomic if is_only_source else self.files.write
        write(path, self.producers.encode())

    def save_named_producers(self, producers: ProducerStates, start: int) -> None:
        """Write `producers` durably as the snapshot at `start`, if they have a named producer or a fence.

        A log that starts at `start` has no batch of these producers, so after any stop only this snapshot has their states."""
        if producers.outlives_batches:
            path = join(self.dir, file_name(start, SNAPSHOT_SUFFIX))
            self.files.write_atomic(path, producers.encode())

    # -- disk errors --------------------------------------------------------------------------------------------------

    @contextmanager
    def _take_offline_on_error(self) -> Iterator[None]:
        try:
            yield
        except DiskError as e:
            self._fail(e)

    def _fail(self, e: DiskError) -> Never:
        """Take the log directory offline and raise `e`. Only a recovery can find what the failed operation left on the disk."""
        if self.failure.error is None:
            self.failure.error = e
            logger.error("log_dir.failed", log_dir=parent(self.dir), operation=e.operation, path=e.path, reason=str(e))
        raise e


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
