"""The control channel of a running `strandline up`: a unix socket that takes one line of JSON and answers with one.

`up` owns the processes, so whatever shall happen to a node is asked of `up`: it then knows that a death was ordered,
and it alone can start a node again. Sockets live in a folder of this user, short of name (a unix socket's path has about
a hundred characters), one per `up`: `<pid>.sock` with `<pid>.json` beside it, which names that cluster's folder and
brokers.

A command without `--data` acts on the only cluster that runs, or on the one that STRANDLINE_BOOTSTRAP names. When that is
not clear, it acts on none: two clusters have a broker-1 each.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from strandline.cluster_folder import STATE, write_json
from strandline.local_cluster import ClusterError, LocalCluster
from strandline.protocol.errors import StrandlineError, UsageError

ANSWER_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 2.0
LOOPBACK = {"localhost": "127.0.0.1"}


def runtime_folder() -> Path:
    """Where this user's running clusters are found."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK):
        return Path(base) / "strandline"
    return Path(tempfile.gettempdir()) / f"strandline-{os.getuid()}"


class ControlServer:
    """Serves one cluster's commands, from `start` until `stop`."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._folder = runtime_folder()
        self.path = self._folder / f"{os.getpid()}.sock"
        self._server: asyncio.Server | None = None
        self._actions: dict[str, Callable[[str], Awaitable[None]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "pause": self._pause,
            "resume": self._resume,
            "start": self._start,
        }

    async def start(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        # First the facts, then the socket: what answers can be named.
        facts = {"folder": str(self._cluster.folder), "bootstrap": self._cluster.bootstrap}
        write_json(self.path.with_suffix(".json"), facts)
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))
        self._cluster.extra_state["control"] = str(self.path)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for path in (self.path, self.path.with_suffix(".json")):
            path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(await reader.readline())
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except ConnectionError:
            pass  # who asked did not wait for the answer
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            action = request["action"]
            if action != "list":
                await self._actions[action](request["node"])
        except StrandlineError as e:
            return {"error": str(e), "usage": isinstance(e, UsageError)}
        except (ValueError, KeyError, TypeError):
            return {"error": f"not a command: {line[:200]!r}", "usage": True}
        return self._cluster.describe()

    async def _kill(self, name: str) -> None:
        self._cluster.kill(name)
        await self._cluster.wait_ended(name)

    async def _stop(self, name: str) -> None:
        if self._cluster.node(name).paused:
            raise UsageError(f"{name} is paused and cannot stop in order; use `node resume` first, or `node kill`")
        self._cluster.terminate(name)
        await self._cluster.wait_ended(name)

    async def _pause(self, name: str) -> None:
        if self._cluster.node(name).paused:
            raise UsageError(f"{name} is paused already")
        self._cluster.pause(name)

    async def _resume(self, name: str) -> None:
        node = self._cluster.node(name)
        if node.running and not node.paused:
            raise UsageError(f"{name} is not paused")
        self._cluster.resume(name)

    async def _start(self, name: str) -> None:
        await self._cluster.start_node(name)


class RunningCluster(NamedTuple):
    """A cluster that an `up` of this user runs."""

    socket: Path
    folder: str
    bootstrap: str
    """host:port of its brokers, separated by commas."""


def ask(action: str, node: str = "", *, folder: str | None = None, bootstrap: str | None = None) -> dict[str, Any]:
    """Send one command to the cluster in `folder`, or else to the running one that has a broker at one of the addresses of
    `bootstrap`, or else to the only running one. Returns the state of the cluster; UsageError when it is not clear which
    one is meant, ClusterError when it does not run or the command fails."""
    path = _socket_of(folder) if folder else choose(running_clusters(), bootstrap).socket
    request = json.dumps({"action": action, "node": node}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(ANSWER_TIMEOUT_S)
            channel.connect(str(path))
            channel.sendall(request)
            with channel.makefile("rb") as answers:
                answer: dict[str, Any] = json.loads(answers.readline())
    except (FileNotFoundError, ConnectionRefusedError):
        raise _not_running(folder) from None
    except (OSError, ValueError):
        raise ClusterError("the `strandline up` of this cluster does not answer") from None
    if "error" in answer:
        raise (UsageError if answer.get("usage") else ClusterError)(answer["error"])
    return answer


def choose(running: Sequence[RunningCluster], bootstrap: str | None) -> RunningCluster:
    """The cluster that is meant; UsageError with what to type when that is not clear."""
    if not running:
        raise _not_running(None)
    if bootstrap:
        wanted = _addresses(bootstrap)
        found = [cluster for cluster in running if wanted & _addresses(cluster.bootstrap)]
        if not found:
            raise UsageError(
                f"STRANDLINE_BOOTSTRAP is {bootstrap}, and no `strandline up` of yours has a broker there; "
                f"for another cluster add {_options(running)}"
            )
    else:
        found = list(running)
    if len(found) > 1:
        what = "STRANDLINE_BOOTSTRAP names" if bootstrap else "this machine runs"
        raise UsageError(f"{what} {len(found)} clusters of yours; say which one is meant: add {_options(found)}")
    return found[0]


def running_clusters() -> list[RunningCluster]:
    """The clusters whose `up` listens, the oldest first. What an `up` that was killed left behind is passed over."""
    found = []
    for path in runtime_folder().glob("*.sock"):
        try:
            with socket.socket(socket.AF_UNIX) as channel:
                channel.settimeout(CONNECT_TIMEOUT_S)
                channel.connect(str(path))
            facts = json.loads(path.with_suffix(".json").read_text())
            cluster = RunningCluster(path, str(facts["folder"]), str(facts["bootstrap"]))
            found.append((path.stat().st_mtime_ns, cluster))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return [cluster for _, cluster in sorted(found)]


def _addresses(bootstrap: str) -> set[tuple[str, str]]:
    pairs = (address.strip().rpartition(":") for address in bootstrap.split(","))
    return {(LOOPBACK.get(host, host), port) for host, _, port in pairs}


def _options(clusters: Sequence[RunningCluster]) -> str:
    return " or ".join(f"--data {cluster.folder} ({cluster.bootstrap})" for cluster in clusters)


def _not_running(folder: str | None) -> ClusterError:
    if folder is None:
        return ClusterError("no cluster is running here; start one with `strandline up`")
    return ClusterError(f"no cluster is running in {folder}; start it with `strandline up --data {folder}`")


def _socket_of(folder: str) -> Path:
    try:
        return Path(json.loads((Path(folder) / STATE).read_text())["control"])
    except (OSError, ValueError, KeyError, TypeError):
        raise _not_running(folder) from None
