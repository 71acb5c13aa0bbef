"""`controller_mutation_rate`: how fast a client may create and delete partitions (`controller/security/mutation_quota.py`)."""

from __future__ import annotations

from typing import Any

import pytest
from controller_world import ControllerWorld
from handled_request import HandledRequest

from strandline.protocol import apis
from strandline.protocol.errors import BrokerError
from strandline.protocol.errors import ErrorCode as E
from strandline.protocol.messages import admin
from strandline.protocol.messages import security as s

REFUSED = E.THROTTLING_QUOTA_EXCEEDED
BURST = 11 * 5
"""`controller.quota.window.num` windows of one second, at five partitions per second."""


class EnvelopedRequest(HandledRequest):
    """A request that a broker forwards for a client."""

    def __init__(self, body: Any, user: str, client_id: str) -> None:
        super().__init__(body)
        self.paying_client = (user, client_id)


class World(ControllerWorld):
    """Alice may create and delete five partitions per second."""

    def __init__(self, **options: Any) -> None:
        super().__init__(brokers=3, **options)
        self.set_quota(5.0)

    def set_quota(self, value: float | None) -> None:
        change = s.QuotaAlteration([s.QuotaEntityPart("user", "alice")], [s.QuotaOperation("controller_mutation_rate", value)])
        (result,) = self.call(apis.ALTER_CLIENT_QUOTAS, s.AlterClientQuotasRequest([change])).results
        assert result.error_code == 0, result

    def ask(self, api_key: int, body: Any, user: str = "alice", client_id: str = "app") -> Any:
        """Send a client's request and commit; returns the response."""
        request = EnvelopedRequest(body, user, client_id)
        self.handlers[api_key](request)
        self.commit()
        (answer,) = request.answers
        assert not isinstance(answer, BrokerError), answer
        return answer

    def make(self, *names: str, partitions: int = 1, user: str = "alice", **more: Any) -> Any:
        topics = [admin.CreatableTopic(name, partitions, 1) for name in names]
        return self.ask(apis.CREATE_TOPICS, admin.CreateTopicsRequest(topics, **more), user)


def codes(response: Any) -> list[int]:
    return [part.error_code for part in getattr(response, "topics", None) or response.results]


def test_last_request_may_exceed_the_quota_and_the_next_is_refused() -> None:
    """As with Kafka's token bucket: a topic with more partitions than tokens are left is created, and its debt has to be paid."""
    world = World()
    assert codes(world.make("a", partitions=BURST + 5)) == [0]
    response = world.make("b")
    assert codes(response) == [REFUSED]
    assert response.throttle_time_ms == 1000
    assert "b" not in world.image.topics_by_name
    world.now += 1.0
    assert codes(world.make("b")) == [0]


def test_topics_of_one_request_are_charged_one_by_one() -> None:
    """Each topic succeeds or fails alone, so a client that repeats the refused ones makes progress."""
    world = World()
    assert codes(world.make("a", "b", "c", partitions=30)) == [0, 0, REFUSED]


def test_every_kind_of_mutation_counts() -> None:
    """Partitions that are added and deleted load the controller like new topics."""
    world = World()
    world.make("a", partitions=20)
    added = world.ask(apis.CREATE_PARTITIONS, admin.CreatePartitionsRequest([admin.CreatePartitionsTopic("a", 60)]))
    assert codes(added) == [0]
    refused = world.ask(apis.CREATE_PARTITIONS, admin.CreatePartitionsRequest([admin.CreatePartitionsTopic("a", 61)]))
    assert codes(refused) == [REFUSED]
    deletion = admin.DeleteTopicsRequest([admin.DeleteTopicState("a")])
    assert codes(world.ask(apis.DELETE_TOPICS, deletion)) == [REFUSED]
    world.now += 2.0
    assert codes(world.ask(apis.DELETE_TOPICS, deletion)) == [0]
    assert codes(world.make("b")) == [REFUSED]


def test_validation_and_failed_topics_cost_nothing() -> None:
    """Only changes of the metadata count."""
    world = World()
    for _ in range(3):
        assert codes(world.make("a", partitions=BURST, validate_only=True)) == [0]
    world.make("a")
    for _ in range(3):
        assert codes(world.make("a", partitions=BURST)) == [E.TOPIC_ALREADY_EXISTS]
    assert codes(world.make("b", partitions=BURST)) == [0]


def test_others_are_not_limited() -> None:
    """The others are another user, and a broker that creates an internal topic for itself."""
    world = World()
    world.make("a", partitions=200)
    assert codes(world.make("b", partitions=200, user="bob")) == [0]
    world.create("c")


@pytest.mark.parametrize("value", [None, 1000.0])
def test_changed_quota_counts_at_once(value: float | None) -> None:
    """An operator lifts the limit, and the client continues."""
    world = World()
    world.make("a", partitions=BURST + 500)
    assert codes(world.make("b")) == [REFUSED]
    world.set_quota(value)
    world.now += 0.6
    assert codes(world.make("b")) == [0]


def test_quota_holds_over_a_minute() -> None:
    """The number of partitions created in 60 s is the quota, apart from the first burst."""
    world = World()
    end, created = world.now + 60, 0
    while world.now < end:
        response = world.make(f"t{created}")
        created += codes(response) == [0]
        world.now += max(response.throttle_time_ms / 1000, 0.01)
    assert 0.95 * 5 * 60 <= created - BURST <= 1.05 * 5 * 60
