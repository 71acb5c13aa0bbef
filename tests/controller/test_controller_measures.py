"""What a controller counts: elections, fail-overs, commits, and how long nobody led."""

from __future__ import annotations

from controller_world import World

from strandline.controller.measures import ControllerMeasures, QuorumMeasures
from strandline.controller.metadata.records import PartitionChangeRecord


def test_a_failover_counts_from_the_broken_connection_to_the_commit() -> None:
    """0.2 s of asking at the broker's door, 0.1 s until the quorum has it."""
    world = World(brokers=3)
    world.auto_commit = False
    measures = world.controller.measures
    measures.on_connection_lost(1, world.now)
    world.now += 0.2
    world.controller.fence(1, world.epoch(1), "test")
    world.now += 0.1
    assert measures.failover.count == 0
    world.commit()
    assert measures.failover.count == 1
    assert 0.299 < measures.failover.sum < 0.301
    assert measures.fenced_brokers == 1


def test_a_connection_that_broke_and_came_back_does_not_count_for_a_later_failover() -> None:
    world = World(brokers=2)
    measures = world.controller.measures
    measures.on_connection_lost(1, world.now)
    world.now += 60
    measures.on_heard(1)
    world.kill_broker(1)
    assert measures.failover.sum == 0


def test_a_connection_that_broke_while_another_was_active_does_not_count_for_a_later_failover() -> None:
    """A broker turns to the new controller and drops the connection to the old one. When that one is active again, hours
    later, and the broker dies with the other, its silence has only begun."""
    world = World(brokers=2)
    world.controller.on_resign(1)
    world.controller.measures.on_connection_lost(1, world.now)
    world.now += 3600
    world.controller.on_leader(1)
    world.kill_broker(1)
    assert (world.controller.measures.failover.count, world.controller.measures.failover.sum) == (1, 0)


def test_a_session_that_times_out_is_counted_as_such() -> None:
    world = World(brokers=2)
    world.now += 10
    world.controller.fence_expired()
    world.commit()
    measures = world.controller.measures
    assert (measures.expired_sessions, measures.fenced_brokers, measures.failover.count) == (2, 2, 2)


def test_only_a_partition_that_gets_another_leader_is_an_election() -> None:
    world = World(brokers=3)
    world.create("t", [[1, 2], [2, 3]])
    world.create("alone", [[1]])
    measures = world.controller.measures
    world.alter("t", [2], index=1)
    assert measures.elections == 0
    world.kill_broker(1)
    assert (measures.elections, measures.unclean_elections) == (1, 0)
    world.start_broker(1, incarnation=2)
    assert (measures.elections, measures.unclean_elections) == (2, 0)


def test_a_leader_from_outside_the_isr_is_an_unclean_election() -> None:
    """No decision of ours makes one today; if one ever does, this must not be silent."""
    world = World(brokers=3)
    topic_id = world.create("t", [[1, 2, 3]])
    world.alter("t", [1, 2])
    measures = ControllerMeasures()
    image = world.image
    measures.on_delta(image.apply([PartitionChangeRecord(topic_id, 0, isr=(3,), leader=3)], image.offset + 1, 1))
    assert (measures.elections, measures.unclean_elections) == (1, 1)


def test_a_commit_counts_when_the_high_watermark_has_passed_its_last_record() -> None:
    measures = QuorumMeasures()
    measures.on_append(4, 10.0)
    measures.on_append(6, 11.0)
    measures.on_high_watermark(4, 12.0)
    assert measures.commit.count == 0
    measures.on_high_watermark(7, 12.0)
    assert (measures.commit.count, measures.commit.sum) == (2, 3.0)


def test_what_a_leader_did_not_see_committed_does_not_count_for_the_next_one() -> None:
    measures = QuorumMeasures()
    measures.on_append(4, 10.0)
    measures.on_resign()
    measures.on_high_watermark(9, 99.0)
    assert measures.commit.count == 0


def test_the_time_without_a_leader_is_counted_once_it_is_over() -> None:
    measures = QuorumMeasures()
    measures.on_leader_known(False, 0.0)
    measures.on_leader_known(False, 1.0)
    measures.on_leader_known(True, 3.0)
    assert (measures.leader_changes, measures.leaderless.count, measures.leaderless.sum) == (1, 1, 3.0)
    measures.on_leader_known(True, 9.0)
    assert (measures.leader_changes, measures.leaderless.count) == (2, 1)
