"""Both disks keep the promises of the interface, and the one in memory loses in a crash what a real disk loses."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from random import Random

import pytest

from strandline.protocol.errors import UsageError
from strandline.storage.disk import DiskError, Files
from strandline.storage.files import RealFiles
from strandline.storage.memory.memory_files import MemoryFiles


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path) -> tuple[Files, str]:
    if request.param == "real":
        return RealFiles(), str(tmp_path)
    files = MemoryFiles()
    files.make_dirs("root")
    return files, "root"


def test_a_file_is_appended_read_overwritten_and_truncated(disk: tuple[Files, str]) -> None:
    files, root = disk
    file = files.open(f"{root}/a", create=True)
    file.append([b"hello ", bytearray(b"wor"), memoryview(b"ld")])
    file.append([b"!"])
    assert file.size == 12
    assert bytes(file.pread(100, 6)) == b"world!"
    assert bytes(file.pread(3, 100)) == b""
    file.pwrite(b"W", 6)
    file.truncate(9)
    file.append([b"."])
    file.fsync()
    assert files.read(f"{root}/a") == b"hello Wor."
    file.close()
    assert files.open(f"{root}/a", create=False).size == 10
    assert files.size(f"{root}/a") == 10


def test_set_time_of_modification_stays_until_the_next_write(disk: tuple[Files, str]) -> None:
    files, root = disk
    path = f"{root}/a"
    for change in (
        lambda file: file.append([b"more"]),
        lambda file: file.pwrite(b"H", 0),
        lambda file: file.truncate(3),
    ):
        file = files.open(path, create=True)
        file.append([b"hello"])
        files.set_modified_ms(path, 1_234_567_890_123)
        file.fsync()
        files.rename(path, path + ".renamed")
        files.rename(path + ".renamed", path)
        assert files.modified_ms(path) == 1_234_567_890_123
        change(file)
        assert files.modified_ms(path) != 1_234_567_890_123
    with pytest.raises(DiskError):
        files.set_modified_ms(f"{root}/none", 5)
    assert files.modified_ms(f"{root}/none") is None


def test_names_are_created_renamed_and_removed(disk: tuple[Files, str]) -> None:
    files, root = disk
    files.make_dirs(f"{root}/x/y")
    files.write_atomic(f"{root}/x/b", b"1")
    files.write(f"{root}/x/a", b"2")
    assert files.list(f"{root}/x") == ["a", "b", "y"]
    files.rename(f"{root}/x", f"{root}/z")
    assert not files.exists(f"{root}/x")
    assert files.read(f"{root}/z/b") == b"1"
    assert files.is_dir(f"{root}/z")
    assert not files.is_dir(f"{root}/z/b")
    files.remove(f"{root}/z/a")
    files.remove(f"{root}/z/a")
    files.fsync_dir(f"{root}/z")
    files.fsync_path(f"{root}/z/b")
    files.warm(f"{root}/z/b", 1, 0)
    files.remove_tree(f"{root}/z")
    files.remove_tree(f"{root}/z")
    assert files.list(root) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda files, root: files.open(f"{root}/no", create=False),
        lambda files, root: files.read(f"{root}/no"),
        lambda files, root: files.list(f"{root}/no"),
        lambda files, root: files.rename(f"{root}/no", f"{root}/new"),
        lambda files, root: files.write_atomic(f"{root}/no/x", b""),
        lambda files, root: files.open(f"{root}/no/x", create=True),
        lambda files, root: files.fsync_path(f"{root}/no"),
        lambda files, root: files.size(f"{root}/no"),
    ],
)
def test_a_missing_path_is_a_disk_error(disk: tuple[Files, str], call: Callable[[Files, str], object]) -> None:
    with pytest.raises(DiskError) as caught:
        call(*disk)
    assert caught.value.is_missing
    assert disk[1] in str(caught.value)


@pytest.mark.parametrize("look", ["stat", "lstat"])
def test_a_path_that_cannot_be_looked_up_is_not_missing(tmp_path, monkeypatch: pytest.MonkeyPatch, look: str) -> None:
    """A log that looks missing would be created again, and its first segment emptied."""
    files = RealFiles()
    assert (files.exists(f"{tmp_path}/no"), files.is_dir(f"{tmp_path}/no/x")) == (False, False)
    assert (files.exists(f"{tmp_path}"), files.is_dir(f"{tmp_path}")) == (True, True)

    def fails(path: str) -> os.stat_result:
        raise OSError(errno.EIO, "the sector of the directory cannot be read")

    monkeypatch.setattr(os, look, fails)
    with pytest.raises(DiskError) as caught:
        files.exists(f"{tmp_path}") if look == "stat" else files.is_dir(f"{tmp_path}")
    assert caught.value.errno == errno.EIO


def test_file_whose_size_cannot_be_read_is_a_disk_error_and_is_closed(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a DiskError takes the log directory offline; an OSError would end the broker's task."""
    files = RealFiles()
    before = open_descriptors()

    def fails(fd: int) -> os.stat_result:
        raise OSError(errno.EIO, "the inode cannot be read")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", fails)
        with pytest.raises(DiskError) as caught:
            files.open(f"{tmp_path}/log", create=True)
    assert (caught.value.errno, files.open_descriptors, open_descriptors()) == (errno.EIO, 0, before)


def test_a_lock_has_one_holder(disk: tuple[Files, str]) -> None:
    files, root = disk
    lock = files.lock(f"{root}/.lock")
    with pytest.raises(UsageError, match="in use"):
        files.lock(f"{root}/.lock")
    lock.release()
    files.lock(f"{root}/.lock").release()


def open_descriptors() -> int:
    """The number of open descriptors of this process, those of other tests included; 0 if the kernel does not report it."""
    return len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0


def test_many_files_share_few_descriptors(tmp_path) -> None:
    """A thousand logs must not need a thousand descriptors."""
    before = open_descriptors()
    files = RealFiles(descriptors_max=8)
    opened = [files.open(f"{tmp_path}/{i}", create=True) for i in range(50)]
    for turn in range(3):
        for i, file in enumerate(opened):
            file.append([b"%d-%d " % (turn, i)])
    assert files.open_descriptors <= 8
    assert open_descriptors() <= before + 8
    for i, file in enumerate(opened):
        assert bytes(file.pread(100, 0)) == b"0-%d 1-%d 2-%d " % (i, i, i)
        file.fsync()
        file.close()
    assert files.open_descriptors == 0


def test_closed_files_are_forgotten(tmp_path) -> None:
    files = RealFiles(descriptors_max=8)
    kept = files.open(f"{tmp_path}/kept", create=True)
    for _ in range(100):
        files.open(f"{tmp_path}/a", create=True).close()
    assert files.open_descriptors == 1
    assert len(files._open) <= 17
    kept.append([b"x"])


def test_a_short_write_is_completed_or_undone(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may write fewer bytes than asked, above all when the disk is nearly full."""
    files = RealFiles()
    file = files.open(f"{tmp_path}/a", create=True)
    pwrite = os.pwrite
    room = [10**9]

    def partial(fd: int, data: bytes, position: int) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, "full")
        written = pwrite(fd, data[: min(5, room[0])], position)
        room[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", partial)
    file.append([b"0123456789abcdef"])
    assert files.read(f"{tmp_path}/a") == b"0123456789abcdef"
    room[0] = 7
    with pytest.raises(DiskError) as caught:
        file.append([b"never to be seen"])
    assert caught.value.is_full
    assert (file.size, files.read(f"{tmp_path}/a")) == (16, b"0123456789abcdef")


def test_a_read_of_cold_bytes_need_not_block(tmp_path) -> None:
    files = RealFiles()
    file = files.open(f"{tmp_path}/a", create=True)
    file.append([b"x" * 10000])
    assert bytes(file.pread(10000, 0, may_block=False)) == b"x" * 10000


# -- the power cut ------------------------------------------------------------------------------------------------


def outcomes(prepare: Callable[[MemoryFiles], None], seeds: int = 60) -> set[tuple[tuple[str, bytes], ...]]:
    """The possible contents of the directory after a power cut, over many seeds."""
    seen = set()
    for seed in range(seeds):
        files = MemoryFiles(Random(seed))
        files.make_dirs("d")
        files.fsync_dir("")
        prepare(files)
        files.crash()
        seen.add(tuple((name, files.read(f"d/{name}")) for name in files.list("d")))
    return seen


def test_an_atomic_write_is_old_or_new_after_any_power_cut() -> None:
    def prepare(files: MemoryFiles) -> None:
        files.write_atomic("d/a", b"old")
        files.write("d/b", b"new")

    assert all(dict(content)["a"] == b"old" for content in outcomes(prepare))


def test_a_rename_without_fsync_may_leave_an_old_an_empty_or_a_torn_file() -> None:
    """A test that relies on more than this must be able to fail."""

    def prepare(files: MemoryFiles) -> None:
        files.write_atomic("d/a", b"old")
        files.write("d/a", b"new")

    contents = {dict(content).get("a") for content in outcomes(prepare)}
    assert {b"old", b"new", b""} <= contents


def test_an_fsync_keeps_the_bytes_but_not_the_name() -> None:
    def prepare(files: MemoryFiles) -> None:
        file = files.open("d/a", create=True)
        file.append([b"bytes"])
        file.fsync()

    assert outcomes(prepare) == {(), (("a", b"bytes"),)}


def test_unsynced_sectors_survive_one_by_one() -> None:
    def prepare(files: MemoryFiles) -> None:
        file = files.open("d/a", create=True)
        files.fsync_dir("d")
        file.append([b"a" * 512])
        file.fsync()
        file.append([b"b" * 512 + b"c" * 512])

    images = {dict(content)["a"] for content in outcomes(prepare, 200)}
    assert all(image.startswith(b"a" * 512) for image in images)
    assert b"a" * 512 + bytes(512) + b"c" * 512 in images
    assert b"a" * 512 in images


def test_a_killed_process_loses_nothing_and_its_files_are_dead() -> None:
    files = MemoryFiles()
    files.make_dirs("d")
    file = files.open("d/a", create=True)
    file.append([b"x"])
    files.lock("d/.lock")
    files.crash(lossy=False)
    assert files.read("d/a") == b"x"
    with pytest.raises(DiskError):
        file.append([b"y"])
    files.lock("d/.lock")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a boot id")
def test_the_boot_id_names_the_page_cache() -> None:
    """While the id is the same, a killed process has lost no write."""
    boot_id = RealFiles().boot_id()
    assert len(boot_id) == 36
    assert RealFiles().boot_id() == boot_id


def test_free_space_is_that_of_the_file_system(tmp_path) -> None:
    found = RealFiles().free_space(str(tmp_path))
    assert found is not None
    assert found > 0
    total = RealFiles().total_space(str(tmp_path))
    assert total is not None
    assert total >= found
    assert RealFiles().free_space(str(tmp_path / "missing")) is RealFiles().total_space(str(tmp_path / "missing")) is None


@pytest.mark.parametrize("count", [3, 100])
def test_many_paths_are_made_durable_by_one_call(tmp_path, count: int) -> None:
    files = RealFiles()
    paths = [str(tmp_path / f"{number}") for number in range(count)]
    for path in paths:
        files.write(path, b"x")
    files.fsync_paths([*paths, str(tmp_path)])
    with pytest.raises(DiskError):
        files.fsync_paths([*paths, str(tmp_path / "missing")])
