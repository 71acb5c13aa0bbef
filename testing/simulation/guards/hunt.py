"""Removes the guards of the catalogue one at a time, and finds which of three instruments detect that, and after how many runs.

    python -m strandline.testing.simulation.guards.hunt reach               where does each guard make a difference?
    python -m strandline.testing.simulation.guards.hunt G01 G17             hunt these; without any, all that are left
    python -m strandline.testing.simulation.guards.hunt --ways random --minutes 2
    python -m strandline.testing.simulation.guards.hunt table               docs/guards.md from the findings

`campaign/hunt.py` does the same for the mutations, on all cores and with thousands of seeds. This one is for many guards in
little time: `reach` runs every test, scenario and seed once with all guards watched, and only the runs in which a guard makes a
difference are repeated without it. All other runs would be the same without it, so the number of runs includes them.

A run counts as a find if it fails without the guard and passed with it. A run that does not end in time fails, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Never

from strandline.protocol.errors import InternalError, UsageError
from strandline.testing.simulation.campaign.workers import report_of
from strandline.testing.simulation.guards.catalogue import GUARDS, WATCH, WITHOUT, Guard
from strandline.testing.simulation.guards.removal import watched, without
from strandline.testing.simulation.guards.table import FOUND, Finds, write_table
from strandline.testing.simulation.observation.wrapping import kept
from strandline.testing.simulation.runs.replay import Replay
from strandline.testing.simulation.scenarios import SCENARIOS

FOLDER = Path("build/guards")
ROOMS = ("storage", "broker", "controller", "client")
"""The packages whose unit tests are run. The tests of one package may detect that a guard of another one is missing."""
FAST = "not processes and not docker and not spark"
TESTS_MAX = 150
"""Most unit tests that are tried for one guard."""
FIRST_TESTS, MORE_TESTS = 3, 40
"""The most specific tests are run first: collecting the others takes longer than running them."""
ALL_TESTS_S, ONE_TEST_S = 12.0, 2.0
"""Longest time, in seconds, that tests may take with the guard in place: all of them, and a single one."""
TESTS_S = 60.0
"""Seconds after which a run counts as endless."""
SEEDS = 60
GUARD_S = 45.0
"""Seconds for one guard and one instrument. If they do not suffice, the result contains what was left out."""
RUN = ("unit", "scenarios", "random")
_OUTCOME = re.compile(r"(\S+::.*?) (PASSED|SKIPPED|XFAIL|FAILED|ERROR)\b")
"""A line of pytest. The id of a test may have spaces."""
ALL_PASSED, SOME_FAILED = 0, 1
"""Exit codes of pytest."""

Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Watched:
    """One run with all guards watched."""

    name: str
    """The test, or the seed or scenario as it is typed."""
    guards: frozenset[str]
    s: float
    passed: bool = True


@dataclass(slots=True)
class Find:
    """The result of one instrument for one guard."""

    runs: int | None = None
    """The number of runs until the missing guard was detected; None: it was not."""
    tried: int = 0
    """Number of runs that were repeated without the guard."""
    reached: int = 0
    """Number of runs in which the guard makes a difference."""
    of: int = 0
    """Number of all runs."""
    by: str = ""
    """The test, scenario or seed."""
    text: str = ""


# -- where does each guard make a difference? -------------------------------------------------------------------------


def reach(ways: Iterable[str], seeds: int, tell: Tell = print) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for room in ROOMS if "unit" in ways else ():
        path = FOLDER / f"unit-{room}.jsonl"
        path.unlink(missing_ok=True)
        _pytest([f"tests/{room}", "-m", FAST], {WATCH: str(path.resolve())}, timeout_s=900)
        tell(f"unit tests of {room}: {sum(1 for _ in path.open())}")
    if "scenarios" in ways:
        _reach_runs("scenarios", [Replay(0, scenario) for scenario in sorted(SCENARIOS)], tell)
    if "random" in ways:
        _reach_runs("random", [Replay(seed) for seed in range(seeds)], tell)


def _reach_runs(way: str, replays: Sequence[Replay], tell: Tell) -> None:
    path = FOLDER / f"{way}.jsonl"
    with watched(GUARDS.values()) as hits, kept(), path.open("w") as file:
        for replay in replays:
            hits.clear()
            began = time.perf_counter()
            report = report_of(replay)
            s = round(time.perf_counter() - began, 3)
            line = {"test": _name(replay), "guards": sorted(hits), "s": s, "passed": not report["violations"]}
            file.write(json.dumps(line) + "\n")
            file.flush()
    tell(f"{way}: {len(replays)} runs")


def _name(replay: Replay) -> str:
    return replay.scenario or f"seed {replay.seed}"


def _replay(name: str) -> Replay:
    return Replay(int(name.removeprefix("seed "))) if name.startswith("seed ") else Replay(0, name)


def read_watched(way: str) -> list[Watched]:
    paths = [FOLDER / f"unit-{room}.jsonl" for room in ROOMS] if way == "unit" else [FOLDER / f"{way}.jsonl"]
    found = []
    for path in paths:
        for line in path.read_text().splitlines():
            values = json.loads(line)
            found.append(Watched(values["test"], frozenset(values["guards"]), values["s"], values.get("passed", True)))
    return found


# -- without the guard ------------------------------------------------------------------------------------------------


def by_unit_tests(guard: Guard, runs: Sequence[Watched]) -> Find:
    """Run the tests in which the guard makes a difference, those of its own package and the most specific ones first, until one
    fails."""
    room = f"tests/{guard.module.partition('/')[0]}/"
    there = [run for run in runs if guard.number in run.guards and run.passed]
    there.sort(key=lambda run: (not run.name.startswith(room), len(run.guards), run.s))
    find = Find(reached=len(there), of=len(runs))
    chosen: list[str] = []
    left_s = ALL_TESTS_S
    for run in there:
        if run.s <= min(left_s, ONE_TEST_S) and len(chosen) < TESTS_MAX:
            left_s -= run.s
            chosen.append(run.name)
    if not chosen:
        return find
    for batch in (chosen[:FIRST_TESTS], chosen[FIRST_TESTS:MORE_TESTS], chosen[MORE_TESTS:]):
        if batch and find.runs is None:
            _try_tests(guard, batch, find)
    return find


def _try_tests(guard: Guard, tests: Sequence[str], find: Find) -> None:
    output, ended = _pytest(["-x", *tests], {WITHOUT: guard.number}, timeout_s=TESTS_S)
    passed, failed = _progress(output)
    before, find.tried = find.tried, find.tried + passed
    if failed is not None:
        find.by = failed
    elif not ended:
        find.by, find.text = tests[min(passed, len(tests) - 1)], "it does not end"
    else:
        return
    find.runs = find.tried = before + passed + 1


def _pytest(words: Sequence[str], env: dict[str, str], *, timeout_s: float) -> tuple[str, bool]:
    """Run pytest in a fork of this process, where everything is imported already. Returns the output, and whether the run
    ended."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115
            os.environ.update(env)
            _run_tests(words)
        ended = _wait(child, timeout_s)
        output.seek(0)
        text = output.read()
        if ended not in (None, ALL_PASSED, SOME_FAILED):
            raise InternalError(f"pytest ended with {ended}:\n{text[-2000:]}")
        return text, ended is not None


def _run_tests(words: Sequence[str]) -> Never:
    """Run pytest in the child. It cannot rewrite modules that are already imported, which does not matter here."""
    import pytest

    from strandline.testing.simulation.guards import plugin

    code: int = 3
    options = ["-vv", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    try:
        code = pytest.main([*options, *words], plugins=[plugin])
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def _wait(child: int, timeout_s: float) -> int | None:
    """The exit code; None if the process did not end in time and was killed."""
    ends = time.monotonic() + timeout_s
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > ends:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(done[1])


def _progress(output: str) -> tuple[int, str | None]:
    """The number of tests that passed, and the first that failed."""
    passed = 0
    for line in output.splitlines():
        found = _OUTCOME.match(line)
        if found is None:
            continue
        name, outcome = found.groups()
        if outcome in ("FAILED", "ERROR"):
            return passed, name
        passed += 1
    return passed, None


def by_runs(guard: Guard, runs: Sequence[Watched], limit_s: float = GUARD_S) -> Find:
    """Run the scenarios, or the random seeds, in their order, until one fails."""
    there = [(place, run) for place, run in enumerate(runs, 1) if guard.number in run.guards and run.passed]
    find, ends = Find(reached=len(there), of=len(runs)), time.monotonic() + limit_s
    if not there:
        return find
    with without(guard), kept():
        for place, run in there:
            if time.monotonic() > ends:
                break
            find.tried += 1
            violations = report_of(_replay(run.name))["violations"]
            if violations:
                first = violations[0]
                find.runs, find.by = place, run.name
                find.text = f"{first['invariant']}: {' '.join(str(first['text']).split())[:120]}"
                break
    return find


def look_for(guard: Guard, ways: Iterable[str], runs: dict[str, list[Watched]], finds: Finds) -> None:
    known = finds.setdefault(guard.number, {})
    for way in ways:
        find = by_unit_tests(guard, runs[way]) if way == "unit" else by_runs(guard, runs[way])
        known[way] = {name: value for name, value in asdict(find).items() if value not in (None, "")}


# -- the command ------------------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    if arguments.names == ["reach"]:
        reach(arguments.ways, arguments.seeds)
        return 0
    if arguments.names == ["table"]:
        write_table()
        return 0
    finds: Finds = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    chosen = list(_chosen(arguments.names, arguments.ways, finds))
    runs = {way: read_watched(way) for way in arguments.ways}
    ends = time.monotonic() + arguments.minutes * 60
    for guard in chosen:
        if time.monotonic() > ends:
            break
        missing = [way for way in arguments.ways if arguments.names or way not in finds.get(guard.number, {})]
        look_for(guard, missing, runs, finds)
        FOUND.write_text(json.dumps(finds, indent=1, sort_keys=True) + "\n")
        print(f"{guard.number}: {guard.meaning}", flush=True)
        for way in missing:
            print(f"  {way:<10} {_words(finds[guard.number][way])}", flush=True)
    left = len(list(_chosen([], arguments.ways, finds)))
    print(f"{left} of {len(GUARDS)} guards have not been tried")
    return 0


def _chosen(named: Sequence[str], ways: Iterable[str], finds: Finds) -> Iterable[Guard]:
    for name in named:
        if name not in GUARDS:
            raise UsageError(f"there is no guard {name!r}; there are G01 to {list(GUARDS)[-1]}")
    if named:
        return [GUARDS[name] for name in named]
    return [guard for number, guard in GUARDS.items() if any(way not in finds.get(number, {}) for way in ways)]


def _words(find: dict[str, Any]) -> str:
    if "runs" in find:
        return f"found by run {find['runs']}: {find['by']} {find.get('text', '')}"
    return (
        f"not in {find.get('tried', 0)} of {find.get('reached', 0)} runs in which it makes a difference, of {find.get('of', 0)}"
    )


def _arguments(words: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="guards", description="Finds the instruments that detect a missing guard.")
    parser.add_argument(
        "names", nargs="*", metavar="G01", help='guards to remove, or "reach", or "table" (default: all that have not been tried)'
    )
    parser.add_argument("--ways", nargs="+", choices=list(RUN), default=list(RUN), help="instruments (default: all)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="random seeds (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=2.0, help="minutes of wall time (default: %(default)s)")
    return parser.parse_args(words)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
