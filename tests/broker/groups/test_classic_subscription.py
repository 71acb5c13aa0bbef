"""The embedded protocol `consumer`: Kafka's bytes, all versions, and bytes that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.groups.classic.embedded import MalformedMetadata
from strandline.broker.groups.classic.subscription import (
    Subscription,
    parse_subscription,
    parse_topics,
)

TOPICS = ("orders", "zahlungen-ä")
OWNED = {"orders": (0, 2), "zahlungen-ä": (1,)}

_HEAD = "0000000200066f7264657273000c7a61686c756e67656e2dc3a4000000020102"
_OWNED = "0000000200066f7264657273000000020000000000000002000c7a61686c756e67656e2dc3a40000000100000001"

KAFKA = {
    "0000" + _HEAD: Subscription(0, TOPICS, b"\1\2"),
    "0001" + _HEAD + _OWNED: Subscription(1, TOPICS, b"\1\2", OWNED),
    "0002" + _HEAD + _OWNED + "00000007": Subscription(2, TOPICS, b"\1\2", OWNED, 7),
    "0003" + _HEAD + _OWNED + "00000007" + "00067261636b2d31": Subscription(3, TOPICS, b"\1\2", OWNED, 7, "rack-1"),
    "000000000000ffffffff": Subscription(0, ()),
    "000100000000ffffffff00000000": Subscription(1, ()),
    "000200000000ffffffff00000000ffffffff": Subscription(2, ()),
    "000300000000ffffffff00000000ffffffffffff": Subscription(3, ()),
}
"""From `ConsumerProtocol.serializeSubscription` of Kafka 4.3.1."""


@pytest.mark.parametrize("data", KAFKA)
def test_subscriptions_of_kafka_are_read(data: str) -> None:
    assert parse_subscription(bytes.fromhex(data)) == KAFKA[data]
    assert parse_topics(bytes.fromhex(data)) == KAFKA[data].topics


@pytest.mark.parametrize("data", KAFKA)
def test_a_later_version_is_read_as_far_as_it_is_known(data: str) -> None:
    """A later version begins with the fields of version 3. The topics are read alike in all versions."""
    later = bytes.fromhex("7fff" + data[4:] + "0102")
    assert parse_topics(later) == KAFKA[data].topics
    if KAFKA[data].version == 3:
        known = KAFKA[data]
        assert parse_subscription(later) == Subscription(
            32767, known.topics, known.user_data, known.owned_partitions, known.generation, known.rack
        )


@pytest.mark.parametrize("data", KAFKA)
def test_a_subscription_that_was_cut_is_malformed(data: str) -> None:
    """Every shorter length, in each version."""
    whole = bytes.fromhex(data)
    for size in range(len(whole)):
        with pytest.raises(MalformedMetadata):
            parse_subscription(whole[:size])


@pytest.mark.parametrize(
    "data",
    [
        "",
        "ffff00000000ffffffff",
        "0000ffffffff",
        "00007fffffff",
        "000000000001ffffffff",
        "00000000000100020000",
        "0000000000010002c3c3ffffffff",
        "000000000000fffffffe",
    ],
)
def test_malformed_subscriptions(data: str) -> None:
    """A negative version, negative and too large counts, a null name, a name that is too long, one that is not UTF-8, and a
    negative length."""
    with pytest.raises(MalformedMetadata):
        parse_subscription(bytes.fromhex(data))


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_malformed(data: bytes) -> None:
    """The bytes are sent by a client."""
    for parse in (parse_topics, parse_subscription):
        try:
            parse(data)
        except MalformedMetadata:
            pass
