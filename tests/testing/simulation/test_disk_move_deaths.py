"""A broker dies in each of its steps while a log moves to another directory: the next process finds the whole log in one of the
two, with every record that was in the page cache when a process was killed."""

from __future__ import annotations

import pytest
from crash_kit import Death, Seeds, deaths, found_by, several, steps
from handled_request import HandledRequest
from replica_world import NOW_MS, Node, ReplicaWorld, log_values

from strandline.broker.moves.mover import FOLLOW_MS
from strandline.broker.replica_manager import ReplicaConfig
from strandline.protocol.apis import ALTER_REPLICA_LOG_DIRS
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import AlterReplicaLogDir, AlterReplicaLogDirsRequest, AlterReplicaLogDirTopic
from strandline.storage.directory import future_logs
from strandline.storage.disk import Files
from strandline.testing.simulation.kernel.disk import SimFiles

TURN_S = FOLLOW_MS / 1000


class MoveWitness:
    def __init__(self) -> None:
        self.acked: list[bytes] = []
        self.flushed: list[bytes] = []
        """The part of `acked` that was on the disk before the move began."""


def world_on(files: Files) -> tuple[ReplicaWorld, Node]:
    """A world in which broker 1 has two disks, and leads its only partition. At level 0 no controller has to accept a move."""
    world = ReplicaWorld(0, paths=("/d1", "/d2"), config=ReplicaConfig())
    node = world.add_node(1, files)  # type: ignore[arg-type]
    for log_dir in node.log_dirs.dirs:
        log_dir.futures.recover(NOW_MS)
    world.topic(replicas=(1,))
    return world, node


def produce(node: Node, witness: MoveWitness, *values: bytes) -> None:
    answer = node.produce(*values, acks=1)
    if answer.answer.partitions[0].error_code == ErrorCode.NONE:
        witness.acked += values


def move(node: Node, path: str) -> None:
    request = HandledRequest(AlterReplicaLogDirsRequest([AlterReplicaLogDir(path, [AlterReplicaLogDirTopic("orders", [0])])]))
    node.handlers[ALTER_REPLICA_LOG_DIRS](request)  # type: ignore[arg-type]
    assert request.answer.results[0].partitions[0].error_code == ErrorCode.NONE


def there_and_back(files: Files, witness: MoveWitness) -> None:
    world, node = world_on(files)
    produce(node, witness, b"a", b"b")
    node.p.log.flush()
    node.log_dirs.of(node.p.log).checkpoint_all()
    witness.flushed = list(witness.acked)
    for path, value in (("/d2", b"c"), ("/d1", b"d")):
        move(node, path)
        produce(node, witness, value)
        world.loop.advance(5 * TURN_S)
        assert node.p.log.dir == f"{path}/orders-0"
        produce(node, witness, value * 2)


def check(death: Death | str, disk: SimFiles, witness: MoveWitness) -> None:
    try:
        world, node = world_on(disk.mount())
        found = [value for _, value in log_values(node.p)]
        expected = witness.flushed if isinstance(death, Death) and death.seed else witness.acked
        assert found[: len(expected)] == expected, f"{found}, but {expected} was acknowledged"
        world.loop.advance(5 * TURN_S)
        assert [value for _, value in log_values(node.p)] == found, "a move that continues changes nothing"
        produce(node, witness, b"later")
        move(node, "/d2" if node.p.log.dir.startswith("/d1") else "/d1")
        world.loop.advance(5 * TURN_S)
        assert [value for _, value in log_values(node.p)] == [*found, b"later"]
        names = [name for path in ("/d1", "/d2") for name in disk.list(path) if name.startswith("orders-")]
        assert "orders-0" in names
        assert not any(name.endswith("-future") for name in names), names
    except Exception as e:
        raise AssertionError(f"{death}: {type(e).__name__}: {e}") from e


@several
def test_a_death_in_any_step_leaves_one_whole_log(seeds: Seeds) -> None:
    for death, disk, witness in deaths(there_and_back, MoveWitness, seeds):
        check(death, disk, witness)


def test_a_move_takes_the_steps_of_its_page() -> None:
    renames = [path for operation, path in steps(there_and_back, MoveWitness, lambda disk: None) if operation == "rename"]
    ends = [path for path in renames if path.endswith(("-future", "/orders-0"))]
    assert [path.split("/")[1] for path in ends] == ["d2", "d1", "d1", "d2"], "the copy gets its name, then the old log loses it"


def test_without_the_note_a_death_between_the_renames_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(future_logs, "encode_replaced", lambda directory_id: b"")

    def look() -> None:
        for death, disk, witness in deaths(there_and_back, MoveWitness, (0,)):
            check(death, disk, witness)

    assert "orders-0 is in two data directories" in found_by(look)
