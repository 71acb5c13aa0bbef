"""Receipts: what `send` hands back at once, and what awaiting them gives.

A receipt is two words, a batch and an index into it. It owns no future and no task: whoever awaits one adds a waiter
to its *batch*, and when the batch is done its metadata is computed from the batch's base offset. A million receipts
that nobody awaits cost a million small objects, no more.

A record sent before its topic's metadata is known is parked; its receipt points at the parking lot first and is
re-pointed when the record gets its batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple, NoReturn, Protocol

import msgspec


class RecordMetadata(NamedTuple):
    """Where an acknowledged record is. `offset` -1: not known (acks=0, or a very old duplicate)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    @property
    def timestamp(self) -> int:
        """`timestamp_ms`, under the name that aiokafka uses."""
        return self.timestamp_ms


class Resolvable(Protocol):
    """What a receipt may point at: a batch, or a parking lot."""

    done: bool
    waiters: list[Callable[[], None]]
    """Called once, when `done` turns true or the receipt is re-pointed."""

    def metadata(self, index: int) -> RecordMetadata:
        """The record's metadata, or its error raised. Only when done."""
        ...


def _refuse_callback() -> NoReturn:
    raise TypeError(
        "a receipt is awaitable, but no future: for several of them use `await asyncio.gather(*receipts)` or `await "
        "producer.flush()`, and where a future is needed, `asyncio.ensure_future(receipt)`"
    )


class Receipt(msgspec.Struct, gc=False, eq=False):
    """Await it for the record's `RecordMetadata`; raises what happened when the record was not delivered.

    Not tracked by the collector: it refers to its batch, and a batch lets go of its waiters when it is done.
    """

    batch: Resolvable
    index: int

    @property
    def done(self) -> bool:
        return self.batch.done

    def result(self) -> RecordMetadata:
        """The metadata of a receipt that is done."""
        if not self.batch.done:
            raise asyncio.InvalidStateError("the record is still on its way")
        return self.batch.metadata(self.index)

    def add_done_callback(self, *_: object, **__: object) -> NoReturn:
        """A receipt is no future: `asyncio.wait`, which calls this, gets a TypeError that says what to use."""
        _refuse_callback()

    def __await__(self) -> Generator[None, None, RecordMetadata]:
        while not self.batch.done:
            yield from _wait(self.batch)
        return self.batch.metadata(self.index)


class BatchMetadata(NamedTuple):
    """A run of records of one call that went into one batch: offsets `offset` .. `offset + records - 1`."""

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
    """The receipts of one `send_many` or `send_columns`: a sequence of `Receipt`; await it for the list of `BatchMetadata`."""

    __slots__ = ("_runs", "_size")

    def __init__(self) -> None:
        self._runs: list[tuple[Receipt, int]] = []
        self._size = 0

    def add_run(self, first: Receipt, count: int) -> None:
        """`count` records beginning with `first`, all of one batch (or one parked record)."""
        self._runs.append((first, count))
        self._size += count

    def firsts(self) -> list[Receipt]:
        """One receipt of each batch."""
        return [first for first, _ in self._runs]

    def extend(self, others: Receipts) -> None:
        self._runs += others._runs
        self._size += others._size

    @property
    def done(self) -> bool:
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
        """As `Receipt.add_done_callback`."""
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
    """Wait until `batch` is done, or its receipts were re-pointed; False at the deadline (on the loop's clock)."""
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
