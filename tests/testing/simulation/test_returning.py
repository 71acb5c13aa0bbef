"""Faults that cause situations which hardly any two other faults cause by chance: a leadership that returns, a log that differs
from what an orderly stop has left, a voter that has forgotten its vote. A guard exists for each, and its absence is noticed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.testing.simulation.options import FaultPlan, Options, draw_options
from strandline.testing.simulation.runs.run import Report, run_seed

SEEDS = [s for s in range(60) if draw_options(s).brokers >= 3 and draw_options(s).controllers >= 3][:30]
FAULTS_S = 5.5


def options_with(seed: int, kind: str) -> Options:
    """A seed's options with two faults of this kind, and no others."""
    faults = tuple(FaultPlan(n, 0.3 + 2.5 * n, kind, 1.0, 1000 * seed + n) for n in range(2))
    return draw_options(seed).replaced(faults=faults, kinds={kind: 1.0}, faults_s=FAULTS_S, loss_permitted=False)


def runs(kind: str, mutation: str | None = None) -> Iterator[Report]:
    for seed in SEEDS:
        yield run_seed(seed, options=options_with(seed, kind), mutation=mutation)


def test_leadership_returns_while_an_old_message_or_follower_is_held() -> None:
    wanted = {"follower.leader_returned", "fetch.of_earlier_leadership", "follower.late_response", "isr.answer_lost"}
    for report in runs("lead_returns"):
        assert report.verdict == "ok", str(report)
        wanted -= {name for name, count in report.marks.items() if count}
        if not wanted:
            return
    pytest.fail(f"no run came through {sorted(wanted)}")


@pytest.mark.parametrize(
    ("kind", "mutation", "invariants"),
    [("wiped_voter", "M23", ("I19",)), ("stop_power", "M21", ("I25",))],
)
def test_removed_guard_is_noticed(kind: str, mutation: str, invariants: tuple[str, ...]) -> None:
    found = next((v["invariant"] for report in runs(kind, mutation) for v in report.violations[:1]), None)
    assert found in invariants


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wiped_voter", "stop_power"])
def test_with_the_guard_nothing_is_lost(kind: str) -> None:
    """`test_nemesis.py` has one run of each kind."""
    reports = [run_seed(seed, options=options_with(seed, kind)) for seed in SEEDS[:4]]
    assert [report.violations for report in reports] == [[]] * 4
    assert sum(report.faults.get(kind, 0) for report in reports) >= 2


def test_time_outs_without_a_setting_are_drawn() -> None:
    """No run lasts as long as production's values, so with those no time-out would ever pass."""
    drawn = [draw_options(seed) for seed in range(100)]
    assert min(options.session_eviction_s for options in drawn) < FAULTS_S
    assert min(options.proposal_timeout_ms for options in drawn) < 1000 * FAULTS_S
    assert any(options.session_eviction_s == 120 for options in drawn), "as production has it, too"
