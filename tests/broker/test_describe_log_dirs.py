"""DescribeLogDirs: the size of each replica on its broker's disk, and how far it is behind."""

from __future__ import annotations

from handled_request import HandledRequest
from replica_world import TOPIC, Node, ReplicaWorld

from strandline.protocol.apis import DESCRIBE_LOG_DIRS
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import DescribableLogDirTopic, DescribeLogDirsRequest, DescribeLogDirsResult
from strandline.storage.files import DiskError
from strandline.storage.memory.memory_files import MemoryFiles


def describe(node: Node, topics: list[DescribableLogDirTopic] | None = None) -> DescribeLogDirsResult:
    request = HandledRequest(DescribeLogDirsRequest(topics))
    node.handlers[DESCRIBE_LOG_DIRS](request)  # type: ignore[arg-type]
    (result,) = request.answer.results
    assert isinstance(result, DescribeLogDirsResult)
    return result


def test_leader_and_follower_name_the_size_of_their_replicas() -> None:
    world = ReplicaWorld()
    world.topic(replicas=(1, 2))
    name = world.image.topics_by_id[TOPIC].name
    empty = describe(world[2])
    assert [(t.name, [(p.partition_index, p.partition_size) for p in t.partitions]) for t in empty.topics] == [(name, [(0, 0)])]
    world[1].produce("a", "b", acks=1)
    (topic,) = describe(world[1]).topics
    assert topic.partitions[0].partition_size == world[1].p.log.size_bytes > 0
    assert topic.partitions[0].offset_lag == 0
    assert describe(world[3]).topics == []


def test_a_replica_that_lacks_committed_records_has_an_offset_lag() -> None:
    """After a truncation, for example, the log ends below the high watermark that the replica has received."""
    world = ReplicaWorld()
    world.topic(replicas=(1, 2))
    world[2].p.log.high_watermark = 5
    (topic,) = describe(world[2]).topics
    assert topic.partitions[0].offset_lag == 5


def test_only_requested_replicas_are_described() -> None:
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    name = world.image.topics_by_id[TOPIC].name
    assert describe(world[1], [DescribableLogDirTopic("other")]).topics == []
    assert describe(world[1], [DescribableLogDirTopic(name, [7])]).topics == []
    (topic,) = describe(world[1], [DescribableLogDirTopic(name, [0, 0, 7])]).topics
    assert [p.partition_index for p in topic.partitions] == [0]


def test_a_failed_log_directory_is_an_error_without_replicas() -> None:
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    world[1].manager.on_disk_error(DiskError("write", "x", 5))
    result = describe(world[1])
    assert (result.error_code, result.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


def test_the_size_of_a_disk_is_returned_if_it_is_known() -> None:
    """A disk in memory has no known size."""

    class SizedFiles(MemoryFiles):
        def total_space(self, path: str) -> int:
            return 1000

        def free_space(self, path: str) -> int:
            return 300

    world = ReplicaWorld()
    world.add_node(7, SizedFiles())
    world.topic(replicas=(1,))
    unknown, known = describe(world[1]), describe(world[7])
    assert (unknown.total_bytes, unknown.usable_bytes) == (-1, -1)
    assert (known.total_bytes, known.usable_bytes) == (1000, 300)
