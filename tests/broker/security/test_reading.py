"""READ on a topic is checked at each visit of a fetch: with real partitions, sessions, parked requests and metadata."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from replica_world import TOPIC, Node, P, ReplicaWorld, batch, code, fetched, values, want

from strandline.broker.security.reading import Reading
from strandline.controller.metadata.records import AccessControlEntryRecord, FeatureLevelRecord, RemoveAccessControlEntryRecord
from strandline.controller.metadata.security.access import Rights
from strandline.controller.metadata.security.authorizer import Authorizer
from strandline.protocol.apis import FETCH
from strandline.protocol.errors import ErrorCode
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.security import ALLOW, DESCRIBE, LITERAL_PATTERN, READ, TOPIC_RESOURCE
from strandline.protocol.security.principal import ANONYMOUS, Principal

SECRET = b"topic-id-number2"
Q = (SECRET, 0)


def granted(operation: int, number: int, name: str = "orders") -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        bytes([number]) * 16, TOPIC_RESOURCE, name, LITERAL_PATTERN, str(ANONYMOUS), "*", operation, ALLOW
    )


def withdrawn(number: int) -> RemoveAccessControlEntryRecord:
    return RemoveAccessControlEntryRecord(bytes([number]) * 16)


@pytest.fixture
def world() -> ReplicaWorld:
    """A leader of two topics with one record each; the consumer may describe and read `orders`."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1,))
    world.topic(replicas=(1,), topic_id=SECRET, name="secret")
    world.change(FeatureLevelRecord(METADATA_VERSION, 2))
    world.change(granted(DESCRIBE, 1), granted(READ, 2))
    leader = world[1]
    rights = Rights(Authorizer([Principal("User", "admin")]), lambda: world.image)
    fetch_handler: Any = leader.handlers[FETCH].__self__  # type: ignore[union-attr]
    fetch_handler.reading = partial(Reading, rights)
    for key in (P, Q):
        leader.produce("a", key=key)
    return world


def leader_of(world: ReplicaWorld) -> Node:
    return world[1]


def test_consumer_reads_only_topics_with_the_right(world: ReplicaWorld) -> None:
    """A topic that it may not describe has the error of an id that does not exist."""
    answer = leader_of(world).fetch(want(0), want(0, key=Q), want(0, key=(bytes(15) + b"?", 0)))
    assert values(answer) == [b"a"]
    assert [p.error_code for p in answer.answer.partitions] == [0, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID]
    assert fetched(answer)[Q].high_watermark == -1


def test_right_that_is_withdrawn_ends_a_session_for_the_topic(world: ReplicaWorld) -> None:
    """Later requests of a session name no partition, so each of them checks the right. When the right returns, so do the
    records."""
    leader = leader_of(world)
    session = leader.fetch(want(0), session_epoch=0).answer.session_id
    world.change(withdrawn(2))
    leader.produce("b")
    answer = leader.fetch(session_id=session, session_epoch=1)
    assert code(answer) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert answer.records == [[]]
    world.change(granted(READ, 3))
    answer = leader.fetch(want(1), session_id=session, session_epoch=2)
    assert values(answer) == [b"b"]


def test_right_that_is_withdrawn_counts_for_a_parked_fetch(world: ReplicaWorld) -> None:
    """The fetch may wait for minutes, so the right is checked again when a record is appended."""
    leader = leader_of(world)
    parked = leader.fetch(want(1), max_wait_ms=60_000)
    assert not parked.is_answered
    world.change(withdrawn(2))
    leader.produce("b")
    assert code(parked) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_refused_topic_does_not_make_a_session_spin(world: ReplicaWorld) -> None:
    """The session returns the error once. A later fetch without any news waits, instead of being answered at once again and
    again."""
    leader = leader_of(world)
    session = leader.fetch(want(1), want(0, key=Q), session_epoch=0).answer.session_id
    waiting = leader.fetch(session_id=session, session_epoch=1, max_wait_ms=500)
    assert not waiting.is_answered
    leader.produce("b")
    assert values(waiting, [p.topic_id for p in waiting.answer.partitions].index(TOPIC)) == [b"b"]


def test_followers_are_not_asked(world: ReplicaWorld) -> None:
    """Followers need CLUSTER_ACTION instead, which the guard of Fetch has checked."""
    world.topic(replicas=(1, 2), topic_id=b"topic-id-number3", name="copied")
    leader = leader_of(world)
    leader.produce(batch("a"), key=(b"topic-id-number3", 0), acks=1)
    assert values(leader.said_by(2, 0, key=(b"topic-id-number3", 0))) == [b"a"]
