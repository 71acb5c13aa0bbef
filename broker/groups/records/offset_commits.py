"""Decodes OffsetCommit records of the most frequent form by the positions of their fields: a load may read millions of them.

    key      int16 type 0 or 1 | int16 size | group | int16 size | topic | int32 partition
    value    int16 version 4 | int64 offset | int32 leader epoch | uint8 size + 1 | metadata | int64 commit timestamp
             | uint8 1 tagged field | uint8 tag 0 | uint8 size 16 | uuid topic id

    batch    a commit of one offset is a batch with one record (not compressed; both deltas are 0, and there are no headers):
             varint length | 0 | 0 | 0 | varint size | key | varint size | value | 0

A value of another version, without a topic id, with metadata of 127 bytes or more, or with another tagged field is left to
`codec.py`, which also says what is wrong with a malformed record. For a record that both can decode, the result is the same.
"""

from __future__ import annotations

from struct import Struct, error

from strandline.broker.groups.records.codec import decode_record
from strandline.broker.groups.records.types import CommittedOffset, OffsetCommitRecord

OFFSET_COMMIT_TYPES = frozenset((b"\0\0", b"\0\1"))
"""The first two bytes of the keys."""

_SIZE, _PARTITION = Struct(">h"), Struct(">i")
_HEAD, _TAIL = Struct(">hqiB"), Struct(">qBBB16s")
_VERSION, _TAGS, _METADATA_MAX = 4, (1, 0, 16), 126
_GROUP_AT = 4


def decode_offset_commit(key: bytes, value: bytes | None) -> OffsetCommitRecord:
    """The record with this key, whose type is one of `OFFSET_COMMIT_TYPES`. Raises `MalformedRecord`."""
    try:
        group_end = _GROUP_AT + _SIZE.unpack_from(key, 2)[0]
        topic_at = group_end + 2
        topic_end = topic_at + _SIZE.unpack_from(key, group_end)[0]
        (partition,) = _PARTITION.unpack(key[topic_end:])
        committed = None if value is None else _decode_value(value)
        if group_end >= _GROUP_AT and topic_at <= topic_end and (committed is not None or value is None):
            return OffsetCommitRecord(key[_GROUP_AT:group_end].decode(), key[topic_at:topic_end].decode(), partition, committed)
    except (error, UnicodeDecodeError):
        pass
    record = decode_record(key, value)
    assert isinstance(record, OffsetCommitRecord)
    return record


def _decode_value(value: bytes) -> CommittedOffset | None:
    """The offset in a value; None if the value does not have the form that is described at the top."""
    metadata_size = len(value) - _HEAD.size - _TAIL.size
    if not 0 <= metadata_size <= _METADATA_MAX:
        return None
    end = _HEAD.size + metadata_size
    version, offset, epoch, size = _HEAD.unpack_from(value)
    timestamp, *tags, topic_id = _TAIL.unpack_from(value, end)
    if version != _VERSION or size != metadata_size + 1 or tuple(tags) != _TAGS:
        return None
    return CommittedOffset(offset, epoch, value[_HEAD.size : end].decode(), timestamp, topic_id=topic_id)


def only_record(data: bytes) -> tuple[bytes, bytes] | None:
    """Key and value of the only record of a batch; None if the batch does not have the form that is described at the top.
    `data`: the bytes after the batch header."""
    try:
        at = 1 if data[0] < 0x80 else 2
        key_at, key_end = _field(data, at + 3)
        value_at, value_end = _field(data, key_end)
    except IndexError:
        return None
    if data[at : at + 3] != b"\0\0\0" or data[value_end:] != b"\0" or key_at > key_end or value_at > value_end:
        return None
    return data[key_at:key_end], data[value_at:value_end]


def _field(data: bytes, at: int) -> tuple[int, int]:
    """The start and end of a field's content. The end is before the start if the field is null or longer than 8191 bytes."""
    size, at = data[at], at + 1
    if size >= 0x80:
        size, at = size & 0x7F | data[at] << 7, at + 1
    return at, -1 if size & 1 or size >= 1 << 14 else at + (size >> 1)
