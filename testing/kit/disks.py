"""A node's disk with its faults, and the disk as one process of the node sees it.

The disk outlives processes: bytes that a killed process wrote into the page cache are there for the next process. After its end a
process can no longer reach the disk, not even from a thread that is still running, and its locks are free.

Two faults: on a **slow** disk every write and every fsync takes longer, and the process does nothing else meanwhile; on a
**full** disk every write fails with ENOSPC.
"""

from __future__ import annotations

import errno
import time
from asyncio import events
from collections.abc import Sequence
from contextlib import AbstractContextManager
from weakref import WeakSet

from strandline.storage.disk import Buffer, DiskError, File, Files, Lock
from strandline.testing.kit.process_loop import ProcessLoop


class Disk:
    """A node's disk, shared by all its processes, one after the other."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.slow_s = 0.0
        self.is_full = False

    @property
    def trouble(self) -> str:
        slow = f"slow disk, {self.slow_s * 1000:g} ms" if self.slow_s else ""
        return ", ".join(filter(None, (slow, "full disk" if self.is_full else "")))


class ProcessFiles(Files):
    """The `Files` of one process: the node's disk with its faults, until the process ends.

    Each method raises DiskError with EBADF after the end of the process; one that writes raises DiskError with ENOSPC while the
    disk is full; otherwise the errors are those of the disk."""

    def __init__(self, disk: Disk, loop: ProcessLoop) -> None:
        self._disk = disk
        self._loop = loop
        self._open: WeakSet[ProcessFile] = WeakSet()
        self._locks: list[Lock] = []
        self._is_severed = False

    def sever(self) -> None:
        """Do what the kernel does when the process ends: close its files and release its locks."""
        self._is_severed = True
        for file in list(self._open):
            file.inner.close()
        for lock in self._locks:
            lock.release()

    def check(self, operation: str, path: str) -> None:
        """DiskError (EBADF) if the process has ended."""
        if self._is_severed:
            raise DiskError(operation, path, errno.EBADF)

    def check_write(self, operation: str, path: str) -> None:
        """DiskError if the process has ended (EBADF) or the disk is full (ENOSPC). On a slow disk, it blocks the caller first."""
        self.check(operation, path)
        if self._disk.is_full:
            raise DiskError(operation, path, errno.ENOSPC)
        self.wait()

    def wait(self) -> None:
        """If the disk is slow, block the caller: the whole process, or one of its threads."""
        if not self._disk.slow_s:
            return
        if events._get_running_loop() is None:
            time.sleep(self._disk.slow_s)
        else:
            self._loop.stall(self._disk.slow_s)

    # -- a file system's methods --------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool) -> File:
        """Open the file, or create it. Raises DiskError as every method does, but ENOSPC only if the file must be created."""
        self.check("open", path)
        if self._disk.is_full and create and not self._disk.files.exists(path):
            raise DiskError("open", path, errno.ENOSPC)
        file = ProcessFile(self, self._disk.files.open(path, create=create))
        self._open.add(file)
        return file

    def read(self, path: str) -> bytes:
        self.check("read", path)
        return self._disk.files.read(path)

    def write(self, path: str, data: Buffer) -> None:
        self.check_write("write", path)
        self._disk.files.write(path, data)

    def write_atomic(self, path: str, data: Buffer) -> None:
        self.check_write("write", path)
        self._disk.files.write_atomic(path, data)

    def exists(self, path: str) -> bool:
        return self._disk.files.exists(path)

    def size(self, path: str) -> int:
        self.check("stat", path)
        return self._disk.files.size(path)

    def list(self, path: str) -> list[str]:
        self.check("list", path)
        return self._disk.files.list(path)

    def is_dir(self, path: str) -> bool:
        return self._disk.files.is_dir(path)

    def owner(self, path: str) -> int | None:
        return self._disk.files.owner(path)

    def modified_ms(self, path: str) -> int | None:
        return self._disk.files.modified_ms(path)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.check_write("write", path)
        self._disk.files.set_modified_ms(path, modified_ms)

    def free_space(self, path: str) -> int | None:
        return 0 if self._disk.is_full else self._disk.files.free_space(path)

    def total_space(self, path: str) -> int | None:
        return self._disk.files.total_space(path)

    def boot_id(self) -> str:
        return self._disk.files.boot_id()

    def make_dirs(self, path: str) -> None:
        self.check_write("mkdir", path)
        self._disk.files.make_dirs(path)

    def remove(self, path: str) -> None:
        self.check("unlink", path)
        self._disk.files.remove(path)

    def remove_tree(self, path: str) -> None:
        self.check("rmtree", path)
        self._disk.files.remove_tree(path)

    def rename(self, source: str, target: str) -> None:
        self.check("rename", source)
        self._disk.files.rename(source, target)

    def fsync_dir(self, path: str) -> None:
        self.check("fsync", path)
        self.wait()
        self._disk.files.fsync_dir(path)

    def fsync_path(self, path: str) -> None:
        self.check("fsync", path)
        self.wait()
        self._disk.files.fsync_path(path)

    def warm(self, path: str, size: int, position: int) -> None:
        self.check("read", path)
        self._disk.files.warm(path, size, position)

    def exclusive(self) -> AbstractContextManager[object]:
        return self._disk.files.exclusive()

    def lock(self, path: str) -> Lock:
        self.check("lock", path)
        lock = self._disk.files.lock(path)
        self._locks.append(lock)
        return lock


class ProcessFile(File):
    """An open file of one process."""

    __slots__ = ("__weakref__", "_files", "inner")

    def __init__(self, files: ProcessFiles, inner: File) -> None:
        self.path, self.size = inner.path, inner.size
        self.inner = inner
        self._files = files

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._files.check_write("write", self.path)
        self.inner.append(buffers)
        self.size = self.inner.size

    def pread(self, size: int, position: int, *, may_block: bool = True) -> memoryview:
        self._files.check("read", self.path)
        return self.inner.pread(size, position, may_block=may_block)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._files.check_write("write", self.path)
        self.inner.pwrite(data, position)
        self.size = self.inner.size

    def truncate(self, size: int) -> None:
        self._files.check("truncate", self.path)
        self.inner.truncate(size)
        self.size = self.inner.size

    def fsync(self) -> None:
        self._files.check("fsync", self.path)
        self._files.wait()
        self.inner.fsync()

    def close(self) -> None:
        self.inner.close()
