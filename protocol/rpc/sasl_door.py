"""The SASL door of a listener: restricts the requests of each connection by the state of its `SaslSession`.

Before the authentication a connection has other handlers, another decoder and a smaller frame limit
(`ServerConnection.restrict`):

    new, or authenticates again     ApiVersions, SaslHandshake, SaslAuthenticate; within `authentication_ms_max`
    authenticated                   everything, as on an open listener
    session expired                 SaslHandshake

Any other request closes the connection before its body is decoded. A failure is answered, and the connection closed, after
`failed_delay_ms`, which slows down guessing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from strandline.protocol import frames
from strandline.protocol.apis import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, api_name
from strandline.protocol.errors import ErrorCode, PeerError
from strandline.protocol.log_limits import printable
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.security import SaslAuthenticateResponse, SaslHandshakeResponse
from strandline.protocol.rpc.server_connection import Handler, ServerConnection, ServerRequest
from strandline.protocol.rpc.sockets import BadPeers
from strandline.protocol.rpc.unauthenticated import Unauthenticated
from strandline.protocol.security.listener_security import ListenerSecurity
from strandline.protocol.security.mechanisms import AuthenticationError, Work
from strandline.protocol.security.sasl_server import IllegalSaslState, SaslFailure, SaslSession

logger = get_logger(__name__)

_THREADS = 2
"""Threads that check passwords and tokens. They are not the threads for files, so that logins do not delay file operations."""


class _Login:
    """The authentication of one connection, and its timer: the deadline of the authentication, or the end of the session."""

    __slots__ = ("session", "timer")

    def __init__(self, session: SaslSession) -> None:
        self.session = session
        self.timer: asyncio.TimerHandle | None = None

    def set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer


class SaslDoor:
    """Authenticates the connections of one server."""

    def __init__(
        self,
        security: ListenerSecurity,
        unauthenticated: Unauthenticated,
        bad_peers: BadPeers,
        on_api_versions: Handler,
    ) -> None:
        self._security = security
        self._unauthenticated = unauthenticated
        self._bad_peers = bad_peers
        self._logins: dict[int, _Login] = {}
        """Connection id -> the authentication of each open connection."""
        self.handlers: Mapping[int, Handler] = {SASL_HANDSHAKE: self._on_handshake, SASL_AUTHENTICATE: self._on_authenticate}
        """The server serves them on authenticated connections, too, which may authenticate again."""
        self._before = {API_VERSIONS: on_api_versions, **self.handlers}
        self._expired = {SASL_HANDSHAKE: self._on_handshake}
        self._threads: ThreadPoolExecutor | None = None

    def admit(self, connection: ServerConnection, loop: asyncio.AbstractEventLoop) -> None:
        """Start the authentication of a new connection, and its deadline."""
        login = self._logins[connection.id] = _Login(SaslSession(self._security))
        self._begin(connection, login, loop)

    def on_lost(self, connection: ServerConnection) -> None:
        """Drop the authentication of a closed connection."""
        login = self._logins.pop(connection.id, None)
        if login is not None:
            login.set_timer(None)

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _on_handshake(self, request: ServerRequest) -> None:
        connection, login = request.connection, self._logins[request.connection.id]
        offered = sorted(self._security.mechanisms)
        try:
            login.session.handshake(request.body.mechanism, request.received_at)
        except IllegalSaslState:
            request.reply(SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, offered))
            return
        except SaslFailure as e:
            self._fail(request, login, e, SaslHandshakeResponse(e.code, offered))
            return
        if login.session.principal is not None:
            self._begin(connection, login, asyncio.get_running_loop())
        request.reply(SaslHandshakeResponse(ErrorCode.NONE, offered))

    def _on_authenticate(self, request: ServerRequest) -> Any:
        login = self._logins[request.connection.id]
        try:
            response = login.session.respond(request.body.auth_bytes)
        except IllegalSaslState as e:
            request.reply(SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, str(e), b""))
        except SaslFailure as e:
            self._fail_authenticate(request, login, e)
        else:
            if isinstance(response, bytes):
                self._advance(request, login, response)
            else:
                request.connection.hold()
                return self._work(request, login, response)
        return None

    async def _work(self, request: ServerRequest, login: _Login, work: Work) -> None:
        """Do the slow part of a response in a thread. The connection is on hold meanwhile."""
        self._threads = self._threads or ThreadPoolExecutor(_THREADS, "authentication")
        try:
            response = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except AuthenticationError as e:
            self._fail_authenticate(request, login, login.session.failure(e))
            return
        finally:
            request.connection.release()
        self._advance(request, login, response)

    def _advance(self, request: ServerRequest, login: _Login, response: bytes) -> None:
        session, loop = login.session, asyncio.get_running_loop()
        if not request.is_open:
            return
        try:
            is_complete = session.advance(loop.time())
        except SaslFailure as e:
            self._fail_authenticate(request, login, e)
            return
        if is_complete:
            self._let_in(request.connection, login, loop)
        lifetime_ms = session.session_lifetime_ms if is_complete else 0
        request.reply(SaslAuthenticateResponse(ErrorCode.NONE, None, response, lifetime_ms))

    # -- transitions --------------------------------------------------------------------------------------------------

    def _begin(self, connection: ServerConnection, login: _Login, loop: asyncio.AbstractEventLoop) -> None:
        """Begin the first authentication, or another one."""
        connection.restrict(self._before, decode_before_authentication, self._security.receive_bytes_max)
        deadline_s = self._security.authentication_ms_max / 1000
        login.set_timer(loop.call_later(deadline_s, self._on_deadline, connection))

    def _let_in(self, connection: ServerConnection, login: _Login, loop: asyncio.AbstractEventLoop) -> None:
        session = login.session
        assert session.principal is not None
        connection.principal = session.principal
        connection.unrestrict()
        self._unauthenticated.discard(connection.id)
        self._bad_peers.authenticated_count += 1
        expires_at = session.expires_at
        login.set_timer(None if expires_at is None else loop.call_at(expires_at, self._on_expired, connection))
        logger.debug("connection.authenticated", peer=connection.peer, principal=printable(session.principal))

    def _on_deadline(self, connection: ServerConnection) -> None:
        reason = f"it was not authenticated within {self._security.authentication_ms_max} ms"
        connection.close_because(reason, connection.client_id)

    def _on_expired(self, connection: ServerConnection) -> None:
        connection.restrict(self._expired, decode_after_expiry, self._security.receive_bytes_max)

    # -- failures -----------------------------------------------------------------------------------------------------

    def _fail_authenticate(self, request: ServerRequest, login: _Login, e: SaslFailure) -> None:
        self._fail(request, login, e, SaslAuthenticateResponse(e.code, e.message, b""))

    def _fail(self, request: ServerRequest, login: _Login, e: SaslFailure, response: Message) -> None:
        """Log the failure, and answer and close after a delay."""
        connection, loop = request.connection, asyncio.get_running_loop()
        connection.hold()
        self._bad_peers.authentication_failed(
            connection.peer, loop.time(), e.reason, mechanism=login.session.mechanism or None, user=e.user
        )

        def close() -> None:
            request.reply(response)
            connection.close()

        login.set_timer(loop.call_later(self._security.failed_delay_ms / 1000, close))


# -- decoders ---------------------------------------------------------------------------------------------------------

_BEFORE = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)


def decode_before_authentication(frame: bytearray) -> frames.Request[Any]:
    """Decode a request of a connection that is not authenticated. Raises PeerError if it is none of the three that are
    accepted."""
    if len(frame) >= 2 and frame[1] in _BEFORE:  # Byte 1 of a request's frame is the API key (`frames.py`).
        return frames.decode_request(frame)
    raise PeerError(f"it sent {_named(frame)} before it was authenticated")


def decode_after_expiry(frame: bytearray) -> frames.Request[Any]:
    """Decode a request of a connection whose session has expired. Raises PeerError if it is not SaslHandshake."""
    if len(frame) >= 2 and frame[1] == SASL_HANDSHAKE:
        return frames.decode_request(frame)
    raise PeerError(f"it sent {_named(frame)} after its session had expired")


def _named(frame: bytearray) -> str:
    return f"the request {api_name(frame[1])}" if len(frame) >= 2 and frame[0] == 0x95 else "a malformed frame"
