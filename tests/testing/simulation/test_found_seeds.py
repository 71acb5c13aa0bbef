"""Seeds that once found a bug (docs/bugs.md): they stay in the tests, and must pass.

What a seed draws changes with the simulator, so the test that guards against a bug is the directed one that the list names. These
runs cost little, and may find other bugs near a seed that found one.
"""

from __future__ import annotations

import pytest

from strandline.testing.simulation.runs.run import run_seed

FOUND = {
    64: "an idle quorum whose fetches all timed out",
    5067: "a failed controller that left tasks behind",
    7079: "a consumer that was not served any more by anybody",
    5085: "a follower without a session below its leader's start",
    72977106: "a refused proposal of which a copy came late",
    20261129123: "a reassignment of which a copy came after later ones",
    20261129503: "a log that moved while the level of the metadata was raised",
    20261131087: "a leave that was refused in the grace of a lost connection",
    20261131111: "brokers that were still drained when a group needed its topic",
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_found_a_bug_finds_none(seed: int) -> None:
    report = run_seed(seed)
    assert report.good, str(report)
