"""The metrics of the coordinator. Many groups are counted without stopping the event loop."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from offset_world import NOW_MS, ORDERS, RETENTION_MS, FakeGroup, OffsetWorld, at

from strandline.broker.coordination.load_times import RECENT_S
from strandline.broker.groups.census import SLICE, GroupCensus
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.metrics import GroupMetrics
from strandline.broker.groups.records.types import (
    ClassicGroupValue,
    CommittedOffset,
    ConsumerGroupMetadataRecord,
    ConsumerGroupMetadataValue,
    GroupMetadataRecord,
    OffsetCommitRecord,
)
from strandline.broker.groups.result import Removal
from strandline.broker.groups.shard import GroupShard
from strandline.broker.groups.state import CLASSIC, CONSUMER, GroupTable
from strandline.controller.metadata.image import MetadataImage

COMMIT = OffsetCommitRecord("readers", "orders", 0, CommittedOffset(5))
TOMBSTONE = OffsetCommitRecord("readers", "orders", 0, None)


def test_offsets_are_counted_by_what_happens_to_them() -> None:
    metrics = GroupMetrics()
    assert metrics.on_append([COMMIT, COMMIT, TOMBSTONE], Removal.EXPIRATION, GroupTable())
    assert not metrics.on_append([TOMBSTONE, TOMBSTONE], Removal.DELETION, GroupTable())
    assert metrics.offset_commits == 2
    assert metrics.offset_removals == {Removal.EXPIRATION: 1, Removal.DELETION: 2, Removal.TOPIC_DELETION: 0}


def test_removed_offsets_have_their_cause() -> None:
    world = OffsetWorld()
    world.commit(at(700), at(800, 1))
    assert world.store.expire(NOW_MS + RETENTION_MS).removal is Removal.EXPIRATION
    removed = world.remove(ORDERS)
    assert world.store.delete_topics(removed).removal is Removal.TOPIC_DELETION
    assert world.store.on_loaded(world.image).removal is Removal.TOPIC_DELETION


def test_offsets_are_counted_as_they_come_and_go() -> None:
    world = OffsetWorld()
    world.commit(at(700), at(800, 1))
    world.commit(at(900))
    assert len(world.store) == 2
    world.delete({ORDERS: [0]})
    assert len(world.store) == 1
    world.restart()
    assert len(world.store) == 1


def test_epoch_of_a_converted_group_is_one_rebalance() -> None:
    """A conversion writes the record of the group with its old epoch and, if the group rebalances at once, with the next one."""
    metrics = GroupMetrics()
    epochs = [ConsumerGroupMetadataRecord("readers", ConsumerGroupMetadataValue(epoch)) for epoch in (4, 5)]
    metrics.on_append(epochs, Removal.DELETION, GroupTable())
    metrics.on_append([ConsumerGroupMetadataRecord("readers", None)], Removal.DELETION, GroupTable())
    assert metrics.rebalances == {CLASSIC: 0, CONSUMER: 1}


def test_record_of_a_returning_static_member_ends_no_rebalance() -> None:
    metrics, groups, group = GroupMetrics(), GroupTable(), FakeGroup()
    groups.put(group)
    record = GroupMetadataRecord(group.group_id, ClassicGroupValue("consumer", 3, "range", "m", NOW_MS, ()))
    metrics.on_append([record], Removal.DELETION, groups)
    assert metrics.rebalances[CLASSIC] == 0
    group.state_name = "CompletingRebalance"
    metrics.on_append([record], Removal.DELETION, groups)
    assert metrics.rebalances[CLASSIC] == 1


def test_recent_loads_are_those_of_half_a_minute() -> None:
    metrics = GroupMetrics()
    metrics.on_load(2.0, now=100.0)
    metrics.on_load(3.0, now=110.0)
    assert metrics.recent_loads_s(110.0) == [2.0, 3.0]
    assert metrics.recent_loads_s(100.0 + RECENT_S + 1) == [3.0]
    assert metrics.recent_loads_s(1000.0) == []
    assert metrics.load.count == 2


class CensusWorld:
    """A shard with groups of the classic protocol, and the slices of a census that wait."""

    def __init__(self, groups: int) -> None:
        self.shard = GroupShard(GroupConfig(), Random(0), MetadataImage.empty())
        self.slices: list[Callable[[], None]] = []
        self.census = GroupCensus(lambda: [self.shard], self._call_later)
        for number in range(groups):
            self.add(str(number))

    def add(self, group_id: str) -> None:
        self.shard.replay(GroupMetadataRecord(group_id, ClassicGroupValue("consumer", 1, None, None, NOW_MS, ())), 0)

    def _call_later(self, delay: float, action: Callable[[], None]) -> None:  # type: ignore[override]
        assert not delay
        self.slices.append(action)


def test_few_groups_are_counted_at_once() -> None:
    """An id that has only offsets is an empty group, as in a list of groups."""
    world = CensusWorld(2)
    world.shard.replay(OffsetCommitRecord("0", "orders", 0, CommittedOffset(5)), 0)
    world.shard.replay(OffsetCommitRecord("offsets only", "orders", 0, CommittedOffset(5)), 0)
    assert world.census.counts()[CLASSIC, "Empty"] == 3
    world.add("another")
    assert world.census.counts()[CLASSIC, "Empty"] == 4
    assert world.slices == []


def test_many_groups_are_counted_in_slices_after_the_scrape() -> None:
    """A scrape that looked at 100,000 groups would stop the event loop for 100 ms."""
    world = CensusWorld(2 * SLICE + 1)
    assert world.census.counts()[CLASSIC, "Empty"] == 0
    assert world.census.counts()[CLASSIC, "Empty"] == 0
    count = 0
    while world.slices:
        (step,) = world.slices
        world.slices.clear()
        step()
        count += 1
    assert count == 2
    assert world.census.counts()[CLASSIC, "Empty"] == 2 * SLICE + 1
