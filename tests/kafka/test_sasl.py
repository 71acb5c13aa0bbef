"""Logins of Kafka's clients in each version of the requests, and with tokens that have no heads."""

from __future__ import annotations

import os
from typing import Any

import pytest
from kafka_world import API_VERSIONS, answer_at_once, beat_frame, kafka, serving_kafka
from security_world import Users, sasl
from waiting import until
from wire import KafkaWire

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.security import sasl_server
from strandline.protocol.security.principal import Principal
from strandline.protocol.security.scram import ScramClientExchange

HANDSHAKE, AUTHENTICATE, HEARTBEAT = 17, 36, 12
HANDLERS = {apis.HEARTBEAT: answer_at_once}
LOGINS = {key: KAFKA_APIS[key] for key in (HANDSHAKE, AUTHENTICATE)}
SECRET = "the secret of alice"
PLAIN_TOKEN = b"\0alice\0" + SECRET.encode()


def serving(**options: Any) -> Any:
    return serving_kafka(HANDLERS, changes=LOGINS, security=sasl(failed_delay_ms=1, **options))


async def login(wire: KafkaWire, version: int, user: str = "alice", password: str = SECRET) -> Any:
    """Log in by SCRAM. Returns the last response."""
    shaken = await wire.call(HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"})
    assert shaken.error_code == 0
    exchange = ScramClientExchange("SCRAM-SHA-256", user, password, os.urandom)
    answer = await wire.call(AUTHENTICATE, version, {"auth_bytes": exchange.respond(b"")})
    while not answer.error_code:
        message = exchange.respond(answer.auth_bytes)
        if exchange.is_complete:
            break
        answer = await wire.call(AUTHENTICATE, version, {"auth_bytes": message})
    return answer


async def is_served(wire: KafkaWire) -> bool:
    wire.send_bytes(beat_frame(9))
    return (await wire.receive_frame())[:4] == b"\0\0\0\x09"


@pytest.mark.parametrize("version", range(3))
async def test_login_gives_the_connection_its_principal(version: int) -> None:
    async with serving(max_reauth_ms=60_000) as (server, port), kafka(port) as wire:
        done = await login(wire, version)
        assert done.error_code == 0
        if version:
            assert 0 < done.session_lifetime_ms <= 60_000
        assert await is_served(wire)
        (connection,) = server.connections.values()
        assert connection.principal == Principal("User", "alice")


@pytest.mark.parametrize("version", range(3))
async def test_wrong_password_is_answered_and_the_connection_closed(version: int) -> None:
    async with serving() as (_, port), kafka(port) as wire:
        failed = await login(wire, version, password="a guess")
        assert failed.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert failed.error_message
        assert await wire.is_closed()


@pytest.mark.parametrize("version", range(2))
async def test_mechanism_that_is_not_offered_is_answered_with_those_that_are(version: int) -> None:
    async with serving() as (_, port), kafka(port) as wire:
        answer = await wire.call(HANDSHAKE, version, {"mechanism": "GSSAPI"})
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


async def test_after_an_old_handshake_tokens_have_no_heads() -> None:
    """After a handshake of version 0, each frame is a token without a head, in both directions, until the client is
    authenticated."""
    async with serving() as (server, port), kafka(port) as wire:
        assert (await wire.call(HANDSHAKE, 0, {"mechanism": "SCRAM-SHA-512"})).error_code == 0
        exchange, token = ScramClientExchange("SCRAM-SHA-512", "alice", SECRET, os.urandom), b""
        while True:
            message = exchange.respond(token)
            if exchange.is_complete:
                break
            wire.send_frame(message)
            token = await wire.receive_frame()
        assert await is_served(wire)
        (connection,) = server.connections.values()
        assert connection.principal == Principal("User", "alice")


@pytest.mark.parametrize("token", [b"\0alice\0a guess", b"", b"\xff" * 40])
async def test_wrong_token_without_a_head_closes_the_connection(token: bytes) -> None:
    """A token without a head has no field for an error."""
    async with serving() as (_, port), kafka(port) as wire:
        assert (await wire.call(HANDSHAKE, 0, {"mechanism": "PLAIN"})).error_code == 0
        wire.send_frame(token or b"\0")
        assert await wire.is_closed()


async def test_request_behind_a_token_without_a_head_waits_for_the_login() -> None:
    """The token and the request may arrive in one segment."""
    async with serving() as (_, port), kafka(port) as wire:
        assert (await wire.call(HANDSHAKE, 0, {"mechanism": "PLAIN"})).error_code == 0
        wire.send_bytes(len(PLAIN_TOKEN).to_bytes(4, "big") + PLAIN_TOKEN + beat_frame(9))
        assert await wire.receive_frame() == b""
        assert (await wire.receive_frame())[:4] == b"\0\0\0\x09"


async def test_refused_handshake_of_the_old_version_closes_the_connection() -> None:
    async with serving() as (_, port), kafka(port) as wire:
        assert (await wire.call(HANDSHAKE, 0, {"mechanism": "GSSAPI"})).error_code != 0
        assert await wire.is_closed()


async def test_session_is_renewed_on_the_same_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-368. The session has ended before the client renews it, so the broker reads nothing but a handshake."""
    monkeypatch.setattr(sasl_server, "REAUTH_INTERVAL_S_MIN", 0.01)
    async with serving(max_reauth_ms=50) as (server, port), kafka(port) as wire:
        await login(wire, 2)
        (connection,) = server.connections.values()
        await until(lambda: connection.handlers is not server.handlers)
        assert (await login(wire, 2)).error_code == 0
        assert connection.handlers is server.handlers


async def test_session_that_has_ended_serves_nothing() -> None:
    async with serving(max_reauth_ms=50) as (server, port), kafka(port) as wire:
        await login(wire, 2)
        (connection,) = server.connections.values()
        await until(lambda: connection.handlers is not server.handlers)
        wire.send_bytes(beat_frame(9))
        assert await wire.is_closed()


async def test_session_belongs_to_one_principal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sasl_server, "REAUTH_INTERVAL_S_MIN", 0.01)
    users = Users(alice=SECRET, bob="b")
    security = sasl(users, max_reauth_ms=50, failed_delay_ms=1)
    async with serving_kafka(HANDLERS, changes=LOGINS, security=security) as (server, port), kafka(port) as wire:
        await login(wire, 2)
        (connection,) = server.connections.values()
        await until(lambda: connection.handlers is not server.handlers)
        assert (await login(wire, 2, "bob", "b")).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await wire.is_closed()


async def test_login_again_without_need_is_refused_and_changes_nothing() -> None:
    async with serving(max_reauth_ms=60_000) as (_, port), kafka(port) as wire:
        await login(wire, 2)
        again = await wire.call(HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"})
        assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await is_served(wire)


@pytest.mark.parametrize("key", [HANDSHAKE, AUTHENTICATE])
async def test_listener_without_sasl_does_not_serve_logins(key: int) -> None:
    async with serving_kafka(HANDLERS, changes=LOGINS) as (_, port), kafka(port) as wire:
        served = {row.api_key for row in (await wire.call(API_VERSIONS, 0)).api_keys}
        assert key not in served
        wire.send(key, 1, {"mechanism": "PLAIN", "auth_bytes": b""})
        assert await wire.is_closed()
