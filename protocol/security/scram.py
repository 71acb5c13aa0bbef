"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): credentials, and both ends of an exchange.

The library scramp does the exchange: messages, SASLprep, `=2C` and `=3D` in names, the flag of channel binding (which we do not
offer), the proof in constant time, the nonce of the final message (CVE-2024-56128), the server's signature. This file adds what a
cluster needs around it:

- An unknown user takes the same path as a known one, with a made-up credential. Its salt is derived from the name and a secret
  (`scram_server`), and its iterations are those that our tools set, so repeated attempts do not show whether the user exists.
- librdkafka before 2.6.1 repeats its nonce in the final message (librdkafka#4895). Exactly that form is accepted, as in Kafka
  3.8.1.
- A message is short, and a server may not ask for more than `ITERATIONS_MAX` iterations: both bound the work that an
  unauthenticated peer can cause.

The library is imported only where SCRAM is used, because that takes a tenth of a second: when a listener offers it, and at the
first login of a client.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strandline.protocol.errors import UsageError
from strandline.protocol.messages.security import SCRAM_ITERATIONS_MIN
from strandline.protocol.security.mechanisms import (
    SCRAM_256,
    SCRAM_512,
    AuthenticationError,
    MakeServerExchange,
    RandomBytes,
)

MESSAGE_BYTES_MAX = 4096
ITERATIONS_MAX = 100_000
"""A client computes this many iterations in less than a tenth of a second."""
ITERATIONS_USUAL = 8192
"""The iterations of the credentials that our tools create, and of users that do not exist."""
SALT_BYTES, SALT_BYTES_MIN = 24, 12
_NONCE_BYTES = 24
_HASHES = {SCRAM_256: "sha256", SCRAM_512: "sha512"}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The values that the server keeps in place of a password (RFC 5802, 3). They check logins, and are not enough to log in."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


LookUp = Callable[[str, str], ScramCredential | None]
"""(user, mechanism name) -> the user's credential; None if there is none."""


# -- credentials ------------------------------------------------------------------------------------------------------


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi(SASLprep(password), salt, iterations) of RFC 5802. It is as secret as the password. Raises UsageError if the password
    has characters that SASLprep forbids."""
    return hashlib.pbkdf2_hmac(_hash_of(mechanism), prepared_password(password), salt, iterations)


def credential_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a salted password."""
    name = _hash_of(mechanism)
    client_key = hmac.digest(salted, b"Client Key", name)
    return ScramCredential(salt, hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name), iterations)


def new_credential(
    mechanism: str, password: str, random_bytes: RandomBytes, iterations: int = SCRAM_ITERATIONS_MIN
) -> ScramCredential:
    """A credential of `password`, with a salt of its own."""
    salt = random_bytes(SALT_BYTES)
    return credential_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def is_password_of(mechanism: str, password: str, credential: ScramCredential) -> bool:
    """Return True if the credential is that of `password`. It takes as long as a login of a client."""
    try:
        salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    except UsageError:
        return False
    stored_key = credential_of(mechanism, salted, credential.salt, credential.iterations).stored_key
    return hmac.compare_digest(stored_key, credential.stored_key)


def prepared_password(password: str) -> bytes:
    """SASLprep(password), as bytes. Raises UsageError if it has characters that SASLprep forbids, or if nothing is left of it."""
    prepared = _prepared(password, "the password")
    if not prepared:
        raise UsageError("the password is empty")
    return prepared.encode()


def check_name(user: str) -> None:
    """Raise UsageError if SASLprep changes or rejects the name. Its user could not log in, because the server looks up the
    prepared name. (Kafka does not prepare names.)"""
    prepared = _prepared(user, f"the user name {user!r}")
    if user and not prepared:
        raise UsageError(f"nothing is left of the user name {user!r} after SASLprep")
    if prepared != user:
        raise UsageError(f"no user {user!a} could log in, because SASLprep changes the name: write {prepared!r} instead")


def _prepared(text: str, what: str) -> str:
    """SASLprep(text). UsageError, which begins with `what`, if it has characters that SASLprep forbids."""
    if text.isascii() and text.isprintable():
        return text
    from scramp.utils import ScramException, saslprep

    try:
        prepared: str = saslprep(text)
    except ScramException as e:
        raise UsageError(f"{what} has characters that SASLprep does not allow: {e.args[0]}") from None
    return prepared


def made_up_credential(mechanism: str, user: str, pepper: bytes) -> ScramCredential:
    """The credential of a user that does not exist: stable, indistinguishable from a real one without `pepper`, and without a
    password."""
    name = _hash_of(mechanism)
    seed = f"{mechanism} {user}".encode(errors="surrogatepass")
    salt, stored_key, server_key = (hmac.digest(pepper, part + seed, name) for part in (b"salt ", b"stored ", b"server "))
    return ScramCredential(salt[:SALT_BYTES], stored_key, server_key, ITERATIONS_USUAL)


def _hash_of(mechanism: str) -> str:
    if mechanism not in _HASHES:
        raise UsageError(f"{mechanism!r} is not a SCRAM mechanism: these are {', '.join(_HASHES)}")
    return _HASHES[mechanism]


# -- the server's side ------------------------------------------------------------------------------------------------


def scram_server(mechanism: str, look_up: LookUp, random_bytes: RandomBytes, pepper: bytes | None = None) -> MakeServerExchange:
    """Offer `mechanism` on a listener. `pepper`: a secret from which the credentials of unknown users are derived. None: a new
    one for this listener. In that case the salt of an unknown user, unlike that of a known one, differs between nodes and after a
    restart, which shows that the user does not exist."""
    import scramp  # noqa: F401 - now, and not while the loop serves its first login

    secret = random_bytes(32) if pepper is None else pepper
    return lambda: ScramServerExchange(mechanism, look_up, random_bytes, secret)


class ScramServerExchange:
    """The server's side of one exchange: the client's first message, then its final one."""

    lifetime_ms: int | None = None

    def __init__(self, mechanism: str, look_up: LookUp, random_bytes: RandomBytes, pepper: bytes) -> None:
        from scramp import ScramMechanism

        self.user: str | None = None
        self._claimed: str | None = None
        self._mechanism, self._look_up, self._pepper = mechanism, look_up, pepper
        self._is_known = False
        self._nonce = _nonce(random_bytes)
        self._core: Any = ScramMechanism(mechanism).make_server(self._credential_of, s_nonce=self._nonce)
        self._is_begun = False

    def respond(self, message: bytes) -> bytes:
        """Return the response to the client's message. After the second one, `user` is set. Raises AuthenticationError."""
        return _guarded(lambda: self._respond(_text_of(message)), self)

    @property
    def claimed(self) -> str | None:
        """The name that the client claims, before it has proved it."""
        return self._claimed

    def _respond(self, text: str) -> bytes:
        if not self._is_begun:
            self._is_begun = True
            self._core.set_client_first(text)
            return _bytes_of(self._core.get_server_first())
        self._accept_repeated_nonce(text)
        self._core.set_client_final(text)
        response = _bytes_of(self._core.get_server_final())
        if not self._is_known:
            raise AuthenticationError("the user does not exist", self._claimed)
        self.user = self._claimed
        return response

    def _credential_of(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self._claimed = user
        credential, made_up = self._look_up(user, self._mechanism), made_up_credential(self._mechanism, user, self._pepper)
        self._is_known = credential is not None
        used = made_up if credential is None else credential
        return used.salt, used.stored_key, used.server_key, used.iterations

    def _accept_repeated_nonce(self, text: str) -> None:
        expected = str(self._core.nonce)
        repeated = expected.removesuffix(self._nonce) + expected
        if f",r={repeated}," in text:
            self._core.nonce = type(self._core.nonce)(repeated)


# -- the client's side ------------------------------------------------------------------------------------------------


class ScramClientExchange:
    """The client's side of one exchange."""

    def __init__(self, mechanism: str, user: str, password: str, random_bytes: RandomBytes) -> None:
        from scramp import ScramClient, ScramException

        self.is_complete = False
        self._sent = 0
        prepared_password(password)
        try:
            self._core: Any = ScramClient([mechanism], user, password, c_nonce=_nonce(random_bytes))
        except ScramException as e:
            raise UsageError(f"the user name {user!r} cannot be used with {mechanism}: {e.args[0]}") from None

    def respond(self, message: bytes) -> bytes:
        """Return the next message to the server; empty after the last one. Raises AuthenticationError."""
        return _guarded(lambda: self._respond(_text_of(message)), None)

    def _respond(self, text: str) -> bytes:
        self._sent += 1
        if self._sent == 1:
            return _bytes_of(self._core.get_client_first())
        if self._sent == 2:
            self._core.set_server_first(text)
            if int(self._core.iterations) > ITERATIONS_MAX:
                raise AuthenticationError(f"the server asks for more than {ITERATIONS_MAX} iterations")
            return _bytes_of(self._core.get_client_final())
        self._core.set_server_final(text)
        self.is_complete = True
        return b""


# -- both -------------------------------------------------------------------------------------------------------------


def _guarded(step: Callable[[], bytes], server: ScramServerExchange | None) -> bytes:
    from scramp import ScramException

    try:
        return step()
    except ScramException as e:
        if e.args[0] == "auth_fn exception" and e.__cause__ is not None:
            raise e.__cause__ from None  # A bug in the look-up is not a failed login.
        raise AuthenticationError(str(e), None if server is None else server.claimed) from None


def _text_of(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise AuthenticationError(f"a SCRAM message has {len(message)} bytes; at most {MESSAGE_BYTES_MAX} are accepted")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationError("a SCRAM message is not UTF-8") from None


def _bytes_of(text: Any) -> bytes:
    return str(text).encode()


def _nonce(random_bytes: RandomBytes) -> str:
    return random_bytes(_NONCE_BYTES).hex()
