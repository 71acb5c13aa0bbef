"""The end of a loop turn: first who was woken is served, then what was answered leaves.

What a turn of the event loop gathers (several fetches that move one high watermark, several answers on one connection)
is dealt with once, at its end. Waking may answer, and the answers should leave in the same turn: were each its own
`call_soon`, the loop would go round, and ask the kernel for events, between the two.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

Callback = Callable[[], None]


class Turn:
    """The two lists of one loop turn. One per process or per server; not shared between event loops."""

    __slots__ = ("_call_soon", "_flushes", "_is_running", "_is_scheduled", "_wakeups")

    def __init__(self, call_soon: Callable[[Callback], object]) -> None:
        self._call_soon = call_soon
        self._wakeups: list[Callback] = []
        self._flushes: list[Callback] = []
        self._is_scheduled = False
        self._is_running = False

    def wake(self, callback: Callback) -> None:
        """Run it at the end of this turn, before anything is written; in the next one if this turn is ending already."""
        self._wakeups.append(callback)
        if not self._is_scheduled:
            self._schedule()

    def flush(self, callback: Callback) -> None:
        """Run it at the end of this turn, after everyone who was woken."""
        self._flushes.append(callback)
        if not self._is_scheduled and not self._is_running:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._call_soon(self._end)

    def _end(self) -> None:
        self._is_scheduled = False
        self._is_running = True
        wakeups, self._wakeups = self._wakeups, []
        for callback in wakeups:
            _guarded(callback)
        self._is_running = False
        flushes, self._flushes = self._flushes, []
        for callback in flushes:
            _guarded(callback)


def _guarded(callback: Callback) -> None:
    """A bug in one must not keep the others waiting."""
    try:
        callback()
    except Exception:
        logger.exception("turn.callback_failed", callback=repr(callback))
