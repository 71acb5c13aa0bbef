"""Decodes record batches, for the consumer.

A batch is decoded into columns (keys, values, headers, timestamps), and record by record only if necessary. Three ways are tried
in this order for the remaining records:

1. **Strided**: records of one shape lie at equal distances. The first one is parsed, and each byte around its key and value is
   compared with the same byte of all others by one strided slice. Keys and values of many records are then unpacked at once.
2. **Predicted**: records without key and headers, with the batch's timestamp and values of any length. The bytes between two
   values follow from index and length, so they are compared, not parsed.
3. **General**: varint by varint.

All three raise CORRUPT_MESSAGE at a malformed record. Weak spot: records with different timestamps, as other clients write them,
always take the general way.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain, pairwise, repeat
from struct import Struct
from typing import NamedTuple

import msgspec

from strandline.protocol.records import batch as v2
from strandline.protocol.records.batch import BatchHeader, Buffer, corrupt
from strandline.protocol.records.compression import CannotDecompress
from strandline.protocol.records.varint import VARINTS, decode_varint, encode_varint

Headers = Sequence[tuple[str, bytes | None]]
NO_HEADERS: Headers = ()


class Record(msgspec.Struct, gc=False, frozen=True, array_like=True):
    """A record of a log, with its absolute offset."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = NO_HEADERS


class Columns(NamedTuple):
    """The records of a batch by column; all columns have one length. A column that is None has the same value in every row, which
    its description names."""

    base_offset: int
    base_timestamp: int
    offset_deltas: list[int] | None
    """None stands for 0, 1, 2, ..."""
    timestamps: array[int] | None
    """In ms. None if all are `base_timestamp`."""
    keys: list[bytes | None] | None
    """None if no record has a key."""
    values: list[bytes | None]
    headers: list[Headers] | None
    """None if no record has headers."""
    sizes: tuple[int, int] | None = None
    """The size of every key (-1: no keys) and of every value, if all are known to have one size; else None."""

    def since(self, offset: int) -> Columns:
        """Return the rows with offsets at or above `offset`."""
        offsets = self.offsets()
        if not offsets or offsets[0] >= offset:
            return self
        first = bisect_left(offsets, offset)
        return Columns(
            self.base_offset + first if self.offset_deltas is None else self.base_offset,
            self.base_timestamp,
            self.offset_deltas and self.offset_deltas[first:],
            self.timestamps and self.timestamps[first:],
            self.keys and self.keys[first:],
            self.values[first:],
            self.headers and self.headers[first:],
            self.sizes,
        )

    def offsets(self) -> Sequence[int]:
        """The absolute offset of each row."""
        base = self.base_offset
        if self.offset_deltas is None:
            return range(base, base + len(self.values))
        return [base + delta for delta in self.offset_deltas]

    def records(self) -> list[Record]:
        """The rows as `Record`s."""
        timestamps: Iterable[int] = repeat(self.base_timestamp) if self.timestamps is None else self.timestamps
        keys: Iterable[bytes | None] = repeat(None) if self.keys is None else self.keys
        if self.headers is None:
            return list(map(Record, self.offsets(), timestamps, keys, self.values))
        return list(map(Record, self.offsets(), timestamps, keys, self.values, self.headers))


def decode_columns(buf: Buffer, pos: int, header: BatchHeader, check_crc: bool = True) -> Columns:
    """The records of the batch at `pos`, by column. Raises CORRUPT_MESSAGE if it is damaged, UNSUPPORTED_COMPRESSION_TYPE if its
    codec is unknown."""
    if check_crc and not v2.check_crc(buf, pos, header.size):
        corrupt(f"the batch at offset {header.base_offset} fails its checksum")
    try:
        data = v2.record_bytes(buf, pos, header)
    except CannotDecompress as e:
        corrupt(f"the batch at offset {header.base_offset}: {e}")
    decoder = _Decoder(data, header)
    try:
        decoder.run()
    except (IndexError, ValueError, OverflowError):
        corrupt(f"record {len(decoder.values)} of the batch at offset {header.base_offset} is malformed")
    return decoder.columns()


def decode_checked(data: bytes, header: BatchHeader) -> Columns:
    """The columns of a batch. `data`: its records, decompressed and checked (`check.py`)."""
    decoder = _Decoder(data, header)
    decoder.run()
    return decoder.columns()


def decode_batch(buf: Buffer, pos: int, header: BatchHeader, check_crc: bool = True) -> list[Record]:
    """The records of the batch at `pos`; errors as in `decode_columns`."""
    return decode_columns(buf, pos, header, check_crc).records()


def decode_values(buf: Buffer, pos: int, header: BatchHeader, check_crc: bool = True) -> list[bytes | None]:
    """The values of the batch at `pos`, in half the time of `decode_batch`; errors as in `decode_columns`."""
    return decode_columns(buf, pos, header, check_crc).values


def iter_records(buf: Buffer, *, check_crc: bool = True) -> Iterator[Record]:
    """Every record of every batch in `buf`, including control records; errors as in `decode_columns`."""
    for pos, header in v2.iter_headers(buf):
        yield from decode_batch(buf, pos, header, check_crc)


# -- the three ways ---------------------------------------------------------------------------------------------------

_STRIDED_MIN = 8
"""Fewer records than this are not compared by stride."""
_INDEX_BYTES = (bytes(v[0] for v in VARINTS), bytes(v[-1] for v in VARINTS))
"""The first and the last byte of the offset delta of record n, for varints of one or two bytes."""
PLAIN_MIDDLES = [b"\0\0" + v + b"\1" for v in VARINTS]
"""The bytes after the length of a plain record n: attributes, timestamp delta, offset delta, no key."""


_FrameOfPlain = tuple[int, int, int, bytes]
"""Layout of a plain record: the positions of its middle, its value and the value's end, from the record's start, and the
encoded length of the value."""


class _PlainFrames(dict[bytes, _FrameOfPlain | None]):
    """A record's first two bytes -> its layout, if it is a plain record whose length has at most two bytes, otherwise None."""

    def __init__(self, index_size: int) -> None:
        self._middle_size = 3 + index_size

    def __missing__(self, start: bytes) -> _FrameOfPlain | None:
        self[start] = frame = self._frame(start)
        return frame

    def _frame(self, start: bytes) -> _FrameOfPlain | None:
        if len(start) < 2 or start[0] & 1 or (start[0] >= 0x80 and start[1] >= 0x80):
            return None
        size, middle_at = decode_varint(start, 0)
        end = middle_at + size
        for size_bytes in (1, 2):
            value_at = middle_at + self._middle_size + size_bytes
            value_size = end - 1 - value_at
            if value_size >= 0 and len(encode_varint(value_size)) == size_bytes:
                return middle_at, value_at, end - 1, encode_varint(value_size)
        return None


PLAIN_FRAMES_1, PLAIN_FRAMES_2 = _PlainFrames(1), _PlainFrames(2)
"""Layouts of records whose offset delta has one byte, and two bytes; at most about 65,800 entries each, None included."""


class _Shape(NamedTuple):
    """The positions and sizes of the fields of a record without headers, from its start."""

    index_at: int
    index_size: int
    timestamp_delta: int
    key_at: int
    key_size: int
    """-1: no key."""
    value_at: int
    value_size: int
    size: int


_TOGETHER = 64
"""Number of records that one unpack reads, because a tuple per record would cost more than its fields."""


@lru_cache(maxsize=1024)
def _unpacker(key_at: int, key_size: int, value_at: int, value_size: int, size: int, count: int) -> Struct:
    """Unpacks the key, if there is one, and the value of each of `count` consecutive records."""
    value = f"{value_size}s{size - value_at - value_size}x"
    if key_size < 0:
        return Struct(f"{value_at}x{value}" * count)
    return Struct(f"{key_at}x{key_size}s{value_at - key_at - key_size}x{value}" * count)


def _fields(shape: _Shape, data: memoryview, count: int) -> list[bytes]:
    """The keys, if there are any, and values of all records in `data`, in their order there."""
    blocks, left = divmod(count, _TOGETHER)
    end = blocks * _TOGETHER * shape.size
    fields: list[bytes] = list(chain.from_iterable(_unpacker(*shape[3:], _TOGETHER).iter_unpack(data[:end])))
    fields += _unpacker(*shape[3:], left).unpack_from(data, end)
    return fields


class _Decoder:
    """The columns of one batch while it is decoded. `keys`, `timestamps` and `headers` are created with the first record that has
    one, `deltas` with the first gap in the offsets. `sizes` becomes None with the first run of other sizes."""

    __slots__ = ("count", "data", "deltas", "header", "headers", "keys", "pos", "sizes", "timestamps", "values")

    def __init__(self, data: bytes, header: BatchHeader) -> None:
        self.data = data
        self.header = header
        self.count = header.record_count
        self.pos = 0
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.timestamps: array[int] | None = None
        self.headers: list[Headers] | None = None
        self.deltas: list[int] | None = None
        self.sizes: tuple[int, int] | None = None

    def columns(self) -> Columns:
        header = self.header
        base_timestamp, timestamps = header.base_timestamp, self.timestamps
        if header.is_log_append_time:
            base_timestamp, timestamps = header.max_timestamp, None
        return Columns(
            header.base_offset, base_timestamp, self.deltas, timestamps, self.keys, self.values, self.headers, self.sizes
        )

    def run(self) -> None:
        while len(self.values) < self.count and self._read_strided():
            pass
        if len(self.values) < self.count:
            self._read_predicted()
        if len(self.values) < self.count:
            self._read_general()
        if self.pos != len(self.data):
            raise ValueError("bytes follow the last record")

    # -- strided ------------------------------------------------------------------------------------------------------

    def _read_strided(self) -> bool:
        """Read records of one shape, at most until the offset delta's varint grows. False if they are not alike."""
        first = len(self.values)
        shape = self._shape()
        if shape is None or first >= 8192:
            return False
        size = shape.size
        count = min((64 if first < 64 else 8192) - first, self.count - first, (len(self.data) - self.pos) // size)
        if count < _STRIDED_MIN or not self._all_alike(shape, first, count):
            return False
        end = self.pos + count * size
        fields = _fields(shape, memoryview(self.data)[self.pos : end], count)
        times = [shape.timestamp_delta] * count if shape.timestamp_delta else None
        self.pos = end
        if shape.key_size < 0:
            self._add_columns(fields, None, times, None, (-1, shape.value_size))
        else:
            self._add_columns(fields[1::2], fields[::2], times, None, (shape.key_size, shape.value_size))
        return True

    def _all_alike(self, shape: _Shape, first: int, count: int) -> bool:
        """Whether `count` records have the same bytes as the first one around key and value, and consecutive offset deltas."""
        data, pos, size = self.data, self.pos, shape.size
        end = pos + count * size
        for i in range(shape.index_size):
            at = pos + shape.index_at + i
            if data[at:end:size] != _INDEX_BYTES[i][first : first + count]:
                return False
        around = [*range(shape.index_at), *range(shape.index_at + shape.index_size, shape.key_at)]
        around += range(shape.key_at + max(shape.key_size, 0), shape.value_at)
        around += range(shape.value_at + shape.value_size, size)
        return all(data[pos + at : end : size] == data[pos + at : pos + at + 1] * count for at in around)

    def _shape(self) -> _Shape | None:
        """The shape of the record at `pos`; None if it has headers, a null value, attributes, or an unexpected offset delta."""
        data, start = self.data, self.pos
        length, at = decode_varint(data, start)
        end = at + length
        if length < v2.MIN_RECORD_SIZE - 1 or end > len(data) or data[at] or data[end - 1]:
            return None
        timestamp_delta, index_at = decode_varint(data, at + 1)
        index, at = decode_varint(data, index_at)
        index_size = at - index_at
        key_size, key_at = decode_varint(data, at)
        value_size, value_at = decode_varint(data, key_at + max(key_size, 0))
        if index != len(self.values) or index_size > 2 or key_size < -1 or value_size < 0 or value_at + value_size + 1 != end:
            return None
        return _Shape(
            index_at - start, index_size, timestamp_delta, key_at - start, key_size, value_at - start, value_size, end - start
        )

    # -- predicted ----------------------------------------------------------------------------------------------------

    def _read_predicted(self) -> None:
        """Read plain records, and stop at the first other record."""
        data, pos, first = self.data, self.pos, len(self.values)
        values: list[bytes | None] = []
        append = values.append
        with suppress(IndexError):
            for frames, start, end in ((PLAIN_FRAMES_1, first, 64), (PLAIN_FRAMES_2, max(first, 64), len(PLAIN_MIDDLES))):
                for middle in PLAIN_MIDDLES[start : min(end, self.count)]:
                    frame = frames[data[pos : pos + 2]]
                    if frame is None:
                        break
                    middle_at, value_at, value_end, value_size = frame
                    value_end += pos
                    if data[value_end] or data[pos + middle_at : pos + value_at] != middle + value_size:
                        break
                    append(data[pos + value_at : value_end])
                    pos = value_end + 1
                if first + len(values) < end:
                    break
        self.pos = pos
        self._add_columns(values, None, None, None)

    # -- general ------------------------------------------------------------------------------------------------------

    def _read_general(self) -> None:
        """Read all remaining records. One long loop, because a call per field would double its time."""
        data, pos, limit = self.data, self.pos, len(self.data)
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        times: list[int] = []
        deltas: list[int] = []
        for _ in range(self.count - len(self.values)):
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
            if size & 1 or end > limit or end < pos + 6:
                raise ValueError("a record's length")

            time = data[pos + 1]
            pos += 2
            if time:
                if time >= 0x80 and not time & 1 and data[pos] < 0x80:
                    time = (time & 0x7F | data[pos] << 7) >> 1
                    pos += 1
                else:
                    time, pos = decode_varint(data, pos - 1)
            delta = data[pos]
            pos += 1
            if delta < 0x80 and not delta & 1:
                delta >>= 1
            elif data[pos] < 0x80 and not delta & 1:
                delta = (delta & 0x7F | data[pos] << 7) >> 1
                pos += 1
            else:
                delta, pos = decode_varint(data, pos - 1)

            size = data[pos]
            pos += 1
            if size == 1:
                keys.append(None)
            elif size < 0x80 and not size & 1:
                keys.append(data[pos : pos + (size >> 1)])
                pos += size >> 1
            else:
                key, pos = _nullable(data, pos - 1, end)
                keys.append(key)

            size = data[pos]
            pos += 1
            if size & 1:
                value, pos = _nullable(data, pos - 1, end)
                values.append(value)
            else:
                if size >= 0x80:
                    if data[pos] < 0x80:
                        size = size & 0x7F | data[pos] << 7
                        pos += 1
                    else:
                        size, pos = decode_varint(data, pos - 1)
                        size <<= 1
                values.append(data[pos : pos + (size >> 1)])
                pos += size >> 1

            if data[pos]:
                headers, pos = _headers(data, pos, end)
                self._add_headers(len(self.values) + len(values) - 1, headers)
            else:
                pos += 1
            if pos != end:
                raise ValueError("a record's fields do not fill its length")
            times.append(time)
            deltas.append(delta)
        self.pos = pos
        self._add_columns(values, keys, times, deltas)

    # -- columns ------------------------------------------------------------------------------------------------------

    def _add_headers(self, index: int, headers: Headers) -> None:
        if self.headers is None:
            self.headers = [NO_HEADERS] * self.count
        self.headers[index] = headers

    def _add_columns(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        times: list[int] | None,
        deltas: list[int] | None,
        sizes: tuple[int, int] | None = None,
    ) -> None:
        """Append rows. None stands for: no keys, timestamp delta 0, the next offsets, sizes not known."""
        first, count = len(self.values), len(values)
        if count:
            self.sizes = sizes if not first or self.sizes == sizes else None
        self.values += values
        if keys is not None and keys.count(None) == count:
            keys = None
        if keys is not None and self.keys is None:
            self.keys = [None] * first
        if self.keys is not None:
            self.keys += keys if keys is not None else [None] * count
        if times is not None and not any(times):
            times = None
        if times is not None and self.timestamps is None:
            self.timestamps = array("q", [self.header.base_timestamp]) * first
        if self.timestamps is not None:
            base = self.header.base_timestamp
            self.timestamps.extend([base + time for time in times] if times is not None else [base] * count)
        if deltas is not None and deltas != list(range(first, first + count)):
            self._add_deltas(first, deltas)

    def _add_deltas(self, first: int, deltas: list[int]) -> None:
        """Store offset deltas with gaps, as compaction leaves them. Only the general way does it, which is the last."""
        self.deltas = [*range(first), *deltas]
        if any(later <= earlier for earlier, later in pairwise(self.deltas)):
            raise ValueError("the offset deltas do not increase")
        if self.deltas[0] < 0 or self.deltas[-1] > self.header.last_offset_delta:
            raise ValueError("an offset delta lies outside the batch")


def _nullable(data: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    """A field (a length and as many bytes; None for length -1), and the position after it."""
    size = data[pos]
    if size < 0x80:
        pos += 1
        size = size >> 1 if not size & 1 else -(size >> 1) - 1
    else:
        size, pos = decode_varint(data, pos)
    if size < 0:
        if size != -1:
            raise ValueError("a negative length")
        return None, pos
    if pos + size > end:
        raise ValueError("a field is longer than its record")
    return data[pos : pos + size], pos + size


def _headers(data: bytes, pos: int, end: int) -> tuple[Headers, int]:
    """The headers, and the position after them. If a field exceeds the record, that position lies beyond `end`."""
    count, pos = decode_varint(data, pos)
    if not 0 <= count <= (end - pos) // 2:
        raise ValueError("the header count is larger than the record")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size = data[pos]
        if size < 0x80 and not size & 1:
            start, pos = pos + 1, pos + 1 + (size >> 1)
            name: bytes | None = data[start:pos]
        else:
            name, pos = _nullable(data, pos, end)
        size = data[pos]
        if size < 0x80 and not size & 1:
            start, pos = pos + 1, pos + 1 + (size >> 1)
            value: bytes | None = data[start:pos]
        else:
            value, pos = _nullable(data, pos, end)
        if name is None:
            raise ValueError("a header has no name")
        headers.append((name.decode("utf-8", "replace"), value))
    return headers, pos
