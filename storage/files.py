"""The file system. Brokers, controllers and logs open files only through this module.

`RealFiles` is the operating system's file system. Appends go directly to the page cache (0.5 us for small ones, 11 us for
64 KiB: less than a thread would cost). Operations that may block for long (fsync, unlink of a large file, a read of cold bytes)
have forms that may run on a thread.

A process may own thousands of logs with several files each, so an open `RealFile` does not always hold a descriptor. At most
`descriptors_max` are open; a file that was not used recently gives up its descriptor ("is parked") and reopens itself at its next
use. Weak spot: if a parked file is renamed or removed, its next use fails with ENOENT; so logs close their files before they
rename a directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress

from strandline.protocol.errors import UsageError
from strandline.storage.disk import Buffer, ColdRead, DiskError, File, Files, Lock, join, parent
from strandline.storage.memory.memory_files import MemoryFiles

__all__ = [
    "Buffer",
    "ColdRead",
    "DiskError",
    "File",
    "Files",
    "Lock",
    "MemoryFiles",
    "RealFiles",
    "join",
    "parent",
]

_OPEN_FLAGS = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)
_IOV_MAX = 512
_FSYNC_THREADS = 16
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_PARKED = -1


class RealFile(File):
    """A file of the operating system, whose descriptor may be parked. The methods raise DiskError if the operation fails."""

    __slots__ = ("_fd", "_files", "_used")

    def __init__(self, files: RealFiles, path: str, fd: int, size: int) -> None:
        self.path = path
        self.size = size
        self._files = files
        self._fd = fd
        """The descriptor, or -1 while parked or closed."""
        self._used = True

    def append(self, buffers: Sequence[Buffer]) -> None:
        fd = self._fd if self._fd >= 0 else self._unpark()
        self._used = True
        before = self.size
        try:
            if len(buffers) == 1:
                total = len(buffers[0])
                written = os.pwrite(fd, buffers[0], before)
            else:
                total = sum(len(b) for b in buffers)
                written = os.pwritev(fd, buffers[:_IOV_MAX], before)
            if written != total:
                self._append_rest(fd, buffers, before, written)
        except OSError as e:
            self._cut_back(fd, before)
            raise DiskError("write", self.path, e.errno or errno.EIO) from e
        self.size = before + total

    def _append_rest(self, fd: int, buffers: Sequence[Buffer], position: int, written: int) -> None:
        """Continue after a short write, until everything is written or the disk reports an error."""
        rest = memoryview(b"".join(buffers))
        while written < len(rest):
            more = os.pwrite(fd, rest[written:], position + written)
            if more == 0:
                raise OSError(errno.ENOSPC, "a write of 0 bytes")
            written += more

    @staticmethod
    def _cut_back(fd: int, size: int) -> None:
        """Remove the bytes of a failed append. Best effort: `size` has not changed, so the next append overwrites what stays."""
        with suppress(OSError):
            os.ftruncate(fd, size)

    def pread(self, size: int, position: int, *, may_block: bool = True) -> memoryview:
        size = max(0, min(size, self.size - position))
        fd = self._fd if self._fd >= 0 else self._unpark()
        self._used = True
        try:
            if may_block or not _NO_WAIT:
                return memoryview(os.pread(fd, size, position))
            return self._pread_cached(fd, size, position)
        except OSError as e:
            raise DiskError("read", self.path, e.errno or errno.EIO) from e

    def _pread_cached(self, fd: int, size: int, position: int) -> memoryview:
        """Read from the page cache. Raises ColdRead unless it has the whole range; the caller then warms the range and reads
        again."""
        buffer = bytearray(size)
        try:
            got = os.preadv(fd, [buffer], position, _NO_WAIT)
        except BlockingIOError:
            got = -1
        except OSError as e:
            if e.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            return memoryview(os.pread(fd, size, position))
        if got < size:
            raise ColdRead(self._files, self.path, size, position)
        return memoryview(buffer)

    def pwrite(self, data: Buffer, position: int) -> None:
        fd = self._fd if self._fd >= 0 else self._unpark()
        try:
            if os.pwrite(fd, data, position) != len(data):
                raise OSError(errno.ENOSPC, "short write")
        except OSError as e:
            raise DiskError("write", self.path, e.errno or errno.EIO) from e
        self.size = max(self.size, position + len(data))

    def truncate(self, size: int) -> None:
        fd = self._fd if self._fd >= 0 else self._unpark()
        try:
            os.ftruncate(fd, size)
        except OSError as e:
            raise DiskError("truncate", self.path, e.errno or errno.EIO) from e
        self.size = size

    def fsync(self) -> None:
        fd = self._fd if self._fd >= 0 else self._unpark()
        _fsync(fd, self.path)

    def close(self) -> None:
        self.park()

    def park(self) -> None:
        """Close the descriptor; the next use opens the file again."""
        fd, self._fd = self._fd, _PARKED
        if fd >= 0:
            self._files.open_descriptors -= 1
            with suppress(OSError):
                os.close(fd)

    def recently_used(self) -> bool:
        """Whether the file was used since the last call of this method."""
        used, self._used = self._used, False
        return used

    def _unpark(self) -> int:
        self._fd = self._files.open_descriptor(self.path, create=False)
        self._used = True
        self._files.register(self)
        return self._fd

    @property
    def has_descriptor(self) -> bool:
        return self._fd >= 0


def _stat(path: str, look: Callable[[str], os.stat_result]) -> os.stat_result | None:
    """The file's status, None if it does not exist. Raises DiskError if that cannot be determined; `os.path.exists` would return
    False."""
    try:
        return look(path)
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise DiskError("stat", path, e.errno or errno.EIO) from e


def _fsync(fd: int, path: str) -> None:
    try:
        os.fsync(fd)
    except OSError as e:
        raise DiskError("fsync", path, e.errno or errno.EIO) from e


class RealLock(Lock):
    """An flock on an open file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealFiles(Files):
    """The operating system's file system. The methods raise DiskError if an operation fails, and `lock` raises UsageError if
    another process has the lock."""

    def __init__(self, *, descriptors_max: int = 512) -> None:
        self.descriptors_max = descriptors_max
        self.open_descriptors = 0
        self._exclusive = threading.Lock()
        self._open: deque[RealFile] = deque()
        """Files in the order in which they were opened. Parked and closed ones are dropped when they reach the front, or when the
        queue grows too long."""

    def for_thread(self) -> RealFiles:
        return RealFiles(descriptors_max=16)

    def open(self, path: str, *, create: bool) -> RealFile:
        fd = self.open_descriptor(path, create=create)
        try:
            size = os.fstat(fd).st_size
        except OSError as e:
            os.close(fd)
            self.open_descriptors -= 1
            raise DiskError("stat", path, e.errno or errno.EIO) from e
        file = RealFile(self, path, fd, size)
        self.register(file)
        return file

    def open_descriptor(self, path: str, *, create: bool) -> int:
        if self.open_descriptors >= self.descriptors_max:
            self._park_one()
        try:
            fd = os.open(path, _OPEN_FLAGS | (os.O_CREAT if create else 0), 0o644)
        except OSError as e:
            raise DiskError("open", path, e.errno or errno.EIO) from e
        self.open_descriptors += 1
        return fd

    def register(self, file: RealFile) -> None:
        if len(self._open) >= 2 * self.descriptors_max:
            self._open = deque(file for file in self._open if file.has_descriptor)
        self._open.append(file)

    def _park_one(self) -> None:
        """Park the first file that was not used since the last call ("second chance"); used ones go to the back of the queue."""
        for _ in range(2 * len(self._open)):
            file = self._open.popleft()
            if not file.has_descriptor:
                continue
            if file.recently_used():
                self._open.append(file)
                continue
            file.park()
            return

    def read(self, path: str) -> bytes:
        try:
            fd = os.open(path, os.O_RDONLY)
            try:
                parts = [os.read(fd, os.fstat(fd).st_size + 1)]
                while part := os.read(fd, 1 << 20):
                    parts.append(part)
            finally:
                os.close(fd)
        except OSError as e:
            raise DiskError("read", path, e.errno or errno.EIO) from e
        return b"".join(parts)

    def write(self, path: str, data: Buffer) -> None:
        self._replace(path, data, durable=False)

    def write_atomic(self, path: str, data: Buffer) -> None:
        self._replace(path, data, durable=True)
        self.fsync_dir(parent(path))

    def _replace(self, path: str, data: Buffer, *, durable: bool) -> None:
        temporary = path + ".tmp"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                if durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except OSError as e:
            with suppress(OSError):
                os.unlink(temporary)
            raise DiskError("write", path, e.errno or errno.EIO) from e

    def exists(self, path: str) -> bool:
        return _stat(path, os.stat) is not None

    def is_dir(self, path: str) -> bool:
        found = _stat(path, os.lstat)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def size(self, path: str) -> int:
        try:
            return os.stat(path).st_size
        except OSError as e:
            raise DiskError("stat", path, e.errno or errno.EIO) from e

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError as e:
            raise DiskError("list", path, e.errno or errno.EIO) from e

    def owner(self, path: str) -> int | None:
        try:
            return os.stat(path).st_uid
        except OSError:
            return None

    def modified_ms(self, path: str) -> int | None:
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except OSError:
            return None

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        try:
            os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
        except OSError as e:
            raise DiskError("write", path, e.errno or errno.EIO) from e

    def free_space(self, path: str) -> int | None:
        found = _file_system(path)
        return None if found is None else found.f_bavail * found.f_frsize

    def total_space(self, path: str) -> int | None:
        found = _file_system(path)
        return None if found is None else found.f_blocks * found.f_frsize

    def boot_id(self) -> str:
        try:
            with open(_BOOT_ID, encoding="ascii") as file:
                return file.read().strip()
        except (OSError, ValueError):
            return ""  # not Linux

    def make_dirs(self, path: str) -> None:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as e:
            raise DiskError("mkdir", path, e.errno or errno.EIO) from e

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as e:
            raise DiskError("unlink", path, e.errno or errno.EIO) from e

    def remove_tree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass
        except OSError as e:
            raise DiskError("rmtree", path, e.errno or errno.EIO) from e

    def rename(self, source: str, target: str) -> None:
        try:
            os.replace(source, target)
        except OSError as e:
            raise DiskError("rename", source, e.errno or errno.EIO) from e

    def fsync_dir(self, path: str) -> None:
        self.fsync_path(path)

    def fsync_path(self, path: str) -> None:
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError as e:
            raise DiskError("open", path, e.errno or errno.EIO) from e
        try:
            _fsync(fd, path)
        finally:
            os.close(fd)

    def fsync_paths(self, paths: Sequence[str]) -> None:
        if len(paths) < _FSYNC_THREADS:
            super().fsync_paths(paths)
            return
        # The file system combines the fsyncs of several threads into one write of its journal.
        with ThreadPoolExecutor(_FSYNC_THREADS, thread_name_prefix="fsync") as pool:
            for _ in pool.map(self.fsync_path, paths):
                pass

    def warm(self, path: str, size: int, position: int) -> None:
        try:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.pread(fd, size, position)
            finally:
                os.close(fd)
        except OSError as e:
            raise DiskError("read", path, e.errno or errno.EIO) from e

    def exclusive(self) -> AbstractContextManager[object]:
        return self._exclusive

    def lock(self, path: str) -> RealLock:
        try:
            fd = os.open(path, _OPEN_FLAGS | os.O_CREAT, 0o644)
        except OSError as e:
            raise DiskError("open", path, e.errno or errno.EIO) from e
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            text = f"data directory {parent(path)} is in use by another process"
            raise UsageError(f"{text}: stop that process or use another directory") from None
        except OSError as e:
            os.close(fd)
            raise DiskError("lock", path, e.errno or errno.EIO) from e
        return RealLock(fd)


def _file_system(path: str) -> os.statvfs_result | None:
    try:
        return os.statvfs(path)
    except OSError:
        return None
