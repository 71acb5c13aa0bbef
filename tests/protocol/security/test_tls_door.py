"""TLS at both ends of a connection, over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import warnings
from pathlib import Path

import pytest
from rpc_world import produce, raw_peer
from security_world import Authority, connected, login, principals, sasl, secured, tls
from waiting import until

from strandline.protocol.apis import API_VERSIONS, PRODUCE
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.messages.admin import ApiVersionsRequest
from strandline.protocol.messages.data import ProducePartitionResponse, ProduceResponse
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.server import Limits, ServerRequest
from strandline.protocol.rpc.tls_door import TlsDoor
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity
from strandline.protocol.security.tls import ServerTls, ServerTlsSettings, client_context


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


async def refused(port: int, security: ClientSecurity, host: str = "127.0.0.1") -> str:
    """The sentence with which the connection fails."""
    with pytest.raises(BrokerError) as caught:
        await Connection.connect(host, port, client_id="me", security=security)
    assert caught.value.code == ErrorCode.NETWORK_EXCEPTION
    return str(caught.value.message)


def test_requests_of_all_sizes_pass_through_tls(on_loop, authority):
    """Frames that are larger than a TLS record, and many small ones in one record, are put together as on a plain connection."""

    async def scenario():
        async with secured(tls(authority.server())) as (server, port), connected(port, authority.client()) as connection:
            for size in (1, 1000, 16384, 100_000, 5_000_000):
                response = await connection.request(PRODUCE, *produce(size))
                assert isinstance(response, ProduceResponse)
                assert response.partitions[0].base_offset == size
            await asyncio.gather(*(connection.request(PRODUCE, *produce(n)) for n in range(3000)))
            assert principals(server) == ["User:ANONYMOUS"]
            assert len(server.unauthenticated) == 0
            assert server.bad_peers.authenticated_count == 1

    on_loop(scenario)


def test_first_request_may_arrive_with_the_handshake(on_loop, authority):
    """The bytes that a client sends at once after its Finished reach the connection."""

    async def scenario():
        async with secured(tls(authority.server())) as (server, port):
            for _ in range(30):
                connections = [
                    await Connection.connect("127.0.0.1", port, client_id="me", security=authority.client()) for _ in "ab"
                ]
                for connection in connections:
                    connection.close()
            await until(lambda: not server.connections)

    on_loop(scenario)


def test_open_connection_keeps_no_buffer_of_its_door(on_loop, authority):
    """A connection lives long, and uvloop keeps the connection's door as long."""

    async def scenario():
        async with secured(tls(authority.server())) as (server, port), connected(port, authority.client()):
            assert len(server.connections) == 1
            gc.collect()
            doors = [found for found in gc.get_objects() if type(found) is TlsDoor]
            assert sum(len(door._buffer) for door in doors) == 0
            assert len(doors) <= 1

    on_loop(scenario)


def test_client_certificate_becomes_the_principal(on_loop, authority):
    """The principal is the distinguished name after the mapping rules."""
    certfile, keyfile = authority.issue("client", "a-host", common_name="Broker-7")
    rules = r"RULE:.*CN=(broker|Broker)-([0-9]+).*/$1-$2/L,DEFAULT"

    async def scenario():
        server_tls = authority.server(client_auth="required", principal_mapping_rules=rules)
        client = authority.client(ssl_certfile=certfile, ssl_keyfile=keyfile)
        async with secured(tls(server_tls)) as (server, port), connected(port, client):
            assert principals(server) == ["User:broker-7"]

    on_loop(scenario)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_missing_client_certificate_is_refused_before_connect_returns(on_loop, authority, version):
    """With TLS 1.3 the client's handshake ends before the server rejects it, so the client waits for the server's verdict."""
    context = ssl.create_default_context(cafile=authority.cafile)
    context.minimum_version = context.maximum_version = version

    async def scenario():
        server_tls = authority.server(client_auth="required")
        async with secured(tls(server_tls)) as (server, port):
            text = await refused(port, ClientSecurity(security_protocol="SSL", ssl_context=context))
            assert "certificate" in text
            await until(lambda: server.bad_peers.authentication_failed_count == 1)
            assert not server.connections

    on_loop(scenario)


def test_requested_client_certificate_may_be_missing(on_loop, authority):
    async def scenario():
        async with (
            secured(tls(authority.server(client_auth="requested"))) as (server, port),
            connected(port, authority.client()),
        ):
            assert principals(server) == ["User:ANONYMOUS"]

    on_loop(scenario)


def test_client_certificate_of_another_authority_is_refused(on_loop, authority, tmp_path):
    """This holds even if the listener only requests a certificate: a certificate that is presented must be valid."""
    other = Authority(tmp_path, "other")
    certfile, keyfile = other.issue("stranger", common_name="stranger")

    async def scenario():
        async with secured(tls(authority.server(client_auth="requested"))) as (server, port):
            await refused(port, authority.client(ssl_certfile=certfile, ssl_keyfile=keyfile))
            await until(lambda: server.bad_peers.authentication_failed_count == 1)

    on_loop(scenario)


@pytest.mark.parametrize(
    ("hosts", "days", "text"),
    [
        (("127.0.0.1",), (-10, -1), "has expired"),
        (("127.0.0.1",), (1, 10), "is not valid yet"),
        (("another.example",), (-1, 10), "is for another host"),
    ],
)
def test_bad_server_certificate_is_refused_in_plain_words(on_loop, authority, hosts, days, text):
    """F29: expired, not yet valid, wrong host."""

    async def scenario():
        async with secured(tls(authority.server(hosts=hosts, days=days))) as (_, port):
            assert text in await refused(port, authority.client())

    on_loop(scenario)


def test_unknown_authority_is_refused(on_loop, authority, tmp_path):
    other = Authority(tmp_path, "other")

    async def scenario():
        async with secured(tls(authority.server())) as (_, port):
            assert "authority that is not trusted" in await refused(port, other.client())

    on_loop(scenario)


def test_host_name_is_checked_only_if_asked_for(on_loop, authority):
    async def scenario():
        async with (
            secured(tls(authority.server(hosts=("another.example",)))) as (_, port),
            connected(port, authority.client(ssl_check_hostname=False)) as connection,
        ):
            await connection.request(PRODUCE, *produce())

    on_loop(scenario)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_tls_is_refused(on_loop, authority, version):
    """F29: nothing older than TLS 1.2."""
    with warnings.catch_warnings(action="ignore"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(authority.cafile)
        context.minimum_version = version
        context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")

    async def scenario():
        async with secured(tls(authority.server())) as (server, port):
            await refused(port, ClientSecurity(security_protocol="SSL", ssl_context=context))
            await until(lambda: server.bad_peers.authentication_failed_count == 1)

    on_loop(scenario)


def test_renegotiation_and_compression_are_off(authority):
    """F29, F34 (CRIME)."""
    for context in (authority.server().context, client_context(authority.client())):
        assert context.options & ssl.OP_NO_RENEGOTIATION
        assert context.options & ssl.OP_NO_COMPRESSION
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


# -- the wrong protocol -----------------------------------------------------------------------------------------------


def test_plaintext_client_at_a_tls_listener_is_refused(on_loop, authority):
    async def scenario():
        async with secured(tls(authority.server())) as (server, port):
            async with connected(port, NO_SECURITY) as connection:
                with pytest.raises(BrokerError) as caught:
                    await connection.request(API_VERSIONS, ApiVersionsRequest("me", ""))
                assert caught.value.code == ErrorCode.NETWORK_EXCEPTION
                assert "does the port have another security_protocol?" in str(caught.value)
            assert "perhaps the port speaks TLS" in await refused(port, login())
            await until(lambda: server.bad_peers.authentication_failed_count == 2)
            assert len(server.unauthenticated) == 0

    on_loop(scenario)


@pytest.mark.parametrize("has_sasl", [False, True])
def test_tls_client_at_a_plaintext_listener_is_told_so(on_loop, authority, has_sasl):
    async def scenario():
        async with secured(sasl() if has_sasl else None) as (server, port):
            assert "speaks plaintext on this port" in await refused(port, authority.client())
            assert server.bad_peers.closed_count == 1

    on_loop(scenario)


# -- floods -----------------------------------------------------------------------------------------------------------


def test_unfinished_handshakes_are_bounded_in_number_and_time(on_loop, authority):
    """Connections that send nothing, or half a hello, leave room for others, and are closed after a while."""

    async def scenario():
        security = tls(authority.server(), unauthenticated_max=8, authentication_ms_max=300)
        async with secured(security) as (server, port):
            silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(6)]
            for half in silent[::2]:
                half.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
            await until(lambda: len(server.unauthenticated) == 4)
            await until(lambda: server.bad_peers.closed_count == 2)
            await until(lambda: not server.unauthenticated)
            assert not server.tls_doors
            async with connected(port, authority.client()):
                pass
            for half in silent:
                half.close()

    on_loop(scenario)


def test_clients_that_vanish_at_once_leave_nothing_behind(on_loop, authority):
    """Their reset may arrive before the handshake has begun."""

    async def scenario():
        async with secured(tls(authority.server(), authentication_ms_max=60_000)) as (server, port):
            for _ in range(10):
                for _ in range(10):
                    vanishing = socket.create_connection(("127.0.0.1", port))
                    vanishing.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    vanishing.close()
                await asyncio.sleep(0)
            async with connected(port, authority.client()):
                await until(lambda: not server.unauthenticated)
            assert not server.tls_doors

    on_loop(scenario)


def test_stop_ends_unfinished_handshakes(on_loop, authority):
    async def scenario():
        async with secured(tls(authority.server())) as (server, port):
            with socket.create_connection(("127.0.0.1", port)):
                await until(lambda: server.tls_doors)
                await server.stop()
                await until(lambda: not server.tls_doors)

    on_loop(scenario)


def test_random_bytes_at_the_door_leave_nothing_behind(on_loop, authority):
    """Fuzzing of the TLS door: random bytes, cut and changed hellos."""
    import random

    draw = random.Random(20)
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client_context(authority.client()).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()

    def attack() -> bytes:
        if draw.random() < 0.3:
            return draw.randbytes(draw.randrange(400))
        changed = bytearray(hello[: draw.randrange(len(hello) + 1)])
        for _ in range(draw.randrange(4)):
            if changed:
                changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed)

    async def scenario():
        async with secured(tls(authority.server(), authentication_ms_max=2000)) as (server, port):
            for _ in range(150):
                async with raw_peer(port) as peer:
                    peer.send(attack())
                    peer.writer.write_eof()
                    await asyncio.wait_for(peer.reader.read(), 5)
            await until(lambda: not server.unauthenticated)
            assert not server.tls_doors
            assert not server.connections
            async with connected(port, authority.client()) as connection:
                await connection.request(PRODUCE, *produce())

    on_loop(scenario)


# -- reload -----------------------------------------------------------------------------------------------------------


def test_reload_takes_effect_for_new_connections_and_drops_none(on_loop, authority, tmp_path):
    """F29: open connections go on; even the authority may change."""

    async def scenario():
        server_tls = authority.server()
        async with secured(tls(server_tls)) as (_, port), connected(port, authority.client()) as old:
            other = Authority(tmp_path, "other")
            other.issue("server", "127.0.0.1")
            server_tls.reload()
            assert "not trusted" in await refused(port, authority.client())
            async with connected(port, other.client()) as new:
                for connection in (old, new):
                    await connection.request(PRODUCE, *produce(100_000))

    on_loop(scenario)


@pytest.mark.parametrize("damage", ["server.pem", "server.key", "ca.pem"])
def test_failed_reload_keeps_the_old_certificate(on_loop, authority, tmp_path, damage):
    """F29: a file that cannot be parsed changes nothing, and the error names it."""

    async def scenario():
        server_tls = authority.server(client_auth="requested")
        client = authority.client(ssl_context=client_context(authority.client()))
        async with secured(tls(server_tls)) as (_, port):
            (tmp_path / damage).write_text("-----BEGIN CERTIFICATE-----\nnonsense")
            with pytest.raises(UsageError, match=damage):
                server_tls.reload()
            async with connected(port, client) as connection:
                await connection.request(PRODUCE, *produce())

    on_loop(scenario)


def test_client_reads_its_files_again_when_they_change(authority, tmp_path):
    """A node's own certificate is renewed without a restart; if the new one cannot be used, the old one stays."""
    certfile, keyfile = authority.issue("client", common_name="one")
    security = authority.client(ssl_certfile=certfile, ssl_keyfile=keyfile)
    first = client_context(security)
    assert client_context(security) is first
    authority.issue("client", common_name="another one")
    second = client_context(security)
    assert second is not first
    (tmp_path / "client.key").write_text("broken")
    assert client_context(security) is second


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"certfile": "missing.pem"}, "cannot read .*missing.pem.*No such file"),
        ({"keyfile": "other.key"}, "the key does not belong to the certificate"),
        ({"client_auth": "required", "cafile": None}, "needs the authorities"),
        ({"client_auth": "maybe"}, "ssl.client.auth is 'maybe'"),
        ({"principal_mapping_rules": "RULE:a"}, "ssl.principal.mapping.rules"),
    ],
)
def test_wrong_settings_are_refused_in_plain_words(authority, tmp_path, change, text):
    certfile, keyfile = authority.issue("server", "127.0.0.1")
    authority.issue("other", "127.0.0.1")
    paths = {key: str(tmp_path / value) if key in ("certfile", "keyfile") else value for key, value in change.items()}
    settings = {"certfile": certfile, "keyfile": keyfile, "cafile": authority.cafile, **paths}
    with pytest.raises(UsageError, match=text):
        ServerTls(ServerTlsSettings(**settings))


def test_key_of_another_type_does_not_belong_to_the_certificate(authority, tmp_path):
    """OpenSSL's error for it differs from that for a key of the same type."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    certfile, keyfile = authority.issue("server", "127.0.0.1")
    words = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    Path(keyfile).write_bytes(rsa.generate_private_key(65537, 2048).private_bytes(*words))
    with pytest.raises(UsageError, match="the key does not belong to the certificate"):
        ServerTls(ServerTlsSettings(certfile=certfile, keyfile=keyfile))


def test_encrypted_key_needs_its_password(authority, tmp_path):
    """Without a password OpenSSL would ask the terminal for one."""
    from cryptography.hazmat.primitives import serialization

    certfile, keyfile = authority.issue("server", "127.0.0.1")
    key = serialization.load_pem_private_key(Path(keyfile).read_bytes(), None)
    (tmp_path / "locked.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"opens")
        )
    )
    locked = str(tmp_path / "locked.key")
    ServerTls(ServerTlsSettings(certfile=certfile, keyfile=locked, key_password="opens"))
    with pytest.raises(UsageError, match="is encrypted, and no password"):
        ServerTls(ServerTlsSettings(certfile=certfile, keyfile=locked))
    with pytest.raises(UsageError, match=r"cannot use the certificate") as caught:
        ServerTls(ServerTlsSettings(certfile=certfile, keyfile=locked, key_password="wrong"))
    assert "wrong'" not in str(caught.value)


# -- the connection's promises hold over TLS --------------------------------------------------------------------------


def test_slow_reader_over_tls_stops_the_reading(on_loop, authority):
    """Back pressure: if a client reads no responses, the server stops reading from it, and closes it after a while."""

    def answer(request: ServerRequest) -> None:
        request.reply(ProduceResponse([ProducePartitionResponse(bytes(16), 0, error_message="x" * 20_000)]))

    async def scenario():
        limits = Limits(write_buffer_bytes_high=65536, write_stall_ms_max=500)
        async with secured(tls(authority.server()), {PRODUCE: answer}, limits=limits) as (server, port):
            context = client_context(authority.client())
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="127.0.0.1", limit=1000)
            from rpc_world import produce_frame

            writer.write(b"".join(produce_frame(n, 10) for n in range(3000)))
            await until(lambda: server.connections)
            connection = next(iter(server.connections.values()))
            await until(lambda: connection._is_peer_slow)
            sent = server.bytes_out
            assert sent < 30_000_000
            await until(lambda: connection.closed)
            assert server.bytes_out < 30_000_000
            writer.close()

    on_loop(scenario)


def test_closing_client_is_noticed_over_tls(on_loop, authority):
    async def scenario():
        async with secured(tls(authority.server())) as (server, port):
            async with connected(port, authority.client()):
                (seen,) = server.connections.values()
            await until(lambda: not server.connections)
            assert seen.closed_by_peer

    on_loop(scenario)
