"""A task of `simulate`: runs some seeds of the simulator, one after the other, and yields a row for each.

Each task has a process of its own for the runs (`testing/simulation/campaign/workers.py`). So a seed that kills that process,
fills its memory or does not end does not affect the results of other seeds. The task runs such a seed once more in a new process;
if it fails again, the run is a violation. Every fiftieth run is repeated in another process with another hash seed, and must have
the same trace to the last event.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow

from strandline.testing.simulation.campaign.sweep import CANARY_EVERY, SEEDS
from strandline.testing.simulation.campaign.workers import TIMEOUT_S, Done, Job, Workers
from strandline.testing.simulation.runs.replay import Replay
from strandline.testing.simulation.scenarios import SCENARIOS
from strandline.testing.simulation.scenarios.play import AS_WRITTEN

SCHEMA = (
    "seed bigint, scenario string, verdict string, invariant string, text string, story string, command string, "
    "events bigint, messages bigint, sent bigint, acked bigint, virtual_s double, wall_s double, cpu_s double, rss_bytes bigint, "
    "faults map<string, bigint>, skipped map<string, bigint>, marks map<string, bigint>, "
    "trace_sha256 string, again string, tries int"
)
"""The columns of a run. `again`: "same" or "differs" if the run was repeated, else null. `tries`: 2 if the first process died,
else 1."""
_COUNTS = pyarrow.map_(pyarrow.string(), pyarrow.int64())
_TYPES = pyarrow.schema(
    [
        ("seed", pyarrow.int64()),
        *((name, pyarrow.string()) for name in ("scenario", "verdict", "invariant", "text", "story", "command")),
        *((name, pyarrow.int64()) for name in ("events", "messages", "sent", "acked")),
        *((name, pyarrow.float64()) for name in ("virtual_s", "wall_s", "cpu_s")),
        ("rss_bytes", pyarrow.int64()),
        *((name, _COUNTS) for name in ("faults", "skipped", "marks")),
        ("trace_sha256", pyarrow.string()),
        ("again", pyarrow.string()),
        ("tries", pyarrow.int32()),
    ]
)
FROM_REPORT = ("verdict", "events", "messages", "sent", "acked", "virtual_s", "wall_s", "trace_sha256")
HASH_SEEDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Seeds:
    """The runs of a sweep. Each run depends only on its number, not on the runs before it, so tasks need not coordinate."""

    count: int
    draw: int | None = None
    """The number that decides which seeds are drawn; None: the seeds are `first` and those that follow it."""
    first: int = 0
    share: float = 0.0
    """The share (0 to 1) of drawn runs that are perturbed scenarios; the others have random seeds."""
    scenario: str | None = None
    """Run this scenario with all seeds."""
    mutation: str | None = None
    """Run with this guard removed from the code."""

    def replay(self, number: int) -> Replay:
        """The run with this number, from 0 on."""
        if self.draw is None:
            return Replay(self.first + number, self.scenario, mutation=self.mutation)
        draw = random.Random(f"{self.draw}/{number}")
        seed, is_scenario = draw.randrange(SEEDS), draw.random() < self.share
        if is_scenario and self.scenario is None:
            return Replay(AS_WRITTEN + seed, draw.choice(sorted(SCENARIOS)), mutation=self.mutation)
        return Replay(seed, self.scenario, mutation=self.mutation)


@dataclass(frozen=True, slots=True)
class SimulateTask:
    """The runs of one task: the numbers from `first` to `stop` (exclusive). Spark pickles it, so it holds plain values."""

    seeds: Seeds
    first: int
    stop: int
    canary_every: int = CANARY_EVERY
    timeout_s: float = TIMEOUT_S

    def run(self) -> Iterator[pyarrow.RecordBatch]:
        numbers = range(self.first, self.stop)
        rows = dict(self._all({number: self.seeds.replay(number) for number in numbers}))
        again = {number: self.seeds.replay(number) for number in numbers if number % self.canary_every == 0}
        for number, done in self._run({n: r for n, r in again.items() if rows[n]["trace_sha256"]}, HASH_SEEDS):
            same = done.report["trace_sha256"] == rows[number]["trace_sha256"]
            rows[number]["again"] = "same" if same else "differs"
        yield pyarrow.RecordBatch.from_pylist([rows[number] for number in numbers], schema=_TYPES)

    def _all(self, replays: dict[int, Replay]) -> Iterator[tuple[int, dict[str, Any]]]:
        died = {}
        for number, done in self._run(replays, 0):
            if done.died:
                died[number] = replays[number]
            else:
                yield number, row_of(done, 1)
        for number, done in self._run(died, 2 * HASH_SEEDS):
            yield number, row_of(done, 2)

    def _run(self, replays: dict[int, Replay], hash_seed: int) -> Iterator[tuple[int, Done]]:
        if not replays:
            return
        # A package that was shipped with the job is only on this process's path.
        env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with Workers(1, timeout_s=self.timeout_s, first=hash_seed + 1 + self.first % HASH_SEEDS, env=env) as workers:
            for done in workers.run(Job(replay, number) for number, replay in replays.items()):
                yield done.job.tag, done


def row_of(done: Done, tries: int) -> dict[str, Any]:
    """The columns of `SCHEMA` for a run that ended."""
    report, replay, violation = done.report, done.job.replay, done.violation or {}
    return {
        "seed": replay.seed,
        "scenario": replay.scenario,
        "command": replay.command,
        **{name: violation.get(name) for name in ("invariant", "text", "story")},
        **{name: report[name] for name in FROM_REPORT},
        **{name: list(report[name].items()) for name in ("faults", "skipped", "marks")},
        "cpu_s": done.cpu_s,
        "rss_bytes": done.rss_bytes,
        "again": None,
        "tries": tries,
    }
