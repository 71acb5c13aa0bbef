"""OffsetCommit and OffsetFetch: which programs may store a position, and which position is returned."""

from __future__ import annotations

import pytest
from offset_world import BILLS, GROUP, NOW_MS, ORDERS, RECREATED, OffsetWorld, at

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.records.types import CommittedOffset, OffsetCommitRecord
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import ZERO_UUID
from strandline.protocol.messages.groups import OffsetFetchPartition

NO_TOPIC = bytes(15) + b"?"


@pytest.fixture
def world() -> OffsetWorld:
    return OffsetWorld()


# -- who may commit ---------------------------------------------------------------------------------------------------


def test_program_without_a_membership_commits_under_any_unused_id(world: OffsetWorld) -> None:
    """Spark, Flink and operators' tools store positions in this way. The id is no group, but has offsets."""
    assert world.commit(at(700, 1)) == [0]
    assert world.fetched() == {(ORDERS, 1): 700}
    assert world.groups.get(GROUP) is None
    assert list(world.store.groups_with_offsets()) == [GROUP]
    assert world.store.has_offsets(GROUP)
    assert not world.store.has_offsets("another")


def test_program_without_a_membership_commits_to_a_group_without_members(world: OffsetWorld) -> None:
    """An operator resets the offsets of a stopped group."""
    group = world.group()
    assert world.commit(at(700)) == [0]
    assert not group.checked


def test_program_without_a_membership_is_refused_while_the_group_has_members(world: OffsetWorld) -> None:
    """It would move the position of a member that is reading."""
    world.group(members=["m"])
    with pytest.raises(BrokerError) as caught:
        world.commit(at(700))
    assert caught.value.code == ErrorCode.UNKNOWN_MEMBER_ID
    assert not world.log


@pytest.mark.parametrize(
    ("member_id", "epoch", "code"),
    [
        ("m", 5, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", 5, ErrorCode.ILLEGAL_GENERATION),
        ("", 0, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_member_of_a_group_that_does_not_exist_is_refused(
    world: OffsetWorld, member_id: str, epoch: int, code: ErrorCode
) -> None:
    """It was removed with its group, and its partitions may have another reader."""
    with pytest.raises(BrokerError) as caught:
        world.commit(at(700), member_id=member_id, generation_id_or_member_epoch=epoch)
    assert caught.value.code == code
    assert not world.store.has_offsets(GROUP)


@pytest.mark.parametrize("epoch", [0, 5])
def test_group_that_only_has_offsets_knows_no_member(world: OffsetWorld, epoch: int) -> None:
    """Kafka has an empty group then, and looks for the member before its generation."""
    world.commit(at(700), generation_id_or_member_epoch=-1)
    with pytest.raises(BrokerError) as caught:
        world.commit(at(800), member_id="", generation_id_or_member_epoch=epoch)
    assert caught.value.code == ErrorCode.UNKNOWN_MEMBER_ID


def test_former_member_commits_without_a_membership(world: OffsetWorld) -> None:
    """A Java consumer that unsubscribes and assigns itself partitions still names its member id, with epoch -1."""
    for member_id in ("m", ""):
        assert world.commit(at(700), member_id=member_id, generation_id_or_member_epoch=-1) == [0]
    group = world.group()
    assert world.commit(at(800), member_id="m", generation_id_or_member_epoch=-1) == [0]
    assert not group.checked


def test_former_member_is_refused_in_its_old_epoch(world: OffsetWorld) -> None:
    """Its late commit must not replace what an operator has stored meanwhile; the group decides."""
    group = world.group()
    with pytest.raises(BrokerError) as caught:
        world.commit(at(700), member_id="m", generation_id_or_member_epoch=5)
    assert caught.value.code == ErrorCode.UNKNOWN_MEMBER_ID
    assert [member for member, *_ in group.checked] == ["m"]


def test_group_checks_the_member_and_each_partition(world: OffsetWorld) -> None:
    """KIP-1251: a commit of an older epoch counts for the partitions that the member has had since; others fail alone."""
    group = world.group(members=["m"])
    group.refusals[(ORDERS, 1)] = ErrorCode.STALE_MEMBER_EPOCH
    codes = world.commit(at(700), at(800, 1), at(900, 2), member_id="m", generation_id_or_member_epoch=5, group_instance_id="i")
    assert codes == [0, ErrorCode.STALE_MEMBER_EPOCH, 0]
    assert group.checked == [("m", "i", 5, NOW_MS / 1000)]
    assert world.fetched() == {(ORDERS, 0): 700, (ORDERS, 2): 900}


# -- what is stored ---------------------------------------------------------------------------------------------------


def test_record_has_every_field_of_the_commit(world: OffsetWorld) -> None:
    world.commit(at(700, 2, committed_leader_epoch=4, committed_metadata="note"), at(1, topic_id=BILLS))
    assert world.log == [
        OffsetCommitRecord(GROUP, "orders", 2, CommittedOffset(700, 4, "note", NOW_MS, topic_id=ORDERS)),
        OffsetCommitRecord(GROUP, "bills", 0, CommittedOffset(1, -1, "", NOW_MS, topic_id=BILLS)),
    ]


def test_refused_partition_does_not_fail_the_others(world: OffsetWorld) -> None:
    codes = world.commit(
        at(1, topic_id=NO_TOPIC), at(2, 3), at(-1), at(3, 1, committed_metadata="x" * 4097), at(0, 2), at(-(2**63), 1)
    )
    assert codes == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        0,
        ErrorCode.INVALID_REQUEST,
    ]
    assert world.fetched() == {(ORDERS, 2): 0}


@pytest.mark.parametrize(
    ("metadata", "limit", "fits"),
    [
        ("x" * 4096, 4096, True),
        ("ä" * 4096, 4096, True),
        ("🌊" * 2048, 4096, True),
        ("🌊" * 2048 + "x", 4096, False),
        ("", 0, True),
        ("x", 0, False),
        ("x" * 32767, 2**31 - 1, True),
        ("ä" * 16384, 2**31 - 1, False),
    ],
)
def test_limit_of_metadata_counts_as_kafka_counts(metadata: str, limit: int, fits: bool) -> None:
    """The limit counts UTF-16 characters. In any case, the record has room for only 32767 bytes."""
    world = OffsetWorld(GroupConfig(offset_metadata_max_bytes=limit))
    codes = world.commit(at(1, committed_metadata=metadata))
    assert codes == [0 if fits else ErrorCode.OFFSET_METADATA_TOO_LARGE]
    world.restart()
    assert [p.metadata for p in world.fetch().partitions] == ([metadata] if fits else [])


def test_retention_time_becomes_an_expire_timestamp(world: OffsetWorld) -> None:
    """The record of such a commit (version 1) has neither a leader epoch nor a topic id, so both are ignored before a reload,
    too."""
    world.commit(at(700, committed_leader_epoch=4, committed_metadata="note"), retention_time_ms=60_000)
    expected = CommittedOffset(700, -1, "note", NOW_MS, NOW_MS + 60_000, ZERO_UUID)
    assert world.log == [OffsetCommitRecord(GROUP, "orders", 0, expected)]
    before = world.fetch()
    world.restart()
    assert world.fetch() == before


@pytest.mark.parametrize("retention_ms", [2**63 - 1, -(2**63), -NOW_MS - 1])
def test_any_retention_time_fits_into_a_record(world: OffsetWorld, retention_ms: int) -> None:
    world.commit(at(700), retention_time_ms=retention_ms)
    world.restart()
    offsets = world.store.offsets_of(GROUP)
    assert [offset.value.expire_timestamp for offset in offsets] == [2**63 - 1 if retention_ms > 0 else 0]


def test_later_position_of_the_same_partition_counts(world: OffsetWorld) -> None:
    world.commit(at(700), at(800))
    world.commit(at(600))
    assert world.fetched() == {(ORDERS, 0): 600}


# -- fetch ------------------------------------------------------------------------------------------------------------


def test_answer_has_the_fields_of_the_commit(world: OffsetWorld) -> None:
    world.commit(at(700, 2, committed_leader_epoch=4, committed_metadata="note"))
    found = OffsetFetchPartition(ORDERS, 2, 700, 4, "note", NOW_MS)
    assert world.fetch({ORDERS: [2, 0]}).partitions == [found, OffsetFetchPartition(ORDERS, 0, metadata="")]
    assert world.fetch().partitions == [found]


def test_question_without_topics_is_about_none(world: OffsetWorld) -> None:
    """Null asks for all topics, an empty list for none."""
    world.commit(at(700))
    assert world.fetch({}).partitions == []


def test_unknown_group_has_no_offsets(world: OffsetWorld) -> None:
    """It is not an error: every new group asks before its first commit."""
    assert world.fetch({ORDERS: [0]}, "new").partitions == [OffsetFetchPartition(ORDERS, 0, metadata="")]
    assert world.fetched("new") == {}


def test_unknown_topic_id_fails_its_partitions_alone(world: OffsetWorld) -> None:
    """The client's metadata is out of date (the topic was deleted), or this broker's is."""
    world.commit(at(700))
    answer = world.fetch({NO_TOPIC: [0, 1], ORDERS: [0]})
    assert answer.error_code == 0
    assert [(p.error_code, p.committed_offset) for p in answer.partitions] == [(100, -1), (100, -1), (0, 700)]


def test_partition_that_the_topic_does_not_have_has_no_offset(world: OffsetWorld) -> None:
    assert world.fetch({ORDERS: [99]}).partitions == [OffsetFetchPartition(ORDERS, 99, metadata="")]


def test_answer_is_in_the_order_of_names_and_partitions(world: OffsetWorld) -> None:
    """A compacted log has its records in another order; the same question gets the same answer."""
    world.commit(at(1, 2), at(2, 0), at(3, 0, BILLS), at(4, 1))
    assert list(world.fetched()) == [(BILLS, 0), (ORDERS, 0), (ORDERS, 1), (ORDERS, 2)]
    assert [offset[:2] for offset in world.store.offsets_of(GROUP)] == [("bills", 0), ("orders", 0), ("orders", 1), ("orders", 2)]


def test_recreated_topic_starts_without_offsets(world: OffsetWorld) -> None:
    """Offset 700 of the old topic is a position in other records, or beyond the end of the new log."""
    world.commit(at(700))
    world.remove(ORDERS)
    world.create(RECREATED, "orders", 3)
    assert world.fetch({RECREATED: [0]}).partitions == [OffsetFetchPartition(RECREATED, 0, metadata="")]
    assert world.fetched() == {}
    world.commit(at(5, topic_id=RECREATED))
    assert world.fetched() == {(RECREATED, 0): 5}


def test_offset_without_a_topic_id_counts_for_the_name(world: OffsetWorld) -> None:
    """Records of older Kafka versions have no topic id."""
    world.log.append(OffsetCommitRecord(GROUP, "orders", 0, CommittedOffset(700)))
    world.restart()
    assert world.fetched() == {(ORDERS, 0): 700}
    assert [p.committed_offset for p in world.fetch({ORDERS: [0]}).partitions] == [700]


# -- committed or not -------------------------------------------------------------------------------------------------


def test_fetch_answers_the_last_position_below_the_high_watermark(world: OffsetWorld) -> None:
    """A position that a failover may undo must not be returned: the consumer would skip records."""
    world.high_watermark = 0
    world.commit(at(700))
    world.commit(at(800))
    assert world.fetched() == {}
    assert [p.committed_offset for p in world.fetch({ORDERS: [0]}).partitions] == [-1]
    world.high_watermark = 1
    assert world.fetched() == {(ORDERS, 0): 700}
    world.commit(at(900))
    assert [p.committed_offset for p in world.fetch({ORDERS: [0]}).partitions] == [700]
    world.high_watermark = 3
    assert world.fetched() == {(ORDERS, 0): 900}


def test_deleted_offset_is_answered_until_the_tombstone_is_committed(world: OffsetWorld) -> None:
    world.commit(at(700))
    world.high_watermark = 1
    world.delete({ORDERS: [0]})
    assert not world.store.has_offsets(GROUP)
    assert world.fetched() == {(ORDERS, 0): 700}
    world.high_watermark = 2
    assert world.fetched() == {}


def test_load_keeps_what_the_high_watermark_has_not_passed(world: OffsetWorld) -> None:
    """A new leader's high watermark may be too low, and the loaded records above it may still be lost."""
    for offset in (700, 800, 900):
        world.commit(at(offset))
    world.high_watermark = 2
    world.restart()
    assert world.fetched() == {(ORDERS, 0): 800}
    world.high_watermark = 3
    assert world.fetched() == {(ORDERS, 0): 900}


def test_older_high_watermark_changes_nothing(world: OffsetWorld) -> None:
    world.commit(at(700))
    world.commit(at(800))
    assert world.fetched() == {(ORDERS, 0): 800}
    world.high_watermark = 1
    assert world.fetched() == {(ORDERS, 0): 800}


def test_replaced_positions_are_kept_only_while_they_are_needed(world: OffsetWorld) -> None:
    """With two commits per second, a partition has 63 million positions after a year."""
    table = world.store._table
    for offset in range(100):
        world.store.on_high_watermark(len(world.log) - 3)
        world.commit(at(offset), at(offset, 1))
    assert len(table._uncommitted) == 3 + 2
    assert sum(len(values) for values in table._earlier[GROUP].values()) == len(table._uncommitted)
    world.store.on_high_watermark(len(world.log))
    assert not table._uncommitted
    assert not table._earlier


def test_offsets_of_a_group_are_the_committed_ones(world: OffsetWorld) -> None:
    """The lag metrics are computed from the offsets that a fetch would return."""
    world.store.on_high_watermark(1)
    world.commit(at(700), at(5, 1))
    assert [(o.topic, o.partition, o.value.offset) for o in world.store.offsets_of(GROUP)] == [("orders", 0, 700)]
    world.store.on_high_watermark(2)
    assert [(o.topic, o.partition, o.value.offset) for o in world.store.offsets_of(GROUP)] == [
        ("orders", 0, 700),
        ("orders", 1, 5),
    ]
