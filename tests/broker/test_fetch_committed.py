"""Fetch and ListOffsets of consumers that read committed records only."""

from __future__ import annotations

from handled_request import HandledRequest
from replica_world import Node, P, ReplicaWorld, code, fetched, values, want

from strandline.protocol.apis import LIST_OFFSETS
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.data import (
    LATEST_TIMESTAMP,
    AbortedTransaction,
    ListOffsetsPartition,
    ListOffsetsRequest,
)
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.marker import EndTransactionMarker

NOW_MS = 1_700_000_000_000


def write(node: Node, pid: int, sequence: int, value: str) -> None:
    assert node.p.leader_state is not None
    records = encode_batch(
        [(None, value.encode(), [], NOW_MS)],
        producer_id=pid,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )
    node.p.leader_state.append(bytearray(records), NOW_MS, is_transactional=True)


def end(node: Node, pid: int, *, commit: bool) -> None:
    assert node.p.leader_state is not None
    node.p.leader_state.append_marker(EndTransactionMarker(commit, 0), pid, 0, NOW_MS, 0)


def leader(replicas: tuple[int, ...] = (1,)) -> tuple[ReplicaWorld, Node]:
    world = ReplicaWorld()
    world.topic(replicas=replicas)
    return world, world[1]


def committed(node: Node, offset: int, **fields: int) -> HandledRequest:
    return node.fetch(want(offset, epoch=1), isolation_level=1, **fields)


def latest(node: Node, isolation_level: int) -> int:
    request = HandledRequest(ListOffsetsRequest(-1, isolation_level, [ListOffsetsPartition(*P, -1, LATEST_TIMESTAMP)]))
    node.handlers[LIST_OFFSETS](request)  # type: ignore[arg-type]
    answer = request.answer.partitions[0]
    assert answer.error_code == ErrorCode.NONE
    return int(answer.offset)


def test_records_of_an_open_transaction_are_not_for_readers_of_committed_ones() -> None:
    _, node = leader()
    node.produce("a", acks=1)
    write(node, 7, 0, "b")
    node.produce("c", acks=1)
    assert values(committed(node, 0)) == [b"a"]
    assert values(node.fetch(want(0, epoch=1))) == [b"a", b"b", b"c"]
    answer = fetched(committed(node, 0))[P]
    assert (answer.high_watermark, answer.last_stable_offset) == (3, 1)
    assert (latest(node, 0), latest(node, 1)) == (3, 1)
    end(node, 7, commit=True)
    assert values(committed(node, 1))[:2] == [b"b", b"c"]
    assert fetched(committed(node, 1))[P].aborted_transactions is None
    assert latest(node, 1) == 4


def test_aborted_transactions_come_with_their_records() -> None:
    _, node = leader()
    write(node, 7, 0, "a")
    write(node, 8, 0, "b")
    end(node, 8, commit=False)
    end(node, 7, commit=False)
    both = [AbortedTransaction(7, 0, 3), AbortedTransaction(8, 1, 2)]
    assert fetched(committed(node, 0))[P].aborted_transactions == both
    assert fetched(committed(node, 3))[P].aborted_transactions == both[:1]
    assert fetched(committed(node, 0, max_bytes=1))[P].aborted_transactions == both[:1], "the answer has one batch"
    assert fetched(node.fetch(want(0, epoch=1)))[P].aborted_transactions is None


def test_a_marker_that_is_not_committed_is_no_end() -> None:
    _, node = leader(replicas=(1, 2))
    write(node, 7, 0, "a")
    end(node, 7, commit=True)
    node.said_by(2, 1)
    assert values(committed(node, 0)) == []
    node.said_by(2, 2)
    assert values(committed(node, 0))[:1] == [b"a"]


def test_a_waiting_reader_gets_the_records_when_the_marker_is_committed() -> None:
    _, node = leader(replicas=(1, 2))
    write(node, 7, 0, "a")
    parked = committed(node, 0, max_wait_ms=500)
    node.said_by(2, 1)
    assert not parked.is_answered, "the high watermark alone is no reason to wake it"
    end(node, 7, commit=True)
    assert not parked.is_answered
    node.said_by(2, 2)
    assert values(parked)[:1] == [b"a"]


def test_a_follower_fetches_everything_and_knows_the_transactions() -> None:
    world, node = leader(replicas=(1, 2))
    write(node, 7, 0, "a")
    end(node, 7, commit=False)
    write(node, 8, 0, "b")
    world.replicate(2, 1)
    world.replicate(2, 1)
    log = world[2].p.log
    assert log.last_stable_offset == 2
    assert [each[:3] for each in log.aborted_transactions(0, 3)] == [(7, 0, 1)]


def test_a_transactional_batch_needs_a_request_with_a_transaction() -> None:
    _, node = leader()
    records = encode_batch([(None, b"a", [], NOW_MS)], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert code(node.produce(bytearray(records), acks=1)) == ErrorCode.INVALID_RECORD
    marker = bytearray(encode_batch([(b"\0\0\0\1", b"\0" * 6, [], NOW_MS)], producer_id=7, producer_epoch=0, is_control=True))
    assert code(node.produce(marker, acks=1)) == ErrorCode.INVALID_RECORD
