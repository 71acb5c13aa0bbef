"""I36, I37, I38 and I40: the records and responses of coordinators, the commits that they accept, and their memory.

The bench's partition is `__consumer_offsets-0` here. A test writes the records of a coordinator itself, so that it can write
wrong ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from invariant_bench import BROKERS, NOW_MS, TOPIC_ID, Bench, bench

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.records.codec import encode_record
from strandline.broker.groups.records.types import (
    ClassicGroupValue,
    ClassicMemberValue,
    CommittedOffset,
    ConsumerGroupMetadataRecord,
    ConsumerGroupMetadataValue,
    CurrentAssignmentRecord,
    CurrentAssignmentValue,
    GroupMetadataRecord,
    GroupRecord,
    MemberMetadataRecord,
    MemberState,
    OffsetCommitRecord,
    TargetAssignmentMetadataRecord,
    TargetAssignmentMetadataValue,
)
from strandline.broker.groups.shard import GroupShard
from strandline.client import TopicPartition
from strandline.client.admin.classic_assignment import decode_assignment
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC
from strandline.controller.metadata.records import PartitionRecord, TopicRecord
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    GroupTopicPartitions,
    OffsetCommitPartition,
    OffsetCommitPartitionResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from strandline.protocol.records.builder import encode_batch
from strandline.testing.simulation.cluster.groups.classic_member import encode_assignment
from strandline.testing.simulation.invariants import group_memory, groups
from strandline.testing.simulation.invariants.violation import Violation

ORDERS = bytes(15) + b"\x08"


@pytest.fixture
def at() -> Iterator[Bench]:
    with bench(topic=OFFSETS_TOPIC) as found:
        found.commit(TopicRecord("orders", ORDERS), PartitionRecord(ORDERS, 0, BROKERS, BROKERS, 1))
        found.ghosts.metadata.image = SimpleNamespace(  # type: ignore[assignment]
            topic=lambda name: SimpleNamespace(topic_id=TOPIC_ID, partitions={0: None})
        )
        yield found
        if found.invariants.failure is not None:
            raise found.invariants.failure


def breaks(invariant: str, text: str) -> Any:
    return pytest.raises(Violation, match=f"^{invariant}: .*{text}")


# -- what a coordinator writes ----------------------------------------------------------------------------------------


def write(at: Bench, *records: GroupRecord, node: int = 1) -> None:
    """Write records as the coordinator, in one batch that no replica has copied yet."""
    rows = [(*encode_record(record), [], NOW_MS) for record in records]
    at.write(node, bytearray(encode_batch(rows)))


def commit_log(at: Bench) -> None:
    """Let all replicas copy the log, and know that it is committed."""
    at.copy(1, 2, 3)
    for node in BROKERS:
        at.raise_hw(node, at.log(1).log_end_offset)


def written(at: Bench, *records: GroupRecord) -> None:
    write(at, *records)
    commit_log(at)


def epoch_of(group: str, epoch: int) -> ConsumerGroupMetadataRecord:
    return ConsumerGroupMetadataRecord(group, ConsumerGroupMetadataValue(epoch))


def member(
    member_id: str, epoch: int, assigned: tuple[int, ...] = (), revoking: tuple[int, ...] = (), since: int | None = None
) -> CurrentAssignmentRecord:
    """The current assignment of a member of `g`; `since`: the member epoch in which it got the partitions."""
    began = epoch if since is None else since
    kept, gone = ({ORDERS: dict.fromkeys(numbers, began)} if numbers else {} for numbers in (assigned, revoking))
    state = MemberState.UNREVOKED_PARTITIONS if revoking else MemberState.STABLE
    return CurrentAssignmentRecord("g", member_id, CurrentAssignmentValue(epoch, epoch - 1, state, kept, gone))


def offset_of(partition: int, offset: int, topic_id: bytes = ORDERS) -> OffsetCommitRecord:
    return OffsetCommitRecord("g", "orders", partition, CommittedOffset(offset, topic_id=topic_id))


def classic(generation: int, **assigned: tuple[int, ...]) -> GroupMetadataRecord:
    members = tuple(
        ClassicMemberValue(member_id, None, "c", "h", 1000, 1000, b"", encode_assignment({"orders": numbers}))
        for member_id, numbers in assigned.items()
    )
    return GroupMetadataRecord("g", ClassicGroupValue("consumer", generation, "range", next(iter(assigned)), NOW_MS, members))


def test_partition_goes_from_one_member_to_the_other(at: Bench):
    written(at, epoch_of("g", 1), member("a", 1, (0, 1)))
    written(at, epoch_of("g", 2), member("a", 1, (0,), revoking=(1,), since=1), member("b", 2))
    written(at, member("a", 2, (0,), since=1))
    written(at, member("b", 2, (1,)))
    at.step()


def test_i36_partition_has_two_owners(at: Bench):
    written(at, epoch_of("g", 1), member("a", 1, (0, 1)))
    with at.flags("I36", "the records of broker 1 let a and b own orders-1"):
        write(at, member("b", 1, (1,)))


def test_i36_partition_that_is_still_to_be_given_up_goes_to_another_member(at: Bench):
    written(at, epoch_of("g", 2), member("a", 1, (0,), revoking=(1,)))
    with at.flags("I36", "let a and b own orders-1"):
        write(at, member("b", 2, (1,)))


def test_partition_may_change_hands_within_one_batch(at: Bench):
    """A static member returns with a new member id."""
    written(at, epoch_of("g", 1), member("a", 1, (0,)))
    write(at, CurrentAssignmentRecord("g", "a", None), member("b", 1, (0,)))
    at.step()


def test_i36_epoch_of_a_group_falls(at: Bench):
    written(at, epoch_of("g", 5))
    with at.flags("I36", "lowers the epoch of group g from 5 to 4"):
        write(at, epoch_of("g", 4))


def test_deleted_group_begins_again_with_the_first_epoch(at: Bench):
    written(at, epoch_of("g", 5))
    write(at, ConsumerGroupMetadataRecord("g", None))
    write(at, epoch_of("g", 1))
    at.step()
    assert at.ghosts.groups.incarnations["g"] == 1


def test_i36_assignment_is_newer_than_the_group(at: Bench):
    written(at, epoch_of("g", 1))
    with at.flags("I36", "the assignment epoch 2, above the group epoch 1"):
        write(at, TargetAssignmentMetadataRecord("g", TargetAssignmentMetadataValue(2)))


def test_i36_group_has_records_of_both_types(at: Bench):
    written(at, epoch_of("g", 1))
    with at.flags("I36", "records of both types"):
        write(at, classic(2, a=(0,)))


def test_i36_generation_with_a_partition_twice(at: Bench):
    with at.flags("I36", "an assignment in which [('orders', 1)] have two owners"):
        write(at, classic(1, a=(0, 1), b=(1,)))


def test_next_leader_judges_by_the_log_that_it_has(at: Bench):
    """Records that the former leader appended and no replica copied are gone."""
    written(at, epoch_of("g", 1), member("a", 1, (0,)))
    write(at, member("a", 1, ()))
    at.change(leader=2, isr=(2, 3))
    at.take_role(2)
    with at.flags("I36", "the records of broker 2 let a and b own orders-0"):
        write(at, member("b", 1, (0,)), node=2)


# -- what it answers to a member ---------------------------------------------------------------------------------------


def beat(at: Bench, epoch: int, assigned: tuple[int, ...] | None, *, member_id: str = "a") -> None:
    """Broker 1 answers a heartbeat."""
    named = None if assigned is None else [GroupTopicPartitions(ORDERS, list(assigned))] if assigned else []
    response = ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=epoch, assignment=named)
    groups.on_answer(at.ghosts, 1, ConsumerGroupHeartbeatRequest("g", member_id, max(epoch, 0)), response)


def test_responses_with_committed_state_are_accepted(at: Bench):
    written(at, epoch_of("g", 1), member("a", 1, (0, 1)))
    beat(at, 1, (0, 1))
    beat(at, 1, None)
    written(at, MemberMetadataRecord("g", "a", None))
    beat(at, -1, None)


@pytest.mark.parametrize(
    ("epoch", "assigned", "text"),
    [
        (2, None, "the epoch 2, which is in no record"),
        (1, (0, 1), r"the epoch 1 with the partitions \[0, 1\], which is in no record"),
        (-1, None, "its removal, which is in no record"),
    ],
)
def test_i36_response_is_in_no_record(at: Bench, epoch: int, assigned: tuple[int, ...] | None, text: str):
    written(at, epoch_of("g", 1), member("a", 1, (0,)))
    with breaks("I36", f"answers the member a with {text}"):
        beat(at, epoch, assigned)


def test_i36_response_is_not_committed_yet(at: Bench):
    written(at, epoch_of("g", 1), member("a", 1))
    write(at, member("a", 1, (0,)))
    with breaks("I36", "which is only in an uncommitted record"):
        beat(at, 1, (0,))


def sync(at: Bench, generation: int, assignment: bytes) -> None:
    request = SyncGroupRequest("g", generation, "a", None, "consumer", "range", [])
    groups.on_answer(at.ghosts, 1, request, SyncGroupResponse(assignment=assignment))


def test_classic_member_gets_its_assignment(at: Bench):
    written(at, classic(1, a=(0,), b=(1,)))
    ours = encode_assignment({"orders": [0]})
    sync(at, 1, ours)
    assert decode_assignment(ours) == [TopicPartition("orders", 0)]
    with breaks("I36", "answers the member a with its assignment in generation 1, which is in no record"):
        sync(at, 1, encode_assignment({"orders": [1]}))
    with breaks("I36", "its assignment in generation 2, which is in no record"):
        sync(at, 2, ours)


# -- commits ----------------------------------------------------------------------------------------------------------


def decide(at: Bench, member_id: str, epoch: int, offsets: dict[int, int]) -> None:
    """Broker 1 is about to append a commit."""
    partitions = [OffsetCommitPartition(ORDERS, number, offset) for number, offset in offsets.items()]
    request = OffsetCommitRequest("g", epoch, member_id, None, partitions)
    groups.on_commit_decided(at.ghosts, 1, request, [offset_of(number, offset) for number, offset in offsets.items()])


def test_members_commit(at: Bench):
    written(at, epoch_of("g", 3), member("a", 3, (0,), since=1), member("b", 3, (1,), since=1))
    decide(at, "a", 3, {0: 5})
    decide(at, "a", 2, {0: 5})
    decide(at, "", -1, {0: 5})


@pytest.mark.parametrize(
    ("member_id", "epoch", "partition", "text"),
    [
        ("c", 3, 2, "the group has no such member"),
        ("a", 3, 1, "b owns the partition"),
        ("a", 4, 0, "the member is in epoch 3"),
        ("a", 1, 0, "the member is in epoch 3, and owns the partition since epoch 2"),
        ("a", 2, 2, "the member is in epoch 3, and owns the partition since epoch None"),
    ],
)
def test_i37_commit_that_does_not_count(at: Bench, member_id: str, epoch: int, partition: int, text: str):
    written(at, epoch_of("g", 3), member("a", 3, (0,), since=2), member("b", 3, (1,), since=2))
    with breaks("I37", f"accepts the commit of {member_id} in epoch {epoch} for orders-{partition}, but {text}"):
        decide(at, member_id, epoch, {partition: 5})


def test_i37_commit_of_another_generation(at: Bench):
    written(at, classic(2, a=(0,)))
    decide(at, "a", 2, {0: 5})
    for member_id, generation in (("a", 1), ("b", 2)):
        with breaks("I37", "the group is in generation 2, with other members"):
            decide(at, member_id, generation, {0: 5})


def test_i37_commit_falls_back(at: Bench):
    written(at, epoch_of("g", 1), member("a", 1, (0,)), offset_of(0, 7))
    with breaks("I37", "7 is stored already, and 6 is less"):
        decide(at, "a", 1, {0: 6})
    written(at, offset_of(0, 7, topic_id=bytes(15) + b"\x09"))
    decide(at, "a", 1, {0: 6})  # an offset of another topic with the same name


def acknowledge(at: Bench, offset: int, error_code: int = 0) -> None:
    request = OffsetCommitRequest("g", 1, "a", None, [OffsetCommitPartition(ORDERS, 0, offset)])
    response = OffsetCommitResponse([OffsetCommitPartitionResponse(ORDERS, 0, error_code)])
    groups.on_answer(at.ghosts, 1, request, response)


def test_i37_commit_is_acknowledged_before_it_is_committed(at: Bench):
    write(at, offset_of(0, 7))
    acknowledge(at, 7, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    with breaks("I37", "acknowledges the offset 7 of orders-0, and no committed record has it"):
        acknowledge(at, 7)
    commit_log(at)
    acknowledge(at, 7)


# -- committed offsets ------------------------------------------------------------------------------------------------


def fetch(at: Bench, offset: int, *, node: int = 1, topic_id: bytes = ORDERS) -> None:
    request = OffsetFetchRequest([OffsetFetchGroup("g", "a", 1, [GroupTopicPartitions(topic_id, [0])])])
    response = OffsetFetchResponse([OffsetFetchGroupResponse("g", partitions=[OffsetFetchPartition(topic_id, 0, offset)])])
    groups.on_answer(at.ghosts, node, request, response)


def test_i38_answer_is_the_last_committed_offset(at: Bench):
    written(at, offset_of(0, 5), offset_of(0, 7))
    write(at, offset_of(0, 9))
    fetch(at, 7)
    assert at.ghosts.groups.answered["g", "a", (ORDERS, 0)] == 7
    for wrong in (5, 9, -1):
        with breaks("I38", f"answers the offset {wrong} of orders-0, but below the high watermark 2 it is 7"):
            fetch(at, wrong)


def test_i38_offset_of_a_deleted_topic(at: Bench):
    written(at, offset_of(0, 5, topic_id=bytes(15) + b"\x09"))
    fetch(at, -1)
    with breaks("I38", "answers the offset 5 of orders-0, but below the high watermark 1 it is -1"):
        fetch(at, 5)


def test_i38_new_leader_answers_below_the_start_of_its_epoch(at: Bench):
    written(at, offset_of(0, 5))
    write(at, offset_of(0, 7))
    at.copy(1, 2)
    at.change(leader=2, isr=(2, 3))
    at.take_role(2)
    with breaks("I38", "with the high watermark 1, below the start of its epoch, 2"):
        fetch(at, 5, node=2)


# -- the memory of a coordinator --------------------------------------------------------------------------------------


def remembering(at: Bench, *records: GroupRecord) -> None:
    """Let the coordinator on broker 1 apply these records."""
    shard = GroupShard(GroupConfig(), Random(0), MetadataImage.EMPTY)
    for offset, record in enumerate(records):
        shard.replay(record, offset)
    partition = at.partitions[1]
    active = SimpleNamespace(shard=shard, is_current=True, loader=None, leader_state=partition.leader_state, partition=partition)
    process = at.replica(1).process
    assert process is not None
    process.server.opened = SimpleNamespace(groups=SimpleNamespace(shards={0: active}, config=GroupConfig()))


def test_memory_is_what_the_log_says(at: Bench):
    records = (epoch_of("g", 1), offset_of(0, 5), offset_of(1, 6), offset_of(0, 7))
    written(at, *records)
    remembering(at, *records)
    group_memory.check(at.ghosts)


@pytest.mark.parametrize(
    ("remembered", "text"),
    [
        ((epoch_of("g", 1), offset_of(0, 5)), r"has offsets of g as .*offset=5.*, but a load of its log says .*offset=7"),
        ((epoch_of("g", 2), offset_of(0, 5), offset_of(0, 7)), "has group g as .*, but a load of its log says"),
        ((offset_of(0, 5), offset_of(0, 7)), "has group g as None"),
    ],
)
def test_i40_memory_is_not_what_the_log_says(at: Bench, remembered: tuple[GroupRecord, ...], text: str):
    written(at, epoch_of("g", 1), offset_of(0, 5), offset_of(0, 7))
    remembering(at, *remembered)
    with breaks("I40", f"the coordinator on broker 1 {text}"):
        group_memory.check(at.ghosts)


def test_i40_replica_says_something_else(at: Bench, monkeypatch: pytest.MonkeyPatch):
    """As if the cleaner of broker 3 had removed the last record of a key."""
    records = (epoch_of("g", 1), offset_of(0, 5), offset_of(0, 7))
    written(at, *records)
    remembering(at, *records)
    other = at.log(3)
    read = type(other).read

    def shortened(log: Any, *args: Any, **options: Any) -> Any:
        if log is not other:
            return read(log, *args, **options)
        rows = [(*encode_record(record), [], NOW_MS) for record in (*records[:2], records[0])]
        return SimpleNamespace(buffers=[encode_batch(rows)])

    monkeypatch.setattr(type(other), "read", shortened)
    with breaks("I40", "but the log of broker 3 says .*offset=5"):
        group_memory.check(at.ghosts)
