"""Replicas that lose records together: each loss is in the report of an unclean election (I31)."""

from __future__ import annotations

import pytest

from strandline.testing.simulation.campaign.double_faults import double_faults, main
from strandline.testing.simulation.options import RECOVER, draw_options
from strandline.testing.simulation.runs.run import LOSS, Report, run_seed

FEW = range(10)
MANY = range(10, 400)


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    return [run_seed(seed, options=double_faults(seed)) for seed in FEW]


def test_reports_name_every_lost_record(reports: list[Report]) -> None:
    assert [str(report) for report in reports if not report.good] == []


def test_records_are_lost_and_elections_are_unclean(reports: list[Report]) -> None:
    """Otherwise the test above would prove nothing."""
    assert sum(report.verdict == LOSS for report in reports) >= 2
    assert sum(report.marks["election.unclean"] for report in reports) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY)
def test_reports_name_every_lost_record_of_many_runs(seed: int) -> None:
    report = run_seed(seed, options=double_faults(seed))
    assert report.good, str(report)


@pytest.mark.slow
def test_a_report_that_is_too_small_is_noticed() -> None:
    """A story (S02) notices it, too. The other mutation of a report, M34, needs a situation that only a story (S77) has."""
    found = (run_seed(seed, options=double_faults(seed), mutation="M35") for seed in range(60))
    violation = next(violation for report in found for violation in report.violations)
    assert violation["invariant"] == "I31"


def test_an_election_by_hand_may_lose_records_without_a_double_fault() -> None:
    """Seed 1217: a client elects a replica although another one with more records is about to return."""
    report = run_seed(1217, options=double_faults(1217))
    assert report.good, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1340, 2131])
def test_seed_that_found_an_unreported_loss_finds_none(seed: int) -> None:
    """A broker lost power, and was killed once more before it could register: its next process did not know of the loss."""
    report = run_seed(seed, options=double_faults(seed))
    assert report.good, str(report)


def test_a_run_is_drawn_by_its_seed() -> None:
    options = double_faults(7)
    assert options == double_faults(7) != double_faults(8)
    assert options.loss_permitted
    assert options.settings.items() <= draw_options(7).settings.items()
    assert RECOVER in options.admin


def test_the_command_counts_the_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0..1", "--workers", "1"]) == 0
    assert capsys.readouterr().out.startswith("2 runs with")
