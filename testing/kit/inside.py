"""Nodes whose server objects are in this process, so that their state can be read directly.

This class has what such nodes share: the `View` that conditions and reports read, elections, and the bytes of logs.
Subclasses run the nodes: `hosted.py` on real sockets and the test's event loop, `simulated/nodes.py` on virtual ones.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Self, TypeVar

from strandline.broker.partition.partition import Role
from strandline.controller.controller import ActiveState
from strandline.controller.decision import Decision
from strandline.controller.metadata.image import MetadataImage, PartitionRegistration
from strandline.controller.metadata.records import PartitionChangeRecord
from strandline.controller.server import ControllerServer
from strandline.protocol.errors import BrokerError, UsageError
from strandline.storage.cleaner.cleaning import closed_segments
from strandline.storage.log.log import Log
from strandline.testing.comparison import whole_log
from strandline.testing.kit.nodes import KitError, Nodes, Place
from strandline.testing.kit.view import PartitionView

T = TypeVar("T")


class InsideNodes(Nodes):
    """Nodes whose servers are objects of this process. Subclasses run them."""

    @abstractmethod
    def server(self, node: int) -> Any:
        """The node's `BrokerServer` or `ControllerServer`; None if its process does not run or has not started."""

    @abstractmethod
    def is_awake(self, node: int) -> bool:
        """Whether the node has a server and is not paused."""

    @abstractmethod
    async def call(self, node: int, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` in the node's process and return its result. KitError: the process ended meanwhile."""

    # -- looking

    async def look(self, places: Collection[Place] = ()) -> Self:
        return self

    def last_view(self) -> Self:
        return self

    async def is_ready(self, node: int) -> bool:
        return self.takes_part(node)

    def takes_part(self, node: int) -> bool:
        """Whether the node is ready. A broker must also accept Kafka's clients, if it has a listener for them, and know every
        broker that is awake as unfenced, so that a client gets complete metadata from it."""
        server = self.server(node)
        if server is None or not server.ready.is_set():
            return False
        if node not in self.broker_ids:
            return self.controller() is not None
        brokers = server.metadata.image.brokers
        serves = all(listener.is_serving for listener in server.servers)
        return serves and all(n in brokers and not brokers[n].fenced for n in self.broker_ids if self.is_awake(n))

    def _active(self) -> int | None:
        """Id of the active controller; if several consider themselves active, the one with the highest epoch."""
        states = {n: self.server(n).controller.active for n in self.controller_ids if self.is_awake(n)}
        epochs = {n: int(state.epoch) for n, state in states.items() if state is not None}
        return max(epochs, key=lambda n: epochs[n], default=None)

    def image(self) -> MetadataImage:
        """The newest committed metadata that any node has."""
        images = [MetadataImage.EMPTY]
        images += [server.metadata.image for n in self.broker_ids if (server := self.server(n)) is not None]
        images += [server.controller.committed for n in self.controller_ids if (server := self.server(n)) is not None]
        return max(images, key=lambda image: image.offset)

    # -- as a View

    def controller(self) -> int | None:
        return self._active()

    def fenced(self) -> frozenset[int]:
        return frozenset(broker.broker_id for broker in self.image().brokers.values() if broker.fenced)

    def partition(self, topic: str, partition: int) -> PartitionView | None:
        found = self.image().topic(topic)
        registration = None if found is None else found.partitions.get(partition)
        return None if found is None or registration is None else self._view(topic, found.topic_id, partition, registration)

    def partitions(self) -> Sequence[PartitionView]:
        image = self.image()
        topics = [image.topics_by_id[image.topics_by_name[name]] for name in sorted(image.topics_by_name)]
        return [self._view(t.name, t.topic_id, index, t.partitions[index]) for t in topics for index in sorted(t.partitions)]

    def _view(self, topic: str, topic_id: bytes, index: int, registration: PartitionRegistration) -> PartitionView:
        ends, high_watermark, cleaned = {}, None, []
        for replica in registration.replicas:
            partition = self.server(replica).replicas.partitions.get((topic_id, index)) if self.is_awake(replica) else None
            if partition is None:
                continue
            ends[replica] = partition.log.log_end_offset
            cleaned.append(_is_cleaned(partition.log))
            if partition.role is Role.LEADER and partition.leader_epoch == registration.leader_epoch:
                high_watermark = partition.log.high_watermark
        isr, replicas = frozenset(registration.isr), registration.replicas
        is_caught_up = isr == set(replicas) == set(ends) and set(ends.values()) == {high_watermark}
        leader = registration.leader if registration.leader >= 0 else None
        is_cleaned = None if None in cleaned or not cleaned else all(cleaned) and len(cleaned) == len(replicas)
        epoch = registration.leader_epoch
        return PartitionView(topic, index, leader, epoch, replicas, isr, high_watermark, is_caught_up, ends, is_cleaned)

    # -- oracles

    async def logs(self, topic: str, partition: int) -> Mapping[int, bytes]:
        found = self.image().topic(topic)
        logs = {}
        for node in self.broker_ids:
            replicas = self.server(node).replicas.partitions if found and self.is_awake(node) else {}
            replica = replicas.get((found.topic_id, partition)) if found else None
            if replica is not None:
                logs[node] = _content(replica.log)
        return logs

    # -- elections

    async def elect(self, topic: str, partition: int, leader: int | None) -> None:
        """Elect by an ordinary decision of the active controller. UsageError: there is no active controller or no such partition,
        or `leader` is fenced or not in the ISR. KitError: the controller rejected the decision, or ended meanwhile."""
        active = self._active()
        if active is None:
            raise UsageError(f"{topic}-{partition} cannot get another leader: there is no active controller")
        server = self.server(active)
        try:
            await self.call(active, lambda: _elect(server, topic, partition, leader))
        except BrokerError as e:
            raise KitError(f"{topic}-{partition} did not get another leader: {e}") from e


async def _elect(server: ControllerServer, topic: str, index: int, leader: int | None) -> None:
    """Change the leader by an ordinary decision of the controller. Runs in the process of the active controller."""
    controller = server.controller
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def decide(_: ActiveState) -> Decision[None]:
        image = controller.image
        found = image.topic(topic)
        registration = None if found is None else found.partitions.get(index)
        if found is None or registration is None:
            raise UsageError(f"there is no partition {topic}-{index}")
        chosen = _next_leader(f"{topic}-{index}", registration, image) if leader is None else leader
        if chosen not in registration.isr or not image.brokers[chosen].is_active:
            isr = ", ".join(map(str, registration.isr))
            raise UsageError(f"broker {chosen} cannot lead {topic}-{index}: it must be unfenced and in the ISR ({isr})")
        return Decision(None, [PartitionChangeRecord(found.topic_id, index, leader=chosen)])

    def on_reply(reply: BrokerError | None) -> None:
        if done.done():
            return
        if reply is None:
            done.set_result(None)
        else:
            done.set_exception(reply)

    controller.submit(decide, on_reply)
    await done


def _next_leader(name: str, registration: PartitionRegistration, image: MetadataImage) -> int:
    """The next replica in the ISR that may lead; the present leader if there is no other."""
    order = [*registration.replicas, *registration.replicas]
    start = order.index(registration.leader) + 1 if registration.leader in order else 0
    for replica in order[start:]:
        if replica in registration.isr and image.brokers[replica].is_active:
            return replica
    isr = ", ".join(map(str, registration.isr))
    raise UsageError(f"{name} cannot get another leader: no broker in its ISR ({isr}) is unfenced")


def _is_cleaned(log: Log) -> bool | None:
    """Whether all closed segments are clean, and there is one; None if the log is not compacted."""
    if not log.config.compacts:
        return None
    closed = closed_segments(log)
    return bool(closed) and closed[-1].end_offset <= log.first_dirty_offset


def _content(log: Log) -> bytes:
    """The bytes of the log from its start; if a read fails because of damage, the bytes of all segments."""
    if not log.size_bytes:
        return b""
    try:
        return whole_log(log, log.log_start_offset)
    except BrokerError:
        return b"".join(bytes(segment.file.pread(segment.size, 0)) for segment in log.segments)
