"""One interface to both clusters: three controllers and three brokers, as processes on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path

from strandline.local_cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[1]
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class System(ABC):
    """A cluster under test. In both systems the nodes are named `broker-1`, `controller-101` and so on."""

    name: str
    bootstrap: str

    @abstractmethod
    async def start(self) -> float:
        """Start with empty data; returns the seconds until every broker serves."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the cluster and delete its data."""

    @abstractmethod
    def pids(self) -> dict[str, int]: ...

    @abstractmethod
    def signal(self, node: str, number: signal.Signals) -> None: ...

    @abstractmethod
    async def restart(self, node: str) -> None: ...

    @abstractmethod
    async def active_controller(self) -> str: ...

    @abstractmethod
    async def create_topic(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    async def leaders(self, topic: str) -> dict[int, int]:
        """Return partition -> id of its leader, -1 if it has none."""

    def broker_pids(self) -> list[int]:
        return [pid for name, pid in self.pids().items() if name.startswith("broker")]

    def rss_mb(self) -> float:
        return sum(rss_mb(pid) for pid in self.pids().values())

    def broker_cpu_s(self) -> float:
        return sum(cpu_s(pid) for pid in self.broker_pids())


def rss_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        return 0.0


def cpu_s(pid: int) -> float:
    """Return the user and system time of a process in seconds; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


class Ours(System):
    name = "strandline"

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._cluster: LocalCluster | None = None

    @property
    def cluster(self) -> LocalCluster:
        assert self._cluster is not None
        return self._cluster

    async def start(self) -> float:
        self._folder = tempfile.TemporaryDirectory(prefix="strandline-bench-", ignore_cleanup_errors=True)
        self._cluster = LocalCluster(self._folder.name)
        self.bootstrap = self._cluster.bootstrap
        started = time.monotonic()
        await self._cluster.start()
        return time.monotonic() - started

    async def stop(self) -> None:
        await self.cluster.stop()
        if self._folder:
            self._folder.cleanup()

    def pids(self) -> dict[str, int]:
        return {n.name: n.pid for n in self.cluster.nodes.values() if n.running}

    def signal(self, node: str, number: signal.Signals) -> None:
        if number == signal.SIGKILL:
            self.cluster.kill(node)
        else:
            self.cluster.terminate(node)

    async def restart(self, node: str) -> None:
        await self.cluster.wait_ended(node)
        await self.cluster.start_node(node)
        await self.cluster.wait_ready()

    async def active_controller(self) -> str:
        from strandline.client import Admin

        async with Admin(bootstrap_servers=self.bootstrap) as admin:
            return f"controller-{(await admin.describe_quorum()).leader_id}"

    async def create_topic(self, topic: str, partitions: int) -> None:
        from strandline.client import Admin, NewTopic

        async with Admin(bootstrap_servers=self.bootstrap) as admin:
            await admin.create_topics([NewTopic(topic, partitions=partitions, replication_factor=3)])

    async def leaders(self, topic: str) -> dict[int, int]:
        from strandline.client import Admin

        async with Admin(bootstrap_servers=self.bootstrap) as admin:
            return {p.partition: p.leader_id for p in (await admin.describe_topics([topic]))[0].partitions}


class KafkaUnavailable(Exception):
    """Raised with the reason why Apache Kafka cannot be measured on this machine."""


def kafka_tools() -> Path:
    """Return the path of the launcher of a real Apache Kafka. Raises KafkaUnavailable if there is none."""
    path = Path(os.environ.get("STRANDLINE_KAFKA_TOOLS") or ROOT.parent / "shared" / "tools" / "apache-kafka")
    if not os.access(path, os.X_OK):
        raise KafkaUnavailable(f"no launcher of Apache Kafka at {path} (STRANDLINE_KAFKA_TOOLS)")
    for program in ("java", "mvn"):
        if subprocess.run(["which", program], capture_output=True, check=False).returncode:
            raise KafkaUnavailable(f"{program} is not installed")
    return path


class Kafka(System):
    """Apache Kafka, started by the launcher. The time to format the storage is not counted."""

    name = "kafka"

    def __init__(self) -> None:
        self._tools = kafka_tools()
        self._folder = Path(tempfile.gettempdir()) / "strandline-bench-kafka"

    async def _launcher(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            str(self._tools), "--dir", str(self._folder), *arguments, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{self._tools.name} {' '.join(arguments)} failed with exit code {process.returncode}")
        return out.decode()

    async def run_tool(self, *arguments: str) -> str:
        """Run one of Kafka's command line tools; returns its output, both streams."""
        process = await asyncio.create_subprocess_exec(
            str(self._tools),
            "--dir",
            str(self._folder),
            "run",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{' '.join(arguments)} failed:\n{out.decode()[-2000:]}")
        return out.decode()

    async def start(self) -> float:
        if (self._folder / "cluster.json").exists():
            await self._launcher("down", "--wipe")
        up = json.loads((await self._launcher("up")).splitlines()[-1])
        self.bootstrap = up["bootstrap"].replace("localhost", "127.0.0.1")
        opened = time.monotonic()
        # Open ports do not mean a working cluster: the brokers must be registered and unfenced.
        while True:
            admin = _confluent_admin(self.bootstrap)
            if len(admin.list_topics(timeout=5).brokers) == 3:
                return float(up["ports_open_s"]) + time.monotonic() - opened
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        if (self._folder / "cluster.json").exists():
            await self._launcher("down", "--wipe")

    def _info(self) -> dict[str, int]:
        return {n["name"]: n["pid"] for n in json.loads((self._folder / "cluster.json").read_text())["nodes"]}

    def pids(self) -> dict[str, int]:
        return self._info()

    def signal(self, node: str, number: signal.Signals) -> None:
        os.kill(self._info()[node], number)

    async def restart(self, node: str) -> None:
        while _alive(self._info()[node]):
            await asyncio.sleep(0.05)
        await self._launcher("start", node)
        while len(_confluent_admin(self.bootstrap).list_topics(timeout=5).brokers) < 3:
            await asyncio.sleep(0.1)

    async def active_controller(self) -> str:
        status = await self.run_tool("kafka-metadata-quorum", "--bootstrap-server", self.bootstrap, "describe", "--status")
        leader = next(line.split(":")[1].strip() for line in status.splitlines() if line.startswith("LeaderId"))
        return f"controller-{leader}"

    async def create_topic(
        self, topic: str, partitions: int, replication_factor: int = 3, configs: dict[str, str] | None = None
    ) -> None:
        from confluent_kafka.admin import NewTopic

        admin = _confluent_admin(self.bootstrap)
        made = NewTopic(topic, num_partitions=partitions, replication_factor=replication_factor, config=configs or {})
        for future in admin.create_topics([made]).values():
            await asyncio.to_thread(future.result)
        while any(leader < 0 for leader in (await self.leaders(topic)).values()) or not await self.leaders(topic):
            await asyncio.sleep(0.05)

    async def set_topic_config(self, topic: str, key: str, value: str) -> None:
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = _confluent_admin(self.bootstrap)
        for future in admin.incremental_alter_configs([resource]).values():
            await asyncio.to_thread(future.result)

    def broker_logs(self) -> list[str]:
        """The log text of each broker."""
        return [path.read_text(errors="replace") for path in self._folder.glob("broker-*/stderr.log")]

    async def leaders(self, topic: str) -> dict[int, int]:
        metadata = await asyncio.to_thread(_confluent_admin(self.bootstrap).list_topics, topic, 10)
        return {number: p.leader for number, p in metadata.topics[topic].partitions.items()}


def _confluent_admin(bootstrap: str):  # type: ignore[no-untyped-def]
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


if __name__ == "__main__":
    print(__doc__, file=sys.stderr)
