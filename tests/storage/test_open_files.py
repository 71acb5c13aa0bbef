"""After a disk error at any step, a log that is given up closes all its descriptors (I23)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from storage_kit import NOW_MS, fill, open_log

from strandline.storage.disk import Buffer, DiskError
from strandline.storage.files import RealFile, RealFiles
from strandline.storage.log.log import Log, LogConfig

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100, retention_bytes=400)


class StubbornFiles(RealFiles):
    """A disk that fails one operation on files whose path has a given end, after a number of successful ones."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: tuple[str, str] | None = None
        self.spared = 0

    def _check(self, operation: str, path: str) -> None:
        if self.refused is not None and self.refused[0] == operation and path.endswith(self.refused[1]):
            if not self.spared:
                raise DiskError(operation, path, errno.EIO)
            self.spared -= 1

    def write(self, path: str, data: Buffer) -> None:
        self._check("write", path)
        super().write(path, data)

    def rename(self, source: str, target: str) -> None:
        self._check("rename", source)
        super().rename(source, target)

    def open(self, path: str, *, create: bool) -> RealFile:
        self._check("open", path)
        return super().open(path, create=create)

    def read(self, path: str) -> bytes:
        self._check("read", path)
        return super().read(path)


def a_log(tmp_path: Path) -> tuple[StubbornFiles, Log]:
    """A log of many segments, all committed, in five epochs."""
    files = StubbornFiles()
    log = open_log(files, str(tmp_path / "orders-0"), config=SMALL)
    for epoch in range(5):
        fill(log, 8, epoch=epoch)
    log.update_high_watermark(log.log_end_offset)
    assert files.open_descriptors == len(log.segments) > 10
    return files, log


@pytest.mark.parametrize("refused", [("write", "leader-epoch-checkpoint"), ("rename", ".log")])
@pytest.mark.parametrize("spared", [0, 3])
def test_failed_retention_leaves_no_file_open(tmp_path: Path, refused: tuple[str, str], spared: int) -> None:
    """The segments are taken out of the log first. If the epoch checkpoint could then not be saved, they used to stay open for
    the life of the process."""
    files, log = a_log(tmp_path)
    files.refused, files.spared = refused, spared if refused[0] == "rename" else 0
    with pytest.raises(DiskError):
        log.delete_old_segments(NOW_MS)
    assert files.open_descriptors <= len(log.segments)
    log.abandon()
    assert files.open_descriptors == 0


@pytest.mark.parametrize("target", [-1, 9])
def test_a_failed_truncation_leaves_no_file_open(tmp_path: Path, target: int) -> None:
    """A truncation removes segments, too."""
    files, log = a_log(tmp_path)
    files.refused, files.spared = ("rename", ".log"), 3
    with pytest.raises(DiskError):
        log.truncate_to(target)
    log.abandon()
    assert files.open_descriptors == 0


@pytest.mark.parametrize("refused", [("open", ".log"), ("read", ".index"), ("write", ".index"), ("write", "checkpoint")])
def test_a_failed_open_leaves_no_file_open(tmp_path: Path, refused: tuple[str, str]) -> None:
    """The caller has no log that it could close."""
    files, log = a_log(tmp_path)
    log.abandon()
    if refused[1] == "checkpoint":
        files.remove(f"{log.dir}/leader-epoch-checkpoint")
    files.refused, files.spared = refused, 4 if refused[0] == "open" else 0
    with pytest.raises(DiskError):
        open_log(files, log.dir, config=SMALL, clean=refused == ("read", ".index"))
    assert files.open_descriptors == 0
