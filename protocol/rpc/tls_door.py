"""The TLS door of a listener: does the TLS handshake of an accepted socket, and then hands the connection over.

The listener accepts plain sockets, and each of them gets a door. So a connection counts as unauthenticated from its first moment,
its handshake uses the newest certificate, and a failed handshake is logged with the address of the peer. asyncio calls that
`start_tls`: it may deliver the first bytes of the connection before it returns, so the door keeps them and passes them on.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol

from strandline.protocol.log_limits import host_of
from strandline.protocol.rpc.server_connection import ServerConnection
from strandline.protocol.rpc.sockets import BadPeers, describe_peer, plain_host
from strandline.protocol.rpc.unauthenticated import Unauthenticated
from strandline.protocol.security.listener_security import ListenerSecurity
from strandline.protocol.security.mechanisms import AuthenticationError
from strandline.protocol.security.tls import ServerTls, describe_tls_error

_EARLY_BYTES = 65536


class TlsServer(Protocol):
    """The part of a server that its TLS doors use."""

    loop: asyncio.AbstractEventLoop
    unauthenticated: Unauthenticated
    bad_peers: BadPeers
    is_stopping: bool
    tls_doors: dict[int, TlsDoor]

    def has_room(self, peer: str) -> bool:
        """Return False, and log it, if no further connection may be opened."""


class TlsDoor(asyncio.BufferedProtocol):
    """The protocol of a connection until its TLS handshake is over."""

    def __init__(self, server: TlsServer, security: ListenerSecurity, tls: ServerTls, connection: ServerConnection) -> None:
        self._server = server
        self._security = security
        self._tls = tls
        self._connection = connection
        """Takes over after the handshake."""
        self._peer = "?"
        self._buffer = bytearray(_EARLY_BYTES)
        self._early = b""
        """Decrypted bytes that arrived before `start_tls` returned."""
        self._is_lost = False
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self._peer = describe_peer(transport)
        self._transport = transport  # type: ignore[assignment]
        if server.is_stopping or not server.has_room(self._peer):
            transport.abort()  # type: ignore[attr-defined]
            return
        refused = server.unauthenticated.add(self._connection.id, plain_host(host_of(self._peer)))
        if refused is not None:
            server.bad_peers.closed(self._peer, server.loop.time(), refused)
            transport.abort()  # type: ignore[attr-defined]
            return
        transport.pause_reading()  # type: ignore[attr-defined]
        server.tls_doors[self._connection.id] = self
        self._task = server.loop.create_task(self._enter(), name=f"TLS handshake with {self._peer}")

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self._early += self._buffer[:nbytes]
        if len(self._early) > _EARLY_BYTES:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True

    def abort(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    async def _enter(self) -> None:
        """Do the handshake, and hand the connection over."""
        server, transport = self._server, self._transport
        assert transport is not None
        has_entered = False
        try:
            timeout_s = self._security.authentication_ms_max / 1000
            secure = await server.loop.start_tls(
                transport, self, self._tls.context, server_side=True, ssl_handshake_timeout=timeout_s
            )
            server.tls_doors.pop(self._connection.id)
            if secure is not None and not self._is_lost:
                has_entered = self._hand_over(secure)
        except (OSError, TimeoutError) as e:
            self._log_failure(describe_tls_error(e))
        finally:
            server.tls_doors.pop(self._connection.id, None)
            if not has_entered:
                server.unauthenticated.discard(self._connection.id)
                self.abort()

    def _hand_over(self, transport: asyncio.Transport) -> bool:
        """Make `transport` that of the server's connection. No await between this and the return of `start_tls`'s result."""
        connection = self._connection
        if not self._security.has_sasl:
            try:
                connection.principal = self._tls.principal_of(_certificate_of(transport))
            except AuthenticationError as e:
                self._log_failure(e.reason)
                transport.abort()
                return False
            self._server.unauthenticated.discard(connection.id)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        connection.take_early(self._early)
        return True

    def _log_failure(self, reason: str) -> None:
        if not self._server.is_stopping:
            self._server.bad_peers.authentication_failed(self._peer, self._server.loop.time(), reason, mechanism="TLS")


def _certificate_of(transport: asyncio.BaseTransport) -> bytes | None:
    tls: ssl.SSLObject = transport.get_extra_info("ssl_object")
    return tls.getpeercert(binary_form=True)
