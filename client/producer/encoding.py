"""Encodes a batch's records, and changes the producer identity of an encoded batch."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.protocol.records.batch import stamp_producer
from strandline.protocol.records.builder import BatchBuilder, RecordTuple
from strandline.protocol.records.compression import Compression


def encode_values(
    values: Sequence[bytes],
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    sequence: int,
    compression: Compression | None = None,
    is_transactional: bool = False,
) -> bytes:
    """Encode a batch of records that have only values, and share one timestamp (ms since 1970, UTC)."""
    builder = BatchBuilder(producer_id, producer_epoch, sequence, is_transactional=is_transactional)
    builder.extend(values, timestamp_ms)
    return builder.build() if compression is None else builder.build(codec=compression.codec, level=compression.level)


def encode_records(
    records: Sequence[RecordTuple],
    producer_id: int,
    producer_epoch: int,
    sequence: int,
    compression: Compression | None = None,
    is_transactional: bool = False,
) -> bytes:
    """Encode a batch of records with keys, headers and timestamps of their own."""
    builder = BatchBuilder(producer_id, producer_epoch, sequence, is_transactional=is_transactional)
    builder.extend_records(records)
    return builder.build() if compression is None else builder.build(codec=compression.codec, level=compression.level)


def restamp(data: bytes | bytearray, producer_id: int, producer_epoch: int, sequence: int) -> bytearray:
    """The same batch with another producer identity, as a copy, because a connection may still have the bytes in its write
    buffer."""
    renewed = bytearray(data)
    stamp_producer(renewed, 0, len(renewed), producer_id, producer_epoch, sequence)
    return renewed
