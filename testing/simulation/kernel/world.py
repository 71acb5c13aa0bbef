"""A world: virtual time, a network, machines, and one seed from which all chance in it comes.

    world = World(seed=7)
    world.run(story(world))       # a coroutine on machine 0: the nemesis, a directed scenario, a test

Chance is drawn from streams with names (`stream("network")`), so that one part that draws once more does not change what
another gets. While a world runs, Python's garbage collector rests, and structlog's lines go into the trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import warnings
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any, ClassVar, TypeVar
from unittest import mock

from strandline.protocol.rpc import dial
from strandline.testing.simulation.kernel.loop import Generators, NodeLoop, SimTask, cheaply_registered
from strandline.testing.simulation.kernel.machine import Machine
from strandline.testing.simulation.kernel.network import Network
from strandline.testing.simulation.kernel.scheduler import OutOfTime, Scheduler
from strandline.testing.simulation.kernel.trace import Trace, captured_logs

T = TypeVar("T")

WORLD = 0
"""The machine of whoever watches and torments: its clock is the world's."""


class Unhandled(AssertionError):
    """Production code raised where nobody caught it."""


_is_start_kept = False
"""Whether `gc` has been told that what was there before the first world stays."""


def _keep_the_start() -> None:
    """What was there before the first world (modules, classes: far more than a world has) is not gone through again at the
    end of each world."""
    global _is_start_kept
    if not _is_start_kept:
        _is_start_kept = True
        gc.freeze()


STEADY_DELAY_S = 0.000_3


class World:
    trace_class: ClassVar[type[Trace]] = Trace
    """Of worlds that are made from now on (`canary.py` puts one in its place that writes everything down)."""

    def __init__(self, seed: int | str, *, full_trace: bool = False) -> None:
        _keep_the_start()
        self.seed = seed
        self.scheduler = Scheduler(self.stream("scheduler"))
        self.trace = self.trace_class(self.scheduler.clock, full=full_trace)
        self.network = Network(self.scheduler, self.stream("network"), self.trace.step)
        self.machines: dict[int, Machine] = {}
        self.machine = self.add_machine(WORLD, "world")
        self.machine.clock_offset_s = 0.0
        self.machine.boot()
        self.tolerates: Callable[[NodeLoop, dict[str, Any]], bool] = lambda loop, context: False
        """Whether an exception that reached a loop's handler is to be expected."""
        self.waited_for = 0
        """How many conditions are waited for: somebody wants to go on in the very turn in which something happens, and no
        other turn may follow in the same step."""
        self._conditions: list[_Condition] = []

    @property
    def now(self) -> float:
        """Seconds of virtual time since the beginning."""
        return self.scheduler.now

    def stream(self, name: str) -> Random:
        """The source of chance of this name; the same at each call."""
        return Random(f"{self.seed}/{name}")

    def stream_of_loop(self, process: Random) -> Random:
        """The source of chance of an event loop, from that of its process."""
        return Random(process.getrandbits(64))

    # -- machines -----------------------------------------------------------------------------------------------------

    def add_machine(self, node_id: int, name: str) -> Machine:
        machine = self.machines[node_id] = Machine(self, node_id, name)
        return machine

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, story: Coroutine[Any, Any, T], *, limit_s: float = 600.0, steps_max: int = 20_000_000) -> T:
        """Let the story happen, on machine 0; returns what it returns, raises what it or an invariant raises."""
        with self._quiet():
            try:
                task = self.machine.spawn(story, "story")
                self.scheduler.run(task.done, limit_s=limit_s, steps_max=steps_max)
            except OutOfTime as e:
                waiting = "; ".join(str(condition) for condition in self._conditions)
                raise OutOfTime(f"{e}{', waiting for ' + waiting if waiting else ''}") from None
            result = task.result()
            gc.collect(0)  # What was made in this run and is left by all: an exception that nobody looked at is told now.
            if self.scheduler.failure is not None:
                raise self.scheduler.failure
            return result

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """No garbage collection and no log output while virtual time runs."""
        was_enabled = gc.isenabled()
        gc.disable()
        before = events._get_running_loop()
        events._set_running_loop(None)
        try:
            looks_up = mock.patch.object(dial, "look_up", self.network.look_up)
            with captured_logs(self.trace), Generators(), cheaply_registered(), looks_up:
                yield
        finally:
            events._set_running_loop(before)
            if was_enabled:
                gc.enable()

    @contextlib.contextmanager
    def within(self, loop: NodeLoop) -> Iterator[None]:
        """What is called runs as that process."""
        before = events._get_running_loop()
        events._set_running_loop(loop)
        try:
            yield
        finally:
            events._set_running_loop(before)

    def close(self) -> None:
        """The world ends. What dead processes left is thrown away now; nothing that their finalizers do counts."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            with warnings.catch_warnings(action="ignore"):
                self._forget()
                gc.collect()
        finally:
            sys.unraisablehook = hook

    def _forget(self) -> None:
        for machine in self.machines.values():
            if machine.loop is not None:
                machine.loop.die()
                machine.graveyard.append(machine.loop)
                machine.loop = None
            for loop in machine.graveyard:
                loop.forget()
                dial._lookups.pop(loop, None)  # a look-up without an answer knows its loop, and would keep it
            machine.graveyard.clear()
        self.scheduler.clear()
        self.network.close()

    def on_unhandled(self, loop: NodeLoop, context: dict[str, Any]) -> None:
        """An exception reached an event loop's handler: nobody expected it, so it is a bug."""
        if not self.tolerates(loop, context):
            error = Unhandled(f"{loop.machine.name}: {context.get('message')}: {context.get('exception')!r}")
            error.__cause__ = context.get("exception")
            self.scheduler.fail(error)

    # -- for stories --------------------------------------------------------------------------------------------------

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(self, condition: Callable[[], object], within_s: float = 30.0, what: str = "") -> None:
        """Go on as soon as the condition holds, before anything else happens. `OutOfTime` names it when it does not come."""
        if not condition():
            self.waited_for += 1
            try:
                await self._until(condition, within_s, what)
            finally:
                self.waited_for -= 1

    async def _until(self, condition: Callable[[], object], within_s: float, what: str) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NodeLoop)
        waiting = _Condition(condition, loop, what)
        self._conditions.append(waiting)
        if len(self._conditions) == 1:
            self.scheduler.after_step.append(self._look)
        try:
            async with asyncio.timeout(within_s):
                await waiting.met
        except TimeoutError:
            raise OutOfTime(f"not within {within_s} s, at {self.now:.3f} s: {waiting}") from None
        finally:
            self._conditions.remove(waiting)
            if not self._conditions:
                self.scheduler.after_step.remove(self._look)

    def _look(self) -> None:
        for waiting in self._conditions:
            if not waiting.met.done() and not waiting.loop.is_dead:
                try:
                    if not waiting.condition():
                        continue
                    waiting.met.set_result(None)
                except Exception as e:
                    waiting.met.set_exception(e)
                waiting.loop.hurry()

    async def join(self, task: asyncio.Task[T]) -> T:
        """The result of a task of another process. `ProcessGone` when that process ends first."""
        loop = task.get_loop()
        assert isinstance(loop, NodeLoop)
        if not task.done():
            await self._until(lambda: task.done() or loop.is_dead, 3600.0, f"{task.get_name()} of {loop.machine.name}")
        if not task.done():
            raise ProcessGone(f"{loop.machine.name} ended before {task.get_name()} did")
        return task.result()


class SteadyWorld(World):
    """A world in which what the kernel leaves open is not drawn: turns come in the order of their causes, and every way takes its
    own time, longer between nodes of higher numbers.

    Processes draw as in any world (time-outs, ids). So a run changes only with what the processes do, and not because one of them
    gave its loop one more callback: a transcript of it can be compared line by line.
    """

    def stream(self, name: str) -> Random:
        return _Middle() if name in ("scheduler", "network") else super().stream(name)

    def stream_of_loop(self, process: Random) -> Random:
        process.getrandbits(64)
        return _Middle()

    def add_machine(self, node_id: int, name: str) -> Machine:
        machine = super().add_machine(node_id, name)
        for other in self.machines:
            for way in (self.network.link(node_id, other), self.network.link(other, node_id)):
                way.delay_s, way.jitter_s = STEADY_DELAY_S * (1 + node_id % 100 + other % 100), 0.0
        return machine


class _Middle(Random):
    """Draws the middle, always."""

    def random(self) -> float:
        return 0.5


class ProcessGone(Exception):
    """What was waited for will not come: its process is no more."""


class _Condition:
    def __init__(self, condition: Callable[[], object], loop: NodeLoop, what: str) -> None:
        self.condition = condition
        self.loop = loop
        self.met: asyncio.Future[None] = loop.create_future()
        self.what = what

    def __str__(self) -> str:
        return self.what or getattr(self.condition, "__qualname__", repr(self.condition))


__all__ = ["OutOfTime", "ProcessGone", "SimTask", "SteadyWorld", "Unhandled", "World"]
