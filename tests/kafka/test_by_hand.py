"""The handwritten readers and writers of Produce and Fetch read and write what the schemas do."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from data_world import FETCH, PRODUCE, batch, fetch_partition
from random_messages import plain, random_fields
from wire import request_frame, response_fields

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.broker.kafka.call import KafkaCall, read_body
from strandline.broker.kafka.codec import Fields, skip_tagged
from strandline.broker.kafka.context import KafkaContext
from strandline.broker.kafka.heads import read_head
from strandline.broker.kafka.schemas import Schemas
from strandline.protocol.errors import PeerError
from strandline.protocol.messages import data
from strandline.protocol.messages.common import CurrentLeader, EpochEndOffset, Listener

SCHEMAS = Schemas()
IDS = {name: name.encode().ljust(16)[:16] for name in ("a", "orders", "x" * 200)}
TOPICS = {name: SimpleNamespace(name=name, partitions={0: None, 1: None}) for name in IDS}
IMAGE: Any = SimpleNamespace(
    topic=TOPICS.get,
    topics_by_name=IDS,
    topics_by_id={id_: TOPICS[name] for name, id_ in IDS.items()},
    brokers={7: SimpleNamespace(endpoint=lambda listener: Listener(listener, "h", 9), rack=None)},
)
CONNECTION: Any = SimpleNamespace(listener_name="K")
RANGES = [
    (key, version) for key in (PRODUCE, FETCH) for version in range(KAFKA_APIS[key].min_version, KAFKA_APIS[key].max_version + 1)
]
BATCH = batch("a value that is long enough for more than one byte of length" * 3)


def both(key: int, version: int, frame: bytearray) -> tuple[KafkaCall, Fields]:
    """The call as the handwritten reader reads it, and the fields as the schema reads them."""
    call = KafkaCall(KAFKA_APIS[key], version, 1, len(frame), CONNECTION, KafkaContext(image=lambda: IMAGE))
    at = read_head(frame).end
    call.fields = read_body(call, frame, at)
    codec = SCHEMAS.request(key, version)
    fields, _ = codec.read(frame, skip_tagged(frame, at) if codec.is_flexible else at)
    return call, fields


def messages(key: int, version: int, seed: int = 0) -> list[dict[str, Any]]:
    rnd = random.Random(seed)
    found = []
    for _ in range(200):
        fields = random_fields(rnd, SCHEMAS.request(key, version).struct)
        for topic in fields.get("topic_data", []):
            for part in topic["partition_data"]:
                part["records"] = rnd.choice((part["records"], BATCH, BATCH))
        if key == PRODUCE and rnd.random() < 0.3:
            fields = {"transactional_id": None, "acks": 1, "timeout_ms": 7, "topic_data": [_one_topic(rnd)]}
        found.append(fields)
    return found


def _one_topic(rnd: random.Random) -> dict[str, Any]:
    records = batch("v" * rnd.choice((1, 40, 200, 20_000)))
    return {
        "name": rnd.choice([*IDS, "missing"]),
        "topic_id": rnd.randbytes(16),
        "partition_data": [{"index": 5, "records": records}],
    }


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_is_read_as_by_its_schema(version: int) -> None:
    for fields in messages(PRODUCE, version):
        call, expected = both(PRODUCE, version, bytearray(request_frame(PRODUCE, version, 1, "c", fields)))
        body: data.ProduceRequest = call.fields
        assert (body.transactional_id, body.acks) == (expected.transactional_id, expected.acks)
        assert body.timeout_ms == max(expected.timeout_ms, 0)
        passed = [(row.topic_id, row.partition, bytes(part)) for row, part in zip(body.partitions, body.records, strict=True)]
        topics = []
        for topic in expected.topic_data:
            key = topic.get("name", topic.get("topic_id"))
            topics.append((key, [part.index for part in topic.partition_data]))
        assert [(key, partitions) for key, partitions, _ in call.notes.topics] == topics
        for (key, _, early), topic in zip(call.notes.topics, expected.topic_data, strict=True):
            for place, part in enumerate(topic.partition_data):
                is_whole = part.records is not None and len(part.records) > 60 and part.records[16] == 2
                id_ = key if version >= 13 else IDS.get(key)
                assert (place not in early) == (is_whole and id_ is not None and part.index >= 0)
                if place not in early:
                    assert passed.pop(0) == (id_, part.index, part.records)
        assert not passed


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_is_read_as_by_its_schema(version: int) -> None:
    for fields in messages(FETCH, version):
        call, expected = both(FETCH, version, bytearray(request_frame(FETCH, version, 1, "c", fields)))
        body: data.FetchRequest = call.fields
        assert body.max_wait_ms == max(expected.max_wait_ms, 0)
        for name in ("min_bytes", "max_bytes", "isolation_level"):
            assert getattr(body, name) == expected.get(name)
        assert (body.session_id, body.session_epoch) == (expected.get("session_id", 0), expected.get("session_epoch", -1))
        assert body.rack_id == expected.get("rack_id", "")
        state = expected.get("replica_state")
        replica_id = state.replica_id if state is not None else expected.get("replica_id", -1)
        assert max(call.notes.replica_id, -1) == max(replica_id, -1), "whatever is negative is a consumer"
        wanted, unknown = [], []
        for topic in expected.topics:
            id_ = topic.get("topic_id") or IDS.get(topic.get("topic"))
            rows = [_wanted(id_, part) for part in topic.partitions]
            wanted += rows if id_ is not None else []
            unknown += [] if id_ is not None else [(topic.topic, [row[1] for row in rows])]
        found = [
            (p.topic_id, p.partition, p.current_leader_epoch, p.fetch_offset, p.last_fetched_epoch, p.partition_max_bytes)
            for p in body.partitions
        ]
        assert found == wanted
        assert call.notes.unknown == unknown
        gone = []
        for topic in expected.get("forgotten_topics_data", []):
            id_ = topic.get("topic_id") or IDS.get(topic.get("topic"))
            gone += [(id_, index) for index in topic.partitions] if id_ is not None else []
        assert [(item.topic_id, item.partition) for item in body.forgotten] == gone


def _wanted(id_: bytes | None, part: Fields) -> tuple[Any, ...]:
    epoch, last = max(part.get("current_leader_epoch", -1), -1), max(part.get("last_fetched_epoch", -1), -1)
    return id_, part.partition, epoch, part.fetch_offset, last, part.partition_max_bytes


@pytest.mark.parametrize(("key", "version"), RANGES)
def test_broken_requests_are_refused_or_read(key: int, version: int) -> None:
    """No error is raised but PeerError, which closes the connection."""
    rnd = random.Random(1)
    for fields in messages(key, version, 1)[:60]:
        good = request_frame(key, version, 1, "c", fields)
        for _ in range(20):
            frame = bytearray(good)
            if rnd.random() < 0.5:
                del frame[rnd.randrange(11, len(frame) + 1) :]
            else:
                frame[rnd.randrange(11, len(frame))] = rnd.choice((0, 1, 0x7F, 0x80, 0xFF))
            call = KafkaCall(KAFKA_APIS[key], version, 1, len(frame), CONNECTION, KafkaContext(image=lambda: IMAGE))
            try:
                read_body(call, frame, read_head(frame).end)
            except PeerError:
                pass


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_is_written_as_by_its_schema(version: int) -> None:
    for fields in messages(PRODUCE, version)[:60]:
        call, _ = both(PRODUCE, version, bytearray(request_frame(PRODUCE, version, 1, "c", fields)))
        rows = [data.ProducePartitionResponse(row.topic_id, row.partition, 0, 5, -1, 3) for row in call.fields.partitions]
        answer = data.ProduceResponse(rows, 300)
        hand = response_fields(PRODUCE, version, b"".join(call.api.write(call, answer, None))[4:])  # type: ignore[misc]
        codec, out = SCHEMAS.response(PRODUCE, version), bytearray()
        codec.write(out, call.api.to_kafka(call, answer))
        assert plain(hand) == plain(codec.read(out, 0)[0])


@pytest.mark.parametrize("version", range(4, 19))
def test_rows_of_fetch_are_read_by_their_schema(version: int) -> None:
    """Rows with all kinds of fields, with records of different sizes between them."""
    first, second = IDS["a"], IDS["orders"]
    rows = [
        data.FetchPartitionResponse(first, 0, 0, 5, 4, 1),
        data.FetchPartitionResponse(first, 1, 6, current_leader=CurrentLeader(7, 3)),
        data.FetchPartitionResponse(second, 0, 0, 9, 9, 2, aborted_transactions=[data.AbortedTransaction(3, 4, 5)] * 200),
        data.FetchPartitionResponse(second, 1, 0, 9, 9, 2, EpochEndOffset(2, 8), preferred_read_replica=7),
        data.FetchPartitionResponse(first, 2, 0, 1, 1, 0, aborted_transactions=[]),
    ]
    records = [[b"x" * 200], [], [b"y", bytearray(20_000)], [], [memoryview(b"z")]]
    call = KafkaCall(KAFKA_APIS[FETCH], version, 1, 0, CONNECTION, KafkaContext(image=lambda: IMAGE))
    call.fields = data.FetchRequest(-1, -1, 0, 1, 1, 0, 0, -1, [])
    call.notes = SimpleNamespace(names={}, unknown=[], replica_id=-1)
    buffers = call.api.write(call, data.FetchResponse(9, 0, 77, rows, []), records)  # type: ignore[misc]
    frame = b"".join(bytes(buffer) for buffer in buffers)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    answer = response_fields(FETCH, version, frame[4:])
    assert (answer.throttle_time_ms, answer.get("session_id", 77)) == (9, 77)
    assert [topic.get("topic_id", topic.get("topic")) for topic in answer.responses] == (
        [first, second, first] if version >= 13 else ["a", "orders", "a"]
    )
    found = [row for topic in answer.responses for row in topic.partitions]
    assert [row.records for row in found] == [b"".join(bytes(part) for part in parts) for parts in records]
    assert [(row.partition_index, row.error_code, row.high_watermark) for row in found] == [
        (row.partition, row.error_code, row.high_watermark) for row in rows
    ]
    assert [row.aborted_transactions and len(row.aborted_transactions) for row in found] == [None, None, 200, None, []]
    if version >= 11:
        assert [row.preferred_read_replica for row in found] == [-1, -1, -1, 7, -1]
    if version >= 12:
        assert [(row.diverging_epoch.epoch, row.diverging_epoch.end_offset) for row in found][3] == (2, 8)
        assert [row.current_leader.leader_id for row in found] == [-1, 7, -1, -1, -1]
    if version >= 16:
        assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == [(7, "h", 9)]


@pytest.mark.parametrize("version", range(4, 19))
@pytest.mark.parametrize("parts", [[], [b"x" * 50], [b"x" * 70_000, bytearray(1)]], ids=["none", "few", "many"])
def test_one_row_of_fetch_is_read_by_its_schema(version: int, parts: list[Any]) -> None:
    row = data.FetchPartitionResponse(IDS["a"], 3, 0, 5, 4, 1, preferred_read_replica=2)
    call = KafkaCall(KAFKA_APIS[FETCH], version, 1, 0, CONNECTION, KafkaContext(image=lambda: IMAGE))
    call.notes = SimpleNamespace(names={}, unknown=[], replica_id=-1)
    buffers = call.api.write(call, data.FetchResponse(9, 0, 77, [row], []), [parts])  # type: ignore[misc]
    frame = b"".join(bytes(buffer) for buffer in buffers)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    answer = response_fields(FETCH, version, frame[4:])
    (topic,) = answer.responses
    (found,) = topic.partitions
    assert (answer.throttle_time_ms, answer.get("session_id", 77)) == (9, 77)
    assert topic.get("topic_id", IDS["a"]) == IDS["a"]
    assert topic.get("topic", "a") == "a"
    assert (found.partition_index, found.error_code, found.high_watermark, found.last_stable_offset) == (3, 0, 5, 4)
    assert (found.get("log_start_offset", 1), found.get("preferred_read_replica", 2)) == (1, 2)
    assert (found.aborted_transactions, found.records) == (None, b"".join(parts))


@pytest.mark.parametrize(("key", "version"), [(PRODUCE, 3), (PRODUCE, 9), (FETCH, 4), (FETCH, 12), (FETCH, 18)])
def test_number_of_partitions_is_limited(key: int, version: int) -> None:
    """The limit counts the partitions of all topics: each is an object, which takes many times its bytes."""
    topics: list[dict[str, Any]]
    if key == PRODUCE:
        part: dict[str, Any] = {"index": 0, "records": None}
        topics = [{"name": "a", "topic_id": bytes(16), "partition_data": [part] * 20_000}] * 2
        fields = {"transactional_id": None, "acks": 1, "timeout_ms": 7, "topic_data": topics}
    else:
        part = fetch_partition(0)
        topics = [{"topic": "a", "topic_id": bytes(16), "partitions": [part] * 60_000}] * 2
        limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1, "rack_id": "", "forgotten_topics_data": []}
        fields = {**limits, "topics": topics}
    with pytest.raises(PeerError, match="more than 30000" if key == PRODUCE else "more than 100000"):
        both(key, version, bytearray(request_frame(key, version, 1, "c", fields)))
