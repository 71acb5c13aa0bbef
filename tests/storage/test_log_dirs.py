"""Several data directories of one broker: where logs are placed, which directories may be missing, and what refuses the start."""

from __future__ import annotations

import errno
from random import Random

import pytest

from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.storage.checkpoints import RECOVERY_POINTS
from strandline.storage.directory.claims import Claims
from strandline.storage.directory.log_dirs import LogDirs
from strandline.storage.disk import DiskError
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.memory.memory_files import MemoryFiles

NOW_MS = 1_700_000_000_000
X, Y = (bytes([n]) * 16 for n in (1, 2))
PATHS = ("/d1", "/d2", "/d3")


def claim(files: MemoryFiles, paths: tuple[str, ...] = PATHS, **more: object) -> Claims:
    return Claims.take(files, paths, **{"node_id": 1, "role": "broker", **more})  # type: ignore[arg-type]


def open_dirs(files: MemoryFiles, paths: tuple[str, ...] = PATHS) -> LogDirs:
    dirs = claim(files, paths).open(cluster_id="c", random=Random(str(paths)))
    dirs.on_registered()
    return dirs


def open_log(dirs: LogDirs, partition: int, topic_id: bytes = X) -> Log:
    return dirs.open_log("orders", partition, topic_id, LogConfig(), NOW_MS)


def held(dirs: LogDirs) -> list[list[int]]:
    """The partitions that have a log in each directory."""
    return [[log.partition for log in log_dir.existing_logs()] for log_dir in dirs.dirs]


def test_new_logs_go_to_the_directory_with_the_fewest() -> None:
    files = MemoryFiles()
    dirs = open_dirs(files)
    for partition in range(7):
        open_log(dirs, partition)
    assert held(dirs) == [[0, 3, 6], [1, 4], [2, 5]]
    path = dirs.delete_log("orders", 3, X)
    assert path is not None
    assert path.startswith("/d1/")
    dirs.delete_log("orders", 6, X)
    open_log(dirs, 9)
    assert held(dirs) == [[0, 9], [1, 4], [2, 5]]


def test_each_directory_has_its_own_identity_and_checkpoints() -> None:
    files = MemoryFiles()
    dirs = open_dirs(files)
    for partition in range(3):
        open_log(dirs, partition)
    assert len({log_dir.directory_id for log_dir in dirs.dirs}) == 3
    dirs.close(broker_epoch=7)
    for n, path in enumerate(PATHS):
        assert files.read(f"{path}/{RECOVERY_POINTS}") == f"0\n1\norders {n} 0\n".encode()
    again = open_dirs(files)
    assert again.was_clean
    assert again.previous_broker_epoch == 7
    assert [log_dir.directory_id for log_dir in again.dirs] == [log_dir.directory_id for log_dir in dirs.dirs]
    assert held(again) == [[0], [1], [2]]


def test_a_log_is_found_in_its_directory_whatever_the_order_of_the_configuration() -> None:
    files = MemoryFiles()
    dirs = open_dirs(files)
    for partition in range(3):
        open_log(dirs, partition)
    dirs.close()
    again = open_dirs(files, PATHS[::-1])
    for partition in (2, 1, 0):
        assert open_log(again, partition).dir == f"/d{partition + 1}/orders-{partition}"


def test_directories_share_one_budget_and_one_set_of_counters() -> None:
    """More disks must not mean more memory for recent batches."""
    dirs = open_dirs(MemoryFiles())
    assert open_log(dirs, 0).metrics is open_log(dirs, 1).metrics
    assert all(log_dir.budget is dirs.budget for log_dir in dirs.dirs)


def test_the_same_partition_in_two_directories_refuses_the_start() -> None:
    files = MemoryFiles()
    open_log(dirs := open_dirs(files, ("/d1",)), 0)
    dirs.close()
    open_log(dirs := open_dirs(files, ("/d2",)), 0)
    dirs.close()
    with pytest.raises(UsageError, match="orders-0 is in two data directories, /d1/orders-0 and /d2/orders-0"):
        open_dirs(files, ("/d1", "/d2"))
    assert open_dirs(files, ("/d1",)).was_clean, "the refused start released the locks and kept the marker"


def test_a_log_of_a_deleted_topic_does_not_block_its_successor() -> None:
    """The directory was missing while the topic was deleted and created again."""
    files = MemoryFiles()
    open_log(dirs := open_dirs(files, ("/d1",)), 0, X)
    dirs.close()
    open_log(dirs := open_dirs(files, ("/d2",)), 0, Y)
    dirs.close()
    dirs = open_dirs(files, ("/d1", "/d2"))
    assert open_log(dirs, 0, Y).dir == "/d2/orders-0"
    with pytest.raises(BrokerError) as caught:
        open_log(dirs, 0, b"z" * 16)
    assert caught.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
    dirs.set_aside("orders", 0, "another topic has the name now")
    assert open_log(dirs, 0, b"z" * 16)
    assert held(dirs) in ([[0], []], [[], [0]])


def test_a_missing_directory_beside_one_with_data_is_offline_and_returns() -> None:
    """Its disk is not mounted. If the directory were created, empty logs would replace the missing ones."""
    files = MemoryFiles()
    dirs = open_dirs(files, ("/d1", "/d2"))
    for partition in range(2):
        open_log(dirs, partition)
    dirs.close(broker_epoch=5)
    files.rename("/d2", "/elsewhere")
    dirs = open_dirs(files, ("/d1", "/d2"))
    assert dirs.offline == {"/d2": "data directory /d2 cannot be used: it does not exist (is its disk mounted?)"}
    assert not files.exists("/d2")
    assert dirs.previous_broker_epoch == -1, "the missing directory does not say how it was left"
    assert dirs.may_be_offline("orders", 1, X)
    assert not dirs.may_be_offline("orders", 0, X)
    dirs.close(broker_epoch=6)
    files.rename("/elsewhere", "/d2")
    dirs = open_dirs(files, ("/d1", "/d2"))
    assert dirs.offline == {}
    assert held(dirs) == [[0], [1]]
    assert [log_dir.was_clean for log_dir in dirs.dirs] == [True, True]
    assert dirs.previous_broker_epoch == -1, "they were closed by different processes"


def test_all_directories_are_created_at_the_first_start() -> None:
    files = MemoryFiles()
    dirs = open_dirs(files)
    assert dirs.offline == {}
    assert all(files.exists(f"{path}/meta.properties") for path in PATHS)


def test_an_empty_directory_beside_one_with_data_is_a_new_disk() -> None:
    files = MemoryFiles()
    open_dirs(files, ("/d1",)).close()
    files.make_dirs("/d2")
    assert open_dirs(files, ("/d1", "/d2")).offline == {}


def test_a_directory_that_cannot_be_read_is_offline_unless_it_is_the_only_one() -> None:
    files = MemoryFiles()
    open_dirs(files, ("/d1", "/d2")).close()
    files.fail_next("read", "/d2/meta.properties", errno.EIO, times=1)
    dirs = open_dirs(files, ("/d1", "/d2"))
    assert list(dirs.offline) == ["/d2"]
    dirs.close()
    files.fail_next("read", "/d2/meta.properties", errno.EIO, times=2)
    with pytest.raises(UsageError, match="data directory /d2 cannot be used"):
        open_dirs(files, ("/d2",))


def test_a_directory_that_fails_while_it_is_opened_is_offline() -> None:
    files = MemoryFiles()
    open_dirs(files, ("/d1", "/d2")).close()
    claims = claim(files, ("/d1", "/d2"))
    files.fail_next("read", "/d2/recovery-point-offset-checkpoint", errno.EIO, times=1)
    dirs = claims.open(cluster_id="c", random=Random(1))
    assert list(dirs.offline) == ["/d2"]
    assert [log_dir.path for log_dir in dirs.online] == ["/d1"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"node_id": 2}, "/d1 belongs to node 1; this is node 2"),
        ({"cluster_id": "other"}, "/d1 belongs to cluster c; this node is configured for other"),
    ],
    ids=["node", "cluster"],
)
def test_a_directory_of_another_owner_refuses_the_start(change: dict[str, object], sentence: str) -> None:
    files = MemoryFiles()
    open_dirs(files, ("/d1",)).close()
    with pytest.raises(UsageError, match=sentence):
        claim(files, ("/d2", "/d1"), **change)
    assert claim(files, ("/d1",)), "no lock is left"


def test_directories_of_two_clusters_refuse_the_start() -> None:
    files = MemoryFiles()
    for path, cluster in (("/d1", "c"), ("/d2", "e")):
        claim(files, (path,)).open(cluster_id=cluster, random=Random(1)).close()
    with pytest.raises(UsageError, match="/d1 belongs to cluster c, and /d2 to cluster e: check "):
        claim(files, ("/d1", "/d2"))


def test_a_copied_directory_refuses_the_start() -> None:
    files = MemoryFiles()
    open_dirs(files, ("/d1",)).close()
    files.make_dirs("/d2")
    files.write_atomic("/d2/meta.properties", files.read("/d1/meta.properties"))
    with pytest.raises(UsageError, match="/d1 and /d2 have the same directory"):
        claim(files, ("/d1", "/d2"))


def test_a_disk_error_belongs_to_the_directory_of_its_path() -> None:
    dirs = open_dirs(MemoryFiles(), ("/d1", "/d1x", "/d2"))
    for path, expected in (("/d1x/orders-0/0.log", ["/d1x"]), ("/d1", ["/d1"]), ("/other", ["/d1", "/d1x", "/d2"])):
        assert [log_dir.path for log_dir in dirs.of_error(DiskError("write", path, errno.EIO))] == expected


def test_the_others_are_closed_in_order_when_one_has_failed() -> None:
    files = MemoryFiles()
    dirs = open_dirs(files, ("/d1", "/d2"))
    dirs.dirs[0].fail(DiskError("write", "/d1/x", errno.EIO))
    dirs.close(broker_epoch=9)
    again = open_dirs(files, ("/d1", "/d2"))
    assert [(log_dir.was_clean, log_dir.previous_broker_epoch) for log_dir in again.dirs] == [(False, -1), (True, 9)]
