"""Sends the content of a queue to the controller: one task, one request at a time, a pause after each failure.

Its users are the shells of two queues: the ISR proposals (`alter_partition.py`) and the log directories of replicas
(`directory_assignment.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sized


class SendLoop:
    """`send_once` makes one round trip, and returns False if it has failed: the next one follows after `retry_backoff_ms`."""

    def __init__(self, name: str, queue: Sized, send_once: Callable[[], Awaitable[bool]], retry_backoff_ms: int) -> None:
        self._name = name
        self._queue = queue
        self._send_once = send_once
        self._retry_backoff_ms = retry_backoff_ms
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Start sending. Called after something was queued."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while len(self._queue):
                if not await self._send_once():
                    await asyncio.sleep(self._retry_backoff_ms / 1000)
