"""A real Apache Kafka for comparisons: a controller and three brokers on free ports."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from waiting import free_ports

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
START_S = 60.0
HEAP = "320m"


class RealKafkaCluster:
    """`with RealKafkaCluster(launcher, folder) as kafka:` has its `bootstrap` addresses. `settings` are for every node."""

    def __init__(self, script: str, folder: Path, *, brokers: int = 3, settings: Mapping[str, str] | None = None) -> None:
        self._script = script
        self._folder = folder
        self._settings = dict(settings or {})
        self._ports = free_ports(brokers + 1)
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self._ports[1:])
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def nodes(self) -> list[int]:
        """Their ids: the controller is 101, the brokers are 1, 2, ..."""
        return [101, *range(1, len(self._ports))]

    def __enter__(self) -> Self:
        try:
            formats = [self._format(node, port) for node, port in zip(self.nodes, self._ports, strict=True)]
            assert [process.wait(START_S) for process in formats] == [0] * len(formats), "Kafka's storage could not be formatted"
            for node in self.nodes:
                self.start(node)
            self._wait_registered()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        for node in list(self._processes):
            self.kill(node)

    def _properties(self, node: int, port: int) -> dict[str, object]:
        is_broker = node != 101
        replicas = str(min(3, len(self._ports) - 1))
        listener = "PLAINTEXT" if is_broker else "CONTROLLER"
        return {
            "process.roles": "broker" if is_broker else "controller",
            "node.id": node,
            "controller.quorum.voters": f"101@127.0.0.1:{self._ports[0]}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{listener}://127.0.0.1:{port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self._folder / f"node-{node}" / "data",
            "offsets.topic.replication.factor": replicas,
            "default.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": "1",
            "min.insync.replicas": "2" if replicas == "3" else "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._settings,
        }

    def _format(self, node: int, port: int) -> subprocess.Popen[bytes]:
        folder = self._folder / f"node-{node}"
        folder.mkdir()
        file = folder / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in self._properties(node, port).items()))
        return self._run(folder, "kafka-storage", "format", "-t", CLUSTER_ID, "-c", str(file))

    def start(self, node: int) -> None:
        folder = self._folder / f"node-{node}"
        self._processes[node] = self._run(folder, "kafka.Kafka", str(folder / "server.properties"))

    def _run(self, folder: Path, *command: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "KAFKA_TOOL_HEAP": HEAP}
        with (folder / "output.log").open("ab") as output:
            command = (self._script, "run", *command)
            return subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment)

    def kill(self, node: int) -> None:
        """Kill a node, as a power cut does."""
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    def _wait_registered(self) -> None:
        from confluent_kafka.admin import AdminClient

        end = time.monotonic() + START_S
        while not all(map(_listens, self._ports)):
            assert time.monotonic() < end, f"Kafka does not listen; see {self._folder}/node-*/output.log"
            time.sleep(0.1)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        while len(admin.list_topics(timeout=START_S).brokers) < len(self._ports) - 1:
            assert time.monotonic() < end, "not all brokers of Kafka have registered"
            time.sleep(0.1)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
