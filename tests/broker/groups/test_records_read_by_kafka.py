"""Kafka's own `kafka-dump-log --offsets-decoder` prints the records of a log that our storage wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_kafka import dump, kafka_tools
from storage_kit import NOW_MS, open_log

from strandline.broker.groups.coordinator import encode_batches
from strandline.broker.groups.records.codec import encode_record
from strandline.broker.groups.records.types import (
    ClassicGroupValue,
    ClassicMemberMetadata,
    ClassicMemberValue,
    ClassicProtocol,
    CommittedOffset,
    ConsumerGroupMetadataRecord,
    ConsumerGroupMetadataValue,
    CurrentAssignmentRecord,
    CurrentAssignmentValue,
    GroupMetadataRecord,
    GroupRecord,
    MemberMetadataRecord,
    MemberMetadataValue,
    MemberState,
    OffsetCommitRecord,
    RegularExpressionRecord,
    RegularExpressionValue,
    TargetAssignmentMemberRecord,
    TargetAssignmentMetadataRecord,
    TargetAssignmentMetadataValue,
)
from strandline.protocol.records.builder import BatchBuilder, encode_batch
from strandline.protocol.records.marker import EndTransactionMarker
from strandline.storage.files import RealFiles

TOPIC_ID = bytes(range(16))
CLASSIC = ClassicMemberMetadata(45_000, (ClassicProtocol("range", b"\1"),))
RECORDS: list[GroupRecord] = [
    OffsetCommitRecord("g", "orders", 11, CommittedOffset(4711, 3, "näte", NOW_MS, topic_id=TOPIC_ID)),
    OffsetCommitRecord("g", "orders", 12, CommittedOffset(5, -1, "", NOW_MS, NOW_MS + 1)),
    OffsetCommitRecord("g", "orders", 13, None),
    GroupMetadataRecord(
        "c",
        ClassicGroupValue("consumer", 41, "range", "one", NOW_MS, (ClassicMemberValue("one", "i", "cl", "/h", 7, 8, b"", b""),)),
    ),
    GroupMetadataRecord("c", None),
    ConsumerGroupMetadataRecord("g", ConsumerGroupMetadataValue(17, 815)),
    MemberMetadataRecord("g", "m", MemberMetadataValue("i", "r", "cl", "/h", ("a", "b"), "a.*", 9, "uniform", CLASSIC)),
    MemberMetadataRecord("g", "n", MemberMetadataValue(None, None, "cl", "/h", (), None, 9, None)),
    TargetAssignmentMetadataRecord("g", TargetAssignmentMetadataValue(16, NOW_MS)),
    TargetAssignmentMemberRecord("g", "m", {TOPIC_ID: frozenset({1, 0})}),
    CurrentAssignmentRecord(
        "g", "m", CurrentAssignmentValue(16, 15, MemberState.UNREVOKED_PARTITIONS, {TOPIC_ID: {0: 12}}, {TOPIC_ID: {1: 9}})
    ),
    RegularExpressionRecord("g", "a.*", RegularExpressionValue(("a", "ab"), 815, NOW_MS)),
    MemberMetadataRecord("g", "m", None),
]
ID = "AAECAwQFBgcICQoLDA0ODw"
"""The topic id as Kafka prints it."""
OWNED = {"topicId": ID, "partitions": [0], "assignmentEpochs": [12]}
REVOKED = {"topicId": ID, "partitions": [1], "assignmentEpochs": [9]}
CLASSIC_MEMBER = {
    "memberId": "one",
    "groupInstanceId": "i",
    "clientId": "cl",
    "clientHost": "/h",
    "rebalanceTimeout": 7,
    "sessionTimeout": 8,
    "subscription": "",
    "assignment": "",
}
MEMBER = {"clientId": "cl", "clientHost": "/h", "rebalanceTimeoutMs": 9}
PRINTED: list[tuple[int, dict[str, Any], dict[str, Any] | None]] = [
    (1, {"group": "g", "topic": "orders", "partition": 11}, {"offset": 4711, "leaderEpoch": 3, "topicId": ID}),
    (1, {"group": "g", "topic": "orders", "partition": 12}, {"offset": 5, "expireTimestamp": NOW_MS + 1}),
    (1, {"group": "g", "topic": "orders", "partition": 13}, None),
    (2, {"group": "c"}, {"generation": 41, "leader": "one", "currentStateTimestamp": NOW_MS, "members": [CLASSIC_MEMBER]}),
    (2, {"group": "c"}, None),
    (3, {"groupId": "g"}, {"epoch": 17, "metadataHash": 815}),
    (5, {"groupId": "g", "memberId": "m"}, {**MEMBER, "subscribedTopicNames": ["a", "b"], "subscribedTopicRegex": "a.*"}),
    (5, {"groupId": "g", "memberId": "n"}, {**MEMBER, "classicMemberMetadata": None, "subscribedTopicRegex": None}),
    (6, {"groupId": "g"}, {"assignmentEpoch": 16, "assignmentTimestamp": NOW_MS}),
    (7, {"groupId": "g", "memberId": "m"}, {"topicPartitions": [{"topicId": ID, "partitions": [0, 1]}]}),
    (8, {"groupId": "g", "memberId": "m"}, {"assignedPartitions": [OWNED], "partitionsPendingRevocation": [REVOKED]}),
    (16, {"groupId": "g", "regularExpression": "a.*"}, {"topics": ["a", "ab"], "version": 815, "timestamp": NOW_MS}),
    (5, {"groupId": "g", "memberId": "m"}, None),
]
"""Type, key and some fields of the value of each record."""


@pytest.mark.kafka
def test_kafka_prints_the_records_of_our_log(tmp_path: Path) -> None:
    """Operators look into `__consumer_offsets` with Kafka's tools; a damaged or foreign form would be printed as an error."""
    log = open_log(RealFiles(), str(tmp_path / "__consumer_offsets-0"))
    for record in RECORDS:
        key, value = encode_record(record)
        log.append_as_leader(bytearray(encode_batch([(key, value, [], NOW_MS)])), 0, NOW_MS)
    log.close()
    text = dump(kafka_tools(), sorted(tmp_path.glob("*/*.log")), "--offsets-decoder")
    found = list(printed(text))
    assert [(type_, key) for type_, key, _ in found] == [(type_, key) for type_, key, _ in PRINTED]
    for (_, key, value), (_, _, expected) in zip(found, PRINTED, strict=True):
        if value is None or expected is None:
            assert value is expected, key
        else:
            assert value == value | expected, key


@pytest.mark.kafka
def test_kafka_prints_offsets_in_transactions(tmp_path: Path) -> None:
    """The log has the batches of a producer and the marker that ends its transaction, as the coordinator writes them."""
    log = open_log(RealFiles(), str(tmp_path / "__consumer_offsets-0"))
    for record in RECORDS[:2]:
        builder = BatchBuilder(7, 3, log.producers.next_sequence(7, 3), is_transactional=True)
        log.append_as_leader(encode_batches([record], NOW_MS, 1 << 20, builder), 0, NOW_MS, is_transactional=True)
    log.append_marker(EndTransactionMarker(is_commit=True, coordinator_epoch=5), 7, 4, 0, NOW_MS)
    log.close()
    text = dump(kafka_tools(), sorted(tmp_path.glob("*/*.log")), "--offsets-decoder")
    assert [(type_, key) for type_, key, _ in printed(text)] == [(type_, key) for type_, key, _ in PRINTED[:2]]
    assert text.count("isTransactional: true") == 3
    assert "endTxnMarker: COMMIT coordinatorEpoch: 5" in text


def printed(text: str) -> Iterator[tuple[int, dict[str, Any], dict[str, Any] | None]]:
    """Type, key and value of each record that the tool has printed."""
    for line in text.splitlines():
        if " payload: " in line:
            key, _, value = line.partition(" key: ")[2].partition(" payload: ")
            decoded = json.loads(key)
            yield int(decoded["type"]), decoded["data"], None if value == "<DELETE>" else json.loads(value)["data"]
