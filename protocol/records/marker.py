"""Markers: the control batches that end transactions. The transaction coordinator writes one into each partition of a
transaction.

    attributes           transactional | control
    producer id, epoch   those of the transaction's producer; the epoch may be higher than that of its batches
    base sequence        -1
    record count         1

    key                  version i16 = 0 | type i16      0: ABORT, 1: COMMIT
    value                version i16 = 0 | coordinator epoch i32

A marker takes one offset, and consumers do not see it. The coordinator epoch is the leader epoch of the coordinator's partition:
a log refuses markers of a coordinator that was replaced. The cleaner may remove the record of an old marker and leave the header;
such a batch ends nothing, because the records of its transaction are gone.
"""

from __future__ import annotations

from struct import error

from strandline.protocol.errors import BrokerError
from strandline.protocol.records import batch as v2
from strandline.protocol.records.batch import BatchHeader, Buffer
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.control import (
    NO_COORDINATOR_EPOCH,
    ControlType,
    EndTransactionMarker,
    decode_control,
    encode_control_key,
    encode_marker_value,
)
from strandline.protocol.records.fence import is_fence
from strandline.protocol.records.varint import decode_varint

__all__ = ["NO_COORDINATOR_EPOCH", "EndTransactionMarker", "encode_marker", "is_marker", "read_marker"]

_MARKER_MASK = v2.TRANSACTIONAL_MASK | v2.CONTROL_MASK


def encode_marker(
    marker: EndTransactionMarker,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """The control batch of the marker."""
    key = encode_control_key(ControlType.COMMIT if marker.is_commit else ControlType.ABORT)
    return encode_batch(
        [(key, encode_marker_value(marker), (), timestamp_ms)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def is_marker(header: BatchHeader) -> bool:
    """Whether the batch is a marker, with its record or without it."""
    return header.attributes & _MARKER_MASK == _MARKER_MASK and not is_fence(header)


def read_marker(buf: Buffer, pos: int, header: BatchHeader) -> EndTransactionMarker | None:
    """The marker in the batch at `pos`, whose checksum must have been checked. None for a batch without a record, and for a
    control record that ends no transaction."""
    if not header.record_count or header.compression:
        return None
    data = bytes(memoryview(buf)[pos + v2.HEADER_SIZE : pos + header.size])
    try:
        key, at = _field(data, _key_position(data))
        value, _ = _field(data, at)
        found = decode_control(key, value)
        return found if isinstance(found, EndTransactionMarker) else None
    except (BrokerError, ValueError, IndexError, error):
        return None


def _key_position(data: bytes) -> int:
    """Where the key length of the first record is: after length, attributes, timestamp delta and offset delta."""
    _, at = decode_varint(data, 0)
    _, at = decode_varint(data, at + 1)
    return decode_varint(data, at)[1]


def _field(data: bytes, pos: int) -> tuple[bytes, int]:
    size, pos = decode_varint(data, pos)
    if not 0 <= size <= len(data) - pos:
        raise ValueError("a field is longer than its record")
    return data[pos : pos + size], pos + size
