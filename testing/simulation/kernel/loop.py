"""An asyncio event loop for one simulated process, on virtual time and a simulated network.

Every simulated process has a loop object of its own, so that `asyncio.get_running_loop()` in the production code returns the
loop of the process that it runs in, with its own clock, tasks and end. One `Scheduler` drives all loops, in one thread.

The loop keeps what asyncio promises: `call_soon` is first in, first out; a turn runs all callbacks that were ready when it
began. What asyncio leaves open is drawn from the seed: when a process gets its turn, which of several timers of one moment fires
first, and what the network has delivered by then. On half of the loops timers do not fire early. The others keep time like
uvloop, which nodes use: in milliseconds, with the delay of a timer rounded to them, so that it may fire half a millisecond early.

A process ends in one of two ways. In order: its tasks end, and the loop is closed. Or it **dies**: after the current callback no
more of its code runs, no `finally` and no destructor. Its objects are kept until the world ends, so that no finalizer runs at a
moment that the garbage collector chose. A process may die inside one of its own calls (a disk that crashes the machine raises
`ProcessDied`). The rest of that callback then runs without effect, because the loop, the network and the disk of a dead process
do nothing.

Tasks and futures hash by their number and not by their address, so a set of them (`asyncio.wait` builds such sets) has the same
order in every run.

Methods of a loop that the product does not need (threads of its own, signals, pipes, TLS, datagrams) raise
`NotImplementedError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import weakref
from asyncio import events, tasks
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from strandline.testing.simulation.kernel.interfaces import Host
from strandline.testing.simulation.kernel.process import OWNER, ProcessDied
from strandline.testing.simulation.kernel.scheduler import QUIET, Entry, Scheduler, cancel

if TYPE_CHECKING:
    from random import Random

T = TypeVar("T")

EXECUTOR_S_MAX = 0.005
"""The longest delay, in seconds, before the work of `run_in_executor` is done, on a machine of normal speed."""
TURN_S_MAX = 0.000_1
"""The longest delay, in seconds, before a turn that is due begins."""
GOES_ON, TURNS_MAX = 0.75, 6
"""The chance that a turn follows the previous one at once, with nothing between them, and the largest number of such turns in a
row. While a story waits for a condition (`World.until`) no turn follows at once, because the story would see the condition too
late."""
DELAY_S_MAX = 1e10
"""The longest delay of a timer on a coarse clock, as on uvloop."""
_CLOCK_S = 1e-9
"""A timer fires this much after its time, so that rounding never makes it fire before."""


class SimFuture(asyncio.Future[Any]):
    __slots__ = ("_number",)
    _number: int

    def __hash__(self) -> int:
        return self._number


class SimTask(asyncio.Task[Any]):
    __slots__ = ("_number",)
    _number: int

    def __hash__(self) -> int:
        return self._number


class Handle(msgspec.Struct, eq=False):
    """A callback that is ready. It is a struct because half of all objects of a run are handles, and a struct is created without
    Python code."""

    callback: Callable[..., object] | None
    """None once the handle is cancelled."""
    args: tuple[Any, ...]
    _context: contextvars.Context

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def get_context(self) -> contextvars.Context:
        return self._context

    def __repr__(self) -> str:
        return f"<Handle {'cancelled' if self.callback is None else name_of(self.callback)}>"


class Timer(Handle):
    """A callback that waits for its time."""

    _when: float
    _due: float
    _entry: Entry | None = None
    """Its entry in the scheduler."""

    def cancel(self) -> None:
        self.callback = None
        self.args = ()
        if self._entry is not None:
            cancel(self._entry)
            self._entry = None

    def when(self) -> float:
        """The time of the loop at which it fires."""
        return self._when


def name_of(callback: Callable[..., object] | None) -> str:
    """The name of a callback, the same in every process. For a step of a task: the names of the task and its coroutine."""
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return f"{task.get_name()}: {getattr(task.get_coro(), '__qualname__', '?')}"
    function = getattr(callback, "func", callback)  # a functools.partial
    return str(getattr(function, "__qualname__", type(function).__name__))


class NodeLoop(asyncio.AbstractEventLoop):
    """The event loop of one process of one machine."""

    def __init__(self, machine: Host, scheduler: Scheduler, random: Random) -> None:
        self.machine = machine
        self.incarnation = machine.incarnation
        self.is_dead = False
        self.paused = False
        """Stopped by a signal: it keeps its timers and sockets, and does nothing."""
        self.unhandled: list[dict[str, Any]] = []
        """The contexts that reached the exception handler of the loop. Each is a bug of the product, unless the world tolerates
        it."""
        self.watch: Callable[[NodeLoop, list[Handle]], object] | None = getattr(machine.world.trace, "watch", None)
        """Called with the callbacks of each turn before the turn runs them (`canary.py`)."""
        self._scheduler = scheduler
        self._draw = random.random
        self.is_coarse = machine.id != 0 and random.random() < 0.5
        """Its clock shows whole milliseconds."""
        self._trace_step = machine.world.trace.step
        self._ready: deque[Handle] = deque()
        self._turn_is_due = False
        self._busy_until = 0.0
        """The process computes or waits for its disk until this time of the world."""
        self._stopped: list[Callable[[], None]] = []
        """The actions of the process's threads that became due while it was paused, in order."""
        self._closed = False
        self._context = contextvars.Context()
        """The context of the kernel's callbacks. It holds no context variable of the product."""
        self._tasks: dict[int, SimTask] = {}
        """Tasks that are not done, by number. In a dead process they keep its coroutines from being finalized."""
        self._numbers = 0
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._generators: WeakKeyDictionary[AsyncGenerator[Any, Any], int] = WeakKeyDictionary()
        """Asynchronous generators that have begun, numbered in the order in which they did."""
        self._generators_begun = 0

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def run_time(self) -> float:
        """The time of the run, which no process sees."""
        return self._scheduler.now

    def time(self) -> float:
        machine = self.machine
        time = machine.clock_offset_s + self._scheduler.now * machine.seconds_per_second
        return int(time * 1000) / 1000 if self.is_coarse else time

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        handle = Handle(callback, args, copy_context() if context is None else context)
        if not self.is_dead:
            self._ready.append(handle)
            if not self._turn_is_due:
                self._schedule_turn()
        elif self._closed:
            raise RuntimeError("Event loop is closed")
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        now = self.time()
        return self._timer(now + delay, now, callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self._timer(when, self.time() if self.is_coarse else 0.0, callback, args, context)

    def _timer(
        self,
        when: float,
        now: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> Timer:
        """`now` is used by coarse clocks only."""
        handle = Timer(callback, args, copy_context() if context is None else context, when, when)
        if not self.is_dead:
            if self.is_coarse:
                handle._due = now + round(min(when - now, DELAY_S_MAX) * 1000) / 1000
            self._arm(handle)
        elif self._closed:
            raise RuntimeError("Event loop is closed")
        return handle

    def _arm(self, handle: Timer) -> None:
        machine = self.machine
        at = (handle._due - machine.clock_offset_s) / machine.seconds_per_second
        handle._entry = self._scheduler.at(at + _CLOCK_S, self.on_timer, handle)

    def on_timer(self, handle: Timer) -> object:
        handle._entry = None
        if not self.is_dead:
            self._ready.append(handle)
            if not self._turn_is_due:
                self._schedule_turn()
        return QUIET

    def on_clock_rate(self) -> None:
        """The rate of the clock has changed: reschedule every timer."""
        for entry in self._scheduler.waiting(self.on_timer):
            handle: Timer = entry[4][0]
            cancel(entry)
            self._arm(handle)

    # -- turns --------------------------------------------------------------------------------------------------------

    def io(self, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback of the kernel in the next turn: something arrived from outside."""
        if not self.is_dead:
            self._ready.append(Handle(callback, args, self._context))
            if not self._turn_is_due:
                self._schedule_turn()

    def spend(self, seconds: float) -> None:
        """Hold the process up for so long, because its disk is slow or because it computes. Its next turn begins later. What it
        sends in this turn leaves later, if the process still lives then; what it did to its disk in this turn is already done."""
        self._busy_until = max(self._busy_until, self._scheduler.now) + seconds

    @property
    def busy_until(self) -> float:
        """The time at which bytes that the process sends now leave it."""
        now = self._scheduler.now
        return self._busy_until if self._busy_until > now else now

    @property
    def is_busy(self) -> bool:
        return self._busy_until > self._scheduler.now

    def _schedule_turn(self) -> None:
        if not self.paused:
            self._turn_is_due = True
            scheduler, busy_until = self._scheduler, self._busy_until
            start = scheduler.now
            if busy_until > start:
                start = busy_until
            scheduler.soon(start + TURN_S_MAX * self._draw(), self._turn)

    def hurry(self) -> None:
        """Begin the next turn before anything else happens."""
        self._scheduler.first(self._turn)

    def _turn(self) -> object:
        """Run the callbacks that are ready, and often those that they have added, before anything else happens."""
        self._turn_is_due = False
        ready = self._ready
        if self.is_dead or self.paused or not ready:
            return QUIET
        now = self._scheduler.now
        if self._busy_until > now:
            self._schedule_turn()
            return QUIET
        self._turn_is_due = True  # `_schedule_turn` at the end covers callbacks that become ready meanwhile.
        more, draw, machine, step = TURNS_MAX, self._draw, self.machine, self._trace_step
        world, number = machine.world, machine.id
        _set_running_loop(self)
        try:
            while True:
                left = len(ready)  # One turn: the callbacks that are ready now, and none that they add.
                step(now, number, left)
                if self.watch is not None:
                    self.watch(self, list(ready))
                while left and not self.is_dead:
                    left -= 1
                    handle = ready.popleft()
                    callback = handle.callback
                    if callback is None:
                        continue
                    try:
                        handle._context.run(callback, *handle.args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except ProcessDied:
                        pass
                    except BaseException as e:
                        self._on_callback_failed(callback, e)
                if not ready or not more or world.waited_for or draw() >= GOES_ON:
                    break
                if self.is_dead or self.paused or self._busy_until > now:
                    break
                more -= 1
        finally:
            _set_running_loop(None)
            self._turn_is_due = False
        if ready and not self.is_dead:
            self._schedule_turn()
        return None

    def _on_callback_failed(self, callback: Callable[..., object], error: BaseException) -> None:
        self.call_exception_handler({"message": f"Exception in callback {name_of(callback)}", "exception": error})

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if self.is_dead:
            return
        self.paused = False
        stopped, self._stopped = self._stopped, []
        for go_on in stopped:
            go_on()
        if self._ready and not self._turn_is_due:
            self._schedule_turn()

    def when_it_runs(self, action: Callable[[], None]) -> None:
        """Call it now, or when the paused process continues, or never if it does not."""
        if self.is_dead:
            return
        if self.paused:
            self._stopped.append(action)
        else:
            action()

    def die(self) -> None:
        """Stop everything in this process. What it holds stays as it is, and nothing is notified of its end."""
        self.is_dead = True

    def forget(self) -> None:
        """Drop what the process left, at the end of the world. Without this, the error that ended the run would keep its frames,
        and coroutines in them would be finalized much later."""
        for task in list(self._tasks.values()):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            if (coroutine := task.get_coro()) is not None:
                with contextlib.suppress(Exception, asyncio.CancelledError, ProcessDied):
                    coroutine.close()
        self._tasks.clear()
        self._ready.clear()
        self._stopped.clear()

    # -- tasks and futures --------------------------------------------------------------------------------------------

    def _next_number(self) -> int:
        """A number for a task or future. Numbers differ between machines so that sets of them rarely collide."""
        self._numbers += 1
        return self._numbers << 12 | self.machine.id

    def create_future(self) -> asyncio.Future[Any]:
        future = SimFuture(loop=self)
        future._number = self._next_number()
        return future

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        """Create a task. Its number, and so its place in sets, does not depend on memory addresses, or two runs of one seed could
        differ. `options` are further arguments of `asyncio.Task` (`eager_start`). RuntimeError if the loop is closed."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        number = self._next_number()
        task = SimTask.__new__(SimTask)
        task._number = number  # The number must exist before the task is created: asyncio adds the task to a set at once.
        if name is None:
            name = f"task-{number >> 12}"
        task.__init__(coro, loop=self, name=name, context=context, **options)  # type: ignore[misc]
        if not task.done():
            self._tasks[number] = task
            task.add_done_callback(self._on_task_done, context=self._context)
        return task

    def _on_task_done(self, task: Any) -> None:
        """Drop the loop's reference to the task, so that an exception that no code awaited is reported as soon as possible."""
        self._tasks.pop(task._number, None)

    @property
    def unfinished(self) -> list[asyncio.Task[Any]]:
        """The tasks that are not done, oldest first."""
        return [task for task in self._tasks.values() if not task.done()]

    # -- threads ------------------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Do the work at a later moment, in one piece, while the loop continues. Work whose future is cancelled before that
        moment may be done or not."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        future = self.create_future()
        if not self.is_dead:
            delay_s = EXECUTOR_S_MAX * self._draw() * self.machine.slowness
            self._scheduler.after(delay_s, self.when_it_runs, lambda: self._execute(future, func, args))
        return future

    def _execute(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if future.cancelled() and self._draw() < 0.5:
            return
        result, error = None, None
        busy_until, self._busy_until = self._busy_until, 0.0
        before = events._get_running_loop()
        events._set_running_loop(None)  # a thread has no running loop
        context = contextvars.Context()
        context.run(OWNER.set, self)
        try:
            result = context.run(func, *args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except ProcessDied:
            return
        except BaseException as e:
            error = e
        finally:
            events._set_running_loop(before)
            now = self._scheduler.now
            took_s, self._busy_until = max(0.0, self._busy_until - now), busy_until
        self._scheduler.after(took_s, self.when_it_runs, lambda: self.io(_settle, future, result, error))

    def set_default_executor(self, executor: Any) -> None:
        """Ignore the executor: there are no threads, and all work is done in the same way."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None: ...

    # -- network ------------------------------------------------------------------------------------------------------

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        _refuse(options, {"start_serving", "backlog", "reuse_address", "reuse_port", "family", "flags"})
        serves = options.get("start_serving", True)
        return self.machine.world.network.listen(self, protocol_factory, host, port, start_serving=serves)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        _refuse(options, {"family", "proto", "flags", "happy_eyeballs_delay", "interleave", "all_errors"})
        return await self.machine.world.network.connect(self, protocol_factory, host, port)

    # -- what asyncio asks of a loop ----------------------------------------------------------------------------------

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None: ...

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self.die()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """As in asyncio, but an exception without a handler ends the run, unless the world expects it."""
        if self.is_dead:
            return
        self.unhandled.append(context)
        if self._handler is None:
            self.default_exception_handler(context)
            return
        try:
            self._handler(self, context)
        except (SystemExit, KeyboardInterrupt, ProcessDied):
            raise
        except BaseException as e:
            error = {"message": "Unhandled error in exception handler", "exception": e, "context": context}
            self.default_exception_handler(error)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.machine.world.on_unhandled(self, context)

    def set_exception_handler(self, handler: Any) -> None:
        if handler is not None and not callable(handler):
            raise TypeError(f"A callable object or None is expected, got {handler!r}")
        self._handler = handler

    def get_exception_handler(self) -> Any:
        return self._handler

    def get_task_factory(self) -> None:
        return None

    def set_task_factory(self, factory: Any) -> None:
        """Refuse: tasks of another class would hash by their address."""
        if factory is not None:
            raise NotImplementedError("a simulated loop creates its tasks itself")

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Never called: this loop creates no timer handles of asyncio."""

    # -- asynchronous generators --------------------------------------------------------------------------------------

    def on_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Note a generator of this process that has begun."""
        self._generators_begun += 1
        self._generators[generator] = self._generators_begun

    def on_generator_left(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close a generator that has not ended and to which no code refers."""
        if not self.is_dead:
            self.call_soon(self.create_task, generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        """Close the generators that have begun and not ended."""
        generators = sorted(self._generators, key=self._generators.__getitem__)
        self._generators.clear()
        results = await asyncio.gather(*[generator.aclose() for generator in generators], return_exceptions=True)
        for generator, result in zip(generators, results, strict=True):
            if isinstance(result, Exception):
                message = "an error occurred during closing of an asynchronous generator"
                self.call_exception_handler({"message": message, "exception": result, "asyncgen": generator})


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):  # a future cannot hold StopIteration
        raised, error = error, RuntimeError("StopIteration interacts badly with generators and cannot be raised into a Future")
        error.__cause__ = raised
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _refuse(options: dict[str, Any], known: set[str]) -> None:
    """Reject an option that the simulated network would otherwise ignore."""
    unknown = sorted(name for name, value in options.items() if name not in known and value is not None)
    if unknown:
        raise NotImplementedError(f"a simulated loop does not support {', '.join(unknown)}")


@contextlib.contextmanager
def cheaply_registered() -> Iterator[None]:
    """asyncio keeps a weak reference to each task, for `all_tasks`, and each runs Python code when its task is freed. Within
    this block they do not: iteration skips dead references, and the end of the block drops them."""
    known: Any = getattr(tasks, "_all_tasks", getattr(tasks, "_scheduled_tasks", None))
    if known is None:
        yield
        return
    references, make = known.data, weakref.ref
    known.add = lambda task: references.add(make(task))
    try:
        yield
    finally:
        del known.add
        references.difference_update([reference for reference in references if reference() is None])


class Generators:
    """Assigns asynchronous generators to processes. Python calls one hook per thread, and all processes share the thread."""

    def __init__(self) -> None:
        self._owners: dict[int, NodeLoop] = {}
        """`id` of a generator -> its loop. (When Python calls the finalizer hook, no weak reference to the generator exists.)"""
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._on_begin, finalizer=self._on_left)

    def __exit__(self, *_: object) -> None:
        sys.set_asyncgen_hooks(*self._before)
        self._owners.clear()

    def _on_begin(self, generator: AsyncGenerator[Any, Any]) -> None:
        loop = events._get_running_loop()
        if isinstance(loop, NodeLoop):
            self._owners[id(generator)] = loop
            loop.on_generator(generator)

    def _on_left(self, generator: AsyncGenerator[Any, Any]) -> None:
        loop = self._owners.pop(id(generator), None)
        if loop is not None:
            loop.on_generator_left(generator)
