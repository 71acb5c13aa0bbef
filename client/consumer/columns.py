"""Columns of records as Arrow lays them out: the bytes of all fields in one run, with their bounds beside it. Pure.

Every buffer is read-only, and slices share it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain

import msgspec

from strandline.protocol.records.reader import Headers


def int64s(numbers: Sequence[int]) -> memoryview:
    """The numbers as a column of 64-bit integers."""
    return memoryview(struct.pack(f"{len(numbers)}q", *numbers)).cast("q")


def _bounds(sizes: Iterable[int]) -> memoryview:
    """0, then the end of each field, as int32."""
    ends = list(accumulate(sizes, initial=0))
    return memoryview(struct.pack(f"{len(ends)}i", *ends)).cast("i")


_EVEN_ROWS = 8192
_EVEN_SIZE_MAX = 65_536


@lru_cache(maxsize=64)
def _even_bounds(size: int) -> memoryview:
    """The bounds of `_EVEN_ROWS` fields of one size."""
    return _bounds([size] * _EVEN_ROWS)


def _bounds_of_equals(size: int, count: int) -> memoryview:
    if count <= _EVEN_ROWS and size <= _EVEN_SIZE_MAX:
        return _even_bounds(size)[: count + 1]
    return _bounds([size] * count)


def _bitmap(fields: Sequence[object]) -> bytes:
    """A bit per field, lowest first: 0 if it is None."""
    digits = bytes([48 if field is None else 49 for field in reversed(fields)])
    return int(digits or b"0", 2).to_bytes((len(fields) + 7) // 8, "little")


class BinaryColumn(msgspec.Struct, frozen=True):
    """`count` fields of bytes or None, as a sequence. They are the fields of the buffers from `first` on; slices share the
    buffers."""

    data: bytes
    offsets: memoryview
    """int32. Field i of the buffers is `data[offsets[i] : offsets[i + 1]]`."""
    validity: bytes | None
    """A bit per field of the buffers, lowest first; 0: the field is null. None if no field is null."""
    first: int
    count: int

    @classmethod
    def of(cls, fields: Sequence[bytes | None], size: int | None = None) -> BinaryColumn:
        """A column that holds a copy of these fields. If all fields have the same size and none is None, the caller may pass this
        size as `size`, so that the fields are not measured one by one."""
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
        """A column of `count` nulls."""
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
        """The bytes of the fields, without bounds."""
        return self.offsets[self.first + self.count] - self.offsets[self.first]

    def slice(self, first: int, stop: int) -> BinaryColumn:
        """The fields from `first` up to, not including, `stop`. It copies nothing."""
        return BinaryColumn(self.data, self.offsets, self.validity, self.first + first, stop - first)


class HeadersColumn(msgspec.Struct, frozen=True):
    """The headers of `count` records, as a sequence. They are the records of the buffers from `first` on: the names and values of
    all headers are two columns, and `offsets` says which belong to a record."""

    offsets: memoryview
    """int32. Record i of the buffers has the headers `offsets[i]` to `offsets[i + 1]`."""
    names: BinaryColumn
    """UTF-8."""
    values: BinaryColumn
    validity: bytes
    """A bit per record of the buffers, lowest first; 0: it has no headers, which is null in Arrow."""
    first: int
    count: int

    @classmethod
    def of(cls, rows: Sequence[Headers]) -> HeadersColumn:
        """The column of these records' headers."""
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
        """The bytes of names and values, without bounds."""
        start, stop = self.offsets[self.first], self.offsets[self.first + self.count]
        return self.names.slice(start, stop).nbytes + self.values.slice(start, stop).nbytes

    def slice(self, first: int, stop: int) -> HeadersColumn:
        """The records from `first` up to, not including, `stop`. It copies nothing."""
        return HeadersColumn(self.offsets, self.names, self.values, self.validity, self.first + first, stop - first)
