"""The throttle of a reassignment (KIP-73): only replicas that it adds are slowed down, and only until they are in the ISR."""

from __future__ import annotations

import pytest
from fetcher_link import Link
from hypothesis import given
from hypothesis import strategies as st
from replica_world import P, ReplicaWorld, values, want

from strandline.broker.replication.throttle import BURST_S, ReplicationThrottle
from strandline.controller.metadata.records import FeatureLevelRecord, PartitionChangeRecord
from strandline.protocol.feature_names import METADATA_VERSION

RATE = 1000
ADDING = PartitionChangeRecord(
    *P, replicas=(1, 2, 3), adding_replicas=(3,), original_replicas=(1, 2), throttle_rate=RATE
)  # 3 is added to 1 and 2


@pytest.fixture
def world() -> ReplicaWorld:
    """Broker 1 leads, 2 is in sync, and a reassignment adds 3. There are ten batches of some 370 bytes."""
    world = ReplicaWorld()
    world.change(FeatureLevelRecord(METADATA_VERSION, 1))
    world.topic(replicas=(1, 2))
    for number in range(10):
        world[1].produce(b"%d" % number * 300, acks=1)
    for _ in range(2):
        world.replicate(2, 1)
    assert world[1].hw == 10
    world.change(ADDING)
    return world


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 2000)), min_size=1, max_size=60))
def test_the_rate_is_kept_over_any_time(sends: list[tuple[float, int]]) -> None:
    """With any pauses, all bytes but the last chunk fit into the rate over the time, plus the burst."""
    throttle, now, total, last = ReplicationThrottle(), 0.0, 0, 0
    for pause, size in sends:
        now += pause
        if not throttle.is_exceeded(now):
            throttle.record(size / RATE, now)
            total, last = total + size, size
    assert total - last <= RATE * (now + BURST_S) + 1e-6


def test_partitions_with_different_rates_share_the_time() -> None:
    throttle = ReplicationThrottle()
    throttle.record(1000 / 1000, 10.0)
    throttle.record(1000 / 2000, 10.0)
    assert throttle.paid_until == pytest.approx(10.0 - BURST_S + 1.5)


def fetch(world: ReplicaWorld, follower: int, offset: int = 0, **fields: int) -> list[bytes]:
    options = {"replica_id": follower, "replica_epoch": 10 + follower, **fields}
    request = world[1].fetch(want(offset, epoch=1, last_epoch=1 if offset else -1, max_bytes=RATE), **options)
    return values(request) if request.is_answered and request.records else []


def test_a_leader_sends_an_added_replica_no_more_than_the_rate(world: ReplicaWorld) -> None:
    got = 0
    began = world.loop.time
    while got < 10:
        got += len(fetch(world, 3, got))
        world.loop.advance(0.05)
    size = world[1].p.log.size_bytes
    assert size / RATE - 1.0 - BURST_S <= world.loop.time - began <= size / RATE + 0.1


def test_a_parked_fetch_does_not_complete_for_throttled_records(world: ReplicaWorld) -> None:
    """Otherwise it would be answered at once, again and again. It waits for its whole long poll."""
    world[1].manager.directory.sending.record(2.0, world.loop.time)
    parked = world[1].fetch(want(0, epoch=1, max_bytes=RATE), replica_id=3, replica_epoch=13, max_wait_ms=500)
    for number in range(20):
        world[1].produce(b"more %d" % number, acks=1)
        assert not parked.is_answered
    world.loop.advance(0.501)
    assert parked.is_answered
    assert parked.records in ([], [[]])


def test_a_member_of_the_isr_is_never_slowed_down(world: ReplicaWorld) -> None:
    world[1].manager.directory.sending.record(1000, world.loop.time)
    assert fetch(world, 3) == []
    assert len(fetch(world, 2)) > 1
    world.set_isr(1, 2, 3)
    assert len(fetch(world, 3)) > 1


def test_only_added_replicas_are_slowed_down(world: ReplicaWorld) -> None:
    """Broker 2 has left the ISR, and should return as soon as possible."""
    world[1].manager.directory.sending.record(1000, world.loop.time)
    world.set_isr(1)
    assert len(fetch(world, 2)) > 1


def test_the_throttle_ends_with_the_reassignment(world: ReplicaWorld) -> None:
    world[1].manager.directory.sending.record(1000, world.loop.time)
    assert fetch(world, 3) == []
    world.change(
        PartitionChangeRecord(*P, adding_replicas=(), original_replicas=(), throttle_rate=0, isr=(1, 2, 3)), at=[1, 2, 3]
    )
    assert len(fetch(world, 3)) > 1


def test_a_follower_leaves_a_throttled_partition_out_of_its_next_fetches(world: ReplicaWorld) -> None:
    """Its other partition is still fetched. The throttled one is fetched again when the rate allows it."""
    other = b"another-topic-16"
    world.topic(replicas=(1, 3), topic_id=other, name="other")
    link = Link(world, 3, 1, P, (other, 0))
    link.rounds(3)
    fetched = link.follower.leo
    assert 0 < fetched < 10, "a chunk is fetched, and the burst"
    world[1].produce("in between", key=(other, 0), acks=1)
    link.round()
    assert link.follower.manager.partitions[other, 0].log.log_end_offset == 1
    assert link.follower.leo == fetched
    began, rounds = world.loop.time, 0
    while link.follower.leo < 10:
        link.round()
        rounds += 1
        assert rounds < 60
    size = link.follower.p.log.size_bytes
    assert world.loop.time - began >= size / RATE - 3.0


def test_the_bytes_of_added_replicas_are_counted(world: ReplicaWorld) -> None:
    """Both brokers count them in addition to the bytes of replication. The bytes of other replicas do not belong to the
    reassignment."""
    assert world[1].manager.metrics.reassignment_bytes_out == 0
    world.change(PartitionChangeRecord(*P, throttle_rate=0))
    Link(world, 3, 1).rounds(2)
    assert world[3].leo == 10
    size = world[3].p.log.size_bytes
    world[1].produce(b"for both", acks=1)
    world.replicate(2, 1)
    assert world[1].manager.metrics.reassignment_bytes_out == world[3].manager.metrics.reassignment_bytes_in == size
    assert world[2].manager.metrics.reassignment_bytes_in == 0


def test_a_follower_in_the_isr_pays_nothing(world: ReplicaWorld) -> None:
    world.set_isr(1, 2, 3)
    assert world[3].p.throttle_rate == 0
    link = Link(world, 3, 1)
    link.rounds(4)
    assert link.follower.leo == 10
