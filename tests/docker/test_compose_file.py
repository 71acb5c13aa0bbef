"""docker-compose.yml as compose parses it, without a start of containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from engine import ENVIRONMENT, ROOT, compose_command, require_engine, run
from project import BROKERS, CONTROLLERS, NODES

pytestmark = [pytest.mark.docker, pytest.mark.processes]

PROFILES = ("--profile", "client", "--profile", "observe")


def read(*files: str, **environment: str) -> dict[str, Any]:
    """Return the parsed file with all variables replaced. Compose rejects unknown fields."""
    require_engine()
    options = [word for file in files for word in ("-f", file)]
    unset = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("COMPOSE_")}
    done = run(*compose_command(), *options, *PROFILES, "config", env={**unset, **environment})
    return dict(yaml.safe_load(done.out))


@pytest.fixture(scope="module")
def file() -> dict[str, Any]:
    return read()


def published(service: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (port on the host, port in the container); docker-compose writes a string, Compose v2 a mapping."""
    pairs = []
    for port in service["ports"]:
        if isinstance(port, str):
            _host, outside, inside = port.removesuffix("/tcp").split(":")
        else:
            outside, inside = port["published"], port["target"]
        pairs.append((str(outside), str(inside)))
    return pairs


def test_the_ports_are_as_documented(file: dict[str, Any]) -> None:
    """README and the tutorial name these ports, and users remember them."""
    for i, broker in enumerate(BROKERS):
        assert published(file["services"][broker]) == [
            (f"{19092 + i}", f"{19092 + i}"),
            (f"{29092 + i}", f"{29092 + i}"),
            (f"{18092 + i}", "8092"),
        ]
    for i, controller in enumerate(CONTROLLERS):
        assert published(file["services"][controller]) == [(f"{18101 + i}", "8093")]


def test_names_do_not_depend_on_the_folder_of_the_checkout(file: dict[str, Any]) -> None:
    assert {node: file["services"][node]["container_name"] for node in NODES} == {node: node for node in NODES}
    assert {n: network["name"] for n, network in file["networks"].items()} == {
        "clients": "strandline_clients",
        "cluster": "strandline_cluster",
    }


def test_a_second_cluster_shares_no_name_and_no_port() -> None:
    """tests/docker relies on this, and so do users who compare two versions."""
    ports = {"BROKER_1_PORT": "39092", "BROKER_1_KAFKA_PORT": "49092", "BROKER_1_HTTP_PORT": "38092"}
    other = read(COMPOSE_PROJECT_NAME="other", PREFIX="other-", **ports)
    broker = other["services"]["broker-1"]
    assert broker["container_name"] == "other-broker-1"
    assert published(broker) == [("39092", "39092"), ("49092", "49092"), ("38092", "8092")]
    environment = broker["environment"]
    assert environment["STRANDLINE_ADVERTISED_LISTENERS"] == (
        "INTERNAL://other-broker-1.other_cluster:9092,EXTERNAL://localhost:39092,KAFKA://localhost:49092"
    )
    assert "@other-controller-1.other_cluster:9093" in environment["STRANDLINE_CONTROLLER_QUORUM_VOTERS"]
    assert other["networks"]["cluster"]["name"] == "other_cluster"


def test_nodes_of_a_role_differ_only_in_identity(file: dict[str, Any]) -> None:
    """The test finds a setting that was changed for one broker and forgotten for the others."""
    own = {"STRANDLINE_NODE_ID", "STRANDLINE_LISTENERS", "STRANDLINE_ADVERTISED_LISTENERS"}
    for role in (CONTROLLERS, BROKERS):
        services = [file["services"][node] for node in role]
        common = [
            {k: v for k, v in s.items() if k not in ("container_name", "environment", "ports", "volumes")} for s in services
        ]
        assert common[0] == common[1] == common[2]
        settings = [{k: v for k, v in s["environment"].items() if k not in own} for s in services]
        assert settings[0] == settings[1] == settings[2]
    ids = [int(file["services"][node]["environment"]["STRANDLINE_NODE_ID"]) for node in NODES]
    assert ids == [101, 102, 103, 1, 2, 3]


def test_the_file_contains_no_cluster_id(file: dict[str, Any]) -> None:
    """Two users who start this file must get two clusters."""
    for node in NODES:
        assert "STRANDLINE_CLUSTER_ID" not in file["services"][node]["environment"]


@pytest.mark.parametrize("service", ["prometheus", "grafana"])
def test_monitoring_images_are_pinned_and_mounts_exist(file: dict[str, Any], service: str) -> None:
    """For a missing mount the engine creates an empty directory, and the service starts without its files."""
    description = file["services"][service]
    assert description["profiles"] == ["observe"]
    assert description["image"].partition(":")[2] not in ("", "latest")
    sources = [m.split(":")[0] if isinstance(m, str) else m["source"] for m in description["volumes"]]
    files = [Path(source) for source in sources if source.startswith("/")]
    assert files
    assert all(path.is_relative_to(ROOT) and any(path.iterdir()) for path in files)


def test_the_small_disk_file_extends_the_compose_file() -> None:
    assert "small-disk" in read("docker-compose.yml", "deploy/chaos/small-disk.yml")["services"]
