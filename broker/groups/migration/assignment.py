"""The assignment of a member in the embedded protocol `consumer` (ConsumerProtocolAssignment).

    version        int16                     0-3, with the same fields; a later version begins with them
    partitions     int32 count, topics       a topic: string, int32 count, int32 partitions
    user data      int32 length, bytes       length -1: null; for the assignor

A string is an int16 length and UTF-8. In a classic group, the leader writes assignments, and the coordinator does not read
them. In a group of the newer protocol, the coordinator writes the assignments of the classic members.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from strandline.broker.groups.classic.embedded import MetadataReader
from strandline.broker.groups.records.types import Partitions
from strandline.controller.metadata.image import MetadataImage

VERSION_MAX = 3
"""Assignments for members with a later version have this version."""

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_NULL_BYTES = _INT32.pack(-1)


@dataclass(frozen=True, slots=True)
class Assignment:
    partitions: dict[str, tuple[int, ...]]
    """Topic -> partition numbers."""
    user_data: bytes | None = None


def parse_assignment(data: bytes) -> Assignment:
    """Decode an assignment. No bytes mean that the member has none yet. Raises `MalformedMetadata`."""
    if not data:
        return Assignment({})
    reader = MetadataReader(data)
    reader.version()
    return Assignment(dict(reader.array(reader.topic_partitions)), reader.nullable_bytes())


def encode_assignment(version: int, partitions: Mapping[str, Collection[int]]) -> bytes:
    """Encode an assignment, with topics and partitions in ascending order. `version`: that of the member's subscription."""
    data = bytearray(_INT16.pack(min(version, VERSION_MAX)) + _INT32.pack(len(partitions)))
    for topic in sorted(partitions):
        name, numbers = topic.encode(), sorted(partitions[topic])
        data += _INT16.pack(len(name)) + name + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return bytes(data + _NULL_BYTES)


def by_id(partitions: Mapping[str, Collection[int]], image: MetadataImage) -> Partitions:
    """Replace topic names by topic ids. Topics that do not exist are left out."""
    ids = {name: topic.topic_id for name in partitions if (topic := image.topic(name)) is not None}
    return {topic_id: frozenset(partitions[name]) for name, topic_id in ids.items() if partitions[name]}


def by_name(partitions: Mapping[bytes, Collection[int]], image: MetadataImage) -> dict[str, Collection[int]]:
    """Replace topic ids by topic names. Topics that no longer exist are left out."""
    topics = image.topics_by_id
    return {topics[topic_id].name: numbers for topic_id, numbers in partitions.items() if topic_id in topics}
