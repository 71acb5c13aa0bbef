"""The server's side of SASL on one connection, as a state machine without a socket.

    INITIAL --SaslHandshake--> EXCHANGE --SaslAuthenticate, perhaps several--> AUTHENTICATED
                                  ^                                               | SaslHandshake, if the session has a lifetime
                                  +-----------------------------------------------+ (re-authentication, KIP-368)
    any --failure--> FAILED, and the connection is closed

A re-authentication has the mechanism and the principal of the first authentication. It may begin at most once per second, as in
Kafka, so that a client does not keep the server busy with it; in a session that is shorter than two seconds, after half of it.
A session with a lifetime ends at `expires_at`. After that, the connection accepts SaslHandshake only.

`SaslFailure` has two texts: one for the peer, which does not show whether the user exists, and the reason, for the log.
"""

from __future__ import annotations

from enum import Enum, auto

from strandline.protocol.errors import ErrorCode, StrandlineError
from strandline.protocol.security.listener_security import ListenerSecurity
from strandline.protocol.security.mechanisms import AuthenticationError, ServerExchange, Work
from strandline.protocol.security.principal import USER, Principal

REAUTH_INTERVAL_S_MIN = 1.0


class SaslState(Enum):
    """The state of a connection's authentication."""

    INITIAL = auto()
    EXCHANGE = auto()
    AUTHENTICATED = auto()
    FAILED = auto()


class SaslFailure(StrandlineError):
    """The authentication failed, and the connection must be closed."""

    def __init__(self, code: ErrorCode, message: str, reason: str, user: str | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.message = message
        """The text for the peer. It does not show whether the user exists."""
        self.reason = reason
        """The text for the log."""
        self.user = user
        """The name that the client claimed."""


class IllegalSaslState(StrandlineError):
    """The request is not allowed in the present state. The server refuses it, and the connection stays as it is."""


class SaslSession:
    """The authentication of one connection. Times are those of the event loop, in seconds."""

    def __init__(self, security: ListenerSecurity) -> None:
        self._security = security
        self.state = SaslState.INITIAL
        self.mechanism = ""
        """Chosen by the last SaslHandshake."""
        self.principal: Principal | None = None
        """Set by the first authentication; the later ones must have the same."""
        self.session_lifetime_ms = 0
        """Lifetime of the session in ms, counted from the last authentication; 0 if the session has no end."""
        self.expires_at: float | None = None
        """When the session ends; None if it has no end."""
        self._exchange: ServerExchange | None = None
        self._authenticated_at = 0.0

    def handshake(self, mechanism: str, now: float) -> None:
        """Begin an authentication. Raises IllegalSaslState or SaslFailure."""
        if self.state is SaslState.AUTHENTICATED:
            self._check_reauthentication(mechanism, now)
        elif self.state is not SaslState.INITIAL:
            raise self._illegal("SaslHandshake arrived during an authentication")
        make = self._security.mechanisms.get(mechanism)
        if make is None:
            self.state = SaslState.FAILED
            offered = ", ".join(sorted(self._security.mechanisms))
            message = f"the listener does not offer the SASL mechanism {mechanism[:100]}; it offers {offered}"
            raise SaslFailure(ErrorCode.UNSUPPORTED_SASL_MECHANISM, message, message)
        self.mechanism = mechanism
        self._exchange = make()
        self.state = SaslState.EXCHANGE

    def respond(self, message: bytes) -> bytes | Work:
        """Pass the client's message to the mechanism. Raises IllegalSaslState or SaslFailure. Call `advance` after it."""
        if self.state is SaslState.AUTHENTICATED:
            raise IllegalSaslState("the connection is authenticated already")
        if self._exchange is None:
            raise self._illegal("SaslAuthenticate arrived before SaslHandshake")
        try:
            return self._exchange.respond(message)
        except AuthenticationError as e:
            raise self.failure(e) from None

    def advance(self, now: float) -> bool:
        """Account for a response of the mechanism; True if the authentication is complete. Raises SaslFailure."""
        exchange = self._exchange
        if exchange is None or exchange.user is None:
            return False
        principal = Principal(USER, exchange.user)
        if self.principal not in (None, principal):
            reason = f"the client authenticated again as {principal} instead of {self.principal}"
            raise self.failure(AuthenticationError(reason, exchange.user))
        self.principal = principal
        self._exchange = None
        self._authenticated_at = now
        self.session_lifetime_ms = _lifetime_ms(self._security.max_reauth_ms, exchange.lifetime_ms)
        self.expires_at = now + self.session_lifetime_ms / 1000 if self.session_lifetime_ms else None
        self.state = SaslState.AUTHENTICATED
        return True

    def failure(self, e: AuthenticationError) -> SaslFailure:
        """The failure for an error of the mechanism. The session is over."""
        self.state, self._exchange = SaslState.FAILED, None
        message = f"Authentication failed: invalid credentials with SASL mechanism {self.mechanism}"
        return SaslFailure(ErrorCode.SASL_AUTHENTICATION_FAILED, message, e.reason, e.user)

    def _check_reauthentication(self, mechanism: str, now: float) -> None:
        if self.expires_at is None:
            raise IllegalSaslState("the connection is authenticated, and its session does not expire")
        if now - self._authenticated_at < min(REAUTH_INTERVAL_S_MIN, self.session_lifetime_ms / 2000):
            raise IllegalSaslState("the connection was authenticated a moment ago")
        if mechanism != self.mechanism:
            reason = f"the client authenticated again by {mechanism[:100]} instead of {self.mechanism}"
            raise self.failure(AuthenticationError(reason, None))

    def _illegal(self, reason: str) -> SaslFailure:
        self.state, self._exchange = SaslState.FAILED, None
        return SaslFailure(ErrorCode.ILLEGAL_SASL_STATE, reason, reason)


def _lifetime_ms(max_reauth_ms: int, credential_ms: int | None) -> int:
    """The shorter of the two; at least 1 ms if there is one, because 0 means that the session has no end."""
    limits = [max(limit, 1) for limit in (max_reauth_ms or None, credential_ms) if limit is not None]
    return min(limits, default=0)
