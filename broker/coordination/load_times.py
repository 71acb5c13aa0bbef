"""The durations of a coordinator's loads, for the metrics."""

from __future__ import annotations

from collections import deque

from strandline.protocol.metrics import DURATION_S, Histogram

RECENT_S = 30.0
"""The window of Kafka's load time metrics."""


class LoadTimes:
    def __init__(self) -> None:
        self.load = Histogram(DURATION_S)
        """Seconds from the beginning of a partition's leadership to the end of its load."""
        self._recent_loads: deque[tuple[float, float]] = deque()
        """When each of the last loads ended, and how long it took."""

    def on_load(self, seconds: float, now: float) -> None:
        """A load has succeeded. `now`: the loop's time."""
        self.load.observe(seconds)
        self._recent_loads.append((now, seconds))
        self._forget_loads(now)

    def _forget_loads(self, now: float) -> None:
        while self._recent_loads and self._recent_loads[0][0] < now - RECENT_S:
            self._recent_loads.popleft()

    def recent_loads_s(self, now: float) -> list[float]:
        """The seconds that each load took which ended in the last `RECENT_S` seconds."""
        self._forget_loads(now)
        return [seconds for _, seconds in self._recent_loads]
