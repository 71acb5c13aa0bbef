"""Reading the output of `docker inspect`. The tests with real containers are in tests/docker."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.chaos.compose import read_container, read_member
from strandline.chaos.drivers import DriverError
from strandline.chaos.local import fill, parse_log_lines
from strandline.chaos.picture import Member


def inspected(service: str, environment: dict[str, str], published: dict[int, int] | None = None) -> dict[str, Any]:
    """The part of the engine's answer that the driver reads."""
    label = "com.docker.compose."
    return {
        "Id": "0123456789abcdef",
        "Name": f"/x-{service}",
        "Config": {
            "Env": [f"{k}={v}" for k, v in environment.items()],
            "Labels": {label + "service": service, label + "project": "p", label + "project.config_files": "a.yml,b.yml"},
        },
        "State": {"Status": "running", "Paused": False, "ExitCode": 0, "StartedAt": "2026-01-01T00:00:00Z"},
        "HostConfig": {"PortBindings": {f"{i}/tcp": [{"HostPort": str(o)}] for i, o in (published or {}).items()}},
        "NetworkSettings": {"Networks": {"p_cluster": {"Aliases": ["0123456789ab", service]}}},
        "Mounts": [{"Type": "tmpfs", "Destination": "/tmp"}, {"Type": "volume", "Name": "p_data"}],
    }


ADVERTISED = "INTERNAL://x-broker-1.p_cluster:9092,EXTERNAL://localhost:39092"


def test_broker_is_reached_at_its_published_listener() -> None:
    """This includes ports that the environment chose."""
    environment = {"STRANDLINE_NODE_ID": "1", "STRANDLINE_ADVERTISED_LISTENERS": ADVERTISED}
    container = read_container(inspected("broker-1", environment, {39092: 39092, 8092: 38092}))
    assert read_member(container) == Member("broker-1", "broker", 1, "localhost", 39092)
    assert (container.name, container.project, container.volume) == ("x-broker-1", "p", "p_data")
    assert container.networks == {"p_cluster": ["broker-1"]}, "the container's own id is no alias to give again"


def test_controller_id_is_not_the_number_in_its_name() -> None:
    container = read_container(inspected("controller-2", {"STRANDLINE_NODE_ID": "102"}))
    assert read_member(container) == Member("controller-2", "controller", 102)


@pytest.mark.parametrize("service", ["prometheus", "client", "small-disk", "grafana-x"])
def test_container_without_a_node_is_none(service: str) -> None:
    assert read_member(read_container(inspected(service, {}))) is None


def test_unpublished_broker_is_refused() -> None:
    container = read_container(inspected("broker-1", {"STRANDLINE_ADVERTISED_LISTENERS": ADVERTISED}, {8092: 38092}))
    with pytest.raises(DriverError, match="x-broker-1 has no published listener"):
        read_member(container)


def test_log_lines_without_json_are_kept_unchanged() -> None:
    assert parse_log_lines(b'{"event": "a", "n": 1}\nTraceback\n[1]\n') == [
        {"event": "a", "n": 1},
        {"event": "Traceback"},
        {"event": "[1]"},
    ]


def test_fill_ends_with_the_last_byte_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of a write is halved down to single bytes, so that a broker's next write fails however small it is."""

    class Disk:
        room, written = 3_000_001, 0

        def open(self, mode: str, buffering: int) -> Disk:
            assert (mode, buffering) == ("wb", 0)
            return self

        def __enter__(self) -> Disk:
            return self

        def __exit__(self, *error: object) -> None: ...

        def write(self, data: bytes) -> None:
            if self.written + len(data) > self.room:
                raise OSError(28, "No space left on device")
            self.written += len(data)

    disk = Disk()
    fill(disk)  # type: ignore[arg-type]
    assert disk.written == disk.room
