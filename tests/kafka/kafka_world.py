"""A listener of the Kafka door on loopback, with the test's own handlers.

It serves ApiVersions and Metadata as in a broker, and Produce, Heartbeat and ListGroups with one field, `acks`, for the handler
and always the same answers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from wire import KafkaWire, request_frame

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.broker.kafka.context import KafkaContext
from strandline.broker.kafka.server import KafkaServer
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol import apis
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.server import Limits, ServerRequest

PRODUCE, FETCH, METADATA, HEARTBEAT, LIST_GROUPS, API_VERSIONS = 0, 1, 3, 12, 16, 18
ANSWER: Any = SimpleNamespace(error_code=0, partitions=(), groups=())
"""The reply of all handlers."""
_PRODUCED = {"responses": [], "throttle_time_ms": 0}
_BEAT = {"error_code": 0, "throttle_time_ms": 0}
_LISTED = {"error_code": 0, "throttle_time_ms": 0, "groups": []}
PRODUCE_FIELDS: dict[str, Any] = {"transactional_id": None, "acks": -1, "timeout_ms": 1000, "topic_data": []}
BEAT_FIELDS: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}


class Body(Message):
    """The body that handlers get for each request."""

    acks: int


def _to_ours(call: KafkaCall) -> Body:
    return Body(call.fields.get("acks", -1))


def _produced(call: KafkaCall, body: Any) -> dict[str, Any]:
    return _PRODUCED


def _beat(call: KafkaCall, body: Any) -> dict[str, Any]:
    return _BEAT


def _listed(call: KafkaCall, body: Any) -> dict[str, Any]:
    return _LISTED


def _refused_produce(call: KafkaCall, code: Any, message: str | None) -> dict[str, Any]:
    return _PRODUCED


TEST_APIS: dict[int, KafkaApi] = {
    PRODUCE: KafkaApi(PRODUCE, "Produce", apis.PRODUCE, 3, 12, _to_ours, _produced, _refused_produce),
    HEARTBEAT: KafkaApi(HEARTBEAT, "Heartbeat", apis.HEARTBEAT, 0, 4, _to_ours, _beat, refused_at_top),
    LIST_GROUPS: KafkaApi(LIST_GROUPS, "ListGroups", apis.LIST_GROUPS, 0, 5, _to_ours, _listed, refused_at_top),
    **{key: KAFKA_APIS[key] for key in (METADATA, API_VERSIONS)},
}


class Parking:
    """A handler that parks requests until the test answers them."""

    def __init__(self) -> None:
        self.parked: list[ServerRequest] = []

    def __call__(self, request: ServerRequest) -> None:
        self.parked.append(request)

    def answer(self, index: int = 0) -> None:
        self.parked.pop(index).reply(ANSWER)


def answer_at_once(request: ServerRequest) -> None:
    request.reply(ANSWER)


@contextlib.asynccontextmanager
async def serving_kafka(
    handlers: dict[int, Any], *, limits: Limits | None = None, changes: dict[int, KafkaApi] | None = None, **more: Any
) -> AsyncIterator[tuple[KafkaServer, int]]:
    """`changes`: APIs that replace those of this file."""
    server = KafkaServer(
        handlers,
        role="broker",
        node_id=1,
        cluster_id="a cluster",
        incarnation_id=bytes(16),
        listener_name="KAFKA",
        limits=limits or Limits(),
        **more,
    )
    server.context = KafkaContext(image=lambda: MetadataImage.EMPTY)
    server.kafka_apis = {**TEST_APIS, **(changes or {})}
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop()


def kafka(port: int, **options: Any) -> KafkaWire:
    return KafkaWire("127.0.0.1", port, **options)


def framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


def produce_frame(number: int, acks: int = -1, size: int = 0) -> bytes:
    """A Produce request of about `size` bytes, with its length."""
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(size)}]}] if size else []
    return framed(request_frame(PRODUCE, 9, number, "c", {**PRODUCE_FIELDS, "acks": acks, "topic_data": topics}))


def beat_frame(number: int, version: int = 4, client_id: str | None = "c") -> bytes:
    return framed(request_frame(HEARTBEAT, version, number, client_id, BEAT_FIELDS))


async def numbers(wire: KafkaWire, count: int) -> list[int]:
    """The correlation ids of the next answers."""
    return [int.from_bytes((await wire.receive_frame())[:4], "big") for _ in range(count)]
