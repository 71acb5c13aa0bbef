"""The interface between a cluster of the kit and its nodes: what a test can do to nodes of every kind.

`HostedNodes` (`hosted.py`) run in the test's own process and loop: they start in milliseconds, and the kit controls their
network and disks, so every fault is available. `SpawnedNodes` (`spawned.py`) are operating system processes: a SIGKILL is a
real one, and the kit cannot reach the operating system's network and disks. A fault that a kind of nodes does not offer raises
UsageError.
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
    """The cluster of a test failed to do what was asked, or did not do it in time: for example a node does not start."""


class Nodes(ABC):
    """Nodes by id: brokers from 1, controllers from 101.

    Nodes that are processes of their own raise ClusterError where others raise KitError, and a second `pause` or `resume` of them
    has no effect."""

    kind: str
    """Where the nodes run, as words for messages."""
    poll_s: float
    """Seconds between two looks at the cluster while a test waits."""

    @property
    @abstractmethod
    def broker_ids(self) -> Sequence[int]: ...

    @property
    @abstractmethod
    def controller_ids(self) -> Sequence[int]: ...

    @property
    @abstractmethod
    def bootstrap(self) -> str: ...

    @property
    def kafka_bootstrap(self) -> str:
        """The addresses for Kafka's clients; empty if there are none."""
        return ""

    # -- life

    @abstractmethod
    async def start_all(self) -> None:
        """Start every node and wait until the cluster is ready. KitError: a node failed, or the cluster was not ready in time."""

    @abstractmethod
    async def close(self) -> None:
        """Kill all nodes and release everything that they used."""

    @abstractmethod
    async def start(self, node: int) -> None:
        """Start the node's process; the node may not take part yet when this returns (`is_ready`). UsageError: there is no such
        node, or it is already running."""

    @abstractmethod
    async def stop(self, node: int) -> None:
        """Stop the node cleanly, like SIGTERM; a paused node is resumed first. UsageError: there is no such node, or it is not
        running. KitError: it did not stop in time."""

    @abstractmethod
    async def kill(self, node: int) -> None:
        """Kill the node, like SIGKILL. UsageError: there is no such node, or it is not running."""

    @abstractmethod
    async def pause(self, node: int) -> None:
        """Suspend the node, like SIGSTOP. UsageError: there is no such node, or it is not running, or already paused."""

    @abstractmethod
    async def resume(self, node: int) -> None:
        """End `pause`, like SIGCONT. UsageError: there is no such node, or it is not paused."""

    @abstractmethod
    async def elect(self, topic: str, partition: int, leader: int | None) -> None:
        """Elect a leader for a new leader epoch: `leader`, or if None any replica that may lead. UsageError: there is no such
        partition, or this leader cannot be elected. KitError: the election failed."""

    # -- looking

    @abstractmethod
    def node(self, node: int) -> NodeView: ...

    @abstractmethod
    async def look(self, places: Collection[Place] = ()) -> View:
        """The current state of the cluster. `places`: the partitions whose state is needed in full detail."""

    @abstractmethod
    def last_view(self) -> View:
        """Like `look`, but without requests to nodes: for processes, the result of the last `look`."""

    @abstractmethod
    async def is_ready(self, node: int) -> bool:
        """Whether the node takes part: a broker that is unfenced, or a controller that knows the active controller."""

    @abstractmethod
    async def logs(self, topic: str, partition: int) -> Mapping[int, bytes]:
        """The bytes of the partition's log on every broker that is up and has one."""

    @abstractmethod
    def lines(self, count: int) -> Sequence[Line | str]:
        """The last lines of the nodes' logs."""

    # -- only for nodes in the test's process

    @property
    def network(self) -> Network:
        """The network between the nodes, with its faults. UsageError: the kit cannot control it, because the nodes are processes
        of their own."""
        raise self.cannot("the network between them")

    def disk(self, node: int) -> Disk:
        """The node's disk, with its faults. UsageError: there is no such node, or its disk cannot be controlled."""
        raise self.cannot("their disks")

    def cannot(self, what: str) -> UsageError:
        text = f"the kit cannot control {what}; use a cluster in the test's own process (without processes=True)"
        return UsageError(f"the nodes of this cluster are {self.kind}, so {text}")

    def check_id(self, node: int) -> int:
        """The node's id, unchanged. UsageError: there is no such node."""
        if node not in (*self.broker_ids, *self.controller_ids):
            known = ", ".join(map(str, (*self.broker_ids, *self.controller_ids)))
            raise UsageError(f"there is no node {node!r}; there are {known}")
        return node

    def check_broker(self, node: int) -> int:
        """The broker's id, unchanged. UsageError: there is no such broker."""
        if node not in self.broker_ids:
            raise UsageError(f"there is no broker {node!r}; there are {', '.join(map(str, self.broker_ids))}")
        return node

    def check_any(self, known: Sequence[int], kind: str, ids: Collection[int]) -> None:
        """UsageError: none of these ids is known, so a condition about them would never change."""
        if ids and not set(ids) & set(known):
            shown = ", ".join(map(str, sorted(ids)))
            raise UsageError(f"there is no {kind} {shown}; there are {', '.join(map(str, known))}")

    @property
    def views(self) -> list[NodeView]:
        return [self.node(node) for node in (*self.controller_ids, *self.broker_ids)]
