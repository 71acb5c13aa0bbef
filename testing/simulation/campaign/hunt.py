"""Hunts mutations: after how many runs does the simulation detect that a guard is missing?

    make mutate                                     the whole table
    python -m strandline.testing.simulation.campaign.hunt M01 M11 --seeds 200

Each mutation (mutations.py) is hunted twice: with random seeds 0, 1, 2, ..., and with the directed scenarios, first as they are
written, then perturbed. The first run with a violation ends the hunt. It is repeated without the mutation: if it fails then,
too, it is no find. Runs use all cores, but the reported number is the one that a single core would have needed: the position of
the first find in the order of the runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from strandline.protocol.errors import UsageError
from strandline.testing.simulation.campaign.mutations import MUTATIONS, WAITING
from strandline.testing.simulation.campaign.workers import Done, Job, Workers
from strandline.testing.simulation.runs.replay import Replay, numbered
from strandline.testing.simulation.scenarios import SCENARIOS
from strandline.testing.simulation.scenarios.play import AS_WRITTEN

SEEDS_MAX = 2_000
UNEXPLAINED = 3
"""The exit code if a mutation was not found."""
FOLDER = Path("build/simulation")


@dataclass(slots=True)
class Search:
    """One way of hunting one mutation."""

    found_after: int | None = None
    """The number of runs up to and including the find; None: it was not found."""
    runs: int = 0
    """The number of runs that were started; with several processes, a few more than were needed."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    invariant: str = ""
    text: str = ""
    command: str = ""
    """The command line that repeats the find."""
    no_finds: list[str] = field(default_factory=list)
    """Command lines of runs that also fail without the mutation."""


@dataclass(slots=True)
class Row:
    number: str
    meaning: str
    random: Search
    scenarios: Search

    @property
    def is_found(self) -> bool:
        return any(search.found_after is not None for search in (self.random, self.scenarios))


def random_seeds(number: str, first: int = 0) -> Iterator[Replay]:
    for seed in count(first):
        yield Replay(seed, mutation=number)


def performances(number: str) -> Iterator[Replay]:
    """All scenarios as they are written, then all of them perturbed, again and again."""
    for seed in chain((0,), count(AS_WRITTEN)):
        for scenario in sorted(SCENARIOS):
            yield Replay(seed, scenario, mutation=number)


WAYS: dict[str, Callable[[str], Iterator[Replay]]] = {"random": random_seeds, "scenarios": performances}


def search(workers: Workers, replays: Iterable[Replay]) -> Search:
    """Run until the first find, or until no run is left."""
    began, result = time.monotonic(), Search()
    suspects: dict[int, Done] = {}
    finds: dict[int, Done] = {}

    def jobs() -> Iterator[Job]:
        for place, replay in enumerate(replays, 1):
            if finds:
                return  # all runs before the find have been started
            result.runs = place
            yield Job(replay, place)

    for done in workers.run(jobs()):
        result.cpu_s += done.cpu_s
        place = abs(done.job.tag)
        if done.job.tag < 0:  # the same run without the mutation
            suspect = suspects.pop(place)
            if done.violation is None:
                finds[place] = suspect
            else:
                result.no_finds.append(suspect.job.replay.command)
        elif done.violation is not None and place < min(finds, default=place + 1):
            suspects[place] = done
            workers.soon(Job(dataclasses.replace(done.job.replay, mutation=None), -place))
    if finds:
        _note(result, min(finds), finds[min(finds)])
    result.wall_s = time.monotonic() - began
    return result


def _note(result: Search, place: int, done: Done) -> None:
    violation = done.violation
    assert violation is not None
    result.found_after, result.command = place, done.job.replay.command
    result.invariant, result.text = violation["invariant"], violation["text"]


def hunt(
    numbers: Sequence[str],
    *,
    seeds_max: int,
    workers: Workers,
    ways: Sequence[str] = tuple(WAYS),
    tell: Callable[[str], object] = print,
) -> Iterator[Row]:
    for number in numbers:
        mutation = MUTATIONS[number]
        tell(f"{number}: {mutation.meaning}")
        found = dict.fromkeys(WAYS, Search())
        for way in ways:
            found[way] = search(workers, islice(WAYS[way](number), seeds_max))
            tell(f"  {way:<10} {_words(found[way])}")
        yield Row(number, mutation.meaning, **found)


def _words(search: Search) -> str:
    if search.found_after is None:
        return f"NOT found in {search.runs} runs, {search.wall_s:.0f} s"
    text = " ".join(search.text.split())[:100]
    found = f"found by run {search.found_after}, {search.cpu_s:.1f} s of processor time: {search.invariant}: {text}"
    return f"{found}\n    {search.command}"


# -- the table --------------------------------------------------------------------------------------------------------


def markdown(rows: Iterable[Row]) -> str:
    lines = [
        "| mutation | what the code does | random seeds | processor time | found by | scenarios | found by |",
        "|---|---|---:|---:|---|---:|---|",
    ]
    for row in rows:
        seeds, plays = row.random, row.scenarios
        cells = [row.number, row.meaning, _seeds(seeds), f"{seeds.cpu_s:.1f} s", seeds.invariant]
        lines.append(f"| {' | '.join([*cells, _seeds(plays), _by(plays)])} |")
    lines += [f"| {number} | waits for {feature} | | | | | |" for number, feature in WAITING.items()]
    return "\n".join(lines) + "\n"


def _seeds(search: Search) -> str:
    if search.found_after is not None:
        return str(search.found_after)
    return f"not in {search.runs}" if search.runs else "not searched for"


def _by(search: Search) -> str:
    words = search.command.split()
    return f"{search.invariant} in {words[words.index('--scenario') + 1]}" if "--scenario" in words else ""


def write(rows: Sequence[Row], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    document = {"seeds_max": SEEDS_MAX, "mutations": [asdict(row) for row in rows], "waiting": WAITING}
    (folder / "mutations.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "mutations.md").write_text(markdown(rows))


# -- the command ------------------------------------------------------------------------------------------------------


def chosen(names: Iterable[str]) -> list[str]:
    """The named mutations, or all of them if none is named."""
    return [numbered("mutation", name, MUTATIONS, WAITING) for name in names] or sorted(MUTATIONS)


def _arguments(words: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="hunt", description="Measures how soon the simulation finds each mutation.")
    parser.add_argument("mutations", nargs="*", metavar="M01", help="mutations to search for (default: all)")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="most runs of each kind (default: %(default)s)")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), help="kinds of runs (default: both)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the table is written (default: %(default)s)")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    try:
        numbers = chosen(arguments.mutations)
    except UsageError as e:
        print(f"hunt: {e}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    with Workers(max(1, arguments.workers)) as workers:
        more: dict[str, Any] = {"ways": arguments.ways, "tell": lambda text: print(text, flush=True)}
        for row in hunt(numbers, seeds_max=arguments.seeds, workers=workers, **more):
            rows.append(row)
            write(rows, arguments.folder)
    print(f"\n{markdown(rows)}")
    missed = [row.number for row in rows if not row.is_found]
    print(
        f"{len(rows) - len(missed)} of {len(rows)} found{', not: ' + ', '.join(missed) if missed else ''}; see {arguments.folder}"
    )
    return UNEXPLAINED if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
