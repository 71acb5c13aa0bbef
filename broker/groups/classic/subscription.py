"""The embedded protocol `consumer`: what a consumer tells the leader of its group when it joins (ConsumerProtocolSubscription).

To the classic protocol, the metadata of a member is bytes between the member and its leader, and other programs (Kafka Connect,
a schema registry) put other bytes there. If the type of a group's protocol is `consumer`, the coordinator reads them all the
same: the offsets of a topic to which a member is subscribed do not expire and cannot be deleted. The format (big-endian):

    version             int16                     a later version begins with all fields of the earlier ones
    topics              int32 count, strings      a string: int16 length, UTF-8
    user data           int32 length, bytes       length -1: null; for the assignor
    owned partitions    int32 count, topics       since 1; a topic: string, int32 count, int32 partitions (KIP-429)
    generation          int32                     since 2: the one in which the partitions were owned (KIP-792)
    rack                string                    since 3; length -1: null (KIP-881)

Bytes behind the known fields belong to a later version and are ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

CONSUMER_PROTOCOL_TYPE = "consumer"

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_T = TypeVar("_T")


class MalformedSubscription(ValueError):
    """The bytes do not follow the format above."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer is subscribed to, and what it owned before it joined."""

    version: int
    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Topic -> partition numbers."""
    generation: int = -1
    """-1: unknown."""
    rack: str | None = None


class _Reader:
    """Reads the types of the format, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise MalformedSubscription(f"{size} bytes at {self._at} of {len(self._data)}")
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
            raise MalformedSubscription(str(e)) from None

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise MalformedSubscription("a string is null")
        return text

    def nullable_bytes(self) -> bytes | None:
        size = self.int32()
        return None if size == -1 else self._take(size)

    def array(self, item: Callable[[], _T]) -> list[_T]:
        """The items are read one by one, so a count that is too large costs no more than the bytes that are there."""
        count = self.int32()
        if count < 0:
            raise MalformedSubscription(f"{count} items")
        return [item() for _ in range(count)]

    def topic_partitions(self) -> tuple[str, tuple[int, ...]]:
        return self.string(), tuple(self.array(self.int32))


def parse_topics(metadata: bytes) -> tuple[str, ...]:
    """The topics of a subscription of any version. Raises `MalformedSubscription`."""
    reader = _Reader(metadata)
    _version(reader)
    return tuple(reader.array(reader.string))


def parse_subscription(metadata: bytes) -> Subscription:
    """A subscription with all its fields. Raises `MalformedSubscription`."""
    reader = _Reader(metadata)
    version = _version(reader)
    topics, user_data = tuple(reader.array(reader.string)), reader.nullable_bytes()
    owned = dict(reader.array(reader.topic_partitions)) if version >= 1 else {}
    generation = reader.int32() if version >= 2 else -1
    rack = reader.nullable_string() if version >= 3 else None
    return Subscription(version, topics, user_data, owned, generation, rack)


def _version(reader: _Reader) -> int:
    version = reader.int16()
    if version < 0:
        raise MalformedSubscription(f"version {version}")
    return version
