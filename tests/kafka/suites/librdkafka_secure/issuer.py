"""An issuer of tokens (OIDC) on loopback, as librdkafka's tests of OAUTHBEARER expect it.

/token issues a token for a client with its secret, for one that signs an assertion with its key, and for one that asks as virtual
machines of Azure do. /expired issues tokens that have expired, and /malformed a text that is no token.
"""

from __future__ import annotations

import json
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

CLIENT_ID, CLIENT_SECRET, SCOPE = "suite", "suite-secret", "kafka"
BASIC_AUTHORIZATION = "Basic " + b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
KEY_PASSWORD = "key-secret"
TOKEN_SECONDS = 60
ASSERTION = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASKED_OF_AZURE = {"api-version", "resource", "client_id"}


class Issuer:
    def __init__(self, folder: Path, user: str) -> None:
        self.folder, self.user = folder, user
        self.port = 0
        self._key = rsa.generate_private_key(65537, 2048)
        self._key_of_client = rsa.generate_private_key(65537, 2048)

    def write_files(self) -> None:
        """The keys that brokers read (JWKS), and the key with which a client signs assertions."""
        self.folder.mkdir(parents=True, exist_ok=True)
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        self.key_set.write_text(json.dumps({"keys": [{**public, "kid": "one"}]}))
        locked = BestAvailableEncryption(KEY_PASSWORD.encode())
        for name, encryption in (("client.key", NoEncryption()), ("client-locked.key", locked)):
            content = self._key_of_client.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
            (self.folder / name).write_bytes(content)

    @property
    def key_set(self) -> Path:
        return self.folder / "jwks.json"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/token"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that the tests read."""
        return {
            "VALID_OIDC_URL": self.url,
            "INVALID_OIDC_URL": self.url.replace("/token", "/malformed"),
            "EXPIRED_TOKEN_OIDC_URL": self.url.replace("/token", "/expired"),
            "OAUTHBEARER_CLIENT_PRIVATE_KEY": str(self.folder / "client.key"),
            "OAUTHBEARER_CLIENT_PRIVATE_KEY_ENCRYPTED": str(self.folder / "client-locked.key"),
            "OAUTHBEARER_CLIENT_PRIVATE_KEY_PASSWORD": KEY_PASSWORD,
        }

    def answer(self, path: str, asked: dict[str, str], authorization: str | None = None) -> dict[str, Any] | None:
        """The answer to a request; None if it is refused. `authorization`: the header of that name."""
        if path == "/malformed":
            return {"access_token": "no token", "token_type": "Bearer"}
        if path == "/expired":
            return self._token(-TOKEN_SECONDS)
        return self._token(TOKEN_SECONDS) if path == "/token" and self._is_granted(asked, authorization) else None

    def _is_granted(self, asked: dict[str, str], authorization: str | None) -> bool:
        if asked.get("grant_type") == ASSERTION:
            return self._is_signed(asked.get("assertion", "")) and asked.get("scope") == SCOPE
        if asked.get("grant_type") == "client_credentials":
            return authorization == BASIC_AUTHORIZATION and asked.get("scope") == SCOPE
        return asked.keys() >= ASKED_OF_AZURE

    def _is_signed(self, assertion: str) -> bool:
        try:
            jwt.decode(assertion, self._key_of_client.public_key(), ["RS256"], options={"verify_aud": False})
        except jwt.InvalidTokenError:
            return False
        return True

    def _token(self, seconds: int) -> dict[str, Any]:
        now = int(time.time())
        claims = {"sub": self.user, "scope": SCOPE, "iat": min(now, now + seconds), "exp": now + seconds}
        token = jwt.encode(claims, self._key, "RS256", headers={"kid": "one"})
        return {"access_token": token, "token_type": "Bearer", "expires_in": seconds}


@contextmanager
def serving(issuer: Issuer) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(urlsplit(self.path).query)

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())

        def _answer(self, text: str) -> None:
            asked = {name: values[0] for name, values in parse_qs(text).items()}
            found = issuer.answer(urlsplit(self.path).path, asked, self.headers.get("Authorization"))
            content = json.dumps(found or {"error": "invalid_request"}).encode()
            self.send_response(200 if found else 400)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, name="issuer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join(10)
