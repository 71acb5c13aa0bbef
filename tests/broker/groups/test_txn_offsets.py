"""TxnOffsetCommit: offsets of a transaction count when it is committed, and are unstable until then."""

from __future__ import annotations

import pytest
from offset_world import BILLS, GROUP, MINUTE_MS, ORDERS, RECREATED, RETENTION_MS, at, gone
from txn_offset_world import TxnOffsetWorld

from strandline.broker.groups.records.types import GroupMetadataRecord
from strandline.broker.groups.result import InTransaction
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.transactions import TxnOffsetCommitRequest

UNSTABLE = "UNSTABLE_OFFSET_COMMIT"


@pytest.fixture
def world() -> TxnOffsetWorld:
    return TxnOffsetWorld()


# -- until the marker -------------------------------------------------------------------------------------------------


def test_offset_counts_from_the_marker_on(world: TxnOffsetWorld) -> None:
    world.commit(at(100))
    assert world.txn_commit(7, at(200)) == [0]
    assert world.fetched() == {(ORDERS, 0): 100}
    assert world.end(7, is_commit=True) == 1
    assert world.fetched() == {(ORDERS, 0): 200}


def test_offset_of_an_aborted_transaction_is_dropped(world: TxnOffsetWorld) -> None:
    world.commit(at(100))
    world.txn_commit(7, at(200), at(300, 1))
    assert world.end(7, is_commit=False) == 0
    assert world.fetched() == {(ORDERS, 0): 100}
    assert world.stable({ORDERS: [0, 1]}) == {(ORDERS, 0): 100, (ORDERS, 1): -1}


def test_reader_of_stable_offsets_waits_for_the_marker(world: TxnOffsetWorld) -> None:
    """Otherwise the next owner of the partition would read from the old position, and process records again that the open
    transaction is about to commit (KIP-447)."""
    world.commit(at(100), at(50, 2))
    world.txn_commit(7, at(200), at(300, 1))
    expected = {(ORDERS, 0): UNSTABLE, (ORDERS, 1): UNSTABLE, (ORDERS, 2): 50}
    assert world.stable({ORDERS: [0, 1, 2]}) == expected
    assert world.stable() == expected
    assert world.stable(group_id="another") == {}
    world.end(7, is_commit=True)
    assert world.stable() == {(ORDERS, 0): 200, (ORDERS, 1): 300, (ORDERS, 2): 50}


def test_last_offset_of_a_transaction_counts(world: TxnOffsetWorld) -> None:
    world.txn_commit(7, at(200))
    world.txn_commit(7, at(210))
    world.end(7, is_commit=True)
    assert world.fetched() == {(ORDERS, 0): 210}


def test_marker_of_another_producer_changes_nothing(world: TxnOffsetWorld) -> None:
    world.txn_commit(7, at(200))
    assert world.end(8, is_commit=True) == 0
    assert world.stable({ORDERS: [0]}) == {(ORDERS, 0): UNSTABLE}


def test_marker_without_offsets_changes_nothing(world: TxnOffsetWorld) -> None:
    """The coordinator sends a marker again if its response was lost."""
    world.txn_commit(7, at(200))
    assert [world.end(7, is_commit=True), world.end(7, is_commit=True)] == [1, 0]
    assert world.fetched() == {(ORDERS, 0): 200}


def test_offset_is_committed_when_the_marker_is(world: TxnOffsetWorld) -> None:
    """A marker above the high watermark may be lost with its leader."""
    world.commit(at(100))
    world.txn_commit(7, at(200))
    world.end(7, is_commit=True)
    for high_watermark, offset in ((1, 100), (2, 100), (3, 200)):
        world.high_watermark = high_watermark
        assert world.fetched() == {(ORDERS, 0): offset}


# -- the newest record counts -----------------------------------------------------------------------------------------


def test_later_commit_is_not_undone_by_the_marker(world: TxnOffsetWorld) -> None:
    """Compaction removes the pending record, which is the older one of its key, and a later load must give the same answer. The
    marker cannot change the position, so the offset is stable."""
    world.txn_commit(7, at(200))
    world.commit(at(800))
    assert world.stable() == {(ORDERS, 0): 800}
    assert world.end(7, is_commit=True) == 0
    assert world.fetched() == {(ORDERS, 0): 800}


def test_earlier_transaction_that_ends_later_does_not_go_back(world: TxnOffsetWorld) -> None:
    world.txn_commit(7, at(200))
    world.txn_commit(8, at(300))
    world.end(8, is_commit=True)
    world.end(7, is_commit=True)
    assert world.fetched() == {(ORDERS, 0): 300}


def test_earlier_transaction_counts_if_the_later_one_is_aborted(world: TxnOffsetWorld) -> None:
    world.txn_commit(7, at(200))
    world.txn_commit(8, at(300))
    world.end(8, is_commit=False)
    world.end(7, is_commit=True)
    assert world.fetched() == {(ORDERS, 0): 200}


def test_later_record_of_the_same_transaction_counts_after_a_commit(world: TxnOffsetWorld) -> None:
    world.txn_commit(7, at(200))
    world.commit(at(800))
    world.txn_commit(7, at(210))
    world.end(7, is_commit=True)
    assert world.fetched() == {(ORDERS, 0): 210}


# -- who may store ----------------------------------------------------------------------------------------------------


def test_decision_belongs_to_the_transaction(world: TxnOffsetWorld) -> None:
    body = TxnOffsetCommitRequest("t", GROUP, 7, 3, [at(200)])
    result = world.store.commit_in_transaction(body, world.image, world.context())
    assert result.transaction == InTransaction(7, 3)
    assert [record.value.topic_id for record in result.records] == [ORDERS]  # type: ignore[union-attr]


def test_partitions_are_refused_one_by_one(world: TxnOffsetWorld) -> None:
    asked = [at(1), at(2, 9), at(3, topic_id=bytes(15) + b"?"), at(-1, 1), at(5, 2, committed_metadata="x" * 5000)]
    assert world.txn_commit(7, *asked) == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ]
    assert world.stable() == {(ORDERS, 0): UNSTABLE}


def code_of(world: TxnOffsetWorld, **fields: object) -> ErrorCode:
    with pytest.raises(BrokerError) as caught:
        world.txn_commit(7, at(200), at(300, 1), **fields)
    assert not world.log
    return caught.value.code


def test_member_of_a_group_that_does_not_exist_is_refused(world: TxnOffsetWorld) -> None:
    assert code_of(world, member_id="m", generation_id_or_member_epoch=5) == ErrorCode.ILLEGAL_GENERATION


def test_producer_that_names_only_the_group_is_not_checked(world: TxnOffsetWorld) -> None:
    """As in Kafka. Producers older than KIP-447, and aiokafka's, name only the group: they are fenced by a transactional id per
    partition."""
    group = world.group(members=["m"])
    assert world.txn_commit(7, at(200)) == [0]
    assert not group.checked


def test_member_of_the_group_is_checked(world: TxnOffsetWorld) -> None:
    group = world.group(members=["m"])
    assert world.txn_commit(7, at(200), member_id="m", generation_id_or_member_epoch=5) == [0]
    assert group.checked[-1][:3] == ("m", None, 5)
    assert group.was_transactional


def test_member_that_has_lost_a_partition_stores_nothing(world: TxnOffsetWorld) -> None:
    """Its transaction has processed records that another member reads now. The error makes producers abort."""
    world.group(members=["m"]).refusals = {(ORDERS, 1): ErrorCode.STALE_MEMBER_EPOCH}
    assert code_of(world, member_id="m", generation_id_or_member_epoch=5) == ErrorCode.ILLEGAL_GENERATION


# -- deletion ---------------------------------------------------------------------------------------------------------


def test_deleted_offset_does_not_come_back_with_the_marker(world: TxnOffsetWorld) -> None:
    world.commit(at(100))
    world.txn_commit(7, at(200), at(300, 1))
    assert world.delete({ORDERS: [0, 1]}) == [0, 0]
    assert world.log[-2:] == [gone(0), gone(1)]
    assert world.stable({ORDERS: [0, 1]}) == {(ORDERS, 0): -1, (ORDERS, 1): -1}
    assert world.end(7, is_commit=True) == 0
    assert world.fetched() == {}


def test_group_of_pending_offsets_is_one(world: TxnOffsetWorld) -> None:
    """An id with pending offsets only is listed as a group, and an operator may delete it."""
    world.txn_commit(7, at(200), at(300, topic_id=BILLS))
    world.commit(at(100))
    assert list(world.store.groups_with_offsets()) == [GROUP]
    world.txn_commit(7, at(200), group_id="another")
    assert list(world.store.groups_with_offsets()) == [GROUP, "another"]
    assert world.store.group_count == 2
    assert world.store.has_offsets("another")
    assert world.store.delete_group(GROUP) == [gone(0, "bills"), gone(0)]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_pending_offset_of_a_deleted_topic_is_deleted(world: TxnOffsetWorld, *, is_replaced: bool) -> None:
    """A topic of the same name must not begin at the position of the old one."""
    world.txn_commit(7, at(200, 1), at(300, topic_id=BILLS))
    removed = world.remove(ORDERS)
    if is_replaced:
        world.create(RECREATED, "orders", 3)
    assert world.store.on_loaded(world.image).records == [gone(1)]
    result = world.store.delete_topics(removed)
    assert result.records == [gone(1)]
    world.carry_out(result)
    world.end(7, is_commit=True)
    assert world.fetched() == {(BILLS, 0): 300}


def test_offset_with_a_pending_one_does_not_expire(world: TxnOffsetWorld) -> None:
    """Its group does not expire either, because the transaction may still commit the position."""
    world.group()
    world.commit(at(100), at(100, 1))
    world.txn_commit(7, at(200))
    assert world.expire(RETENTION_MS + MINUTE_MS) == [gone(1)]
    world.end(7, is_commit=False)
    assert world.expire(0) == [gone(0), GroupMetadataRecord(GROUP, None)]


def test_group_with_pending_offsets_only_does_not_expire(world: TxnOffsetWorld) -> None:
    world.group()
    world.txn_commit(7, at(200))
    assert world.expire(RETENTION_MS + MINUTE_MS) == []
    world.end(7, is_commit=False)
    assert world.expire(0) == [GroupMetadataRecord(GROUP, None)]
