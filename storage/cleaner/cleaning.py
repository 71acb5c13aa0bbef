"""One cleaning of a log: build the offset map from its dirty part, then rewrite the closed segments without superseded records.

    clean                | dirty                         | not cleanable
    one record per key   | closed segments below the LSO | the open segment, and records that are not committed or decided
    0                    first_dirty                     end

Below the last stable offset (LSO), the end of every transaction is decided. The records of an aborted one supersede no other
record, and are removed at once. Its marker is removed by a later cleaning (`marker_cleaning.py`).

`plan` takes a snapshot of the log on the event loop. `build_map` and `SegmentGroup.rewrite` read and write files only, so they
may run on a thread with a `Files` of its own; they are generators that yield the number of bytes of each step, so the caller can
limit the rate and stop between two steps. Then `Log.replace_segments` puts the rewritten segment in the place of the old ones,
group by group, lowest offsets first: a tombstone must not be removed before the older records of its key.

If a batch is damaged, the cleaning fails (CORRUPT_MESSAGE) and changes nothing. If the log was truncated meanwhile, any error may
be raised, and `Log.replace_segments` refuses a result, because the log counts its truncations.

A caller that stops in the middle calls `SegmentGroup.discard`. A generator that is merely dropped does nothing on the disk, as if
the process had died.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import BatchHeader, Buffer, check_crc, corrupt
from strandline.protocol.records.layout import LayoutReader
from strandline.protocol.records.marker import is_marker
from strandline.storage.cleaner.aborted_ranges import AbortedRanges
from strandline.storage.cleaner.batch_cleaning import CleanedBatch, Rules, clean_aborted, clean_batch
from strandline.storage.cleaner.marker_cleaning import MarkerCleaner, MarkerPosition
from strandline.storage.cleaner.offset_map import OffsetMap
from strandline.storage.cleaner.segment_writer import SegmentWriter
from strandline.storage.disk import Files
from strandline.storage.log.aborted_transactions import collect_aborted
from strandline.storage.log.batch_iteration import iter_batches
from strandline.storage.log.epoch_cache import LeaderEpochCache
from strandline.storage.log.index import MAX_RELATIVE_OFFSET
from strandline.storage.log.log_state import LogState
from strandline.storage.log.replacement import CleanedSegment
from strandline.storage.log.segment import LOG_SUFFIX, DamagedBatch, Segment, unexpected


class ClosedSegment(NamedTuple):
    """A segment as it was when the cleaning was planned."""

    segment: Segment
    """The segment of the log. A thread must not read through it."""
    base_offset: int
    end_offset: int
    size: int
    index_bytes: int


class CleaningPlan(NamedTuple):
    """The segments that one cleaning reads, and the offsets that bound it."""

    directory: str
    segments: list[ClosedSegment]
    """All segments before the first one that may not be cleaned."""
    first_dirty: int
    truncations: int
    """`LogState.truncations` when the plan was made."""
    last_batches: frozenset[tuple[int, int]]
    """See `Rules`."""
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    epochs: LeaderEpochCache
    """A copy of the log's leader epochs."""
    log_start_offset: int
    aborted: AbortedRanges
    """The aborted transactions that have records in the segments."""
    markers_needed: dict[int, MarkerPosition]
    """The producers, by id, of which the log has a marker and no batch."""
    buffer_bytes: int = 1 << 20
    """How many bytes are read, and written, at a time."""

    @property
    def end_offset(self) -> int:
        """The offset before which every record may be cleaned."""
        return self.segments[-1].end_offset if self.segments else self.first_dirty


def plan(log: LogState, first_dirty: int, *, clean_to: int | None = None) -> CleaningPlan:
    """Plan the cleaning of the closed segments whose records are all committed and belong to no open transaction.

    `first_dirty`: where the last cleaning ended; see `within`. `clean_to`: no segment that ends after this offset is cleaned
    (min.compaction.lag.ms)."""
    closed = closed_segments(log, clean_to)
    return CleaningPlan(
        log.dir,
        closed,
        within(log, first_dirty),
        log.truncations,
        _last_batches(log, closed[-1].end_offset if closed else log.segments[0].base_offset),
        log.config.segment_bytes,
        log.config.segment_index_bytes,
        log.config.index_interval_bytes,
        LeaderEpochCache(log.epochs.entries),
        log.log_start_offset,
        AbortedRanges(collect_aborted(log, closed[0].base_offset, closed[-1].end_offset) if closed else ()),
        {each: MarkerPosition(*position) for each, position in log.producers.without_batches()},
    )


def within(log: LogState, first_dirty: int) -> int:
    """Where a cleaning begins: at `first_dirty`, or at the log's first offset if that lies outside the log."""
    start = log.segments[0].base_offset
    return first_dirty if start <= first_dirty <= log.log_end_offset else start


def closed_segments(log: LogState, clean_to: int | None = None) -> list[ClosedSegment]:
    """The closed segments that end at or below the last stable offset and `clean_to`, and lie below a damaged batch."""
    limit = min(log.last_stable_offset, log.segments[-1].base_offset, log.log_end_offset if clean_to is None else clean_to)
    if log.corrupt_at is not None:
        limit = min(limit, log.corrupt_at)
    closed = []
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        if following.base_offset > limit:
            break
        index_bytes = segment.size * 8 // max(log.config.index_interval_bytes, 1)
        closed.append(ClosedSegment(segment, segment.base_offset, following.base_offset, segment.size, index_bytes))
    return closed


def _last_batches(log: LogState, end: int) -> frozenset[tuple[int, int]]:
    """The last batch of each producer, and its last one before `end`: a truncation may remove the batches after that. Also the
    newest fences."""
    states = (log.producers, log.producers.before(end))
    return frozenset((known.producer_id, known.last_offset) for state in states for known in state.describe())


def build_map(files: Files, plan: CleaningPlan, offset_map: OffsetMap) -> Iterator[int]:
    """Put the keys of the dirty part into the map, until its end or until the map is full. Yields the bytes read by each step.

    Raises CORRUPT_MESSAGE for a damaged batch, UNSUPPORTED_COMPRESSION_TYPE, and DiskError."""
    offset_map.begin(plan.first_dirty)
    reader = LayoutReader()
    for each in plan.segments:
        if each.end_offset <= plan.first_dirty:
            continue
        for header, data in _batches(files, plan, each):
            if not _put(offset_map, header, data, reader, is_aborted=header in plan.aborted):
                return
            yield header.size


def _put(offset_map: OffsetMap, header: BatchHeader, data: Buffer, reader: LayoutReader, *, is_aborted: bool) -> bool:
    """Put the keys of one batch into the map, unless its transaction was aborted. False if it is full."""
    latest = offset_map.latest_offset
    if not is_aborted and header.record_count and not header.is_control and header.last_offset > latest:
        layout = reader.read(data, header)
        offsets = layout.offsets(header.base_offset)
        first = bisect_right(offsets, latest)
        for row in layout.tombstones:
            offset_map.mark_tombstone(offsets[row])
        if not offset_map.put(layout.keys[first:] if first else layout.keys, offsets[first:]):
            return False
    offset_map.latest_offset = max(latest, header.last_offset)
    return True


class SegmentGroup:
    """Consecutive segments that are rewritten into one. Each cleaning makes segments smaller, so without groups a log would have
    ever more and ever smaller ones."""

    def __init__(self, plan: CleaningPlan, members: Sequence[ClosedSegment], markers: MarkerCleaner) -> None:
        """`markers`: looks at the batches of all groups of one cleaning, in their order."""
        self.plan = plan
        self._markers = markers
        self._removed_markers: list[int] = []
        self.members = members
        self.cleaned: CleanedSegment | None = None
        """The rewritten segment, once `rewrite` is done. None if nothing would change."""
        self._removed_tombstones_end = 0
        self._writer: SegmentWriter | None = None

    @property
    def old(self) -> list[Segment]:
        """The segments of the log that the rewritten one replaces."""
        return [each.segment for each in self.members]

    @property
    def end_offset(self) -> int:
        return self.members[-1].end_offset

    @property
    def size(self) -> int:
        return sum(each.size for each in self.members)

    def discard(self) -> None:
        """Remove the rewritten files, which will not take the place of the old ones."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.discard()

    def rewrite(self, files: Files, rules: Rules) -> Iterator[int]:
        """Write the segment that replaces these ones. Yields the bytes that each step has read and written.

        Raises CORRUPT_MESSAGE for a damaged batch, UNSUPPORTED_COMPRESSION_TYPE, and DiskError."""
        plan = self.plan
        base_offset = self.members[0].base_offset
        writer = SegmentWriter(files, plan.directory, base_offset, plan.index_interval_bytes, plan.buffer_bytes)
        self._writer = writer
        try:
            yield from self._copy(files, rules, writer)
            last = self.members[-1]
            finished = writer.finish(last.end_offset, files.modified_ms(last.segment.path(LOG_SUFFIX)))
            self.cleaned = finished._replace(
                removed_tombstones_end=self._removed_tombstones_end,
                superseded_below=rules.map.latest_offset + 1,
                removed_markers=frozenset(self._removed_markers),
            )
            if len(self.members) == 1 and not writer.has_changes:
                self.cleaned = None
                self.discard()
        except Exception:
            self.discard()
            raise

    def _copy(self, files: Files, rules: Rules, writer: SegmentWriter) -> Iterator[int]:
        reader = LayoutReader()
        for each in self.members:
            for header, data in _batches(files, self.plan, each):
                written = writer.size
                cleaned = self._cleaned(data, header, rules, reader)
                writer.add(header, data, cleaned.data)
                self._removed_tombstones_end = max(self._removed_tombstones_end, cleaned.removed_tombstones_end)
                yield header.size + writer.size - written

    def _cleaned(self, data: Buffer, header: BatchHeader, rules: Rules, reader: LayoutReader) -> CleanedBatch:
        if is_marker(header):
            cleaned = self._markers.clean(data, header, rules)
            if cleaned.data is None:
                self._removed_markers.append(header.last_offset)
            return cleaned
        self._markers.note(header)
        return clean_aborted(data, header, rules) if header in self.plan.aborted else clean_batch(data, header, rules, reader)


def groups(plan: CleaningPlan, latest_offset: int) -> list[SegmentGroup]:
    """The segments that hold offsets up to `latest_offset`, in groups that each fit into one segment, lowest offsets first."""
    found: list[SegmentGroup] = []
    markers = MarkerCleaner(plan.markers_needed)
    members: list[ClosedSegment] = []
    for each in plan.segments:
        if each.base_offset > latest_offset:
            break
        if members and not _fits(plan, [*members, each]):
            found.append(SegmentGroup(plan, members, markers))
            members = []
        members.append(each)
    if members:
        found.append(SegmentGroup(plan, members, markers))
    return found


def _fits(plan: CleaningPlan, members: list[ClosedSegment]) -> bool:
    return (
        sum(each.size for each in members) <= plan.segment_bytes
        and sum(each.index_bytes for each in members) <= plan.segment_index_bytes
        and members[-1].end_offset - 1 - members[0].base_offset <= MAX_RELATIVE_OFFSET
    )


def _batches(files: Files, plan: CleaningPlan, closed: ClosedSegment) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The header and the bytes of every batch of a segment, through a file of their own, each checked."""
    segment = Segment.open(files, plan.directory, closed.base_offset, 0)
    expected, position = closed.base_offset, 0
    try:
        if segment.size != closed.size:
            corrupt(f"the segment has {segment.size} bytes instead of {closed.size}")
        for at, header, data, inside in iter_batches(segment, 0, plan.buffer_bytes):
            position = at
            if not check_crc(data, inside, header.size):
                corrupt("its checksum is wrong")
            if header.base_offset != expected:
                corrupt(unexpected(header.base_offset, expected))
            _check_epoch(plan, header)
            yield header, data[inside : inside + header.size]
            expected = header.next_offset
        if expected != closed.end_offset:
            corrupt(f"the segment ends at offset {expected} instead of {closed.end_offset}")
    except BrokerError as e:
        raise DamagedBatch(position, expected, str(e)) from None
    finally:
        segment.file.close()


def _check_epoch(plan: CleaningPlan, header: BatchHeader) -> None:
    """Refuse a batch whose leader epoch is not that of its offsets. The checksum does not cover the epoch. The epochs before the
    log start are forgotten."""
    start = plan.log_start_offset
    if header.next_offset > start:
        known = plan.epochs.epoch_for_offset(max(header.base_offset, start))
        if header.leader_epoch != known:
            corrupt(f"the batch at offset {header.base_offset} has leader epoch {header.leader_epoch} instead of {known}")
