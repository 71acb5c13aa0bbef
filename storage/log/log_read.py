"""Reads of a log, by offset and by timestamp.

Batches in the recent tail are returned by reference. Older batches are read from their segment and checked against their CRC
first: a damaged batch is never served and never replicated (S42); it is marked as corrupt instead.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, Never

from crc32c import crc32c

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import ATTRIBUTES_POS, HEADER_SIZE, LENGTH_PREFIX, MAGIC, check_crc
from strandline.storage.disk import Buffer, ColdRead
from strandline.storage.log.batch_search import BatchSearches, first_not_older, newest_record, search_batch
from strandline.storage.log.log_state import LogState
from strandline.storage.log.segment import DamagedBatch, Segment

_CURSORS_MAX = 16
_READ_MIN = 4096
_READ_HEAD = Struct(">qiibIhi")
"""A batch header up to the last offset delta: the fields that a read needs."""


class LogRead(NamedTuple):
    """The result of a read: whole batches. `first_offset` is the base offset of the first one, or the requested offset if there
    is none."""

    buffers: list[Buffer]
    size: int
    first_offset: int


def read(log: LogState, offset: int, max_bytes: int, end_offset: int, min_one: bool, may_block: bool) -> LogRead:
    """Read whole batches; arguments, result and errors as in `Log.read`."""
    if not log.log_start_offset <= offset <= log.log_end_offset:
        raise BrokerError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of {log.name}-{log.partition} is not in [{log.log_start_offset}, {log.log_end_offset}]",
        )
    corrupt_at = log.corrupt_at
    if corrupt_at is not None:
        if offset >= corrupt_at:
            raise _unreadable(corrupt_at)
        end_offset = min(end_offset, corrupt_at)
    if offset >= end_offset or offset == log.log_end_offset:
        return LogRead([], 0, offset)
    found = log.tail.read(offset, max_bytes, end_offset, min_one)
    if found is not None:
        return LogRead._make(found)
    return _read_segments(log, offset, max_bytes, end_offset, min_one, may_block)


def _read_segments(log: LogState, offset: int, max_bytes: int, end_offset: int, min_one: bool, may_block: bool) -> LogRead:
    segment, position = _locate(log, offset)
    try:
        return _read_segment(log, segment, position, offset, max_bytes, end_offset, min_one, may_block)
    except ColdRead:
        _save_cursor(log, offset, segment, position)
        raise


def _locate(log: LogState, offset: int) -> tuple[Segment, int]:
    """The segment and position of the batch that contains `offset`.

    Raises DamagedBatch if no batch contains it, although it lies below the log end: with an empty response the reader would wait
    at this offset for ever."""
    cursor = log.cursors.pop(offset, None)
    if cursor is not None:
        return cursor
    for segment in log.segments[log.segment_for(offset) :]:
        try:
            found = segment.position_of(offset)
        except DamagedBatch as e:
            log.mark_corrupt(e.offset, str(e))
            raise
        if found is not None:
            return segment, found[0]
    damage = log.segments[-1].missing(offset)
    log.mark_corrupt(damage.offset, str(damage))
    raise damage


def _save_cursor(log: LogState, next_offset: int, segment: Segment, position: int) -> None:
    cursors = log.cursors
    if len(cursors) >= _CURSORS_MAX:
        del cursors[next(iter(cursors))]
    cursors[next_offset] = (segment, position)


def _read_segment(
    log: LogState,
    segment: Segment,
    position: int,
    offset: int,
    max_bytes: int,
    end_offset: int,
    min_one: bool,
    may_block: bool,
) -> LogRead:
    data = segment.file.pread(max(max_bytes, _READ_MIN), position, may_block=may_block)
    if min_one and len(data) >= HEADER_SIZE and (first_size := _size_at(data, 0)) > len(data):
        data = segment.file.pread(first_size, position, may_block=may_block)  # one batch, larger than `max_bytes`
    size, next_offset, first_offset = 0, offset, offset
    epoch_of, log_start = log.epochs.epoch_for_offset, log.log_start_offset
    while size + HEADER_SIZE <= len(data) and next_offset < end_offset:
        base_offset, length, epoch, magic, crc, _, last_delta = _READ_HEAD.unpack_from(data, size)
        end = size + LENGTH_PREFIX + length
        if end > max_bytes and (size or not min_one):
            break
        fits = base_offset == next_offset if size else base_offset <= offset <= base_offset + last_delta
        is_whole = fits and magic == MAGIC and length >= 0 and crc32c(data[size + ATTRIBUTES_POS : end]) == crc
        # The CRC does not cover the epoch. The epochs before the log start are forgotten, also inside the batch that contains it.
        if not is_whole or epoch != epoch_of(max(base_offset, log_start)):
            if not size:
                _refuse(log, base_offset if fits else offset)
            log.mark_corrupt(next_offset)  # the whole batches before the damage may still be served
            break
        if base_offset + last_delta >= end_offset:
            break
        first_offset = first_offset if size else base_offset
        size, next_offset = end, base_offset + last_delta + 1
    if not size:
        if len(data) < HEADER_SIZE:
            _refuse(log, offset)
        return LogRead([], 0, offset)
    if position + size < segment.size:
        _save_cursor(log, next_offset, segment, position + size)
    return LogRead([data[:size]], size, first_offset)


def _size_at(data: memoryview, at: int) -> int:
    """The size that the batch header claims. The CRC check comes later."""
    return LENGTH_PREFIX + int(_READ_HEAD.unpack_from(data, at)[1])


def _refuse(log: LogState, offset: int) -> Never:
    log.mark_corrupt(offset)
    raise _unreadable(offset)


def _unreadable(offset: int) -> BrokerError:
    return BrokerError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {offset} is damaged on this replica's disk")


# -- by timestamp -------------------------------------------------------------------------------------------------


def offset_for_timestamp(log: LogState, timestamp_ms: int, searches: BatchSearches | None) -> tuple[int, int, int] | None:
    """Find the first record at or after a timestamp, as `Log.offset_for_timestamp` describes."""
    for segment in log.segments[log.segment_for(log.log_start_offset) :]:
        segment.load_timestamps()
        if segment.max_timestamp < timestamp_ms or not segment.size:
            continue
        _, position = segment.offset_index.lookup(_skippable(segment, timestamp_ms))
        found = _first_not_older(log, segment, position, timestamp_ms, searches)
        if found is not None:
            return found
    return None


def _skippable(segment: Segment, timestamp_ms: int) -> int:
    """The relative offset below which all records are older, by the time index. The index entry is checked against its batch."""
    timestamp, relative = segment.time_index.lookup(timestamp_ms)
    if timestamp < 0:
        return 0
    if not segment.has_time_entry(timestamp, relative):
        segment.rebuild_indexes()
        return segment.time_index.lookup(timestamp_ms)[1]
    return relative


def _first_not_older(
    log: LogState, segment: Segment, position: int, timestamp_ms: int, searches: BatchSearches | None
) -> tuple[int, int, int] | None:
    for at, header in segment.headers(position):
        if header.max_timestamp < timestamp_ms or header.next_offset <= log.log_start_offset or not header.record_count:
            continue
        if log.corrupt_at is not None and header.next_offset > log.corrupt_at:
            raise _unreadable(log.corrupt_at)
        if header.is_log_append_time and header.record_count > header.last_offset_delta:
            return header.max_timestamp, max(header.base_offset, log.log_start_offset), header.leader_epoch
        data = segment.file.pread(header.size, at)
        if not check_crc(data, 0, header.size):
            _refuse(log, header.base_offset)
        found = search_batch(searches, first_not_older, data, header, timestamp_ms, log.log_start_offset, log.dir)
        if found is not None:
            return *found, header.leader_epoch
    return None


def max_timestamp_offset(log: LogState, searches: BatchSearches | None) -> tuple[int, int, int] | None:
    """Find the first record with the newest timestamp, as `Log.max_timestamp_offset` describes."""
    first, newest = log.segment_for(log.log_start_offset), -1
    if log.segments[first].base_offset < log.log_start_offset:
        newest = _newest_after_start(log, log.segments[first], searches)
        first += 1
    for segment in log.segments[first:]:
        segment.load_timestamps()
        newest = max(newest, segment.max_timestamp)
    found = offset_for_timestamp(log, newest, searches) if newest >= 0 else None
    return found if found is not None or newest < 0 else _newest_record(log, searches)


def _newest_record(log: LogState, searches: BatchSearches | None) -> tuple[int, int, int] | None:
    """The first record with the newest timestamp in a log whose newest batch has lost its records to compaction."""
    newest = -1
    for segment in log.segments[log.segment_for(log.log_start_offset) :]:
        for _, header in segment.headers(0):
            if header.record_count and header.next_offset > log.log_start_offset:
                newest = max(newest, header.max_timestamp)
    return offset_for_timestamp(log, newest, searches) if newest >= 0 else None


def _newest_after_start(log: LogState, segment: Segment, searches: BatchSearches | None) -> int:
    """The newest timestamp of the records that are not deleted, in a segment that also holds deleted ones. The indexes do not
    show whether a timestamp belongs to a deleted record."""
    newest, start = -1, log.log_start_offset
    found = segment.position_of(start)
    for at, header in segment.headers(found[0]) if found is not None else ():
        if header.base_offset >= start or header.is_log_append_time:
            newest = max(newest, header.max_timestamp)
            continue
        data = segment.file.pread(header.size, at)
        if not check_crc(data, 0, header.size):
            _refuse(log, header.base_offset)
        record = search_batch(searches, newest_record, data, header, newest, start, log.dir)
        newest = newest if record is None else record[0]
    return newest
