"""The positions and the keys of a batch's records: all that the log cleaner needs from a batch.

A record is copied as it is encoded or not at all, so nothing else is decoded. Two ways are tried for the records of a batch:

1. **Strided**: records of one shape lie at equal distances, as in `check.py`. The shape is remembered from batch to batch, and
   the keys of many records are unpacked at once.
2. **General**: varint by varint. Offset deltas may have gaps here, as compaction leaves them.

Both check that the fields of each record fill its length, and raise CORRUPT_MESSAGE at a malformed record.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, pairwise, repeat
from struct import Struct
from typing import NamedTuple

from strandline.protocol.records import batch as v2
from strandline.protocol.records.batch import BatchHeader, Buffer, corrupt
from strandline.protocol.records.check import Shape, index_bytes, pass_field, pass_headers, shape_of
from strandline.protocol.records.compression import CannotDecompress
from strandline.protocol.records.varint import decode_varint

_STRIDED_MIN = 8
"""Fewer records than this are not compared by stride."""
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_TOGETHER = 64
"""Number of records that one unpack reads, because a tuple per record would cost more than its key."""
_BOUNDS = (64, 8192)
"""The offset deltas from which the varint takes two and three bytes. A strided run ends there."""


class Layout(NamedTuple):
    """The records of one batch: where they lie, and their keys."""

    data: bytes
    """The encoded records, decompressed."""
    starts: list[int]
    """The position of each record in `data`, and the end of the last one."""
    keys: list[bytes | None]
    offset_deltas: list[int] | None
    """None stands for 0, 1, 2, ..."""
    tombstones: list[int]
    """The rows that have no value."""

    def offsets(self, base_offset: int) -> range | list[int]:
        """The absolute offset of each row."""
        if self.offset_deltas is None:
            return range(base_offset, base_offset + len(self.keys))
        return [base_offset + delta for delta in self.offset_deltas]


class _Stride:
    """A shape that many records have: fields without headers, each of one size, and one timestamp delta."""

    __slots__ = ("_key", "_unpackers", "has_key", "has_value", "index_at", "shared", "size", "timestamp_delta")

    def __init__(self, shape: Shape, key_at: int, key_size: int, value_size: int) -> None:
        """`key_at`: from the start of a record. A size of -1 stands for no key, and for no value."""
        self.shared, self.index_at, self.size, self.timestamp_delta = shape
        self.has_key, self.has_value = key_size >= 0, value_size >= 0
        self._key = f"{key_at}x{key_size}s{self.size - key_at - key_size}x"
        self._unpackers: dict[int, Struct] = {}
        """Number of records, at most `_TOGETHER` -> the struct that unpacks the keys of this many records at once."""

    def keys(self, data: bytes, pos: int, count: int) -> Iterable[bytes | None]:
        """The keys of `count` records from `pos` on."""
        if not self.has_key:
            return repeat(None, count)
        blocks, left = divmod(count, _TOGETHER)
        end = pos + blocks * _TOGETHER * self.size
        rest: tuple[bytes, ...] = self._unpacker(left).unpack_from(data, end)
        if not blocks:
            return rest
        return chain(chain.from_iterable(self._unpacker(_TOGETHER).iter_unpack(memoryview(data)[pos:end])), rest)

    def _unpacker(self, count: int) -> Struct:
        unpacker = self._unpackers.get(count)
        if unpacker is None:
            unpacker = self._unpackers[count] = Struct(self._key * count)
        return unpacker


class LayoutReader:
    """Reads the layout of batch after batch. It remembers the shape of records, and nothing else."""

    def __init__(self) -> None:
        self._strides: list[_Stride | None] = [None, None]
        """The last shape of records whose offset delta has one byte, and the last of those with two bytes."""

    def read(self, buf: Buffer, header: BatchHeader) -> Layout:
        """The layout of the batch in `buf`, whose checksum is right. Raises CORRUPT_MESSAGE or UNSUPPORTED_COMPRESSION_TYPE."""
        try:
            data = v2.record_bytes(buf, 0, header)
        except CannotDecompress as e:
            corrupt(f"the batch at offset {header.base_offset}: {e}")
        layout = Layout(data, [0], [], None, [])
        try:
            while len(layout.keys) < header.record_count and self._read_strided(layout, header):
                pass
            if len(layout.keys) < header.record_count:
                layout = _read_general(layout, header)
            if layout.starts[-1] != len(data):
                raise ValueError("bytes follow the last record")
        except (IndexError, ValueError):
            corrupt(f"record {len(layout.keys)} of the batch at offset {header.base_offset} is malformed")
        return layout

    def _read_strided(self, layout: Layout, header: BatchHeader) -> bool:
        """Read records of one shape, until the last one or until the offset delta's varint grows. False if they are not alike."""
        data, pos, first = layout.data, layout.starts[-1], len(layout.keys)
        index_size = 1 if first < _BOUNDS[0] else 2
        count = min(header.record_count, _BOUNDS[index_size - 1]) - first
        if count < _STRIDED_MIN:
            return False
        stride = self._strides[index_size - 1]
        if stride is None or not _are_alike(data, pos, first, count, index_size, stride):
            stride = self._strides[index_size - 1] = _stride_at(data, pos, first, index_size)
            if stride is None or not _are_alike(data, pos, first, count, index_size, stride):
                return False
        if not _INT64_MIN <= header.base_timestamp + stride.timestamp_delta <= _INT64_MAX:
            raise ValueError("a timestamp takes more than 64 bits")
        end = pos + count * stride.size
        layout.keys.extend(stride.keys(data, pos, count))
        layout.starts.extend(range(pos + stride.size, end + 1, stride.size))
        if not stride.has_value:
            layout.tombstones.extend(range(first, first + count))
        return True


def _are_alike(data: bytes, pos: int, first: int, count: int, index_size: int, stride: _Stride) -> bool:
    """Whether `count` records from `pos` on have this shape, and consecutive offset deltas from `first` on."""
    size = stride.size
    end = pos + count * size
    if end > len(data):
        return False
    for at, byte in stride.shared:
        if data[pos + at : end : size] != byte * count:
            return False
    for i in range(index_size):
        if data[pos + stride.index_at + i : end : size] != index_bytes(index_size, i)[first : first + count]:
            return False
    return True


def _stride_at(data: bytes, pos: int, index: int, index_size: int) -> _Stride | None:
    """The shape of the record at `pos`; None if it has headers or is malformed."""
    shape = shape_of(data, pos, index)
    if shape is None:
        return None
    key_size, key_at = decode_varint(data, pos + shape[1] + index_size)
    value_size, _ = decode_varint(data, key_at + max(key_size, 0))
    return _Stride(shape, key_at - pos, key_size, value_size)


def _read_general(layout: Layout, header: BatchHeader) -> Layout:
    """Read all remaining records. One long loop, because a call per field would double its time."""
    data, starts, keys, tombstones = layout.data, layout.starts, layout.keys, layout.tombstones
    first, pos, limit = len(keys), starts[-1], len(data)
    deltas = []
    for row in range(first, header.record_count):
        size = data[pos]
        pos += 1
        if size >= 0x80:
            if data[pos] < 0x80:
                size = size & 0x7F | data[pos] << 7
                pos += 1
            else:
                size, pos = decode_varint(data, pos - 1)
                size <<= 1
        end = pos + (size >> 1)
        if size & 1 or end > limit or end < pos + v2.MIN_RECORD_SIZE - 1:
            raise ValueError("a record's length")

        pos += 2
        if data[pos - 1] >= 0x80:
            time, pos = decode_varint(data, pos - 1)
            if not _INT64_MIN <= header.base_timestamp + time <= _INT64_MAX:
                raise ValueError("a timestamp takes more than 64 bits")
        delta = data[pos]
        pos += 1
        if delta < 0x80 and not delta & 1:
            delta >>= 1
        elif data[pos] < 0x80 and not delta & 1:
            delta = (delta & 0x7F | data[pos] << 7) >> 1
            pos += 1
        else:
            delta, pos = decode_varint(data, pos - 1)
        deltas.append(delta)

        size = data[pos]
        if size == 1:
            keys.append(None)
            pos += 1
        elif size < 0x80 and not size & 1:
            keys.append(data[pos + 1 : pos + 1 + (size >> 1)])
            pos += 1 + (size >> 1)
        else:
            size, start = decode_varint(data, pos)
            pos = pass_field(data, pos, end, "key", -1)
            keys.append(None if size < 0 else data[start:pos])

        size = data[pos]
        if size == 1:
            tombstones.append(row)
            pos += 1
        elif size < 0x80 and not size & 1:
            pos += 1 + (size >> 1)
        elif data[pos + 1] < 0x80 and not size & 1:
            pos += 2 + ((size & 0x7F | data[pos + 1] << 7) >> 1)
        else:
            value_size, _ = decode_varint(data, pos)
            pos = pass_field(data, pos, end, "value", -1)
            if value_size < 0:
                tombstones.append(row)
        pos = pass_headers(data, pos, end) if data[pos] else pos + 1
        if pos != end:
            raise ValueError("a record's fields do not fill its length")
        starts.append(pos)
    return layout._replace(offset_deltas=_with_gaps(first, deltas, header))


def _with_gaps(first: int, deltas: list[int], header: BatchHeader) -> list[int] | None:
    """The offset deltas of all records: `deltas`, after the first ones, which have no gap. None if there is no gap at all."""
    if deltas == list(range(first, header.record_count)):
        return None
    deltas = [*range(first), *deltas]
    if any(later <= earlier for earlier, later in pairwise(deltas)):
        raise ValueError("the offset deltas do not increase")
    if deltas[0] < 0 or deltas[-1] > header.last_offset_delta:
        raise ValueError("an offset delta lies outside the batch")
    return deltas


def record_starts(data: bytes, count: int) -> list[int]:
    """The position of each record, and the end of the last one. The records must have been read before, so no size is negative.

    Sizes of one and two bytes are decoded here, because a call per record would double the time."""
    starts, at = [0], 0
    for _ in range(count):
        first = data[at]
        if first < 0x80:
            at += 1 + (first >> 1)
        elif (second := data[at + 1]) < 0x80:
            at += 2 + ((first & 0x7F | second << 7) >> 1)
        else:
            size, at = decode_varint(data, at)
            at += size
        starts.append(at)
    return starts


def timestamp_delta(data: bytes, start: int) -> int:
    """The timestamp delta of the record at `start`, which was read before."""
    _, attributes_at = decode_varint(data, start)
    delta, _ = decode_varint(data, attributes_at + 1)
    return delta
