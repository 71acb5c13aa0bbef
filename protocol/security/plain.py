"""SASL/PLAIN (RFC 4616): the client sends its password. Only for listeners with TLS, or on loopback.

    message := [authorization id] NUL user NUL password

The server checks the password against the user's SCRAM credential, so a user has one password for all mechanisms, and the server
stores no password. The check takes as long as the client's part of SCRAM, so it runs in another thread. For an unknown user it
runs with a made-up credential.
"""

from __future__ import annotations

from strandline.protocol.security.mechanisms import (
    SCRAM_256,
    SCRAM_512,
    AuthenticationError,
    MakeServerExchange,
    RandomBytes,
    Work,
)
from strandline.protocol.security.scram import LookUp, ScramCredential, is_password_of, made_up_credential

MESSAGE_BYTES_MAX = 4096


def plain_server(look_up: LookUp, random_bytes: RandomBytes) -> MakeServerExchange:
    """Offer PLAIN on a listener, for the users that have a SCRAM credential."""
    pepper = random_bytes(32)
    return lambda: PlainServerExchange(look_up, pepper)


class PlainServerExchange:
    """The server's side of one exchange."""

    lifetime_ms: int | None = None

    def __init__(self, look_up: LookUp, pepper: bytes) -> None:
        self.user: str | None = None
        self._look_up = look_up
        self._pepper = pepper

    def respond(self, message: bytes) -> Work:
        """Return the check of the password, after which `user` is set. Raises AuthenticationError."""
        user, password = _parse(message)
        mechanism, credential = self._credential_of(user)
        checked = credential or made_up_credential(mechanism, user, self._pepper)

        def check() -> bytes:
            if not is_password_of(mechanism, password, checked) or credential is None:
                raise AuthenticationError("the user does not exist, or the password is wrong", user)
            self.user = user
            return b""

        return check

    def _credential_of(self, user: str) -> tuple[str, ScramCredential | None]:
        for mechanism in (SCRAM_512, SCRAM_256):
            credential = self._look_up(user, mechanism)
            if credential is not None:
                return mechanism, credential
        return SCRAM_512, None


class PlainClientExchange:
    """The client's side of one exchange."""

    def __init__(self, user: str, password: str) -> None:
        self.is_complete = False
        self._message = b"\0".join((b"", user.encode(), password.encode()))

    def respond(self, message: bytes) -> bytes:
        """Return the only message, and then nothing."""
        response, self._message = self._message, b""
        self.is_complete = True
        return response


def _parse(message: bytes) -> tuple[str, str]:
    """Return the user and the password."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise AuthenticationError(f"a PLAIN message has {len(message)} bytes; at most {MESSAGE_BYTES_MAX} are accepted")
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise AuthenticationError("a PLAIN message is not UTF-8") from None
    if len(parts) != 3:
        raise AuthenticationError(f"a PLAIN message has {len(parts)} parts instead of 3")
    authorization_id, user, password = parts
    if not user or not password:
        raise AuthenticationError("the user name or the password is empty", user or None)
    if authorization_id not in ("", user):
        raise AuthenticationError("the authorization id is not the user name", user)
    return user, password
