"""Eligible leader replicas (KIP-966) on the brokers: while there are some, the leader commits nothing, and they keep all
records."""

from __future__ import annotations

import pytest
from replica_world import NOW_MS, Node, P, ReplicaWorld, batch, commit

from strandline.broker.partition.partition import FetchPosition, Partition
from strandline.controller.metadata.records import FeatureLevelRecord, PartitionChangeRecord
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.cluster import AlterPartitionPartitionResponse


def leader_of(world: ReplicaWorld) -> Node:
    return world[1]


LEVEL_1 = FeatureLevelRecord(METADATA_VERSION, 1)


def fill(node: Node, count: int) -> None:
    for i in range(count):
        node.produce(f"r{i}", acks=1)


@pytest.fixture
def world() -> ReplicaWorld:
    """The ISR is [1], the ELR [2]. By min.insync.replicas, the leader alone could commit."""
    world = ReplicaWorld()
    world.topic(isr=(1,), min_isr=1)
    fill(leader_of(world), 5)
    for follower in (2, 3):
        world.replicate(follower, 1)
    leader_of(world).alter.pending.clear()
    world.change(LEVEL_1)
    world.change(PartitionChangeRecord(*P, isr=(1,), eligible_leader_replicas=(2,)))
    return world


def test_the_high_watermark_stands_while_there_is_an_elr(world: ReplicaWorld) -> None:
    leader = leader_of(world)
    assert leader.hw == 5
    fill(leader, 5)
    assert (leader.hw, leader.leo) == (5, 10)
    assert leader.produce("x").answer.partitions[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    world.change(PartitionChangeRecord(*P, eligible_leader_replicas=()))
    assert leader.hw == 10


def test_the_answer_to_a_shrink_names_the_elr() -> None:
    """The answer arrives before the metadata with the raised min.insync.replicas, which the controller already applies."""
    world = ReplicaWorld()
    world.topic(replicas=(1, 2), min_isr=1)
    leader = leader_of(world)
    fill(leader, 5)
    world.loop.advance(60)
    leader.manager.maybe_shrink_isrs()
    shrink = leader.alter.take()
    assert shrink.lost == ()
    response = AlterPartitionPartitionResponse(*P, 0, 1, shrink.leader_epoch, [1], 0, shrink.partition_epoch + 1, [2])
    shrink.on_result(response, False)
    assert (leader.isr, leader.hw) == ([1], 0)


def test_a_member_that_lost_committed_records_is_named_as_lost() -> None:
    world = ReplicaWorld()
    world.topic(replicas=(1, 2), min_isr=1)
    leader = leader_of(world)
    fill(leader, 5)
    leader.said_by(2, 5)
    assert leader.hw == 5
    leader.said_by(2, 3)
    proposal = leader.alter.take()
    assert ([member for member, _ in proposal.isr], proposal.lost) == ([1], (2,))


def test_an_eligible_replica_that_lost_committed_records_is_named_as_lost(world: ReplicaWorld) -> None:
    leader = leader_of(world)
    leader.said_by(2, 3)
    proposal = leader.alter.take()
    assert ([member for member, _ in proposal.isr], proposal.lost) == ([1], (2,))
    commit(proposal)
    assert leader.isr == [1]


def test_a_replica_that_is_not_eligible_may_be_behind(world: ReplicaWorld) -> None:
    leader_of(world).said_by(3, 3)
    assert not leader_of(world).alter.pending


def follower(isr: tuple[int, ...], elr: tuple[int, ...]) -> Partition:
    """Broker 2 with ten records of epoch 1; the leader epoch is 5."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), isr=isr, epoch=5)
    if elr:
        world.change(LEVEL_1)
        world.change(PartitionChangeRecord(*P, eligible_leader_replicas=elr))
    for _ in range(10):
        world[2].p.log.append_as_leader(memoryview(batch("x")), 1, NOW_MS)
    return world[2].p


@pytest.mark.parametrize(("isr", "elr", "may_drop"), [((1,), (), True), ((1,), (2,), False), ((1, 2), (), False)])
def test_only_a_replica_that_may_not_lead_drops_records(isr: tuple[int, ...], elr: tuple[int, ...], may_drop: bool) -> None:
    partition = follower(isr, elr)
    partition.log.mark_corrupt(5)
    position = FetchPosition(partition.leader_epoch, 5, 1, 0)
    if may_drop:
        assert partition.needs_fresh_copy(position, 9)
    else:
        with pytest.raises(BrokerError, match="keeps its records"):
            partition.needs_fresh_copy(position, 9)


@pytest.mark.parametrize(("elr", "is_unknown"), [((), True), ((2,), False)])
def test_an_eligible_replica_keeps_what_the_leader_has_deleted(elr: tuple[int, ...], is_unknown: bool) -> None:
    """The leader has only later records, and the records of an eligible replica belong to the leader's history."""
    partition = follower((1,), elr)
    assert partition.has_unknown_history(partition.fetch_position(), 10) is is_unknown
