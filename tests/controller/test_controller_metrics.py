"""The metrics of a controller: elections, fail-overs, commits, and the time without a leader."""

from __future__ import annotations

from controller_world import ControllerWorld

from strandline.controller.metadata.records import PartitionChangeRecord
from strandline.controller.metrics import ControllerMetrics, QuorumMetrics


def test_a_failover_counts_from_the_broken_connection_to_the_commit() -> None:
    """The times are 0.2 s for the probe of the broker, and 0.1 s until the quorum has committed."""
    world = ControllerWorld(brokers=3)
    world.auto_commit = False
    metrics = world.controller.metrics
    metrics.on_connection_lost(1, world.now)
    world.now += 0.2
    world.controller.fence(1, world.epoch(1), "test")
    world.now += 0.1
    assert metrics.failover.count == 0
    world.commit()
    assert metrics.failover.count == 1
    assert 0.299 < metrics.failover.sum < 0.301
    assert metrics.fenced_brokers == 1


def test_a_connection_that_came_back_does_not_count() -> None:
    world = ControllerWorld(brokers=2)
    metrics = world.controller.metrics
    metrics.on_connection_lost(1, world.now)
    world.now += 60
    metrics.on_heard(1)
    world.kill_broker(1)
    assert metrics.failover.sum == 0


def test_a_connection_that_broke_under_another_controller_does_not_count() -> None:
    """A broker connects to the new controller and closes its connection to the old one. When the old one is active again, hours
    later, and the broker dies together with the other controller, its silence has only just begun."""
    world = ControllerWorld(brokers=2)
    world.controller.on_resign(1)
    world.controller.metrics.on_connection_lost(1, world.now)
    world.now += 3600
    world.controller.on_leader(1, world.quorum)
    world.kill_broker(1)
    assert (world.controller.metrics.failover.count, world.controller.metrics.failover.sum) == (1, 0)


def test_a_session_that_times_out_is_counted_as_such() -> None:
    world = ControllerWorld(brokers=2)
    world.now += 10
    world.controller.fence_expired()
    world.commit()
    metrics = world.controller.metrics
    assert (metrics.expired_sessions, metrics.fenced_brokers, metrics.failover.count) == (2, 2, 2)


def test_only_a_partition_that_gets_another_leader_is_an_election() -> None:
    world = ControllerWorld(brokers=3)
    world.create("t", [[1, 2], [2, 3]])
    world.create("alone", [[1]])
    metrics = world.controller.metrics
    world.alter("t", [2], index=1)
    assert metrics.elections == 0
    world.kill_broker(1)
    assert (metrics.elections, metrics.unclean_elections) == (1, 0)
    world.start_broker(1, incarnation=2)
    assert (metrics.elections, metrics.unclean_elections) == (2, 0)


def test_a_leader_from_outside_the_isr_is_an_unclean_election() -> None:
    """No decision elects one today; if one ever does, the metric must show it."""
    world = ControllerWorld(brokers=3)
    topic_id = world.create("t", [[1, 2, 3]])
    world.alter("t", [1, 2])
    metrics = ControllerMetrics()
    image = world.image
    metrics.on_delta(image.apply([PartitionChangeRecord(topic_id, 0, isr=(3,), leader=3)], image.offset + 1, 1))
    assert (metrics.elections, metrics.unclean_elections) == (1, 1)


def test_a_commit_counts_when_the_high_watermark_has_passed_its_last_record() -> None:
    metrics = QuorumMetrics()
    metrics.on_append(4, 10.0)
    metrics.on_append(6, 11.0)
    metrics.on_high_watermark(4, 12.0)
    assert metrics.commit.count == 0
    metrics.on_high_watermark(7, 12.0)
    assert (metrics.commit.count, metrics.commit.sum) == (2, 3.0)


def test_uncommitted_appends_of_an_earlier_leadership_are_not_counted() -> None:
    metrics = QuorumMetrics()
    metrics.on_append(4, 10.0)
    metrics.on_resign()
    metrics.on_high_watermark(9, 99.0)
    assert metrics.commit.count == 0


def test_the_time_without_a_leader_is_observed_when_it_ends() -> None:
    metrics = QuorumMetrics()
    metrics.on_leader_known(False, 0.0)
    metrics.on_leader_known(False, 1.0)
    metrics.on_leader_known(True, 3.0)
    assert (metrics.leader_changes, metrics.leaderless.count, metrics.leaderless.sum) == (1, 1, 3.0)
    metrics.on_leader_known(True, 9.0)
    assert (metrics.leader_changes, metrics.leaderless.count) == (2, 1)
