"""Parked records: they were sent before their topic's metadata was known, and are kept in order until it arrives.

The receipt of a parked record points at the topic's parking lot. When the topic is known, the record is appended to a batch and
its receipt points at that. If the topic does not become known in time, the receipt points at a `Failure`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, NoReturn

from strandline.client.errors import copy_of
from strandline.client.producer.batch import Headers
from strandline.client.producer.receipts import Receipt, RecordMetadata


class ParkedRecord(NamedTuple):
    receipt: Receipt
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp_ms: int | None
    size: int
    since: float
    """When it was parked, on the loop's clock."""
    deadline: float


class ParkingLot:
    """The parked records of one topic. As a target of receipts it is never done: waiters are woken when receipts get another
    target."""

    __slots__ = ("done", "records", "waiters")

    def __init__(self) -> None:
        self.done = False
        self.waiters: list[Callable[[], None]] = []
        self.records: list[ParkedRecord] = []
        """In the order in which they were handed over; never empty while the lot is in use."""

    def metadata(self, index: int) -> NoReturn:
        raise AssertionError("a parked record has no metadata")

    def wake(self) -> None:
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
        raise copy_of(self.error)
