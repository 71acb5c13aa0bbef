"""The controller knows in which log directory each replica is, and elects leaders only in online ones (KIP-858)."""

from __future__ import annotations

import pytest
from controller_world import ControllerWorld

from strandline.controller.metadata.directory_ids import LOST, UNASSIGNED
from strandline.controller.metadata.features import LEVEL_0_ONLY, SUPPORTED, Levels
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionChangeRecord, PartitionRecord, decode_record, encode_record
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError
from strandline.protocol.messages.cluster import AssignedDirectory, AssignedTopic, AssignReplicasToDirsRequest

D1, D2, D3 = (bytes([n]) * 16 for n in (1, 2, 3))


def two_disks(levels: Levels = SUPPORTED) -> ControllerWorld:
    """Broker 1 has the directories D1 and D2; brokers 2 and 3 have one each. The topic has the partitions 0 and 1, led by 1."""
    world = ControllerWorld(levels=levels)
    world.start_broker(1, log_dirs=[D1, D2])
    for broker_id in (2, 3):
        world.start_broker(broker_id, log_dirs=[D3])
    world.create("t", [[1, 2, 3], [1, 2, 3]])
    return world


def assign(world: ControllerWorld, directory: bytes, *indexes: int, broker: int = 1, topic_id: bytes | None = None) -> list[int]:
    """Assign these replicas to the directory; returns the error codes."""
    topic = world.image.topic("t")
    assert topic is not None
    topics = [AssignedTopic(topic_id or topic.topic_id, list(indexes))]
    epoch = world.image.brokers[broker].broker_epoch
    request = AssignReplicasToDirsRequest(broker, epoch, [AssignedDirectory(directory, topics)])
    return [item.error_code for item in world.call(apis.ASSIGN_REPLICAS_TO_DIRS, request).partitions]


def elections_by_cause(world: ControllerWorld) -> dict[str, int]:
    return {cause: count for cause, count in world.controller.metrics.elections_by_cause.items() if count}


def leaders(world: ControllerWorld) -> list[int]:
    return [world.partition("t", index).leader for index in (0, 1)]


def test_a_failed_directory_moves_only_its_partitions() -> None:
    world = two_disks()
    assert assign(world, D1, 0) == assign(world, D2, 1) == [0]
    assert not world.heartbeat(1, offline_log_dirs=[D2]).is_fenced
    assert leaders(world) == [1, 2]
    assert [1 in world.partition("t", index).isr for index in (0, 1)] == [True, False]
    assert world.image.brokers[1].log_dirs == (D1,)
    assert elections_by_cause(world) == {"log_dir_failed": 1}


def test_the_partitions_change_before_the_registration() -> None:
    """If a fail-over keeps only the first records, the next heartbeat finds the directory still registered (KAFKA-18106)."""
    world = two_disks()
    assign(world, D2, 1)
    before = len(world.quorum.log)
    world.heartbeat(1, offline_log_dirs=[D2])
    kinds = [type(decode_record(record)).__name__ for _, record in world.quorum.log[before:]]
    assert kinds == ["PartitionChangeRecord", "BrokerRegistrationChangeRecord"]


def test_a_replica_that_is_assigned_to_an_offline_directory_leaves_the_isr() -> None:
    """The directory has failed before the controller knew what it holds."""
    world = two_disks()
    world.heartbeat(1, offline_log_dirs=[D2])
    assert leaders(world) == [1, 1]
    assert assign(world, D2, 1) == [0]
    assert leaders(world) == [1, 2]
    assert 1 not in world.partition("t", 1).isr
    assert elections_by_cause(world) == {"directory_assigned": 1}


def test_a_process_that_registers_again_without_a_directory_gives_up_its_leaders_there() -> None:
    """A directory fails while a controller that does not know the broker's registration makes it register again. No later
    heartbeat names the directory as failed, because the registration no longer has it."""
    world = two_disks()
    assign(world, D1, 0)
    assign(world, D2, 1)
    epoch = world.epoch(1)
    assert world.register(1, log_dirs=[D1]) == epoch
    assert not world.heartbeat(1, offline_log_dirs=[D2]).is_fenced
    assert world.image.brokers[1].log_dirs == (D1,)
    assert leaders(world) == [1, 2]
    assert 1 not in world.partition("t", 1).isr


def test_a_lost_replica_does_not_lead() -> None:
    world = two_disks()
    assert assign(world, LOST, 0) == [0]
    assert leaders(world) == [2, 1]


def test_a_broker_is_not_elected_for_a_partition_in_an_offline_directory() -> None:
    """This includes the only member of the ISR: the partition waits until the directory is back."""
    world = two_disks()
    assign(world, D1, 0)
    assign(world, D2, 1)
    for broker_id in (2, 3):
        world.kill_broker(broker_id)
    world.heartbeat(1, offline_log_dirs=[D2])
    assert leaders(world) == [1, -1]
    world.kill_broker(1)
    world.now += 10
    world.register(1, 2, log_dirs=[D1])
    world.heartbeat(1)
    assert leaders(world) == [1, -1], "its new process has not found the directory either"
    world.kill_broker(1)
    world.now += 10
    world.register(1, 3, log_dirs=[D1, D2])
    world.heartbeat(1)
    assert leaders(world) == [1, 1]


def test_the_last_replica_leads_again_when_its_directory_is_back() -> None:
    world = two_disks()
    for broker_id in (2, 3):
        world.kill_broker(broker_id)
    assign(world, LOST, 1)
    assert leaders(world) == [1, -1]
    assign(world, D1, 1)
    assert leaders(world) == [1, 1]


def test_an_offline_replica_does_not_join_the_isr() -> None:
    world = two_disks()
    assign(world, D2, 1)
    world.heartbeat(1, offline_log_dirs=[D2])
    answer = world.alter("t", [2, 3, 1], index=1)
    assert answer.error_code == ErrorCode.INELIGIBLE_REPLICA


def test_a_directory_that_failed_while_the_broker_was_fenced_is_known_before_it_leads() -> None:
    world = two_disks()
    assign(world, D2, 1)
    world.kill_broker(1)
    for broker_id in (2, 3):
        world.kill_broker(broker_id)
    assert world.heartbeat(1, offline_log_dirs=[D2]).is_fenced, "the registration changes first"
    assert not world.heartbeat(1, offline_log_dirs=[D2]).is_fenced
    assert world.partition("t", 1).leader != 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic_id": b"x" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"index": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"broker": 4}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ({"directory": UNASSIGNED}, ErrorCode.INVALID_REQUEST),
    ],
    ids=str,
)
def test_a_wrong_assignment_changes_nothing(change: dict[str, object], code: ErrorCode) -> None:
    world = two_disks()
    world.start_broker(4, log_dirs=[D3])
    offset = world.image.offset
    values = {"directory": D1, "index": 0, "broker": 1, "topic_id": None, **change}
    codes = assign(world, values["directory"], values["index"], broker=values["broker"], topic_id=values["topic_id"])  # type: ignore[arg-type]
    assert codes == [code]
    assert world.image.offset == offset


def test_a_repeated_assignment_writes_nothing() -> None:
    world = two_disks()
    assert assign(world, D1, 0, 1, 0) == [0, 0, ErrorCode.INVALID_REQUEST]
    offset = world.image.offset
    assert assign(world, D1, 0, 1) == [0, 0]
    assert world.image.offset == offset


@pytest.mark.parametrize("log_dirs", [[D1, D1], [UNASSIGNED, D1], [LOST], [bytes(15) + bytes([99])]])
def test_a_registration_with_an_impossible_directory_is_refused(log_dirs: list[bytes]) -> None:
    """A replica marked as lost would count as online on a broker that has registered the mark as a directory."""
    with pytest.raises(BrokerError, match="a registration names a log directory") as refused:
        two_disks().register(4, log_dirs=log_dirs)
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_a_former_process_assigns_nothing() -> None:
    world = two_disks()
    request = AssignReplicasToDirsRequest(1, world.image.brokers[1].broker_epoch - 1, [])
    with pytest.raises(BrokerError) as caught:
        world.call(apis.ASSIGN_REPLICAS_TO_DIRS, request)
    assert caught.value.code == ErrorCode.STALE_BROKER_EPOCH


def test_level_0_has_no_directories() -> None:
    world = two_disks(LEVEL_0_ONLY)
    with pytest.raises(BrokerError) as caught:
        assign(world, D1, 0)
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
    with pytest.raises(InternalError, match="log directories needs level 1"):
        encode_record(PartitionChangeRecord(b"t" * 16, 0, directories=(D1,)), 0)


def test_replicas_keep_their_directories_when_others_come_and_go() -> None:
    world = two_disks()
    assign(world, D2, 0)
    partition = world.partition("t", 0)
    assert partition.directories == (D2, UNASSIGNED, UNASSIGNED)
    moved = partition.merge(PartitionChangeRecord(b"t" * 16, 0, replicas=(4, 1, 2)))
    assert moved.directories == (UNASSIGNED, D2, UNASSIGNED)
    gone = moved.merge(PartitionChangeRecord(b"t" * 16, 0, replicas=(4, 2)))
    assert gone.directories == ()


def test_directories_are_in_snapshots_and_survive_the_log() -> None:
    world = two_disks()
    assign(world, D2, 1)
    records = [decode_record(encode_record(record)) for record in world.image.to_records()]
    assert MetadataImage.from_records(records, world.image.offset, world.image.epoch).topic("t") == world.image.topic("t")
    assert any(isinstance(record, PartitionRecord) and record.directories for record in records)
