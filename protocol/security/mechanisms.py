"""The interface of SASL mechanisms: the server's and the client's side of an exchange.

An exchange is a plain object that is created for one authentication. It takes the peer's message and returns the next one. The
mechanisms are in `scram.py`, `plain.py` and `oauthbearer.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from strandline.protocol.errors import StrandlineError

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SCRAM_256, SCRAM_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
MECHANISMS = (SCRAM_256, SCRAM_512, PLAIN, OAUTHBEARER)

RandomBytes = Callable[[int], bytes]
"""Returns this many unpredictable bytes: `os.urandom`, or a seeded generator in a simulation."""


class AuthenticationError(StrandlineError):
    """The exchange failed. The text is for the log of the end that raises it. The peer gets a text that does not say why."""

    def __init__(self, reason: str, user: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.user = user
        """The name that the client claimed, if it claimed one."""


class ServerExchange(Protocol):
    """The server's side of one authentication."""

    def respond(self, message: bytes) -> bytes | Work:
        """Return the response to the client's message, or the work that leads to it. Raises AuthenticationError, as does the
        work."""

    user: str | None
    """The authenticated user; None while the exchange goes on."""
    lifetime_ms: int | None
    """How long the credential remains valid after the end of the exchange, in ms; None if it does not expire."""


Work = Callable[[], bytes]
"""The rest of a response that takes long (it hashes a password, or reads keys): to be called in another thread."""

MakeServerExchange = Callable[[], ServerExchange]


class ClientExchange(Protocol):
    """The client's side of one authentication."""

    def respond(self, message: bytes) -> bytes:
        """Return the next message to the server; the first call has an empty `message`. Raises AuthenticationError."""

    is_complete: bool
    """True if the client needs no further message. With SCRAM it has then verified the server's signature."""
