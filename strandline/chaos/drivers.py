"""What a scenario needs of a cluster, whatever it is made of: `local.py` has processes, `compose.py` containers.

A driver acts and reports; whom and when the runner decides. Every method takes names of members. What cannot be done
here is refused with one sentence before anything was done.
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
    """What runs the cluster did not do what was asked."""


class Ending(NamedTuple):
    """How a node's process ended last, or that it runs."""

    is_running: bool
    exit_code: int | None


class Driver(ABC):
    kind: str
    """Such as "local" or "compose"."""
    where: str
    """For the reader: which cluster this is."""
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
        """Refuse a scenario that cannot be done here."""
        for capability in scenario.requires:
            if capability not in self.offers:
                raise UsageError(f"{scenario.name} needs {CAPABILITIES[capability]}: {self._lack(capability)}")

    def _lack(self, capability: str) -> str:
        return f"{self.where} has no such thing"

    # -- life

    @abstractmethod
    async def open(self, scenario: Scenario) -> None:
        """Find or start the cluster, after a `check`. `members` and `offers` are set afterwards."""

    @abstractmethod
    async def close(self) -> None:
        """Leave; a cluster that was started by `open` ends."""

    # -- acts

    @abstractmethod
    async def kill(self, names: Sequence[str]) -> None:
        """SIGKILL all of them at once; returns when they are gone."""

    @abstractmethod
    async def stop(self, names: Sequence[str]) -> None:
        """SIGTERM all of them at once; returns when they are gone."""

    @abstractmethod
    async def start(self, names: Sequence[str]) -> None:
        """Start them in this order; returns when they run, not when they are ready."""

    @abstractmethod
    async def pause(self, names: Sequence[str]) -> None: ...

    @abstractmethod
    async def resume(self, names: Sequence[str]) -> None: ...

    @abstractmethod
    async def wipe(self, names: Sequence[str]) -> None:
        """Remove all their data. They are down."""

    async def disconnect(self, names: Sequence[str]) -> None:
        raise UsageError(f"{self.where}: {self._lack(NETWORK)}")

    async def reconnect(self, names: Sequence[str]) -> None:
        raise UsageError(f"{self.where}: {self._lack(NETWORK)}")

    async def fill_disk(self, names: Sequence[str]) -> None:
        raise UsageError(f"{self.where}: {self._lack(SMALL_DISK)}")

    async def free_disk(self, names: Sequence[str]) -> None:
        raise UsageError(f"{self.where}: {self._lack(SMALL_DISK)}")

    # -- reports

    @abstractmethod
    async def ending(self, name: str) -> Ending: ...

    @abstractmethod
    async def was_clean(self, name: str) -> bool:
        """For one that is down: did its last process end in order? (exit code 0, and a broker's clean-shutdown marker)"""

    @abstractmethod
    async def log_since_start(self, name: str) -> list[Mapping[str, object]]:
        """What its latest process logged, as fields."""

    @abstractmethod
    async def copy_logs(self, topic: str, partitions: int, folder: Path) -> Mapping[str, Path]:
        """Directories that hold the topic's partitions as they lie on each broker's disk; copies may be put into `folder`."""
