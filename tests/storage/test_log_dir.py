"""The data directory: its owner, its lock, and its checkpoints (F12, F16, F18, F23, F24, S35, S44)."""

from __future__ import annotations

import errno
import subprocess
import sys
from random import Random

import pytest
from storage_kit import NOW_MS, batch, fill, read_all

from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.storage.directory.log_dir import LogDir, RecordLoss, log_name, parse_log_name
from strandline.storage.disk import DiskError
from strandline.storage.files import RealFiles
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.memory.memory_files import MemoryFiles

X, Y = b"x" * 16, b"y" * 16
CONFIG = LogConfig(segment_bytes=400)


def open_dir(files: MemoryFiles, node_id: int = 1, cluster_id: str | None = "c1", *, registers: bool = True) -> LogDir:
    log_dir = LogDir.open(files, "data", node_id=node_id, cluster_id=cluster_id, random=Random(1))
    if registers:
        log_dir.on_registered()
    return log_dir


def open_orders(log_dir: LogDir, topic_id: bytes = X, partition: int = 0) -> Log:
    return log_dir.open_log("orders", partition, topic_id, CONFIG, NOW_MS)


def restart(files: MemoryFiles, log_dir: LogDir, *, clean: bool, registers: bool = True) -> LogDir:
    if clean:
        log_dir.close(clean=True, broker_epoch=17)
    else:
        files.crash(lossy=False)
    return open_dir(files, registers=registers)


def test_an_orderly_stop_flushes_all_logs_with_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of logs that wait for the disk one after the other take longer than a supervisor waits."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    logs = [open_orders(log_dir, partition=partition) for partition in range(20)]
    for log in logs:
        log.possible_data_loss = False
        fill(log, 10)
    calls: list[list[str]] = []
    together = files.fsync_paths
    monkeypatch.setattr(files, "fsync_paths", lambda paths: (calls.append(list(paths)), together(paths)))
    monkeypatch.setattr(Log, "flush", lambda log: pytest.fail(f"{log.dir} is flushed by itself"))
    log_dir.close(clean=True, broker_epoch=17)
    (paths,) = calls
    assert len(set(paths)) == len(paths), "the data directory once"
    assert {segment.file.path for log in logs for segment in log.segments} <= set(paths)
    files.crash(lossy=True)
    monkeypatch.undo()
    again = open_dir(files)
    assert again.was_clean
    assert [open_orders(again, partition=log.partition).log_end_offset for log in logs] == [20] * 20


def test_after_a_lost_page_cache_every_log_has_possible_data_loss() -> None:
    """The log just ends earlier. A replica that leads with it must report that, even if the process died once more before."""
    files = MemoryFiles()
    log = open_orders(open_dir(files))
    fill(log, 10)
    files.crash(lossy=False)
    log_dir = open_dir(files)
    assert not log_dir.in_doubt, "only the process died"
    assert not open_orders(log_dir).possible_data_loss
    files.crash(lossy=True)
    log_dir = open_dir(files)
    assert open_orders(log_dir).possible_data_loss
    log_dir = restart(files, log_dir, clean=False)
    assert open_orders(log_dir).possible_data_loss, "a killed process forgets nothing"
    log_dir = restart(files, log_dir, clean=True)
    log = open_orders(log_dir)
    assert log.possible_data_loss, "an orderly stop before it followed a leader keeps the doubt"
    log.possible_data_loss = False
    log_dir = restart(files, log_dir, clean=True)
    assert log_dir.was_clean
    files.crash(lossy=True)  # it was closed in order, but later writes were lost
    assert open_dir(files).in_doubt


def test_a_killed_process_has_lost_nothing() -> None:
    files = MemoryFiles()
    log_dir = open_dir(files)
    fill(open_orders(log_dir), 10)
    log_dir = restart(files, log_dir, clean=False)
    open_orders(log_dir)
    assert log_dir.record_loss() is None
    assert log_dir.record_loss(trust_only_clean_stops=True) == RecordLoss(False, ())
    log_dir = restart(files, log_dir, clean=True)
    open_orders(log_dir).possible_data_loss = False
    assert log_dir.record_loss(trust_only_clean_stops=True) is None


def test_a_lost_page_cache_concerns_all_logs() -> None:
    """This includes logs whose directory was lost, too, so that the disk no longer shows that they existed."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    files.fsync_dir("data")
    log_dir.close(clean=False)
    files.crash(lossy=True)
    log_dir = open_dir(files, registers=False)
    assert not log_dir.existing_logs()
    assert log_dir.record_loss() == RecordLoss(False, ())
    log_dir.checkpoint_all()
    log_dir = restart(files, log_dir, clean=False, registers=False)
    assert log_dir.record_loss() == RecordLoss(False, ()), "it could not register before it was killed"
    log_dir.on_registered()
    log_dir.checkpoint_all()
    log_dir = restart(files, log_dir, clean=False)
    assert log_dir.record_loss() is None, "the controllers know of the loss"


def test_an_empty_disk_is_reported_although_the_process_died_before_it_registered() -> None:
    files = MemoryFiles()
    log_dir = open_dir(files, registers=False)
    assert log_dir.is_fresh
    assert log_dir.record_loss() == RecordLoss(False, ())
    log_dir.checkpoint_all()
    for clean in False, True:
        log_dir.close(clean=clean)
        log_dir = open_dir(files, registers=False)
        assert log_dir.record_loss() == RecordLoss(False, ())
    log_dir.on_registered()
    log_dir.checkpoint_all()
    log_dir = restart(files, log_dir, clean=False)
    assert log_dir.record_loss() is None


def test_a_log_that_shows_a_loss_is_named() -> None:
    files = MemoryFiles()
    log_dir = open_dir(files)
    for partition in (0, 1, 2):
        log = open_orders(log_dir, partition=partition)
        log.possible_data_loss = False
        fill(log, 10)
        log.update_high_watermark(log.log_end_offset)
    log_dir.checkpoint_all()
    files.crash(lossy=False)
    cut = files.open(log.segments[-1].file.path, create=False)
    cut.truncate(cut.size - 5)
    log_dir = open_dir(files)
    logs = [open_orders(log_dir, partition=partition) for partition in (0, 1, 2)]
    assert log_dir.record_loss() == RecordLoss(True, ((X, 2),))
    logs[0].mark_corrupt(3)
    assert log_dir.record_loss() == RecordLoss(True, ((X, 0), (X, 2)))


def test_a_damaged_checkpoint_hides_losses() -> None:
    """Without its high watermark, a log does not show that it ends below it."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    fill(open_orders(log_dir), 10)
    log_dir.checkpoint_all()
    files.write_atomic("data/replication-offset-checkpoint", b"0\n1\nmeaningless\n")
    log_dir = restart(files, log_dir, clean=False)
    assert log_dir.record_loss() == RecordLoss(False, ())


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_damaged_checkpoint_is_reported_although_the_process_died_before_it_registered(is_clean: bool) -> None:
    """The start replaces the damaged file, so the next process finds nothing wrong with it."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    fill(open_orders(log_dir), 10)
    log_dir.checkpoint_all()
    log_dir = restart(files, log_dir, clean=False)
    files.write_atomic("data/replication-offset-checkpoint", b"0\n1\nmeaningless\n")
    for _ in range(2):
        log_dir = restart(files, log_dir, clean=False, registers=False)
        open_orders(log_dir).possible_data_loss = False
        log_dir.checkpoint_all()
        assert log_dir.record_loss() == RecordLoss(False, ())
        if is_clean:
            log_dir.close(clean=True)
    log_dir = restart(files, log_dir, clean=False)
    assert log_dir.record_loss() == RecordLoss(False, ())
    open_orders(log_dir).possible_data_loss = False
    log_dir.checkpoint_all()
    log_dir = restart(files, log_dir, clean=False)
    assert log_dir.record_loss() is None, "the controllers know of the loss"


def test_a_new_boot_after_an_orderly_stop_is_no_doubt() -> None:
    files = MemoryFiles()
    log_dir = open_dir(files)
    log = open_orders(log_dir)
    fill(log, 10)
    log.possible_data_loss = False
    log_dir.close(clean=True, broker_epoch=17)
    files.crash(lossy=True)
    log_dir = open_dir(files)
    assert log_dir.was_clean
    assert not log_dir.in_doubt
    assert not open_orders(log_dir).possible_data_loss
    files.crash(lossy=False)
    assert not open_dir(files).in_doubt, "the new boot id was written"


def test_a_lost_tail_is_remembered_after_the_process_died() -> None:
    """The start adjusts the checkpoints, which then no longer show the loss."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    log = open_orders(log_dir)
    fill(log, 10)
    log.update_high_watermark(log.log_end_offset)
    log_dir.checkpoint_all()
    segment = log.segments[-1].file
    files.crash(lossy=False)
    cut = files.open(segment.path, create=False)
    cut.truncate(cut.size - 5)
    log_dir = open_dir(files)
    assert open_orders(log_dir).possible_data_loss
    log_dir = restart(files, log_dir, clean=False)
    assert open_orders(log_dir).possible_data_loss


def test_a_recreated_log_is_in_doubt_after_the_process_died() -> None:
    """The disk was replaced by an empty one, and the process died before it was a leader; the next process finds the empty
    log."""
    files = MemoryFiles()
    log = open_dir(files).open_log("orders", 0, X, LogConfig(), NOW_MS, may_be_new=False)
    assert log.possible_data_loss
    files.crash(lossy=False)
    log_dir = open_dir(files)
    assert log_dir.in_doubt
    log = open_orders(log_dir)
    assert log.possible_data_loss
    log.possible_data_loss = False
    log_dir.checkpoint_all()
    files.crash(lossy=False)
    assert not open_dir(files).in_doubt, "the log has led or followed, so the doubt has ended"


def test_an_orderly_restart_finds_the_same_state() -> None:
    files = MemoryFiles()
    log_dir = open_dir(files)
    assert not log_dir.was_clean
    log = open_orders(log_dir)
    held = fill(log, 10, epoch=3)
    log.possible_data_loss = False  # it leads in the first epoch
    log.update_high_watermark(18)
    again = restart(files, log_dir, clean=True)
    assert (again.was_clean, again.previous_broker_epoch) == (True, 17)
    assert again.directory_id == log_dir.directory_id
    assert again.existing_logs() == [("orders", 0, X)]
    log = open_orders(again)
    assert read_all(log) == held
    assert (log.high_watermark, log.recovery_point, log.latest_epoch) == (18, 20, 3)
    assert not files.exists("data/.kafka_cleanshutdown")


def test_a_killed_broker_finds_its_checkpoints_and_scans() -> None:
    files = MemoryFiles()
    log_dir = open_dir(files)
    log = open_orders(log_dir)
    held = fill(log, 10)
    log.update_high_watermark(12)
    log_dir.checkpoint_high_watermarks()
    log.update_high_watermark(20)
    again = restart(files, log_dir, clean=False)
    assert (again.was_clean, again.previous_broker_epoch) == (False, -1)
    log = open_orders(again)
    assert (read_all(log), log.high_watermark) == (held, 12)


@pytest.mark.parametrize(
    "name",
    [
        "replication-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "cleaner-offset-checkpoint",
    ],
)
@pytest.mark.parametrize("content", [b"", b"0\n3\norders 0 5\n", b"0\n1\norders 0 99999", b"\x00" * 40, b"9\n0\n"])
def test_damaged_checkpoints_count_as_zero(name: str, content: bytes) -> None:
    """S44, F18."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    log = open_orders(log_dir)
    held = fill(log, 10)
    log.update_high_watermark(20)
    log_dir.close()
    files.write(f"data/{name}", content)
    log = open_orders(open_dir(files))
    assert read_all(log) == held
    assert log.high_watermark in (0, 20)


def test_a_directory_has_one_process_and_one_node() -> None:
    """F16, F24."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    with pytest.raises(UsageError, match="in use"):
        open_dir(files)
    log_dir.close()
    with pytest.raises(UsageError, match="belongs to node 1; this is node 2"):
        open_dir(files, node_id=2)
    with pytest.raises(UsageError, match="belongs to cluster c1"):
        open_dir(files, cluster_id="other")
    open_dir(files).close()


@pytest.mark.parametrize(
    "content", [b"", b"version=1\n", b"\xff\xfe", b"version=99\nnode.id=1\n", b"node.id=1\ncluster.id=c1\n", b"{}"]
)
def test_a_damaged_meta_properties_refuses_to_start(content: bytes) -> None:
    """F18: a fresh start would give the data of one node to another. The lock is released."""
    files = MemoryFiles()
    open_dir(files).close()
    files.write_atomic("data/meta.properties", content)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"meta\.properties"):
            open_dir(files)


def test_logs_without_meta_properties_are_not_adopted() -> None:
    files = MemoryFiles()
    log_dir = open_dir(files)
    open_orders(log_dir)
    log_dir.close()
    files.remove("data/meta.properties")
    with pytest.raises(UsageError, match="node and cluster are not known"):
        open_dir(files)


SECOND_PROCESS = """
import sys
from strandline.protocol.errors import UsageError
from strandline.storage.files import RealFiles
from strandline.storage.directory.log_dir import LogDir
try:
    LogDir.open(RealFiles(), sys.argv[1], node_id=1, cluster_id="c1")
except UsageError as e:
    print(e)
    sys.exit(3)
"""


def test_a_second_process_is_refused(tmp_path) -> None:
    """F24, with real processes. The lock ends with its process."""
    command = [sys.executable, "-c", SECOND_PROCESS, str(tmp_path)]
    log_dir = LogDir.open(RealFiles(), str(tmp_path), node_id=1, cluster_id="c1")
    second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 3
    assert "in use by another process" in second.stdout
    log_dir.close()
    assert subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).returncode == 0


@pytest.mark.parametrize("topic", ["../../x", ".", "..", "", "a" * 250, "a\0b", "a/b", "ä", "a b"])
def test_a_topic_name_cannot_leave_the_data_directory(topic: str) -> None:
    """F12, checked again where the path is built."""
    log_dir = open_dir(MemoryFiles())
    with pytest.raises(BrokerError) as caught:
        log_dir.open_log(topic, 0, X, CONFIG, NOW_MS)
    assert caught.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert log_dir.existing_logs() == []


@pytest.mark.parametrize("topic", ["x-delete", "x-stray", f"x-0.{X.hex()}-delete", f"x-0.{X.hex()}-stray"])
def test_a_topic_may_be_named_like_a_deleted_log(topic: str) -> None:
    """Kafka has such topics, too. A deleted log ends with the suffix, a log with its partition."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    held = fill(log_dir.open_log(topic, 0, X, CONFIG, NOW_MS), 3)
    log_dir = restart(files, log_dir, clean=True)
    assert (log_dir.existing_logs(), log_dir.unfinished_deletions()) == ([(topic, 0, X)], [])
    assert read_all(log_dir.open_log(topic, 0, X, CONFIG, NOW_MS)) == held
    target = log_dir.delete_log(topic, 0, X)
    log_dir = restart(files, log_dir, clean=True)
    assert (log_dir.existing_logs(), log_dir.unfinished_deletions()) == ([], [target])


def test_directories_with_similar_names_are_not_removed() -> None:
    files = MemoryFiles()
    open_dir(files).close()
    names = [f"backup.{X.hex()}-delete", "orders-0.abc-delete", "orders-0-delete", f"orders-0.{X.hex()}-stray"]
    for name in names:
        files.make_dirs(f"data/{name}")
    log_dir = open_dir(files)
    assert (log_dir.existing_logs(), log_dir.unfinished_deletions()) == ([], [])
    assert set(names) <= set(files.list("data"))


def test_the_longest_topic_names_can_be_deleted_and_set_aside(tmp_path) -> None:
    """The name with partition, id and suffix must fit the file system; otherwise the directory would go offline."""
    log_dir = LogDir.open(RealFiles(), str(tmp_path), node_id=1, cluster_id="c1", random=Random(1))
    topic, targets = "t" * 249, []
    for topic_id in (X, X, Y):
        log_dir.open_log(topic, 12, topic_id, CONFIG, NOW_MS)
        targets.append(log_dir.delete_log(topic, 12, topic_id))
    log_dir.open_log(topic, 12, X, CONFIG, NOW_MS)
    log_dir.set_aside(topic, 12, "not in the metadata")
    assert log_dir.offline is None
    assert len(set(targets)) == 3
    log_dir.close()
    log_dir = LogDir.open(RealFiles(), str(tmp_path), node_id=1, cluster_id="c1", random=Random(1))
    assert (log_dir.existing_logs(), sorted(log_dir.unfinished_deletions())) == ([], sorted(targets))
    log_dir.close()


def test_log_names_parse_back() -> None:
    for topic, partition in [("a", 0), ("a-1", 12), ("a.b_c-", 2**31 - 1), ("a-delete", 3)]:
        assert parse_log_name(log_name(topic, partition)) == (topic, partition)
    for name in ["a", "a-", "a-01", "a-2147483648", "a-1-stray", "-1", "..-1", "a-１"]:
        assert parse_log_name(name) is None


def test_a_log_is_not_opened_under_another_topic_id() -> None:
    """S35, I22."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    held = fill(open_orders(log_dir), 3)
    log_dir = restart(files, log_dir, clean=False)
    with pytest.raises(BrokerError) as caught:
        open_orders(log_dir, Y)
    assert caught.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert log_dir.delete_log("orders", 0, Y) is None
    assert read_all(open_orders(log_dir)) == held


def test_a_recreated_topic_starts_empty() -> None:
    """S35: it has neither bytes nor checkpoints of the old topic, even if the process dies right after."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    log = open_orders(log_dir)
    fill(log, 10)
    log.update_high_watermark(20)
    log_dir.checkpoint_all()
    target = log_dir.delete_log("orders", 0, X)
    assert target is not None
    assert target.endswith("-delete")
    assert log_dir.existing_logs() == []
    new = open_orders(log_dir, Y)
    assert (new.log_end_offset, new.high_watermark) == (0, 0)
    fill(new, 2)
    log_dir = restart(files, log_dir, clean=False)
    assert log_dir.unfinished_deletions() == [target]
    assert log_dir.unfinished_deletions() == []
    files.remove_tree(target)
    again = open_orders(log_dir, Y)
    assert (again.log_end_offset, again.high_watermark) == (4, 0)


def test_a_log_without_readable_metadata_is_set_aside_not_deleted() -> None:
    """F18, F23."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    for partition in (0, 1):
        fill(open_orders(log_dir, partition=partition), 1)
    log_dir.close()
    files.write("data/orders-0/partition.metadata", b"version: 0\ntopic_id: ???\n")
    log_dir = open_dir(files)
    assert log_dir.existing_logs() == [("orders", 1, X)]
    stray = [name for name in files.list("data") if name.endswith("-stray")]
    assert len(stray) == 1
    assert files.list(f"data/{stray[0]}")
    assert open_orders(log_dir).log_end_offset == 0
    log_dir.set_aside("orders", 1, "not in the metadata")
    assert log_dir.existing_logs() == [("orders", 0, X)]
    assert len([name for name in files.list("data") if name.endswith("-stray")]) == 2


def test_foreign_files_are_ignored() -> None:
    """F23: other files, names that look like links, and directories of other programs."""
    files = MemoryFiles()
    open_dir(files).close()
    for name in ("lost+found", "backup", "orders-00", "orders-x", "__cluster_metadata-0"):
        files.make_dirs(f"data/{name}")
    for name in ("README", "orders-7", "x.tmp"):
        files.write(f"data/{name}", b"not a log")
    names = files.list("data")
    log_dir = open_dir(files)
    assert log_dir.existing_logs() == []
    log_dir.close()
    assert set(names) <= set(files.list("data"))


def test_a_symbolic_link_is_not_a_log(tmp_path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    LogDir.open(RealFiles(), str(data), node_id=1, cluster_id="c").close()
    (data / "orders-0").symlink_to(elsewhere)
    log_dir = LogDir.open(RealFiles(), str(data), node_id=1, cluster_id="c")
    assert log_dir.existing_logs() == []
    log_dir.close()
    assert (elsewhere / "precious").read_text() == "x"


def test_a_disk_error_takes_the_whole_directory_offline() -> None:
    """KIP-112: no log of the directory is written to after that, reads continue, and no clean marker is written."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    logs = [open_orders(log_dir, partition=p) for p in range(2)]
    held = [fill(log, 3) for log in logs]
    files.fail_next("write", "*orders-0/*.log", errno.EIO)
    with pytest.raises(DiskError):
        logs[0].append_as_leader(batch(b"x"), 0, NOW_MS)
    assert log_dir.offline is not None
    for call in (
        lambda: logs[1].append_as_leader(batch(b"x"), 0, NOW_MS),
        lambda: open_orders(log_dir, partition=2),
        log_dir.checkpoint_high_watermarks,
    ):
        with pytest.raises(BrokerError) as caught:
            call()
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert [read_all(log) for log in logs] == held
    log_dir.close()
    assert not open_dir(files).was_clean


def test_an_error_while_closing_prevents_the_clean_marker() -> None:
    files = MemoryFiles()
    log_dir = open_dir(files)
    fill(open_orders(log_dir), 3)
    files.fail_next("fsync", "*", errno.EIO)
    with pytest.raises(DiskError):
        log_dir.close()
    assert log_dir.offline is not None
    assert not open_dir(files).was_clean


def test_unopened_logs_prevent_the_clean_marker() -> None:
    """The process was killed, started and stopped before its logs were opened; the next start must still scan them."""
    files = MemoryFiles()
    log_dir = open_dir(files)
    fill(open_orders(log_dir), 3)
    log_dir = restart(files, log_dir, clean=False)
    log_dir.close()
    assert not open_dir(files).was_clean


def test_an_unwritable_directory_is_one_clear_sentence(tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="cannot be used"):
        LogDir.open(RealFiles(), str(tmp_path / "file" / "data"), node_id=1, cluster_id="c")


def test_a_power_cut_at_any_moment_leaves_a_directory_that_opens() -> None:
    """The steps are create, write, flush, checkpoint, delete and recreate, then a power cut. Flushed batches are there, and no
    high watermark lies above its log."""
    for seed in range(150):
        random = Random(seed)
        files = MemoryFiles(random)
        files.make_dirs("data")
        files.fsync_dir("")
        log_dir = open_dir(files)
        held: dict[int, list[bytes]] = {}
        for _ in range(random.randint(1, 12)):
            partition = random.randint(0, 2)
            action = random.choice(("append", "append", "flush", "checkpoint", "delete", "truncate"))
            log = open_orders(log_dir, partition=partition)
            if action == "append":
                fill(log, random.randint(1, 6))
                log.update_high_watermark(random.randint(0, log.log_end_offset))
            elif action == "flush":
                log.flush()
                held[partition] = read_all(log)
            elif action == "checkpoint":
                log_dir.checkpoint_all()
            elif action == "truncate":
                log.truncate_to(random.randint(0, log.log_end_offset))
                held[partition] = held.get(partition, [])[: log.log_end_offset // 2]
            else:
                target = log_dir.delete_log("orders", partition, X)
                files.remove_tree(target or "")
                held.pop(partition, None)
        files.crash()
        log_dir = open_dir(files)
        for topic, partition, topic_id in log_dir.existing_logs():
            log = log_dir.open_log(topic, partition, topic_id, CONFIG, NOW_MS)
            flushed = held.pop(partition, [])
            readable = read_all(log, end=log.log_end_offset if log.corrupt_at is None else log.corrupt_at)
            assert readable[: len(flushed)] == flushed, "a hole can only be where nothing was flushed"
            assert 0 <= log.high_watermark <= log.log_end_offset
        assert not any(held.values())
        log_dir.close()


def test_an_older_checkpoint_never_replaces_a_newer_one() -> None:
    """A thread may finish an older checkpoint, from before a truncation, after the loop has written one from after it. An
    unchanged file is not written again."""
    files = MemoryFiles()
    log_dir = LogDir.open(files, "/data", node_id=1, cluster_id="c")
    log = log_dir.open_log("orders", 0, b"t" * 16, LogConfig(), 0)
    log.high_watermark = 20
    older = log_dir.high_watermark_checkpoint()
    log.high_watermark = 10
    log_dir.checkpoint_high_watermarks()
    older.write()
    assert files.read("/data/replication-offset-checkpoint").split()[-1] == b"10"
    files.fail_next("write_atomic", "*", 5)
    files.fail_next("write", "*checkpoint*", 5)
    log_dir.checkpoint_high_watermarks()
    assert log_dir.offline is None
