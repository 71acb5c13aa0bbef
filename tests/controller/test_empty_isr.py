"""An empty ISR (KIP-966) in the controller's cores: elections, the index, and the requests of leaders and administrators."""

from __future__ import annotations

import pytest
from controller_world import ControllerWorld

from strandline.controller.decision import Decision
from strandline.controller.metadata.image import PartitionRegistration
from strandline.controller.metadata.records import NO_LEADER, PartitionChangeRecord
from strandline.controller.partition_change import ChangeRules, change_partition, elect
from strandline.controller.partition_index import PartitionIndex
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import PREFERRED_ELECTION, ElectLeadersRequest

EMPTY = PartitionRegistration((1, 2, 3), (), NO_LEADER, 1, 1, elr=(2,), last_known_elr=(1,))


@pytest.fixture
def world() -> ControllerWorld:
    """A cluster whose partition t-0 has lost its ISR; t-1 is healthy."""
    world = ControllerWorld(brokers=3)
    topic_id = world.create("t", [[1, 2, 3], [2, 3, 1]])
    change = PartitionChangeRecord(topic_id, 0, isr=(), leader=NO_LEADER, eligible_leader_replicas=(2,), last_known_elr=(1,))
    world.controller.submit(lambda _: Decision(None, [change]), lambda reply: None)
    world.commit()
    assert world.partition("t") == EMPTY
    return world


def test_only_an_empty_isr_without_a_leader_is_a_state() -> None:
    assert EMPTY.contradiction() is None
    assert PartitionRegistration((1, 2), (), 1).contradiction() is not None


@pytest.mark.parametrize("preferred", [False, True])
def test_no_leader_is_elected_without_isr_and_elr(preferred: bool) -> None:
    assert elect(EMPTY, (), lambda broker_id: True, preferred=preferred) == NO_LEADER
    rules = ChangeRules(lambda broker_id: broker_id != 2, lambda topic_id: 2)
    assert change_partition((b"t" * 16, 0), EMPTY, (), rules, preferred=preferred) is None


def test_only_the_eligible_replica_is_elected_when_it_returns(world: ControllerWorld) -> None:
    for broker_id in (1, 2, 3):
        world.kill_broker(broker_id)
    for broker_id in (1, 3):
        world.start_broker(broker_id, incarnation=2)
    world.controller.on_resign(1)
    world.become_active(2)
    assert world.partition("t") == EMPTY
    world.start_broker(2, incarnation=2)
    assert (world.partition("t").leader, world.partition("t").isr, world.partition("t").elr) == (2, (2,), ())


def test_the_index_finds_the_partition_by_its_missing_leader_alone(world: ControllerWorld) -> None:
    topic = world.image.topic("t")
    active = world.controller.active
    assert topic is not None
    assert active is not None
    for index in (active.index, PartitionIndex(world.image)):
        assert index.without_leader() == [(topic.topic_id, 0)]
        assert all(index.with_broker_in_isr(broker_id) == [(topic.topic_id, 1)] for broker_id in (1, 2, 3))


def test_requests_about_the_partition_are_answered(world: ControllerWorld) -> None:
    """A proposal of a broker that led before is refused. An election of the preferred replica elects a replica that may lead."""
    assert world.alter("t", [1], broker_id=1, leader_epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert world.alter("t", [1], broker_id=1).error_code == ErrorCode.INVALID_REQUEST
    reply = world.call(apis.ELECT_LEADERS, ElectLeadersRequest(PREFERRED_ELECTION, None))
    assert ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE in {result.error_code for result in reply.results}
    assert (world.partition("t").leader, world.partition("t").isr) == (2, (2,))


def test_a_replay_and_a_snapshot_give_the_same_image(world: ControllerWorld) -> None:
    assert world.replayed() == world.image
    image = world.image
    assert type(image).from_records(image.to_records(), image.offset, image.epoch) == image
