"""The TLS door of a listener: does the TLS handshake of an accepted socket, and then hands the connection over.

The listener accepts plain sockets, and each of them gets a door. So a connection counts as unauthenticated from its first moment,
its handshake uses the newest certificate, and a failed handshake is logged with the address of the peer.

`start_tls` leaves two gaps, in which the door keeps the bytes that arrive:

- uvloop reads from a new connection before `start_tls` has begun. These bytes, the client's hello, are passed to the TLS protocol
  in the iteration in which it begins, before more can be read.
- Both loops may deliver decrypted bytes before `start_tls` has returned the transport. The connection gets them first of all.

The door sends a refused peer an alert with the reason (`security/handshakes.py`), and then the end of the stream. The connection
is closed when the peer has closed its side, or when the time for a handshake is over. Until then it counts as unauthenticated.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any, Protocol

from strandline.protocol.log_limits import host_of
from strandline.protocol.loggers import get_logger
from strandline.protocol.rpc.server_connection import ServerConnection
from strandline.protocol.rpc.sockets import BadPeers, describe_peer, plain_host
from strandline.protocol.rpc.unauthenticated import Unauthenticated
from strandline.protocol.security.handshakes import handshake_context
from strandline.protocol.security.listener_security import ListenerSecurity
from strandline.protocol.security.mechanisms import AuthenticationError
from strandline.protocol.security.tls import ServerTls, describe_tls_error

logger = get_logger(__name__)

_BUFFER_BYTES = 65536
_EARLY_BYTES_MAX = 4 * 1024 * 1024
"""More than a loop reads in the few iterations of a gap."""


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
        """The connection that replaces the door as the transport's protocol after the handshake."""
        self._peer = "?"
        self._buffer = bytearray(_BUFFER_BYTES)
        self._early = b""
        """Bytes that arrived in a gap: first those before `start_tls`, later the decrypted ones."""
        self._early_bytes_max = security.receive_bytes_max if security.has_sasl else _EARLY_BYTES_MAX
        self._transport: Any = None
        self._handshake: asyncio.Task[asyncio.Transport | None] | None = None
        self._is_refused = False
        """The failed handshake is logged, and the peer is sent an alert."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self._server
        self._peer, self._transport = describe_peer(transport), transport
        if not self._is_admitted():
            self.abort()
            return
        server.tls_doors[self._connection.id] = self
        timeout_s = self._security.authentication_ms_max / 1000
        context = handshake_context(self._tls.context, self._on_refused)
        self._handshake = server.loop.create_task(
            server.loop.start_tls(self._transport, self, context, server_side=True, ssl_handshake_timeout=timeout_s),
            name=f"TLS handshake with {self._peer}",
        )
        self._handshake.add_done_callback(self._on_handshake)
        # The task's first step schedules two callbacks: one begins the TLS protocol, and one resumes reading. `_pass_on` is
        # scheduled after them, in the same iteration.
        server.loop.call_soon(server.loop.call_soon, self._pass_on)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self._early += self._buffer[:nbytes]
        if len(self._early) > self._early_bytes_max:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._handshake is not None and self._transport.get_protocol() is self:
            self._handshake.cancel()  # It has not begun, and nothing else would end it.

    def abort(self) -> None:
        """Close the connection."""
        self._transport.abort()

    def _is_admitted(self) -> bool:
        server = self._server
        if server.is_stopping or not server.has_room(self._peer):
            return False
        refused = server.unauthenticated.add(self._connection.id, plain_host(host_of(self._peer)))
        if refused is not None:
            server.bad_peers.closed(self._peer, server.loop.time(), refused)
        return refused is None

    def _pass_on(self) -> None:
        """Give the bytes that arrived before `start_tls` to the TLS protocol."""
        protocol = self._transport.get_protocol()
        early, self._early = self._early, b""
        while early and protocol is not self and not self._transport.is_closing():
            buffer = protocol.get_buffer(len(early))
            size = min(len(buffer), len(early))
            buffer[:size], early = early[:size], early[size:]
            protocol.buffer_updated(size)

    def _on_refused(self, error: ssl.SSLError) -> None:
        """The handshake failed. In this iteration of the loop its alert is written; the end of the stream follows in the next."""
        self._is_refused = True
        self._log_failure(describe_tls_error(error))
        self._server.loop.call_soon(self._end_stream)

    def _end_stream(self) -> None:
        if not self._transport.is_closing():
            with contextlib.suppress(OSError):  # asyncio's transport raises it if the peer has reset the connection.
                self._transport.write_eof()

    def _on_handshake(self, handshake: asyncio.Task[asyncio.Transport | None]) -> None:
        """The handshake is over: hand the connection over, or close it."""
        self._server.tls_doors.pop(self._connection.id, None)
        error = None if handshake.cancelled() else handshake.exception()
        secure = None if handshake.cancelled() or error is not None else handshake.result()
        if secure is not None and not secure.is_closing() and self._hand_over(secure):
            return
        if error is not None and not self._is_refused:
            self._log_error(error)
        self._server.unauthenticated.discard(self._connection.id)
        self.abort()

    def _hand_over(self, secure: asyncio.Transport) -> bool:
        """Make `secure` the transport of the server's connection. False if no principal can be derived from its certificate."""
        connection = self._connection
        if not self._security.has_sasl:
            try:
                connection.principal = self._tls.principal_of(_certificate_of(secure))
            except AuthenticationError as e:
                self._log_failure(e.reason)
                return False
            self._server.unauthenticated.discard(connection.id)
            self._server.bad_peers.authenticated_count += 1
        secure.set_protocol(connection)
        connection.connection_made(secure)
        connection.take_early(self._early)
        self._buffer, self._early = bytearray(), b""  # uvloop's transport refers to the door as long as it lives.
        return True

    def _log_error(self, error: BaseException) -> None:
        if isinstance(error, OSError):
            self._log_failure(describe_tls_error(error))
        else:
            logger.error("connection.handshake_failed", peer=self._peer, exc_info=error)

    def _log_failure(self, reason: str) -> None:
        if not self._server.is_stopping:
            self._server.bad_peers.authentication_failed(self._peer, self._server.loop.time(), reason, mechanism="TLS")


def _certificate_of(transport: asyncio.BaseTransport) -> bytes | None:
    tls: ssl.SSLObject = transport.get_extra_info("ssl_object")
    return tls.getpeercert(binary_form=True)
