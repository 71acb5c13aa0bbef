"""Reads the field types of embedded protocols: the bytes that members of a group and their leader exchange through the
coordinator.

    int16, int32        big-endian
    string              int16 length, UTF-8; length -1: null
    bytes               int32 length, bytes; length -1: null
    array               int32 count, items

Clients send these bytes, so each length is checked against the bytes that are left.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

CONSUMER_PROTOCOL_TYPE = "consumer"

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_T = TypeVar("_T")


class MalformedMetadata(ValueError):
    """The bytes do not follow the embedded protocol."""


class MetadataReader:
    """Reads values one after the other. Each method raises `MalformedMetadata`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise MalformedMetadata(f"{size} bytes at {self._at} of {len(self._data)}")
        self._at += size
        return self._data[self._at - size : self._at]

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(4))[0])

    def nullable_string(self) -> str | None:
        size = self.int16()
        try:
            return None if size == -1 else self._take(size).decode()
        except UnicodeDecodeError as e:
            raise MalformedMetadata(str(e)) from None

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise MalformedMetadata("a string is null")
        return text

    def nullable_bytes(self) -> bytes | None:
        size = self.int32()
        return None if size == -1 else self._take(size)

    def array(self, item: Callable[[], _T]) -> list[_T]:
        """An array; `item` reads one item. No memory is allocated for the claimed count, so a false count costs nothing."""
        count = self.int32()
        if count < 0:
            raise MalformedMetadata(f"{count} items")
        return [item() for _ in range(count)]

    def topic_partitions(self) -> tuple[str, tuple[int, ...]]:
        return self.string(), tuple(self.array(self.int32))

    def version(self) -> int:
        """The first field of every format."""
        version = self.int16()
        if version < 0:
            raise MalformedMetadata(f"version {version}")
        return version
