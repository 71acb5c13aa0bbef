"""Random runs in which replicas move find the guards of reassignments, of their throttle, and of moves between directories."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.testing.simulation.options import Options, draw_options
from strandline.testing.simulation.runs.run import run_seed

RUNS_MAX = 20


def drawn_without_groups(seed: int) -> Options:
    return draw_options(seed).replaced(members=(), group_work=(), racers=0)


def reassigning(seed: int) -> Options:
    return drawn_without_groups(seed).replaced(reassigns=True, drains=True)


def moving_logs(seed: int) -> Options:
    drawn = drawn_without_groups(seed)
    return drawn.replaced(settings=drawn.settings | {"log.dirs": "/d1,/d2"}, moves_logs=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "options", "first", "invariant"),
    [
        ("M36", reassigning, 20, "I35"),
        ("M37", moving_logs, 20, "I32"),
        ("M38", moving_logs, 36, "I32"),
        ("M39", reassigning, 23, "I34"),
        ("M40", reassigning, 20, "I34"),
        ("M41", reassigning, 20, "I34"),
    ],
)
def test_random_runs_find_the_removed_guard(number: str, options: Callable[[int], Options], first: int, invariant: str) -> None:
    """They find it within a few runs from this seed on."""
    drawn = (options(seed) for seed in range(first, first + RUNS_MAX))
    found = (run_seed(each.seed, options=each, mutation=number) for each in drawn if each.brokers > 2 and not each.loss_permitted)
    report = next(report for report in found if not report.good)
    assert report.violations[0]["invariant"] == invariant, str(report)
