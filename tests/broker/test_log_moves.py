"""A replica moves to another log directory of its broker: copied, promoted, cancelled, and resumed by the next process."""

from __future__ import annotations

import errno

import pytest
from handled_request import HandledRequest
from replica_world import NOW_MS, TOPIC, Node, P, ReplicaWorld, code, log_values, register

from strandline.broker.moves.mover import FOLLOW_MS, RETRY_MS
from strandline.broker.process.directory_assignment import wrong_assignments
from strandline.broker.replica_manager import ReplicaConfig
from strandline.controller.metadata.records import FeatureLevelRecord, PartitionChangeRecord, RemoveTopicRecord
from strandline.protocol.apis import ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS
from strandline.protocol.errors import ErrorCode
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.admin import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
)
from strandline.protocol.partitions import TopicIdPartition

PATHS = ("/d1", "/d2")
TURN_S = FOLLOW_MS / 1000


class Controller:
    """Takes the assignments of a broker, and answers when the test says so."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.asked: list[dict[TopicIdPartition, bytes]] = []
        node.manager.moves.assign = self.asked.append

    def answer(self, error: ErrorCode = ErrorCode.NONE) -> None:
        for key, directory_id in self.asked.pop(0).items():
            self._node.manager.moves.on_assigned(key, directory_id, error)


def world_of(*, level: int = 1, **config: float) -> tuple[ReplicaWorld, Node, Controller]:
    """Broker 1 leads P, whose log is in /d1; broker 2 follows."""
    world = ReplicaWorld(2, paths=PATHS, config=ReplicaConfig(**config) if config else None)  # type: ignore[arg-type]
    if level:
        world.change(FeatureLevelRecord(METADATA_VERSION, level))
    world.topic(replicas=(1, 2))
    return world, world[1], Controller(world[1])


def move(node: Node, path: str, *, topic: str = "orders", index: int = 0) -> ErrorCode:
    request = HandledRequest(AlterReplicaLogDirsRequest([AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(topic, [index])])]))
    node.handlers[ALTER_REPLICA_LOG_DIRS](request)  # type: ignore[arg-type]
    return ErrorCode(request.answer.results[0].partitions[0].error_code)


def begin(world: ReplicaWorld, node: Node, path: str = "/d2") -> None:
    assert move(node, path) == ErrorCode.NONE
    world.loop.advance(5 * TURN_S)


def finish(world: ReplicaWorld, controller: Controller) -> None:
    """The copy catches up, the controller accepts its directory, and the copy becomes the log."""
    world.loop.advance(5 * TURN_S)
    controller.answer()
    world.loop.advance(TURN_S)


def names(node: Node, path: str) -> list[str]:
    """The directories of logs in a data directory. A future replica is named without its topic id."""
    found = [name for name in node.files.list(path) if node.files.is_dir(f"{path}/{name}")]
    return [name.replace(f".{TOPIC.hex()}", "") for name in found]


def restart(world: ReplicaWorld, node: Node, *, lossy: bool = False) -> Node:
    node.files.crash(lossy=lossy)
    again = world.add_node(node.id, node.files)
    for log_dir in again.log_dirs.dirs:
        log_dir.futures.recover(NOW_MS)
    world.catch_up(node.id)
    return again


def test_a_move_to_a_disk_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk filled up, it would go offline with all its replicas. Copies in progress count, because they need the room,
    too."""
    world = ReplicaWorld(2, paths=PATHS, config=ReplicaConfig(replica_alter_log_dirs_io_max_bytes_per_second=1.0))
    world.topic(replicas=(1, 2), partitions=3)
    node = world[1]
    for index in (0, 2):
        answer = node.produce("a" * 1000, key=(TOPIC, index), acks=1)
        assert code(answer) == ErrorCode.NONE
    size = node[TOPIC, 0].log.size_bytes
    free = [size]
    monkeypatch.setattr(node.files, "free_space", lambda path: free[0] if path == "/d2" else None)
    assert move(node, "/d2") == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert names(node, "/d2") == ["orders-1"]
    free[0] = round(1.1 * size)
    assert move(node, "/d2") == ErrorCode.NONE
    assert node.manager.moves.to(node.log_dirs.dirs[1]) == (1, size)
    assert move(node, "/d2", index=2) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    free[0] = round(2.2 * size)
    assert move(node, "/d2", index=2) == ErrorCode.NONE
    assert node.manager.moves.to(node.log_dirs.dirs[1]) == (2, 2 * size)
    free[0] = 0
    assert move(node, "/d2", index=2) == ErrorCode.NONE, "it moves there already"
    assert move(node, "/d1", index=2) == ErrorCode.NONE, "a cancelled move needs no room"
    assert node.manager.moves.to(node.log_dirs.dirs[1]) == (1, size)


def test_moves_are_counted() -> None:
    world, node, controller = world_of()
    node.produce("a", "b", acks=1)
    moves, size = node.manager.moves, node.p.log.size_bytes
    begin(world, node)
    assert (moves.moved, moves.copied_bytes) == (0, size)
    finish(world, controller)
    assert (moves.moved, moves.copied_bytes, moves.to(node.log_dirs.dirs[1])) == (1, size, (0, 0))


def test_a_replica_moves_when_the_controller_has_accepted() -> None:
    world, node, controller = world_of()
    node.produce("a", "b", acks=1)
    before = log_values(node.p)
    begin(world, node)
    assert controller.asked == [{P: node.log_dirs.dirs[1].directory_id}]
    assert (names(node, "/d1"), names(node, "/d2")) == (["orders-0"], ["orders-0-future"])
    node.produce("c", acks=1)
    world.loop.advance(TURN_S)
    assert node.p.log.dir == "/d1/orders-0", "it is not promoted before the controller has accepted"
    controller.answer()
    world.loop.advance(TURN_S)
    assert node.p.log.dir == "/d2/orders-0"
    assert [value for _, value in log_values(node.p)] == [*(value for _, value in before), b"c"]
    assert (names(node, "/d1"), names(node, "/d2")) == ([], ["orders-0"])
    assert node.log_dirs.of(node.p.log).path == "/d2"
    assert code(node.produce("d", acks=1)) == ErrorCode.NONE
    assert world.loop.armed == [], "no timer runs when no move is under way"


def test_the_moved_log_is_complete_after_a_restart() -> None:
    world, node, controller = world_of()
    node.produce("a", "b", acks=1)
    begin(world, node)
    controller.answer()
    world.loop.advance(TURN_S)
    node.produce("c", acks=1)
    values, epochs = log_values(node.p), node.p.log.epochs.entries
    again = restart(world, node)
    assert again.p.log.dir == "/d2/orders-0"
    assert (log_values(again.p), again.p.log.epochs.entries) == (values, epochs)


def test_the_moved_log_survives_a_power_cut() -> None:
    world, node, controller = world_of()
    node.produce("a", "b", acks=1)
    values = log_values(node.p)
    begin(world, node)
    controller.answer()
    world.loop.advance(TURN_S)
    assert log_values(restart(world, node, lossy=True).p) == values


def test_the_copy_follows_a_truncation() -> None:
    world, node, controller = world_of()
    world.elect(2)
    world.elect(1)
    node.produce("a", "b", acks=1)
    node.produce("c", acks=1)
    begin(world, node)
    world.elect(2)
    node.p.truncate_to(2, "a test")
    world.elect(1)
    node.produce("d", acks=1)
    finish(world, controller)
    assert node.p.log.dir == "/d2/orders-0"
    assert [value for _, value in log_values(node.p)] == [b"a", b"b", b"d"]


def test_the_copy_begins_anew_when_the_log_does() -> None:
    world, node, controller = world_of()
    node.produce("a", "b", acks=1)
    begin(world, node)
    node.p.log.truncate_fully_and_start_at(7)
    finish(world, controller)
    log = node.p.log
    assert (log.dir, log.log_start_offset, log.log_end_offset) == ("/d2/orders-0", 7, 7)


def test_a_move_to_the_present_directory_cancels() -> None:
    world, node, controller = world_of()
    begin(world, node)
    assert move(node, "/d1/") == ErrorCode.NONE
    assert (names(node, "/d1"), names(node, "/d2")) == (["orders-0"], [])
    first, second = (log_dir.directory_id for log_dir in node.log_dirs.dirs)
    assert controller.asked == [{P: second}, {P: first}], "the announced directory is taken back"
    controller.answer()
    world.loop.advance(1.0)
    assert node.p.log.dir == "/d1/orders-0"
    assert not node.p.log.is_being_moved
    assert world.loop.armed == []


def test_a_repeated_request_changes_nothing() -> None:
    world, node, controller = world_of()
    begin(world, node)
    begin(world, node)
    assert len(controller.asked) == 1


def test_a_log_moves_back() -> None:
    world, node, controller = world_of()
    node.produce("a", acks=1)
    for path in ("/d2", "/d1", "/d2"):
        begin(world, node, path)
        controller.answer()
        world.loop.advance(TURN_S)
        assert node.p.log.dir == f"{path}/orders-0"
    assert [value for _, value in log_values(restart(world, node).p)] == [b"a"]


def test_level_0_needs_no_acceptance() -> None:
    world, node, controller = world_of(level=0)
    begin(world, node)
    assert (node.p.log.dir, controller.asked) == ("/d2/orders-0", [])


@pytest.mark.parametrize("turns", range(6))
def test_the_level_is_raised_during_a_move(turns: int) -> None:
    """The broker reports the directories of all its replicas then, also that of a log which is about to be replaced. After that
    the copy may take its place only when the controller has accepted the new directory."""
    world, node, controller = world_of(level=0)
    node.produce("a", acks=1)
    first, second = (log_dir.directory_id for log_dir in node.log_dirs.dirs)
    assert move(node, "/d2") == ErrorCode.NONE
    world.loop.advance(turns * TURN_S)
    before = world.image
    world.change(FeatureLevelRecord(METADATA_VERSION, 1))
    reported = wrong_assignments(before.delta_to(world.image), node.manager.directory, node.log_dirs)
    was_moved = node.p.log.dir == "/d2/orders-0"
    assert reported == {P: second if was_moved else first}
    world.loop.advance(10 * TURN_S)
    assert controller.asked == ([] if was_moved else [{P: second}])
    assert node.p.log.dir == ("/d2/orders-0" if was_moved else "/d1/orders-0")
    if not was_moved:
        controller.answer()
        world.loop.advance(TURN_S)
        assert node.p.log.dir == "/d2/orders-0"


@pytest.mark.parametrize(
    ("path", "topic", "expected"),
    [
        ("/d3", "orders", ErrorCode.LOG_DIR_NOT_FOUND),
        ("/d3", "nothing", ErrorCode.LOG_DIR_NOT_FOUND),
        ("/d2", "nothing", ErrorCode.REPLICA_NOT_AVAILABLE),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(path: str, topic: str, expected: ErrorCode) -> None:
    _world, node, _ = world_of()
    assert move(node, path, topic=topic) == expected


def test_an_unknown_partition_is_refused() -> None:
    _world, node, _ = world_of()
    assert move(node, "/d2", index=9) == ErrorCode.REPLICA_NOT_AVAILABLE


def test_an_offline_directory_is_refused() -> None:
    world, node, _ = world_of()
    node.files.fail_next("write", "/d2/*", errno.EIO)
    assert move(node, "/d2") == ErrorCode.KAFKA_STORAGE_ERROR
    assert move(node, "/d2") == ErrorCode.KAFKA_STORAGE_ERROR
    assert code(node.produce("a", acks=1)) == ErrorCode.NONE, "the replica goes on in its directory"
    world.loop.advance(1.0)


def test_the_target_fails_during_a_move() -> None:
    world, node, controller = world_of()
    node.produce("a", acks=1)
    begin(world, node)
    node.files.fail_next("write", "/d2/*", errno.EIO)
    node.produce("b", acks=1)
    world.loop.advance(TURN_S)
    assert [log_dir.path for log_dir in node.log_dirs.online] == ["/d1"]
    assert controller.asked[1:] == [{P: node.log_dirs.dirs[0].directory_id}]
    assert code(node.produce("c", acks=1)) == ErrorCode.NONE
    assert not node.p.log.is_being_moved


def test_the_source_fails_during_a_move() -> None:
    world, node, controller = world_of()
    node.produce("a", acks=1)
    begin(world, node)
    node.files.fail_next("write", "/d1/orders-0/*", errno.EIO)
    assert code(node.produce("b", acks=1)) == ErrorCode.KAFKA_STORAGE_ERROR
    assert controller.asked[1:] == [{P: node.log_dirs.dirs[0].directory_id}], "the controller learns where the replica is"
    controller.answer()
    world.loop.advance(1.0)
    assert P not in node.manager.partitions
    assert names(node, "/d2") == ["orders-0-future"]


def test_a_rename_that_fails_leaves_no_log_that_takes_records() -> None:
    """The rename may have happened all the same, so the old log must take no more records."""
    world, node, controller = world_of()
    node.produce("a", acks=1)
    begin(world, node)
    node.files.fail_next("rename", f"/d2/orders-0.{TOPIC.hex()}-future", errno.EIO)
    controller.answer()
    world.loop.advance(TURN_S)
    assert P not in node.manager.partitions
    assert code(node.produce("b", acks=1)) == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_deleted_topic_ends_its_move() -> None:
    world, node, _ = world_of()
    begin(world, node)
    world.change(RemoveTopicRecord(TOPIC))
    assert (names(node, "/d1"), names(node, "/d2")) == ([], [])
    world.loop.advance(1.0)
    assert world.loop.armed == []


def test_a_replica_that_leaves_the_broker_ends_its_move() -> None:
    world, node, _ = world_of()
    begin(world, node)
    world.change(PartitionChangeRecord(*P, isr=(2,), leader=2, replicas=(2,)))
    assert (names(node, "/d1"), names(node, "/d2")) == ([], [])


def test_a_change_of_the_role_does_not_end_a_move() -> None:
    world, node, controller = world_of()
    node.produce("a", acks=1)
    begin(world, node)
    world.elect(2)
    controller.answer()
    world.loop.advance(TURN_S)
    assert node.p.log.dir == "/d2/orders-0"
    world.elect(1)
    assert code(node.produce("b", acks=1)) == ErrorCode.NONE


def test_the_next_process_continues_a_move() -> None:
    world, node, _ = world_of()
    node.produce("a", "b", acks=1)
    begin(world, node)
    node.produce("c", acks=1)
    again = restart(world, node)
    controller = Controller(again)
    assert again.p.log.dir == "/d1/orders-0"
    assert again.p.log.is_being_moved
    finish(world, controller)
    assert again.p.log.dir == "/d2/orders-0"
    assert [value for _, value in log_values(again.p)] == [b"a", b"b", b"c"]


def test_a_move_is_dropped_when_the_page_cache_was_lost() -> None:
    """The broker flushes a copy only when it is complete, so after a power cut any of its records may be missing."""
    world, node, _ = world_of()
    node.produce("a", "b", acks=1)
    node.p.log.flush()
    begin(world, node)
    again = restart(world, node, lossy=True)
    assert not again.p.log.is_being_moved
    assert all(not len(log_dir.futures) for log_dir in again.log_dirs.dirs)


def test_the_next_process_drops_the_copy_of_a_deleted_topic() -> None:
    world, node, _ = world_of()
    begin(world, node)
    node.files.crash(lossy=False)
    world.change(RemoveTopicRecord(TOPIC), at=[])
    again = world.add_node(node.id, node.files)
    for log_dir in again.log_dirs.dirs:
        log_dir.futures.recover(NOW_MS)
    world.catch_up(node.id)
    assert names(again, "/d2") == []


def test_the_copy_of_a_log_in_a_missing_directory_is_not_served() -> None:
    """The controller may have accepted the new directory, but records that were acknowledged since may be missing in the copy."""
    world, node, controller = world_of()
    node.produce("a", acks=1)
    begin(world, node)
    controller.answer()
    target = node.log_dirs.dirs[1].directory_id
    world.change(PartitionChangeRecord(*P, directories=(target, bytes(16))), at=[])
    node.files.crash(lossy=False)
    node.files.rename("/d1", "/unmounted")
    again = world.add_node(node.id, node.files)
    assert [log_dir.path for log_dir in again.log_dirs.dirs] == ["/d2"]
    world.catch_up(node.id)
    assert P not in again.manager.partitions
    loss = again.log_dirs.record_loss()
    assert loss is not None
    assert loss.partitions == (P,)


def test_a_slow_rate_spreads_the_copy_over_time() -> None:
    world, node, _ = world_of(replica_alter_log_dirs_io_max_bytes_per_second=1000)
    for _ in range(20):
        node.produce("x" * 430, acks=1)
    size = node.p.log.size_bytes
    began_at = world.loop.now()
    assert move(node, "/d2") == ErrorCode.NONE

    def lag() -> int:
        found = node.manager.moves.future_of(P)
        assert found is not None
        return found[2]

    while lag():
        world.loop.advance(TURN_S)
    assert world.loop.now() - began_at == pytest.approx(size / 1000, rel=0.15)


def test_a_new_rate_counts_at_once() -> None:
    world, node, controller = world_of(replica_alter_log_dirs_io_max_bytes_per_second=1)
    for _ in range(20):
        node.produce("x" * 430, acks=1)
    begin(world, node)
    assert controller.asked == []
    node.manager.moves.use_rate(1 << 30)
    world.loop.advance(5 * TURN_S)
    assert len(controller.asked) == 1


def test_one_log_is_copied_at_a_time() -> None:
    world = ReplicaWorld(1, paths=PATHS, config=ReplicaConfig(replica_alter_log_dirs_io_max_bytes_per_second=1000))
    world.topic(replicas=(1,), partitions=4)
    node = world[1]
    for index in (0, 2):
        for _ in range(20):
            node.produce("x" * 430, key=(TOPIC, index), acks=1)
    assert move(node, "/d2", index=0) == move(node, "/d2", index=2) == ErrorCode.NONE
    world.loop.advance(2.0)
    first, second = (node.manager.moves.future_of((TOPIC, index)) for index in (0, 2))
    assert first is not None
    assert second is not None
    assert first[1].log_end_offset > 0
    assert second[1].log_end_offset == 0


def test_describe_names_the_copy_and_what_it_lacks() -> None:
    world, node, _ = world_of(replica_alter_log_dirs_io_max_bytes_per_second=1)
    for _ in range(5):
        node.produce("x", acks=1)
    assert move(node, "/d2") == ErrorCode.NONE
    world.loop.advance(TURN_S)
    request = HandledRequest(DescribeLogDirsRequest())
    node.handlers[DESCRIBE_LOG_DIRS](request)  # type: ignore[arg-type]
    by_dir = {each.log_dir: [part for topic in each.topics for part in topic.partitions] for each in request.answer.results}
    assert [(part.is_future_key, part.partition_size > 0) for part in by_dir["/d1"]] == [(False, True)]
    assert [(part.is_future_key, part.offset_lag) for part in by_dir["/d2"]] == [(True, 4)]


def test_the_state_of_named_producers_moves_too() -> None:
    world, node, controller = world_of()
    node.produce("a", acks=1)
    producers = node.p.log.producers
    begin(world, node)
    controller.answer()
    world.loop.advance(TURN_S)
    assert node.p.log.producers is producers


def test_a_registration_of_the_broker_does_not_restart_a_move() -> None:
    world, node, controller = world_of()
    begin(world, node)
    world.change(register(1, epoch=99))
    assert len(controller.asked) == 1
    assert node.manager.moves.future_of(P) is not None


def test_damage_that_the_copy_meets_is_repaired_and_the_move_goes_on() -> None:
    """A follower fetches again from the damaged batch; until then the copy waits."""
    world, node, controller = world_of()
    world.elect(2)
    leader = world[2]
    for value in ("a", "b", "c"):
        leader.produce(value, acks=1)
    world.replicate(1, 2)
    node.p.log.tail.clear()
    path = "/d1/orders-0/00000000000000000000.log"
    inode = node.files.find(path)
    size = node.p.log.size_bytes // 3
    inode.overwrite(size + 65, b"?")  # type: ignore[union-attr]
    node.fetchers.starts.clear()
    begin(world, node)
    assert node.p.log.corrupt_at == 1
    assert node.fetchers.starts == [(P, 2)], "the fetcher begins at the damage"
    assert controller.asked == []
    world.set_isr(2)
    world.replicate(1, 2)
    world.loop.advance(2 * RETRY_MS / 1000)
    assert len(controller.asked) == 1
    controller.answer()
    world.loop.advance(TURN_S)
    assert node.p.log.dir == "/d2/orders-0"
    assert [value for _, value in log_values(node.p)] == [b"a", b"b", b"c"]
