"""Ctrl-C: one mechanism for all commands, from the first line of `main` to the last.

A SIGINT ends a command within about a second with exit code 130 and without a traceback. How, depends on what it interrupts:

    nothing to clean up    the process exits at once: while it imports, reads its options, prints, or runs plain code
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
"""What a client gets to say what it has done; it needs about a second at most."""
PROCESSES_GRACE_S = 20.0
"""What a command gets that has started processes and stops them in order."""
AT_ONCE = "stopping (Ctrl-C again: at once)"


class _Cleanup(NamedTuple):
    start: Callable[[], object]
    grace_s: float
    note: str | None


_cleanups: list[_Cleanup] = []
"""What the next SIGINT starts: the last of these. Empty: there is nothing to clean up."""
_started: list[_Cleanup] = []
"""The cleanup that a SIGINT has started; a process has one at most."""


def install() -> None:
    """Handle SIGINT in this process."""
    # After its exit functions Python resets signal handlers, and a SIGALRM would kill the process with another exit code.
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, _on_end_of_grace)
    signal.signal(signal.SIGINT, _on_sigint)


@contextmanager
def kept_from_libraries() -> Iterator[None]:
    """While this holds, a library that wants SIGINT for a function of its own does not get it. A child process may still
    have the signal ignored."""
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
    """While this holds, a SIGINT raises KeyboardInterrupt: for plain code that leaves something behind."""
    with _cleaning_up(_Cleanup(_raise, grace_s, None)):
        yield


@contextmanager
def cancelling(
    task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop, grace_s: float = GRACE_S, note: str | None = None
) -> Iterator[None]:
    """While this holds, a SIGINT cancels the task, and prints the note for a task that takes its time."""
    with _cleaning_up(_Cleanup(lambda: loop.call_soon_threadsafe(task.cancel), grace_s, note)):
        yield


@contextmanager
def exiting_after(action: Callable[[], object]) -> Iterator[None]:
    """While this holds, a SIGINT calls `action` and exits."""

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

    warnings.simplefilter("ignore", RuntimeWarning)  # a coroutine that the loop has not come to yet
    raise KeyboardInterrupt


def _end_the_line() -> None:
    """The terminal has printed ^C; what follows belongs into the next line."""
    try:
        if os.isatty(2):
            _write("\n")
    except OSError:
        pass


def _write(text: str) -> None:
    """Past the buffer of `sys.stderr`, which the interrupted code may be writing to."""
    try:
        os.write(2, text.encode())
    except OSError:
        pass


def open_standard_streams() -> None:
    """Where a shell has closed a standard stream (`>&-`), its number would be given to the next file or socket."""
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
    """Exit, with nothing left in the buffers that could fail after this."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _discard(stream.fileno())
    sys.exit(code)


def _discard(descriptor: int) -> None:
    """Python flushes its streams once more at exit, and would complain that nothing can be written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def is_closed(descriptor: int) -> bool:
    """Has the process at the other end of this pipe or terminal gone (`| head`)? The other end of a file never goes."""
    import select

    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
