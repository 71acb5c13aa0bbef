"""Raw requests to the coordinator of a group, as a client without Strandline's consumer sends them."""

from __future__ import annotations

from random import Random
from typing import Any

from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.groups import FindCoordinatorRequest
from strandline.protocol.rpc.connection import Connection
from strandline.testing.simulation.cluster.cluster import BROKER_PORT, Client

FIND_MS = 1000
MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT)
"""Errors after which another broker may be the coordinator."""


class CoordinatorLink:
    """The requests of one process. It runs on the process's machine."""

    def __init__(self, client: Client, group_id: str, client_id: str, draw: Random) -> None:
        self._client = client
        self._cluster = client.cluster
        self._group_id = group_id
        self._client_id = client_id
        self._draw = draw
        self._connection: Connection | None = None

    async def ask(self, api_key: int, body: Message, timeout_ms: int) -> Any:
        """Send the request once and return the response. Raises `BrokerError` if the request is refused as a whole, or not
        answered in time."""
        connection = self._connection or await self._find()
        try:
            response = await connection.request(api_key, body, timeout_ms=timeout_ms)
        except BrokerError as e:
            self.on_error(e.code)
            raise
        code = to_code(getattr(response, "error_code", ErrorCode.NONE))
        self.on_error(code)
        return response

    def on_error(self, code: ErrorCode) -> None:
        """A response contained this error: close the connection if the coordinator may have moved."""
        if code in MOVED:
            self.close()

    async def _find(self) -> Connection:
        """Ask any broker for the coordinator, and connect to it."""
        broker = self._draw.choice(self._cluster.broker_ids)
        connection = await self._connect(self._cluster.host(broker), BROKER_PORT)
        try:
            found: Any = await connection.request(
                apis.FIND_COORDINATOR, FindCoordinatorRequest([self._group_id]), timeout_ms=FIND_MS
            )
        finally:
            connection.close()
        coordinator = found.coordinators[0]
        if coordinator.error_code:
            raise BrokerError(to_code(coordinator.error_code), "there is no coordinator now")
        self._connection = await self._connect(coordinator.host, coordinator.port)
        return self._connection

    async def _connect(self, host: str, port: int) -> Connection:
        return await Connection.connect(host, port, client_id=self._client_id, security=self._client.security)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
