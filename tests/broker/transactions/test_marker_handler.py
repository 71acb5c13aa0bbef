"""WriteTxnMarkers at the leaders of partitions: when a marker is written, and when the coordinator gets its answer."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

from handled_request import HandledRequest
from replica_world import NOW_MS, TOPIC, P, ReplicaWorld

from strandline.broker.partition.partition import Partition
from strandline.broker.transactions.marker_handler import TIMEOUT_MS
from strandline.protocol.apis import WRITE_TXN_MARKERS
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import GroupTopicPartitions
from strandline.protocol.messages.transactions import WritableTxnMarker, WriteTxnMarkersRequest
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.builder import encode_batch

PID = 7
UNKNOWN = b"topic-id-unknown"
OFFSETS = b"consumer-offsets"


def marker(
    *keys: TopicIdPartition, epoch: int = 1, coordinator_epoch: int = 3, pid: int = PID, version: int = 2
) -> WritableTxnMarker:
    topics = [GroupTopicPartitions(topic_id, [partition]) for topic_id, partition in keys or (P,)]
    return WritableTxnMarker(pid, epoch, True, topics, coordinator_epoch, version)


def write(world: ReplicaWorld, *markers: WritableTxnMarker, broker: int = 1) -> HandledRequest:
    request = HandledRequest(WriteTxnMarkersRequest(list(markers)))
    world[broker].handlers[WRITE_TXN_MARKERS](request)  # type: ignore[arg-type]
    world.loop.end_turn()
    return request


def codes(request: HandledRequest) -> list[list[ErrorCode]]:
    """The errors of each marker."""
    return [[ErrorCode(result.error_code) for result in each.partitions] for each in request.answer.markers]


def begin(world: ReplicaWorld, *keys: TopicIdPartition, pid: int = PID) -> None:
    """Open a transaction in these partitions of broker 1."""
    for key in keys or (P,):
        leader_state = world[1][key].leader_state
        assert leader_state is not None
        batch = encode_batch(
            [(None, b"x", [], NOW_MS)], producer_id=pid, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        leader_state.append(bytearray(batch), NOW_MS, is_transactional=True)


def three(**topic: object) -> ReplicaWorld:
    world = ReplicaWorld()
    world.topic(**topic)  # type: ignore[arg-type]
    return world


def test_a_marker_is_answered_when_it_is_committed() -> None:
    """After the answer the coordinator drops the transaction, so every later leader must have the marker."""
    world = three()
    begin(world)
    request = write(world, marker())
    world[1].said_by(2, 2)
    world[1].said_by(3, 1)
    assert not request.is_answered
    assert not world[1].p.log.producers.transactions.ongoing()
    world[1].said_by(3, 2)
    assert codes(request) == [[ErrorCode.NONE]]


def test_each_partition_of_each_marker_has_its_own_result() -> None:
    """One broken partition must not keep the transactions of the others open."""
    world = three(replicas=(1,), partitions=2)
    other = (TOPIC, 1)
    begin(world, P, other)
    request = write(world, marker(P, (UNKNOWN, 0), (TOPIC, 9)), marker(other, pid=8), marker(other))
    assert codes(request) == [
        [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.NONE],
        [ErrorCode.NONE],
    ]
    assert [each.producer_id for each in request.answer.markers] == [PID, 8, PID]


def test_a_broker_that_does_not_lead_writes_no_marker() -> None:
    """The coordinator then looks for the leader."""
    world = three()
    assert codes(write(world, marker(), broker=2)) == [[ErrorCode.NOT_LEADER_OR_FOLLOWER]]


def test_below_the_minimum_nothing_is_written() -> None:
    """The coordinator repeats the marker; without this check, each repetition would add one to the log."""
    world = three(isr=(1,), min_isr=2)
    assert codes(write(world, marker())) == [[ErrorCode.NOT_ENOUGH_REPLICAS]]
    assert world[1].leo == 0


def test_a_coordinator_that_was_replaced_is_fenced() -> None:
    """Its marker could end a transaction that the next coordinator has begun."""
    world = three(replicas=(1,))
    begin(world)
    assert codes(write(world, marker(coordinator_epoch=4))) == [[ErrorCode.NONE]]
    assert codes(write(world, marker(epoch=2, coordinator_epoch=3))) == [[ErrorCode.TRANSACTION_COORDINATOR_FENCED]]


def test_a_repeated_marker_succeeds() -> None:
    """KAFKA-19999: the answer to the first marker was lost. If the second one were refused, the coordinator would repeat it for
    ever."""
    world = three(replicas=(1,))
    begin(world)
    assert codes(write(world, marker())) == [[ErrorCode.NONE]]
    assert codes(write(world, marker())) == [[ErrorCode.NONE]]


def test_a_late_marker_does_not_end_the_next_transaction() -> None:
    """In version 2 a marker must have a higher epoch than the batches of the transaction that it ends."""
    world = three(replicas=(1,))
    begin(world)
    assert codes(write(world, marker(epoch=0))) == [[ErrorCode.INVALID_PRODUCER_EPOCH]]
    assert codes(write(world, marker(epoch=0, version=0))) == [[ErrorCode.NONE]]


def test_a_marker_that_is_not_committed_in_time_is_answered() -> None:
    """Otherwise the coordinator's requests would pile up behind one slow partition."""
    world = three()
    request = write(world, marker())
    world.loop.advance(TIMEOUT_MS / 1000 + 1)
    assert codes(request) == [[ErrorCode.REQUEST_TIMED_OUT]]


def test_a_waiting_marker_is_answered_when_the_leadership_ends() -> None:
    """The new leader may not have the marker, so the coordinator has to send it there."""
    world = three()
    request = write(world, marker())
    world.elect(2)
    assert codes(request) == [[ErrorCode.NOT_LEADER_OR_FOLLOWER]]


def test_a_failing_disk_takes_its_directory_offline() -> None:
    """As for any other append. The coordinator then sends the marker to the next leader."""
    failed: list[object] = []
    world = ReplicaWorld(1, on_log_dir_failed=lambda log_dir, had_leaders: failed.append(log_dir))
    world.topic(replicas=(1,))
    world[1].files.fail_next("write", "*.log", errno.ENOSPC)
    assert codes(write(world, marker())) == [[ErrorCode.KAFKA_STORAGE_ERROR]]
    assert failed == [world[1].log_dir]


@dataclass
class Offsets:
    """Stands in for the group coordinator: records the markers, and returns the high watermark that commits each one."""

    error: BrokerError | None = None
    partition: Partition | None = None
    ended: list[tuple[int, int]] = field(default_factory=list)

    def end_transaction(self, number: int, marker: WritableTxnMarker, now_ms: int) -> tuple[Partition, int]:
        if self.error is not None:
            raise self.error
        assert self.partition is not None
        self.ended.append((number, marker.producer_id))
        return self.partition, self.partition.log.high_watermark + 1


def offsets_world() -> tuple[ReplicaWorld, Offsets]:
    offsets = Offsets()
    world = ReplicaWorld(offset_transactions=offsets)
    world.topic(topic_id=OFFSETS, name="__consumer_offsets")
    offsets.partition = world[1][(OFFSETS, 0)]
    return world, offsets


def test_a_marker_for_offsets_goes_through_the_group_coordinator() -> None:
    """The group coordinator applies the marker to the producer's offsets, and knows when it is committed."""
    world, offsets = offsets_world()
    request = write(world, marker((OFFSETS, 0)))
    assert offsets.ended == [(0, PID)]
    assert not request.is_answered


def test_a_group_coordinator_that_still_loads_has_the_marker_repeated() -> None:
    """The partition has a leader, but its offsets are not loaded yet."""
    world, offsets = offsets_world()
    offsets.error = BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert codes(write(world, marker((OFFSETS, 0)))) == [[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]]
