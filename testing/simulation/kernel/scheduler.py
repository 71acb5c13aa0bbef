"""Virtual time: a heap of what will happen, and the random order of what happens at once.

Nothing in a simulated run waits. The scheduler takes the next entry, moves the clock to its time, and calls it; between
two entries no time passes, however long the real computer took. Entries of the same time come in an order drawn from the
seed when they were made: where a real machine promises no order, neither does this one.

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
"""What a callback returns that changed nothing which anybody could look for: nobody is asked to look (`after_step`)."""


Entry = list[Any]
"""Something that will be called at a time, unless it is cancelled before: `[when, drawn, number, callback, args]`. The callback
is None once cancelled or called. A plain list: nothing else is made, compared and taken apart as fast."""


def cancel(entry: Entry) -> None:
    entry[3] = None
    entry[4] = ()


class OutOfTime(AssertionError):
    """What was waited for did not come within its bound of virtual time or of steps."""


class Scheduler:
    def __init__(self, random: Random) -> None:
        self.now = 0.0
        """Seconds since the world began; never goes back."""
        self.steps = 0
        """Entries called so far."""
        self.after_step: list[Callable[[], object]] = []
        """Called after every entry that was not `QUIET`: invariants, conditions that somebody waits for."""
        self.failure: BaseException | None = None
        """Set by whoever finds that the run must end; `run` raises it after the entry under way, whoever caught it first."""
        self.clock: Callable[[], float] = partial(attrgetter("now"), self)
        """The time, for those who ask very often: no Python code runs for it."""
        self._draw = random.random
        self._heap: list[Entry] = []
        self._pushed = 0
        self._limit = 64

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> Entry:
        """Call it at this time; a time that has passed means now."""
        if not when > self.now:
            if isnan(when):
                raise ValueError("a time that is no number")
            when = self.now
        pushed = self._pushed = self._pushed + 1
        entry = [when, self._draw(), pushed, callback, args]
        heap = self._heap
        heappush(heap, entry)
        if len(heap) > self._limit:
            self._sweep()
        return entry

    def soon(self, when: float, callback: Callable[..., object]) -> None:
        """As `at`, for nearly half of all entries: never cancelled, and at a time that is not past and is itself drawn, so that
        no order needs to be."""
        pushed = self._pushed = self._pushed + 1
        heappush(self._heap, [when, 0.0, pushed, callback, ()])

    def after(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Entry:
        return self.at(self.now + delay_s, callback, *args)

    def first(self, callback: Callable[..., object], *args: Any) -> Entry:
        """Call it now, before anything else."""
        self._pushed += 1
        entry = [self.now, -1.0, self._pushed, callback, args]
        heappush(self._heap, entry)
        return entry

    def fail(self, error: BaseException) -> None:
        """End the run with this error; the first one counts."""
        if self.failure is None:
            self.failure = error

    def run(self, is_over: Callable[[], bool], *, limit_s: float = 3600.0, steps_max: int = 50_000_000) -> None:
        """Until it is over. `OutOfTime` when nothing is left to happen, or the bounds (of virtual time and steps) are met;
        whoever raises them may run on."""
        heap, deadline, last_step = self._heap, self.now + limit_s, self.steps + steps_max
        if self.failure is not None:
            raise self.failure
        is_quiet = False
        while is_quiet or not is_over():
            if not heap:
                raise OutOfTime(f"nothing is left to happen at {self.now:.3f} s")
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
        """What is to be called and was not cancelled, of one callback, in the order in which it was made."""
        return sorted((entry for entry in self._heap if entry[3] == callback), key=lambda entry: entry[2])

    def clear(self) -> None:
        """Nothing will happen any more."""
        self._heap.clear()
        self.after_step.clear()

    def _sweep(self) -> None:
        """Cancelled entries (most timers are) are dropped when they have become many."""
        self._heap[:] = [entry for entry in self._heap if entry[3] is not None]
        heapify(self._heap)
        self._limit = max(64, 2 * len(self._heap))
