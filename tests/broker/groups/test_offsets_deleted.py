"""Offsets are deleted: by an operator, with their topic, or by age."""

from __future__ import annotations

import pytest
from offset_world import BILLS, GROUP, MINUTE_MS, NOW_MS, ORDERS, RECREATED, RETENTION_MS, OffsetWorld, at, gone

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.records.types import CommittedOffset, GroupMetadataRecord, OffsetCommitRecord
from strandline.broker.groups.state import CLASSIC
from strandline.protocol.errors import BrokerError, ErrorCode

NO_TOPIC = bytes(15) + b"?"


@pytest.fixture
def world() -> OffsetWorld:
    """The group has an offset of three partitions; another group of one."""
    world = OffsetWorld()
    world.commit(at(700), at(800, 1), at(5, topic_id=BILLS))
    world.commit(at(1), group_id="others")
    return world


def refusal(world: OffsetWorld, group_id: str = GROUP) -> ErrorCode:
    with pytest.raises(BrokerError) as caught:
        world.delete({ORDERS: [0]}, group_id)
    return caught.value.code


# -- OffsetDelete and DeleteGroups ------------------------------------------------------------------------------------


def test_operator_deletes_offsets_of_a_group_without_members(world: OffsetWorld) -> None:
    assert world.delete({ORDERS: [1], BILLS: [0]}) == [0, 0]
    assert world.log[-2:] == [gone(1), gone(topic="bills")]
    assert world.fetched() == {(ORDERS, 0): 700}
    assert world.fetched("others") == {(ORDERS, 0): 1}


def test_deletion_of_no_offset_is_no_error_and_no_record(world: OffsetWorld) -> None:
    """A client repeats a request whose response was lost."""
    records = len(world.log)
    assert world.delete({ORDERS: [2, 77]}) == [0, 0]
    assert len(world.log) == records


def test_offsets_of_a_subscribed_topic_stay(world: OffsetWorld) -> None:
    """The member would start from its reset policy after the next rebalance (KIP-496)."""
    group = world.group(members=["m"])
    group.subscribed.add("orders")
    assert world.delete({ORDERS: [0, 1], BILLS: [0]}) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC] * 2 + [0]
    assert world.fetched() == {(ORDERS, 0): 700, (ORDERS, 1): 800}


def test_unknown_topic_id_of_a_deletion_fails_alone(world: OffsetWorld) -> None:
    assert world.delete({NO_TOPIC: [0], ORDERS: [0]}) == [ErrorCode.UNKNOWN_TOPIC_ID, 0]
    assert (ORDERS, 0) not in world.fetched()


def test_deletion_of_an_unknown_group_is_refused(world: OffsetWorld) -> None:
    assert refusal(world, "nothing") == ErrorCode.GROUP_ID_NOT_FOUND


def test_group_without_offsets_is_known(world: OffsetWorld) -> None:
    world.group("new")
    assert world.delete({ORDERS: [0]}, "new") == [0]


def test_members_of_another_protocol_type_keep_their_offsets(world: OffsetWorld) -> None:
    """The coordinator cannot read what they subscribe to."""
    group = world.group(members=["m"])
    group.group_type, group.protocol_type = CLASSIC, "connect"
    assert refusal(world) == ErrorCode.NON_EMPTY_GROUP
    group.protocol_type = "consumer"
    assert world.delete({ORDERS: [0]}) == [0]
    group.members.clear()
    group.protocol_type = ""
    assert world.delete({ORDERS: [1]}) == [0]


def test_group_is_deleted_with_all_its_offsets(world: OffsetWorld) -> None:
    """The tombstones are in a fixed order, so that a simulation can be repeated."""
    assert world.store.delete_group(GROUP) == [gone(topic="bills"), gone(0), gone(1)]
    assert world.store.delete_group("nothing") == []


def test_tombstone_of_an_unknown_offset_changes_nothing(world: OffsetWorld) -> None:
    """Compaction may have removed what it deletes (KAFKA-17306)."""
    world.log[0:0] = [gone(2), gone(0, "gone"), gone(0, group_id="nobody")]
    before = world.fetched()
    world.restart()
    assert world.fetched() == before
    assert list(world.store.groups_with_offsets()) == [GROUP, "others"]


def test_offset_after_the_tombstone_of_its_group_stays(world: OffsetWorld) -> None:
    """A program without a membership may commit after the group was deleted; compaction may keep either record only."""
    world.log += [*world.store.delete_group(GROUP), GroupMetadataRecord(GROUP, None)]
    world.restart()
    world.commit(at(9))
    world.restart()
    assert world.fetched() == {(ORDERS, 0): 9}


# -- deleted topics ---------------------------------------------------------------------------------------------------


def test_deleted_topic_takes_the_offsets_of_all_groups_along(world: OffsetWorld) -> None:
    result = world.store.delete_topics(world.remove(ORDERS))
    assert result.records == [gone(group_id="others"), gone(0), gone(1)]
    world.carry_out(result)
    assert world.fetched() == {(BILLS, 0): 5}
    assert list(world.store.groups_with_offsets()) == [GROUP]


def test_offsets_of_a_recreated_topic_survive_the_news_of_the_deletion(world: OffsetWorld) -> None:
    """One change of the metadata may delete a topic and create it again, so the first commit for the new topic may be in the log
    before the tombstones are written."""
    removed = world.remove(ORDERS)
    world.create(RECREATED, "orders", 3)
    world.commit(at(3, topic_id=RECREATED))
    result = world.store.delete_topics(removed)
    assert result.records == [gone(group_id="others"), gone(1)]


def test_offset_without_a_topic_id_is_deleted_by_name(world: OffsetWorld) -> None:
    world.log.append(OffsetCommitRecord(GROUP, "orders", 2, CommittedOffset(700)))
    world.restart()
    assert gone(2) in world.store.delete_topics(world.remove(ORDERS)).records


def test_load_deletes_offsets_of_topics_that_were_deleted_meanwhile(world: OffsetWorld) -> None:
    """No coordinator was active when the metadata changed, so no tombstone was written, and no later change would cause one."""
    world.log.append(OffsetCommitRecord(GROUP, "bills", 1, CommittedOffset(700)))
    world.log.append(OffsetCommitRecord(GROUP, "orders", 2, CommittedOffset(700)))
    world.remove(ORDERS)
    world.remove(BILLS)
    world.create(RECREATED, "orders", 3)
    world.commit(at(3, 1, RECREATED))
    world.restart()
    result = world.store.on_loaded(world.image)
    # Partition 2 has no topic id and counts for the new topic; partition 1 has a newer offset.
    assert result.records == [gone(group_id="others"), gone(topic="bills"), gone(1, "bills"), gone(0)]


def test_load_keeps_offsets_of_present_topics(world: OffsetWorld) -> None:
    world.restart()
    assert world.store.on_loaded(world.image).records == []


# -- expiry -----------------------------------------------------------------------------------------------------------


def test_offsets_without_a_group_expire_after_the_commit(world: OffsetWorld) -> None:
    assert world.expire(RETENTION_MS - 1) == []
    world.commit(at(701))
    assert world.expire(1) == [gone(group_id="others"), gone(topic="bills"), gone(1)]
    assert world.fetched() == {(ORDERS, 0): 701}
    assert world.expire(RETENTION_MS) == [gone(0)]
    assert list(world.store.groups_with_offsets()) == []


def test_offsets_of_an_empty_group_expire_after_its_last_member_left(world: OffsetWorld) -> None:
    """A member that reads a quiet topic may not commit for weeks. Its offsets stay for a retention time after it has left."""
    group = world.group()
    group.empty_since_ms = NOW_MS + 20 * RETENTION_MS
    assert [record.group_id for record in world.expire(21 * RETENTION_MS - 1)] == ["others"]
    assert world.expire(1) == [gone(topic="bills"), gone(0), gone(1), GroupMetadataRecord(GROUP, None)]
    assert world.groups.get(GROUP) is None


def test_offset_of_unknown_last_member_expires_after_the_commit(world: OffsetWorld) -> None:
    """Records of early versions do not say since when the group is empty."""
    world.group()
    assert [record.group_id for record in world.expire(RETENTION_MS)] == ["others", *[GROUP] * 4]


def test_commit_to_an_empty_group_is_kept_for_a_whole_retention_time(world: OffsetWorld) -> None:
    """An operator may reset the offsets of a group that stopped long ago, and start it only next week."""
    group = world.group()
    group.empty_since_ms = NOW_MS - 10 * RETENTION_MS
    world.now_ms += RETENTION_MS - 1
    world.commit(at(0))
    assert [record for record in world.expire(1) if record.group_id == GROUP] == [gone(topic="bills"), gone(1)]
    assert world.groups.get(GROUP) is group
    assert world.expire(RETENTION_MS - 2) == []
    assert world.expire(1) == [gone(0), GroupMetadataRecord(GROUP, None)]


def test_offset_of_a_topic_without_a_subscriber_expires_after_the_commit(world: OffsetWorld) -> None:
    group = world.group(members=["m"])
    group.subscribed.add("orders")
    assert [record for record in world.expire(RETENTION_MS) if record.group_id == GROUP] == [gone(topic="bills")]
    assert world.expire(10 * RETENTION_MS) == []


def test_no_offset_expires_while_a_classic_group_rebalances(world: OffsetWorld) -> None:
    """Its subscriptions are not known then; Kafka once deleted offsets that were in use (KAFKA-13636)."""
    world.commit(at(3, 2), retention_time_ms=1)
    group = world.group(members=["m"])
    group.is_rebalancing = True
    assert [record.group_id for record in world.expire(10 * RETENTION_MS)] == ["others"]
    group.is_rebalancing = False
    assert len(world.expire(0)) == 4
    assert world.groups.get(GROUP) is group


def test_expire_timestamp_of_a_commit_replaces_the_retention_time(world: OffsetWorld) -> None:
    world.commit(at(700), retention_time_ms=MINUTE_MS)
    world.commit(at(800, 1), retention_time_ms=10 * RETENTION_MS)
    assert world.expire(MINUTE_MS - 1) == []
    assert world.expire(1) == [gone(0)]
    assert gone(1) not in world.expire(9 * RETENTION_MS)
    assert world.expire(RETENTION_MS) == [gone(1)]


def test_subscribed_offset_with_an_expire_timestamp_stays(world: OffsetWorld) -> None:
    world.commit(at(700), retention_time_ms=MINUTE_MS)
    world.group(members=["m"]).subscribed.add("orders")
    assert world.expire(MINUTE_MS) == []


def test_empty_group_without_offsets_is_deleted_at_once(world: OffsetWorld) -> None:
    """It has nothing that a later member would need."""
    world.group("left")
    world.group("busy", members=["m"])
    assert world.expire(0) == [GroupMetadataRecord("left", None)]


def test_groups_expire_in_a_fixed_order() -> None:
    """A simulation must write the same records in each run, whatever the hashes of the ids are."""
    world = OffsetWorld()
    for number in (3, 1, 2):
        world.group(f"g{number}")
        world.commit(at(1), group_id=f"g{number}")
    world.commit(at(1), group_id="g0")
    ids = [record.group_id for record in world.expire(RETENTION_MS)]
    assert ids == ["g0", "g1", "g1", "g2", "g2", "g3", "g3"]


def test_retention_time_is_the_configured_one() -> None:
    world = OffsetWorld(GroupConfig(offsets_retention_minutes=1))
    world.commit(at(1))
    assert world.expire(MINUTE_MS - 1) == []
    assert world.expire(1) == [gone(0)]
