"""DeleteRecords: which offsets are allowed, when the request is answered, and that the deleted records stay away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from handled_request import HandledRequest
from replica_world import (
    NOW_MS,
    TOPIC,
    Node,
    P,
    ReplicaWorld,
    begin_shutdown,
    deliver,
    fence,
    log_values,
    register,
    remove_topic,
    values,
    want,
)

from strandline.broker.delete_records import check_policy
from strandline.controller.metadata.records import METADATA_TOPIC_ID, FeatureLevelRecord, PartitionChangeRecord
from strandline.protocol.apis import DELETE_RECORDS
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.data import (
    EARLIEST_TIMESTAMP,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResponse,
    DeleteRecordsRequest,
)
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.checkpoints import LOG_STARTS
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.files import DiskError
from strandline.storage.log.log_config import LogConfig

E = ErrorCode


def trim(node: Node, offset: int, *, key: TopicIdPartition = P, timeout_ms: int = 1000) -> HandledRequest:
    request = HandledRequest(DeleteRecordsRequest([DeleteRecordsPartition(*key, offset)], timeout_ms))
    node.handlers[DELETE_RECORDS](request)  # type: ignore[arg-type]
    node.loop.end_turn()
    return request


def result(request: HandledRequest) -> tuple[ErrorCode, int]:
    (answer,) = request.answer.partitions
    assert isinstance(answer, DeleteRecordsPartitionResponse)
    return ErrorCode(answer.error_code), answer.low_watermark


def alone(*batches: tuple[str, ...]) -> Node:
    """A leader without followers, with these batches."""
    world = ReplicaWorld(1)
    world.topic(replicas=(1,))
    for records in batches or (("a", "b", "c", "d"), ("e", "f")):
        world[1].produce(*records)
    return world[1]


def committed(world: ReplicaWorld, *followers: int) -> None:
    """Replicate everything; the last round carries the high watermark."""
    for _ in range(3):
        for follower in followers:
            world.replicate(follower, 1)


def three() -> ReplicaWorld:
    """Ten committed records in two batches on three replicas."""
    world = ReplicaWorld()
    world.topic()
    world[1].produce("0", "1", "2", "3", acks=1)
    world[1].produce("4", "5", "6", "7", "8", "9", acks=1)
    committed(world, 2, 3)
    assert [world[n].hw for n in (1, 2, 3)] == [10, 10, 10]
    assert world[1].p.log.read(6, 1 << 20, 10).first_offset == 4, "offset 6 lies inside a batch"
    return world


# -- offsets ------------------------------------------------------------------------------------------------------------


def test_records_below_the_offset_are_gone() -> None:
    node = alone()
    assert result(trim(node, 4)) == (E.NONE, 4)
    assert node.list_offsets(EARLIEST_TIMESTAMP).offset == 4
    assert ErrorCode(node.fetch(want(3)).answer.partitions[0].error_code) == E.OFFSET_OUT_OF_RANGE
    assert values(node.fetch(want(4))) == [b"e", b"f"]


def test_offset_inside_a_batch_is_the_new_start() -> None:
    """A read returns the batch whole, and clients skip to their position."""
    node = alone()
    assert result(trim(node, 2)) == (E.NONE, 2)
    assert node.list_offsets(EARLIEST_TIMESTAMP).offset == 2
    assert values(node.fetch(want(2))) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert ErrorCode(node.fetch(want(1)).answer.partitions[0].error_code) == E.OFFSET_OUT_OF_RANGE


def test_minus_one_means_the_high_watermark() -> None:
    world = three()
    world[1].produce("uncommitted", acks=1)
    world[1].fetch_from(world[2])
    request = trim(world[1], -1)
    committed(world, 2, 3)
    assert result(request) == (E.NONE, 10)
    assert log_values(world[1].p) == [(10, b"uncommitted")]


def test_offset_above_the_high_watermark_is_refused() -> None:
    """The record is not committed, so another record may get its offset."""
    world = three()
    world[1].produce("uncommitted", acks=1)
    assert result(trim(world[1], 11)) == (E.OFFSET_OUT_OF_RANGE, -1)
    assert world[1].p.log.log_start_offset == 0
    assert result(trim(world[1], 12)) == (E.OFFSET_OUT_OF_RANGE, -1)


def test_offset_below_the_start_changes_nothing_and_is_answered() -> None:
    node = alone()
    trim(node, 4)
    assert result(trim(node, 1)) == (E.NONE, 4)
    assert result(trim(node, 4)) == (E.NONE, 4)
    assert node.p.log.log_start_offset == 4


def test_metadata_log_is_refused() -> None:
    node = alone()
    assert result(trim(node, 0, key=(METADATA_TOPIC_ID, 0))) == (E.INVALID_TOPIC_EXCEPTION, -1)


def test_unknown_topics_and_partitions_are_refused() -> None:
    node = alone()
    assert result(trim(node, 0, key=(b"another-topic-id", 0))) == (E.UNKNOWN_TOPIC_ID, -1)
    assert result(trim(node, 0, key=(TOPIC, 7))) == (E.UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_a_follower_names_the_leader() -> None:
    world = three()
    request = trim(world[2], 4)
    assert result(request) == (E.NOT_LEADER_OR_FOLLOWER, -1)
    assert request.answer.partitions[0].current_leader.leader_id == 1
    assert world[2].p.log.log_start_offset == 0


def test_one_partition_twice_is_refused() -> None:
    node = alone()
    item = DeleteRecordsPartition(*P, 1)
    with pytest.raises(BrokerError, match="twice"):
        node.handlers[DELETE_RECORDS](HandledRequest(DeleteRecordsRequest([item, item], 1000)))  # type: ignore[arg-type]
    assert node.p.log.log_start_offset == 0


def test_each_partition_has_a_result_of_its_own() -> None:
    world = ReplicaWorld(1)
    world.topic(replicas=(1,), partitions=3)
    for index in range(3):
        world[1].produce("a", "b", key=(TOPIC, index))
    items = [DeleteRecordsPartition(TOPIC, 0, 1), DeleteRecordsPartition(TOPIC, 1, 3), DeleteRecordsPartition(TOPIC, 2, -1)]
    request = HandledRequest(DeleteRecordsRequest(items, 1000))
    world[1].handlers[DELETE_RECORDS](request)  # type: ignore[arg-type]
    answers = [(p.partition, p.error_code, p.low_watermark) for p in request.answer.partitions]
    assert answers == [(0, 0, 1), (1, E.OFFSET_OUT_OF_RANGE, -1), (2, 0, 2)]


def log_config(policy: list[str]) -> LogConfig:
    return LogConfig(compacts="compact" in policy, deletes="delete" in policy)


@pytest.mark.parametrize("policy", [["delete"], ["compact", "delete"], []])
def test_policies_that_permit_deleting(policy: list[str]) -> None:
    check_policy("orders", log_config(policy))


def test_compacted_topic_is_refused() -> None:
    """Compaction promises to keep the newest value of each key, which may be anywhere in the log."""
    with pytest.raises(BrokerError) as caught:
        check_policy("orders", log_config(["compact"]))
    assert caught.value.code == E.POLICY_VIOLATION


# -- the low watermark --------------------------------------------------------------------------------------------------


def test_answered_when_all_live_replicas_have_moved() -> None:
    """A follower gets the log start with a response and names it in its next fetch."""
    world = three()
    request = trim(world[1], 6)
    assert world[1].p.log.log_start_offset == 6, "the leader moves at once"
    assert not request.is_answered
    world.replicate(2, 1)
    world.replicate(3, 1)
    assert [world[n].p.log.log_start_offset for n in (2, 3)] == [6, 6]
    assert not request.is_answered, "the leader has not heard of it yet"
    world.replicate(2, 1)
    assert not request.is_answered
    world.replicate(3, 1)
    assert result(request) == (E.NONE, 6)
    assert log_values(world[2].p) == log_values(world[1].p)


def test_a_parked_fetch_is_answered_at_once() -> None:
    """Otherwise the follower would get the log start only after its long poll."""
    world = three()
    sent = world[2].p.fetch_position()
    parked = world[1].fetch_from(world[2], max_wait_ms=500)
    assert not parked.is_answered
    trim(world[1], 6)
    assert parked.answer.partitions[0].log_start_offset == 6
    assert deliver(world[2].p, sent, parked)
    assert world[2].p.log.log_start_offset == 6


def test_a_consumer_is_not_woken() -> None:
    node = alone()
    parked = node.fetch(want(6), max_wait_ms=500)
    trim(node, 6)
    assert not parked.is_answered


def test_a_follower_that_knows_the_start_is_not_woken_again() -> None:
    """Otherwise it would fetch in a loop without a pause."""
    world = three()
    trim(world[1], 6)
    committed(world, 2, 3)
    assert not world[1].fetch_from(world[2], max_wait_ms=500).is_answered


@pytest.mark.parametrize("change", [fence, begin_shutdown], ids=["fenced", "in shutdown"])
def test_replicas_that_are_not_alive_are_not_waited_for(change: Callable[[int], Any]) -> None:
    world = three()
    world.change(change(3))
    request = trim(world[1], 6)
    committed(world, 2)
    assert result(request) == (E.NONE, 6)


def test_request_ends_when_the_slow_replica_is_fenced() -> None:
    world = three()
    request = trim(world[1], 6)
    committed(world, 2)
    assert not request.is_answered
    world.change(fence(3))
    assert result(request) == (E.NONE, 6)


def test_eligible_leader_replica_that_is_down_is_waited_for() -> None:
    """It may be elected as soon as it returns, without a fetch from this leader, and would show the deleted records again."""
    world = three()
    world.change(FeatureLevelRecord(METADATA_VERSION, 1))
    world.change(fence(3), PartitionChangeRecord(*P, isr=(1, 2), eligible_leader_replicas=(3,)))
    request = trim(world[1], 6)
    committed(world, 2)
    assert not request.is_answered
    world.change(fence(3, fenced=-1))
    committed(world, 3)
    assert result(request) == (E.NONE, 6)
    assert world[3].p.log.log_start_offset == 6


def test_replica_that_is_no_longer_eligible_is_not_waited_for() -> None:
    world = three()
    world.change(FeatureLevelRecord(METADATA_VERSION, 1))
    world.change(fence(3), PartitionChangeRecord(*P, isr=(1, 2), eligible_leader_replicas=(3,)))
    request = trim(world[1], 6)
    committed(world, 2)
    assert not request.is_answered
    world.change(PartitionChangeRecord(*P, eligible_leader_replicas=()))
    assert result(request) == (E.NONE, 6)


def test_returning_replica_joins_the_isr_after_it_has_moved_its_log_start() -> None:
    """It was not waited for, so it could be elected with the deleted records if it joined with its first fetch."""
    world = three()
    world.change(fence(3), PartitionChangeRecord(*P, isr=(1, 2)))
    request = trim(world[1], 6)
    committed(world, 2)
    assert result(request) == (E.NONE, 6)
    world.change(fence(3, fenced=-1))
    world.replicate(3, 1)
    assert not world[1].alter.pending, "the fetch came before the log start did"
    assert world[3].p.log.log_start_offset == 6
    world.replicate(3, 1)
    assert [broker_id for broker_id, _ in world[1].alter.take().isr] == [1, 2, 3]


def test_a_restarted_replica_counts_with_its_new_process() -> None:
    """The log start that its old process named may not have reached the disk."""
    world = three()
    trim(world[1], 6)
    committed(world, 2, 3)
    world.change(register(3, epoch=40))
    request = trim(world[1], 6)
    assert not request.is_answered
    world.replicate(3, 1)
    assert result(request) == (E.NONE, 6)


def test_timeout_is_an_error_although_the_records_are_deleted() -> None:
    world = three()
    request = trim(world[1], 6)
    world.replicate(2, 1)
    world.loop.advance(1.1)
    assert result(request) == (E.REQUEST_TIMED_OUT, -1)
    assert world[1].p.log.log_start_offset == 6
    assert not len(world[1].p.deletions)
    assert not len(world[1].manager.purgatory)


def test_request_fails_when_the_leadership_ends() -> None:
    world = three()
    request = trim(world[1], 6)
    world.elect(2)
    assert result(request) == (E.NOT_LEADER_OR_FOLLOWER, -1)
    assert not len(world[1].p.deletions)


def test_request_fails_when_the_topic_is_deleted() -> None:
    world = three()
    request = trim(world[1], 6)
    world.change(remove_topic())
    assert result(request)[0] == E.UNKNOWN_TOPIC_ID


# -- the disk -----------------------------------------------------------------------------------------------------------


class HeldWork:
    """Work for the disk's thread, held until the test runs it."""

    def __init__(self) -> None:
        self.held: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def __call__(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        self.held.append((work, then))

    def run(self) -> None:
        work, then = self.held.pop(0)
        work()
        then()


def saved_start(node: Node) -> bytes:
    return node.files.read(f"{node.log_dir.path}/{LOG_STARTS}")


def test_answer_waits_for_the_disk() -> None:
    """After the answer, no restart may bring the records back, so the log start must be on the disk."""
    disk = HeldWork()
    world = ReplicaWorld(1, run_blocking=disk)
    world.topic(replicas=(1,))
    world[1].produce("a", "b", "c")
    disk.held.clear()
    first, second = trim(world[1], 1), trim(world[1], 2)
    assert len(disk.held) == 1, "one write at a time"
    assert not first.is_answered
    disk.run()
    assert result(first) == (E.NONE, 1)
    assert not second.is_answered, "its log start moved after the write had begun"
    disk.run()
    assert result(second) == (E.NONE, 2)
    assert saved_start(world[1]) == b"0\n1\norders 0 2\n"
    assert not disk.held


def test_answer_waits_for_the_disk_when_the_followers_were_faster() -> None:
    """The followers may die with the leader, and then the leader's log is the one that is read."""
    disk = HeldWork()
    world = ReplicaWorld(3, run_blocking=disk)
    world.topic(replicas=(1, 2, 3))
    world[1].produce("a", "b", "c", acks=1)
    committed(world, 2, 3)
    disk.held.clear()
    request = trim(world[1], 2)
    committed(world, 2, 3)
    assert [world[n].p.log.log_start_offset for n in (1, 2, 3)] == [2, 2, 2]
    assert not request.is_answered
    disk.run()
    assert saved_start(world[1]) == b"0\n1\norders 0 2\n"
    assert result(request) == (E.NONE, 2)


def test_slow_disk_is_a_timeout() -> None:
    disk = HeldWork()
    world = ReplicaWorld(1, run_blocking=disk)
    world.topic(replicas=(1,))
    world[1].produce("a", "b", "c")
    request = trim(world[1], 1)
    world.loop.advance(1.1)
    assert result(request) == (E.REQUEST_TIMED_OUT, -1)
    disk.run()


def test_failed_disk_is_no_success() -> None:
    disk = HeldWork()
    world = ReplicaWorld(1, run_blocking=disk)
    world.topic(replicas=(1,))
    world[1].produce("a", "b", "c")
    request = trim(world[1], 1)

    def fail(*_: Any) -> None:
        raise DiskError("write", "checkpoint", 5)

    world[1].files.write_atomic = fail  # type: ignore[method-assign]
    disk.run()
    assert result(request) == (E.KAFKA_STORAGE_ERROR, -1)


@pytest.mark.parametrize("broker", [1, 2])
def test_restart_does_not_bring_the_records_back(broker: int) -> None:
    """The records stay deleted on the leader and on a follower, which may lead next, without an orderly stop or a periodic
    checkpoint."""
    world = three()
    trim(world[1], 6)
    committed(world, 2, 3)
    world[broker].log_dir.close(clean=False)
    again = LogDir.open(world[broker].files, "/data", node_id=broker, cluster_id="cluster")
    log = again.open_log("orders", 0, TOPIC, world[broker].p.log.config, NOW_MS)
    assert (log.log_start_offset, log.log_end_offset) == (6, 10)


# -- a replica that begins at the start (KAFKA-6975) ----------------------------------------------------------------------


def test_new_replica_begins_inside_a_batch() -> None:
    """It gets a batch whose first offsets are deleted, and stores the whole batch as its leader does."""
    world = three()
    world.change(fence(3))
    request = trim(world[1], 6)
    committed(world, 2)
    assert result(request)[0] == E.NONE
    log = world[3].p.log
    log.truncate_fully_and_start_at(0)
    answer = world[1].fetch_from(world[3]).answer.partitions[0]
    assert answer.error_code == E.OFFSET_OUT_OF_RANGE
    world[3].p.truncate_fully_and_start_at(world[3].p.fetch_position(), 6)
    committed(world, 3)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (6, 10, 10)
    assert log_values(world[3].p) == log_values(world[1].p)
    world[1].produce("next", acks=1)
    committed(world, 3)
    assert log.log_end_offset == 11
    assert log.epochs.entries == world[1].p.log.epochs.entries


def test_new_leader_that_began_inside_a_batch_serves_it() -> None:
    world = three()
    trim(world[1], 6)
    committed(world, 2, 3)
    world[3].p.truncate_fully_and_start_at(world[3].p.fetch_position(), 6)
    committed(world, 3)
    world.elect(3)
    assert values(world[3].fetch(want(6))) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    world[2].p.truncate_fully_and_start_at(world[2].p.fetch_position(), 6)
    for _ in range(2):
        world.replicate(2, 3)
    assert log_values(world[2].p) == log_values(world[3].p)


def test_fork_that_ends_at_the_start_is_dropped() -> None:
    """Records that were never committed may end exactly where the leader's log starts, inside a batch. The leader no longer has
    the epochs from before, and its batch does not continue the follower's log."""
    world = three()
    world[1].produce("x", "y", acks=1)
    world.elect(2, isr=(2, 3))
    world[2].produce("10", "11", "12", "13", acks=1)
    for _ in range(3):
        world.replicate(3, 2)
    assert world[2].hw == 14
    world.change(fence(1))
    trim(world[2], 12)
    assert (world[1].leo, world[1].hw) == (12, 10)
    for _ in range(3):
        position = world[1].p.fetch_position()
        request = world[2].fetch_from(world[1])
        answer = request.answer.partitions[0]
        if answer.error_code == E.OFFSET_OUT_OF_RANGE:
            world[1].p.truncate_fully_and_start_at(position, world[2].p.log.log_start_offset)
        else:
            deliver(world[1].p, position, request)
    assert (world[1].p.log.log_start_offset, world[1].leo, world[1].hw) == (12, 14, 14)
    assert log_values(world[1].p) == log_values(world[2].p)


def test_emptied_replica_stays_at_its_end_in_a_new_epoch() -> None:
    """All records are deleted, and an epoch without records diverges from the new leader's history. There is no fork to drop, and
    a member of the ISR must not move back below its high watermark."""
    world = three()
    world.elect(2)
    request = trim(world[2], -1)
    for _ in range(3):
        for follower in (1, 3):
            world.replicate(follower, 2)
    assert result(request) == (E.NONE, 10)
    world.elect(1)
    position = world[2].p.fetch_position()
    answer = world[1].fetch_from(world[2]).answer.partitions[0]
    assert answer.diverging_epoch.epoch >= 0
    world[2].p.truncate_to_divergence(position, answer.diverging_epoch)
    log = world[2].p.log
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (10, 10, 10)
    world[1].produce("next", acks=1)
    committed(world, 2)
    assert log_values(world[2].p) == [(10, b"next")]
