"""The arithmetic of gaps: a fault's gap is not too short, and is not attributed to another fault."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.chaos.gaps import NO_GAP, Gap, gaps_of_partitions, longest_gap, spread, steady_gap, worst

STEADY = [0.0, 1.0, 2.0, 5.0, 6.0, 7.0, 9.0, 10.0]
"""Acknowledgements of one partition: a gap of three seconds from 2, one of two from 7."""


@pytest.mark.parametrize(
    ("since", "until", "gap"),
    [
        (0.0, 10.0, Gap(2.0, 5.0)),
        (2.5, 10.0, Gap(2.0, 5.0)),  # began before, counts in full
        (0.0, 3.0, Gap(2.0, 5.0)),  # ends afterwards, counts in full
        (5.5, 10.0, Gap(7.0, 9.0)),
        (5.0, 6.5, Gap(2.0, 5.0)),  # an acknowledgement at the moment of the fault ends the earlier gap
        (5.1, 6.5, Gap(5.0, 6.0)),
        (9.5, 14.0, Gap(10.0, 14.0)),  # no acknowledgement after it
        (12.0, 14.0, Gap(10.0, 14.0)),
    ],
)
def test_longest_overlapping_interval_is_found(since: float, until: float, gap: Gap) -> None:
    assert longest_gap(STEADY, since, until) == gap


def test_whole_time_is_a_gap_without_acknowledgements() -> None:
    assert longest_gap([], 3.0, 7.0) == Gap(3.0, 7.0)
    assert longest_gap([9.0], 3.0, 7.0) == Gap(3.0, 9.0)


def test_steady_gap_ends_before_the_fault() -> None:
    """The interval that contains the fault counts as the fault's gap."""
    assert steady_gap(STEADY, 4.0) == Gap(0.0, 1.0)
    assert steady_gap(STEADY, 8.0) == Gap(2.0, 5.0)
    assert steady_gap([], 8.0) == NO_GAP
    assert steady_gap([9.0], 8.0) == NO_GAP


@given(st.lists(st.floats(0, 100), min_size=2, unique=True).map(sorted), st.floats(0, 100), st.floats(0, 100))
def test_no_overlapping_interval_is_longer(times: list[float], one: float, other: float) -> None:
    since, until = min(one, other), max(one, other)
    gap = longest_gap(times, since, until)
    for begin, end in pairwise(times):
        if begin < until and end > since:
            assert gap.end - gap.begin >= end - begin


def test_worst_partition_is_named() -> None:
    gaps = gaps_of_partitions({0: [0.0, 1.0, 2.0], 1: [0.0, 2.0]}, 0.0, 2.0)
    assert worst(gaps) == (1, Gap(0.0, 2.0))
    assert worst({}) == (-1, NO_GAP)
    assert Gap(1.0, 1.2504).ms == 250.4


def test_spread_of_several_runs_has_a_median() -> None:
    assert spread([3.0, 1.0, 2.0]) == (1.0, 2.0, 3.0)
    assert spread([1.0, 2.0]) == (1.0, 1.5, 2.0)
