"""Cordoned log directories (KIP-1066): a broker whose directories are all cordoned gets no new replicas."""

from __future__ import annotations

import pytest
from controller_world import ControllerWorld

from strandline.controller.metadata.features import LEVEL_0_ONLY
from strandline.controller.metadata.records import BrokerRegistrationChangeRecord, RegisterBrokerRecord, encode_record
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError
from strandline.protocol.messages.admin import (
    AlterPartitionReassignmentsRequest,
    DescribeClusterRequest,
    ReassignablePartition,
    ReassignableTopic,
)

D1, D2, D3 = (bytes([n]) * 16 for n in (1, 2, 3))


def world_of(brokers: int = 4) -> ControllerWorld:
    """Each broker has the directories D1 and D2."""
    world = ControllerWorld()
    for broker_id in range(1, brokers + 1):
        world.start_broker(broker_id, log_dirs=[D1, D2])
    return world


def cordon(world: ControllerWorld, broker_id: int, *directories: bytes) -> None:
    world.heartbeat(broker_id, cordoned_log_dirs=directories)


def reassign(world: ControllerWorld, *target: int) -> tuple[int, str | None]:
    topics = [ReassignableTopic("t", [ReassignablePartition(0, list(target))])]
    answer = world.call(apis.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest(topics))
    found = answer.responses[0].partitions[0]
    return found.error_code, found.error_message


def test_no_replica_is_placed_on_a_broker_without_a_free_directory() -> None:
    world = world_of()
    cordon(world, 4, D1, D2)
    assert world.image.brokers[4].is_cordoned
    for number in range(5):
        world.create(f"new{number}", num_partitions=3, replication_factor=3)
        assert all(4 not in world.partition(f"new{number}", index).replicas for index in range(3))
    with pytest.raises(BrokerError) as caught:
        world.create("many", num_partitions=1, replication_factor=4)
    assert caught.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
    with pytest.raises(BrokerError, match="names broker 4, whose log directories are all cordoned") as caught:
        world.create("named", [[1, 4]])
    assert caught.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_the_cluster_s_description_names_cordoned_brokers() -> None:
    world = world_of()
    cordon(world, 3, D1)
    cordon(world, 4, D1, D2)
    described = world.call(apis.DESCRIBE_CLUSTER, DescribeClusterRequest()).brokers
    assert [broker.broker_id for broker in described if broker.is_cordoned] == [4]


def test_one_free_directory_is_enough() -> None:
    world = world_of()
    cordon(world, 4, D1)
    assert not world.image.brokers[4].is_cordoned
    world.create("t", num_partitions=1, replication_factor=4)


def test_a_directory_that_fails_may_leave_only_cordoned_ones() -> None:
    world = world_of()
    cordon(world, 4, D1)
    world.heartbeat(4, offline_log_dirs=[D2], cordoned_log_dirs=[D1])
    assert world.image.brokers[4].is_cordoned


def test_a_reassignment_to_a_cordoned_broker_is_refused() -> None:
    world = world_of()
    world.create("t", [[1, 2, 3]])
    cordon(world, 4, D1, D2)
    assert reassign(world, 1, 2, 4) == (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "the target [1, 2, 4] names broker 4, whose log directories are all cordoned",
    )
    cordon(world, 3, D1, D2)
    assert reassign(world, 2, 3) == (0, None), "a replica that is there may stay"
    cordon(world, 4)
    assert reassign(world, 2, 4) == (0, None)


def test_an_added_replica_does_not_join_the_isr_of_a_broker_that_was_cordoned_since() -> None:
    world = world_of()
    world.create("t", [[1, 2]])
    assert reassign(world, 1, 3) == (0, None)
    cordon(world, 3, D1, D2)
    assert world.alter("t", [1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA
    cordon(world, 3)
    assert world.alter("t", [1, 2, 3]).error_code == 0


def test_a_replica_that_was_there_before_returns_to_the_isr() -> None:
    """Its partition needs the copy; only new replicas are kept away."""
    world = world_of()
    world.create("t", [[1, 2]])
    assert world.alter("t", [1]).error_code == 0
    cordon(world, 2, D1, D2)
    assert world.alter("t", [1, 2]).error_code == 0


def test_a_heartbeat_changes_the_registration_only_if_it_names_others() -> None:
    world = world_of()
    before = len(world.quorum.log)
    world.heartbeat(1, cordoned_log_dirs=[])
    world.heartbeat(1)
    assert len(world.quorum.log) == before
    cordon(world, 1, D1)
    cordon(world, 1, D1)
    world.heartbeat(1)
    assert len(world.quorum.log) == before + 1
    assert world.image.brokers[1].cordoned_log_dirs == (D1,)
    assert world.replayed().brokers == world.image.brokers


def test_a_registration_names_the_cordoned_directories() -> None:
    world = world_of()
    world.start_broker(5, log_dirs=[D3], cordoned_log_dirs=[D3])
    assert world.image.brokers[5].is_cordoned


def test_level_0_has_no_cordoned_directories() -> None:
    world = ControllerWorld(levels=LEVEL_0_ONLY)
    world.start_broker(1, log_dirs=[D1], cordoned_log_dirs=[D1])
    cordon(world, 1, D1)
    assert world.image.brokers[1].cordoned_log_dirs == ()
    for record in (
        RegisterBrokerRecord(1, 1, bytes(16), cordoned_log_dirs=(D1,)),
        BrokerRegistrationChangeRecord(1, 1, cordoned_log_dirs=(D1,)),
    ):
        with pytest.raises(InternalError, match="cordoned log directories"):
            encode_record(record, 0)
    assert encode_record(BrokerRegistrationChangeRecord(1, 1, fenced=1), 0) != encode_record(
        BrokerRegistrationChangeRecord(1, 1, fenced=1), 1
    ), "level 0 has the five fields that it always had"
