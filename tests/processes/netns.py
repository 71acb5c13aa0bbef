"""Six nodes on a separate network: each in a network namespace, all on one switch whose cables can be pulled.

Loopback differs from a network: the port of a dead process refuses at once, and no node can be cut off. On this network the
packets of a cut node vanish in both directions, and no connection breaks. The client is on the switch too, in the namespace of
the tests.

Needs root and `ip`; traffic never leaves the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

BROKERS, CONTROLLERS = (1, 2, 3), (101, 102, 103)
PORT = 9092
CLUSTER_ID = "c-network-of-its-own-A"


def reason_to_skip() -> str | None:
    """Return the reason why this machine cannot have such a network; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        return "needs Linux, root and iproute2"
    probe = subprocess.run(["ip", "netns", "add", f"slprobe{os.getpid()}"], capture_output=True, text=True)
    if probe.returncode:
        return f"network namespaces cannot be made here: {probe.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", f"slprobe{os.getpid()}"], check=True)
    return None


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Network:
    """The namespace `slXhub` contains the switch; node n is in `slXn`, at `10.93.x.n`."""

    def __init__(self) -> None:
        self._key = f"sl{os.getpid() % 1000}"
        self._subnet = f"10.93.{os.getpid() % 250}"
        self._made: list[str] = []

    @property
    def hub(self) -> str:
        return f"{self._key}hub"

    def namespace(self, node_id: int) -> str:
        return f"{self._key}n{node_id}"

    def host(self, node_id: int) -> str:
        return f"{self._subnet}.{node_id}"

    def make(self) -> None:
        self._add(self.hub)
        _ip("-n", self.hub, "link", "add", "switch", "type", "bridge")
        _ip("-n", self.hub, "link", "set", "switch", "up")
        for node_id in (*BROKERS, *CONTROLLERS):
            namespace = self.namespace(node_id)
            self._add(namespace)
            _ip("-n", self.hub, "link", "add", f"port{node_id}", "type", "veth", "peer", "name", "eth0", "netns", namespace)
            self._plug(f"port{node_id}")
            _ip("-n", namespace, "address", "add", f"{self.host(node_id)}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("link", "add", f"{self._key}c", "type", "veth", "peer", "name", "client", "netns", self.hub)
        self._plug("client")
        _ip("address", "add", f"{self._subnet}.250/24", "dev", f"{self._key}c")
        _ip("link", "set", f"{self._key}c", "up")

    def _add(self, namespace: str) -> None:
        _ip("netns", "add", namespace)
        self._made.append(namespace)

    def _plug(self, port: str) -> None:
        _ip("-n", self.hub, "link", "set", port, "master", "switch", "up")

    def cut(self, node_id: int) -> None:
        """Pull the node's cable: packets to and from it vanish."""
        _ip("-n", self.hub, "link", "set", f"port{node_id}", "nomaster")

    def mend(self, node_id: int) -> None:
        self._plug(f"port{node_id}")

    def remove(self) -> None:
        for namespace in self._made:
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)
        self._made.clear()


class Replica(NamedTuple):
    name: str
    data: Path


class NetCluster:
    """Three brokers and three controllers, with every time-out at its default."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = Network()
        self.processes: dict[int, asyncio.subprocess.Process] = {}

    async def __aenter__(self) -> Self:
        try:
            self.network.make()
            for node_id in (*CONTROLLERS, *BROKERS):
                await self.start(node_id)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self._close()

    async def _close(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
        for process in self.processes.values():
            await process.wait()
        self.network.remove()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{self.network.host(broker_id)}:{PORT}" for broker_id in BROKERS)

    @property
    def brokers(self) -> list[Replica]:
        return [Replica(f"broker-{broker_id}", self.folder_of(broker_id) / "data") for broker_id in BROKERS]

    def folder_of(self, node_id: int) -> Path:
        return self.folder / f"{'broker' if node_id in BROKERS else 'controller'}-{node_id}"

    def fencings(self, broker_id: int) -> list[str]:
        """Return the reasons for which the controllers fenced this broker, one per fencing."""
        lines = [line for n in CONTROLLERS for line in (self.folder_of(n) / "log.jsonl").read_text().splitlines()]
        events = [json.loads(line) for line in lines if '"broker.fencing"' in line]
        return [event["reason"] for event in events if event["broker_id"] == broker_id]

    async def start(self, node_id: int) -> None:
        role = "broker" if node_id in BROKERS else "controller"
        folder = self.folder_of(node_id)
        folder.mkdir(exist_ok=True)
        config = folder / f"{role}.toml"
        config.write_text(self._config(node_id, role, folder))
        command = ["ip", "netns", "exec", self.network.namespace(node_id), sys.executable, "-P", "-m", "strandline.node"]
        with (folder / "log.jsonl").open("ab") as log:
            self.processes[node_id] = await asyncio.create_subprocess_exec(
                *command,
                role,
                "--config",
                str(config),
                "--stop-with-parent",
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def _config(self, node_id: int, role: str, folder: Path) -> str:
        name = "PLAINTEXT" if role == "broker" else "CONTROLLER"
        voters = ",".join(f"{n}@{self.network.host(n)}:{PORT}" for n in CONTROLLERS)
        values = {
            "node.id": node_id,
            "cluster.id": CLUSTER_ID,
            "listeners": f"{name}://{self.network.host(node_id)}:{PORT}",
            "log.dirs": str(folder / "data"),
            "controller.quorum.voters": voters,
            "http.listener": "",
        }
        if role == "broker":
            values["min.insync.replicas"] = 2
        return "".join(f"{key} = {value if isinstance(value, int) else repr(value)}\n" for key, value in values.items())

    # -- what can be done to a node

    def kill_with_host(self, node_id: int) -> None:
        """Kill a node like a container: the process ends, its connections close, then its address disappears."""
        self.processes[node_id].kill()

        def unplug() -> None:
            self.network.cut(node_id)

        asyncio.get_running_loop().call_later(0.02, unplug)

    async def start_again(self, node_id: int) -> None:
        await self.processes[node_id].wait()
        self.network.mend(node_id)
        await self.start(node_id)
