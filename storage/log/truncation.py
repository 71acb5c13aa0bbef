"""Cutting a log back: all that is derived from the batches goes back with them, and log start <= HW <= LEO holds on.

A truncation first finds out where to cut, and changes something only then. If a batch below the target cannot be read (a bit
has flipped, a read brought old bytes), it raises `DamagedBatch`, with the log as it was and the place in `Log.corrupt_at`.
Cut at that place, the log would lose records that may be committed, and would pass for a whole one that is only shorter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.protocol.loggers import get_logger
from strandline.storage.log import recovery
from strandline.storage.log.segment import Cut, DamagedBatch, Segment

if TYPE_CHECKING:
    from strandline.storage.log.log import Log
    from strandline.storage.log.producer_state import ProducerStates

logger = get_logger(__name__)


def truncate_to(log: Log, offset: int) -> bool:
    """See `Log.truncate_to`."""
    if offset >= log.log_end_offset:
        log.epochs.truncate_from_end(max(offset, 0))
        return False
    if offset < log.segments[0].base_offset:
        truncate_fully_and_start_at(log, max(offset, 0), log.producers.before(offset))
        return True
    old_end, keep = log.log_end_offset, log.segment_for(offset)
    cut = _look(log, log.segments[keep], offset)
    _lower(log, cut.offset, log.segments[keep].base_offset)
    _cut_segments(log, keep, cut)
    _after_cut(log, cut.offset)
    logger.debug("log.truncated", **log.fields, offset=cut.offset, records=old_end - cut.offset)
    return True


def end_after_truncation(log: Log, offset: int) -> int:
    """See `Log.end_after_truncation`."""
    if offset >= log.log_end_offset:
        return log.log_end_offset
    if offset < log.segments[0].base_offset:
        return max(offset, 0)
    return _look(log, log.segments[log.segment_for(offset)], offset).offset


def _look(log: Log, segment: Segment, offset: int) -> Cut:
    """Find the place of the cut before anything changes. A batch that is damaged below the target stays, and so do the whole
    ones between the two: all of them may be committed, so the log's owner decides what becomes of them."""
    try:
        return segment.find_cut(offset)
    except DamagedBatch as e:
        log.mark_corrupt(e.offset)
        raise


def _cut_segments(log: Log, keep: int, cut: Cut) -> None:
    """The newest first: a process that dies on the way leaves a log without a gap."""
    while len(log.segments) > keep + 1:
        discard(log, log.segments.pop())
    segment = log.segments[keep]
    if cut.position < segment.size:
        _cut(segment, cut)


def _cut(segment: Segment, cut: Cut) -> None:
    """Durably, before anything is written over it. Else a power cut could leave some sectors of what was cut and some of
    what came in its place: batches of two histories, in the right order and each of them whole, that no leader ever had."""
    segment.cut(cut)
    segment.file.fsync()


def _lower(log: Log, end: int, durable: int) -> None:
    """Let go of what the offsets say of records that are cut. On the disk, too, and before the first byte goes: a
    recovery point above a cut makes the next start pass over it, or take the hole for damage."""
    lowered = log.recovery_point > durable or log.high_watermark > end
    log.log_start_offset = min(log.log_start_offset, end)
    log.high_watermark = min(max(log.high_watermark, log.log_start_offset), end)
    log.recovery_point = min(log.recovery_point, durable)
    if lowered and log.on_lowered is not None:
        log.on_lowered(log)


def discard(log: Log, segment: Segment) -> None:
    """Unlink at once: the name may be needed again. Few bytes, as a rule: what is truncated was never committed."""
    for path in segment.remove():
        log.files.remove(path)
    log.unsynced[log.dir] = None


def truncate_fully_and_start_at(log: Log, offset: int, producers: ProducerStates) -> None:
    """See `Log.truncate_fully_and_start_at`."""
    log.keep_names(producers, offset)
    for segment in log.segments:
        discard(log, segment)
    log.segments[:] = [Segment.create(log.files, log.dir, offset, log.segments[-1].created_ms)]
    log.log_start_offset = offset
    log.epochs.clear()
    log.producers = producers
    log.corrupt_at = None
    _after_cut(log, offset)
    log.high_watermark = offset
    logger.debug("log.truncated_fully", **log.fields, offset=offset)


def _after_cut(log: Log, end: int) -> None:
    log.truncations += 1
    log.metrics.truncations += 1
    log.metrics.truncated_records += max(0, log.log_end_offset - end)
    log.cursors.clear()
    log.tail.truncate_to(end)
    log.log_end_offset = end
    # The last segment is scanned again in any case: a recovery point in the middle of it would gain nothing.
    _lower(log, end, min(end, log.segments[-1].base_offset))
    log.epochs.truncate_from_end(end)
    if log.corrupt_at is not None and log.corrupt_at >= end:
        log.corrupt_at = None
    recovery.remove_snapshots(log, above=end)
    if not log.producers.all_end_before(end):
        recovery.load_producers(log, trusted_to=end)
