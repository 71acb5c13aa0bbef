"""A delta with very many new partitions is applied in slices, and the broker serves requests in between."""

from __future__ import annotations

import contextlib

import pytest
from replica_world import ReplicaWorld

from strandline.broker import metadata_applier
from strandline.controller.metadata.records import PartitionRecord, RemoveTopicRecord, TopicRecord
from strandline.protocol.errors import BrokerError

WIDE, NEXT = b"w" * 16, b"n" * 16
SLICE = 2


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ReplicaWorld:
    monkeypatch.setattr(metadata_applier, "NEW_PER_SLICE", SLICE)
    return ReplicaWorld()


def wide(topic_id: bytes, name: str, count: int) -> list[TopicRecord | PartitionRecord]:
    """Broker 1 leads the odd partitions, and follows the others."""
    replicas = [(1, 2) if index % 2 else (2, 1) for index in range(count)]
    placed = [PartitionRecord(topic_id, index, pair, pair, pair[0]) for index, pair in enumerate(replicas)]
    return [TopicRecord(name, topic_id), *placed]


class Applied:
    """The partitions of a delta that broker 1 has, and how often the delta was reported as applied."""

    def __init__(self, world: ReplicaWorld) -> None:
        self.world, self.manager = world, world[1].manager
        self.done = 0

    def change(self, *records: object) -> None:
        """Let broker 1 apply these records, and no other callback run."""
        self.world.change(*records, at=[])  # type: ignore[arg-type]
        self.manager.apply_delta(self.manager.image.delta_to(self.world.image), 1, self._on_done)

    def _on_done(self) -> None:
        self.done += 1

    @property
    def indexes(self) -> list[int]:
        return sorted(index for topic_id, index in self.manager.partitions if topic_id == WIDE)


def test_partitions_are_created_in_slices_and_leaders_first(world: ReplicaWorld) -> None:
    applied = Applied(world)
    applied.change(*wide(WIDE, "wide", 5))
    assert (applied.indexes, applied.done) == ([1, 3], 0)
    with pytest.raises(BrokerError, match="NOT_LEADER_OR_FOLLOWER"):
        applied.manager.directory.partition((WIDE, 0))
    world.loop.advance(0)
    assert (applied.indexes, applied.done) == ([0, 1, 2, 3, 4], 1)
    assert len(world[1].fetchers.following) == 3


def test_a_delta_with_few_partitions_is_done_at_once(world: ReplicaWorld) -> None:
    applied = Applied(world)
    applied.change(*wide(WIDE, "wide", SLICE))
    assert (applied.indexes, applied.done) == ([0, 1], 1)


def test_the_next_delta_waits_for_the_one_before(world: ReplicaWorld) -> None:
    """Otherwise a partition could get the role of an earlier epoch, and the log of a deleted topic could be created after the
    deletion."""
    applied = Applied(world)
    applied.change(*wide(WIDE, "wide", 7))
    applied.change(*wide(NEXT, "next", 1))
    assert ((NEXT, 0) in applied.manager.partitions, applied.done) == (False, 0)
    world.loop.advance(0)
    assert (applied.indexes, applied.done) == ([*range(7)], 2)
    assert (NEXT, 0) in applied.manager.partitions


def test_a_deleted_topic_leaves_nothing_that_is_still_to_be_created(world: ReplicaWorld) -> None:
    applied = Applied(world)
    applied.change(*wide(WIDE, "wide", 7))
    applied.change(RemoveTopicRecord(WIDE))
    world.loop.advance(0)
    assert (applied.indexes, applied.done) == ([], 2)
    assert not world[1].fetchers.following


def test_a_delta_that_fails_does_not_stop_the_next_one(world: ReplicaWorld) -> None:
    applied = Applied(world)
    applied.change(*wide(WIDE, "wide", 7))
    applied._on_done = failing  # type: ignore[method-assign]
    applied.change(*wide(NEXT, "next", 1))
    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError):
            world.loop.advance(0)
    del applied._on_done
    applied.change(RemoveTopicRecord(WIDE))
    world.loop.advance(0)
    assert (applied.indexes, (NEXT, 0) in applied.manager.partitions) == ([], True)


def failing() -> None:
    raise ZeroDivisionError


def test_a_broker_that_stops_creates_no_more(world: ReplicaWorld) -> None:
    applied = Applied(world)
    applied.change(*wide(WIDE, "wide", 7))
    applied.manager.abandon_changes()
    world.loop.advance(0)
    assert (applied.indexes, applied.done) == ([1, 3], 0)
