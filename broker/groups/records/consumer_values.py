"""The values of groups of the newer protocol (KIP-848). Each has one version, 0, which is flexible.

    ConsumerGroupMetadataValue                 int32 epoch | tag 0: int64 metadata hash (0)
    ConsumerGroupMemberMetadataValue           nullable string instance id | nullable string rack id | string client id
                                               | string client host | array of string: topic names | nullable string regex
                                               | int32 rebalance timeout | nullable string assignor
                                               | tag 0: varint 1 | classic member metadata; or varint 0: null
        classic member metadata                int32 session timeout (0) | array of protocols
        protocol                               string name | bytes metadata
    ConsumerGroupTargetAssignmentMetadataValue int32 assignment epoch | tag 0: int64 assignment timestamp (0)
    ConsumerGroupTargetAssignmentMemberValue   array of: uuid topic id | array of int32: partitions
    ConsumerGroupCurrentMemberAssignmentValue  int32 member epoch | int32 previous member epoch | int8 state
                                               | assigned partitions | partitions pending revocation
        either of the two                      array of: uuid topic id | array of int32: partitions
                                               | tag 0: nullable array of int32: assignment epochs (null)
    ConsumerGroupRegularExpressionValue        array of string: topics | int64 version | int64 timestamp

A default in brackets belongs to a tagged field. The field is left out if it has its default. The default of the classic member
metadata is not null but a struct without protocols, as in Kafka's classes; so the null of a member of the newer protocol is
written.

The nth assignment epoch belongs to the nth partition (KIP-1251). If the epochs are missing, as in records before Kafka 4.3, or if
there are more or fewer of them than partitions, all partitions have the member's epoch, or 0 if that is negative.

Topics and partitions are written in ascending order, so that equal values have equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.broker.groups.records.types import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMetadataValue,
    CurrentAssignmentValue,
    MemberMetadataValue,
    MemberState,
    PartitionEpochs,
    Partitions,
    RegularExpressionValue,
    TargetAssignmentMetadataValue,
)
from strandline.broker.groups.records.wire import MalformedRecord, Reader, Writer

_METADATA_HASH = _CLASSIC_MEMBER_METADATA = _ASSIGNMENT_TIMESTAMP = _ASSIGNMENT_EPOCHS = 0
"""The tags: each struct has one at most."""
_NO_CLASSIC_METADATA = ClassicMemberMetadata(0, ())

# -- the epochs of the group and of its target assignment -------------------------------------------------------------


def write_group_metadata(writer: Writer, value: ConsumerGroupMetadataValue, version: int) -> None:
    writer.int32(value.epoch)
    _write_number_tag(writer, _METADATA_HASH, value.metadata_hash)


def read_group_metadata(reader: Reader, version: int) -> ConsumerGroupMetadataValue:
    epoch = reader.int32()
    return ConsumerGroupMetadataValue(epoch, _read_number_tag(reader, _METADATA_HASH))


def write_target_metadata(writer: Writer, value: TargetAssignmentMetadataValue, version: int) -> None:
    writer.int32(value.assignment_epoch)
    _write_number_tag(writer, _ASSIGNMENT_TIMESTAMP, value.assignment_timestamp)


def read_target_metadata(reader: Reader, version: int) -> TargetAssignmentMetadataValue:
    epoch = reader.int32()
    return TargetAssignmentMetadataValue(epoch, _read_number_tag(reader, _ASSIGNMENT_TIMESTAMP))


def _write_number_tag(writer: Writer, tag: int, number: int) -> None:
    field = Writer()
    field.int64(number)
    writer.tags({tag: field.data} if number else {})


def _read_number_tag(reader: Reader, tag: int) -> int:
    field = reader.tags().get(tag)
    if field is None:
        return 0
    number = field.int64()
    field.end()
    return number


# -- members ----------------------------------------------------------------------------------------------------------


def write_member(writer: Writer, value: MemberMetadataValue, version: int) -> None:
    writer.text(value.instance_id)
    writer.text(value.rack_id)
    writer.text(value.client_id)
    writer.text(value.client_host)
    writer.items(value.subscribed_topic_names, writer.text)
    writer.text(value.subscribed_topic_regex)
    writer.int32(value.rebalance_timeout_ms)
    writer.text(value.server_assignor)
    classic = value.classic_member_metadata
    writer.tags({} if classic == _NO_CLASSIC_METADATA else {_CLASSIC_MEMBER_METADATA: _classic_metadata(classic)})


def _classic_metadata(value: ClassicMemberMetadata | None) -> bytes:
    writer = Writer(is_flexible=True)
    writer.varint(value is not None)
    if value is not None:
        writer.int32(value.session_timeout_ms)
        writer.items(value.supported_protocols, lambda protocol: _write_protocol(writer, protocol))
        writer.tags({})
    return writer.data


def _write_protocol(writer: Writer, protocol: ClassicProtocol) -> None:
    writer.text(protocol.name)
    writer.blob(protocol.metadata)
    writer.tags({})


def read_member(reader: Reader, version: int) -> MemberMetadataValue:
    instance_id = reader.nullable_text()
    rack_id = reader.nullable_text()
    client_id = reader.text()
    client_host = reader.text()
    topic_names = tuple(reader.items(reader.text))
    regex = reader.nullable_text()
    rebalance_timeout_ms = reader.int32()
    assignor = reader.nullable_text()
    field = reader.tags().get(_CLASSIC_MEMBER_METADATA)
    classic = _NO_CLASSIC_METADATA if field is None else _read_classic_metadata(field)
    return MemberMetadataValue(
        instance_id, rack_id, client_id, client_host, topic_names, regex, rebalance_timeout_ms, assignor, classic
    )


def _read_classic_metadata(reader: Reader) -> ClassicMemberMetadata | None:
    value = None
    if reader.varint():
        session_timeout_ms = reader.int32()
        value = ClassicMemberMetadata(session_timeout_ms, tuple(reader.items(lambda: _read_protocol(reader))))
        reader.tags()
    reader.end()
    return value


def _read_protocol(reader: Reader) -> ClassicProtocol:
    protocol = ClassicProtocol(reader.text(), reader.blob())
    reader.tags()
    return protocol


# -- assignments ------------------------------------------------------------------------------------------------------


def write_target(writer: Writer, value: Partitions, version: int) -> None:
    def write_topic(topic: tuple[bytes, frozenset[int]]) -> None:
        writer.uuid(topic[0])
        writer.items(sorted(topic[1]), writer.int32)
        writer.tags({})

    writer.items(sorted(value.items()), write_topic)
    writer.tags({})


def read_target(reader: Reader, version: int) -> Partitions:
    def read_topic() -> tuple[bytes, frozenset[int]]:
        topic_id, partitions = reader.uuid(), frozenset(reader.items(reader.int32))
        reader.tags()
        return topic_id, partitions

    topics = reader.items(read_topic)
    reader.tags()
    return {topic_id: partitions for topic_id, partitions in topics if partitions}


def write_current(writer: Writer, value: CurrentAssignmentValue, version: int) -> None:
    writer.int32(value.member_epoch)
    writer.int32(value.previous_member_epoch)
    writer.int8(value.state)
    _write_epochs(writer, value.assigned)
    _write_epochs(writer, value.pending_revocation)
    writer.tags({})


def _write_epochs(writer: Writer, topics: PartitionEpochs) -> None:
    def write_topic(topic: tuple[bytes, Mapping[int, int]]) -> None:
        topic_id, epochs = topic
        partitions = sorted(epochs)
        writer.uuid(topic_id)
        writer.items(partitions, writer.int32)
        field = Writer(is_flexible=True)
        field.items((epochs[partition] for partition in partitions), field.int32)
        writer.tags({_ASSIGNMENT_EPOCHS: field.data})

    writer.items(sorted(topics.items(), key=lambda topic: topic[0]), write_topic)


def read_current(reader: Reader, version: int) -> CurrentAssignmentValue:
    member_epoch = reader.int32()
    previous_member_epoch = reader.int32()
    state = _read_state(reader)
    assigned = _read_epochs(reader, member_epoch)
    pending_revocation = _read_epochs(reader, member_epoch)
    reader.tags()
    return CurrentAssignmentValue(member_epoch, previous_member_epoch, state, assigned, pending_revocation)


def _read_state(reader: Reader) -> MemberState:
    number = reader.int8()
    try:
        return MemberState(number)
    except ValueError as e:
        raise MalformedRecord(f"a member has the unknown state {number}") from e


def _read_epochs(reader: Reader, member_epoch: int) -> PartitionEpochs:
    def read_topic() -> tuple[bytes, dict[int, int]]:
        topic_id, partitions = reader.uuid(), reader.items(reader.int32)
        epochs = _read_assignment_epochs(reader)
        if epochs is None or len(epochs) != len(partitions):
            epochs = [max(member_epoch, 0)] * len(partitions)
        return topic_id, dict(zip(partitions, epochs, strict=True))

    return {topic_id: epochs for topic_id, epochs in reader.items(read_topic) if epochs}


def _read_assignment_epochs(reader: Reader) -> list[int] | None:
    field = reader.tags().get(_ASSIGNMENT_EPOCHS)
    if field is None:
        return None
    epochs = field.nullable_items(field.int32)
    field.end()
    return epochs


# -- regular expressions ----------------------------------------------------------------------------------------------


def write_regular_expression(writer: Writer, value: RegularExpressionValue, version: int) -> None:
    writer.items(value.topics, writer.text)
    writer.int64(value.version)
    writer.int64(value.timestamp)
    writer.tags({})


def read_regular_expression(reader: Reader, version: int) -> RegularExpressionValue:
    value = RegularExpressionValue(tuple(reader.items(reader.text)), reader.int64(), reader.int64())
    reader.tags()
    return value
