"""The checks of batches before they are appended.

A leader checks a producer's batches in full: header, checksum and every record (`protocol/records/check.py`), because no reader
could get past a malformed record. A follower checks headers and checksums only: it must hold what its leader holds, even if an
older version accepted batches that would be refused today.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

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
from strandline.protocol.records.compression import check_codec
from strandline.storage.disk import Buffer
from strandline.storage.log.index import MAX_RELATIVE_OFFSET
from strandline.storage.log.log_config import CREATE_TIME, LogConfig
from strandline.storage.log.record_rules import check_rules, check_times

CheckedTimes = Mapping[int, RecordTimes]
"""The times of batches that were checked before, by their position in the records of a request."""
NONE_CHECKED: CheckedTimes = {}


def check_produced(
    records: Buffer, config: LogConfig, now_ms: int, accept_control: bool, checked: CheckedTimes = NONE_CHECKED
) -> list[BatchHeader]:
    """The headers of a producer's batches, after a check that each is whole, has the right CRC, is well-formed and obeys the
    topic's rules.

    `max_timestamp` of a returned header is the newest timestamp of its records. Some clients write -1 or the last record's
    timestamp there, which Kafka's leader corrects too. `records` is not changed. `checked`: see `conversion.prepare`.

    Raises CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE or
    UNSUPPORTED_COMPRESSION_TYPE. The error is an InvalidRecords, which names the records, if a topic's rule for single records is
    broken.
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
            refuse_size(header, config)
        if checked:
            times = checked[position]
            check_times(header, times, config, now_ms)
        else:
            times = check_batch(records, position, header, accept_control=accept_control)
            check_rules(records, position, header, times, config, now_ms)
        if config.message_timestamp_type == CREATE_TIME and header.max_timestamp != times.newest:
            header = header._replace(max_timestamp=times.newest)
        headers.append(header)
        position += header.size
    return headers


def refuse_size(header: BatchHeader, config: LogConfig) -> NoReturn:
    """Raise MESSAGE_TOO_LARGE: the batch is larger than the topic allows."""
    raise BrokerError(
        ErrorCode.MESSAGE_TOO_LARGE, f"a batch has {header.size} bytes; max.message.bytes is {config.max_message_bytes}"
    )


def check_batch(
    records: Buffer,
    position: int,
    header: BatchHeader,
    *,
    accept_control: bool = False,
    data: bytes | None = None,
) -> RecordTimes:
    """Check a producer's batch, apart from topic settings: checksum, attributes, producer, records. Returns the records' times.
    `data`: its records, if they were decompressed before.

    Raises CORRUPT_MESSAGE, INVALID_RECORD and UNSUPPORTED_COMPRESSION_TYPE.
    """
    if not check_crc(records, position, header.size):
        corrupt("a produced batch failed its checksum")
    validate_records(records, position, header)
    if header.attributes & ~TIMESTAMP_TYPE_MASK:
        _check_attributes(header.attributes, accept_control)
        if header.attributes & TRANSACTIONAL_MASK and header.producer_id < 0:
            raise BrokerError(ErrorCode.INVALID_RECORD, "a batch is marked as transactional and has no producer id")
    if header.producer_id != NO_PRODUCER_ID and (header.producer_id < 0 or header.base_sequence < 0):
        text = f"a batch names producer {header.producer_id} and sequence {header.base_sequence}; neither may be below 0"
        raise BrokerError(ErrorCode.INVALID_RECORD, text)
    return check_records(records, position, header, data)


def _check_attributes(attributes: int, accept_control: bool) -> None:
    """Refuse attributes that no producer may set, and unknown codecs. `Log.append_as_leader` checks whether the batch may be
    transactional."""
    check_codec(attributes & COMPRESSION_MASK)
    if attributes & CONTROL_MASK and not accept_control:
        raise BrokerError(ErrorCode.INVALID_RECORD, "a client cannot write control batches")
    unknown = attributes & ~(COMPRESSION_MASK | TIMESTAMP_TYPE_MASK | CONTROL_MASK | TRANSACTIONAL_MASK)
    if unknown:
        raise BrokerError(ErrorCode.INVALID_RECORD, f"a batch has attributes that no producer may set: {unknown & 0xFFFF:#06x}")


def check_fetched(
    records: Buffer, next_offset: int, max_epoch: int, last_epoch: int, *, is_empty: bool = False
) -> list[BatchHeader]:
    """The headers of the fetched batches before the first one with an epoch newer than `max_epoch`.

    Raises CORRUPT_MESSAGE unless they begin exactly at `next_offset`, continue without gaps, have epochs that never decrease,
    from `last_epoch` on, and have the right checksums. Then none of them may be appended. `is_empty`: the log holds no batch, so
    the first one may begin before `next_offset` if it contains that offset (KAFKA-6975).
    """
    headers: list[BatchHeader] = []
    position, end = 0, len(records)
    while position < end:
        header = read_header(records, position)
        if header.leader_epoch > max_epoch:
            break
        if is_empty and not headers and header.base_offset < next_offset <= header.last_offset:
            next_offset = header.base_offset  # the log start lies inside this batch
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


def for_one_segment(headers: list[BatchHeader]) -> list[BatchHeader]:
    """The first of these consecutive batches: as many as one segment can hold. Only fillers (`filler.py`) span more offsets."""
    if not headers or headers[-1].last_offset - headers[0].base_offset <= MAX_RELATIVE_OFFSET:
        return headers
    return [header for header in headers if header.last_offset - headers[0].base_offset <= MAX_RELATIVE_OFFSET]
