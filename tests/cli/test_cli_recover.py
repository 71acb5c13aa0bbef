"""`strandline recover --apply`: which report it prints."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from strandline.cli import recover
from strandline.client import TopicPartition, UncleanElection


class LateAdmin:
    """An admin client whose brokers learn of an election one question after the other."""

    def __init__(self, *answers: list[UncleanElection]) -> None:
        self.answers = list(answers)

    async def describe_unclean_elections(self, topics: Iterable[str]) -> list[UncleanElection]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def report(partition: int, leader_epoch: int) -> UncleanElection:
    return UncleanElection(TopicPartition("t", partition), 3, leader_epoch, 1, 0, 0, 0, None, "operator", 0)


def found(admin: Any) -> UncleanElection | None:
    return asyncio.run(recover.report_after(admin, "t", 0, 5))


def test_report_is_that_of_the_new_election() -> None:
    """The broker that answers may not have it yet: it knows no election, or only the last one of this partition."""
    new = report(0, 6)
    assert found(LateAdmin([], [report(0, 3), report(1, 9)], [report(0, 3), new])) is new


def test_report_that_never_arrives_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "REPORT_TIMEOUT_S", 0.0)
    assert found(LateAdmin([report(0, 3)])) is None
