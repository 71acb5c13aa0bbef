"""Takes the place of aiokafka's tests/conftest.py, which starts Kafka in a container: here it is a Strandline cluster.

STRANDLINE_SUITE_CLUSTER has the line that `one_broker.py` printed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import admin as confluent

CLUSTER = json.loads(os.environ.get("STRANDLINE_SUITE_CLUSTER", "{}"))
VERSION = "4.0.0"
"""The version of Kafka that the tests take the cluster for. It is new enough for all of them."""
RESOURCES = {
    "topic": confluent.ResourceType.TOPIC,
    "group": confluent.ResourceType.GROUP,
    "transactional_id": confluent.ResourceType.TRANSACTIONAL_ID,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Define the option with the image's name, from which the tests read the version."""
    parser.addoption("--docker-image", default=f"strandline:2.13_{VERSION}")


class AclManager:
    """Adds ACLs for a test, as an administrator, and removes them afterwards."""

    def __init__(self, client: confluent.AdminClient) -> None:
        self._client = client
        self._active: list[confluent.AclBinding] = []

    def list_acl(self, principal: str | None = None) -> Any:
        everything = confluent.AclBindingFilter(
            confluent.ResourceType.ANY,
            None,
            confluent.ResourcePatternType.ANY,
            f"User:{principal}" if principal else None,
            None,
            confluent.AclOperation.ANY,
            confluent.AclPermissionType.ANY,
        )
        return self._client.describe_acls(everything).result(30)

    def add_acl(self, **given: Any) -> None:
        binding = _binding(**given)
        for future in self._client.create_acls([binding]).values():
            future.result(30)
        self._active.append(binding)

    def cleanup(self) -> None:
        for binding in self._active:
            one = confluent.AclBindingFilter(
                binding.restype, binding.name, binding.resource_pattern_type, binding.principal, binding.host,
                binding.operation, binding.permission_type,
            )  # fmt: skip
            for future in self._client.delete_acls([one]).values():
                future.result(30)
        self._active.clear()


def _binding(
    *, operation: str, allow_principal: str | None = None, deny_principal: str | None = None, cluster: bool = False, **named: str
) -> confluent.AclBinding:
    resource, name = (confluent.ResourceType.BROKER, "kafka-cluster") if cluster else _resource(named)
    permission = confluent.AclPermissionType.ALLOW if allow_principal else confluent.AclPermissionType.DENY
    return confluent.AclBinding(
        resource, name, confluent.ResourcePatternType.LITERAL, f"User:{allow_principal or deny_principal}", "*",
        confluent.AclOperation[operation.upper()], permission,
    )  # fmt: skip


def _resource(named: dict[str, str]) -> tuple[confluent.ResourceType, str]:
    ((kind, name),) = named.items()
    return RESOURCES[kind], name


class KafkaConfig:
    """The changes of users that the tests make."""

    def __init__(self, client: confluent.AdminClient) -> None:
        self._client = client

    def add_scram_user(self, username: str, password: str) -> None:
        for mechanism in (confluent.ScramMechanism.SCRAM_SHA_256, confluent.ScramMechanism.SCRAM_SHA_512):
            info = confluent.ScramCredentialInfo(mechanism, 4096)
            upsertion = confluent.UserScramCredentialUpsertion(username, info, password.encode())
            for future in self._client.alter_user_scram_credentials([upsertion]).values():
                future.result(30)


class NoKerberos:
    """Strandline has no GSSAPI."""

    def __getattr__(self, name: str) -> Any:
        pytest.fail("Strandline has no GSSAPI")


@pytest.fixture(scope="session")
def kafka_server() -> SimpleNamespace:
    plain = CLUSTER["plain"]
    return SimpleNamespace(host="127.0.0.1", port=plain, hosts=[f"127.0.0.1:{plain}"])


@pytest.fixture(scope="class")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Copied from the suite."""
    new = asyncio.new_event_loop()
    asyncio.set_event_loop(new)
    yield new
    if not new.is_closed():
        new.call_soon(new.stop)
        new.run_forever()
        new.close()
    gc.collect()
    asyncio.set_event_loop(None)


@pytest.fixture(scope="class")
def setup_test_class_serverless(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> None:
    request.cls.loop = loop


@pytest.fixture(scope="class")
def setup_test_class(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop, kafka_server: SimpleNamespace) -> None:
    client = confluent.AdminClient({"bootstrap.servers": kafka_server.hosts[0], "log_level": 0})
    tests = request.cls
    tests.loop = loop
    tests.hosts = kafka_server.hosts
    tests.kafka_host, tests.kafka_port = kafka_server.host, kafka_server.port
    tests.kafka_ssl_port = CLUSTER["ssl"]
    tests.kafka_sasl_plain_port, tests.kafka_sasl_ssl_port = CLUSTER["sasl_plain"], CLUSTER["sasl_ssl"]
    tests.ssl_folder = Path(CLUSTER["folder"])
    tests.acl_manager, tests.kafka_config, tests.kerberos_utils = AclManager(client), KafkaConfig(client), NoKerberos()
    tests.kafka_version = VERSION
