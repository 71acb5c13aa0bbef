"""A second reader of record batches, written only from the description of the format, and as strict as Kafka's own."""

from __future__ import annotations

from struct import Struct, error
from typing import Any

_HEADER = Struct(">qiibIhiqqqhii")


class Malformed(Exception):
    pass


def read_records(batch: bytes) -> list[tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]]:
    """(offset delta, timestamp, key, value, headers) of each record, or `Malformed`. The CRC is not checked."""
    try:
        fields = _HEADER.unpack_from(batch)
    except error:
        raise Malformed("no header") from None
    last_delta, base_timestamp, count = fields[6], fields[7], fields[12]
    if fields[1] + 12 != len(batch) or count <= 0 or count != last_delta + 1:
        raise Malformed("the header does not fit")
    cursor = _Cursor(batch[61:])
    records = [_record(cursor, base_timestamp) for _ in range(min(count, len(batch)))]
    if len(records) != count or cursor.at != len(cursor.data):
        raise Malformed("the records do not fill the batch")
    if [record[0] for record in records] != list(range(count)):
        raise Malformed("the offset deltas are not 0, 1, 2, ...")
    return records


def _record(cursor: _Cursor, base_timestamp: int) -> Any:
    inner = _Cursor(cursor.take(cursor.varint(32)))
    inner.take(1)
    timestamp = base_timestamp + inner.varint(64)
    if not -(2**63) <= timestamp < 2**63:
        raise Malformed("a timestamp beyond 64 bits")
    delta, key, value = inner.varint(32), inner.field(), inner.field()
    headers = []
    count = inner.varint(32)
    if not 0 <= count <= len(inner.data):
        raise Malformed("a header count")
    for _ in range(count):
        name = inner.field()
        if name is None:
            raise Malformed("a header without a name")
        headers.append((name, inner.field()))
    if inner.at != len(inner.data):
        raise Malformed("the fields do not fill the record")
    return delta, timestamp, key, value, headers


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise Malformed("too short")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self, bits: int) -> int:
        number = shift = 0
        while True:
            (byte,) = self.take(1)
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if shift > 7 * (5 if bits == 32 else 10) or number >= 2**bits:
            raise Malformed("a varint that is too long")
        return number >> 1 if not number & 1 else -(number >> 1) - 1

    def field(self) -> bytes | None:
        size = self.varint(32)
        return None if size == -1 else self.take(size)
