"""Produce in transactions: when the coordinator is asked, and what may have happened when it answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from handled_request import HandledConnection, HandledRequest
from replica_world import NOW_MS, TOPIC, Node, P, ReplicaWorld, code, produced

from strandline.protocol.apis import PRODUCE
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import ProducePartition, ProduceRequest
from strandline.protocol.messages.transactions import AddPartitionsToTxnTransaction
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.marker import EndTransactionMarker

OTHER = (TOPIC, 1)
PID = 7
TV1, TV2 = 3, 4
"""Versions of Produce with the transaction protocols 1 and 2."""


class HeldAdder:
    """Holds the leaders' requests to the coordinator until the test answers them."""

    def __init__(self) -> None:
        self.asked: list[AddPartitionsToTxnTransaction] = []
        self._done: list[Callable[[BrokerError | None], None]] = []

    def add(self, transaction: AddPartitionsToTxnTransaction, done: Callable[[BrokerError | None], None]) -> None:
        self.asked.append(transaction)
        self._done.append(done)

    def answer(self, error: ErrorCode | None = None) -> None:
        done, self._done = self._done, []
        for each in done:
            each(None if error is None else BrokerError(error))


class World:
    """One leader without followers, and a producer that writes in transactions."""

    def __init__(self, **topic: object) -> None:
        self.adder = HeldAdder()
        self.world = ReplicaWorld(1, adder=self.adder)
        self.world.topic(replicas=(1,), partitions=2, **topic)  # type: ignore[arg-type]
        self.connection = HandledConnection()

    @property
    def leader(self) -> Node:
        return self.world[1]

    def send(
        self,
        *batches: tuple[TopicIdPartition, memoryview],
        version: int = TV2,
        transactional_id: str | None = "orders-1",
        acks: int = -1,
        expected_offset: int = -1,
    ) -> HandledRequest:
        partitions = [ProducePartition(*key, expected_offset) for key, _ in batches]
        body = ProduceRequest(transactional_id, acks, 1000, partitions, [records for _, records in batches])
        request = HandledRequest(body, api_version=version, connection=self.connection)
        self.leader.handlers[PRODUCE](request)  # type: ignore[arg-type]
        self.leader.loop.end_turn()
        return request

    def mark(self, epoch: int, *, is_commit: bool = False, version: int = 2) -> None:
        leader_state = self.leader.p.leader_state
        assert leader_state is not None
        leader_state.append_marker(EndTransactionMarker(is_commit, 0), PID, epoch, NOW_MS, version)


def records(sequence: int = 0, *, epoch: int = 0, key: TopicIdPartition = P, is_transactional: bool = True, pid: int = PID):  # type: ignore[no-untyped-def]
    encoded = encode_batch(
        [(None, b"x", [], NOW_MS)],
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )
    return key, memoryview(bytearray(encoded))


# -- asking ---------------------------------------------------------------------------------------------------------------


def test_the_first_batch_waits_for_the_coordinator_and_later_ones_do_not() -> None:
    """From the first batch on, the transaction is open in the log, and the coordinator's marker ends it."""
    world = World()
    first = world.send(records(0))
    assert not first.is_answered
    assert world.connection.held
    assert world.leader.leo == 0
    world.adder.answer()
    assert (code(first), produced(first).base_offset) == (ErrorCode.NONE, 0)
    assert not world.connection.held
    assert code(world.send(records(1))) == ErrorCode.NONE
    assert len(world.adder.asked) == 1


def test_the_partitions_of_a_request_are_asked_for_together() -> None:
    """Partitions that are in the transaction already are left out."""
    world = World()
    world.send(records(0))
    world.adder.answer()
    request = world.send(records(1), records(0, key=OTHER))
    assert [(t.topics[0].topic_id, t.topics[0].partitions) for t in world.adder.asked] == [(TOPIC, [0]), (TOPIC, [1])]
    world.adder.answer()
    assert [code(request, 0), code(request, 1)] == [ErrorCode.NONE, ErrorCode.NONE]


@pytest.mark.parametrize(("version", "verify_only"), [(TV1, True), (TV2, False)])
def test_the_version_of_the_request_says_who_adds_partitions(version: int, verify_only: bool) -> None:
    """A producer of version 1 adds its partitions itself. If the leader added one, a missing AddPartitionsToTxn would go
    unnoticed."""
    world = World()
    world.send(records(0), version=version)
    assert [(t.verify_only, t.transaction_version) for t in world.adder.asked] == [(verify_only, 1 if verify_only else 2)]


@pytest.mark.parametrize(
    "error", [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.INVALID_PRODUCER_EPOCH]
)
def test_an_error_of_the_coordinator_is_that_of_the_partitions_asked_for(error: ErrorCode) -> None:
    """Nothing is written to them. The partitions that are already in the transaction are written."""
    world = World()
    world.send(records(0))
    world.adder.answer()
    request = world.send(records(1), records(0, key=OTHER))
    world.adder.answer(error)
    assert [code(request, 0), code(request, 1)] == [ErrorCode.NONE, error]
    assert world.leader[OTHER].log.log_end_offset == 0


def test_a_partition_that_cannot_be_written_is_not_added() -> None:
    """Otherwise a marker would be written there for nothing. The error is that of the partition, whatever the coordinator
    answers."""
    world = World(min_isr=1)
    missing = (TOPIC, 5)
    request = world.send(records(0, key=missing), records(0))
    assert [t.topics[0].partitions for t in world.adder.asked] == [[0]]
    world.adder.answer()
    assert [code(request, 0), code(request, 1)] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]


# -- what has happened meanwhile -----------------------------------------------------------------------------------------


def test_a_fenced_epoch_is_refused_without_asking() -> None:
    """KAFKA-19690: an error of the coordinator, or of the transaction's state, would end a producer that only has to abort."""
    world = World()
    world.send(records(0))
    world.adder.answer()
    world.mark(1)
    assert code(world.send(records(1))) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(world.adder.asked) == 1


def test_a_marker_that_comes_before_the_answer_is_not_overtaken() -> None:
    """KAFKA-12671: the batch would begin a transaction that no marker ends. In version 1 the marker has the epoch of the
    batch."""
    world = World()
    request = world.send(records(0), version=TV1)
    world.mark(0, version=1)
    world.adder.answer()
    assert code(request) == ErrorCode.INVALID_TXN_STATE
    assert not world.leader.p.log.producers.transactions


def test_in_version_2_a_marker_that_comes_before_the_answer_fences_the_batch() -> None:
    """The coordinator has aborted the transaction because of its timeout, with the next epoch."""
    world = World()
    request = world.send(records(0))
    world.mark(1)
    world.adder.answer()
    assert code(request) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert not world.leader.p.log.producers.transactions


def test_in_version_2_a_repeated_marker_of_the_transaction_before_does_no_harm() -> None:
    """KAFKA-19999: the repeated marker has the epoch of the present transaction, but does not end it."""
    world = World()
    world.mark(1)
    request = world.send(records(0, epoch=1))
    world.mark(1)
    world.adder.answer()
    assert code(request) == ErrorCode.NONE
    assert world.leader.p.log.producers.transactions


def test_an_answer_does_not_count_in_a_later_leader_epoch() -> None:
    """Another leader may have written markers meanwhile, so the producer must send the batch again."""
    world = World()
    request = world.send(records(0))
    world.world.elect(1)
    world.adder.answer()
    assert code(request) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.leader.leo == 0


def test_a_first_batch_of_version_2_begins_at_sequence_0() -> None:
    """KAFKA-14402: the batch before it was refused and will be sent again. In version 1, sequences continue over transactions."""
    world = World()
    assert code(world.send(records(5))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not world.adder.asked
    request = world.send(records(5), version=TV1)
    world.adder.answer()
    assert code(request) == ErrorCode.NONE


def test_a_retry_of_a_batch_in_the_open_transaction_is_a_duplicate() -> None:
    """The response was lost. The batch must reach neither the coordinator nor the log again."""
    world = World()
    world.send(records(0))
    world.adder.answer()
    again = world.send(records(0))
    assert (code(again), produced(again).base_offset) == (ErrorCode.NONE, 0)
    assert world.leader.leo == 1


def test_a_producer_may_close_its_connection_while_the_coordinator_is_asked() -> None:
    """The batch is appended, and a retry is a duplicate. The lost connection must not cause an error."""
    world = World()
    request = world.send(records(0))
    world.connection.close()
    world.adder.answer()
    assert request.is_answered
    assert world.leader.leo == 1


# -- refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batches", "fields", "error"),
    [
        ([records()], {"acks": 1}, ErrorCode.INVALID_REQUIRED_ACKS),
        ([records()], {"expected_offset": 0}, ErrorCode.INVALID_REQUEST),
        ([records()], {"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ([records(is_transactional=False)], {}, ErrorCode.INVALID_REQUEST),
        ([records(), records(key=OTHER, pid=8)], {}, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ([records(pid=-1)], {}, ErrorCode.INVALID_RECORD),
    ],
)
def test_a_request_that_cannot_be_part_of_a_transaction_is_refused_as_a_whole(
    batches: list[tuple[TopicIdPartition, memoryview]], fields: dict[str, object], error: ErrorCode
) -> None:
    """The coordinator knows one producer id and epoch per transactional id, and aborts cannot undo conditions."""
    world = World()
    with pytest.raises(BrokerError) as refused:
        world.send(*batches, **fields)  # type: ignore[arg-type]
    assert refused.value.code == error
    assert not world.adder.asked
    assert not world.connection.held


def test_a_transactional_batch_without_a_transactional_id_is_refused() -> None:
    """Without the id the leader does not know which coordinator to ask."""
    world = World()
    assert code(world.send(records(), transactional_id=None, version=0)) == ErrorCode.INVALID_RECORD


def test_a_batch_outside_of_the_producers_open_transaction_is_refused() -> None:
    """Readers would get it only when the transaction ends, and an abort, which its sender does not expect, would hide it."""
    world = World()
    world.send(records(0))
    world.adder.answer()
    outside = world.send(records(1, is_transactional=False), transactional_id=None, version=0)
    assert code(outside) == ErrorCode.INVALID_TXN_STATE


def test_a_damaged_batch_is_refused_and_not_added() -> None:
    """It has the same error as outside of transactions."""
    world = World()
    request = world.send((P, memoryview(bytearray(b"too short"))))
    assert code(request) == ErrorCode.CORRUPT_MESSAGE
    assert not world.adder.asked
