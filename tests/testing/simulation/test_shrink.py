"""A failing run becomes smaller and keeps failing in the same way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from strandline.protocol.errors import UsageError
from strandline.testing.simulation.campaign.shrink import shrink
from strandline.testing.simulation.options import Options, draw_options
from strandline.testing.simulation.runs import replay as replays
from strandline.testing.simulation.runs.replay import Replay
from strandline.testing.simulation.runs.run import OK, VIOLATION, Report

SEED = next(seed for seed in count() if len(draw_options(seed).faults) >= 8 and draw_options(seed).brokers >= 3)


def fails_when(monkeypatch: pytest.MonkeyPatch, invariant_of: Callable[[Options], str]) -> list[Options]:
    """Make runs fail with the invariant that this returns, without running them. Returns the options of each run."""
    asked: list[Options] = []

    def run_seed(seed: int, *, options: Options | None = None, **_: object) -> Report:
        options = options or draw_options(seed)
        asked.append(options)
        invariant = invariant_of(options)
        report = Report(seed, None, verdict=VIOLATION if invariant else OK)
        if invariant:
            report.violations.append({"invariant": invariant, "text": "", "story": ""})
        return report

    monkeypatch.setattr(replays, "run_seed", run_seed)
    return asked


def test_shrinking_keeps_only_needed_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two faults only do harm together: leaving out one alone finds neither."""
    needed = {draw_options(SEED).faults[2].number, draw_options(SEED).faults[6].number}
    fails_when(monkeypatch, lambda o: "I6" if needed <= {fault.number for fault in o.faults} and o.brokers >= 2 else "")
    shrunk = shrink(Replay(SEED))
    assert shrunk.replay.options is not None
    assert {fault.number for fault in shrunk.replay.options.faults} == needed
    assert (shrunk.faults, shrunk.invariant) == (2, "I6")
    assert shrunk.replay.options.brokers == 2
    assert shrunk.replay.options.controllers == 1
    assert not shrunk.replay.options.consumers
    assert len(shrunk.replay.options.topics) == 1


def test_command_of_a_shrunk_run_omits_removed_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are only for reading, and were the longest part of the command."""
    needed = draw_options(SEED).faults[2]
    fails_when(monkeypatch, lambda o: "I6" if needed in o.faults else "")
    shrunk = shrink(Replay(SEED))
    assert shrunk.replay.options is not None
    assert list(shrunk.replay.options.kinds) == [needed.kind]
    assert "kinds" not in (shrunk.replay.changes or {})


def test_a_failure_of_another_kind_is_not_the_same_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its first fault this run fails as well, but differently: shrinking a failure of I6 must not end at I24."""
    first = draw_options(SEED).faults[0].number
    fails_when(monkeypatch, lambda o: "I6" if first in {fault.number for fault in o.faults} else "I24")
    shrunk = shrink(Replay(SEED))
    assert shrunk.replay.options is not None
    assert [fault.number for fault in shrunk.replay.options.faults] == [first]


def test_shrinking_repeats_no_run_and_keeps_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fails_when(monkeypatch, lambda o: "I6" if len(o.faults) >= 3 else "")
    shrunk = shrink(Replay(SEED))
    assert shrunk.faults == 3
    assert len(asked) == shrunk.runs
    assert all(asked.count(options) == 1 for options in asked)
    asked = fails_when(monkeypatch, lambda o: "I6")
    assert shrink(Replay(SEED), runs_max=5).runs == len(asked) == 5


def test_a_run_that_does_not_fail_is_not_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    fails_when(monkeypatch, lambda o: "")
    with pytest.raises(UsageError, match="does not fail"):
        shrink(Replay(SEED))


@pytest.mark.slow
def test_a_real_failure_shrinks_to_few_faults_and_its_command_fails_again() -> None:
    """A follower that truncates to its high watermark loses records as soon as another broker leads: one fault is enough for
    that, whatever else the seed draws."""
    candidates = (seed for seed in range(200) if len(draw_options(seed).faults) > 2)
    seed = next(seed for seed in candidates if not Replay(seed, mutation="M01").run().good)
    shrunk = shrink(Replay(seed, mutation="M01"), runs_max=40)
    assert shrunk.faults <= 2 < shrunk.faults_before
    again = shrunk.replay.run()
    assert again.violations[0]["invariant"] == shrunk.invariant
    assert again.trace_sha256 == shrunk.report.trace_sha256


def test_unneeded_perturbations_of_a_scenario_are_removed() -> None:
    shrunk = shrink(Replay(101, "S01", mutation="M11"))
    assert shrunk.replay == Replay(0, "S01", mutation="M11")
    assert shrunk.steps == ["the perturbations"]
