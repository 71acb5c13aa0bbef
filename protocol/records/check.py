"""The check of a produced batch's records, which the leader does before it appends the batch.

A reader cannot get past a malformed record, so the leader refuses the batch. From an accepted batch, every reader of Kafka's
format reads exactly `record_count` records, with the offset deltas 0, 1, 2, ... and timestamps of 64 bits. The check builds no
records, and tries three ways in this order:

1. **Strided**: records of one shape lie at equal distances. The first one is parsed, and each byte around its key and
   value is compared with the same byte of all others by one strided slice.
2. **Predicted**: records without headers and with the batch's timestamp. The bytes around key and value follow from the record's
   length and index, so they are compared, not parsed.
3. **General**: varint by varint, as strict as the strictest reader: a 32-bit field has at most five bytes, a 64-bit field at most
   ten, and no bit is dropped.

benchmarks/README.md has the costs. Weak spot: records of varying size take Python time each.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records import batch as v2
from strandline.protocol.records.batch import COMPRESSION_MASK, HEADER_SIZE, BatchHeader, Buffer
from strandline.protocol.records.compression import CannotDecompress
from strandline.protocol.records.reader import PLAIN_FRAMES_1, PLAIN_FRAMES_2, PLAIN_MIDDLES
from strandline.protocol.records.varint import VARINTS, decode_varint, varint_size

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_INT32_BYTES, _INT64_BYTES = 5, 10
"""The size of the longest varint of a 32-bit and of a 64-bit number."""
_STRIDED_MIN = 8
"""Fewer records than this are parsed one by one."""
_BOUNDS = (64, 8192, 1048576)
"""The offset deltas from which the varint takes two, three and four bytes. A strided run ends there."""
_BYTES = [bytes((byte,)) for byte in range(256)]


class RecordTimes(NamedTuple):
    """The oldest and the newest timestamp among the records of a batch, in ms."""

    oldest: int
    newest: int


def check_records(buf: Buffer, pos: int, header: BatchHeader, data: bytes | None = None) -> RecordTimes:
    """Check the records of the batch at `pos`, whose CRC is right. Raises INVALID_RECORD if they cannot be decompressed, or if
    one is malformed; UNSUPPORTED_COMPRESSION_TYPE. `data`: its records, if they were decompressed before.

    Copies the records, because slices of bytes are several times as fast as slices of a memoryview.
    """
    if data is None:
        plain = not header.attributes & COMPRESSION_MASK
        data = bytes(memoryview(buf)[pos + HEADER_SIZE : pos + header.size]) if plain else _decompressed(buf, pos, header)
    walk = _Walk(data, header.record_count)
    try:
        walk.run()
        return _times(header, walk.smallest_delta, walk.largest_delta)
    except (IndexError, ValueError) as e:
        reason = "it extends beyond the end of the batch" if isinstance(e, IndexError) else str(e)
        raise BrokerError(ErrorCode.INVALID_RECORD, f"record {walk.index} of the batch is malformed: {reason}") from None


def _decompressed(buf: Buffer, pos: int, header: BatchHeader) -> bytes:
    try:
        return v2.record_bytes(buf, pos, header)
    except CannotDecompress as e:
        raise BrokerError(ErrorCode.INVALID_RECORD, str(e)) from None


def _times(header: BatchHeader, smallest_delta: int, largest_delta: int) -> RecordTimes:
    times = RecordTimes(header.base_timestamp + smallest_delta, header.base_timestamp + largest_delta)
    if times.oldest < -_INT64_MAX - 1 or times.newest > _INT64_MAX:
        raise ValueError("a timestamp takes more than 64 bits")
    return times


class _Walk:
    """One pass over the records of a batch. IndexError or ValueError at the first malformed record."""

    __slots__ = ("count", "data", "index", "largest_delta", "pos", "smallest_delta")

    def __init__(self, data: bytes, count: int) -> None:
        self.data = data
        self.count = count
        self.index = 0
        """The index of the next record to check, which is also the offset delta that it must have."""
        self.pos = 0
        """The position of that record."""
        self.smallest_delta = _INT64_MAX
        self.largest_delta = -_INT64_MAX
        """The smallest and largest timestamp delta so far."""

    def run(self) -> None:
        if self.count >= _STRIDED_MIN:
            self._pass_alike()
        if self.index < self.count:
            self._pass_general()
        if self.pos != len(self.data):
            raise ValueError(f"{len(self.data) - self.pos} bytes follow the last record")

    def _pass_alike(self) -> None:
        """Pass the records at the beginning that need not be parsed one by one."""
        while self.index < self.count and self._pass_strided():
            pass
        if self.index < self.count:
            self._pass_plain()
        if self.index < self.count:
            self._pass_keyed()

    def _note(self, timestamp_delta: int) -> None:
        if timestamp_delta < self.smallest_delta:
            self.smallest_delta = timestamp_delta
        if timestamp_delta > self.largest_delta:
            self.largest_delta = timestamp_delta

    # -- strided ------------------------------------------------------------------------------------------------------

    def _pass_strided(self) -> bool:
        """Pass records of one shape, until the last one or until the offset delta's varint grows. False if they are not alike."""
        data, pos, first = self.data, self.pos, self.index
        index_size = 1 if first < 64 else 2 if first < 8192 else 3
        count = min(self.count, _BOUNDS[index_size - 1]) - first
        if count < _STRIDED_MIN:
            return False
        shape = _shape_at(data, pos, first, index_size)
        if shape is None:
            return False
        columns, index_at, size, timestamp_delta = shape
        end = pos + count * size
        if end > len(data):
            return False
        for at, byte in columns:
            if data[pos + at : end : size] != byte * count:
                return False
        for i in range(index_size):
            if data[pos + index_at + i : end : size] != index_bytes(index_size, i)[first : first + count]:
                return False
        self.index += count
        self.pos = end
        self._note(timestamp_delta)
        return True

    # -- predicted ----------------------------------------------------------------------------------------------------

    def _pass_plain(self) -> None:
        """Pass records without key and headers and with timestamp delta 0, and stop at the first other record."""
        data, pos, index = self.data, self.pos, self.index
        with suppress(IndexError):
            for frames, bound in ((PLAIN_FRAMES_1, 64), (PLAIN_FRAMES_2, 8192)):
                for middle in PLAIN_MIDDLES[index : max(index, min(bound, self.count))]:
                    frame = frames[data[pos : pos + 2]]
                    if frame is None:
                        break
                    middle_at, value_at, value_end, value_size = frame
                    value_end += pos
                    if data[value_end] or data[pos + middle_at : pos + value_at] != middle + value_size:
                        break
                    pos = value_end + 1
                    index += 1
                if index < bound:
                    break
        self._move_on(index, pos)

    def _pass_keyed(self) -> None:
        """Pass records without headers and with timestamp delta 0, and stop at the first other record."""
        data, pos, index = self.data, self.pos, self.index
        with suppress(IndexError, KeyError):
            for middle in _MIDDLES[index : self.count]:
                start, size = _EXTENTS[data[pos : pos + 2]]
                at = pos + start + len(middle)
                if data[pos + start : at] != middle:
                    break
                length = data[at]
                if length == 1:
                    at += 1
                elif length & 0x81:
                    break
                else:
                    at += 1 + (length >> 1)
                length = data[at]
                if length < 0x80:
                    at += 1 + (length >> 1)
                elif data[at + 1] < 0x80:
                    at += 2 + ((length & 0x7F | data[at + 1] << 7) >> 1)
                else:
                    break
                if length & 1 or data[at] or at + 1 != pos + size:
                    break
                pos = at + 1
                index += 1
        self._move_on(index, pos)

    def _move_on(self, index: int, pos: int) -> None:
        """Continue at record `index`; the records before it had timestamp delta 0."""
        if index > self.index:
            self._note(0)
            self.index, self.pos = index, pos

    # -- general ------------------------------------------------------------------------------------------------------

    def _pass_general(self) -> None:
        """Pass all remaining records. One long loop, because a call per field would double its time."""
        data, pos, limit = self.data, self.pos, len(self.data)
        smallest, largest = self.smallest_delta, self.largest_delta
        for index in range(self.index, self.count):
            self.index = index
            size = data[pos]
            if size < 0x80:
                at = pos + 1
            elif data[pos + 1] < 0x80:
                size = size & 0x7F | data[pos + 1] << 7
                at = pos + 2
            else:
                size, at = _read_varint(data, pos, _INT32_BYTES, "length")
                size <<= 1
            end = at + (size >> 1)
            if size & 1 or size < 2 * (v2.MIN_RECORD_SIZE - 1) or end > limit:
                raise ValueError(f"its length is {end - at if not size & 1 else 'negative'}, and {limit - at} bytes are left")

            time = data[at + 1]
            if time < 0x80:
                time = (time >> 1) ^ -(time & 1)
                at += 2
            else:
                time, at = _read_varint(data, at + 1, _INT64_BYTES, "timestamp delta")
            if time < smallest:
                smallest = time
            if time > largest:
                largest = time

            delta = data[at]
            if delta < 0x80 and not delta & 1:
                delta >>= 1
                at += 1
            elif data[at + 1] < 0x80 and not delta & 1:
                delta = (delta & 0x7F | data[at + 1] << 7) >> 1
                at += 2
            else:
                delta, at = _read_varint(data, at, _INT32_BYTES, "offset delta")
            if delta != index:
                raise ValueError(f"its offset delta is {delta}")

            size = data[at]
            if size == 1:
                at += 1
            elif size < 0x80 and not size & 1:
                at += 1 + (size >> 1)
            else:
                at = pass_field(data, at, end, "key", -1)

            size = data[at]
            if size < 0x80 and not size & 1:
                at += 1 + (size >> 1)
            elif data[at + 1] < 0x80 and not size & 1:
                at += 2 + ((size & 0x7F | data[at + 1] << 7) >> 1)
            else:
                at = pass_field(data, at, end, "value", -1)

            at = pass_headers(data, at, end) if data[at] else at + 1
            if at != end:
                raise ValueError("its fields do not fill its length")
            pos = end
        self.index, self.pos = self.count, pos
        self.smallest_delta, self.largest_delta = smallest, largest


@lru_cache(maxsize=8)
def index_bytes(size: int, byte: int) -> bytes:
    """Return byte `byte` of the varint of each offset delta that takes `size` bytes, by offset delta."""
    more = 0x80 if byte < size - 1 else 0
    if not byte:
        return bytes([n << 1 & 0x7F | more for n in range(64)]) * (_BOUNDS[size - 1] // 64)
    run = 1 << 7 * byte - 1
    once = b"".join([_BYTES[group | more] * run for group in range(128)])
    return once * (_BOUNDS[size - 1] // len(once))


Shape = tuple[list[tuple[int, bytes]], int, int, int]
"""The shape of a record without headers: each byte that its neighbours share and its position from the record's start, the
position of the offset delta, the record's size, and its timestamp delta."""


def _shape_at(data: bytes, start: int, index: int, index_size: int) -> Shape | None:
    """The shape of the record at `start`; None if it has headers or is malformed."""
    key_at = start + (3 if data[start] < 0x80 else 4) + index_size
    if data[key_at : key_at + 1] != b"\1":
        return shape_of(data, start, index)
    end = key_at + (2 if data[key_at + 1] < 0x80 else 3)
    return _plain_shape(data[start:end], index) or shape_of(data, start, index)


@lru_cache(maxsize=1024)
def _plain_shape(head: bytes, index: int) -> Shape | None:
    """The shape of a record without a key and with timestamp delta 0, by the bytes before its value."""
    value_size = head[-1] >> 1 if head[-2] < 0x80 else (head[-2] & 0x7F | head[-1] << 7) >> 1
    shape = shape_of(head + bytes(value_size + 1), 0, index)
    return shape if shape is not None and shape[0][-2][0] == len(head) - 1 else None


def shape_of(data: bytes, start: int, index: int) -> Shape | None:
    """The shape of the record at `start`; None if it has headers or is malformed."""
    try:
        size, attributes_at = _read_varint(data, start, _INT32_BYTES, "length")
        end = attributes_at + size
        timestamp_delta, index_at = _read_varint(data, attributes_at + 1, _INT64_BYTES, "timestamp delta")
        delta, key_at = _read_varint(data, index_at, _INT32_BYTES, "offset delta")
        if delta != index or key_at - index_at != varint_size(index) or end > len(data):
            return None
        value_at = pass_field(data, key_at, end, "key", -1)
        last_at = pass_field(data, value_at, end, "value", -1)
    except (IndexError, ValueError):
        return None
    if last_at + 1 != end or data[last_at]:
        return None
    # The attributes have no meaning, and may have any value.
    shared = [*range(start, attributes_at), *range(attributes_at + 1, index_at)]
    shared += [*range(key_at, _varint_end(data, key_at)), *range(value_at, _varint_end(data, value_at))]
    columns = [(at - start, _BYTES[data[at]]) for at in [*shared, last_at]]
    return columns, index_at - start, end - start, timestamp_delta


def _varint_end(data: bytes, at: int) -> int:
    while data[at] >= 0x80:
        at += 1
    return at + 1


class _Extents(dict[bytes, tuple[int, int]]):
    """A record's first two bytes -> how many of them are its length, and where the record ends. Raises KeyError if the length has
    more bytes."""

    def __missing__(self, start: bytes) -> tuple[int, int]:
        size = 1 if start[0] < 0x80 else 2
        if len(start) < 2 or start[0] & 1 or (size == 2 and start[1] >= 0x80):
            raise KeyError(start)
        extent = self[start] = size, size + decode_varint(start, 0)[0]
        return extent


_EXTENTS = _Extents()
"""At most 16,384 + 8,192 entries."""
_MIDDLES = [b"\0\0" + index for index in VARINTS]
"""The bytes after the length of record n: attributes, timestamp delta 0, offset delta."""


def _read_varint(data: bytes, at: int, size_max: int, what: str) -> tuple[int, int]:
    """A signed number of at most `size_max` bytes, and the position after it. Raises ValueError if it has more bytes or bits."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    if data[at + 1] < 0x80:
        byte = byte & 0x7F | data[at + 1] << 7
        return (byte >> 1) ^ -(byte & 1), at + 2
    end = _varint_end(data, at)
    number, _ = decode_varint(data, at) if end - at <= size_max else (_INT64_MAX + 1, end)
    limit = _INT32_MAX if size_max == _INT32_BYTES else _INT64_MAX
    if not -limit - 1 <= number <= limit:
        raise ValueError(f"its {what} takes more than {size_max} bytes or {limit.bit_length() + 1} bits")
    return number, end


def pass_field(data: bytes, at: int, end: int, what: str, smallest: int) -> int:
    """The end of a field, which is a length and as many bytes. A length of -1 means null, and is allowed if `smallest` is -1."""
    size, at = _read_varint(data, at, _INT32_BYTES, f"{what} length")
    if size < smallest:
        raise ValueError(f"its {what} length is {size}")
    if size > 0:
        at += size
    if at > end:
        raise ValueError(f"its {what} is longer than the record")
    return at


def pass_headers(data: bytes, at: int, end: int) -> int:
    """The end of the headers. Lengths of one byte are read in place; if a field exceeds the record, the result lies beyond
    `end`."""
    count, at = _read_varint(data, at, _INT32_BYTES, "header count")
    if not 0 <= count <= (end - at) // 2:
        raise ValueError(f"its header count is {count}, and {max(end - at, 0)} bytes are left")
    for _ in range(count):
        size = data[at]
        at = pass_field(data, at, end, "header name", 0) if size & 0x81 else at + 1 + (size >> 1)
        size = data[at]
        at = pass_field(data, at, end, "header value", -1) if size & 0x81 else at + 1 + (size >> 1)
    return at
