"""A world: virtual time, a network, machines, and one seed from which every random number in it is drawn.

    world = World(seed=7)
    world.run(story(world))       # a coroutine on machine 0: the nemesis, a directed scenario, a test

Random numbers come from named streams (`stream("network")`), so one more draw in one part does not change what another part
draws. While a world runs, Python's garbage collector is off, and structlog's lines go into the trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import hashlib
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
"""The machine of the test, the nemesis and the story. Its clock is that of the world."""


pbkdf2_hmac = functools.lru_cache(4096)(hashlib.pbkdf2_hmac)
"""The salted password of SCRAM takes a millisecond or two, at each login of a client. In a simulation the users are few, so it is
computed once per process of this machine."""


class Unhandled(AssertionError):
    """Production code raised an exception that no code caught."""


_is_start_kept = False
"""Whether `gc.freeze` was called for the objects that existed before the first world."""


def _keep_the_start() -> None:
    """Exclude the objects that existed before the first world (modules, classes) from garbage collection. They are far more than
    those of a world, and would be traversed at the end of each."""
    global _is_start_kept
    if not _is_start_kept:
        _is_start_kept = True
        gc.freeze()


STEADY_DELAY_S = 0.000_3


class World:
    trace_class: ClassVar[type[Trace]] = Trace
    """The class of the traces of new worlds. `canary.py` sets one that writes every step to a file."""

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
        """Whether an exception that reached the handler of a loop was expected."""
        self.waited_for = 0
        """Number of conditions that are being waited for. While there are any, a step runs one turn only, because the waiting
        code must continue right after the turn in which its condition is met."""
        self._conditions: list[_Condition] = []

    @property
    def now(self) -> float:
        """Seconds of virtual time since the beginning."""
        return self.scheduler.now

    def stream(self, name: str) -> Random:
        """The source of random numbers with this name. Every call returns a new one that draws the same numbers."""
        return Random(f"{self.seed}/{name}")

    def stream_of_loop(self, process: Random) -> Random:
        """The source of random numbers of an event loop, from that of its process."""
        return Random(process.getrandbits(64))

    # -- machines -----------------------------------------------------------------------------------------------------

    def add_machine(self, node_id: int, name: str) -> Machine:
        machine = self.machines[node_id] = Machine(self, node_id, name)
        return machine

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, story: Coroutine[Any, Any, T], *, limit_s: float = 600.0, steps_max: int = 20_000_000) -> T:
        """Run the story on machine 0 until it ends. Returns its result; raises its exception, or the violation that an invariant
        found."""
        with self._quiet():
            try:
                task = self.machine.spawn(story, "story")
                self.scheduler.run(task.done, limit_s=limit_s, steps_max=steps_max)
            except OutOfTime as e:
                waiting = "; ".join(str(condition) for condition in self._conditions)
                raise OutOfTime(f"{e}{', waiting for ' + waiting if waiting else ''}") from None
            result = task.result()
            gc.collect(0)  # Finds the exceptions of tasks of this run that no code awaited: their finalizers report them now.
            if self.scheduler.failure is not None:
                raise self.scheduler.failure
            return result

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Disable garbage collection and log output while virtual time runs."""
        was_enabled = gc.isenabled()
        gc.disable()
        before = events._get_running_loop()
        events._set_running_loop(None)
        try:
            looks_up = mock.patch.object(dial, "look_up", self.network.look_up)
            salts = mock.patch.object(hashlib, "pbkdf2_hmac", pbkdf2_hmac)
            with captured_logs(self.trace), Generators(), cheaply_registered(), looks_up, salts:
                yield
        finally:
            events._set_running_loop(before)
            if was_enabled:
                gc.enable()

    @contextlib.contextmanager
    def within(self, loop: NodeLoop) -> Iterator[None]:
        """Run the block as code of that process: its loop is the running one."""
        before = events._get_running_loop()
        events._set_running_loop(loop)
        try:
            yield
        finally:
            events._set_running_loop(before)

    def close(self) -> None:
        """End the world: drop what dead processes left. Nothing that their finalizers do or log counts."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            with warnings.catch_warnings(action="ignore"), captured_logs(Trace(self.scheduler.clock)):
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
                dial.forget(loop)
            machine.graveyard.clear()
        self.scheduler.clear()
        self.network.close()

    def on_unhandled(self, loop: NodeLoop, context: dict[str, Any]) -> None:
        """Handle an exception that reached the handler of an event loop: the run fails, unless `tolerates` returns true for
        it."""
        if not self.tolerates(loop, context):
            error = Unhandled(f"{loop.machine.name}: {context.get('message')}: {context.get('exception')!r}")
            error.__cause__ = context.get("exception")
            self.scheduler.fail(error)

    # -- for stories --------------------------------------------------------------------------------------------------

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(self, condition: Callable[[], object], within_s: float = 30.0, what: str = "") -> None:
        """Wait until the condition holds, and continue before anything else happens. `OutOfTime` names the condition if it does
        not hold within `within_s`."""
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
        """Await the result of a task of another process. Raises `ProcessGone` if that process ends first."""
        loop = task.get_loop()
        assert isinstance(loop, NodeLoop)
        if not task.done():
            await self._until(lambda: task.done() or loop.is_dead, 3600.0, f"{task.get_name()} of {loop.machine.name}")
        if not task.done():
            raise ProcessGone(f"{loop.machine.name} ended before {task.get_name()} did")
        return task.result()


class SteadyWorld(World):
    """A world whose event loops and network draw nothing: turns run in the order of their causes, and each link has a delay of
    its own, longer between nodes with higher numbers.

    Processes draw as in any world (time-outs, ids). So a run changes only if a process behaves differently, and not if its loop
    has one more callback, and a transcript of the run can be compared line by line.
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
    """Every draw is the middle of the range."""

    def random(self) -> float:
        return 0.5


class ProcessGone(Exception):
    """The process that had to deliver a result has ended."""


class _Condition:
    def __init__(self, condition: Callable[[], object], loop: NodeLoop, what: str) -> None:
        self.condition = condition
        self.loop = loop
        self.met: asyncio.Future[None] = loop.create_future()
        self.what = what

    def __str__(self) -> str:
        return self.what or getattr(self.condition, "__qualname__", repr(self.condition))


__all__ = ["OutOfTime", "ProcessGone", "SimTask", "SteadyWorld", "Unhandled", "World"]
