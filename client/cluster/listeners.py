"""The callbacks of a client's parts that react to new metadata and to changes of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Listeners:
    """Calls its callbacks on the event loop, in the order in which they were added. Several notifications of one iteration of
    the loop cause one round of calls."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self._handle: asyncio.Handle | None = None
        """The round of calls that is scheduled; None if there is none."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._callbacks)

    def add(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each notification from now on."""
        self._callbacks.append(callback)

    def remove(self, callback: Callable[[], None]) -> None:
        """Stop calling `callback`. Nothing happens if it was not added."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def notify(self) -> None:
        """Call the callbacks in the next iteration of the event loop."""
        if self._handle is None and not self._closed:
            self._handle = asyncio.get_running_loop().call_soon(self._call)

    def notify_in(self, delay_s: float) -> None:
        """Call `notify` after this many seconds."""
        if not self._closed:
            asyncio.get_running_loop().call_later(delay_s, self.notify)

    def _call(self) -> None:
        self._handle = None
        for callback in list(self._callbacks):
            callback()

    def close(self) -> None:
        """Cancel the calls that are scheduled, and schedule no more."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
