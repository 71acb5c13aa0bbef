"""The counters of a broker for its partitions and topics. How they are exported is tested in `tests/observe`."""

from __future__ import annotations

from replica_world import TOPIC, P, ReplicaWorld, batch, remove_topic, want

from strandline.broker.metrics import COUNTERS, BrokerMetrics
from strandline.broker.replication.fetcher import FetcherCore, FetcherSettings
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.data import FetchPartitionResponse, FetchResponse
from strandline.storage.files import DiskError


def test_a_committed_isr_change_counts_once_however_it_came_about() -> None:
    """The controller fences a follower: the ISR shrinks without a proposal of the leader."""
    world = ReplicaWorld()
    world.topic()
    metrics = world[1].manager.metrics
    assert (metrics.isr_shrinks, metrics.isr_expands) == (0, 0)
    world.set_isr(1, 2)
    assert (metrics.isr_shrinks, metrics.isr_expands) == (1, 0)
    world.set_isr(1, 2, 3)
    assert (metrics.isr_shrinks, metrics.isr_expands) == (1, 1)
    assert [world[node].manager.metrics.isr_shrinks for node in (2, 3)] == [0, 0]


def test_a_new_leader_counts_the_member_that_its_predecessor_was() -> None:
    world = ReplicaWorld()
    world.topic()
    world.elect(2, isr=(2, 3))
    assert [world[node].manager.metrics.isr_shrinks for node in (1, 2, 3)] == [0, 1, 0]
    assert [world[node].manager.metrics.became_leader for node in (1, 2, 3)] == [1, 1, 0]
    assert [world[node].manager.metrics.became_follower for node in (1, 2, 3)] == [1, 1, 2]
    assert world[2].manager.metrics.leader_takeover.count == 1


def test_replicated_bytes_count_on_both_sides_and_duplicates_on_none() -> None:
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2))
    records = batch("a", "b", producer_id=7, sequence=0)
    for _ in range(2):
        world[1].produce(bytearray(records), acks=1)
        world.replicate(2, 1)
    leader, follower = world[1].p.metrics, world[2].p.metrics
    assert (leader.bytes_in, leader.messages_in, leader.produces) == (len(records), 2, 2)
    assert leader.replication_bytes_out == follower.replication_bytes_in == len(records)
    assert (leader.bytes_out, follower.bytes_in) == (0, 0)


def test_bytes_read_by_consumers_are_not_replication() -> None:
    world = ReplicaWorld(1)
    world.topic(replicas=(1,))
    world[1].produce("a")
    world[1].fetch(want(0))
    metrics = world[1].p.metrics
    assert metrics.bytes_out == metrics.bytes_in > 0
    assert (metrics.replication_bytes_out, metrics.fetches) == (0, 1)


def test_refused_expired_and_shrunk_produces_count_as_failed() -> None:
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), min_isr=2)
    metrics = world[1].manager.metrics
    waits = world[1].produce("expires", timeout_ms=1000)
    world.loop.advance(1.5)
    assert waits.answer.partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert (world[1].p.metrics.failed_produces, metrics.expired_produces) == (1, 1)
    world[1].produce("waits", timeout_ms=10_000)
    world.set_isr(1)
    assert world[1].p.metrics.failed_produces == 2
    world[1].produce("is refused")
    assert (world[1].p.metrics.failed_produces, world[1].p.metrics.produces) == (3, 3)
    world[1].produce("nowhere", key=(bytes(16), 0))
    assert (metrics.departed.failed_produces, metrics.total().failed_produces) == (1, 4)


def test_a_removed_topic_stays_in_the_sum() -> None:
    world = ReplicaWorld(1)
    world.topic(replicas=(1,), partitions=2)
    world[1].produce("a")
    size = world[1].p.metrics.bytes_in
    world.change(remove_topic())
    metrics = world[1].manager.metrics
    assert metrics.topics == {}
    assert metrics.total().bytes_in == size
    world.topic(replicas=(1,), topic_id=b"topic-id-number2")
    assert metrics.topics["orders"].bytes_in == 0


def test_a_failed_disk_keeps_the_counters_and_counts_offline_replicas() -> None:
    world = ReplicaWorld(1)
    world.topic(replicas=(1,), partitions=3)
    world[1].produce("a")
    size = world[1].p.metrics.bytes_in
    world[1].manager.on_disk_error(DiskError("append", "/data", 5))
    assert world[1].manager.offline_replicas == 3
    assert world[1].manager.metrics.total().bytes_in == size


def test_every_counter_is_in_the_sum() -> None:
    metrics = BrokerMetrics()
    for topic in ("a", "b"):
        counted = metrics.on_partition_added(topic)
        for number, name in enumerate(COUNTERS):
            setattr(counted, name, number + 1)
    metrics.on_partition_removed("a")
    total = metrics.total()
    assert [getattr(total, name) for name in COUNTERS] == [2 * (number + 1) for number in range(len(COUNTERS))]
    assert list(metrics.topics) == ["b"]


def test_a_topic_is_counted_as_long_as_one_of_its_partitions_is_here() -> None:
    metrics = BrokerMetrics()
    first = metrics.on_partition_added("a")
    assert metrics.on_partition_added("a") is first
    metrics.on_partition_removed("a")
    assert metrics.topics == {"a": first}


def test_the_lag_of_a_replica_is_that_behind_its_leaders_high_watermark() -> None:
    """As in Kafka, uncommitted records of the leader do not count as lag."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2))
    core = FetcherCore(broker_id=2, broker_epoch=lambda: 1, settings=FetcherSettings(), on_disk_error=lambda error: None)
    core.add(world[2].p)
    plan = core.plan(0.0)
    assert plan is not None
    answer = FetchPartitionResponse(TOPIC, P[1], 0, 7, 7, 0)
    core.on_response(plan, FetchResponse(0, 0, 9, [answer], [memoryview(b"")]), 0.0)
    assert list(core.lags()) == [(world[2].p, 7)]
