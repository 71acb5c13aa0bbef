"""Checks that a seed is the same run every time, and if not, finds the first difference.

    python -m strandline.testing.simulation.campaign.canary --seed 42 [--scenario S03]

runs the seed in two interpreters, with different hash seeds and different work before it, records every step of both, and prints
the first step that differs with the steps before it. The exit code is 0 if none does, and 3 if one does.

The cause of a difference is always something from outside the world that affected the run: the wall clock, the address of an
object (in the order of a set, in a text), random numbers of the process, state that an earlier run left in a module, or a
finalizer that ran when the garbage collector chose.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from strandline.testing.simulation.kernel.loop import Handle, NodeLoop, name_of
from strandline.testing.simulation.kernel.trace import Trace, plain
from strandline.testing.simulation.kernel.world import World

DIFFERS = 3
BEFORE, AFTER = 25, 6
"""Lines of context before and after the difference."""
_END = "(the run is over)"


class Difference(NamedTuple):
    line: int
    """Number of the line, from 1."""
    before: list[str]
    """The lines before it, which both runs share; the newest last."""
    one: list[str]
    """The line of the first run that differs, and those after it."""
    other: list[str]

    def __str__(self) -> str:
        text = [f"The runs differ from line {self.line} on. Both runs did:", *(f"      {line}" for line in self.before)]
        text += ["Then one run did:", *(f"    - {line}" for line in self.one)]
        return "\n".join([*text, "and the other run did:", *(f"    + {line}" for line in self.other)])


def first_difference(one: Iterable[str], other: Iterable[str]) -> Difference | None:
    before: deque[str] = deque(maxlen=BEFORE)
    pairs = zip_longest(one, other, fillvalue=_END)
    for number, (a, b) in enumerate(pairs, 1):
        if a == b:
            before.append(a)
            continue
        rest = [(a, b), *(pair for pair, _ in zip(pairs, range(AFTER), strict=False))]
        return Difference(number, list(before), *(list(dict.fromkeys(side)) for side in zip(*rest, strict=True)))
    return None


# -- recording --------------------------------------------------------------------------------------------------------


class Recording(Trace):
    """A trace that also writes every event and step to a file, in words."""

    __slots__ = ("lines",)

    def __init__(self, now: Callable[[], float], *, full: bool = False) -> None:
        super().__init__(now, full=full)
        self.lines = _lines

    def step(self, time: float, node: int, label: Any) -> None:
        super().step(time, node, label)
        self.lines.append(f"{time!r} {node}: {label}")

    def emit(self, kind: str, node: int, partition: str = "", /, **fields: Any) -> None:
        super().emit(kind, node, partition, **fields)
        self.lines.append(f"{self.now()!r} {node}: {kind} {partition} {plain(fields)}")

    def watch(self, loop: NodeLoop, ready: list[Handle]) -> None:
        """Called at the beginning of each turn of a process."""
        calls = ", ".join(name_of(handle.callback) for handle in ready if not handle.cancelled())
        self.lines.append(f"{self.now()!r} {loop.machine.id}: turn of {calls}")


_lines: list[str] = []


def record(run: Callable[[], object]) -> list[str]:
    """Record the worlds that are created in this block, line by line."""
    global _lines
    before, _lines = _lines, []
    trace_class, World.trace_class = World.trace_class, Recording
    try:
        run()
        return _lines
    finally:
        _lines, World.trace_class = before, trace_class


def run_of(seed: int, scenario: str | None = None) -> Callable[[], object]:
    from strandline.testing.simulation.runs.run import run_seed

    return lambda: run_seed(seed, scenario=scenario)


# -- two interpreters -------------------------------------------------------------------------------------------------


def compare(seed: int, scenario: str | None = None) -> Difference | None:
    """Run the seed in two interpreters that share only the code."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("one", "other")]
        works = [_start(paths[0], seed, scenario, "0"), _start(paths[1], seed, scenario, "4242", before=seed + 1)]
        for work in works:
            if work.wait():
                raise RuntimeError(f"{work.args!r} ended with {work.returncode}")
        one, other = (path.read_text(errors="surrogatepass").splitlines() for path in paths)
    return first_difference(one, other)


def _start(path: Path, seed: int, scenario: str | None, hash_seed: str, before: int | None = None) -> subprocess.Popen[bytes]:
    words = ["--record", str(path), "--seed", str(seed)]
    words += ["--scenario", scenario] if scenario is not None else []
    words += ["--before", str(before)] if before is not None else []
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.Popen([sys.executable, "-m", __spec__.name if __spec__ else __name__, *words], env=environment)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Runs a seed twice, and shows the first difference.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--scenario")
    parser.add_argument("--record", type=Path, help="run it once, and write its steps to this file")
    parser.add_argument("--before", type=int, help="run this seed first")
    arguments = parser.parse_args(words)
    if arguments.record is None:
        difference = compare(arguments.seed, arguments.scenario)
        print(f"seed {arguments.seed}: {difference or 'both runs are the same'}")
        return DIFFERS if difference else 0
    if arguments.before is not None:
        run_of(arguments.before)()
    lines = record(run_of(arguments.seed, arguments.scenario))
    arguments.record.write_text("".join(f"{line}\n".replace("\r", "\\r") for line in lines), errors="surrogatepass")
    return 0


if __name__ == "__main__":
    sys.exit(main())
