"""A broker that stood still for so long that its session may have ended refuses records until a controller has answered."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.broker.process.standstill import Standstill, sleep_ms_max, while_trusted
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.data import ProducePartition, ProduceRequest, ProduceResponse


class Broker:
    """Ticks as the loop does while it turns; `now` jumps when the process stands still."""

    def __init__(self) -> None:
        self.now = 100.0
        self.heard_at = 99.9
        self.core = Standstill(limit_ms=3000, heard_at=lambda: self.heard_at)
        self.core.tick(self.now)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.2)
            self.core.tick(self.now)

    def trusts_itself(self) -> bool:
        return self.core.is_trusted(self.now)


def test_a_broker_without_controllers_goes_on_serving() -> None:
    """The data path needs no controller: only sleep makes a broker doubt itself, not silence."""
    broker = Broker()
    broker.run(600)
    assert broker.trusts_itself()


def test_a_short_standstill_is_nothing() -> None:
    broker = Broker()
    broker.now += 2.9
    assert broker.trusts_itself()
    broker.core.tick(broker.now)
    broker.now += 2.9
    assert broker.trusts_itself()


@pytest.mark.parametrize("first", ["request", "tick"])
def test_after_a_standstill_the_broker_waits_for_a_newer_answer(first: str) -> None:
    """The answer to an older question may have been written before another broker was elected."""
    broker = Broker()
    broker.now += 30
    if first == "tick":
        broker.core.tick(broker.now)
    assert not broker.trusts_itself()
    broker.heard_at = broker.now - 29.5  # asked before the sleep, read after it
    broker.run(1)
    assert not broker.trusts_itself()
    broker.heard_at = broker.now
    broker.now += 0.1
    assert broker.trusts_itself()
    broker.run(10)
    assert broker.trusts_itself()


def test_a_broker_that_sleeps_again_doubts_again() -> None:
    broker = Broker()
    broker.now += 30
    assert not broker.trusts_itself()
    broker.now += 0.1
    broker.heard_at = broker.now
    assert broker.trusts_itself()
    broker.now += 3.1
    assert not broker.trusts_itself()


def test_a_sleep_that_may_have_cost_the_session_is_shorter_than_the_session() -> None:
    """The controller counts from the last heartbeat, and that was not the moment before we fell asleep."""
    assert sleep_ms_max(3000, 500) == 2000
    assert sleep_ms_max(1000, 900) == 500


class Connection:
    def __init__(self) -> None:
        self.closed_because: list[str] = []

    def close_because(self, reason: str, client_id: str | None) -> None:
        self.closed_because.append(reason)


class Request:
    client_id = "p"

    def __init__(self, acks: int, received_at: float) -> None:
        partitions = [ProducePartition(b"t" * 16, index) for index in (0, 3)]
        self.body = ProduceRequest(None, acks, 1000, partitions, [memoryview(b""), memoryview(b"")])
        self.received_at = received_at
        self.connection = Connection()
        self.answers: list[ProduceResponse | None] = []

    def reply(self, body: ProduceResponse) -> None:
        self.answers.append(body)

    def no_reply(self) -> None:
        self.answers.append(None)


@pytest.mark.parametrize("acks", [1, -1])
def test_a_produce_after_a_standstill_is_refused_as_not_leader(acks: int) -> None:
    broker = Broker()
    handled: list[Any] = []
    handle = while_trusted(broker.core, handled.append)
    before, after = Request(acks, broker.now), Request(acks, broker.now + 30)
    handle(before)  # type: ignore[arg-type]
    handle(after)  # type: ignore[arg-type]
    assert handled == [before]
    (answer,) = after.answers
    assert answer is not None
    assert [(p.partition, p.error_code) for p in answer.partitions] == [
        (0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (3, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]


def test_a_produce_that_wants_no_answer_learns_it_by_the_end_of_its_connection() -> None:
    broker = Broker()
    request = Request(0, broker.now + 30)
    while_trusted(broker.core, lambda request: None)(request)  # type: ignore[arg-type]
    assert request.answers == [None]
    assert len(request.connection.closed_because) == 1
