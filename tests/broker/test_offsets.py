"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Any

import pytest
from handled_request import HandledRequest
from replica_world import NOW_MS, TOPIC, Node, P, ReplicaWorld

from strandline.controller.metadata.records import PartitionChangeRecord
from strandline.protocol.apis import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.data import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
)
from strandline.protocol.partitions import TopicIdPartition


def leader_with(*items: str, **options: Any) -> tuple[ReplicaWorld, Node]:
    world = ReplicaWorld()
    world.topic(**options)
    for item in items:
        world[1].produce(item, acks=1)
    return world, world[1]


def test_latest_is_the_high_watermark_for_clients_and_the_log_end_for_replicas() -> None:
    _, leader = leader_with("a", "b", replicas=(1, 2))
    leader.said_by(2, 1)
    assert leader.list_offsets(LATEST_TIMESTAMP).offset == 1
    assert leader.list_offsets(LATEST_TIMESTAMP, replica_id=2).offset == 2


def test_earliest_is_the_log_start() -> None:
    _, leader = leader_with("a", "b", "c", replicas=(1,))
    assert leader.list_offsets(EARLIEST_TIMESTAMP).offset == 0
    leader.p.log.increment_log_start_offset(2)
    answer = leader.list_offsets(EARLIEST_TIMESTAMP)
    assert (answer.offset, answer.leader_epoch) == (2, 1)


def test_a_timestamp_finds_the_first_committed_record_not_older() -> None:
    _, leader = leader_with("a", "b", replicas=(1, 2))
    assert leader.list_offsets(NOW_MS).offset == -1, "nothing is committed"
    leader.said_by(2, 2)
    assert (leader.list_offsets(NOW_MS).offset, leader.list_offsets(NOW_MS).timestamp) == (0, NOW_MS)
    assert leader.list_offsets(NOW_MS + 1).offset == -1
    assert leader.list_offsets(MAX_TIMESTAMP).offset == 0


def test_a_new_leader_does_not_answer_latest_before_it_knows_it() -> None:
    """S13: its own high watermark may be older than the one that the previous leader returned to clients (KIP-207)."""
    world, leader = leader_with("a", "b", "c")
    for broker_id in (2, 3):
        world.replicate(broker_id, 1)
        world.replicate(broker_id, 1)
    assert (leader.hw, world[2].hw) == (3, 0)
    world.elect(2)
    new = world[2]
    assert new.list_offsets(LATEST_TIMESTAMP).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert new.list_offsets(NOW_MS).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert new.list_offsets(EARLIEST_TIMESTAMP).error_code == 0
    new.said_by(1, 3)
    new.said_by(3, 3)
    assert (new.list_offsets(LATEST_TIMESTAMP).error_code, new.list_offsets(LATEST_TIMESTAMP).offset) == (0, 3)


@pytest.mark.parametrize(
    ("epoch", "expected"), [(1, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.NONE), (3, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_only_the_epoch_that_is_meant_is_answered(epoch: int, expected: ErrorCode) -> None:
    _, leader = leader_with(epoch=2)
    assert leader.list_offsets(LATEST_TIMESTAMP, epoch=epoch).error_code == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (P, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ((TOPIC, 5), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((b"no-such-topic-id", 0), ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_a_broker_that_does_not_lead_answers_the_reason(key: TopicIdPartition, expected: ErrorCode) -> None:
    world, _ = leader_with()
    assert world[2].list_offsets(LATEST_TIMESTAMP, key=key).error_code == expected


def test_a_partition_named_twice_and_a_timestamp_without_meaning_are_refused() -> None:
    _, leader = leader_with(partitions=2)
    assert leader.list_offsets(-9).error_code == ErrorCode.INVALID_REQUEST
    other = ListOffsetsPartition(TOPIC, 1, -1, EARLIEST_TIMESTAMP)
    twice = [ListOffsetsPartition(*P, -1, EARLIEST_TIMESTAMP), other, ListOffsetsPartition(*P, -1, LATEST_TIMESTAMP)]
    request = HandledRequest(ListOffsetsRequest(-1, 0, twice))
    leader.handlers[LIST_OFFSETS](request)  # type: ignore[arg-type]
    codes = [p.error_code for p in request.answer.partitions]
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize(("asked", "expected"), [(1, (1, 2)), (2, (1, 2)), (3, (3, 3)), (9, (-1, -1))])
def test_largest_epoch_not_above_the_asked_one_is_answered_with_its_end(asked: int, expected: tuple[int, int]) -> None:
    """The largest epoch that is not newer, and its end: the follower truncates to that (KIP-101, KIP-279)."""
    world, leader = leader_with("a", "b")
    world.change(PartitionChangeRecord(*P, leader=2), PartitionChangeRecord(*P, leader=1))
    leader.produce("c", acks=1)
    request = HandledRequest(OffsetForLeaderEpochRequest(2, [OffsetForLeaderPartition(*P, 3, asked)]))
    leader.handlers[OFFSET_FOR_LEADER_EPOCH](request)  # type: ignore[arg-type]
    answer = request.answer.partitions[0]
    assert (answer.leader_epoch, answer.end_offset) == expected


def test_only_the_leader_answers_where_an_epoch_ended() -> None:
    world, _ = leader_with()
    for node, epoch, expected in [
        (world[2], 1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (world[1], 0, ErrorCode.FENCED_LEADER_EPOCH),
        (world[1], 2, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ]:
        request = HandledRequest(OffsetForLeaderEpochRequest(3, [OffsetForLeaderPartition(*P, epoch, 0)]))
        node.handlers[OFFSET_FOR_LEADER_EPOCH](request)  # type: ignore[arg-type]
        assert request.answer.partitions[0].error_code == expected
