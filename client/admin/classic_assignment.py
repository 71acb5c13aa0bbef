"""The assignment of a member of a classic group, as Kafka's consumers write it. Pure.

The brokers store these bytes for the members and do not look into them (Kafka's ConsumerProtocolAssignment):

    int16   version
    int32   number of topics
      int16   length of the name        per topic
      bytes   name, UTF-8
      int32   number of partitions
        int32   partition               per partition
    int32   length of the user data, -1: none
    bytes   user data, for the assignor

All numbers are big-endian. Later versions append fields, which are ignored here.
"""

from __future__ import annotations

import struct

from strandline.client.consumer.records import TopicPartition

CONSUMER_PROTOCOL = "consumer"
"""The protocol type whose members have such assignments."""

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """The partitions of an assignment, sorted. Empty for bytes that are no assignment, because a member may write anything."""
    try:
        return sorted(_decode(data))
    except (struct.error, UnicodeDecodeError, ValueError):
        return []


def _decode(data: bytes) -> list[TopicPartition]:
    _INT16.unpack_from(data)
    (topics,) = _INT32.unpack_from(data, 2)
    position, found = 6, list[TopicPartition]()
    for _ in range(topics):
        (length,) = _INT16.unpack_from(data, position)
        name = data[position + 2 : position + 2 + length].decode()
        (count,) = _INT32.unpack_from(data, position + 2 + length)
        position += 6 + length
        if length < 0 or count < 0 or count > len(data):
            raise ValueError
        found += [TopicPartition(name, index) for index in struct.unpack_from(f">{count}i", data, position)]
        position += 4 * count
    return found
