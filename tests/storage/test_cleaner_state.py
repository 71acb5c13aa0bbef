"""The state of a cleaned log: its first dirty offset, the bound of removed tombstones, and the records that readers see."""

from __future__ import annotations

from random import Random

import pytest
from cleaner_kit import DAY_MS, clean, keyed
from storage_kit import DIR, NOW_MS, TOPIC_ID, open_log, read_all

from strandline.protocol.records.reader import iter_records
from strandline.storage.checkpoints import OffsetCheckpoint
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.memory.memory_files import MemoryFiles

FIRST_DIRTY = "data/cleaner-offset-checkpoint"
REMOVED = "data/removed-tombstones-checkpoint"


def open_dir(files: MemoryFiles) -> LogDir:
    return LogDir.open(files, "data", node_id=1, cluster_id="c1", random=Random(1))


def orders(log_dir: LogDir, partition: int = 0) -> Log:
    return log_dir.open_log("orders", partition, TOPIC_ID, LogConfig(), NOW_MS)


def write_tombstones(log: Log) -> None:
    """Write offsets 0 to 3: a value, its tombstone, a superseded tombstone and the value that supersedes it; then close the
    segment."""
    log.append_as_leader(keyed([(b"a", b"1"), (b"a", None), (b"b", None), (b"b", b"2")]), 0, NOW_MS)
    log.append_as_leader(keyed([(b"c", b"1")]), 0, NOW_MS)
    log.roll(NOW_MS)
    log.update_high_watermark(5)


def removed_tombstone(log: Log) -> None:
    write_tombstones(log)
    clean(log)
    clean(log, now_ms=NOW_MS + 2 * DAY_MS)


def test_only_an_expired_tombstone_raises_the_bound() -> None:
    log = open_log()
    write_tombstones(log)
    clean(log)
    assert log.tombstones_removed_below == 0, "the superseded tombstone does not count, the other one is still there"
    clean(log, now_ms=NOW_MS + 2 * DAY_MS)
    assert log.tombstones_removed_below == 2


def test_nothing_is_written_for_a_directory_that_was_never_cleaned() -> None:
    files = MemoryFiles()
    log_dir = open_dir(files)
    write_tombstones(orders(log_dir))
    log_dir.close()
    assert not files.exists(FIRST_DIRTY)
    assert not files.exists(REMOVED)


@pytest.mark.parametrize("is_clean", [True, False])
def test_offsets_survive_a_restart(is_clean: bool) -> None:
    files = MemoryFiles()
    log_dir = open_dir(files)
    log = orders(log_dir)
    removed_tombstone(log)
    log.first_dirty_offset = 5
    log_dir.cleaner_checkpoint().write()
    if is_clean:
        log_dir.close()
    else:
        files.crash(lossy=False)
    log = orders(open_dir(files))
    assert (log.first_dirty_offset, log.tombstones_removed_below) == (5, 2)
    assert OffsetCheckpoint.decode(files.read(FIRST_DIRTY)) == {("orders", 0): 5}
    assert OffsetCheckpoint.decode(files.read(REMOVED)) == {("orders", 0): 2}


def test_truncation_lowers_both_durably_before_it_cuts() -> None:
    files = MemoryFiles()
    log = orders(log_dir := open_dir(files))
    for value in (b"1", b"2", b"3", b"4"):
        log.append_as_leader(keyed([(b"a", value)]), 0, NOW_MS)
    log.first_dirty_offset, log.tombstones_removed_below = 4, 3
    log_dir.cleaner_checkpoint().write()
    log.truncate_to(2)
    assert (log.first_dirty_offset, log.tombstones_removed_below) == (2, 2)
    files.crash(lossy=False)
    log = orders(open_dir(files))
    assert (log.first_dirty_offset, log.tombstones_removed_below) == (2, 2)


def test_restarted_log_is_clean_up_to_its_start() -> None:
    log = open_log(first_dirty_offset=3, tombstones_removed_below=7)
    log.truncate_fully_and_start_at(100)
    assert (log.first_dirty_offset, log.tombstones_removed_below) == (100, 0)
    log.append_as_leader(keyed([(b"a", b"1"), (b"a", b"2")]), 0, NOW_MS)
    log.truncate_fully_and_start_at(50)
    assert log.first_dirty_offset == 50


def test_log_that_lost_its_end_lowers_both() -> None:
    """Otherwise the records that are appended next would count as clean."""
    files = MemoryFiles()
    log = orders(log_dir := open_dir(files))
    removed_tombstone(log)
    log.first_dirty_offset = 5
    log_dir.close()
    for name in files.list(DIR):
        if name.endswith((".log", ".index", ".timeindex", ".snapshot")):
            files.remove(f"{DIR}/{name}")
    log = orders(log_dir := open_dir(files))
    assert (log.first_dirty_offset, log.tombstones_removed_below) == (0, 0)
    log.append_as_leader(keyed([(b"a", b"1")] * 6), 0, NOW_MS)
    files.crash(lossy=False)
    log = orders(open_dir(files))
    assert (log.log_end_offset, log.first_dirty_offset, log.tombstones_removed_below) == (6, 0, 0)


def test_recreated_log_takes_nothing_from_the_deleted_one() -> None:
    files = MemoryFiles()
    log = orders(log_dir := open_dir(files))
    removed_tombstone(log)
    log.first_dirty_offset = 5
    log_dir.cleaner_checkpoint().write()
    log_dir.delete_log("orders", 0, TOPIC_ID)
    log = orders(log_dir)
    files.crash(lossy=False)
    log = orders(open_dir(files))
    assert (log.first_dirty_offset, log.tombstones_removed_below) == (0, 0)


def test_bound_is_found_again_if_its_checkpoint_is_damaged() -> None:
    """A bound that is too high is safe, one that is too low is not: a log that may lack a tombstone must report it."""
    files = MemoryFiles()
    log = orders(log_dir := open_dir(files))
    removed_tombstone(log)
    write_tombstones(orders(log_dir, 1))
    log_dir.close()
    files.write(REMOVED, b"0\n1\nord")
    log_dir = open_dir(files)
    log_dir.checkpoint_all()
    files.crash(lossy=False)
    log_dir = open_dir(files)
    assert orders(log_dir).tombstones_removed_below == 4, "the batch with offsets 0 to 3 lacks records"
    assert orders(log_dir, 1).tombstones_removed_below == 0
    log_dir.checkpoint_all()
    assert OffsetCheckpoint.decode(files.read(REMOVED)) == {("orders", 0): 4}


def test_reader_of_the_recent_tail_sees_the_cleaned_segments() -> None:
    """A follower that reads the old batches from memory would copy a value, and then miss its tombstone, which is gone."""
    log = open_log()
    for row in ((b"a", b"1"), (b"a", b"2"), (b"b", b"1")):
        log.append_as_leader(keyed([row]), 0, NOW_MS)
    log.roll(NOW_MS)
    log.append_as_leader(keyed([(b"open", b"1")]), 0, NOW_MS)
    log.update_high_watermark(4)
    assert log.tail.read(0, 1 << 20, 4, True) is not None
    clean(log)
    assert log.tail.read(2, 1 << 20, 4, True) is None
    assert log.tail.read(3, 1 << 20, 4, True) is not None, "the batches above the cleaned segments stay"
    assert [r.key for data in read_all(log) for r in iter_records(data)] == [b"a", b"b", b"open"]
    assert log.tail.budget.bytes == len(log.read(3, 1 << 20, 4).buffers[0])
