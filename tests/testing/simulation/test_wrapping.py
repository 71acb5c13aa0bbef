"""Wrappers that stay in place between runs must report the same as new ones, and to the right run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from strandline.storage.log.log import Log
from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.kernel.world import World
from strandline.testing.simulation.observation import wrapping
from strandline.testing.simulation.observation.wrapping import kept, removed, wrap
from strandline.testing.simulation.runs.run import Report, run_seed

SEED = 7


class Bell:
    def ring(self, times: int) -> str:
        return "ding" * times

    @classmethod
    def make(cls) -> Bell:
        return cls()


def hearing(heard: list[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any) -> Any:
            result = function(*args)
            heard.append(result)
            return result

        return wrapper

    return make


@pytest.fixture(autouse=True)
def as_written() -> Iterator[None]:
    before = dict(vars(Bell))
    yield
    assert dict(vars(Bell)) == before


def test_wrapper_is_set_and_removed() -> None:
    heard: list[Any] = []
    undo = wrap("test", Bell, "ring", hearing(heard))
    assert Bell().ring(2) == "dingding"
    undo()
    Bell().ring(3)
    assert heard == ["dingding"]


def test_remaining_wrapper_calls_the_newest_owner() -> None:
    """After a second run has begun, it must receive its own calls, and the first run must not receive them."""
    first: list[Any] = []
    second: list[Any] = []
    with kept():
        wrap("test", Bell, "ring", hearing(first))()
        there = Bell.ring
        Bell().ring(1)
        wrap("test", Bell, "ring", hearing(second))()
        assert Bell.ring is there, "the class was changed, and with it all that Python had learned of it"
        Bell().ring(2)
    assert (first, second) == (["ding"], ["dingding"])


def test_two_that_wrap_the_same_both_hear_it_once() -> None:
    heard: dict[str, list[Any]] = {"probes": [], "marks": []}
    with kept():
        for _ in range(3):
            for by, each in heard.items():
                wrap(by, Bell, "ring", hearing(each))
        Bell().ring(1)
    assert heard == {"probes": ["ding"], "marks": ["ding"]}


def test_class_methods_stay_class_methods() -> None:
    heard: list[Any] = []
    with kept():
        for _ in range(2):
            wrap("test", Bell, "make", hearing(heard))
        made = Bell.make()
    assert heard == [made]


def test_patching_code_finds_the_original_function() -> None:
    """A mutation replaces a function. A wrapper that stayed underneath would report every call twice."""
    written = Bell.ring
    heard: list[Any] = []
    with kept():
        wrap("test", Bell, "ring", hearing(heard))
        with removed():
            assert Bell.ring is written
            wrap("test", Bell, "ring", hearing(heard))()
            assert Bell.ring is written, "in between wrappers come and go"
        assert wrapping.is_keeping()


def test_wrapper_with_another_definition_is_rejected() -> None:
    with kept():
        wrap("test", Bell, "ring", hearing([]))
        with pytest.raises(AssertionError, match="is not created as before"):
            wrap("test", Bell, "ring", lambda function: lambda *args: function(*args))


def test_a_run_is_the_same_whether_wrappers_stay_or_not() -> None:
    alone = run()
    with kept():
        others = [run_seed(SEED + 1, until_s=2.0), run(), run()]
    assert {report.trace_sha256 for report in others[1:]} == {alone.trace_sha256}
    assert others[1].marks == others[2].marks == alone.marks
    assert Log.flush.__module__ == Log.__module__, "the probes have gone"


def test_a_mutation_is_found_between_runs_whose_wrappers_stay() -> None:
    with kept():
        verdicts = [run_seed(0, scenario="S01", mutation=mutation).verdict for mutation in (None, "M11", None)]
    assert verdicts == ["ok", "violation", "ok"]


def test_remaining_wrappers_hold_no_references_to_old_runs() -> None:
    """A world is tens of megabytes, and its remains would be finalized in the middle of the next one."""

    def alive() -> set[int]:
        gc.collect()
        return {id(each) for each in gc.get_objects() if type(each) in (World, Invariants)}

    with kept():
        run()  # this creates the idle wrapper, which stays
        before = alive()
        run()
        assert alive() <= before


def run() -> Report:
    return run_seed(SEED, until_s=2.0)
