"""A real Apache Kafka for tests: its tools, and one broker that is its own controller."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from waiting import free_ports, until

ROOT = Path(__file__).parents[2]
COMPLAINTS = ("mismatch", "out of order", "not found", "exception", "error", "invalid", "corrupt", "isvalid: false", "could not")
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
START_TIMEOUT_S = 60.0


def kafka_tools() -> str:
    """The script that runs Kafka's tools. Skips if there is none, fails if one is required."""
    given = os.environ.get("STRANDLINE_KAFKA_TOOLS")
    script = Path(given) if given else ROOT.parent / "shared" / "tools" / "apache-kafka"
    reason = ""
    if not script.exists():
        reason = f"the Apache Kafka tools are not at {script} (STRANDLINE_KAFKA_TOOLS)"
    elif shutil.which("java") is None:
        reason = "the Apache Kafka tools need Java"
    if reason and os.environ.get("STRANDLINE_REQUIRE_KAFKA") == "1":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    return str(script)


def run_tool(script: str, *arguments: str) -> str:
    """Run one of Kafka's tools; returns its output, stdout first."""
    result = subprocess.run([script, "run", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return result.stdout + result.stderr


def dump(script: str, files: list[Path], *options: str) -> str:
    """The output of `kafka-dump-log` for the files. Fails if the tool complains about one of them."""
    text = run_tool(script, "kafka-dump-log", "--deep-iteration", *options, "--files", ",".join(map(str, files)))
    found = complaints(text)
    assert not found, "\n".join(found[:20])
    return text


def complaints(text: str) -> list[str]:
    """The lines of `kafka-dump-log` that name a fault."""
    lines = [line for line in text.splitlines() if "payload" not in line]
    return [line for line in lines if any(word in line.lower() for word in COMPLAINTS)]


class RealKafka:
    """One Kafka broker on ports of its own. It can be killed and started again on its data."""

    def __init__(self, script: str, folder: Path) -> None:
        self._script = script
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        port, controller_port = self._port, _ = free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        self.data = folder / "data"
        self._properties = folder / "server.properties"
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.data,
            "offsets.topic.replication.factor": 1,
            # After a kill, the controller waits for this long before it accepts the broker again.
            "broker.session.timeout.ms": 1000,
            "broker.heartbeat.interval.ms": 200,
            "auto.create.topics.enable": "false",
        }
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def format(self) -> None:
        run_tool(self._script, "kafka-storage", "format", "-t", CLUSTER_ID, "-c", str(self._properties))

    async def start(self) -> None:
        """Start the broker, and wait until it answers."""
        from confluent_kafka.admin import AdminClient

        self._process = self._launch()
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        await until(self._listens, "Kafka listens", START_TIMEOUT_S)
        assert admin.list_topics(timeout=START_TIMEOUT_S).brokers

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [self._script, "run", "kafka.Kafka", str(self._properties)]
        with (self._folder / "output.log").open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.output[-3000:]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def kill(self) -> None:
        """Kill the process, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def output(self) -> str:
        """The log output of the broker."""
        return (self._folder / "output.log").read_text()

    async def create_topic(self, topic: str, settings: dict[str, str]) -> Path:
        """Create a topic of one partition; returns the folder of its log."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.create_topics([NewTopic(topic, 1, 1, config=settings)]).values():
            future.result(30)
        folder = self.data / f"{topic}-0"
        await until(lambda: (folder / "partition.metadata").exists(), "the folder of the topic")
        return folder
