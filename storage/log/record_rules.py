"""The rules of a topic for each record: a key if the topic is compacted, and a timestamp near the broker's time.

If records of a batch break them, the whole batch is refused, and the error names each of these records, up to `NAMED_MAX`
(KIP-467). A malformed record is refused elsewhere (`validation.py`): the records after it cannot be read, so they cannot be
checked one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import TIMESTAMP_TYPE_MASK, BatchHeader, record_bytes
from strandline.protocol.records.check import RecordTimes
from strandline.protocol.records.reader import Columns, decode_checked
from strandline.storage.disk import Buffer
from strandline.storage.log.log_config import CREATE_TIME, LogConfig

NAMED_MAX = 100
"""An error names at most this many records of a batch."""
_NO_KEY = "has no key: a compacted topic (cleanup.policy) keeps the newest record of each key"


class InvalidRecords(BrokerError):
    """Records of a batch break a rule of their topic, so the batch is refused."""

    def __init__(self, code: ErrorCode, message: str | None, record_errors: Mapping[int, str], count: int) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors
        """The message of each invalid record, by its index in the batch; of the first `NAMED_MAX`, in their order."""
        self.count = count
        """The number of invalid records in the batch."""


def bare(error: BrokerError) -> BrokerError:
    """A copy of the error without its traceback, which keeps the buffers of its frames, up to 32 MiB, until the garbage collector
    runs."""
    if isinstance(error, InvalidRecords):
        return InvalidRecords(error.code, error.message, error.record_errors, error.count)
    return BrokerError(error.code, error.message)


def check_rules(
    records: Buffer,
    position: int,
    header: BatchHeader,
    times: RecordTimes,
    config: LogConfig,
    now_ms: int,
    data: bytes | None = None,
) -> None:
    """Refuse the batch at `position`, which is well-formed, if a record of it breaks a rule of the topic.

    `times`: those of its records. `data`: its records, if they were decompressed before.

    Raises InvalidRecords, with INVALID_TIMESTAMP or INVALID_RECORD; and BrokerError with INVALID_TIMESTAMP if the batch is marked
    as LogAppendTime, which no producer may do.
    """
    checks_times = False
    if config.message_timestamp_type == CREATE_TIME:
        _refuse_append_time(header)
        checks_times = is_out_of_range(times, config, now_ms)
    checks_keys = config.compacts and not header.is_control
    if not (checks_times or checks_keys):
        return
    columns = decode_checked(record_bytes(records, position, header) if data is None else data, header)
    without_key = _without_key(columns) if checks_keys else []
    wrong_times = _wrong_times(columns, config, now_ms) if checks_times else {}
    if without_key or wrong_times:
        _refuse(header.record_count, without_key, wrong_times, now_ms)


def is_out_of_range(times: RecordTimes, config: LogConfig, now_ms: int) -> bool:
    """Whether the newest timestamp of a batch is too far ahead of the broker's time, or the oldest too far behind. -1 stands for
    no timestamp."""
    is_ahead = times.newest - now_ms > config.message_timestamp_after_max_ms
    return is_ahead or times.oldest < -1 or 0 <= times.oldest < now_ms - config.message_timestamp_before_max_ms


def check_times(header: BatchHeader, times: RecordTimes, config: LogConfig, now_ms: int) -> None:
    """Check the times of a prepared batch once more: the topic or the time may have changed since. Raises INVALID_TIMESTAMP. The
    error names no record, because the batch would have to be decompressed again."""
    if config.message_timestamp_type != CREATE_TIME:
        return
    _refuse_append_time(header)
    if is_out_of_range(times, config, now_ms):
        is_oldest = is_out_of_range(RecordTimes(times.oldest, times.oldest), config, now_ms)
        text = _describe_time(times.oldest if is_oldest else times.newest, now_ms)
        raise BrokerError(ErrorCode.INVALID_TIMESTAMP, f"a record {text}")


def _refuse_append_time(header: BatchHeader) -> None:
    if header.attributes & TIMESTAMP_TYPE_MASK:
        raise BrokerError(ErrorCode.INVALID_TIMESTAMP, "only a broker may mark a batch as LogAppendTime")


def _describe_time(timestamp: int, now_ms: int) -> str:
    """A predicate about a record whose timestamp is out of range."""
    side = "ahead of" if timestamp > now_ms else "behind"
    return f"has timestamp {timestamp}, which is too far {side} the broker's time, {now_ms}"


def _without_key(columns: Columns) -> Sequence[int]:
    """The indexes of the records without a key."""
    if columns.keys is None:
        return range(len(columns.values))
    if None not in columns.keys:
        return ()
    return [index for index, key in enumerate(columns.keys) if key is None]


def _wrong_times(columns: Columns, config: LogConfig, now_ms: int) -> dict[int, int]:
    """The timestamps that are out of range, by the index of the record."""
    if columns.timestamps is None:
        return dict.fromkeys(range(len(columns.values)), columns.base_timestamp)
    times = enumerate(columns.timestamps)
    return {i: time for i, time in times if is_out_of_range(RecordTimes(time, time), config, now_ms)}


def _refuse(record_count: int, without_key: Sequence[int], wrong_times: Mapping[int, int], now_ms: int) -> NoReturn:
    """Raise the error that names these records. A record without a key is named for that alone, as in Kafka."""
    keyless = frozenset(without_key)
    invalid = sorted(keyless.union(wrong_times))
    texts = {i: _NO_KEY if i in keyless else _describe_time(wrong_times[i], now_ms) for i in invalid[:NAMED_MAX]}
    summary = f"record {invalid[0]} of the batch {texts[invalid[0]]}"
    if len(invalid) > 1:
        summary += f"; {len(invalid)} of its {record_count} records are invalid"
    code = ErrorCode.INVALID_TIMESTAMP if wrong_times.keys() - keyless else ErrorCode.INVALID_RECORD
    raise InvalidRecords(code, summary, {i: f"the record {text}" for i, text in texts.items()}, len(invalid))
