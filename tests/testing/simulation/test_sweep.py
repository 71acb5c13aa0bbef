"""All scenarios as written, and forty random seeds: no promise is broken, and a second run is the same. Three hundred seeds and
other delays in the scenarios, which are marked `slow`, miss nothing interesting.

The sweep is run once, on two cores, and takes a minute; everything else here is about sweeps and takes seconds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from strandline.testing.simulation.campaign import sweep as sweeps
from strandline.testing.simulation.campaign.sweep import LARGE, LONG, Sweep, Tally, endless, main, page, planned, until
from strandline.testing.simulation.campaign.workers import Done, Job, Workers
from strandline.testing.simulation.observation.marks import MARKS, RARE, SCENARIO, SWEEP, missing
from strandline.testing.simulation.runs.replay import Replay
from strandline.testing.simulation.scenarios import SCENARIOS
from strandline.testing.simulation.scenarios.play import AS_WRITTEN, is_perturbed

SEEDS = range(1_000, 1_040)
FURTHER_SEEDS = range(1_040, 1_300)
"""Together these are a large sweep, which judges marks."""
MORE_SEEDS = range(1_300, 1_600)
"""Seeds for rare marks that the others have missed: one seed in fifty sees a follower's damaged tail, and one block of 400 saw
none."""
WRITTEN = 1
"""Runs of each scenario. Those with other delays are `slow`: their delays never changed, so they were the same runs every time.
`make soak` draws new ones for as long as it runs."""
PERTURBED_FURTHER = range(AS_WRITTEN, AS_WRITTEN + 3)
BROKEN = Replay(0, "S01", mutation="M11")
"""A run that fails soon."""


@pytest.fixture(scope="module")
def swept() -> Tally:
    return Sweep(2).run(planned(SEEDS, written=WRITTEN))


@pytest.fixture(scope="module")
def swept_further() -> Tally:
    performances = [Replay(seed, scenario) for seed in PERTURBED_FURTHER for scenario in sorted(SCENARIOS)]
    return Sweep(2).run([*performances, *planned(FURTHER_SEEDS)])


def test_no_seed_breaks_a_promise(swept: Tally) -> None:
    assert swept.seeds == len(SEEDS)
    assert not [f for f in swept.failures if f.replay.scenario is None], page(swept)


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_a_scenario_holds_as_it_is_written(scenario: str, swept: Tally) -> None:
    assert swept.scenarios[scenario] == WRITTEN
    failures = [failure for failure in swept.failures if failure.replay.scenario == scenario]
    assert not failures, "\n\n".join(failure.story or failure.text for failure in failures)


def test_every_fiftieth_run_was_the_same_in_another_process(swept: Tally) -> None:
    assert swept.canaries >= swept.runs // sweeps.CANARY_EVERY - len(swept.failures)
    assert not [failure for failure in swept.failures if failure.invariant == "determinism"]


def test_forty_random_seeds_reach_nine_marks_of_ten(swept: Tally) -> None:
    """Only 300 seeds can show that no mark stays at zero. A nemesis that has become too weak is noticed here."""
    expected = [name for name, mark in MARKS.items() if mark.reach == SWEEP]
    missed = missing(swept.marks[SWEEP], reach=SWEEP)
    assert 10 * len(missed) <= len(expected), missed


@pytest.mark.slow
def test_a_longer_sweep_breaks_no_promise_and_is_the_same_twice(swept_further: Tally) -> None:
    assert swept_further.seeds == len(FURTHER_SEEDS)
    assert swept_further.performances == len(PERTURBED_FURTHER) * len(SCENARIOS)
    assert not swept_further.failures, page(swept_further)


@pytest.mark.slow
def test_random_seeds_reach_every_mark_of_a_sweep(swept: Tally, swept_further: Tally) -> None:
    assert swept.seeds + swept_further.seeds >= LARGE
    missed = missing(swept.marks[SWEEP] + swept_further.marks[SWEEP], reach=SWEEP)
    if missed:
        seen = Sweep(2).run(planned(MORE_SEEDS)).marks[SWEEP]
        missed = [name for name in missed if not seen[name]]
    assert not missed, {name: MARKS[name].meaning for name in missed}


def test_everything_is_acknowledged_and_read_somewhere(swept: Tally) -> None:
    assert swept.acked > 10 * swept.runs
    assert swept.verdicts["ok"] > 0.8 * swept.runs


# -- what is run ------------------------------------------------------------------------------------------------------


def test_endless_sweep_begins_with_every_scenario() -> None:
    replays = list(islice(endless(random.Random(1), 0.3), 1000))
    assert [r.scenario for r in replays[: len(SCENARIOS)]] == sorted(SCENARIOS)
    rest = replays[len(SCENARIOS) :]
    performances = [r for r in rest if r.scenario is not None]
    assert 0.25 < len(performances) / len(rest) < 0.35
    assert all(is_perturbed(r.seed) for r in performances)
    assert len({r.seed for r in rest}) > 0.99 * len(rest)
    assert list(islice(endless(random.Random(1), 0.3), 1000)) == replays


def test_a_sweep_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(sweeps.time, "monotonic", lambda: next(clock))
    assert len(list(until(10, endless(random.Random(1))))) == 10


# -- what is held against it ------------------------------------------------------------------------------------------


def done(replay: Replay, **report: Any) -> Done:
    numbers = dict.fromkeys(("events", "messages", "virtual_s", "acked"), 1)
    kinds: dict[str, Any] = {name: {} for name in ("faults", "skipped", "marks")}
    values = {"verdict": "ok", "violations": [], "trace_sha256": "aa", **numbers, **kinds, **report}
    return Done(Job(replay), values, worker=1, cpu_s=0.5, rss_bytes=100)


def tally_of(seeds: int, marks: dict[str, int]) -> Tally:
    tally = Tally(2)
    for seed in range(seeds):
        tally.add(done(Replay(seed), marks=marks))
    return tally


def test_large_sweep_fails_if_a_mark_stays_at_zero() -> None:
    everything = {name: 1 for name, mark in MARKS.items() if mark.reach == SWEEP}
    missed = {**everything, "fetch.diverging": 0}
    assert tally_of(LARGE, everything).good
    assert tally_of(LARGE - 1, missed).good
    assert tally_of(LARGE, missed).marks_at_zero == ["fetch.diverging"]
    assert not tally_of(LARGE, missed).good


def test_marks_of_scenarios_do_not_count_for_random_seeds() -> None:
    """Otherwise a nemesis that has become too weak would hide behind the directed stories."""
    everything = {name: 1 for name, mark in MARKS.items() if mark.reach == SWEEP}
    tally = tally_of(LARGE, {**everything, "fetch.diverging": 0})
    tally.add(done(Replay(0, "S03"), marks={"fetch.diverging": 1}))
    assert tally.marks_at_zero == ["fetch.diverging"]


def test_only_a_sweep_of_thousands_fails_for_a_rare_mark() -> None:
    """Otherwise a mark that no seed reaches would only be a line that is never read."""
    rare = [name for name, mark in MARKS.items() if mark.reach == RARE]
    seen = {**dict.fromkeys(MARKS, 1), **dict.fromkeys(rare, 0)}
    short, long = tally_of(LONG - 1, seen), tally_of(LONG, seen)
    assert (short.marks_at_zero, short.rare_marks_at_zero, short.good) == ([], rare, True)
    assert (long.marks_at_zero, long.rare_marks_at_zero, long.good) == (rare, [], False)
    assert tally_of(LONG, dict.fromkeys(MARKS, 1)).good


def test_marks_of_scenarios_are_reported_but_not_required() -> None:
    expected = {name: 1 for name, mark in MARKS.items() if mark.reach != SCENARIO}
    tally = tally_of(LARGE, expected)
    absent = [name for name, mark in MARKS.items() if mark.reach == SCENARIO]
    assert tally.rare_marks_at_zero == absent
    assert tally.good
    tally.add(done(Replay(0, "S03"), marks={absent[0]: 1}))
    assert tally.rare_marks_at_zero == absent[1:]
    assert absent[1] in page(tally)


class Twice:
    """Workers that report another trace for the second run of a seed."""

    def __init__(self, *_: object) -> None:
        self.first: list[Job] = []
        self.replaced = 0

    def __enter__(self) -> Twice:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def soon(self, job: Job) -> None:
        self.first.append(job)

    def run(self, jobs: Iterator[Job]) -> Iterator[Done]:
        for job in jobs:
            yield done(job.replay, trace_sha256="aa")
            while self.first:
                again = self.first.pop()
                assert again.avoid == 1
                found = done(again.replay, trace_sha256="bb" if again.replay.seed == 3 else "aa")
                yield Done(again, found.report, worker=2)


def test_a_run_that_differs_from_itself_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "Workers", Twice)
    tally = Sweep(2, canary_every=2, tell=lambda text: None).run(planned(range(6)))
    assert tally.canaries == 3
    (failure,) = tally.failures
    assert (failure.replay, failure.invariant) == (Replay(3), "determinism")
    assert not tally.good


def test_memory_is_reported_per_process_after_warm_up() -> None:
    tally = Tally(1)
    for size in range(1, sweeps.WARM_RUNS + 51):
        tally.see(Done(Job(Replay(0)), {}, worker=1, rss_bytes=size * 1_000_000))
    assert f"100 MB after {sweeps.WARM_RUNS} runs, 150 MB after {sweeps.WARM_RUNS + 50}, at most 150 MB" in page(tally)


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_failed_run_is_kept_and_comes_first_until_it_passes(tmp_path: Path) -> None:
    keep = tmp_path / "failed.jsonl"
    lines: list[str] = []
    tally = Sweep(1, keep=keep, tell=lines.append).run([BROKEN, Replay(0, "S03")])
    assert [failure.replay for failure in tally.failures] == [BROKEN]
    assert any(BROKEN.command in line for line in lines)
    (line,) = keep.read_text().splitlines()
    assert json.loads(line)["invariant"] == "I15"
    assert json.loads(line)["story"]

    tally = Sweep(1, keep=keep, tell=lines.append).run([])
    assert [failure.replay for failure in tally.failures] == [BROKEN]

    keep.write_text(json.dumps({"replay": Replay(0, "S01").as_dict()}) + "\n")  # the failed run is replaced by one that passes
    tally = Sweep(1, keep=keep, tell=lines.append).run([])
    assert (tally.performances, tally.failures) == (1, [])
    assert keep.read_text() == ""


def test_interrupted_sweep_keeps_failed_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = tmp_path / "failed.jsonl"
    keep.write_text("".join(json.dumps({"replay": replay.as_dict()}) + "\n" for replay in (Replay(0, "S03"), BROKEN)))

    def interrupted(self: Workers, jobs: Iterator[Job]) -> Iterator[Done]:
        yield done(next(jobs).replay)
        raise KeyboardInterrupt

    monkeypatch.setattr(Workers, "run", interrupted)
    tally = Sweep(1, keep=keep, tell=lambda text: None).run([])
    assert tally.performances == 1
    assert sweeps.read_kept(keep) == [BROKEN]


def test_sweep_writes_a_report_and_exits_with_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep, report = tmp_path / "failed.jsonl", tmp_path / "soak.json"
    words = ["--seeds", "2..3", "--workers", "1", "--keep", str(keep), "--report", str(report)]
    keep.write_text(json.dumps({"replay": BROKEN.as_dict()}) + "\n")
    assert main(words) == 3
    document = json.loads(report.read_text())
    assert (document["seeds"], document["performances"], document["verdict"]) == (2, 1, "violation")
    assert document["failures"][0]["command"] == BROKEN.command
    assert document["messages"] > 100
    assert document["marks"].keys() == MARKS.keys()
    out = capsys.readouterr().out
    assert "2 random seeds, 1 performances of 1 scenarios" in out
    assert BROKEN.command in out
    keep.unlink()
    assert main(["--written", "1", "--seeds", "x", "--keep", str(keep), "--report", str(report)]) == 2
