"""The one thread on which all of a program's callbacks run, so that they keep their order.

They must not run on the client's loop: a callback may commit or seek, and would wait for the loop that waits for it. They cannot
run on the thread of the program either, because it may be at work. A rebalance waits for a callback as in the client for asyncio,
and in the meantime the callback may call the consumer."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from strandline.client.consumer.group.callbacks import RebalanceCallback
from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import UsageError

Job = Callable[[], object]


class CallbackThread:
    """The thread of the callbacks, which starts with the first one. `name`: the name of the thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def is_current(self) -> bool:
        """Whether the caller is a callback."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def post(self, job: Job) -> None:
        """Run a callback soon. Its errors are passed to `threading.excepthook`, and the thread continues."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def close(self) -> None:
        """End the thread after the callbacks that were posted, without waiting for that."""
        if self._thread is not None:
            self._jobs.put(None)

    def on_rebalance(self, callback: RebalanceCallback | None) -> RebalanceCallback | None:
        """A coroutine function for the client's loop, which runs a plain callback on this thread and waits for it."""
        if callback is None:
            return None
        if inspect.iscoroutinefunction(callback):
            raise UsageError(
                f"a callback of a client without asyncio is a plain function, and {callback!r} is a coroutine function"
            )

        async def run(partitions: list[TopicPartition]) -> None:
            loop = asyncio.get_running_loop()
            done: asyncio.Future[None] = loop.create_future()

            def job() -> None:
                error: Exception | None = None
                try:
                    callback(partitions)
                except Exception as e:
                    error = e
                loop.call_soon_threadsafe(_settle, done, error)

            self.post(job)
            await done

        return run

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as e:
                hook = threading.ExceptHookArgs((type(e), e, e.__traceback__, self._thread))
                threading.excepthook(hook)


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():  # The rebalance has stopped waiting.
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def in_order(thread: CallbackThread, callback: Callable[[Any], object]) -> Callable[[Any], None]:
    """A function that posts a call of the callback with its argument, and returns at once."""
    return lambda argument: thread.post(lambda: callback(argument))
