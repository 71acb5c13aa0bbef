"""From a batch's records to its bytes, and a new producer identity on bytes that exist already."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from strandline.protocol.records.batch import CRC_POS, compute_crc
from strandline.protocol.records.builder import BatchBuilder, RecordTuple

_IDENTITY_POS = 43
_IDENTITY = Struct(">qhi")
"""Producer id, producer epoch and base sequence lie side by side (protocol/records/batch.py)."""
_CRC = Struct(">I")


def encode_values(values: Sequence[bytes], timestamp_ms: int, producer_id: int, producer_epoch: int, sequence: int) -> bytes:
    builder = BatchBuilder(producer_id, producer_epoch, sequence)
    builder.extend(values, timestamp_ms)
    return builder.build()


def encode_records(records: Sequence[RecordTuple], producer_id: int, producer_epoch: int, sequence: int) -> bytes:
    builder = BatchBuilder(producer_id, producer_epoch, sequence)
    builder.extend_records(records)
    return builder.build()


def restamp(data: bytes | bytearray, producer_id: int, producer_epoch: int, sequence: int) -> bytearray:
    """The same batch under another identity; a copy, since the bytes may still stand in a connection's write buffer."""
    renewed = bytearray(data)
    _IDENTITY.pack_into(renewed, _IDENTITY_POS, producer_id, producer_epoch, sequence)
    _CRC.pack_into(renewed, CRC_POS, compute_crc(renewed, 0, len(renewed)))
    return renewed
