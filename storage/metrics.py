"""What the logs of a directory count together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strandline.protocol.doors import STOPWATCH
from strandline.protocol.metrics import Histogram


class LogMetrics:
    """Belongs to the loop; what a thread measured is added when it is done."""

    __slots__ = ("corrupt_ranges", "flush", "stopwatch", "truncated_records", "truncations")

    def __init__(self) -> None:
        self.stopwatch = STOPWATCH
        self.flush = Histogram()
        """One flush of one log; of its closed segments or of all."""
        self.truncations = 0
        self.truncated_records = 0
        """Offsets, strictly speaking."""
        self.corrupt_ranges = 0
        """Damaged places that were found."""

    def on_flushed(self, took_s: list[float]) -> None:
        for seconds in took_s:
            self.flush.observe(seconds)

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """Times a flush; one that fails does not count."""
        began_at = self.stopwatch()
        yield
        self.flush.observe(self.stopwatch() - began_at)
