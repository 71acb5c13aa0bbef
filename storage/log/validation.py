"""The checks of batches before they are appended.

A leader checks a producer's batches in full: header, checksum and every record (`protocol/records/check.py`), because no reader
could get past a malformed record. A follower checks headers and checksums only: it must hold what its leader holds, even if an
older version accepted batches that would be refused today.
"""

from __future__ import annotations

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    NO_PRODUCER_ID,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    check_crc,
    corrupt,
    read_header,
    validate_records,
)
from strandline.protocol.records.check import RecordTimes, check_records
from strandline.protocol.records.compression import refuse_compression
from strandline.storage.disk import Buffer
from strandline.storage.log.log_config import CREATE_TIME, LogConfig


def check_produced(records: Buffer, config: LogConfig, now_ms: int, accept_control: bool) -> list[BatchHeader]:
    """The headers of a producer's batches, after a check that each is whole, has the right CRC, is well-formed and obeys the
    topic's rules.

    `max_timestamp` of a returned header is the newest timestamp of its records. Some clients write -1 or the last record's
    timestamp there, which Kafka's leader corrects too. `records` is not changed.

    BrokerError: CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE.
    """
    headers: list[BatchHeader] = []
    position, end = 0, len(records)
    if not end:
        raise BrokerError(ErrorCode.INVALID_RECORD, "the request has no batch to append")
    if end > config.segment_bytes and not config.oversized_segments:
        raise BrokerError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{end} bytes do not fit into a segment of {config.segment_bytes} bytes (segment.bytes)",
        )
    while position < end:
        header = read_header(records, position)
        if header.size > config.max_message_bytes:
            raise BrokerError(
                ErrorCode.MESSAGE_TOO_LARGE, f"a batch has {header.size} bytes; max.message.bytes is {config.max_message_bytes}"
            )
        times = check_batch(records, position, header, accept_control=accept_control)
        if config.message_timestamp_type == CREATE_TIME:
            _check_timestamps(header, times, config, now_ms)
            if header.max_timestamp != times.newest:
                header = header._replace(max_timestamp=times.newest)
        headers.append(header)
        position += header.size
    return headers


def check_batch(records: Buffer, position: int, header: BatchHeader, *, accept_control: bool = False) -> RecordTimes:
    """Check a producer's batch, apart from topic settings: checksum, attributes, producer, records. Returns the records' times.

    BrokerError: CORRUPT_MESSAGE, INVALID_RECORD, UNSUPPORTED_COMPRESSION_TYPE.
    """
    if not check_crc(records, position, header.size):
        corrupt("a produced batch failed its checksum")
    validate_records(records, position, header)
    if header.attributes & ~TIMESTAMP_TYPE_MASK:
        _check_attributes(header.attributes, accept_control)
    if header.producer_id != NO_PRODUCER_ID and (header.producer_id < 0 or header.base_sequence < 0):
        text = f"a batch names producer {header.producer_id} and sequence {header.base_sequence}; neither may be below 0"
        raise BrokerError(ErrorCode.INVALID_RECORD, text)
    return check_records(records, position, header)


def _check_attributes(attributes: int, accept_control: bool) -> None:
    """Refuse attributes that no producer may set, and those that are not supported: compression and transactions."""
    if attributes & COMPRESSION_MASK:
        refuse_compression(attributes & COMPRESSION_MASK)
    if attributes & CONTROL_MASK and not accept_control:
        raise BrokerError(ErrorCode.INVALID_RECORD, "a client cannot write control batches")
    if attributes & TRANSACTIONAL_MASK:
        raise BrokerError(ErrorCode.INVALID_RECORD, "a batch is marked as transactional; transactions are not supported")
    unknown = attributes & ~(TIMESTAMP_TYPE_MASK | CONTROL_MASK)
    if unknown:
        raise BrokerError(ErrorCode.INVALID_RECORD, f"a batch has attributes that no producer may set: {unknown & 0xFFFF:#06x}")


def _check_timestamps(header: BatchHeader, times: RecordTimes, config: LogConfig, now_ms: int) -> None:
    if header.attributes & TIMESTAMP_TYPE_MASK:
        raise BrokerError(ErrorCode.INVALID_TIMESTAMP, "only a broker may mark a batch as LogAppendTime")
    newest, oldest = times.newest, times.oldest
    if newest - now_ms > config.message_timestamp_after_max_ms:
        raise BrokerError(ErrorCode.INVALID_TIMESTAMP, f"timestamp {newest} is too far ahead of the broker's time, {now_ms}")
    if oldest < -1 or (oldest >= 0 and now_ms - oldest > config.message_timestamp_before_max_ms):
        raise BrokerError(ErrorCode.INVALID_TIMESTAMP, f"timestamp {oldest} is too far behind the broker's time, {now_ms}")


def check_fetched(records: Buffer, next_offset: int, max_epoch: int, last_epoch: int) -> list[BatchHeader]:
    """The headers of the fetched batches before the first one with an epoch newer than `max_epoch`.

    CORRUPT_MESSAGE unless they begin exactly at `next_offset`, continue without gaps, and have epochs that never decrease, from
    `last_epoch` on. Nothing may be appended then, because the batches do not continue this log.
    """
    headers: list[BatchHeader] = []
    position, end = 0, len(records)
    while position < end:
        header = read_header(records, position)
        if header.leader_epoch > max_epoch:
            break
        if header.base_offset != next_offset:
            corrupt(f"the leader sent offset {header.base_offset} where {next_offset} was expected")
        if header.leader_epoch < last_epoch or header.leader_epoch < 0:
            corrupt(f"the leader sent epoch {header.leader_epoch} after epoch {last_epoch} at offset {next_offset}")
        if not check_crc(records, position, header.size):
            corrupt(f"the batch fetched at offset {next_offset} failed its checksum")
        headers.append(header)
        next_offset += header.last_offset_delta + 1
        last_epoch = header.leader_epoch
        position += header.size
    return headers
