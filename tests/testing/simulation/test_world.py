"""A world: one seed, one time, and no remains when it is closed."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from asyncio import events
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
import structlog

from strandline.protocol.rpc import dial
from strandline.testing.simulation.kernel.loop import NodeLoop
from strandline.testing.simulation.kernel.scheduler import OutOfTime
from strandline.testing.simulation.kernel.world import ProcessGone, Unhandled, World

logger = structlog.get_logger()


@pytest.fixture
def world() -> Iterator[World]:
    with closing(World(1)) as world:
        yield world


async def fail(error: Exception) -> None:
    await asyncio.sleep(1)
    raise error


# -- running ----------------------------------------------------------------------------------------------------------


def test_run_returns_the_result_or_error_of_its_story(world: World) -> None:
    async def story() -> str:
        await world.sleep(5)
        return "the end"

    assert world.run(story()) == "the end"
    assert world.now >= 5
    with pytest.raises(KeyError, match="lost"):
        world.run(fail(KeyError("lost")))


def test_second_story_continues_in_the_same_world(world: World) -> None:
    world.run(world.sleep(1))
    world.add_machine(1, "node").boot()
    seen: list[float] = []
    world.machines[1].loop.call_later(1, lambda: seen.append(world.now))  # type: ignore[union-attr]
    world.run(world.sleep(5))
    assert seen == [pytest.approx(2, abs=0.01)]


def test_a_world_has_bounds(world: World) -> None:
    with pytest.raises(OutOfTime, match="not over after"):
        world.run(world.sleep(100), limit_s=10)
    with pytest.raises(OutOfTime, match=r"and 5. steps"):
        world.run(spin(), steps_max=50)


async def spin() -> None:
    while True:
        await asyncio.sleep(0)


def test_failed_check_after_a_step_ends_the_run(world: World) -> None:
    def check() -> None:
        if world.now > 3:
            raise AssertionError("I1")

    async def story() -> None:
        with suppress(AssertionError):
            await asyncio.sleep(10)

    world.scheduler.after_step.append(check)
    with pytest.raises(AssertionError, match="I1"):
        world.run(story())
    assert world.now < 11


def test_unretrieved_exception_is_raised_before_the_world_ends(world: World) -> None:
    """Otherwise a task that dies silently would be a seed without a failure. Only the garbage collector can notice that the task
    has no other reference than its own."""
    machine = world.add_machine(1, "node")
    machine.boot()

    async def work() -> None:
        task = asyncio.current_task()
        await asyncio.sleep(1)
        raise ValueError(f"nobody asks {task.get_name()}")  # type: ignore[union-attr]

    machine.spawn(work(), "the quiet one")
    with pytest.raises(Unhandled, match="nobody asks the quiet one"):
        world.run(world.sleep(5))


def test_streams_of_chance_do_not_disturb_one_another() -> None:
    with closing(World(5)) as one, closing(World(5)) as other, closing(World(6)) as third:
        one.stream("a").random()
        assert one.stream("b").random() == other.stream("b").random() != third.stream("b").random()
        assert one.stream("a").random() == other.stream("a").random() != one.stream("b").random()


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_story_continues_before_other_events(world: World) -> None:
    """So a story can do the following: when the leader has appended it, hold its answer."""
    state: list[int] = []
    loops = [world.add_machine(node, f"node-{node}").boot()[0] for node in range(1, 6)]

    def work(loop: NodeLoop) -> None:
        state.append(loop.machine.id)
        loop.call_soon(work, loop)

    async def story() -> None:
        for length in range(3, 100, 7):
            await world.until(lambda length=length: len(state) >= length)
            assert len(state) == length

    for loop in loops:
        loop.call_later(1, work, loop)
    world.run(story())


def test_failed_wait_names_its_condition(world: World) -> None:
    def the_sky_falls() -> bool:
        return False

    async def story() -> None:
        began = world.now
        with pytest.raises(OutOfTime, match=r"not within 5 s, at 5\.\d+ s: .*the_sky_falls"):
            await world.until(the_sky_falls, 5)
        assert world.now - began == pytest.approx(5, abs=0.01)
        with pytest.raises(OutOfTime, match="a leader"):
            await world.until(lambda: False, 5, "a leader")
        assert world.scheduler.after_step == []

    world.run(story())


def test_out_of_time_names_the_condition(world: World) -> None:
    with pytest.raises(OutOfTime, match=r"not over.*waiting for a leader"):
        world.run(world.until(lambda: False, 1000, "a leader"), limit_s=10)


def test_error_in_a_condition_is_raised_in_the_waiter(world: World) -> None:
    state: list[int] = [1, 1]

    async def story() -> None:
        world.machine.loop.call_later(1, state.clear)  # type: ignore[union-attr]
        with pytest.raises(IndexError):
            await world.until(lambda: state[1] > 1)

    world.run(story())


def test_condition_of_a_dead_process_is_dropped(world: World) -> None:
    machine = world.add_machine(1, "node")
    machine.boot()
    asked: list[float] = []
    machine.spawn(world.until(lambda: asked.append(world.now), 1000))

    async def story() -> None:
        await world.sleep(1)
        machine.crash()
        asked.clear()
        await world.sleep(10)
        assert asked == []

    world.run(story())


def test_the_task_of_another_process_can_be_waited_for(world: World) -> None:
    machine = world.add_machine(1, "node")
    machine.boot()

    async def story() -> None:
        assert await world.join(machine.spawn(asyncio.sleep(5, "result"))) == "result"
        with pytest.raises(KeyError):
            await world.join(machine.spawn(fail(KeyError())))
        task = machine.spawn(asyncio.sleep(1000), "a long work")
        machine.loop.call_later(1, machine.crash)  # type: ignore[union-attr]
        with pytest.raises(ProcessGone, match="node ended before a long work did"):
            await world.join(task)

    world.run(story())


# -- what a world changes in its interpreter --------------------------------------------------------------------------


def surroundings() -> tuple[Any, ...]:
    return (
        gc.isenabled(),
        events._get_running_loop(),
        sys.get_asyncgen_hooks(),
        sys.unraisablehook,
        dial.look_up,
        structlog.is_configured(),
        str(structlog.get_config()),
    )


@pytest.mark.parametrize("error", [None, KeyError("story"), KeyboardInterrupt()])
def test_world_restores_global_state(world: World, error: BaseException | None) -> None:
    before = surroundings()
    during: list[tuple[Any, ...]] = []

    async def story() -> None:
        during.append(surroundings())
        if error is not None:
            raise error

    with suppress(KeyError, KeyboardInterrupt):
        world.run(story())
    assert surroundings() == before
    assert not any(now == then for now, then in zip(during[0][:3], before[:3], strict=True))
    world.close()
    assert surroundings() == before


async def test_a_world_may_run_inside_a_loop_that_runs() -> None:
    """For example, the test is a coroutine."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    with closing(World(1)) as world:

        async def story() -> None:
            assert isinstance(asyncio.get_running_loop(), NodeLoop)
            await world.sleep(1000)

        world.run(story(), limit_s=2000)
    assert asyncio.get_running_loop() is loop
    assert asyncio.current_task() is task
    await asyncio.sleep(0)


def test_log_lines_enter_the_trace_with_their_node(world: World) -> None:
    machine = world.add_machine(7, "node")
    loop, _, _ = machine.boot()

    def say(where: str) -> None:
        logger.warning("said", where=where)

    def say_and_die() -> None:
        machine.crash()
        say("the dead")

    loop.call_soon(say, "loop")
    loop.run_in_executor(None, say, "thread")
    loop.call_later(1, say_and_die)
    world.run(world.sleep(2))
    said = sorted((event.fields["where"], event.node) for event in world.trace.events(kinds="log.said"))
    assert said == [("loop", 7), ("thread", 7)]


def test_worlds_leave_nothing_in_memory() -> None:
    """A sweep runs thousands of them in one process."""

    async def forget(world: World) -> None:
        for number in range(3):
            machine = world.machines[number]
            machine.spawn(asyncio.sleep(1000))
            machine.spawn(dial.resolve("nobody answers"))
        await world.sleep(1)
        world.machines[1].crash()
        world.machines[2].power_cut()

    def live() -> None:
        with closing(World(1)) as world:
            world.network.silent_names.add("nobody answers")
            for number in (1, 2):
                world.add_machine(number, f"node-{number}").boot()
            world.run(forget(world))
            worlds.append(weakref.ref(world))

    worlds: list[weakref.ref[World]] = []
    live()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(20):
        live()
    gc.collect()
    assert [world() for world in worlds] == 21 * [None]
    assert len(gc.get_objects()) - before < 200
