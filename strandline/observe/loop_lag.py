"""The lag of the event loop. A node runs on one event loop, so a long callback delays all other work: a produce, a heartbeat,
the timer that fences a broker. A timer that should fire every 200 ms measures the delay. (The wake-up of an idle node costs more
than the measurement: at 100 ms it was a tenth of an idle broker's CPU. So the timer fires together with the tick of the broker's
pause detector, at the multiples of 200 ms.)

The clock is the loop's own, which does not advance within an iteration: the measurement is the length of whole iterations,
to a millisecond, which is the delay of every other timer too. A process that was stopped (SIGSTOP, a frozen container, a
suspended laptop) looks the same from inside. A long stall is logged, at most once a minute.
"""

from __future__ import annotations

import asyncio
from collections import deque

import structlog

from strandline.broker.timers import next_multiple
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.metrics import Histogram

logger = structlog.get_logger()

INTERVAL_MS = 200
RECENT = 5
"""Number of measurements in about one second."""
STALL_S = 1.0


class LoopLag:
    """Measures the lag from `start` to `stop`, at five wake-ups per second."""

    def __init__(self, loop: asyncio.AbstractEventLoop, histogram: Histogram) -> None:
        self.histogram = histogram
        self._loop = loop
        self._recent: deque[float] = deque([0.0] * RECENT, maxlen=RECENT)
        self._due_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._limits = LineLimits()

    def now(self) -> float:
        return self._loop.time()

    @property
    def recent_max_s(self) -> float:
        """The largest lag of about the last second."""
        return max(self._recent)

    def start(self) -> None:
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._due_at = next_multiple(self._loop.time(), INTERVAL_MS)
        self._timer = self._loop.call_at(self._due_at, self._on_timer)

    def _on_timer(self) -> None:
        now = self._loop.time()
        late_s = max(0.0, now - self._due_at)
        self.histogram.observe(late_s)
        self._recent.append(late_s)
        if late_s > STALL_S and (suppressed := self._limits.admit("loop", now)) is not None:
            logger.warning("node.stalled", late_ms=round(late_s * 1000), **suppressed.fields)
        self._arm()
