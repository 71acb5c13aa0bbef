"""Opening a log: what the disk has is taken for true only as far as it can be checked.

After an orderly stop the last segment's end is read from its index on, and that is all. After any other stop the
segments are read batch by batch from the recovery point on; indexes and epochs are built again on the way. The scan
expects the next offset exactly, an epoch that the epoch checkpoint allows, and the right CRC. Where that fails:

- **nothing valid follows**: a torn tail. It is cut off.
- **valid batches follow, and the place was neither flushed nor committed** as far as the checkpoints know: the holes
  of a lost page cache. Cut off here too; what follows was never promised to anybody by this replica alone.
- **valid batches follow, and the place was flushed or committed**: the disk has damaged old data. Nothing is cut;
  `log.corrupt_at` makes it known, and the replica must be repaired from another one (S42).
- **the place must not be cut at all** (`kept_to`: a voter's metadata log): the log is not opened, and left as it is.

Weak spot: base offset, length and leader epoch lie outside of the CRC. The first two are checked by continuity; a leader
epoch that was flipped upwards in the very last batches, beyond the epoch checkpoint's last entry, looks like a new epoch.

Another: what a failed fsync has dropped may be read from the page cache by the next process, and its next flush counts it
as durable. The metadata log, of which every promise rests on fsync, is therefore written again (`Log.write_again`); a
data log, whose promises rest on its replicas, is not: it could be gigabytes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.protocol.errors import BrokerError
from strandline.protocol.loggers import get_logger
from strandline.protocol.records.batch import HEADER_SIZE, BatchHeader, check_crc
from strandline.storage.checkpoints import LEADER_EPOCHS, LeaderEpochCheckpoint, read_if_present
from strandline.storage.disk import join, parent
from strandline.storage.log.epoch_cache import LeaderEpochCache
from strandline.storage.log.producer_state import ProducerStates
from strandline.storage.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    DamagedBatch,
    Segment,
    parse_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strandline.storage.log.log import Log

logger = get_logger(__name__)

_OURS = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.snapshot)\Z", re.ASCII)
_LEFT_OVER = re.compile(r"(\d{20}\.\w+\.(deleted|tmp)|(leader-epoch-checkpoint|partition\.metadata)\.tmp)\Z", re.ASCII)
_CHUNK = 1 << 20
_SEARCH_MAX = 64 << 20
"""How far behind a damage a valid batch is searched for: more than any batch is long."""


def load(log: Log, *, clean_shutdown: bool, kept_to: int, now_ms: int) -> None:
    """Fill a new `Log` from its directory, or begin one."""
    files = log.files
    fresh = not files.exists(log.dir)
    if fresh:
        files.make_dirs(log.dir)
    names = [] if fresh else files.list(log.dir)
    _remove_leftovers(log, names)
    empty = _open_segments(log, names, now_ms)
    checkpoint = None if fresh else _load_epochs(log, empty=empty, clean=clean_shutdown)
    log.epochs = LeaderEpochCache(checkpoint or ())
    if not empty and not (clean_shutdown and checkpoint is not None and _load_clean(log)):
        _recover(log, checkpoint, kept_to)
    if empty or not clean_shutdown:
        # What a killed process has created may still be in the page cache only: the next flush has to cover the names.
        log.unsynced[log.dir] = log.unsynced[parent(log.dir)] = None
        if checkpoint is not None:
            log.unsynced[join(log.dir, LEADER_EPOCHS)] = None
    _settle(log, checkpoint, names, trust_snapshots=clean_shutdown)


def _settle(log: Log, checkpoint: list[tuple[int, int]] | None, names: list[str], *, trust_snapshots: bool) -> None:
    """Bring the offsets from the checkpoints into order with what was found."""
    end = log.log_end_offset
    if end < log.log_start_offset:
        _start_over(log)
        end = log.log_end_offset
    log.log_start_offset = max(log.log_start_offset, log.segments[0].base_offset)
    log.possible_data_loss |= end < log.high_watermark
    log.high_watermark = min(max(log.high_watermark, log.log_start_offset), end)
    trusted_to = end if trust_snapshots else min(log.recovery_point, end)
    log.recovery_point = min(log.recovery_point, end)
    log.epochs.truncate_from_end(end)
    log.epochs.truncate_from_start(log.log_start_offset)
    log.epochs = LeaderEpochCache(log.epochs.entries, log.save_epochs)
    if log.epochs.entries != (checkpoint or []):
        log.save_epochs()
    if any(name.endswith(SNAPSHOT_SUFFIX) for name in names):
        remove_snapshots(log, above=max(trusted_to, log.segments[0].base_offset))
    if names:
        load_producers(log, trusted_to=trusted_to)
    if any(name.endswith(SNAPSHOT_SUFFIX) for name in names):
        _remove_needless_snapshots(log)


def _start_over(log: Log) -> None:
    """The log ends below its start: all that is left was deleted by its leader before. It goes on, empty, at its start."""
    logger.warning("log.end_raised_to_start", **log.fields)
    for segment in log.segments:
        for path in segment.remove():
            log.files.remove(path)
    log.segments[:] = [Segment.create(log.files, log.dir, log.log_start_offset, log.segments[-1].created_ms)]
    log.log_end_offset = log.log_start_offset
    log.corrupt_at = None


def _remove_leftovers(log: Log, names: list[str]) -> None:
    """Files on their way out, temporary files, indexes without a segment: ours by their names. Others are left alone."""
    present = set(names)
    for name in names:
        match = _OURS.match(name)
        orphan = match is not None and match[2] in (INDEX_SUFFIX, TIME_INDEX_SUFFIX) and match[1] + LOG_SUFFIX not in present
        if orphan or _LEFT_OVER.match(name):
            log.files.remove(join(log.dir, name))


def _open_segments(log: Log, names: list[str], now_ms: int) -> bool:
    """True when there was none and an empty one was made."""
    bases = [int(match[1]) for name in names if (match := _OURS.match(name)) and match[2] == LOG_SUFFIX]
    for base in sorted(bases):
        log.segments.append(Segment.open(log.files, log.dir, base, now_ms))
    if not log.segments:
        log.segments = [Segment.create(log.files, log.dir, log.log_start_offset, now_ms)]
    log.log_end_offset = log.segments[-1].base_offset
    return not bases


def _load_epochs(log: Log, *, empty: bool, clean: bool) -> list[tuple[int, int]] | None:
    """None when the file is missing or cannot be believed; then the whole log is read again. Nor is it enough when it says
    nothing of the first records: the log's start was moved over them, and after a crash they are back."""
    data = read_if_present(log.files, join(log.dir, LEADER_EPOCHS))
    entries = None if data is None else LeaderEpochCheckpoint.decode(data)
    if entries is None or empty:
        return entries
    start = max(log.log_start_offset, log.segments[0].base_offset)
    if not entries or entries[0][1] > start:
        return None
    if not all(_begins_with_a_batch(log, offset, clean) for _, offset in entries):
        logger.warning("log.epochs_damaged", **log.fields)
        return None
    return entries


def _begins_with_a_batch(log: Log, start: int, clean: bool) -> bool:
    """False for an epoch that begins inside a batch: the file has no checksum, and a digit that has rotted makes another number
    of it. Only where the indexes can be believed; the scan looks at the rest."""
    index = log.segment_for(start)
    segment = log.segments[index]
    if start <= segment.base_offset or not (clean or index < log.segment_for(log.recovery_point)):
        return True
    try:
        found = segment.position_of(start)
    except BrokerError:
        return True  # A damage of the log itself, which is found in its turn.
    return found is None or found[1].base_offset == start


def _load_clean(log: Log) -> bool:
    """Believe the indexes; False when the last segment is not what an orderly stop leaves behind."""
    try:
        log.log_end_offset = log.segments[-1].load_tail()
    except BrokerError as e:
        logger.warning("log.damage_after_clean_shutdown", **log.fields, reason=str(e))
        return False
    return True


# -- the scan -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Damage:
    index: int
    """Of the segment."""
    position: int
    offset: int
    """What was expected there."""
    reason: str


class _Suspect(Exception):
    """A batch that was taken for the first of a new epoch turned out not to be followed by that epoch."""

    def __init__(self, place: tuple[int, int]) -> None:
        self.place = place


class _EpochsDamaged(Exception):
    """An epoch of the checkpoint begins inside a batch: it is of no use."""


def _recover(log: Log, checkpoint: list[tuple[int, int]] | None, kept_to: int) -> None:
    """Read all batches from the recovery point on (all, when the epochs must be found again)."""
    bad: set[tuple[int, int]] = set()
    while True:
        try:
            _Scan(log, checkpoint, bad, kept_to).run()
            return
        except _Suspect as e:
            bad.add(e.place)
        except _EpochsDamaged:
            logger.warning("log.epochs_damaged", **log.fields)
            checkpoint = None


class _Scan:
    """One pass over the batches; see the module's text for what it does where they are damaged."""

    def __init__(self, log: Log, checkpoint: list[tuple[int, int]] | None, bad: set[tuple[int, int]], kept_to: int) -> None:
        self.log = log
        self.kept_to = kept_to
        """Below, damage ends the scan, with the log as it was."""
        self.known = LeaderEpochCache(checkpoint or ())
        """What the checkpoint says, to compare with."""
        self.starts = [start for _, start in self.known.entries]
        self.bad = bad
        self.first = log.segment_for(log.recovery_point) if checkpoint is not None else 0
        self.expected = log.segments[self.first].base_offset
        self.epoch = self.known.epoch_for_offset(self.expected - 1)
        self.suspect: tuple[tuple[int, int], int] | None = None
        """Place of the first batch of an epoch that the checkpoint does not know, and the epoch before it."""

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
            resumed = self._resume(damage)
            if resumed is None:
                break
            if resumed[0] != index:
                for i in range(index + 1, resumed[0] + 1):
                    log.segments[i].start_indexes()
            index, position = resumed
        for segment in log.segments[self.first : -1]:
            segment.save_indexes()
        log.log_end_offset = self.expected

    def _scan_segment(self, index: int, position: int) -> _Damage | None:
        log, segment = self.log, self.log.segments[index]
        if not position and segment.base_offset != self.expected:
            return _Damage(index, 0, self.expected, f"the segment starts at {segment.base_offset}")
        interval = log.config.index_interval_bytes
        try:
            for at, header, data, inside in batches(segment, position):
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

    def _problem(self, place: tuple[int, int], header: BatchHeader, data: memoryview, inside: int) -> str:
        """Why the batch is not the next one of this log; empty when it is."""
        if header.base_offset != self.expected:
            return f"base offset {header.base_offset}"
        if not check_crc(data, inside, header.size):
            return "checksum"
        following = bisect_right(self.starts, header.base_offset)
        if following < len(self.starts) and self.starts[following] <= header.last_offset:
            raise _EpochsDamaged
        if place in self.bad:
            return f"leader epoch {header.leader_epoch}"
        known = self.known.epoch_for_offset(self.expected)
        closed = self.known.latest_start > self.expected
        if known >= 0 and (header.leader_epoch < known or (closed and header.leader_epoch > known)):
            return f"leader epoch {header.leader_epoch}, the checkpoint has {known}"
        if header.leader_epoch < self.epoch:
            if self.suspect is not None and header.leader_epoch >= self.suspect[1]:
                raise _Suspect(self.suspect[0])
            return f"leader epoch {header.leader_epoch} after {self.epoch}"
        return ""

    def _accept(self, place: tuple[int, int], header: BatchHeader) -> None:
        if header.leader_epoch > self.epoch:
            if header.leader_epoch > self.log.epochs.latest_epoch:
                self.suspect = (place, self.epoch)
                self.log.epochs.assign(header.leader_epoch, header.base_offset)
            self.epoch = header.leader_epoch
        self.expected = header.next_offset

    def _resume(self, damage: _Damage) -> tuple[int, int] | None:
        """Decide about a damage: None after cutting the log there; else where the scan goes on behind it."""
        log = self.log
        if damage.offset < self.kept_to:
            raise DamagedBatch(damage.position, damage.offset, damage.reason)
        following = self._next_valid(damage)
        offset, reason = damage.offset, damage.reason
        if following is None or damage.offset >= max(log.recovery_point, log.high_watermark):
            segment = log.segments[damage.index].base_offset
            log.possible_data_loss = True
            logger.warning("log.tail_cut_in_recovery", **log.fields, offset=offset, segment=segment, reason=reason)
            self._cut(damage)
            return None
        log.mark_corrupt(damage.offset)
        valid_again_at = following[2].base_offset
        logger.error("log.damaged_below_hw", **log.fields, offset=offset, valid_again_at=valid_again_at, reason=reason)
        self.expected = following[2].base_offset
        self.epoch = min(self.epoch, following[2].leader_epoch)
        return following[0], following[1]

    def _cut(self, damage: _Damage) -> None:
        log = self.log
        kept = damage.index + 1
        if not damage.position and damage.index > self.first:
            kept = damage.index  # nothing of this segment is left; the one before ends where the log ends
        while len(log.segments) > kept:
            for path in log.segments.pop().remove():
                log.files.remove(path)
        if kept > damage.index:
            file = log.segments[damage.index].file
            file.truncate(damage.position)
            file.fsync()  # as in `truncation.py`: what is appended there must not be mixed with what was
        log.recovery_point = min(log.recovery_point, log.segments[-1].base_offset)  # as after any other cut

    def _next_valid(self, damage: _Damage) -> tuple[int, int, BatchHeader] | None:
        """The first whole batch behind the damage that belongs to this log: in its segment, or at a later one's start."""
        segments = self.log.segments
        if segments[damage.index].base_offset <= damage.offset:
            found = _search(segments[damage.index], damage.position + 1, damage.offset)
            if found is not None:
                return damage.index, found[0], found[1]
        for index in range(damage.index, len(segments)):
            header = _valid_at(segments[index], 0, damage.offset)
            if header is not None and header.base_offset == segments[index].base_offset > damage.offset:
                return index, 0, header
        return None


def batches(segment: Segment, position: int) -> Iterator[tuple[int, BatchHeader, memoryview, int]]:
    """(position, header, buffer, position in the buffer) of every batch from `position` on, read in large pieces."""
    data, start, end = memoryview(b""), position, segment.size
    while position < end:
        if position + HEADER_SIZE > start + len(data):
            data, start = segment.file.pread(_CHUNK, position), position
        header = parse_header(data, position - start, end - position)
        if position + header.size > start + len(data):
            data, start = segment.file.pread(max(_CHUNK, header.size), position), position
        yield position, header, data, position - start
        position += header.size


def whole_batches(log: Log, segment: Segment, bytes_max: int) -> Iterator[tuple[int, int, bytes | None]]:
    """(position, base offset, bytes) of runs of batches, each run about so long; None for the bytes, and the end, where a batch
    is not the next one of this log."""
    run, start, first, expected, size = [], 0, segment.base_offset, segment.base_offset, 0
    try:
        for position, header, data, inside in batches(segment, 0):
            has_epoch = expected < log.log_start_offset or header.leader_epoch == log.epochs.epoch_for_offset(expected)
            if header.base_offset != expected or not has_epoch or not check_crc(data, inside, header.size):
                yield position, expected, None
                return
            run.append(bytes(data[inside : inside + header.size]))
            size, expected = size + header.size, header.next_offset
            if size >= bytes_max:
                yield start, first, b"".join(run)
                run, start, first, size = [], position + header.size, expected, 0
    except BrokerError:
        yield start, expected, None
        return
    if run:
        yield start, first, b"".join(run)


def _valid_at(segment: Segment, position: int, after: int) -> BatchHeader | None:
    """The batch at `position`, when it is whole, has the right CRC and an offset behind `after`."""
    try:
        header = segment.header_at(position)
    except BrokerError:
        return None
    if not after < header.base_offset < after + 2**31:
        return None
    return header if check_crc(segment.file.pread(header.size, position), 0, header.size) else None


def _search(segment: Segment, position: int, after: int) -> tuple[int, BatchHeader] | None:
    """Look for a batch by the look of its header: the high bytes of the offset, a non-negative epoch, the magic."""
    high = (after >> 32).to_bytes(4, "big")
    pattern = re.compile(b"(?=" + re.escape(high) + rb"[\x00-\xff]{4}[\x00-\x7f][\x00-\xff]{3}[\x00-\x7f][\x00-\xff]{3}\x02)")
    end = min(segment.size, position + _SEARCH_MAX)
    while position < end:
        data = segment.file.pread(_CHUNK + HEADER_SIZE, position)
        for match in pattern.finditer(data):
            header = _valid_at(segment, position + match.start(), after)
            if header is not None:
                return position + match.start(), header
        position += _CHUNK
    return None


# -- producer states ----------------------------------------------------------------------------------------------


def snapshot_offsets(log: Log) -> list[int]:
    return [int(m[1]) for name in log.files.list(log.dir) if (m := _OURS.match(name)) and m[2] == SNAPSHOT_SUFFIX]


def remove_snapshots(log: Log, *, above: int) -> None:
    """Snapshots of offsets that the log no longer (or not provably) has."""
    for offset in snapshot_offsets(log):
        if offset > above:
            log.files.remove(join(log.dir, f"{offset:020d}{SNAPSHOT_SUFFIX}"))
            log.unsynced[log.dir] = None


def _remove_needless_snapshots(log: Log) -> None:
    """Every orderly stop leaves one behind: only those of the segments and the newest are of use."""
    offsets = snapshot_offsets(log)
    useful = {segment.base_offset for segment in log.segments} | {max(offsets, default=0)}
    for offset in offsets:
        if offset not in useful:
            log.files.remove(join(log.dir, f"{offset:020d}{SNAPSHOT_SUFFIX}"))


def load_producers(log: Log, *, trusted_to: int) -> None:
    """From the newest believable snapshot, and the headers of the batches behind it.

    One that knows named producers, at the start of the first segment, is to be believed after any stop: it was made durable
    before the batches that it speaks of were deleted (`Log.keep_producers`), and nothing else speaks of them."""
    log.producers.clear()
    start = log.segments[0].base_offset
    for offset in sorted(snapshot_offsets(log), reverse=True):
        if offset == start or start < offset <= trusted_to:
            path = join(log.dir, f"{offset:020d}{SNAPSHOT_SUFFIX}")
            states = ProducerStates.decode(log.files.read(path))
            if states is not None and (offset <= trusted_to or states.has_named):
                log.producers, start = states, offset
                break
            log.files.remove(path)
    _replay_producers(log, start)


def _replay_producers(log: Log, start: int) -> None:
    """Take up the headers from `start` (a batch's base offset) to the log's end, or to where it is damaged."""
    end = log.log_end_offset if log.corrupt_at is None else log.corrupt_at
    if start >= end:
        return
    expected = start
    try:
        for segment in log.segments[log.segment_for(start) :]:
            found = segment.position_of(max(start, segment.base_offset))
            for _, header in segment.headers(found[0]) if found is not None else ():
                if header.producer_id >= 0 and header.base_offset >= start:
                    log.producers.update(header, header.last_offset)
                expected = header.next_offset
                if expected >= end:
                    return
    except BrokerError as e:
        log.mark_corrupt(e.offset if isinstance(e, DamagedBatch) else expected)
        logger.error("log.producers_not_loaded", **log.fields, reason=str(e))
