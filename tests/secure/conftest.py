"""One secure cluster of processes for the tests of this folder. Its brokers accept passwords, and tokens of one issuer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import jwt
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric import ec

from strandline.local_cluster import LocalCluster

AUDIENCE = "strandline"


@pytest.fixture(scope="session")
def token_key() -> ec.EllipticCurvePrivateKey:
    """Signs the tokens that the brokers accept."""
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture(scope="session")
def key_set(token_key: ec.EllipticCurvePrivateKey, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the public key (JWKS)."""
    key = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(token_key.public_key())), "kid": "one"}
    path = tmp_path_factory.mktemp("keys") / "jwks.json"
    path.write_text(json.dumps({"keys": [key]}))
    return path


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory, key_set: Path) -> AsyncIterator[LocalCluster]:
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{key_set}",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }
    async with LocalCluster(tmp_path_factory.mktemp("cluster"), secure=True, settings=settings) as cluster:
        yield cluster
