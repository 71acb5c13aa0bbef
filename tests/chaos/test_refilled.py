"""`wait refilled`: the verdict on a replica that started from nothing, after different series of looks at it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from strandline.chaos import probes, waits
from strandline.chaos.probes import ReplicaEnd
from strandline.chaos.report import CLAIM, NOTE
from strandline.chaos.waits import Waits


class State:
    """The state of a run with brokers 1 and 3. Broker 3 started from nothing. `looks`: for each look, whether it is in the ISR,
    and whether its log reaches the leader's high watermark."""

    def __init__(self, *looks: tuple[bool, bool]) -> None:
        self.looks = list(looks)
        members = [SimpleNamespace(id=1), SimpleNamespace(id=3)]
        self.driver = SimpleNamespace(brokers=members, member=lambda name: members[1])
        self.partition = SimpleNamespace(leader=1, isr=[1])
        self.watch = SimpleNamespace(picture=SimpleNamespace(partitions={0: self.partition}))
        self.logged: list[tuple[str, Any]] = []

    def resolve(self, target: str) -> list[str]:
        return [target]

    async def high_watermark(self, *_: Any) -> int:
        self.partition.isr = [1, 3] if self.looks[0][0] else [1]
        return 100

    async def replica_end(self, *_: Any) -> ReplicaEnd:
        return ReplicaEnd(self.looks.pop(0)[1])

    def log(self, kind: str, text: str) -> None:
        self.logged.append((kind, text))

    def log_claim(self, step: int, claim: str, ok: bool, seen: str) -> None:
        self.logged.append((CLAIM, ok))


async def waited(monkeypatch: pytest.MonkeyPatch, *looks: tuple[bool, bool]) -> list[tuple[str, Any]]:
    state = State(*looks)
    monkeypatch.setattr(probes, "high_watermark", state.high_watermark)
    monkeypatch.setattr(probes, "replica_end", state.replica_end)
    monkeypatch.setattr(waits, "REFILL_POLL_S", 0)
    monkeypatch.setattr(waits, "Peer", lambda member: SimpleNamespace(close=lambda: None))
    step: Any = {"target": "broker-3", "within_s": 10}
    await Waits(state)._refilled(type("Step", (dict,), {"number": 1})(step))  # type: ignore[arg-type]
    return state.logged


OUTSIDE, TOO_EARLY, DONE = (False, False), (True, False), (True, True)


async def test_replica_that_was_behind_outside_the_isr_alone_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await waited(monkeypatch, OUTSIDE, OUTSIDE, (False, True), DONE) == [(CLAIM, True)]


async def test_replica_that_is_behind_in_the_isr_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await waited(monkeypatch, OUTSIDE, TOO_EARLY, DONE) == [(CLAIM, False)]
    assert await waited(monkeypatch, TOO_EARLY, DONE) == [(CLAIM, False)]


async def test_replica_that_was_not_seen_behind_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes three seconds to start a container, and has filled its log again before the first look. The verdict
    was "bad" then."""
    ((kind, text),) = await waited(monkeypatch, DONE)
    assert kind == NOTE
    assert "before it was first looked at" in text
