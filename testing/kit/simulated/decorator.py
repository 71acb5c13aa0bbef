"""`@simulated(seeds=200)` turns a coroutine into a plain test, which plays the coroutine once per seed until a seed fails.

    @simulated(seeds=200)
    async def test_my_consumer_is_idempotent(cluster):
        ...

The test that pytest sees is not a coroutine and has no argument `cluster`. All other arguments, from fixtures and
`parametrize`, are passed on, the same objects to every seed. Without pytest it is a function that plays all seeds when called.

An error is raised unchanged, with a note: the seed, the events, and how to replay it. A seed that fails is played again, and so
is every fiftieth seed: if the second run differs, the test depends on something that the seed does not determine.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, overload

from strandline.protocol.errors import UsageError
from strandline.testing.kit.simulated.run import Outcome, Plan, run_test
from strandline.testing.kit.simulated.telling import SEED_VARIABLE, replay_text
from strandline.testing.kit.simulated.weather import Faults, kinds_of

SEEDS = 100
LIMIT_S = 120.0
CANARY = 50
"""One of so many seeds is played twice."""
ARGUMENT = "cluster"

Test = Callable[..., Coroutine[Any, Any, object]]
Body = Callable[[Any], Coroutine[Any, Any, object]]
PlainTest = Callable[..., None]

REASONS = """\
What a seed does not settle, and a test must not depend on:
  - something kept from one seed to the next: a fixture's database or file, a module's variable (make it inside the test)
  - datetime.now(), and functions imported by name before, such as `from time import time`; time.time() is virtual
  - the order of a set of objects without a __hash__ of their own, id(), hash() of a string in another process
  - threads, processes and sockets of your own; asyncio.to_thread is simulated
  - a file, a network, or a service outside of the cluster"""


class NotDeterministic(AssertionError):
    """Two runs of one seed differ: the test, or the code that it tests, is not deterministic."""


@dataclass(slots=True)
class Tally:
    """Totals over the seeds of a test: number, times, faults."""

    seeds: int = 0
    wall_s: float = 0.0
    virtual_s: float = 0.0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.virtual_s += outcome.virtual_s
        self.events += outcome.events
        self.faults.update(outcome.faults)

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count}" for kind, count in self.faults.most_common()) or "no faults"
        rate = self.seeds / self.wall_s if self.wall_s else 0.0
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{seeds} in {self.wall_s:.1f} s, {rate:.1f} seeds/s, {self.virtual_s:.0f} s of virtual time; {faults}"


@overload
def simulated(seeds: Test, /) -> PlainTest: ...


@overload
def simulated(
    seeds: int | Iterable[int] = SEEDS,
    *,
    faults: Faults = "gentle",
    brokers: int = 3,
    controllers: int = 1,
    limit_s: float = LIMIT_S,
    invariants: bool = True,
    **settings: Any,
) -> Callable[[Test], PlainTest]: ...


def simulated(
    seeds: Test | int | Iterable[int] = SEEDS,
    *,
    faults: Faults = "gentle",
    brokers: int = 3,
    controllers: int = 1,
    limit_s: float = LIMIT_S,
    invariants: bool = True,
    **settings: Any,
) -> PlainTest | Callable[[Test], PlainTest]:
    """Decorator: play an `async def` test with the argument `cluster` in a simulation, once per seed.

    `seeds`: a number n for the seeds 0 to n - 1, or the seeds themselves. `faults`: the faults that each seed draws beside those
    of the test: "gentle" (a cluster of three survives them without a long outage), "all", names of kinds (with weights), or
    None. `brokers`, `controllers`: as for `Cluster`. `limit_s`: seconds of virtual time per seed. `invariants`: whether to
    check the simulator's invariants of the cluster, too. `settings`: configuration keys, with `_` for `.`.

    The test fails with the error of the first seed that fails. NotDeterministic: a second run of a seed differed. UsageError:
    the test is no coroutine or has no argument `cluster`, no seed, an unknown fault or an option that a simulation lacks.
    """
    if callable(seeds):
        return simulated()(seeds)
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not chosen:
        raise UsageError("@simulated needs at least one seed")
    if set(settings) & {"files", "folder", "processes", "seed"}:
        raise UsageError("@simulated does not take files, processes or seed: the files are simulated, and the run gives the seed")
    kinds = dict(kinds_of(faults))
    options = {"brokers": brokers, "controllers": controllers, **settings}
    plan = Plan(kinds, faults == "gentle", limit_s, invariants, options)

    def decorate(test: Test) -> PlainTest:
        return _plain(test, chosen, plan)

    return decorate


def _plain(test: Test, seeds: tuple[int, ...], plan: Plan) -> PlainTest:
    if not inspect.iscoroutinefunction(test):
        raise UsageError(f"@simulated is for `async def` tests, but {test.__qualname__} is not one")
    signature = inspect.signature(test)
    if ARGUMENT not in signature.parameters:
        raise UsageError(f"{test.__qualname__} needs an argument `{ARGUMENT}`, which @simulated passes")

    @functools.wraps(test)
    def simulated_test(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        tally = simulated_test.__strandline_tally__ = Tally()  # type: ignore[attr-defined]
        _play(functools.partial(_call, test, args, kwargs), test.__name__, _seeds_asked_for() or seeds, plan, tally)

    def seed(number: int, *args: Any, **kwargs: Any) -> None:
        """Play only this seed."""
        __tracebackhide__ = True
        _play(functools.partial(_call, test, args, kwargs), test.__name__, (number,), plan, Tally())

    shown = [each for name, each in signature.parameters.items() if name != ARGUMENT]
    simulated_test.__signature__ = signature.replace(parameters=shown, return_annotation=None)  # type: ignore[attr-defined]
    simulated_test.seed = seed  # type: ignore[attr-defined]
    return simulated_test


def _call(test: Test, args: tuple[Any, ...], kwargs: Mapping[str, Any], cluster: Any) -> Coroutine[Any, Any, object]:
    return test(*args, **{**kwargs, ARGUMENT: cluster})


def _seeds_asked_for() -> tuple[int, ...]:
    """The seeds to replay, from STRANDLINE_SEED: one, or several separated by commas; empty if not set."""
    asked = os.environ.get(SEED_VARIABLE, "")
    try:
        return tuple(int(number) for number in asked.split(",") if number.strip())
    except ValueError:
        raise UsageError(f"{SEED_VARIABLE} must be a number, or several numbers with commas, not {asked!r}") from None


def _play(body: Body, name: str, seeds: tuple[int, ...], plan: Plan, tally: Tally) -> None:
    __tracebackhide__ = True
    began = time.perf_counter()
    with _frozen():
        for number, seed in enumerate(seeds):
            outcome = run_test(body, seed, plan)
            tally.add(outcome)
            tally.wall_s = time.perf_counter() - began
            if outcome.error is not None:
                _raise(outcome, body, name, number, plan)
            if number % CANARY == 0 and len(seeds) > 1:
                _check_again(outcome, body, plan, name)
            tally.wall_s = time.perf_counter() - began


@contextmanager
def _frozen() -> Iterator[None]:
    """Exclude existing objects from the garbage collections that run at the end of each world."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _raise(outcome: Outcome, body: Body, name: str, passed: int, plan: Plan) -> None:
    __tracebackhide__ = True
    error = outcome.error
    assert error is not None
    if type(error).__name__ in ("Skipped", "XFailed", "Exit") and not isinstance(error, Exception):
        raise error  # An outcome of pytest (skip, xfail, exit), raised without a note.
    again = run_test(body, outcome.seed, plan)
    if again.ending == outcome.ending and again.trace_sha256 == outcome.trace_sha256:
        repeats = "a second run of this seed went the same way"
    else:
        ended = "passed" if again.error is None else f"ended with {': '.join(again.ending)}"
        repeats = f"a second run of this seed went another way, and {ended}.\n{REASONS}"
    before = "" if passed == 0 else f"; {passed} before it passed" if passed > 1 else "; one before it passed"
    head, _, rest = outcome.story.partition("\n")
    error.add_note(f"\n{head}{before}\n{rest}\n\nAgain\n-----\n{replay_text(name, outcome.seed)}\n{repeats}")
    raise error


def _check_again(outcome: Outcome, body: Body, plan: Plan, name: str) -> None:
    __tracebackhide__ = True
    again = run_test(body, outcome.seed, plan)
    if again.error is None and again.trace_sha256 == outcome.trace_sha256:
        return
    ended = "took another way" if again.error is None else f"failed with {': '.join(again.ending)}"
    error = NotDeterministic(
        f"seed {outcome.seed} of {name} passed, and a second run of it {ended}; a failure could not be replayed.\n{REASONS}"
    )
    raise error from again.error
