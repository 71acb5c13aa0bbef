"""The folder of a local cluster: one `strandline up` at a time, and nothing is changed before the folder is held.

    DIR/.lock                  locked (flock) by the process that runs the cluster; the kernel frees it when that ends
    DIR/cluster.json           the cluster's state: ids, ports, process ids, the folder's owner
    DIR/<node>/data/.lock      locked by the node itself, which may live a moment longer than its `up`

So a folder is free when its own lock is free and so are those of its nodes.
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
"""A node that has lost its `up` stops in order, which takes as long as its controlled shutdown."""
POLL_S = 0.02


class ClusterError(StrandlineError):
    """The cluster on this machine did not do what was asked: a node ended, or was not ready in time."""


class ClusterFolder:
    """Take it with `hold` before the first write, give it back with `release`. Both can be repeated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: Lock | None = None

    @property
    def is_held(self) -> bool:
        return self._lock is not None

    def hold(self) -> None:
        """Lock the folder, which is made if it does not exist; ClusterError when another process holds it."""
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
        """Wait until no node of an `up` that was killed is left; ClusterError, with its name, for one that stays."""
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
                continue  # the node itself says what is wrong with its data directory
        return running

    def _is_stopped(self, name: str) -> bool:
        """A process that stands still (SIGSTOP) does not notice that its `up` is gone: waiting for it is in vain."""
        try:
            return Path(f"/proc/{self._pid(name)}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        except (OSError, IndexError):
            return False

    def _pid(self, name: str) -> int:
        nodes = self._state_or_nothing().get("nodes", [])
        return next((int(node["pid"]) for node in nodes if node["name"] == name), 0)

    # -- cluster.json

    def read_state(self) -> dict[str, Any]:
        """What an `up` wrote last; empty in a fresh folder, ClusterError when it cannot be read."""
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
        """The voters of a quorum stay what they were; UsageError, with what to type, for another number of them."""
        known = [node["name"] for node in self.read_state().get("nodes", []) if node.get("role") == "controller"]
        if known and sorted(known) != sorted(names):
            raise UsageError(
                f"the cluster in {self.path} has {len(known)} controller{'s' if len(known) > 1 else ''}, and that cannot change; "
                f"add --controllers {len(known)}, or choose another folder with --data"
            )

    def write_state(self, state: dict[str, Any]) -> None:
        """Only while the folder is held: after that, it may be another cluster's."""
        if self.is_held and self.path.is_dir():
            write_json(self.path / STATE, state)


def cannot_write(folder: Path, e: OSError | DiskError) -> ClusterError:
    if isinstance(e, DiskError):
        return ClusterError(f"cannot write to {folder}: {e}")
    return ClusterError(f"cannot write to {e.filename or folder}: {e.strerror}")


def _text(value: object, form: str) -> str:
    return form.format(value) if value else ""


def write_json(path: Path, document: Any) -> None:
    """Readers see the old document or the new one, nothing between."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    temporary.replace(path)
