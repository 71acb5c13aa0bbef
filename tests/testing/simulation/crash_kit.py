"""Lets a process die in each of its steps on the disk, and checks what it leaves: for every story, step and disk.

A story is code over a `Files`, which writes into its `Witness` what it is about to do and what it was promised. It is run once
to count its steps; then once for each step and each seed, and dies there. Seed 0 is a process that was killed; the others are
power cuts, each leaving another part of what was not synced.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple, TypeVar

import pytest

from strandline.protocol.errors import StrandlineError
from strandline.storage.disk import Files
from strandline.storage.memory.memory_files import matches
from strandline.storage.memory.memory_inodes import Inode
from strandline.testing.simulation.kernel.disk import Mount, ProcessDied, SimFiles
from strandline.testing.simulation.kernel.disk_faults import MUTATING, Moment

W = TypeVar("W")
Story = Callable[[Files, W], object]

Seeds = tuple[int, ...]
FEW: Seeds = (0, 2)
"""One killed process and one power cut for each step. The tests with a program that was broken on purpose show that this is
enough to notice it."""
several = pytest.mark.parametrize(
    "seeds", [pytest.param(FEW, id="few"), pytest.param((1, 3, 4), id="more", marks=pytest.mark.slow)]
)
"""For a test of deaths: few seeds, and in `make test-all` more of them."""
several_errors = pytest.mark.parametrize(
    "seeds", [pytest.param((0, 1), id="few"), pytest.param((2, 3), id="more", marks=pytest.mark.slow)]
)
"""For a test of `failures`: both errors, whole and torn writes, with and without a power cut."""


class Death(NamedTuple):
    """Printed when a check fails: it names the death among the many."""

    step: int
    operation: str
    path: str
    moment: Moment
    seed: int


def steps(story: Story[W], witness: Callable[[], W], prepare: Callable[[SimFiles], object]) -> list[tuple[str, str]]:
    """The operations of the story that change the disk, in order."""
    disk = SimFiles(Random(0))
    prepare(disk)
    operations = disk.record()
    story(disk.mount(), witness())
    return [step for step in operations if step[0] in MUTATING]


def deaths(
    story: Story[W], witness: Callable[[], W], seeds: Sequence[int], prepare: Callable[[SimFiles], object] = lambda disk: None
) -> Iterator[tuple[Death, SimFiles, W]]:
    """Yields every death, with the disk as the next process finds it, and the witness of the dead process."""
    plan = steps(story, witness, prepare)
    for step, (operation, path) in enumerate([*plan, ("the end", "")], 1):
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
                    assert step > len(plan), f"the story takes other steps than before: {step} {operation} {path}"
                disk.crash(lossy=seed > 0)
                disk.heal()
                yield Death(step, operation, path, moment, seed), disk, seen


def failures(
    story: Story[W], witness: Callable[[], W], seeds: Sequence[int], prepare: Callable[[SimFiles], object] = lambda disk: None
) -> Iterator[tuple[Death, SimFiles, W, Exception | None]]:
    """Let every operation, reads included, fail once; then the process ends. Yields also the error that the story raised, if
    any."""
    disk = SimFiles(Random(0))
    prepare(disk)
    operations = disk.record()
    story(disk.mount(), witness())
    for step, (operation, path) in enumerate(list(operations)):
        for seed in seeds:
            disk, seen, raised = SimFiles(Random(f"{step} {seed}")), witness(), None
            prepare(disk)
            disk.leave_torn_writes = seed % 2 > 0
            fault = disk.fail("*", error=errno.EIO if seed % 3 else errno.ENOSPC, skip=step, times=1)
            try:
                story(disk.mount(), seen)
            except StrandlineError as e:
                raised = e
            assert fault.happened
            disk.crash(lossy=seed > 0)
            disk.heal()
            yield Death(step, operation, path, "half", seed), disk, seen, raised


def moments(operation: str) -> tuple[Moment, ...]:
    """The moments of an operation in which a process may die. The moment after one is that before the next, and includes the
    promises in between; only a write has a middle."""
    return ("before", "half") if operation == "write" else ("before",)


def found_by(look: Callable[[], object]) -> str:
    """Returns the error with which the check fails; it must fail, because the program was broken on purpose."""
    try:
        look()
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    raise AssertionError("nobody noticed")


def without_fsync(pattern: str) -> Callable[[Mount, str, Inode], None]:
    """A replacement for `Mount.sync_inode` that does not sync the files that match."""
    sync = Mount.sync_inode

    def sync_inode(self: Mount, path: str, inode: Inode) -> None:
        if not matches(path, pattern):
            sync(self, path, inode)

    return sync_inode
