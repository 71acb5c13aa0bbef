"""The deadlines of one shard: sessions that end, rebalances that have waited long enough. A core without a clock: the callers
pass the time.

A deadline has a key, so that it can be moved and cancelled. Every heartbeat extends a session, so a move to a later time must be
cheap: it changes one dict entry. The heap keeps the entry with the earlier time; when that time is reached, a new entry with the
later time replaces it. A move to an earlier time, and a cancellation, leave a void entry in the heap, which is dropped when its
time is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from heapq import heappop, heappush

from strandline.broker.groups.result import Result

Action = Callable[[float, int], Result | None]
"""Returns the decision of a deadline that is due. Arguments: the loop's time, and the wall clock in ms. No request is in progress
when it is called."""


class Deadlines:
    """The deadlines by their keys: when each is due, and its action. Times are the loop's, in seconds."""

    def __init__(self) -> None:
        self._actions: dict[Hashable, tuple[float, Action, float]] = {}
        """Key -> (due, action, time of its entry in the heap). The entry is at or before the due time."""
        self._heap: list[tuple[float, int, Hashable]] = []
        """(time, number, key). An entry is void if `_actions` has another time for the heap entry of its key. The number makes
        entries comparable, in the order of their insertion."""
        self._number = 0

    def __len__(self) -> int:
        return len(self._actions)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._actions

    def due_at(self, key: Hashable) -> float | None:
        entry = self._actions.get(key)
        return None if entry is None else entry[0]

    def set(self, key: Hashable, due: float, action: Action) -> None:
        """Set or replace the deadline of this key."""
        known = self._actions.get(key)
        if known is not None and known[2] <= due:
            self._actions[key] = (due, action, known[2])
        else:
            self._push(due, action, key)

    def cancel(self, key: Hashable) -> None:
        self._actions.pop(key, None)

    def next_due(self) -> float | None:
        """A time at or before the earliest deadline; None if there is no deadline."""
        heap = self._heap
        while heap and self._is_void(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def expire(self, now: float, now_ms: int) -> Iterator[Result]:
        """The decisions of all deadlines that are due. The caller applies each before it takes the next one."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            if self._is_void(entry):
                continue
            key = entry[2]
            due, action, _ = self._actions[key]
            if due > entry[0]:
                self._push(due, action, key)
                continue
            del self._actions[key]
            result = action(now, now_ms)
            if result is not None:
                yield result

    def _is_void(self, entry: tuple[float, int, Hashable]) -> bool:
        known = self._actions.get(entry[2])
        return known is None or known[2] != entry[0]

    def _push(self, due: float, action: Action, key: Hashable) -> None:
        self._actions[key] = (due, action, due)
        self._number += 1
        heappush(self._heap, (due, self._number, key))
