"""Periodic actions on the event loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

NEVER_MS = 365 * 24 * 3600 * 1000
"""An action with this interval or a longer one never runs: Kafka's default for some tasks is the largest long."""


def next_multiple(now: float, interval_ms: int) -> float:
    """The first multiple of the interval after `now`, in seconds, rounded to a millisecond. Timers that fire at the multiples of
    one interval wake an idle process only once; the wake-up costs more than their actions."""
    return (round(now * 1000) // interval_ms + 1) * interval_ms / 1000


class Timers:
    """Runs actions periodically. If an action raises, that is logged, and the action runs again after its interval."""

    def __init__(self) -> None:
        self._handles: dict[int, asyncio.TimerHandle] = {}

    def every(self, interval_ms: float, action: Callable[[], None]) -> None:
        if interval_ms < NEVER_MS:
            self._schedule(len(self._handles), lambda now: now + interval_ms / 1000, action)

    def at_multiples(self, interval_ms: int, action: Callable[[], None]) -> None:
        """Run the action at the multiples of the interval on the loop's clock (`next_multiple`)."""
        self._schedule(len(self._handles), lambda now: next_multiple(now, interval_ms), action)

    def cancel(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _schedule(self, number: int, next_after: Callable[[float], float], action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._handles[number] = loop.call_at(next_after(loop.time()), self._run, number, next_after, action)

    def _run(self, number: int, next_after: Callable[[float], float], action: Callable[[], None]) -> None:
        self._schedule(number, next_after, action)
        try:
            action()
        except Exception:
            logger.exception("timer.failed")
