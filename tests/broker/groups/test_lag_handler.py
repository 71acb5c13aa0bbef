"""DescribeOffsetLag: the leader compares offsets with its log, by batch headers, and reads cold ones on a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from handled_request import HandledConnection, HandledRequest
from replica_world import NOW_MS, TOPIC, Node, P, ReplicaWorld

from strandline.broker.disk_work import RunBlocking
from strandline.broker.groups.lag_handler import OFFSETS_MAX, OffsetLagHandler, first_timestamp
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    LATEST_TIMESTAMP,
    DescribeOffsetLagRequest,
    DescribeOffsetLagResponse,
    OffsetLagPartition,
    OffsetLagPartitionResponse,
)
from strandline.protocol.records.batch import ATTRIBUTES_POS, CRC_POS, DELETE_HORIZON_MASK, TIMESTAMP_TYPE_MASK, compute_crc
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.filler import make_fillers
from strandline.storage.files import ColdRead, MemoryFiles
from strandline.storage.log.log import Log, LogConfig

Work = Callable[[], None]


def handler_of(node: Node, run_blocking: RunBlocking | None = None) -> OffsetLagHandler:
    return OffsetLagHandler(node.manager.directory, node.manager.failures, run_blocking)


def describe(node: Node, *offsets: int, key: tuple[bytes, int] = P, epoch: int = -1) -> OffsetLagPartitionResponse:
    request = HandledRequest(DescribeOffsetLagRequest([OffsetLagPartition(*key, epoch, list(offsets))]))
    handler_of(node).handle(request)  # type: ignore[arg-type]
    answer = request.answer.partitions[0]
    assert isinstance(answer, OffsetLagPartitionResponse)
    return answer


@pytest.fixture
def world() -> ReplicaWorld:
    """Broker 1 leads a partition with three batches of one record, of which two are committed."""
    world = ReplicaWorld()
    world.topic(replicas=(1, 2))
    for value in ("a", "b", "c"):
        world[1].produce(value, acks=1)
    world[1].said_by(2, 2)
    return world


def test_offsets_are_compared_with_the_high_watermark(world: ReplicaWorld) -> None:
    """An uncommitted record is no lag: no consumer can read it."""
    answer = describe(world[1], 0, 1, 2, 3)
    assert (answer.error_code, answer.high_watermark, answer.log_start_offset) == (0, 2, 0)
    assert answer.timestamps == [NOW_MS, NOW_MS, -1, -1]


def test_partition_without_offsets_has_its_end(world: ReplicaWorld) -> None:
    answer = describe(world[1])
    assert (answer.high_watermark, answer.timestamps) == (2, [])


def test_high_watermark_is_the_one_that_a_client_gets(world: ReplicaWorld) -> None:
    assert describe(world[1]).high_watermark == world[1].list_offsets(LATEST_TIMESTAMP).offset


def test_offset_below_the_log_start_begins_there(world: ReplicaWorld) -> None:
    world[1].p.log.increment_log_start_offset(1)
    answer = describe(world[1], 0)
    assert (answer.high_watermark, answer.log_start_offset, answer.timestamps) == (2, 1, [NOW_MS])
    world[1].p.log.increment_log_start_offset(2)
    assert describe(world[1], 0).timestamps == [-1]


def test_new_leader_does_not_answer_before_it_knows_the_end() -> None:
    """A smaller high watermark would look as if the group had caught up (KIP-207)."""
    world = ReplicaWorld()
    world.topic()
    for value in ("a", "b", "c"):
        world[1].produce(value, acks=1)
    for broker_id in (2, 3):
        world.replicate(broker_id, 1)
        world.replicate(broker_id, 1)
    world.elect(2)
    assert describe(world[2], 0).error_code == ErrorCode.OFFSET_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("node", "key", "epoch", "expected"),
    [
        (2, P, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (1, P, 0, ErrorCode.FENCED_LEADER_EPOCH),
        (1, P, 9, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (1, (TOPIC, 7), -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (1, (bytes(16), 0), -1, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_only_the_leader_answers(world: ReplicaWorld, node: int, key: tuple[bytes, int], epoch: int, expected: ErrorCode) -> None:
    assert describe(world[node], 0, key=key, epoch=epoch).error_code == expected


def test_partitions_of_a_request_do_not_affect_each_other(world: ReplicaWorld) -> None:
    request = HandledRequest(DescribeOffsetLagRequest([OffsetLagPartition(bytes(16), 0), OffsetLagPartition(*P)]))
    handler_of(world[1]).handle(request)  # type: ignore[arg-type]
    assert [answer.error_code for answer in request.answer.partitions] == [ErrorCode.UNKNOWN_TOPIC_ID, 0]


@pytest.mark.parametrize(("partitions", "offsets"), [(OFFSETS_MAX + 1, 0), (1, OFFSETS_MAX + 1)])
def test_request_that_would_stop_the_loop_is_refused(world: ReplicaWorld, partitions: int, offsets: int) -> None:
    request = HandledRequest(DescribeOffsetLagRequest([OffsetLagPartition(*P, -1, [0] * offsets)] * partitions))
    with pytest.raises(BrokerError) as refused:
        handler_of(world[1]).handle(request)  # type: ignore[arg-type]
    assert refused.value.code == ErrorCode.INVALID_REQUEST


# -- cold batches -----------------------------------------------------------------------------------------------------


class Threads:
    """Work for threads, which waits until the test lets it run."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Work, Work]] = []

    def __call__(self, work: Work, then: Work) -> None:
        self.waiting.append((work, then))

    def run(self) -> None:
        ((work, then),) = self.waiting
        self.waiting.clear()
        work()
        then()


@pytest.fixture
def cold(world: ReplicaWorld, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes reads cold; returns the offsets whose batches a thread has read into the page cache since."""
    warmed: list[int] = []
    read = world[1].p.log.read

    class Warming:
        def warm(self, path: str, size: int, position: int) -> None:
            warmed.append(position)

    def cold_read(offset: int, *arguments: Any, may_block: bool) -> Any:
        if not may_block and offset not in warmed:
            raise ColdRead(Warming(), "log", 1, offset)  # type: ignore[arg-type]
        return read(offset, *arguments, may_block=may_block)

    monkeypatch.setattr(world[1].p.log, "read", cold_read)
    return warmed


def test_cold_batch_is_read_on_a_thread(world: ReplicaWorld, cold: list[int]) -> None:
    """The next record of a group that has not moved for days is on the disk."""
    threads = Threads()
    request = HandledRequest(DescribeOffsetLagRequest([OffsetLagPartition(*P, -1, [1])]))
    handler_of(world[1], threads).handle(request)  # type: ignore[arg-type]
    assert request.answers == []
    assert request.connection.held
    threads.run()
    assert cold == [1]
    assert request.answer.partitions[0].timestamps == [NOW_MS]
    assert not request.connection.held


def test_leadership_that_ends_meanwhile_is_noticed(world: ReplicaWorld, cold: list[int]) -> None:
    threads = Threads()
    request = HandledRequest(DescribeOffsetLagRequest([OffsetLagPartition(*P, -1, [1])]))
    handler_of(world[1], threads).handle(request)  # type: ignore[arg-type]
    world.elect(2)
    threads.run()
    assert request.answer.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_closed_connection_gets_no_answer(world: ReplicaWorld, cold: list[int]) -> None:
    threads, connection = Threads(), HandledConnection()
    request = HandledRequest(DescribeOffsetLagRequest([OffsetLagPartition(*P, -1, [1])]), connection=connection)
    handler_of(world[1], threads).handle(request)  # type: ignore[arg-type]
    connection.close()
    threads.run()
    assert request.answers == []
    assert not connection.held


def test_own_partitions_are_answered_without_a_request(world: ReplicaWorld, cold: list[int]) -> None:
    threads, answers = Threads(), list[DescribeOffsetLagResponse]()
    handler_of(world[1], threads).answer([OffsetLagPartition(*P, -1, [2])], answers.append)
    assert [answer.partitions[0].high_watermark for answer in answers] == [2]
    handler_of(world[1], threads).answer([OffsetLagPartition(*P, -1, [1])], answers.append)
    assert len(answers) == 1
    threads.run()
    assert answers[1].partitions[0].timestamps == [NOW_MS]


# -- timestamps -------------------------------------------------------------------------------------------------------


def log_of(*batches: bytes) -> Log:
    log = Log.open(
        MemoryFiles(),
        "/data/orders-0",
        topic="orders",
        partition=0,
        topic_id=TOPIC,
        config=LogConfig(),
        clean_shutdown=True,
        now_ms=NOW_MS,
    )
    for batch in batches:
        log.append_as_follower(batch, 1)
    log.update_high_watermark(log.log_end_offset)
    return log


def batch_at(offset: int, *timestamps: int, attributes: int = 0) -> bytes:
    batch = bytearray(encode_batch([(b"k", b"v", [], timestamp) for timestamp in timestamps]))
    batch[:8] = offset.to_bytes(8, "big")
    batch[12:16] = (1).to_bytes(4, "big")  # the leader epoch
    batch[ATTRIBUTES_POS + 1] |= attributes
    batch[CRC_POS : CRC_POS + 4] = compute_crc(batch, 0, len(batch)).to_bytes(4, "big")
    return bytes(batch)


def test_timestamp_is_that_of_the_batch_with_the_offset() -> None:
    log = log_of(batch_at(0, 100, 101, 102), batch_at(3, 200))
    assert [first_timestamp(log, offset, 4) for offset in range(5)] == [100, 100, 100, 200, -1]
    assert first_timestamp(log, 3, 3) == -1


def test_batches_without_records_are_passed() -> None:
    """If compaction has removed all records of a batch, the group waits for the next ones."""
    (filler,) = make_fillers(1, 9, 1)
    log = log_of(batch_at(0, 100), filler, batch_at(9, 300))
    assert first_timestamp(log, 1, 10) == 300
    assert first_timestamp(log, 1, 9) == -1


@pytest.mark.parametrize("attributes", [TIMESTAMP_TYPE_MASK, DELETE_HORIZON_MASK])
def test_first_timestamp_that_is_none_is_replaced(attributes: int) -> None:
    """With LogAppendTime all records have the newest timestamp of the batch. A delete horizon in the field is a time in the
    future."""
    log = log_of(batch_at(0, 100, 150, attributes=attributes))
    assert first_timestamp(log, 0, 2) == 150
