"""The embedded protocol `consumer`: the subscription that a consumer sends to the leader of its group when it joins
(ConsumerProtocolSubscription).

In the classic protocol, the metadata of a member are bytes for the leader, and other programs (Kafka Connect, a schema registry)
have formats of their own. If the type of a group's protocol is `consumer`, the coordinator reads the bytes, too, because the
offsets of a topic to which a member is subscribed do not expire and cannot be deleted. The format (big-endian):

    version             int16                     a later version begins with all fields of the earlier ones
    topics              int32 count, strings      a string: int16 length, UTF-8
    user data           int32 length, bytes       length -1: null; for the assignor
    owned partitions    int32 count, topics       since 1; a topic: string, int32 count, int32 partitions (KIP-429)
    generation          int32                     since 2: the one in which the partitions were owned (KIP-792)
    rack                string                    since 3; length -1: null (KIP-881)

Bytes after the known fields belong to a later version and are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.broker.groups.classic.embedded import MetadataReader


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics to which a consumer is subscribed, and the partitions that it owned before it joined."""

    version: int
    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Topic -> partition numbers."""
    generation: int = -1
    """The generation in which the partitions were owned; -1: unknown."""
    rack: str | None = None


def parse_topics(metadata: bytes) -> tuple[str, ...]:
    """The topics of a subscription of any version. Raises `MalformedMetadata`."""
    reader = MetadataReader(metadata)
    reader.version()
    return tuple(reader.array(reader.string))


def parse_subscription(metadata: bytes) -> Subscription:
    """A subscription with all its fields. Raises `MalformedMetadata`."""
    reader = MetadataReader(metadata)
    version = reader.version()
    topics, user_data = tuple(reader.array(reader.string)), reader.nullable_bytes()
    owned = dict(reader.array(reader.topic_partitions)) if version >= 1 else {}
    generation = reader.int32() if version >= 2 else -1
    rack = reader.nullable_string() if version >= 3 else None
    return Subscription(version, topics, user_data, owned, generation, rack)
