"""The calls that wait for room in the buffer. When a batch is done, one of them may try again."""

from __future__ import annotations

import asyncio


class RoomWaiters:
    """The calls that wait for room, in the order in which they began to wait."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}

    async def wait(self, deadline: float) -> None:
        """Wait until a batch is done. TimeoutError at the deadline (on the loop's clock)."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        finally:
            self._waiters.pop(waiter, None)

    def wake_next(self) -> None:
        """Wake the call that has waited longest. A call that succeeds wakes the next one."""
        while self._waiters:
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake every call that waits."""
        while self._waiters:
            self.wake_next()
