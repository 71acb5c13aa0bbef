"""The types that a consumer returns, such as `ConsumerRecord`, and the decoding of a fetched batch into a list of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, Generic, NamedTuple

import msgspec

from strandline.client.type_variables import K_co, V_co
from strandline.protocol.records.batch import BatchHeader, Buffer
from strandline.protocol.records.reader import Headers, decode_columns


class TopicPartition(NamedTuple):
    """A partition of a topic, by the topic's name and the partition's number (from 0). A tuple `(topic, partition)` equals it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partitions of each topic."""
    partitions: dict[str, list[int]] = {}
    for tp in tps:
        partitions.setdefault(tp.topic, []).append(tp.partition)
    return partitions


class ConsumerGroupMetadata(NamedTuple):
    """The membership with which a consumer commits (KIP-447). `Producer.send_offsets_to_transaction` takes it instead of the
    consumer, if the consumer runs elsewhere. The coordinator rejects the offsets of a member that has lost its partitions."""

    group_id: str
    generation_id: int = -1
    """The member epoch, or the generation in a group of the classic protocol; -1 without a membership."""
    member_id: str = ""
    group_instance_id: str | None = None


class TransactionMember(NamedTuple):
    """The group membership with which a transaction commits offsets, and the ids of the topics of these offsets."""

    group: ConsumerGroupMetadata
    topic_ids: dict[TopicPartition, bytes]
    """The topic id of each partition, as far as it is known: a topic may be recreated under its name."""
    is_live: bool = True
    """Whether the epoch is read again before each attempt, so that an attempt after STALE_MEMBER_EPOCH may succeed. False for a
    copy, such as that of `Consumer.group_metadata`."""


class OffsetAndTimestamp(NamedTuple):
    """A record's offset, its timestamp (milliseconds since 1970, UTC; -1 if the offset was not looked up by time), and the epoch
    of the leader that appended it (-1: not known)."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1

    @property
    def timestamp(self) -> int:
        """`timestamp_ms`, under the name that aiokafka uses."""
        return self.timestamp_ms


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the offset of the next record to read. `metadata` is a text that the program chooses; `leader_epoch` is
    that of the record before the offset (-1: not known), which shows later whether the log still has it (KIP-320)."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupStateChange(NamedTuple):
    """A change of a consumer's membership in its group, for `on_state_change`. The states are those of `Consumer.health`."""

    previous: str
    state: str
    reason: str | None
    """Why the state has changed, if something went wrong; None otherwise."""


class ConsumerRecord(msgspec.Struct, Generic[K_co, V_co], frozen=True, gc=False):
    """One record as the consumer returns it. `key` and `value` are bytes, or the results of the deserializers, or None; `headers`
    is a tuple of (str, bytes or None) pairs; `leader_epoch` is the epoch of the leader that appended it. Records are built in
    bulk, and the garbage collector does not track them."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: K_co | None
    value: V_co
    """None if the record is a tombstone. Its type includes None only if the type of the consumer does: `Consumer[str, str |
    None]`."""
    headers: Headers
    leader_epoch: int

    @property
    def timestamp(self) -> int:
        """`timestamp_ms`, under the name that aiokafka uses: milliseconds since 1970, UTC."""
        return self.timestamp_ms


AnyRecord = ConsumerRecord[Any, Any]
"""A record whose types of key and value are known only to the consumer that returns it."""

Decode = Callable[[bytes], Any]


class Undecodable(Exception):
    """A deserializer failed at `offset`; `records` are those before it in its batch."""

    def __init__(self, offset: int, records: list[AnyRecord], cause: Exception) -> None:
        super().__init__(f"a deserializer failed at offset {offset}: {type(cause).__name__}: {cause}")
        self.offset = offset
        self.records = records


def decode_records(
    tp: TopicPartition,
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    *,
    from_offset: int,
    check_crc: bool,
) -> list[AnyRecord]:
    """The records of one batch from `from_offset` on. (A batch may begin before the offset that a fetch asked for.)"""
    columns = decode_columns(buf, pos, header, check_crc).since(from_offset)
    timestamps, keys, headers = columns.timestamps, columns.keys, columns.headers
    return list(
        map(
            ConsumerRecord,
            repeat(tp.topic),
            repeat(tp.partition),
            columns.offsets(),
            repeat(columns.base_timestamp) if timestamps is None else timestamps,
            repeat(None) if keys is None else keys,
            columns.values,
            repeat(()) if headers is None else headers,
            repeat(header.leader_epoch),
        )
    )


def deserialize(records: list[AnyRecord], decode_key: Decode | None, decode_value: Decode | None) -> list[AnyRecord]:
    """The records with their keys and values deserialized. `Undecodable` at the first one whose deserializer fails."""
    done: list[AnyRecord] = []
    for record in records:
        key, value = record.key, record.value
        try:
            if decode_key is not None and key is not None:
                key = decode_key(key)
            if decode_value is not None and value is not None:
                value = decode_value(value)
        except Exception as e:
            raise Undecodable(record.offset, done, e) from e
        done.append(msgspec.structs.replace(record, key=key, value=value))
    return done
