"""Receipts, which `send` returns, and the results of awaiting them.

A receipt is a reference to a batch and an index into it. It has no future and no task: awaiting it adds a waiter to its *batch*,
and when the batch is done, the record's metadata is computed from the batch's base offset. A million receipts that are never
awaited cost a million small objects, and nothing else.

If a record is sent before its topic's metadata is known, its receipt first points at a parking lot (parking.py).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple, NoReturn, Protocol, Self

import msgspec

from strandline.protocol.errors import StrandlineError, UsageError


class RecordMetadata(NamedTuple):
    """The partition, offset and timestamp of an acknowledged record. `offset`: -1 if it is not known (acks=0, or a very old
    duplicate). `timestamp_ms`: milliseconds since 1970, UTC; the broker's time if the topic has
    `message.timestamp.type=LogAppendTime` (KIP-32)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    @property
    def timestamp(self) -> int:
        """`timestamp_ms`, under the name that aiokafka uses."""
        return self.timestamp_ms


DeliveryCallback = Callable[[RecordMetadata | None, StrandlineError | None], object]


class Resolvable(Protocol):
    """A possible target of a receipt: a batch, a parking lot, or a failure."""

    done: bool
    waiters: list[Callable[[], None]]
    """Called once, when `done` becomes true or the receipt gets another target."""

    def metadata(self, index: int) -> RecordMetadata:
        """The metadata of the record at this index; raises the error if the record failed. Only when `done` is true."""
        ...


def _refuse_callback() -> NoReturn:
    raise TypeError(
        "a receipt is awaitable, but no future: for several of them use `await asyncio.gather(*receipts)` or `await "
        "producer.flush()`, for a callback `receipt.on_delivery(callback)`, and where a future is needed, "
        "`asyncio.ensure_future(receipt)`"
    )


class Receipt(msgspec.Struct, gc=False, eq=False):
    """One record that was handed over. `await` it for the record's `RecordMetadata`. If the record was not delivered, that raises
    DeliveryFailed, DeliveryTimeout, UnknownTopic or ClientClosed.

    The garbage collector does not track it: it refers to its batch, and a batch drops its waiters when it is done.
    """

    batch: Resolvable
    index: int

    @property
    def done(self) -> bool:
        """Whether the record is acknowledged or has failed."""
        return self.batch.done

    def result(self) -> RecordMetadata:
        """The record's metadata, or its error. InvalidStateError of asyncio if the receipt is not done."""
        if not self.batch.done:
            raise asyncio.InvalidStateError("the record is not acknowledged yet, and has not failed")
        return self.batch.metadata(self.index)

    def on_delivery(self, callback: DeliveryCallback) -> Self:
        """Have the event loop call `callback(metadata, error)` when the record is acknowledged (`error` is None) or has failed
        (`metadata` is None); soon, if it is done already. An exception of the callback is passed to the loop's exception handler.
        Returns the receipt: `producer.send_nowait("orders", b"2 tea").on_delivery(on_delivery)`. Callbacks of one partition are
        called in the order of its acknowledged records; the callback of a failed record may be called before those of earlier
        records."""
        loop = asyncio.get_running_loop()

        def look() -> None:
            if self.batch.done:
                loop.call_soon(_call_back, self, callback)
            else:  # The waiters are also called when the receipt gets another target.
                self.batch.waiters.append(look)

        look()
        return self

    def add_done_callback(self, *_: object, **__: object) -> NoReturn:
        """Raises TypeError: a receipt is no future. The message says what to use instead of `asyncio.wait`, which calls this."""
        _refuse_callback()

    def __await__(self) -> Generator[None, None, RecordMetadata]:
        while not self.batch.done:
            yield from _wait(self.batch)
        return self.batch.metadata(self.index)


def _call_back(receipt: Receipt, callback: DeliveryCallback) -> None:
    """Call the callback. UsageError (which the event loop passes to its exception handler) if it is a coroutine function, because
    nothing would await it."""
    result: object
    try:
        metadata = receipt.result()
    except StrandlineError as e:
        result = callback(None, e)
    else:
        result = callback(metadata, None)
    if inspect.iscoroutine(result):
        result.close()
        raise UsageError(f"a delivery callback is a plain function, and {callback!r} is a coroutine function")


class BatchMetadata(NamedTuple):
    """A run of records of one call that are in one batch: offsets `offset` to `offset + records - 1` (-1 if not known)."""

    topic: str
    partition: int
    offset: int
    records: int
    timestamp_ms: int

    @property
    def timestamp(self) -> int:
        """`timestamp_ms`, under the name that aiokafka uses."""
        return self.timestamp_ms


class Receipts:
    """The receipts of one `send_many` or `send_columns`, as a sequence of `Receipt`. `await` it for a list of `BatchMetadata`,
    one per run of records in one batch; that raises the error of the first record that was not delivered."""

    __slots__ = ("_runs", "_size")

    def __init__(self) -> None:
        self._runs: list[tuple[Receipt, int]] = []
        self._size = 0

    def add_run(self, first: Receipt, count: int) -> None:
        """Add the receipts of `count` records of one batch that begin with `first`, or of one parked record."""
        self._runs.append((first, count))
        self._size += count

    def firsts(self) -> list[Receipt]:
        """The first receipt of each run."""
        return [first for first, _ in self._runs]

    def extend(self, others: Receipts) -> None:
        """Append the receipts of another call."""
        self._runs += others._runs
        self._size += others._size

    @property
    def done(self) -> bool:
        """Whether all records are acknowledged or have failed."""
        return all(first.done for first, _ in self._runs)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Receipt:
        left = index + self._size if index < 0 else index
        if left >= 0:
            for first, count in self._runs:
                if left < count:
                    return Receipt(first.batch, first.index + left) if left else first
                left -= count
        raise IndexError(index)

    def __iter__(self) -> Iterator[Receipt]:
        for first, count in self._runs:
            yield first
            for i in range(1, count):
                yield Receipt(first.batch, first.index + i)

    def add_done_callback(self, *_: object, **__: object) -> NoReturn:
        """Raises TypeError, as `Receipt.add_done_callback` does."""
        _refuse_callback()

    def __await__(self) -> Generator[None, None, list[BatchMetadata]]:
        result = []
        for first, count in self._runs:
            where = yield from first.__await__()
            result.append(BatchMetadata(where.topic, where.partition, where.offset, count, where.timestamp_ms))
        return result


def _wait(batch: Resolvable) -> Generator[None, None, None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    batch.waiters.append(lambda: None if future.done() else future.set_result(None))
    yield from future


async def settled(batch: Resolvable, deadline: float) -> bool:
    """Wait until `batch` is done, or its receipts get another target. Returns False at the deadline (on the loop's clock)."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[bool] = loop.create_future()

    def wake(is_settled: bool) -> None:
        if not waiter.done():
            waiter.set_result(is_settled)

    batch.waiters.append(lambda: wake(True))
    timer = loop.call_at(deadline, wake, False)
    try:
        return await waiter
    finally:
        timer.cancel()
