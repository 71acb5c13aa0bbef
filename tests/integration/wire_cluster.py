"""The kit's cluster (`strandline.testing.Cluster`) with raw requests instead of clients, and access to its brokers.

It is for tests of what is on the wire, or of a broker's own state; other tests of a whole cluster use the kit's cluster alone.
Each node runs in an event loop of its own (`testing/kit/process_loop.py`). A test may read a server's state at any time, and
changes it only inside the node, with `inside`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from waiting import until

from strandline.broker.config import BrokerConfig
from strandline.broker.partition.partition import Partition
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    MetadataTopicRequest,
)
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
)
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.reader import iter_records
from strandline.protocol.rpc.connection import Connection
from strandline.storage.files import MemoryFiles
from strandline.testing import Cluster
from strandline.testing.kit.hosted import HostedNodes

CLUSTER_ID = "test-cluster"
NOW_MS = 1_700_000_000_000
T = TypeVar("T")


class WireCluster(Cluster):
    """By default one controller and one broker, and topics with min.insync.replicas=1.

    A follower may lag for 10 s before it leaves the ISR, because tests count ISR changes, and a busy machine must not add one."""

    def __init__(self, *, brokers: int = 1, controllers: int = 1, **options: Any) -> None:
        defaults = {"min_insync_replicas": 1, "replica_lag_time_max_ms": 10_000}
        super().__init__(brokers=brokers, controllers=controllers, **{**defaults, **options})
        self._connections: dict[int, Connection] = {}

    async def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        await super().close()

    # -- looking inside -----------------------------------------------------------------------------------------------

    @property
    def hosted(self) -> HostedNodes:
        assert isinstance(self.nodes, HostedNodes)
        return self.nodes

    def server(self, node: int) -> Any:
        """The node's `BrokerServer` or `ControllerServer`; None if it does not run."""
        return self.hosted.server(node)

    def port(self, node: int) -> int:
        return self.hosted.nodes[node].port.port

    @property
    def running(self) -> list[int]:
        """Ids of the running brokers."""
        return [node for node in self.brokers if self.server(node) is not None]

    def disk(self, node: int) -> MemoryFiles:
        """The node's files without the faults of the kit; they outlive its processes."""
        files = self.hosted.disk(node).files
        assert isinstance(files, MemoryFiles)
        return files

    async def inside(self, node: int, work: Callable[[], T]) -> T:
        """Run `work` in the node's own event loop, and wait for its result if it is awaitable."""

        async def run() -> Any:
            result = work()
            return await result if isinstance(result, Awaitable) else result

        return await self.hosted.call(node, run)

    def replica(self, node: int, topic_id: bytes, partition: int = 0) -> Partition:
        found: Partition = self.server(node).replicas.partitions[topic_id, partition]
        return found

    def log_bytes(self, node: int, topic_id: bytes, partition: int = 0) -> bytes:
        log = self.replica(node, topic_id, partition).log
        if log.log_end_offset == log.log_start_offset:
            return b""
        return b"".join(bytes(b) for b in log.read(log.log_start_offset, 1 << 30, log.log_end_offset).buffers)

    async def in_step(self, topic_id: bytes, nodes: Sequence[int], partition: int = 0) -> None:
        """Wait until these replicas hold the same bytes and know the same high watermark."""

        def same() -> bool:
            logs = [self.replica(node, topic_id, partition).log for node in nodes]
            ends = {(log.log_end_offset, log.high_watermark) for log in logs}
            return len(ends) == 1 and len(set(ends.pop())) == 1

        await until(same, "the replicas are in step")
        assert len({self.log_bytes(node, topic_id, partition) for node in nodes}) == 1

    def broker_config(self, node: int, **changes: Any) -> BrokerConfig:
        """Return the configuration of a broker of this cluster, which need not be among `brokers`; keys have `_` for `.`."""
        own = self.hosted.nodes[node].config() if node in self.brokers else self._config_of_stranger(node)
        return BrokerConfig.from_mapping({**own, **{key.replace("_", "."): value for key, value in changes.items()}})

    def _config_of_stranger(self, node: int) -> dict[str, Any]:
        places = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": f"{self.hosted.folder}/broker-{node}"}
        return {**self.hosted.nodes[self.brokers[0]].config(), "node.id": node, **places}

    # -- requests -----------------------------------------------------------------------------------------------------

    async def ask(self, node: int, api_key: int, body: Message, records: Any = None, timeout_ms: int = 10_000) -> Any:
        connection = self._connections.get(node)
        if connection is None or connection.closed:
            connection = self._connections[node] = await Connection.connect("127.0.0.1", self.port(node), client_id="test")
        return await connection.request(api_key, body, records, timeout_ms=timeout_ms)

    async def disconnect(self, node: int) -> None:
        """Close the connection of `ask` to this node; the next request opens another one."""
        connection = self._connections.pop(node, None)
        if connection is not None:
            connection.close()

    async def create(self, name: str, **options: Any) -> MetadataTopic:
        """Create a topic, by default with one replica; returns a broker's description of it."""
        await self.create_topic(name, **{"replication_factor": 1, **options})
        return await self.topic(name)

    async def metadata(self, node: int | None = None, *names: str) -> MetadataResponse:
        topics = [MetadataTopicRequest(name) for name in names]
        response = await self.ask(node or self.running[0], apis.METADATA, MetadataRequest(topics))
        return cast(MetadataResponse, response)

    async def topic(self, name: str, node: int | None = None) -> MetadataTopic:
        topic = (await self.metadata(node, name)).topics[0]
        assert topic.error_code == 0, ErrorCode(topic.error_code)
        return topic

    async def partition_of(self, name: str, index: int = 0) -> MetadataPartition:
        return (await self.topic(name)).partitions[index]

    async def produce_to(
        self, node: int, topic_id: bytes, *values: str, partition: int = 0, acks: int = -1, timeout_ms: int = 5000
    ) -> ProducePartitionResponse:
        batch = encode_batch([(None, value.encode(), [], NOW_MS) for value in values])
        request = ProduceRequest(None, acks, timeout_ms, [ProducePartition(topic_id, partition)], [])
        response = cast(ProduceResponse, await self.ask(node, apis.PRODUCE, request, [[batch]]))
        return response.partitions[0]

    async def produce(self, topic: MetadataTopic, *values: str, partition: int = 0, acks: int = -1) -> int:
        """Produce to the leader, with a client's retries; returns the base offset."""

        async def once() -> int:
            found = await self.topic(topic.name or "")
            leader = found.partitions[partition].leader_id
            if leader not in self.running:
                raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE)
            answer = await self.produce_to(leader, topic.topic_id, *values, partition=partition, acks=acks)
            if answer.error_code:
                raise BrokerError(answer.error_code, answer.error_message)
            return answer.base_offset

        return await retried(once)

    async def fetch(
        self, node: int, topic_id: bytes, offset: int = 0, *, partition: int = 0, max_wait_ms: int = 0
    ) -> tuple[Any, list[str]]:
        """Fetch as a consumer that also reads from followers; returns the partition's response and the values."""
        wanted = FetchPartition(topic_id, partition, -1, offset, -1, -1, 1 << 20)
        request = FetchRequest(-1, -1, max_wait_ms, 1, 1 << 20, 0, 0, -1, [wanted], rack_id="any")
        response = cast(FetchResponse, await self.ask(node, apis.FETCH, request))
        values = [bytes(r.value or b"").decode() for records in response.records for r in iter_records(records)]
        return response.partitions[0], values


async def retried(attempt: Callable[[], Awaitable[T]], timeout_s: float = 15) -> T:
    """Retry a request after retriable errors, as a client does."""
    last: BrokerError | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await attempt()
                except BrokerError as e:
                    if not e.retriable:
                        raise
                    last = e
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s} s: {last}") from None
