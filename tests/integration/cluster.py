"""A cluster in one process: real controllers and brokers on loopback sockets, with real or in-memory files.

No client is used: requests go through a raw `Connection`, so that a test sees what is on the wire.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from strandline.broker.config import BrokerConfig
from strandline.broker.process.server import BrokerServer
from strandline.controller.config import ControllerConfig
from strandline.controller.server import ControllerServer
from strandline.protocol import apis
from strandline.protocol.doors import real_doors
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    MetadataTopicRequest,
    TopicConfig,
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
from strandline.storage.files import Files, MemoryFiles

CLUSTER_ID = "test-cluster"
NOW_MS = 1_700_000_000_000
T = TypeVar("T")


async def wait_until(condition: Callable[[], object], timeout_s: float = 10, what: str = "") -> None:
    """Until the condition holds; a failure names it."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s} s: {what or condition}") from None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """Controllers 101.. and brokers 1..; each node keeps its files and its port over a restart."""

    def __init__(
        self,
        *,
        controllers: int = 1,
        brokers: int = 1,
        files: Callable[[], Files] = MemoryFiles,
        data: str = "/data",
        **settings: Any,
    ) -> None:
        self.settings = {key.replace("_", "."): value for key, value in settings.items()}
        self.data = data
        self.voters = ",".join(f"{101 + n}@127.0.0.1:{free_port()}" for n in range(controllers))
        self.files: dict[int, Files] = {node: files() for node in [*range(101, 101 + controllers), *range(1, brokers + 1)]}
        self.ports: dict[int, int] = {}
        self.controllers: dict[int, ControllerServer] = {}
        self.brokers: dict[int, BrokerServer] = {}
        self._connections: dict[int, Connection] = {}

    # -- life ---------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        nodes = list(self.files)
        try:
            await asyncio.gather(*(self.start(node) for node in nodes))
            await self.ready()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for connection in self._connections.values():
            connection.close()
        for node in list(self.brokers):
            await self.stop(node)
        for node in list(self.controllers):
            await self.stop(node)

    def broker_config(self, node: int, **changes: Any) -> BrokerConfig:
        return BrokerConfig.from_mapping(
            {
                "node.id": node,
                "cluster.id": CLUSTER_ID,
                "listeners": f"PLAINTEXT://127.0.0.1:{self.ports.get(node, 0)}",
                "log.dirs": f"{self.data}/broker-{node}",
                "controller.quorum.voters": self.voters,
                "controlled.shutdown.timeout.ms": 3000,
                **self.settings,
                **changes,
            }
        )

    async def start(self, node: int) -> None:
        if node > 100:
            config = ControllerConfig.from_mapping(
                {
                    "node.id": node,
                    "cluster.id": CLUSTER_ID,
                    "log.dirs": f"{self.data}/controller-{node}",
                    "controller.quorum.voters": self.voters,
                }
            )
            controller = ControllerServer(config, real_doors(), self.files[node])
            await controller.start()
            self.controllers[node] = controller
            return
        broker = BrokerServer(self.broker_config(node), real_doors(), self.files[node])
        await broker.start()
        self.brokers[node], self.ports[node] = broker, broker.port

    async def stop(self, node: int) -> None:
        """In order."""
        connection = self._connections.pop(node, None)
        if connection is not None:
            connection.close()
        server = self.brokers.pop(node, None) or self.controllers.pop(node)
        await server.stop()

    async def kill(self, node: int) -> None:
        """As if the process were gone: its connections break, nothing is handed over, written or flushed."""
        broker = self.brokers.pop(node)
        connection = self._connections.pop(node, None)
        if connection is not None:
            connection.close()
        await broker.kill()

    async def ready(self) -> None:
        async with asyncio.timeout(10):
            await asyncio.gather(*(broker.ready.wait() for broker in self.brokers.values()))
        await wait_until(lambda: all(self._sees_all(broker) for broker in self.brokers.values()), what="all brokers see all")

    def _sees_all(self, broker: BrokerServer) -> bool:
        registered = broker.metadata.image.brokers
        return all(node in registered and not registered[node].fenced for node in self.brokers)

    # -- asking -------------------------------------------------------------------------------------------------------

    async def ask(self, node: int, api_key: int, body: Message, records: Any = None, timeout_ms: int = 10_000) -> Any:
        connection = self._connections.get(node)
        if connection is None or connection.closed:
            connection = await Connection.connect("127.0.0.1", self.ports[node], client_id="test")
            self._connections[node] = connection
        return await connection.request(api_key, body, records, timeout_ms=timeout_ms)

    @property
    def any_broker(self) -> int:
        return next(iter(self.brokers))

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication: int = 1,
        replicas: Sequence[Sequence[int]] | None = None,
        **configs: str,
    ) -> MetadataTopic:
        assignments = [CreatableReplicaAssignment(i, list(r)) for i, r in enumerate(replicas or [])]
        topic = CreatableTopic(
            name,
            -1 if assignments else partitions,
            -1 if assignments else replication,
            assignments,
            [TopicConfig(key.replace("_", "."), value) for key, value in configs.items()],
        )
        response = cast(CreateTopicsResponse, await self.ask(self.any_broker, apis.CREATE_TOPICS, CreateTopicsRequest([topic])))
        result = response.topics[0]
        assert result.error_code == 0, (ErrorCode(result.error_code), result.error_message)
        return await self.topic(name)

    async def metadata(self, node: int | None = None, *names: str) -> MetadataResponse:
        topics = [MetadataTopicRequest(name) for name in names]
        response = await self.ask(node or self.any_broker, apis.METADATA, MetadataRequest(topics))
        return cast(MetadataResponse, response)

    async def topic(self, name: str, node: int | None = None) -> MetadataTopic:
        topic = (await self.metadata(node, name)).topics[0]
        assert topic.error_code == 0, ErrorCode(topic.error_code)
        return topic

    async def partition(self, name: str, index: int = 0) -> MetadataPartition:
        return (await self.topic(name)).partitions[index]

    async def produce_to(
        self, node: int, topic_id: bytes, *values: str, partition: int = 0, acks: int = -1, timeout_ms: int = 5000
    ) -> ProducePartitionResponse:
        batch = encode_batch([(None, value.encode(), [], NOW_MS) for value in values])
        request = ProduceRequest(None, acks, timeout_ms, [ProducePartition(topic_id, partition)], [])
        response = cast(ProduceResponse, await self.ask(node, apis.PRODUCE, request, [[batch]]))
        return response.partitions[0]

    async def produce(self, topic: MetadataTopic, *values: str, partition: int = 0, acks: int = -1) -> int:
        """To the leader, with retries as a client would make them; returns the base offset."""

        async def once() -> int:
            found = await self.topic(topic.name or "")
            leader = found.partitions[partition].leader_id
            if leader not in self.brokers:
                raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE)
            answer = await self.produce_to(leader, topic.topic_id, *values, partition=partition, acks=acks)
            if answer.error_code:
                raise BrokerError(answer.error_code, answer.error_message)
            return answer.base_offset

        return await retried(once)

    async def fetch(
        self, node: int, topic_id: bytes, offset: int = 0, *, partition: int = 0, max_wait_ms: int = 0
    ) -> tuple[Any, list[str]]:
        """As a consumer: the partition's answer, and the values."""
        wanted = FetchPartition(topic_id, partition, -1, offset, -1, -1, 1 << 20)
        request = FetchRequest(-1, -1, max_wait_ms, 1, 1 << 20, 0, 0, -1, [wanted])
        response = cast(FetchResponse, await self.ask(node, apis.FETCH, request))
        values = [bytes(r.value or b"").decode() for records in response.records for r in iter_records(records)]
        return response.partitions[0], values

    # -- looking inside -----------------------------------------------------------------------------------------------

    def log_bytes(self, node: int, topic_id: bytes, partition: int = 0) -> bytes:
        log = self.brokers[node].replicas.partitions[topic_id, partition].log
        if log.log_end_offset == log.log_start_offset:
            return b""
        return b"".join(bytes(b) for b in log.read(log.log_start_offset, 1 << 30, log.log_end_offset).buffers)

    async def in_step(self, topic_id: bytes, nodes: Sequence[int], partition: int = 0) -> None:
        """All of these replicas hold the same bytes and know the same high watermark."""

        def logs() -> list[tuple[int, int]]:
            found = [self.brokers[n].replicas.partitions[topic_id, partition].log for n in nodes]
            return [(log.log_end_offset, log.high_watermark) for log in found]

        def same() -> bool:
            ends = logs()
            return len(set(ends)) == 1 and ends[0][0] == ends[0][1]

        await wait_until(same, what="the replicas are in step")
        assert len({self.log_bytes(node, topic_id, partition) for node in nodes}) == 1


async def retried(attempt: Callable[[], Awaitable[T]], timeout_s: float = 15) -> T:
    """Retriable errors are tried again, as a client does."""
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
