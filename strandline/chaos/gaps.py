"""Gaps between acknowledgements: what a fault costs a producer that sends all the time.

The load sends one record per partition and interval, and notes when each was acknowledged. The gap of a partition is the
longest time between two consecutive acknowledgements. The report of a fault names the longest gap of any partition that
overlaps the time from this fault to the next: the worst that a producer of one partition met. The gap covers all of the
fail-over: detection, election, the clients' metadata refresh, their retry. It is as exact as the interval of the load. A
delay of the client itself makes it longer, never shorter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple


class Gap(NamedTuple):
    """A time without an acknowledgement, in seconds on the clock of `perf_counter`."""

    begin: float
    end: float

    @property
    def ms(self) -> float:
        return round((self.end - self.begin) * 1000, 1)


NO_GAP = Gap(0.0, 0.0)


def longest_gap(times: Sequence[float], since: float, until: float) -> Gap:
    """The longest interval between neighbours of `times` (ascending) that overlaps `since` .. `until`.

    An interval counts in full, even if it began before `since` or ended after `until`. The time before the first
    acknowledgement and after the last one counts as far as it lies between `since` and `until`.
    """
    longest = NO_GAP
    i = bisect_left(times, since)
    begin = times[i - 1] if i else since
    while True:
        end = times[i] if i < len(times) else max(until, begin)
        if end - begin > longest.end - longest.begin:
            longest = Gap(begin, end)
        if i >= len(times) or end >= until:
            return longest
        begin, i = end, i + 1


def steady_gap(times: Sequence[float], until: float) -> Gap:
    """The longest interval that ends before `until`: the gap of a cluster without a fault."""
    before = times[: bisect_left(times, until)]
    return longest_gap(before, before[0], before[-1]) if before else NO_GAP


def gaps_of_partitions(times: Mapping[int, Sequence[float]], since: float, until: float) -> dict[int, Gap]:
    return {partition: longest_gap(acks, since, until) for partition, acks in times.items()}


def worst(gaps: Mapping[int, Gap]) -> tuple[int, Gap]:
    """The partition with the longest gap, and the gap; (-1, NO_GAP) if there is no partition."""
    return max(gaps.items(), key=lambda item: item[1].end - item[1].begin, default=(-1, NO_GAP))


class Spread(NamedTuple):
    """Minimum, median and maximum of one figure over several runs."""

    min: float
    median: float
    max: float


def spread(figures: Sequence[float]) -> Spread:
    return Spread(min(figures), round(median(figures), 1), max(figures))
