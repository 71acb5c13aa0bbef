"""A queue of a producer's calls that wait for room, so that the records are in the log in the order of the calls.

While a call for a topic waits (for room in the buffer, or between two pieces of many records), a later call for the same topic
must not append its records first. So the calls of a topic form a line: the first one appends. When it ends, by success, error or
cancellation, the next one is first. Topics do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class CallOrder:
    """The lines of calls, by topic. It is false while no call is in a line."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._lines: dict[str, deque[asyncio.Future[bool]]] = {}
        """The calls of each topic, in the order in which they began. The future of the first one is done. No line is empty."""
        self._on_change = on_change
        """Called when the first line forms and when the last one ends."""

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __contains__(self, topic: str) -> bool:
        return topic in self._lines

    def __len__(self) -> int:
        """The number of calls in all lines."""
        return sum(map(len, self._lines.values()))

    @asynccontextmanager
    async def turn(self, topic: str, deadline: float) -> AsyncIterator[None]:
        """Inside the block, no other call for this topic appends. TimeoutError if earlier calls still wait at the deadline (on
        the loop's clock)."""
        loop = asyncio.get_running_loop()
        entry: asyncio.Future[bool] = loop.create_future()
        self._join(topic, entry)
        timer = loop.call_at(deadline, _settle, entry, False)
        try:
            if not await entry:
                raise TimeoutError
            timer.cancel()
            yield
        finally:
            timer.cancel()
            self._leave(topic, entry)

    def _join(self, topic: str, entry: asyncio.Future[bool]) -> None:
        line = self._lines.get(topic)
        if line is not None:
            line.append(entry)
            return
        self._lines[topic] = deque([entry])
        entry.set_result(True)
        if len(self._lines) == 1:
            self._on_change()

    def _leave(self, topic: str, entry: asyncio.Future[bool]) -> None:
        line = self._lines[topic]
        was_first = line[0] is entry
        line.remove(entry)
        if not line:
            del self._lines[topic]
            if not self._lines:
                self._on_change()
        elif was_first:
            _settle(line[0], True)


def _settle(entry: asyncio.Future[bool], is_first: bool) -> None:
    """Wake a call: it is first (True), or its time is up (False). A call that was cancelled or has timed out earlier leaves the
    line itself, and the next one is woken then."""
    if not entry.done():
        entry.set_result(is_first)
