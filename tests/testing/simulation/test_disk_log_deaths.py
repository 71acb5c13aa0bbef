"""A broker is killed, or loses its power, at each of its disk operations; its log must then be an earlier state.

Whatever it was doing, the next start must not fail, must find all that was flushed, must find nothing that was not written there
in this order by one history of the log, and must not report damage where there is none.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from random import Random

import pytest
from crash_kit import FEW, Death, Seeds, deaths, failures, found_by, several, steps, without_fsync
from log_witness import Witness, base_of, check_log, go_on, open_dir, open_log, served
from storage_kit import forget_tail, read_all
from structlog.testing import capture_logs

from strandline.storage.disk import DiskError, Files
from strandline.storage.log import recovery_scan
from strandline.testing.simulation.kernel.disk import Mount, ProcessDied, SimFiles


def life_of_a_follower(files: Files, witness: Witness) -> None:
    """The log is truncated to the histories of new leaders: flushed and unflushed, in this segment and in older ones."""
    log_dir = open_dir(files)
    log = open_log(log_dir)
    witness.append(log, 1, 4)
    log.update_high_watermark(2)
    witness.flush(log)
    log_dir.checkpoint_all()
    witness.append(log, 1, 7)
    witness.flush_closed_segments(log_dir)
    log_dir.checkpoint_all()
    witness.truncate(log, 18)  # into a closed segment that was flushed
    witness.append(log, 2, 3)
    log.update_high_watermark(18)
    witness.append(log, 3, 2)
    log_dir.checkpoint_high_watermarks()
    witness.truncate(log, 20)  # to the start of a segment
    witness.append(log, 4, 6)
    log.assign_epoch_start_offset(6, log.log_end_offset)
    witness.flush(log)
    log_dir.checkpoint_all()


def life_with_an_orderly_stop(files: Files, witness: Witness) -> None:
    log_dir = open_dir(files)
    witness.append(open_log(log_dir), 1, 7)
    witness.close(log_dir)
    log_dir = open_dir(files)
    log = open_log(log_dir)
    witness.append(log, 2, 2)
    witness.close(log_dir)


def life_with_retention(files: Files, witness: Witness) -> None:
    log_dir = open_dir(files)
    log = open_log(log_dir)
    witness.append(log, 1, 12)
    log.update_high_watermark(22)
    witness.flush_closed_segments(log_dir)
    log_dir.checkpoint_all()
    witness.delete_up_to(log, 12)
    log_dir.checkpoint_all()
    log.drop_indexes()
    witness.append(log, 2, 5)
    log.update_high_watermark(34)
    witness.flush_closed_segments(log_dir)
    witness.delete_up_to(log, 20)
    witness.append(log, 2, 2)
    log_dir.checkpoint_all()


def life_that_starts_over(files: Files, witness: Witness) -> None:
    """The leader has deleted the records that the follower would fetch next; later, a leader's whole log is older than the
    follower's."""
    log_dir = open_dir(files)
    log = open_log(log_dir)
    witness.append(log, 1, 7)
    log.update_high_watermark(14)
    witness.flush(log)
    log_dir.checkpoint_all()
    witness.start_over(log, 50)
    witness.append(log, 2, 6)
    log.update_high_watermark(60)
    log_dir.checkpoint_all()
    witness.start_over(log, 30)
    witness.append(log, 3, 3)
    witness.flush(log)
    log_dir.checkpoint_all()
    witness.append(log, 3, 1)


Life = Callable[[Files, Witness], None]
LIVES: list[Life] = [
    life_of_a_follower,
    life_with_an_orderly_stop,
    life_with_retention,
    life_that_starts_over,
]


def look_at_what_is_left(death: Death | str, disk: SimFiles, witness: Witness) -> None:
    try:
        log_dir = open_dir(disk.mount())
        log = open_log(log_dir)
        held = check_log(log, witness)
        if log.corrupt_at is None:
            go_on(disk, log_dir, log, held)
    except Exception as e:
        e.add_note(str(death))
        raise


@pytest.fixture(autouse=True)
def _quiet() -> Iterable[None]:
    with capture_logs():
        yield


def let_it_die(life: Life, seeds: Seeds = FEW) -> None:
    for death, disk, witness in deaths(life, Witness, seeds):
        look_at_what_is_left(death, disk, witness)


@several
@pytest.mark.parametrize("life", LIVES)
def test_log_after_a_death_at_every_operation_is_an_earlier_state(life: Life, seeds: Seeds) -> None:
    let_it_die(life, seeds)


def test_a_forgotten_fsync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """This shows that the test above can fail."""
    monkeypatch.setattr(Mount, "sync_inode", without_fsync("*.log"))
    assert "what was flushed is gone" in found_by(lambda: let_it_die(life_of_a_follower))


def test_recovery_without_checksums_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """M18."""
    monkeypatch.setattr(recovery_scan, "check_crc", lambda *_: True)
    assert found_by(lambda: let_it_die(life_of_a_follower))


def test_remaining_clean_shutdown_marker_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start would trust the marker, although the process before it died."""
    remove = Mount.remove
    monkeypatch.setattr(Mount, "remove", lambda self, path: None if path.endswith("cleanshutdown") else remove(self, path))
    assert found_by(lambda: let_it_die(life_with_an_orderly_stop))


@pytest.mark.parametrize("life", [life_of_a_follower, life_with_retention])
def test_wherever_a_recovery_dies_the_next_one_succeeds(life: Life) -> None:
    """F22: the machine loses its power while it recovers from a power cut."""
    total = len(steps(life, Witness, lambda disk: None))
    for seed in range(60):
        random = Random(seed)
        disk, witness = SimFiles(random), Witness()
        disk.crash_at(random.randint(total // 3, total))
        with pytest.raises(ProcessDied):
            life(disk.mount(), witness)
        for _ in range(3):
            disk.crash(lossy=random.random() < 0.7)
            disk.crash_at(random.randint(1, 25))
            try:
                log = open_log(open_dir(disk.mount()))
                held = check_log(log, witness)
                witness.resume(held)
                witness.flushed = [data for data in held if base_of(data) < log.recovery_point]
                if log.corrupt_at is None:  # it fetches the records of its leader
                    witness.append(log, max(0, log.latest_epoch) + random.randint(0, 1), 3)
            except ProcessDied:
                pass
        disk.crash()
        disk.heal()
        look_at_what_is_left(f"seed {seed}", disk, witness)


# -- what these tests have found (docs/bugs.md) -------------------------------------------------------------------------


def test_recovery_point_is_not_above_a_truncation_after_a_death() -> None:
    """The recovery point on the disk was 20 when the log was truncated to 18, in a closed segment. After a power cut the next
    segment was there again, and recovery did not scan the first one for losses."""
    for seed in range(40):
        disk, witness = SimFiles(Random(seed)), Witness()
        log_dir = open_dir(disk.mount())
        log = open_log(log_dir)
        witness.append(log, 1, 11)
        witness.flush_closed_segments(log_dir)
        log_dir.checkpoint_all()
        assert log.recovery_point == 20
        disk.crash_at(operation="truncate", pattern="*.log", moment="after")
        with pytest.raises(ProcessDied):
            witness.truncate(log, 18)
        disk.crash()
        look_at_what_is_left(f"seed {seed}", disk, witness)


def test_power_cut_never_mixes_truncated_and_new_records() -> None:
    """18@e1 was truncated, 18@e2 was appended in its place, and 20@e2 in a new segment. After a power cut the disk had 18@e1 and
    20@e2: whole, in order, and in no leader's log. By the epochs alone, such a follower never diverges from its leader."""
    for seed in range(300):
        disk, witness = SimFiles(Random(seed)), Witness()
        log = open_log(open_dir(disk.mount()))
        witness.append(log, 1, 10)
        disk.write_back()
        witness.truncate(log, 18)
        witness.append(log, 2, 2)
        assert len(log.segments) == 3
        disk.crash()
        check_log(open_log(open_dir(disk.mount())), witness)


def test_recovery_truncates_durably() -> None:
    """Valid batches after a hole, which a recovery has truncated, must not reappear after new ones."""
    disk, witness = SimFiles(Random(0)), Witness()
    log = open_log(open_dir(disk.mount()))
    witness.append(log, 1, 5)
    path = log.segments[0].file.path
    disk.crash(lossy=False)
    hole = range(len(witness.now[0]), len(witness.now[0]) + len(witness.now[1]))
    data = disk.read(path)
    disk.write_atomic(path, data[: hole.start] + bytes(len(hole)) + data[hole.stop :])
    log = open_log(open_dir(disk.mount()))
    assert log.log_end_offset == 2
    assert disk.durable(path) == witness.now[0]


def test_records_below_a_lost_log_start_have_their_epochs() -> None:
    """The log start had been moved to 12. The removal of the epochs below it was durable, the new log start was not. After a
    crash 10@e1 was there again, without an epoch: a follower with another 10 would not have noticed the divergence (I4, I11)."""
    disk, witness = SimFiles(Random(0)), Witness()
    log_dir = open_dir(disk.mount())
    log = open_log(log_dir)
    witness.append(log, 1, 3)
    witness.append(log, 2, 3)
    log_dir.checkpoint_all()
    log.update_high_watermark(10)
    log.increment_log_start_offset(8)
    assert log.epochs.entries == [(2, 8)]
    disk.crash(lossy=False)
    log = open_log(open_dir(disk.mount()))
    assert log.log_start_offset == 0
    assert log.epochs.entries == [(1, 0), (2, 6)]


def test_unreadable_log_is_not_recreated() -> None:
    """An error of stat(2) looked like a missing directory, and a new log's first segment is empty."""
    disk, witness = SimFiles(Random(0)), Witness()
    witness.append(open_log(open_dir(disk.mount())), 1, 3)
    disk.crash(lossy=False)
    disk.fail("stat", "*/orders-0", skip=1, times=1)
    with pytest.raises(DiskError):
        open_log(open_dir(disk.mount()))
    disk.crash(lossy=False)
    disk.heal()
    assert read_all(open_log(open_dir(disk.mount()))) == witness.now


# -- other faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("life", LIVES)
def test_log_after_every_disk_error_is_an_earlier_state(life: Life) -> None:
    """F19, F20, S45: each operation, reads included, fails once; then the process ends, perhaps by a power cut."""
    for death, disk, witness, raised in failures(life, Witness, range(2)):
        assert raised is not None or death.path == "/", death
        look_at_what_is_left(death, disk, witness)


def test_failed_fsync_never_counts() -> None:
    """S46: the directory is offline at once, and promises nothing more; after a restart, all records that were flushed before are
    there, and the log has no others than its own."""
    for seed in range(30):
        disk, witness = SimFiles(Random(seed)), Witness()
        log_dir = open_dir(disk.mount())
        log = open_log(log_dir)
        witness.append(log, 1, 3)
        witness.flush(log)
        log_dir.checkpoint_all()
        witness.append(log, 1, 4)
        disk.fail("fsync", "*.log", times=1)
        with pytest.raises(DiskError):
            log.flush()
        assert (log_dir.offline is not None, log.recovery_point) == (True, 6)
        disk.crash(lossy=seed % 3 > 0)
        if seed % 2:
            disk.evict()
        look_at_what_is_left(f"seed {seed}", disk, witness)


@pytest.mark.parametrize("torn", [False, True])
def test_full_disk_at_any_byte_loses_no_record(torn: bool) -> None:
    """S45, F19: the append that did not fit is not in the log, and all acknowledged ones are, now and after a restart."""
    for room in range(0, 9000, 310):
        disk, witness = SimFiles(Random(room)), Witness()
        disk.leave_torn_writes = torn
        log_dir = open_dir(disk.mount())
        log = open_log(log_dir)
        disk.fill(room)
        with pytest.raises(DiskError) as caught:
            witness.append(log, 1, 30)
        assert caught.value.errno == errno.ENOSPC
        assert log_dir.offline is not None
        refused = witness.now.pop()
        assert read_all(log) == witness.now
        disk.crash(lossy=False)
        disk.free()
        log = open_log(open_dir(disk.mount()))
        assert check_log(log, witness) == witness.now
        assert refused not in read_all(log)


def test_a_write_that_landed_elsewhere_is_never_served() -> None:
    """The log serves neither the misplaced bytes nor the overwritten ones: both are missing or reported as damage."""
    for seed in range(40):
        disk, witness = SimFiles(Random(seed)), Witness()
        log_dir = open_dir(disk.mount())
        log = open_log(log_dir)
        witness.append(log, 1, 5)
        disk.misdirect("*.log", onto="*.log")
        witness.append(log, 1, 5)
        witness.flush(log)
        log.update_high_watermark(log.log_end_offset)
        log_dir.checkpoint_all()
        assert len(disk.damage) == 2
        disk.crash(lossy=seed % 2 > 0)
        log = open_log(open_dir(disk.mount()))
        forget_tail(log)
        found = served(log)
        assert found == witness.now[: len(found)]
        assert len(found) < len(witness.now)


def test_stale_sectors_are_never_served() -> None:
    for seed in range(40):
        disk, witness = SimFiles(Random(seed)), Witness()
        log = open_log(open_dir(disk.mount()))
        disk.stale_reads("*.log", times=None, probability=0.0)
        witness.append(log, 1, 5)
        witness.truncate(log, 4)
        witness.append(log, 2, 3)
        forget_tail(log)
        disk.stale_reads("*.log", times=1)
        found = served(log)
        assert found == witness.now[: len(found)]
        assert (log.corrupt_at is None) == (len(found) == len(witness.now))
