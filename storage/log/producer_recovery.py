"""The producer states of a log, loaded from its newest usable snapshot and the headers of the batches after it."""

from __future__ import annotations

import re

from strandline.protocol.errors import BrokerError
from strandline.protocol.loggers import get_logger
from strandline.storage.disk import join
from strandline.storage.log.log_state import LogState
from strandline.storage.log.producer_state import ProducerStates
from strandline.storage.log.segment import SNAPSHOT_SUFFIX, DamagedBatch, file_name

logger = get_logger(__name__)

_SNAPSHOT = re.compile(r"(\d{20})\.snapshot\Z", re.ASCII)


def snapshot_offsets(log: LogState) -> list[int]:
    """The offsets of the producer snapshots in the log's directory."""
    return [int(match[1]) for name in log.files.list(log.dir) if (match := _SNAPSHOT.match(name))]


def snapshot_path(log: LogState, offset: int) -> str:
    return join(log.dir, file_name(offset, SNAPSHOT_SUFFIX))


def remove_snapshots(log: LogState, *, above: int) -> None:
    """Remove snapshots of offsets above `above`, because the log may not contain the records that they describe."""
    for offset in snapshot_offsets(log):
        if offset > above:
            log.files.remove(snapshot_path(log, offset))
            log.unsynced[log.dir] = None


def remove_needless_snapshots(log: LogState) -> None:
    """Keep only the newest snapshot and those at a segment's start. Every orderly stop writes one more."""
    offsets = snapshot_offsets(log)
    useful = {segment.base_offset for segment in log.segments} | {max(offsets, default=0)}
    for offset in offsets:
        if offset not in useful:
            log.files.remove(snapshot_path(log, offset))


def load_producers(log: LogState, *, trusted_to: int) -> None:
    """Load the newest snapshot at or below `trusted_to`, then replay the batch headers after it.

    A snapshot of named producers or fences at the start of the first segment is trusted after any stop: it was made durable
    before the batches that it covers were deleted (`LogState.save_named_producers`), and nothing else knows these."""
    log.producers.clear()
    start = log.segments[0].base_offset
    for offset in sorted(snapshot_offsets(log), reverse=True):
        if offset == start or start < offset <= trusted_to:
            states = ProducerStates.decode(log.files.read(snapshot_path(log, offset)))
            if states is not None and (offset <= trusted_to or states.outlives_batches):
                log.producers, start = states, offset
                break
            log.files.remove(snapshot_path(log, offset))
    replay_producers(log, start)


def replay_producers(log: LogState, start: int) -> None:
    """Apply the headers from `start` (a batch's base offset) to the log end, or to the first damaged batch."""
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
