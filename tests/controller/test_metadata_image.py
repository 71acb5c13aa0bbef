"""Metadata records, the image that they give, and the deltas that brokers act on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strandline.controller.metadata.image import MetadataDelta, MetadataImage, PartitionRegistration
from strandline.controller.metadata.persistent_map import PersistentMap
from strandline.controller.metadata.records import (
    NO_LEADER,
    RECORD_TYPES,
    AccessControlEntryRecord,
    AnyRecord,
    AskedReplica,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    ProducerNameRecord,
    ProducerNumbersRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveProducerNameRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UncleanElectionRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    decode_record,
    encode_record,
)
from strandline.protocol.errors import InternalError, PeerError
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.admin import RESOURCE_TOPIC
from strandline.protocol.messages.common import Listener

A, B = b"a" * 16, b"b" * 16
BROKER = RegisterBrokerRecord(1, 5, b"i" * 16, (Listener("PLAINTEXT", "h", 9092),), "rack", log_dirs=(b"d" * 16,))
LEVEL_1 = FeatureLevelRecord(METADATA_VERSION, 1)
EXAMPLES: list[MetadataRecord] = [
    BROKER,
    UnregisterBrokerRecord(1, 5),
    TopicRecord("t", A),
    PartitionRecord(A, 0, (1, 2), (1,), 1, 3, 4, 1, (2,), (1,), (3,), (2,)),
    ConfigRecord(RESOURCE_TOPIC, "t", "k", None),
    PartitionChangeRecord(A, 0, isr=(1, 2), leader=NO_LEADER, eligible_leader_replicas=()),
    RemoveTopicRecord(A),
    LEVEL_1,
    ProducerIdsRecord(1, 5, 1000),
    BrokerRegistrationChangeRecord(1, 5, fenced=-1, in_controlled_shutdown=1),
    NoOpRecord(),
    ProducerNameRecord("sink", 3, 7, 1, 1_700_000_000_000),
    RemoveProducerNameRecord("sink"),
    ProducerNumbersRecord(4),
    UncleanElectionRecord(A, 0, 2, 5, (AskedReplica(1), AskedReplica(2, 3, 80, 70, True)), 1, 4, 70, 80, -1, "balanced", 9),
    UserScramCredentialRecord("alice", 1, b"salt", b"stored", b"server", 4096),
    RemoveUserScramCredentialRecord("alice", 1),
    ClientQuotaRecord((("client-id", None), ("user", "alice")), "producer_byte_rate", 1024.0),
    AccessControlEntryRecord(A, 2, "t", 3, "User:alice", "*", 3, 3),
    RemoveAccessControlEntryRecord(A),
]


def apply(image: MetadataImage, *records: AnyRecord) -> MetadataDelta:
    return image.apply(records, image.offset + len(records), 1)


def image_of(*records: AnyRecord) -> MetadataImage:
    return apply(MetadataImage.EMPTY, *records).image


def topic(name: str = "t", topic_id: bytes = A, partitions: int = 2) -> list[AnyRecord]:
    return [TopicRecord(name, topic_id), *[PartitionRecord(topic_id, i, (1, 2, 3), (1, 2, 3), 1) for i in range(partitions)]]


# -- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda r: type(r).__name__)
def test_a_record_survives_its_encoding(record: MetadataRecord) -> None:
    """Every record type has an example here."""
    assert decode_record(encode_record(record)) == record
    assert {type(r).__name__ for r in EXAMPLES} == set(RECORD_TYPES.values())


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda r: type(r).__name__)
def test_fields_that_a_newer_version_appended_are_ignored(record: MetadataRecord) -> None:
    fields = msgspec.msgpack.decode(encode_record(record))
    assert decode_record(msgspec.msgpack.encode([*fields, "new"])) == record


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not readable"),
        (b"\xc1", "not readable"),
        (b"\x90", "not readable"),
        (b"\x91\xc4\x01\xff", "type b'.xff', which this version does not know"),
        (b"\x91\x63", "type 99, which this version does not know; a newer version wrote it"),
        (b"\x92\x02\x01", "TopicRecord is malformed"),
        (msgspec.msgpack.encode([2, "t", b"short"]), "TopicRecord is malformed"),
        (msgspec.msgpack.encode([2, b"\xff", A]), "TopicRecord is malformed"),
        (b"\x92\x02\xa1\xff", "malformed|not readable"),
        (encode_record(TopicRecord("t", A))[:-1], "not readable"),
        (encode_record(TopicRecord("t", A)) + b"\0", "malformed|not readable"),
    ],
    ids=repr,
)
def test_bytes_that_are_no_known_record_are_refused_with_the_reason(data: bytes, words: str) -> None:
    with pytest.raises(PeerError, match=words):
        decode_record(data)


@given(st.binary(max_size=60))
@example(msgspec.msgpack.encode([{}]))  # a type that no dict can look up
def test_no_bytes_make_the_decoder_fail_otherwise(data: bytes) -> None:
    with contextlib.suppress(PeerError):
        decode_record(data)


# -- the image --------------------------------------------------------------------------------------------------------


def test_every_change_raises_the_partition_epoch() -> None:
    before = PartitionRegistration((1, 2, 3), (1, 2, 3), 1, 5, 9)
    isr_only = before.merge(PartitionChangeRecord(A, 0, isr=(1, 2)))
    assert (isr_only.leader, isr_only.leader_epoch, isr_only.partition_epoch) == (1, 5, 10)
    same_leader = before.merge(PartitionChangeRecord(A, 0, leader=1))
    assert (same_leader.leader, same_leader.leader_epoch, same_leader.partition_epoch) == (1, 6, 10)
    no_leader = before.merge(PartitionChangeRecord(A, 0, leader=NO_LEADER))
    assert (no_leader.leader, no_leader.isr, no_leader.leader_epoch) == (NO_LEADER, (1, 2, 3), 6)


def test_a_delta_tells_what_changed_and_keeps_both_images() -> None:
    before = image_of(*topic("t", A), *topic("u", B), BROKER)
    delta = apply(before, PartitionChangeRecord(A, 1, isr=(1, 2)), PartitionChangeRecord(A, 1, leader=2), RemoveTopicRecord(B))
    assert delta.before is before
    assert delta.changed_partitions == [(A, 1)]
    assert [t.name for t in delta.removed_topics] == ["u"]
    assert (delta.created_topics, delta.changed_topics, delta.changed_brokers) == ([], [A], [])
    assert before.partition((A, 1)) == PartitionRegistration((1, 2, 3), (1, 2, 3), 1)
    assert delta.image.partition((A, 1)) == PartitionRegistration((1, 2, 3), (1, 2), 2, 1, 2)
    assert delta.image.partition((A, 0)) is before.partition((A, 0))
    assert (delta.image.topic("u"), delta.image.partition((B, 0)), delta.image.partition((A, 9))) == (None, None, None)
    assert (before.partition_count, delta.image.partition_count) == (4, 2)


def test_a_topic_created_and_removed_in_one_delta_leaves_no_trace() -> None:
    config = ConfigRecord(RESOURCE_TOPIC, "t", "k", "v")
    delta = apply(MetadataImage.EMPTY, *topic(), config, RemoveTopicRecord(A))
    assert (delta.changed_partitions, delta.removed_topics, delta.created_topics) == ([], [], [])
    assert delta.image == msgspec.structs.replace(MetadataImage.EMPTY, offset=delta.image.offset, epoch=1)


def test_a_topic_recreated_in_one_delta_is_removed_and_created() -> None:
    """The same name with another id: a broker must not use the old log for the new topic (I22)."""
    before = image_of(*topic("t", A), ConfigRecord(RESOURCE_TOPIC, "t", "k", "old"))
    delta = apply(before, RemoveTopicRecord(A), *topic("t", B, 1))
    assert ([t.topic_id for t in delta.removed_topics], delta.created_topics) == ([A], [B])
    found = delta.image.topic("t")
    assert found is not None
    assert (found.topic_id, len(found.partitions), delta.image.partition_count) == (B, 1, 1)
    assert delta.image.config(RESOURCE_TOPIC, "t") == {}


def test_brokers_are_registered_changed_and_unregistered() -> None:
    image = image_of(BROKER)
    assert image.brokers[1].fenced
    assert not image.brokers[1].is_active
    image = apply(image, BrokerRegistrationChangeRecord(1, 5, fenced=-1)).image
    assert image.brokers[1].is_active
    delta = apply(image, BrokerRegistrationChangeRecord(1, 5, in_controlled_shutdown=1))
    assert (delta.image.brokers[1].is_active, delta.image.brokers[1].fenced) == (False, False)
    assert delta.changed_brokers == [1]
    endpoint = image.brokers[1].endpoint("PLAINTEXT")
    assert endpoint is not None
    assert (endpoint.port, image.brokers[1].endpoint("OTHER")) == (9092, None)
    again = apply(delta.image, msgspec.structs.replace(BROKER, broker_epoch=50)).image
    assert (again.brokers[1].broker_epoch, again.brokers[1].in_controlled_shutdown) == (50, False)
    assert apply(again, UnregisterBrokerRecord(1, 50)).image.brokers == {}


@pytest.mark.parametrize(
    "record",
    [
        TopicRecord("t", A),
        PartitionRecord(B, 0, (1,), (1,), 1),
        PartitionChangeRecord(B, 0, isr=(1,)),
        PartitionChangeRecord(A, 9, isr=(1,)),
        RemoveTopicRecord(B),
        BrokerRegistrationChangeRecord(1, 4, fenced=1),
        BrokerRegistrationChangeRecord(2, 5, fenced=1),
        UnregisterBrokerRecord(1, 4),
    ],
    ids=repr,
)
def test_a_record_that_contradicts_the_image_is_our_bug_and_stops(record: AnyRecord) -> None:
    with pytest.raises(InternalError, match="metadata record"):
        apply(image_of(*topic(), BROKER), record)
    with pytest.raises(InternalError, match="metadata record"):
        apply(image_of(*topic(), BROKER), RemoveTopicRecord(A), RemoveTopicRecord(A))


IMPOSSIBLE = {
    "no replicas": ((), (1,), 1),
    "a replica twice": ((1, 2, 2), (1,), 1),
    "a replica without an id": ((1, -1), (1,), 1),
    "an empty ISR": ((1, 2, 3), (), NO_LEADER),
    "an ISR outside of the replicas": ((1, 2, 3), (1, 9), 1),
    "a member of the ISR twice": ((1, 2, 3), (1, 1), 1),
    "a leader outside of the replicas": ((1, 2, 3), (1, 2), 9),
    "a leader outside of the ISR": ((1, 2, 3), (1, 2), 3),
    "a leader of an unknown meaning": ((1, 2, 3), (1, 2), -3),
}


@pytest.mark.parametrize(("replicas", "isr", "leader"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_record_of_an_unsafe_partition_state_is_rejected(replicas: tuple[int, ...], isr: tuple[int, ...], leader: int) -> None:
    """It is rejected in the log and in a snapshot. Otherwise a broker would lead without records of the ISR, or wait for a member
    that never fetches. No part of the batch is applied, and the error names the partition."""
    image = image_of(*topic(), BROKER)
    new = [TopicRecord("u", B), PartitionRecord(B, 0, (1, 2), (1, 2), 1), PartitionRecord(B, 1, replicas, isr, leader)]
    with pytest.raises(InternalError, match=r"partition u-1 .* no partition may have: its .*; nothing of its batch is applied"):
        apply(image, *new)
    with pytest.raises(InternalError, match="partition u-1"):
        MetadataImage.from_records(new, 50, 3)
    assert image == image_of(*topic(), BROKER)
    assert image.topic("u") is None


@pytest.mark.parametrize(
    "change",
    [
        PartitionChangeRecord(A, 0, isr=(1, 9)),
        PartitionChangeRecord(A, 0, isr=(2, 3)),
        PartitionChangeRecord(A, 0, leader=9),
        PartitionChangeRecord(A, 0, replicas=(2, 3, 4)),
        PartitionChangeRecord(A, 0, replicas=(1, 2, 3, 3)),
        PartitionChangeRecord(A, 0, isr=(), leader=NO_LEADER),
        PartitionChangeRecord(A, 0, eligible_leader_replicas=(9,)),
    ],
    ids=repr,
)
def test_an_unsafe_change_is_rejected_whatever_follows_it(change: PartitionChangeRecord) -> None:
    """A later record that would repair it does not help, because brokers may apply the records in smaller portions."""
    image = image_of(*topic())
    mended = PartitionChangeRecord(A, 0, replicas=(1, 2, 3), isr=(1,), leader=1, eligible_leader_replicas=())
    with pytest.raises(InternalError, match="partition t-0"):
        apply(image, change, mended)


def test_the_epochs_of_a_partition_keep_their_order() -> None:
    with pytest.raises(InternalError, match="its leader epoch is 5, which must not exceed its partition epoch 4"):
        image_of(TopicRecord("t", A), PartitionRecord(A, 0, (1,), (1,), 1, 5, 4))


def test_a_snapshot_makes_the_same_image() -> None:
    image = image_of(*topic("t", A, 3), *topic("u", B), BROKER, ConfigRecord(RESOURCE_TOPIC, "t", "k", "v"))
    change = PartitionChangeRecord(A, 2, isr=(2, 3), leader=2, eligible_leader_replicas=(1,))
    image = apply(image, LEVEL_1, change, ProducerIdsRecord(1, 5, 7000)).image
    assert MetadataImage.from_records(image.to_records(), image.offset, image.epoch) == image
    assert list(MetadataImage.EMPTY.to_records()) == []


def test_the_delta_to_a_snapshot_equals_a_replay() -> None:
    """A broker that was away for long gets a snapshot, and must act on the changes since its last image."""
    before = image_of(*topic("t", A), *topic("u", B), BROKER)
    delta = apply(
        before,
        RemoveTopicRecord(B),
        PartitionChangeRecord(A, 1, isr=(1,)),
        *topic("v", b"v" * 16, 1),
        BrokerRegistrationChangeRecord(1, 5, fenced=-1),
        ConfigRecord(RESOURCE_TOPIC, "t", "k", "v"),
    )
    loaded = MetadataImage.from_records(delta.image.to_records(), delta.image.offset, delta.image.epoch)
    found = before.delta_to(loaded)
    for name in (
        "changed_partitions",
        "removed_topics",
        "created_topics",
        "changed_topics",
        "changed_brokers",
        "changed_configs",
    ):
        assert sorted(getattr(found, name), key=repr) == sorted(getattr(delta, name), key=repr)
    assert not found.is_empty
    assert loaded.delta_to(loaded).is_empty


def test_one_change_among_ten_thousand_partitions_does_not_copy_them() -> None:
    """The test counts instead of timing: how many dictionary entries a hundred changes copy in total."""
    image = image_of(*topic("t", A, 10_000))
    copied = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal copied
        if event == "return" and frame.f_code is PersistentMap._next.__code__:
            copied += len(frame.f_locals["overlay"]) + len(frame.f_locals.get("folded", ()))

    sys.setprofile(count)
    try:
        for index in range(100):
            image = apply(image, PartitionChangeRecord(A, index * 7, isr=(1,))).image
    finally:
        sys.setprofile(None)
    assert 0 < copied < 10_000
    found = image.topic("t")
    assert found is not None
    assert sum(p.isr == (1,) for p in found.partitions.values()) == 100


# -- the map beneath ----------------------------------------------------------------------------------------------------

_Change = tuple[dict[int, int], set[int]]


def is_missing(found: PersistentMap[int, int], key: int) -> bool:
    """Like `pytest.raises`, but a hundred times as fast: there are a million of these."""
    try:
        found[key]
    except KeyError:
        return True
    return False


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.integers(0, 400), st.integers(), max_size=300),
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 400), st.integers(), max_size=30),
            st.sets(st.integers(0, 400), max_size=20),
        ),
        max_size=15,
    ),
)
def test_a_persistent_map_is_a_dict_whose_old_versions_stay(start: dict[int, int], changes: Iterable[_Change]) -> None:
    versions = [(PersistentMap(start), dict(start))]
    for changed, removed in changes:
        found, expected = versions[-1]
        found = found.updated(changed, dict.fromkeys(removed))
        expected = {k: v for k, v in (expected | changed).items() if k not in removed}
        versions.append((found, expected))
    for found, expected in versions:
        assert found == expected
        assert len(found) == len(expected) == len(list(found))
        for key in range(401):
            assert found.get(key) == expected.get(key)
            assert (key in found) == (key in expected)
            if key in expected:
                assert found[key] == expected[key]
            else:
                assert is_missing(found, key)
