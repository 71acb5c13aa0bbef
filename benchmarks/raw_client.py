"""Measures brokers alone: a client that sends prepared batches over plain sockets, the same for both wire protocols.

It opens one connection per broker with a fixed number of requests in flight. A request has one batch, acks=all, for the broker's
partitions in turn. The batches are built before the clock starts; only a request's head is built while it runs.

    Kafka's Produce request, version 7 (the newest version without tagged fields that Kafka still supports):
    i32 length | i16 key 0 | i16 version | i32 correlation id | i16 -1 client id | i16 -1 transactional id | i16 acks
    | i32 timeout | i32 1 | i16 n topic | i32 1 | i32 partition | i32 size | batch
"""

from __future__ import annotations

import asyncio
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import repeat
from time import perf_counter
from typing import NamedTuple

from strandline.protocol.apis import METADATA, PRODUCE
from strandline.protocol.frames import decode_response, encode_request
from strandline.protocol.messages.admin import MetadataRequest, MetadataResponse, MetadataTopicRequest
from strandline.protocol.messages.data import ProducePartition, ProduceRequest, ProduceResponse
from strandline.protocol.records.builder import encode_values

TIMEOUT_MS = 30_000


class RawResult(NamedTuple):
    bytes_per_s: float
    requests_per_s: float


def make_batch(size: int, record_size: int = 1000) -> bytes:
    """One batch of about `size` bytes."""
    count = max(1, size // (record_size + 10))
    return encode_values([bytes([i % 251]) * record_size for i in range(count)], 1_700_000_000_000)


class _Lane(asyncio.Protocol, ABC):
    """One connection: keeps `in_flight` requests in flight until every batch is sent."""

    def __init__(self, shared: _Shared, partitions: list[int]) -> None:
        self._shared = shared
        self._partitions = partitions
        self._turn = 0
        self._correlation = 0
        self._waiting = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def begin(self) -> None:
        for _ in range(self._shared.in_flight):
            self._send()

    def _send(self) -> None:
        batch = self._shared.take()
        if batch is None:
            return
        partition = self._partitions[self._turn % len(self._partitions)]
        self._turn += 1
        self._correlation += 1
        self.transport.writelines(self.request(self._correlation, partition, batch))  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        while len(self._waiting) >= 4:
            end = 4 + int.from_bytes(self._waiting[:4], "big")
            if len(self._waiting) < end:
                return
            frame = bytes(self._waiting[4:end])
            del self._waiting[:end]
            if error := self.error_of(frame):
                self._shared.fail(RuntimeError(f"a produce request failed with error code {error}"))
                return
            self._shared.done()
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.fail(exc or ConnectionError("the broker closed the connection"))

    @abstractmethod
    def request(self, correlation: int, partition: int, batch: bytes) -> list[bytes]: ...

    @abstractmethod
    def error_of(self, frame: bytes) -> int: ...


class _Shared:
    """The batches left to send, shared by all connections."""

    def __init__(self, batches: Iterable[bytes], requests: int, in_flight: int) -> None:
        self._batches = iter(batches)
        self.in_flight = in_flight
        self._to_come = requests
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self) -> bytes | None:
        """The next batch; None if all are sent."""
        return next(self._batches, None)

    def done(self) -> None:
        self._to_come -= 1
        if not self._to_come and not self.finished.done():
            self.finished.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.finished.done():
            self.finished.set_exception(error)


class _OurLane(_Lane):
    topic_id = b""

    def request(self, correlation: int, partition: int, batch: bytes) -> list[bytes]:
        body = ProduceRequest(None, -1, TIMEOUT_MS, [ProducePartition(self.topic_id, partition)], [])
        return encode_request(PRODUCE, 0, correlation, "raw", body, [[batch]])  # type: ignore[return-value]

    def error_of(self, frame: bytes) -> int:
        answer = decode_response(PRODUCE, frame)
        if not isinstance(answer, tuple) or not isinstance(answer[1], ProduceResponse):
            return -1
        return answer[1].partitions[0].error_code


class _KafkaLane(_Lane):
    topic = b""

    def request(self, correlation: int, partition: int, batch: bytes) -> list[bytes]:
        name = struct.pack(">h", len(self.topic)) + self.topic
        head = struct.pack(">hhihhhii", 0, 7, correlation, -1, -1, -1, TIMEOUT_MS, 1) + name
        head += struct.pack(">iii", 1, partition, len(batch))
        return [struct.pack(">i", len(head) + len(batch)) + head, batch]

    def error_of(self, frame: bytes) -> int:
        # correlation i32 | 1 topic i32 | name | 1 partition i32 | index i32 | error i16 | ...
        at = 8 + 2 + int.from_bytes(frame[8:10], "big") + 4 + 4
        return int.from_bytes(frame[at : at + 2], "big", signed=True)


async def produce_raw(lanes: list[tuple[str, int, _Lane]], shared: _Shared) -> float:
    """Send all batches; returns the seconds until every request has a response."""
    loop = asyncio.get_running_loop()
    for host, port, lane in lanes:
        await loop.create_connection(lambda lane=lane: lane, host, port)  # type: ignore[misc]
    started = perf_counter()
    for _, _, lane in lanes:
        lane.begin()
    await shared.finished
    seconds = perf_counter() - started
    for _, _, lane in lanes:
        lane.transport.close()
    return seconds


def _result(batch: bytes, requests: int, seconds: float) -> RawResult:
    return RawResult(len(batch) * requests / seconds, requests / seconds)


async def produce_ours(bootstrap: str, topic: str, batch: bytes, requests: int, in_flight: int = 5) -> RawResult:
    shared = _Shared(repeat(batch, requests), requests, in_flight)
    return _result(batch, requests, await send_ours(bootstrap, topic, shared))


async def produce_kafka(bootstrap: str, topic: str, batch: bytes, requests: int, in_flight: int = 5) -> RawResult:
    shared = _Shared(repeat(batch, requests), requests, in_flight)
    return _result(batch, requests, await send_kafka(bootstrap, topic, shared))


async def fill_ours(bootstrap: str, topic: str, batches: Iterable[bytes], count: int) -> None:
    """Send `count` batches to a topic of one partition, in their order."""
    await send_ours(bootstrap, topic, _Shared(batches, count, 5))


async def fill_kafka(bootstrap: str, topic: str, batches: Iterable[bytes], count: int) -> None:
    """The same as `fill_ours`, for Apache Kafka."""
    await send_kafka(bootstrap, topic, _Shared(batches, count, 5))


async def send_ours(bootstrap: str, topic: str, shared: _Shared) -> float:
    """Returns the seconds until every batch is acknowledged."""
    from strandline.protocol.rpc.connection import Connection

    host, _, port = bootstrap.split(",")[0].rpartition(":")
    connection = await Connection.connect(host, int(port), client_id="raw")
    answer = await connection.request(METADATA, MetadataRequest([MetadataTopicRequest(topic)]))
    connection.close()
    assert isinstance(answer, MetadataResponse)
    brokers = {b.node_id: (b.host, b.port) for b in answer.brokers}
    led: dict[int, list[int]] = {}
    for partition in answer.topics[0].partitions:
        led.setdefault(partition.leader_id, []).append(partition.partition)
    lanes: list[tuple[str, int, _Lane]] = []
    for broker, partitions in led.items():
        lane = _OurLane(shared, partitions)
        lane.topic_id = answer.topics[0].topic_id
        lanes.append((*brokers[broker], lane))
    return await produce_raw(lanes, shared)


async def send_kafka(bootstrap: str, topic: str, shared: _Shared) -> float:
    """Returns the seconds until every batch is acknowledged."""
    from confluent_kafka.admin import AdminClient

    metadata = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(topic, 10)
    led: dict[int, list[int]] = {}
    for number, partition in metadata.topics[topic].partitions.items():
        led.setdefault(partition.leader, []).append(number)
    lanes: list[tuple[str, int, _Lane]] = []
    for broker, partitions in led.items():
        lane = _KafkaLane(shared, partitions)
        lane.topic = topic.encode()
        lanes.append(("127.0.0.1", metadata.brokers[broker].port, lane))
    return await produce_raw(lanes, shared)
