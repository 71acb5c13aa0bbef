"""The event loop on which a client was started, and on which all of its calls must run.

A client keeps its state without locks, because one event loop runs all of its code. A call from another thread could change that
state at any moment, and a call from another loop of the same thread would wait for events that its loop never sees. So each call
is checked before it changes anything.
"""

from __future__ import annotations

import asyncio
import threading

from strandline.protocol.errors import UsageError


class Home:
    """The event loop that runs when this is constructed. `client` names the client in errors: "producer".

    `between_runs`: plain calls of this client may also come from the thread of the loop while the loop does not run, between two
    `run_until_complete`. Nothing else runs then. A producer does not allow it, because a plain call of it starts work."""

    def __init__(self, client: str, *, between_runs: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self._client = client
        self._thread = threading.get_ident()
        self._between_runs = between_runs

    def check(self) -> None:
        """UsageError if the caller does not run on the client's loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is self.loop or (loop is None and self._may_call_between_runs()):
            return
        where = "on another event loop" if loop is not None else "from a thread in which no event loop runs"
        if self.loop.is_closed():
            advice = f"the event loop on which the {self._client} was started is closed; start another {self._client}"
        else:
            advice = "use asyncio.run_coroutine_threadsafe(...) or loop.call_soon_threadsafe(...) with the loop of its `start`"
        raise UsageError(f"the {self._client} was called {where}; it is not thread-safe: {advice}")

    def _may_call_between_runs(self) -> bool:
        is_still = not self.loop.is_running() and not self.loop.is_closed()
        return self._between_runs and is_still and threading.get_ident() == self._thread
