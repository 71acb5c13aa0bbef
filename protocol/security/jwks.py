"""The keys with which tokens are checked: a JSON Web Key Set (RFC 7517) from a file or a configured URL.

The set is read again after `refresh_ms`, and when a token names an unknown key, because the authority may have new keys. Unknown
keys cause at most one read per `retry_ms`, so that invented key ids cause no load. If reading fails, the known keys stay in use.
Keys are read in the thread of an authentication, never in that of the event loop. The URL comes from the configuration, never
from a client (CVE-2025-27817).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

from strandline.protocol.errors import UsageError
from strandline.protocol.loggers import get_logger
from strandline.protocol.security.mechanisms import AuthenticationError

logger = get_logger(__name__)

REFRESH_MS, RETRY_MS = 3_600_000, 30_000
_SIZE_MAX = 1024 * 1024
_TIMEOUT_S = 10.0
ASYMMETRIC = {"RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "EC": ("ES256", "ES384", "ES512"), "OKP": ("EdDSA",)}
"""Type of key -> the algorithms that it may verify. Symmetric keys and `none` are missing on purpose: a symmetric key that
verifies tokens also signs them."""


class Jwks:
    """The current keys. Its methods may be called from several threads."""

    def __init__(
        self, read: Callable[[], str], now_ms: Callable[[], int], refresh_ms: int = REFRESH_MS, retry_ms: int = RETRY_MS
    ) -> None:
        """`read` returns the text of the key set, or raises OSError."""
        self._read, self._now_ms = read, now_ms
        self._refresh_ms, self._retry_ms = refresh_ms, retry_ms
        self._keys: list[Any] = []
        self._read_at_ms: int | None = None
        self._lock = threading.Lock()

    def load(self) -> None:
        """Read the keys; a node calls this at its start. Raises UsageError if that fails."""
        with self._lock:
            self._read_at_ms = self._now_ms()
            try:
                self._keys = parse_keys(self._read())
            except OSError as e:
                raise UsageError(f"cannot read the key set (sasl.oauthbearer.jwks.endpoint.url): {e}") from e

    def key(self, key_id: str | None) -> Any:
        """The key with this id (a PyJWK); without an id, the only key. Raises AuthenticationError."""
        self._maybe_refresh(self._refresh_ms)
        found = self._find(key_id)
        if found is None:
            self._maybe_refresh(self._retry_ms)
            found = self._find(key_id)
        if found is None:
            raise AuthenticationError("the token is signed by a key that is not in the key set")
        return found

    def _find(self, key_id: str | None) -> Any:
        if key_id is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.key_id == key_id), None)

    def _maybe_refresh(self, age_ms: int) -> None:
        with self._lock:
            now_ms = self._now_ms()
            if self._read_at_ms is not None and 0 <= now_ms - self._read_at_ms < age_ms:
                return
            self._read_at_ms = now_ms
            try:
                self._keys = parse_keys(self._read())
            except (OSError, UsageError) as e:
                logger.warning("jwks.refresh_failed", reason=str(e), keys=len(self._keys))


def parse_keys(text: str) -> list[Any]:
    """The asymmetric keys of a key set. Raises UsageError if there are none."""
    import jwt

    try:
        keys = jwt.PyJWKSet.from_json(text).keys
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, RecursionError) as e:  # PyJWT checks few types itself.
        raise UsageError(f"the key set cannot be used: {e}") from None
    usable = [key for key in keys if key.key_type in ASYMMETRIC and key.public_key_use in (None, "sig")]
    if not usable:
        raise UsageError("the key set has no asymmetric key for signatures; symmetric keys are not accepted")
    return usable


def reader_of(location: str) -> Callable[[], str]:
    """A function that reads a path, a `file:` URL or an `https:` URL (`http:` on loopback only). Raises UsageError for any other
    URL."""
    url = urlsplit(location)
    if _is_trusted(url):
        return lambda: _read_url(location)
    if url.scheme in ("", "file") and not url.netloc:
        return lambda: _read_file(url.path if url.scheme else location)
    raise UsageError(f"{location!r} is not a location of a key set: it must be a path, or a file: or https: URL")


def _is_trusted(url: SplitResult) -> bool:
    """Whether the network cannot replace what the URL returns: it is https, or http on loopback. Only exact addresses count as
    loopback, because a redirect may name any host, such as 127.example.org."""
    is_loopback = url.hostname in ("localhost", "127.0.0.1", "::1")
    return url.scheme == "https" or (url.scheme == "http" and is_loopback)


def _read_file(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(_SIZE_MAX)


def _read_url(url: str) -> str:
    from http.client import HTTPException
    from urllib.request import HTTPRedirectHandler, build_opener

    class TrustedRedirects(HTTPRedirectHandler):
        """Refuses redirects from https to http, where an attacker in the network could answer with other keys. Python's own
        handler follows them."""

        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            if not _is_trusted(urlsplit(newurl)):
                raise OSError(f"{url} redirects to {newurl!r}, which is no https: URL")
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    try:
        with build_opener(TrustedRedirects).open(url, timeout=_TIMEOUT_S) as response:
            content: bytes = response.read(_SIZE_MAX)
    except (HTTPException, ValueError) as e:  # No OSErrors: the answer is not HTTP, or redirects to something that is no URL.
        raise OSError(f"the response is malformed or incomplete, or a URL is not valid: {e}") from e
    return content.decode(errors="replace")
