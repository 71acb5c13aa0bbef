"""Threads for the preparation of compressed batches."""

from __future__ import annotations

import asyncio
import threading

from waiting import until

from strandline.broker.disk_work import WorkThreads


def test_then_follows_the_work_on_the_loop_also_if_it_failed() -> None:
    async def scenario() -> None:
        threads, done = WorkThreads(1), asyncio.Event()
        seen: list[object] = []

        def fail() -> None:
            seen.append(threading.current_thread() is threading.main_thread())
            raise ValueError("broken")

        def then() -> None:
            seen.append(asyncio.get_running_loop())
            done.set()

        threads(fail, then)
        await asyncio.wait_for(done.wait(), 10)
        assert seen == [False, asyncio.get_running_loop()]
        threads.stop()

    asyncio.run(scenario())


def test_another_number_of_threads_loses_no_work() -> None:
    async def scenario() -> None:
        threads, go_on, both, done = WorkThreads(1), threading.Event(), threading.Barrier(2), asyncio.Event()
        seen: list[int] = []

        def wait() -> None:
            assert go_on.wait(10)

        def meet() -> None:
            both.wait(10)

        threads(wait, lambda: seen.append(1))
        threads(lambda: None, lambda: seen.append(2))
        threads.resize(2)
        threads(meet, lambda: seen.append(3))
        threads(meet, done.set)
        await asyncio.wait_for(done.wait(), 20)
        go_on.set()
        await until(lambda: sorted(seen) == [1, 2, 3])
        threads.stop()
        threads.resize(3)

    asyncio.run(scenario())


def test_a_stopped_broker_begins_no_further_work_and_appends_nothing() -> None:
    """Its logs are closed by then, and the work of a hostile client could keep the process alive for minutes."""

    async def scenario() -> None:
        threads, begun, go_on = WorkThreads(1), threading.Event(), threading.Event()
        seen: list[str] = []

        def work() -> None:
            begun.set()
            go_on.wait(10)
            seen.append("worked")

        threads(work, lambda: seen.append("appended"))
        threads(lambda: seen.append("begun"), lambda: seen.append("appended"))
        assert begun.wait(10)
        threads.stop()
        go_on.set()
        for thread in [thread for thread in threading.enumerate() if thread.name.startswith("work")]:
            thread.join(10)
        for _ in range(3):
            await asyncio.sleep(0)  # what the thread has put into the loop runs
        assert seen == ["worked"]

    asyncio.run(scenario())
