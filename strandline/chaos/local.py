"""Drivers for processes on this machine: a cluster started for the scenario, or one that `strandline up` runs.

The processes talk over the loopback interface, which cannot be cut for one of them, so scenarios that need a network run
on compose only. A small disk is a tmpfs mounted over a broker's data directory, which only root can do.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strandline.chaos.drivers import Driver, DriverError, Ending
from strandline.chaos.picture import BROKER, Member
from strandline.chaos.scenario import Scenario
from strandline.chaos.steps import NETWORK, SMALL_DISK
from strandline.control import ask
from strandline.local_cluster import ClusterError, LocalCluster
from strandline.protocol.errors import UsageError
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity
from strandline.reach import forget, remember
from strandline.storage.checkpoints import CLEAN_SHUTDOWN

SMALL_DISK_BYTES = 64 << 20
BALLAST = "ballast"


class _Processes(Driver):
    """The common part of both drivers: both can read the nodes' folders."""

    kind = "local"

    def __init__(self) -> None:
        super().__init__()
        self._log_starts: dict[str, int] = {}
        """Node name -> the position in its log file where its latest process began."""

    def _lack(self, capability: str) -> str:
        if capability == NETWORK:
            return "local processes share the loopback interface, so no node can be cut off; run the scenario with --compose"
        return "only root can mount a small disk, and only without --local; or run the scenario with --compose"

    def _data(self, name: str) -> Path:
        raise NotImplementedError

    def _log_file(self, name: str) -> Path:
        return self._data(name).parent / "log.jsonl"

    def _note_log_start(self, name: str) -> None:
        log = self._log_file(name)
        self._log_starts[name] = log.stat().st_size if log.exists() else 0

    async def wipe(self, names: Sequence[str]) -> None:
        for name in names:
            if (await self.ending(name)).is_running:
                raise UsageError(f"cannot wipe the data of {name} while it runs; kill or stop it first")
            if self._data(name).exists():  # unless `lose_disk` has taken it
                await asyncio.to_thread(shutil.rmtree, self._data(name))

    async def lose_disk(self, names: Sequence[str]) -> None:
        for name in names:
            lost = self._data(name).with_name("lost-data")
            try:
                self._data(name).rename(lost)
            except OSError as e:
                raise DriverError(f"cannot take the data directory of {name} away: {e.strerror}") from None
            await asyncio.to_thread(shutil.rmtree, lost, ignore_errors=True)

    async def was_clean(self, name: str) -> bool:
        ending = await self.ending(name)
        marker = self._data(name) / CLEAN_SHUTDOWN
        return ending.exit_code in (0, None) and (self.member(name).role != BROKER or marker.exists())

    async def log_since_start(self, name: str) -> list[Mapping[str, object]]:
        with self._log_file(name).open("rb") as log:
            log.seek(self._log_starts.get(name, 0))
            return parse_log_lines(log.read())

    async def copy_logs(self, topic: str, replicas: Mapping[int, Sequence[int]], folder: Path) -> Mapping[str, Path]:
        return {m.name: self._data(m.name) for m in self.brokers}


class OwnCluster(_Processes):
    """Starts three controllers and three brokers in a folder, and stops them when it closes."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, *, secure: bool = False) -> None:
        """`secure`: the cluster has TLS, users and rights, and the clients of the scenario are the administrator."""
        super().__init__()
        self.cluster = LocalCluster(folder, settings=settings, secure=secure)
        self.where = "a local cluster of its own"
        self.offers = frozenset({SMALL_DISK}) if _may_mount() else frozenset()
        self._mounted: Path | None = None

    async def open(self, scenario: Scenario) -> None:
        self.check(scenario)
        if SMALL_DISK in scenario.requires:
            await self._mount(self.cluster.brokers[-1].name)
        await self.cluster.start()
        security = NO_SECURITY if self.cluster.security is None else self.cluster.security.security_of("admin")
        self.members = [Member(n.name, n.role, n.id, "127.0.0.1", n.port, security) for n in self.cluster.nodes.values()]
        remember(self.bootstrap, security)

    async def close(self) -> None:
        if self.members:
            forget(self.bootstrap)
        await self.cluster.stop()
        if self._mounted is not None:
            await _system("umount", str(self._mounted))
            self._mounted = None

    async def _mount(self, name: str) -> None:
        folder = self._data(name)
        folder.mkdir(parents=True)
        await _system("mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES},mode=0700", "strandline-chaos", str(folder))
        self._mounted, self.small_disk = folder, name

    def _data(self, name: str) -> Path:
        return self.cluster.node(name).data

    async def kill(self, names: Sequence[str]) -> None:
        for name in names:
            self.cluster.kill(name)
        await self._ended(names)

    async def stop(self, names: Sequence[str]) -> None:
        for name in names:
            self.cluster.terminate(name)
        await self._ended(names)

    async def _ended(self, names: Sequence[str]) -> None:
        for name in names:
            await self.cluster.wait_ended(name)

    async def start(self, names: Sequence[str]) -> None:
        for name in names:
            if self.cluster.node(name).running:
                continue
            self._note_log_start(name)
            await self.cluster.start_node(name)

    async def pause(self, names: Sequence[str]) -> None:
        for name in names:
            self.cluster.pause(name)

    async def resume(self, names: Sequence[str]) -> None:
        for name in names:
            if self.cluster.node(name).paused:
                self.cluster.resume(name)

    async def fill_disk(self, names: Sequence[str]) -> None:
        for name in names:
            if self._data(name) != self._mounted:
                raise UsageError(f"{name} has no small disk")
            await asyncio.to_thread(fill, self._data(name) / BALLAST)

    async def free_disk(self, names: Sequence[str]) -> None:
        for name in names:
            (self._data(name) / BALLAST).unlink(missing_ok=True)

    async def ending(self, name: str) -> Ending:
        node = self.cluster.node(name)
        return Ending(node.running, node.process.returncode if node.process is not None else None)


class RunningCluster(_Processes):
    """Controls the cluster that `strandline up` runs in a folder (None: the newest one), over its control channel."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self._folder = str(folder) if folder is not None else None
        self.where = f"the local cluster in {folder}" if folder is not None else "the running local cluster"
        self._state: dict[str, Any] = {}

    async def open(self, scenario: Scenario) -> None:
        self.check(scenario)
        nodes = (await self._ask("list"))["nodes"]
        config = self._state.get("client_config")
        security = NO_SECURITY if config is None else ClientSecurity.from_file(config)
        self.members = [Member(n["name"], n["role"], n["id"], n["host"], n["port"], security) for n in nodes]
        remember(self.bootstrap, security)
        down = [n["name"] for n in nodes if n["state"] != "running"]
        if down:
            raise ClusterError(f"{', '.join(down)} of {self.where} is not running; a scenario needs every node running")

    async def close(self) -> None:
        pass

    async def _ask(self, action: str, name: str = "") -> dict[str, Any]:
        self._state = await asyncio.to_thread(ask, action, name, folder=self._folder)
        return self._state

    def _node(self, name: str) -> dict[str, Any]:
        node: dict[str, Any] = next(n for n in self._state["nodes"] if n["name"] == name)
        return node

    def _data(self, name: str) -> Path:
        return Path(self._node(name)["data"])

    async def _each(self, action: str, names: Sequence[str]) -> None:
        await asyncio.gather(*(self._ask(action, name) for name in names))

    async def kill(self, names: Sequence[str]) -> None:
        await self._each("kill", names)

    async def stop(self, names: Sequence[str]) -> None:
        await self._each("stop", names)

    async def start(self, names: Sequence[str]) -> None:
        for name in names:
            if not (await self.ending(name)).is_running:
                self._note_log_start(name)
                await self._ask("start", name)

    async def pause(self, names: Sequence[str]) -> None:
        await self._each("pause", names)

    async def resume(self, names: Sequence[str]) -> None:
        await self._ask("list")
        await self._each("resume", [name for name in names if self._node(name)["state"] == "paused"])

    async def ending(self, name: str) -> Ending:
        await self._ask("list")
        return Ending(self._node(name)["state"] != "down", None)

    async def was_clean(self, name: str) -> bool:
        """`up` does not report exit codes, so the last line of the node's log is checked: an orderly stop logs it."""
        events = [line.get("event") for line in await self.log_since_start(name)]
        return await super().was_clean(name) and bool(events) and events[-1] == "node.stopped"


# -- helpers ----------------------------------------------------------------------------------------------------------


def parse_log_lines(data: bytes) -> list[Mapping[str, object]]:
    """One mapping per line: the fields of a JSON line, or {"event": line} for other text such as a traceback."""
    lines: list[Mapping[str, object]] = []
    for line in data.decode(errors="replace").splitlines():
        try:
            fields = json.loads(line)
        except ValueError:
            fields = None
        lines.append(fields if isinstance(fields, dict) else {"event": line})
    return lines


def fill(ballast: Path) -> None:
    """Fill the disk with zeros to the last byte."""
    size = 1 << 20
    with ballast.open("wb", buffering=0) as file:
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2


def _may_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None and Path("/proc/mounts").exists()


async def _system(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    if process.returncode:
        raise DriverError(f"{' '.join(command[:1])} failed: {said.decode(errors='replace').strip()}")
