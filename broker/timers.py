"""Periodic actions on the event loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

NEVER_MS = 365 * 24 * 3600 * 1000
"""Intervals from here on mean never: Kafka's default for some tasks is the largest long."""


class Timers:
    """Runs actions periodically. An action that fails is logged, and runs again after its interval."""

    def __init__(self) -> None:
        self._handles: dict[int, asyncio.TimerHandle] = {}

    def every(self, interval_ms: float, action: Callable[[], None]) -> None:
        if interval_ms < NEVER_MS:
            self._schedule(len(self._handles), interval_ms, action)

    def cancel(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _schedule(self, number: int, interval_ms: float, action: Callable[[], None]) -> None:
        self._handles[number] = asyncio.get_running_loop().call_later(interval_ms / 1000, self._run, number, interval_ms, action)

    def _run(self, number: int, interval_ms: float, action: Callable[[], None]) -> None:
        self._schedule(number, interval_ms, action)
        try:
            action()
        except Exception:
            logger.exception("timer.failed")
