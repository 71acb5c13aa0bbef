"""One batch of records on its way to one partition: open, closed, sent, done.

While it is open it is a plain list. A *bare* batch holds only values (no key, headers or own timestamps: the common
fast case, encoded in one go from a table of prefixes); the first record that needs more turns it into tuples.
It is encoded once, when it is first sent and its sequence number is known. A later change of producer epoch or
sequence rewrites the header in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from strandline.client.errors import again
from strandline.client.producer.encoding import encode_records, encode_values, restamp
from strandline.client.producer.receipts import RecordMetadata
from strandline.protocol.errors import ErrorCode
from strandline.protocol.records.batch import MAX_SEQUENCE, read_header
from strandline.protocol.records.builder import RecordTuple
from strandline.protocol.records.reader import iter_records

if TYPE_CHECKING:
    from strandline.client.producer.partition_queue import PartitionQueue

Headers = Sequence[tuple[str, bytes | None]]

_new = tuple.__new__
"""A NamedTuple without its Python constructor: a third of the time."""

BARE_OVERHEAD = 12
"""The most that a bare record needs beside its value (exact below 8 KiB; a byte more for larger ones)."""


class Batch:
    __slots__ = (
        "_halves",
        "attempts",
        "base_offset",
        "closed",
        "count",
        "created_at",
        "data",
        "deadline",
        "done",
        "error",
        "in_doubt",
        "last_broker_id",
        "last_code",
        "outstanding",
        "place",
        "queue",
        "records",
        "reserved",
        "room",
        "sequence",
        "timestamp_ms",
        "values",
        "waiters",
    )

    def __init__(self, queue: PartitionQueue, room: int, reserved: int, created_at: float, deadline: float, timestamp_ms: int):
        self.queue = queue
        self.values: list[bytes] = []
        """The records of a bare batch; empty once `records` is used or the batch is encoded."""
        self.records: list[RecordTuple] | None = None
        self.room = room
        """Bytes that still fit, by an upper bound of each record's size."""
        self.reserved = reserved
        """Bytes counted against `buffer_memory`, until done."""
        self.created_at = created_at
        self.deadline = deadline
        """When its records must be acknowledged or failed, on the loop's clock."""
        self.timestamp_ms = timestamp_ms
        self.closed = False
        """Takes no more records."""
        self.count = -1
        """Records, known once it is encoded."""
        self.data: bytearray | bytes | None = None
        """The encoded batch; None before the first send and after the end."""
        self.sequence = -1
        self.place = -1
        """How many batches of its partition and producer epoch were numbered before it."""
        self.attempts = 0
        """Times sent; identifies an attempt, so that an answer to an abandoned one is ignored."""
        self.outstanding = False
        """Sent, and its answer is still expected."""
        self.in_doubt = False
        """Some attempt may have been written although it was not acknowledged."""
        self.last_code: ErrorCode | None = None
        self.last_broker_id: int | None = None
        self.done = False
        self.error: BaseException | None = None
        self.base_offset = -1
        self.waiters: list[Callable[[], None]] = []
        self._halves: tuple[Batch, Batch] | None = None
        """What it was split into, when it was too large for its topic."""

    def __len__(self) -> int:
        if self.count >= 0:
            return self.count
        return len(self.values) if self.records is None else len(self.records)

    def append(self, key: bytes | None, value: bytes | None, headers: Headers | None, timestamp_ms: int | None) -> int:
        """Add one record that is known to fit; returns its index."""
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
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> int:
        """Add records that are known to fit; returns the index of the first."""
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

    def encode(self, producer_id: int, producer_epoch: int, sequence: int) -> None:
        """Make the bytes. The lists are let go: from here on the batch is immutable but for its header."""
        self.count = len(self)
        if self.records is None:
            self.data = encode_values(self.values, self.timestamp_ms, producer_id, producer_epoch, sequence)
        else:
            self.data = encode_records(self.records, producer_id, producer_epoch, sequence)
        self.sequence = sequence
        self.values = []
        self.records = None

    def restamp(self, producer_id: int, producer_epoch: int, sequence: int) -> None:
        """A new identity for a batch that is known not to be in the log."""
        assert self.data is not None, "only a batch that was encoded and is not done has an identity to change"
        self.data = restamp(self.data, producer_id, producer_epoch, sequence)
        self.sequence = sequence

    def split(self) -> tuple[Batch, Batch]:
        """Two batches with the same records and sequence numbers; this one is done when both are."""
        assert self.data is not None, "only a batch that was sent can be too large"
        records = [(r.key, r.value, r.headers, r.timestamp_ms) for r in iter_records(self.data, check_crc=False)]
        header = read_header(self.data)
        middle = len(records) // 2
        halves = []
        for start, part in ((0, records[:middle]), (middle, records[middle:])):
            half = Batch(self.queue, 0, 0, self.created_at, self.deadline, self.timestamp_ms)
            half.closed, half.records = True, part
            sequence = (self.sequence + start) & MAX_SEQUENCE if self.sequence >= 0 else -1
            half.encode(header.producer_id, header.producer_epoch, sequence)
            half.reserved = len(half.data or b"")
            half.waiters.append(self._on_half_done)
            halves.append(half)
        self._halves = (halves[0], halves[1])
        self.outstanding, self.data = False, None
        return self._halves

    def _on_half_done(self) -> None:
        if self._halves is not None and all(half.done for half in self._halves):
            self._finish()

    def complete(self, base_offset: int, log_append_time_ms: int = -1) -> None:
        self.base_offset = base_offset
        if log_append_time_ms >= 0:
            self.timestamp_ms = log_append_time_ms
        self._finish()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        self.outstanding = False
        if self.count < 0:
            self.count = len(self)
        self.data = None
        self.values = []
        self.records = None
        waiters, self.waiters = self.waiters, []
        for wake in waiters:
            wake()

    def metadata(self, index: int) -> RecordMetadata:
        if self._halves is not None:
            first, second = self._halves
            return first.metadata(index) if index < first.count else second.metadata(index - first.count)
        if self.error is not None:
            raise again(self.error)
        queue = self.queue
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return _new(RecordMetadata, (queue.topic, queue.partition, offset, self.timestamp_ms))

    def __repr__(self) -> str:
        state = "done" if self.done else "outstanding" if self.outstanding else "waiting"
        return f"<Batch {self.queue.topic}-{self.queue.partition} seq {self.sequence} x{len(self)} {state}>"
