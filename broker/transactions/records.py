"""The records of `__transaction_state` as Kafka's bytes (4.3): one for each change of a transactional id.

    key      int16 0 | string transactional id, in inflexible form
    value    int16 version | the fields below; no value is a tombstone

    version 0, inflexible        version 1, flexible           field
    int64                        int64                         producer id
    int16                        int16                         producer epoch
    int32                        int32                         timeout, ms
    int8                         int8                          state
    array, nullable              array, nullable               partitions: string topic | array of int32 | tags
    int64                        int64                         time of the last change, ms since 1970
    int64                        int64                         time of the first partition, ms since 1970; -1: there is none
                                 tag 0, int64                  previous producer id
                                 tag 1, int64                  next producer id
                                 tag 2, int16                  version of the transaction's protocol
                                 tag 1000, int16, ours         last producer epoch

Kafka does not write the last producer epoch. So in Kafka, the retry of a request that had succeeded is fenced after a fail-over
(KAFKA-20357). Kafka's readers skip a tag that they do not know. Both versions are read, and version 1 is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strandline.broker.groups.records.wire import MalformedRecord, Reader, Writer
from strandline.broker.transactions.states import NO_EPOCH, NO_PRODUCER_ID, State, TopicNamePartition, Transaction

__all__ = ["MalformedRecord", "TransactionRecord", "UnknownKeyVersion", "decode_record", "encode_record"]

KEY_VERSION = 0
VALUE_VERSION_MAX = 1
_PREVIOUS_ID, _NEXT_ID, _VERSION, _LAST_EPOCH = 0, 1, 2, 1000


class UnknownKeyVersion(ValueError):
    """The key is of a version that is not known. A reader skips the record."""


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    transactional_id: str
    value: Transaction | None
    """None if the record is a tombstone."""


def encode_record(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Key and value. Raises INVALID_REQUEST if the id is longer than a record can hold, 32767 bytes."""
    key = Writer()
    key.int16(KEY_VERSION)
    key.text(record.transactional_id)
    return key.data, None if record.value is None else _encode_value(record.value)


def _encode_value(value: Transaction) -> bytes:
    writer = Writer(is_flexible=True)
    writer.int16(VALUE_VERSION_MAX)
    writer.int64(value.producer_id)
    writer.int16(value.producer_epoch)
    writer.int32(value.timeout_ms)
    writer.int8(value.state)
    if value.state is State.EMPTY:
        writer.null_items()
    else:
        _write_partitions(writer, value.partitions)
    writer.int64(value.updated_at_ms)
    writer.int64(value.started_at_ms)
    writer.tags(_tags_of(value))
    return writer.data


def _write_partitions(writer: Writer, partitions: Iterable[TopicNamePartition]) -> None:
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)

    def write(topic: str) -> None:
        writer.text(topic)
        writer.items(by_topic[topic], writer.int32)
        writer.tags({})

    writer.items(by_topic, write)


def _tags_of(value: Transaction) -> dict[int, bytes]:
    tags = {}
    if value.previous_producer_id != NO_PRODUCER_ID:
        tags[_PREVIOUS_ID] = value.previous_producer_id.to_bytes(8, "big", signed=True)
    if value.next_producer_id != NO_PRODUCER_ID:
        tags[_NEXT_ID] = value.next_producer_id.to_bytes(8, "big", signed=True)
    if value.version:
        tags[_VERSION] = value.version.to_bytes(2, "big", signed=True)
    if value.last_producer_epoch != NO_EPOCH:
        tags[_LAST_EPOCH] = value.last_producer_epoch.to_bytes(2, "big", signed=True)
    return tags


def decode_record(key: bytes | None, value: bytes | None) -> TransactionRecord:
    """The record with this key and value. Raises `UnknownKeyVersion` or `MalformedRecord`."""
    if key is None:
        raise MalformedRecord("a record has no key")
    reader = Reader(key)
    version = reader.int16()
    if version != KEY_VERSION:
        raise UnknownKeyVersion(f"keys of version {version} are not known")
    transactional_id = reader.text()
    reader.end()
    return TransactionRecord(transactional_id, None if value is None else _decode_value(transactional_id, value))


def _decode_value(transactional_id: str, data: bytes) -> Transaction:
    reader = Reader(data)
    version = reader.int16()
    if not 0 <= version <= VALUE_VERSION_MAX:
        raise MalformedRecord(f"a value has version {version}; known are 0 to {VALUE_VERSION_MAX}")
    reader.is_flexible = version > 0
    producer_id, producer_epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    state = _state(reader.int8())
    partitions = reader.nullable_items(lambda: _read_topic(reader)) or []
    updated_at_ms, started_at_ms = reader.int64(), reader.int64()
    tags = reader.tags()
    reader.end()
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        last_producer_epoch=tags[_LAST_EPOCH].int16() if _LAST_EPOCH in tags else NO_EPOCH,
        previous_producer_id=tags[_PREVIOUS_ID].int64() if _PREVIOUS_ID in tags else NO_PRODUCER_ID,
        next_producer_id=tags[_NEXT_ID].int64() if _NEXT_ID in tags else NO_PRODUCER_ID,
        timeout_ms=timeout_ms,
        state=state,
        partitions=tuple(sorted(partition for topic in partitions for partition in topic)),
        started_at_ms=started_at_ms,
        updated_at_ms=updated_at_ms,
        version=tags[_VERSION].int16() if _VERSION in tags else 0,
    )


def _state(number: int) -> State:
    try:
        state = State(number)
    except ValueError:
        raise MalformedRecord(f"a transaction has the state {number}") from None
    if state in (State.DEAD, State.PREPARE_EPOCH_FENCE):
        raise MalformedRecord(f"a transaction has the state {state.title}, which is never written")
    return state


def _read_topic(reader: Reader) -> list[TopicNamePartition]:
    topic = reader.text()
    numbers = reader.items(reader.int32)
    reader.tags()
    return [(topic, number) for number in numbers]
