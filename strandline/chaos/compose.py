"""The driver for the containers of a running compose project. It calls the `docker` command.

The labels that compose gives its containers identify them: the service's name is the node's name, the working directory
names the project. The commands are plain (`docker kill`, `docker network disconnect`, ...), so a reader can repeat them by
hand. Only a removed volume needs compose itself, which recreates container and volume. Compose reads the environment, so
run the scenario with the same variables as `docker-compose up`.

A small disk is a volume on a tmpfs (deploy/chaos/small-disk.yml). A tmpfs lasts while a container has it mounted. The
service `small-disk` keeps it mounted, so its content outlives the broker's process, as on a disk.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.chaos.drivers import Driver, DriverError, Ending
from strandline.chaos.local import BALLAST, parse_log_lines
from strandline.chaos.picture import BROKER, CONTROLLER, Member
from strandline.chaos.scenario import Scenario
from strandline.chaos.steps import NETWORK, SMALL_DISK
from strandline.protocol.errors import UsageError
from strandline.storage.checkpoints import CLEAN_SHUTDOWN

LABEL = "com.docker.compose."
KEEPER = "small-disk"
"""The service that keeps the small disk mounted."""
STOP_TIMEOUT_S = 30
RUNNING = "running"


@dataclass(slots=True)
class Container:
    """The facts of `docker inspect` that the driver needs."""

    name: str
    service: str
    project: str
    config_files: str
    status: str
    is_paused: bool
    exit_code: int
    started_at: str
    environment: Mapping[str, str]
    published: Mapping[int, int]
    """Port in the container -> port on the host."""
    volume: str
    """The volume of the data directory."""
    networks: Mapping[str, Sequence[str]]
    """Network -> the container's aliases in it."""

    @property
    def data(self) -> str:
        return self.environment.get("STRANDLINE_LOG_DIRS", "/var/lib/strandline")


def read_container(inspected: Mapping[str, Any]) -> Container:
    config, state, labels = inspected["Config"], inspected["State"], inspected["Config"]["Labels"]
    environment = dict(item.partition("=")[::2] for item in config.get("Env") or ())
    bindings = inspected["HostConfig"].get("PortBindings") or {}
    networks = inspected["NetworkSettings"]["Networks"] or {}
    volumes = [m["Name"] for m in inspected.get("Mounts") or () if m["Type"] == "volume"]
    return Container(
        name=inspected["Name"].lstrip("/"),
        service=labels.get(LABEL + "service", ""),
        project=labels.get(LABEL + "project", ""),
        config_files=labels.get(LABEL + "project.config_files", ""),
        status=state["Status"],
        is_paused=state["Paused"],
        exit_code=state["ExitCode"],
        started_at=state["StartedAt"],
        environment=environment,
        published={int(inside.partition("/")[0]): int(hosts[0]["HostPort"]) for inside, hosts in bindings.items() if hosts},
        volume=volumes[0] if volumes else "",
        networks={name: [a for a in (n.get("Aliases") or ()) if a != inspected["Id"][:12]] for name, n in networks.items()},
    )


def read_member(container: Container) -> Member | None:
    """The node that runs in this container; None if it is not a broker or controller.

    Raises DriverError for a broker whose listener is not published on the host.
    """
    role, _, number = container.service.rpartition("-")
    if role not in (BROKER, CONTROLLER) or not number.isdigit():
        return None
    node_id = int(container.environment.get("STRANDLINE_NODE_ID", number))
    if role == CONTROLLER:
        return Member(container.service, role, node_id)
    for listener in container.environment.get("STRANDLINE_ADVERTISED_LISTENERS", "").split(","):
        host, _, port = listener.partition("://")[2].rpartition(":")
        if port.isdigit() and int(port) in container.published:
            return Member(container.service, role, node_id, host, container.published[int(port)])
    raise DriverError(f"{container.name} has no published listener: clients on this host cannot reach it")


class ComposeProject(Driver):
    kind = "compose"

    def __init__(self, folder: Path, project: str | None = None) -> None:
        super().__init__()
        self._folder = folder.absolute()
        self._project = project or ""
        self.where = f"the compose project in {folder}"
        self.offers = frozenset({NETWORK})
        self._names: dict[str, str] = {}
        """Node name -> container name."""
        self._network = ""
        self._aliases: dict[str, Sequence[str]] = {}
        """Node name -> its aliases on the cluster's network; `reconnect` needs them."""
        self._keeper = ""
        self._config_files: list[str] = []
        self._removed: set[str] = set()
        """Nodes whose container was removed together with its volume."""

    def _lack(self, capability: str) -> str:
        if capability == SMALL_DISK:
            return "start the project with `-f docker-compose.yml -f deploy/chaos/small-disk.yml`"
        return super()._lack(capability)

    # -- finding the containers

    async def open(self, scenario: Scenario) -> None:
        containers = await self._find()
        self._project = containers[0].project
        self._config_files = [f for f in containers[0].config_files.split(",") if f]
        nodes = {m: c for c in containers if (m := read_member(c)) is not None}
        self.members = sorted(nodes, key=lambda m: (m.role, m.id))
        self._names = {m.name: c.name for m, c in nodes.items()}
        if not self.brokers or len(self.brokers) == len(nodes):
            raise UsageError(f"{self.where} has no brokers and controllers (services broker-1, controller-1, ...)")
        self._find_small_disk(containers)
        self.check(scenario)
        sick = [m.name for m, c in nodes.items() if c.status != RUNNING or c.is_paused]
        if sick:
            raise DriverError(f"{', '.join(sick)} of {self.where} is not running; a scenario needs every node running")
        self._find_network(nodes)

    async def _find(self) -> list[Container]:
        wanted = [f"label={LABEL}project.working_dir={self._folder}"]
        if self._project:
            wanted = [f"label={LABEL}project={self._project}"]
        filters = [word for w in [*wanted, f"label={LABEL}oneoff=False"] for word in ("--filter", w)]
        ids = (await self._docker("ps", "--all", "--quiet", "--no-trunc", *filters)).split()
        if not ids:
            raise UsageError(f"no containers of {self.where} are here; start it with `docker-compose up -d`")
        containers = [read_container(c) for c in json.loads(await self._docker("inspect", *ids))]
        projects = {c.project for c in containers}
        if len(projects) > 1:
            raise UsageError(f"{self._folder} has several projects: {', '.join(sorted(projects))}; choose one with --project")
        return containers

    def _find_small_disk(self, containers: Sequence[Container]) -> None:
        keeper = next((c for c in containers if c.service == KEEPER and c.status == RUNNING), None)
        if keeper is not None:
            self._keeper = keeper.name
            self.small_disk = next((c.service for c in containers if c.volume == keeper.volume and c.service != KEEPER), "")
            self.offers |= {SMALL_DISK} if self.small_disk else set()

    def _find_network(self, nodes: Mapping[Member, Container]) -> None:
        """Set the network that all nodes share. Brokers have another one for their clients."""
        common = set.intersection(*(set(c.networks) for c in nodes.values()))
        if len(common) != 1:
            raise UsageError(f"the nodes of {self.where} must share exactly one network, not {sorted(common) or 'none'}")
        (self._network,) = common
        self._aliases = {m.name: c.networks[self._network] for m, c in nodes.items()}

    async def close(self) -> None:
        pass

    async def _inspect(self, name: str) -> Container:
        return read_container(json.loads(await self._docker("inspect", self._names[name]))[0])

    def _containers(self, names: Sequence[str]) -> list[str]:
        return [self._names[name] for name in names]

    # -- actions

    async def kill(self, names: Sequence[str]) -> None:
        await self._docker("kill", *self._containers(names))
        await self._docker("wait", *self._containers(names))

    async def stop(self, names: Sequence[str]) -> None:
        await self._docker("stop", "--time", str(STOP_TIMEOUT_S), *self._containers(names))

    async def start(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self._removed:
                await self._create(name)
            else:
                await self._docker("start", self._names[name])

    async def pause(self, names: Sequence[str]) -> None:
        await self._docker("pause", *self._containers(names))

    async def resume(self, names: Sequence[str]) -> None:
        for name in names:
            if (await self._inspect(name)).is_paused:
                await self._docker("unpause", self._names[name])

    async def disconnect(self, names: Sequence[str]) -> None:
        for name in names:
            await self._docker("network", "disconnect", self._network, self._names[name])

    async def reconnect(self, names: Sequence[str]) -> None:
        for name in names:
            if self._network not in (await self._inspect(name)).networks:
                aliases = [word for alias in self._aliases[name] for word in ("--alias", alias)]
                await self._docker("network", "connect", *aliases, self._network, self._names[name])

    async def wipe(self, names: Sequence[str]) -> None:
        """Remove container and volume; `start` recreates both. A small disk is emptied, because its keeper mounts it."""
        for name in names:
            container = await self._inspect(name)
            if container.status == RUNNING:
                raise UsageError(f"cannot remove the volume of {name} while it runs; kill or stop it first")
            if name == self.small_disk:
                await self._docker("exec", self._keeper, "find", container.data, "-mindepth", "1", "-delete")
                continue
            await self._docker("rm", container.name)
            self._removed.add(name)
            await self._docker("volume", "rm", container.volume)

    async def lose_disk(self, names: Sequence[str]) -> None:
        """The volume cannot be unmounted under a running container, so it is emptied, and its directory made unusable."""
        for name in names:
            container = await self._inspect(name)
            command = f"find {container.data} -mindepth 1 -delete; chmod 0 {container.data}"
            await self._docker("exec", container.name, "sh", "-c", command)

    async def _create(self, name: str) -> None:
        files = [word for file in self._config_files for word in ("-f", file)]
        up = ("up", "-d", "--no-deps", "--no-build", name)
        await self._run(*_compose_command(), "-p", self._project, *files, *up, folder=self._folder)
        container = next((c for c in await self._find() if c.service == name), None)
        if container is None or container.name != self._names[name]:
            raise DriverError(f"compose recreated {name} differently; run with the variables that the project was started with")
        self._removed.discard(name)

    async def fill_disk(self, names: Sequence[str]) -> None:
        for name in names:
            ballast = f"{(await self._inspect(name)).data}/{BALLAST}"
            # dd fails with "no space left on device", as intended.
            await self._docker("exec", self._keeper, "sh", "-c", f"dd if=/dev/zero of={ballast} bs=4k 2>/dev/null; true")

    async def free_disk(self, names: Sequence[str]) -> None:
        for name in names:
            await self._docker("exec", self._keeper, "rm", "-f", f"{(await self._inspect(name)).data}/{BALLAST}")

    # -- reports

    async def ending(self, name: str) -> Ending:
        container = await self._inspect(name)
        return Ending(container.status in (RUNNING, "paused"), container.exit_code)

    async def was_clean(self, name: str) -> bool:
        container = await self._inspect(name)
        if container.exit_code or self.member(name).role != BROKER:
            return not container.exit_code
        try:
            await self._docker("cp", f"{container.name}:{container.data}/{CLEAN_SHUTDOWN}", "-")
        except DriverError:
            return False
        return True

    async def log_since_start(self, name: str) -> list[Mapping[str, object]]:
        container = await self._inspect(name)
        command = ("docker", "logs", "--since", container.started_at, container.name)
        return parse_log_lines(await self._run(*command, with_errors=True))

    async def copy_logs(self, topic: str, replicas: Mapping[int, Sequence[int]], folder: Path) -> Mapping[str, Path]:
        copies = {m.name: folder / m.name for m in self.brokers}
        for name, copy in copies.items():
            copy.mkdir()
            data = (await self._inspect(name)).data
            for partition in (p for p, ids in replicas.items() if self.member(name).id in ids):
                await self._docker("cp", f"{self._names[name]}:{data}/{topic}-{partition}", f"{copy}/")
        return copies

    # -- the docker command

    async def _docker(self, *words: str) -> str:
        return (await self._run("docker", *words)).decode(errors="replace")

    async def _run(self, *command: str, folder: Path | None = None, with_errors: bool = False) -> bytes:
        """The output of a command. Ctrl-C does not reach the command, and a cancellation waits for its end."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT if with_errors else asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise DriverError(f"the command {command[0]!r} is not installed") from None
        talk = asyncio.ensure_future(process.communicate())
        try:
            said, complained = await asyncio.shield(talk)
        except asyncio.CancelledError:
            await talk
            raise
        if process.returncode:
            reason = (complained or said or b"").decode(errors="replace").strip()
            raise DriverError(f"`{' '.join(command[:3])} ...` failed: {reason[-300:]}")
        return said


def _compose_command() -> tuple[str, ...]:
    return ("docker-compose",) if shutil.which("docker-compose") else ("docker", "compose")
