"""`strandline recover --apply`: which report it prints."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
import typer

from strandline.cli import elect, recover
from strandline.client import ElectionResult, PartitionDescription, TopicDescription, TopicPartition, UncleanElection
from strandline.protocol.errors import ErrorCode


class LateAdmin:
    """An admin client that returns one prepared list of reports per request, and then the last one again."""

    def __init__(self, *answers: list[UncleanElection]) -> None:
        self.answers = list(answers)

    async def describe_unclean_elections(self, topics: Iterable[str]) -> list[UncleanElection]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def report(partition: int, leader_epoch: int) -> UncleanElection:
    return UncleanElection(TopicPartition("t", partition), 3, leader_epoch, 1, 0, 0, 0, None, "operator", 0)


def found(admin: Any) -> UncleanElection | None:
    partition = TopicPartition("t", 0)
    return asyncio.run(recover.reports_after(admin, {partition: 5})).get(partition)


def test_report_is_that_of_the_new_election() -> None:
    """The broker that answers may not have the new report yet: it has none, or only that of an earlier election."""
    new = report(0, 6)
    assert found(LateAdmin([], [report(0, 3), report(1, 9)], [report(0, 3), new])) is new


class Elected(LateAdmin):
    """An admin client whose first attempt has elected broker 3 in epoch 6, but got no answer."""

    def __init__(self, **_: Any) -> None:
        super().__init__([report(0, 6)])

    async def __aenter__(self) -> Elected:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def describe_topics(self, topics: list[str] | None) -> list[TopicDescription]:
        return [TopicDescription("t", b"t" * 16, [PartitionDescription(0, -1, 5, 9, (1, 2, 3), (), (), ())])]

    async def elect_leaders(self, partitions: Any, **_: Any) -> list[ElectionResult]:
        if partitions is None:
            return []
        return [ElectionResult(TopicPartition("t", 0), ErrorCode.ELECTION_NOT_NEEDED, "broker 3 leads already")]


@pytest.mark.parametrize("words", [["t", "0"], ["--all"]])
def test_a_repeated_unclean_election_prints_the_report_of_the_first_attempt(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr("strandline.client.Admin", Elected)
    view = elect._elect_unclean("h:1", None if words == ["--all"] else ("t", 0), yes=True)
    assert view.parts == ["t-0: broker 3 is elected; may be lost: offset 0 and above"]


def test_a_repeated_recovery_prints_the_report_of_the_first_attempt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("strandline.client.Admin", Elected)
    found = asyncio.run(recover._elect("h:1", "t", 0, 3, 5))
    assert found == report(0, 6)
    with pytest.raises(typer.Exit):
        asyncio.run(recover._elect("h:1", "t", 0, 2, 5))
    assert "t-0: broker 3 leads already" in capsys.readouterr().err


def test_report_that_never_arrives_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "REPORT_TIMEOUT_S", 0.0)
    assert found(LateAdmin([report(0, 3)])) is None
