"""Compressed batches are decompressed and checked before an append, and recompressed if the topic's codec is another one.
Plain batches of a compacted topic are checked here, too, because each record must have a key.

This takes milliseconds for a large batch. It needs no log, so a broker runs it on a thread. Smaller batches are prepared at once,
on the event loop.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import BatchHeader, check_crc, corrupt, iter_headers, record_bytes, with_records
from strandline.protocol.records.compression import RECORDS_BYTES_MAX, CannotDecompress, TooLarge
from strandline.storage.disk import Buffer
from strandline.storage.log.log_config import LogConfig
from strandline.storage.log.record_rules import check_rules
from strandline.storage.log.validation import CheckedTimes, check_batch, refuse_size

AT_ONCE_BYTES_MAX = 256 << 10
"""The batches of a request are prepared at once if their records have no more bytes than this, decompressed."""
AT_ONCE_RECORDS_MAX = 4096
"""The batches of a request are prepared at once only if they have no more records than this. Small records of varying shape take
a microsecond each."""


class Prepared(NamedTuple):
    """The records of a produce request for one partition, ready to be appended."""

    records: Buffer
    times: CheckedTimes
    """The record times of each batch, by its position in `records`."""
    size: int
    """Total size in bytes of the records that were compressed, when decompressed. Batches without compression do not count."""


def is_any_compressed(records: Buffer) -> bool:
    """Whether one of the batches is compressed."""
    try:
        return any(header.compression for _, header in iter_headers(records))
    except BrokerError:
        return False  # the append refuses a malformed batch before it checks the records of any batch behind it


def prepare_at_once(records: Buffer, config: LogConfig, now_ms: int, bytes_max: int = AT_ONCE_BYTES_MAX) -> Prepared | None:
    """The prepared records; None if the work would take long, so that a thread should do it. Raises what `prepare` raises."""
    if len(records) > bytes_max:
        return None
    compression, count = config.compression, 0
    for _, header in iter_headers(records):
        count += header.record_count
        if count > AT_ONCE_RECORDS_MAX or (compression is not None and header.compression != compression.codec):
            return None
    try:
        return _prepare(records, config, now_ms, bytes_max)
    except TooLarge:
        return None


def prepare(records: Buffer, config: LogConfig, now_ms: int) -> Prepared:
    """Check the batches, and give them the topic's codec if they have another one. Does not change `records`.

    One limit holds for the batches of a partition together, so that many small decompression bombs are refused, too.
    Raises MESSAGE_TOO_LARGE, CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP or UNSUPPORTED_COMPRESSION_TYPE. The error is an
    InvalidRecords if a topic's rule for single records is broken.
    """
    try:
        return _prepare(records, config, now_ms, RECORDS_BYTES_MAX)
    except TooLarge:
        text = f"the records of a partition need more than {RECORDS_BYTES_MAX} bytes when they are decompressed"
        raise BrokerError(ErrorCode.INVALID_RECORD, text) from None


def _prepare(records: Buffer, config: LogConfig, now_ms: int, bytes_max: int) -> Prepared:
    compression, left = config.compression, bytes_max
    times, parts, end = {}, [], 0
    for position, header in iter_headers(records):
        if header.size > config.max_message_bytes:
            refuse_size(header, config)
        data = _decompressed(records, position, header, left)
        if header.compression:
            left -= len(data)
        batch: Buffer = memoryview(records)[position : position + header.size]
        found = check_batch(records, position, header, data=data)
        check_rules(records, position, header, found, config, now_ms, data)
        if compression is not None and header.compression != compression.codec:
            batch = with_records(header, [data], header.record_count, compression.codec, compression.level)
        times[end] = found
        parts.append(batch)
        end += len(batch)
    if compression is not None:
        records = bytearray().join(parts)
    return Prepared(records, times, bytes_max - left)


def _decompressed(records: Buffer, position: int, header: BatchHeader, size_max: int) -> bytes:
    try:
        return record_bytes(records, position, header, size_max)
    except TooLarge:
        raise
    except CannotDecompress as e:
        if not check_crc(records, position, header.size):
            corrupt("a produced batch failed its checksum")
        raise BrokerError(ErrorCode.INVALID_RECORD, str(e)) from None
