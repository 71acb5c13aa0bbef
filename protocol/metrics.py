"""The histogram of the metrics; all other metrics are plain integers. `observe/` reads them and knows the output format.

A histogram has buckets as in Prometheus: bucket i counts the values that are at most `bounds[i]` and above the bound before it,
and the last bucket counts the rest. `observe` costs a binary search and two additions (0.2 us) and allocates nothing, so the hot
path may call it once or twice per request. Counts only grow; a rate is the difference of two readings. All calls must come from
one thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LATENCY_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Bounds in seconds for requests, from one on loopback to one that waits for its timeout."""
DURATION_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
"""Bounds in seconds for rare operations of a cluster, such as elections."""


class Histogram:
    """Counts observed values by bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_S) -> None:
        self.bounds = bounds
        """The inclusive upper bounds of the buckets, ascending."""
        self.counts = [0] * (len(bounds) + 1)
        """Counts per bucket, not cumulative. The last bucket is for values above all bounds."""
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def plus(self, other: Histogram) -> Histogram:
        """The sum of both histograms, which must have the same bounds."""
        together = Histogram(self.bounds)
        together.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        together.sum = self.sum + other.sum
        return together
