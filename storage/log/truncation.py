"""Truncation of a log: batches are removed from the end, with everything that is derived from them.

log start <= HW <= LEO holds throughout. A truncation finds the position of the cut before it changes anything. If a batch below
the target cannot be read (a flipped bit, a stale read), it raises `DamagedBatch`, leaves the log as it was and sets
`LogState.corrupt_at`. A cut at the damaged batch would drop records that may be committed, and the log would look intact, only
shorter.
"""

from __future__ import annotations

from strandline.protocol.loggers import get_logger
from strandline.storage.log.log_state import LogState
from strandline.storage.log.producer_recovery import load_producers, remove_snapshots
from strandline.storage.log.producer_state import ProducerStates
from strandline.storage.log.segment import Cut, DamagedBatch, Segment

logger = get_logger(__name__)


def truncate_to(log: LogState, offset: int) -> bool:
    """Truncate the log to an offset, as `Log.truncate_to` describes."""
    if offset >= log.log_end_offset:
        log.epochs.truncate_from_end(max(offset, 0))
        return False
    if offset < log.segments[0].base_offset:
        truncate_fully_and_start_at(log, max(offset, 0), log.producers.before(offset))
        return True
    old_end, keep = log.log_end_offset, log.segment_for(offset)
    cut = _find_cut(log, log.segments[keep], offset)
    _lower(log, cut.offset, log.segments[keep].base_offset)
    _cut_segments(log, keep, cut)
    _after_cut(log, cut.offset)
    logger.debug("log.truncated", **log.fields, offset=cut.offset, records=old_end - cut.offset)
    return True


def end_after_truncation(log: LogState, offset: int) -> int:
    """Return the log end that a truncation would leave, as `Log.end_after_truncation` describes."""
    if offset >= log.log_end_offset:
        return log.log_end_offset
    if offset < log.segments[0].base_offset:
        return max(offset, 0)
    return _find_cut(log, log.segments[log.segment_for(offset)], offset).offset


def _find_cut(log: LogState, segment: Segment, offset: int) -> Cut:
    """Find the position of the cut; nothing has changed yet.

    If a batch below the target is damaged, it stays, and so do the whole batches after it: all of them may be committed, so the
    log's owner decides what happens to them."""
    try:
        return segment.find_cut(offset)
    except DamagedBatch as e:
        log.mark_corrupt(e.offset)
        raise


def _cut_segments(log: LogState, keep: int, cut: Cut) -> None:
    """Remove the newest segments first, so that a process that dies half-way leaves a log without a gap."""
    while len(log.segments) > keep + 1:
        discard(log, log.segments.pop())
    segment = log.segments[keep]
    if cut.position < segment.size:
        _cut(segment, cut)


def _cut(segment: Segment, cut: Cut) -> None:
    """Cut and fsync before the bytes are written over.

    Otherwise a power cut could leave some sectors of the old batches and some of the new ones: whole batches of two histories, in
    the right order, that no leader ever had."""
    segment.cut(cut)
    segment.file.fsync()


def _lower(log: LogState, end: int, durable: int) -> None:
    """Lower the log start, HW, recovery point and the cleaner's offsets to the cut, on the disk too, before the first byte is
    removed.

    With a recovery point above the cut, the next start would skip the cut in its scan, or take the hole for damage. With a first
    dirty offset above it, the cleaner would treat the records that are appended next as clean."""
    lowered = log.recovery_point > durable or log.high_watermark > end
    lowered |= log.first_dirty_offset > end or log.tombstones_removed_below > end
    log.first_dirty_offset = min(log.first_dirty_offset, end)
    log.tombstones_removed_below = min(log.tombstones_removed_below, end)
    log.log_start_offset = min(log.log_start_offset, end)
    log.high_watermark = min(max(log.high_watermark, log.log_start_offset), end)
    log.recovery_point = min(log.recovery_point, durable)
    if lowered and log.on_lowered is not None:
        log.on_lowered()


def discard(log: LogState, segment: Segment) -> None:
    """Unlink the segment's files at once, because their names may be needed again. They are usually small: the records were never
    committed."""
    for path in log.remove_files(segment):
        log.files.remove(path)
    log.unsynced[log.dir] = None


def truncate_fully_and_start_at(log: LogState, offset: int, producers: ProducerStates) -> None:
    """Remove all records and restart the log at an offset, as `Log.truncate_fully_and_start_at` describes."""
    log.save_named_producers(producers, offset)
    created_ms = log.segments[-1].created_ms
    # The newest first: a process that dies half-way leaves the log's beginning, which still shows that the log has to start over.
    # Its last segments would look like a log whose oldest records were deleted.
    for segment in reversed(log.segments):
        discard(log, segment)
    log.segments[:] = [Segment.create(log.files, log.dir, offset, created_ms)]
    log.log_start_offset = offset
    log.epochs.clear()
    log.producers = producers
    log.corrupt_at = None
    log.superseded_below = 0
    _after_cut(log, offset)
    log.lowest_cut = -1
    log.high_watermark = log.first_dirty_offset = offset
    logger.debug("log.truncated_fully", **log.fields, offset=offset)


def begin_segment_at(log: LogState, offset: int) -> None:
    """Give an empty log a segment for a first batch that begins at `offset`, below the log start, which lies inside that batch.

    A segment is named after its first batch. The log start, the high watermark and the log end stay where they are."""
    assert not log.size_bytes
    assert offset < log.log_start_offset == log.log_end_offset
    log.save_named_producers(log.producers, offset)
    remove_snapshots(log, above=offset)
    created_ms = log.segments[0].created_ms
    discard(log, log.segments[0])
    log.segments[:] = [Segment.create(log.files, log.dir, offset, created_ms)]
    log.recovery_point = min(log.recovery_point, offset)
    if log.on_lowered is not None:
        log.on_lowered()  # The log start differs from the segment's base offset now, so it has to be on the disk.


def _after_cut(log: LogState, end: int) -> None:
    log.truncations += 1
    log.lowest_cut = end if log.lowest_cut is None else min(log.lowest_cut, end)
    log.metrics.truncations += 1
    log.metrics.truncated_records += max(0, log.log_end_offset - end)
    log.cursors.clear()
    log.tail.truncate_to(end)
    log.log_end_offset = end
    # The last segment is scanned again in any case, so a recovery point in the middle of it would gain nothing.
    _lower(log, end, min(end, log.segments[-1].base_offset))
    log.epochs.truncate_from_end(end)
    if log.corrupt_at is not None and log.corrupt_at >= end:
        log.corrupt_at = None
    remove_snapshots(log, above=end)
    if not log.producers.all_end_before(end):
        load_producers(log, trusted_to=end)
