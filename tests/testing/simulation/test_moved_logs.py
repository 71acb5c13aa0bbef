"""Logs that move between the directories of a broker: the stories hold, and I32 notices faults in them."""

from __future__ import annotations

import pytest

from strandline.testing.simulation.campaign.mutations import applied
from strandline.testing.simulation.runs.run import OK
from strandline.testing.simulation.scenarios import run_scenario


@pytest.mark.slow
@pytest.mark.parametrize("number", ["S80", "S81", "S82", "S83"])
def test_the_story_holds_under_another_seed(number: str) -> None:
    """`test_sweep.py` plays the story as it is written."""
    report = run_scenario(number, 25)
    assert report.verdict == OK, report.violations


@pytest.mark.parametrize(
    ("mutation", "number", "words"),
    [
        ("M37", "S81", "but the controller has"),
        ("M38", "S80", "uses a copy of its log that lacks records"),
    ],
)
def test_a_copy_that_is_promoted_too_early_is_noticed(mutation: str, number: str, words: str) -> None:
    with applied(mutation):
        report = run_scenario(number, 0)
    assert [found["invariant"] for found in report.violations] == ["I32"]
    assert words in report.violations[0]["text"]
