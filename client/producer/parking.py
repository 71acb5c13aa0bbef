"""Records that were sent before anything was known of their topic: kept in order until its metadata arrives.

Each parked record's receipt points here. When the topic is known the record is appended for real and its receipt is
re-pointed to the batch; when it never gets known, to a `Failure`.
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
    """When it was parked."""
    deadline: float


class ParkingLot:
    """The parked records of one topic. A target of receipts that is never done: waiters are woken by re-pointing."""

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
    """The target of a receipt whose record never got a batch."""

    __slots__ = ("done", "error", "waiters")

    def __init__(self, error: BaseException) -> None:
        self.done = True
        self.error = error
        self.waiters: list[Callable[[], None]] = []

    def metadata(self, index: int) -> RecordMetadata:
        raise copy_of(self.error)
