"""The client that appends conditionally reports responses that no log may give."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.client import OffsetConflict
from strandline.client.errors import RequestTimeout
from strandline.testing.history import History
from strandline.testing.simulation.cluster.racer import Racer
from strandline.testing.simulation.options import draw_options

OPTIONS = draw_options(1).replaced(loss_permitted=False)


class ProducerOf:
    """A producer for which the log has these ends, one before each record."""

    def __init__(self, *log_ends: int | Exception) -> None:
        self.log_ends = list(log_ends)
        self.expected: list[int] = []
        self.shift = 0

    async def send_and_wait(self, topic: str, value: bytes, *, partition: int, expect_offset: int, **_: Any) -> Any:
        self.expected.append(expect_offset)
        found = self.log_ends.pop(0)
        if isinstance(found, Exception):
            raise found
        if found != expect_offset:
            raise OffsetConflict(expected_offset=expect_offset, log_end_offset=found, topic=topic, partition=partition)
        return SimpleNamespace(offset=found + self.shift)


def race(producer: ProducerOf, monkeypatch: pytest.MonkeyPatch) -> tuple[History, list[str]]:
    """Run the racer until the producer has no more log ends."""

    async def no_pause(_: float) -> None: ...

    history, problems = History(lambda: 0.0), list[str]()
    monkeypatch.setattr(asyncio, "sleep", no_pause)
    asyncio.run(Racer("racer", history, OPTIONS, problems, Random(1)).work(producer, lambda: bool(producer.log_ends)))
    return history, problems


def test_racer_follows_the_log_end(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = ProducerOf(0, 5, 5, RequestTimeout("no answer"), 7, 7)
    history, problems = race(producer, monkeypatch)
    assert producer.expected == [0, 1, 5, 6, 6, 7]
    assert [send.outcome for send in history.sends] == ["ok", "fail", "ok", "info", "fail", "ok"]
    assert problems == []


def test_record_at_another_offset_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = ProducerOf(0)
    producer.shift = 1
    assert race(producer, monkeypatch)[1] == ["racer: a record is at 1, but was to be at 0"]


def test_conflict_at_a_lower_log_end_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record before it was acknowledged, so the log must be longer."""
    assert race(ProducerOf(4, 4, 3), monkeypatch)[1] == ["racer: a record is refused at 5, but the log ends at 3"]
