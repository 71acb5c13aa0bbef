"""What the controller says of its decisions: each partition with another leader or ISR, old and new, and bounded."""

from __future__ import annotations

from typing import Any

import pytest
from controller_world import World
from structlog.testing import capture_logs


def named(lines: list[Any], event: str) -> list[Any]:
    return [line for line in lines if line["event"] == event]


def test_a_fail_over_tells_each_partition_with_its_epochs_and_what_was_before() -> None:
    world = World(brokers=3)
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
        "metadata_offset": world.image.offset,
    }
    assert (second["leader_id"], second["previous_leader_id"], second["leader_epoch"]) == (2, 2, 0)


def test_topics_that_come_and_go_have_one_line_each() -> None:
    world = World(brokers=3)
    with capture_logs() as lines:
        world.create("orders", [[1, 2, 3]] * 5)
    assert [(line["event"], line["topic"], line["partitions"]) for line in lines] == [("topic.created", "orders", 5)]


def test_a_heartbeat_writes_nothing() -> None:
    world = World(brokers=3)
    with capture_logs() as lines:
        for _ in range(10):
            world.heartbeat(1)
    assert lines == []


def test_very_many_changes_are_told_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line takes longer than an election."""
    monkeypatch.setattr("strandline.controller.change_lines.PARTITION_LINES_MAX", 9)
    world = World(brokers=3)
    world.create("orders", [[1, 2, 3]] * 10)
    with capture_logs() as lines:
        world.kill_broker(1)
    assert named(lines, "broker.changed")[0]["partitions"] == 10
    assert not named(lines, "partition.changed")
