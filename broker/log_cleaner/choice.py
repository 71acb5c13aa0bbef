"""Which log is cleaned next. Pure.

    clean                    | dirty                          | not cleanable
    cleaned before           | closed segments                | the open segment, records above the HW, and segments with
    0                  first dirty                           end   records that are younger than min.compaction.lag.ms

A log is due if more than `min.cleanable.dirty.ratio` of its clean and dirty bytes are dirty, or if a dirty segment is older than
`max.compaction.lag.ms`, or if a round on it was cut short after it had removed tombstones. The order: first logs whose round was
cut short, because replicas that copy them have to wait for it; then the log that is overdue for longest; then the dirtiest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from strandline.protocol.errors import BrokerError
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.cleaner.cleaning import ClosedSegment, closed_segments, within
from strandline.storage.log.log_state import LogState
from strandline.storage.log.retention import newest_timestamp
from strandline.storage.log.segment import Segment


class LogToClean(NamedTuple):
    """A compacted log and how dirty it is."""

    key: TopicIdPartition
    log: LogState
    first_dirty: int
    end: int
    """No segment that ends after this offset is cleaned."""
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    """For how long a dirty segment has been older than `max.compaction.lag.ms`; 0 if none is."""
    was_cut_short: bool
    """Whether tombstones above the first dirty offset were removed, by a round that ended early here or on the leader. Replicas
    that copy the log wait for the next round."""

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        is_dirty_enough = self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio
        return self.dirty_bytes > 0 and (is_dirty_enough or self.overdue_ms > 0 or self.was_cut_short)

    @property
    def rank(self) -> tuple[bool, int, float]:
        return self.was_cut_short, self.overdue_ms, self.dirty_ratio


def assess(key: TopicIdPartition, log: LogState, now_ms: int) -> LogToClean:
    """Find out how dirty a log is. May read the ends of indexes and a batch header. Raises `DiskError`."""
    first_dirty = within(log, log.first_dirty_offset)
    end = _end_of_old_records(log, first_dirty, now_ms)
    closed = closed_segments(log, end)
    dirty = [each for each in closed if each.end_offset > first_dirty]
    return LogToClean(
        key,
        log,
        first_dirty,
        end,
        sum(each.size for each in closed if each.end_offset <= first_dirty),
        sum(each.size for each in dirty),
        _overdue_ms(log, dirty, now_ms),
        log.tombstones_removed_below > first_dirty,
    )


def choose(logs: Iterable[LogToClean]) -> LogToClean | None:
    """The log to clean next; None if none is due."""
    return max((each for each in logs if each.is_due), key=lambda each: (each.rank, each.key), default=None)


def _end_of_old_records(log: LogState, first_dirty: int, now_ms: int) -> int:
    """The base offset of the first dirty segment with a record that is younger than `min.compaction.lag.ms`; the log end if there
    is none."""
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for each in closed_segments(log):
            if each.end_offset > first_dirty and newest_timestamp(each.segment) > now_ms - lag_ms:
                return each.base_offset
    return log.log_end_offset


def _overdue_ms(log: LogState, dirty: list[ClosedSegment], now_ms: int) -> int:
    oldest = now_ms - log.config.max_compaction_lag_ms
    if oldest <= 0:
        return 0
    firsts = [first for each in dirty if (first := _first_timestamp(each.segment)) > 0]
    return max(0, oldest - min(firsts)) if firsts else 0


def _first_timestamp(segment: Segment) -> int:
    """The newest timestamp of the segment's first batch; -1 if it has none or cannot be read."""
    if segment.first_timestamp < 0 and segment.size:
        try:
            segment.first_timestamp = segment.header_at(0).max_timestamp
        except BrokerError:
            return -1  # the cleaning finds the damage
    return segment.first_timestamp
