"""The values of OffsetCommit records, which groups of both types have, and of GroupMetadata records, which are of classic groups.

OffsetCommitValue       v0   int64 offset | string metadata | int64 commit timestamp
                        v1   ... | int64 expire timestamp
                        v2   as v0
                        v3   int64 offset | int32 leader epoch | string metadata | int64 commit timestamp
                        v4   as v3, flexible | tag 0: uuid topic id

Version 4 is written, and version 1 for an offset with an expire timestamp, because only version 1 has that field. Version 1 has
neither a leader epoch nor a topic id; they are lost, as in Kafka.

GroupMetadataValue      v0   string protocol type | int32 generation | nullable string protocol | nullable string leader
                             | array members
                        v1   as v0, with the members of v1
                        v2   ... leader | int64 timestamp of the current state | array members
                        v3   as v2, with the members of v3
                        v4   as v3, flexible

member                  v0   string id | string client id | string client host | int32 session timeout
                             | bytes subscription | bytes assignment
                        v1   ... client host | int32 rebalance timeout | int32 session timeout | ...
                        v3   string id | nullable string instance id | string client id | ...

Version 3 is written.
"""

from __future__ import annotations

from strandline.broker.groups.records.types import ClassicGroupValue, ClassicMemberValue, CommittedOffset
from strandline.broker.groups.records.wire import Reader, Writer
from strandline.protocol.messages.common import ZERO_UUID

_TOPIC_ID = 0
"""The tag of the topic id."""


def offset_commit_version(value: CommittedOffset) -> int:
    """The version in which an offset is written."""
    return 4 if value.expire_timestamp == -1 else 1


def write_offset_commit(writer: Writer, value: CommittedOffset, version: int) -> None:
    writer.int64(value.offset)
    if version >= 3:
        writer.int32(value.leader_epoch)
    writer.text(value.metadata)
    writer.int64(value.commit_timestamp)
    if version == 1:
        writer.int64(value.expire_timestamp)
    writer.tags({} if value.topic_id == ZERO_UUID else {_TOPIC_ID: value.topic_id})


def read_offset_commit(reader: Reader, version: int) -> CommittedOffset:
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.text()
    commit_timestamp = reader.int64()
    expire_timestamp = reader.int64() if version == 1 else -1
    topic_id = ZERO_UUID
    for tag, field in reader.tags().items():
        if tag == _TOPIC_ID:
            topic_id = field.uuid()
            field.end()
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, topic_id)


def write_group(writer: Writer, value: ClassicGroupValue, version: int) -> None:
    """Writes version 3."""
    writer.text(value.protocol_type)
    writer.int32(value.generation_id)
    writer.text(value.protocol)
    writer.text(value.leader)
    writer.int64(value.current_state_timestamp)
    writer.items(value.members, lambda member: _write_member(writer, member))


def _write_member(writer: Writer, member: ClassicMemberValue) -> None:
    writer.text(member.member_id)
    writer.text(member.group_instance_id)
    writer.text(member.client_id)
    writer.text(member.client_host)
    writer.int32(member.rebalance_timeout_ms)
    writer.int32(member.session_timeout_ms)
    writer.blob(member.subscription)
    writer.blob(member.assignment)


def read_group(reader: Reader, version: int) -> ClassicGroupValue:
    value = ClassicGroupValue(
        protocol_type=reader.text(),
        generation_id=reader.int32(),
        protocol=reader.nullable_text(),
        leader=reader.nullable_text(),
        current_state_timestamp=reader.int64() if version >= 2 else -1,
        members=tuple(reader.items(lambda: _read_member(reader, version))),
    )
    reader.tags()
    return value


def _read_member(reader: Reader, version: int) -> ClassicMemberValue:
    member_id = reader.text()
    instance_id = reader.nullable_text() if version >= 3 else None
    client_id = reader.text()
    client_host = reader.text()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription = reader.blob()
    assignment = reader.blob()
    reader.tags()
    if rebalance_timeout_ms == -1:
        # Clients that knew only one timeout used it for both.
        rebalance_timeout_ms = session_timeout_ms
    return ClassicMemberValue(
        member_id, instance_id, client_id, client_host, rebalance_timeout_ms, session_timeout_ms, subscription, assignment
    )
