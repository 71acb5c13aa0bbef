"""A thread with an event loop of its own, on which one client runs while other threads call it.

    caller                                   loop thread
      run(coroutine)  -- call_soon_threadsafe -->  a task
      waits on a future  <------ result or error --  the task ends

A caller that is interrupted (KeyboardInterrupt) while it waits cancels the task. A fork copies the client but not the thread,
so in the child every call raises UsageError: `os.register_at_fork` marks the copies, which costs the calls themselves nothing.

The thread is a daemon, so a program that forgets `stop` ends all the same. `atexit` stops the loops before the interpreter is
torn down, because a thread that still runs then may crash the process. Before that a client may end its work (`at_exit`)."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import uvloop

from strandline.client.errors import ClientClosed, UsageError

T = TypeVar("T")
P = ParamSpec("P")

CANCEL_ROUNDS = 10
WAKE_S = 0.5
"""The most seconds that a thread which waits for a result sleeps at a time."""
INFINITE_S = float("inf")
JOIN_S = 2.0
"""Seconds that `close` waits for the thread to end."""


class LoopThread:
    """The thread and the loop of one client. `client`: the name of the client in errors, such as "producer"."""

    def __init__(self, client: str) -> None:
        self._client = client
        self.loop = uvloop.new_event_loop()
        self.is_forked = False
        """This object is a copy in a forked process, where the thread does not exist."""
        self.is_closed = False
        self.on_forked: Callable[[], None] = lambda: None
        """Called in a forked process."""
        self.at_exit: Callable[[], None] = lambda: None
        """Called at the end of a program that has not stopped the client. It must return soon."""
        self._thread = threading.Thread(target=self._run, name=f"strandline {client}", daemon=True)
        self._thread.start()
        _running.add(self)

    @property
    def ident(self) -> int | None:
        """The thread's identifier."""
        return self._thread.ident

    def check_runs(self) -> None:
        """UsageError in a forked process; ClientClosed after `close`."""
        if self.is_forked:
            raise forked(self._client)
        if self.is_closed:
            raise ClientClosed(f"the {self._client} was stopped")

    def check(self) -> None:
        """The errors of `check_runs`; UsageError on the loop's own thread, which must not wait for itself."""
        self.check_runs()
        if threading.get_ident() == self._thread.ident:
            raise UsageError(
                f"the {self._client} was called on its own thread, which cannot wait for itself: a delivery callback or a "
                "deserializer hands work on to a thread of the program instead"
            )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and wait for its result or its error."""
        try:
            self.check()
        except BaseException:
            work.close()
            raise
        return wait_for(asyncio.run_coroutine_threadsafe(work, self.loop))

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function on the loop's thread, and wait for its result or its error."""
        self.check()
        future: Future[T] = Future()

        def act() -> None:
            try:
                result = function(*args, **kwargs)
            except BaseException as e:
                future.set_exception(e)
            else:
                future.set_result(result)

        self.loop.call_soon_threadsafe(act)
        return wait_for(future)

    def post(self, function: Callable[[], object]) -> None:
        """Call a function on the loop's thread soon, without waiting."""
        self.loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """End the loop, its tasks and the thread. A second call does nothing."""
        if self.is_closed or self.is_forked:
            return
        self.is_closed = True
        _running.discard(self)
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.get_ident() != self._thread.ident:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self._cancel_tasks()
        finally:
            self.loop.close()

    def _cancel_tasks(self) -> None:
        """Cancel all tasks, until none is left: a task that ends may begin another one, for example to open a connection
        again."""
        for _ in range(CANCEL_ROUNDS):
            tasks = asyncio.all_tasks(self.loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


def wait_for(future: Future[T], timeout_s: float | None = None) -> T:
    """The result of a future. If the wait itself is interrupted, the work behind it is cancelled. TimeoutError after
    `timeout_s`.

    It waits in short pieces, because a Ctrl-C that arrives in the moment before the thread blocks is handled only when the thread
    wakes."""
    left_s = INFINITE_S if timeout_s is None else timeout_s
    try:
        while True:
            try:
                return future.result(min(left_s, WAKE_S))
            except TimeoutError:
                left_s -= WAKE_S
                if left_s <= 0 or future.done():  # If the future is done, the TimeoutError may be that of the work.
                    return future.result(0)
    except CancelledError:
        raise ClientClosed("the client was stopped while the call waited") from None
    except BaseException:
        future.cancel()
        raise


def forked(client: str) -> UsageError:
    """The error of a call in a forked process."""
    return UsageError(
        f"the {client} was started before this process was forked, and its thread and connections belong to the parent: start "
        f"another {client} in the child, for example in the pool's initializer, or use the start method 'spawn'"
    )


_running: weakref.WeakSet[LoopThread] = weakref.WeakSet()
"""The threads of this process that are not closed. The set is iterated only in a forked child, where it has their copies, and at
exit."""


def _mark_forked() -> None:
    for thread in list(_running):
        thread.is_forked = True
        thread.on_forked()
    _running.clear()


def _close_all() -> None:
    for thread in list(_running):
        with suppress(Exception):  # The program ends in any case.
            thread.at_exit()
        thread.close()


os.register_at_fork(after_in_child=_mark_forked)
atexit.register(_close_all)
