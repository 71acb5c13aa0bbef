"""A producer writes on its newest connection to a broker: a batch that arrives on an older one is a late copy."""

from __future__ import annotations

import pytest
from handled_request import HandledConnection, HandledRequest
from replica_world import P, ReplicaWorld, batch

from strandline.broker.produce.producer_connections import PRODUCERS_MAX, ProducerConnections
from strandline.protocol.apis import PRODUCE
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.data import ProducePartition, ProduceRequest
from strandline.protocol.producer_names import named_producer_id
from strandline.testing.simulation.cluster.malformed_batches import assemble, bad_checksum, encode_record


def records(producer_id: int, sequence: int = 0, epoch: int = 0) -> memoryview:
    return memoryview(batch("a", producer_id=producer_id, producer_epoch=epoch, sequence=sequence))


def test_a_batch_on_an_older_connection_is_late() -> None:
    known = ProducerConnections()
    assert not known.is_late(records(7), HandledConnection(1))
    assert not known.is_late(records(7), HandledConnection(2))
    assert known.is_late(records(7), HandledConnection(1))
    assert not known.is_late(records(7), HandledConnection(2))
    assert not known.is_late(records(8), HandledConnection(1)), "another producer"
    assert not known.is_late(records(7), HandledConnection(1, "EXTERNAL")), (
        "the connections of each listener are numbered by themselves"
    )


def test_producers_without_an_id_are_not_tracked() -> None:
    known = ProducerConnections()
    assert not known.is_late(records(-1, -1, -1), HandledConnection(2))
    assert not known.is_late(records(-1, -1, -1), HandledConnection(1))
    assert not known.is_late(memoryview(b"no batch"), HandledConnection(1))


def test_named_producers_share_a_name_and_late_copies_are_harmless() -> None:
    known, named = ProducerConnections(), named_producer_id(3, 5)
    for connection in (1, 2, 1):
        assert not known.is_late(records(named), HandledConnection(connection))
    assert not known._newest


def test_no_more_is_remembered_than_there_is_room_for() -> None:
    known = ProducerConnections()
    for producer_id in range(PRODUCERS_MAX + 10):
        known.is_late(records(producer_id), HandledConnection(2))
    assert len(known._newest) == PRODUCERS_MAX
    assert not known.is_late(records(0), HandledConnection(1)), "forgotten"
    assert known.is_late(records(PRODUCERS_MAX), HandledConnection(1))


def test_a_late_copy_is_not_appended_and_its_connection_ends() -> None:
    """The producer has found out that the batch is not in the log, and numbers it again: the log would have it twice (seed
    396950264)."""
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    leader = world[1]
    old, new = HandledConnection(1), HandledConnection(2)

    def produce(connection: HandledConnection, sequence: int, epoch: int) -> HandledRequest:
        request = HandledRequest(
            ProduceRequest(None, 1, 1000, [ProducePartition(*P)], [records(7, sequence, epoch)]), connection=connection
        )
        leader.handlers[PRODUCE](request)  # type: ignore[arg-type]
        return request

    assert produce(old, 0, 0).answer.partitions[0].error_code == 0
    assert produce(new, 0, 1).answer.partitions[0].error_code == 0
    end = leader.p.log.log_end_offset
    assert produce(old, 1, 0).answer is None
    assert old.closed
    assert leader.p.log.log_end_offset == end


LIES = {
    "a wrong checksum": bad_checksum(bytes(batch("x", producer_id=7, producer_epoch=0, sequence=0))),
    "records that do not fit": assemble([encode_record(1)], 0, producer_id=7, producer_epoch=0, base_sequence=0),
    "half a batch": bytes(batch("x", producer_id=7, producer_epoch=0, sequence=0))[:-1],
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("acks", [1, 0])
def test_a_malformed_batch_does_not_close_the_connection_of_the_producer_it_names(lie: str, acks: int) -> None:
    """Any sender can name the producer, because producer ids are given out in order."""
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    leader = world[1]
    owner, liar = HandledConnection(1), HandledConnection(2)

    def produce(connection: HandledConnection, raw: memoryview) -> HandledRequest:
        request = HandledRequest(ProduceRequest(None, acks, 1000, [ProducePartition(*P)], [raw]), connection=connection)
        leader.handlers[PRODUCE](request)  # type: ignore[arg-type]
        return request

    produce(owner, records(7, 0))
    refused = produce(liar, memoryview(bytearray(LIES[lie])))
    if acks:
        assert refused.answer.partitions[0].error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    assert leader.p.log.log_end_offset == 1
    produce(owner, records(7, 1))
    assert not owner.closed
    assert leader.p.log.log_end_offset == 2


def test_a_malformed_batch_on_an_older_connection_is_refused() -> None:
    known = ProducerConnections()
    assert not known.is_late(records(7), HandledConnection(2))
    assert not known.is_late(memoryview(LIES["a wrong checksum"]), HandledConnection(1))
