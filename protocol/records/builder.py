"""Builds record batches, for the producer.

    record  := length varint | attributes i8 (0) | timestamp delta varint | offset delta varint
               | key length varint (-1: none) | key | value length varint (-1: none) | value | header count varint | headers
    header  := key length varint | key | value length varint (-1: none) | value

A *plain* record has no key and no headers, and the batch's timestamp. All its bytes but the value depend only on the value's
length and the record's index. So a plain record is only appended to a list. When a run of them ends, the bytes between the
values come from tables, and the batch is one join:

    ... value | 0 (header count) , length , 0 , 0 | offset delta | -1 , value length | value ...
               \\_____ head: by length _____________/ \\_ by index _/ \\_ tail: by length _/

Within a run, the `0` that ends a record is part of the next record's head. All other records take the general path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from strandline.protocol.records import batch as v2
from strandline.protocol.records.compression import Codec
from strandline.protocol.records.varint import VARINTS, encode_varint, varint_size

Header = tuple[str, bytes | None]
RecordTuple = tuple[bytes | None, bytes | None, Sequence[Header], int]
"""Key, value, headers, timestamp in ms."""

PLAIN_OVERHEAD_MAX = 21
"""The most bytes of a plain record beyond its value (5 length, 1, 1, 5 offset delta, 1, 5 value length, 1, and 2 to spare)."""
OVERHEAD_MAX = 36
"""The most bytes of any record beyond its key, value and headers."""

_INDEX_CLASSES = (64, 8192, 1048576, 2**31)
"""The offset deltas from which the varint takes two, three, four and five bytes."""
_PREFIX_LENGTHS_MAX = 32
_PREFIX_COUNT_MAX = 4096
_TABLE_LENGTHS_MAX = 8192

_prefixes: dict[int, list[bytes]] = {}
"""Value length -> the bytes before a value, by record index, for runs of values of one length."""


class _ByLength(dict[int, bytes]):
    """A table by value length, filled on demand. It is cleared when it grows too large."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        self._make = make

    def __missing__(self, length: int) -> bytes:
        if len(self) >= _TABLE_LENGTHS_MAX:
            self.clear()
        made = self[length] = self._make(length)
        return made


def _head(length: int, index_size: int) -> bytes:
    """The end of the record before, then length, attributes and timestamp delta (0) of a plain record."""
    return b"\0" + encode_varint(length + varint_size(length) + index_size + 4) + b"\0\0"


def _tail(length: int) -> bytes:
    return b"\1" + encode_varint(length)


_heads = [_ByLength(lambda length, size=size: _head(length, size)) for size in range(1, 6)]  # type: ignore[misc]
_tails = _ByLength(_tail)


def _prefixes_of(length: int, count: int) -> list[bytes]:
    """At least `count` prefixes for values of this length, by record index from 0."""
    known = _prefixes.get(length)
    if known is None:
        if len(_prefixes) >= _PREFIX_LENGTHS_MAX:
            _prefixes.clear()
        known = _prefixes[length] = []
    for first, last, heads in _classes(len(known), count):
        head, tail = heads[length], _tails[length]
        known.extend([head + encode_varint(index) + tail for index in range(first, last)])
    return known


def _classes(first: int, last: int) -> list[tuple[int, int, _ByLength]]:
    """The indexes [first, last), divided where the size of their varint changes."""
    cuts = []
    for heads, end in zip(_heads, _INDEX_CLASSES, strict=False):
        if first < last and first < end:
            cuts.append((first, min(last, end), heads))
            first = end
    return cuts


def _encode_run(values: list[bytes], first: int) -> list[bytes]:
    """The parts of plain records with the offset deltas from `first` on. The first part begins with the end of the record
    before."""
    count, end = len(values), first + len(values)
    lengths = list(map(len, values))
    parts: list[bytes]
    if end <= _PREFIX_COUNT_MAX and lengths.count(lengths[0]) == count:
        prefixes = _prefixes_of(lengths[0], end)
        parts = [b""] * (2 * count)
        parts[0::2] = prefixes[first:end]
        parts[1::2] = values
        return parts
    parts = [b""] * (4 * count)
    parts[3::4] = values
    parts[2::4] = map(_tails.__getitem__, lengths)
    parts[1::4] = (
        VARINTS[first : first + count] if first + count <= len(VARINTS) else map(encode_varint, range(first, first + count))
    )
    parts[0::4] = chain.from_iterable(
        map(heads.__getitem__, lengths[start - first : stop - first]) for start, stop, heads in _classes(first, end)
    )
    return parts


_STARTS = [length + b"\0\0" for length in VARINTS[2:]]
"""Number of bytes that follow -> the start of a record: its length, attributes, and timestamp delta 0."""


def _with_lengths(column: Sequence[bytes | None]) -> tuple[list[bytes], list[int], Sequence[bytes]]:
    """Return for each field its encoded length, the size of length and field together, and the field."""
    if None in column:
        fields = [field or b"" for field in column]
        lengths = [b"\1" if field is None else encode_varint(len(field)) for field in column]
        return lengths, list(map(int.__add__, map(len, fields), map(len, lengths))), fields
    sizes = list(map(len, column))  # type: ignore[arg-type]
    if sizes.count(sizes[0]) == len(sizes):
        length = encode_varint(sizes[0])
        return [length] * len(sizes), [sizes[0] + len(length)] * len(sizes), column  # type: ignore[return-value]
    lengths = list(map(VARINTS.__getitem__ if max(sizes) < len(VARINTS) else encode_varint, sizes))
    return lengths, list(map(int.__add__, sizes, map(len, lengths))), column  # type: ignore[return-value]


def _encode_columns(keys: Sequence[bytes | None], values: Sequence[bytes | None], headers: Sequence[Sequence[Header]]) -> bytes:
    """Encode whole records, column by column. All have the batch's timestamp, and the offset deltas begin at 0."""
    count = len(values)
    deltas = VARINTS[:count] if count <= len(VARINTS) else list(map(encode_varint, range(count)))
    ends = [_encode_headers(own) if own else b"\0" for own in headers] if any(headers) else [b"\0"] * count
    key_lengths, key_sizes, key_bytes = _with_lengths(keys)
    value_lengths, value_sizes, value_bytes = _with_lengths(values)
    sizes = list(map(int.__add__, map(int.__add__, key_sizes, value_sizes), map(int.__add__, map(len, deltas), map(len, ends))))
    parts = [b""] * (7 * count)
    if max(sizes) < len(_STARTS):
        parts[0::7] = map(_STARTS.__getitem__, sizes)
    else:
        parts[0::7] = [encode_varint(size + 2) + b"\0\0" for size in sizes]
    parts[1::7], parts[2::7], parts[3::7] = deltas, key_lengths, key_bytes
    parts[4::7], parts[5::7], parts[6::7] = value_lengths, value_bytes, ends
    return b"".join(parts)


class BatchBuilder:
    """Collects records and builds one batch. `size` is an upper bound of the size of the batch that `build` returns."""

    __slots__ = (
        "_attributes",
        "_encoded",
        "_parts",
        "base_sequence",
        "base_timestamp",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "size",
        "values",
    )

    values: list[bytes]
    """The values of the open run of plain records. A caller that updates `size` itself may append here directly instead of
    calling `append_value`, once `base_timestamp` is set."""
    base_timestamp: int
    """The first record's timestamp, -1 while empty."""
    size: int

    def __init__(
        self,
        producer_id: int = v2.NO_PRODUCER_ID,
        producer_epoch: int = v2.NO_PRODUCER_EPOCH,
        base_sequence: int = v2.NO_SEQUENCE,
        *,
        is_transactional: bool = False,
        is_control: bool = False,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self._attributes = v2.TRANSACTIONAL_MASK * is_transactional | v2.CONTROL_MASK * is_control
        self._parts: list[bytes] = []
        self._encoded = 0
        self.values = []
        self.base_timestamp = self.max_timestamp = -1
        self.size = v2.HEADER_SIZE

    def next_builder(self) -> BatchBuilder:
        """A builder of the batch that follows this one: of the same producer, with the next sequence."""
        sequence = self.base_sequence
        if sequence != v2.NO_SEQUENCE:
            sequence = (sequence + len(self)) & v2.MAX_SEQUENCE
        after = BatchBuilder(self.producer_id, self.producer_epoch, sequence)
        after._attributes = self._attributes
        return after

    @property
    def count(self) -> int:
        return self._encoded + len(self.values)

    def __len__(self) -> int:
        return self._encoded + len(self.values)

    def append_value(self, value: bytes) -> int:
        """Append a plain record with the batch's timestamp, which an earlier record must have set. Returns its offset delta."""
        self.values.append(value)
        self.size += len(value) + PLAIN_OVERHEAD_MAX
        return self._encoded + len(self.values) - 1

    def extend(self, values: Sequence[bytes], timestamp_ms: int) -> None:
        """Append records without keys and headers. They get the batch's timestamp; for an empty batch that is `timestamp_ms`."""
        if not self._encoded and not self.values:
            self.base_timestamp = self.max_timestamp = timestamp_ms
        self.values.extend(values)
        self.size += sum(map(len, values)) + PLAIN_OVERHEAD_MAX * len(values)

    def append(self, key: bytes | None, value: bytes | None, headers: Sequence[Header], timestamp_ms: int) -> int:
        """Append a record. Returns its offset delta."""
        delta = self._encoded + len(self.values)
        if delta == 0:
            self.base_timestamp = self.max_timestamp = timestamp_ms
        if key is None and not headers and value is not None and timestamp_ms == self.base_timestamp:
            self.values.append(value)
            self.size += len(value) + PLAIN_OVERHEAD_MAX
            return delta
        if self.values:
            self._close_run()
        if timestamp_ms == self.base_timestamp:
            start = b"\0\0"
        else:
            start = b"\0" + encode_varint(timestamp_ms - self.base_timestamp)
            if timestamp_ms > self.max_timestamp:
                self.max_timestamp = timestamp_ms
        self._append_general(start, delta, key, value, _encode_headers(headers) if headers else b"\0")
        return delta

    def extend_records(self, records: Sequence[RecordTuple]) -> None:
        """Append records. If the batch is empty and all have one timestamp, they are encoded by column, in half the time."""
        times = {record[3] for record in records}
        if len(times) > 1 or self._encoded or self.values:
            for record in records:
                self.append(*record)
            return
        self.base_timestamp = self.max_timestamp = records[0][3]
        keys, values, headers, _ = zip(*records, strict=True)
        encoded = _encode_columns(keys, values, headers)
        self._parts.append(encoded)
        self._encoded = len(records)
        self.size += len(encoded)

    def _append_general(self, start: bytes, delta: int, key: bytes | None, value: bytes | None, headers: bytes) -> None:
        """Append one encoded record. `start`: its attributes and timestamp delta; `headers`: its encoded headers."""
        if key is None:
            key, key_size = b"", b"\1"
        else:
            n = len(key)
            key_size = VARINTS[n] if n < 8192 else encode_varint(n)
        if value is None:
            value, value_size = b"", b"\1"
        else:
            n = len(value)
            value_size = VARINTS[n] if n < 8192 else encode_varint(n)
        offset = VARINTS[delta] if delta < 8192 else encode_varint(delta)
        size = len(start) + len(offset) + len(key_size) + len(key) + len(value_size) + len(value) + len(headers)
        length = VARINTS[size] if size < 8192 else encode_varint(size)
        self._parts += (length, start, offset, key_size, key, value_size, value, headers)
        self._encoded += 1
        self.size += size + len(length)

    def _close_run(self) -> None:
        """Encode the open run of plain records."""
        run = _encode_run(self.values, self._encoded)
        run[0] = run[0][1:]
        run.append(b"\0")
        self._parts += run
        self._encoded += len(self.values)
        self.values = []

    def build(
        self, *, base_offset: int = 0, leader_epoch: int = -1, codec: Codec = Codec.NONE, level: int | None = None
    ) -> bytes:
        """The batch. More records may be appended afterwards, and a larger batch built. Raises ValueError if there is no
        record."""
        if self.values:
            self._close_run()
        if not self._encoded:
            raise ValueError("a batch without records cannot be built")
        return v2.assemble(
            self._parts,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            attributes=self._attributes,
            last_offset_delta=self._encoded - 1,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            record_count=self._encoded,
            codec=codec,
            level=level,
        )


def _encode_headers(headers: Sequence[Header]) -> bytes:
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        raw = name.encode()
        parts += (encode_varint(len(raw)), raw)
        parts += (b"\1",) if value is None else (encode_varint(len(value)), value)
    return b"".join(parts)


def encode_batch(
    records: Sequence[RecordTuple],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = v2.NO_PRODUCER_ID,
    producer_epoch: int = v2.NO_PRODUCER_EPOCH,
    base_sequence: int = v2.NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    codec: Codec = Codec.NONE,
    level: int | None = None,
) -> bytes:
    """One batch of these records: (key, value, headers, timestamp in ms) each."""
    builder = BatchBuilder(producer_id, producer_epoch, base_sequence, is_transactional=is_transactional, is_control=is_control)
    for key, value, headers, timestamp_ms in records:
        builder.append(key, value, headers, timestamp_ms)
    return builder.build(base_offset=base_offset, leader_epoch=leader_epoch, codec=codec, level=level)


def encode_values(
    values: Sequence[bytes], timestamp_ms: int, *, base_offset: int = 0, leader_epoch: int = -1, is_control: bool = False
) -> bytes:
    """One batch of records with these values and one timestamp, without keys and headers."""
    builder = BatchBuilder(is_control=is_control)
    builder.extend(values, timestamp_ms)
    return builder.build(base_offset=base_offset, leader_epoch=leader_epoch)
