"""Which brokers the plans of `strandline reassign` and `strandline broker drain` use, and what becomes of the plans."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.cli.broker import _drain, _undrain
from strandline.cli.moves import Situation, start
from strandline.cli.output import Form, rendered
from strandline.client import (
    BrokerDescription,
    ClusterDescription,
    ElectionResult,
    PartitionDescription,
    PartitionReassignment,
    ReassignmentResult,
    StrandlineError,
    TopicDescription,
    TopicPartition,
    UsageError,
)
from strandline.protocol.errors import ErrorCode


def situation(*brokers: BrokerDescription) -> Situation:
    return Situation({each.broker_id: each for each in brokers}, {}, {}, {})


HEALTHY = BrokerDescription(1, "h1", 1, "a")
CORDONED = BrokerDescription(2, "h2", 1, "b", is_cordoned=True)
OTHERS = (
    BrokerDescription(3, "h3", 1, is_draining=True),
    BrokerDescription(4, "h4", 1, is_fenced=True),
    BrokerDescription(5, "h5", 1, in_controlled_shutdown=True),
)


def test_a_cordoned_broker_keeps_its_replicas_and_gets_no_others() -> None:
    found = situation(HEALTHY, CORDONED, *OTHERS)
    assert found.racks() == {1: "a", 2: "b"}
    assert found.targets() == {1: "a"}
    assert found.others(1) == {}, "a drain moves nothing to it"
    assert found.others(3) == {1: "a"}


def test_chosen_brokers_are_taken_as_they_are() -> None:
    assert situation(HEALTHY, CORDONED).racks([2]) == {2: "b"}
    with pytest.raises(UsageError, match="there is no broker 9; the cluster has 1, 2"):
        situation(HEALTHY, CORDONED).racks([9])


class OldTopic:
    """An admin client whose cluster loses the topic `old` after each plan. The partitions of `old` and `kept` are on brokers 1
    and 2; broker 3 is empty."""

    codes = {"old": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "kept": ErrorCode.NONE}

    def __init__(self, **_: Any) -> None:
        self.running: dict[TopicPartition, PartitionReassignment] = {}
        self.elected: list[TopicPartition] = []
        OldTopic.last = self

    last: OldTopic

    async def __aenter__(self) -> OldTopic:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription("c", 101, [BrokerDescription(each, f"h{each}", 1) for each in (1, 2, 3)])

    async def describe_topics(self) -> list[TopicDescription]:
        partition = PartitionDescription(0, 1, 1, 1, (1, 2), (1, 2), (), ())
        return [TopicDescription(name, b"t" * 16, [partition]) for name in ("kept", "old")]

    async def list_partition_reassignments(self) -> dict[TopicPartition, PartitionReassignment]:
        return self.running

    async def describe_log_dirs(self, *_: Any, **__: Any) -> dict[int, list[Any]]:
        return {}

    async def alter_configs(self, *_: Any) -> None: ...

    async def alter_partition_reassignments(self, plan: dict[Any, Any], **_: Any) -> list[ReassignmentResult]:
        return [ReassignmentResult(tp, self.codes[tp.topic], None) for tp in plan]

    async def elect_leaders(self, partitions: list[TopicPartition]) -> list[ElectionResult]:
        self.elected = partitions
        return []


KEPT, OLD = TopicPartition("kept", 0), TopicPartition("old", 0)


async def test_a_drain_skips_a_topic_that_was_deleted_after_the_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("strandline.client.Admin", OldTopic)
    out = rendered(await _drain("h:1", 1, None, False), Form.table, None)
    assert OldTopic.last.elected == [KEPT]
    assert capsys.readouterr().err == "strandline: old-0 is skipped: the topic was deleted\n"
    assert "1 partition to change, 1 replica to copy (0 B), 1 leader to move first" in out
    assert "broker 1 gets no new replicas" in out


async def test_leaders_move_although_another_partition_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.client.Admin", OldTopic)
    monkeypatch.setitem(OldTopic.codes, "old", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    with pytest.raises(StrandlineError, match="old-0: INVALID_REPLICA_ASSIGNMENT"):
        await _drain("h:1", 1, None, False)
    assert OldTopic.last.elected == [KEPT, OLD]


async def test_an_undrain_skips_moves_that_have_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class WithMoves(OldTopic):
        def __init__(self, **_: Any) -> None:
            super().__init__()
            self.running = dict.fromkeys((KEPT, OLD), PartitionReassignment((3, 2, 1), (3,), (1,), (1, 2)))

    monkeypatch.setattr("strandline.client.Admin", WithMoves)
    monkeypatch.setitem(OldTopic.codes, "kept", ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    assert (await _undrain("h:1", 1))[0] == 0
    assert capsys.readouterr().err == (
        "strandline: kept-0 is skipped: its move has ended\nstrandline: old-0 is skipped: the topic was deleted\n"
    )


async def test_all_moves_begin_before_a_refusal_is_raised() -> None:
    admin = OldTopic()
    admin.codes = {"old": ErrorCode.INVALID_REPLICA_ASSIGNMENT, "kept": ErrorCode.NONE}
    started = await start(admin, {OLD: (2, 3), KEPT: (2, 3)}, None)  # type: ignore[arg-type]
    with pytest.raises(StrandlineError, match="old-0: INVALID_REPLICA_ASSIGNMENT"):
        started.check()
