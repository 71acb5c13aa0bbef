"""Kafka's field types, of which the keys and values of `__consumer_offsets` consist.

    int8 int16 int32 int64    big-endian, signed
    uuid                      16 bytes
    varint                    unsigned: 7 bits in each byte, the lowest first; the top bit says that another byte follows

                 inflexible version                        flexible version (KIP-482)
    string       int16 length (-1: null) | UTF-8           varint length + 1 (0: null) | UTF-8
    bytes        int32 length (-1: null) | bytes           varint length + 1 (0: null) | bytes
    array        int32 count (-1: null) | items            varint count + 1 (0: null) | items
    struct       fields                                    fields | varint count | tagged fields
                                                           tagged field := varint tag | varint size | bytes

A version of a value is inflexible or flexible as a whole. A tagged field that has its default is left out, and a reader skips
tags that it does not know, so a later Kafka can add one without a new version.

A reader allocates no memory for a claimed length: a length beyond the end of the bytes is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct, error
from typing import NoReturn, TypeVar

from strandline.protocol.errors import BrokerError, ErrorCode

T = TypeVar("T")

_INT8, _INT16, _INT32, _INT64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
TEXT_BYTES_MAX = 0x7FFF
"""The maximum length of a string. Flexible versions could contain a longer one, but Kafka's classes would not read it."""


class MalformedRecord(ValueError):
    """The bytes of a key or a value end too early, go on too long, or have a value that the field cannot have."""


class Reader:
    """Reads the fields of one key or value, one after the other. Every method raises `MalformedRecord`."""

    __slots__ = ("_data", "_position", "is_flexible")

    def __init__(self, data: bytes, *, is_flexible: bool = False) -> None:
        self._data = data
        self._position = 0
        self.is_flexible = is_flexible
        """Whether strings, bytes, arrays and structs have the forms of a flexible version."""

    @property
    def remaining(self) -> int:
        return len(self._data) - self._position

    def int8(self) -> int:
        return self._number(_INT8)

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def uuid(self) -> bytes:
        return self._take(16)

    def varint(self) -> int:
        data, position = self._data, self._position
        value = shift = 0
        while shift < 35:
            if position >= len(data):
                self._ends_early(1)
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80 and value < 1 << 31:
                self._position = position
                return value
            shift += 7
        raise MalformedRecord("a length is larger than 31 bits")

    def text(self) -> str:
        return _not_null(self.nullable_text())

    def nullable_text(self) -> str | None:
        length = self.varint() - 1 if self.is_flexible else self.int16()
        if length < 0:
            return None
        if length > TEXT_BYTES_MAX:
            raise MalformedRecord(f"a string of {length} bytes is longer than {TEXT_BYTES_MAX}")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as e:
            raise MalformedRecord(f"a string is not UTF-8: {e.reason}") from e

    def blob(self) -> bytes:
        length = self._size()
        return self._take(_not_null(None if length < 0 else length))

    def items(self, read: Callable[[], T]) -> list[T]:
        """Read an array. `read`: reads one item."""
        return _not_null(self.nullable_items(read))

    def nullable_items(self, read: Callable[[], T]) -> list[T] | None:
        count = self._size()
        if count < 0:
            return None
        if count > self.remaining:
            # An item has at least one byte.
            raise MalformedRecord(f"{count} items do not fit into the {self.remaining} bytes that are left")
        return [read() for _ in range(count)]

    def tags(self) -> dict[int, Reader]:
        """Read the tagged fields at the end of a struct, by tag; none in an inflexible version."""
        count = self.varint() if self.is_flexible else 0
        return dict(self._tag() for _ in range(count))

    def _tag(self) -> tuple[int, Reader]:
        tag = self.varint()
        return tag, Reader(self._take(self.varint()), is_flexible=True)

    def end(self) -> None:
        """Check that nothing is left."""
        if self.remaining:
            raise MalformedRecord(f"{self.remaining} bytes are left over")

    def _number(self, form: Struct) -> int:
        try:
            number: int = form.unpack_from(self._data, self._position)[0]
        except error:
            self._ends_early(form.size)
        self._position += form.size
        return number

    def _size(self) -> int:
        return self.varint() - 1 if self.is_flexible else self.int32()

    def _take(self, size: int) -> bytes:
        start = self._position
        if size > len(self._data) - start:
            self._ends_early(size)
        self._position = start + size
        return self._data[start : start + size]

    def _ends_early(self, needed: int) -> NoReturn:
        raise MalformedRecord(f"a field needs {needed} bytes at position {self._position}, but {self.remaining} are left")


def _not_null(value: T | None) -> T:
    if value is None:
        raise MalformedRecord("a field that must not be null is null")
    return value


class Writer:
    """Writes the fields of one key or value, one after the other."""

    __slots__ = ("_data", "is_flexible")

    def __init__(self, *, is_flexible: bool = False) -> None:
        self._data = bytearray()
        self.is_flexible = is_flexible
        """Whether the fields have the forms of a flexible version."""

    @property
    def data(self) -> bytes:
        """The fields that were written."""
        return bytes(self._data)

    def int8(self, value: int) -> None:
        self._data += _INT8.pack(value)

    def int16(self, value: int) -> None:
        self._data += _INT16.pack(value)

    def int32(self, value: int) -> None:
        self._data += _INT32.pack(value)

    def int64(self, value: int) -> None:
        self._data += _INT64.pack(value)

    def uuid(self, value: bytes) -> None:
        self._data += value

    def varint(self, value: int) -> None:
        while value > 0x7F:
            self._data.append(value & 0x7F | 0x80)
            value >>= 7
        self._data.append(value)

    def text(self, value: str | None) -> None:
        """Write a string, which may be null. Raises INVALID_REQUEST if it is longer than a record can hold."""
        data = b"" if value is None else value.encode()
        if len(data) > TEXT_BYTES_MAX:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"a text of {len(data)} bytes is longer than {TEXT_BYTES_MAX}")
        length = -1 if value is None else len(data)
        if self.is_flexible:
            self.varint(length + 1)
        else:
            self.int16(length)
        self._data += data

    def blob(self, value: bytes) -> None:
        self._size(len(value))
        self._data += value

    def items(self, values: Iterable[T], write: Callable[[T], None]) -> None:
        """Write an array. `write`: writes one item."""
        values = list(values)
        self._size(len(values))
        for value in values:
            write(value)

    def null_items(self) -> None:
        """Write an array that is null."""
        self._size(-1)

    def tags(self, fields: dict[int, bytes]) -> None:
        """Write the tagged fields at the end of a struct, in ascending order; nothing in an inflexible version."""
        if not self.is_flexible:
            return
        self.varint(len(fields))
        for tag, data in fields.items():
            self.varint(tag)
            self.varint(len(data))
            self._data += data

    def _size(self, size: int) -> None:
        if self.is_flexible:
            self.varint(size + 1)
        else:
            self.int32(size)
