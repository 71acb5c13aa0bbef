"""The exchange of state between the consumer's loop and the heartbeats.

    the consumer                                   the heartbeats
        post(act)          ------------------->    act(membership, now)
        view, on_view()    <-------------------    publish(view)
        failure

With `LocalLink` both sides share one event loop: in the simulator, and in a program with `heartbeat_thread=False`. With
`ThreadLink` (heartbeat_thread.py) each has its own. In both, `on_view` is called on the consumer's loop, and never within `post`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from strandline.client.consumer.group.heartbeats import Act, Heartbeats, MemberView

Publish = Callable[[MemberView], None]
MakeHeartbeats = Callable[[Publish], Heartbeats]


class Link(Protocol):
    """The consumer's side of the exchange."""

    view: MemberView
    """The newest state of the membership."""
    failure: str | None
    """Why the heartbeats have ended; None while they run, or if `close` has ended them."""
    lag_s: float
    """Seconds that the consumer's loop took to take the last view; 0 if both sides share one loop."""

    def post(self, act: Act) -> None:
        """Call `act` with the membership, on the heartbeats' loop. Acts run in the order of the posts, perhaps after this
        returns."""

    async def close(self) -> None:
        """End the heartbeats and close their connections. Nothing more is sent. A second call does nothing."""


class LocalLink:
    """The heartbeats as a task of the consumer's event loop."""

    def __init__(self, make: MakeHeartbeats, on_view: Callable[[], None]) -> None:
        self.view = MemberView()
        self.failure: str | None = None
        self.lag_s = 0.0
        self._on_view = on_view
        self._is_closing = False
        self._loop = asyncio.get_running_loop()
        self._heartbeats = make(self._publish)
        self._task = self._loop.create_task(self._heartbeats.run())
        self._task.add_done_callback(self._on_end)

    def post(self, act: Act) -> None:
        self._heartbeats.act(act)

    def _publish(self, view: MemberView) -> None:
        self.view = view
        self._loop.call_soon(self._on_view)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if not self._is_closing:
            self.failure = reason_of_end(task)
            self._on_view()

    async def close(self) -> None:
        self._is_closing = True
        self._task.cancel()
        await asyncio.wait([self._task])


def reason_of_end(task: asyncio.Task[None]) -> str:
    """The reason, for an error message, why a background task has ended that should have run until it was cancelled."""
    if task.cancelled():
        return "it was cancelled from outside"
    error = task.exception()
    return "it has returned" if error is None else f"{type(error).__name__}: {error}"
