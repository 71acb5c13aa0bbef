"""Builds segment files for tests, with the batch encoder of the project."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from strandline.pipeline.segments.splits import Index
from strandline.pipeline.segments.walk import Extent, Found, Range, Read, Walk, Wanted
from strandline.protocol.records.batch import iter_headers, stamp
from strandline.protocol.records.builder import encode_values


def batch(base_offset: int, values: Sequence[bytes], *, leader_epoch: int = 0, timestamp_ms: int = 1000) -> bytes:
    made = bytearray(encode_values(values, timestamp_ms=timestamp_ms))
    stamp(made, 0, base_offset, leader_epoch)
    return bytes(made)


def segment(batches: int, records: int = 3, size: int = 20, base_offset: int = 0) -> bytes:
    """The bytes of a segment with `batches` batches of `records` records each."""
    return b"".join(
        batch(base_offset + n * records, [b"%d:%d" % (n, i) + b"." * size for i in range(records)]) for n in range(batches)
    )


def reader(data: bytes) -> Read:
    return lambda position, size: memoryview(data)[position : position + size]


def walk(data: bytes, wanted: Wanted = Wanted.CRC, *, base_offset: int = 0, is_last: bool = True) -> list[Found]:
    """Walks a whole segment."""
    extent = Extent(base_offset, len(data), is_last)
    return list(Walk(reader(data), extent, Range(0, len(data), base_offset), wanted))


def positions(data: bytes) -> list[int]:
    return [position for position, _ in iter_headers(data)]


def index_of(data: bytes, every: int = 3, base_offset: int = 0) -> Index:
    """A sparse offset index as a broker writes it: last offset and position of every `every`-th batch."""
    return [(header.last_offset - base_offset, position) for position, header in iter_headers(data)][every::every]


def write_log(folder: Path, segments: Sequence[tuple[int, bytes]], index: Index | None = None) -> Path:
    """Writes a log's folder with these segments, given as (base offset, bytes), and the index of the last one."""
    folder.mkdir(parents=True)
    for base_offset, data in segments:
        path = folder / f"{base_offset:020d}.log"
        path.write_bytes(data)
    if index is not None:
        path.with_suffix(".index").write_bytes(b"".join(struct.pack(">II", *entry) for entry in index))
    return folder
