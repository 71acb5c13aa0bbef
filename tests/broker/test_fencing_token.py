"""Fencing tokens: a partition rejects an append whose token is lower than that of an earlier one, whichever broker leads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fetcher_link import Link
from handled_request import HandledRequest
from replica_world import NOW_MS, Node, P, ReplicaWorld, batch, code, log_values, produced, values, want
from test_log_moves import begin, finish, restart, world_of

from strandline.broker.replication.fetcher_shell import Fetcher
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.data import (
    EARLIEST_TIMESTAMP,
    DescribeProducersRequest,
    FetchResponse,
    ListOffsetsRequest,
    ProducePartition,
    ProduceRequest,
)
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.fence import FIRST_FENCE, is_fence, make_fence

OK, FENCED, CONFLICT = ErrorCode.NONE, ErrorCode.FENCED_TOKEN, ErrorCode.UNEXPECTED_LOG_END


def three(**options: object) -> tuple[ReplicaWorld, Node]:
    world = ReplicaWorld()
    world.topic(**options)  # type: ignore[arg-type]
    return world, world[1]


def commit(leader: Node, offset: int | None = None) -> None:
    for broker_id in (2, 3):
        leader.said_by(broker_id, leader.leo if offset is None else offset)


def token(node: Node) -> int:
    return node.p.log.producers.fences.token


# -- one leader -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, -1])
def test_lower_token_is_rejected_with_the_highest_one(acks: int) -> None:
    _, leader = three()
    for number, offset in ((5, 1), (5, 2), (8, 4)):
        request = leader.produce("a", acks=acks, fencing_token=number)
        commit(leader)
        assert (code(request), produced(request).base_offset) == (OK, offset)
    request = leader.produce("b", acks=acks, fencing_token=7)
    assert (code(request), produced(request).fencing_token, produced(request).base_offset) == (FENCED, 8, -1)
    assert produced(request).error_message == "fencing token 7 is fenced: an append with token 8 came before"
    assert (leader.leo, leader.p.metrics.failed_produces) == (5, 1)
    plain = leader.produce("c", acks=acks)
    commit(leader)
    assert code(plain) == OK


def test_counted_are_records_and_not_fences() -> None:
    _, leader = three()
    leader.produce("a", "b", acks=1, fencing_token=5)
    assert leader.p.metrics.messages_in == 2


def test_acknowledgement_means_that_the_fence_is_committed() -> None:
    """The fence precedes the record in the log, so it is committed when the record is."""
    _, leader = three()
    request = leader.produce("a", fencing_token=5)
    commit(leader, 1)
    assert not request.is_answered
    commit(leader, 2)
    assert code(request) == OK


def test_rejection_waits_until_the_fence_is_committed() -> None:
    """The fence may be lost with this leader, and then the lower token would be the highest one."""
    world, leader = three()
    leader.produce("uncommitted", acks=1, fencing_token=9)
    request = leader.produce("mine", fencing_token=5)
    assert not request.is_answered
    world.elect(2)
    assert (code(request), produced(request).fencing_token) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert leader.p.metrics.failed_produces == 1
    again = world[2].produce("mine", acks=1, fencing_token=5)
    assert (code(again), produced(again).base_offset) == (OK, 1)
    world.replicate(1, 2)
    world.replicate(1, 2)
    assert (token(world[1]), log_values(world[1].p)) == (5, [(1, b"mine")])


def test_rejection_does_not_wait_for_records_behind_the_fence() -> None:
    _, leader = three()
    leader.produce("a", acks=1, fencing_token=9)
    leader.produce("b", acks=1)
    request = leader.produce("mine", fencing_token=5)
    commit(leader, 1)
    assert code(request) == FENCED


def test_rejection_that_waits_too_long_times_out() -> None:
    world, leader = three()
    leader.produce("uncommitted", acks=1, fencing_token=9)
    request = leader.produce("mine", fencing_token=5, timeout_ms=500)
    world.loop.advance(0.6)
    assert (code(request), produced(request).fencing_token) == (ErrorCode.REQUEST_TIMED_OUT, -1)


def test_retry_of_a_written_batch_is_a_success_although_the_token_was_raised() -> None:
    world, leader = three()
    mine = [batch("mine", producer_id=7, producer_epoch=0, sequence=sequence) for sequence in (0, 0, 1, 2)]
    leader.produce(mine[0], acks=1, fencing_token=5)
    leader.produce("other", acks=1, fencing_token=6)
    commit(leader)
    retry = leader.produce(mine[1], fencing_token=5)
    assert (code(retry), produced(retry).base_offset) == (OK, 1)
    assert [code(leader.produce(each, fencing_token=5)) for each in mine[2:]] == [FENCED, FENCED]
    world.replicate(2, 1)
    world.elect(2)
    retry = world[2].produce(batch("mine", producer_id=7, producer_epoch=0, sequence=0), acks=1, fencing_token=5)
    assert (code(retry), produced(retry).base_offset) == (OK, 1)


def test_fenced_token_precedes_a_conflict() -> None:
    _, leader = three()
    leader.produce("a", acks=1, fencing_token=5)
    commit(leader)
    assert code(leader.produce("b", fencing_token=4, expected_offset=0)) == FENCED
    conflict = leader.produce("b", fencing_token=6, expected_offset=0)
    assert (code(conflict), produced(conflict).log_end_offset, produced(conflict).fencing_token) == (CONFLICT, 2, -1)
    assert token(leader) == 5
    request = leader.produce("b", acks=1, fencing_token=6, expected_offset=2)
    assert (code(request), produced(request).base_offset) == (OK, 3)


def test_partitions_of_a_request_are_judged_one_by_one() -> None:
    world, leader = three(partitions=2)
    other = (P[0], 1)
    leader.produce("a", acks=1, fencing_token=9)
    items = [ProducePartition(*P, -1, 5), ProducePartition(*other, -1, 5)]
    request = HandledRequest(ProduceRequest(None, 1, 1000, items, [memoryview(batch("a")), memoryview(batch("b"))]))
    leader.handlers[0](request)  # type: ignore[arg-type]
    world.loop.end_turn()
    assert [code(request, index) for index in (0, 1)] == [FENCED, OK]


def test_compressed_batch_of_a_topic_with_another_codec_is_fenced_alike() -> None:
    """The batch is recompressed before it is appended, on another path."""
    _, leader = three(compression_type="gzip")
    leader.produce("a", acks=1, fencing_token=5)
    assert code(leader.produce("b", acks=1, fencing_token=4)) == FENCED
    assert log_values(leader.p) == [(1, b"a")]


@pytest.mark.parametrize("records", [make_fence(9, 0, 1), batch("x", producer_id=FIRST_FENCE, producer_epoch=0, sequence=9)])
def test_producer_cannot_write_a_fence(records: bytes) -> None:
    _, leader = three()
    assert code(leader.produce(bytearray(records), acks=1)) == ErrorCode.INVALID_RECORD
    assert (leader.leo, token(leader)) == (0, -1)


def test_request_with_a_token_needs_version_2() -> None:
    """A broker of version 1 has only expected offsets: it would ignore the field, and append."""
    partitions = [ProducePartition(*P), ProducePartition(P[0], 1)]
    request = ProduceRequest(None, -1, 1000, partitions, [])
    partitions[1].fencing_token = 0
    assert request.version() == 2
    partitions[0].expected_offset = 0
    assert request.version() == 2


# -- consumers --------------------------------------------------------------------------------------------------------


def test_consumer_gets_the_fence_as_a_batch_without_records() -> None:
    _, leader = three()
    leader.produce("a", acks=1, fencing_token=5)
    leader.produce("b", acks=1, fencing_token=6)
    commit(leader)
    request = leader.fetch(want(0))
    assert values(request) == [b"a", b"b"]
    headers = [header for buffer in request.records[0] for _, header in iter_headers(buffer)]
    assert [is_fence(header) for header in headers] == [True, False, True, False]
    assert leader.list_offsets(-1).offset == 4
    assert leader.list_offsets(NOW_MS).offset == 1


# -- fail-overs -------------------------------------------------------------------------------------------------------


def test_next_leader_rejects_the_lower_token() -> None:
    world, leader = three()
    leader.produce("new", acks=1, fencing_token=9)
    world.replicate(2, 1)
    world.elect(2)
    assert code(world[2].produce("old", acks=1, fencing_token=8)) == FENCED
    assert code(world[2].produce("new", acks=1, fencing_token=9)) == OK
    assert log_values(world[2].p) == [(1, b"new"), (2, b"new")], "a raise is stored once"


def test_next_leader_that_has_only_the_fence_rejects_the_lower_token() -> None:
    """A record is appended after its fence, so no reader sees a record with a lower token behind it. The retry needs no other
    fence."""
    world, leader = three()
    leader.produce(batch("new", producer_id=7, producer_epoch=0, sequence=0), acks=1, fencing_token=9)
    position = world[2].p.fetch_position()
    (data,) = leader.p.log.read(0, 1, 2).buffers
    world[2].p.append_fetched(position, leader.fetch_from(world[2]).answer.partitions[0], memoryview(bytearray(data)))
    assert (world[2].leo, token(world[2])) == (1, 9)
    world.elect(2)
    assert code(world[2].produce("old", acks=1, fencing_token=8)) == FENCED
    retry = world[2].produce(batch("new", producer_id=7, producer_epoch=0, sequence=0), acks=1, fencing_token=9)
    assert (code(retry), produced(retry).base_offset) == (OK, 1)


def test_token_of_a_truncated_append_is_gone() -> None:
    world, leader = three()
    leader.produce("a", acks=1, fencing_token=5)
    world.replicate(2, 1)
    leader.produce("lost", acks=1, fencing_token=9)
    world.elect(2)
    world[2].produce("b", acks=1, fencing_token=6)
    while world[1].p.log.log_end_offset != world[2].leo or token(world[1]) != 6:
        world.replicate(1, 2)
    assert log_values(world[1].p) == log_values(world[2].p) == [(1, b"a"), (3, b"b")]


# -- followers that start late, moves ---------------------------------------------------------------------------------


def test_follower_that_starts_after_deleted_records_rejects_the_lower_token() -> None:
    """The fence is deleted, but the follower gets the token with the producers of the leader."""
    world, leader = three()
    leader.produce("a", acks=1, fencing_token=5)
    leader.produce("b", acks=1, fencing_token=6)
    for _ in range(3):
        leader.produce("plain", acks=1)
    commit(leader, 6)
    leader.p.leader_state.delete_records(5)  # type: ignore[union-attr]
    leader.produce("c", acks=1, fencing_token=7)
    link = Link(world, 2, 1)
    link.round()
    assert (world[2].leo, world[2].p.log.log_start_offset, token(world[2])) == (5, 5, 6)
    while world[2].leo < leader.leo:
        link.round()
    assert token(world[2]) == 7
    world.elect(2)
    assert code(world[2].produce("old", acks=1, fencing_token=6)) == FENCED


async def test_producers_are_asked_after_the_log_start() -> None:
    """The leader answers in order. If it were asked for its log start last, a token that is raised and deleted between the two
    answers would be below that start, and not among the producers."""
    world, leader = three()
    leader.produce("a", "b", acks=1, fencing_token=5)
    commit(leader)
    leader.p.leader_state.delete_records(3)  # type: ignore[union-attr]
    link = Link(world, 2, 1)
    plan, request = link.ask() or (None, None)
    assert plan is not None
    assert request is not None
    answer = request.answer
    response = FetchResponse(0, 0, answer.session_id, answer.partitions, [memoryview(b"")])
    sent: list[Any] = []
    connection = SimpleNamespace(closed=False, send=lambda api, body, **_: sent.append(body))
    fetcher = Fetcher(leader_id=1, broker_id=2, core=link.core, connect=None, on_progress=sent.append)  # type: ignore[arg-type]
    fetcher._connection = connection  # type: ignore[assignment]
    link.core.on_response(plan, response, link.now)
    fetcher._ask_ranges()
    asked = [body.partitions[0].timestamp if isinstance(body, ListOffsetsRequest) else body for body in sent]
    assert EARLIEST_TIMESTAMP in asked[:-1]
    assert isinstance(asked[-1], DescribeProducersRequest)


@pytest.mark.parametrize("lossy", [False, True])
def test_token_moves_to_another_disk(lossy: bool) -> None:
    world, node, controller = world_of()
    node.produce("a", acks=1, fencing_token=6)
    node.produce("b", acks=1)
    node.said_by(2, 3)
    node.p.leader_state.delete_records(2)  # type: ignore[union-attr]
    begin(world, node)
    finish(world, controller)
    assert node.p.log.dir.startswith("/d2")
    assert code(node.produce("old", acks=1, fencing_token=5)) == FENCED
    again = restart(world, node, lossy=lossy)
    assert token(again) == 6


def test_raise_during_a_move_is_not_lost() -> None:
    world, node, controller = world_of()
    node.produce("a", acks=1, fencing_token=6)
    begin(world, node)
    node.produce("b", acks=1, fencing_token=7)
    finish(world, controller)
    assert (node.p.log.dir.startswith("/d2"), token(node)) == (True, 7)
