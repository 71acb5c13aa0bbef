"""The results of the producer's calls: `Receipt` and `Receipts`, whose `result()` waits.

As in the client for asyncio, a receipt is two words: the parcel in which its record is handed to the loop, and an index. A parcel
that was handed over has the receipts of the client for asyncio, which have all else. Everything that changes belongs to the
loop's thread; other threads read `receipts` and `error`, each of which is written once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import msgspec

from strandline.client.errors import RequestTimeout, copy_of
from strandline.client.producer import receipts as originals
from strandline.client.producer.receipts import BatchMetadata, DeliveryCallback, RecordMetadata
from strandline.client.sync.loop_thread import LoopThread, wait_for
from strandline.protocol.errors import StrandlineError

Taken = Sequence[originals.Receipt | StrandlineError] | originals.Receipts
"""For each record, the receipt that the client for asyncio has returned, or the error that it has raised."""


class Parcel:
    """Records that are handed to the loop together."""

    __slots__ = ("_taken", "_waiters", "error", "thread")

    def __init__(self, thread: LoopThread, taken: Taken | None = None) -> None:
        self.thread = thread
        self._taken = taken
        """The receipts and errors of the records; None until the client for asyncio has taken the records."""
        self.error: StrandlineError | None = None
        """Why the client for asyncio will take none of the records."""
        self._waiters: list[Callable[[], None]] = []
        """Called on the loop once `_taken` or `error` is set."""

    def on_taken(self, taken: Taken) -> None:
        """The client for asyncio has taken the records."""
        self._taken = taken
        self._wake()

    def on_failed(self, error: StrandlineError) -> None:
        """The client for asyncio will not take the records."""
        self.error = error
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()

    def _outcome(self, index: int) -> originals.Receipt | StrandlineError | None:
        """The receipt or the error of a record; None until it was handed over."""
        return self.error if self._taken is None else self._taken[index]

    def is_done(self, index: int) -> bool:
        """Whether a record is acknowledged or has failed."""
        outcome = self._outcome(index)
        return outcome.done if isinstance(outcome, originals.Receipt) else outcome is not None

    def result(self, index: int) -> RecordMetadata:
        """The metadata of a record, or its error. InvalidStateError of asyncio if it is not done."""
        outcome = self._outcome(index)
        if isinstance(outcome, originals.Receipt):
            return outcome.result()
        if outcome is None:
            raise asyncio.InvalidStateError("the record is not acknowledged yet, and has not failed")
        raise copy_of(outcome)

    async def settled(self, index: int) -> None:
        """Wait until a record is acknowledged or has failed. Only on the loop."""
        if self._outcome(index) is None:
            taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(lambda: None if taken.done() else taken.set_result(None))
            await taken
        outcome = self._outcome(index)
        if isinstance(outcome, originals.Receipt):
            try:
                await outcome
            except StrandlineError:
                pass  # `result` raises it.

    def call_back(self, index: int, callback: DeliveryCallback) -> None:
        """Call the callback when a record is done. Only on the loop."""
        outcome = self._outcome(index)
        if isinstance(outcome, originals.Receipt):
            outcome.on_delivery(callback)
        elif outcome is not None:
            asyncio.get_running_loop().call_soon(callback, None, outcome)
        else:
            self._waiters.append(lambda: self.call_back(index, callback))


class Receipt(msgspec.Struct, gc=False, eq=False):
    """One record that was handed over. `result()` waits for the record's `RecordMetadata`. The garbage collector does not track
    it."""

    parcel: Any
    index: int

    @property
    def done(self) -> bool:
        """Whether the record is acknowledged or has failed."""
        done: bool = self.parcel.is_done(self.index)
        return done

    def result(self, timeout_ms: float | None = None) -> RecordMetadata:
        """Wait until the record is acknowledged, and return its partition, offset and timestamp. If it was not delivered:
        DeliveryFailed, DeliveryTimeout, UnknownTopic, BufferFull or ClientClosed. RequestTimeout if it is not done after
        `timeout_ms` (by default only the producer's `delivery_timeout_ms` bounds the wait)."""
        parcel: Parcel = self.parcel
        if not parcel.is_done(self.index):
            parcel.thread.check()
            _wait(parcel, self.index, timeout_ms)
        return parcel.result(self.index)

    def on_delivery(self, callback: DeliveryCallback) -> Self:
        """Have the producer's thread call `callback(metadata, error)` when the record is acknowledged (`error` is None) or has
        failed (`metadata` is None); soon, if it is done already. The callback delays all other work of the producer, and must not
        wait for the producer. Returns the receipt. Callbacks of one partition are called in the order of its acknowledged
        records; the callback of a failed record may be called before those of earlier records. ClientClosed after `stop`, because
        there is no thread to call it."""
        parcel: Parcel = self.parcel
        parcel.thread.check_runs()
        parcel.thread.post(lambda: parcel.call_back(self.index, callback))
        return self


def _wait(parcel: Parcel, index: int, timeout_ms: float | None) -> None:
    future = asyncio.run_coroutine_threadsafe(parcel.settled(index), parcel.thread.loop)
    try:
        wait_for(future, None if timeout_ms is None else timeout_ms / 1000)
    except TimeoutError:
        raise RequestTimeout("the record is not acknowledged yet", elapsed_ms=timeout_ms) from None


class Receipts:
    """The receipts of one `send_many` or `send_columns`, as a sequence of `Receipt`."""

    __slots__ = ("_parcel", "_receipts", "_thread")

    def __init__(self, thread: LoopThread, receipts: originals.Receipts) -> None:
        self._thread = thread
        self._receipts = receipts
        self._parcel = Parcel(thread, receipts)

    @property
    def done(self) -> bool:
        """Whether all records are acknowledged or have failed."""
        return self._receipts.done

    def result(self, timeout_ms: float | None = None) -> list[BatchMetadata]:
        """Wait until all records are acknowledged. Returns one `BatchMetadata` per run of records in one batch; raises the error
        of the first record that was not delivered. RequestTimeout if they are not done after `timeout_ms`."""
        self._thread.check()
        future = asyncio.run_coroutine_threadsafe(_all(self._receipts), self._thread.loop)
        try:
            return wait_for(future, None if timeout_ms is None else timeout_ms / 1000)
        except TimeoutError:
            raise RequestTimeout("the records are not acknowledged yet", elapsed_ms=timeout_ms) from None

    def __len__(self) -> int:
        return len(self._receipts)

    def __getitem__(self, index: int) -> Receipt:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return Receipt(self._parcel, index)

    def __iter__(self) -> Iterator[Receipt]:
        return (Receipt(self._parcel, index) for index in range(len(self)))


async def _all(receipts: originals.Receipts) -> list[BatchMetadata]:
    return await receipts
