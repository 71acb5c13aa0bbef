"""TxnOffsetCommit and markers at the group coordinator of a broker: the batches in the log, and changes while the transaction
coordinator is asked."""

from __future__ import annotations

import pytest
from txn_commit_world import KEY, OFFSETS, ORDERS, PID, TxnCommitWorld

from strandline.broker.groups.coordinator import encode_batches
from strandline.broker.groups.records.types import CommittedOffset, OffsetCommitRecord
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import GroupTopicPartitions
from strandline.protocol.messages.transactions import AddPartitionsToTxnTransaction
from strandline.protocol.records.batch import MAX_SEQUENCE, iter_headers
from strandline.protocol.records.builder import BatchBuilder

UNSTABLE = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
NONE = (-1, 0)


@pytest.fixture
def world() -> TxnCommitWorld:
    return TxnCommitWorld()


def refused(world: TxnCommitWorld, code: ErrorCode, **options: object) -> None:
    end = world.log.log_end_offset
    with pytest.raises(BrokerError) as caught:
        world.store(1, **options)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert world.log.log_end_offset == end


# -- the transaction coordinator --------------------------------------------------------------------------------------


def test_partition_of_the_group_is_added_first(world: TxnCommitWorld) -> None:
    """Otherwise the partition would get no marker, and the offsets would stay unstable for ever."""
    request = world.store(100)
    asked = AddPartitionsToTxnTransaction("t", PID, 0, [GroupTopicPartitions(OFFSETS, [0])])
    assert world.adder.asked == [asked]
    assert not request.is_answered
    assert world.connection.held
    assert world.log.log_end_offset == 0
    world.adder.answer()
    assert [(p.topic_id, p.partition, p.error_code) for p in request.answer.partitions] == [(ORDERS, 0, 0)]
    assert not world.connection.held


def test_coordinator_is_asked_once_in_a_transaction(world: TxnCommitWorld) -> None:
    world.stored(100)
    assert world.store(110).is_answered
    assert len(world.adder.asked) == 1
    world.end(is_commit=True)
    world.stored(120, epoch=1)
    assert len(world.adder.asked) == 2


def test_producer_of_version_1_has_added_the_partition(world: TxnCommitWorld) -> None:
    world.store(100, version=1)
    assert [(asked.verify_only, asked.transaction_version) for asked in world.adder.asked] == [(True, 1)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_refusal_of_the_coordinator_reaches_the_producer(world: TxnCommitWorld, error: ErrorCode, code: ErrorCode) -> None:
    """If the transaction coordinator is unavailable, the producer must not look for another group coordinator."""
    request = world.store(100)
    world.adder.answer(error)
    assert request.answer.code == code
    assert world.log.log_end_offset == 0
    assert not world.connection.held


def test_fenced_producer_is_refused_without_a_question(world: TxnCommitWorld) -> None:
    """KAFKA-19690."""
    world.stored(100)
    world.end(is_commit=False, epoch=5)
    refused(world, ErrorCode.INVALID_PRODUCER_EPOCH, epoch=4)
    assert len(world.adder.asked) == 1


def test_transaction_that_ends_during_the_question_gets_no_offsets(world: TxnCommitWorld) -> None:
    """The offsets would follow the marker and belong to no transaction. The epoch shows this; in version 1, the marker does."""
    request = world.store(100)
    world.end(is_commit=False)
    world.adder.answer()
    assert request.answer.code == ErrorCode.INVALID_PRODUCER_EPOCH
    other = TxnCommitWorld()
    request = other.store(100, version=1)
    other.end(is_commit=False, epoch=0, version=1)
    other.adder.answer()
    assert request.answer.code == ErrorCode.INVALID_TXN_STATE
    assert world.log.log_end_offset == other.log.log_end_offset == 1


def test_leadership_may_end_during_the_question(world: TxnCommitWorld) -> None:
    request = world.store(100)
    world.brokers.elect(1, key=KEY)
    world.load()
    world.adder.answer()
    assert request.answer.code == ErrorCode.NOT_COORDINATOR
    assert world.log.log_end_offset == 0


def test_broker_that_was_paused_during_the_question_appends_nothing(world: TxnCommitWorld) -> None:
    request = world.store(100)
    world.is_trusted = False
    world.adder.answer()
    assert request.answer.code == ErrorCode.NOT_COORDINATOR
    assert world.log.log_end_offset == 0


def test_group_decides_after_the_question(world: TxnCommitWorld) -> None:
    request = world.store(100, member_id="m", generation_id_or_member_epoch=3)
    world.adder.answer()
    assert request.answer.code == ErrorCode.ILLEGAL_GENERATION
    assert world.log.log_end_offset == 0


def test_request_without_an_id_is_refused(world: TxnCommitWorld) -> None:
    refused(world, ErrorCode.INVALID_GROUP_ID, group_id="")
    refused(world, ErrorCode.INVALID_REQUEST, transactional_id="")


# -- the log ----------------------------------------------------------------------------------------------------------


def test_offsets_are_batches_of_the_transaction(world: TxnCommitWorld) -> None:
    """Each batch has the next sequence, so the log checks the producer's epoch and keeps its state like that of any producer."""
    world.commit(1)
    world.stored(100)
    world.store(110)
    world.end(is_commit=True)
    found = [(h.is_transactional, h.is_control, h.producer_id, h.producer_epoch, h.base_sequence) for h in world.headers()]
    assert found == [
        (False, False, -1, -1, -1),
        (True, False, PID, 0, 0),
        (True, False, PID, 0, 1),
        (True, True, PID, 1, -1),
    ]
    assert world.log.last_stable_offset == 4


def test_many_offsets_may_need_several_batches() -> None:
    records = [OffsetCommitRecord("g", "orders", n, CommittedOffset(n)) for n in range(100)]
    builder = BatchBuilder(PID, 3, MAX_SEQUENCE - 4, is_transactional=True)
    batches = encode_batches(records, 0, 1000, builder)  # type: ignore[arg-type]
    headers = [header for _, header in iter_headers(memoryview(batches))]
    assert len(headers) > 3
    assert all(h.size <= 1000 and h.is_transactional and (h.producer_id, h.producer_epoch) == (PID, 3) for h in headers)
    sequence = MAX_SEQUENCE - 4
    for header in headers:
        assert header.base_sequence == sequence
        sequence = (sequence + header.record_count) & MAX_SEQUENCE


# -- what readers get -------------------------------------------------------------------------------------------------


def test_offsets_are_unstable_until_the_marker(world: TxnCommitWorld) -> None:
    world.commit(50)
    world.stored(100)
    world.store(200, 1)
    assert world.fetched() == [(50, 0), NONE]
    assert world.fetched(require_stable=True) == [UNSTABLE, UNSTABLE]
    commits = world.commits
    assert world.end(is_commit=True) == 4
    assert world.commits == commits + 1, "the lag of the group is measured again"
    assert world.fetched() == world.fetched(require_stable=True) == [(100, 0), (200, 0)]


def test_marker_is_committed_before_readers_of_stable_offsets_know_of_it() -> None:
    """The marker may still be lost with its leader. A fetch of stable offsets waits until the marker is committed."""
    world = TxnCommitWorld(brokers=2)
    world.brokers.replicate(2, 1, key=KEY)
    request = world.store(100)
    world.adder.answer()
    assert not request.is_answered
    world.brokers.replicate(2, 1, key=KEY)
    world.brokers.replicate(2, 1, key=KEY)
    assert request.is_answered
    assert world.end(is_commit=True) == 2
    assert world.fetched() == [NONE, NONE]
    stable = world.fetch(require_stable=True)
    assert not stable.is_answered
    world.brokers.replicate(2, 1, key=KEY)
    world.brokers.replicate(2, 1, key=KEY)
    assert stable.answer.groups[0].partitions[0].committed_offset == 100
    assert world.fetched() == [(100, 0), NONE]


def test_next_coordinator_knows_the_pending_offsets(world: TxnCommitWorld) -> None:
    world.stored(100)
    world.brokers.elect(1, key=KEY)
    world.load()
    assert world.fetched(require_stable=True) == [UNSTABLE, NONE]
    world.end(is_commit=True)
    world.start()
    assert world.fetched(require_stable=True) == [(100, 0), NONE]


# -- markers ----------------------------------------------------------------------------------------------------------


def marker_code(world: TxnCommitWorld, **options: int) -> ErrorCode:
    with pytest.raises(BrokerError) as caught:
        world.end(is_commit=True, **options)
    return caught.value.code


def test_fenced_transaction_coordinator_writes_no_marker(world: TxnCommitWorld) -> None:
    world.stored(100)
    world.end(is_commit=False, epoch=1, coordinator_epoch=5)
    world.stored(110, epoch=1)
    assert marker_code(world, epoch=2, coordinator_epoch=4) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert world.fetched(require_stable=True) == [UNSTABLE, NONE]


def test_marker_during_the_load_is_refused() -> None:
    """Without the loaded offsets, the marker would have no effect. The transaction coordinator handles this error, and sends the
    marker again."""
    world = TxnCommitWorld()
    world.brokers.elect(1, key=KEY)
    assert marker_code(world) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    image = world.brokers[1].manager.image
    world.coordinator.apply_delta(image.EMPTY.delta_to(image))
    assert world.coordinator.is_loading
    assert marker_code(world) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_nothing_is_written_while_the_isr_is_too_small() -> None:
    world = TxnCommitWorld(brokers=2, min_isr=2)
    world.brokers.set_isr(1, key=KEY)
    assert marker_code(world) == ErrorCode.NOT_ENOUGH_REPLICAS
    refused(world, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert world.adder.asked == []
