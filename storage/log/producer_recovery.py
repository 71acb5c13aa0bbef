"""The producer states of a log, loaded from its newest usable snapshot and the headers of the batches after it."""

from __future__ import annotations

import re

from strandline.protocol.errors import BrokerError
from strandline.protocol.loggers import get_logger
from strandline.protocol.records.batch import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader, check_crc
from strandline.protocol.records.marker import EndTransactionMarker, is_marker, read_marker
from strandline.storage.disk import join
from strandline.storage.log.aborted_transactions import add_aborted, save_rebuilt
from strandline.storage.log.log_state import LogState
from strandline.storage.log.producer_state import ProducerStates
from strandline.storage.log.segment import SNAPSHOT_SUFFIX, DamagedBatch, Segment, file_name

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


def load_producers(log: LogState, *, trusted_to: int, aborted_from: int | None = None) -> None:
    """Load the newest snapshot at or below `trusted_to`, then replay the batch headers after it.

    `aborted_from`: the aborted transactions whose markers are at or above this offset are added to the indexes of their segments,
    so the replay begins at or below it; None: the indexes have them.

    A snapshot does not contain the unreplicated transactions (`transactions.py`). If there may be a marker between the high
    watermark and the snapshot, an older one is loaded.

    A snapshot of named producers or fences at the start of the first segment is trusted after any stop: it was made durable
    before the batches that it covers were deleted (`LogState.save_named_producers`), and no other file has these states."""
    log.producers.clear()
    start = log.segments[0].base_offset
    newest = trusted_to if aborted_from is None else min(trusted_to, aborted_from)
    for offset in sorted(snapshot_offsets(log), reverse=True):
        if offset == start or start < offset <= trusted_to:
            if offset > max(newest, start):
                continue
            states = ProducerStates.decode(log.files.read(snapshot_path(log, offset)), offset)
            if states is not None and (offset <= trusted_to or states.outlives_batches):
                if states.has_markers and _has_marker(log, log.high_watermark, offset):
                    continue
                log.producers, start = states, offset
                break
            log.files.remove(snapshot_path(log, offset))
    replay_producers(log, start, log.log_end_offset if aborted_from is None else aborted_from)
    if aborted_from is not None:
        save_rebuilt(log, aborted_from)


def _has_marker(log: LogState, start: int, end: int) -> bool:
    """Whether there is a marker within `start` to `end` (exclusive), or a batch that cannot be read."""
    if start >= end:
        return False
    try:
        for segment in log.segments[log.segment_for(start) : log.segment_for(end - 1) + 1]:
            found = segment.position_of(max(start, segment.base_offset))
            if any(is_marker(header) for _, header in segment.headers(found[0] if found is not None else segment.size)):
                return True
    except BrokerError:
        return True
    return False


def replay_producers(log: LogState, start: int, aborted_from: int) -> None:
    """Apply the headers from `start` (a batch's base offset) to the log end, or to the first damaged batch. Add the transactions
    whose markers are at or above `aborted_from` to the indexes of aborted ones."""
    end = log.log_end_offset if log.corrupt_at is None else log.corrupt_at
    if start >= end:
        return
    expected = start
    try:
        for segment in log.segments[log.segment_for(start) :]:
            found = segment.position_of(max(start, segment.base_offset))
            for at, header in segment.headers(found[0]) if found is not None else ():
                if header.producer_id >= 0 and header.base_offset >= start:
                    log.producers.update(header, header.last_offset)
                    if header.attributes & TRANSACTIONAL_MASK:
                        _replay_transaction(log, segment, at, header, aborted_from)
                expected = header.next_offset
                if expected >= end:
                    return
    except BrokerError as e:
        log.mark_corrupt(e.offset if isinstance(e, DamagedBatch) else expected)
        logger.error("log.producers_not_loaded", **log.fields, reason=str(e))


def _replay_transaction(log: LogState, segment: Segment, position: int, header: BatchHeader, aborted_from: int) -> None:
    marker = _marker(segment, position, header) if header.attributes & CONTROL_MASK else None
    aborted = log.producers.update_transaction(header, marker, log.high_watermark)
    if aborted is not None and aborted.last_offset >= aborted_from:
        add_aborted(segment, aborted)


def _marker(segment: Segment, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    """The marker in a control batch. Raises DamagedBatch if its checksum is wrong."""
    data = segment.file.pread(header.size, position)
    if len(data) < header.size or not check_crc(data, 0, header.size):
        raise DamagedBatch(position, header.base_offset, "its checksum is wrong")
    return read_marker(data, 0, header)
