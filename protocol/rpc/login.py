"""The login of an outgoing connection: TLS and SASL, before `Connection.connect` returns it, and again before the session ends.

A re-authentication (KIP-368) happens between two requests: the connection holds back the requests that are sent meanwhile, so its
user does not notice it. If it fails, the connection is closed with the reason.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol

from strandline.protocol.apis import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from strandline.protocol.errors import BrokerError, ErrorCode, PeerError, StrandlineError
from strandline.protocol.log_limits import printable
from strandline.protocol.messages.admin import ApiVersionsRequest
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from strandline.protocol.rpc.sockets import describe_connect_error
from strandline.protocol.security.client_security import ClientSecurity

_ROUNDS_MAX = 10
_PAUSE_MIN_S = 0.03
"""The shortest time between two logins, in seconds, even if the server grants a shorter session. Otherwise a server could keep a
client busy with logins."""


class LoginConnection(Protocol):
    """The part of a `Connection` that its login uses."""

    host: str
    port: int
    closed: bool

    def request_ahead(self, api_key: int, body: Message, *, timeout_ms: int | None = None) -> asyncio.Future[Message]:
        """Send a request before the requests that wait."""

    def hold_back(self) -> None:
        """Keep the requests that are sent from now on, until `let_go`."""

    def let_go(self) -> None:
        """Write the kept requests."""

    def fail(self, reason: Exception) -> None:
        """Close the connection."""


class Login:
    """The logins of one connection."""

    def __init__(self, connection: LoginConnection, security: ClientSecurity) -> None:
        self._connection = connection
        self._security = security
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Log in. Raises BrokerError or UsageError."""
        if self._security.security_protocol.startswith("SASL_"):
            self._schedule(await self._authenticate())
            return
        try:  # With TLS 1.3 a server may reject a client's certificate after the client's handshake; the first request shows it.
            await self._connection.request_ahead(API_VERSIONS, ApiVersionsRequest("strandline", ""))
        except BrokerError as e:
            raise self._closed_early(e) from e.__cause__

    def stop(self) -> None:
        """End the login that is running or scheduled. Called when the connection is closed."""
        for pending in (self._timer, self._task):
            if pending is not None:
                pending.cancel()

    def _schedule(self, session_lifetime_ms: int) -> None:
        if not session_lifetime_ms or self._connection.closed:
            return
        from strandline.protocol.security.sasl_client import reauthenticate_after_s

        delay_s = reauthenticate_after_s(session_lifetime_ms, self._security.random_bytes(1)[0] / 255)
        self._timer = asyncio.get_running_loop().call_later(max(delay_s, _PAUSE_MIN_S), self._begin)

    def _begin(self) -> None:
        name = f"authenticate again to {self._connection.host}:{self._connection.port}"
        self._task = asyncio.get_running_loop().create_task(self._run_again(), name=name)

    async def _run_again(self) -> None:
        try:
            lifetime_ms = await self._authenticate(is_again=True)
        except StrandlineError as e:
            self._connection.fail(e)
        except Exception as e:  # The user's function that returns a token.
            self._connection.fail(BrokerError(ErrorCode.SASL_AUTHENTICATION_FAILED, f"could not get a token: {e}"))
        else:
            self._connection.let_go()
            self._schedule(lifetime_ms)

    async def _authenticate(self, is_again: bool = False) -> int:
        """Return the lifetime of the session in ms; 0 if it has no end."""
        from strandline.protocol.security.mechanisms import AuthenticationError
        from strandline.protocol.security.sasl_client import new_client_exchange

        exchange = await new_client_exchange(self._security)
        if is_again:
            self._connection.hold_back()
        await self._choose_mechanism()
        try:
            message = exchange.respond(b"")
            for _ in range(_ROUNDS_MAX):
                response = await self._send(message)
                message = exchange.respond(response.auth_bytes)
                if exchange.is_complete:
                    return response.session_lifetime_ms
        except AuthenticationError as e:
            raise self._failure(ErrorCode.SASL_AUTHENTICATION_FAILED, e.reason) from None
        raise self._failure(ErrorCode.SASL_AUTHENTICATION_FAILED, "the server does not finish the authentication")

    async def _choose_mechanism(self) -> None:
        mechanism = self._security.sasl_mechanism
        try:
            response = await self._connection.request_ahead(SASL_HANDSHAKE, SaslHandshakeRequest(mechanism))
        except BrokerError as e:
            if e.code == ErrorCode.UNSUPPORTED_VERSION:
                text = "the listener does not authenticate by SASL; use the security protocol PLAINTEXT or SSL for it"
                raise self._failure(ErrorCode.UNSUPPORTED_SASL_MECHANISM, text) from None
            raise self._closed_early(e) from e.__cause__
        assert isinstance(response, SaslHandshakeResponse)
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = printable(", ".join(response.mechanisms))
            text = f"the listener does not offer the SASL mechanism {mechanism}; it offers {offered}"
            raise self._failure(ErrorCode.UNSUPPORTED_SASL_MECHANISM, text)
        if response.error_code:
            raise self._failure(response.error_code, f"the server refused to authenticate by {mechanism}")

    async def _send(self, message: bytes) -> SaslAuthenticateResponse:
        response = await self._connection.request_ahead(SASL_AUTHENTICATE, SaslAuthenticateRequest(message))
        assert isinstance(response, SaslAuthenticateResponse)
        if response.error_code:
            text = printable(response.error_message or "the server rejected the login")
            raise self._failure(response.error_code, text)
        if response.session_lifetime_ms < 0:
            text = f"the server grants a session with a lifetime of {response.session_lifetime_ms} ms"
            raise self._failure(ErrorCode.SASL_AUTHENTICATION_FAILED, text)
        return response

    def _closed_early(self, e: BrokerError) -> BrokerError:
        """The error if the server closes the connection before the login. It names the likely reasons."""
        if e.code != ErrorCode.NETWORK_EXCEPTION:
            return e
        if isinstance(e.__cause__, ssl.SSLError):
            return BrokerError(e.code, describe_secure_error(self._connection.host, self._connection.port, e.__cause__))
        if "SSL" in self._security.security_protocol:
            why = "perhaps it requires a certificate of the client (ssl_certfile), or does not accept it"
        else:
            why = "perhaps the port speaks TLS (security_protocol), or the server stops"
        return self._failure(e.code, f"the server closed the connection before the login: {why}")

    def _failure(self, code: int, text: str) -> BrokerError:
        return BrokerError(code, f"{self._connection.host}:{self._connection.port}: {text}")


def tls_of(security: ClientSecurity) -> ssl.SSLContext | None:
    """The TLS context of outgoing connections; None for SASL_PLAINTEXT. Raises UsageError if a file cannot be used."""
    if security.security_protocol == "SASL_PLAINTEXT":
        return None
    from strandline.protocol.security.tls import client_context

    return client_context(security)


def describe_secure_error(host: str, port: int, e: Exception) -> str:
    """Why a connection with TLS could not be opened."""
    if isinstance(e, ssl.SSLError):
        from strandline.protocol.security.tls import describe_tls_error

        return f"could not connect to {host}:{port} by TLS: {describe_tls_error(e)}"
    if isinstance(e, ConnectionRefusedError) or not isinstance(e, ConnectionError):
        return describe_connect_error(host, port, e)
    why = "perhaps it requires a certificate of the client (ssl_certfile), or does not accept it"
    return f"could not connect to {host}:{port} by TLS: the server closed the connection during the handshake; {why}"


def plain_error(e: Exception | None) -> Exception | None:
    """The reason of a lost connection: an error of TLS in plain words, another one as it is."""
    if not isinstance(e, ssl.SSLError):
        return e
    from strandline.protocol.security.tls import describe_tls_error

    return PeerError(describe_tls_error(e))
