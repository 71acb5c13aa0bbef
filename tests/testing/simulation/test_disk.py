"""The simulated disk behaves like real disks. These tests show each fault alone; `test_disk_*_deaths.py` and
`test_lying_disks.py` apply the faults to the production code."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from random import Random
from time import process_time

import pytest

from strandline.protocol.errors import UsageError
from strandline.storage.disk import ColdRead, DiskError, Files
from strandline.storage.memory.memory_files import MemoryFiles
from strandline.testing.simulation.kernel.disk import Latency, Mount, ProcessDied, SimFiles
from strandline.testing.simulation.kernel.disk_faults import MUTATING

OLD, NEW = b"o" * 512, b"n" * 512


def disk_of(seed: int = 0) -> SimFiles:
    """A disk with a durable directory `d`."""
    disk = SimFiles(Random(seed))
    disk.make_dirs("d")
    disk.fsync_dir("")
    return disk


def durable_file(disk: SimFiles, data: bytes, path: str = "d/a") -> None:
    disk.write_atomic(path, data)


def after_power_cut(prepare: Callable[[Mount], object], seeds: int = 80, first: bytes | None = None) -> set[bytes | None]:
    """The possible contents of `d/a` (None: it does not exist) after a power cut, over many disks."""
    seen: set[bytes | None] = set()
    for seed in range(seeds):
        disk = disk_of(seed)
        if first is not None:
            durable_file(disk, first)
        prepare(disk.mount())
        disk.crash()
        seen.add(disk.contents().get("/d/a"))
    return seen


# -- what a process sees ------------------------------------------------------------------------------------------------


def test_a_mount_behaves_as_any_other_files() -> None:
    """The same calls, in the same order, leave the same on a mount and on the files in memory."""

    def use(files: Files) -> list[object]:
        files.make_dirs("r/x")
        file = files.open("r/x/a", create=True)
        file.append([b"hello ", bytearray(b"wor"), memoryview(b"ld")])
        file.pwrite(b"W", 6)
        file.truncate(9)
        file.append([b"!"])
        file.fsync()
        files.write_atomic("r/b", b"1")
        files.write("r/b", b"2")
        files.rename("r/b", "r/c")
        files.fsync_path("r/x/a")
        files.remove("r/none")
        files.write("r/x/gone", b"")
        files.remove("r/x/gone")
        files.make_dirs("r/tree/of")
        files.write("r/tree/of/names", b"3")
        files.remove_tree("r/tree")
        return [files.list("r"), files.list("r/x"), files.read("r/x/a"), files.size("r/c"), bytes(file.pread(3, 6)), file.size]

    assert use(disk_of().mount()) == use(MemoryFiles())


def test_the_dead_write_nothing() -> None:
    """Threads, finalizers and `finally` blocks of a dead process may still run, but must not reach the disk."""
    disk = disk_of()
    mount = disk.mount()
    file = mount.open("d/a", create=True)
    file.append([b"alive"])
    lock = mount.lock("d/.lock")
    disk.crash(lossy=False)
    for operation in (
        lambda: file.append([b"dead"]),
        lambda: file.pwrite(b"dead", 0),
        lambda: file.truncate(0),
        lambda: file.fsync(),
        lambda: file.pread(1, 0),
        lambda: mount.open("d/b", create=True),
        lambda: mount.write("d/b", b"dead"),
        lambda: mount.write_atomic("d/b", b"dead"),
        lambda: mount.remove("d/a"),
        lambda: mount.rename("d/a", "d/b"),
        lambda: mount.make_dirs("e"),
        lambda: mount.remove_tree("d"),
        lambda: mount.fsync_dir("d"),
        lambda: mount.read("d/a"),
        lambda: mount.exists("d/a"),
        lambda: mount.list("d"),
        lambda: mount.lock("d/.lock2"),
    ):
        with pytest.raises(ProcessDied):
            operation()
    assert disk.contents() == {"/d/a": b"alive", "/d/.lock": b""}
    successor = disk.mount()
    successor.lock("d/.lock")
    lock.release()
    file.close()
    with pytest.raises(UsageError, match="in use"):
        disk.mount().lock("d/.lock")


def test_two_processes_on_one_disk_see_one_disk() -> None:
    """F24: the lock keeps the processes apart."""
    disk = disk_of()
    one, other = disk.mount(), disk.mount()
    one.lock("d/.lock")
    with pytest.raises(UsageError, match="in use"):
        other.lock("d/.lock")
    one.write("d/a", b"x")
    assert other.read("d/a") == b"x"
    one.die()
    other.lock("d/.lock").release()


# -- the power cut ------------------------------------------------------------------------------------------------------


def test_only_synced_bytes_are_sure_to_survive() -> None:
    def append_twice(files: Mount) -> None:
        file = files.open("d/a", create=False)
        file.append([OLD])
        file.fsync()
        file.append([NEW])

    images = after_power_cut(append_twice, first=b"")
    assert all(image is not None and image.startswith(OLD) for image in images)
    assert {OLD, OLD + NEW, OLD + bytes(512)} <= images, "not there, there, or a length without its bytes"
    assert any(image is not None and len(image) == 1024 and image[512:] not in (NEW, bytes(512)) for image in images), "garbage"
    assert any(image is not None and 512 < len(image) < 1024 for image in images), "torn"


def test_sectors_survive_independently_of_their_order() -> None:
    def append_four(files: Mount) -> None:
        file = files.open("d/a", create=False)
        for letter in (b"1", b"2", b"3", b"4"):
            file.append([letter * 512])

    images = after_power_cut(append_four, 400, first=b"")
    survivors = {tuple(image[i : i + 1] for i in range(0, 2048, 512)) for image in images if image and len(image) == 2048}
    assert {(b"\0", b"\0", b"3", b"\0"), (b"1", b"2", b"3", b"4"), (b"1", b"2", b"3", b"\0")} <= survivors


def test_an_overwritten_sector_is_the_old_or_the_new_one() -> None:
    def overwrite(files: Mount) -> None:
        files.open("d/a", create=False).pwrite(NEW, 512)

    images = after_power_cut(overwrite, first=OLD * 3)
    assert images == {OLD * 3, OLD + NEW + OLD}


def test_truncation_may_be_undone_or_survive_without_later_writes() -> None:
    def cut_and_write(files: Mount) -> None:
        file = files.open("d/a", create=False)
        file.truncate(512)
        file.append([NEW])

    images = after_power_cut(cut_and_write, 200, first=OLD * 2)
    assert {OLD * 2, OLD, OLD + NEW, OLD + bytes(512)} <= images


def test_files_lose_independently_of_one_another() -> None:
    outcomes = set()
    for seed in range(60):
        disk = disk_of(seed)
        durable_file(disk, b"", "d/a")
        durable_file(disk, b"", "d/b")
        files = disk.mount()
        files.open("d/a", create=False).append([NEW])
        files.open("d/b", create=False).append([NEW])
        disk.crash()
        outcomes.add(tuple(data == NEW for data in disk.contents().values()))
    assert outcomes == {(a, b) for a in (True, False) for b in (True, False)}


def names_after_power_cut(prepare: Callable[[Mount], object]) -> set[tuple[str, ...]]:
    seen = set()
    for seed in range(80):
        disk = disk_of(seed)
        for name in ("a", "b"):
            durable_file(disk, b"x", f"d/{name}")
        prepare(disk.mount())
        disk.crash()
        seen.add(tuple(sorted(disk.contents())))
    return seen


def test_new_name_is_durable_only_with_its_directory() -> None:
    """The mutation M19 relies on that."""

    def create(files: Mount) -> None:
        file = files.open("d/c", create=True)
        file.append([b"x"])
        file.fsync()

    assert names_after_power_cut(create) == {("/d/a", "/d/b"), ("/d/a", "/d/b", "/d/c")}


def test_of_changes_of_names_a_prefix_survives() -> None:
    def change(files: Mount) -> None:
        files.rename("d/a", "d/c")
        files.remove("d/b")

    assert names_after_power_cut(change) == {("/d/a", "/d/b"), ("/d/b", "/d/c"), ("/d/c",)}


def test_directories_keep_no_order_among_each_other() -> None:
    def make(files: Mount) -> None:
        files.make_dirs("d/e")
        files.fsync_dir("d")
        files.rename("d/a", "d/c")
        files.open("d/e/x", create=True)

    seen = names_after_power_cut(make)
    assert {("/d/a", "/d/b"), ("/d/b", "/d/c"), ("/d/a", "/d/b", "/d/e/x"), ("/d/b", "/d/c", "/d/e/x")} == seen


def test_a_new_directory_takes_all_in_it_along() -> None:
    def make(files: Mount) -> None:
        files.make_dirs("d/e/f")
        files.write_atomic("d/e/f/x", b"")

    assert names_after_power_cut(make) == {("/d/a", "/d/b"), ("/d/a", "/d/b", "/d/e/f/x")}


def test_tree_may_be_partly_removed_after_a_power_cut() -> None:
    def remove(files: Mount) -> None:
        files.make_dirs("d/e")
        for name in "xyz":
            files.write("d/e/" + name, b"")
        files.fsync_dir("d/e")
        files.fsync_dir("d")
        files.remove_tree("d/e")

    counts = {sum("/e/" in path for path in paths) for paths in names_after_power_cut(remove)}
    assert counts == {0, 1, 2, 3}


def test_rename_over_a_file_may_leave_any_of_four_contents() -> None:
    """The file may be empty after a power cut, because its name was durable before its bytes."""
    images = after_power_cut(lambda files: files.write("d/a", NEW * 2), 200, first=OLD)
    assert {OLD, NEW * 2, b""} <= images
    assert len(images) > 3
    assert None not in images


def test_atomic_write_leaves_the_old_or_the_new_content() -> None:
    for step in range(1, 6):
        images = set()
        for seed in range(60):
            disk = disk_of(seed)
            durable_file(disk, OLD)
            disk.crash_at(step)
            with pytest.raises(ProcessDied):
                disk.mount().write_atomic("d/a", NEW)
            disk.crash(lossy=seed % 3 > 0)
            images.add(disk.contents().get("/d/a"))
        assert images <= {OLD, NEW}


def test_writing_back_makes_all_durable_unasked() -> None:
    disk = disk_of()
    disk.mount().write("d/a", NEW)
    disk.write_back()
    disk.crash()
    assert disk.contents() == {"/d/a": NEW}


# -- deaths -------------------------------------------------------------------------------------------------------------


def test_a_process_dies_before_after_or_in_the_middle_of_a_write() -> None:
    lengths: dict[str, set[int]] = {"before": set(), "half": set(), "after": set()}
    for seed in range(30):
        for moment in ("before", "half", "after"):
            disk, deaths = disk_of(seed), []
            files = disk.mount(on_death=lambda deaths=deaths: deaths.append(1))
            file = files.open("d/a", create=True)
            file.append([b"first"])
            disk.crash_at(2, moment=moment)
            file.append([b"second"])
            with pytest.raises(ProcessDied):
                file.append([b"third"])
            assert deaths == [1]
            assert not files.is_alive
            lengths[moment].add(len(disk.read("d/a")))
    assert lengths["before"] == {11}
    assert lengths["after"] == {16}
    assert {11, 12, 13, 14, 15} <= lengths["half"]


def test_a_death_can_be_placed_at_an_operation_of_a_name() -> None:
    disk = disk_of()
    files = disk.mount()
    disk.crash_at(operation="rename", pattern="*leader-epoch*", moment="before")
    files.write_atomic("d/other", b"1")
    with pytest.raises(ProcessDied):
        files.write_atomic("d/leader-epoch-checkpoint", b"1")
    assert disk.list("d") == ["leader-epoch-checkpoint.tmp", "other"]


def test_steps_of_an_operation_can_be_counted() -> None:
    disk = disk_of()
    disk.write("d/a", b"old")
    steps = disk.record()
    files = disk.mount()
    files.write_atomic("d/a", b"new")
    files.make_dirs("e/f")
    files.remove_tree("e")
    assert [step for step in steps if step[0] in MUTATING] == [
        ("create", "d/a.tmp"),
        ("write", "d/a.tmp"),
        ("fsync", "d/a.tmp"),
        ("rename", "d/a.tmp"),
        ("fsync", "d"),
        ("mkdir", "e"),
        ("mkdir", "e/f"),
        ("rmdir", "e/f"),
        ("rmdir", "e"),
    ]


def test_a_death_waits_for_the_next_process() -> None:
    """So a process can also end in the middle of its start."""
    disk = disk_of()
    disk.crash_at(operation="mkdir", moment="after")
    with pytest.raises(ProcessDied):
        disk.mount().make_dirs("e/f")
    assert disk.is_dir("e")
    assert not disk.exists("e/f")
    disk.mount().make_dirs("e/f")


# -- errors -------------------------------------------------------------------------------------------------------------


def failed(call: Callable[[], object]) -> int:
    with pytest.raises(DiskError) as caught:
        call()
    return caught.value.errno


def test_operations_fail_by_pattern_and_count() -> None:
    disk = disk_of()
    files = disk.mount()
    file = files.open("d/a", create=True)
    other = files.open("d/b", create=True)
    disk.fail("write", "*/a", times=2)
    disk.fail("fsync", "*/b")
    assert failed(lambda: file.append([b"x"])) == errno.EIO
    other.append([b"x"])
    assert failed(lambda: file.append([b"x"])) == errno.EIO
    file.append([b"y"])
    assert failed(other.fsync) == failed(lambda: files.fsync_path("d/b")) == errno.EIO
    file.fsync()
    assert disk.contents() == {"/d/a": b"y", "/d/b": b"x"}


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("create", lambda files: files.open("d/new", create=True)),
        ("open", lambda files: files.open("d/a", create=False)),
        ("read", lambda files: files.read("d/a")),
        ("read", lambda files: files.open("d/a", create=False).pread(1, 0)),
        ("read", lambda files: files.warm("d/a", 1, 0)),
        ("write", lambda files: files.open("d/a", create=False).append([b"x"])),
        ("write", lambda files: files.open("d/a", create=False).pwrite(b"x", 0)),
        ("write", lambda files: files.write("d/a", b"x")),
        ("truncate", lambda files: files.open("d/a", create=False).truncate(0)),
        ("fsync", lambda files: files.open("d/a", create=False).fsync()),
        ("fsync", lambda files: files.fsync_dir("d")),
        ("fsync", lambda files: files.write_atomic("d/a", b"x")),
        ("rename", lambda files: files.rename("d/a", "d/b")),
        ("rename", lambda files: files.write("d/a", b"x")),
        ("unlink", lambda files: files.remove("d/a")),
        ("rmdir", lambda files: files.remove_tree("d")),
        ("mkdir", lambda files: files.make_dirs("d/e")),
        ("list", lambda files: files.list("d")),
        ("stat", lambda files: files.exists("d/a")),
        ("stat", lambda files: files.is_dir("d")),
        ("stat", lambda files: files.size("d/a")),
    ],
)
def test_every_operation_can_fail_and_then_has_done_nothing(operation: str, call: Callable[[Files], object]) -> None:
    disk = disk_of()
    durable_file(disk, b"as it was")
    fault = disk.fail(operation, error=errno.EROFS)
    assert failed(lambda: call(disk.mount())) == errno.EROFS
    assert fault.happened == 1
    contents = disk.contents()
    assert contents == {"/d/a": b"as it was"} or (operation == "rmdir" and contents == {})
    fault.end()
    call(disk.mount())


def test_the_nth_operation_can_be_the_one_that_fails() -> None:
    disk = disk_of()
    file = disk.mount().open("d/a", create=True)
    disk.fail("fsync", skip=2, times=1)
    file.fsync()
    file.fsync()
    assert failed(file.fsync) == errno.EIO
    file.fsync()


def test_errors_come_with_their_probability() -> None:
    disk = disk_of()
    files = disk.mount()
    file = files.open("d/a", create=True)
    fault = disk.fail("write", probability=0.2)
    for _ in range(500):
        try:
            file.append([b"x"])
        except DiskError:
            pass
    assert 60 < fault.happened < 140
    assert file.size == len(disk.read("d/a")) == 500 - fault.happened


def test_a_sector_that_cannot_be_read_spares_the_others() -> None:
    disk = disk_of()
    durable_file(disk, OLD * 4)
    disk.fail("read", offsets=range(512, 1024))
    file = disk.mount().open("d/a", create=False)
    assert bytes(file.pread(512, 0)) == bytes(file.pread(1024, 1024))[:512] == OLD
    assert failed(lambda: file.pread(600, 0)) == failed(lambda: file.pread(1, 1023)) == errno.EIO


@pytest.mark.parametrize("torn", [False, True])
def test_failed_append_is_truncated_if_possible(torn: bool) -> None:
    """In both cases, the size that the file's owner knows excludes the failed append."""
    disk = disk_of()
    file = disk.mount().open("d/a", create=True)
    file.append([b"whole"])
    disk.fail("write", times=1, short_write=3, is_torn=torn)
    assert failed(lambda: file.append([b"failed"])) == errno.EIO
    assert disk.read("d/a") == (b"wholefai" if torn else b"whole")
    assert bytes(file.pread(100, 0)) == b"whole"
    file.append([b"."])
    assert disk.read("d/a") == b"whole."


@pytest.mark.parametrize("reads_back_old", [False, True])
def test_a_failed_fsync_takes_the_dirty_pages_along(reads_back_old: bool) -> None:
    """After a failed fsync ("fsyncgate") the next one succeeds and proves nothing; the kernel decides what the cache holds."""
    disk = disk_of()
    durable_file(disk, OLD)
    file = disk.mount().open("d/a", create=False)
    file.append([NEW])
    disk.fail("fsync", times=1, reads_back_old=reads_back_old)
    assert failed(file.fsync) == errno.EIO
    assert bytes(file.pread(1024, 0)) == OLD + (bytes(512) if reads_back_old else NEW)
    file.append([b"later"])
    file.fsync()
    assert bytes(file.pread(2000, 1024)) == b"later"
    disk.crash()
    assert disk.read("d/a") == OLD + bytes(512) + b"later", "what was dropped never comes back"


def test_dropped_page_is_whole_after_it_is_rewritten() -> None:
    disk = disk_of()
    durable_file(disk, b"old ")
    file = disk.mount().open("d/a", create=False)
    file.append([b"dropped "])
    disk.fail("fsync", times=1, reads_back_old=False)
    assert failed(file.fsync) == errno.EIO
    file.append([b"in the same sector"])
    file.fsync()
    disk.crash()
    assert disk.read("d/a") == b"old dropped in the same sector"


def test_dropped_pages_show_when_the_cache_is_dropped() -> None:
    disk = disk_of()
    durable_file(disk, OLD)
    file = disk.mount().open("d/a", create=False)
    file.pwrite(NEW, 0)
    disk.fail("fsync", times=1, reads_back_old=False)
    assert failed(file.fsync) == errno.EIO
    file.fsync()
    assert bytes(file.pread(512, 0)) == NEW
    disk.evict()
    assert bytes(file.pread(512, 0)) == OLD


# -- space --------------------------------------------------------------------------------------------------------------


def test_full_disk_takes_what_fits_and_then_fails() -> None:
    disk = disk_of()
    durable_file(disk, b"x" * 1000)
    files = disk.mount()
    file = files.open("d/log", create=True)
    disk.fill(room_bytes=600)
    file.append([b"1" * 500])
    assert (disk.free_bytes, disk.used_bytes) == (100, 1500)
    assert failed(lambda: file.append([b"2" * 101])) == errno.ENOSPC
    assert disk.read("d/log") == b"1" * 500
    file.append([b"3" * 100])
    assert failed(lambda: file.append([b"4"])) == errno.ENOSPC
    assert failed(lambda: files.write_atomic("d/b", b"no room")) == errno.ENOSPC
    assert "b.tmp" not in disk.list("d")
    files.remove("d/a")
    assert disk.free_bytes == 1000
    files.write_atomic("d/b", b"there is room")
    disk.free()
    file.append([b"5" * 100_000])


def test_a_full_disk_may_keep_a_part_of_what_failed() -> None:
    disk = disk_of()
    disk.leave_torn_writes = True
    file = disk.mount().open("d/a", create=True)
    disk.fill(room_bytes=4)
    assert failed(lambda: file.append([b"too long"])) == errno.ENOSPC
    assert disk.read("d/a") == b"too "
    assert file.size == 0


# -- rot ----------------------------------------------------------------------------------------------------------------


def test_a_bit_rots_in_a_range_of_a_file_at_rest() -> None:
    disk = disk_of()
    durable_file(disk, OLD * 2)
    (damage,) = disk.rot("*/a", offsets=range(600, 700))
    assert damage.path == "/d/a"
    assert 600 <= damage.start < damage.end <= 700
    changed = [i for i, (a, b) in enumerate(zip(OLD * 2, disk.read("d/a"), strict=True)) if a != b]
    assert changed == [damage.start]
    assert (disk.read("d/a")[damage.start] ^ ord("o")).bit_count() == 1
    disk.crash()
    assert disk.read("d/a")[damage.start] != ord("o"), "it is on the platter"
    assert disk.rot("*/a", offsets=range(5000, 6000)) == disk.rot("*/none") == []


@pytest.mark.parametrize("hidden", [False, True])
def test_a_write_lands_elsewhere_in_another_file(hidden: bool) -> None:
    disk = disk_of()
    durable_file(disk, OLD * 4, "d/victim")
    durable_file(disk, b"", "d/log")
    file = disk.mount().open("d/log", create=False)
    disk.misdirect("*/log", onto="*/victim", is_hidden=hidden)
    file.append([NEW])
    file.append([NEW])
    file.fsync()
    if hidden:
        assert disk.read("d/log") == NEW * 2, "the cache knows nothing of it"
        disk.evict()
    assert disk.read("d/log") == bytes(512) + NEW
    assert sorted(disk.read("d/victim")[i : i + 512] for i in range(0, 2048, 512)) == [NEW, OLD, OLD, OLD]
    assert [(d.kind, d.path, d.end - d.start) for d in disk.damage] == [
        ("lost", "d/log", 512),
        ("overwritten", "/d/victim", 512),
    ]
    disk.crash()
    assert disk.read("d/log") == bytes(512) + NEW


def test_a_write_lands_elsewhere_in_the_same_file() -> None:
    disk = disk_of()
    durable_file(disk, OLD * 4)
    file = disk.mount().open("d/a", create=False)
    disk.misdirect("*/a")
    file.append([NEW])
    data = disk.read("d/a")
    assert data[2048:] == bytes(512)
    assert sorted(data[i : i + 512] for i in range(0, 2048, 512)) == [NEW, OLD, OLD, OLD]


def test_read_may_return_stale_content() -> None:
    disk = disk_of()
    durable_file(disk, OLD * 2)
    files = disk.mount()
    file = files.open("d/a", create=False)
    disk.stale_reads("*/a")
    file.pwrite(NEW, 0)
    assert bytes(file.pread(512, 0)) == OLD
    assert bytes(file.pread(512, 0)) == files.read("d/a")[:512] == NEW, "once"
    disk.stale_reads("*/a")
    assert files.read("d/a") in (OLD * 2, NEW + bytes(512)), "a sector that was not written since reads as zeros"


# -- time ---------------------------------------------------------------------------------------------------------------


def spent(disk: SimFiles, call: Callable[[Mount], object]) -> float:
    took: list[float] = []
    call(disk.mount(on_latency=took.append))
    return sum(took)


def test_operations_take_their_time_and_a_slow_disk_more() -> None:
    def use(files: Mount) -> None:
        for _ in range(50):
            files.write_atomic("d/a", NEW)

    assert spent(disk_of(), use) == 0
    disk = disk_of()
    disk.take_time(Latency())
    usual = spent(disk, use)
    assert 0.05 < usual < 0.12, "100 fsyncs"
    disk.slow(100)
    assert 50 * usual < spent(disk, use) < 200 * usual
    disk.slow(1)
    disk.take_time(Latency(spike_probability=0.1, spike_s=2))
    assert spent(disk, use) > 10


def test_stall_hits_matching_operations_only() -> None:
    disk = disk_of()
    disk.stall(3.0, "fsync", "*/a.tmp")
    assert spent(disk, lambda files: files.write_atomic("d/b", b"")) == 0
    assert spent(disk, lambda files: files.write_atomic("d/a", b"")) == 3.0
    assert spent(disk, lambda files: files.write_atomic("d/a", b"")) == 0


def test_reads_may_find_the_cache_cold() -> None:
    disk = disk_of()
    durable_file(disk, OLD)
    disk.take_time(Latency(cold_read_s=1.0))
    took: list[float] = []
    file = disk.mount(on_latency=took.append).open("d/a", create=False)
    disk.cold_reads(1.0)
    with pytest.raises(ColdRead) as caught:
        file.pread(512, 0, may_block=False)
    assert sum(took) < 0.1, "it did not wait"
    caught.value.warm()
    assert sum(took) > 0.4
    assert bytes(file.pread(512, 0)) == OLD
    disk.cold_reads(0.0)
    assert bytes(file.pread(512, 0, may_block=False)) == OLD


# -- the whole disk -----------------------------------------------------------------------------------------------------


def test_a_disk_is_replaced_by_an_empty_one() -> None:
    disk = disk_of()
    durable_file(disk, OLD)
    files = disk.mount()
    with pytest.raises(ValueError, match="a process works on this disk"):
        disk.wipe()
    files.die()
    disk.wipe()
    assert disk.contents() == {}
    assert disk.mount().list("") == []


def test_two_disks_are_mistaken_for_each_other() -> None:
    one, other = disk_of(), disk_of(1)
    durable_file(one, b"of one")
    durable_file(other, b"of the other")
    one.swap(other)
    assert (one.mount().read("d/a"), other.mount().read("d/a")) == (b"of the other", b"of one")


def test_healing_ends_all_that_was_armed() -> None:
    disk = disk_of()
    disk.fail("*")
    disk.fill()
    disk.cold_reads(1.0)
    disk.slow(9)
    disk.crash_at(1)
    disk.stall(9, times=None)
    disk.heal()
    took: list[float] = []
    files = disk.mount(on_latency=took.append)
    files.write_atomic("d/a", NEW)
    assert bytes(files.open("d/a", create=False).pread(512, 0, may_block=False)) == NEW
    assert took == []
    assert not files.armed


# -- one seed, one run --------------------------------------------------------------------------------------------------


def turbulent_life(seed: int) -> str:
    """All operations and faults at once, over several power cuts; returns the observations as text."""
    random = Random(seed)
    disk = SimFiles(Random(seed))
    seen: list[object] = []
    disk.on_fault = lambda *what: seen.append(what)
    disk.take_time(Latency(spike_probability=0.05))
    for life in range(6):
        disk.fail("*", probability=0.03, times=3)
        disk.misdirect("*", onto="*", probability=0.05)
        disk.stale_reads("*", probability=0.1)
        disk.cold_reads(0.1)
        if life % 2:
            disk.crash_at(random.randint(1, 150))
        files = disk.mount(on_latency=seen.append)
        try:
            for _ in range(60):
                turbulent_step(files, random, seen)
        except ProcessDied:
            seen.append("died")
        disk.rot("*", flips=2)
        disk.crash(lossy=life % 3 > 0)
        seen.append(sorted(disk.contents().items()))
    return repr(seen)


def turbulent_step(files: Mount, random: Random, seen: list[object]) -> None:
    path = f"t/{random.randint(0, 3)}"
    try:
        files.make_dirs("t")
        file = files.open(path, create=True)
        file.append([random.randbytes(random.randint(0, 1500))])
        if random.random() < 0.3:
            file.truncate(random.randint(0, file.size))
        if random.random() < 0.3:
            file.fsync()
        if random.random() < 0.2:
            files.write_atomic(path, b"again")
        seen.append(bytes(file.pread(400, 100, may_block=False)))
        if random.random() < 0.05:
            files.remove_tree("t")
    except (DiskError, ColdRead) as e:
        seen.append(str(e))


def test_a_seed_tells_everything() -> None:
    assert turbulent_life(5) == turbulent_life(5)
    assert turbulent_life(5) != turbulent_life(6)


def test_disk_faults_depend_on_the_seed_alone() -> None:
    """No order of a set or a hash influences the result."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_disk import turbulent_life\n"
        "import hashlib; print(hashlib.sha256(turbulent_life(7).encode()).hexdigest())"
    )
    folder = os.path.dirname(__file__)
    printed = {
        subprocess.run(
            [sys.executable, "-c", program, folder],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(printed) == 1


def test_another_fault_does_not_change_what_a_power_cut_leaves() -> None:
    """So a failing run can be made smaller."""

    def left(*, with_faults: bool) -> dict[str, bytes]:
        disk = disk_of(3)
        if with_faults:
            disk.fail("read", probability=0.5)
            disk.take_time(Latency())
        files = disk.mount()
        for name in "abc":
            files.write(f"d/{name}", NEW * 3)
            try:
                files.read(f"d/{name}")
            except DiskError:
                pass
        disk.crash()
        return disk.contents()

    assert left(with_faults=True) == left(with_faults=False)


def test_disk_without_armed_faults_costs_the_same_as_memory_files() -> None:
    """The simulator appends and syncs all the time. An fsync must not copy the file either."""

    def cost(files: Files) -> float:
        files.make_dirs("d")
        best = 9.0
        for turn in range(5):
            file, data = files.open(f"d/{turn}", create=True), (bytearray(300),)
            start = process_time()
            for _ in range(2000):
                file.append(data)
                file.fsync()
            best = min(best, process_time() - start)
        return best

    assert cost(SimFiles(Random(0)).mount()) < 4 * cost(MemoryFiles(Random(0)))
    assert cost(SimFiles(Random(0)).mount()) < 0.04, "2,000 appends to half a megabyte, each synced: 20 us each are a copy"
