"""Iteration over the batches of a segment, in large reads: for recovery, for cleaning, and for writing a log again."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import HEADER_SIZE, BatchHeader, check_crc
from strandline.storage.log.log_state import LogState
from strandline.storage.log.segment import DamagedBatch, Segment, parse_header

_CHUNK = 1 << 20
_RUN_BYTES = 1 << 20


def iter_batches(
    segment: Segment, position: int, chunk_bytes: int = _CHUNK
) -> Iterator[tuple[int, BatchHeader, memoryview, int]]:
    """Yield (position, header, buffer, position in the buffer) of every batch from `position` on. `chunk_bytes`: how many bytes
    are read at a time; a larger batch is read whole.

    Raises CORRUPT_MESSAGE at a header that is not plausible. Checksums are not checked."""
    data, start, end = memoryview(b""), position, segment.size
    while position < end:
        if position + HEADER_SIZE > start + len(data):
            data, start = segment.file.pread(chunk_bytes, position), position
        header = parse_header(data, position - start, end - position)
        if position + header.size > start + len(data):
            data, start = segment.file.pread(max(chunk_bytes, header.size), position), position
        yield position, header, data, position - start
        position += header.size


def rewrite_segment(log: LogState, segment: Segment) -> None:
    """Write the segment's bytes again, as they are read, so that the next fsync covers them.

    Raises DamagedBatch at the first batch that is not the log's next one: it is marked as corrupt and not written."""
    for position, base_offset, data in _verified_runs(log, segment):
        if data is None:
            log.mark_corrupt(base_offset)
            raise DamagedBatch(position, base_offset, "it differs from what was read a moment ago")
        segment.file.pwrite(data, position)


def _verified_runs(log: LogState, segment: Segment) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield (position, base offset, bytes) of runs of whole batches, each about `_RUN_BYTES` long.

    If a batch is not the log's next one, the last item has its position and None for the bytes."""
    run, start, first, expected, size = [], 0, segment.base_offset, segment.base_offset, 0
    try:
        for position, header, data, inside in iter_batches(segment, 0):
            has_epoch = expected < log.log_start_offset or header.leader_epoch == log.epochs.epoch_for_offset(expected)
            if header.base_offset != expected or not has_epoch or not check_crc(data, inside, header.size):
                yield position, expected, None
                return
            run.append(bytes(data[inside : inside + header.size]))
            size, expected = size + header.size, header.next_offset
            if size >= _RUN_BYTES:
                yield start, first, b"".join(run)
                run, start, first, size = [], position + header.size, expected, 0
    except BrokerError:
        yield start, expected, None
        return
    if run:
        yield start, first, b"".join(run)
