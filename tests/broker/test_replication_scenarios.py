"""Scenarios from the history of real failures, on production partitions and logs, with messages held by the test.

The numbers are those of the simulator's scenarios. S15, S16 and S18 to S20 are in the simulator alone
(`testing/simulation/scenarios/isr.py`). Here are the cases that no story reaches, or that a unit test finds much sooner. B1..
are brokers, e a leader epoch, HW and LEO exclusive.
"""

from __future__ import annotations

import pytest
from replica_world import (
    LAG_S,
    P,
    ReplicaWorld,
    batch,
    code,
    commit,
    deliver,
    log_values,
    produced,
    refuse,
    values,
    want,
)

from strandline.protocol.errors import ErrorCode


def cluster(**options: object) -> ReplicaWorld:
    world = ReplicaWorld()
    world.topic(**options)  # type: ignore[arg-type]
    return world


def fill(world: ReplicaWorld, count: int, leader: int = 1) -> None:
    for _ in range(count):
        world[leader].produce("x", acks=1)


def catch_up(world: ReplicaWorld, follower: int, leader: int = 1) -> None:
    """Fetch until the leader knows that the follower has everything."""
    while world[follower].leo < world[leader].leo:
        world.replicate(follower, leader)
    world.replicate(follower, leader)


def test_s14_isr_expands_only_after_the_start_of_the_leader_epoch() -> None:
    """B2 leads e2 with LEO 20 and a stale HW of 10; B3 has 12. In the ISR, B3 could be elected and lose 12..19 (KAFKA-7128)."""
    world = cluster()
    fill(world, 10)
    catch_up(world, 2)
    catch_up(world, 3)
    world.replicate(2, 1)
    fill(world, 2)
    catch_up(world, 3)
    fill(world, 8)
    while world[2].leo < 20:
        world.replicate(2, 1)
    assert (world[2].hw, world[3].leo) == (10, 12)
    world.elect(2, isr=(1, 2))
    b2 = world[2]
    for offset in range(12, 20):
        b2.said_by(3, offset)
        assert b2.alter.pending == {}, f"at {offset} it has reached the HW and not the epoch's start"
    b2.said_by(3, 20)
    assert b2.alter.pending[P].isr[-1] == (3, 13)


@pytest.mark.parametrize("outcome", [None, ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_UPDATE_VERSION])
def test_s17_an_answer_of_the_same_epoch_that_metadata_overtook_is_ignored(outcome: ErrorCode | None) -> None:
    world = cluster(isr=(1, 2))
    b1 = world[1]
    b1.said_by(3, 0)
    held = b1.alter.take()
    world.set_isr(1, 2, 3)
    world.set_isr(1, 3)
    if outcome is None:
        commit(held)
    else:
        refuse(held, outcome)
    assert (b1.isr, b1.p.partition_epoch) == ([1, 3], 3)


def test_s22_under_min_isr_the_high_watermark_is_frozen() -> None:
    world = cluster(isr=(1,), min_isr=2)
    b1 = world[1]
    assert code(b1.produce("x", acks=1)) == ErrorCode.NONE
    b1.said_by(2, 0)
    b1.said_by(3, 0)
    assert b1.hw == 0
    assert values(b1.fetch(want(0, epoch=1))) == []
    assert code(b1.produce("x")) == ErrorCode.NOT_ENOUGH_REPLICAS


def test_s22_an_expansion_that_is_only_proposed_does_not_unfreeze_it() -> None:
    """The minimum counts committed members, because the proposal may be refused."""
    world = cluster(isr=(1,), min_isr=2)
    b1 = world[1]
    fill(world, 3)
    b1.said_by(2, 3)
    assert b1.p.leader_state is not None
    assert b1.p.leader_state.isr.maximal == {1, 2}
    assert b1.hw == 0
    assert code(b1.produce("x")) == ErrorCode.NOT_ENOUGH_REPLICAS
    commit(b1.alter.take())
    assert b1.hw == 3
    assert not b1.produce("x").is_answered


def test_s23_a_shrink_between_append_and_ack_is_never_a_success() -> None:
    world = cluster(min_isr=2, isr=(1, 2))
    b1 = world[1]
    request = b1.produce("x", timeout_ms=60_000)
    world.loop.advance(LAG_S + 1)
    b1.manager.maybe_shrink_isrs()
    commit(b1.alter.take())
    world.loop.end_turn()
    assert code(request) == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert b1.hw == 0
    b1.said_by(2, 1)
    commit(b1.alter.take())
    assert b1.hw == 1, "it may be committed later; the answer promised nothing"


@pytest.mark.parametrize("ahead", ["controllers and followers", "controllers only"])
def test_s24_a_zombie_leader_acknowledges_nothing_and_is_truncated(ahead: str) -> None:
    """B1 was paused or cut off while B2 was elected; its clients are still connected."""
    world = cluster(min_isr=2)
    b1, b2, b3 = world[1], world[2], world[3]
    fill(world, 5)
    catch_up(world, 2)
    catch_up(world, 3)
    world.elect(2, isr=(2, 3), at=(2, 3) if ahead.endswith("followers") else (2,))
    zombie = b1.produce("zombie", timeout_ms=500)
    loose = b1.produce("loose", acks=1)
    assert code(loose) == ErrorCode.NONE, "acks=1 promises less"
    if ahead.endswith("followers"):
        assert code(b1.fetch_from(b3)) == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert code(b1.fetch_from(b2)) == ErrorCode.UNKNOWN_LEADER_EPOCH
    else:
        world.replicate(3, 1)
        world.replicate(3, 1)
        world.catch_up(3)
    assert b1.hw == 5
    b2.produce("true", acks=1)
    world.replicate(3, 2)
    world.replicate(3, 2)
    world.replicate(3, 2)
    assert b2.hw == 6
    world.loop.advance(1)
    assert code(zombie) == ErrorCode.REQUEST_TIMED_OUT
    late = b1.produce("late", timeout_ms=60_000)
    world.catch_up(1)
    assert code(late) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    for _ in range(3):
        world.replicate(1, 2)
    assert log_values(b1.p) == log_values(b2.p) == log_values(b3.p)
    assert log_values(b1.p)[-1] == (5, b"true")


def test_s24_fetches_of_another_epoch_move_nothing() -> None:
    """The first version of KIP-320 failed here: fetches of followers in an older epoch advanced the HW."""
    world = cluster()
    fill(world, 5)
    world.elect(1)
    b1 = world[1]
    for epoch in (1, 3, -1):
        for broker_id in (2, 3):
            b1.said_by(broker_id, 5, epoch=epoch)
    assert b1.hw == 0


def test_s38_a_retry_across_a_fail_over_gets_the_same_offsets_and_one_copy() -> None:
    """B1 appends and commits the batches, the answer is lost, B1 dies, and the retry is sent to B2."""
    world = cluster(replicas=(1, 2), min_isr=1)
    first = batch("a", "b", producer_id=7, producer_epoch=0, sequence=0)
    second = batch("c", "d", producer_id=7, producer_epoch=0, sequence=2)
    requests = [world[1].produce(bytearray(first), timeout_ms=60_000), world[1].produce(bytearray(second), timeout_ms=60_000)]
    catch_up(world, 2)
    assert [code(request) for request in requests] == [ErrorCode.NONE, ErrorCode.NONE]
    world.elect(2, isr=(2,), at=(2,))
    assert world[2].p.leader_state is not None
    retries = [world[2].produce(bytearray(first)), world[2].produce(bytearray(second))]
    assert [produced(request).base_offset for request in retries] == [0, 2]
    assert [value for _, value in log_values(world[2].p)] == [b"a", b"b", b"c", b"d"]
    third = batch("e", producer_id=7, producer_epoch=0, sequence=4)
    assert produced(world[2].produce(third)).base_offset == 4


def test_s38_a_retry_of_an_uncommitted_batch_waits_at_the_new_leader() -> None:
    world = cluster(replicas=(1, 2, 3))
    first = batch("a", producer_id=7, producer_epoch=0, sequence=0)
    world[1].produce(bytearray(first), timeout_ms=60_000)
    world.replicate(2, 1)
    world.elect(2, isr=(2, 3), at=(2, 3))
    retry = world[2].produce(bytearray(first), timeout_ms=60_000)
    assert not retry.is_answered
    catch_up(world, 3, 2)
    assert (code(retry), produced(retry).base_offset) == (ErrorCode.NONE, 0)
    assert world[2].leo == 1


def test_s12_records_of_an_epoch_that_was_not_asked_for_stay_out() -> None:
    """B1 was deposed and elected again while its response was on the way (KAFKA-18723)."""
    world = cluster(replicas=(1, 2))
    fill(world, 1)
    position = world[2].p.fetch_position()
    world.elect(2, at=(1,))
    world.elect(1, at=(1,))
    world[1].produce("newer", acks=1)
    read = world[1].p.log.read(0, 1 << 20, 10)
    held = world[1].fetch(want(0, epoch=3, last_epoch=-1), replica_id=2, replica_epoch=12)
    assert values(held) == [b"x", b"newer"]
    assert deliver(world[2].p, position, held)
    assert log_values(world[2].p) == [(0, b"x")]
    assert read.size == sum(map(len, held.records[0]))
