"""The range of time that an audit's pictures show.

A record with a wrong timestamp (1970) would stretch the axis over decades, and all other records would be one thin line. So the
pictures leave out intervals that are far from all others and have few records. The page says so below the pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

READABLE = 200
"""How many intervals an axis can show. If the range has no more of them, none is left out."""
GAP_FACTOR = 3
"""An interval is far from the rest if its distance exceeds the range of the rest by this factor."""
SHARE_MAX = 0.01
"""Intervals are left out only if they hold at most this share of all records together, or a single record."""


class Shown(NamedTuple):
    """The shown range of time, in seconds since the epoch, and the intervals outside of it."""

    begin_s: int
    end_s: int
    """The end of the last interval, exclusive."""
    outside: tuple[int, ...] = ()
    """Starts of the intervals that are left out, sorted, in seconds since the epoch."""
    records_outside: int = 0
    """Number of records in these intervals, on the side that has most of them."""

    @classmethod
    def of(cls, totals: Mapping[str, Mapping[int, int]], step_s: int) -> Shown | None:
        """The range to show, or None without records. `totals` has the number of records of each side by interval start, in
        seconds since the epoch."""
        records: dict[int, int] = {}
        for counts in totals.values():
            for at_s, count in counts.items():
                records[at_s] = max(records.get(at_s, 0), count)
        if not records:
            return None
        inside = _without_outliers(sorted(records), records, step_s)
        outside = tuple(sorted(records.keys() - set(inside)))
        return cls(inside[0], inside[-1] + step_s, outside, sum(records[at_s] for at_s in outside))


def _without_outliers(starts: list[int], records: Mapping[int, int], step_s: int) -> list[int]:
    few = SHARE_MAX * sum(records.values())
    while len(starts) > 1 and starts[-1] + step_s - starts[0] > READABLE * step_s:
        gap, at = max((after - before, n) for n, (before, after) in enumerate(pairwise(starts), 1))
        rest = max((starts[:at], starts[at:]), key=lambda part: (sum(records[at_s] for at_s in part), len(part)))
        left_out = sum(records.values()) - sum(records[at_s] for at_s in rest)
        if gap <= GAP_FACTOR * (rest[-1] + step_s - rest[0]) or left_out > max(few, 1):
            break
        starts = rest
    return starts
