"""The common part of the clients without asyncio: a client for asyncio, and the thread on which it runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, ClassVar, Generic, ParamSpec, Protocol, Self, TypeVar

from strandline.client.errors import ClientClosed, RequestTimeout, UsageError
from strandline.client.sync.loop_thread import LoopThread, wait_for

T = TypeVar("T")
P = ParamSpec("P")


class AsyncClient(Protocol):
    """A client for asyncio."""

    async def start(self) -> None: ...


Client = TypeVar("Client", bound=AsyncClient)

STOP_GRACE_S = 5.0
"""Seconds that `stop` waits beyond the time that the client itself needs at most. If the loop does not answer by then, because a
callback or a deserializer of the program blocks it, its thread is abandoned."""


class Bridge(Generic[Client]):
    """Starts the thread and the client, passes calls on to it, and stops both."""

    _NAME: ClassVar[str]
    """The name of the client in errors, such as "producer"."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._thread: LoopThread | None = None
        """The thread with the client's loop; None before `start`."""
        self._started_in_handler = False
        """An exception was already being handled when the client was started, so an exception that is being handled during `stop`
        need not be the reason for the stop."""

    def start(self) -> None:
        if self._thread is not None:
            raise UsageError(f"the {self._NAME} was started before: create a new one")
        self._started_in_handler = sys.exception() is not None
        self._thread = LoopThread(self._NAME)
        try:
            self._thread.run(self._begin())
        except BaseException:
            self._thread.close()
            raise

    async def _begin(self) -> None:
        """The part of `start` that runs on the loop."""
        await self._client.start()

    def _stop(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float, otherwise: T) -> T:
        """Run `work` on the loop and end the thread. Returns `otherwise` if the client was not started, or has stopped."""
        thread = self._thread
        if thread is None or thread.is_closed:
            return otherwise
        thread.check()
        try:
            return wait_for(asyncio.run_coroutine_threadsafe(work(), thread.loop), timeout_s + STOP_GRACE_S)
        except TimeoutError:
            raise RequestTimeout(
                f"the thread of the {self._NAME} did not answer: a callback of the program may block it"
            ) from None
        finally:
            thread.close()

    def _cause(self) -> BaseException | None:
        """The exception that is being handled while `stop` is called, as in a `finally` clause."""
        return None if self._started_in_handler else sys.exception()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._exit(error)

    def _exit(self, error: BaseException | None) -> None:
        """Stop at the end of a `with` block. `error`: the exception that has ended the block; None: the block has ended
        normally."""
        raise NotImplementedError

    def _running(self) -> LoopThread:
        """The thread of a client that was started. ClientClosed before that."""
        if self._thread is None:
            text = f"use `with {type(self).__name__}(...)`, or `{self._NAME}.start()`"
            raise ClientClosed(f"the {self._NAME} was not started: {text}")
        return self._thread

    def _run(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a coroutine function of the client on its loop, and wait for the result."""
        thread = self._running()
        thread.check()
        return thread.run(function(*args, **kwargs))

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function of the client on its loop. Before `start` and after `stop` there is no loop, so it is called
        directly."""
        return self._peek(function, *args, **kwargs)

    def _peek(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same as `_call`, for a call that any thread may make at any time."""
        thread = self._thread
        if thread is None or thread.is_closed:
            return function(*args, **kwargs)
        return thread.call(function, *args, **kwargs)
