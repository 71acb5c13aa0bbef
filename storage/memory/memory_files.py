"""A disk in memory that loses in a crash what a real disk loses.

Every file has two images: the **cache**, which a running process reads, and the **durable** image, which the platter holds
(`memory_inodes.py`). Directories have both, too: names change in the cache first, and the changes wait in a journal until the
directory is fsynced. `crash()` is a power cut: an arbitrary subset of the 512-byte sectors written since a file's last fsync
survives, its length becomes any length between the two images, and a prefix of each directory's journal survives.
`crash(lossy=False)` is the death of a process: the page cache survives.

Operations that take several calls on a real disk also do here: a file is replaced by a temporary file and a rename, and a tree
is removed name by name. `fail_next` makes operations fail: a disk that is full half-way through a write, a sector that cannot be
read, an fsync that fails once and drops the dirty pages (so that a retry succeeds and proves nothing). Other disk faults are in
`testing/simulation/kernel/disk.py`, which is built on this module.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from random import Random

from strandline.protocol.errors import UsageError
from strandline.storage.disk import Buffer, DiskError, File, Files, Lock, join, parent
from strandline.storage.memory.memory_inodes import SECTOR, Directory, Inode

__all__ = ["SECTOR", "MemoryFile", "MemoryFiles", "MemoryLock", "matches"]

TEMPORARY = ".tmp"


def matches(path: str, pattern: str) -> bool:
    """Whether the path matches the shell pattern. The temporary file that will replace a file also matches by that file's
    name."""
    return (
        pattern == "*"
        or fnmatchcase(path, pattern)
        or (path.endswith(TEMPORARY) and fnmatchcase(path[: -len(TEMPORARY)], pattern))
    )


@dataclass(slots=True)
class _Fault:
    operation: str
    pattern: str
    errno: int
    times: int
    short_write: int
    """Number of bytes that reach the file before the error, if the operation is "write"."""


class MemoryFile(File):
    """An open file of a `MemoryFiles`."""

    __slots__ = ("_generation", "files", "inode")

    def __init__(self, files: MemoryFiles, path: str, inode: Inode) -> None:
        self.path = path
        self.size = len(inode.cache)
        self.files = files
        """The disk of this file."""
        self.inode = inode
        """The bytes of this file, as the cache has them and as the platter does."""
        self._generation = files.generation

    def append(self, buffers: Sequence[Buffer]) -> None:
        files, inode, size = self.files, self.inode, self.size
        cache = inode.cache
        if files.armed or self._generation != files.generation or size < inode.guarded or size != len(cache):
            self._append_with_care(b"".join(buffers))
            return
        cache += buffers[0] if len(buffers) == 1 else b"".join(buffers)
        inode.dirty = True
        inode.modified_ms = None
        self.size = len(cache)

    def _append_with_care(self, data: bytes) -> None:
        """`append` for the cases with a planned fault, or with bytes of the platter that must be remembered first."""
        self._check_alive()
        fault = self.files.take_fault("write", self.path)
        if fault is not None:
            self.inode.replace_tail(self.size, data[: fault.short_write] if self.files.leave_torn_writes else b"")
            raise DiskError("write", self.path, fault.errno)
        self.inode.replace_tail(self.size, data)
        self.size += len(data)

    def pread(self, size: int, position: int, *, may_block: bool = True) -> memoryview:
        files = self.files
        end = min(self.size, position + max(0, size))
        if files.armed or self._generation != files.generation:
            return self._pread_with_care(position, end, may_block)
        return memoryview(self.inode.cache[position:end]).toreadonly()

    def _pread_with_care(self, position: int, end: int, may_block: bool) -> memoryview:
        self._check_alive()
        self.files.maybe_fail("read", self.path)
        return memoryview(self.inode.cache[position:end]).toreadonly()

    def pwrite(self, data: Buffer, position: int) -> None:
        self._check_alive()
        self.files.maybe_fail("write", self.path)
        self.inode.overwrite(position, data)
        self.size = max(self.size, position + len(data))

    def truncate(self, size: int) -> None:
        self._check_alive()
        self.files.maybe_fail("truncate", self.path)
        self.inode.truncate(size)
        self.size = size

    def fsync(self) -> None:
        self._check_alive()
        self.files.sync_inode(self.path, self.inode)

    def close(self) -> None:
        pass

    def _check_alive(self) -> None:
        """Raise an error for a file that was opened before the last crash, by a process that is dead."""
        if self._generation != self.files.generation:
            raise DiskError("use after crash", self.path, errno.EBADF)


class MemoryLock(Lock):
    """A lock of a `MemoryFiles`, which a crash releases."""

    def __init__(self, files: MemoryFiles, path: str) -> None:
        self._files, self._path = files, path

    def release(self) -> None:
        self._files.locks.discard(self._path)


class MemoryFiles(Files):
    """The disk of one machine. Share it between the processes of a node, and call `crash()` between them. Errors are those of
    `RealFiles`: DiskError, and UsageError for a lock that another process has."""

    def __init__(self, random: Random | None = None) -> None:
        self.root = Directory()
        self.armed = False
        """Whether operations must take the slow path, because a fault may be planned."""
        self.locks: set[str] = set()
        self.generation = 0
        """Counts the crashes. Files opened before the last one are dead."""
        self.boots = 0
        """Counts the crashes that lost the page cache."""
        self.leave_torn_writes = False
        """Whether a failed write leaves its first bytes in the file (the truncation after it failed as well)."""
        self.fsyncs = 0
        self._random = random or Random(0)
        self._faults: list[_Fault] = []

    # -- faults ---------------------------------------------------------------------------------------------------

    def crash(self, *, lossy: bool = True) -> None:
        """Let the machine (lossy) or only the process die. Open files are dead, locks are free, planned errors are dropped."""
        if lossy:
            self.root.lose(self._random)
            self.boots += 1
        self.locks.clear()
        self._faults.clear()
        self.armed = False
        self.generation += 1

    def boot_id(self) -> str:
        return f"boot {self.boots}"

    def fail_next(self, operation: str, pattern: str, error: int, *, times: int = 1, short_write: int = 0) -> None:
        """Let the next `times` operations ("open", "read", "write", "truncate", "fsync", "rename", "unlink", ...) on a path that
        matches `pattern` fail with errno `error`. `short_write`: how many bytes of a write reach the file."""
        self._faults.append(_Fault(operation, pattern, error, times, short_write))
        self.armed = True

    def take_fault(self, operation: str, path: str) -> _Fault | None:
        """The planned fault of this operation on this path, which counts as used; None if there is none."""
        for fault in self._faults:
            if fault.operation == operation and matches(path, fault.pattern):
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                    self.armed = bool(self._faults)
                return fault
        return None

    def maybe_fail(self, operation: str, path: str) -> None:
        """Raise the planned error of this operation, if there is one. Every operation calls it before it changes anything."""
        if self._faults:
            fault = self.take_fault(operation, path)
            if fault is not None:
                raise DiskError(operation, path, fault.errno)

    def flip_bit(self, path: str, bit: int) -> None:
        """Flip one bit of the file, in the cache and on the platter, as a rotting disk does."""
        self._inode("flip", path).flip(bit)

    # -- single steps of a disk -----------------------------------------------------------------------------------

    def change(self, operation: str, path: str, directory: Directory, names: dict[str, Inode | Directory | None]) -> None:
        """Change names in a directory; None removes one. `operation` is "create", "mkdir", "rename", "unlink" or "rmdir"."""
        self.maybe_fail(operation, path)
        directory.change(names)

    def sync_inode(self, path: str, inode: Inode) -> None:
        self.fsyncs += 1
        fault = self.take_fault("fsync", path)
        if fault is not None:
            inode.drop_dirty()  # The kernel drops the dirty pages: a second fsync will succeed and prove nothing.
            raise DiskError("fsync", path, fault.errno)
        inode.sync()

    def sync_directory(self, path: str, directory: Directory) -> None:
        self.maybe_fail("fsync", path)
        directory.sync()

    # -- the interface `Files` ------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool) -> MemoryFile:
        self.maybe_fail("open", path)
        directory, name = self._locate("open", path)
        node = directory.entries.get(name)
        if node is None:
            if not create:
                raise DiskError("open", path, errno.ENOENT)
            node = Inode()
            self.change("create", path, directory, {name: node})
        if isinstance(node, Directory):
            raise DiskError("open", path, errno.EISDIR)
        return self._file(path, node)

    def _file(self, path: str, inode: Inode) -> MemoryFile:
        return MemoryFile(self, path, inode)

    def read(self, path: str) -> bytes:
        self.maybe_fail("read", path)
        return bytes(self._inode("read", path).cache)

    def write(self, path: str, data: Buffer) -> None:
        self._replace(path, data, durable=False)

    def write_atomic(self, path: str, data: Buffer) -> None:
        self._replace(path, data, durable=True)
        self.fsync_dir(parent(path))

    def _replace(self, path: str, data: Buffer, *, durable: bool) -> None:
        temporary = path + TEMPORARY
        try:
            file = self.open(temporary, create=True)
            if file.size:
                file.truncate(0)
            file.append([data])
            if durable:
                file.fsync()
            self.rename(temporary, path)
        except DiskError as e:
            with suppress(DiskError):
                self.remove(temporary)
            raise DiskError("write", path, e.errno) from e

    def exists(self, path: str) -> bool:
        self.maybe_fail("stat", path)
        return self.find(path) is not None

    def is_dir(self, path: str) -> bool:
        self.maybe_fail("stat", path)
        return isinstance(self.find(path), Directory)

    def size(self, path: str) -> int:
        self.maybe_fail("stat", path)
        return len(self._inode("stat", path).cache)

    def modified_ms(self, path: str) -> int | None:
        """The time that was set after the last write. This disk has no clock, so otherwise it is not known."""
        node = self.find(path)
        return node.modified_ms if isinstance(node, Inode) else None

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self.maybe_fail("write", path)
        self._inode("write", path).modified_ms = modified_ms

    def list(self, path: str) -> list[str]:
        self.maybe_fail("list", path)
        return sorted(self._directory("list", path).entries)

    def make_dirs(self, path: str) -> None:
        directory, made = self.root, "/" if path.startswith("/") else ""
        for name in _parts(path):
            made = join(made, name) if made else name
            node = directory.entries.get(name)
            if node is None:
                node = Directory()
                self.change("mkdir", made, directory, {name: node})
            if not isinstance(node, Directory):
                raise DiskError("mkdir", path, errno.ENOTDIR)
            directory = node

    def remove(self, path: str) -> None:
        node = self.find(path)
        if isinstance(node, Directory):
            raise DiskError("unlink", path, errno.EISDIR)
        if node is None:
            self.maybe_fail("unlink", path)
        else:
            directory, name = self._locate("unlink", path)
            self.change("unlink", path, directory, {name: None})

    def remove_tree(self, path: str) -> None:
        node = self.find(path)
        if not isinstance(node, Directory):
            self.remove(path)
            return
        for name in self._removal_order(node.entries):
            self.remove_tree(join(path, name))
        directory, name = self._locate("rmdir", path)
        self.change("rmdir", path, directory, {name: None})

    def _removal_order(self, names: Iterable[str]) -> Iterable[str]:
        """The order in which a tree is removed. A disk in the simulation overrides it, because a file system lists names in an
        order of its own."""
        return sorted(names)

    def rename(self, source: str, target: str) -> None:
        directory, old = self._locate("rename", source)
        other, new = self._locate("rename", target)
        node = directory.entries.get(old)
        if node is None:
            raise DiskError("rename", source, errno.ENOENT)
        if directory is not other:
            raise DiskError("rename", source, errno.EXDEV)
        _check_replaces(node, directory.entries.get(new), source)
        self.change("rename", source, directory, {old: None, new: node})

    def fsync_dir(self, path: str) -> None:
        self.sync_directory(path, self._directory("open", path))

    def fsync_path(self, path: str) -> None:
        node = self.find(path)
        if isinstance(node, Directory):
            self.sync_directory(path, node)
        else:
            self.sync_inode(path, self._inode("open", path))

    def warm(self, path: str, size: int, position: int) -> None:
        self.maybe_fail("read", path)

    def exclusive(self) -> AbstractContextManager[object]:
        return nullcontext()

    def lock(self, path: str) -> Lock:
        if path in self.locks:
            text = f"data directory {parent(path)} is in use by another process"
            raise UsageError(f"{text}: stop that process or use another directory")
        self.open(path, create=True)
        self.locks.add(path)
        return MemoryLock(self, path)

    # -- names ----------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Inode | Directory | None:
        """The file or directory of this path, as the cache has it; None if there is none."""
        node: Inode | Directory | None = self.root
        for name in _parts(path):
            if node is None or isinstance(node, Inode):
                return None
            node = node.entries.get(name)
        return node

    def _inode(self, operation: str, path: str) -> Inode:
        node = self.find(path)
        if not isinstance(node, Inode):
            raise DiskError(operation, path, errno.ENOENT if node is None else errno.EISDIR)
        return node

    def _directory(self, operation: str, path: str) -> Directory:
        node = self.find(path)
        if not isinstance(node, Directory):
            raise DiskError(operation, path, errno.ENOENT if node is None else errno.ENOTDIR)
        return node

    def _locate(self, operation: str, path: str) -> tuple[Directory, str]:
        """The directory of the path, which need not exist, and its name there."""
        above, _, name = path.rstrip("/").rpartition("/")
        return self._directory(operation, above), name


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    """Cached: every operation on a simulated disk looks up its path, and there are few paths."""
    return tuple(part for part in path.split("/") if part not in ("", "."))


def _check_replaces(node: Inode | Directory, replaced: Inode | Directory | None, source: str) -> None:
    """Apply the rule of rename(2): a file may replace a file, a directory an empty directory."""
    if replaced is None or node is replaced:
        return
    if isinstance(replaced, Directory):
        if isinstance(node, Inode):
            raise DiskError("rename", source, errno.EISDIR)
        if replaced.entries:
            raise DiskError("rename", source, errno.ENOTEMPTY)
    elif isinstance(node, Directory):
        raise DiskError("rename", source, errno.ENOTDIR)
