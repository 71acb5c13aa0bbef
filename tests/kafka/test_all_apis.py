"""Every API of the door in every version, with random requests: whatever the broker's handler does, the client gets an answer
that follows the schema, and nothing fails on the way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kafka_world import PRODUCE, kafka, serving_kafka
from random_messages import random_fields
from structlog.testing import capture_logs
from wire import KafkaWire

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.broker.kafka.call import KafkaApi
from strandline.broker.kafka.context import KafkaContext
from strandline.broker.kafka.schemas import Schemas
from strandline.protocol import apis
from strandline.protocol.apis import APIS
from strandline.protocol.errors import BrokerError, ErrorCode

SCHEMAS = Schemas()
OTHERS = [api for api in KAFKA_APIS.values() if api.ours != apis.API_VERSIONS]
each_api = pytest.mark.parametrize("api", OTHERS, ids=[api.name for api in OTHERS])


def requests(api: KafkaApi) -> Iterator[tuple[int, dict[str, Any]]]:
    rnd = random.Random(api.key)
    for version in range(api.min_version, api.max_version + 1):
        for _ in range(5):
            fields = random_fields(rnd, SCHEMAS.request(api.key, version).struct)
            if api.key == PRODUCE:
                fields["acks"] = -1  # 0 would have no answer
            yield version, fields


async def refusals(api: KafkaApi, handler: Any) -> list[str]:
    """Send random requests to a handler; returns the events in the log after all of them were answered."""
    handlers = dict.fromkeys(APIS, handler)
    del handlers[apis.API_VERSIONS]
    async with serving_kafka(handlers, changes=KAFKA_APIS) as (_, port), kafka(port) as wire:
        with capture_logs() as logs:
            for version, fields in requests(api):
                await answered(wire, api, version, fields)
    return [line["event"] for line in logs]


async def answered(wire: KafkaWire, api: KafkaApi, version: int, fields: dict[str, Any]) -> None:
    try:
        await wire.call(api.key, version, fields)
    except ConnectionError:
        raise AssertionError(f"{api.name} version {version} closes the connection: {fields}") from None


@each_api
async def test_a_refusal_is_an_answer_in_every_version(api):
    """The whole request is refused, with a code that Kafka does not have."""

    def refuses(request: Any) -> None:
        raise BrokerError(ErrorCode.FENCED_BROKER, "not yet")

    assert await refusals(api, refuses) == []


@each_api
async def test_a_bug_of_a_handler_is_an_answer_in_every_version(api):
    """The failures in all versions have at most one log line."""

    async def fails(request: Any) -> None:
        raise ZeroDivisionError

    assert await refusals(api, fails) in ([], ["request.failed"])


async def test_what_our_other_clients_could_not_read_is_refused():
    """Our protocol has limits where Kafka's has none. With a leader epoch of -9 in a committed offset, each of our clients'
    requests about the group would fail. A group id may have Kafka's maximum length."""
    served = []

    def on_commit(request: Any) -> None:
        served.append(request.body.group_id)
        raise BrokerError(ErrorCode.NOT_COORDINATOR)

    async with serving_kafka({apis.OFFSET_COMMIT: on_commit}, changes=KAFKA_APIS) as (server, port), kafka(port) as wire:
        orders = SimpleNamespace(name="orders", partitions=[0])
        image: Any = SimpleNamespace(topics_by_id={bytes(range(16)): orders}, topic=lambda name: orders)
        server.context = KafkaContext(image=lambda: image)
        codes = []
        for group_id, leader_epoch in (("g" * 32767, -1), ("g", -9)):
            partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
            topic = {"topic_id": bytes(range(16)), "partitions": [{**partition, "committed_leader_epoch": leader_epoch}]}
            fields = {"group_id": group_id, "generation_id_or_member_epoch": -1, "member_id": "", "topics": [topic]}
            answer = await wire.call(8, 10, {**fields, "group_instance_id": None})
            codes += [row.error_code for topic in answer.topics for row in topic.partitions]
    assert codes == [ErrorCode.NOT_COORDINATOR, ErrorCode.INVALID_REQUEST]
    assert served == ["g" * 32767]
