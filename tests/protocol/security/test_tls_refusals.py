"""What a client learns whose TLS handshake the server refuses, and that a refused client holds nothing for long."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest
from security_world import Authority, secured, tls
from waiting import until

REQUIRED = {ssl.TLSVersion.TLSv1_2: "SSLV3_ALERT_HANDSHAKE_FAILURE", ssl.TLSVersion.TLSv1_3: "TLSV13_ALERT_CERTIFICATE_REQUIRED"}
"""The alert for a client without a certificate. TLS 1.2 has none of its own."""
REFUSED = {"missing", "of another authority", "expired", "not valid yet"}


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


def client_context_with(certificate: str, authority: Authority, version: ssl.TLSVersion) -> ssl.SSLContext:
    """A client's context, with a certificate that the authority's servers refuse."""
    context = ssl.create_default_context(cafile=authority.cafile)
    context.minimum_version = context.maximum_version = version
    if certificate != "missing":
        issuer = Authority(authority.folder, "other") if certificate == "of another authority" else authority
        days = {"expired": (-10, -1), "not valid yet": (2, 10)}.get(certificate)
        context.load_cert_chain(*issuer.issue("client", common_name="client", days=days))
    return context


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


@pytest.mark.parametrize("certificate", sorted(REFUSED))
def test_alert_of_a_refused_certificate_reaches_the_client(on_loop, authority, version, certificate):
    """Any client, not only ours. With TLS 1.3 its first request is on its way when the server refuses the certificate."""
    context = client_context_with(certificate, authority, version)

    async def scenario():
        async with secured(tls(authority.server(client_auth="required"))) as (server, port):
            for count in range(1, 6):
                assert await asyncio.to_thread(end_of_connection, port, context) == alert_of(certificate, version)
                assert server.bad_peers.authentication_failed_count == count
            await until(lambda: not server.unauthenticated and not server.tls_doors)

    on_loop(scenario)
