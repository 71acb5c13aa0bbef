"""The interface of a disk, and how it fails.

There are two implementations: `RealFiles` (`files.py`), and `MemoryFiles` (`memory_files.py`) for tests and simulation, a disk in
memory that distinguishes the page cache from the platter. Both keep these rules:

- **An append is complete or absent.** If a write fails half-way, the written part is cut off again. `File.size` never covers a
  part of an append.
- **Nothing is durable before an fsync**: `File.fsync` for a file's bytes, `Files.fsync_dir` of its directory for its name.
- **Every failure is a `DiskError`** with path, operation and errno. A full disk, a broken sector or a read-only mount is not a
  bug of this program; it takes a log directory offline.

Paths are strings with `/`.
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
    """A disk operation failed. It takes the log directory offline, and is not simply retried."""

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
    """The bytes are not in the page cache, so reading them may block for milliseconds.

    `warm()` reads them into the page cache. It touches no state of the log and may run on a thread. Then the caller reads again.
    """

    def __init__(self, files: Files, path: str, size: int, position: int) -> None:
        self._files, self.path, self.size, self.position = files, path, size, position
        super().__init__(f"{size} bytes at {position} of {path} are not in the page cache")

    def warm(self) -> None:
        """Read the bytes into the page cache. Raises DiskError."""
        self._files.warm(self.path, self.size, self.position)


class File(ABC):
    """An open file. `size` is its length in bytes, without bytes that a failed append may have left at its end."""

    __slots__ = ("path", "size")

    path: str
    size: int

    @abstractmethod
    def append(self, buffers: Sequence[Buffer]) -> None:
        """Append the buffers in order. Raises DiskError if that fails; then none is appended."""

    @abstractmethod
    def pread(self, size: int, position: int, *, may_block: bool = True) -> memoryview:
        """Up to `size` bytes from `position`, fewer at the end of the file. Raises ColdRead if it could block and `may_block` is
        False."""

    @abstractmethod
    def pwrite(self, data: Buffer, position: int) -> None:
        """Overwrite bytes at `position`. Raises DiskError unless all are written."""

    @abstractmethod
    def truncate(self, size: int) -> None: ...

    @abstractmethod
    def fsync(self) -> None:
        """Make the bytes durable. After a DiskError no byte since the last successful fsync is known to be durable, and a retry
        that succeeds proves nothing."""

    @abstractmethod
    def close(self) -> None: ...


class Lock(ABC):
    """A lock that is held until `release` or the end of the process."""

    @abstractmethod
    def release(self) -> None: ...


class Files(ABC):
    """The part of a file system that the package uses. The methods raise DiskError if the disk fails."""

    def for_thread(self) -> Files:
        """The same file system for work that opens files on another thread: with open descriptors of its own, if that matters."""
        return self

    @abstractmethod
    def open(self, path: str, *, create: bool) -> File:
        """Open a file for reading and appending. `create`: create it if it is missing; `fsync_dir` makes its name durable."""

    @abstractmethod
    def read(self, path: str) -> bytes: ...

    @abstractmethod
    def write(self, path: str, data: Buffer) -> None:
        """Replace a file by a temporary file and a rename, without an fsync. After a lost page cache the file may be old, empty
        or missing, so this is only for files that can be rebuilt."""

    @abstractmethod
    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace a file durably: temporary file, fsync, rename, fsync of the directory. After any crash it is old or new,
        whole."""

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether the path exists. Raises DiskError if that cannot be determined, because callers create a missing file."""

    @abstractmethod
    def size(self, path: str) -> int: ...

    @abstractmethod
    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    @abstractmethod
    def is_dir(self, path: str) -> bool:
        """Whether the path is a directory, and not a link to one. Raises DiskError if that cannot be determined."""

    def owner(self, path: str) -> int | None:
        """The user id of the owner of a file or directory; None if not known."""
        return None

    def modified_ms(self, path: str) -> int | None:
        """When the file was written last, in ms of the wall clock; None if not known."""
        return None

    @abstractmethod
    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set the time that `modified_ms` returns until the file is written again. The next fsync of the file covers it."""

    def free_space(self, path: str) -> int | None:
        """How many bytes this process may still write to the file system of this path; None if not known."""
        return None

    def total_space(self, path: str) -> int | None:
        """The size of the file system of this path in bytes; None if not known."""
        return None

    def boot_id(self) -> str:
        """An id of the machine's boot: while it stays the same, no write in the page cache was lost. Empty if not known."""
        return ""

    @abstractmethod
    def make_dirs(self, path: str) -> None: ...

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file. Does nothing if it is missing."""

    @abstractmethod
    def remove_tree(self, path: str) -> None:
        """Remove a directory with everything in it. Does nothing if it is missing. Symbolic links are not followed."""

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, atomically within one directory. Replaces an existing file."""

    @abstractmethod
    def fsync_dir(self, path: str) -> None: ...

    @abstractmethod
    def fsync_path(self, path: str) -> None:
        """fsync a file or directory by its path, through a new descriptor, so that it may run on a thread."""

    def fsync_paths(self, paths: Sequence[str]) -> None:
        """fsync these files and directories, in any order and perhaps side by side."""
        for path in paths:
            self.fsync_path(path)

    @abstractmethod
    def warm(self, path: str, size: int, position: int) -> None:
        """Read bytes into the page cache. May run on a thread."""

    @abstractmethod
    def exclusive(self) -> AbstractContextManager[object]:
        """A lock for replacements of files that both a thread and the event loop may make."""

    @abstractmethod
    def lock(self, path: str) -> Lock:
        """Take an exclusive lock on a file. Raises UsageError if another process holds it."""


def join(directory: str, name: str) -> str:
    """The path of `name` in `directory`."""
    return f"{directory}/{name}" if not directory.endswith("/") else directory + name


def make_dirs_durably(files: Files, path: str) -> None:
    """Create a directory and its parents, and make their names durable."""
    made = []
    while not files.exists(path) and path != parent(path):
        made.append(path)
        path = parent(path)
    for directory in reversed(made):
        files.make_dirs(directory)
        files.fsync_dir(parent(directory))


def parent(path: str) -> str:
    """The directory of a path."""
    return path.rstrip("/").rpartition("/")[0] or ("/" if path.startswith("/") else ".")
