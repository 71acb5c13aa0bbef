"""Directed stories, most of them after a real bug, by their numbers: S01, S02, ...

    report = run_scenario("S03", seed=0)

`stage.py` has the verbs of a story, `play.py` plays a story with the changes that a seed selects, and the other files are the
stories. `WAITING` lists the stories that need a feature which is not built yet.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from strandline.protocol.errors import UsageError
from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.invariants.violation import Violation
from strandline.testing.simulation.kernel.scheduler import OutOfTime
from strandline.testing.simulation.kernel.world import Unhandled, World
from strandline.testing.simulation.observation.marks import Marks
from strandline.testing.simulation.observation.probes import Probes
from strandline.testing.simulation.runs.run import VIOLATION, Report
from strandline.testing.simulation.scenarios import (
    balance,
    compaction,
    conditional,
    disks,
    eligible,
    environment,
    fencing,
    group_configs,
    group_coordinators,
    group_members,
    isr,
    log_dirs,
    producers,
    quorum,
    racks,
    reassignments,
    requests,
    security,
    transactions,
    truncation,
    unclean,
)
from strandline.testing.simulation.scenarios.play import has_fault, is_perturbed, play
from strandline.testing.simulation.scenarios.stage import SCENARIOS, WAITING, Broken, Scenario, Stage, scenario
from strandline.testing.simulation.story.story import tell

__all__ = ["SCENARIOS", "WAITING", "Scenario", "Stage", "find", "run_scenario", "scenario"]

FILES = (
    truncation,
    unclean,
    isr,
    eligible,
    requests,
    producers,
    disks,
    quorum,
    environment,
    compaction,
    balance,
    log_dirs,
    racks,
    reassignments,
    conditional,
    group_coordinators,
    group_members,
    fencing,
    transactions,
    security,
    group_configs,
)
LIMIT_S = 900.0


def find(number: str) -> Scenario:
    """The scenario with this number, in any case of letters. Raises `UsageError`, which names the known numbers."""
    name = number.upper()
    if name in WAITING:
        raise UsageError(f"scenario {name} cannot be played yet: it needs {WAITING[name]}")
    if name not in SCENARIOS:
        known = sorted(SCENARIOS, key=lambda each: SCENARIOS[each].place)
        raise UsageError(f"there is no scenario {number!r}; there are {known[0]} to {known[-1]}: {', '.join(known)}")
    return SCENARIOS[name]


def run_scenario(
    number: str,
    seed: int | str,
    *,
    until_s: float | None = None,
    full_trace: bool = False,
    replay: str = "",
    world: World | None = None,
) -> Report:
    """Play a scenario while the invariants are checked. `play.py` explains the seed, and `run_seed` the other arguments; `world`
    replaces the world that is created from the seed. Raises `UsageError` for an unknown number."""
    return _Performance(find(number), int(seed), until_s, replay, world or World(int(seed), full_trace=full_trace)).run()


class _Performance:
    def __init__(self, scenario: Scenario, seed: int, until_s: float | None, replay: str, world: World) -> None:
        self.scenario = scenario
        self.seed = seed
        self.replay = replay
        self.until_s = until_s
        self.report = Report(seed, scenario.number)
        self.world = world
        self.invariants = Invariants(self.world.trace, on_violation=self.world.scheduler.fail)
        self.marks = Marks()
        self.stage: Stage | None = None

    def run(self) -> Report:
        began = time.perf_counter()
        try:
            with self._watched():
                self._play()
        finally:
            self._fill()
            self.world.close()
            self.report.wall_s = time.perf_counter() - began
        return self.report

    @contextmanager
    def _watched(self) -> Iterator[None]:
        self.world.scheduler.after_step.append(self.invariants.after_step)
        with Probes(self.invariants), self.marks.watching(self.world.trace):
            try:
                yield
            finally:
                if self.stage is not None:
                    self.stage.undo()

    def _play(self) -> None:
        limit_s = LIMIT_S if self.until_s is None else self.until_s
        try:
            self.world.run(play(self.world, self.scenario, self.seed, on_stage=self._on_stage), limit_s=limit_s)
        except Violation as e:
            self._violated(e)
        except Broken as e:
            self._violated(Violation(self.scenario.number, str(e), partition="orders-0"))
        except Unhandled as e:
            self._violated(Violation("unhandled", "".join(traceback.format_exception(e))))
        except OutOfTime as e:
            if self.until_s is None:
                self._violated(Violation("I24", str(e), partition="orders-0"))

    def _on_stage(self, stage: Stage) -> None:
        self.stage, stage.invariants = stage, self.invariants

    def _violated(self, violation: Violation) -> None:
        report, world = self.report, self.world
        report.verdict = VIOLATION
        told = tell(world.trace, violation, self.seed, self.scenario.number, replay=self.replay)
        report.violations.append(
            {
                "invariant": violation.invariant,
                "text": violation.text,
                "partition": violation.partition,
                "node": violation.node,
                "time_s": world.now,
                "story": told,
            }
        )

    def _fill(self) -> None:
        report, world = self.report, self.world
        report.trace, report.trace_sha256 = world.trace, world.trace.sha256()
        report.events, report.messages, report.virtual_s = world.scheduler.steps, world.network.messages, world.now
        report.marks = dict(self.marks.counts)
        report.options = {"perturbed": is_perturbed(self.seed), "fault": has_fault(self.seed)}
        for event in world.trace.events(kinds=["fault.begin", "node.crashed", "node.paused"]):
            kind = str(event.fields.get("fault") or event.kind.removeprefix("node."))
            report.faults[kind] = report.faults.get(kind, 0) + 1
