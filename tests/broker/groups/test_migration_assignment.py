"""The assignment of the embedded protocol `consumer`: Kafka's bytes."""

from __future__ import annotations

import pytest
from consumer_world import Topics
from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.groups.classic.embedded import MalformedMetadata
from strandline.broker.groups.migration.assignment import Assignment, by_id, by_name, encode_assignment, parse_assignment

PARTITIONS = {"orders": (0, 2), "zahlungen-ä": (1,)}
_BODY = "0000000200066f7264657273000000020000000000000002000c7a61686c756e67656e2dc3a40000000100000001"


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_the_bytes_are_those_of_kafka(version: int) -> None:
    """From `ConsumerProtocol.serializeAssignment` of Kafka 4.3.1; the user data of the first one is a single byte 9."""
    head = f"{version:04x}"
    assert encode_assignment(version, PARTITIONS).hex() == head + _BODY + "ffffffff"
    assert encode_assignment(version, {}).hex() == head + "00000000ffffffff"
    assert parse_assignment(bytes.fromhex(head + _BODY + "0000000109")) == Assignment(PARTITIONS, b"\x09")
    assert parse_assignment(bytes.fromhex(head + "00000000ffffffff")) == Assignment({})


def test_an_assignment_for_a_later_version_is_of_the_newest_known_one() -> None:
    assert encode_assignment(9, {}).hex() == "000300000000ffffffff"


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert parse_assignment(bytes.fromhex("7fff" + _BODY + "ffffffff" + "abcdef")) == Assignment(PARTITIONS)


def test_a_member_without_an_assignment_has_no_bytes() -> None:
    assert parse_assignment(b"") == Assignment({})


def test_topics_and_partitions_are_in_order() -> None:
    """Equal assignments have equal bytes."""
    assert encode_assignment(0, {"b": [2, 1], "a": [0]}) == encode_assignment(0, {"a": [0], "b": [1, 2]})


@given(st.dictionaries(st.text(max_size=8), st.sets(st.integers(0, 2**31 - 1), max_size=5), max_size=5))
def test_what_is_written_is_read(partitions: dict[str, set[int]]) -> None:
    read = parse_assignment(encode_assignment(1, partitions))
    assert {topic: set(numbers) for topic, numbers in read.partitions.items()} == partitions


@given(st.binary(min_size=1, max_size=40))
def test_any_bytes_are_read_or_malformed(data: bytes) -> None:
    """They come from a member that was the leader of its group."""
    try:
        parse_assignment(data)
    except MalformedMetadata:
        pass


def test_names_and_ids() -> None:
    """Topics that do not exist are left out in both directions."""
    topics = Topics(orders=3)
    orders = topics.topic_id("orders")
    assert by_id({"orders": [0, 1], "gone": [0]}, topics.image) == {orders: {0, 1}}
    assert by_id({"orders": []}, topics.image) == {}
    assert by_name({orders: [1], bytes(16): [0]}, topics.image) == {"orders": [1]}
