"""The metrics that logs share: those of all data directories of a broker, or the one log of a controller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strandline.protocol.doors import STOPWATCH
from strandline.protocol.metrics import Histogram


class LogMetrics:
    """Counters that several logs share. While the event loop uses the logs, only it writes them; a thread's measurements are
    added when the thread is done."""

    __slots__ = ("corrupt_ranges", "flush", "stopwatch", "truncated_records", "truncations")

    def __init__(self) -> None:
        self.stopwatch = STOPWATCH
        self.flush = Histogram()
        """Duration in seconds of a flush of one log, of its closed segments or of all."""
        self.truncations = 0
        self.truncated_records = 0
        """Number of offsets that truncations have removed. It includes offsets that have no record."""
        self.corrupt_ranges = 0
        """How many damaged ranges were found."""

    def on_flushed(self, took_s: list[float]) -> None:
        """Add the durations, in seconds, of flushes that a thread has made."""
        for seconds in took_s:
            self.flush.observe(seconds)

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """Measure the duration of a flush. A flush that fails is not counted."""
        began_at = self.stopwatch()
        yield
        self.flush.observe(self.stopwatch() - began_at)
