"""The broker's channel to the active controller (Kafka's NodeToControllerChannelManager).

It has one connection, which is kept as long as the same node leads the quorum. The broker's heartbeats are sent on it, and when
it breaks, the controller checks at once whether the broker still lives. A request that reached a node which is not the active
controller, or that lost its connection, is sent again to the next active controller until its timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from strandline.controller.metadata.voters import Voter
from strandline.protocol.apis import api_name
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.kept_connection import KeptConnection
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity

logger = get_logger(__name__)

RETRY_BACKOFF_MS = 20
CONNECT_TIMEOUT_MS = 1000

_TRY_AGAIN = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.NETWORK_EXCEPTION})


class ControllerFinder(Protocol):
    """The source of the active controller and its epoch (`broker/process/metadata_loader.py`)."""

    on_controller_changed: list[Callable[[], None]]

    @property
    def controller(self) -> tuple[Voter, int] | None: ...


class Channel(Protocol):
    """The channel, as far as its users need it."""

    async def request(
        self, api_key: int, body: Message, timeout_ms: int, on_lost: Callable[[], None] | None = None
    ) -> Message: ...


class NodeToControllerChannel:
    """Sends requests to the active controller, over one connection."""

    def __init__(self, *, broker_id: int, finder: ControllerFinder, security: ClientSecurity = NO_SECURITY) -> None:
        self._client_id = f"broker-{broker_id}"
        self._finder = finder
        self._security = security
        self._connection = KeptConnection(self._connect, name="controller-connect", closed_text="the active controller changed")
        self._connected_to: Voter | None = None
        """The node of the current connection, or of the one being opened."""
        self._changed = asyncio.Event()
        finder.on_controller_changed.append(self._on_controller_changed)

    def _on_controller_changed(self) -> None:
        """Close the connection to the old controller: its requests in flight fail at once, and are sent to the new one."""
        controller = self._finder.controller
        if controller is None or controller[0] != self._connected_to:
            self.close()
        self._changed.set()

    def close(self) -> None:
        self._connection.close()

    async def request(self, api_key: int, body: Message, timeout_ms: int, on_lost: Callable[[], None] | None = None) -> Message:
        """Send a request to the active controller and return its answer.

        Raises `BrokerError(REQUEST_TIMED_OUT)` if no answer arrives within `timeout_ms`. `on_lost` is called each time a copy of
        the request got no answer: that copy may still arrive at a controller, even after a later one."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        last = "no active controller is known"
        while True:
            remaining_ms = round((deadline - loop.time()) * 1000)
            if remaining_ms <= 0:
                raise BrokerError(
                    ErrorCode.REQUEST_TIMED_OUT, f"{api_name(api_key)} got no answer from a controller in {timeout_ms} ms: {last}"
                )
            self._changed.clear()
            if self._finder.controller is not None:
                try:
                    return await self._request_once(api_key, body, remaining_ms, on_lost)
                except BrokerError as e:
                    if e.code not in _TRY_AGAIN:
                        raise
                    last = str(e)
            await self._wait_for_change(min(RETRY_BACKOFF_MS, remaining_ms) if self._finder.controller else remaining_ms)

    async def _request_once(self, api_key: int, body: Message, timeout_ms: int, on_lost: Callable[[], None] | None) -> Message:
        connection = await self._connection.ready()
        try:
            response = await connection.request(api_key, body, timeout_ms=timeout_ms)
        except BrokerError:
            if on_lost is not None:
                on_lost()
            raise
        if getattr(response, "error_code", 0) == ErrorCode.NOT_CONTROLLER:
            raise BrokerError(ErrorCode.NOT_CONTROLLER)
        return response

    async def _wait_for_change(self, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _connect(self) -> Connection:
        controller = self._finder.controller
        if controller is None:
            raise BrokerError(ErrorCode.NETWORK_EXCEPTION, "no active controller is known")
        voter = self._connected_to = controller[0]
        return await Connection.connect(
            voter.host,
            voter.port,
            client_id=self._client_id,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            security=self._security,
        )
