"""The scan of a log after an unclean stop: every batch from the recovery point on is read and checked.

A batch is accepted if it has exactly the next offset, an epoch that the epoch checkpoint allows, and the right CRC. Indexes
and epochs are rebuilt on the way. `recovery.py` says what happens at a batch that is not accepted.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from strandline.protocol.errors import BrokerError
from strandline.protocol.loggers import get_logger
from strandline.protocol.records.batch import HEADER_SIZE, BatchHeader, check_crc
from strandline.storage.log.batch_iteration import iter_batches
from strandline.storage.log.epoch_cache import LeaderEpochCache
from strandline.storage.log.index import MAX_RELATIVE_OFFSET
from strandline.storage.log.log_state import LogState
from strandline.storage.log.segment import DamagedBatch, Segment, unexpected

logger = get_logger(__name__)

_CHUNK = 1 << 20
_SEARCH_MAX = 64 << 20
"""Number of bytes after a damaged batch that are searched for a valid one: more than the largest batch has."""
_OFFSETS_END = 2**63
"""The offset after the highest one that a batch can have."""

Place = tuple[int, int]
"""Index of a segment, and a position in its file."""


def scan(log: LogState, checkpoint: list[tuple[int, int]] | None, keep_below: int) -> None:
    """Scan the log from its recovery point on, or from its start if `checkpoint` (epoch, start offset) is None.

    Raises DamagedBatch for a damage below `keep_below`; then no file has changed."""
    rejected: set[Place] = set()
    while True:
        try:
            _Scan(log, checkpoint, rejected, keep_below).run()
            return
        except _FalseEpoch as e:
            rejected.add(e.place)
        except _CheckpointDamaged:
            logger.warning("log.epochs_damaged", **log.fields)
            checkpoint = None


class _FalseEpoch(Exception):
    """The batch at `place` began a new epoch, but the batches after it have an older one: its epoch field is damaged."""

    def __init__(self, place: Place) -> None:
        self.place = place


class _CheckpointDamaged(Exception):
    """According to the epoch checkpoint an epoch begins inside a batch, which no log can have written."""


@dataclass(frozen=True, slots=True)
class _Damage:
    index: int
    """Index of the segment."""
    position: int
    offset: int
    """The offset that was expected at `position`."""
    reason: str


class _EpochStart(NamedTuple):
    """The first batch of an epoch that the checkpoint does not know."""

    place: Place
    previous_epoch: int


class _Scan:
    """One pass over the batches."""

    def __init__(self, log: LogState, checkpoint: list[tuple[int, int]] | None, rejected: set[Place], keep_below: int) -> None:
        self.log = log
        self.keep_below = keep_below
        self.known = LeaderEpochCache(checkpoint or ())
        """The epochs of the checkpoint, to compare the batches with."""
        self.starts = [start for _, start in self.known.entries]
        self.rejected = rejected
        """Batches that earlier passes found to have a damaged epoch."""
        self.first = log.segment_for(log.recovery_point) if checkpoint is not None else 0
        self.expected = log.segments[self.first].base_offset
        """The offset that the next batch must have."""
        self.epoch = self.known.epoch_for_offset(self.expected - 1)
        """The epoch of the last accepted batch."""
        self.newest_start: _EpochStart | None = None
        self.after_gap: Place | None = None
        """The batch after the last gap in the offsets, as Apache Kafka's cleaner leaves them; None if no gap was found."""

    def run(self) -> None:
        log = self.log
        log.corrupt_at = None
        log.epochs = LeaderEpochCache(self.known.entries)
        index, position = self.first, 0
        log.segments[index].start_indexes()
        while True:
            damage = self._scan_segment(index, position)
            if damage is None:
                index, position = index + 1, 0
                if index == len(log.segments):
                    break
                log.segments[index].start_indexes()
                continue
            resumed = self._handle(damage)
            if resumed is None:
                break
            for skipped in range(index + 1, resumed[0] + 1):
                log.segments[skipped].start_indexes()
            index, position = resumed
        for segment in log.segments[self.first : -1]:
            segment.save_indexes()
        log.log_end_offset = self.expected

    def _scan_segment(self, index: int, position: int) -> _Damage | None:
        """Accept the segment's batches from `position` on; returns the first damage, None if there is none."""
        log, segment = self.log, self.log.segments[index]
        if not position and segment.base_offset != self.expected and self.after_gap != (index, 0):
            return _Damage(index, 0, self.expected, f"the segment starts at {segment.base_offset}")
        interval = log.config.index_interval_bytes
        try:
            for at, header, data, inside in iter_batches(segment, position):
                position = at
                reason = self._problem((index, at), header, data, inside)
                if reason:
                    return _Damage(index, at, self.expected, reason)
                segment.note(header.last_offset, at, header.size, header.max_timestamp, interval)
                self._accept((index, at), header)
                position = at + header.size
        except BrokerError as e:
            return _Damage(index, position, self.expected, str(e))
        return None

    def _problem(self, place: Place, header: BatchHeader, data: memoryview, inside: int) -> str:
        """Why the batch is not the log's next one; empty if it is."""
        if header.base_offset != self.expected:
            return f"base offset {header.base_offset}"
        if not check_crc(data, inside, header.size):
            return "checksum"
        # The epoch that the checkpoint has at the log start may begin inside a batch: DeleteRecords chooses any offset.
        following = bisect_right(self.starts, max(header.base_offset, self.log.log_start_offset))
        if following < len(self.starts) and self.starts[following] <= header.last_offset:
            raise _CheckpointDamaged
        if place in self.rejected:
            return f"leader epoch {header.leader_epoch}"
        known = self.known.epoch_for_offset(self.expected)
        closed = self.known.latest_start > self.expected
        if known >= 0 and (header.leader_epoch < known or (closed and header.leader_epoch > known)):
            return f"leader epoch {header.leader_epoch}, the checkpoint has {known}"
        if header.leader_epoch < self.epoch:
            if self.newest_start is not None and header.leader_epoch >= self.newest_start.previous_epoch:
                raise _FalseEpoch(self.newest_start.place)
            return f"leader epoch {header.leader_epoch} after {self.epoch}"
        return ""

    def _accept(self, place: Place, header: BatchHeader) -> None:
        if header.leader_epoch > self.epoch:
            if header.leader_epoch > self.log.epochs.latest_epoch:
                self.newest_start = _EpochStart(place, self.epoch)
                self.log.epochs.assign(header.leader_epoch, header.base_offset)
            self.epoch = header.leader_epoch
        self.expected = header.next_offset

    # -- damage -------------------------------------------------------------------------------------------------------

    def _handle(self, damage: _Damage) -> Place | None:
        """Cut the log at the damage and return None, or mark it as corrupt and return where the scan continues."""
        log = self.log
        if damage.offset < self.keep_below:
            raise DamagedBatch(damage.position, damage.offset, damage.reason)
        first = self._batch_after_gap(damage)
        if first is not None:
            return self._skip_gap(damage, first)
        following = self._next_valid(damage)
        offset, reason = damage.offset, damage.reason
        if following is None or damage.offset >= max(log.recovery_point, log.high_watermark):
            segment = log.segments[damage.index].base_offset
            log.possible_data_loss = True
            logger.warning("log.tail_cut_in_recovery", **log.fields, offset=offset, segment=segment, reason=reason)
            self._cut(damage)
            return None
        place, header = following
        log.mark_corrupt(damage.offset)
        logger.error("log.damaged_below_hw", **log.fields, offset=offset, valid_again_at=header.base_offset, reason=reason)
        self.expected = header.base_offset
        self.epoch = min(self.epoch, header.leader_epoch)
        return place

    def _batch_after_gap(self, damage: _Damage) -> BatchHeader | None:
        """The batch after a gap in the offsets, as Apache Kafka's cleaner leaves them; None if no gap but damage was found.

        The checksum does not cover the base offset. If only that were damaged, the batch after it would begin below its end."""
        segments, segment = self.log.segments, self.log.segments[damage.index]
        try:
            header = segment.header_at(damage.position)
            end = damage.position + header.size
            if end < segment.size:
                following = segment.header_at(end).base_offset
            elif damage.index + 1 < len(segments):
                following = segments[damage.index + 1].base_offset
            else:
                following = -1 if self.after_gap is None else _OFFSETS_END
        except BrokerError:
            return None
        # A segment that has lost its end is also followed by another segment. It counts as a gap only in a log with other gaps.
        is_placed = damage.position > 0 or segment.base_offset == damage.offset or self.after_gap is not None
        is_gap = is_placed and damage.offset < header.base_offset <= header.last_offset < following
        return header if is_gap and check_crc(segment.file.pread(header.size, damage.position), 0, header.size) else None

    def _skip_gap(self, damage: _Damage, header: BatchHeader) -> Place:
        """Keep the batches after a gap. The log is not served from the gap on, because its readers expect every offset."""
        log, place = self.log, (damage.index, damage.position)
        reason = unexpected(header.base_offset, damage.offset)
        log.mark_corrupt(damage.offset, reason)
        logger.error("log.gap_found", **log.fields, offset=damage.offset, valid_again_at=header.base_offset, reason=reason)
        self.expected, self.after_gap = header.base_offset, place
        return place

    def _cut(self, damage: _Damage) -> None:
        log = self.log
        kept = damage.index + 1
        if not damage.position and damage.index > self.first:
            kept = damage.index  # This segment keeps no batch, and the log ends where the one before it ends.
        while len(log.segments) > kept:
            for path in log.segments.pop().remove():
                log.files.remove(path)
        if kept > damage.index:
            file = log.segments[damage.index].file
            file.truncate(damage.position)
            file.fsync()  # As in `truncation.py`: a later append must not mix with the bytes that were cut.
        log.recovery_point = min(log.recovery_point, log.segments[-1].base_offset)  # as after any other cut

    def _next_valid(self, damage: _Damage) -> tuple[Place, BatchHeader] | None:
        """The first valid batch after the damage, in the same segment or in a later one."""
        segments = self.log.segments
        for index in range(damage.index, len(segments)):
            segment = segments[index]
            is_before = segment.base_offset <= damage.offset
            position = damage.position + 1 if index == damage.index and is_before else 0
            end = segments[index + 1].base_offset if index + 1 < len(segments) else _OFFSETS_END
            found = _search(segment, position, damage.offset, end)
            if found is not None:
                return (index, found[0]), found[1]
        return None


def _search(segment: Segment, position: int, after: int, end: int) -> tuple[int, BatchHeader] | None:
    """The first valid batch from `position` on, and its position.

    Its bytes must look like a header (one of the possible high halves of the offset, non-negative length and epoch, magic), and
    then be as `_valid_at` asks."""
    lowest, highest = segment.base_offset, min(end - 1, segment.base_offset + MAX_RELATIVE_OFFSET)
    highs = b"|".join(re.escape((offset >> 32).to_bytes(4, "big")) for offset in (lowest, highest))
    rest = rb"[\x00-\xff]{4}[\x00-\x7f][\x00-\xff]{3}[\x00-\x7f][\x00-\xff]{3}\x02"
    pattern = re.compile(b"(?=(?:" + highs + b")" + rest + b")")
    stop = min(segment.size, position + _SEARCH_MAX)
    while position < stop:
        data = segment.file.pread(_CHUNK + HEADER_SIZE, position)
        for match in pattern.finditer(data):
            header = _valid_at(segment, position + match.start(), after, highest)
            if header is not None:
                return position + match.start(), header
        position += _CHUNK
    return None


def _valid_at(segment: Segment, position: int, after: int, highest: int) -> BatchHeader | None:
    """Return the batch at `position` if it is whole, has the right CRC and only offsets above `after` and up to `highest`;
    otherwise None. The first batch of a segment must have the segment's base offset, because the CRC does not cover it.

    A filler spans up to 2^31 offsets, and its bytes are few, so the distance from the damage says nothing about a batch."""
    try:
        header = segment.header_at(position)
    except BrokerError:
        return None
    if not after < header.base_offset <= header.last_offset <= highest:
        return None
    if header.base_offset < segment.base_offset or (not position and header.base_offset != segment.base_offset):
        return None
    return header if check_crc(segment.file.pread(header.size, position), 0, header.size) else None
