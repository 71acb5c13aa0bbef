"""SASL/OAUTHBEARER (RFC 7628): the client presents a token, a JWT that an authority has signed.

    first message := "n," [ "a=" authorization id ] "," %x01 { key "=" value %x01 } %x01        the key `auth` has "Bearer TOKEN"

If the server rejects the token, it answers with a JSON object; the client acknowledges it by %x01, and the authentication fails.
The library PyJWT checks signatures. Which algorithms count depends on the key, never on the token; `none` and symmetric keys are
refused. The expiry of the token bounds the session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strandline.protocol.errors import UsageError
from strandline.protocol.security.jwks import ASYMMETRIC, Jwks
from strandline.protocol.security.mechanisms import AuthenticationError, MakeServerExchange, Work

CLOCK_SKEW_MS = 30_000
_TOKEN = re.compile(r"[A-Za-z0-9_=-]+\.[A-Za-z0-9_=-]+\.[A-Za-z0-9_=-]+")
_ACKNOWLEDGEMENT = b"\x01"
_NAME_LENGTH_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The claims that a token must have."""

    sub_claim: str = "sub"
    """`sasl.oauthbearer.sub.claim.name`: the claim with the user's name."""
    scope_claim: str = "scope"
    """`sasl.oauthbearer.scope.claim.name`."""
    required_scope: tuple[str, ...] = ()
    """Scopes that the token must have, all of them."""
    expected_audience: tuple[str, ...] = ()
    """`sasl.oauthbearer.expected.audience`: the token must name one of them; empty: any."""
    expected_issuer: str | None = None
    """`sasl.oauthbearer.expected.issuer`."""
    clock_skew_ms: int = CLOCK_SKEW_MS
    """`sasl.oauthbearer.clock.skew.seconds`, in ms."""


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """The user of a valid token, and for how long the token is valid."""

    user: str
    lifetime_ms: int


class TokenVerifier:
    """Checks tokens. It may read keys, so it is not called in the thread of the event loop."""

    def __init__(self, jwks: Jwks, rules: TokenRules, now_ms: Callable[[], int]) -> None:
        self._jwks, self._rules, self._now_ms = jwks, rules, now_ms

    def verify(self, token: str) -> VerifiedToken:
        """Return the user and the remaining lifetime of a valid token. Raises AuthenticationError for others."""
        claims = self._claims(token)
        expires_at_ms = self._check_times(claims)
        self._check_scope(claims)
        user = claims.get(self._rules.sub_claim)
        if not isinstance(user, str) or not 0 < len(user) <= _NAME_LENGTH_MAX or not _has_utf8(user):
            raise AuthenticationError(f"the token has no claim {self._rules.sub_claim} with a name")
        return VerifiedToken(user, max(1, expires_at_ms - self._now_ms()))

    def _claims(self, token: str) -> dict[str, Any]:
        import jwt

        rules = self._rules
        try:
            key = self._jwks.key(jwt.get_unverified_header(token).get("kid"))
            claims: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=ASYMMETRIC[key.key_type],
                audience=list(rules.expected_audience) or None,
                issuer=rules.expected_issuer,
                # The times are checked below, against the clock that this verifier was given.
                options={
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": bool(rules.expected_audience),
                    "verify_sub": False,
                },
            )
        except jwt.PyJWTError as e:
            raise AuthenticationError(f"the token is not valid: {e}") from None
        return claims

    def _check_times(self, claims: dict[str, Any]) -> int:
        """Return when the token expires, in ms."""
        now_ms, skew_ms = self._now_ms(), self._rules.clock_skew_ms
        expires_at_ms = _time_ms(claims, "exp")
        if expires_at_ms is None:
            raise AuthenticationError("the token does not expire (it has no claim exp)")
        if now_ms - skew_ms >= expires_at_ms:
            raise AuthenticationError("the token has expired")
        for claim in ("nbf", "iat"):
            begins_at_ms = _time_ms(claims, claim)
            if begins_at_ms is not None and begins_at_ms > now_ms + skew_ms:
                raise AuthenticationError(f"the token is not valid yet (claim {claim})")
        return expires_at_ms

    def _check_scope(self, claims: dict[str, Any]) -> None:
        claim = claims.get(self._rules.scope_claim, ())
        scopes = claim.split() if isinstance(claim, str) else claim
        missing = [scope for scope in self._rules.required_scope if not isinstance(scopes, (list, tuple)) or scope not in scopes]
        if missing:
            raise AuthenticationError(f"the token lacks the scope {missing[0]}")


def _has_utf8(name: str) -> bool:
    """False if the name contains a lone surrogate, which JSON can express and UTF-8 cannot. No message could carry the name."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise AuthenticationError(f"the token has a claim {name} that is not a time")
    return int(value * 1000)


# -- the server's side ------------------------------------------------------------------------------------------------


def oauthbearer_server(verifier: TokenVerifier) -> MakeServerExchange:
    """Offer OAUTHBEARER on a listener."""
    import jwt  # noqa: F401 - now, and not at the first login

    return lambda: BearerServerExchange(verifier)


class BearerServerExchange:
    """The server's side of one exchange."""

    def __init__(self, verifier: TokenVerifier) -> None:
        self.user: str | None = None
        self.lifetime_ms: int | None = None
        self._verifier = verifier
        self._rejected: AuthenticationError | None = None

    def respond(self, message: bytes) -> Work:
        """Return the check of the token, after which `user` is set unless the token was rejected. Raises AuthenticationError."""
        if self._rejected is not None:
            raise self._rejected
        authorization_id, token = parse_first_message(message)

        def check() -> bytes:
            try:
                verified = self._verifier.verify(token)
                if authorization_id not in ("", verified.user):
                    raise AuthenticationError("the authorization id is not the user of the token", verified.user)
            except AuthenticationError as e:
                self._rejected = e
                return json.dumps({"status": "invalid_token"}).encode()
            self.user, self.lifetime_ms = verified.user, verified.lifetime_ms
            return b""

        return check


def parse_first_message(message: bytes) -> tuple[str, str]:
    """Return the authorization id and the token. Raises AuthenticationError."""
    try:
        header, *fields = message.decode().split("\x01")
    except UnicodeDecodeError:
        raise AuthenticationError("an OAUTHBEARER message is not UTF-8") from None
    flag, *middle = header.split(",")
    if flag not in ("n", "y") or len(middle) != 2 or middle[1] or len(fields) < 2 or fields[-2:] != ["", ""]:
        raise AuthenticationError("an OAUTHBEARER message is malformed")
    if middle[0] and not middle[0].startswith("a="):
        raise AuthenticationError("an OAUTHBEARER message has a malformed authorization id")
    authorization_id = middle[0][2:].replace("=2C", ",").replace("=3D", "=")
    values = [value for key, _, value in (field.partition("=") for field in fields) if key == "auth"]
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    token = token.strip()
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token):
        raise AuthenticationError("an OAUTHBEARER message has no bearer token")
    return authorization_id, token


# -- the client's side ------------------------------------------------------------------------------------------------


class BearerClientExchange:
    """The client's side of one exchange."""

    def __init__(self, token: str) -> None:
        """Raises UsageError if the token does not look like one. The text never contains the token."""
        if not _TOKEN.fullmatch(token):
            raise UsageError("sasl_oauth_token_provider did not return a token: a JWT has three parts, separated by dots")
        self.is_complete = False
        self._first: bytes | None = f"n,,\x01auth=Bearer {token}\x01\x01".encode()

    def respond(self, message: bytes) -> bytes:
        """Return the token; then acknowledge a rejection, or nothing."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if message:
            return _ACKNOWLEDGEMENT
        self.is_complete = True
        return b""
