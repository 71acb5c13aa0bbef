"""One connection to a peer that is kept, and opened again when it is needed and closed.

Callers of `ready` share an attempt to open it. If `close` is called during the attempt, all of them fail. If one of them is
cancelled, the attempt continues for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.rpc.connection import Connection


class KeptConnection:
    """Opens the connection at the first call of `ready`, and again after it was closed."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], *, name: str, closed_text: str) -> None:
        """`connect` opens the connection, or raises a `BrokerError`. `name`: the name of the task that runs `connect`.
        `closed_text`: the message for callers of `ready` that fail because `close` was called."""
        self._connect = connect
        self._name = name
        self._closed_text = closed_text
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def close(self) -> None:
        """Close the connection, and end an attempt to open it. The next call of `ready` opens it again."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def ready(self) -> Connection:
        """The open connection. Raises what `connect` raises, or NETWORK_EXCEPTION if it was closed meanwhile."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._open(), name=self._name)
            self._connecting.add_done_callback(_mark_retrieved)
        attempt = self._connecting
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if attempt.cancelled() and not (caller is not None and caller.cancelling()):
                raise BrokerError(ErrorCode.NETWORK_EXCEPTION, self._closed_text) from None
            raise
        finally:
            if attempt.done() and self._connecting is attempt:
                self._connecting = None

    async def _open(self) -> Connection:
        self._connection = await self._connect()
        return self._connection


def _mark_retrieved(attempt: asyncio.Task[Connection]) -> None:
    """Retrieve the attempt's error. If all callers were cancelled, asyncio would otherwise log it as never retrieved."""
    if not attempt.cancelled():
        attempt.exception()
