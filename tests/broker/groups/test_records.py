"""The records of `__consumer_offsets` are Kafka's bytes: compared with those that Kafka's own classes write, of every version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.broker.groups.records.codec import UnknownRecordType, decode_record, encode_record
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
    PartitionEpochs,
    RegularExpressionRecord,
    RegularExpressionValue,
    TargetAssignmentMemberRecord,
    TargetAssignmentMetadataRecord,
    TargetAssignmentMetadataValue,
)

GOLDEN = json.loads((Path(__file__).parent / "golden_records.json").read_text())
"""Bytes that Kafka's own Java classes have written, by `java/GoldenGroupRecords.java`."""

GROUP, TOPIC, MEMBER, TIME_MS = "readers", "orders", "member-1", 1_700_000_000_000
TOPIC_ID, OTHER_ID = bytes(range(1, 17)), bytes(range(17, 33))


def offset(value: CommittedOffset | None) -> OffsetCommitRecord:
    return OffsetCommitRecord(GROUP, TOPIC, 11, value)


def member(classic: ClassicMemberMetadata | None) -> MemberMetadataRecord:
    names = ("invoices", "orders")
    value = MemberMetadataValue("instance-1", "rack-a", "client", "/10.0.0.1", names, "ord.*", 300_000, "uniform", classic)
    return MemberMetadataRecord(GROUP, MEMBER, value)


def assignment(
    epoch: int, previous: int, state: MemberState, assigned: PartitionEpochs, revoked: PartitionEpochs | None = None
) -> CurrentAssignmentRecord:
    value = CurrentAssignmentValue(epoch, previous, state, assigned, revoked or {})
    return CurrentAssignmentRecord(GROUP, MEMBER, value)


def classic_group(
    *members: ClassicMemberValue,
    generation: int = 41,
    protocol: str | None = "range",
    leader: str | None = "one",
    time: int = TIME_MS,
) -> GroupMetadataRecord:
    return GroupMetadataRecord(GROUP, ClassicGroupValue("consumer", generation, protocol, leader, time, members))


def classic_member(instance_id: str | None = None, rebalance_timeout_ms: int = 300_000) -> ClassicMemberValue:
    return ClassicMemberValue("one", instance_id, "client", "/10.0.0.1", rebalance_timeout_ms, 45_000, b"\1", b"\2\3")


ONE = ClassicMemberValue("one", None, "client-one", "/10.0.0.1", 300_000, 45_000, b"one", b"\1\2\3")
TWO = ClassicMemberValue("two", "instance-2", "client-two", "/10.0.0.1", 60_000, 10_000, b"two", b"")
CLASSIC_METADATA = ClassicMemberMetadata(45_000, (ClassicProtocol("range", b"\0\1"), ClassicProtocol("sticky", b"")))

WRITTEN: dict[str, GroupRecord] = {
    "an offset": offset(CommittedOffset(4711, 3, "", TIME_MS, topic_id=TOPIC_ID)),
    "an offset without a leader epoch and a topic id": offset(CommittedOffset(0, commit_timestamp=TIME_MS)),
    "an offset with metadata": offset(CommittedOffset(1 << 40, 7, "ä漢🌊" * 20, TIME_MS, topic_id=TOPIC_ID)),
    "an offset that expires": offset(CommittedOffset(5, -1, "note", TIME_MS, TIME_MS + 60_000)),
    "an offset's tombstone": offset(None),
    "a classic group": classic_group(ONE, TWO),
    "a classic group without members": classic_group(generation=42, protocol=None, leader=None),
    "a new classic group": GroupMetadataRecord(GROUP, ClassicGroupValue("", 0, None, None, TIME_MS, ())),
    "a classic group's tombstone": GroupMetadataRecord(GROUP, None),
    "a consumer group": ConsumerGroupMetadataRecord(GROUP, ConsumerGroupMetadataValue(17, -4_000_000_000_000_000_000)),
    "a consumer group without a hash": ConsumerGroupMetadataRecord(GROUP, ConsumerGroupMetadataValue(1)),
    "a consumer group's tombstone": ConsumerGroupMetadataRecord(GROUP, None),
    "an assignment epoch": TargetAssignmentMetadataRecord(GROUP, TargetAssignmentMetadataValue(16, TIME_MS)),
    "an assignment epoch without a time": TargetAssignmentMetadataRecord(GROUP, TargetAssignmentMetadataValue(0)),
    "an assignment epoch's tombstone": TargetAssignmentMetadataRecord(GROUP, None),
    "a regular expression": RegularExpressionRecord(
        GROUP, "ord.*|ä", RegularExpressionValue(("orders", "ordinals"), 815, TIME_MS)
    ),
    "a regular expression's tombstone": RegularExpressionRecord(GROUP, "ord.*", None),
    "a member": member(None),
    "a member with few fields": MemberMetadataRecord(GROUP, MEMBER, MemberMetadataValue(None, None, "", "", (), None, -1, None)),
    "a member of the classic protocol": member(CLASSIC_METADATA),
    "a member with empty classic metadata": member(ClassicMemberMetadata(0, ())),
    "a member's tombstone": MemberMetadataRecord(GROUP, MEMBER, None),
    "a target assignment": TargetAssignmentMemberRecord(
        GROUP, MEMBER, {OTHER_ID: frozenset({5}), TOPIC_ID: frozenset({300, 0, 1})}
    ),
    "an empty target assignment": TargetAssignmentMemberRecord(GROUP, MEMBER, {}),
    "a target assignment's tombstone": TargetAssignmentMemberRecord(GROUP, MEMBER, None),
    "a current assignment": assignment(
        16, 15, MemberState.UNREVOKED_PARTITIONS, {OTHER_ID: {5: 16}, TOPIC_ID: {300: 13, 1: 16, 0: 12}}, {TOPIC_ID: {2: 9}}
    ),
    "an empty current assignment": assignment(-2, 3, MemberState.STABLE, {}),
    "a current assignment's tombstone": CurrentAssignmentRecord(GROUP, MEMBER, None),
}
"""Each record in the version that Kafka's coordinator chooses. Topics and partitions are in another order than in the bytes."""

WAITING = MemberState.UNRELEASED_PARTITIONS
READ: dict[str, GroupRecord] = {
    "OffsetCommitValue 0": offset(CommittedOffset(4711, -1, "note", TIME_MS)),
    "OffsetCommitValue 1": offset(CommittedOffset(4711, -1, "note", TIME_MS, TIME_MS + 1)),
    "OffsetCommitValue 2": offset(CommittedOffset(4711, -1, "note", TIME_MS)),
    "OffsetCommitValue 3": offset(CommittedOffset(4711, 3, "note", TIME_MS)),
    "OffsetCommitValue 4": offset(CommittedOffset(4711, 3, "note", TIME_MS, topic_id=TOPIC_ID)),
    "OffsetCommitValue with unknown tags": offset(CommittedOffset(4711, -1, "note", 0, topic_id=TOPIC_ID)),
    "LegacyOffsetCommitValue 0": offset(CommittedOffset(4711, -1, "note", TIME_MS)),
    "LegacyOffsetCommit tombstone": offset(None),
    "GroupMetadataValue 0": classic_group(classic_member(rebalance_timeout_ms=45_000), time=-1),
    "GroupMetadataValue 1": classic_group(classic_member(), time=-1),
    "GroupMetadataValue 2": classic_group(classic_member()),
    "GroupMetadataValue 3": classic_group(classic_member("instance-1")),
    "GroupMetadataValue 4": classic_group(classic_member("instance-1")),
    "GroupMetadataValue with unknown tags": classic_group(classic_member("instance-1")),
    "ConsumerGroupMetadataValue with unknown tags": ConsumerGroupMetadataRecord(GROUP, ConsumerGroupMetadataValue(5, 6)),
    "ConsumerGroupTargetAssignmentMemberValue with unknown tags": TargetAssignmentMemberRecord(
        GROUP, MEMBER, {TOPIC_ID: frozenset({1, 2})}
    ),
    "assignment epochs null": assignment(9, 8, WAITING, {TOPIC_ID: {4: 9, 2: 9}}),
    "assignment epochs [7]": assignment(9, 8, WAITING, {TOPIC_ID: {4: 9, 2: 9}}),
    "assignment epochs [7, 8]": assignment(9, 8, WAITING, {TOPIC_ID: {4: 7, 2: 8}}),
    "assignment of a static member that left": assignment(-2, 8, MemberState.STABLE, {TOPIC_ID: {4: 0}}),
}
UNKNOWN = {"type 4": 4, "type 10": 10, "type 11": 11, "type 17": 17, "type 23": 23}


def golden(name: str) -> tuple[bytes, bytes | None]:
    key, value = {**GOLDEN["written"], **GOLDEN["read"]}[name]
    return bytes.fromhex(key), None if value is None else bytes.fromhex(value)


def test_every_golden_record_has_its_meaning_here() -> None:
    assert GOLDEN["written"].keys() == WRITTEN.keys()
    assert GOLDEN["read"].keys() == READ.keys() | UNKNOWN.keys()


@pytest.mark.parametrize("name", WRITTEN)
def test_record_is_written_as_kafka_writes_it(name: str) -> None:
    """Kafka's tools, a Kafka that takes over a log, and other implementations read our records."""
    assert encode_record(WRITTEN[name]) == golden(name)


@pytest.mark.parametrize("name", [*WRITTEN, *READ])
def test_record_of_kafka_is_read(name: str) -> None:
    """Every version that a Kafka cluster may have left in its log."""
    assert decode_record(*golden(name)) == {**WRITTEN, **READ}[name]


@pytest.mark.parametrize("name", UNKNOWN)
def test_type_of_another_kind_of_group_is_named(name: str) -> None:
    """The loader skips it, also if its value is in a form that we could not read."""
    with pytest.raises(UnknownRecordType) as caught:
        decode_record(*golden(name))
    assert caught.value.type == UNKNOWN[name]
