"""Retention: deletes the oldest segments that lie below the log start, are too old, or exceed the size limit.

Age and size count only if the log's cleanup policy has `delete`.

Segments are deleted from the oldest on, so the log never gets a gap. If the limits require it, the last segment is deleted, too:
the log begins a new one first, so an idle topic is emptied.
"""

from __future__ import annotations

from strandline.protocol.loggers import get_logger
from strandline.storage.log.log_state import LogState
from strandline.storage.log.segment import Segment

logger = get_logger(__name__)

FUTURE_MS = 3_600_000
"""A timestamp is reported as one in the future if it is further ahead than clocks differ: Kafka's default of
`message.timestamp.after.max.ms`."""


def delete_segments(log: LogState, count: int) -> list[str]:
    """Remove the oldest `count` segments, fewer than there are. Returns the paths for the caller to unlink."""
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
    paths = [path for _ in range(count) for path in log.remove_files(log.segments.pop(0))]
    logger.info("log.segments_deleted", **log.fields, segments=count)
    return paths


def deletable(log: LogState, now_ms: int) -> int:
    """Return how many of the oldest segments may be deleted. A last segment without batches is not counted.

    A segment that ends above the HW stays, and so do all after it (KAFKA-5634). The age of a segment with an unreadable batch is
    not known, so it may be deleted for size or because of the log start, but not for age."""
    config = log.config
    by_size, by_age = config.deletes and config.retention_bytes >= 0, config.deletes and config.retention_ms >= 0
    excess = log.size_bytes - config.retention_bytes if by_size else 0
    count = 0
    for segment, end in log.segments_with_ends():
        if end > log.high_watermark or (segment is log.segments[-1] and not segment.size):
            break
        newest = newest_timestamp(segment) if by_age else -1
        too_old = by_age and 0 <= newest < now_ms - config.retention_ms
        too_many = by_size and excess >= segment.size
        if not (end <= log.log_start_offset or too_old or too_many):
            break
        excess -= segment.size
        count += 1
    return count


def future_timestamp(log: LogState, count: int, now_ms: int) -> int:
    """The newest timestamp of the oldest segment that stays, if it is so far in the future that `retention.ms` deletes neither
    this segment nor later ones; else -1. `count`: how many segments are deleted."""
    if log.config.retention_ms < 0 or not log.config.deletes or count == len(log.segments) or not log.segments[count].size:
        return -1
    newest = newest_timestamp(log.segments[count])
    return newest if newest > now_ms + FUTURE_MS else -1


def newest_timestamp(segment: Segment) -> int:
    """The timestamp from which the age of a segment counts, in ms: that of its newest record. If no record has one, the time when
    its file was written last, as in Kafka. -1 if a batch cannot be read, because it may be the newest."""
    segment.load_timestamps()
    if segment.is_indexed_in_part:
        return -1
    if segment.max_timestamp >= 0:
        return segment.max_timestamp
    written = segment.files.modified_ms(segment.file.path)
    return segment.created_ms if written is None else written
