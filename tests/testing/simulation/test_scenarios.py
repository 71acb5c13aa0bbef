"""The directed scenarios and their pages."""

from __future__ import annotations

import inspect
from pathlib import Path
from textwrap import indent

from strandline.testing.simulation.scenarios import requests, run_scenario
from strandline.testing.simulation.story.story import narrate


def test_copy_of_several_epochs_is_reported_per_epoch() -> None:
    """In S03 broker 2 fetches, in one response, records of the epochs 0 and 2. If a page gave all of them the epoch of the last
    one, it would show two logs that diverge where they are the same."""
    report = run_scenario("S03", 0, full_trace=True)
    assert report.trace is not None
    copied = [
        (event.fields["base"], event.fields["last"], event.fields["epoch"])
        for event in report.trace.events(partition="orders-0", kinds="log.appended")
        if event.node == 2 and event.fields["role"] == "follower"
    ]
    assert copied[-2:] == [(10, 11, 0), (12, 12, 2)]
    assert narrate(report.trace).count("the histories diverge here") == 2


def test_scenario_in_the_docs_is_the_source() -> None:
    page = Path(__file__).parents[3] / "docs/simulation.md"
    assert indent(inspect.getsource(requests.s34), "    ") in page.read_text()
