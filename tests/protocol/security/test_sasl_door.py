"""SASL at both ends of a connection, over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import os
import socket
import time

import msgpack
import pytest
from rpc_world import RawPeer, produce, raw_peer, request_frame, serving
from security_world import SCRAMS, Authority, Users, alice, connected, login, principals, sasl, secured
from structlog.testing import capture_logs
from waiting import until

from strandline.protocol.apis import API_VERSIONS, APIS, METADATA, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import ProduceResponse
from strandline.protocol.messages.security import SaslAuthenticateResponse, SaslHandshakeResponse
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.server import ServerRequest
from strandline.protocol.security import sasl_client, sasl_server
from strandline.protocol.security.client_security import ClientSecurity
from strandline.protocol.security.listener_security import ListenerSecurity
from strandline.protocol.security.scram import ScramClientExchange


async def refused(port: int, security: ClientSecurity) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        await Connection.connect("127.0.0.1", port, client_id="me", security=security)
    assert not caught.value.retriable
    return caught.value


@pytest.mark.parametrize("mechanism", [*SCRAMS, "PLAIN"])
def test_login_gives_the_connection_its_principal(on_loop, mechanism):
    """Afterwards the connection has the handlers of the server itself, and may send everything."""

    async def scenario():
        async with secured(sasl()) as (server, port), connected(port, login(mechanism=mechanism)) as connection:
            assert principals(server) == ["User:alice"]
            (at_server,) = server.connections.values()
            assert at_server.handlers is server.handlers
            assert at_server.host == "127.0.0.1"
            assert len(server.unauthenticated) == 0
            assert server.bad_peers.authenticated_count == 1
            await connection.request(PRODUCE, *produce(1_000_000))

    on_loop(scenario)


def test_requests_carry_the_principal(on_loop):
    seen = []

    def on_request(request: ServerRequest) -> None:
        seen.append((str(request.principal), request.client_host))
        request.reply(ProduceResponse([]))

    async def scenario():
        async with secured(sasl(), {PRODUCE: on_request}) as (_, port), connected(port, login()) as connection:
            await connection.request(PRODUCE, *produce())

    on_loop(scenario)
    assert seen == [("User:alice", "127.0.0.1")]


def test_login_works_over_tls(on_loop, tmp_path):
    authority = Authority(tmp_path)

    async def scenario():
        security = ListenerSecurity(security_protocol="SASL_SSL", tls=authority.server(), mechanisms=alice().mechanisms())
        client = ClientSecurity(
            security_protocol="SASL_SSL",
            ssl_cafile=authority.cafile,
            sasl_mechanism="PLAIN",
            sasl_plain_username="alice",
            sasl_plain_password="the secret of alice",
        )
        async with secured(security) as (server, port), connected(port, client) as connection:
            assert principals(server) == ["User:alice"]
            assert len(server.unauthenticated) == 0
            await connection.request(PRODUCE, *produce(1_000_000))

    on_loop(scenario)


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [*SCRAMS, "PLAIN"])
def test_wrong_password_and_unknown_user_look_alike(on_loop, mechanism):
    """F27: the same error, the same text, the same number of messages; both wait for the delay."""

    async def scenario():
        async with secured(sasl(failed_delay_ms=50)) as (server, port):
            wrong = await refused(port, login(password="guessed", mechanism=mechanism))
            unknown = await refused(port, login(user="bob", mechanism=mechanism))
            assert wrong.code == unknown.code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert wrong.message == unknown.message
            assert "invalid credentials" in str(wrong.message)
            assert server.bad_peers.authentication_failed_count == 2
            await until(lambda: not server.connections)

    on_loop(scenario)


def test_failure_is_answered_after_a_delay(on_loop):
    async def scenario():
        async with secured(sasl(failed_delay_ms=200)) as (_, port):
            begun_at = time.monotonic()
            await refused(port, login(password="guessed"))
            assert time.monotonic() - begun_at >= 0.19

    on_loop(scenario)


def test_failed_login_is_logged_once_a_minute_without_control_characters(on_loop):
    """F35: a user name cannot forge log lines. The password is in no line (F33)."""

    async def scenario():
        async with secured(sasl(failed_delay_ms=1)) as (_, port):
            for _ in range(3):
                await refused(port, login(user="al\nice\x1b[2J", password="my secret", mechanism="PLAIN"))

    with capture_logs() as lines:
        on_loop(scenario)
    (line,) = [line for line in lines if line["event"] == "connection.authentication_failed"]
    assert line["user"] == "al\\nice\\x1b[2J"
    assert line["mechanism"] == "PLAIN"
    assert line["peer"].startswith("127.0.0.1:")
    assert "my secret" not in str(lines)


def test_mechanism_that_is_not_offered_is_named(on_loop):
    async def scenario():
        security = ListenerSecurity(
            security_protocol="SASL_PLAINTEXT",
            mechanisms={"SCRAM-SHA-512": alice().mechanisms()["SCRAM-SHA-512"]},
            failed_delay_ms=1,
        )
        async with secured(security) as (_, port):
            error = await refused(port, login(mechanism="SCRAM-SHA-256"))
            assert error.code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert "it offers SCRAM-SHA-512" in str(error.message)

    on_loop(scenario)


def test_login_at_a_listener_without_sasl_is_refused_in_plain_words(on_loop):
    async def scenario():
        async with secured(None) as (_, port):
            error = await refused(port, login())
            assert error.code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert "the listener does not authenticate by SASL" in str(error.message)

    on_loop(scenario)


def test_client_refuses_a_server_that_cannot_prove_that_it_knows_the_password(on_loop):
    """A server that answers "welcome" to every proof gets no proof of the password, and no connection."""
    users = Users(alice="another secret")

    class Forger:
        user = lifetime_ms = None

        def __init__(self) -> None:
            self._real = users.mechanisms()["SCRAM-SHA-256"]()

        def respond(self, message: bytes) -> bytes:
            if b"p=" not in message:
                return self._real.respond(message)
            self.user = "alice"
            return b"v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="

    async def scenario():
        security = ListenerSecurity(security_protocol="SASL_PLAINTEXT", mechanisms={"SCRAM-SHA-256": Forger})
        async with secured(security) as (_, port):
            error = await refused(port, login())
            assert "server signature" in str(error.message)

    on_loop(scenario)


# -- before the authentication ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("api_key", sorted(set(APIS) - {API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE}))
def test_every_other_request_before_the_login_closes_the_connection(api_key):
    """F25."""

    async def scenario():
        async with secured(sasl()) as (server, port), raw_peer(port) as peer:
            peer.send(request_frame(api_key, []))
            assert await peer.is_closed()
            assert server.bad_peers.closed_count == 1

    asyncio.run(scenario())


def test_api_versions_is_answered_before_the_login(on_loop):
    """A client that does not know the server's versions cannot log in."""

    async def scenario():
        async with secured(sasl()) as (_, port), raw_peer(port) as peer:
            peer.send(request_frame(API_VERSIONS, ["raw", "1"]))
            correlation_id, body = await peer.receive()
            assert correlation_id == 1
            assert {SASL_HANDSHAKE, SASL_AUTHENTICATE} <= {api[0] for api in body[1]}

    on_loop(scenario)


def test_pipelined_request_behind_an_unfinished_login_is_not_served(on_loop):
    """A request that is sent right behind SaslAuthenticate arrives while the password is checked, or before the answer to it is
    read."""
    served = []

    async def scenario():
        async with secured(sasl(failed_delay_ms=1), {PRODUCE: served.append, METADATA: served.append}) as (server, port):
            async with raw_peer(port) as peer:
                handshake = request_frame(SASL_HANDSHAKE, ["PLAIN"])
                wrong = request_frame(SASL_AUTHENTICATE, [b"\0alice\0guessed"], 2)
                peer.send(handshake + wrong + request_frame(METADATA, [[], True, False], 3))
                assert (await peer.receive())[0] == 1
                assert (await peer.receive())[1][0] == ErrorCode.SASL_AUTHENTICATION_FAILED
                assert await peer.is_closed()
            await until(lambda: not server.connections)

    on_loop(scenario)
    assert served == []


def test_frame_before_the_login_is_capped(on_loop):
    """F26: `sasl.server.max.receive.size`."""

    async def scenario():
        async with secured(sasl(receive_bytes_max=10_000)) as (server, port):
            for size in (9_000, 10_001):
                async with raw_peer(port) as peer:
                    peer.send(request_frame(SASL_HANDSHAKE, ["PLAIN"]))
                    await peer.receive()
                    raw = msgpack.packb([SASL_AUTHENTICATE, 0, 2, "raw", [b"\0" * (size - 30)]])
                    peer.send((len(raw) if size < 10_000 else size).to_bytes(4, "big") + raw)
                    if size < 10_000:
                        assert (await peer.receive())[1][0] == ErrorCode.SASL_AUTHENTICATION_FAILED
                    assert await peer.is_closed()
            await until(lambda: not server.connections)

    on_loop(scenario)


def test_silent_connection_is_closed_when_its_time_is_over(on_loop):
    """The limit bounds the whole authentication: a client cannot extend it by beginning the exchange."""

    async def scenario():
        async with secured(sasl(authentication_ms_max=200)) as (server, port), raw_peer(port) as silent, raw_peer(port) as slow:
            slow.send(request_frame(SASL_HANDSHAKE, ["PLAIN"]))
            await slow.receive()
            assert await silent.is_closed()
            assert await slow.is_closed()
            await until(lambda: not server.unauthenticated)

    on_loop(scenario)


def test_login_is_not_undone_by_its_deadline(on_loop):
    async def scenario():
        async with secured(sasl(authentication_ms_max=100)) as (_, port), connected(port, login()) as connection:
            loop, begun_at = asyncio.get_running_loop(), asyncio.get_running_loop().time()
            await until(lambda: loop.time() > begun_at + 0.15)
            await connection.request(PRODUCE, *produce())

    on_loop(scenario)


def test_unauthenticated_connections_are_bounded(on_loop):
    """One host has half of the places; a login frees its place."""

    async def scenario():
        async with secured(sasl(unauthenticated_max=6)) as (server, port):
            strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
            await until(lambda: server.bad_peers.closed_count == 2)
            assert len(server.unauthenticated) == 3
            strangers[0].close()
            await until(lambda: len(server.unauthenticated) == 2)
            for _ in range(4):
                async with connected(port, login()):
                    assert len(server.unauthenticated) == 2
            for stranger in strangers:
                stranger.close()
            await until(lambda: not server.connections)
            assert len(server.unauthenticated) == 0

    on_loop(scenario)


# -- again (KIP-368) --------------------------------------------------------------------------------------------------


SESSION_MS = 1200


@pytest.fixture
def often(monkeypatch):
    """Allows a new login after 100 ms instead of a second, which keeps the tests fast. The client logs in again at least 600 ms
    before the end of a session, instead of 60 ms: enough for a busy machine."""
    monkeypatch.setattr(sasl_server, "REAUTH_INTERVAL_S_MIN", 0.1)
    monkeypatch.setattr(sasl_client, "REAUTH_PART_MIN", 0.4)
    monkeypatch.setattr(sasl_client, "REAUTH_PART_MAX", 0.5)


def test_connection_authenticates_again_unseen_by_its_user(on_loop, often):
    """While the session is renewed, requests go on without a gap, and none is lost or refused."""

    async def scenario():
        async with secured(sasl(max_reauth_ms=SESSION_MS)) as (server, port), connected(port, login()) as connection:
            while server.bad_peers.authenticated_count < 3:
                responses = await asyncio.gather(*(connection.request(PRODUCE, *produce(n)) for n in range(20)))
                assert [r.partitions[0].base_offset for r in responses] == list(range(20))
                await asyncio.sleep(0.001)
            assert server.bad_peers.closed_count == server.bad_peers.authentication_failed_count == 0

    on_loop(scenario)


def test_closed_connection_does_not_go_on_to_log_in_again(on_loop, often):
    """A node that has stopped in order must leave no task behind. The network reports the end of the connection only later."""

    def logins() -> list[asyncio.Task]:
        return [task for task in asyncio.all_tasks() if task.get_name().startswith("authenticate again")]

    async def scenario():
        async with secured(sasl(max_reauth_ms=SESSION_MS)) as (_, port), connected(port, login()) as connection:
            while not logins():
                await asyncio.sleep(0)  # the login is too short for `until` to notice it
            connection.close()
            assert all(task.cancelling() for task in logins())

    on_loop(scenario)


def test_removed_user_loses_the_connection_when_its_session_ends(on_loop, often):
    """F32: the next login fails, and the connection's user gets the reason."""

    async def scenario():
        users, reasons = Users(carol="secret"), []
        async with (
            secured(sasl(users, max_reauth_ms=SESSION_MS, failed_delay_ms=1)) as (server, port),
            connected(port, login("carol", "secret"), on_lost=lambda _, e: reasons.append(e)),
        ):
            users.remove("carol")
            await until(lambda: reasons)
            assert "invalid credentials" in str(reasons[0])
            await until(lambda: not server.connections)

    on_loop(scenario)


async def raw_login(peer: RawPeer, user: str = "alice", password: str = "the secret of alice") -> list:
    """Log in by SCRAM, as another client would. Returns the last response."""
    peer.send(request_frame(SASL_HANDSHAKE, ["SCRAM-SHA-256"]))
    _, body = await peer.receive()
    assert body[0] == 0, body
    exchange, response = ScramClientExchange("SCRAM-SHA-256", user, password, os.urandom), b""
    while not exchange.is_complete:
        message = exchange.respond(response)
        if not exchange.is_complete:
            peer.send(request_frame(SASL_AUTHENTICATE, [message]))
            _, body = await peer.receive()
            if body[0]:
                return body
            response = body[2]
    return body


@pytest.mark.parametrize("api_key", [PRODUCE, API_VERSIONS, METADATA])
def test_expired_session_ends_with_the_next_request(on_loop, api_key):
    """F32: the connection stays open, and is closed by a request that is not SaslHandshake."""

    async def scenario():
        async with secured(sasl(max_reauth_ms=50)) as (server, port), raw_peer(port) as peer:
            assert (await raw_login(peer))[3] == 50
            (connection,) = server.connections.values()
            await until(lambda: connection.handlers is not server.handlers)
            peer.send(request_frame(api_key, []))
            assert await peer.is_closed()

    on_loop(scenario)


def test_expired_session_may_be_renewed(on_loop, often):
    async def scenario():
        async with secured(sasl(max_reauth_ms=400)) as (server, port), raw_peer(port) as peer:
            await raw_login(peer)
            (connection,) = server.connections.values()
            await until(lambda: connection.handlers is not server.handlers)
            assert (await raw_login(peer))[0] == 0
            assert connection.handlers is server.handlers

    on_loop(scenario)


def test_session_belongs_to_one_principal(on_loop, often):
    """KIP-368: another user on the same connection closes it."""

    async def scenario():
        users = Users(alice="a", bob="b")
        async with secured(sasl(users, max_reauth_ms=150, failed_delay_ms=1)) as (server, port), raw_peer(port) as peer:
            await raw_login(peer, "alice", "a")
            (connection,) = server.connections.values()
            await until(lambda: connection.handlers is not server.handlers)
            assert (await raw_login(peer, "bob", "b"))[0] == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await peer.is_closed()

    on_loop(scenario)


def test_other_requests_during_a_login_again_close_the_connection(on_loop, often):
    async def scenario():
        async with secured(sasl(max_reauth_ms=150)) as (server, port), raw_peer(port) as peer:
            await raw_login(peer)
            (connection,) = server.connections.values()
            await until(lambda: connection.handlers is not server.handlers)
            peer.send(request_frame(SASL_HANDSHAKE, ["SCRAM-SHA-256"]) + request_frame(PRODUCE, []))
            await peer.receive()
            assert await peer.is_closed()

    on_loop(scenario)


def test_login_again_without_need_is_refused_and_changes_nothing(on_loop):
    """A session without an end, or one that began less than a second ago: ILLEGAL_SASL_STATE, as in Kafka."""

    async def scenario():
        for security in (sasl(), sasl(max_reauth_ms=5000)):
            async with secured(security) as (_, port), raw_peer(port) as peer:
                await raw_login(peer)
                peer.send(request_frame(SASL_HANDSHAKE, ["SCRAM-SHA-256"]))
                assert (await peer.receive())[1][0] == ErrorCode.ILLEGAL_SASL_STATE
                peer.send(request_frame(SASL_AUTHENTICATE, [b"n,,n=alice,r=x"]))
                assert (await peer.receive())[1][0] == ErrorCode.ILLEGAL_SASL_STATE
                peer.send(request_frame(API_VERSIONS, ["raw", "1"]))
                assert (await peer.receive())[0] == 1

    on_loop(scenario)


@pytest.mark.parametrize("first", [SASL_AUTHENTICATE, SASL_HANDSHAKE])
def test_messages_out_of_order_close_the_connection(on_loop, first):
    """SaslAuthenticate before SaslHandshake; SaslHandshake twice."""

    async def scenario():
        async with secured(sasl(failed_delay_ms=1)) as (_, port), raw_peer(port) as peer:
            if first == SASL_HANDSHAKE:
                peer.send(request_frame(SASL_HANDSHAKE, ["PLAIN"]) * 2)
                await peer.receive()
            else:
                peer.send(request_frame(SASL_AUTHENTICATE, [b"x"]))
            assert (await peer.receive())[1][0] == ErrorCode.ILLEGAL_SASL_STATE
            assert await peer.is_closed()

    on_loop(scenario)


def test_random_messages_never_authenticate():
    """Fuzzing: random and changed messages of each mechanism, in any number."""
    import random

    draw = random.Random(20)
    seeds = [b"n,,n=alice,r=abcdef", b"y,,n=a=2Cb,r=x,ext=1", b"c=biws,r=abc,p=AAAA", b"\0alice\0guess", b"", b"\x01"]

    def message() -> bytes:
        raw = bytearray(draw.choice(seeds))
        for _ in range(draw.randrange(4)):
            place = draw.randrange(len(raw) + 1)
            raw[place:place] = draw.randbytes(draw.randrange(3))
            if raw and draw.random() < 0.5:
                del raw[draw.randrange(len(raw))]
        return bytes(raw)

    async def scenario():
        async with secured(sasl(failed_delay_ms=0)) as (server, port):
            for _ in range(150):
                async with raw_peer(port) as peer:
                    peer.send(request_frame(SASL_HANDSHAKE, [draw.choice([*SCRAMS, "PLAIN"])]))
                    peer.send(b"".join(request_frame(SASL_AUTHENTICATE, [message()]) for _ in range(draw.randrange(1, 4))))
                    peer.writer.write_eof()
                    await asyncio.wait_for(peer.reader.read(), 5)
            await until(lambda: not server.unauthenticated)
            assert server.bad_peers.authenticated_count == 0
            assert len(server.bugs) == 0
            async with connected(port, login()):
                pass

    asyncio.run(scenario())


def test_bug_in_the_look_up_is_no_failed_login():
    """It is logged with its traceback, and is not mistaken for a wrong password."""

    class Broken(Users):
        def look_up(self, user, mechanism):
            raise KeyError("a bug")

    async def scenario():
        async with secured(sasl(Broken())) as (server, port):
            with pytest.raises(BrokerError) as caught:
                await Connection.connect("127.0.0.1", port, client_id="me", security=login())
            assert caught.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
            assert len(server.bugs) == 1

    asyncio.run(scenario())


# -- servers that lie -------------------------------------------------------------------------------------------------


def lying(response: SaslAuthenticateResponse) -> tuple[dict, list[bytes]]:
    """The handlers of a server that answers every message of PLAIN with `response`, and the messages that it received."""
    got: list[bytes] = []

    def on_authenticate(request: ServerRequest) -> None:
        got.append(request.body.auth_bytes)
        request.reply(response)

    def on_handshake(request: ServerRequest) -> None:
        request.reply(SaslHandshakeResponse(0, ["PLAIN"]))

    return {SASL_HANDSHAKE: on_handshake, SASL_AUTHENTICATE: on_authenticate}, got


def test_client_refuses_a_session_that_has_ended_before_it_began(on_loop):
    """A negative lifetime would make the client log in again and again, without a pause."""

    async def scenario():
        handlers, got = lying(SaslAuthenticateResponse(0, None, b"", -1))
        async with serving(handlers) as (_, port):
            error = await refused(port, login(mechanism="PLAIN"))
            assert error.code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert "lifetime of -1 ms" in str(error)
            assert len(got) == 1

    on_loop(scenario)


def test_client_does_not_log_in_more_often_than_is_reasonable(on_loop):
    """With a lifetime of 1 ms, the client would do nothing else."""

    async def scenario():
        handlers, _ = lying(SaslAuthenticateResponse(0, None, b"", 1))
        answer, asked_at = handlers[SASL_AUTHENTICATE], []

        def on_authenticate(request: ServerRequest) -> None:
            asked_at.append(time.monotonic())
            answer(request)

        handlers[SASL_AUTHENTICATE] = on_authenticate
        async with serving(handlers) as (_, port), connected(port, login(mechanism="PLAIN")):
            await until(lambda: len(asked_at) >= 5)
        assert asked_at[4] - asked_at[2] >= 0.05

    on_loop(scenario)


def test_text_of_a_server_cannot_control_the_terminal(on_loop):
    """F35: any process that answers on a port chooses the text of the error, and the client's user reads it."""

    async def scenario():
        handlers, _ = lying(SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, "no\x1b[2J\nall is well", b""))
        async with serving(handlers) as (_, port):
            text = str(await refused(port, login(mechanism="PLAIN")))
            assert text.isprintable()
            assert "no\\x1b[2J\\nall is well" in text

    on_loop(scenario)
