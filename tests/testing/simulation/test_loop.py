"""All production code takes the simulated loop for asyncio's, so it must behave as asyncio's does.

`PROGRAMS` are run on asyncio's own loop, on uvloop and on a simulated one, and have to log the same. What asyncio leaves open,
and what only a simulated process can do (die, be paused, have a wrong clock), is checked further down.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import uvloop

from strandline.testing.simulation.kernel.loop import TURN_S_MAX, NodeLoop, ProcessDied
from strandline.testing.simulation.kernel.machine import Machine
from strandline.testing.simulation.kernel.scheduler import OutOfTime
from strandline.testing.simulation.kernel.world import Unhandled, World

Log = list[Any]
Program = Callable[[Log], Awaitable[None]]
PROGRAMS: list[Program] = []

VALUE: contextvars.ContextVar[str] = contextvars.ContextVar("VALUE", default="none")
T_S = 0.02
"""Long enough for a real loop to keep two timers apart, unless the computer is very busy."""
SLOWER = (1, 5, 25)
"""If the computer is too busy, the delay is multiplied by these."""


def program(function: Program) -> Program:
    PROGRAMS.append(function)
    return function


def loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


# -- what a loop promises ---------------------------------------------------------------------------------------------


@program
async def call_soon_is_first_in_first_out(log: Log) -> None:
    for number in range(10):
        loop().call_soon(log.append, number)
    await asyncio.sleep(T_S)


@program
async def what_is_made_in_a_turn_runs_in_the_next(log: Log) -> None:
    def first() -> None:
        log.append("first")
        loop().call_soon(third)

    def second() -> None:
        log.append("second")

    def third() -> None:
        log.append("third")

    loop().call_soon(first)
    loop().call_soon(second)
    await asyncio.sleep(0)
    log.append("the waiter was ready before the third was made")
    await asyncio.sleep(0)
    log.append("end")


@program
async def a_cancelled_handle_is_not_called(log: Log) -> None:
    soon = loop().call_soon(log.append, "soon")
    later = loop().call_later(T_S, log.append, "later")
    kept = loop().call_later(T_S, log.append, "kept")
    soon.cancel()
    later.cancel()
    log.append((soon.cancelled(), later.cancelled(), kept.cancelled()))
    await asyncio.sleep(2 * T_S)
    later.cancel()
    log.append((later.cancelled(), kept.cancelled()))


@program
async def a_callback_may_cancel_the_next_one(log: Log) -> None:
    handles: list[asyncio.Handle] = []
    loop().call_soon(lambda: handles[0].cancel())
    handles.append(loop().call_soon(log.append, "never"))
    await asyncio.sleep(T_S)
    log.append("end")


@program
async def timers_come_in_the_order_of_their_times_and_not_early_but_for_rounding(log: Log) -> None:
    began = loop().time()

    def on_time(name: str, when: float) -> None:
        log.append((name, loop().time() >= when - 0.001))

    for name, after_s in (("c", 3 * T_S), ("a", T_S), ("b", 2 * T_S)):
        handle = loop().call_at(began + after_s, on_time, name, began + after_s)
        log.append(round(handle.when() - began, 6))
    await asyncio.sleep(5 * T_S)


@program
async def a_timer_whose_time_has_passed_fires_soon_but_not_at_once(log: Log) -> None:
    loop().call_at(loop().time() - 5, log.append, "passed")
    loop().call_later(-1, log.append, "passed")
    loop().call_later(0, log.append, "passed")
    log.append("now")
    await asyncio.sleep(T_S)


@program
async def an_exception_in_a_callback_reaches_the_handler_only(log: Log) -> None:
    def bad() -> None:
        raise ValueError("bad")

    loop().set_exception_handler(lambda _, context: log.append((type(context["exception"]), str(context["exception"]))))
    loop().call_soon(bad)
    loop().call_soon(log.append, "the next one runs")
    await asyncio.sleep(T_S)
    log.append(loop().get_exception_handler() is not None)


@program
async def an_exception_of_a_task_that_is_never_read_reaches_the_handler(log: Log) -> None:
    async def bad() -> None:
        raise ValueError("bad")

    loop().set_exception_handler(
        lambda _, context: log.append((context["message"].removeprefix("Sim"), str(context["exception"])))
    )
    task = loop().create_task(bad())
    await asyncio.sleep(T_S)
    del task
    gc.collect()


@program
async def context_variables_go_with_callbacks_tasks_and_timers(log: Log) -> None:
    def tell(where: str) -> None:
        log.append((where, VALUE.get()))
        VALUE.set("set in a callback")

    async def child() -> None:
        tell("task")

    VALUE.set("outer")
    loop().call_soon(tell, "soon")
    loop().call_later(T_S, tell, "later")
    given = contextvars.copy_context()
    given.run(VALUE.set, "given")
    loop().call_soon(tell, "given context", context=given)
    task = loop().create_task(child())
    other = loop().create_task(child(), context=given)
    VALUE.set("changed afterwards")
    await asyncio.gather(task, other)
    await asyncio.sleep(2 * T_S)
    log.append(VALUE.get())


# -- tasks ------------------------------------------------------------------------------------------------------------


@program
async def a_task_begins_in_the_next_turn_and_tells_its_result(log: Log) -> None:
    async def work() -> str:
        log.append("work")
        return "result"

    task = loop().create_task(work(), name="a name")
    log.append((task.done(), task.get_name()))
    log.append(await task)
    log.append((task.done(), task.cancelled(), task.exception()))


@program
async def a_cancelled_task_runs_its_finally_and_may_refuse(log: Log) -> None:
    async def obedient() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            log.append("finally")

    async def stubborn() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError as e:
            log.append(e.args)
            asyncio.current_task().uncancel()  # type: ignore[union-attr]
        return "went on"

    one, other, never = (loop().create_task(coroutine) for coroutine in (obedient(), stubborn(), obedient()))
    never.cancel()  # cancelled before its first step, which it never takes
    await asyncio.sleep(0)
    one.cancel()
    other.cancel("why")
    log.append(await asyncio.gather(one, other, never, return_exceptions=True))
    log.append([task.cancelled() for task in (one, other, never)])


@program
async def done_callbacks_run_in_their_order_after_the_task(log: Log) -> None:
    async def work() -> None:
        log.append("work")

    task = loop().create_task(work())
    task.add_done_callback(lambda _: log.append("first"))
    task.add_done_callback(lambda _: log.append("second"))
    await task
    log.append("waiter")
    task.add_done_callback(lambda _: log.append("late"))
    log.append("not at once")
    await asyncio.sleep(T_S)


@program
async def gather_keeps_order_and_tells_the_first_error(log: Log) -> None:
    async def work(after_s: float, result: object) -> object:
        await asyncio.sleep(after_s)
        if isinstance(result, Exception):
            raise result
        log.append(result)
        return result

    log.append(await asyncio.gather(work(2 * T_S, 1), work(T_S, 2), work(0, 3)))
    with contextlib.suppress(ValueError):
        await asyncio.gather(work(0, ValueError()), work(T_S, "goes on"))
    log.append("raised")
    await asyncio.sleep(2 * T_S)


@program
async def a_gather_that_is_cancelled_cancels_its_children(log: Log) -> None:
    async def child(name: str) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            log.append(name)

    task = asyncio.ensure_future(asyncio.gather(child("a"), child("b")))
    await asyncio.sleep(T_S)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    log.append("cancelled")


@program
async def a_shield_is_cancelled_and_its_inner_task_continues(log: Log) -> None:
    async def inner() -> str:
        await asyncio.sleep(2 * T_S)
        log.append("inner done")
        return "result"

    protected = loop().create_task(inner())

    async def outer() -> None:
        try:
            await asyncio.shield(protected)
        except asyncio.CancelledError:
            log.append("outer cancelled")
            raise

    task = loop().create_task(outer())
    await asyncio.sleep(T_S)
    task.cancel()
    log.append(await asyncio.gather(task, return_exceptions=True))
    log.append(await protected)


@program
async def wait_returns_the_tasks_that_are_done(log: Log) -> None:
    async def work(after_s: float) -> float:
        await asyncio.sleep(after_s)
        return after_s

    tasks = [loop().create_task(work(n * 2 * T_S)) for n in (1, 2, 3)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    log.append((len(done), len(pending)))
    done, pending = await asyncio.wait(tasks, timeout=T_S)
    log.append((len(done), len(pending)))
    done, pending = await asyncio.wait(tasks)
    log.append((sorted(task.result() for task in done), len(pending)))


@program
async def a_time_out_cancels_and_becomes_an_error(log: Log) -> None:
    try:
        async with asyncio.timeout(T_S) as scope:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                log.append("cancelled inside")
                raise
    except TimeoutError:
        log.append(("time is over", scope.expired()))
    async with asyncio.timeout(T_S) as scope:
        scope.reschedule(loop().time() + 100)
        await asyncio.sleep(2 * T_S)
    log.append(("rescheduled", scope.expired()))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.sleep(100)
    log.append("at once")
    try:
        async with asyncio.timeout(100), asyncio.timeout(T_S):
            await asyncio.sleep(100)
    except TimeoutError:
        log.append("the inner one")
    try:
        await asyncio.wait_for(asyncio.sleep(100), T_S)
    except TimeoutError:
        log.append("wait_for")


@program
async def a_task_group_cancels_the_others_when_one_fails(log: Log) -> None:
    async def child(name: str) -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            log.append(name)
            raise

    async def bad() -> None:
        await asyncio.sleep(T_S)
        raise ValueError("bad")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(child("a"))
            group.create_task(bad())
    except* ValueError as e:
        log.append([str(error) for error in e.exceptions])
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(T_S))
    log.append("waited")


@program
async def an_event_a_lock_a_queue_a_semaphore(log: Log) -> None:
    event, lock, queue, semaphore = asyncio.Event(), asyncio.Lock(), asyncio.Queue[int](2), asyncio.Semaphore(2)

    async def worker(number: int) -> None:
        await event.wait()
        async with semaphore:
            async with lock:
                log.append(("locked", number))
                await asyncio.sleep(0)
            await queue.put(number)
            log.append(("put", number))

    workers = [loop().create_task(worker(number)) for number in range(5)]
    await asyncio.sleep(0)
    event.set()
    for _ in range(5):
        log.append(("got", await queue.get()))
        queue.task_done()
    await queue.join()
    await asyncio.gather(*workers)
    waiter = loop().create_task(lock.acquire())
    async with asyncio.Condition() as _:
        await waiter
    log.append(lock.locked())


@program
async def the_task_that_runs_is_known(log: Log) -> None:
    async def child() -> None:
        log.append(asyncio.current_task() is task)

    task = loop().create_task(child())
    await task
    log.append(asyncio.current_task() is task)
    loop().call_soon(lambda: log.append(asyncio.current_task()))
    await asyncio.sleep(T_S)
    log.append(task in asyncio.all_tasks())


@program
async def a_future_tells_once(log: Log) -> None:
    future = loop().create_future()
    loop().call_later(T_S, future.set_result, 5)
    log.append(await future)
    with contextlib.suppress(asyncio.InvalidStateError):
        future.set_result(6)
    log.append((future.result(), future.get_loop() is loop()))
    gone = loop().create_future()
    gone.cancel()
    log.append((gone.cancelled(), await asyncio.gather(gone, return_exceptions=True)))


@program
async def as_completed_yields_in_the_order_of_the_ends(log: Log) -> None:
    async def work(after_s: float) -> float:
        await asyncio.sleep(after_s)
        return after_s

    for next_one in asyncio.as_completed([work(3 * T_S), work(T_S), work(2 * T_S)]):
        log.append(await next_one)


# -- asynchronous generators ------------------------------------------------------------------------------------------


async def numbers(log: Log) -> Any:
    try:
        for number in range(100):
            await asyncio.sleep(0)
            yield number
    finally:
        await asyncio.sleep(0)
        log.append("closed")


@program
async def a_generator_that_is_left_is_closed_by_the_loop(log: Log) -> None:
    async for number in numbers(log):
        log.append(number)
        if number == 2:
            break
    log.append("left")
    await asyncio.sleep(T_S)


@program
async def generators_that_are_open_at_the_end_are_closed(log: Log) -> None:
    kept = numbers(log)
    log.append(await anext(kept))
    await loop().shutdown_asyncgens()
    log.append("shut down")
    with contextlib.suppress(StopAsyncIteration):
        await anext(kept)
    log.append("over")


# -- threads ----------------------------------------------------------------------------------------------------------


@program
async def work_on_a_thread_gives_its_result_or_its_exception(log: Log) -> None:
    def work(number: int) -> int:
        if number < 0:
            raise ValueError("negative")
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            log.append("a thread has a loop")
        return 2 * number

    log.append(await loop().run_in_executor(None, work, 4))
    with contextlib.suppress(ValueError):
        await loop().run_in_executor(None, work, -1)
    log.append(await asyncio.gather(*[loop().run_in_executor(None, work, n) for n in range(3)]))
    VALUE.set("mine")
    log.append((await loop().run_in_executor(None, VALUE.get), await asyncio.to_thread(VALUE.get)))


@program
async def the_loop_turns_while_a_thread_works(log: Log) -> None:
    def slow() -> None:
        time.sleep(T_S)
        log.append("work")

    work = loop().run_in_executor(None, slow)
    log.append("turns")
    await asyncio.sleep(0)
    log.append("turns")
    await work
    log.append("worked")


@program
async def the_result_of_work_whose_future_is_cancelled_is_dropped(log: Log) -> None:
    future = loop().run_in_executor(None, int)
    future.cancel()
    log.append(await asyncio.gather(future, return_exceptions=True))
    await asyncio.sleep(T_S)


def in_reality(function: Program, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> Log:
    log: Log = []
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(function(log))  # type: ignore[arg-type]
    return log


def simulated(function: Program, seed: int = 1, limit_s: float = 600.0) -> Log:
    log: Log = []
    with closing(World(seed)) as world:
        world.run(function(log), limit_s=limit_s)  # type: ignore[arg-type]
    return log


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_a_program_does_the_same_on_a_simulated_loop(function: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    shortest_s = T_S
    for slower in SLOWER:
        monkeypatch.setattr(f"{__name__}.T_S", shortest_s * slower)
        logs = [in_reality(function, asyncio.new_event_loop), in_reality(function, uvloop.new_event_loop)]
        logs += [simulated(function, seed) for seed in range(5)]
        expected, *others = [[str(item) for item in log] for log in logs]
        assert expected
        if all(other == expected for other in others):
            return
    assert others == [expected] * len(others)


def test_waiting_takes_no_real_time() -> None:
    async def patient(log: Log) -> None:
        began = loop().time()
        await asyncio.sleep(30 * 24 * 3600)
        log.append(loop().time() - began)

    assert simulated(patient, limit_s=1e9)[0] >= 30 * 24 * 3600


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_an_eager_task_begins_where_it_is_made() -> None:
    async def story(log: Log) -> None:
        async def child() -> None:
            log.append("child")
            await asyncio.sleep(0)
            log.append("the rest")

        task = loop().create_task(child(), eager_start=True)
        log.append("maker")
        await task

    assert simulated(story) == ["child", "maker", "the rest"]


# -- what is drawn ----------------------------------------------------------------------------------------------------


def test_timers_of_one_moment_fire_in_an_order_of_the_seed() -> None:
    """asyncio promises no order, and uvloop rounds times to milliseconds: code that relies on an order must fail."""

    async def equals(log: Log) -> None:
        when = loop().time() + 1
        for number in range(6):
            loop().call_at(when, log.append, number)
        await asyncio.sleep(2)

    orders = {tuple(simulated(equals, seed)) for seed in range(10)}
    assert len(orders) > 5
    assert simulated(equals, 3) == simulated(equals, 3)


def test_loop_with_millisecond_time_fires_timers_slightly_early() -> None:
    """uvloop does so, too. Code that takes a timer as the proof that its time has come would spin, or miss something."""
    early: list[float] = []
    for seed in range(40):
        with closing(World(seed)) as world:
            node, _, _ = world.add_machine(1, "node").boot()
            random = world.stream("delays")
            for _ in range(20):
                when = node.time() + random.random()
                node.call_at(when, lambda node=node, when=when: early.append(when - node.time()))
            world.run(world.sleep(2))
            on_time = early[-20:]
            assert node.is_coarse == (max(on_time) > 0) == (abs(node.time() * 1000 - round(node.time() * 1000)) < 1e-6)
            assert world.machine.loop is not None
            assert not world.machine.loop.is_coarse
    assert 0.0004 < max(early) <= 0.0005001


def test_extreme_timer_values_do_no_harm(world: World) -> None:
    for seed in range(6):
        node, _, _ = world.add_machine(100 + seed, f"node-{seed}").boot()
        handles = [node.call_at(when, print) for when in (1e15, float("inf"))]
        node.call_at(-1e15, lambda: None)
        world.run(world.sleep(1))
        assert not any(handle.cancelled() for handle in handles)


def test_which_of_several_threads_is_first_is_drawn() -> None:
    async def threads(log: Log) -> None:
        await asyncio.gather(*[loop().run_in_executor(None, log.append, number) for number in range(5)])

    assert len({tuple(simulated(threads, seed)) for seed in range(10)}) > 5


def test_cancelled_work_may_be_done_or_not() -> None:
    async def cancelled(log: Log) -> None:
        loop().run_in_executor(None, log.append, "begun").cancel()
        await asyncio.sleep(1)

    assert {len(simulated(cancelled, seed)) for seed in range(20)} == {0, 1}


def test_a_set_of_tasks_has_the_same_order_in_every_run() -> None:
    """By default an object hashes by its address, and `asyncio.wait` hands out sets."""

    async def sets(log: Log) -> None:
        waste = [object() for _ in range(len(garbage) % 97)]  # different addresses in each run
        tasks = {loop().create_task(asyncio.sleep(0), name=f"t{n}") for n in range(50)}
        futures = {loop().create_future(): n for n in range(50)}
        done, _ = await asyncio.wait(tasks)
        log.append([task.get_name() for task in done])
        log.append([futures[future] for future in set(futures)])
        del waste

    garbage: list[bytes] = []
    first = simulated(sets)
    garbage += [bytes(n) for n in range(1000, 2033)]
    assert simulated(sets) == first


# -- a process that dies, is paused, has a wrong clock -------------------------------------------------------------


class Process:
    """One machine with a process, beside the world's own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.machine: Machine = self.world.add_machine(1, "node")
        self.loop, _, _ = self.machine.boot()
        self.log: Log = []

    def run(self, seconds: float) -> None:
        self.world.run(self.world.sleep(seconds))


@pytest.fixture
def world() -> Iterator[World]:
    with closing(World(1)) as world:
        yield world


@pytest.fixture
def process(world: World) -> Process:
    return Process(world)


async def ticks(log: Log, every_s: float = 1.0) -> None:
    try:
        while True:
            await asyncio.sleep(every_s)
            log.append(round(loop().time() - 1001, 3))
    finally:
        log.append("finally")


def test_dead_process_runs_no_code_not_even_finally(process: Process) -> None:
    process.machine.spawn(ticks(process.log))
    process.machine.spawn(ticks(process.log))
    process.loop.run_in_executor(None, process.log.append, "thread")
    process.run(2.5)
    before = list(process.log)
    process.loop.run_in_executor(None, process.log.append, "thread")
    process.loop.call_soon(process.log.append, "soon")
    process.machine.crash()
    gc.collect()
    process.run(10)
    assert process.log == before
    assert before.count("thread") == 1


def test_leftovers_of_a_dead_process_are_dropped_with_the_world(process: Process) -> None:
    """A finalizer that ran when the collector liked would make two runs of a seed differ."""
    process.machine.spawn(ticks(process.log))
    process.run(1.5)
    process.machine.crash()
    gc.collect()
    process.run(1.5)
    assert "finally" not in process.log
    process.world.close()
    assert process.log[-1] == "finally"  # logged by the coroutine that is destroyed


def test_a_process_that_dies_in_its_own_call_finishes_nothing_else(process: Process) -> None:
    """The disk crashes the machine inside a write: the write never returns, and nothing behind it happens."""

    def die() -> None:
        process.log.append("dies")
        process.machine.crash()
        raise ProcessDied

    async def work() -> None:
        loop().call_soon(process.log.append, "made before, never called")
        try:
            die()
        finally:
            loop().call_soon(process.log.append, "made after, never called")
        process.log.append("went on")

    process.machine.spawn(work())
    process.loop.call_later(0.5, process.log.append, "timer")
    process.run(2)
    assert process.log == ["dies"]
    assert process.world.scheduler.failure is None


def test_a_process_may_die_on_one_of_its_threads(process: Process) -> None:

    def die() -> None:
        process.machine.crash()
        raise ProcessDied

    async def work() -> None:
        try:
            await loop().run_in_executor(None, die)
        finally:
            process.log.append("told")

    process.machine.spawn(work())
    process.run(2)
    assert process.log == []
    assert not process.machine.is_up


def test_paused_process_keeps_its_timers_until_it_resumes(process: Process) -> None:
    process.machine.spawn(ticks(process.log))
    process.loop.call_later(2, process.log.append, "timer")
    process.run(1.5)
    process.machine.pause()
    process.loop.run_in_executor(None, process.log.append, "thread")
    process.run(5)
    assert process.log == [1.0]
    process.machine.resume()
    process.run(0.01)
    assert sorted(map(str, process.log)) == sorted(map(str, [1.0, 6.5, "timer", "thread"]))
    process.run(1)
    assert process.log[-1] == pytest.approx(7.5, abs=0.01)


def test_a_paused_process_that_dies_stays_dead(process: Process) -> None:
    process.machine.spawn(ticks(process.log))
    process.machine.pause()
    process.loop.run_in_executor(None, process.log.append, "thread")
    process.run(3)
    process.machine.crash()
    process.loop.resume()
    process.run(3)
    assert process.log == []


def test_delayed_process_begins_its_next_iteration_later(process: Process) -> None:

    def slow() -> None:
        process.loop.spend(0.25)
        process.loop.spend(0.25)
        loop().call_soon(lambda: process.log.append(process.world.now))

    process.loop.call_soon(slow)
    process.run(2)
    (at,) = process.log
    assert 0.5 <= at <= 0.5 + 2 * TURN_S_MAX


def test_time_of_a_thread_holds_up_only_the_task_that_waits_for_it(process: Process) -> None:

    async def work() -> None:
        await loop().run_in_executor(None, process.loop.spend, 3.0)
        process.log.append("worked")

    process.machine.spawn(ticks(process.log))
    process.machine.spawn(work())
    process.run(4.5)
    assert process.log == [1.0, 2.0, 3.0, "worked", 4.0]


@pytest.mark.parametrize("rate", [0.5, 0.95, 1.05, 2.0])
def test_clock_error_follows_its_rate(rate: float, process: Process) -> None:
    process.machine.clock_rate = rate
    began = process.loop.time()
    process.loop.call_later(10, lambda: process.log.append((process.world.now, process.loop.time() - began)))
    process.run(25)
    ((real, own),) = process.log
    assert real == pytest.approx(10 / rate, abs=0.003)
    assert own == pytest.approx(10, abs=0.002)


def test_change_of_clock_rate_causes_no_jump_or_early_timer(process: Process) -> None:
    machine = process.machine
    process.loop.call_later(10, lambda: process.log.append(("ten", process.world.now, process.loop.time())))
    gone = process.loop.call_later(9, process.log.append, "cancelled")
    process.run(5)
    before, wall = process.loop.time(), machine.wall_clock_ms()
    machine.clock_rate = 0.5
    assert process.loop.time() == pytest.approx(before)
    assert abs(machine.wall_clock_ms() - wall) <= 1
    gone.cancel()
    process.run(20)
    ((_, real, own),) = process.log
    assert real == pytest.approx(15, abs=0.003)
    assert own >= 1001 + 10 - 0.0005


def test_unhandled_exception_ends_the_run(process: Process) -> None:
    """It is a bug of ours, even where production code would log it and continue."""
    process.loop.call_soon(lambda: 1 / 0)
    with pytest.raises(Unhandled, match=r"node: Exception in callback .*lambda.*ZeroDivisionError"):
        process.run(1)
    assert len(process.loop.unhandled) == 1


def test_an_exception_that_the_world_expects_does_not(process: Process) -> None:
    process.world.tolerates = lambda node, context: isinstance(context["exception"], ZeroDivisionError)
    process.loop.call_soon(lambda: 1 / 0)
    process.run(1)
    assert len(process.loop.unhandled) == 1


def test_each_process_has_its_own_loop_and_tasks(world: World) -> None:
    logs: dict[int, Log] = {1: [], 2: []}

    async def work(node_id: int) -> None:
        running = asyncio.get_running_loop()
        assert isinstance(running, NodeLoop)
        logs[node_id].append((running.machine.id, {task.get_name() for task in asyncio.all_tasks()}))

    for node_id in (1, 2):
        world.add_machine(node_id, f"node-{node_id}").boot()
        world.machines[node_id].spawn(work(node_id), f"task of {node_id}")
    world.run(world.sleep(1))
    assert logs == {1: [(1, {"task of 1"})], 2: [(2, {"task of 2"})]}


def test_asyncio_lists_live_tasks_and_keeps_no_dead_one(world: World) -> None:
    """A worker of a sweep runs thousands of worlds, each with hundreds of tasks."""
    known: list[int] = []

    async def story() -> None:
        for _ in range(100):
            await asyncio.create_task(asyncio.sleep(0))
        waiting = asyncio.create_task(asyncio.sleep(1))
        await asyncio.sleep(0)
        known.append(len(asyncio.all_tasks()))
        assert asyncio.all_tasks() == {asyncio.current_task(), waiting}

    registry = getattr(asyncio.tasks, "_all_tasks", None)
    before = 0 if registry is None else len(registry.data)
    world.run(story())
    assert known == [2]
    if registry is not None:
        assert len(registry.data) - before <= 2, "those that live until the world is closed"
        assert "add" not in vars(registry)


def test_kernel_callbacks_see_no_context_variables(process: Process) -> None:
    VALUE.set("of the test")
    try:
        process.loop.io(lambda: process.log.append(VALUE.get()))
        process.run(1)
    finally:
        VALUE.set("none")
    assert process.log == ["none"]


@pytest.mark.parametrize(
    "call", ["add_signal_handler", "add_reader", "create_datagram_endpoint", "subprocess_exec", "getaddrinfo"]
)
def test_unsimulated_method_raises(call: str, process: Process) -> None:

    async def work() -> None:
        result = getattr(loop(), call)(1, lambda: None)
        if asyncio.iscoroutine(result):
            await result

    with pytest.raises(NotImplementedError):
        process.world.run(work())


@pytest.mark.parametrize("option", ["ssl", "sock", "local_addr", "server_hostname"])
def test_an_option_that_is_not_simulated_is_refused(option: str, process: Process) -> None:

    async def work() -> None:
        await loop().create_connection(asyncio.Protocol, "10.0.0.1", 1, **{option: object()})

    with pytest.raises(NotImplementedError, match=option):
        process.world.run(work())


def test_story_without_pending_events_raises_out_of_time(world: World) -> None:

    async def forever() -> None:
        await loop().create_future()

    with pytest.raises(OutOfTime, match="no event is left"):
        world.run(forever())
