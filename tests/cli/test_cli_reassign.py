"""`strandline reassign`: plans, moves, their progress, and its messages."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from cli_world import Up, one_sentence, run

from strandline.cli.amounts import parse_bytes, show_bytes, show_time
from strandline.cli.moves import Progress, progress_of, start, time_left_s
from strandline.client import PartitionReassignment, ReassignmentResult, StrandlineError, TopicPartition, UsageError
from strandline.protocol.errors import ErrorCode

T = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("text", "size"),
    [("500000", 500_000), ("10MB", 10_000_000), ("10 mb/s", 10_000_000), ("1.5GiB", 1_610_612_736), ("2k", 2000), ("7B", 7)],
)
def test_bytes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text, "--throttle") == size


@pytest.mark.parametrize("text", ["", "0", "-1", "fast", "10 parsecs", "0.1B", "1e9", "i", "9999999TB", "9" * 400])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--throttle takes bytes per second, such as 500000, 10MB or 1\.5GiB, not"):
        parse_bytes(text, "--throttle")


def test_amounts_are_short() -> None:
    assert [show_bytes(n) for n in (0, 999, 1000, 3_210_000, 45_600_000_000, 10**15)] == [
        "0 B",
        "999 B",
        "1 KB",
        "3.21 MB",
        "45.6 GB",
        "1000 TB",
    ]
    assert [show_time(s) for s in (0.2, 89, 90, 3600, 12_000)] == ["1 s", "89 s", "2 min", "60 min", "3 h 20 min"]


def moving(*adding: int) -> PartitionReassignment:
    return PartitionReassignment((*adding, 1), adding, (1,), (1,), None)


class Recorder:
    """Stands for an Admin whose controller refuses one partition."""

    def __init__(self, refused: TopicPartition) -> None:
        self.refused = refused
        self.sizes: list[int] = []

    async def alter_partition_reassignments(self, targets: Any, *, throttle_rate: int | None) -> list[ReassignmentResult]:
        self.sizes.append(len(targets))
        codes = {self.refused: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
        return [ReassignmentResult(tp, codes.get(tp, ErrorCode.NONE)) for tp in targets]


def test_large_plan_is_sent_in_several_requests() -> None:
    """A controller refuses a request for more than 10,000 partitions, when `broker drain` has already begun."""
    plan = {TopicPartition("orders", n): (1, 2) for n in range(12_000)}
    recorder = Recorder(TopicPartition("orders", 6000))
    started = asyncio.run(start(recorder, plan, None))  # type: ignore[arg-type]
    with pytest.raises(StrandlineError, match=r"^orders-6000: INVALID_REPLICA_ASSIGNMENT$"):
        started.check()
    assert recorder.sizes == [5000, 5000, 2000]


def test_progress_counts_the_bytes_of_each_added_replica() -> None:
    """A replica that has not begun counts as 0, and one that is ahead of the leader's last answer not as more than the whole."""
    (found,) = progress_of({T: moving(2, 3, 4)}, {T: 1}, {1: {T: 100}, 2: {T: 40}, 3: {T: 130}})
    assert (found.copied, found.total, found.percent) == (140, 300, 46)
    (silent,) = progress_of({T: moving(2)}, {T: 1}, {2: {T: 40}})
    assert (silent.copied, silent.total, silent.percent) == (0, 0, 0)


def test_time_left_follows_from_two_measurements() -> None:
    def at(copied: int) -> list[Progress]:
        return [Progress(T, moving(2), copied, 1000)]

    assert time_left_s(at(100), at(200), 2.0) == 16.0
    assert time_left_s(at(200), at(200), 2.0) is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "the goal is missing: --brokers 4,5,6, --replication-factor 3, or --balance"),
        (("--brokers", "1"), "the topics are missing: --topics orders,payments; --balance is about all topics"),
        (("--topics", "t", "--brokers", "x"), "--brokers takes ids of brokers, such as 4,5,6, not 'x'"),
        (("--plan", "--apply", "--balance"), "--plan and --apply exclude each other"),
        (("--progress", "--balance"), "--progress is about moves that are running; it takes --topics alone"),
        (("--balance", "--apply", "--topics", ""), "--topics names no topic"),
        (("--cancel", "--topics", " ,"), "--topics names no topic"),
        (("--balance", "--throttle", "fast"), "--throttle takes bytes per second, such as 500000, 10MB or 1.5GiB, not 'fast'"),
    ],
)
def test_a_wrong_call_is_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    outcome = run("reassign", *words)
    assert (outcome.code, one_sentence(outcome)) == (2, f"strandline: {sentence}")


def eventually_nothing_moves(bootstrap: str) -> None:
    deadline = time.monotonic() + 60
    while run("reassign", "--progress", "--json", "--bootstrap", bootstrap).json()["partitions"]:
        assert time.monotonic() < deadline, "the moves are not complete"


def replicas(bootstrap: str, topic: str) -> list[list[int]]:
    described: Any = run("topic", "describe", topic, "--json", "--bootstrap", bootstrap).json()
    return [p["replicas"] for p in described["topics"][0]["partitions"]]


@pytest.mark.processes
def test_a_topic_moves_and_gets_more_replicas(up: Up) -> None:
    to = ("--bootstrap", up.bootstrap)
    assert run("topic", "create", "moves", "--replica-assignment", "1,1", *to).code == 0
    assert run("produce", "moves", *to, stdin="a\nb\nc\n").code == 0

    words = ("reassign", "--topics", "moves", "--brokers", "2,3")
    planned = run(*words, "--json", *to).json()
    assert (planned["applied"], [m["previous_replicas"] for m in planned["moves"]]) == (False, [[1], [1]])
    assert sorted(m["replicas"] for m in planned["moves"]) == [[2], [3]]
    shown = run(*words, "--plan", *to, env={"COLUMNS": "80"})
    assert shown.out.splitlines()[-1].startswith("2 partitions to change, 2 replicas to copy (")
    assert shown.out.splitlines()[-1].endswith("; --apply begins")
    assert replicas(up.bootstrap, "moves") == [[1], [1]], "a plan changes nothing"

    applied = run(*words, "--apply", "--throttle", "10MB", *to)
    assert (applied.code, applied.out.endswith("; `strandline reassign --progress` follows it\n")) == (0, True)
    eventually_nothing_moves(up.bootstrap)
    assert sorted(replicas(up.bootstrap, "moves")) == [[2], [3]]
    assert run(*words, *to).out == "nothing to move: the replicas are where they should be\n"

    waited = run("reassign", "--topics", "moves", "--replication-factor", "3", "--apply", "--wait", *to, timeout_s=60)
    assert (waited.code, waited.err) == (0, ""), "without a terminal there is no bar"
    assert run("reassign", "--progress", "--json", *to).json()["partitions"] == []
    assert [sorted(each) for each in replicas(up.bootstrap, "moves")] == [[1, 2, 3], [1, 2, 3]]
    assert sorted(run("consume", "moves", "--exit-at-end", *to).out.split()) == ["a", "b", "c"]
    assert run("reassign", "--progress", *to).out == run("reassign", "--cancel", *to).out == "no partition is moving\n"
    refused = run("reassign", "--topics", "moves", "--replication-factor", "4", *to)
    assert one_sentence(refused) == "strandline: moves-0 needs 4 brokers for 4 replicas, and there are 3 brokers"
    unknown = run("reassign", "--topics", "moves", "--brokers", "9", *to)
    assert one_sentence(unknown) == "strandline: there is no broker 9; the cluster has 1, 2, 3"
    assert "nowhere" in one_sentence(run("reassign", "--topics", "nowhere", "--brokers", "1", *to))


@pytest.mark.processes
def test_a_broker_is_drained_and_gets_replicas_again(up: Up) -> None:
    """Its leaders and replicas move to the others, and new topics leave it out. A topic on all brokers cannot leave it."""
    to = ("--bootstrap", up.bootstrap)
    for listed in run("topic", "list", "--json", *to).json()["topics"]:
        assert run("topic", "delete", listed["topic"], "--internal", "--yes", *to).code == 0
    assert run("topic", "create", "drained", "--replica-assignment", "3:1,2:3,1:2", *to).code == 0
    planned = run("broker", "drain", "3", "--plan", "--json", *to).json()
    assert (planned["draining"], planned["leaders"], len(planned["moves"])) == (False, 1, 2)

    drained = run("broker", "drain", "3", *to)
    assert (drained.code, drained.err) == (0, "")
    assert "; `strandline broker undrain 3` undoes it" in drained.out
    eventually_nothing_moves(up.bootstrap)
    assert [sorted(each) for each in replicas(up.bootstrap, "drained")] == [[1, 2]] * 3
    states = {b["broker_id"]: b["is_draining"] for b in run("cluster", "describe", "--json", *to).json()["brokers"]}
    assert states == {1: False, 2: False, 3: True}
    refused = run("topic", "create", "wide", "-p", "1", "-r", "3", *to)
    assert "2 brokers are registered and neither shutting down nor drained nor cordoned" in refused.err

    undrained = run("broker", "undrain", "3", *to)
    assert undrained.out.startswith("broker 3 may get replicas again: 0 moves cancelled, 0 replicas on it;")
    assert run("topic", "create", "wide", "-p", "1", "-r", "3", *to).code == 0
    impossible = one_sentence(run("broker", "drain", "3", *to))
    assert impossible == ("strandline: wide-0 cannot leave broker 3: every other broker that may get replicas has one already")
    assert run("reassign", "--balance", "--topics", "drained", "--apply", *to).code == 0
    eventually_nothing_moves(up.bootstrap)
    assert any(3 in each for each in replicas(up.bootstrap, "drained"))
    assert one_sentence(run("broker", "drain", "9", *to)) == "strandline: there is no broker 9; the cluster has 1, 2, 3"
    assert "is alive" in one_sentence(run("broker", "unregister", "1", *to))
    assert run("topic", "delete", "wide", "--yes", *to).code == 0
