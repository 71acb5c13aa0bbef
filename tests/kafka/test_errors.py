"""Error codes that are not Kafka's never leave through the Kafka door."""

from __future__ import annotations

from typing import Any

import pytest
from kafka_world import FETCH, METADATA, PRODUCE, kafka, serving_kafka

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.broker.kafka.errors import KAFKA_CODES, kafka_code
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    FetchPartitionResponse,
    FetchResponse,
    ProducePartitionResponse,
    ProduceResponse,
)
from strandline.protocol.records.builder import encode_values

OWN = [code for code in ErrorCode if code >= 200]
TOPIC_ID = bytes(range(16))
each_own_code = pytest.mark.parametrize("code", OWN, ids=[code.name for code in OWN])


def test_each_of_our_own_codes_has_one_of_kafkas():
    assert set(KAFKA_CODES) == set(OWN)
    assert all(code < 200 for code in KAFKA_CODES.values())
    assert [kafka_code(code) for code in ErrorCode if code < 200] == [code for code in ErrorCode if code < 200]


async def test_metadata_that_is_refused_has_the_error_of_each_topic():
    """Versions below 13 have no error of the whole response."""

    def on_metadata(request: Any) -> None:
        raise BrokerError(ErrorCode.FENCED_BROKER, "not yet")

    async with serving_kafka({apis.METADATA: on_metadata}) as (_, port), kafka(port) as wire:
        for version in (4, 9, 13):
            more = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}
            topics = [{"name": "a", "topic_id": bytes(16)}, {"name": "b", "topic_id": bytes(16)}]
            answer = await wire.call(METADATA, version, {"topics": topics, "allow_auto_topic_creation": False, **more})
            assert [(row.name, row.error_code) for row in answer.topics] == [("a", 6), ("b", 6)]
            assert answer.get("error_code", 6) == 6


@each_own_code
async def test_the_writer_of_produce_sends_none(code):
    """The writer of Produce is handwritten."""

    def on_produce(request: Any) -> None:
        if request.body.timeout_ms == 1:
            raise BrokerError(code, "no")
        rows = [ProducePartitionResponse(p.topic_id, p.partition, code) for p in request.body.partitions]
        request.reply(ProduceResponse(rows))

    changes = {PRODUCE: KAFKA_APIS[PRODUCE]}
    batch = encode_values([b"x"], 1_700_000_000_000)
    topic = {"topic_id": TOPIC_ID, "partition_data": [{"index": 3, "records": batch}]}
    async with serving_kafka({apis.PRODUCE: on_produce}, changes=changes) as (_, port), kafka(port) as wire:
        for timeout_ms in (1, 1000):
            fields = {"transactional_id": None, "acks": -1, "timeout_ms": timeout_ms, "topic_data": [topic]}
            answer = await wire.call(PRODUCE, 13, fields)
            (row,) = answer.responses[0].partition_responses
            assert (row.index, row.error_code) == (3, KAFKA_CODES[code])


@each_own_code
async def test_the_writer_of_fetch_sends_none(code):
    """The writer of Fetch is handwritten: both the codes of partitions and the code of the response."""

    def on_fetch(request: Any) -> None:
        if request.body.max_wait_ms == 1:
            raise BrokerError(code, "no")
        of_all, of_partition = (code, 0) if request.body.max_wait_ms == 2 else (0, code)
        rows = [] if of_all else [FetchPartitionResponse(TOPIC_ID, 3, of_partition)]
        request.reply(FetchResponse(0, of_all, 0, rows, []), [[]] * len(rows))

    partition = {"partition": 3, "fetch_offset": 0, "log_start_offset": -1, "partition_max_bytes": 1, "current_leader_epoch": -1}
    topic = {"topic_id": TOPIC_ID, "partitions": [{**partition, "last_fetched_epoch": -1}]}
    fields = {"min_bytes": 1, "max_bytes": 1, "isolation_level": 0, "session_id": 0, "session_epoch": -1, "rack_id": ""}
    changes = {FETCH: KAFKA_APIS[FETCH]}
    async with serving_kafka({apis.FETCH: on_fetch}, changes=changes) as (_, port), kafka(port) as wire:
        for max_wait_ms in (1, 2, 3):
            request = {**fields, "max_wait_ms": max_wait_ms, "topics": [topic], "forgotten_topics_data": []}
            answer = await wire.call(FETCH, 16, request)
            codes = {answer.error_code, *(row.error_code for topic in answer.responses for row in topic.partitions)}
            assert max(codes) == KAFKA_CODES[code]
