"""One batch of records on its way to one partition: open, closed, in flight, waiting for a retry, done.

An open batch is a plain list. A *bare* batch holds only values, without keys, headers or own timestamps: the common fast case,
which is encoded in one go from a table of prefixes. The first record that needs more turns the list into tuples. A batch is
encoded once, when it is first sent and its sequence number is known. A later change of producer epoch or sequence rewrites the
header in a copy of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import repeat
from typing import NamedTuple

from strandline.client.errors import copy_of
from strandline.client.producer.encoding import encode_records, encode_values, restamp
from strandline.client.producer.receipts import RecordMetadata
from strandline.client.producer.record_errors import ErrorOf
from strandline.protocol.errors import ErrorCode
from strandline.protocol.records.batch import MAX_SEQUENCE, read_header
from strandline.protocol.records.builder import RecordTuple
from strandline.protocol.records.compression import Codec, Compression
from strandline.protocol.records.reader import iter_records

Headers = Sequence[tuple[str, bytes | None]]


class Conditions(NamedTuple):
    """The conditions on which the leader appends a batch. If one does not hold, the leader rejects the whole batch."""

    expected_offset: int = -1
    """The log end offset that the partition must have; -1: no condition."""
    fencing_token: int = -1
    """No earlier record of the partition may have carried a higher token; -1: no condition."""


UNCONDITIONAL = Conditions()

_new = tuple.__new__
"""Creates a NamedTuple without its Python constructor, in a third of the time."""

BARE_OVERHEAD = 12
"""The most bytes that a bare record needs beside its value (exact below 8 KiB; a byte more for larger ones)."""


class BatchState(Enum):
    """OPEN -> CLOSED -> IN_FLIGHT -> DONE, and IN_FLIGHT <-> WAITING_FOR_RETRY; an open batch may be sent at once."""

    OPEN = "open"
    """The batch accepts records."""
    CLOSED = "closed"
    """The batch accepts no more records, and was not sent yet."""
    IN_FLIGHT = "in flight"
    """The batch was sent, and the response is still expected."""
    WAITING_FOR_RETRY = "waiting for retry"
    """The last attempt failed or was abandoned."""
    SPLIT = "split"
    """The batch was too large for its topic. Its halves are sent instead, and it is done when both are."""
    DONE = "done"
    """Acknowledged (`base_offset`) or failed (`error`)."""


_OPEN, _IN_FLIGHT, _DONE = BatchState.OPEN, BatchState.IN_FLIGHT, BatchState.DONE


class Batch:
    """The records of one batch, their encoded form once it is sent, and the results of its attempts."""

    __slots__ = (
        "_halves",
        "attempts",
        "base_offset",
        "conditions",
        "count",
        "created_at",
        "data",
        "deadline",
        "done",
        "error",
        "error_of",
        "in_doubt",
        "index_in_epoch",
        "is_end_doubted",
        "last_broker_id",
        "last_code",
        "partition",
        "records",
        "reserved",
        "room",
        "sequence",
        "state",
        "timestamp_ms",
        "topic",
        "topic_id",
        "values",
        "waiters",
    )

    def __init__(
        self, topic: str, partition: int, room: int, reserved: int, created_at: float, deadline: float, timestamp_ms: int
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.state = _OPEN
        self.values: list[bytes] = []
        """The records of a bare batch; empty once `records` is used or the batch is encoded."""
        self.records: list[RecordTuple] | None = None
        """The records of a batch that is not bare; None if it is bare, and once it is encoded."""
        self.room = room
        """Bytes that still fit, computed from an upper bound of each record's size. The producer's fast path subtracts from it
        directly."""
        self.reserved = reserved
        """Bytes counted against `buffer_memory` until the batch is done."""
        self.created_at = created_at
        self.deadline = deadline
        """When the records must be acknowledged or failed, on the loop's clock."""
        self.timestamp_ms = timestamp_ms
        self.conditions = UNCONDITIONAL
        self.topic_id = b""
        """Id of the topic in whose log the expected offset is: the batch must not be appended to a topic that was recreated under
        the name. Empty if the batch expects no offset: any topic."""
        self.is_end_doubted = False
        """A leader has rejected the batch because the log ends *before* the expected offset. The batch is sent once more, because
        that leader may have been deposed."""
        self.count = -1
        """Number of records, known once the batch is encoded."""
        self.data: bytearray | bytes | None = None
        """The encoded batch; None before the first attempt and when it is done."""
        self.sequence = -1
        """The sequence number of the first record; -1 before the first attempt, and without idempotence."""
        self.index_in_epoch = -1
        """The number of batches of its partition and producer epoch that were numbered before it."""
        self.attempts = 0
        """The number of attempts to send the batch. It also identifies an attempt: the response to an abandoned one is
        ignored."""
        self.in_doubt = False
        """An attempt may have been appended although it was not acknowledged."""
        self.last_code: ErrorCode | None = None
        """The error of the last attempt that failed."""
        self.last_broker_id: int | None = None
        """The broker that the last attempt was sent to."""
        self.done = False
        """Whether the state is DONE: an attribute of its own, because receipts read it for each record."""
        self.error: BaseException | None = None
        """Why the batch failed; None if it was acknowledged or is not done."""
        self.error_of: ErrorOf | None = None
        """Returns the error of each record, if the records fail with different errors; None if all fail with `error`."""
        self.base_offset = -1
        """The offset of the first record, once the batch is acknowledged; -1 if the broker does not know it."""
        self.waiters: list[Callable[[], None]] = []
        """Called once, when the batch is done."""
        self._halves: tuple[Batch, Batch] | None = None
        """The two batches that are sent instead, with the same records, if this batch was split."""

    def __len__(self) -> int:
        if self.count >= 0:
            return self.count
        return len(self.values) if self.records is None else len(self.records)

    @property
    def is_bare(self) -> bool:
        """Whether all records are values without a key, headers or a timestamp of their own."""
        return self.records is None

    # -- records ------------------------------------------------------------------------------------------------------

    def append(self, key: bytes | None, value: bytes | None, headers: Headers | None, timestamp_ms: int | None, size: int) -> int:
        """Append one record of at most `size` bytes, which the caller knows to fit. Returns its index."""
        self.room -= size
        if self.records is None:
            if key is None and value is not None and not headers and timestamp_ms is None:
                self.values.append(value)
                return len(self.values) - 1
            self._make_rich()
        assert self.records is not None, "it is rich now"
        self.records.append((key, value, headers or (), self.timestamp_ms if timestamp_ms is None else timestamp_ms))
        return len(self.records) - 1

    def extend(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Headers | None] | None,
        size: int,
    ) -> int:
        """Append records of at most `size` bytes together, which the caller knows to fit. Returns the index of the first."""
        self.room -= size
        first = len(self)
        if self.records is None:
            if keys is None and headers is None and None not in values:
                self.values += values  # type: ignore[arg-type]
                return first
            self._make_rich()
        assert self.records is not None, "it is rich now"
        own_headers = repeat(()) if headers is None else [own or () for own in headers]
        self.records += zip(keys or repeat(None), values, own_headers, repeat(self.timestamp_ms, len(values)), strict=False)
        return first

    def _make_rich(self) -> None:
        self.records = [(None, v, (), self.timestamp_ms) for v in self.values]
        self.values = []

    def expire_by(self, deadline: float) -> None:
        """Bring the deadline forward to `deadline`, if that is earlier."""
        self.deadline = min(self.deadline, deadline)

    def close(self) -> int:
        """Accept no more records. Returns the number of reserved bytes that the batch does not use."""
        if self.state is _OPEN:
            self.state = BatchState.CLOSED
        unused, self.room = self.room, 0
        self.reserved -= unused
        return unused

    # -- attempts -----------------------------------------------------------------------------------------------------

    def encode(
        self,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        index_in_epoch: int,
        compression: Compression | None = None,
        is_transactional: bool = False,
    ) -> None:
        """Encode the records and drop the lists. From here on the batch is immutable except for its header. `sequence`: that of
        the first record; -1 without idempotence."""
        self.count = len(self)
        if self.records is None:
            stamp = self.timestamp_ms
            self.data = encode_values(self.values, stamp, producer_id, producer_epoch, sequence, compression, is_transactional)
        else:
            self.data = encode_records(self.records, producer_id, producer_epoch, sequence, compression, is_transactional)
        self.sequence, self.index_in_epoch = sequence, index_in_epoch
        self.values = []
        self.records = None

    def restamp(self, producer_id: int, producer_epoch: int, sequence: int, index_in_epoch: int) -> None:
        """Give another producer id, epoch and sequence to a batch that is known not to be in the log."""
        assert self.data is not None, "only a batch that was encoded and is not done has an identity to change"
        self.data = restamp(self.data, producer_id, producer_epoch, sequence)
        self.sequence, self.index_in_epoch = sequence, index_in_epoch

    def move_back(self) -> None:
        """A batch before this one was split, so one more batch is numbered before this one."""
        self.index_in_epoch += 1

    def on_sent(self, broker_id: int | None) -> None:
        """One more attempt begins: the batch is in a request to this broker."""
        self.attempts += 1
        self.state = _IN_FLIGHT
        self.last_broker_id = broker_id

    def on_attempt_failed(self, code: ErrorCode, *, in_doubt: bool) -> None:
        """The attempt failed with this error. `in_doubt`: the batch may have been appended all the same."""
        self.state = BatchState.WAITING_FOR_RETRY
        self.last_code = code
        self.in_doubt = self.in_doubt or in_doubt

    def abandon_attempt(self) -> None:
        """Stop expecting a response; the batch may have been appended."""
        self.state = BatchState.WAITING_FOR_RETRY
        self.in_doubt = True

    def expects(self, attempt: int) -> bool:
        """Whether the response to this attempt is still expected."""
        return self.state is _IN_FLIGHT and self.attempts == attempt

    def split(self) -> tuple[Batch, Batch]:
        """Return two batches with the same records and sequence numbers. This one is done when both are."""
        assert self.data is not None, "only a batch that was sent can be too large"
        records = [(r.key, r.value, r.headers, r.timestamp_ms) for r in iter_records(self.data, check_crc=False)]
        middle = len(records) // 2
        first = self._half(records[:middle], 0, self.index_in_epoch)
        self._halves = first, self._half(records[middle:], middle, self.index_in_epoch + 1)
        self.state, self.data = BatchState.SPLIT, None
        return self._halves

    def _half(self, records: list[RecordTuple], start: int, index_in_epoch: int) -> Batch:
        """A batch of these records, the first of which was at index `start` of this batch."""
        assert self.data is not None, "it is split"
        header = read_header(self.data)
        half = Batch(self.topic, self.partition, 0, 0, self.created_at, self.deadline, self.timestamp_ms)
        half.state, half.records, half.conditions = BatchState.WAITING_FOR_RETRY, records, self.conditions
        sequence = (self.sequence + start) & MAX_SEQUENCE if self.sequence >= 0 else -1
        compression = Compression(Codec(header.compression)) if header.compression else None
        half.encode(header.producer_id, header.producer_epoch, sequence, index_in_epoch, compression, header.is_transactional)
        half.reserved = len(half.data or b"")
        half.waiters.append(self._on_half_done)
        return half

    def _on_half_done(self) -> None:
        if self._halves is not None and all(half.done for half in self._halves):
            self._finish()

    # -- the end ------------------------------------------------------------------------------------------------------

    def complete(self, base_offset: int, log_append_time_ms: int = -1) -> None:
        """The batch is acknowledged. `base_offset` is -1 if it is not known; `log_append_time_ms` is -1 if the records keep their
        own times."""
        self.base_offset = base_offset
        if log_append_time_ms >= 0:
            self.timestamp_ms = log_append_time_ms
        self._finish()

    def fail(self, error: BaseException, error_of: ErrorOf | None = None) -> None:
        """The batch has failed for good: its receipts raise `error`, or the error that `error_of` returns for their record."""
        self.error, self.error_of = error, error_of
        self._finish()

    def _finish(self) -> None:
        if self.count < 0:
            self.count = len(self)
        self.done = True
        self.state = _DONE
        self.data = None
        self.values = []
        self.records = None
        waiters, self.waiters = self.waiters, []
        for wake in waiters:
            wake()

    def metadata(self, index: int) -> RecordMetadata:
        """The record's partition, offset and timestamp, once the batch is done; raises the error if it failed."""
        if self._halves is not None:
            first, second = self._halves
            return first.metadata(index) if index < first.count else second.metadata(index - first.count)
        if self.error_of is not None:
            raise self.error_of(index)
        if self.error is not None:
            raise copy_of(self.error)
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return _new(RecordMetadata, (self.topic, self.partition, offset, self.timestamp_ms))

    def __repr__(self) -> str:
        return f"<Batch {self.topic}-{self.partition} seq {self.sequence} x{len(self)} {self.state.value}>"
