"""The control channel of a running `strandline up`: a unix socket that takes one line of JSON and answers with one.

`up` owns the processes, so whatever shall happen to a node is asked of `up`: it then knows that a death was ordered,
and it alone can start a node again. Sockets live in a folder of this user, short of name (a unix socket's path has about
a hundred characters), one per `up`: `<pid>.sock` with `<pid>.json` beside it, which says where that cluster's folder is.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from strandline.local_cluster import ClusterError, LocalCluster, write_json
from strandline.protocol.errors import StrandlineError, UsageError

ANSWER_TIMEOUT_S = 60.0


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
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))
        write_json(self.path.with_suffix(".json"), {"folder": str(self._cluster.folder)})
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
        self._cluster.terminate(name)
        await self._cluster.wait_ended(name)

    async def _pause(self, name: str) -> None:
        self._cluster.pause(name)

    async def _resume(self, name: str) -> None:
        self._cluster.resume(name)

    async def _start(self, name: str) -> None:
        await self._cluster.start_node(name)


def ask(action: str, node: str = "", *, folder: str | None = None) -> dict[str, Any]:
    """Send one command to the cluster in `folder`, or to the newest running one; returns the state of the cluster."""
    path = _socket_of(Path(folder)) if folder else _newest_socket()
    try:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(ANSWER_TIMEOUT_S)
            channel.connect(str(path))
            channel.sendall(json.dumps({"action": action, "node": node}).encode() + b"\n")
            with channel.makefile("rb") as answers:
                answer: dict[str, Any] = json.loads(answers.readline())
    except (OSError, ValueError):
        raise ClusterError("the `strandline up` of this cluster does not answer") from None
    if "error" in answer:
        raise (UsageError if answer.get("usage") else ClusterError)(answer["error"])
    return answer


def _socket_of(folder: Path) -> Path:
    try:
        return Path(json.loads((folder / "cluster.json").read_text())["control"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ClusterError(f"no `strandline up` runs a cluster in {folder}") from None


def _newest_socket() -> Path:
    candidates = []
    for path in runtime_folder().glob("*.sock"):
        try:
            os.kill(int(path.stem), 0)
            candidates.append((path.stat().st_mtime_ns, path))
        except (ValueError, ProcessLookupError, FileNotFoundError):
            continue  # left behind by an `up` that was killed
    if not candidates:
        raise ClusterError("no cluster is running here; start one with `strandline up`")
    return max(candidates)[1]
