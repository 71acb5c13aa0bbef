"""The control channel of a running `strandline up`: a unix socket with one line of JSON per request and per response.

`up` owns the processes, so every action on a node goes through it: it can then tell an ordered end from a failure, and
only it can start a node again. The sockets are in a folder of the user with a short name (a unix socket's path is limited
to about a hundred characters), one per `up`: `<pid>.sock`, and `<pid>.json` with that cluster's folder and brokers.

A command without `--data` acts on the only running cluster, or on the one that STRANDLINE_BOOTSTRAP names. If that is
ambiguous, it acts on none, because each cluster has a broker-1.
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
    """The folder with the sockets of this user's running clusters."""
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
        # The JSON file is written before the socket exists, so every socket that answers has one.
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
            pass  # the client did not wait for the response
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
            raise UsageError(f"{name} is paused and cannot stop cleanly; use `node resume` first, or `node kill`")
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
    """A cluster that a `strandline up` of this user runs."""

    socket: Path
    folder: str
    bootstrap: str
    """host:port of its brokers, separated by commas."""


def ask(action: str, node: str = "", *, folder: str | None = None, bootstrap: str | None = None) -> dict[str, Any]:
    """Send one command to a cluster, and return the cluster's state.

    The cluster is the one in `folder`; or else the running one with a broker at an address of `bootstrap`; or else the
    only running one. Raises UsageError if that is ambiguous, ClusterError if it does not run or the command fails.
    """
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
    """The cluster that a command means. Raises UsageError, with the options to add, if that is ambiguous."""
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
    """The clusters whose `up` listens, oldest first. Files that a killed `up` left behind are ignored."""
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
