"""The structs of aiokafka 0.14. `TopicPartition` is the client's own: the fields are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from strandline.client.compat.aiokafka.errors import KafkaError
from strandline.client.consumer.records import TopicPartition

KT = TypeVar("KT")
VT = TypeVar("VT")


class BrokerMetadata(NamedTuple):
    """A broker and its address."""

    nodeId: int | str
    host: str
    port: int
    rack: str | None


class PartitionMetadata(NamedTuple):
    """A partition, its leader and its replicas (broker ids)."""

    topic: str
    partition: int
    leader: int
    replicas: list[int]
    isr: list[int]
    error: KafkaError | None


class OffsetAndMetadata(NamedTuple):
    """A committed offset, and the text that the program committed with it."""

    offset: int
    metadata: str


class OffsetAndTimestamp(NamedTuple):
    """A record's offset and its timestamp (milliseconds since 1970, UTC)."""

    offset: int
    timestamp: int | None


class RecordMetadata(NamedTuple):
    """The partition, offset and timestamp of a record. `timestamp_type`: 0, the producer's time; 1, the broker's.
    `log_start_offset` is always None here."""

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int | None
    timestamp_type: int
    log_start_offset: int | None


@dataclass(slots=True)
class ConsumerRecord(Generic[KT, VT]):
    """One record. `checksum` is always None. The sizes are those of the bytes before deserialization; -1 for None."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: KT | None
    value: VT | None
    checksum: int | None
    serialized_key_size: int
    serialized_value_size: int
    headers: Sequence[tuple[str, Any]]
    leader_epoch: int = field(default=-1, repr=False, compare=False)
    """The epoch of the leader that appended the record. aiokafka has no such field, so it is the last one and has a default."""


__all__ = [
    "BrokerMetadata",
    "ConsumerRecord",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionMetadata",
    "RecordMetadata",
    "TopicPartition",
]
