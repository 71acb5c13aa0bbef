"""Parked records: they were sent before their topic's metadata was known, and are kept in order until it arrives.

The receipt of a parked record points at the topic's parking lot. When the topic is known, the record is appended to a batch, and
its receipt points at the batch. If the topic does not become known in time, the receipt points at a `Failure`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from strandline.client.errors import copy_of
from strandline.client.producer.batch import Conditions, Headers
from strandline.client.producer.receipts import Receipt, RecordMetadata, Resolvable


class ParkedRecord(NamedTuple):
    """One record, as it was handed over, and its receipt."""

    receipt: Receipt
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp_ms: int | None
    size: int
    since: float
    """When the record was parked, on the loop's clock."""
    deadline: float
    """When the record must be acknowledged or failed, on the loop's clock."""
    conditions: Conditions | None = None
    """If set: all records of one call have the same object here, and get a batch of their own with these conditions."""

    def point_at(self, target: Resolvable, index: int = 0) -> None:
        """Give the receipt another target, because the record has left the parking lot."""
        self.receipt.batch, self.receipt.index = target, index


class ParkingLot:
    """The parked records of one topic. As a target of receipts it is never done: waiters are woken when receipts get another
    target."""

    __slots__ = ("done", "records", "waiters")

    def __init__(self) -> None:
        self.done = False
        self.waiters: list[Callable[[], None]] = []
        self.records: list[ParkedRecord] = []
        """The records, in the order in which they were handed over; never empty while the lot is in use."""

    def add(
        self,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        size: int,
        now: float,
        deadline: float,
        conditions: Conditions | None = None,
    ) -> Receipt:
        """Park one record of at most `size` bytes. `now` and `deadline` are on the loop's clock. Returns the record's receipt."""
        receipt = Receipt(self, len(self.records))
        fields = (partition, key, value, headers, timestamp_ms, size, now, deadline, conditions)
        self.records.append(ParkedRecord(receipt, *fields))
        return receipt

    def pieces(self) -> list[list[ParkedRecord]]:
        """The records in order, grouped as they are appended: single records, and all records of a call that get a batch of their
        own."""
        pieces: list[list[ParkedRecord]] = []
        for record in self.records:
            if record.conditions is not None and pieces and record.conditions is pieces[-1][0].conditions:
                pieces[-1].append(record)
            else:
                pieces.append([record])
        return pieces

    def remove(self, records: Sequence[ParkedRecord], target: Resolvable) -> None:
        """Take records out, and point their receipts at `target`."""
        for record in records:
            record.point_at(target)
        self.records = [record for record in self.records if record.receipt.batch is self]

    def metadata(self, index: int) -> NoReturn:
        """Never called, because a parking lot is never done; AssertionError if it is, which is a bug of the client."""
        raise AssertionError("a parked record has no metadata")

    def wake(self) -> None:
        """Call the waiters, because receipts have got another target."""
        waiters, self.waiters = self.waiters, []
        for wake in waiters:
            wake()


class Failure:
    """The target of a receipt whose record never joined a batch."""

    __slots__ = ("done", "error", "waiters")

    def __init__(self, error: BaseException) -> None:
        self.done = True
        self.error = error
        self.waiters: list[Callable[[], None]] = []

    def metadata(self, index: int) -> RecordMetadata:
        """Always raises: a copy of the record's error, so that each await has a traceback of its own."""
        raise copy_of(self.error)
