"""One seed, from its first draw to its verdict."""

from __future__ import annotations

import dataclasses
import json

from strandline.testing.simulation.options import draw_options
from strandline.testing.simulation.runs.run import run_seed


def test_another_seed_is_another_run() -> None:
    """`test_canary.py` shows, step by step, that the same seed is the same run."""
    one, again, other = (run_seed(seed, until_s=1.0).trace_sha256 for seed in (3, 3, 4))
    assert one == again != other


def test_seed_within_the_budget_passes_and_reports_its_faults() -> None:
    report = run_seed(3)
    assert report.verdict == "ok"
    assert report.acked > 0
    assert report.faults
    assert json.loads(json.dumps(report.as_dict()))["seed"] == 3


def test_a_run_without_faults_acknowledges_everything() -> None:
    """A send that fails in a run without faults fails because of a bug."""
    options = draw_options(3)
    producers = tuple(
        dataclasses.replace(plan, crash_at_s=0.0, options={**plan.options, "buffer_memory": 1 << 25})  # no buffer is ever full
        for plan in options.producers
    )
    calm = options.without(*options.kinds).replaced(producers=producers, leave_out=0, racers=0, holders=0)
    report = run_seed(3, options=calm)
    assert report.verdict == "ok"
    assert not report.faults
    assert report.history is not None
    assert report.history.unknown == report.history.failed == 0
