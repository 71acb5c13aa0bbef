"""Ctrl-C: one mechanism for all commands, from the first line of `main` to the last.

A SIGINT ends a command within about a second with exit code 130 and without a traceback. The way depends on the moment:

    nothing to clean up    the process exits at once: during imports, parsing of options, printing, plain code
    `unwinding()`          KeyboardInterrupt is raised, so that `with` and `finally` of the command run
    `cancelling(task)`     the task is cancelled; the event loop goes on until the task has closed what it holds
    `exiting_after(f)`     `f` is called, then the process exits: for a library that would print the KeyboardInterrupt

The command has `grace_s` for that. A second SIGINT, and the end of the grace, exit at once: a task that swallows its
cancellation, or a thread that never returns, does not hold the process. The signal is handled also where the shell that
started the process ignores it (`strandline consume orders &` in a script), because a person sends it on purpose.

A node and `strandline up` handle SIGINT themselves once they run, because it is how they are stopped.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import asyncio

EXIT_CODE = 130
GRACE_S = 2.0
"""Time for a client to report what it has done; it needs about a second at most."""
PROCESSES_GRACE_S = 20.0
"""Time for a command to stop the processes that it has started."""
AT_ONCE = "stopping (Ctrl-C again: at once)"


class _Cleanup(NamedTuple):
    start: Callable[[], object]
    grace_s: float
    note: str | None


_cleanups: list[_Cleanup] = []
"""The cleanups in effect, innermost last: the next SIGINT starts the last one. If empty, the process exits at once."""
_started: list[_Cleanup] = []
"""The cleanup that a SIGINT has started; at most one per process."""


def install() -> None:
    """Handle SIGINT in this process. When SIGALRM has its handler, SIGINT has its own, too."""
    # Python resets signal handlers after the exit functions. A SIGALRM would then kill the process with another exit code.
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGINT, _on_sigint)
    signal.signal(signal.SIGALRM, _on_end_of_grace)


@contextmanager
def kept_from_libraries() -> Iterator[None]:
    """Inside this block, a library cannot install its own handler of SIGINT. It can still ignore the signal for a child."""
    set_handler = signal.signal

    def refuse(number: int, handler: Any) -> Any:
        if number == signal.SIGINT and callable(handler):
            return signal.getsignal(number)
        return set_handler(number, handler)

    vars(signal)["signal"] = refuse
    try:
        yield
    finally:
        vars(signal)["signal"] = set_handler


def was_interrupted() -> bool:
    return bool(_started)


@contextmanager
def unwinding(grace_s: float = GRACE_S) -> Iterator[None]:
    """Inside this block, a SIGINT raises KeyboardInterrupt: for plain code that has something to clean up."""
    with _cleaning_up(_Cleanup(_raise, grace_s, None)):
        yield


@contextmanager
def cancelling(
    task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop, grace_s: float = GRACE_S, note: str | None = None
) -> Iterator[None]:
    """Inside this block, a SIGINT cancels the task, and prints the note if there is one."""
    with _cleaning_up(_Cleanup(lambda: loop.call_soon_threadsafe(task.cancel), grace_s, note)):
        yield


@contextmanager
def exiting_after(action: Callable[[], object]) -> Iterator[None]:
    """Inside this block, a SIGINT calls `action` and exits."""

    def run() -> None:
        try:
            action()
        finally:
            os._exit(EXIT_CODE)

    with _cleaning_up(_Cleanup(run, GRACE_S, None)):
        yield


@contextmanager
def _cleaning_up(cleanup: _Cleanup) -> Iterator[None]:
    _cleanups.append(cleanup)
    try:
        yield
    finally:
        _cleanups.remove(cleanup)


def _on_sigint(number: int, frame: object) -> None:
    _end_the_line()
    if _started or not _cleanups:
        os._exit(EXIT_CODE)
    cleanup = _cleanups[-1]
    _started.append(cleanup)
    signal.setitimer(signal.ITIMER_REAL, cleanup.grace_s)
    if cleanup.note is not None:
        _write(f"strandline: {cleanup.note}\n")
    cleanup.start()


def _on_end_of_grace(number: int, frame: object) -> None:
    os._exit(EXIT_CODE)


def _raise() -> None:
    import warnings

    warnings.simplefilter("ignore", RuntimeWarning)  # a coroutine that was never started
    raise KeyboardInterrupt


def _end_the_line() -> None:
    """Start a new line after the ^C that the terminal has printed."""
    try:
        if os.isatty(2):
            _write("\n")
    except OSError:
        pass


def _write(text: str) -> None:
    """Write to the descriptor directly, because the interrupted code may hold the buffer of `sys.stderr`."""
    try:
        os.write(2, text.encode())
    except OSError:
        pass


def open_standard_streams() -> None:
    """Open /dev/null for each standard stream that the shell has closed (`>&-`). Otherwise the next file or socket would
    receive its number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")


def leave(code: int) -> None:
    """Flush the standard streams and exit with this code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _discard(stream.fileno())
    sys.exit(code)


def _discard(descriptor: int) -> None:
    """Redirect a broken stream to /dev/null, because Python flushes it once more at exit and would report the failure."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def is_closed(descriptor: int) -> bool:
    """Whether the other end of this pipe or terminal has been closed (`| head`). False for a file."""
    import select

    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
