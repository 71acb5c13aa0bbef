"""The pages of real runs are true, and the one about KIP-279 explains it."""

from __future__ import annotations

import gc
import re
import sys
import warnings
from collections.abc import Iterator
from functools import cache

import pytest

from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.invariants.violation import Violation
from strandline.testing.simulation.kernel.trace import Trace
from strandline.testing.simulation.kernel.world import World
from strandline.testing.simulation.observation.probes import Probes
from strandline.testing.simulation.runs.run import run_seed
from strandline.testing.simulation.scenarios import find
from strandline.testing.simulation.scenarios.play import play
from strandline.testing.simulation.scenarios.stage import Stage
from strandline.testing.simulation.story.picture import Picture, Run
from strandline.testing.simulation.story.story import narrate, tell
from strandline.testing.simulation.story.timeline import render

Held = dict[int, tuple[list[Run], int, int]]
"""The epochs of each broker's log, its LEO, and its HW."""


def held_by(stage: Stage) -> Held:
    held: Held = {}
    for broker in filter(stage.has, (1, 2, 3)):
        entries, end = stage.epochs(broker), stage.end(broker)
        starts = [start for _, start in entries[1:]] + [end]
        runs = [Run(start, upto, epoch) for (epoch, start), upto in zip(entries, starts, strict=True) if upto > start]
        held[broker] = (runs, end, stage.hw(broker))
    return held


@pytest.fixture(autouse=True)
def nothing_is_left_for_other_tests() -> Iterator[None]:
    """Collect the garbage of a world now, and ignore the warnings of its finalizers."""
    yield
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings(action="ignore"):
            gc.collect()
    finally:
        sys.unraisablehook = hook


@cache
def played(number: str, seed: int = 42) -> tuple[Trace, Held]:
    """Play a scenario; returns the trace, and the final logs as the brokers report them."""
    world, stages = World(seed, full_trace=True), list[Stage]()
    invariants = Invariants(world.trace, on_violation=world.scheduler.fail)
    world.scheduler.after_step.append(invariants.after_step)

    def on_stage(stage: Stage) -> None:
        stage.invariants = invariants
        stages.append(stage)

    try:
        with Probes(invariants):
            world.run(play(world, find(number), seed, on_stage=on_stage), limit_s=900.0)
            held = held_by(stages[0])
    finally:
        world.close()
        world.trace.close()
    return world.trace, held


@pytest.mark.parametrize("number", ["S03", "S09", "S14", "S24"])
@pytest.mark.parametrize("seed", [1, 102])
def test_the_logs_on_the_page_are_the_logs_of_the_brokers(number: str, seed: int) -> None:
    """The page's logs are built from events. A fork on a page that the logs do not have would mislead its reader."""
    trace, held = played(number, seed)
    replicas = Picture.after(trace.events()).replicas["orders-0"]
    assert {broker: (replica.runs, replica.end, replica.hw) for broker, replica in replicas.items()} == held


def test_the_page_of_s03_teaches_kip_279() -> None:
    """The page shows the fork, the question that the leader cannot answer exactly, and the smaller of two ends."""
    text = narrate(played("S03")[0])
    fork = text.split("\n5. ")[0]
    fork = fork.split("\n4. ")[1]
    drawn = {
        cells[0]: cells[1:4] for cells in (re.split(r" *\| *", line.strip()) for line in fork.splitlines()) if len(cells) > 3
    }
    assert drawn == {"broker 1": ["e0", "e0", ""], "broker 2": ["e0", "e1", ""], "broker 3": ["e0", "e0", "e2"]}
    assert "the histories diverge here" in fork
    healing = text.split("\n5. ")[1].split("\n6. ")[0]
    assert "broker 2 truncates its log from 12 to 10: on the leader, epoch 0 ends at 12, here at 10" in " ".join(healing.split())
    assert "the histories diverge here" not in healing
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) < 160


def test_a_random_run_has_a_page_a_story_and_a_picture() -> None:
    report = run_seed(3, until_s=3.0, full_trace=True)
    assert report.trace is not None
    report.trace.close()
    partition = next(name for name in report.trace.partitions() if not name.startswith("__"))
    pages = [narrate(report.trace), tell(report.trace, Violation("I6", "it says so", partition=partition), 3)]
    assert max(len(line) for page in pages for line in page.splitlines()) <= 100
    assert "I6 is violated" in render(report.trace, "Seed 3", about={"options": report.options}, violation=Violation("I6", "so"))


def test_page_of_an_incomplete_trace_begins_in_the_middle() -> None:
    """The report of a sweep is incomplete in this way when a seed fails."""
    report = run_seed(3, until_s=3.0)
    assert report.trace is not None
    report.trace.close()
    for partition in ("", *report.trace.partitions()):
        assert "-- I6 is violated --" in tell(report.trace, Violation("I6", "it says so", partition=partition), 3)
