"""Clients that log in with a token (OAUTHBEARER) at brokers that are processes, and have the rights of the token's user."""

from __future__ import annotations

import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from strandline.client import Admin, NewTopic, Producer
from strandline.client.errors import AuthenticationFailed, TopicAuthorizationFailed
from strandline.client.security_types import Acl
from strandline.local_cluster import LocalCluster
from strandline.protocol.security.client_security import ClientSecurity

AUDIENCE = "strandline"
"""See `conftest.py`."""

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="session")]


def with_token(cluster: LocalCluster, key: ec.EllipticCurvePrivateKey, **claims: Any) -> dict[str, Any]:
    """The options of a client whose tokens have these claims."""
    assert cluster.security is not None
    files = cluster.security.security_of("admin")

    async def token() -> str:
        body = {"sub": "data-team", "aud": AUDIENCE, "exp": int(time.time()) + 300, **claims}
        return jwt.encode(body, key, "ES256", headers={"kid": "one"})

    security = ClientSecurity(
        security_protocol="SASL_SSL",
        ssl_cafile=files.ssl_cafile,
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=token,
    )
    return {"bootstrap_servers": cluster.bootstrap, "security": security}


async def test_user_of_a_token_has_its_rights(cluster: LocalCluster, token_key: ec.EllipticCurvePrivateKey) -> None:
    """The subject of the token is the principal: it may write where a rule allows it, and nowhere else."""
    assert cluster.security is not None
    admin_options = {"bootstrap_servers": cluster.bootstrap, "security": cluster.security.security_of("admin")}
    async with Admin(**admin_options) as admin:
        await admin.create_topics([NewTopic("by-token", partitions=1), NewTopic("not-by-token", partitions=1)])
        await admin.create_acls([Acl("User:data-team", "WRITE", "TOPIC", "by-token")])
    async with Producer(**with_token(cluster, token_key)) as producer:
        assert (await producer.send_and_wait("by-token", b"tea")).offset == 0
        with pytest.raises(TopicAuthorizationFailed):
            await producer.send_and_wait("not-by-token", b"tea")


@pytest.mark.parametrize("claims", [{"aud": "others"}, {"exp": 1_000_000_000}, {"sub": None}])
async def test_token_that_breaks_a_rule_is_refused(
    cluster: LocalCluster, token_key: ec.EllipticCurvePrivateKey, claims: dict[str, Any]
) -> None:
    with pytest.raises(AuthenticationFailed):
        async with Producer(**with_token(cluster, token_key, **claims)):
            pass


async def test_token_signed_with_another_key_is_refused(cluster: LocalCluster) -> None:
    with pytest.raises(AuthenticationFailed):
        async with Producer(**with_token(cluster, ec.generate_private_key(ec.SECP256R1()))):
            pass
