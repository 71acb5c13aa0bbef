"""One of several log directories fails: its partitions are offline, the others stay online."""

from __future__ import annotations

import errno

from handled_request import HandledRequest
from replica_world import TOPIC, Node, ReplicaWorld, code, want

from strandline.controller.metadata.records import PartitionChangeRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from strandline.protocol.apis import DESCRIBE_LOG_DIRS
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import DescribeLogDirsRequest
from strandline.storage.directory.log_dir import LogDir

PATHS = ("/d1", "/d2")


class Failures:
    """Collects the reports of failed directories."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []

    def __call__(self, log_dir: LogDir, had_leaders: bool) -> None:
        self.seen.append((log_dir.path, had_leaders))


def two_disks(partitions: int = 4) -> tuple[ReplicaWorld, Node, Failures]:
    """Broker 1 has two directories; partitions 0, 2, ... are in the first one."""
    failures = Failures()
    world = ReplicaWorld(2, paths=PATHS, on_log_dir_failed=failures)
    world.topic(replicas=(1, 2), partitions=partitions)
    return world, world[1], failures


def online(node: Node) -> list[int]:
    return sorted(index for _, index in node.manager.partitions)


def offline(node: Node) -> list[int]:
    return sorted(index for _, index in node.manager.directory.offline)


def restart(world: ReplicaWorld, node: Node) -> Node:
    """End the broker's process, and let the next one apply the metadata."""
    node.files.crash(lossy=False)
    again = world.add_node(node.id, node.files)
    world.catch_up(node.id)
    return again


def test_only_the_partitions_of_the_failed_directory_go_offline() -> None:
    _world, node, failures = two_disks()
    node.files.fail_next("write", "/d2/orders-1/*", errno.EIO)
    assert code(node.produce("a", key=(TOPIC, 1), acks=1)) == ErrorCode.KAFKA_STORAGE_ERROR
    assert (online(node), offline(node)) == ([0, 2], [1, 3])
    assert failures.seen == [("/d2", True)]
    assert node.manager.offline_replicas == 2
    assert node.manager.disk_error is None, "the broker goes on"
    assert code(node.produce("a", key=(TOPIC, 0), acks=1)) == ErrorCode.NONE
    assert code(node.fetch(want(0, key=(TOPIC, 2), epoch=1))) == ErrorCode.NONE
    assert code(node.fetch(want(0, key=(TOPIC, 3), epoch=1))) == ErrorCode.KAFKA_STORAGE_ERROR


def test_the_last_directory_that_fails_takes_the_broker_down() -> None:
    _world, node, failures = two_disks()
    node.files.fail_next("write", "/d?/orders-*", errno.EIO, times=2)
    for index in (1, 0):
        assert code(node.produce("a", key=(TOPIC, index), acks=1)) == ErrorCode.KAFKA_STORAGE_ERROR
    assert [path for path, _ in failures.seen] == ["/d2", "/d1"]
    assert node.manager.disk_error is not None
    assert online(node) == []


def test_waiting_requests_of_the_failed_directory_are_answered() -> None:
    _world, node, _ = two_disks()
    waiting = node.produce("a", key=(TOPIC, 3), acks=-1, timeout_ms=10_000)
    other = node.produce("a", key=(TOPIC, 0), acks=-1, timeout_ms=10_000)
    node.files.fail_next("write", "/d2/orders-1/*", errno.EIO)
    node.produce("a", key=(TOPIC, 1), acks=1)
    assert code(waiting) == ErrorCode.KAFKA_STORAGE_ERROR
    assert not other.is_answered


def test_metadata_does_not_bring_an_offline_partition_back() -> None:
    """Its log is on the failed disk. A new log in another directory would not have its records."""
    world, node, _ = two_disks()
    node.files.fail_next("write", "/d2/orders-1/*", errno.EIO)
    node.produce("a", key=(TOPIC, 1), acks=1)
    world.change(*(PartitionChangeRecord(TOPIC, index, leader=2) for index in range(4)))
    assert (online(node), offline(node)) == ([0, 2], [1, 3])
    assert set(node.fetchers.following) == {(TOPIC, 0), (TOPIC, 2)}


def test_a_new_partition_goes_to_a_directory_that_is_in_order() -> None:
    world, node, _ = two_disks()
    node.files.fail_next("write", "/d2/orders-1/*", errno.EIO)
    node.produce("a", key=(TOPIC, 1), acks=1)
    other = b"another-topic-id"
    world.change(TopicRecord("other", other), *(PartitionRecord(other, n, (1,), (1,), 1) for n in range(2)))
    assert [node[(other, n)].log.dir for n in range(2)] == ["/d1/other-0", "/d1/other-1"]
    assert code(node.produce("a", key=(other, 0))) == ErrorCode.NONE


def test_a_directory_that_fails_while_metadata_is_applied_leaves_the_others_their_roles() -> None:
    failures = Failures()
    world = ReplicaWorld(1, paths=PATHS, on_log_dir_failed=failures)
    world[1].files.fail_next("write", "/d1/orders-0/*", errno.EIO)
    world.topic(replicas=(1,), partitions=4)
    assert [path for path, _ in failures.seen] == ["/d1"]
    assert 0 in offline(world[1])
    assert set(online(world[1])) == {1, 2, 3}
    assert {world[1][(TOPIC, n)].log.dir for n in (1, 2, 3)} == {f"/d2/orders-{n}" for n in (1, 2, 3)}


def test_a_directory_that_is_missing_after_a_restart_is_offline() -> None:
    world, node, _ = two_disks()
    node.produce("a", key=(TOPIC, 1), acks=1)
    node.files.rename("/d2", "/away")
    node = restart(world, node)
    assert (online(node), offline(node)) == ([0, 2], [1, 3])
    assert not node.files.exists("/d1/orders-1"), "it is not created anew: its records are in the missing directory"
    node.files.rename("/away", "/d2")
    node = restart(world, node)
    assert (online(node), offline(node)) == ([0, 1, 2, 3], [])
    assert node[(TOPIC, 1)].log.log_end_offset == 1


def test_a_partition_that_is_created_after_the_start_is_not_in_the_missing_directory() -> None:
    world, node, _ = two_disks()
    node.files.rename("/d2", "/away")
    node = restart(world, node)
    other = b"another-topic-id"
    world.change(TopicRecord("other", other), PartitionRecord(other, 0, (1,), (1,), 1))
    assert node[(other, 0)].log.dir == "/d1/other-0"


def test_a_deleted_topic_is_no_longer_offline() -> None:
    world, node, _ = two_disks()
    node.files.fail_next("write", "/d2/orders-1/*", errno.EIO)
    node.produce("a", key=(TOPIC, 1), acks=1)
    world.change(RemoveTopicRecord(TOPIC))
    assert (online(node), offline(node)) == ([], [])


def test_checkpoints_of_the_other_directories_are_written_on() -> None:
    _world, node, failures = two_disks()
    for index in range(2):
        node.produce("a", key=(TOPIC, index), acks=1)
        node.said_by(2, 1, key=(TOPIC, index))
    node.files.fail_next("write", "/d1/replication-offset-checkpoint*", errno.EIO)
    node.manager.checkpoint_high_watermarks()
    assert [path for path, _ in failures.seen] == ["/d1"]
    assert b"orders 1 1" in node.files.read("/d2/replication-offset-checkpoint")


def test_describe_log_dirs_shows_each_directory() -> None:
    _world, node, _ = two_disks()
    node.files.fail_next("write", "/d2/orders-1/*", errno.EIO)

    def described() -> list[tuple[str, int, list[int]]]:
        request = HandledRequest(DescribeLogDirsRequest())
        node.handlers[DESCRIBE_LOG_DIRS](request)  # type: ignore[arg-type]
        results = request.answer.results
        return [(r.log_dir, r.error_code, [p.partition_index for t in r.topics for p in t.partitions]) for r in results]

    assert described() == [("/d1", 0, [0, 2]), ("/d2", 0, [1, 3])]
    node.produce("a", key=(TOPIC, 1), acks=1)
    assert described() == [("/d1", 0, [0, 2]), ("/d2", ErrorCode.KAFKA_STORAGE_ERROR, [])]
