"""A project of the repository's docker-compose.yml with its own name and ports."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from engine import ENVIRONMENT, Done, compose_command, docker, inspect, log_lines, run, wait_until

from strandline.local_cluster import free_port_range

CONTROLLERS = ("controller-1", "controller-2", "controller-3")
BROKERS = ("broker-1", "broker-2", "broker-3")
NODES = (*CONTROLLERS, *BROKERS)
HEALTHY_MAX_S = 60.0
"""The expected figure is 15 s; a machine that does other things as well gets more."""
STRANDLINE = str(Path(sys.executable).with_name("strandline"))


class Project:
    def __init__(self, image: str) -> None:
        self.name = f"strandline-{secrets.token_hex(3)}"
        base = free_port_range(12)
        self.ports = dict(zip(BROKERS, range(base, base + 3), strict=True))
        self.http_ports = dict(zip(NODES, range(base + 3, base + 9), strict=True))
        self.kafka_ports = dict(zip(BROKERS, range(base + 9, base + 12), strict=True))
        self.environment = {
            **ENVIRONMENT,
            "IMAGE": image,
            "COMPOSE_PROJECT_NAME": self.name,
            "PREFIX": f"{self.name}-",
            **{_variable(service, "PORT"): str(port) for service, port in self.ports.items()},
            **{_variable(service, "KAFKA_PORT"): str(port) for service, port in self.kafka_ports.items()},
            **{_variable(service, "HTTP_PORT"): str(port) for service, port in self.http_ports.items()},
        }
        """The environment that another process needs to act on this project with `docker-compose`."""
        self.healthy_after_s = 0.0
        """How long the first start took until all six were healthy."""

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers for clients on the host."""
        return ",".join(f"localhost:{port}" for port in self.ports.values())

    @property
    def kafka_bootstrap(self) -> str:
        """The bootstrap servers for Kafka's clients on the host."""
        return ",".join(f"localhost:{port}" for port in self.kafka_ports.values())

    def container(self, service: str) -> str:
        return f"{self.name}-{service}"

    def network(self, name: str) -> str:
        return f"{self.name}_{name}"

    def volume(self, service: str) -> str:
        return f"{self.name}_{service}-data"

    # -- acts

    def compose(self, *words: str, check: bool = True, timeout_s: float = 120, stdin: str = "") -> Done:
        return run(*compose_command(), *words, check=check, timeout_s=timeout_s, stdin=stdin, env=self.environment)

    def up(self) -> float:
        """Start the project from a built image; returns the seconds until all six containers are healthy."""
        began = time.monotonic()
        self.compose("up", "-d", "--no-build")
        self.wait_healthy()
        return time.monotonic() - began

    def wait_healthy(self) -> None:
        wait_until(lambda: set(self.health().values()) == {"healthy"}, lambda: f"healthy: {self.health()}", HEALTHY_MAX_S)

    def heal(self, service: str) -> None:
        """Resume the container, reconnect its networks and start it, as needed."""
        container = inspect(self.container(service))
        if container["State"]["Paused"]:
            docker("unpause", self.container(service))
        networks = {self.network("cluster"), *([self.network("clients")] if service in BROKERS else [])}
        for network in networks - set(container["NetworkSettings"]["Networks"]):
            docker("network", "connect", network, self.container(service))
        if not container["State"]["Running"]:
            docker("start", self.container(service))

    def down(self, *options: str) -> None:
        self.compose("down", "--timeout", "30", *options)

    def client(self, *words: str, stdin: str = "") -> str:
        """Run `docker-compose run --rm client ...`, a command inside the cluster's network."""
        return self.compose("run", "--rm", "-T", "client", *words, stdin=stdin).out

    def host(self, *words: str, stdin: str = "", check: bool = True) -> str:
        """Run a command on the host, over the published ports. `check` expects exit code 0; a read that lacks the answer of a
        broker has 1, and prints the rest."""
        environment = {**ENVIRONMENT, "STRANDLINE_BOOTSTRAP": self.bootstrap}
        return run(STRANDLINE, *words, stdin=stdin, check=check, env=environment).out

    # -- reports

    def state(self, service: str) -> dict[str, object]:
        return dict(inspect(self.container(service))["State"])

    def health(self) -> dict[str, str]:
        states = ((node, inspect(self.container(node))["State"]) for node in NODES)
        return {node: state.get("Health", {}).get("Status", "?") if state["Running"] else "down" for node, state in states}

    def events(self, service: str) -> list[str]:
        """Return the events that this container's processes have logged."""
        done = run("docker", "logs", self.container(service))
        return [str(line["event"]) for line in log_lines(done.out + done.err)]


def _variable(service: str, what: str) -> str:
    return f"{service.upper().replace('-', '_')}_{what}"


def exit_codes(project: Project, services: Iterable[str]) -> dict[str, object]:
    return {service: project.state(service)["ExitCode"] for service in services}
