"""The offsets in a shard: they expire from time to time, and loads and metadata changes delete those of deleted topics."""

from __future__ import annotations

from random import Random

import pytest
from offset_world import GROUP, NOW_MS, ORDERS, RETENTION_MS, OffsetWorld, at, gone

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.records.types import ClassicGroupValue, GroupMetadataRecord, GroupRecord
from strandline.broker.groups.shard import GroupShard

INTERVAL_S = GroupConfig().offsets_retention_check_interval_ms / 1000
START = 1000.0


@pytest.fixture
def world() -> OffsetWorld:
    """Its log has one commit of a group without members."""
    world = OffsetWorld()
    world.log.append(GroupMetadataRecord(GROUP, ClassicGroupValue("consumer", 3, None, None, NOW_MS, ())))
    world.commit(at(700))
    return world


def loaded(world: OffsetWorld, config: GroupConfig | None = None) -> tuple[GroupShard, list[GroupRecord]]:
    """A shard that has replayed the log, and the records that it wrote at the end of the load."""
    shard = GroupShard(config or GroupConfig(), Random(0), world.image)
    for offset, record in enumerate(world.log):
        shard.replay(record, offset)
    return shard, [record for result in shard.on_loaded(START, NOW_MS) for record in result.records]


def expired(shard: GroupShard, now: float, now_ms: int) -> list[GroupRecord]:
    return [record for result in shard.expire(now, now_ms) for record in result.records]


def test_offsets_are_looked_at_again_and_again(world: OffsetWorld) -> None:
    """The first expiry is not replayed, so the next check finds the same offsets."""
    shard, _ = loaded(world)
    assert expired(shard, START + INTERVAL_S - 1, NOW_MS + RETENTION_MS) == []
    assert expired(shard, START + INTERVAL_S, NOW_MS + RETENTION_MS - 1) == []
    for turn in (2, 3):
        found = expired(shard, START + turn * INTERVAL_S, NOW_MS + RETENTION_MS)
        assert found == [gone(0), GroupMetadataRecord(GROUP, None)]


def test_interval_of_the_look_is_configured(world: OffsetWorld) -> None:
    shard, _ = loaded(world, GroupConfig(offsets_retention_check_interval_ms=5000))
    assert shard.deadlines.next_due() == START + 5


def test_load_deletes_offsets_of_deleted_topics(world: OffsetWorld) -> None:
    world.remove(ORDERS)
    _, written = loaded(world)
    assert written == [gone(0)]


def test_change_of_metadata_deletes_offsets_of_deleted_topics(world: OffsetWorld) -> None:
    shard, written = loaded(world)
    assert written == []
    removed = world.remove(ORDERS)
    results = shard.on_image(world.image, {"orders"}, removed, START, NOW_MS)
    assert [record for result in results for record in result.records] == [gone(0)]
