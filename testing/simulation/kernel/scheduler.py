"""Virtual time: a heap of future events, and a random order of events at the same time.

Nothing in a simulated run waits. The scheduler takes the next entry, moves the clock to its time, and calls it; between
two entries no time passes, however long the real computer took. Entries of the same time are called in an order that is drawn
from the seed when they are added: where a real machine promises no order, neither does this one.

One scheduler serves all simulated processes (`loop.py`), the network between them and the nemesis.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from math import isnan
from operator import attrgetter
from random import Random
from typing import Any

QUIET = object()
"""Returned by a callback that changed nothing that a condition or an invariant could see: `after_step` is then skipped."""


Entry = list[Any]
"""A callback that is due at a time: `[when, drawn, number, callback, args]`. The callback is None after it was cancelled or
called. Entries are plain lists because nothing else is created, compared and unpacked as fast."""


def cancel(entry: Entry) -> None:
    entry[3] = None
    entry[4] = ()


class OutOfTime(AssertionError):
    """A condition did not hold within its bound of virtual time, or a run needed more steps than it may."""


class Scheduler:
    def __init__(self, random: Random) -> None:
        self.now = 0.0
        """Seconds since the world began; never goes back."""
        self.steps = 0
        """Entries called so far."""
        self.after_step: list[Callable[[], object]] = []
        """Called after every entry that did not return `QUIET`: invariants, and conditions that a story waits for."""
        self.failure: BaseException | None = None
        """The error that ends the run. `run` raises it after the current entry, even if the code in between caught it."""
        self.clock: Callable[[], float] = partial(attrgetter("now"), self)
        """Returns the virtual time without running Python code, for callers that ask very often."""
        self._draw = random.random
        self._heap: list[Entry] = []
        self._pushed = 0
        self._limit = 64

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> Entry:
        """Schedule `callback(*args)` for this virtual time; a time in the past means now. Entries of the same time are called in
        an order that the seed draws. Returns the entry, with which it can be cancelled. ValueError if the time is NaN."""
        if not when > self.now:
            if isnan(when):
                raise ValueError("the time is not a number")
            when = self.now
        pushed = self._pushed = self._pushed + 1
        entry = [when, self._draw(), pushed, callback, args]
        heap = self._heap
        heappush(heap, entry)
        if len(heap) > self._limit:
            self._sweep()
        return entry

    def soon(self, when: float, callback: Callable[..., object]) -> None:
        """A cheaper `at`, for entries that are never cancelled, and whose time is drawn and not in the past, so their order needs
        no draw. Almost half of all entries are such ones."""
        pushed = self._pushed = self._pushed + 1
        heappush(self._heap, [when, 0.0, pushed, callback, ()])

    def after(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Entry:
        """Schedule `callback(*args)` for `delay_s` virtual seconds from now; see `at`."""
        return self.at(self.now + delay_s, callback, *args)

    def first(self, callback: Callable[..., object], *args: Any) -> Entry:
        """Call it now, before any other entry."""
        self._pushed += 1
        entry = [self.now, -1.0, self._pushed, callback, args]
        heappush(self._heap, entry)
        return entry

    def fail(self, error: BaseException) -> None:
        """End the run with this error. Only the first call counts."""
        if self.failure is None:
            self.failure = error

    def run(self, is_over: Callable[[], bool], *, limit_s: float = 3600.0, steps_max: int = 50_000_000) -> None:
        """Run entries until `is_over` returns true. Raises `OutOfTime` when no entry is left or a bound is reached; the caller
        may then call `run` again."""
        heap, deadline, last_step = self._heap, self.now + limit_s, self.steps + steps_max
        if self.failure is not None:
            raise self.failure
        is_quiet = False
        while is_quiet or not is_over():
            if not heap:
                raise OutOfTime(f"no event is left at {self.now:.3f} s")
            entry = heappop(heap)
            when, _, _, callback, args = entry
            if callback is None:
                continue
            if when > deadline or self.steps >= last_step:
                heappush(heap, entry)
                raise OutOfTime(f"not over after {self.now:.3f} s and {self.steps} steps")
            self.now = when
            self.steps += 1
            entry[3] = None
            entry[4] = ()
            is_quiet = callback(*args) is QUIET
            if not is_quiet:
                for after in self.after_step:
                    after()
            if self.failure is not None:
                raise self.failure

    def waiting(self, callback: Callable[..., object]) -> list[Entry]:
        """The entries of one callback that are neither cancelled nor called, in the order in which they were added."""
        return sorted((entry for entry in self._heap if entry[3] == callback), key=lambda entry: entry[2])

    def clear(self) -> None:
        """Drop all entries."""
        self._heap.clear()
        self.after_step.clear()

    def _sweep(self) -> None:
        """Drop cancelled entries (most timers are) when there are many of them."""
        self._heap[:] = [entry for entry in self._heap if entry[3] is not None]
        heapify(self._heap)
        self._limit = max(64, 2 * len(self._heap))
