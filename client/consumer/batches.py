"""Record batches by column: what `Consumer.fetch_batches` hands out.

    for place, batches in (await consumer.fetch_batches(timeout_ms=1000)).items():
        for rows in arrow_batches(batches):
            ...

A `FetchedBatch` is one batch of the log. Numbers lie in int64 buffers, keys and values each in one run of bytes with
their bounds beside it, as Arrow has them: no Python object per record is left. Every buffer is read-only, slices share
it. Nothing is deserialized.

`to_arrow` and `arrow_batches` need pyarrow, which is imported with the first call (arrow.py). Their columns are those of
Spark's Kafka source, by name, order and type.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, TypeAlias

import msgspec

from strandline.client.consumer.arrow import arrow_form
from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import UsageError
from strandline.protocol.records.batch import BatchHeader, Buffer
from strandline.protocol.records.reader import Columns, Headers, decode_columns

ArrowBatch: TypeAlias = Any
"""pyarrow.RecordBatch. pyarrow has no types; its name in the signature of a public function would be an error in every program
that pyright checks strictly."""
ArrowSchema: TypeAlias = Any
"""pyarrow.Schema."""

ROWS = 10_000
"""Of one Arrow batch: with fewer the cost per batch shows, with more Spark gains nothing."""
ARROW_BYTES_MAX = 64 * 1024 * 1024
"""Of one Arrow batch of several. Its offsets are int32, so this could not be more than 2 GiB."""
CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""Who set the timestamps of a batch: its producer, or the broker that appended it."""


# -- buffers ----------------------------------------------------------------------------------------------------------


def _int64s(numbers: Sequence[int]) -> memoryview:
    return memoryview(struct.pack(f"{len(numbers)}q", *numbers)).cast("q")


def _bounds(sizes: Iterable[int]) -> memoryview:
    """0, then the end of each field, as int32."""
    ends = list(accumulate(sizes, initial=0))
    return memoryview(struct.pack(f"{len(ends)}i", *ends)).cast("i")


_EVEN_ROWS = 8192
_EVEN_SIZE_MAX = 65_536


@lru_cache(maxsize=64)
def _even_bounds(size: int) -> memoryview:
    """Of `_EVEN_ROWS` fields of one size."""
    return _bounds([size] * _EVEN_ROWS)


def _bounds_of_equals(size: int, count: int) -> memoryview:
    if count <= _EVEN_ROWS and size <= _EVEN_SIZE_MAX:
        return _even_bounds(size)[: count + 1]
    return _bounds([size] * count)


def _bitmap(fields: Sequence[object]) -> bytes:
    """A bit per field, the lowest first: 0 where it is None."""
    digits = bytes([48 if field is None else 49 for field in reversed(fields)])
    return int(digits or b"0", 2).to_bytes((len(fields) + 7) // 8, "little")


# -- columns ----------------------------------------------------------------------------------------------------------


class BinaryColumn(msgspec.Struct, frozen=True):
    """`count` fields of bytes: those from `first` on of the buffers, which slices share."""

    data: bytes
    offsets: memoryview
    """int32. Field i of the buffers is `data[offsets[i] : offsets[i + 1]]`."""
    validity: bytes | None
    """A bit per field of the buffers, the lowest first; 0: null. None: no field is."""
    first: int
    count: int

    @classmethod
    def of(cls, fields: Sequence[bytes | None], size: int | None = None) -> BinaryColumn:
        """`size`: of every field, when that is known; none of them is None then."""
        count = len(fields)
        if size is not None:
            return cls(b"".join(fields), _bounds_of_equals(size, count), None, 0, count)  # type: ignore[arg-type]
        try:
            data = b"".join(fields)  # type: ignore[arg-type]
        except TypeError:
            present = [field or b"" for field in fields]
            return cls(b"".join(present), _bounds(map(len, present)), _bitmap(fields), 0, count)
        return cls(data, _bounds(map(len, fields)), None, 0, count)  # type: ignore[arg-type]

    @classmethod
    def nulls(cls, count: int) -> BinaryColumn:
        return cls(b"", _bounds_of_equals(0, count), bytes((count + 7) // 8), 0, count)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> bytes | None:
        if not 0 <= index < self.count:
            raise IndexError(index)
        at = self.first + index
        if self.validity is not None and not self.validity[at >> 3] >> (at & 7) & 1:
            return None
        return self.data[self.offsets[at] : self.offsets[at + 1]]

    @property
    def nbytes(self) -> int:
        return self.offsets[self.first + self.count] - self.offsets[self.first]

    def slice(self, first: int, stop: int) -> BinaryColumn:
        return BinaryColumn(self.data, self.offsets, self.validity, self.first + first, stop - first)


class HeadersColumn(msgspec.Struct, frozen=True):
    """The headers of `count` records, those from `first` on of the buffers: two columns for all of them, and each
    record's share."""

    offsets: memoryview
    """int32. Record i of the buffers has the headers `offsets[i]` to `offsets[i + 1]`."""
    names: BinaryColumn
    """UTF-8."""
    values: BinaryColumn
    validity: bytes
    """A bit per record of the buffers, the lowest first; 0: it has no headers, which is null in Arrow."""
    first: int
    count: int

    @classmethod
    def of(cls, rows: Sequence[Headers]) -> HeadersColumn:
        flat = list(chain.from_iterable(rows))
        names, values = [name.encode() for name, _ in flat], [value for _, value in flat]
        bounds, validity = _bounds(map(len, rows)), _bitmap([row or None for row in rows])
        return cls(bounds, BinaryColumn.of(names), BinaryColumn.of(values), validity, 0, len(rows))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Headers:
        if not 0 <= index < self.count:
            raise IndexError(index)
        start, stop = self.offsets[self.first + index], self.offsets[self.first + index + 1]
        return tuple(((self.names[i] or b"").decode(), self.values[i]) for i in range(start, stop))

    @property
    def nbytes(self) -> int:
        start, stop = self.offsets[self.first], self.offsets[self.first + self.count]
        return self.names.slice(start, stop).nbytes + self.values.slice(start, stop).nbytes

    def slice(self, first: int, stop: int) -> HeadersColumn:
        return HeadersColumn(self.offsets, self.names, self.values, self.validity, self.first + first, stop - first)


# -- batches ----------------------------------------------------------------------------------------------------------


class FetchedBatch(msgspec.Struct, frozen=True):
    """One batch of the log, or what was asked for of it; all columns have a row per record."""

    topic: str
    partition: int
    leader_epoch: int
    """Of the leader that appended it."""
    next_offset: int
    """Where reading goes on: behind the last offset, and behind those that compaction removed after it."""
    offsets: memoryview
    """int64, growing; with gaps where records were removed."""
    timestamps_ms: memoryview
    """int64."""
    timestamp_type: int
    """CREATE_TIME or LOG_APPEND_TIME."""
    keys: BinaryColumn
    values: BinaryColumn
    headers: HeadersColumn | None
    """None: no record has any."""
    producer_id: int = -1
    """Of who wrote it; -1: not idempotent."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def first_offset(self) -> int:
        return self.offsets[0] if self.offsets else self.next_offset

    @property
    def last_offset(self) -> int:
        return self.offsets[-1] if self.offsets else self.next_offset - 1

    @property
    def nbytes(self) -> int:
        """Of keys, values and headers."""
        return self.keys.nbytes + self.values.nbytes + (self.headers.nbytes if self.headers is not None else 0)

    def clip(self, from_offset: int, until_offset: int) -> FetchedBatch:
        """The rows with `from_offset` <= offset < `until_offset`, perhaps none. Copies nothing."""
        first, stop = bisect_left(self.offsets, from_offset), bisect_left(self.offsets, until_offset)
        if (first, stop) == (0, len(self.offsets)):
            return self
        return self._slice(first, max(first, stop), min(self.next_offset, until_offset))

    def _slice(self, first: int, stop: int, next_offset: int) -> FetchedBatch:
        return FetchedBatch(
            self.topic,
            self.partition,
            self.leader_epoch,
            next_offset,
            self.offsets[first:stop],
            self.timestamps_ms[first:stop],
            self.timestamp_type,
            self.keys.slice(first, stop),
            self.values.slice(first, stop),
            self.headers and self.headers.slice(first, stop),
            self.producer_id,
        )

    def pieces(self, rows: int) -> Iterator[FetchedBatch]:
        """The same rows, in batches of at most so many."""
        count = len(self.offsets)
        if count <= rows:
            yield self
            return
        for first in range(0, count, rows):
            stop = min(first + rows, count)
            yield self._slice(first, stop, self.offsets[stop] if stop < count else self.next_offset)

    def to_arrow(self, *, include_headers: bool = False) -> ArrowBatch:
        """These rows alone; see `arrow_batches`."""
        return arrow_form().record_batch([self], include_headers)


def fetched_batch(
    place: TopicPartition,
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    *,
    from_offset: int,
    check_crc: bool,
) -> FetchedBatch:
    """One batch from `from_offset` on (a batch may begin before what was asked for)."""
    columns = decode_columns(buf, pos, header, check_crc).since(from_offset)
    count = len(columns.values)
    key_size, value_size = columns.sizes or (None, None)
    return FetchedBatch(
        *place,
        header.leader_epoch,
        header.next_offset,
        _int64s(columns.offsets()),
        _timestamps(columns),
        LOG_APPEND_TIME if header.is_log_append_time else CREATE_TIME,
        BinaryColumn.nulls(count) if columns.keys is None else BinaryColumn.of(columns.keys, key_size),
        BinaryColumn.of(columns.values, value_size),
        None if columns.headers is None else HeadersColumn.of(columns.headers),
        header.producer_id,
    )


def _timestamps(columns: Columns) -> memoryview:
    times = array("q", [columns.base_timestamp]) * len(columns.values) if columns.timestamps is None else columns.timestamps
    return memoryview(times).toreadonly()


# -- Arrow ------------------------------------------------------------------------------------------------------------


def arrow_schema(*, include_headers: bool = False) -> ArrowSchema:
    """key, value: binary; topic: string; partition: int32; offset: int64; timestamp: timestamp[us, tz=UTC];
    timestampType: int32; and headers: list<struct<key: string, value: binary>>, null where there are none."""
    return arrow_form().schema(include_headers)


def arrow_batches(batches: Iterable[FetchedBatch], *, rows: int = ROWS, include_headers: bool = False) -> Iterator[ArrowBatch]:
    """The same rows in the same order, in Arrow batches of at most `rows` and at most `ARROW_BYTES_MAX`.

    Batches of another partition begin another Arrow batch. A batch of the log is divided only when it has more rows.
    """
    if rows < 1:
        raise UsageError(f"an Arrow batch has at least 1 row, not {rows}")
    form = arrow_form()
    for group in _groups(batches, rows):
        yield form.record_batch(group, include_headers)


def _groups(batches: Iterable[FetchedBatch], rows: int) -> Iterator[list[FetchedBatch]]:
    group: list[FetchedBatch] = []
    count = size = 0
    for piece in chain.from_iterable(batch.pieces(rows) for batch in batches):
        if group and (count + len(piece) > rows or size + piece.nbytes > ARROW_BYTES_MAX or not _same_place(group[0], piece)):
            yield group
            group, count, size = [], 0, 0
        group.append(piece)
        count, size = count + len(piece), size + piece.nbytes
    if group:
        yield group


def _same_place(a: FetchedBatch, b: FetchedBatch) -> bool:
    return a.partition == b.partition and a.topic == b.topic
