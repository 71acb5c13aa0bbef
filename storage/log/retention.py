"""Retention: deletes the oldest segments that lie below the log start, are too old, or exceed the size limit.

Segments are deleted from the oldest on, so the log never gets a gap.
"""

from __future__ import annotations

from strandline.protocol.loggers import get_logger
from strandline.storage.log.log_state import LogState

logger = get_logger(__name__)


def delete_old_segments(log: LogState, now_ms: int) -> list[str]:
    """See `Log.delete_old_segments`."""
    count = _deletable(log, now_ms)
    if not count:
        return []
    start = log.segments[count].base_offset
    log.save_named_producers(log.producers.before(start), start)
    if start > log.log_start_offset:
        log.log_start_offset = start
        log.epochs.truncate_from_start(start)
    removed = set(map(id, log.segments[:count]))
    log.cursors = {offset: cursor for offset, cursor in log.cursors.items() if id(cursor[0]) not in removed}
    log.unsynced[log.dir] = None
    if log.corrupt_at is not None and log.corrupt_at < start:
        log.corrupt_at = None
    # No segment was taken out before this line. If the disk fails, each is still in the log or has its file closed.
    paths = [path for _ in range(count) for path in log.segments.pop(0).remove()]
    logger.info("log.segments_deleted", **log.fields, segments=count)
    return paths


def _deletable(log: LogState, now_ms: int) -> int:
    """How many of the oldest segments may be deleted.

    A segment that ends above the HW stays, and so do all after it (KAFKA-5634). The age of a segment with an unreadable batch is
    not known, so it may be deleted for size or because of the log start, but not for age."""
    config = log.config
    excess = log.size_bytes - config.retention_bytes if config.retention_bytes >= 0 else 0
    count = 0
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        end = following.base_offset
        if end > log.high_watermark:
            break
        segment.load_timestamps()
        newest = -1 if segment.is_indexed_in_part else segment.max_timestamp
        too_old = config.retention_ms >= 0 and 0 <= newest < now_ms - config.retention_ms
        too_many = excess >= segment.size and config.retention_bytes >= 0
        if not (end <= log.log_start_offset or too_old or too_many):
            break
        excess -= segment.size
        count += 1
    return count
