"""A client whose certificate the broker refuses fails at once, and says why."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from security_world import REFUSED, Authority, secured, tls

from strandline.client import Admin, AuthenticationFailed, ClientSecurity


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["TLS 1.2", "TLS 1.3"])
@pytest.mark.parametrize("certificate", REFUSED)
async def test_refused_certificate_fails_the_start_at_once(tmp_path, certificate, version):
    """The start does not wait for `connect_timeout_ms`, because another attempt would fail in the same way."""
    authority = Authority(tmp_path)
    security = ClientSecurity(security_protocol="SSL", ssl_context=authority.refused(certificate, version))
    async with secured(tls(authority.server(client_auth="required"))) as (server, port):
        with pytest.raises(AuthenticationFailed, match=rf"^could not connect to 127.0.0.1:{port} by TLS: the peer .*certificate"):
            async with asyncio.timeout(30):
                await Admin(bootstrap_servers=f"127.0.0.1:{port}", security=security, connect_timeout_ms=60_000).start()
        assert server.bad_peers.authentication_failed_count == 1
