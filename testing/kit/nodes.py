"""What a cluster of the kit can have done to its nodes, whichever way they are run.

`HostedNodes` (`hosted.py`) are in the test's own process and loop: they start in no time, and the network and the disks
between them are ours, so everything can be done to them. `SpawnedNodes` (`spawned.py`) are processes of their own: a
SIGKILL is a real one, and the operating system's network and disks are out of reach. What they cannot do says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from strandline.protocol.errors import StrandlineError, UsageError
from strandline.testing.kit.disks import Disk
from strandline.testing.kit.lines import Line
from strandline.testing.kit.network import Network
from strandline.testing.kit.view import NodeView, View

FIRST_CONTROLLER = 101

Place = tuple[str, int]
"""Topic and index of a partition."""


class KitError(StrandlineError):
    """The cluster of a test did not do what was asked in time."""


class Nodes(ABC):
    """Nodes by id: brokers from 1, controllers from 101."""

    kind: str
    """For sentences: where they run."""
    poll_s: float
    """How often it is worth looking."""

    @property
    @abstractmethod
    def broker_ids(self) -> Sequence[int]: ...

    @property
    @abstractmethod
    def controller_ids(self) -> Sequence[int]: ...

    @property
    @abstractmethod
    def bootstrap(self) -> str: ...

    # -- life

    @abstractmethod
    async def start_all(self) -> None:
        """Every node, until the cluster is ready."""

    @abstractmethod
    async def close(self) -> None:
        """Everything ends, and nothing is left behind."""

    @abstractmethod
    async def start(self, node: int) -> None:
        """The node's process runs when this returns; see `is_ready`."""

    @abstractmethod
    async def stop(self, node: int) -> None:
        """In order, as by SIGTERM."""

    @abstractmethod
    async def kill(self, node: int) -> None:
        """As by SIGKILL."""

    @abstractmethod
    async def pause(self, node: int) -> None:
        """As by SIGSTOP."""

    @abstractmethod
    async def resume(self, node: int) -> None: ...

    @abstractmethod
    async def elect(self, topic: str, partition: int, leader: int | None) -> None:
        """Another leader epoch; with this leader, if one is named."""

    # -- looking

    @abstractmethod
    def node(self, node: int) -> NodeView: ...

    @abstractmethod
    async def look(self, places: Collection[Place] = ()) -> View:
        """The cluster as it is now. `places`: the partitions of which everything has to be known that can be."""

    @abstractmethod
    def last_view(self) -> View:
        """As `look`, without asking anybody: of processes, what was seen last."""

    @abstractmethod
    async def is_ready(self, node: int) -> bool:
        """It takes part: a broker that is unfenced, a controller that knows the active one."""

    @abstractmethod
    async def logs(self, topic: str, partition: int) -> Mapping[int, bytes]:
        """The bytes of the partition's log on every broker that is up and has one."""

    @abstractmethod
    def lines(self, count: int) -> Sequence[Line | str]:
        """The last lines of the nodes' logs."""

    # -- what only nodes in our own process have

    @property
    def network(self) -> Network:
        raise self.cannot("the network between them")

    def disk(self, node: int) -> Disk:
        raise self.cannot("what their disks do")

    def cannot(self, what: str) -> UsageError:
        text = f"{what} belongs to the operating system; use a cluster in the test's own process (without processes=True)"
        return UsageError(f"the nodes of this cluster are {self.kind}, and {text}")

    def check_id(self, node: int) -> int:
        if node not in (*self.broker_ids, *self.controller_ids):
            known = ", ".join(map(str, (*self.broker_ids, *self.controller_ids)))
            raise UsageError(f"there is no node {node!r}; there are {known}")
        return node

    def check_broker(self, node: int) -> int:
        if node not in self.broker_ids:
            raise UsageError(f"there is no broker {node!r}; there are {', '.join(map(str, self.broker_ids))}")
        return node

    def check_any(self, known: Sequence[int], kind: str, ids: Collection[int]) -> None:
        """One of the ids, if there are any, is known: a condition about other nodes alone says nothing of this cluster."""
        if ids and not set(ids) & set(known):
            shown = ", ".join(map(str, sorted(ids)))
            raise UsageError(f"there is no {kind} {shown}; there are {', '.join(map(str, known))}")

    @property
    def views(self) -> list[NodeView]:
        return [self.node(node) for node in (*self.controller_ids, *self.broker_ids)]
