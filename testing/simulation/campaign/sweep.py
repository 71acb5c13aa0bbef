"""Many runs on all cores: random seeds, and the directed scenarios as they are written and perturbed.

    make soak MINUTES=10
    python -m strandline.testing.simulation.campaign.sweep --seeds 0..299 --written 3 --perturbed 10

A sweep passes if three conditions hold. No run breaks a promise; failed runs are written to a file, and the next sweep begins
with them. Every fiftieth run is repeated in another process with another hash seed, and must have the same trace to the last
event, because otherwise no failure could be replayed. And no coverage mark stays at zero (marks.py): a sweep that never saw a
diverging truncation has not tested one. Rare marks count from some thousands of seeds on. Marks that only a story reaches are
counted and printed, but never fail a sweep.

The exit code is 0 if all of that holds, and 3 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from strandline.protocol.errors import UsageError
from strandline.testing.simulation.campaign.workers import Done, Job, Workers
from strandline.testing.simulation.observation.marks import MARKS, RARE, SCENARIO, SWEEP, missing
from strandline.testing.simulation.runs.replay import Replay, parse_seeds
from strandline.testing.simulation.scenarios import SCENARIOS
from strandline.testing.simulation.scenarios.play import AS_WRITTEN

CANARY_EVERY = 50
"""One of this many runs is repeated."""
LARGE = 300
"""From this number of random seeds on, a mark at zero fails the sweep."""
LONG = 3_000
"""From this number of random seeds on, a rare mark at zero fails the sweep, too."""
PERTURBED_SHARE = 0.3
"""Share of perturbed scenarios in an endless sweep; the others are random seeds."""
WARM_RUNS = 100
"""After this many runs a process has loaded all modules and caches: from then on its memory must not grow."""
PRINT_EVERY_S = 10.0
SEEDS = 1_000_000_000
BAD = 3
FOLDER = Path("build/simulation")


# -- what is run ------------------------------------------------------------------------------------------------------


def planned(seeds: Iterable[int], *, written: int = 0, perturbed: int = 0) -> Iterator[Replay]:
    """The runs of a sweep: first each scenario, `written` times as written and `perturbed` times with perturbations; then a
    random run for each of `seeds`."""
    for seed in chain(range(written), range(AS_WRITTEN, AS_WRITTEN + perturbed)):
        for scenario in sorted(SCENARIOS):
            yield Replay(seed, scenario)
    for seed in seeds:
        yield Replay(seed)


def endless(draw: random.Random, share: float = PERTURBED_SHARE) -> Iterator[Replay]:
    """Every scenario as written, then seeds and perturbed scenarios without end."""
    yield from planned((), written=1)
    while True:
        seed = draw.randrange(SEEDS)
        if draw.random() < share:
            yield Replay(AS_WRITTEN + seed, draw.choice(sorted(SCENARIOS)))
        else:
            yield Replay(seed)


def until(deadline: float, replays: Iterable[Replay]) -> Iterator[Replay]:
    for replay in replays:
        if time.monotonic() >= deadline:
            return
        yield replay


# -- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    replay: Replay
    invariant: str
    text: str
    story: str = ""

    def as_dict(self) -> dict[str, Any]:
        found = {"invariant": self.invariant, "text": self.text, "command": self.replay.command}
        return {"replay": self.replay.as_dict(), **found, "story": self.story}


@dataclass(slots=True)
class Memory:
    """The memory of one process."""

    runs: int = 0
    warm_bytes: int = 0
    """The memory after the first `WARM_RUNS` runs; 0: not reached yet."""
    last_bytes: int = 0
    max_bytes: int = 0

    def see(self, rss_bytes: int) -> None:
        self.runs += 1
        self.last_bytes, self.max_bytes = rss_bytes, max(self.max_bytes, rss_bytes)
        if self.runs == WARM_RUNS:
            self.warm_bytes = rss_bytes


@dataclass(slots=True)
class Tally:
    """The results of a sweep so far."""

    cores: int
    seeds: int = 0
    """Number of random seeds."""
    performances: int = 0
    """Number of runs of scenarios."""
    scenarios: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    messages_of_seeds: int = 0
    events: int = 0
    acked: int = 0
    virtual_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    marks: dict[str, Counter[str]] = field(default_factory=lambda: {SWEEP: Counter(), SCENARIO: Counter()})
    """The counts of the marks in the random seeds (SWEEP), and in the scenarios (SCENARIO)."""
    canaries: int = 0
    replaced: int = 0
    memory: dict[int, Memory] = field(default_factory=dict)
    """Number of a process -> its memory."""
    failures: list[Failure] = field(default_factory=list)

    @property
    def runs(self) -> int:
        return self.seeds + self.performances

    @property
    def marks_at_zero(self) -> list[str]:
        """Marks that the random seeds should have reached; empty as long as there are too few seeds for that."""
        expected = ((SWEEP, LARGE), (RARE, LONG))
        absent = {n for reach, seeds in expected if self.seeds >= seeds for n in missing(self.marks[SWEEP], reach=reach)}
        return [name for name in MARKS if name in absent]

    @property
    def rare_marks_at_zero(self) -> list[str]:
        """Marks that are rare, or that only stories and tests reach, as far as they do not fail the sweep."""
        seen = self.marks[SWEEP] + self.marks[SCENARIO]
        absent = {*missing(seen, reach=RARE), *missing(seen, reach=SCENARIO)} - {*self.marks_at_zero}
        return [name for name in MARKS if name in absent]

    @property
    def good(self) -> bool:
        return not self.failures and not self.marks_at_zero

    def add(self, done: Done) -> None:
        report, scenario = done.report, done.job.replay.scenario
        if scenario is None:
            self.seeds += 1
            self.messages_of_seeds += report["messages"]
            self.faults.update(report["faults"])
            self.skipped.update(report["skipped"])
        else:
            self.performances += 1
            self.scenarios[scenario] += 1
        self.marks[SWEEP if scenario is None else SCENARIO].update({n: c for n, c in report["marks"].items() if c})
        self.verdicts[report["verdict"]] += 1
        self.messages += report["messages"]
        self.events += report["events"]
        self.acked += report["acked"]
        self.virtual_s += report["virtual_s"]
        self.see(done)
        if (violation := done.violation) is not None:
            found = (str(violation[name]) for name in ("invariant", "text", "story"))
            self.failures.append(Failure(done.job.replay, *found))

    def see(self, done: Done) -> None:
        """Note the memory of a process after a run."""
        self.cpu_s += done.cpu_s
        if done.rss_bytes:
            self.memory.setdefault(done.worker, Memory()).see(done.rss_bytes)

    def as_dict(self) -> dict[str, Any]:
        per_core = self.runs / self.cores
        return {
            "verdict": "ok" if self.good else "violation",
            **{name: getattr(self, name) for name in ("cores", "seeds", "performances", "messages", "events", "acked")},
            "virtual_s": round(self.virtual_s, 1),
            "wall_s": round(self.wall_s, 1),
            "cpu_s": round(self.cpu_s, 1),
            "runs_per_s_and_core": round(per_core / max(self.wall_s, 1e-9), 2),
            "runs_per_cpu_s": round(self.runs / max(self.cpu_s, 1e-9), 2),
            "messages_per_s": round(self.messages / max(self.wall_s, 1e-9)),
            "messages_per_seed": round(self.messages_of_seeds / max(self.seeds, 1)),
            "verdicts": dict(self.verdicts),
            "scenarios": dict(sorted(self.scenarios.items())),
            "faults": dict(self.faults.most_common()),
            "skipped": dict(self.skipped.most_common()),
            "marks": {name: self.marks[SWEEP][name] + self.marks[SCENARIO][name] for name in MARKS},
            "marks_of_random_seeds": {name: self.marks[SWEEP][name] for name in MARKS},
            "marks_at_zero": self.marks_at_zero,
            "rare_marks_at_zero": self.rare_marks_at_zero,
            "canaries": self.canaries,
            "processes_replaced": self.replaced,
            "memory": [
                {
                    "process": number,
                    "runs": m.runs,
                    "warm_bytes": m.warm_bytes,
                    "last_bytes": m.last_bytes,
                    "max_bytes": m.max_bytes,
                }
                for number, m in sorted(self.memory.items())
            ],
            "failures": [failure.as_dict() for failure in self.failures],
        }


# -- the sweep --------------------------------------------------------------------------------------------------------


class Sweep:
    def __init__(
        self, cores: int, *, canary_every: int = CANARY_EVERY, keep: Path | None = None, tell: Callable[[str], object] = print
    ) -> None:
        self.tally = Tally(cores)
        self.canary_every = canary_every
        self.keep = keep
        """The file for failed runs, with which the next sweep begins."""
        self.tell = tell
        self._printed_at = 0.0

    def run(self, replays: Iterable[Replay]) -> Tally:
        """Run all of them. An interrupt ends the sweep; the runs that have ended count."""
        began = self._printed_at = time.monotonic()
        kept = [] if self.keep is None else read_kept(self.keep)
        if kept:
            self.tell(f"{len(kept)} runs that failed before come first")
        pending = dict.fromkeys(kept)
        with Workers(self.tally.cores) as workers:
            try:
                for done in workers.run(map(Job, chain(kept, replays))):
                    pending.pop(done.job.replay, None)
                    self._take(done, workers)
                    self.tally.wall_s, self.tally.replaced = time.monotonic() - began, workers.replaced
                    self._progress()
            except KeyboardInterrupt:
                self.tell("interrupted")
            finally:
                self._keep(pending)
        return self.tally

    def _take(self, done: Done, workers: Workers) -> None:
        tally = self.tally
        sha256 = done.report["trace_sha256"]
        if done.job.tag is not None:
            tally.see(done)
            if done.job.tag != sha256:
                text = f"two runs differ: the traces' hashes are {done.job.tag} and {sha256}"
                tally.failures.append(Failure(done.job.replay, "determinism", text))
                self._failed(tally.failures[-1])
            return
        tally.add(done)
        if done.violation is not None:
            self._failed(tally.failures[-1])
        elif tally.runs % self.canary_every == 0:
            tally.canaries += 1
            workers.soon(Job(done.job.replay, sha256, avoid=done.worker))

    def _failed(self, failure: Failure) -> None:
        text = " ".join(failure.text.split())[:200]
        self.tell(f"FAILED  {failure.invariant}: {text}\n        {failure.replay.command}")

    def _progress(self) -> None:
        now = time.monotonic()
        if now - self._printed_at >= PRINT_EVERY_S:
            self._printed_at = now
            t = self.tally
            speed = f"{t.runs / t.wall_s / t.cores:.2f}/s/core, {t.messages / t.wall_s:.0f} messages/s"
            self.tell(f"{t.wall_s:6.0f} s  {t.seeds} seeds, {t.performances} performances, {speed}, {len(t.failures)} failures")

    def _keep(self, pending: Iterable[Replay]) -> None:
        """Write the runs that failed, and those that failed before and were not repeated yet."""
        if self.keep is None:
            return
        failed = {failure.replay: failure.as_dict() for failure in self.tally.failures}
        not_done = {replay: {"replay": replay.as_dict(), "command": replay.command} for replay in pending}
        lines = [json.dumps(entry) for entry in {**not_done, **failed}.values()]
        self.keep.parent.mkdir(parents=True, exist_ok=True)
        self.keep.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_kept(file: Path) -> list[Replay]:
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    return [Replay.from_dict(json.loads(line)["replay"]) for line in lines if line.strip()]


# -- for people -------------------------------------------------------------------------------------------------------


def page(tally: Tally) -> str:
    values = tally.as_dict()
    seen = sum(1 for count in values["marks"].values() if count)
    absent, rare = ", ".join(tally.marks_at_zero), ", ".join(tally.rare_marks_at_zero)
    rows = [
        ("runs", f"{tally.seeds} random seeds, {tally.performances} performances of {len(tally.scenarios)} scenarios"),
        ("verdicts", _counts(tally.verdicts)),
        ("time", f"{tally.wall_s:.0f} s on {tally.cores} cores, {tally.cpu_s:.0f} s of processor time"),
        ("speed", f"{values['runs_per_s_and_core']} runs/s/core by the clock, {values['runs_per_cpu_s']} by processor time"),
        (
            "messages",
            f"{tally.messages}, {values['messages_per_seed']} in a random seed, {values['messages_per_s']} per second; "
            f"{tally.acked} records acknowledged",
        ),
        ("virtual time", f"{tally.virtual_s / 3600:.1f} hours"),
        ("done twice", f"{tally.canaries}, in two processes: {_differ(tally)}"),
        ("faults", _counts(tally.faults)),
        ("left out", f"{_counts(tally.skipped)} (no victim, or the budget refused it)"),
        (
            "marks",
            f"{seen} of {len(MARKS)} seen; at zero, and should not be: {absent or 'none'}; rare ones at zero: {rare or 'none'}",
        ),
        *(("memory", text) for text in _memory(tally)),
        ("failures", str(len(tally.failures))),
    ]
    lines = [f"{name:<14}{text}" for name, text in rows]
    for failure in tally.failures:
        lines += [f"  {failure.invariant}: {' '.join(failure.text.split())[:300]}", f"    {failure.replay.command}"]
    return "\n".join(lines)


def _differ(tally: Tally) -> str:
    count = sum(1 for failure in tally.failures if failure.invariant == "determinism")
    return f"{count} differ" if count else "none differs"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in Counter(counts).most_common()) or "none"


def _memory(tally: Tally) -> Iterator[str]:
    for number, m in sorted(tally.memory.items()):
        if m.warm_bytes:
            warm, last, most = (f"{size / 1e6:.0f} MB" for size in (m.warm_bytes, m.last_bytes, m.max_bytes))
            yield f"process {number}: {warm} after {WARM_RUNS} runs, {last} after {m.runs}, at most {most}"
    if tally.replaced:
        yield f"{tally.replaced} processes were replaced"


# -- the command ------------------------------------------------------------------------------------------------------


def _arguments(words: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="sweep", description="Plays many simulated runs, on all cores.")
    parser.add_argument("--minutes", type=float, help="play random seeds and perturbed scenarios for this time")
    parser.add_argument("--seeds", metavar="A..B", help="play these seeds")
    parser.add_argument("--written", type=int, default=0, metavar="N", help="play every scenario N times as it is written")
    parser.add_argument("--perturbed", type=int, default=0, metavar="N", help="play every scenario N times perturbed")
    parser.add_argument(
        "--share", type=float, default=PERTURBED_SHARE, help="share of scenarios, with --minutes (default: %(default)s)"
    )
    parser.add_argument("--draw", type=int, metavar="N", help="draw the seeds from this number (default: a random one)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    parser.add_argument(
        "--keep", type=Path, default=FOLDER / "failed.jsonl", help="file with the runs that failed (default: %(default)s)"
    )
    parser.add_argument(
        "--report", type=Path, default=FOLDER / "soak.json", help="file with the results as JSON (default: %(default)s)"
    )
    arguments = parser.parse_args(words)
    if arguments.minutes is None and arguments.seeds is None and not (arguments.written or arguments.perturbed):
        parser.error("say what to run: --minutes, --seeds, --written or --perturbed")
    return arguments


def _replays(arguments: Any) -> Iterator[Replay]:
    seeds = () if arguments.seeds is None else parse_seeds(arguments.seeds)
    fixed = planned(seeds, written=arguments.written, perturbed=arguments.perturbed)
    if arguments.minutes is None:
        return fixed
    number = random.SystemRandom().randrange(SEEDS) if arguments.draw is None else arguments.draw
    print(f"seeds are drawn from {number}", flush=True)
    return until(time.monotonic() + 60 * arguments.minutes, chain(fixed, endless(random.Random(number), arguments.share)))


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    try:
        replays = _replays(arguments)
    except UsageError as e:
        print(f"sweep: {e}", file=sys.stderr)
        return 2
    sweep = Sweep(max(1, arguments.workers), keep=arguments.keep, tell=lambda text: print(text, flush=True))
    tally = sweep.run(replays)
    arguments.report.parent.mkdir(parents=True, exist_ok=True)
    arguments.report.write_text(json.dumps(tally.as_dict(), indent=1) + "\n", encoding="utf-8")
    print(f"\n{page(tally)}\n\nreport: {arguments.report}")
    return 0 if tally.good else BAD


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
