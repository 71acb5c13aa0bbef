"""The connection to one other voter: opened for the first request and, after it broke, again for the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from strandline.controller.metadata.voters import Voter
from strandline.controller.raft.config import RaftConfig
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity

logger = get_logger(__name__)

OnDone = Callable[[Message | Exception], None]
QUEUE_MAX = 16
"""Requests that wait for the connection; a voter has only a few requests to one peer in flight."""
PATIENCE_S = 2.0
"""How long a voter may be unreachable before this is logged. A restarted voter is usually back by then."""
NOTICE_S = 60.0
"""The time from one such log line to the next."""


class VoterChannel:
    """Calls `on_done` exactly once for every `send`, with the response or with the error."""

    def __init__(
        self, voter: Voter, client_id: str, config: RaftConfig, random: Random, security: ClientSecurity = NO_SECURITY
    ) -> None:
        self.voter = voter
        self._client_id = client_id
        self._config = config
        self._random = random
        self._security = security
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._queue: list[tuple[int, Message, OnDone]] = []
        self._backoff_ms = 0.0
        self._wake = asyncio.Event()
        """Set to end the pause before the next attempt to connect."""
        self._closed = False
        self.unreachable = ""
        """Why the last attempt to connect failed; empty if it succeeded, or there was none."""
        self._notice_at = 0.0

    def send(self, api_key: int, body: Message, on_done: OnDone) -> None:
        """Send a request, after connecting if need be. `on_done` gets the response, or BrokerError NETWORK_EXCEPTION if the voter
        cannot be reached or QUEUE_MAX requests wait already."""
        connection = self._connection
        if connection is not None and not connection.closed:
            connection.send(api_key, body, on_response=on_done, timeout_ms=self._config.request_timeout_ms)
            return
        if self._closed or len(self._queue) >= QUEUE_MAX:
            error = BrokerError(ErrorCode.NETWORK_EXCEPTION, f"no connection to voter {self.voter.id}")
            asyncio.get_running_loop().call_soon(on_done, error)
            return
        self._queue.append((api_key, body, on_done))
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(), name=f"connect to voter {self.voter.id}")

    def seems_alive(self) -> None:
        """The voter has sent a request: try to connect now."""
        self._backoff_ms = 0.0
        self._wake.set()

    async def close(self) -> None:
        """Close the connection. Requests that wait get their error."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()
        self._fail_queue(BrokerError(ErrorCode.NETWORK_EXCEPTION, "this node is stopping"))

    async def _connect(self) -> None:
        try:
            await self._pause()
            host, port = self.voter.host, self.voter.port
            timeout_ms = self._config.request_timeout_ms
            self._connection = await Connection.connect(
                host,
                port,
                client_id=self._client_id,
                connect_timeout_ms=timeout_ms,
                request_timeout_ms=timeout_ms,
                security=self._security,
            )
        except (BrokerError, UsageError) as found:  # UsageError: a file of the security settings cannot be read now.
            e = found if isinstance(found, BrokerError) else BrokerError(ErrorCode.NETWORK_EXCEPTION, str(found))
            self._back_off()
            self._note(e)
            self._connecting = None
            self._fail_queue(e)
            return
        self._backoff_ms, self.unreachable = 0.0, ""
        self._connecting = None
        queue, self._queue = self._queue, []
        for api_key, body, on_done in queue:
            self.send(api_key, body, on_done)

    def _note(self, e: BrokerError) -> None:
        """Log an unreachable voter after `PATIENCE_S`, and then once a minute. The attempts go on without limit."""
        now = asyncio.get_running_loop().time()
        if not self.unreachable:
            self._notice_at = now + PATIENCE_S
        self.unreachable = e.message or str(e)
        if now >= self._notice_at:
            self._notice_at = now + NOTICE_S
            logger.warning("quorum.voter_unreachable", voter_id=self.voter.id, reason=e.message)

    async def _pause(self) -> None:
        self._wake.clear()
        if self._backoff_ms > 0:
            try:
                await asyncio.wait_for(self._wake.wait(), self._backoff_ms / 1000 * self._random.uniform(0.8, 1.2))
            except TimeoutError:
                pass

    def _back_off(self) -> None:
        doubled = max(self._config.retry_backoff_ms, self._backoff_ms * 2)
        self._backoff_ms = min(doubled, self._config.reconnect_backoff_ms_max)

    def _fail_queue(self, error: Exception) -> None:
        queue, self._queue = self._queue, []
        for _, _, on_done in queue:
            on_done(error)
