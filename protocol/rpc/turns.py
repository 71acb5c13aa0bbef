"""Turns of a server's connections: no connection keeps the event loop while other connections wait.

One read may contain a thousand small requests. When its handlers have run for `TURN_S` seconds, a connection waits here, and in
each iteration of the loop one waiting connection continues. So a flood delays the other connections by one turn per iteration,
however many connections it uses.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

TURN_S = 0.001


class Taker(Protocol):
    """A connection that waits for its turn."""

    def take_turn(self) -> None:
        """Go on with the requests that have arrived."""


class Turns:
    """The connections that wait, in the order in which they came."""

    __slots__ = ("_is_scheduled", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Taker] = deque()
        self._is_scheduled = False

    def wait(self, connection: Taker, loop: asyncio.AbstractEventLoop) -> None:
        """Call the connection's `take_turn` in a later iteration, once. It may be closed by then."""
        self._waiting.append(connection)
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._next, loop)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        connection = self._waiting.popleft()
        self._is_scheduled = bool(self._waiting)
        if self._is_scheduled:
            loop.call_soon(self._next, loop)
        connection.take_turn()
