"""The records of `__consumer_offsets` as Kafka's bytes (4.3): one key and one value each.

    key      int16 type | the fields of the key, in inflexible form
    value    int16 version | the fields of the value (`classic_values.py`, `consumer_values.py`); no value is a tombstone

    type  record                                   fields of the key                                versions  written
    0     OffsetCommit of early versions           string group | string topic | int32 partition    0-4       never
    1     OffsetCommit                             string group | string topic | int32 partition    0-4       4, 1
    2     GroupMetadata                            string group                                     0-4       3
    3     ConsumerGroupMetadata                    string group                                     0         0
    5     ConsumerGroupMemberMetadata              string group | string member                     0         0
    6     ConsumerGroupTargetAssignmentMetadata    string group                                     0         0
    7     ConsumerGroupTargetAssignmentMember      string group | string member                     0         0
    8     ConsumerGroupCurrentMemberAssignment     string group | string member                     0         0
    16    ConsumerGroupRegularExpression           string group | string expression                 0         0

A reader skips every other type (`UnknownRecordType`): 4, of which Kafka writes only tombstones today, and those of share groups,
streams groups and later versions. A version that is not in the table is an error, as in Kafka: a coordinator that skipped the
record would continue with an older state of the group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strandline.broker.groups.records import classic_values as classic
from strandline.broker.groups.records import consumer_values as consumer
from strandline.broker.groups.records.types import (
    ConsumerGroupMetadataRecord,
    CurrentAssignmentRecord,
    GroupMetadataRecord,
    GroupRecord,
    MemberMetadataRecord,
    OffsetCommitRecord,
    RegularExpressionRecord,
    TargetAssignmentMemberRecord,
    TargetAssignmentMetadataRecord,
)
from strandline.broker.groups.records.wire import MalformedRecord, Reader, Writer

__all__ = ["MalformedRecord", "UnknownRecordType", "decode_record", "encode_record"]


class UnknownRecordType(ValueError):
    """The key of a record has a type that this version does not know."""

    def __init__(self, type_: int) -> None:
        super().__init__(f"records of type {type_} are not known")
        self.type = type_


@dataclass(frozen=True, slots=True)
class _Form:
    """The encoding of the records of one type."""

    type: int
    record: Callable[..., Any]
    key: tuple[str, ...]
    """The fields of the key: strings, and `partition`, an int32."""
    write: Callable[[Writer, Any, int], None]
    read: Callable[[Reader, int], Any]
    version_max: int = 0
    """The newest version that can be read. All earlier ones can be read, too."""
    written: Callable[[Any], int] = lambda value: 0
    """The version that is written for a value."""
    flexible_from: int = 0

    def encode_key(self, record: GroupRecord) -> bytes:
        writer = Writer()
        writer.int16(self.type)
        for name in self.key:
            field = getattr(record, name)
            if isinstance(field, int):
                writer.int32(field)
            else:
                writer.text(field)
        return writer.data

    def decode_key(self, reader: Reader) -> list[str | int]:
        fields = [reader.int32() if name == "partition" else reader.text() for name in self.key]
        reader.end()
        return fields

    def encode_value(self, value: Any) -> bytes:
        version = self.written(value)
        writer = Writer(is_flexible=version >= self.flexible_from)
        writer.int16(version)
        self.write(writer, value, version)
        return writer.data

    def decode_value(self, data: bytes) -> Any:
        reader = Reader(data)
        version = reader.int16()
        if not 0 <= version <= self.version_max:
            raise MalformedRecord(f"a value of type {self.type} has version {version}; known are 0 to {self.version_max}")
        reader.is_flexible = version >= self.flexible_from
        value = self.read(reader, version)
        reader.end()
        return value


_GROUP_KEY = ("group_id",)
_MEMBER_KEY = ("group_id", "member_id")
_REGEX_KEY = ("group_id", "regex")
_OFFSET_COMMIT = _Form(
    1,
    OffsetCommitRecord,
    ("group_id", "topic", "partition"),
    classic.write_offset_commit,
    classic.read_offset_commit,
    version_max=4,
    written=classic.offset_commit_version,
    flexible_from=4,
)
_GROUP_METADATA = _Form(
    2,
    GroupMetadataRecord,
    _GROUP_KEY,
    classic.write_group,
    classic.read_group,
    version_max=4,
    written=lambda value: 3,
    flexible_from=4,
)
_FORMS = (
    _OFFSET_COMMIT,
    _GROUP_METADATA,
    _Form(3, ConsumerGroupMetadataRecord, _GROUP_KEY, consumer.write_group_metadata, consumer.read_group_metadata),
    _Form(5, MemberMetadataRecord, _MEMBER_KEY, consumer.write_member, consumer.read_member),
    _Form(6, TargetAssignmentMetadataRecord, _GROUP_KEY, consumer.write_target_metadata, consumer.read_target_metadata),
    _Form(7, TargetAssignmentMemberRecord, _MEMBER_KEY, consumer.write_target, consumer.read_target),
    _Form(8, CurrentAssignmentRecord, _MEMBER_KEY, consumer.write_current, consumer.read_current),
    _Form(16, RegularExpressionRecord, _REGEX_KEY, consumer.write_regular_expression, consumer.read_regular_expression),
)
_BY_RECORD = {form.record: form for form in _FORMS}
_BY_TYPE = {0: _OFFSET_COMMIT, **{form.type: form for form in _FORMS}}


def encode_record(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """The key and value as bytes. Raises INVALID_REQUEST if a string of a request is longer than a record can hold, 32767
    bytes."""
    form = _BY_RECORD[type(record)]
    return form.encode_key(record), None if record.value is None else form.encode_value(record.value)


def decode_record(key: bytes | None, value: bytes | None) -> GroupRecord:
    """The record with this key and value. Raises `UnknownRecordType` or `MalformedRecord`."""
    if key is None:
        raise MalformedRecord("a record has no key")
    reader = Reader(key)
    type_ = reader.int16()
    form = _BY_TYPE.get(type_)
    if form is None:
        raise UnknownRecordType(type_)
    record: GroupRecord = form.record(*form.decode_key(reader), None if value is None else form.decode_value(value))
    return record
