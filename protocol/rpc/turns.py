"""Whose turn it is, among the connections of a server that have more requests than the event loop does at once.

A read may hold a thousand small requests. After `TURN_S` of a connection's handlers it waits here, and one of those that wait
goes on in each iteration of the loop. So what others notice of a flood is one turn, however many connections it comes through.
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
