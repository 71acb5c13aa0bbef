"""Eligible leader replicas (KIP-966) in the controller's decisions: fencing, lost records, elections, `min.insync.replicas`."""

from __future__ import annotations

from typing import Any

import pytest
from controller_world import ControllerWorld

from strandline.controller.metadata.features import LEVEL_0_ONLY
from strandline.controller.metadata.records import NO_LEADER, PartitionChangeRecord, RegisterBrokerRecord, decode_record
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import (
    CONFIG_DELETE,
    CONFIG_SET,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    TopicConfig,
)
from strandline.protocol.messages.cluster import (
    LOSS_MAYBE,
    LOSS_NO,
    LOSS_UNKNOWN,
    LOSS_YES,
    AlterPartitionRequest,
    LossyPartitions,
)


@pytest.fixture
def world() -> ControllerWorld:
    """Three brokers, and the partitions t-0 and t-1 with min.insync.replicas=2."""
    world = ControllerWorld(brokers=3)
    world.create("t", [[1, 2, 3], [3, 2, 1]], configs=[TopicConfig("min.insync.replicas", "2")])
    return world


def state(world: ControllerWorld, index: int = 0) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    partition = world.partition("t", index)
    return partition.leader, partition.isr, partition.elr


def configure(world: ControllerWorld, value: str | None, resource_type: int = RESOURCE_TOPIC, name: str = "t") -> ErrorCode:
    config = AlterableConfig("min.insync.replicas", CONFIG_DELETE if value is None else CONFIG_SET, value)
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(resource_type, name, [config])])
    (response,) = world.call(apis.INCREMENTAL_ALTER_CONFIGS, request).responses
    return ErrorCode(response.error_code)


# -- failing and returning ----------------------------------------------------------------------------------------------


def test_last_replica_standing(world: ControllerWorld) -> None:
    """Kafka's story of KIP-966: the last one loses its records, and the others must lead."""
    world.kill_broker(3)
    assert state(world) == (1, (1, 2), ())
    world.kill_broker(2)
    assert state(world) == (1, (1,), (2,))
    world.kill_broker(1)
    assert state(world) == (NO_LEADER, (), (1, 2))
    world.register(1, 2, record_loss=LOSS_MAYBE)
    assert state(world) == (NO_LEADER, (), (2,))
    world.heartbeat(1)
    world.start_broker(3, 2, record_loss=LOSS_NO)
    assert state(world) == (NO_LEADER, (), (2,)), "3 left the ISR when records could still be committed without it"
    world.start_broker(2, 2, record_loss=LOSS_NO)
    assert state(world) == (2, (2,), ())
    assert world.controller.metrics.elections_from_elr == 2, "of both partitions"
    assert world.controller.metrics.unclean_elections == 0


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_any_of_all_killed_replicas_may_lead(world: ControllerWorld, order: tuple[int, ...]) -> None:
    """`kill -9` of all: nothing is lost, so the first that returns is elected if it was in the ISR or the ELR."""
    for broker_id in (1, 2, 3):
        world.kill_broker(broker_id)
    assert state(world) == (NO_LEADER, (), (2, 3))
    assert world.partition("t").last_known_elr == (3,)
    for broker_id in order:
        world.start_broker(broker_id, 2, record_loss=LOSS_NO)
    first = order[1] if order[0] == 1 else order[0]
    assert (world.partition("t").leader, world.partition("t").isr) == (first, (first,))
    assert world.partition("t").last_known_elr == ()


def test_power_loss_of_all_leaves_none_eligible(world: ControllerWorld) -> None:
    """Only an operator can decide on an election: the partition remembers its last leader."""
    for broker_id in (1, 2, 3):
        world.kill_broker(broker_id)
    for broker_id in (1, 2, 3):
        world.start_broker(broker_id, 2, record_loss=LOSS_MAYBE)
    assert state(world) == (NO_LEADER, (), ())
    assert world.partition("t").last_known_elr == (3,)


def test_member_of_the_elr_returns_and_rejoins(world: ControllerWorld) -> None:
    world.kill_broker(3)
    world.kill_broker(2)
    world.start_broker(2, 2, record_loss=LOSS_NO)
    assert state(world) == (1, (1,), (2,))
    assert world.alter("t", [1, 2]).eligible_leader_replicas == []
    assert state(world) == (1, (1, 2), ())


def test_shrink_below_the_min_isr_is_answered_with_the_elr(world: ControllerWorld) -> None:
    """The leader must not commit a record before it knows of the ELR."""
    answer = world.alter("t", [1])
    assert (answer.isr, answer.eligible_leader_replicas) == ([1], [2, 3])


def test_controlled_shutdown_of_the_last_member(world: ControllerWorld) -> None:
    world.alter("t", [1])
    world.heartbeat(1, want_shut_down=True)
    assert state(world) == (2, (2,), (1, 3))


# -- lost records -----------------------------------------------------------------------------------------------------


def records_of_last_batch(world: ControllerWorld) -> list[Any]:
    base, last = world.quorum.batches[-1]
    return [decode_record(record) for _, record in world.quorum.log[base : last + 1]]


def test_strike_comes_before_the_registration_in_one_batch(world: ControllerWorld) -> None:
    """KAFKA-18106: 1 returns before it was fenced, and still leads. Its epoch must not be that of another leader's log."""
    world.now += 100  # its session has ended, and the controller has not noticed yet
    epochs = [world.partition("t").leader_epoch, world.partition("t").partition_epoch]
    world.register(1, 2, record_loss=LOSS_YES)
    records = records_of_last_batch(world)
    assert [type(record) for record in records] == [PartitionChangeRecord, PartitionChangeRecord, RegisterBrokerRecord]
    assert world.epoch(1) == world.quorum.batches[-1][1]
    partition = world.partition("t")
    assert [partition.leader_epoch, partition.partition_epoch] == [epochs[0] + 1, epochs[1] + 1]
    assert (partition.leader, partition.isr) == (2, (2, 3))


def test_retry_of_a_registration_strikes_nothing(world: ControllerWorld) -> None:
    world.kill_broker(2)
    epoch = world.register(2, 2, record_loss=LOSS_MAYBE)
    batches = len(world.quorum.batches)
    assert world.register(2, 2, record_loss=LOSS_MAYBE) == epoch
    assert len(world.quorum.batches) == batches


def test_only_the_named_partitions_are_struck(world: ControllerWorld) -> None:
    for broker_id in (1, 3, 2):
        world.kill_broker(broker_id)
    assert (state(world)[2], state(world, 1)[2]) == ((2, 3), (3, 2))
    topic = world.image.topic("t")
    assert topic is not None
    world.register(3, 2, record_loss=LOSS_YES, lossy_partitions=[LossyPartitions(topic.topic_id, [1])])
    assert (state(world)[2], state(world, 1)[2]) == ((2, 3), (2,))


def test_replaced_disk_is_a_loss_whatever_the_broker_says() -> None:
    """An earlier start has formatted the disk and died before it registered. The next start finds nothing wrong with it."""
    world = ControllerWorld()
    for broker_id in (1, 2):
        world.start_broker(broker_id, log_dirs=[bytes([broker_id]) * 16])
    world.create("t", [[1, 2]])
    for broker_id in (1, 2):
        world.kill_broker(broker_id)
    world.start_broker(2, 2, record_loss=LOSS_NO, log_dirs=[b"n" * 16])
    assert (world.partition("t").leader, world.partition("t").elr) == (NO_LEADER, ())


def test_only_replica_leads_again_after_a_loss() -> None:
    """No other broker has the records. The broker itself reports that it may lack some."""
    world = ControllerWorld(brokers=1)
    world.create("t", [[1]])
    world.kill_broker(1)
    assert (world.partition("t").isr, world.partition("t").elr) == ((), (1,))
    world.start_broker(1, 2, record_loss=LOSS_MAYBE)
    assert (world.partition("t").leader, world.partition("t").isr) == (1, (1,))


@pytest.mark.parametrize("loss", [LOSS_NO, LOSS_UNKNOWN])
def test_killed_process_is_not_struck(world: ControllerWorld, loss: int) -> None:
    world.kill_broker(3)
    world.kill_broker(2)
    world.register(2, 2, record_loss=loss)
    assert state(world)[2] == (2,)


def test_leader_names_a_replica_that_has_lost_records(world: ControllerWorld) -> None:
    """A replica whose disk lost committed records while it was running enters no ELR, and leaves the one that it is in."""
    for isr, lost, elr in ([1], [2], (3,)), ([1], [3], ()):
        request: AlterPartitionRequest = world.alter_request("t", isr)
        request.partitions[0].lost_replicas = lost
        assert world.call(apis.ALTER_PARTITION, request).partitions[0].error_code == 0
        assert state(world) == (1, (1,), elr)
    request.partitions[0].partition_epoch = world.partition("t").partition_epoch
    request.partitions[0].lost_replicas = [1]
    assert world.call(apis.ALTER_PARTITION, request).partitions[0].error_code == ErrorCode.INVALID_REQUEST


def test_broker_reports_a_loss_before_it_is_unfenced(world: ControllerWorld) -> None:
    """The log of t-0 is gone, which the broker sees when it has the metadata."""
    for broker_id in (1, 3, 2):
        world.kill_broker(broker_id)
    world.register(3, 2, record_loss=LOSS_NO)
    topic = world.image.topic("t")
    assert topic is not None
    request = world.heartbeat_request(3)
    request.lossy_partitions = [LossyPartitions(topic.topic_id, [0])]
    assert world.call(apis.BROKER_HEARTBEAT, request).is_fenced
    assert (state(world)[2], state(world, 1)[2]) == ((2,), (3, 2))
    assert not world.heartbeat(3).is_fenced
    assert (state(world), state(world, 1)) == ((NO_LEADER, (), (2,)), (3, (3,), (2,)))


def test_leader_with_a_damaged_log_steps_down_and_is_not_eligible(world: ControllerWorld) -> None:
    world.kill_broker(3)
    topic = world.image.topic("t")
    assert topic is not None
    request = world.heartbeat_request(1, want_fence=True)
    request.lossy_partitions = [LossyPartitions(topic.topic_id, [0])]
    assert world.call(apis.BROKER_HEARTBEAT, request).is_fenced
    assert state(world) == (2, (2,), ())
    assert state(world, 1) == (2, (2,), (1,)), "its other log is whole"


def test_running_broker_reports_a_loss(world: ControllerWorld) -> None:
    topic = world.image.topic("t")
    assert topic is not None
    request = world.heartbeat_request(2)
    request.lossy_partitions = [LossyPartitions(topic.topic_id, [0])]
    assert not world.call(apis.BROKER_HEARTBEAT, request).is_fenced
    assert (state(world), state(world, 1)) == ((1, (1, 3), ()), (3, (3, 2, 1), ()))


# -- min.insync.replicas ----------------------------------------------------------------------------------------------


def test_min_isr_is_raised_lowered_and_raised_while_there_is_an_elr(world: ControllerWorld) -> None:
    """The ELR stays as long as no record can be committed without it. It never returns by itself: in between, records may have
    been committed."""
    world.alter("t", [1])
    assert state(world) == (1, (1,), (2, 3))
    for value, elr in ("3", (2, 3)), ("2", (2, 3)), ("3", (2, 3)), ("1", ()), ("2", ()), ("3", ()):
        assert configure(world, value) == ErrorCode.NONE
        assert state(world) == (1, (1,), elr)
    configure(world, "2")
    world.kill_broker(1)
    assert state(world) == (NO_LEADER, (), (1,))


def test_removed_setting_lowers_the_min_isr(world: ControllerWorld) -> None:
    world.alter("t", [1])
    assert configure(world, None) == ErrorCode.NONE
    assert state(world) == (1, (1,), ())


def test_elr_of_a_partition_without_isr_survives_a_lowered_min_isr(world: ControllerWorld) -> None:
    for broker_id in (1, 2, 3):
        world.kill_broker(broker_id)
    configure(world, "1")
    assert state(world) == (NO_LEADER, (), (2, 3))
    world.start_broker(2, 2)
    assert state(world) == (2, (2,), ()), "records are committed from now on that 3 does not have"


def test_min_isr_of_all_brokers(world: ControllerWorld) -> None:
    world.create("u", [[1, 2, 3]])
    assert configure(world, "2", RESOURCE_BROKER, "") == ErrorCode.NONE
    world.alter("u", [1])
    assert world.partition("u").elr == (2, 3)
    assert configure(world, "1", RESOURCE_BROKER, "") == ErrorCode.NONE
    assert world.partition("u").elr == ()
    assert state(world) == (1, (1, 2, 3), ())


def test_min_isr_of_one_broker_is_refused(world: ControllerWorld) -> None:
    assert configure(world, "2", RESOURCE_BROKER, "1") == ErrorCode.INVALID_CONFIG


def test_min_isr_of_the_brokers_files() -> None:
    """If the files differ, the largest value counts. When that becomes smaller, the ELRs that depended on it are emptied."""
    world = ControllerWorld()
    for broker_id in (1, 2, 3):
        world.start_broker(broker_id, min_insync_replicas=2 if broker_id == 3 else 1)
    world.create("t", [[1, 2, 3]])
    world.alter("t", [1])
    assert state(world) == (1, (1,), (2, 3))
    world.kill_broker(3)
    world.start_broker(3, 2, min_insync_replicas=1)
    assert state(world) == (1, (1,), ())


def test_level_0_knows_no_elr() -> None:
    old = ControllerWorld(brokers=3, levels=LEVEL_0_ONLY)
    old.create("t", [[1, 2, 3]], configs=[TopicConfig("min.insync.replicas", "2")])
    for broker_id in (3, 2, 1):
        old.kill_broker(broker_id)
    assert state(old) == (NO_LEADER, (1,), ())
    old.start_broker(1, 2, record_loss=LOSS_YES, min_insync_replicas=2)
    assert state(old) == (1, (1,), ())
    assert old.image.brokers[1].min_insync_replicas == 0
    assert old.replayed() == old.image


def test_registration_is_kept_in_a_snapshot(world: ControllerWorld) -> None:
    world.start_broker(4, min_insync_replicas=3)
    assert world.image.brokers[4].min_insync_replicas == 3
    assert world.image.min_insync_replicas("u") == 3
    assert world.replayed() == world.image
