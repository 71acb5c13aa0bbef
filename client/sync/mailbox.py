"""The producer's records on their way from the threads that send to the loop: many at a time.

    senders                              loop
      post(record) -> [parcel, parcel]     hand_over: takes all parcels, appends each to the producer's batches
                  `-- wakes the loop only if it does not work at the mailbox already

A parcel of plain values of one topic grows until the loop takes it, so a thread that sends fast pays one list append per
record, and the loop one call per parcel. Parcels are handed over one after the other, in the order of the calls. If the
producer's buffer is full, the loop waits, the mailbox fills up, and the senders wait in turn: that is the back-pressure.

`_lock` guards what both sides change, and is held for a moment only.
"""

from __future__ import annotations

import asyncio
import threading
import time

from strandline.client.errors import BufferFull, ClientClosed
from strandline.client.producer import receipts as originals
from strandline.client.producer.batch import Headers
from strandline.client.producer.producer import Producer
from strandline.client.producer.undelivered import Undelivered
from strandline.client.sync.loop_thread import LoopThread
from strandline.client.sync.receipts import Parcel, Receipt
from strandline.protocol.errors import StrandlineError
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

MAILBOX_BYTES = 1_048_576
"""The most bytes that wait for the loop: about as many as a busy thread sends until the loop has its turn."""
PARCEL_BYTES = 65_536
"""A parcel does not grow beyond this, so that the producer's buffer has room for all of it or none."""
RECORD_OVERHEAD = 32
"""Bytes that are counted for each record beside its value, because empty records need memory, too."""


Rest = tuple[bytes | None, int | None, Headers | None, int | None]
"""The fields of a record besides its value: key, partition, headers, timestamp."""


class OpenParcel(Parcel):
    """A parcel that waits for the loop: records of one topic."""

    __slots__ = ("deadline", "rests", "room", "size", "topic", "values")

    def __init__(
        self, thread: LoopThread, topic: str, values: list[bytes | None], rests: list[Rest] | None, deadline: float
    ) -> None:
        super().__init__(thread)
        self.topic = topic
        self.values = values
        self.rests = rests
        """The other fields of each record of `values`; None: the values are bytes, and the records have no other fields."""
        self.deadline = deadline
        """When to give up waiting for room in the producer's buffer, on the clock of `time.monotonic`."""
        self.room = 0
        """The number of bytes that the parcel may still take."""
        self.size = 0


class Mailbox:
    """The mailbox of one producer that was started."""

    def __init__(self, producer: Producer, thread: LoopThread) -> None:
        self._producer = producer
        self._thread = thread
        self._max_block_s = producer.options.max_block_ms / 1000
        self._bytes_max = min(MAILBOX_BYTES, max(1, producer.options.buffer_memory // 4))
        self._parcel_bytes = min(PARCEL_BYTES, self._bytes_max)
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._waiting = 0
        """The number of threads that wait for room."""
        self._parcels: list[OpenParcel] = []
        self._last: OpenParcel | None = None
        """The last of `_parcels`, if it has plain values and may grow."""
        self._last_rich: OpenParcel | None = None
        """The last of `_parcels`, if it has records with more than a value and may grow."""
        self._bytes = 0
        """The size of the parcels that were not handed over yet."""
        self._is_signalled = False
        """The loop works at the mailbox, or was woken to do so."""
        self._closed: StrandlineError | None = None
        """The error of calls after the mailbox was closed; None while it accepts records."""
        self._signal = asyncio.Event()
        self._failed = 0
        """The number of records that could not be handed over."""
        self._in_hand: list[OpenParcel] = []
        """Parcels that the loop has taken, and has not handed over."""
        self._emptied: list[asyncio.Future[None]] = []
        """Calls that wait until everything is handed over."""
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(self._on_end)

    # -- on the threads that send -------------------------------------------------------------------------------------

    def post_value(self, topic: str, value: bytes, block_s: float) -> Receipt:
        """Add a record that has only a value. Waits for room in the mailbox for `block_s` seconds; BufferFull after that."""
        size = len(value) + RECORD_OVERHEAD
        with self._lock:
            last = self._last
            if last is not None and last.room >= size and last.topic == topic and self._bytes < self._bytes_max:
                return self._extend(last, value, size)
            self._wait_for_room(block_s)
            parcel = OpenParcel(self._thread, topic, [value], None, time.monotonic() + self._max_block_s)
            self._last, self._last_rich = parcel, None
            self._add(parcel, size)
        return Receipt(parcel, 0)

    def post_record(self, topic: str, value: bytes | None, rest: Rest, size: int, block_s: float) -> Receipt:
        """Add a record with more than a value. `size`: its bytes."""
        size += RECORD_OVERHEAD
        with self._lock:
            last = self._last_rich
            if last is not None and last.room >= size and last.topic == topic and self._bytes < self._bytes_max:
                assert last.rests is not None
                last.rests.append(rest)
                return self._extend(last, value, size)
            self._wait_for_room(block_s)
            parcel = OpenParcel(self._thread, topic, [value], [rest], time.monotonic() + self._max_block_s)
            self._last, self._last_rich = None, parcel
            self._add(parcel, size)
        return Receipt(parcel, 0)

    def _extend(self, parcel: OpenParcel, value: bytes | None, size: int) -> Receipt:
        parcel.room -= size
        parcel.size += size
        self._bytes += size
        parcel.values.append(value)
        return Receipt(parcel, len(parcel.values) - 1)

    def _wait_for_room(self, block_s: float) -> None:
        deadline = None
        while self._bytes >= self._bytes_max and self._closed is None:
            now = time.monotonic()
            deadline = now + block_s if deadline is None else deadline
            if now >= deadline:
                raise BufferFull(f"{self._bytes} bytes wait for room in buffer_memory, and no more are accepted")
            self._waiting += 1
            try:
                self._has_room.wait(deadline - now)
            finally:
                self._waiting -= 1
        if self._closed is not None:
            raise self._closed

    def _add(self, parcel: OpenParcel, size: int) -> None:
        parcel.room = self._parcel_bytes - size
        parcel.size = size
        self._bytes += size
        self._parcels.append(parcel)
        if not self._is_signalled:
            self._is_signalled = True
            self._thread.post(self._signal.set)

    # -- on the loop --------------------------------------------------------------------------------------------------

    async def emptied(self) -> None:
        """Wait until the records that were posted before are handed over, or have failed."""
        with self._lock:
            is_empty = not self._parcels and not self._in_hand
        if not is_empty:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._emptied.append(waiter)
            self._signal.set()
            await waiter

    def close(self, reason: StrandlineError) -> Undelivered:
        """Accept no more records, fail those that were not handed over, and return their numbers."""
        with self._lock:
            self._closed = reason
            left, self._parcels, self._bytes = self._in_hand + self._parcels, [], 0
            self._last = self._last_rich = None
            self._has_room.notify_all()
        self._in_hand = []
        self._task.cancel()
        undelivered = Undelivered(failed=self._failed)
        for parcel in left:
            parcel.on_failed(reason)
            undelivered.add(parcel.topic, len(parcel.values), str(reason), may_be_written=False)
        return undelivered

    def refuse(self, reason: StrandlineError) -> None:
        """Accept no more records from now on. Those that were posted are still handed over."""
        with self._lock:
            self._closed = reason
            self._last = self._last_rich = None
            self._has_room.notify_all()

    async def _work(self) -> None:
        while True:
            await self._signal.wait()
            self._signal.clear()
            while self._take():
                while self._in_hand:
                    await self._hand_over(self._in_hand[0])
                    self._in_hand.pop(0)
                await asyncio.sleep(0)

    def _take(self) -> bool:
        """Take the parcels that were posted. If there are none, the next post wakes the loop."""
        with self._lock:
            self._in_hand, self._parcels = self._parcels, []
            self._last = self._last_rich = None
            self._is_signalled = bool(self._in_hand)
        if not self._in_hand:
            emptied, self._emptied = self._emptied, []
            for waiter in emptied:
                if not waiter.done():
                    waiter.set_result(None)
        return bool(self._in_hand)

    async def _hand_over(self, parcel: OpenParcel) -> None:
        try:
            parcel.on_taken(await (self._append_values(parcel) if parcel.rests is None else self._append_records(parcel)))
        except StrandlineError as e:
            self._failed += len(parcel.values)
            parcel.on_failed(e)
            self._producer._on_refused(e)
        parcel.values, parcel.rests = [], None
        with self._lock:
            self._bytes -= parcel.size
            if self._waiting and self._bytes <= self._bytes_max // 2:
                self._has_room.notify_all()

    async def _append_values(self, parcel: OpenParcel) -> originals.Receipts:
        """Hand over all values of the parcel, or none."""
        try:
            return self._producer.send_many(parcel.topic, parcel.values)
        except BufferFull:
            if time.monotonic() >= parcel.deadline:
                raise
        return await self._producer.send_columns(parcel.topic, parcel.values)

    async def _append_records(self, parcel: OpenParcel) -> list[originals.Receipt | StrandlineError]:
        """Hand over the records one by one. Returns the receipt of each, or the error of a record that was rejected."""
        assert parcel.rests is not None
        send, topic = self._producer.send_nowait, parcel.topic
        taken: list[originals.Receipt | StrandlineError] = []
        for value, rest in zip(parcel.values, parcel.rests, strict=True):
            try:
                taken.append(send(topic, value, *rest))
            except BufferFull as e:
                is_late = time.monotonic() >= parcel.deadline
                taken.append(e if is_late else await self._append_record(topic, value, rest))
            except StrandlineError as e:
                taken.append(e)
        errors = [outcome for outcome in taken if not isinstance(outcome, originals.Receipt)]
        self._failed += len(errors)
        if errors:
            self._producer._on_refused(errors[0])
        return taken

    async def _append_record(self, topic: str, value: bytes | None, rest: Rest) -> originals.Receipt | StrandlineError:
        try:
            return await self._producer.send(topic, value, *rest)
        except StrandlineError as e:
            return e

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """The task has ended. If the producer was not stopped, no record may be left waiting."""
        if self._closed is None:
            error = None if task.cancelled() else task.exception()
            reason = "it was cancelled" if error is None else f"{type(error).__name__}: {error}"
            if not self._thread.is_closed:  # The thread is closed if the program ends without `stop`.
                logger.warning("producer.mailbox_failed", reason=reason)
            self.close(ClientClosed(f"the task that hands records over has ended ({reason})"))
