"""An asyncio event loop for one simulated process: its time is virtual, its network is simulated.

Every simulated process has a loop object of its own, so that `asyncio.get_running_loop()` in the production code finds
the loop of the process that it runs in: with its own clock, its own tasks, and its own end. All loops are driven by one
`Scheduler`, in one thread.

What asyncio promises is kept: `call_soon` is first in, first out; timers do not fire early. What it leaves open is drawn
from the seed: when a process gets its turn, and what of the network has arrived by then. A turn runs all callbacks that
were ready when it began, as asyncio's does.

A process ends in one of two ways. In order: its tasks end, and the loop is closed. Or it **dies**: from one callback to
the next nothing of it runs any more, no `finally` and no destructor; what it leaves is kept until the world ends, so
that no finalizer runs at a moment that the garbage collector chose.

Tasks and futures hash by their number, not by their address: a set of them (`asyncio.wait` makes such) has the same
order in every run.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from strandline.testing.simulation.scheduler import Entry, Scheduler

if TYPE_CHECKING:
    from random import Random

    from strandline.testing.simulation.machine import Machine

T = TypeVar("T")

EXECUTOR_S_MAX = 0.005
"""How late after its call the work of `run_in_executor` is done, at most, while the machine is not slow."""


class ProcessDied(BaseException):
    """The simulated process ended here, inside an operation. No production code may catch it, and none goes on after it."""


class SimFuture(asyncio.Future[Any]):
    __slots__ = ("_number",)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimTask(asyncio.Task[Any]):
    __slots__ = ("_number",)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class Handle:
    """A callback that is ready, or waits for its time."""

    __slots__ = ("_entry", "_when", "args", "callback", "context")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None, when: float = 0.0
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self._entry: Entry | None = None
        self._when = when

    def cancel(self) -> None:
        self.callback = None
        self.args = ()
        if self._entry is not None:
            self._entry.cancel()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        """Of a timer: the loop's time at which it fires."""
        return self._when


class NodeLoop(asyncio.AbstractEventLoop):
    """The event loop of one process of one machine."""

    def __init__(self, machine: Machine, scheduler: Scheduler, random: Random) -> None:
        self.machine = machine
        self.incarnation = machine.incarnation
        self.is_dead = False
        self.paused = False
        """Stopped by a signal: it owns its timers and its sockets, and does nothing."""
        self.unhandled: list[dict[str, Any]] = []
        """What reached the loop's exception handler: a bug of ours, each of them."""
        self._scheduler = scheduler
        self._random = random
        self._ready: deque[Handle] = deque()
        self._turn_is_due = False
        self._busy_until = 0.0
        """Global time until which the process computes or waits for its disk."""
        self._closed = False
        self._tasks: list[SimTask] = []
        self._tasks_limit = 64
        self._numbers = 0
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._turn_s = 0.000_05
        """A turn begins this long after it became due, on average."""

    # -- time ---------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        machine = self.machine
        return machine.clock_offset_s + self._scheduler.now * machine.clock_rate

    def call_soon(self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None) -> Any:
        handle = Handle(callback, args, contextvars.copy_context() if context is None else context)
        if not self.is_dead:
            self._ready.append(handle)
            if not self._turn_is_due:
                self._schedule_turn()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        handle = Handle(callback, args, contextvars.copy_context() if context is None else context, when)
        if not self.is_dead:
            machine = self.machine
            at = (when - machine.clock_offset_s) / machine.clock_rate
            handle._entry = self._scheduler.at(at + 1e-9, self._on_timer, handle)
        return handle

    def _on_timer(self, handle: Handle) -> None:
        if handle.callback is not None and not self.is_dead:
            self._ready.append(handle)
            if not self._turn_is_due:
                self._schedule_turn()

    # -- turns --------------------------------------------------------------------------------------------------------

    def io(self, callback: Callable[..., object], *args: Any) -> None:
        """Something arrived from outside: the kernel tells the process in its next turn."""
        if not self.is_dead:
            self._ready.append(Handle(callback, args, None))
            if not self._turn_is_due:
                self._schedule_turn()

    def spend(self, seconds: float) -> None:
        """The process is held up: by its disk, or by computing."""
        self._busy_until = max(self._busy_until, self._scheduler.now) + seconds

    @property
    def busy_until(self) -> float:
        """What leaves the process now leaves it then."""
        now = self._scheduler.now
        return self._busy_until if self._busy_until > now else now

    def _schedule_turn(self) -> None:
        if not self.paused:
            self._turn_is_due = True
            self._scheduler.at(self.busy_until + self._turn_s * 2 * self._random.random(), self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        if self.is_dead or self.paused:
            return
        if self._busy_until > self._scheduler.now:
            self._schedule_turn()
            return
        ready = self._ready
        count = len(ready)
        self.machine.world.trace.step(self._scheduler.now, self.machine.id, count)
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for _ in range(count):
                handle = ready.popleft()
                callback = handle.callback
                if callback is None:
                    continue
                try:
                    if handle.context is None:
                        callback(*handle.args)
                    else:
                        handle.context.run(callback, *handle.args)
                except ProcessDied:
                    break
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as e:
                    self._on_callback_failed(callback, e)
                if self.is_dead:
                    break
        finally:
            events._set_running_loop(before)
        if ready and not self._turn_is_due and not self.is_dead:
            self._schedule_turn()

    def _on_callback_failed(self, callback: Callable[..., object], error: BaseException) -> None:
        self.call_exception_handler({"message": f"exception in callback {callback!r}", "exception": error})

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        if self._ready and not self._turn_is_due:
            self._schedule_turn()

    def die(self) -> None:
        """Nothing of this process runs any more."""
        self.is_dead = True
        self._ready.clear()

    # -- tasks and futures --------------------------------------------------------------------------------------------

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def create_future(self) -> asyncio.Future[Any]:
        future = SimFuture(loop=self)
        future._number = self._next_number()
        return future

    def create_task(
        self,
        coro: Coroutine[Any, Any, T],  # type: ignore[override]
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        number = self._next_number()
        task = SimTask.__new__(SimTask)
        task._number = number
        task.__init__(coro, loop=self, name=name or f"task-{number}", context=context)  # type: ignore[misc]
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_limit:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks_limit = max(64, 2 * len(self._tasks))
        return task

    @property
    def unfinished(self) -> list[asyncio.Task[Any]]:
        """The tasks that run or wait, oldest first."""
        return [task for task in self._tasks if not task.done()]

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """The work is done at a later moment, in one piece; the loop's turns go on meanwhile."""
        future = self.create_future()
        delay_s = EXECUTOR_S_MAX * self._random.random() * self.machine.slowness
        self._scheduler.after(delay_s, self._execute, future, func, args)
        return future

    def _execute(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self.is_dead:
            return
        if self.paused:
            self._scheduler.after(0.1, self._execute, future, func, args)
            return
        result, error = None, None
        busy_until = self._busy_until
        before = events._get_running_loop()
        events._set_running_loop(None)  # a thread has none
        self.machine.executing = True
        try:
            result = func(*args)
        except ProcessDied:
            return
        except BaseException as e:
            error = e
        finally:
            self.machine.executing = False
            events._set_running_loop(before)
        took_s, self._busy_until = max(0.0, self._busy_until - max(busy_until, self._scheduler.now)), busy_until
        self._scheduler.after(took_s, self._executed, future, result, error)

    def _executed(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self.io(_settle, future, result, error)

    # -- network ------------------------------------------------------------------------------------------------------

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return self.machine.world.network.listen(self, protocol_factory, host, port, start_serving=options["start_serving"])

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return await self.machine.world.network.connect(self, protocol_factory, host, port)

    # -- what asyncio asks of a loop ----------------------------------------------------------------------------------

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self.die()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.unhandled.append(context)
            self.machine.world.on_unhandled(self, context)

    def set_exception_handler(self, handler: Any) -> None:
        self._handler = handler

    def get_exception_handler(self) -> Any:
        return self._handler

    async def shutdown_asyncgens(self) -> None:
        return None

    def get_task_factory(self) -> None:
        return None

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Called by asyncio's own timer handles, which this loop does not make."""


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
