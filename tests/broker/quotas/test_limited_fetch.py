"""Fetches of a consumer with a quota: how much they get, and what an empty answer leaves as it was."""

from __future__ import annotations

from functools import partial
from typing import Any

from handled_request import HandledRequest
from replica_world import Node, ReplicaWorld, fetched, values, want

from strandline.broker.quotas.client_quotas import BrokerQuotas
from strandline.broker.quotas.limited_fetch import LimitedFetch
from strandline.controller.metadata.security.budgets import Budget, Window
from strandline.protocol.apis import FETCH
from strandline.protocol.messages.data import FetchRequest

RATE = 10_000.0


class Limited:
    """A leader with ten batches of 1000 bytes, and consumers with a quota."""

    def __init__(self, batches: int = 10) -> None:
        self.world = ReplicaWorld()
        self.world.topic(replicas=(1, 2))
        self.leader: Node = self.world[1]
        for number in range(batches):
            self.leader.produce(f"{number}" + "x" * 1000, acks=1)
        self.leader.said_by(2, batches)
        self.quotas = BrokerQuotas(Window())
        self.now = self.leader.loop.now
        self.quotas.use({(("client-id", "test"),): {"consumer_byte_rate": RATE}}, self.now())
        handler: Any = self.leader.handlers[FETCH]
        handler.__self__.make_fetch = partial(LimitedFetch, self.quotas)

    @property
    def budget(self) -> Budget:
        budget = self.quotas.fetch.budget_of(("ANONYMOUS", "test"), self.now())
        assert budget is not None
        return budget

    def use_up(self, seconds: float = 2.0) -> None:
        """Spend so much that the client has to wait for this time."""
        self.budget.charge(self.budget.bucket.tokens(self.now()) + RATE * seconds, self.now())

    def fetch(self, offset: int = 0, **fields: Any) -> HandledRequest:
        return self.leader.fetch(want(offset, epoch=1), **fields)


def test_fetch_gets_what_is_left_of_the_budget() -> None:
    """A large fetch must not exceed the quota by its whole size."""
    limited = Limited(batches=20)
    first = limited.fetch()
    assert 7 <= len(values(first)) <= 9, "a new client has one second's worth"
    assert first.answer.throttle_time_ms == 0


def test_fetch_of_a_client_in_debt_is_answered_at_once_and_empty() -> None:
    """KIP-219: the client receives the throttle time at once. Otherwise it would wait for records."""
    limited = Limited()
    limited.use_up(2.0)
    answer = limited.fetch(max_wait_ms=500)
    assert answer.answer.throttle_time_ms == 2000
    assert fetched(answer) == {}
    assert not answer.answer.error_code


def test_one_batch_is_served_however_large() -> None:
    """Otherwise a batch that is larger than the budget could never be read."""
    limited = Limited()
    limited.budget.charge(limited.budget.bucket.tokens(limited.now()) - 1, limited.now())
    assert len(values(limited.fetch())) == 1
    assert limited.fetch().answer.throttle_time_ms > 50


def test_empty_answer_leaves_the_session_as_it_was() -> None:
    """The next fetch of the session gets the records, although it does not name the partition again."""
    limited = Limited()
    opened = limited.fetch(10, session_id=0, session_epoch=0, max_wait_ms=0)
    session = opened.answer.session_id
    assert session
    limited.use_up()
    throttled = limited.fetch(0, session_id=session, session_epoch=1)
    assert (throttled.answer.session_id, fetched(throttled)) == (session, {})
    limited.budget.charge(-3 * RATE, limited.now())
    served = limited.leader.fetch(session_id=session, session_epoch=2)
    assert len(values(served)) > 0


def test_empty_answer_establishes_no_session() -> None:
    """The answer to a full fetch lists every partition, and this one lists none."""
    limited = Limited()
    limited.use_up()
    answer = limited.fetch(session_id=0, session_epoch=0)
    assert answer.answer.session_id == 0
    assert len(limited.leader.manager.sessions) == 0


def test_follower_has_no_quota() -> None:
    """Replication is never counted, whatever its client id is."""
    limited = Limited()
    limited.use_up()
    tokens = limited.budget.bucket.tokens(limited.now())
    answer = limited.leader.said_by(2, 0)
    assert len(values(answer)) == 10
    assert answer.answer.throttle_time_ms == 0
    assert limited.budget.bucket.tokens(limited.now()) == tokens


def test_parked_fetch_is_throttled_if_others_use_up_the_budget_meanwhile() -> None:
    """A hundred parked fetches of one user must not all be served by what was left for one."""
    limited = Limited()
    body: Any = {"max_wait_ms": 500, "min_bytes": 1}
    parked = limited.leader.fetch(want(10, epoch=1), **body)
    assert not parked.answers
    limited.use_up()
    limited.leader.produce("new", acks=1)
    limited.leader.said_by(2, 11)
    assert parked.answer.throttle_time_ms > 0
    assert fetched(parked) == {}


def test_client_without_a_quota_is_not_limited() -> None:
    limited = Limited()
    limited.quotas.use({(("client-id", "other"),): {"consumer_byte_rate": 1.0}}, limited.now())
    assert len(values(limited.fetch())) == 10
    assert isinstance(limited.fetch().body, FetchRequest)
