"""OAUTHBEARER: which tokens are accepted, where keys are read from, and the form of the messages."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from security_world import connected, principals, secured

from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.security.client_security import ClientSecurity
from strandline.protocol.security.jwks import Jwks, parse_keys, reader_of
from strandline.protocol.security.listener_security import ListenerSecurity
from strandline.protocol.security.mechanisms import AuthenticationError
from strandline.protocol.security.oauthbearer import (
    BearerClientExchange,
    BearerServerExchange,
    TokenRules,
    TokenVerifier,
    oauthbearer_server,
    parse_first_message,
)

NOW_MS = 1_800_000_000_000
NOW = NOW_MS // 1000
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())


def jwk(key, key_id: str | None = "one", **more) -> dict:
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    named = {} if key_id is None else {"kid": key_id}
    return {**json.loads(algorithm.to_jwk(key.public_key())), **named, **more}


def key_set(*keys: dict) -> str:
    return json.dumps({"keys": list(keys)})


def token(key=RSA, algorithm: str = "RS256", key_id: str | None = "one", **claims) -> str:
    body = {"sub": "alice", "exp": NOW + 600, "iat": NOW, **claims}
    kept = {name: value for name, value in body.items() if value is not None}
    return jwt.encode(kept, key, algorithm, headers={} if key_id is None else {"kid": key_id})


def verifier(text: str | None = None, **rules) -> TokenVerifier:
    jwks = Jwks(lambda: text or key_set(jwk(RSA), jwk(EC, "two")), lambda: NOW_MS)
    return TokenVerifier(jwks, TokenRules(**rules), lambda: NOW_MS)


# -- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "algorithm", "key_id"), [(RSA, "RS256", "one"), (RSA, "PS512", "one"), (EC, "ES256", "two")])
def test_signed_token_names_its_user_and_its_end(key, algorithm, key_id):
    verified = verifier().verify(token(key, algorithm, key_id))
    assert (verified.user, verified.lifetime_ms) == ("alice", 600_000)


@pytest.mark.parametrize(
    ("claims", "rules", "reason"),
    [
        ({"exp": NOW - 31}, {}, "has expired"),
        ({"exp": None}, {}, "does not expire"),
        ({"exp": "soon"}, {}, "is not a time"),
        ({"exp": 1e300}, {}, "is not a time"),
        ({"nbf": NOW + 31}, {}, "not valid yet"),
        ({"iat": NOW + 31}, {}, "not valid yet"),
        ({"sub": None}, {}, "no claim sub"),
        ({"sub": ""}, {}, "no claim sub"),
        ({"sub": 7}, {}, "no claim sub"),
        ({"sub": "alice\ud800"}, {}, "no claim sub"),  # Not UTF-8, so a broker could not forward the user's name.
        ({}, {"sub_claim": "email"}, "no claim email"),
        ({}, {"expected_audience": ("kafka",)}, "not valid"),
        ({"aud": "other"}, {"expected_audience": ("kafka",)}, "not valid"),
        ({}, {"expected_issuer": "https://issuer"}, "not valid"),
        ({"iss": "https://other"}, {"expected_issuer": "https://issuer"}, "not valid"),
        ({}, {"required_scope": ("kafka",)}, "lacks the scope kafka"),
        ({"scope": "mail kafkaesque"}, {"required_scope": ("kafka",)}, "lacks the scope kafka"),
        ({"scope": 7}, {"required_scope": ("kafka",)}, "lacks the scope kafka"),
    ],
)
def test_token_that_breaks_a_rule_is_rejected(claims, rules, reason):
    with pytest.raises(AuthenticationError, match=reason):
        verifier(**rules).verify(token(**claims))


@pytest.mark.parametrize(
    ("claims", "rules"),
    [
        ({"exp": NOW - 29}, {}),
        ({"nbf": NOW + 29, "iat": NOW + 29}, {}),
        ({"aud": ["other", "kafka"]}, {"expected_audience": ("x", "kafka")}),
        ({"iss": "https://issuer"}, {"expected_issuer": "https://issuer"}),
        ({"scope": "mail kafka"}, {"required_scope": ("kafka",)}),
        ({"scp": ["kafka", "mail"]}, {"required_scope": ("kafka", "mail"), "scope_claim": "scp"}),
    ],
)
def test_token_within_the_rules_is_accepted(claims, rules):
    """Clocks may differ by 30 s."""
    assert verifier(**rules).verify(token(**claims)).user == "alice"


def forged_by_public_key() -> str:
    """A token that is signed by HS256 with the public key as the secret. PyJWT refuses to create it."""
    pem = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    body = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
        for part in ({"alg": "HS256", "typ": "JWT", "kid": "one"}, {"sub": "alice", "exp": NOW + 600})
    )
    signature = hmac.digest(pem, body.encode(), "sha256")
    return f"{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def test_tokens_without_a_secret_signature_are_rejected():
    """The tokens have `alg=none`; a signature by the public key taken for a symmetric one; a symmetric key in the set."""
    public = jwk(RSA)
    secret = "a symmetric key of thirty-two bytes"
    symmetric = {"kty": "oct", "kid": "sym", "k": "YSBzeW1tZXRyaWMga2V5IG9mIHRoaXJ0eS10d28gYnl0ZXM"}
    both = key_set(public, symmetric)
    forged = [
        jwt.encode({"sub": "alice", "exp": NOW + 600}, None, "none", headers={"kid": "one"}),
        forged_by_public_key(),
        token(secret, "HS256", "sym"),
        token(rsa.generate_private_key(65537, 2048)),
        token()[:-4] + "AAAA",
    ]
    for text in forged:
        with pytest.raises(AuthenticationError):
            verifier(both).verify(text)


def test_error_never_contains_the_token():
    """F33."""
    text = token(sub=None)
    with pytest.raises(AuthenticationError) as caught:
        verifier().verify(text)
    assert text.split(".")[1] not in str(caught.value)
    with pytest.raises(UsageError) as misused:
        BearerClientExchange("my secret")
    assert "my secret" not in str(misused.value)


# -- keys -------------------------------------------------------------------------------------------------------------


class Source:
    """A key set that can change and fail, and a clock."""

    def __init__(self) -> None:
        self.text = key_set(jwk(RSA))
        self.now_ms = NOW_MS
        self.reads = 0
        self.jwks = Jwks(self.read, lambda: self.now_ms, refresh_ms=1000, retry_ms=100)

    def read(self) -> str:
        self.reads += 1
        if not self.text:
            raise OSError("connection refused")
        return self.text


def test_keys_are_read_again_after_a_while():
    source = Source()
    source.jwks.load()
    source.jwks.key("one")
    assert source.reads == 1
    source.now_ms += 1000
    source.jwks.key("one")
    assert source.reads == 2


def test_unknown_key_is_looked_for_but_not_too_often():
    """The authority may have a new key; invented key ids must cause no load."""
    source = Source()
    source.jwks.load()
    for _ in range(5):
        with pytest.raises(AuthenticationError, match="not in the key set"):
            source.jwks.key("two")
    assert source.reads == 1
    source.now_ms += 100
    source.text = key_set(jwk(RSA), jwk(EC, "two"))
    source.jwks.key("two")
    assert source.reads == 2


def test_known_keys_stay_in_use_if_reading_fails():
    source = Source()
    source.jwks.load()
    texts = ("", "nonsense", "{}", "[" * 100_000, '{"keys": [{"kty": "RSA", "alg": ["RS256"]}]}')
    for text in texts:
        source.text, source.now_ms = text, source.now_ms + 1000
        source.jwks.key("one")
    assert source.reads == 1 + len(texts)


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\ncut off",
        b"HTTP/1.1 302 Found\r\nLocation: http://[\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://login..example.org/\r\n\r\n",
    ],
)
def test_known_keys_stay_in_use_if_the_authority_answers_nonsense(answer):
    """For example behind a proxy that restarts. Python reports these answers by errors that are no OSError; the login that
    read the keys again used to fail for them, although the keys were known."""
    reads = [lambda: key_set(jwk(RSA))]
    now_ms = NOW_MS
    jwks = Jwks(lambda: reads[0](), lambda: now_ms, refresh_ms=1000)
    jwks.load()
    now_ms += 1000
    with served_once(answer) as url:
        reads[0] = reader_of(url)
        assert jwks.key("one").key_id == "one"


@contextmanager
def served_once(answer: bytes):
    """The URL of a server that gives these bytes to its first client."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        server.settimeout(10)
        serving = pool.submit(answer_once, server, answer)
        yield f"http://127.0.0.1:{server.getsockname()[1]}/keys"
        serving.result(timeout=10)


def answer_once(server: socket.socket, answer: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(answer)


def test_redirect_to_plain_http_is_not_followed():
    """Anybody on the way could answer with keys of their own, and log in as any user."""
    answer = b"HTTP/1.1 302 Found\r\nLocation: http://login.example.org/keys\r\n\r\n"
    with served_once(answer) as url, pytest.raises(OSError, match=r"redirects to 'http://login\.example\.org/keys'"):
        reader_of(url)()


def test_key_set_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "keys.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="key set"):
        Jwks(reader_of(str(tmp_path / "keys.json")), lambda: NOW_MS).load()


def test_token_without_a_key_id_needs_an_only_key():
    assert verifier(key_set(jwk(RSA, None))).verify(token(key_id=None)).user == "alice"
    with pytest.raises(AuthenticationError, match="not in the key set"):
        verifier().verify(token(key_id=None))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "YWJj"}]}', '{"keys": 7}'])
def test_key_set_without_usable_keys_is_refused(text):
    with pytest.raises(UsageError, match="key"):
        parse_keys(text)


def test_key_set_comes_from_a_file_or_an_encrypted_url(tmp_path):
    """It is never read from an arbitrary URL (CVE-2025-27817)."""
    path = tmp_path / "keys.json"
    path.write_text(key_set(jwk(RSA)))
    for location in (str(path), path.as_uri()):
        assert reader_of(location)() == path.read_text()
    for location in ("http://example.org/keys", "ftp://example.org/keys", "file://other-host/keys"):
        with pytest.raises(UsageError, match="not a location of a key set"):
            reader_of(location)
    with pytest.raises(UsageError, match=r"cannot read the key set .*jwks.endpoint.url"):
        Jwks(reader_of(str(tmp_path / "missing")), lambda: NOW_MS).load()


# -- messages ---------------------------------------------------------------------------------------------------------


def test_first_message_is_read_as_in_rfc_7628():
    message = b"n,a=user@example.com,\x01host=server\x01port=143\x01auth=Bearer vF9.dft4.qmTc2Nv\x01\x01"
    assert parse_first_message(message) == ("user@example.com", "vF9.dft4.qmTc2Nv")
    assert parse_first_message(b"n,a=a=2Cb=3D,\x01auth=bearer a.b.c\x01\x01")[0] == "a,b="


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"p=x,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"n,,\x01auth=Basic a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01auth=Bearer d.e.f\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01\x01",
        b"n,x,\x01auth=Bearer a.b.c\x01\x01",
        b"\xff\x01auth=Bearer a.b.c\x01\x01",
    ],
)
def test_malformed_first_message_is_refused(message):
    with pytest.raises(AuthenticationError):
        parse_first_message(message)


@given(st.binary(max_size=80) | st.text("n,a=\x01authBer .").map(str.encode))
def test_random_messages_raise_one_error_only(message):
    try:
        parse_first_message(message)
    except AuthenticationError:
        pass


def test_rejected_token_is_answered_then_acknowledged_then_fails():
    """RFC 7628, 3.2.3: a JSON object, then %x01 from the client."""
    exchange, client = BearerServerExchange(verifier()), BearerClientExchange(token(exp=NOW - 100))
    work = exchange.respond(client.respond(b""))
    rejection = work()
    assert json.loads(rejection) == {"status": "invalid_token"}
    acknowledgement = client.respond(rejection)
    assert acknowledgement == b"\x01"
    assert not client.is_complete
    with pytest.raises(AuthenticationError, match="has expired"):
        exchange.respond(acknowledgement)
    assert exchange.user is None


def test_authorization_id_must_be_the_user_of_the_token():
    exchange = BearerServerExchange(verifier())
    assert b"invalid_token" in exchange.respond(f"n,a=admin,\x01auth=Bearer {token()}\x01\x01".encode())()
    assert exchange.user is None


# -- over a connection ------------------------------------------------------------------------------------------------


def test_token_logs_in_and_bounds_the_session(on_loop):
    """A token that expires in 600 s gives a session of 600 s."""

    async def scenario():
        tokens = [token(), token(exp=NOW - 100)]

        async def next_token() -> str:
            return tokens.pop(0)

        security = ListenerSecurity(
            security_protocol="SASL_PLAINTEXT", mechanisms={"OAUTHBEARER": oauthbearer_server(verifier())}, failed_delay_ms=1
        )
        client = ClientSecurity(
            security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=next_token
        )
        async with secured(security) as (server, port):
            async with connected(port, client):
                assert principals(server) == ["User:alice"]
                (login,) = server._sasl_door._logins.values()
                assert login.session.session_lifetime_ms == 600_000
            with pytest.raises(BrokerError) as caught:
                await Connection.connect("127.0.0.1", port, client_id="me", security=client)
            assert caught.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED

    on_loop(scenario)


def test_slow_key_server_does_not_hold_up_the_loop():
    """Keys are read in a thread of the authentications; a login that waits for them ends with its deadline."""
    import threading

    release = threading.Event()

    def read() -> str:
        release.wait(10)
        raise OSError("gone")

    async def scenario():
        slow = TokenVerifier(Jwks(read, lambda: NOW_MS), TokenRules(), lambda: NOW_MS)

        async def give() -> str:
            return token()

        security = ListenerSecurity(
            security_protocol="SASL_PLAINTEXT",
            mechanisms={"OAUTHBEARER": oauthbearer_server(slow)},
            authentication_ms_max=200,
        )
        client = ClientSecurity(security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=give)
        try:
            async with secured(security) as (_, port):
                with pytest.raises(BrokerError) as caught:
                    await Connection.connect("127.0.0.1", port, client_id="me", security=client)
                assert caught.value.code == ErrorCode.NETWORK_EXCEPTION
        finally:
            release.set()

    asyncio.run(scenario())
