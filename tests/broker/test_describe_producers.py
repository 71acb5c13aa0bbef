"""DescribeProducers: the state of producers in a leader's log, and how much of it is committed."""

from __future__ import annotations

import pytest
from handled_request import HandledRequest
from replica_world import NOW_MS, TOPIC, Node, P, ReplicaWorld, batch, code, produced

from strandline.controller.metadata.records import ProducerNameRecord, RemoveProducerNameRecord
from strandline.protocol.apis import DESCRIBE_PRODUCERS
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    DescribeProducersPartition,
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    ProducerState,
)
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.producer_names import named_producer_id
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.marker import EndTransactionMarker
from strandline.testing.simulation.cluster.malformed_batches import bad_checksum

NAMED = named_producer_id(3, 5)


def describe(
    node: Node, producer_ids: list[int] | None = None, *, epoch: int = -1, key: TopicIdPartition = P
) -> DescribeProducersPartitionResponse:
    request = HandledRequest(DescribeProducersRequest([DescribeProducersPartition(*key, epoch)], producer_ids))
    node.handlers[DESCRIBE_PRODUCERS](request)  # type: ignore[arg-type]
    (answer,) = request.answer.partitions
    assert isinstance(answer, DescribeProducersPartitionResponse)
    assert (answer.topic_id, answer.partition) == key
    return answer


def rows(count: int, first: int = 0, *, producer_id: int = NAMED, epoch: int = 0) -> bytearray:
    values = [str(first + i) for i in range(count)]
    return batch(*values, producer_id=producer_id, producer_epoch=epoch, sequence=first)


def test_the_newest_batch_and_the_high_watermark_of_the_same_moment() -> None:
    world = ReplicaWorld()
    world.topic(replicas=(1, 2))
    leader = world[1]
    leader.produce(rows(3), acks=1)
    leader.produce(rows(2, 3, epoch=4), acks=1)
    leader.said_by(2, 3)
    answer = describe(leader, [NAMED])
    assert (answer.error_code, answer.leader_epoch, answer.high_watermark) == (0, leader.p.leader_epoch, 3)
    assert answer.active_producers == [ProducerState(NAMED, 4, 4, 4, NOW_MS)]
    leader.said_by(2, 5)
    assert describe(leader, [NAMED]).high_watermark == 5


def test_all_producers_or_those_that_are_named() -> None:
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    leader = world[1]
    leader.produce(rows(1), acks=1)
    leader.produce(rows(2, producer_id=9), acks=1)
    assert [p.producer_id for p in describe(leader).active_producers] == [NAMED, 9]
    assert [p.producer_id for p in describe(leader, [9, 10]).active_producers] == [9]
    assert describe(leader, []).active_producers == []


def test_a_question_about_one_work_epoch_is_answered_with_the_newest() -> None:
    """An old attempt finds out that it is fenced, and a new one that the name has been used before."""
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    leader = world[1]
    leader.produce(rows(1), acks=1)
    for work_epoch in (0, 5, 9):
        (state,) = describe(leader, [named_producer_id(3, work_epoch)]).active_producers
        assert state.producer_id == NAMED
    assert describe(leader, [named_producer_id(4, 5)]).active_producers == []


def test_a_producer_has_its_name_as_long_as_the_cluster_knows_it() -> None:
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    leader = world[1]
    leader.produce(rows(1), acks=1)
    world.change(ProducerNameRecord("sink", 3, 5, 0, NOW_MS))
    assert describe(leader).active_producers[0].name == "sink"
    world.change(RemoveProducerNameRecord("sink"))
    assert describe(leader).active_producers[0].name is None


def test_only_the_leader_answers_and_only_in_the_epoch_that_is_meant() -> None:
    world = ReplicaWorld()
    world.topic(replicas=(1, 2))
    epoch = world[1].p.leader_epoch
    assert describe(world[2], [NAMED]).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert describe(world[2], epoch=epoch).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert describe(world[1], epoch=epoch).error_code == 0
    assert describe(world[1], epoch=epoch - 1).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert describe(world[1], epoch=epoch + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert describe(world[1], key=(bytes(16), 0)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert describe(world[1], key=(TOPIC, 7)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_any_replica_answers_for_all_producers_without_an_epoch() -> None:
    """As in Kafka: its tool looks for hanging transactions in the logs of one broker."""
    world = ReplicaWorld()
    world.topic(replicas=(1, 2))
    answer = describe(world[2])
    assert (answer.error_code, answer.leader_epoch) == (0, world[1].p.leader_epoch)
    assert describe(world[2], key=(TOPIC, 7)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_same_partition_twice_is_refused() -> None:
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    request = HandledRequest(DescribeProducersRequest([DescribeProducersPartition(*P)] * 2))
    with pytest.raises(BrokerError, match="twice"):
        world[1].handlers[DESCRIBE_PRODUCERS](request)  # type: ignore[arg-type]


def test_a_new_leader_knows_the_committed_rows_of_the_old_one() -> None:
    world = ReplicaWorld()
    world.topic(replicas=(1, 2))
    world[1].produce(rows(3), acks=1)
    world.replicate(2, 1)
    world.replicate(2, 1)
    world.elect(2)
    (state,) = describe(world[2], [NAMED]).active_producers
    assert (state.last_sequence, state.last_offset) == (2, 2)
    assert code(world[2].produce(rows(1, 3), acks=1)) == ErrorCode.NONE


def test_an_attempt_that_is_over_is_refused_once_the_next_one_has_written() -> None:
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    leader = world[1]
    leader.produce(rows(3), acks=1)
    assert code(leader.produce(rows(3, epoch=1), acks=1)) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert produced(leader.produce(rows(1, 3, epoch=1), acks=1)).base_offset == 3
    refused = leader.produce(rows(1, 4), acks=1)
    assert code(refused) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert "epoch 0 is fenced" in str(produced(refused).error_message)


def test_exclusive_use_is_confirmed_when_older_epochs_are_fenced() -> None:
    """Otherwise an earlier attempt could write after the answer, when the caller has concluded that nothing is left to write."""
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    leader = world[1]
    leader.produce(rows(1), acks=1)

    def ask() -> int:
        request = HandledRequest(DescribeProducersRequest([DescribeProducersPartition(*P)], [NAMED], 2))
        leader.handlers[DESCRIBE_PRODUCERS](request)  # type: ignore[arg-type]
        return int(request.answer.partitions[0].error_code)

    world.change(ProducerNameRecord("sink", 3, 5, 2, NOW_MS))
    assert ask() == ErrorCode.BROKER_NOT_AVAILABLE
    assert code(leader.produce(rows(1, 1, epoch=1), acks=1)) == 0
    world.change(ProducerNameRecord("sink", 3, 5, 2, NOW_MS, oldest_epoch=2))
    assert ask() == 0
    assert code(leader.produce(rows(1, 2, epoch=1), acks=1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code(leader.produce(rows(1, 2, epoch=2), acks=1)) == 0
    world.change(ProducerNameRecord("sink", 3, 6, 0, NOW_MS))
    assert ask() == 0
    assert code(leader.produce(rows(1, 3, epoch=2), acks=1)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_fenced_epoch_is_found_in_every_valid_batch() -> None:
    """A flipped bit must not fence a producer, and a fenced batch must be found behind a valid one."""
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    leader = world[1]
    world.change(ProducerNameRecord("sink", 3, 5, 2, NOW_MS, oldest_epoch=2))
    assert code(leader.produce(batch("x") + rows(1, epoch=1), acks=1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code(leader.produce(bytearray(bad_checksum(bytes(rows(1, epoch=1)))), acks=1)) == ErrorCode.CORRUPT_MESSAGE
    assert leader.leo == 0


def test_an_open_transaction_is_described_with_what_ends_it() -> None:
    """An operator who ends a hanging transaction needs its start and an epoch that is not fenced (KIP-664)."""
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    leader_state = world[1].p.leader_state
    assert leader_state is not None
    records = [(None, b"x", [], NOW_MS)]
    for sequence in (0, 1):
        data = encode_batch(records, producer_id=9, producer_epoch=2, base_sequence=sequence, is_transactional=True)
        leader_state.append(bytearray(data), NOW_MS, is_transactional=True)
    assert describe(world[1]).active_producers == [ProducerState(9, 2, 1, 1, NOW_MS, None, -1, 0)]
    leader_state.append_marker(EndTransactionMarker(True, 6), 9, 2, NOW_MS, 1)
    assert describe(world[1]).active_producers == [ProducerState(9, 2, 1, 1, NOW_MS, None, 6, -1)]
