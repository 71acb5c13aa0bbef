"""Reassignments (KIP-455): the rules of one partition, and the requests of administrators and leaders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from controller_world import ControllerWorld
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from strandline.controller.metadata.features import LEVEL_0_ONLY
from strandline.controller.metadata.image import PartitionRegistration
from strandline.controller.metadata.records import NO_LEADER, PartitionChangeRecord, PartitionRecord, encode_record
from strandline.controller.reassignment import Assignment, assignment_of, begin, cancel, may_complete
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError
from strandline.protocol.messages.admin import (
    CONFIG_DELETE,
    CONFIG_SET,
    PREFERRED_ELECTION,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    AlterableConfig,
    AlterConfigsResource,
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeClusterRequest,
    ElectLeadersPartition,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopic,
    ReassignablePartition,
    ReassignableTopic,
    UnregisterBrokerRequest,
)
from strandline.protocol.messages.cluster import LOSS_YES


def partition(replicas: Sequence[int], isr: Sequence[int] | None = None, **fields: Any) -> PartitionRegistration:
    return PartitionRegistration(tuple(replicas), tuple(replicas if isr is None else isr), (isr or replicas)[0], **fields)


def given_to(before: PartitionRegistration, assignment: Assignment) -> PartitionRegistration:
    a = assignment
    return msgspec.structs.replace(
        before,
        replicas=a.replicas,
        adding_replicas=a.adding,
        removing_replicas=a.removing,
        original_replicas=a.original,
        throttle_rate=a.throttle_rate,
    )


# -- the rules --------------------------------------------------------------------------------------------------------


def test_a_move_has_the_target_first_and_then_the_replicas_that_leave() -> None:
    assert begin(partition([1, 2, 3]), (4, 1, 5), 7) == Assignment((4, 1, 5, 2, 3), (4, 5), (2, 3), (1, 2, 3), 7)


def test_another_order_is_no_reassignment() -> None:
    assert begin(partition([1, 2, 3]), (3, 1, 2)) == Assignment((3, 1, 2))


def test_a_second_target_removes_what_only_the_first_added() -> None:
    """The first target adds 4 and 5. They are not dropped at once: one of them may be in the ISR, and even lead."""
    running = given_to(partition([1, 2]), begin(partition([1, 2]), (4, 5)))
    assert begin(running, (5, 6)) == Assignment((5, 6, 4, 1, 2), (5, 6), (4, 1, 2), (1, 2))


def test_a_cancellation_returns_to_the_original_order_after_any_number_of_targets() -> None:
    running = given_to(partition([2, 1, 3]), begin(partition([2, 1, 3]), (4, 1, 5)))
    running = given_to(running, begin(running, (6, 3)))
    assert cancel(running) == Assignment((2, 1, 3))


def test_a_cancellation_that_would_leave_no_replica_in_sync_is_refused() -> None:
    running = given_to(partition([1, 2]), begin(partition([1, 2]), (3, 4)))
    assert cancel(msgspec.structs.replace(running, isr=(3,))) is None
    assert cancel(msgspec.structs.replace(running, isr=(3, 2))) == Assignment((1, 2))


@pytest.mark.parametrize(
    ("isr", "min_isr", "completes"),
    [
        ((1, 2, 3), 2, False),  # nothing is copied yet
        ((1, 2, 3, 4), 2, False),  # 5 is missing
        ((1, 2, 3, 4, 5), 2, True),
        ((4, 5), 2, True),
        ((1, 4, 5), 3, False),  # KAFKA-15665: without 1 only two are in sync
        ((1, 3, 4, 5), 3, True),
        ((4, 5), 9, False),
        ((3, 4, 5), 9, True),  # min.insync.replicas above the number of replicas counts as their number
    ],
)
def test_completion_needs_all_added_and_min_isr_of_those_that_stay(isr: tuple[int, ...], min_isr: int, completes: bool) -> None:
    assignment = begin(partition([1, 2, 3]), (3, 4, 5))
    assert may_complete(assignment, isr, min_isr) is completes


def test_a_removal_does_not_complete_if_only_removed_replicas_are_in_sync() -> None:
    """KAFKA-19975: the target adds no replica, and the one that stays is out of sync."""
    assert not may_complete(begin(partition([1, 2]), (2,)), (1,), 1)
    assert may_complete(begin(partition([1, 2]), (2,)), (1, 2), 1)


_brokers = st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True).map(tuple)


@given(_brokers, st.lists(_brokers, min_size=1, max_size=4), st.sets(st.integers(0, 7)), st.integers(1, 4))
def test_any_series_of_targets_ends_with_the_last_one_or_the_original(
    original: tuple[int, ...], targets: list[tuple[int, ...]], in_sync: set[int], min_isr: int
) -> None:
    """The image accepts every state on the way, every replica of the ISR stays until the completion, and the completion gives
    exactly the target."""
    state = partition(original)
    for target in targets:
        assignment = begin(state, target)
        if not assignment.original:
            assert set(target) == set(state.replicas)
            original = target
        assert set(state.replicas) | set(target) == set(assignment.replicas)
        assert assignment.without_removed().replicas == target
        state = given_to(state, assignment)
        assert state.contradiction() is None
    isr = tuple(replica for replica in state.replicas if replica in in_sync)
    if state.is_reassigning:
        assert state.original_replicas == original
        if may_complete(assignment_of(state), isr, min_isr):
            assert set(targets[-1]) - set(original) <= set(isr)
            assert len(set(targets[-1]) & set(isr)) >= min(min_isr, len(targets[-1]))
        cancelled = cancel(msgspec.structs.replace(state, isr=isr))
        assert (cancelled == Assignment(original)) if set(isr) & set(original) else cancelled is None


@pytest.mark.parametrize(
    "fields",
    [
        {"adding_replicas": (1,)},
        {"removing_replicas": (1,)},
        {"original_replicas": (1, 2)},
        {"original_replicas": (1, 2), "adding_replicas": (4,)},
        {"original_replicas": (1, 2), "adding_replicas": (2,)},
        {"original_replicas": (1,), "adding_replicas": (3,), "removing_replicas": (3,)},
        {"original_replicas": (1, 4), "removing_replicas": (2,)},
    ],
    ids=repr,
)
def test_the_image_refuses_a_reassignment_that_contradicts_the_replicas(fields: dict[str, Any]) -> None:
    contradiction = partition([1, 2, 3], **fields).contradiction()
    assert contradiction is not None
    assert "reassignment" in contradiction


# -- requests ---------------------------------------------------------------------------------------------------------


class World(ControllerWorld):
    """Five brokers, and the topic t with min.insync.replicas=2 on brokers 1, 2 and 3."""

    def __init__(self, **options: Any) -> None:
        super().__init__(brokers=5, **options)
        self.create("t", [[1, 2, 3], [2, 3, 1]])
        self.set_min_isr(2)

    def set_min_isr(self, value: int) -> None:
        change = AlterableConfig("min.insync.replicas", CONFIG_SET, str(value))
        self.call(
            apis.INCREMENTAL_ALTER_CONFIGS,
            IncrementalAlterConfigsRequest([AlterConfigsResource(RESOURCE_TOPIC, "t", [change])]),
        )

    def reassign(self, target: list[int] | None, index: int = 0, topic: str = "t", **options: Any) -> tuple[int, str | None]:
        request = AlterPartitionReassignmentsRequest(
            [ReassignableTopic(topic, [ReassignablePartition(index, target)])], **options
        )
        ((result,),) = [t.partitions for t in self.call(apis.ALTER_PARTITION_REASSIGNMENTS, request).responses]
        assert bool(result.error_code) == (result.error_message is not None)
        return result.error_code, result.error_message

    def listed(self, topics: Any = None) -> list[tuple[str, int, list[int], list[int], list[int]]]:
        response = self.call(apis.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest(topics))
        return [
            (t.name, p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
            for t in response.topics
            for p in t.partitions
        ]


def test_a_move_completes_when_the_added_replica_joins_and_moves_the_leader() -> None:
    """The leader is removed: its own AlterPartition completes the move, and is answered with NEW_LEADER_ELECTED."""
    world = World()
    before = world.partition("t")
    assert world.reassign([4, 2, 3]) == (0, None)
    running = world.partition("t")
    assert (running.replicas, running.isr, running.leader) == ((4, 2, 3, 1), (1, 2, 3), 1)
    assert (running.leader_epoch, running.partition_epoch) == (before.leader_epoch, before.partition_epoch + 1)
    assert world.listed() == [("t", 0, [4, 2, 3, 1], [4], [1])]

    answer = world.alter("t", [1, 2, 3, 4])
    assert answer.error_code == ErrorCode.NEW_LEADER_ELECTED
    done = world.partition("t")
    assert (done.replicas, done.isr, done.leader) == ((4, 2, 3), (2, 3, 4), 4)
    assert (done.adding_replicas, done.removing_replicas, done.original_replicas) == ((), (), ())
    assert done.leader_epoch == running.leader_epoch + 1
    assert world.listed() == []
    assert world.replayed() == world.image


def test_a_removal_raises_the_leader_epoch_of_a_leader_that_stays() -> None:
    world = World()
    before = world.partition("t")
    assert world.reassign([1, 2]) == (0, None)
    done = world.partition("t")
    assert (done.replicas, done.isr, done.leader, done.is_reassigning) == ((1, 2), (1, 2), 1, False)
    assert done.leader_epoch == before.leader_epoch + 1


def test_an_added_replica_does_not_raise_the_leader_epoch() -> None:
    world = World()
    before = world.partition("t")
    assert world.reassign([1, 2, 3, 4]) == (0, None)
    answer = world.alter("t", [1, 2, 3, 4])
    done = world.partition("t")
    assert (answer.error_code, answer.leader_epoch, answer.isr) == (0, before.leader_epoch, [1, 2, 3, 4])
    assert (done.replicas, done.leader_epoch, done.is_reassigning) == ((1, 2, 3, 4), before.leader_epoch, False)


def test_another_order_changes_neither_leader_nor_epoch() -> None:
    world = World()
    before = world.partition("t")
    assert world.reassign([3, 1, 2]) == (0, None)
    after = world.partition("t")
    assert (after.replicas, after.leader, after.leader_epoch) == ((3, 1, 2), 1, before.leader_epoch)
    assert world.reassign([3, 1, 2]) == (0, None)
    assert world.partition("t") == after, "the same target again changes nothing"


def test_completion_waits_for_min_isr_of_the_new_set_and_for_a_lower_one() -> None:
    """KAFKA-15665: 2 and 3 are out of sync, so the records acknowledged next would have one copy in the new set."""
    world = World()
    world.reassign([4, 2, 3])
    world.alter("t", [1])
    world.alter("t", [1, 4])
    assert world.partition("t").is_reassigning
    with capture_logs() as lines:
        world.set_min_isr(1)
    done = world.partition("t")
    assert (done.replicas, done.isr, done.leader) == ((4, 2, 3), (4,), 4)
    assert [line["cause"] for line in lines if line["event"] == "partition.changed"] == ["min_isr_lowered"]
    assert world.controller.metrics.elections_by_cause["min_isr_lowered"] == 1
    assert world.replayed() == world.image


def test_a_cancelled_move_drops_the_added_replicas_at_once() -> None:
    world = World()
    before = world.partition("t")
    world.reassign([4, 5])
    world.alter("t", [1, 2, 3, 4])
    assert world.reassign(None) == (0, None)
    after = world.partition("t")
    assert (after.replicas, after.isr, after.leader, after.is_reassigning) == ((1, 2, 3), (1, 2, 3), 1, False)
    assert after.leader_epoch == before.leader_epoch + 1
    code, message = world.reassign(None)
    assert (code, message) == (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "t-0 is not being reassigned")


def test_a_cancellation_elects_an_original_replica_if_an_added_one_leads() -> None:
    world = World()
    world.reassign([4, 5])
    world.alter("t", [1, 2, 4])
    for broker_id in (1, 2):
        world.kill_broker(broker_id)
    world.register(2, 2, record_loss=LOSS_YES)
    assert (world.partition("t").leader, world.partition("t").elr) == (4, ())
    code, message = world.reassign(None)
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert message is not None
    assert "would lose records" in message
    assert world.partition("t").leader == 4
    world.start_broker(1, incarnation=2)
    world.alter("t", [4, 1])
    assert world.reassign(None) == (0, None)
    assert (world.partition("t").leader, world.partition("t").isr) == (1, (1,))


def test_a_cancellation_that_would_leave_no_leader_is_refused() -> None:
    """Broker 1 has all records and is down, so nothing would be lost. But the partition has a leader now, which a cancellation
    would take away."""
    world = World()
    world.reassign([4, 5])
    world.alter("t", [1, 4])
    world.kill_broker(1)
    assert (world.partition("t").leader, world.partition("t").isr, world.partition("t").elr) == (4, (4,), (1,))
    assert world.reassign(None) == (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "a cancellation would leave t-0 without a leader, because no original replica that has all records is alive: start one "
        "of the brokers [1] first",
    )
    assert world.partition("t").leader == 4
    world.start_broker(1, incarnation=2)
    assert world.reassign(None) == (0, None)
    assert (world.partition("t").leader, world.partition("t").isr) == (1, (1,))


def test_a_second_target_replaces_the_first() -> None:
    world = World()
    world.reassign([4, 2, 3])
    assert world.reassign([5, 2, 3], throttle_rate=1000) == (0, None)
    running = world.partition("t")
    assert (running.replicas, running.adding_replicas, running.removing_replicas) == ((5, 2, 3, 4, 1), (5,), (4, 1))
    assert (running.original_replicas, running.throttle_rate) == ((1, 2, 3), 1000)
    world.alter("t", [1, 2, 3, 5])
    done = world.partition("t")
    assert (done.replicas, done.isr, done.throttle_rate) == ((5, 2, 3), (2, 3, 5), 0)


def test_a_fenced_target_is_allowed_and_awaited() -> None:
    world = World()
    world.kill_broker(4)
    assert world.reassign([4, 2, 3]) == (0, None)
    assert world.partition("t").is_reassigning


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ([], "is empty"),
        ([1, 1], "names a broker twice"),
        ([1, 9], "names broker 9, which is not registered"),
        ([1, -1], "names broker -1, which is not registered"),
    ],
)
def test_a_malformed_target_is_refused(target: list[int], problem: str) -> None:
    world = World()
    before = world.partition("t")
    assert world.reassign(target) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the target {target} {problem}")
    assert world.partition("t") == before


def test_unknown_partitions_and_repeated_ones_are_refused() -> None:
    world = World()
    assert world.reassign([1], topic="x") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic 'x'")
    assert world.reassign([1], index=9) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no partition t-9")
    twice = [
        ReassignableTopic("t", [ReassignablePartition(0, [1]), ReassignablePartition(1, [4]), ReassignablePartition(0, [2])])
    ]
    (topic,) = world.call(apis.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest(twice)).responses
    assert [p.error_code for p in topic.partitions] == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]


def test_another_replication_factor_may_be_forbidden() -> None:
    world = World()
    code, message = world.reassign([4, 5], allow_replication_factor_change=False)
    assert code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert message == "the target [4, 5] would change the replication factor from 3 to 2"
    assert world.reassign([4, 5, 1], allow_replication_factor_change=False) == (0, None)
    assert world.reassign([4, 5], allow_replication_factor_change=False)[0] == ErrorCode.INVALID_REPLICATION_FACTOR


def test_too_many_partitions_are_refused_as_a_whole() -> None:
    world = World()
    many = [ReassignablePartition(index, [1]) for index in range(10_001)]
    with pytest.raises(BrokerError, match="one request may reassign at most 10000 partitions, not 10001"):
        world.call(apis.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest([ReassignableTopic("t", many)]))


def test_level_0_refuses_reassignments_in_one_sentence() -> None:
    world = World(levels=LEVEL_0_ONLY)
    with pytest.raises(BrokerError, match=r"a reassignment needs level 1 of metadata\.version, and the cluster has level 0;"):
        world.reassign([4, 2, 3])
    assert world.listed() == []


@pytest.mark.parametrize(
    "record",
    [
        PartitionRecord(b"a" * 16, 0, (1, 2), (1,), 1, adding_replicas=(2,), original_replicas=(1,)),
        PartitionChangeRecord(b"a" * 16, 0, replicas=(1,)),
        PartitionChangeRecord(b"a" * 16, 0, throttle_rate=5),
    ],
    ids=repr,
)
def test_records_of_a_reassignment_are_not_written_at_level_0(record: Any) -> None:
    with pytest.raises(InternalError, match=r"with a reassignment needs level 1 of metadata\.version"):
        encode_record(record, 0)


def test_other_requests_work_during_a_reassignment() -> None:
    world = World()
    world.reassign([4, 2], index=0)
    world.reassign([4, 2], index=1)
    elect = ElectLeadersRequest(PREFERRED_ELECTION, [ElectLeadersPartition("t", 0)])
    (result,) = world.call(apis.ELECT_LEADERS, elect).results
    assert (result.error_code, result.error_message) == (
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        "broker 4 is not in the ISR",
    )
    (grown,) = world.call(apis.CREATE_PARTITIONS, CreatePartitionsRequest([CreatePartitionsTopic("t", 3)])).results
    assert (grown.error_code, len(world.partition("t", 2).replicas)) == (0, 2), "as many replicas as the topic will have"
    (deleted,) = world.call(apis.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopicState("t")])).topics
    assert deleted.error_code == 0
    assert world.listed() == []
    assert world.replayed() == world.image


def test_the_list_holds_what_was_asked_for() -> None:
    world = World()
    world.reassign([4, 2, 3], index=1)
    asked = [ListPartitionReassignmentsTopic("t", [0, 1, 7]), ListPartitionReassignmentsTopic("x", [0])]
    assert world.listed(asked) == world.listed() == [("t", 1, [4, 2, 3, 1], [4], [1])]
    assert world.listed([]) == []


def test_a_snapshot_and_a_new_active_controller_keep_the_reassignment() -> None:
    world = World()
    world.reassign([4, 2, 3], throttle_rate=77)
    image = world.image
    assert type(image).from_records(image.to_records(), image.offset, image.epoch).topics_by_id == image.topics_by_id
    world.controller.on_resign(1)
    world.become_active(2)
    world.commit()
    assert world.listed() == [("t", 0, [4, 2, 3, 1], [4], [1])]
    world.alter("t", [1, 2, 3, 4])
    assert not world.partition("t").is_reassigning


def test_a_broker_that_gets_replicas_is_still_in_all_its_isrs() -> None:
    """Otherwise its leaders would not return to it before the move is complete. A replica that is added as the preferred leader
    does not count as missing that leadership before it is in the ISR."""
    world = World()
    active = world.controller.active
    assert active is not None
    world.reassign([4, 2, 3])
    assert active.index.is_in_all_isrs(4)
    assert 4 not in active.index.brokers_out_of_balance()
    world.alter("t", [1, 2, 3, 4])
    assert active.index.is_in_all_isrs(4)
    world.reassign([1, 2, 3])
    world.alter("t", [4, 3])
    assert not active.index.is_in_all_isrs(2)
    assert active.index.out_of_isr(2) == 1


def test_a_broker_without_replicas_after_a_move_may_be_unregistered() -> None:
    world = World()
    for index in (0, 1):
        world.reassign([4, 2, 3], index=index)
        world.alter("t", [1, 2, 3, 4], index)
    world.kill_broker(1)
    world.now += 10
    assert world.call(apis.UNREGISTER_BROKER, UnregisterBrokerRequest(1)).error_code == 0


def test_a_partition_without_a_leader_may_be_reassigned() -> None:
    world = World()
    for broker_id in (2, 3, 1):
        world.kill_broker(broker_id)
    assert (world.partition("t").leader, world.partition("t").isr) == (NO_LEADER, ())
    assert world.reassign([1, 4]) == (0, None)
    running = world.partition("t")
    assert (running.replicas, running.isr, running.elr, running.leader) == ((1, 4, 2, 3), (), (1, 3), NO_LEADER)
    world.start_broker(1, incarnation=2)
    assert world.partition("t").leader == 1


def test_begin_replacement_end_and_cancellation_are_logged() -> None:
    world = World()
    with capture_logs() as lines:
        world.reassign([4, 2, 3], throttle_rate=9)
        world.alter("t", [1, 2, 3, 4])
        world.reassign([5, 2, 3])
        world.reassign(None)
    events = [line for line in lines if line["event"].startswith("reassignment")]
    assert [line["event"] for line in events] == [
        "reassignment.started",
        "reassignment.completed",
        "reassignment.started",
        "reassignment.cancelled",
    ]
    assert (events[0]["adding_replicas"], events[0]["removing_replicas"], events[0]["throttle_rate"]) == ([4], [1], 9)


def drain(world: ControllerWorld, broker_id: int, value: str | None = "true") -> None:
    operation = CONFIG_SET if value is not None else CONFIG_DELETE
    change = AlterableConfig("broker.draining", operation, value)
    resource = AlterConfigsResource(RESOURCE_BROKER, str(broker_id), [change])
    (response,) = world.call(apis.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest([resource])).responses
    assert response.error_code == 0, response.error_message


def test_a_drained_broker_gets_no_new_replicas() -> None:
    """This holds for a new topic and for a reassignment. It keeps those that it has until they have moved."""
    world = World()
    drain(world, 4)
    for number in range(5):
        world.create(f"new{number}", num_partitions=3, replication_factor=4)
        assert all(4 not in world.partition(f"new{number}", index).replicas for index in range(3))
    assert world.reassign([4, 2, 3]) == (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "the target [4, 2, 3] names broker 4, which is being drained",
    )
    drain(world, 1)
    assert world.reassign([1, 2]) == (0, None)
    drain(world, 4, None)
    assert world.reassign([4, 1, 2]) == (0, None)


def test_a_drain_is_a_key_of_one_broker() -> None:
    world = World()
    change = AlterableConfig("broker.draining", CONFIG_SET, "true")
    resource = AlterConfigsResource(RESOURCE_BROKER, "", [change])
    (response,) = world.call(apis.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest([resource])).responses
    assert response.error_code == ErrorCode.INVALID_CONFIG
    described = world.call(apis.DESCRIBE_CLUSTER, DescribeClusterRequest()).brokers
    assert not any(broker.is_draining for broker in described)
    drain(world, 3)
    described = world.call(apis.DESCRIBE_CLUSTER, DescribeClusterRequest()).brokers
    assert [broker.broker_id for broker in described if broker.is_draining] == [3]
