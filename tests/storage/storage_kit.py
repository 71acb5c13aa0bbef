"""Shared parts of the storage tests: logs on either disk, batches, and the state of a log."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.builder import encode_batch
from strandline.storage.disk import Files
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.memory.memory_files import MemoryFiles

NOW_MS = 1_700_000_000_000
TOPIC_ID = b"topic-id-of-test"
DIR = "data/orders-0"


def batch(*values: bytes, timestamp_ms: int = NOW_MS, producer: tuple[int, int, int] = (-1, -1, -1), **fields: int) -> bytearray:
    """A batch of plain records; `producer` is (id, epoch, base sequence)."""
    producer_id, epoch, sequence = producer
    records = [(None, value, [], timestamp_ms) for value in values]
    return bytearray(encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields))


def open_log(
    files: Files | None = None, directory: str = DIR, *, clean: bool = False, config: LogConfig | None = None, **given: Any
) -> Log:
    return Log.open(
        files or MemoryFiles(Random(0)),
        directory,
        topic="orders",
        partition=0,
        topic_id=TOPIC_ID,
        config=config or LogConfig(),
        clean_shutdown=clean,
        now_ms=NOW_MS,
        **given,
    )


def read_all(log: Log, start: int | None = None, end: int | None = None, max_bytes: int = 1 << 20) -> list[bytes]:
    """Every batch from `start` (the log's start) to `end` (the log's end), as bytes."""
    offset = log.log_start_offset if start is None else start
    end = log.log_end_offset if end is None else end
    found: list[bytes] = []
    while offset < end:
        read = log.read(offset, max_bytes, end)
        if not read.size:
            break
        data = b"".join(read.buffers)
        assert len(data) == read.size
        for position, header in iter_headers(data):
            found.append(bytes(data[position : position + header.size]))
            offset = header.next_offset
    return found


def forget_tail(log: Log) -> None:
    """Clear the recent tail, so that reads come from the file."""
    log.tail.clear()


def fill(log: Log, batches: int, *, records: int = 2, epoch: int = 0, size: int = 20) -> list[bytes]:
    """Append `count` batches as leader; returns them as they are in the log."""
    start = log.log_end_offset
    for i in range(batches):
        values = [f"{start}-{i}-{j}".encode().ljust(size, b".") for j in range(records)]
        log.append_as_leader(batch(*values, timestamp_ms=NOW_MS + i), epoch, NOW_MS)
    return read_all(log, start)


def check_order(log: Log) -> None:
    """Check I5, and that the derived state matches the batches."""
    assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
    assert log.recovery_point <= log.log_end_offset
    entries = log.epochs.entries
    assert all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(entries))
    assert not entries or entries[-1][1] <= log.log_end_offset
