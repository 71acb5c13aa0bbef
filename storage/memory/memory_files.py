"""A disk in memory that knows what a real one forgets.

Every file has two images: the **cache**, what a running process reads back, and the **durable** one, what the platter
holds (`memory_inodes.py`). A directory too: names come and go in the cache first, and their changes wait in a journal
until the directory is fsynced. `crash()` then is a power cut: of every file an arbitrary subset of the 512-byte sectors
that were written since its last fsync survives, its length is any length between the two, and of every directory's
journal a prefix. `crash(lossy=False)` is a process that dies: the page cache lives on.

What takes several calls on a real disk does so here: a file is replaced by way of a temporary one, and a tree is removed
name by name. `fail_next` plants errors: a full disk half way through a write, a sector that cannot be read, an fsync that
fails once and takes the dirty pages with it (so that a retry succeeds and means nothing). All other faults that a disk
may have are those of `testing/simulation/kernel/disk.py`, which is built on this.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random

from strandline.protocol.errors import UsageError
from strandline.storage.disk import Buffer, DiskError, File, Files, Lock, join, parent
from strandline.storage.memory.memory_inodes import SECTOR, Directory, Inode

__all__ = ["SECTOR", "MemoryFile", "MemoryFiles", "MemoryLock", "matches"]

TEMPORARY = ".tmp"


def matches(path: str, pattern: str) -> bool:
    """Shell style; the temporary file that will replace a file goes by its name, too."""
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
    """For "write": how many bytes of it reach the file before the error."""


class MemoryFile(File):
    __slots__ = ("_files", "_generation", "_inode")

    def __init__(self, files: MemoryFiles, path: str, inode: Inode) -> None:
        self.path = path
        self.size = len(inode.cache)
        self._files = files
        self._inode = inode
        self._generation = files.generation

    def append(self, buffers: Sequence[Buffer]) -> None:
        files, inode, size = self._files, self._inode, self.size
        cache = inode.cache
        if files.armed or self._generation != files.generation or size < inode.guarded or size != len(cache):
            self._append_with_care(b"".join(buffers))
            return
        cache += buffers[0] if len(buffers) == 1 else b"".join(buffers)
        inode.dirty = True
        self.size = len(cache)

    def _append_with_care(self, data: bytes) -> None:
        """As `append`, where there may be a fault, or something that the platter has and the cache is about to forget."""
        self._check_alive()
        fault = self._files.take_fault("write", self.path)
        if fault is not None:
            self._inode.replace_tail(self.size, data[: fault.short_write] if self._files.leave_torn_writes else b"")
            raise DiskError("write", self.path, fault.errno)
        self._inode.replace_tail(self.size, data)
        self.size += len(data)

    def pread(self, size: int, position: int, *, may_block: bool = True) -> memoryview:
        files = self._files
        end = min(self.size, position + max(0, size))
        if files.armed or self._generation != files.generation:
            return self._pread_with_care(position, end, may_block)
        return memoryview(self._inode.cache[position:end]).toreadonly()

    def _pread_with_care(self, position: int, end: int, may_block: bool) -> memoryview:
        self._check_alive()
        self._files.maybe_fail("read", self.path)
        return memoryview(self._inode.cache[position:end]).toreadonly()

    def pwrite(self, data: Buffer, position: int) -> None:
        self._check_alive()
        self._files.maybe_fail("write", self.path)
        self._inode.overwrite(position, data)
        self.size = max(self.size, position + len(data))

    def truncate(self, size: int) -> None:
        self._check_alive()
        self._files.maybe_fail("truncate", self.path)
        self._inode.truncate(size)
        self.size = size

    def fsync(self) -> None:
        self._check_alive()
        self._files.sync_inode(self.path, self._inode)

    def close(self) -> None:
        pass

    def _check_alive(self) -> None:
        """A file that was open when the machine died belongs to a process that is no more."""
        if self._generation != self._files.generation:
            raise DiskError("use after crash", self.path, errno.EBADF)


class MemoryLock(Lock):
    def __init__(self, files: MemoryFiles, path: str) -> None:
        self._files, self._path = files, path

    def release(self) -> None:
        self._files.locks.discard(self._path)


class MemoryFiles(Files):
    """One machine's disk. Share it between the incarnations of a node, and `crash()` between them."""

    def __init__(self, random: Random | None = None) -> None:
        self.root = Directory()
        self.armed = False
        """Whether an operation has to look for more than the bytes that it is about."""
        self.locks: set[str] = set()
        self.generation = 0
        """Counts the crashes; files opened before one are dead."""
        self.boots = 0
        """Counts those that have cost the page cache."""
        self.leave_torn_writes = False
        """Whether a failed write leaves its first bytes behind (the truncation after it failed as well)."""
        self.fsyncs = 0
        self._random = random or Random(0)
        self._faults: list[_Fault] = []

    # -- faults ---------------------------------------------------------------------------------------------------

    def crash(self, *, lossy: bool = True) -> None:
        """The machine (lossy) or only the process dies. Open files are dead, locks are free, planted errors forgotten."""
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
        """The next `times` operations ("open", "read", "write", "truncate", "fsync", "rename", "unlink", ...) on a path
        that matches the pattern fail with errno `error`."""
        self._faults.append(_Fault(operation, pattern, error, times, short_write))
        self.armed = True

    def take_fault(self, operation: str, path: str) -> _Fault | None:
        for fault in self._faults:
            if fault.operation == operation and matches(path, fault.pattern):
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                    self.armed = bool(self._faults)
                return fault
        return None

    def maybe_fail(self, operation: str, path: str) -> None:
        """Every operation passes here before it has done anything."""
        if self._faults:
            fault = self.take_fault(operation, path)
            if fault is not None:
                raise DiskError(operation, path, fault.errno)

    def flip_bit(self, path: str, bit: int) -> None:
        """The disk rots: one bit of the file changes, in the cache and on the platter."""
        self._inode("flip", path).flip(bit)

    # -- the file system: what is one step on a disk --------------------------------------------------------------

    def change(self, operation: str, path: str, directory: Directory, names: dict[str, Inode | Directory | None]) -> None:
        """Names come, go and change places: "create", "mkdir", "rename", "unlink", "rmdir"."""
        self.maybe_fail(operation, path)
        directory.change(names)

    def sync_inode(self, path: str, inode: Inode) -> None:
        self.fsyncs += 1
        fault = self.take_fault("fsync", path)
        if fault is not None:
            inode.drop_dirty()  # the kernel dropped the dirty pages: a second fsync will succeed and prove nothing
            raise DiskError("fsync", path, fault.errno)
        inode.sync()

    def sync_directory(self, path: str, directory: Directory) -> None:
        self.maybe_fail("fsync", path)
        directory.sync()

    # -- the file system: what we ask of it -----------------------------------------------------------------------

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
        return self._find(path) is not None

    def is_dir(self, path: str) -> bool:
        self.maybe_fail("stat", path)
        return isinstance(self._find(path), Directory)

    def size(self, path: str) -> int:
        self.maybe_fail("stat", path)
        return len(self._inode("stat", path).cache)

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
        node = self._find(path)
        if isinstance(node, Directory):
            raise DiskError("unlink", path, errno.EISDIR)
        if node is None:
            self.maybe_fail("unlink", path)
        else:
            directory, name = self._locate("unlink", path)
            self.change("unlink", path, directory, {name: None})

    def remove_tree(self, path: str) -> None:
        node = self._find(path)
        if not isinstance(node, Directory):
            self.remove(path)
            return
        for name in self._removal_order(node.entries):
            self.remove_tree(join(path, name))
        directory, name = self._locate("rmdir", path)
        self.change("rmdir", path, directory, {name: None})

    def _removal_order(self, names: Iterable[str]) -> Iterable[str]:
        """A file system lists a directory in an order of its own."""
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
        node = self._find(path)
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
            raise UsageError(f"data directory {parent(path)} is in use by another process")
        self.open(path, create=True)
        self.locks.add(path)
        return MemoryLock(self, path)

    # -- names ----------------------------------------------------------------------------------------------------

    def _find(self, path: str) -> Inode | Directory | None:
        node: Inode | Directory | None = self.root
        for name in path.split("/"):
            if name and name != ".":
                if node is None or isinstance(node, Inode):
                    return None
                node = node.entries.get(name)
        return node

    def _inode(self, operation: str, path: str) -> Inode:
        node = self._find(path)
        if not isinstance(node, Inode):
            raise DiskError(operation, path, errno.ENOENT if node is None else errno.EISDIR)
        return node

    def _directory(self, operation: str, path: str) -> Directory:
        node = self._find(path)
        if not isinstance(node, Directory):
            raise DiskError(operation, path, errno.ENOENT if node is None else errno.ENOTDIR)
        return node

    def _locate(self, operation: str, path: str) -> tuple[Directory, str]:
        """The directory that has or would have it, and its name there."""
        above, _, name = path.rstrip("/").rpartition("/")
        return self._directory(operation, above), name


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _check_replaces(node: Inode | Directory, replaced: Inode | Directory | None, source: str) -> None:
    """What rename(2) says: a file replaces a file, a directory an empty directory."""
    if replaced is None or node is replaced:
        return
    if isinstance(replaced, Directory):
        if isinstance(node, Inode):
            raise DiskError("rename", source, errno.EISDIR)
        if replaced.entries:
            raise DiskError("rename", source, errno.ENOTEMPTY)
    elif isinstance(node, Directory):
        raise DiskError("rename", source, errno.ENOTDIR)
