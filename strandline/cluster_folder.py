"""The folder of a local cluster: one `strandline up` at a time, and nothing is written before the folder is locked.

    DIR/.lock                  locked (flock) by the process that runs the cluster; the kernel frees it when that ends
    DIR/cluster.json           the cluster's state: ids, ports, process ids, the folder's owner
    DIR/<node>/data/.lock      locked by the node itself, which can outlive its `up` for a moment

A folder is free when its own lock and those of its nodes are free.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from strandline.protocol.errors import StrandlineError, UsageError
from strandline.storage.disk import DiskError, Lock
from strandline.storage.files import RealFiles

LOCK = ".lock"
STATE = "cluster.json"
EARLIER_NODES_TIMEOUT_S = 15.0
"""A node without its `up` shuts down cleanly, which takes as long as a controlled shutdown."""
POLL_S = 0.02


class ClusterError(StrandlineError):
    """A failure of the cluster on this machine: a node ended, or was not ready in time."""


class ClusterFolder:
    """Lock it with `hold` before the first write, unlock it with `release`. Both are idempotent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: Lock | None = None

    @property
    def is_held(self) -> bool:
        return self._lock is not None

    def hold(self) -> None:
        """Lock the folder, and create it if it does not exist. Raises ClusterError if another process holds the lock."""
        if self._lock is not None:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = RealFiles().lock(str(self.path / LOCK))
        except UsageError:
            owner = _text(self._state_or_nothing().get("pid"), " (pid {})")
            raise ClusterError(
                f"a `strandline up`{owner} runs a cluster in {self.path}; stop it first, or choose another folder with --data"
            ) from None
        except (OSError, DiskError) as e:
            raise cannot_write(self.path, e) from None

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def wait_for_earlier_nodes(self) -> None:
        """Wait until the nodes of a killed `up` have ended. Raises ClusterError with the name of one that has not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + EARLIER_NODES_TIMEOUT_S
        while names := self._running_nodes():
            if loop.time() > deadline or self._is_stopped(names[0]):
                pid = _text(self._pid(names[0]), " (pid {})")
                raise ClusterError(f"{names[0]}{pid} of an earlier cluster in {self.path} still runs; end it first, with kill -9")
            await asyncio.sleep(POLL_S)

    def _running_nodes(self) -> list[str]:
        files, running = RealFiles(), []
        for path in sorted(self.path.glob(f"*/data/{LOCK}")):
            try:
                files.lock(str(path)).release()
            except UsageError:
                running.append(path.parts[-3])
            except DiskError:
                continue  # the node itself reports the error of its data directory
        return running

    def _is_stopped(self, name: str) -> bool:
        """Whether the process is stopped (SIGSTOP). Such a process cannot react to the end of its `up`, so waiting is useless."""
        try:
            return Path(f"/proc/{self._pid(name)}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        except (OSError, IndexError):
            return False

    def _pid(self, name: str) -> int:
        nodes = self._state_or_nothing().get("nodes", [])
        return next((int(node["pid"]) for node in nodes if node["name"] == name), 0)

    # -- cluster.json

    def read_state(self) -> dict[str, Any]:
        """The last state that an `up` wrote; empty in a new folder. Raises ClusterError if it cannot be read."""
        path = self.path / STATE
        try:
            state = json.loads(path.read_text())
            return {"cluster_id": str(state["cluster_id"]), "nodes": list(state["nodes"]), **state}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (ValueError, KeyError, TypeError):
            raise ClusterError(f"{path} is not readable as the state of a cluster") from None

    def _state_or_nothing(self) -> dict[str, Any]:
        try:
            return self.read_state()
        except (ClusterError, OSError):
            return {}

    def check_controllers(self, names: Iterable[str]) -> None:
        """Raise UsageError, with the option to use, if the number of voters differs from that of the existing quorum."""
        known = [node["name"] for node in self.read_state().get("nodes", []) if node.get("role") == "controller"]
        if known and sorted(known) != sorted(names):
            raise UsageError(
                f"the cluster in {self.path} has {len(known)} controller{'s' if len(known) > 1 else ''}, and that cannot change; "
                f"add --controllers {len(known)}, or choose another folder with --data"
            )

    def write_state(self, state: dict[str, Any]) -> None:
        """Write `cluster.json`, but only while the folder is locked: after that it can belong to another cluster."""
        if self.is_held and self.path.is_dir():
            write_json(self.path / STATE, state)


def cannot_write(folder: Path, e: OSError | DiskError) -> ClusterError:
    if isinstance(e, DiskError):
        return ClusterError(f"cannot write to {folder}: {e}")
    return ClusterError(f"cannot write to {e.filename or folder}: {e.strerror}")


def _text(value: object, form: str) -> str:
    return form.format(value) if value else ""


def write_json(path: Path, document: Any) -> None:
    """Replace a document atomically: readers see the old or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    temporary.replace(path)
