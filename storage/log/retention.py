"""Which segments a log may let go of: those below its start, the too old, the too many; oldest first, never with a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.protocol.loggers import get_logger

if TYPE_CHECKING:
    from strandline.storage.log.log import Log

logger = get_logger(__name__)


def delete_old_segments(log: Log, now_ms: int) -> list[str]:
    """See `Log.delete_old_segments`."""
    count = _deletable(log, now_ms)
    if not count:
        return []
    start = log.segments[count].base_offset
    log.keep_producers(start)
    if start > log.log_start_offset:
        log.log_start_offset = start
        log.epochs.truncate_from_start(start)
    removed = set(map(id, log.segments[:count]))
    log.cursors = {offset: cursor for offset, cursor in log.cursors.items() if id(cursor[0]) not in removed}
    log.unsynced[log.dir] = None
    if log.corrupt_at is not None and log.corrupt_at < start:
        log.corrupt_at = None
    # Nothing before this takes a segment out: should the disk refuse, each is in the log, or its file is closed.
    paths = [path for _ in range(count) for path in log.segments.pop(0).remove()]
    logger.info("log.segments_deleted", **log.fields, segments=count)
    return paths


def _deletable(log: Log, now_ms: int) -> int:
    """How many segments, from the oldest on. One whose end lies above the HW stays, and all behind it (KAFKA-5634). So does one
    of which damage hides how new it is: by its start, its size and a moved log start it may go, by its age it may not."""
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
