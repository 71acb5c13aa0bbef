"""A server on loopback, raw sockets that can send it anything, and bounded waiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgpack

from strandline.protocol import frames
from strandline.protocol.apis import PRODUCE
from strandline.protocol.messages.data import ProducePartition, ProducePartitionResponse, ProduceRequest, ProduceResponse
from strandline.protocol.rpc.server import Limits, Server, ServerRequest

TOPIC_ID = bytes(range(16))
BOUND_S = 10.0


def on_produce(request: ServerRequest) -> None:
    """Answer with the sizes of the received batches as base offsets."""
    body: ProduceRequest = request.body
    if body.acks == 0:
        request.no_reply()
        return
    answers = [
        ProducePartitionResponse(p.topic_id, p.partition, base_offset=len(records))
        for p, records in zip(body.partitions, body.records, strict=True)
    ]
    request.reply(ProduceResponse(answers))


class Parking:
    """A handler that parks requests and answers them when the test says so."""

    def __init__(self) -> None:
        self.parked: list[ServerRequest] = []

    def __call__(self, request: ServerRequest) -> None:
        self.parked.append(request)

    def answer_all(self) -> None:
        parked, self.parked = self.parked, []
        for request in parked:
            on_produce(request)


@contextlib.asynccontextmanager
async def serving(
    handlers: dict[int, Any] | None = None, limits: Limits | None = None, **more: Any
) -> AsyncIterator[tuple[Server, int]]:
    server = Server(
        {PRODUCE: on_produce} if handlers is None else handlers,
        role="broker",
        node_id=1,
        cluster_id="a cluster",
        incarnation_id=bytes(range(16)),
        limits=limits or Limits(),
        **more,
    )
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop()


class RawPeer:
    """A plain socket, without this package's client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> RawPeer:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def receive(self) -> Any:
        """Receive the next frame, as plain msgpack."""
        async with asyncio.timeout(BOUND_S):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return msgpack.unpackb(await self.reader.readexactly(size))

    async def is_closed(self) -> bool:
        """Wait for the server to close. False if it sends something instead."""
        async with asyncio.timeout(BOUND_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionResetError:
                return True

    def close(self) -> None:
        self.writer.close()


@contextlib.asynccontextmanager
async def raw_peer(port: int) -> AsyncIterator[RawPeer]:
    peer = await RawPeer.connect(port)
    try:
        yield peer
    finally:
        peer.close()


def produce(size: int = 10, acks: int = -1) -> tuple[ProduceRequest, list[list[bytes]]]:
    return ProduceRequest(None, acks, 1000, [ProducePartition(TOPIC_ID, 0)], []), [[b"r" * size]]


def produce_frame(correlation_id: int, size: int = 10, acks: int = -1) -> bytes:
    return b"".join(frames.encode_request(PRODUCE, 0, correlation_id, "raw", *produce(size, acks)))


def request_frame(api_key: int, body: Any, correlation_id: int = 1, version: int = 0) -> bytes:
    raw = msgpack.packb([api_key, version, correlation_id, "raw", body])
    return len(raw).to_bytes(4, "big") + raw
