"""A Kafka client without rights must not find out anything about the topics that it names, not even whether they exist."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from data_world import DELETE_RECORDS, FETCH, LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH, PRODUCE, batch, fetch_partition
from wire import request_frame, response_fields

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.broker.kafka.call import KafkaCall, read_body, write_fields
from strandline.broker.kafka.codec import Fields
from strandline.broker.kafka.context import KafkaContext
from strandline.broker.kafka.heads import read_head
from strandline.broker.kafka.translations.authorized_operations import cluster_operations
from strandline.controller.metadata.security.access import Rights
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages import data
from strandline.protocol.messages import security as s
from strandline.protocol.security.principal import ANONYMOUS

DESCRIBE_CLUSTER, LIST_CONFIG_RESOURCES = 60, 74
OPEN, HIDDEN = b"o" * 16, b"h" * 16
TOPICS = {name: SimpleNamespace(name=name, partitions={0: None}) for name in ("open", "hidden")}
IMAGE: Any = SimpleNamespace(
    offset=-1,
    topic=TOPICS.get,
    topics_by_name={"open": OPEN, "hidden": HIDDEN},
    topics_by_id={OPEN: TOPICS["open"], HIDDEN: TOPICS["hidden"]},
    brokers={},
)
"""An image without the topic `missing`."""
MISSING = bytes(range(16))
UNKNOWN, DENIED = ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED
ALIKE = {"open": 0, "hidden": DENIED, "missing": DENIED}
NAMES = list(ALIKE)


class Authorizer:
    """Everyone has one right, on the topic `open`."""

    def __init__(self, operation: int) -> None:
        self.operation = operation

    def authorize(self, principal: Any, host: str, operation: int, resource_type: int, name: str) -> bool:
        return (operation, resource_type, name) == (self.operation, s.TOPIC_RESOURCE, "open")


def read(operation: int, api_key: int, version: int, fields: dict[str, Any]) -> KafkaCall:
    rights = Rights(Authorizer(operation), lambda: IMAGE)  # type: ignore[arg-type]
    context = KafkaContext(image=lambda: IMAGE, rights=rights)
    connection: Any = SimpleNamespace(principal=ANONYMOUS, host="h", client_id="c", last_received_at=0.0, listener_name="K")
    frame = bytearray(request_frame(api_key, version, 1, "c", fields))
    call = KafkaCall(KAFKA_APIS[api_key], version, 1, len(frame), connection, context)
    call.fields = read_body(call, frame, read_head(frame).end)
    return call


def written(call: KafkaCall, answer: Any, records: Any = None) -> Fields:
    """The response as the client reads it."""
    api = call.api
    buffers = write_fields(call, api.to_kafka(call, answer)) if api.write is None else api.write(call, answer, records)
    return response_fields(api.key, call.version, b"".join(bytes(buffer) for buffer in buffers)[4:])


@pytest.mark.parametrize("version", [3, 9, 12])
def test_produce_answers_alike_for_hidden_and_missing_topics(version: int) -> None:
    topics = [{"name": name, "partition_data": [{"index": 0, "records": batch("a")}]} for name in NAMES]
    fields = {"transactional_id": None, "acks": -1, "timeout_ms": 1, "topic_data": topics}
    call = read(s.WRITE, PRODUCE, version, fields)
    assert [row.topic_id for row in call.api.to_ours(call).partitions] == [OPEN, HIDDEN]  # type: ignore[attr-defined]
    rows = [data.ProducePartitionResponse(OPEN, 0), data.ProducePartitionResponse(HIDDEN, 0, UNKNOWN)]
    answer = written(call, data.ProduceResponse(rows))
    assert {topic.name: topic.partition_responses[0].error_code for topic in answer.responses} == ALIKE


@pytest.mark.parametrize("records", [b"", batch("a")[:-1], b"\0" * 80], ids=["none", "cut", "old"])
@pytest.mark.parametrize("version", [3, 8, 12])
def test_refused_records_do_not_reveal_a_hidden_topic(version: int, records: bytes) -> None:
    """Only clients with the right get the error about the records: to others it would reveal that the topic exists."""
    topics = [{"name": name, "partition_data": [{"index": 0, "records": records}]} for name in NAMES]
    call = read(s.WRITE, PRODUCE, version, {"transactional_id": None, "acks": -1, "timeout_ms": 1, "topic_data": topics})
    assert call.api.to_ours(call).partitions == []  # type: ignore[attr-defined]
    rows = {topic.name: topic.partition_responses[0] for topic in written(call, data.ProduceResponse([])).responses}
    codes = {name: row.error_code for name, row in rows.items()}
    assert codes == {"open": ErrorCode.INVALID_RECORD, "hidden": DENIED, "missing": DENIED}
    assert version < 8 or rows["hidden"].error_message is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", [3, 12])
def test_produce_in_no_transaction_is_refused_for_every_topic(version: int, name: str) -> None:
    """A transactional batch without a transactional id gets the same error whether the topic exists or not."""
    records = batch("a", is_transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    topics = [{"name": name, "partition_data": [{"index": 0, "records": records}]}]
    call = read(s.WRITE, PRODUCE, version, {"transactional_id": None, "acks": -1, "timeout_ms": 1, "topic_data": topics})
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        call.api.to_ours(call)


def test_produce_by_id_says_that_the_right_is_missing() -> None:
    topics = [{"topic_id": id_, "partition_data": [{"index": 0, "records": batch("a")}]} for id_ in (OPEN, HIDDEN, MISSING)]
    call = read(s.WRITE, PRODUCE, 13, {"transactional_id": None, "acks": -1, "timeout_ms": 1, "topic_data": topics})
    rows = [
        data.ProducePartitionResponse(OPEN, 0),
        *(data.ProducePartitionResponse(id_, 0, UNKNOWN) for id_ in (HIDDEN, MISSING)),
    ]
    answer = written(call, data.ProduceResponse(rows))
    codes = {topic.topic_id: topic.partition_responses[0].error_code for topic in answer.responses}
    assert codes == {OPEN: 0, HIDDEN: DENIED, MISSING: UNKNOWN}


@pytest.mark.parametrize("version", [4, 11, 12])
def test_fetch_answers_alike_for_hidden_and_missing_topics(version: int) -> None:
    topics = [{"topic": name, "partitions": [fetch_partition(0)]} for name in NAMES]
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1, "rack_id": "", "forgotten_topics_data": []}
    call = read(s.READ, FETCH, version, {**limits, "topics": topics})
    assert [row.topic_id for row in call.api.to_ours(call).partitions] == [OPEN, HIDDEN]  # type: ignore[attr-defined]
    rows = [data.FetchPartitionResponse(OPEN, 0), data.FetchPartitionResponse(HIDDEN, 0, UNKNOWN)]
    answer = written(call, data.FetchResponse(0, 0, 0, rows, []), [[], []])
    assert {topic.topic: topic.partitions[0].error_code for topic in answer.responses} == ALIKE


@pytest.mark.parametrize("name", ["hidden", "missing"])
@pytest.mark.parametrize("version", [7, 12])
def test_fetch_of_a_topic_without_the_right_begins_no_session(version: int, name: str) -> None:
    """It is not added to a session either: a topic that does not exist has no session, so the client could tell the two apart."""
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1, "rack_id": "", "forgotten_topics_data": []}

    def asked(session_id: int, epoch: int, *names: str) -> data.FetchRequest:
        topics = [{"topic": each, "partitions": [fetch_partition(0)]} for each in names]
        session = {"session_id": session_id, "session_epoch": epoch}
        call = read(s.READ, FETCH, version, {**limits, **session, "topics": topics})
        body: Any = call.api.to_ours(call)
        return body

    assert asked(0, 0, "open").session_epoch == 0
    assert asked(0, 0, "open", name).session_epoch == -1
    assert asked(5, 3, "open").session_epoch == 3
    with pytest.raises(BrokerError, match="INVALID_FETCH_SESSION_EPOCH"):
        asked(5, 3, "open", name)


@pytest.mark.parametrize("version", [13, 16, 18])
def test_fetch_by_id_says_that_the_right_is_missing(version: int) -> None:
    """After UNKNOWN_TOPIC_ID, a librdkafka consumer whose right was taken away used to wait in silence."""
    topics = [{"topic_id": id_, "partitions": [fetch_partition(0)]} for id_ in (OPEN, HIDDEN, MISSING)]
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1, "rack_id": "", "forgotten_topics_data": []}
    call = read(s.READ, FETCH, version, {**limits, "topics": topics})
    rows = [data.FetchPartitionResponse(OPEN, 0), *(data.FetchPartitionResponse(id_, 0, UNKNOWN) for id_ in (HIDDEN, MISSING))]
    answer = written(call, data.FetchResponse(0, 0, 0, rows, []), [[], [], []])
    codes = {topic.topic_id: topic.partitions[0].error_code for topic in answer.responses}
    assert codes == {OPEN: 0, HIDDEN: DENIED, MISSING: UNKNOWN}


def test_offset_requests_answer_alike_for_hidden_and_missing_topics() -> None:
    part = {"partition_index": 0, "timestamp": -1, "offset": 0, "partition": 0, "leader_epoch": 0}
    rows = [data.ListOffsetsPartitionResponse(OPEN, 0), data.ListOffsetsPartitionResponse(HIDDEN, 0, UNKNOWN)]
    ends = [data.EpochEndOffsetPartition(OPEN, 0), data.EpochEndOffsetPartition(HIDDEN, 0, UNKNOWN)]
    deleted = [data.DeleteRecordsPartitionResponse(OPEN, 0), data.DeleteRecordsPartitionResponse(HIDDEN, 0, UNKNOWN)]
    for api_key, version, operation, name, answer in (
        (LIST_OFFSETS, 7, s.DESCRIBE, "name", data.ListOffsetsResponse(rows)),
        (OFFSET_FOR_LEADER_EPOCH, 4, s.DESCRIBE, "topic", data.OffsetForLeaderEpochResponse(ends)),
        (DELETE_RECORDS, 2, s.DELETE, "name", data.DeleteRecordsResponse(deleted)),
    ):
        topics = [{name: each, "partitions": [part]} for each in NAMES]
        call = read(operation, api_key, version, {"replica_id": -1, "isolation_level": 0, "timeout_ms": 1, "topics": topics})
        asked: Any = call.api.to_ours(call)
        assert [row.topic_id for row in asked.partitions] == [OPEN, HIDDEN]
        found = written(call, answer).topics
        assert {getattr(topic, name): topic.partitions[0].error_code for topic in found} == ALIKE


@pytest.mark.parametrize(
    ("api_key", "version", "operation", "item", "code"),
    [
        (LIST_OFFSETS, 7, s.DESCRIBE, {"timestamp": -7}, ErrorCode.UNSUPPORTED_VERSION),
        (LIST_OFFSETS, 1, s.DESCRIBE, {"timestamp": -3}, ErrorCode.UNSUPPORTED_VERSION),
        (DELETE_RECORDS, 2, s.DELETE, {"offset": -2}, ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_offset_that_cannot_exist_does_not_reveal_a_hidden_topic(
    api_key: int, version: int, operation: int, item: dict[str, int], code: ErrorCode
) -> None:
    """The listener itself refuses such an offset. If it did not check the right first, the error would reveal that the topic
    exists."""
    topics = [{"name": each, "partitions": [{"partition_index": 0, **item}]} for each in NAMES]
    call = read(operation, api_key, version, {"replica_id": -1, "isolation_level": 0, "timeout_ms": 1, "topics": topics})
    assert call.api.to_ours(call).partitions == []  # type: ignore[attr-defined]
    found = written(call, SimpleNamespace(partitions=[], throttle_time_ms=0)).topics
    assert {topic.name: topic.partitions[0].error_code for topic in found} == {"open": code, "hidden": DENIED, "missing": DENIED}


def test_metadata_creates_no_topic_that_the_client_may_not_describe() -> None:
    """A topic that is missing is answered as one that exists, at once, so the client cannot tell them apart."""
    topics = [{"name": name, "topic_id": bytes(16)} for name in NAMES]
    fields = {"topics": topics, "allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
    request, call = SimpleNamespace(), read(s.DESCRIBE, METADATA, 12, fields)
    assert call.api.serve is not None
    asked: list[Any] = []
    assert call.api.serve(request, call, asked.append) is None  # type: ignore[arg-type]
    assert [topic.name for topic in request.body.topics] == NAMES
    assert asked == [request]


def test_resources_with_a_configuration_are_listed_for_those_who_may_see_the_clusters() -> None:
    """DESCRIBE_CONFIGS on the cluster is required, as in Kafka. The handler of Metadata would require only DESCRIBE on topics."""
    call = read(s.DESCRIBE, LIST_CONFIG_RESOURCES, 1, {"resource_types": []})
    with pytest.raises(BrokerError, match="DESCRIBE_CONFIGS") as caught:
        call.api.to_ours(call)
    assert caught.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_operations_on_the_cluster_are_returned_to_principals_that_may_describe_it() -> None:
    call = read(s.ALTER, DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": True})
    assert (cluster_operations(call, is_asked=True), cluster_operations(call, is_asked=False)) == (0, -(2**31))
