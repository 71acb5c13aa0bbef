"""The file of a snapshot: the rows of one partition of a table, by column. Pure.

    magic          8 bytes   b"SLTABLE1"; another layout gets another number
    crc            u32       CRC-32C of all bytes after it
    topic_id       16 bytes  a topic that is recreated under its name has another one
    partition      i32
    next_offset    i64       the rows are the latest ones of the records below it
    leader_epoch   i32       of the record before it; -1: not known (KIP-320)
    fresh_at_ms    i64       every record from next_offset on was appended after this time, of the clock of the table's process
    rows           u64
    offsets        i64[]     one per row, of its record
    key_sizes      u32[]
    value_sizes    u32[]
    keys           bytes     one after the other
    values         bytes     one after the other

Numbers are little-endian. A snapshot is derived from the log, which has all of its records, so a file that cannot be read is
ignored.

**Why fresh_at_ms.** A cleaner removes a tombstone `delete.retention.ms` after it has removed the values that the tombstone
deletes. A table that continues at `next_offset` after that never sees the tombstone, and would keep the deleted value for ever. A
tombstone that comes after `next_offset` was appended after `fresh_at_ms`, so it is in the log until `delete.retention.ms` later.
A table that has read to the end of the log by then has seen every tombstone; a table that has not reads the log again from its
beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise, repeat
from struct import Struct, error, pack, unpack_from

import crc32c
import msgspec

from strandline.client.table.rows import Row

MAGIC = b"SLTABLE1"
_CRC = Struct("<I")
_HEAD = Struct("<16siqiqQ")
_HEAD_AT = len(MAGIC) + _CRC.size
_ROW_BYTES = 16


class Place(msgspec.Struct, frozen=True):
    """The head of a snapshot: the position at which the log continues after it."""

    topic_id: bytes
    partition: int
    next_offset: int
    leader_epoch: int
    fresh_at_ms: int


class BadSnapshot(Exception):
    """The file is no snapshot, or is damaged. The message says why."""


def encode(place: Place, rows: Sequence[tuple[bytes, Row]]) -> list[bytes]:
    """The file of a snapshot, in pieces."""
    count = len(rows)
    keys = [key for key, _ in rows]
    values = [row.value for _, row in rows]
    head = _HEAD.pack(place.topic_id, place.partition, place.next_offset, place.leader_epoch, place.fresh_at_ms, count)
    pieces = [
        head,
        pack(f"<{count}q", *[row.offset for _, row in rows]),
        pack(f"<{count}I", *map(len, keys)),
        pack(f"<{count}I", *map(len, values)),
        b"".join(keys),
        b"".join(values),
    ]
    crc = 0
    for piece in pieces:
        crc = crc32c.crc32c(piece, crc)
    return [MAGIC + _CRC.pack(crc), *pieces]


def decode(data: bytes, from_offset: int = 0) -> tuple[Place, dict[bytes, Row]]:
    """The rows of a snapshot whose records are at `from_offset` or after it. BadSnapshot."""
    place = read_place(data)
    _check(data)
    count = _HEAD.unpack_from(data, _HEAD_AT)[5]
    at = _HEAD_AT + _HEAD.size
    offsets = unpack_from(f"<{count}q", data, at)
    key_sizes = unpack_from(f"<{count}I", data, at + 8 * count)
    value_sizes = unpack_from(f"<{count}I", data, at + 12 * count)
    keys_at = at + _ROW_BYTES * count
    keys = _fields(data, keys_at, key_sizes)
    values = _fields(data, keys_at + sum(key_sizes), value_sizes)
    rows = dict(zip(keys, map(Row, values, offsets, repeat(place.partition)), strict=True))
    if from_offset and count and min(offsets) < from_offset:
        rows = {key: row for key, row in rows.items() if row.offset >= from_offset}
    return place, rows


def read_place(data: bytes) -> Place:
    """The head of a snapshot's file. BadSnapshot if the data is no snapshot."""
    if data[: len(MAGIC)] != MAGIC:
        raise BadSnapshot("it does not begin like a snapshot of a table")
    try:
        return Place(*_HEAD.unpack_from(data, _HEAD_AT)[:5])
    except error:
        raise BadSnapshot("it is too short") from None


def _check(data: bytes) -> None:
    if _CRC.unpack_from(data, len(MAGIC))[0] != crc32c.crc32c(memoryview(data)[_HEAD_AT:]):
        raise BadSnapshot("its checksum is wrong")


def _fields(data: bytes, at: int, sizes: Iterable[int]) -> list[bytes]:
    return [data[start:end] for start, end in pairwise(accumulate(sizes, initial=at))]
