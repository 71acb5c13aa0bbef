"""The embedded protocol `consumer`: what the leader of a group assigns to a consumer (ConsumerProtocolAssignment).

    version        int16                     0-3, with the same fields; a later version begins with them
    partitions     int32 count, topics       a topic: string, int32 count, int32 partitions
    user data      int32 length, bytes       length -1: null; for the assignor

A string is an int16 length and UTF-8. In a classic group the coordinator does not look at assignments. In a group of the newer
protocol it is the one that assigns, and sends a member of the classic protocol what its leader would have sent.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from strandline.broker.groups.classic.embedded import MetadataReader
from strandline.broker.groups.records.types import Partitions
from strandline.controller.metadata.image import MetadataImage

VERSION_MAX = 3
"""The version in which an assignment for a later one is written."""

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_NULL_BYTES = _INT32.pack(-1)


@dataclass(frozen=True, slots=True)
class Assignment:
    partitions: dict[str, tuple[int, ...]]
    """Topic -> partition numbers."""
    user_data: bytes | None = None


def parse_assignment(data: bytes) -> Assignment:
    """Raises `MalformedMetadata`. A member that has no assignment yet has no bytes."""
    if not data:
        return Assignment({})
    reader = MetadataReader(data)
    reader.version()
    return Assignment(dict(reader.array(reader.topic_partitions)), reader.nullable_bytes())


def encode_assignment(version: int, partitions: Mapping[str, Collection[int]]) -> bytes:
    """In the version in which the member has written its subscription; topics and partitions in ascending order."""
    data = bytearray(_INT16.pack(min(version, VERSION_MAX)) + _INT32.pack(len(partitions)))
    for topic in sorted(partitions):
        name, numbers = topic.encode(), sorted(partitions[topic])
        data += _INT16.pack(len(name)) + name + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return bytes(data + _NULL_BYTES)


def by_id(partitions: Mapping[str, Collection[int]], image: MetadataImage) -> Partitions:
    """Topics that do not exist are left out."""
    ids = {name: topic.topic_id for name in partitions if (topic := image.topic(name)) is not None}
    return {topic_id: frozenset(partitions[name]) for name, topic_id in ids.items() if partitions[name]}


def by_name(partitions: Mapping[bytes, Collection[int]], image: MetadataImage) -> dict[str, Collection[int]]:
    """Topics that do not exist any more are left out."""
    topics = image.topics_by_id
    return {topics[topic_id].name: numbers for topic_id, numbers in partitions.items() if topic_id in topics}
