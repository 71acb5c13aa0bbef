"""The interface between scenarios and a cluster: `local.py` implements it for processes, `compose.py` for containers.

A driver acts and reports; the runner decides when, and on which nodes. Methods take node names. A driver refuses a
scenario that it cannot run with a UsageError, before the first step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from strandline.chaos.picture import BROKER, Member
from strandline.chaos.scenario import Scenario
from strandline.chaos.steps import CAPABILITIES, NETWORK, SMALL_DISK
from strandline.protocol.errors import StrandlineError, UsageError


class DriverError(StrandlineError):
    """The tool that runs the cluster (docker, mount) failed."""


class Ending(NamedTuple):
    """Whether a node's process runs, and its exit code if it ended (None if unknown)."""

    is_running: bool
    exit_code: int | None


class Driver(ABC):
    kind: str
    """Such as "local" or "compose"."""
    where: str
    """The cluster's description in messages, such as "the running local cluster"."""
    offers: frozenset[str] = frozenset()
    """Capabilities (`steps.CAPABILITIES`)."""
    small_disk: str = ""
    """The member whose data lies on a small file system."""

    def __init__(self) -> None:
        self.members: list[Member] = []

    @property
    def brokers(self) -> list[Member]:
        return [m for m in self.members if m.role == BROKER]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{m.host}:{m.port}" for m in self.brokers)

    def member(self, name: str) -> Member:
        return next(m for m in self.members if m.name == name)

    def check(self, scenario: Scenario) -> None:
        """Raise UsageError if this cluster lacks a capability that the scenario requires."""
        for capability in scenario.requires:
            if capability not in self.offers:
                raise UsageError(f"{scenario.name} needs {CAPABILITIES[capability]}: {self._lack(capability)}")

    def _lack(self, capability: str) -> str:
        return f"{self.where} does not offer it"

    # -- opening and closing

    @abstractmethod
    async def open(self, scenario: Scenario) -> None:
        """Check the scenario, then find or start the cluster. Sets `members` and `offers`. Raises UsageError, DriverError or
        ClusterError if the scenario cannot run in this cluster."""

    @abstractmethod
    async def close(self) -> None:
        """Release the cluster; stop it if `open` started it."""

    # -- actions

    @abstractmethod
    async def kill(self, names: Sequence[str]) -> None:
        """Send SIGKILL to all of them at once; returns when their processes have ended."""

    @abstractmethod
    async def stop(self, names: Sequence[str]) -> None:
        """Send SIGTERM to all of them at once; returns when their processes have ended."""

    @abstractmethod
    async def start(self, names: Sequence[str]) -> None:
        """Start them in this order; returns when their processes run, before they are ready."""

    @abstractmethod
    async def pause(self, names: Sequence[str]) -> None: ...

    @abstractmethod
    async def resume(self, names: Sequence[str]) -> None: ...

    @abstractmethod
    async def wipe(self, names: Sequence[str]) -> None:
        """Remove all their data. Raises UsageError if one of them runs."""

    @abstractmethod
    async def lose_disk(self, names: Sequence[str]) -> None:
        """Take the data directories of running brokers away: what they open there from now on fails."""

    async def replace_disk(self, names: Sequence[str]) -> None:
        """Give them empty data directories. One that still runs is killed."""
        for name in names:
            if (await self.ending(name)).is_running:
                await self.kill([name])
        await self.wipe(names)

    async def disconnect(self, names: Sequence[str]) -> None:
        """Cut the nodes off from the cluster's network. Raises UsageError if the driver does not offer NETWORK."""
        raise UsageError(f"{self.where}: {self._lack(NETWORK)}")

    async def reconnect(self, names: Sequence[str]) -> None:
        """Undo `disconnect`. Raises UsageError if the driver does not offer NETWORK."""
        raise UsageError(f"{self.where}: {self._lack(NETWORK)}")

    async def fill_disk(self, names: Sequence[str]) -> None:
        """Fill the nodes' small disks to the last byte. Raises UsageError if the driver does not offer SMALL_DISK."""
        raise UsageError(f"{self.where}: {self._lack(SMALL_DISK)}")

    async def free_disk(self, names: Sequence[str]) -> None:
        """Remove the files of `fill_disk`. Raises UsageError if the driver does not offer SMALL_DISK."""
        raise UsageError(f"{self.where}: {self._lack(SMALL_DISK)}")

    # -- reports

    @abstractmethod
    async def ending(self, name: str) -> Ending: ...

    @abstractmethod
    async def was_clean(self, name: str) -> bool:
        """Return whether the node's last process shut down cleanly: with exit code 0 and, for a broker, the clean-shutdown
        marker. The node must be down."""

    @abstractmethod
    async def log_since_start(self, name: str) -> list[Mapping[str, object]]:
        """The log lines of the node's latest process, each as its fields."""

    @abstractmethod
    async def copy_logs(self, topic: str, replicas: Mapping[int, Sequence[int]], folder: Path) -> Mapping[str, Path]:
        """Broker name -> a directory with the topic's partitions as on its disk: its own, or a copy below `folder`.
        `replicas`: the broker ids by partition."""
