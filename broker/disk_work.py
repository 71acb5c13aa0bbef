"""Slow work beside the event loop: on a thread if the broker has threads, otherwise at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from strandline.protocol.loggers import get_logger
from strandline.storage.files import DiskError

logger = get_logger(__name__)

RunBlocking = Callable[[Callable[[], None], Callable[[], None]], None]
"""Runs the first callable on a thread, and then the second on the loop, even if the first has failed."""


class DiskWork:
    """Runs work on the disk beside the event loop, and reports a `DiskError` to `on_disk_error`, on the loop."""

    def __init__(self, run_blocking: RunBlocking | None, on_disk_error: Callable[[DiskError], None]) -> None:
        self._run_blocking = run_blocking
        self._on_disk_error = on_disk_error

    def run(self, work: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        """Run `work`, and then `then` on the loop, even if the work has failed."""
        self.run_each((work,), then)

    def run_each(self, works: Sequence[Callable[[], None]], then: Callable[[], None] | None = None) -> None:
        """Run all of `works`, even if some of them fail, and then `then` on the loop."""
        failures: list[DiskError] = []

        def guarded() -> None:
            for work in works:
                try:
                    work()
                except DiskError as e:
                    failures.append(e)

        def done() -> None:
            for failure in failures:
                self._on_disk_error(failure)
            if then is not None:
                then()

        if self._run_blocking is not None:
            self._run_blocking(guarded, done)
        else:
            guarded()
            done()


def run_blocking(work: Callable[[], None], then: Callable[[], None], pool: ThreadPoolExecutor | None = None) -> None:
    """Run `work` on a thread, and then `then` on the loop, even if the work has failed. `pool`: by default the loop's."""

    def on_done(done: asyncio.Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.warning("broker.blocking_work_failed", reason=str(error))
        then()

    asyncio.get_running_loop().run_in_executor(pool, work).add_done_callback(on_done)


class WorkThreads:
    """A few threads for work that needs the processor and not the disk, so that reads of the disk do not wait for it, and few
    threads compete with the event loop. Called as a `RunBlocking`."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="work")
        self._is_stopped = False

    def __call__(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        def unless_stopped() -> None:
            if not self._is_stopped:
                then()

        run_blocking(work, unless_stopped, self._pool)

    def resize(self, count: int) -> None:
        """Change the number of threads. Work that was submitted before still runs on the old ones."""
        if self._is_stopped:
            return
        before, self._pool = self._pool, ThreadPoolExecutor(count, thread_name_prefix="work")
        before.shutdown(wait=False)

    def stop(self) -> None:
        """Drop the work that has not begun, and call no further `then`. Does not wait for work in progress."""
        self._is_stopped = True
        self._pool.shutdown(wait=False, cancel_futures=True)
