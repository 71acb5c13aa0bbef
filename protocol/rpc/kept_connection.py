"""One connection to a peer that is kept, and opened again when it is needed and closed.

Callers that come while it is being opened share the attempt. When it is closed meanwhile, they fail; a caller that is cancelled
leaves the attempt to the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.rpc.connection import Connection


class KeptConnection:
    """The connection, or none yet."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], *, name: str, closed_text: str) -> None:
        """`connect` opens it, or raises a `BrokerError`. `name`: of the task that does. `closed_text`: why callers fail that wait
        for a connection that is closed before it is open."""
        self._connect = connect
        self._name = name
        self._closed_text = closed_text
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def close(self) -> None:
        """Close it, and end an attempt to open it. The next call of `ready` opens it again."""
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
    """Perhaps no caller waits for this attempt any more, so that nobody would look at its error."""
    if not attempt.cancelled():
        attempt.exception()
