"""A process dies in each of its steps on the disk, and what it leaves is looked at: for every story, step and disk.

A story is code over a `Files`, which writes into its `Witness` what it is about to do and what it was promised. It is run
once to count its steps; then once for each step and each seed, and dies there. Seed 0 is a process that was killed; the
others are power cuts, each leaving another part of what was not synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from strandline.storage.disk import Files
from strandline.testing.simulation.disk import ProcessDied, SimFiles
from strandline.testing.simulation.disk_faults import MUTATING, Moment

W = TypeVar("W")
Story = Callable[[Files, W], object]


class Death(NamedTuple):
    """Printed when a check fails: it says which of the many."""

    step: int
    operation: str
    path: str
    moment: Moment
    seed: int


def steps(story: Story[W], witness: Callable[[], W], prepare: Callable[[SimFiles], object]) -> list[tuple[str, str]]:
    """What the story does on the disk, in order."""
    disk = SimFiles(Random(0))
    prepare(disk)
    operations = disk.record()
    story(disk.mount(), witness())
    return [step for step in operations if step[0] in MUTATING]


def deaths(
    story: Story[W], witness: Callable[[], W], seeds: Sequence[int], prepare: Callable[[SimFiles], object] = lambda disk: None
) -> Iterator[tuple[Death, SimFiles, W]]:
    """Every death, with the disk as the next process finds it and what the dead one had seen."""
    for step, (operation, path) in enumerate(steps(story, witness, prepare), 1):
        for moment in moments(operation):
            for seed in seeds:
                disk, seen = SimFiles(Random(f"{step} {moment} {seed}")), witness()
                prepare(disk)
                disk.crash_at(step, moment=moment)
                try:
                    story(disk.mount(), seen)
                except ProcessDied:
                    pass
                else:
                    raise AssertionError(f"the story takes other steps than before: {step} {operation} {path}")
                disk.crash(lossy=seed > 0)
                yield Death(step, operation, path, moment, seed), disk, seen


def moments(operation: str) -> tuple[Moment, ...]:
    """After a step is before the next one, but for what the process does in between: so that is looked at, too."""
    return ("before", "half", "after") if operation == "write" else ("before", "after")
