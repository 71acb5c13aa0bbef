"""Produce: acks, the minimum ISR, duplicates, refusals, and how waiting ends."""

from __future__ import annotations

import errno
from itertools import permutations

import pytest
from handled_request import HandledRequest
from replica_world import TOPIC, Node, P, ReplicaWorld, batch, code, produced, remove_topic

from strandline.controller.metadata.image import PartitionRegistration
from strandline.controller.metadata.records import PartitionChangeRecord
from strandline.protocol.apis import PRODUCE
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import CurrentLeader, EpochEndOffset
from strandline.protocol.messages.data import ProducePartition, ProduceRequest
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.files import DiskError

OTHER = (TOPIC, 1)


def three(**options: object) -> tuple[ReplicaWorld, Node]:
    world = ReplicaWorld()
    world.topic(**options)  # type: ignore[arg-type]
    return world, world[1]


# -- acks -------------------------------------------------------------------------------------------------------------


def test_acks_1_is_answered_after_the_append() -> None:
    _, leader = three()
    request = leader.produce("a", "b", acks=1)
    assert (produced(request).error_code, produced(request).base_offset) == (0, 0)
    assert produced(leader.produce("c", acks=1)).base_offset == 2


def test_acks_0_is_not_answered() -> None:
    _, leader = three()
    request = leader.produce("a", acks=0)
    assert request.answers == [None]
    assert not request.connection.closed
    assert leader.leo == 1


def test_acks_0_that_fails_closes_the_connection() -> None:
    """A producer with acks=0 gets no response, so a closed connection is the only sign."""
    world, _ = three()
    request = world[2].produce("a", acks=0)
    assert request.answers == [None]
    assert request.connection.closed


def test_acks_all_is_answered_when_the_high_watermark_passed_the_last_record() -> None:
    _, leader = three()
    request = leader.produce("a", "b")
    leader.said_by(2, 2)
    leader.said_by(3, 1)
    assert not request.is_answered
    leader.said_by(3, 2)
    assert (code(request), produced(request).base_offset) == (ErrorCode.NONE, 0)


def test_acks_all_is_answered_at_once_when_the_leader_is_alone() -> None:
    _, leader = three(replicas=(1,))
    assert code(leader.produce("a")) == ErrorCode.NONE
    assert leader.hw == 1


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_other_acks_are_refused(acks: int) -> None:
    _, leader = three()
    with pytest.raises(BrokerError) as e:
        leader.produce("a", acks=acks)
    assert e.value.code == ErrorCode.INVALID_REQUIRED_ACKS
    assert leader.leo == 0


def test_several_follower_fetches_in_one_turn_cost_one_pass() -> None:
    _, leader = three(partitions=2)
    first = leader.produce("a")
    passes = []
    run = leader.manager._action_queue.run
    leader.manager._action_queue._call_soon = lambda callback: (passes.append(callback), leader.loop.call_soon(run))
    for broker_id in (2, 3):
        leader.said_by(broker_id, 1, end_turn=False)
    assert not first.is_answered
    leader.loop.end_turn()
    assert first.is_answered
    assert len(passes) == 1


# -- the minimum ISR --------------------------------------------------------------------------------------------------


def test_below_the_minimum_acks_all_is_refused_before_anything_is_written() -> None:
    _, leader = three(isr=(1,), min_isr=2)
    assert code(leader.produce("a")) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.leo == 0


def test_below_the_minimum_acks_1_is_accepted_and_stays_invisible() -> None:
    """S22: the high watermark does not move, so no consumer sees records that may be lost (KAFKA-15583)."""
    _, leader = three(isr=(1,), min_isr=2)
    assert code(leader.produce("a", acks=1)) == ErrorCode.NONE
    assert (leader.leo, leader.hw) == (1, 0)


def test_a_minimum_above_the_replication_factor_is_capped_by_it() -> None:
    _, leader = three(replicas=(1,), min_isr=5)
    assert code(leader.produce("a")) == ErrorCode.NONE


def test_a_waiting_request_is_answered_with_the_new_leader_when_the_leadership_ends() -> None:
    """The producer sends its batches to the new leader at once, without asking for metadata first (KIP-951)."""
    world, leader = three()
    request = leader.produce("moved")
    assert not request.answers
    world.elect(2)
    assert code(request) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produced(request).current_leader == CurrentLeader(2, leader.p.leader_epoch)


@pytest.mark.parametrize("truncates", [True, False])
def test_a_produce_of_an_earlier_leader_epoch_is_not_acknowledged(truncates: bool) -> None:
    """In one event-loop iteration the broker follows, truncates the records, leads again and commits others at the same offset:
    an acknowledgement of the waiting produce would be wrong. Without the truncation, the retry finds a duplicate."""
    _, leader = three()
    request = leader.produce("lost", end_turn=False)
    p = leader.p
    p.make_follower(PartitionRegistration((1, 2, 3), (1, 2, 3), 2, 2, 2))
    if truncates:
        p.truncate_to_divergence(p.fetch_position(), EpochEndOffset(1, 0))
    assert p.make_leader(PartitionRegistration((1, 2, 3), (1, 2, 3), 1, 3, 3))
    later = leader.produce("kept", end_turn=False)
    for broker_id in (2, 3):
        leader.said_by(broker_id, leader.leo, end_turn=False)
    assert leader.hw == leader.leo
    leader.loop.end_turn()
    assert code(request) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (code(later), produced(later).base_offset) == (ErrorCode.NONE, leader.leo - 1)
    assert not len(p.waiters)


def test_an_isr_below_the_minimum_after_the_append_fails_the_produce() -> None:
    """S23: the produce neither succeeded nor was refused: the record may still be committed."""
    world, leader = three(min_isr=2)
    request = leader.produce("a")
    world.set_isr(1)
    assert code(request) == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert produced(request).base_offset == -1
    assert leader.hw == 0


def test_a_shrunk_isr_fails_a_produce_that_is_reached_in_the_same_iteration() -> None:
    world, leader = three(replicas=(1, 2), min_isr=2)
    request = leader.produce("a")
    leader.said_by(2, 1, end_turn=False)
    assert leader.hw == 1
    world.set_isr(1)
    assert code(request) == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ((b"no-such-topic-id", 0), ErrorCode.UNKNOWN_TOPIC_ID),
        ((TOPIC, 7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((TOPIC, 0), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_a_partition_that_is_not_led_here_is_refused_with_the_reason(key: TopicIdPartition, expected: ErrorCode) -> None:
    world, _ = three()
    assert code(world[2].produce("a", key=key)) == expected


def test_a_refused_producer_learns_the_leader() -> None:
    world, _ = three()
    leader = produced(world[2].produce("a")).current_leader
    assert (leader.leader_id, leader.leader_epoch) == (1, 1)


def test_each_partition_of_a_request_fails_for_itself() -> None:
    _, leader = three(partitions=2)
    request = leader.produce_many([(P, batch("a")), ((TOPIC, 9), batch("b")), (OTHER, batch("c"))], acks=1)
    assert [code(request, i) for i in range(3)] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    assert (leader[P].log.log_end_offset, leader[OTHER].log.log_end_offset) == (1, 1)


def test_a_request_for_several_partitions_waits_for_all_of_them() -> None:
    _, leader = three(partitions=2, replicas=(1, 2))
    request = leader.produce_many([(P, batch("a")), (OTHER, batch("b"))])
    for key in (P, OTHER):
        assert not request.is_answered
        leader.said_by(2, 1, key=key)
    assert [p.error_code for p in request.answer.partitions] == [0, 0]


def test_the_same_partition_twice_is_refused_before_anything_is_written() -> None:
    _, leader = three(partitions=2)
    with pytest.raises(BrokerError) as e:
        leader.produce_many([(P, batch("a")), (OTHER, batch("b")), (P, batch("c"))])
    assert e.value.code == ErrorCode.INVALID_REQUEST
    assert leader.leo == leader[OTHER].log.log_end_offset == 0


def test_partitions_without_records_to_match_are_refused() -> None:
    _, leader = three()
    request = HandledRequest(ProduceRequest(None, 1, 1000, [ProducePartition(*P)], []))
    with pytest.raises(BrokerError) as e:
        leader.handlers[PRODUCE](request)  # type: ignore[arg-type]
    assert e.value.code == ErrorCode.INVALID_REQUEST


def test_transactions_are_refused() -> None:
    _, leader = three()
    request = HandledRequest(ProduceRequest("tx", -1, 1000, [ProducePartition(*P)], [memoryview(batch("a"))]))
    with pytest.raises(BrokerError) as e:
        leader.handlers[PRODUCE](request)  # type: ignore[arg-type]
    assert e.value.code == ErrorCode.INVALID_REQUEST


def test_a_batch_above_the_topics_limit_is_refused() -> None:
    _, leader = three(max_message_bytes="1000")
    assert code(leader.produce(b"x" * 2000, acks=1)) == ErrorCode.MESSAGE_TOO_LARGE
    assert code(leader.produce(b"x" * 500, acks=1)) == ErrorCode.NONE


def test_a_damaged_batch_is_refused_and_the_next_one_taken() -> None:
    _, leader = three()
    damaged = batch("hello")
    damaged[-1] ^= 1
    refused = leader.produce(damaged, acks=1)
    assert code(refused) == ErrorCode.CORRUPT_MESSAGE
    assert refused.connection.complaints == ["produce: a produced batch failed its checksum"], "the peer is logged"
    taken = leader.produce("a", acks=1)
    assert produced(taken).base_offset == 0
    assert not taken.connection.complaints


# -- idempotence ------------------------------------------------------------------------------------------------------


def test_a_retried_batch_gets_its_first_offsets_and_waits() -> None:
    _, leader = three(replicas=(1, 2))
    leader.produce("before", acks=1)
    numbered = batch("a", "b", producer_id=7, producer_epoch=0, sequence=0)
    first, retry = leader.produce(bytearray(numbered)), leader.produce(bytearray(numbered))
    assert leader.leo == 3
    assert not retry.is_answered, "that it was appended before does not say that it was committed"
    leader.said_by(2, 3)
    assert [produced(r).base_offset for r in (first, retry)] == [1, 1]
    assert [code(r) for r in (first, retry)] == [ErrorCode.NONE, ErrorCode.NONE]


def test_a_retry_is_answered_as_soon_as_its_own_offset_is_reached() -> None:
    _, leader = three(replicas=(1, 2))
    numbered = batch("a", producer_id=7, producer_epoch=0, sequence=0)
    leader.produce(bytearray(numbered), acks=1)
    newer = leader.produce("b", "c")
    retry = leader.produce(bytearray(numbered))
    leader.said_by(2, 1)
    assert retry.is_answered
    assert not newer.is_answered


def test_a_retry_of_a_committed_batch_is_answered_at_once() -> None:
    _, leader = three(replicas=(1,))
    numbered = batch("a", producer_id=7, producer_epoch=0, sequence=0)
    leader.produce(bytearray(numbered))
    assert produced(leader.produce(bytearray(numbered))).base_offset == 0


def test_a_gap_in_the_sequence_is_refused() -> None:
    _, leader = three()
    leader.produce(batch("a", producer_id=7, producer_epoch=0, sequence=0), acks=1)
    request = leader.produce(batch("b", producer_id=7, producer_epoch=0, sequence=5), acks=1)
    assert code(request) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# -- how waiting ends -------------------------------------------------------------------------------------------------


def test_a_produce_that_waits_too_long_is_answered_with_a_timeout() -> None:
    _, leader = three()
    request = leader.produce("a", timeout_ms=500)
    leader.loop.advance(0.49)
    assert not request.is_answered
    leader.loop.advance(0.02)
    assert code(request) == ErrorCode.REQUEST_TIMED_OUT
    assert len(leader.p.waiters) == len(leader.manager.purgatory) == 0


def test_a_timeout_concerns_only_the_partitions_that_were_not_reached() -> None:
    _, leader = three(partitions=2, replicas=(1, 2))
    request = leader.produce_many([(P, batch("a")), (OTHER, batch("b"))], timeout_ms=500)
    leader.said_by(2, 1, key=OTHER)
    leader.loop.advance(1)
    assert [code(request, i) for i in range(2)] == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("deposed", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("deleted", ErrorCode.UNKNOWN_TOPIC_ID),
        ("moved away", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("shut down", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("disk failed", ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_waiting_produces_fail_promptly_when_the_leadership_ends(end: str, expected: ErrorCode) -> None:
    """S33: no produce waits for its timeout, and none stays behind (KAFKA-9198, KAFKA-10677)."""
    world, leader = three()
    partition = leader.p
    requests = [leader.produce("a", timeout_ms=30_000) for _ in range(3)]
    if end == "deposed":
        world.elect(2)
    elif end == "deleted":
        world.change(remove_topic())
    elif end == "moved away":
        world.change(PartitionChangeRecord(*P, isr=(2, 3), leader=2, replicas=(2, 3)))
    elif end == "shut down":
        leader.manager.shutdown()
    else:
        leader.manager.on_disk_error(DiskError("fsync", "/data", errno.EIO))
    leader.loop.end_turn()
    assert [code(request) for request in requests] == [expected] * 3
    assert len(partition.waiters) == len(leader.manager.purgatory) == 0


def test_a_full_disk_answers_storage_error_and_takes_the_directory_offline() -> None:
    failed: list[object] = []
    world = ReplicaWorld(1, on_log_dir_failed=lambda log_dir, had_leaders: failed.append(log_dir))
    world.topic(replicas=(1,))
    leader = world[1]
    leader.produce("a")
    leader.files.fail_next("write", "*.log", errno.ENOSPC)
    assert code(leader.produce("b")) == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(failed) == 1
    assert code(leader.produce("c")) == ErrorCode.KAFKA_STORAGE_ERROR


# -- the registration race --------------------------------------------------------------------------------------------

_RACES = {
    "append": lambda s: s["requests"].append(s["leader"].produce("x", timeout_ms=1000, end_turn=False)),
    "fetch of 2": lambda s: s["leader"].said_by(2, s["leader"].leo, end_turn=False),
    "fetch of 3": lambda s: s["leader"].said_by(3, s["leader"].leo, end_turn=False),
    "end of turn": lambda s: s["leader"].loop.end_turn(),
}


@pytest.mark.parametrize("order", list(permutations(_RACES)), ids=" > ".join)
def test_no_interleaving_of_append_and_commit_loses_a_wake_up(order: tuple[str, ...]) -> None:
    """S32: the HW moves around the moment at which the produce is parked. The produce is answered in the same iteration all the
    same."""
    _, leader = three()
    state = {"leader": leader, "requests": []}
    for step in order:
        _RACES[step](state)
    leader.loop.end_turn()
    for broker_id in (2, 3):
        leader.said_by(broker_id, leader.leo, end_turn=False)
    leader.loop.end_turn()
    (request,) = state["requests"]
    assert code(request) == ErrorCode.NONE
    assert len(leader.p.waiters) == len(leader.manager.purgatory) == 0


@pytest.mark.parametrize("order", list(permutations(["commit", "depose", "end of turn"])), ids=" > ".join)
def test_every_interleaving_of_commit_and_loss_answers_exactly_once(order: tuple[str, ...]) -> None:
    world, leader = three(replicas=(1, 2))
    request = leader.produce("a", timeout_ms=1000)
    for step in order:
        if step == "commit" and leader.p.leader_state is not None:
            leader.said_by(2, 1, end_turn=False)
        elif step == "depose":
            world.elect(2, at=())
            leader.manager.apply_delta(leader.manager.image.delta_to(world.image), 11)
        else:
            leader.loop.end_turn()
    leader.loop.end_turn()
    assert code(request) in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert len(leader.p.waiters) == len(leader.manager.purgatory) == 0
