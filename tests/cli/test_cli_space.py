"""`topic offsets` and `log-dirs describe`: what a cluster holds, and what is shown when a part of it does not answer."""

from __future__ import annotations

import time

import pytest
from cli_world import Up, one_sentence, run

from strandline.cli.log_dirs import copies, document
from strandline.cli.topic_offsets import joined
from strandline.client import LogDirDescription, PartitionDescription, ReplicaInfo, TopicPartition
from strandline.protocol.errors import ErrorCode


@pytest.fixture(scope="module")
def topic(up: Up) -> str:
    """Create a topic with three records in partition 1."""
    assert run("topic", "create", "space", "-p", "2", "-r", "3", "--bootstrap", up.bootstrap).code == 0
    assert run("produce", "space", "--partition", "1", "--bootstrap", up.bootstrap, stdin="a\nb\nc\n").code == 0
    return "space"


@pytest.mark.processes
def test_offsets_of_each_partition_are_shown_with_their_sum(up: Up, topic: str) -> None:
    found = run("topic", "offsets", topic, "--json", "--bootstrap", up.bootstrap)
    document = found.json()
    assert (found.code, document["topic"], document["records"], document["complete"]) == (0, topic, 3, True)
    first, second = document["partitions"]
    assert (first["start_offset"], first["end_offset"], first["records"], first["error"]) == (0, 0, 0, None)
    assert (second["start_offset"], second["end_offset"], second["records"]) == (0, 3, 3)
    shown = run("topic", "offsets", topic, "--bootstrap", up.bootstrap, env={"COLUMNS": "80"}).out.splitlines()
    assert shown[-1] == "space: 3 records in 2 partitions"
    assert all(len(line) <= 80 for line in shown)


@pytest.mark.processes
def test_sizes_are_shown_by_directory_topic_and_replica(up: Up, topic: str) -> None:
    found = run("log-dirs", "describe", "--topic", topic, "--json", "--bootstrap", up.bootstrap).json()
    assert (found["complete"], [one["broker"] for one in found["brokers"]]) == (True, [1, 2, 3])
    for one in found["brokers"]:
        (directory,) = one["log_dirs"]
        sizes = {(p["topic"], p["partition"]): p["size_bytes"] for p in directory["partitions"]}
        assert set(sizes) == {(topic, 0), (topic, 1)}
        assert directory["size_bytes"] == sum(sizes.values())
    assert found["topics"][0]["replicas"] == 6
    assert found["topics"][0]["size_bytes"] > 0
    words = ("log-dirs", "describe", "--topic", topic, "--broker", "2", "--partitions", "--bootstrap", up.bootstrap)
    shown = run(*words, env={"COLUMNS": "80"}).out
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert all(word in shown for word in ("directory", "largest lag", "partition"))


@pytest.mark.processes
def test_an_unknown_name_is_one_sentence(up: Up) -> None:
    assert "nowhere" in one_sentence(run("topic", "offsets", "nowhere", "--bootstrap", up.bootstrap))
    assert "nowhere" in one_sentence(run("log-dirs", "describe", "-t", "nowhere", "--bootstrap", up.bootstrap))
    assert "there is no broker 9; the cluster has 1, 2, 3" in one_sentence(
        run("log-dirs", "describe", "--broker", "9", "--bootstrap", up.bootstrap)
    )


@pytest.mark.processes
def test_a_replica_that_cannot_move_is_one_sentence(up: Up, topic: str) -> None:
    def move(replica: str, to: str, broker: str = "1") -> str:
        return one_sentence(run("log-dirs", "move", replica, "--broker", broker, "--to", to, "--bootstrap", up.bootstrap))

    data = up.folder / "broker-1" / "data"
    assert f"space:0 does not move: broker 1 has no log directory /d2, only {data}" in move("space:0", "/d2")
    assert "space:7 does not move: space has no partition 7" in move("space:7", str(data))
    assert "broker 1 has no replica of nowhere-0" in move("nowhere:0", str(data))
    assert "a replica is named TOPIC:PARTITION, such as orders:0, not 'space'" in move("space", str(data))
    assert "there is no broker 9; the cluster has 1, 2, 3" in move("space:0", str(data), broker="9")


@pytest.mark.processes
def test_a_move_to_the_present_directory_changes_nothing(up: Up, topic: str) -> None:
    data = str(up.folder / "broker-2" / "data")
    found = run("log-dirs", "move", "space:0", "space:1", "--broker", "2", "--to", data, "--json", "--bootstrap", up.bootstrap)
    assert (found.code, [one["error"] for one in found.json()["results"]]) == (0, [None, None])


@pytest.mark.processes
def test_a_dead_broker_is_marked_and_the_others_are_shown(up: Up, topic: str) -> None:
    """An operator asks for sizes when something is wrong."""
    assert run("node", "pause", "broker-3", "--data", str(up.folder)).code == 0
    try:
        found = run("log-dirs", "describe", "--topic", topic, "--json", "--bootstrap", up.bootstrap)
        assert (found.code, found.json()["complete"]) == (1, False)
        assert [one["log_dirs"] is None for one in found.json()["brokers"]] == [False, False, True]
        assert "broker 3 did not answer" in found.err
    finally:
        assert run("node", "resume", "broker-3", "--data", str(up.folder)).code == 0
        until_in_sync(up)


def until_in_sync(up: Up) -> None:
    """Other tests use the same cluster, with all its brokers."""
    deadline = time.monotonic() + 30
    while run("topic", "describe", "--under-replicated", "--bootstrap", up.bootstrap).code:
        assert time.monotonic() < deadline, "broker 3 did not return to the ISR"


def partition(number: int, leader: int) -> PartitionDescription:
    return PartitionDescription(number, leader, 0, 0, (1, 2), (1, 2), (), ())


def test_partitions_without_an_answer_keep_their_rows() -> None:
    rows = joined([partition(1, 2), partition(0, 1), partition(2, -1)], {0: 5, 1: 0}, {0: 9})
    assert [(one.partition, one.records) for one in rows] == [(0, 4), (1, None), (2, None)]
    assert [one.error for one in rows] == [None, "broker 2 did not answer", "no leader"]


def test_an_offline_directory_is_named() -> None:
    replicas = {TopicPartition("orders", 0): ReplicaInfo(70, 2)}
    found = document(
        {1: [LogDirDescription("/data", replicas)], 2: [LogDirDescription("/bad", {}, ErrorCode.KAFKA_STORAGE_ERROR)]}
    )
    assert found["brokers"][1]["log_dirs"][0]["error"] == "KAFKA_STORAGE_ERROR"
    assert found["topics"] == [{"topic": "orders", "replicas": 1, "size_bytes": 70, "largest_offset_lag": 2}]


def test_a_copy_in_progress_has_its_own_row() -> None:
    tp = TopicPartition("orders", 0)
    dirs = [
        LogDirDescription("/d1", {tp: ReplicaInfo(70, 0)}),
        LogDirDescription("/d2", {}, future_replicas={tp: ReplicaInfo(30, 4)}),
    ]
    assert copies({1: dirs}) == [(1, "orders:0", "/d2", "30 B", 4)]
    second = document({1: dirs})["brokers"][0]["log_dirs"][1]
    assert (second["size_bytes"], second["partitions"]) == (30, [])
    assert second["future_partitions"] == [{"topic": "orders", "partition": 0, "size_bytes": 30, "offset_lag": 4}]
    assert document({1: dirs})["topics"][0]["replicas"] == 1
