"""The parts of an append that need no log: the result, the buffer that is stamped, and the stamping itself."""

from __future__ import annotations

from typing import NamedTuple

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import (
    BatchHeader,
    max_timestamp_at,
    stamp,
    stamp_log_append_time,
    stamp_max_timestamp,
)
from strandline.protocol.records.fence import NO_TOKEN
from strandline.storage.disk import Buffer
from strandline.storage.log.fences import Fence
from strandline.storage.log.log_config import LOG_APPEND_TIME, LogConfig
from strandline.storage.log.producer_state import AppendedBatch


class AppendInfo(NamedTuple):
    """The result of an append. A duplicate wrote nothing (`size` is 0) and has the offsets of its first append."""

    first_offset: int
    last_offset: int
    size: int
    log_append_time_ms: int
    """-1 unless the topic uses LogAppendTime."""
    duplicate: bool
    max_timestamp: int


class ConditionFailed(BrokerError):
    """A condition of an append does not hold; nothing was appended."""

    log_end_offset = -1
    """The log end, if it differs from the one that the append expects; else -1."""
    fencing_token = NO_TOKEN
    """The log's fencing token, if it is higher than that of the append; else NO_TOKEN."""

    def __init__(self, code: ErrorCode, text: str, reason_end: int) -> None:
        super().__init__(code, text)
        self.reason_end = reason_end
        """The batches because of which the condition fails are committed when the high watermark has reached this offset. Before
        that, a truncation may remove them, and the same append may succeed."""


class UnexpectedLogEnd(ConditionFailed):
    """The log end is not where the append expects it."""

    def __init__(self, expected_offset: int, log_end_offset: int) -> None:
        text = f"the append expects offset {expected_offset}, but the log end is {log_end_offset}"
        super().__init__(ErrorCode.UNEXPECTED_LOG_END, text, log_end_offset)
        self.log_end_offset = log_end_offset


class FencedToken(ConditionFailed):
    """An earlier append has carried a higher token."""

    def __init__(self, token: int, newest: Fence) -> None:
        text = f"fencing token {token} is fenced: an append with token {newest.token} came before"
        super().__init__(ErrorCode.FENCED_TOKEN, text, newest.offset + 1)
        self.fencing_token = newest.token


def duplicate_info(duplicates: list[AppendedBatch]) -> AppendInfo:
    """The result for batches that were all appended before."""
    return AppendInfo(duplicates[0].first_offset, duplicates[-1].last_offset, 0, -1, True, duplicates[-1].timestamp)


def writable(records: Buffer) -> bytearray | memoryview:
    """`records` itself if it can be stamped in place, else a copy."""
    if isinstance(records, bytearray):
        return records
    if isinstance(records, memoryview) and not records.readonly:
        return records
    return bytearray(records)


def stamp_batches(
    records: bytearray | memoryview,
    headers: list[BatchHeader],
    offset: int,
    leader_epoch: int,
    config: LogConfig,
    now_ms: int,
) -> tuple[list[BatchHeader], int]:
    """Write offsets from `offset` on, the leader epoch and (for LogAppendTime) the time into the batches of `records`.

    Returns the headers as they are now, and the log append time (-1 for CreateTime)."""
    by_broker = config.message_timestamp_type == LOG_APPEND_TIME
    position, stamped = 0, []
    for header in headers:
        stamp(records, position, offset, leader_epoch)
        timestamp = header.max_timestamp
        if by_broker:
            stamp_log_append_time(records, position, header.size, now_ms)
            timestamp = now_ms
        elif timestamp != max_timestamp_at(records, position):
            stamp_max_timestamp(records, position, header.size, timestamp)
        # Field by field: `_replace` takes four times as long.
        fields = (offset, header.size, leader_epoch, *header[3:8], timestamp, *header[9:])
        stamped.append(tuple.__new__(BatchHeader, fields))
        position += header.size
        offset += header.last_offset_delta + 1
    return stamped, now_ms if by_broker else -1
