"""A seed must be the same run every time. Otherwise a failure cannot be reproduced, and a pass may be luck.

`make test` and every sweep run some seeds twice; here are a few, and the proof that a difference would be noticed.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import strandline.protocol.frames as frames_module
from strandline.testing.simulation.campaign import canary
from strandline.testing.simulation.campaign.canary import Difference, first_difference, record, run_of
from strandline.testing.simulation.kernel.world import World
from strandline.testing.simulation.options import draw_options
from strandline.testing.simulation.runs.run import run_seed
from strandline.testing.simulation.security_plans import SecurityPlan

PRODUCTION = tuple(f"strandline.{room}." for room in ("protocol", "storage", "controller", "broker", "client"))
SEEDS = (5, 50)


# -- the same every time ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [SEEDS[0], pytest.param(SEEDS[1], marks=pytest.mark.slow)])
def test_a_seed_is_the_same_run_twice_in_one_process_to_the_last_step(seed: int) -> None:
    one = record(run_of(seed))
    run_seed(seed + 7)
    waste = [object() for _ in range(12_345)]
    difference = first_difference(one, record(run_of(seed)))
    del waste
    assert difference is None, str(difference)
    assert len(one) > 1000


def test_a_scenario_is_the_same_run_twice() -> None:
    difference = first_difference(record(run_of(0, "S03")), record(run_of(0, "S03")))
    assert difference is None, str(difference)


def test_a_seed_is_the_same_run_in_two_interpreters_with_different_pasts(capsys: pytest.CaptureFixture[str]) -> None:
    """The interpreters have different hash seeds and addresses, and have done different work before."""
    assert canary.main(["--seed", str(SEEDS[-1])]) == 0, capsys.readouterr().out
    assert capsys.readouterr().out == f"seed {SEEDS[-1]}: both runs are the same\n"


# -- and if it were not -----------------------------------------------------------------------------------------------

RUNS: list[int] = []


def run_with_a_past() -> None:
    """Run a node that schedules one more callback from the second run on: a dependence on the past that the canary must find."""

    async def work() -> None:
        await asyncio.sleep(1)
        if len(RUNS) > 1:
            asyncio.get_running_loop().call_soon(list)
        await asyncio.sleep(1)

    RUNS.append(1)
    with closing(World(1)) as world:
        machine = world.add_machine(3, "node")
        machine.boot()
        machine.spawn(work(), "work")
        world.run(world.sleep(5))


def test_first_differing_step_is_shown_with_its_context() -> None:
    RUNS.clear()
    difference = first_difference(record(run_with_a_past), record(run_with_a_past))
    assert difference is not None
    text = str(difference)
    assert "turn of work: test_the_first_step" not in text
    assert any("work: run_with_a_past" in line for line in difference.before)
    assert difference.one != difference.other
    assert re.search(r"(?s)Both runs did:.*Then one run did:\n +- .*and the other run did:\n +\+ ", text)


def test_run_that_ends_early_differs_from_one_that_continues() -> None:
    assert first_difference("abc", "abc") is None
    assert first_difference("abc", "ab") == Difference(3, ["a", "b"], ["c"], ["(the run is over)"])
    assert first_difference("", "a") is not None


def test_recording_has_steps_turns_and_events() -> None:
    lines = record(run_with_a_past)
    assert any(re.fullmatch(r"[\d.e-]+ 3: turn of work: run_with_a_past.<locals>.work", line) for line in lines)
    assert any(re.fullmatch(r"[\d.e-]+ 3: 1", line) for line in lines)
    assert canary.record(lambda: None) == []


def test_the_tool_says_where_two_interpreters_part(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def start(path: Path, seed: int, *_: Any, **__: Any) -> Any:
        lines = f"1.0 1: same\\n2.0 1: {path.name}\\n"
        return subprocess.Popen([sys.executable, "-c", f"open({str(path)!r}, 'w').write('{lines}')"])

    monkeypatch.setattr(canary, "_start", start)
    assert canary.main(["--seed", "3"]) == canary.DIFFERS
    assert "seed 3: The runs differ from line 2 on" in capsys.readouterr().out


# -- what outlives a world --------------------------------------------------------------------------------------------

PURE = {
    "strandline.protocol.frames._request_decoders",
    "strandline.protocol.frames._response_decoders",
    "strandline.protocol.records.builder._prefixes",
    "strandline.protocol.records.builder._heads",
    "strandline.protocol.records.builder._tails",
    "strandline.protocol.records.check._EXTENTS",
    "strandline.protocol.records.reader.PLAIN_FRAMES_1",
    "strandline.protocol.records.reader.PLAIN_FRAMES_2",
}
"""Tables that fill themselves with values that depend only on the key."""


def state_of_production() -> dict[str, str]:
    """The state of the production code's modules: their names, and the visible part of the values."""
    found = {}
    for name in sorted(name for name in sys.modules if name.startswith(PRODUCTION)):
        for each, value in list(vars(sys.modules[name]).items()):
            if not each.startswith("__") and getattr(value, "__module__", name) == name:
                found[f"{name}.{each}"] = " ".join(looks(value, 4))
    return found


def looks(value: Any, depth: int) -> Iterator[str]:
    """A view of the value, as far as it does not differ between two equal values."""
    if isinstance(value, str | bytes | int | float | None):
        yield repr(value)[:50]
    elif isinstance(value, dict):
        yield f"{len(value)}:"
        for key, each in list(value.items())[: 100 * depth]:
            yield from (*looks(key, 0), *looks(each, max(0, depth - 1)))
    elif isinstance(value, list | tuple | set | frozenset):
        yield f"{len(value)}:"
        for each in list(value)[: 100 * depth]:
            yield from looks(each, max(0, depth - 1))
    elif depth and not isinstance(value, types.FunctionType | types.ModuleType):
        for name, each in list(getattr(value, "__dict__", {}).items()):
            if not name.startswith("__"):
                yield from (name, *looks(each, depth - 1))


def changed(before: dict[str, str]) -> set[str]:
    return {name for name, text in state_of_production().items() if text != before.get(name)}


def test_world_leaves_only_constant_tables_in_production_code() -> None:
    run_seed(5, options=draw_options(5).replaced(security=SecurityPlan(1500, (), 20)))  # modules that only security imports
    before = state_of_production()
    assert set(before) >= PURE
    run_seed(7)
    run_seed(13)
    assert changed(before) <= PURE


def test_leftovers_of_a_world_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = {"served": [1]}
    monkeypatch.setattr(frames_module, "_planted", planted, raising=False)
    before = state_of_production()
    assert changed(before) == set()
    planted["served"].append(2)
    assert changed(before) == {"strandline.protocol.frames._planted"}
