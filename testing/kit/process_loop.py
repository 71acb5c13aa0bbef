"""An event loop for one node among several in a real event loop; it can be killed and paused.

All nodes of a cluster run in the test's own loop and thread. Each has a `ProcessLoop`: production code that asks for the
running loop gets it, so all tasks, timers, futures and connections of the node belong to it. It does not run by itself. It
schedules every callback on the real loop, wrapped, and decides when the wrapper is called whether the node may run:

    alive           the callback runs, in the order in which it was scheduled
    stalled         the callback waits, with all later ones, until the node continues (after a pause, or a slow disk)
    dead            the callback is dropped: after the kill no code of the node runs, not even a `finally`

The coroutines of a dead node are kept until the cluster closes, so that the garbage collector does not finish them in the
middle of a test.

The real loop may be asyncio's or uvloop: only the public methods of an event loop are used. Operations that need the real loop
(to open a connection or a listener) run as its tasks, and their results are passed to futures of this loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any, Protocol, TypeVar

from strandline.testing.kit.lines import Speaker, speaking_in_thread

T = TypeVar("T")

_FINALLY_AWAITS_MAX = 20


class NetworkAccess(Protocol):
    """Opens connections and listens for one process: a `Door` (`door.py`)."""

    async def dial(self, make: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]: ...

    async def listen(self, make: Callable[[], Any], host: str, port: int, **options: Any) -> Any: ...


class _Timer(asyncio.TimerHandle):
    """A timer of the node, with the timer of the real loop that fires it."""

    __slots__ = ("real",)

    real: asyncio.TimerHandle

    def cancel(self) -> None:
        if not self.cancelled():
            self.real.cancel()
        super().cancel()


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one process of one node. The node's next process gets a new one."""

    def __init__(
        self, real: asyncio.AbstractEventLoop, threads: ThreadPoolExecutor, speaker: Speaker, door: NetworkAccess
    ) -> None:
        self.speaker = speaker
        """The logger for lines that are logged while a callback of this loop runs (`lines.py`)."""
        self.is_dead = False
        self.is_paused = False
        self.problems: list[str] = []
        """Errors that reached the exception handler. Each one is a bug in Strandline."""
        self._real = real
        self._threads = threads
        self._door = door
        self._busy_until = 0.0
        self._wakes: asyncio.TimerHandle | None = None
        """Timer of the real loop that ends the present stall; None: the node's disk is not busy."""
        self._backlog: deque[asyncio.Handle] = deque()
        """Callbacks that became due while the node was stalled, in order. Later callbacks run after them."""
        self._is_draining = False
        self._outside: set[asyncio.Task[Any]] = set()
        """Tasks that the real loop runs for this node."""

    # -- running ------------------------------------------------------------------------------------------------------

    @property
    def is_stalled(self) -> bool:
        return self.is_paused or self._wakes is not None

    def _run(self, handle: asyncio.Handle) -> None:
        """Called by the real loop: run the callback now, or keep it until the node continues."""
        if self.is_dead:
            return
        if self._backlog or self._is_draining or self.is_stalled:
            self._backlog.append(handle)
            self._drain()
        else:
            self._enter(handle)

    def _enter(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            with self.entered():
                handle._run()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Make this the running loop inside the `with` block."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(before)

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Call the node at once because of an outside event (bytes arrived, a connection broke), or as soon as it continues."""
        self._run(asyncio.Handle(callback, args, self))

    def _drain(self) -> None:
        if self._is_draining:
            return
        self._is_draining = True
        try:
            while self._backlog and not self.is_stalled and not self.is_dead:
                self._enter(self._backlog.popleft())
        finally:
            self._is_draining = False

    # -- stalls, and the end ------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause the node like SIGSTOP: it keeps its sockets and timers and runs no code."""
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self._real.call_soon(self._drain)

    def stall(self, seconds: float) -> None:
        """Stop the node for the time of a disk operation. Several calls in a row add up."""
        now = self._real.time()
        self._busy_until = max(now, self._busy_until) + seconds
        if self._wakes is None and not self.is_dead:
            self._wakes = self._real.call_at(self._busy_until, self._on_disk_done)

    def _on_disk_done(self) -> None:
        self._wakes = None
        if self._busy_until > self._real.time():
            self._wakes = self._real.call_at(self._busy_until, self._on_disk_done)
        else:
            self._drain()

    def kill(self) -> None:
        """End the process: none of its callbacks runs after that."""
        self.is_dead = True
        self._backlog.clear()
        if self._wakes is not None:
            self._wakes.cancel()
            self._wakes = None
        for task in list(self._outside):
            task.cancel()

    @property
    def unfinished(self) -> list[asyncio.Task[Any]]:
        """Tasks that are not done."""
        return [task for task in asyncio.all_tasks(self) if not task.done()]

    def bury(self) -> None:
        """Close the coroutines of a dead process. Their `finally` blocks run now and can reach no file and no connection."""
        for task in self.unfinished:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine: Any = task.get_coro()
            with self.entered():
                for _ in range(_FINALLY_AWAITS_MAX):
                    try:
                        coroutine.close()
                        break
                    except RuntimeError:  # The coroutine awaits something in a `finally`.
                        continue
                    except BaseException:
                        break

    # -- an event loop's methods --------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._real.time()

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        if not self.is_dead:
            self._real.call_soon(self._run, handle)
        return handle

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        if not self.is_dead:
            self._real.call_soon_threadsafe(self._run, handle)
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_at(self._real.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        timer = _Timer(when, callback, args, self, context)
        timer.real = self._real.call_at(when, self._run, timer)
        if self.is_dead:
            timer.cancel()
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio calls this when a timer is cancelled. Nothing to do: `_Timer.cancel` has cancelled the real timer."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> Any:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run `func` on the cluster's threads. While the node is stalled, its result is not delivered."""
        return asyncio.wrap_future(self._threads.submit(speaking_in_thread, self.speaker, func, args), loop=self)

    async def create_connection(self, make: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return await self._door.dial(make, host, port)

    async def create_server(self, make: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return await self._door.listen(make, host, port, **options)

    def call_outside_at(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """Call `callback` at this time even if the node is stalled or dead, because it is not an action of the node."""
        self._real.call_at(when, callback, *args)

    async def outside(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the real loop and wait for its result in this one."""
        done: asyncio.Future[T] = self.create_future()
        task = asyncio.Task(coroutine, loop=self._real)
        self._outside.add(task)

        def on_done(task: asyncio.Task[T]) -> None:
            self._outside.discard(task)
            self.post(carry_over, task, done)

        task.add_done_callback(on_done)
        try:
            return await done
        finally:
            task.cancel()

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead

    def get_debug(self) -> bool:
        return self._real.get_debug()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.problems.append(f"{self.speaker.node}: {context.get('message')}: {context.get('exception')!r}")
            self._real.call_exception_handler(context)

    def __repr__(self) -> str:
        state = "dead" if self.is_dead else "stalled" if self.is_stalled else "alive"
        return f"<ProcessLoop of {self.speaker.node}, {state}>"


def carry_over(task: asyncio.Task[T], done: asyncio.Future[T]) -> None:
    """Copy the outcome of a finished task of one loop to a future of another, unless that future is done already."""
    if done.done():
        return
    if task.cancelled():
        done.cancel()
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())
