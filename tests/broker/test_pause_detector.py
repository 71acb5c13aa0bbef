"""A broker that was paused for so long that its session may have ended refuses records until a controller has answered."""

from __future__ import annotations

from typing import Any

import pytest
from handled_request import HandledRequest

from strandline.broker.process.pause_detector import PauseDetector, pause_ms_max, while_trusted
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.data import ProducePartition, ProduceRequest


class Broker:
    """Ticks as the event loop does while it runs. `now` jumps when the process is paused."""

    def __init__(self) -> None:
        self.now = 100.0
        self.heard_at = 99.9
        self.core = PauseDetector(limit_ms=3000, heard_at=lambda: self.heard_at)
        self.core.tick(self.now)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.2)
            self.core.tick(self.now)

    def trusts_itself(self) -> bool:
        return self.core.is_trusted(self.now)


def test_a_broker_without_controllers_goes_on_serving() -> None:
    """The data path needs no controller, so silent controllers are no pause."""
    broker = Broker()
    broker.run(600)
    assert broker.trusts_itself()


def test_a_short_pause_is_ignored() -> None:
    broker = Broker()
    broker.now += 2.9
    assert broker.trusts_itself()
    broker.core.tick(broker.now)
    broker.now += 2.9
    assert broker.trusts_itself()


@pytest.mark.parametrize("first", ["request", "tick"])
def test_after_a_pause_the_broker_waits_for_a_newer_answer(first: str) -> None:
    """The answer to an older question may have been written before another broker was elected."""
    broker = Broker()
    broker.now += 30
    if first == "tick":
        broker.core.tick(broker.now)
    assert not broker.trusts_itself()
    broker.heard_at = broker.now - 29.5  # asked before the pause, read after it
    broker.run(1)
    assert not broker.trusts_itself()
    broker.heard_at = broker.now
    broker.now += 0.1
    assert broker.trusts_itself()
    broker.run(10)
    assert broker.trusts_itself()


def test_each_pause_needs_an_answer_of_its_own() -> None:
    broker = Broker()
    broker.now += 30
    assert not broker.trusts_itself()
    broker.now += 0.1
    broker.heard_at = broker.now
    assert broker.trusts_itself()
    broker.now += 3.1
    assert not broker.trusts_itself()


def test_a_pause_shorter_than_the_session_may_end_it() -> None:
    """The controller counts from the last heartbeat, which was sent some time before the pause began."""
    assert pause_ms_max(3000, 500) == 2000
    assert pause_ms_max(1000, 900) == 500


def produce(acks: int, received_at: float) -> HandledRequest:
    partitions = [ProducePartition(b"t" * 16, index) for index in (0, 3)]
    body = ProduceRequest(None, acks, 1000, partitions, [memoryview(b""), memoryview(b"")])
    return HandledRequest(body, received_at=received_at)


@pytest.mark.parametrize("acks", [1, -1])
def test_a_produce_after_a_pause_is_refused_as_not_leader(acks: int) -> None:
    broker = Broker()
    handled: list[Any] = []
    handle = while_trusted(broker.core, handled.append)
    before, after = produce(acks, broker.now), produce(acks, broker.now + 30)
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
    request = produce(0, broker.now + 30)
    while_trusted(broker.core, lambda request: None)(request)  # type: ignore[arg-type]
    assert request.answers == [None]
    assert len(request.connection.complaints) == 1
