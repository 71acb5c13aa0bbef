"""Gaps between acknowledgements: what a fault costs a producer that sends all the time.

The load sends one record per partition and interval, and notes when each was acknowledged. The gap of a partition is the
longest time between two acknowledgements in a row. What is reported of a fault is the longest gap of any partition that
overlaps the time from the fault to the next one: the worst that a producer of one partition met. It holds the whole of
it: noticing, electing, telling the clients, their retry. It is as exact as the interval of the load, and a client that
was itself held up makes it longer, never shorter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple


class Gap(NamedTuple):
    """Nothing was acknowledged between these moments, in seconds."""

    begin: float
    end: float

    @property
    def ms(self) -> float:
        return round((self.end - self.begin) * 1000, 1)


NO_GAP = Gap(0.0, 0.0)


def longest_gap(times: Sequence[float], since: float, until: float) -> Gap:
    """The longest interval between neighbours of `times` (ascending) that overlaps `since` .. `until`.

    An interval counts as a whole, also where it began before `since` or ended after `until`. What lies before the first
    acknowledgement or after the last one counts as far as it lies within.
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
    """The longest interval that lies wholly before `until`: what there is without any fault."""
    before = times[: bisect_left(times, until)]
    return longest_gap(before, before[0], before[-1]) if before else NO_GAP


def gaps_of_partitions(times: Mapping[int, Sequence[float]], since: float, until: float) -> dict[int, Gap]:
    return {partition: longest_gap(acks, since, until) for partition, acks in times.items()}


def worst(gaps: Mapping[int, Gap]) -> tuple[int, Gap]:
    """The partition with the longest gap; (-1, NO_GAP) of none."""
    return max(gaps.items(), key=lambda item: item[1].end - item[1].begin, default=(-1, NO_GAP))


class Spread(NamedTuple):
    """Of one figure over several runs."""

    min: float
    median: float
    max: float


def spread(figures: Sequence[float]) -> Spread:
    return Spread(min(figures), round(median(figures), 1), max(figures))
