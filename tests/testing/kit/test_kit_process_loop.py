"""A process loop is an event loop for the code inside it, and can be paused, stalled and killed from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
import pytest_asyncio

from strandline.testing.kit.door import Door
from strandline.testing.kit.lines import Lines, Speaker
from strandline.testing.kit.network import Network
from strandline.testing.kit.process_loop import ProcessLoop


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest_asyncio.fixture
async def loop(threads: ThreadPoolExecutor) -> ProcessLoop:
    real = asyncio.get_running_loop()
    door = Door(Network(Random(0)), 1, real)
    door.loop = ProcessLoop(real, threads, Speaker("broker-1", Lines()), door)  # type: ignore[abstract]
    return door.loop


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_running_loop_is_the_process_loop_only_inside_it(loop: ProcessLoop) -> None:
    found = []
    loop.call_soon(lambda: found.append(asyncio.get_running_loop()))

    async def inside() -> None:
        await asyncio.sleep(0)
        found.append(asyncio.get_running_loop())

    loop.create_task(inside())
    await turns()
    assert found == [loop, loop]
    assert asyncio.get_running_loop() is not loop


async def test_tasks_of_a_node_are_not_tasks_of_the_test(loop: ProcessLoop) -> None:
    """A framework that cancels all tasks of its loop must not cancel a broker's."""
    task = loop.create_task(asyncio.sleep(3600))
    await turns()
    assert task not in asyncio.all_tasks()
    assert task in asyncio.all_tasks(loop)
    loop.kill()
    loop.bury()


async def test_callbacks_of_a_stalled_loop_wait_in_order(loop: ProcessLoop) -> None:
    ran: list[int] = []
    loop.call_soon(ran.append, 1)
    await turns()
    loop.pause()
    loop.call_soon(ran.append, 2)
    loop.call_later(0, ran.append, 3)
    await asyncio.sleep(0.005)
    loop.post(ran.append, 4)
    assert ran == [1]
    loop.resume()
    loop.call_soon(ran.append, 5)
    await turns()
    assert ran == [1, 2, 3, 4, 5]


async def test_callback_cancelled_during_a_stall_does_not_run(loop: ProcessLoop) -> None:
    ran: list[str] = []
    loop.pause()
    handle, timer = loop.call_soon(ran.append, "soon"), loop.call_later(0, ran.append, "later")
    await asyncio.sleep(0.005)
    handle.cancel()
    timer.cancel()
    loop.resume()
    await turns()
    assert ran == []


async def test_time_passes_while_it_is_stalled(loop: ProcessLoop) -> None:
    """A timer that became due meanwhile fires late, as after a SIGCONT."""
    fired: list[float] = []
    due = loop.time() + 0.001
    loop.call_at(due, lambda: fired.append(loop.time()))
    loop.pause()
    await asyncio.sleep(0.02)
    loop.resume()
    await turns()
    assert fired[0] >= due + 0.015


async def test_waits_for_the_disk_add_up(loop: ProcessLoop) -> None:
    ran: list[float] = []
    began = loop.time()

    def write_twice() -> None:
        loop.stall(0.02)
        loop.stall(0.02)

    loop.call_soon(write_twice)
    loop.call_soon(lambda: ran.append(loop.time()))
    await asyncio.sleep(0.06)
    assert ran[0] - began >= 0.04
    assert not loop.is_stalled


async def test_callback_that_stalls_delays_the_backlog_behind_it(loop: ProcessLoop) -> None:
    ran: list[int] = []
    loop.pause()
    loop.post(loop.stall, 0.02)
    loop.post(ran.append, 1)
    loop.resume()
    await turns()
    assert ran == []
    await asyncio.sleep(0.03)
    assert ran == [1]


async def test_result_of_a_thread_waits_while_the_loop_is_stalled(loop: ProcessLoop) -> None:
    results = []

    async def work() -> None:
        results.append(await asyncio.get_running_loop().run_in_executor(None, lambda: 17))

    loop.create_task(work())
    await turns(1)
    loop.pause()
    await asyncio.sleep(0.01)
    assert results == []
    loop.resume()
    await asyncio.sleep(0.01)
    assert results == [17]


async def test_an_error_in_a_callback_reaches_the_real_loops_handler(loop: ProcessLoop) -> None:
    contexts: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
    loop.call_soon(lambda: 1 // 0)
    await turns()
    assert isinstance(contexts[0]["exception"], ZeroDivisionError)
    assert "broker-1" in loop.problems[0]


async def test_bury_closes_coroutines_that_await_in_finally(
    loop: ProcessLoop, recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    """The garbage collector must find no coroutine that was never closed."""
    seen = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            seen.append("finally")

    loop.create_task(stubborn())
    loop.create_task(asyncio.sleep(3600))
    await turns()
    loop.create_task(stubborn())  # It never ran at all.
    loop.kill()
    assert seen == []
    assert len(loop.unfinished) == 3
    loop.bury()
    del loop
    import gc

    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []
    assert caplog.text == ""
