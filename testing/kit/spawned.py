"""Nodes as operating system processes (`strandline.local_cluster`), for tests that want a real `kill -9`.

Their state is read by client requests to every running broker, because any one of them may be cut off or behind. If two
brokers describe a partition differently, the description with the higher partition epoch counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from strandline.client import Admin
from strandline.local_cluster import HOST, LocalCluster, Node, unfenced_brokers
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.messages.admin import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
)
from strandline.protocol.messages.cluster import DescribeQuorumRequest, DescribeQuorumResponse
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import (
    LATEST_TIMESTAMP,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.peer_handshakes import handshake
from strandline.reach import reach, security_of
from strandline.testing.kit.lines import Line
from strandline.testing.kit.nodes import FIRST_CONTROLLER, KitError, Nodes, Place
from strandline.testing.kit.view import NodeView, PartitionView, View

ASK_TIMEOUT_MS = 500
POLL_S = 0.02
TAIL_BYTES = 64 << 10
ANY_RACK = "probe"
"""Followers serve consumers that name a rack; which one makes no difference to them."""

FAST_PROCESSES: Mapping[str, Any] = {"broker.session.timeout.ms": 1500, "broker.heartbeat.interval.ms": 300}
"""Shorter timeouts than the defaults, but long enough for processes that other load on the machine delays."""

R = TypeVar("R", bound=Message)


@dataclass(slots=True)
class SpawnedView:
    """The state of the cluster as the brokers described it at one moment."""

    told: dict[Place, PartitionView] = field(default_factory=dict)
    active: int | None = None
    fenced_brokers: frozenset[int] | None = None

    def partition(self, topic: str, partition: int) -> PartitionView | None:
        return self.told.get((topic, partition))

    def partitions(self) -> Sequence[PartitionView]:
        return [self.told[place] for place in sorted(self.told)]

    def controller(self) -> int | None:
        return self.active

    def fenced(self) -> frozenset[int] | None:
        return self.fenced_brokers


class _Peer:
    """A client of one broker; it opens a new connection after each failure."""

    def __init__(self, node: Node, bootstrap: str) -> None:
        self.node = node
        self._bootstrap = bootstrap
        self._connection: Connection | None = None

    async def ask(self, api_key: int, body: Message, kind: type[R]) -> R | None:
        """Send a request and return the response; None if the broker did not answer within ASK_TIMEOUT_MS."""
        try:
            connection = self._connection
            if connection is None or connection.closed:
                connection = self._connection = await Connection.connect(
                    HOST,
                    self.node.port,
                    client_id="test-kit",
                    connect_timeout_ms=ASK_TIMEOUT_MS,
                    security=security_of(self._bootstrap),
                )
            answer = await connection.request(api_key, body, timeout_ms=ASK_TIMEOUT_MS)
        except BrokerError:
            return None
        assert isinstance(answer, kind)
        return answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class SpawnedNodes(Nodes):
    kind = "processes of their own"
    poll_s = POLL_S

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int,
        controllers: int,
        settings: Mapping[str, Any],
        secure: bool = False,
        kafka: bool = False,
    ) -> None:
        self.cluster = LocalCluster(
            folder, brokers=brokers, controllers=controllers, settings=settings, secure=secure, kafka=kafka
        )
        self._peers = {node.id: _Peer(node, self.cluster.bootstrap) for node in self.cluster.brokers}
        self._view = SpawnedView()

    @property
    def broker_ids(self) -> Sequence[int]:
        return [node.id for node in self.cluster.brokers]

    @property
    def controller_ids(self) -> Sequence[int]:
        return [node.id for node in self.cluster.controllers]

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def kafka_bootstrap(self) -> str:
        return self.cluster.kafka_bootstrap

    def _name(self, node: int) -> str:
        return f"{'broker' if self.check_id(node) < FIRST_CONTROLLER else 'controller'}-{node}"

    def _node(self, node: int) -> Node:
        return self.cluster.node(self._name(node))

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start_all(self) -> None:
        await self.cluster.start()

    async def close(self) -> None:
        self._hang_up()
        await self.cluster.stop(abruptly=True)

    def _hang_up(self) -> None:
        for peer in self._peers.values():
            peer.close()

    async def start(self, node: int) -> None:
        await self.cluster.start_node(self._name(node))

    async def stop(self, node: int) -> None:
        if self._node(node).paused:
            self.cluster.resume(self._name(node))
        self.cluster.terminate(self._name(node))
        await self.cluster.wait_ended(self._name(node))

    async def kill(self, node: int) -> None:
        self.cluster.kill(self._name(node))
        await self.cluster.wait_ended(self._name(node))

    async def pause(self, node: int) -> None:
        self.cluster.pause(self._name(node))

    async def resume(self, node: int) -> None:
        self.cluster.resume(self._name(node))

    async def elect(self, topic: str, partition: int, leader: int | None) -> None:
        """Elect the preferred leader, the only election that a client can request here. UsageError: there is no such partition,
        the preferred replica already leads, or another leader is requested. KitError: the election failed."""
        found = (await self.look([(topic, partition)])).partition(topic, partition)
        if found is None:
            raise UsageError(f"there is no partition {topic}-{partition}")
        preferred = found.replicas[0]
        if leader not in (None, preferred) or found.leader == preferred:
            raise self.cannot(f"an election of anybody but the preferred leader ({preferred})")
        async with Admin(**reach(self.bootstrap)) as admin:
            (result,) = await admin.elect_leaders([(topic, partition)])
        if result.code:
            raise KitError(f"{topic}-{partition} did not get another leader: {result.message or result.code.name}")

    # -- looking ------------------------------------------------------------------------------------------------------

    def node(self, node: int) -> NodeView:
        found = self._node(node)
        state = found.state if found.running else found.expected_end or "failed"
        return NodeView(found.id, found.name, state if found.process is not None else "stopped")

    def last_view(self) -> SpawnedView:
        return self._view

    async def is_ready(self, node: int) -> bool:
        found = self._node(node)
        if node >= FIRST_CONTROLLER:
            try:
                await handshake(_At(found.id, HOST, found.port), "test-kit")
            except BrokerError:
                return False
            return (await self.look()).controller() is not None
        awake = {n.id for n in self.cluster.brokers if n.running and not n.paused}
        return awake <= await unfenced_brokers(found.port)

    async def look(self, places: Collection[Place] = ()) -> SpawnedView:
        view = SpawnedView()
        awake = [peer for peer in self._peers.values() if peer.node.running and not peer.node.paused]
        newest: dict[Place, tuple[bytes, MetadataPartition]] = {}
        controller_epoch = -1
        for metadata, cluster, quorum in await asyncio.gather(*(self._ask(peer) for peer in awake)):
            for place, told in _partitions(metadata):
                if place not in newest or newest[place][1].partition_epoch < told[1].partition_epoch:
                    newest[place] = told
            if cluster is not None and not cluster.error_code:
                view.fenced_brokers = frozenset(broker.broker_id for broker in cluster.brokers if broker.is_fenced)
            if quorum is not None and not quorum.error_code and quorum.leader_epoch > controller_epoch:
                controller_epoch = quorum.leader_epoch
                view.active = quorum.leader_id if quorum.leader_id >= 0 else None
        for place, (topic_id, partition) in newest.items():
            view.told[place] = await self._describe(place, topic_id, partition, in_detail=place in places)
        self._view = view
        return view

    @staticmethod
    async def _ask(
        peer: _Peer,
    ) -> tuple[MetadataResponse | None, DescribeClusterResponse | None, DescribeQuorumResponse | None]:
        return (
            await peer.ask(apis.METADATA, MetadataRequest(None), MetadataResponse),
            await peer.ask(apis.DESCRIBE_CLUSTER, DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse),
            await peer.ask(apis.DESCRIBE_QUORUM, DescribeQuorumRequest(), DescribeQuorumResponse),
        )

    async def _describe(self, place: Place, topic_id: bytes, told: MetadataPartition, *, in_detail: bool) -> PartitionView:
        leader = told.leader_id if told.leader_id >= 0 else None
        isr, replicas = frozenset(told.isr_nodes), tuple(told.replica_nodes)
        high_watermark, is_caught_up = None, False
        if in_detail and leader is not None:
            high_watermark = await self._high_watermark(leader, topic_id, place[1])
        if high_watermark is not None and isr == set(replicas):
            ends = [await self._is_log_end(replica, topic_id, place[1], high_watermark) for replica in replicas]
            is_caught_up = all(ends)
        return PartitionView(*place, leader, told.leader_epoch, replicas, isr, high_watermark, is_caught_up)

    async def _high_watermark(self, leader: int, topic_id: bytes, partition: int) -> int | None:
        request = ListOffsetsRequest(-1, 0, [ListOffsetsPartition(topic_id, partition, -1, LATEST_TIMESTAMP)])
        answer = await self._peers[leader].ask(apis.LIST_OFFSETS, request, ListOffsetsResponse)
        return None if answer is None or answer.partitions[0].error_code else answer.partitions[0].offset

    async def _is_log_end(self, replica: int, topic_id: bytes, partition: int, offset: int) -> bool:
        """Whether the replica's log ends at this offset. A fetch like a consumer's (KIP-392) fails above the log end."""
        reached = [await self._reaches(replica, topic_id, partition, at) for at in (offset, offset + 1)]
        return reached == [True, False]

    async def _reaches(self, replica: int, topic_id: bytes, partition: int, offset: int) -> bool:
        where = FetchPartition(topic_id, partition, -1, offset, -1, 0, 1)
        request = FetchRequest(-1, -1, 0, 0, 1, 0, 0, -1, [where], rack_id=ANY_RACK)
        answer = await self._peers[replica].ask(apis.FETCH, request, FetchResponse)
        return answer is not None and not answer.error_code and not answer.partitions[0].error_code

    # -- files of the nodes -------------------------------------------------------------------------------------------

    async def logs(self, topic: str, partition: int) -> Mapping[int, bytes]:
        logs = {}
        for node in self.cluster.brokers:
            folder = node.data / f"{topic}-{partition}"
            if node.running and folder.is_dir():
                logs[node.id] = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
        return logs

    def lines(self, count: int) -> Sequence[Line]:
        said = [line for node in self.cluster.nodes.values() for line in _lines_of(node)]
        return sorted(said)[-count:]


@dataclass(frozen=True, slots=True)
class _At:
    """A node's address, as `handshake` takes it."""

    id: int
    host: str
    port: int


def _partitions(metadata: MetadataResponse | None) -> Iterator[tuple[Place, tuple[bytes, MetadataPartition]]]:
    for topic in () if metadata is None else metadata.topics:
        if topic.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            for partition in topic.partitions:
                yield (topic.name or "", partition.partition), (topic.topic_id, partition)


def _lines_of(node: Node) -> Iterator[Line]:
    """The last lines of the node's log file. A line that is not JSON (a traceback) gets the time of the line before it."""
    try:
        with node.log_file.open("rb") as file:
            file.seek(max(0, node.log_file.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return
    at = 0.0
    for line in text.splitlines():
        try:
            fields = json.loads(line)
            at = datetime.fromisoformat(fields.pop("timestamp")).timestamp()
            fields.pop("node", None)
            yield Line(at, node.name, fields.pop("level"), fields.pop("event"), fields)
        except (ValueError, KeyError, AttributeError):
            yield Line(at, node.name, "info", line, {})


__all__ = ["FAST_PROCESSES", "SpawnedNodes", "SpawnedView", "View"]
