"""The event loop that a client was started on: all its calls belong there.

A client keeps its state without locks, because one event loop runs all of its code. A call from another thread, or from
another loop of the same thread, would change that state at any moment, and wait for events that its own loop never sees. So
each call is checked before it changes anything.
"""

from __future__ import annotations

import asyncio

from strandline.protocol.errors import UsageError


class Home:
    """The running loop at the time of construction. `client` names the client in errors: "producer"."""

    def __init__(self, client: str) -> None:
        self.loop = asyncio.get_running_loop()
        self._client = client

    def check(self) -> None:
        """UsageError if the caller does not run on the client's loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is self.loop:
            return
        where = "on another event loop" if loop is not None else "from a thread in which no event loop runs"
        if self.loop.is_closed():
            advice = f"the event loop on which the {self._client} was started is closed; start another {self._client}"
        else:
            advice = "use asyncio.run_coroutine_threadsafe(...) or loop.call_soon_threadsafe(...) with the loop of its `start`"
        raise UsageError(f"the {self._client} was called {where}; it is not thread-safe: {advice}")
