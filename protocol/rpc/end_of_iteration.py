"""Callbacks that run at the end of the current event-loop iteration: first those that may answer requests, then the writes.

Several events of one iteration often need one piece of work: several fetches move the same high watermark, several
responses go to the same connection. The work is done once, at the end of the iteration. The parked requests are served
before the connections write, so that their responses leave in the same iteration. With one `call_soon` per callback, the
loop would poll the kernel for events between the two.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

Callback = Callable[[], None]


class EndOfIteration:
    """The callbacks of one event-loop iteration. One instance per process or per server; loops do not share one."""

    __slots__ = ("_before_writes", "_call_soon", "_is_running", "_is_scheduled", "_writes")

    def __init__(self, call_soon: Callable[[Callback], object]) -> None:
        self._call_soon = call_soon
        self._before_writes: list[Callback] = []
        self._writes: list[Callback] = []
        self._is_scheduled = False
        self._is_running = False
        """Callbacks of `call_before_writes` are running; the writes follow without another `call_soon`."""

    def call_before_writes(self, callback: Callback) -> None:
        """Run `callback` at the end of this iteration, before any write. If the end has begun, it runs in the next iteration."""
        self._before_writes.append(callback)
        if not self._is_scheduled:
            self._schedule()

    def call_to_write(self, callback: Callback) -> None:
        """Run `callback` at the end of this iteration, after all callbacks of `call_before_writes`."""
        self._writes.append(callback)
        if not self._is_scheduled and not self._is_running:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self._is_running = True
        callbacks, self._before_writes = self._before_writes, []
        for callback in callbacks:
            _run_guarded(callback)
        self._is_running = False
        writes, self._writes = self._writes, []
        for callback in writes:
            _run_guarded(callback)


def _run_guarded(callback: Callback) -> None:
    """Log an exception of `callback` instead of raising it, so that the other callbacks still run."""
    try:
        callback()
    except Exception:
        logger.exception("loop.callback_failed", callback=repr(callback))
