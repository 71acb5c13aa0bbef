"""A cluster of real processes on this machine: started, killed, paused, restarted, and watched.

`strandline up`, the demo, the benchmarks and the process tests use this class. Every node is a process of its own
(`python -m strandline.node`), in a session of its own, so that Ctrl-C reaches only this process, which then stops the
nodes. The standard input of a node is a pipe from this process: when this process ends, in whatever way, the nodes stop.

    DIR/.lock, DIR/cluster.json          see `cluster_folder.py`: the folder's owner; ids, ports, pids
    DIR/broker-1/broker.toml             its configuration; `strandline broker --config` runs the broker by hand
    DIR/broker-1/data/                   its log directory
    DIR/broker-1/log.jsonl               its log lines

The cluster is ready when, in every broker's own metadata, every broker is unfenced and a controller is active.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

from strandline.cluster_folder import ClusterError, ClusterFolder, cannot_write
from strandline.node import RESERVED_ENVIRONMENT, keys_of
from strandline.protocol.errors import BrokerError, UsageError
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity

if TYPE_CHECKING:
    from strandline.local_security import LocalSecurity

__all__ = ["HOST", "ClusterError", "Event", "LocalCluster", "Node", "free_port_range"]

HOST = "127.0.0.1"
READY_POLL_MS = 15
STOP_TIMEOUT_MS = 15_000
QUORUM_SIZES = (1, 3, 5)


class Event(NamedTuple):
    """Something happened to a node: "started", "exited" (by itself), "killed", "stopped", "paused", "resumed"."""

    kind: str
    node: str
    text: str


@dataclass(slots=True)
class Node:
    name: str
    role: str
    id: int
    port: int
    http_port: int
    """The port of its health and metrics; 0 if it has none."""
    folder: Path
    kafka_port: int = 0
    """The port of a broker for Kafka's clients; 0 if it has none."""
    process: asyncio.subprocess.Process | None = None
    """The latest process; None before the first start."""
    paused: bool = False
    expected_end: str = ""
    """The reason for an expected end: "killed" or "stopped"; empty while the node should run."""
    watcher: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def pid(self) -> int:
        """Id of the running process; 0 if there is none."""
        return self.process.pid if self.process and self.running else 0

    @property
    def state(self) -> str:
        if not self.running:
            return "down"
        return "paused" if self.paused else "running"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def http(self) -> str | None:
        """The address of its health and metrics; None if it has none."""
        return f"{HOST}:{self.http_port}" if self.http_port else None

    @property
    def config_file(self) -> Path:
        return self.folder / f"{self.role}.toml"

    @property
    def log_file(self) -> Path:
        return self.folder / "log.jsonl"

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "role": self.role,
            "id": self.id,
            "pid": self.pid,
            "host": HOST,
            "port": self.port,
            "http": self.http,
            "kafka": f"{HOST}:{self.kafka_port}" if self.kafka_port else None,
            "data": str(self.data),
            "state": self.state,
        }


class LocalCluster:
    """`async with LocalCluster(folder) as cluster:` runs three controllers and three brokers, and enters when they are
    ready.

    Controllers have ids from 101, brokers from 1. Brokers listen on `base_port` and the ports after it, then the
    controllers, then each node's HTTP, then the brokers' listeners for Kafka's clients (`kafka`). `base_port=0` chooses a free
    range. `settings` are configuration keys for each role that knows them; `http.listener` can only be empty there, for no HTTP.
    `secure`: with TLS, users and rights, whose files are in `local_security.py`. Raises UsageError for invalid arguments.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        brokers: int = 3,
        controllers: int = 3,
        base_port: int = 0,
        settings: Mapping[str, Any] | None = None,
        on_event: Callable[[Event], None] | None = None,
        secure: bool = False,
        kafka: bool = False,
    ) -> None:
        if brokers < 1:
            raise UsageError(f"--brokers takes 1 or more, not {brokers}")
        if controllers not in QUORUM_SIZES:
            raise UsageError(f"--controllers takes 1, 3 or 5, not {controllers}")
        self.folder = Path(folder).absolute()
        self._folder = ClusterFolder(self.folder)
        self.cluster_id = ""
        self._settings = settings_by_role(settings or {})
        self.security = _local_security(self.folder) if secure else None
        """The users of a secure cluster, and the files of its clients."""
        self._on_event = on_event or (lambda event: None)
        self.extra_state: dict[str, Any] = {}
        """Further keys of the owner for `cluster.json`."""
        plan = [("broker", 1 + i) for i in range(brokers)] + [("controller", 101 + i) for i in range(controllers)]
        with_http = self._settings["broker"].get("http.listener") is None
        counts = [len(plan), len(plan) if with_http else 0, brokers if kafka else 0]
        base = base_port or free_port_range(sum(counts))
        self.nodes = {}
        for i, (role, number) in enumerate(plan):
            name, http_port = f"{role}-{number}", base + len(plan) + i if with_http else 0
            kafka_port = base + counts[0] + counts[1] + i if kafka and role == "broker" else 0
            self.nodes[name] = Node(name, role, number, base + i, http_port, self.folder / name, kafka_port)
        check_port_numbers(self._ports())
        for node in self.nodes.values():
            check_config(node.role, self._config(node))

    def _ports(self) -> list[int]:
        return [port for node in self.nodes.values() for port in (node.port, node.http_port, node.kafka_port) if port]

    # -- nodes

    @property
    def brokers(self) -> list[Node]:
        return [n for n in self.nodes.values() if n.role == "broker"]

    @property
    def controllers(self) -> list[Node]:
        return [n for n in self.nodes.values() if n.role == "controller"]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{n.port}" for n in self.brokers)

    @property
    def kafka_bootstrap(self) -> str:
        """The addresses for Kafka's clients; empty if there are none."""
        return ",".join(f"{HOST}:{n.kafka_port}" for n in self.brokers if n.kafka_port)

    @property
    def addresses(self) -> dict[str, str]:
        """The bootstrap addresses, as documents name them."""
        kafka = self.kafka_bootstrap
        return {"bootstrap": self.bootstrap, **({"kafka_bootstrap": kafka} if kafka else {})}

    def node(self, name: str) -> Node:
        """Return the node of this name, such as broker-1. Raises UsageError if there is none."""
        node = self.nodes.get(name)
        if node is None:
            raise UsageError(f"there is no node {name!r}; there are {', '.join(self.nodes)}")
        return node

    def broker(self, broker_id: int) -> Node:
        return self.node(f"broker-{broker_id}")

    # -- life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def start(self, *, timeout_ms: int = 30_000) -> None:
        """Lock the folder, start every node and wait until the cluster is ready. If that fails, no node is left running.

        Raises ClusterError if the folder or a port is in use, or a node ends or is not ready within `timeout_ms`.
        """
        await self._take_folder()
        try:
            # Controllers first: their election runs while the brokers import.
            for node in [*self.controllers, *self.brokers]:
                await self._spawn(node)
            self._write_state()
            await self.wait_ready(timeout_ms=timeout_ms)
            await self._create_roles()
        except BaseException:
            await self.stop(abruptly=True)
            raise

    async def _create_roles(self) -> None:
        if self.security is None:
            return
        from strandline.client.errors import ClientError
        from strandline.local_security import create_roles

        try:
            await create_roles(self.bootstrap, self.security)
        except ClientError as e:
            raise ClusterError(f"the users of the cluster could not be created: {e}") from None

    async def stop(self, *, abruptly: bool = False) -> None:
        """Stop the brokers, then the controllers, with SIGTERM. A node that does not end in time is killed.

        `abruptly`: kill all nodes at once.
        """
        for group in (self.brokers, self.controllers):
            await asyncio.gather(*(self._end(node, abruptly) for node in group))
        self._write_state()
        self._folder.release()

    async def _end(self, node: Node, abruptly: bool) -> None:
        if not node.running:
            return
        if node.paused:
            self._signal(node, signal.SIGCONT)
        node.expected_end = "stopped"
        self._signal(node, signal.SIGKILL if abruptly else signal.SIGTERM)
        try:
            await asyncio.wait_for(self._ended(node), STOP_TIMEOUT_MS / 1000)
        except TimeoutError:
            self._signal(node, signal.SIGKILL)
            await self._ended(node)

    # -- actions on a node

    def kill(self, name: str) -> None:
        """Send SIGKILL. The process ends at once; its unsynced writes stay in the page cache."""
        node = self._running(name)
        node.expected_end = "killed"
        self._signal(node, signal.SIGKILL)

    def terminate(self, name: str) -> None:
        """Send SIGTERM, which begins a clean shutdown; `wait_ended` waits for its end."""
        node = self._running(name)
        node.expected_end = "stopped"
        self._signal(node, signal.SIGTERM)

    def pause(self, name: str) -> None:
        """Send SIGSTOP: the process and its connections stay, and it does not respond."""
        node = self._running(name)
        self._signal(node, signal.SIGSTOP)
        node.paused = True
        self._tell("paused", node, f"paused (SIGSTOP), pid {node.pid}")

    def resume(self, name: str) -> None:
        node = self._running(name)
        self._signal(node, signal.SIGCONT)
        node.paused = False
        self._tell("resumed", node, f"resumed (SIGCONT), pid {node.pid}")

    async def start_node(self, name: str) -> None:
        """Start a node that is down; returns when the process runs, not when it is ready (`wait_ready`). Raises UsageError if it
        runs already."""
        node = self.node(name)
        if node.running:
            raise UsageError(f"{name} is running already (pid {node.pid})")
        self._folder.hold()
        await self._spawn(node)
        self._write_state()

    async def wait_ended(self, name: str, *, timeout_ms: int = STOP_TIMEOUT_MS) -> None:
        """Wait until the node's process has ended. Raises ClusterError after `timeout_ms`."""
        try:
            await asyncio.wait_for(self._ended(self.node(name)), timeout_ms / 1000)
        except TimeoutError:
            raise ClusterError(f"{name} did not end within {timeout_ms} ms") from None

    async def wait_ready(self, *, timeout_ms: int = 30_000) -> None:
        """Wait until, in the metadata of each running broker, every running broker is unfenced and a controller active.

        Raises ClusterError after `timeout_ms`, or if a node ends.
        """
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        expected = {n.id for n in self.brokers if n.running and not n.paused}
        await asyncio.gather(*(self._wait_ready(self.broker(i), expected, deadline, timeout_ms) for i in sorted(expected)))

    async def _wait_ready(self, node: Node, expected: set[int], deadline: float, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        security = NO_SECURITY if self.security is None else self.security.security_of("admin")
        while not expected <= await unfenced_brokers(node.port, security):
            self._refuse_the_dead()
            if loop.time() > deadline:
                raise ClusterError(f"the cluster was not ready within {timeout_ms} ms; see the logs in {self.folder}")
            await asyncio.sleep(READY_POLL_MS / 1000)

    def _refuse_the_dead(self) -> None:
        for node in self.nodes.values():
            if node.process is not None and not node.running and not node.expected_end:
                raise ClusterError(f"{node.name} ended with {_exit_text(node.process.returncode)}: {_last_words(node)}")

    # -- processes

    def _running(self, name: str) -> Node:
        node = self.node(name)
        if not node.running:
            raise UsageError(f"{name} is not running")
        return node

    @staticmethod
    def _signal(node: Node, number: signal.Signals) -> None:
        if node.process is not None:
            try:
                node.process.send_signal(number)
            except ProcessLookupError:
                pass  # it has just ended; the watcher logs that

    async def _ended(self, node: Node) -> None:
        if node.watcher is not None:
            await asyncio.shield(node.watcher)

    async def _spawn(self, node: Node) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("STRANDLINE_") or k in RESERVED_ENVIRONMENT}
        # -P: the current folder is no place to import from.
        arguments = ["-P", "-m", "strandline.node", node.role, "--config", str(node.config_file), "--stop-with-parent"]
        with _open_log(node) as log:
            node.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        node.paused, node.expected_end = False, ""
        node.watcher = asyncio.create_task(self._watch(node, node.process))
        self._tell("started", node, f"started, pid {node.pid}")

    async def _watch(self, node: Node, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        node.paused = False
        kind = node.expected_end or "exited"
        if kind != "exited":
            text = kind
        elif code < 0:
            text = "ended by a signal from outside"
        else:
            text = f"ended by itself: {_last_words(node)}"
        self._tell(kind, node, f"{text} ({_exit_text(code)})")
        self._write_state()

    def _tell(self, kind: str, node: Node, text: str) -> None:
        self._on_event(Event(kind, node.name, text))

    # -- the folder

    async def _take_folder(self) -> None:
        """Lock the folder; check that no node of an earlier cluster runs in it and that the ports are free; then write the
        nodes' configurations."""
        self._folder.hold()
        try:
            await self._folder.wait_for_earlier_nodes()
            self._folder.check_controllers(node.name for node in self.controllers)
            check_ports_are_free(self._ports())
            self._write_configs()
        except BaseException:
            self._folder.release()
            raise

    def _write_configs(self) -> None:
        known = str(self._folder.read_state().get("cluster_id", ""))
        self.cluster_id = known or base64.urlsafe_b64encode(secrets.token_bytes(16))[:22].decode()
        if self.security is not None:
            self.security.write(list(self.nodes))
        try:
            for node in self.nodes.values():
                node.folder.mkdir(mode=0o777 if self.security is None else 0o700, exist_ok=True)
                node.config_file.write_text("".join(f"{k} = {_toml(v)}\n" for k, v in self._config(node).items()))
        except OSError as e:
            raise cannot_write(self.folder, e) from None

    def _config(self, node: Node) -> dict[str, Any]:
        """The keys of the node's configuration file. The cluster's id is omitted until it is known."""
        listener = "PLAINTEXT" if node.role == "broker" else "CONTROLLER"
        voters = ",".join(f"{n.id}@{HOST}:{n.port}" for n in self.controllers)
        config: dict[str, Any] = {
            "node.id": node.id,
            **({"cluster.id": self.cluster_id} if self.cluster_id else {}),
            "listeners": f"{listener}://{HOST}:{node.port}",
            "log.dirs": str(node.data),
            "controller.quorum.voters": voters,
            "http.listener": node.http or "",
        }
        known = {key.name for key in keys_of(node.role)}
        replication = min(3, len(self.brokers))
        defaults = {
            "default.replication.factor": replication,
            "min.insync.replicas": max(1, replication - 1),
            "offsets.topic.replication.factor": replication,
            "transaction.state.log.replication.factor": replication,
            "transaction.state.log.min.isr": max(1, replication - 1),
        }
        config |= {k: v for k, v in defaults.items() if k in known}
        if self.security is not None:
            config |= self.security.config(node.name, node.role, f"{HOST}:{node.port}", list(self.nodes))
        if node.kafka_port:
            config["listeners"] += f",KAFKA://{HOST}:{node.kafka_port}"
        return config | self._settings[node.role]

    def describe(self) -> dict[str, Any]:
        """The content of `cluster.json`."""
        return {
            "cluster_id": self.cluster_id,
            "folder": str(self.folder),
            **self.addresses,
            "pid": os.getpid(),
            **self.client_config,
            **self.extra_state,
            "nodes": [n.describe() for n in self.nodes.values()],
        }

    @property
    def client_config(self) -> dict[str, Any]:
        """The files that clients of a secure cluster need: that of the administrator, and that of each user."""
        if self.security is None:
            return {}
        files = self.security.client_configs
        return {"client_config": files["admin"], "client_configs": files}

    def _write_state(self) -> None:
        self._folder.write_state(self.describe())


# -- helpers ----------------------------------------------------------------------------------------------------------


def _local_security(folder: Path) -> LocalSecurity:
    from strandline.local_security import LocalSecurity

    return LocalSecurity(folder / "security")


async def unfenced_brokers(port: int, security: ClientSecurity = NO_SECURITY) -> set[int]:
    """The unfenced brokers in the metadata of the broker at `port`; empty if it does not answer or knows no controller."""
    from strandline.protocol.apis import DESCRIBE_CLUSTER
    from strandline.protocol.messages.admin import DescribeClusterRequest, DescribeClusterResponse
    from strandline.protocol.rpc.connection import Connection

    try:
        connection = await Connection.connect(HOST, port, client_id="local-cluster", connect_timeout_ms=1000, security=security)
    except BrokerError:
        return set()
    try:
        answer = await connection.request(DESCRIBE_CLUSTER, DescribeClusterRequest(), timeout_ms=1000)
    except BrokerError:
        return set()
    finally:
        connection.close()
    if not isinstance(answer, DescribeClusterResponse) or answer.error_code or answer.controller_id < 0:
        return set()
    return {b.broker_id for b in answer.brokers if not b.is_fenced}


def check_port_numbers(ports: Iterable[int]) -> None:
    """Raise UsageError for a number that is no TCP port."""
    wrong = next((port for port in ports if not 0 < port < 65536), None)
    if wrong is not None:
        raise UsageError(f"a port is a number from 1 to 65535, and a node of this cluster would get {wrong}; change --base-port")


def check_config(role: str, config: Mapping[str, Any]) -> None:
    """Raise UsageError if the node would refuse this configuration, for a single key or a contradiction."""
    if role == "broker":
        from strandline.broker.config import BrokerConfig

        BrokerConfig.from_mapping(config)
    else:
        from strandline.controller.config import ControllerConfig

        ControllerConfig.from_mapping(config)


def check_ports_are_free(ports: Iterable[int]) -> None:
    """Raise ClusterError for a port in use, before six processes each fail with it."""
    for port in ports:
        if not _is_free(port):
            raise ClusterError(f"port {port} on {HOST} is in use by another process; choose others with --base-port")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            return True
        except OSError:
            return False


def free_port_range(count: int) -> int:
    """Return the first of `count` consecutive free ports, below the range of ephemeral ports, so that the port of a node that is
    down stays free. Raises ClusterError if there are none."""
    first = 20_000 + secrets.randbelow(10_000)
    candidates: list[int] = [*range(first, 31_000, count), *range(20_000, first, count)]
    for base in candidates:
        if all(_is_free(port) for port in range(base, base + count)):
            return base
    raise ClusterError(f"found no {count} free ports in a row")


def settings_by_role(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings per role: each role gets the keys that it knows. Raises UsageError for a key that neither knows."""
    from strandline.controller.metadata.node_security.overrides import is_override

    by_role: dict[str, dict[str, Any]] = {"broker": {}, "controller": {}}
    known = {role: {key.name: key for key in keys_of(role)} for role in by_role}
    for name, value in settings.items():
        if is_override(name):
            by_role["broker"][name] = value
            if name.startswith("listener.name.controller."):
                by_role["controller"][name] = value
            continue
        roles = [role for role in by_role if name in known[role]]
        if not roles:
            from strandline.controller.metadata.config_keys import unknown_key

            raise unknown_key(name, [key for keys in known.values() for key in keys])
        for role in roles:
            if name == "http.listener" and known[role][name].parse(value):
                raise UsageError("config http.listener: each node of a local cluster has its own; it can only be empty")
            known[role][name].parse(value)  # an invalid value is refused here once, not by each process
            by_role[role][name] = value
    return by_role


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else json.dumps(value)


def _open_log(node: Node) -> IO[bytes]:
    return node.log_file.open("ab")


def _exit_text(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def _last_words(node: Node) -> str:
    try:
        lines = node.log_file.read_text(errors="replace").strip().splitlines()
    except OSError:
        return "it left no log"
    return _as_sentence(lines[-1]) if lines else "it left no log"


def _as_sentence(line: str) -> str:
    """The error message in a JSON log line, or the line itself."""
    try:
        return str(json.loads(line)["reason"])
    except (ValueError, KeyError, TypeError):
        return line
