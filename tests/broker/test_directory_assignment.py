"""A broker with several log directories tells the controller which one each replica is in, and sends no unneeded
assignments."""

from __future__ import annotations

import errno

from replica_world import TOPIC, Node, ReplicaWorld

from strandline.broker.process.directory_assignment import REPLICAS_PER_REQUEST_MAX, AssignmentQueue, wrong_assignments
from strandline.controller.metadata.directory_ids import LOST
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import FeatureLevelRecord, PartitionChangeRecord
from strandline.protocol.errors import ErrorCode
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.cluster import AssignReplicasToDirsPartition, AssignReplicasToDirsResponse

D1, D2 = b"1" * 16, b"2" * 16


def world_with(*paths: str, level: int = 1) -> ReplicaWorld:
    world = ReplicaWorld(1, paths=paths)
    if level:
        world.change(FeatureLevelRecord(METADATA_VERSION, level))
    world.topic(replicas=(1, 2), partitions=4)
    return world


def wrong(world: ReplicaWorld, since: MetadataImage = MetadataImage.EMPTY) -> dict[int, bytes]:
    """The assignments to send, by partition, after the metadata has changed since this image."""
    node = world[1]
    found = wrong_assignments(since.delta_to(world.image), node.manager.directory, node.log_dirs)
    return {index: directory_id for (_, index), directory_id in found.items()}


def ids(node: Node) -> list[bytes]:
    return [log_dir.directory_id for log_dir in node.log_dirs.dirs]


def test_each_replica_is_assigned_to_the_directory_of_its_log() -> None:
    world = world_with("/d1", "/d2")
    first, second = ids(world[1])
    assert wrong(world) == {0: first, 1: second, 2: first, 3: second}


def test_an_assignment_that_the_metadata_has_is_not_sent_again() -> None:
    world = world_with("/d1", "/d2")
    first, second = ids(world[1])
    before = world.image
    world.change(
        PartitionChangeRecord(TOPIC, 0, directories=(first, D2)), PartitionChangeRecord(TOPIC, 1, directories=(first, D2))
    )
    assert wrong(world, before) == {1: second}


def test_one_directory_needs_no_assignment() -> None:
    """If the only directory fails, the broker is fenced anyway."""
    assert wrong(world_with("/d1")) == {}


def test_the_only_directory_left_is_assigned_where_the_metadata_names_another() -> None:
    """The broker had several directories, and was restarted with one of them."""
    world = world_with("/d1")
    before = world.image
    world.change(PartitionChangeRecord(TOPIC, 0, directories=(D1, D2)))
    assert wrong(world, before) == {0: ids(world[1])[0]}


def test_nothing_is_sent_at_level_0_and_all_when_the_level_rises() -> None:
    world = world_with("/d1", "/d2", level=0)
    assert wrong(world) == {}
    before = world.image
    world.change(FeatureLevelRecord(METADATA_VERSION, 1))
    assert sorted(wrong(world, before)) == [0, 1, 2, 3]


def test_a_replica_in_a_failed_directory_is_assigned_to_it() -> None:
    """The directory failed before the assignment was sent, but the controller still needs it, to know that the replica is
    offline."""
    world = world_with("/d1", "/d2")
    world[1].files.fail_next("write", "/d2/orders-1/*", errno.EIO)
    world[1].produce("a", key=(TOPIC, 1), acks=1)
    assert wrong(world)[1] == ids(world[1])[1]


def test_a_replica_that_no_directory_has_is_lost_until_its_directory_is_back() -> None:
    world = world_with("/d1", "/d2")
    first, second = ids(world[1])
    world[1].files.rename("/d2", "/away")
    world[1].files.crash(lossy=False)
    world.add_node(1, world[1].files)
    world.catch_up(1)
    assert wrong(world) == {0: first, 1: LOST, 2: first, 3: LOST}
    before = world.image
    world.change(
        PartitionChangeRecord(TOPIC, 1, directories=(second, D2)), PartitionChangeRecord(TOPIC, 3, directories=(LOST, D2))
    )
    assert wrong(world, before) == {}, "the controller knows that these replicas are offline"
    world[1].files.rename("/away", "/d2")
    world[1].files.crash(lossy=False)
    world.add_node(1, world[1].files)
    world.catch_up(1)
    assert wrong(world)[3] == second


def test_a_replica_that_the_metadata_has_in_an_online_directory_is_created_there_again() -> None:
    """Another directory is offline, but the log was not in it."""
    world = world_with("/d1", "/d2")
    first, _ = ids(world[1])
    world[1].files.rename("/d2", "/away")
    world[1].files.crash(lossy=False)
    world.change(PartitionChangeRecord(TOPIC, 1, directories=(first, D2)), at=())
    world.add_node(1, world[1].files)
    world.catch_up(1)
    assert (TOPIC, 1) in world[1].manager.partitions


def answered(queue: AssignmentQueue, *keys: tuple[bytes, int], code: int = 0) -> None:
    queue.on_response(AssignReplicasToDirsResponse(0, [AssignReplicasToDirsPartition(*key, code) for key in keys]))


def test_a_request_groups_replicas_by_directory_and_topic() -> None:
    queue = AssignmentQueue()
    queue.submit({(TOPIC, 0): D1, (TOPIC, 1): D2, (TOPIC, 2): D1})
    request = queue.next_request(1, 7)
    assert (request.broker_id, request.broker_epoch) == (1, 7)
    assert [(d.directory_id, [(t.topic_id, t.partitions) for t in d.topics]) for d in request.directories] == [
        (D1, [(TOPIC, [0, 2])]),
        (D2, [(TOPIC, [1])]),
    ]


def test_many_replicas_are_sent_in_batches() -> None:
    queue = AssignmentQueue()
    queue.submit({(TOPIC, index): D1 for index in range(REPLICAS_PER_REQUEST_MAX + 5)})
    first = queue.next_request(1, 7).directories[0].topics[0].partitions
    assert len(first) == REPLICAS_PER_REQUEST_MAX
    answered(queue, *((TOPIC, index) for index in first))
    assert len(queue.next_request(1, 7).directories[0].topics[0].partitions) == 5


def test_an_assignment_without_an_answer_is_sent_again() -> None:
    queue = AssignmentQueue()
    queue.submit({(TOPIC, 0): D1, (TOPIC, 1): D1})
    queue.next_request(1, 7)
    answered(queue, (TOPIC, 0))
    assert queue.next_request(1, 7).directories[0].topics[0].partitions == [1]
    answered(queue, (TOPIC, 1), code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert len(queue) == 0, "the replica is gone"


def test_an_answer_does_not_drop_a_newer_assignment() -> None:
    queue = AssignmentQueue()
    queue.submit({(TOPIC, 0): D1})
    queue.next_request(1, 7)
    queue.submit({(TOPIC, 0): D2})
    answered(queue, (TOPIC, 0))
    assert queue.next_request(1, 7).directories[0].directory_id == D2
