"""docker-compose.secure.yml in real containers: certificates are made once, nodes know each other, and clients log in."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from engine import ENVIRONMENT, docker, run
from project import BROKERS, NODES, STRANDLINE, Project

pytestmark = [pytest.mark.docker, pytest.mark.processes]
FILES = ("docker-compose.yml", "docker-compose.secure.yml")
PASSWORD = "a password of alice"


@pytest.fixture(scope="module")
def secure(image: str) -> Iterator[Project]:
    project = Project(image)
    project.environment["COMPOSE_FILE"] = os.pathsep.join(FILES)
    try:
        project.up()
        yield project
    finally:
        project.down("--volumes", "--remove-orphans")


def properties(project: Project, folder: Path, password: str) -> Path:
    """The client properties of alice, as a user on the host writes them."""
    docker("cp", f"{project.container('broker-1')}:/certs/ca.pem", str(folder))
    path = folder / "alice.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    path.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\nssl.truststore.location=ca.pem\n"
        f'sasl.jaas.config={module} required username="alice" password="{password}";\n'
    )
    path.chmod(0o600)
    return path


def test_users_are_made_inside_and_log_in_from_outside(secure: Project, tmp_path: Path) -> None:
    """`client` is admin by its certificate; alice, on the host, has a password."""
    secure.client("topic", "create", "orders")
    secure.client("user", "add", "alice", "--password-file", "-", stdin=f"{PASSWORD}\n")
    secure.client("acl", "add", "User:alice", "--topic", "orders", "--producer")
    right, wrong = properties(secure, tmp_path, PASSWORD), tmp_path / "wrong.properties"
    wrong.write_text(right.read_text().replace(PASSWORD, "guess"))
    wrong.chmod(0o600)
    secure.host("produce", "orders", "--client-config", str(right), stdin="tea\n")
    assert secure.client("consume", "orders", "--from", "beginning", "--exit-at-end").splitlines() == ["tea"]
    environment = {**ENVIRONMENT, "STRANDLINE_BOOTSTRAP": secure.bootstrap}
    for words, reason in (([], "TLS"), (["--client-config", str(wrong)], "SASL_AUTHENTICATION_FAILED")):
        done = run(STRANDLINE, "topic", "list", *words, env=environment, check=False)
        assert done.code == 1
        assert reason in done.err


def test_kafkas_clients_log_in_as_the_same_users(secure: Project, tmp_path: Path) -> None:
    """librdkafka has its own names for the settings of the properties file."""
    secure.client("topic", "create", "kafkas")
    secure.client("user", "add", "bob", "--password-file", "-", stdin=f"{PASSWORD}\n")
    secure.client("acl", "add", "User:bob", "--topic", "kafkas", "--producer")
    docker("cp", f"{secure.container('broker-1')}:/certs/ca.pem", str(tmp_path))
    failures: list[object] = []
    settings = {
        "bootstrap.servers": secure.kafka_bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "bob",
    }
    producer = Producer(settings | {"sasl.password": PASSWORD})
    producer.produce("kafkas", b"tea", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(30) == 0
    assert failures == [None]
    assert secure.client("consume", "kafkas", "--from", "beginning", "--exit-at-end").splitlines() == ["tea"]
    refused: list[KafkaError] = []
    guessing = Producer(settings | {"sasl.password": "guess", "error_cb": refused.append})
    deadline = time.monotonic() + 30
    while not refused and time.monotonic() < deadline:
        guessing.poll(0.1)
    assert refused[0].code() == KafkaError._AUTHENTICATION


def test_no_node_has_the_key_of_the_authority(secure: Project) -> None:
    for node in NODES:
        names = docker("exec", secure.container(node), "ls", "/certs").split()
        assert f"{node}.pem" in names
        assert "ca.key" not in names


def test_a_second_start_keeps_the_certificates(secure: Project) -> None:
    def certificates() -> str:
        return docker("exec", secure.container("broker-1"), "md5sum", "/certs/ca.pem", "/certs/broker-1.pem")

    before = certificates()
    secure.compose("up", "-d", "--no-build", "--force-recreate", "certs")
    secure.compose("restart", *BROKERS)
    secure.wait_healthy()
    assert certificates() == before
