"""The recent tail: the newest batches of each log, in the buffers in which they arrived.

Followers and consumers that keep up are served from the tail: the bytes go from the producer's frame to the page cache and to
every reader, and are not read back. The tail holds references, not copies.

All logs of a broker share one budget of bytes. When it is exceeded, the oldest batch of any log is dropped. Weak spot: a batch
keeps its whole frame alive, so memory can exceed the budget if frames carry batches of many partitions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from strandline.storage.disk import Buffer

_COMPACT_AT = 256


class TailBudget:
    """Limits the bytes and the batches that the tails of all logs hold together."""

    __slots__ = ("batches_max", "bytes", "bytes_max", "queue")

    def __init__(self, bytes_max: int = 4 << 20, batches_max: int = 16_384) -> None:
        self.bytes_max = bytes_max
        self.batches_max = batches_max
        self.bytes = 0
        """The bytes held, summed over all tails."""
        self.queue: deque[RecentTail] = deque()
        """The tail of each added batch, oldest first. A truncation leaves its entries in the queue; such an entry later drops
        another batch of the same tail, or nothing. `batches_max` bounds the queue."""

    def make_room(self) -> None:
        """Drop the oldest batches of all tails until the budget holds."""
        while self.bytes > self.bytes_max or len(self.queue) > self.batches_max:
            self.bytes -= self.queue.popleft().drop_oldest()


class RecentTail:
    """The newest batches of one log, up to its end and without a gap. May be empty."""

    __slots__ = ("_buffers", "_first", "_next_offsets", "_starts", "budget")

    def __init__(self, budget: TailBudget) -> None:
        self.budget = budget
        self._starts: list[int] = []
        """Base offsets, increasing. Entries before `_first` are dropped."""
        self._next_offsets: list[int] = []
        self._buffers: list[Buffer | None] = []
        self._first = 0

    def add(self, base_offset: int, next_offset: int, buffer: Buffer) -> None:
        """Add the batch in `buffer`, which continues the tail."""
        self._starts.append(base_offset)
        self._next_offsets.append(next_offset)
        self._buffers.append(buffer)
        budget = self.budget
        budget.queue.append(self)
        budget.bytes += len(buffer)
        if budget.bytes > budget.bytes_max or len(budget.queue) > budget.batches_max:
            budget.make_room()

    def drop_oldest(self) -> int:
        """Drop the oldest batch, if there is one. Returns its size."""
        first = self._first
        if first == len(self._starts):
            return 0
        buffer = self._buffers[first]
        assert buffer is not None
        self._buffers[first] = None
        self._first = first + 1
        if first >= _COMPACT_AT and first * 2 > len(self._starts):
            self._compact()
        return len(buffer)

    def _compact(self) -> None:
        first = self._first
        del self._starts[:first], self._next_offsets[:first], self._buffers[:first]
        self._first = 0

    def truncate_to(self, end_offset: int) -> None:
        """Drop the batches that reach beyond the log's new end."""
        while len(self._starts) > self._first and self._next_offsets[-1] > end_offset:
            self._starts.pop()
            self._next_offsets.pop()
            buffer = self._buffers.pop()
            assert buffer is not None
            self.budget.bytes -= len(buffer)

    def drop_below(self, offset: int) -> None:
        """Drop the batches that begin below `offset`: their segments were rewritten, and readers must get the new batches."""
        while self._first < len(self._starts) and self._starts[self._first] < offset:
            self.budget.bytes -= self.drop_oldest()

    def clear(self) -> None:
        while dropped := self.drop_oldest():
            self.budget.bytes -= dropped
        self._compact()

    def read(self, offset: int, max_bytes: int, end_offset: int, min_one: bool) -> tuple[list[Buffer], int, int] | None:
        """Return (buffers, size in bytes, first offset) from the batch that contains `offset` on; None if the tail lacks that
        batch."""
        starts, ends, buffers = self._starts, self._next_offsets, self._buffers
        index = bisect_right(starts, offset) - 1
        if index < self._first or offset >= ends[index]:
            return None
        found: list[Buffer] = []
        size = 0
        first_offset = starts[index]
        for i in range(index, len(starts)):
            buffer = buffers[i]
            assert buffer is not None
            if ends[i] > end_offset:
                break
            size += len(buffer)
            if size > max_bytes and (found or not min_one):
                size -= len(buffer)
                break
            found.append(buffer)
        return found, size, first_offset
