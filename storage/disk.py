"""What the storage needs of a disk, as an interface, and how a disk fails.

Two implementations stand behind it: `RealFiles` (`files.py`) and `MemoryFiles` (`memory_files.py`), a disk in memory that
knows the difference between the page cache and the platter, for tests and simulation. The rules both keep:

- **An append is whole or absent.** When a write fails half way, what was written of it is cut off again; the file's
  size, as told by `size`, never covers a part of an append.
- **Nothing is durable before an fsync**: a file's bytes by `File.fsync`, its name by `Files.fsync_dir` of the directory.
- **Every failure is a `DiskError`** that says which path, which operation and which errno: a full disk, a broken sector
  and a read-only mount are facts about the world, not bugs of ours, and take a log directory offline.

Paths are strings, with `/`.
"""

from __future__ import annotations

import errno as errno_codes
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

from strandline.protocol.errors import StrandlineError

Buffer = bytes | bytearray | memoryview


class DiskError(StrandlineError):
    """The disk refused or failed. Takes the log directory offline; never retried as if nothing had happened."""

    def __init__(self, operation: str, path: str, errno: int) -> None:
        self.operation = operation
        self.path = path
        self.errno = errno
        super().__init__(f"{operation} of {path} failed: {os.strerror(errno)}")

    @property
    def is_full(self) -> bool:
        return self.errno in (errno_codes.ENOSPC, errno_codes.EDQUOT)

    @property
    def is_missing(self) -> bool:
        return self.errno == errno_codes.ENOENT


class ColdRead(StrandlineError):
    """The bytes are not in the page cache: reading them may block for milliseconds.

    `warm()` reads them, touches no state of the log and may run on a thread; afterwards the read is asked again.
    """

    def __init__(self, files: Files, path: str, size: int, position: int) -> None:
        self._files, self.path, self.size, self.position = files, path, size, position
        super().__init__(f"{size} bytes at {position} of {path} are not in the page cache")

    def warm(self) -> None:
        self._files.warm(self.path, self.size, self.position)


class File(ABC):
    """One file. `size` is what the owner wrote; bytes beyond it, left by a failed append, do not count."""

    __slots__ = ("path", "size")

    path: str
    size: int

    @abstractmethod
    def append(self, buffers: Sequence[Buffer]) -> None:
        """Write the buffers one after the other at the end: all of them, or DiskError and none."""

    @abstractmethod
    def pread(self, size: int, position: int, *, may_block: bool = True) -> memoryview:
        """Up to `size` bytes from `position`, fewer at the end of the file; ColdRead when it might block and must not."""

    @abstractmethod
    def pwrite(self, data: Buffer, position: int) -> None:
        """Overwrite in place (whole, or DiskError)."""

    @abstractmethod
    def truncate(self, size: int) -> None: ...

    @abstractmethod
    def fsync(self) -> None:
        """Make the bytes durable. After a DiskError nothing is known of any byte since the last success: no retry counts."""

    @abstractmethod
    def close(self) -> None: ...


class Lock(ABC):
    """Held until `release` or the end of the process."""

    @abstractmethod
    def release(self) -> None: ...


class Files(ABC):
    """A file system, as far as we use one."""

    @abstractmethod
    def open(self, path: str, *, create: bool) -> File:
        """For reading and appending. `create` makes it when missing; its name is durable after `fsync_dir`."""

    @abstractmethod
    def read(self, path: str) -> bytes: ...

    @abstractmethod
    def write(self, path: str, data: Buffer) -> None:
        """Replace by way of a temporary file and a rename, without waiting for the disk: after a lost page cache the file
        may be old, empty or missing. Only for what can be derived again."""

    @abstractmethod
    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace durably: temporary file, fsync, rename, directory fsync. After any crash it is the old or the new one."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """DiskError when that cannot be found out: what looks missing is made anew."""

    @abstractmethod
    def size(self, path: str) -> int: ...

    @abstractmethod
    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    @abstractmethod
    def is_dir(self, path: str) -> bool:
        """DiskError when that cannot be found out."""

    def owner(self, path: str) -> int | None:
        """The user id that a file or directory belongs to; None when that cannot be said."""
        return None

    def boot_id(self) -> str:
        """While this stays the same, what a write left in the page cache was not lost; empty when that cannot be said."""
        return ""

    @abstractmethod
    def make_dirs(self, path: str) -> None: ...

    @abstractmethod
    def remove(self, path: str) -> None:
        """Unlink; silently nothing when missing."""

    @abstractmethod
    def remove_tree(self, path: str) -> None:
        """Remove a directory with all in it; silently nothing when missing. Symbolic links are not followed."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Atomic within one directory; replaces a file."""

    @abstractmethod
    def fsync_dir(self, path: str) -> None: ...

    @abstractmethod
    def fsync_path(self, path: str) -> None:
        """fsync by name, through a descriptor of its own: may run on a thread beside the owner of the open file."""

    @abstractmethod
    def warm(self, path: str, size: int, position: int) -> None:
        """Bring bytes into the page cache; may run on a thread."""

    @abstractmethod
    def exclusive(self) -> AbstractContextManager[object]:
        """One at a time, where a thread and the loop may both have something to replace."""

    @abstractmethod
    def lock(self, path: str) -> Lock:
        """An exclusive lock; UsageError when another holder lives."""


def join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if not directory.endswith("/") else directory + name


def make_dirs_durably(files: Files, path: str) -> None:
    """A directory, with those above it, whose names a power cut does not take away again."""
    made = []
    while not files.exists(path) and path != parent(path):
        made.append(path)
        path = parent(path)
    for directory in reversed(made):
        files.make_dirs(directory)
        files.fsync_dir(parent(directory))


def parent(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] or ("/" if path.startswith("/") else ".")
