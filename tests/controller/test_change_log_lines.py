"""The log lines of the controller's decisions: each partition with a new leader or ISR, before and after, in a bounded number."""

from __future__ import annotations

from typing import Any

import pytest
from controller_world import ControllerWorld
from structlog.testing import capture_logs


def named(lines: list[Any], event: str) -> list[Any]:
    return [line for line in lines if line["event"] == event]


def test_a_fail_over_logs_each_partition_before_and_after() -> None:
    world = ControllerWorld(brokers=3)
    world.create("orders", [[1, 2, 3], [2, 3, 1]])
    with capture_logs() as lines:
        world.kill_broker(1)
    [fencing] = named(lines, "broker.fencing")
    assert (fencing["broker_id"], fencing["broker_epoch"], fencing["reason"]) == (1, world.epoch(1), "test")
    [changed] = named(lines, "broker.changed")
    assert (changed["broker_id"], changed["fenced"], changed["partitions"]) == (1, True, 2)
    first, second = named(lines, "partition.changed")
    assert first == {
        "event": "partition.changed",
        "log_level": "info",
        "topic": "orders",
        "partition": 0,
        "leader_epoch": 1,
        "partition_epoch": 1,
        "leader_id": 2,
        "previous_leader_id": 1,
        "isr": [2, 3],
        "previous_isr": [1, 2, 3],
        "elr": [],
        "previous_elr": [],
        "replicas": [1, 2, 3],
        "metadata_offset": world.image.offset,
        "cause": "broker_fenced",
    }
    assert (second["leader_id"], second["previous_leader_id"], second["leader_epoch"]) == (2, 2, 0)


def test_topics_that_come_and_go_have_one_line_each() -> None:
    world = ControllerWorld(brokers=3)
    with capture_logs() as lines:
        world.create("orders", [[1, 2, 3]] * 5)
    told = [(line["event"], line["topic"], line["partitions"]) for line in lines]
    assert told == [("topic.created", "orders", 5), ("partitions.changed", "orders", 5)]


def test_a_heartbeat_writes_nothing() -> None:
    world = ControllerWorld(brokers=3)
    with capture_logs() as lines:
        for _ in range(10):
            world.heartbeat(1)
    assert lines == []


def test_very_many_changes_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each would take longer than the election. The shared line has the same facts."""
    monkeypatch.setattr("strandline.controller.change_log_lines.PARTITION_LINES_MAX", 9)
    world = ControllerWorld(brokers=3)
    world.create("orders", [[1, 2, 3]] * 10)
    with capture_logs() as lines:
        world.kill_broker(1)
    assert named(lines, "broker.changed")[0]["partitions"] == 10
    assert not named(lines, "partition.changed")
    [together] = named(lines, "partitions.changed")
    assert (together["topic"], together["partitions"], together["cause"]) == ("orders", 10, "broker_fenced")
    assert together["changes"][3] == [3, 1, 1, 2, [2, 3], [1, 2, 3]]


def test_new_partitions_are_told_with_their_first_state() -> None:
    """From then on, the log alone shows the leader, the ISR and the replicas."""
    world = ControllerWorld(brokers=3)
    with capture_logs() as lines:
        world.create("orders", [[1, 2], [2, 3]])
    [first] = named(lines, "partitions.changed")
    assert first["cause"] == "topic_created"
    assert first["changes"] == [[0, 0, 0, 1, [1, 2], [1, 2]], [1, 0, 0, 2, [2, 3], [2, 3]]]


def test_a_change_names_its_cause() -> None:
    world = ControllerWorld(brokers=3)
    world.create("orders", [[1, 2, 3]])
    with capture_logs() as lines:
        world.heartbeat(1, want_shut_down=True)
        world.kill_broker(3)
        world.start_broker(3, incarnation=2)
        world.alter("orders", [2, 3])
    assert [line["cause"] for line in named(lines, "partition.changed")] == [
        "controlled_shutdown",
        "broker_fenced",
        "leader_proposed",
    ]


def test_fencing_logs_how_long_the_broker_was_silent() -> None:
    """The time counts from the broken connection, if the controller noticed that; otherwise from the last heartbeat."""
    world = ControllerWorld(brokers=3)
    world.now += 0.25
    world.controller.metrics.on_connection_lost(1, world.now)
    world.now += 0.5
    with capture_logs() as lines:
        world.kill_broker(1)
        world.kill_broker(2)
    assert [line["silent_ms"] for line in named(lines, "broker.fencing")] == [500, 750]
