"""Plays one seed of a test: a world, a cluster, the weather, and the test as a task on its own machine.

The test ends as under `asyncio.run`: tasks that it left behind are cancelled and get some time to end. If a task of the test
fails and nothing awaits it, the test fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from strandline.testing.kit.simulated.cluster import SimulatedCluster
from strandline.testing.kit.simulated.leap import leap
from strandline.testing.kit.simulated.surroundings import surroundings
from strandline.testing.kit.simulated.telling import Setting, page
from strandline.testing.kit.simulated.weather import Draw
from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.invariants.violation import Violation
from strandline.testing.simulation.kernel.loop import NodeLoop
from strandline.testing.simulation.kernel.scheduler import OutOfTime
from strandline.testing.simulation.kernel.trace import without_addresses
from strandline.testing.simulation.kernel.world import Unhandled, World
from strandline.testing.simulation.observation.probes import Probes

LAST_S = 30.0
"""Virtual seconds in which cancelled tasks that a test left behind must end."""
STEPS_MAX = 20_000_000
OURS = (Path(__file__).parent, Path(asyncio.__file__).parent)

Body = Callable[[SimulatedCluster], Coroutine[Any, Any, object]]


class NotDone(AssertionError):
    """The test did not finish within its limit of virtual time; the message says where it waits."""


class LeftBehind(AssertionError):
    """A task that the test left behind does not end after it was cancelled."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Options that all seeds of a test share."""

    faults: dict[str, float]
    is_gentle: bool
    limit_s: float
    invariants: bool
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the cluster."""


@dataclass(slots=True)
class Outcome:
    seed: int
    error: BaseException | None = None
    story: str = ""
    """The page of a failure (`telling.py`); empty if the seed passed."""
    trace_sha256: str = ""
    virtual_s: float = 0.0
    wall_s: float = 0.0
    events: int = 0
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def ending(self) -> tuple[str, str]:
        """Type and text of the error, which two runs of one seed must share, like the trace."""
        return ("", "") if self.error is None else (type(self.error).__qualname__, without_addresses(str(self.error)))


def run_test(body: Body, seed: int, plan: Plan) -> Outcome:
    return _Run(body, seed, plan).run()


class _Run:
    def __init__(self, body: Body, seed: int, plan: Plan) -> None:
        self.body, self.plan = body, plan
        self.outcome = Outcome(seed)
        self.world = world = World(seed)
        draw = Draw.of(world.stream("weather"), plan.faults)
        self.cluster = SimulatedCluster(world, seed, draw, plan.faults, is_gentle=plan.is_gentle, **plan.options)
        self.invariants = Invariants(world.trace, on_violation=world.scheduler.fail)
        self.task: asyncio.Task[Any] | None = None
        world.tolerates = self._on_unhandled

    def run(self) -> Outcome:
        began = time.perf_counter()
        outcome, world = self.outcome, self.world
        try:
            self._play()
        finally:
            outcome.trace_sha256, outcome.virtual_s, outcome.events = world.trace.sha256(), world.now, world.scheduler.steps
            outcome.faults = dict(self.cluster.weather.counts)
            world.close()
            world.trace.close()
            outcome.wall_s = time.perf_counter() - began
        return outcome

    def _play(self) -> None:
        machine = self.cluster.client.machine
        try:
            with self._watched(), surroundings(machine, self.world.stream("test")):
                self.world.run(self._story(), limit_s=self.plan.limit_s, steps_max=STEPS_MAX)
        except OutOfTime as e:
            self._failed(self._not_done(e))
        except (Violation, Unhandled, TaskFailed, LeftBehind) as e:
            self._failed(e.__cause__ if isinstance(e, TaskFailed) and e.__cause__ is not None else e)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        if not self.plan.invariants:
            yield
            return
        self.world.scheduler.after_step.append(self.invariants.after_step)
        with Probes(self.invariants):
            yield

    async def _story(self) -> None:
        cluster, world = self.cluster, self.world
        machine = cluster.client.machine
        await cluster.start()
        cluster.weather.begin()
        task = self.task = machine.spawn(self._test(), "the test")
        leaping = asyncio.get_running_loop().create_task(leap(machine, cluster.weather, cluster.timeout_s_max), name="leap")
        await world.until(task.done, within_s=self.plan.limit_s, what="the test")
        leaping.cancel()
        task.result()

    async def _test(self) -> None:
        try:
            await self.body(self.cluster)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as e:
            self._failed(e)
        await self._end_tasks()

    async def _end_tasks(self) -> None:
        """Cancel the remaining tasks and wait for them, as `asyncio.run` does at its end."""
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        assert isinstance(loop, NodeLoop)
        left = [task for task in loop.unfinished if task is not me]
        for task in left:
            task.cancel()
        if left:
            _, pending = await asyncio.wait(left, timeout=LAST_S)
            if pending:
                raise LeftBehind(
                    f"the test left tasks that do not end when they are cancelled: {'; '.join(map(_where, pending))}"
                )
            for task in left:
                if not task.cancelled() and (error := task.exception()) is not None:
                    self._failed(error)
        await loop.shutdown_asyncgens()

    # -- failures -----------------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        """Record the first error. Its page is written now, because the world changes or ends afterwards."""
        outcome = self.outcome
        if outcome.error is None:
            outcome.error = error.with_traceback(_of_the_test(error))
            outcome.story = page(error, Setting(outcome.seed, self.world, self.cluster))

    def _on_unhandled(self, loop: NodeLoop, context: dict[str, Any]) -> bool:
        """Fail the test for an error that asyncio would only log. False: it is not an error of the test's loop."""
        error = context.get("exception")
        if loop is not self.cluster.client.loop or error is None:
            return False
        if self.outcome.error is None:
            failed = TaskFailed(str(context.get("message")))
            failed.__cause__ = error
            error.add_note(f"{context.get('message')}: nobody in the test looks at it")
            self.world.scheduler.fail(failed)
        return True

    def _not_done(self, error: OutOfTime) -> BaseException:
        task, loop = self.task, self.cluster.client.machine.loop
        if task is None or loop is None:
            return error
        others = [other for other in loop.unfinished if other is not task]
        lines = [f"the test was not done after {self.world.now:.0f} s of virtual time", f"  it waits in {_where(task)}"]
        lines += [f"  a task of it, {_where(other)}" for other in others if not _is_ours(other)]
        return NotDone("\n".join(lines))


class TaskFailed(AssertionError):
    """A task of the test failed, and nothing awaited it."""


def _of_the_test(error: BaseException) -> Any:
    """The traceback without the outer frames that belong to the simulation or asyncio."""
    found = error.__traceback__
    while found is not None and Path(found.tb_frame.f_code.co_filename).parent in OURS:
        found = found.tb_next
    return found if found is not None else error.__traceback__


def _frames(task: asyncio.Task[Any]) -> list[FrameType]:
    """The frames at which the task waits, outermost first, without those of asyncio and the simulation."""
    frames: list[FrameType] = []
    awaited: Any = task.get_coro()
    while (frame := getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)) is not None:
        if Path(frame.f_code.co_filename).parent not in OURS:
            frames.append(frame)
        awaited = getattr(awaited, "cr_await", None)
    return frames


def _is_theirs(frame: FrameType) -> bool:
    return not str(frame.f_globals.get("__name__", "")).startswith("strandline.")


def _is_ours(task: asyncio.Task[Any]) -> bool:
    """Whether it is a task of Strandline's own code, such as a client's background task."""
    return not any(map(_is_theirs, _frames(task)))


def _where(task: asyncio.Task[Any]) -> str:
    frames = _frames(task)
    shown = [frame for frame in frames if _is_theirs(frame)] or frames[:1]
    places = [f"{f.f_code.co_name} ({Path(f.f_code.co_filename).name}:{f.f_lineno})" for f in shown]
    return f"{task.get_name()}: {' > '.join(places) or 'it has ended'}"
