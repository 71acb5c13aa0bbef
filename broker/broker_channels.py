"""Requests to other brokers: one connection for each broker, opened when there is a request for it.

The transaction coordinator sends its markers this way, and leaders ask the coordinator to add partitions. A broker that is leader
and coordinator sends these requests to itself over the network, too.

A connection belongs to one registration of the other broker. When its address or its broker epoch changes, the next request
opens a new connection, and those in flight on the old one fail. A request without a response raises a retriable `BrokerError`: it
is not known whether the other broker has handled it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from strandline.protocol.apis import api_name
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.kept_connection import KeptConnection
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity

CONNECT_TIMEOUT_MS = 1000


class BrokerTarget(NamedTuple):
    """One registration of a broker: its address and its broker epoch."""

    host: str
    port: int
    broker_epoch: int


class BrokerChannels:
    """The connections of one broker to the others."""

    def __init__(
        self, broker_id: int, target_of: Callable[[int], BrokerTarget | None], security: ClientSecurity = NO_SECURITY
    ) -> None:
        """`target_of`: returns the present registration of a broker; None if it has none."""
        self._client_id = f"broker-{broker_id}"
        self._target_of = target_of
        self._security = security
        self._channels: dict[int, _Channel] = {}
        self._is_closed = False

    async def request(self, broker_id: int, api_key: int, body: Message, timeout_ms: int) -> Message:
        """Send a request and return its response. Raises a retriable `BrokerError` if there is none within `timeout_ms`, which
        includes the time to connect, and the `BrokerError` by which the other broker refuses the request."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self._channel(broker_id).connection.ready()
                return await connection.request(api_key, body, timeout_ms=timeout_ms)
        except TimeoutError:
            text = f"{api_name(api_key)} got no answer from broker {broker_id} in {timeout_ms} ms"
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, text) from None

    def close(self) -> None:
        """Close all connections for good. The requests in flight fail."""
        self._is_closed = True
        for channel in self._channels.values():
            channel.connection.close()
        self._channels.clear()

    @property
    def connected_to(self) -> list[int]:
        """The brokers to which there is a connection."""
        return sorted(broker_id for broker_id, channel in self._channels.items() if channel.connection.is_open)

    def _channel(self, broker_id: int) -> _Channel:
        """The channel to the present registration of a broker. Raises BROKER_NOT_AVAILABLE if it is not registered, or after
        `close`."""
        target = None if self._is_closed else self._target_of(broker_id)
        known = self._channels.get(broker_id)
        if known is not None and known.target == target:
            return known
        if known is not None:
            known.connection.close()
            del self._channels[broker_id]
        if target is None:
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"the address of broker {broker_id} is not known")
        channel = self._channels[broker_id] = _Channel(target, self._client_id, self._security)
        return channel


class _Channel:
    """The connection to one registration of a broker."""

    def __init__(self, target: BrokerTarget, client_id: str, security: ClientSecurity) -> None:
        self.target = target
        self._client_id = client_id
        self._security = security
        self.connection = KeptConnection(
            self._connect, name="broker-connect", closed_text="the connection to the broker was closed"
        )

    async def _connect(self) -> Connection:
        host, port, _ = self.target
        return await Connection.connect(
            host, port, client_id=self._client_id, connect_timeout_ms=CONNECT_TIMEOUT_MS, security=self._security
        )
