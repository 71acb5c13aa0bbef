"""The error that a client gets when the server refuses its TLS handshake, and that a refused client holds nothing for long."""

from __future__ import annotations

import asyncio
import socket
import ssl
import warnings
from dataclasses import replace

import pytest
from rpc_world import raw_peer
from security_world import REFUSED, Authority, alice, login, secured, tls
from waiting import until

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.security.client_security import ClientSecurity
from strandline.protocol.security.listener_security import ListenerSecurity

REQUIRED = {ssl.TLSVersion.TLSv1_2: "SSLV3_ALERT_HANDSHAKE_FAILURE", ssl.TLSVersion.TLSv1_3: "TLSV13_ALERT_CERTIFICATE_REQUIRED"}
"""The alert for a client without a certificate, by version. TLS 1.2 has no alert of its own for that."""


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture(params=REQUIRED, ids=["TLS 1.2", "TLS 1.3"])
def version(request):
    return request.param


def alert_of(certificate: str, version: ssl.TLSVersion) -> str:
    alerts = {
        "missing": REQUIRED[version],
        "of another authority": "TLSV1_ALERT_UNKNOWN_CA",
        "expired": "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "not valid yet": "SSLV3_ALERT_BAD_CERTIFICATE",
    }
    return alerts[certificate]


def end_of_connection(port: int, context: ssl.SSLContext) -> str | None:
    """Connect, send something at once, and return what ends the connection: the reason of an error of TLS, or another error."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                secure.sendall(bytes(100))
                return f"it read {secure.recv(100)!r}"
        except ssl.SSLError as e:
            return e.reason
        except OSError as e:
            return type(e).__name__


@pytest.mark.parametrize("certificate", REFUSED)
def test_alert_of_a_refused_certificate_reaches_the_client(on_loop, authority, version, certificate):
    """This holds for any client, not only ours. With TLS 1.3 its first request is in flight when the server refuses the
    certificate."""
    context = authority.refused(certificate, version)

    async def scenario():
        async with secured(tls(authority.server(client_auth="required"))) as (server, port):
            for count in range(1, 6):
                assert await asyncio.to_thread(end_of_connection, port, context) == alert_of(certificate, version)
                assert server.bad_peers.authentication_failed_count == count
            await until(lambda: not server.unauthenticated and not server.tls_doors)

    on_loop(scenario)


OWN = "the peer rejected this end's certificate"
SENTENCES = {
    "missing": "the peer requires a certificate (ssl_certfile)",
    "of another authority": "the peer does not trust the authority of this end's certificate",
    "expired": f"{OWN}: it has expired",
    "not valid yet": f"{OWN}: it is not valid yet, or malformed",
}


@pytest.mark.parametrize("certificate", REFUSED)
def test_own_client_says_what_the_alert_says(on_loop, authority, version, certificate):
    """The message is the same with both versions, except that TLS 1.2 does not say whether the certificate is missing."""
    security = ClientSecurity(security_protocol="SSL", ssl_context=authority.refused(certificate, version))
    why = SENTENCES[certificate]
    if certificate == "missing" and version == ssl.TLSVersion.TLSv1_2:
        why = "the peer rejected the handshake; it may require a certificate (ssl_certfile), or another cipher"

    async def scenario():
        async with secured(tls(authority.server(client_auth="required"))) as (_, port):
            for _ in range(5):
                with pytest.raises(BrokerError) as caught:
                    await Connection.connect("127.0.0.1", port, client_id="me", security=security)
                assert caught.value.code == ErrorCode.NETWORK_EXCEPTION
                assert caught.value.message == f"could not connect to 127.0.0.1:{port} by TLS: {why}"

    on_loop(scenario)


def test_own_client_says_what_the_alert_says_before_a_login(on_loop, authority):
    """A SASL_SSL listener may require a certificate, too."""
    server_tls = authority.server(client_auth="required")
    security = ListenerSecurity(security_protocol="SASL_SSL", tls=server_tls, mechanisms=alice().mechanisms())
    client = replace(login(), security_protocol="SASL_SSL", ssl_cafile=authority.cafile)

    async def scenario():
        async with secured(security) as (_, port):
            with pytest.raises(BrokerError, match=r"by TLS: the peer requires a certificate \(ssl_certfile\)$"):
                await Connection.connect("127.0.0.1", port, client_id="me", security=client)

    on_loop(scenario)


# -- what a refused client holds --------------------------------------------------------------------------------------


def refused_hello() -> bytes:
    """A hello of TLS 1.1, which is answered with an alert."""
    with warnings.catch_warnings(action="ignore"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.minimum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


PROTOCOL_VERSION = bytes((0x15, 3, 2, 0, 2, 2, 70))
"""The alert."""


def test_refused_peer_keeps_its_place_until_it_closes(on_loop, authority):
    """It reads the alert and the end of the stream. Meanwhile it counts as unauthenticated, and the number of those is
    bounded."""

    async def scenario():
        async with secured(tls(authority.server(), authentication_ms_max=60_000)) as (server, port), raw_peer(port) as peer:
            peer.send(refused_hello())
            assert await asyncio.wait_for(peer.reader.read(), 15) == PROTOCOL_VERSION
            assert server.bad_peers.authentication_failed_count == 1
            assert len(server.unauthenticated) == len(server.tls_doors) == 1
            peer.writer.close()
            await until(lambda: not server.unauthenticated and not server.tls_doors)
            assert server.bad_peers.authentication_failed_count == 1

    on_loop(scenario)


def test_refused_peer_that_stays_is_closed_at_the_limit_of_a_handshake(on_loop, authority):
    async def scenario():
        async with secured(tls(authority.server(), authentication_ms_max=300)) as (server, port), raw_peer(port) as peer:
            peer.send(refused_hello())
            await until(lambda: server.bad_peers.authentication_failed_count == 1)
            await until(lambda: not server.unauthenticated and not server.tls_doors)
            assert server.bad_peers.authentication_failed_count == 1

    on_loop(scenario)


def test_refused_peer_that_goes_on_sending_is_closed(on_loop, authority):
    """The bytes that it sends after the alert are ignored, up to a limit."""

    async def scenario():
        async with secured(tls(authority.server(), authentication_ms_max=60_000)) as (server, port), raw_peer(port) as peer:
            peer.send(refused_hello() + bytes(100_000))
            assert await asyncio.wait_for(peer.reader.read(), 15) == PROTOCOL_VERSION
            assert len(server.tls_doors) == 1
            peer.send(bytes(1_000_000))
            await until(lambda: not server.unauthenticated and not server.tls_doors)

    on_loop(scenario)


@pytest.mark.parametrize("moment", ["before the alert", "after the alert"])
def test_refused_peer_may_reset_the_connection_at_any_moment(on_loop, authority, monkeypatch, moment):
    """The moments are those until the end of the stream is sent."""
    errors = []

    async def scenario():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        async with secured(tls(authority.server(), authentication_ms_max=60_000)) as (server, port):
            peer = socket.create_connection(("127.0.0.1", port))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            failed = []

            def on_failed(*args: object, **more: object) -> None:
                failed.append(args)
                if moment == "before the alert":
                    peer.close()
                else:
                    loop.call_soon(peer.close)

            monkeypatch.setattr(server.bad_peers, "authentication_failed", on_failed)
            peer.sendall(refused_hello())
            await until(lambda: failed)
            await until(lambda: not server.unauthenticated and not server.tls_doors)

    on_loop(scenario)
    assert errors == []


def test_stopping_server_waits_for_no_refused_peer(on_loop, authority):
    async def scenario():
        async with secured(tls(authority.server(), authentication_ms_max=60_000)) as (server, port), raw_peer(port) as peer:
            peer.send(refused_hello())
            await asyncio.wait_for(peer.reader.read(), 15)
            await server.stop()
            await until(lambda: not server.tls_doors)

    on_loop(scenario)
