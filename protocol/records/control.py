"""Control records: records that the cluster itself writes into a log, in batches with the control bit. Consumers do not see them.

    key             version i16 | type i16
    value           by type:

    ABORT, COMMIT   version i16 | coordinator epoch i32                                 ends a transaction (`marker.py`)
    LeaderChange    version i16 | leader id i32 | voters [voter id i32 | 0] | granting voters [voter id i32 | 0] | 0
    SnapshotHeader  version i16 | last contained log timestamp i64 | 0
    SnapshotFooter  version i16 | 0

All versions are 0. The values of the quorum's records have Kafka's "flexible" encoding: an array begins with its length + 1 as an
unsigned varint, and every structure ends with the number of its tagged fields, here always 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct, error
from typing import NamedTuple

from strandline.protocol.records.batch import corrupt
from strandline.protocol.records.builder import encode_batch


class ControlType(IntEnum):
    """The types of control records, with Kafka's numbers."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4


class LeaderChange(NamedTuple):
    """The first record of a quorum leader's epoch (KIP-595). With it the leader can commit records of older epochs."""

    leader_id: int
    voters: tuple[int, ...]
    granting_voters: tuple[int, ...]


class SnapshotHeader(NamedTuple):
    """The first record of a snapshot."""

    last_contained_log_timestamp: int


class SnapshotFooter(NamedTuple):
    """The last record of a complete snapshot."""


NO_COORDINATOR_EPOCH = -1


class EndTransactionMarker(NamedTuple):
    """The end of a transaction, and the epoch of the coordinator that decided it."""

    is_commit: bool
    coordinator_epoch: int = NO_COORDINATOR_EPOCH


ControlRecord = LeaderChange | SnapshotHeader | SnapshotFooter
"""The control records of the quorum."""

_KEY = Struct(">hh")
_MARKER = Struct(">hi")
_LEADER = Struct(">hi")
_HEADER = Struct(">hqB")
_FOOTER = Struct(">hB")
_VOTER = Struct(">iB")
_NO_TAGS = b"\0"


def encode_control_key(kind: ControlType) -> bytes:
    return _KEY.pack(0, kind)


def encode_control_value(record: ControlRecord) -> bytes:
    match record:
        case LeaderChange(leader_id, voters, granting_voters):
            return _LEADER.pack(0, leader_id) + _encode_voters(voters) + _encode_voters(granting_voters) + _NO_TAGS
        case SnapshotHeader(timestamp):
            return _HEADER.pack(0, timestamp, 0)
        case SnapshotFooter():
            return _FOOTER.pack(0, 0)


def encode_marker_value(marker: EndTransactionMarker) -> bytes:
    return _MARKER.pack(0, marker.coordinator_epoch)


def encode_control_batch(record: ControlRecord, timestamp_ms: int, *, base_offset: int = 0, leader_epoch: int = -1) -> bytes:
    """A control batch with this one record."""
    key = encode_control_key(_TYPES[type(record)])
    return encode_batch(
        [(key, encode_control_value(record), (), timestamp_ms)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        is_control=True,
    )


_TYPES: dict[type[ControlRecord], ControlType] = {
    LeaderChange: ControlType.LEADER_CHANGE,
    SnapshotHeader: ControlType.SNAPSHOT_HEADER,
    SnapshotFooter: ControlType.SNAPSHOT_FOOTER,
}


def decode_control_type(key: bytes | None) -> int:
    """The type in a control record's key. The caller skips unknown types, as Kafka does. Raises CORRUPT_MESSAGE if the key is too
    short."""
    try:
        return int(_KEY.unpack_from(key or b"")[1])
    except error:
        corrupt("a control record's key is too short")


def decode_control(key: bytes | None, value: bytes | None) -> ControlRecord | EndTransactionMarker | None:
    """The control record; None for an unknown type. Raises CORRUPT_MESSAGE if it is malformed."""
    kind, raw = decode_control_type(key), value or b""
    try:
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            return EndTransactionMarker(kind == ControlType.COMMIT, _MARKER.unpack_from(raw)[1])
        if kind == ControlType.LEADER_CHANGE:
            return _decode_leader_change(raw)
        if kind == ControlType.SNAPSHOT_HEADER:
            return SnapshotHeader(_HEADER.unpack_from(raw)[1])
        if kind == ControlType.SNAPSHOT_FOOTER:
            _FOOTER.unpack_from(raw)
            return SnapshotFooter()
    except (error, IndexError):
        corrupt(f"a control record of type {kind} is malformed")
    return None


def _decode_leader_change(raw: bytes) -> LeaderChange:
    _, leader_id = _LEADER.unpack_from(raw)
    voters, pos = _decode_voters(raw, _LEADER.size)
    granting_voters, _ = _decode_voters(raw, pos)
    return LeaderChange(leader_id, voters, granting_voters)


def _encode_voters(voters: Sequence[int]) -> bytes:
    if len(voters) > 126:
        raise ValueError("more than 126 voters")
    return bytes((len(voters) + 1,)) + b"".join(_VOTER.pack(voter, 0) for voter in voters)


def _decode_voters(raw: bytes, pos: int) -> tuple[tuple[int, ...], int]:
    count, pos = max(raw[pos] - 1, 0), pos + 1
    voters = tuple(_VOTER.unpack_from(raw, pos + i * _VOTER.size)[0] for i in range(count))
    return voters, pos + count * _VOTER.size
