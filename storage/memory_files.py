"""A disk in memory that knows what a real one forgets.

Every file has two images: the **cache**, what a running process reads back, and the **durable** one, what the platter
holds. A directory too: names come and go in the cache first, and their changes wait in a journal until the directory is
fsynced. `crash()` then is a power cut: of every file an arbitrary subset of the 512-byte sectors that were written
since its last fsync survives, its length is any length between the two, and of every directory's journal a prefix.
`crash(lossy=False)` is a process that dies: the page cache lives on.

`fail_next` plants errors: a full disk half way through a write, a sector that cannot be read, an fsync that fails once
and takes the dirty pages with it (so that a retry succeeds and means nothing).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from random import Random

from strandline.protocol.errors import UsageError
from strandline.storage.disk import Buffer, DiskError, File, Files, Lock, parent

SECTOR = 512


@dataclass(slots=True)
class _Inode:
    cache: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: bool = False
    """Whether the two may differ."""

    def sync(self) -> None:
        if self.dirty:
            self.durable[:] = self.cache
            self.dirty = False

    def lose(self, random: Random) -> None:
        """The power goes: unsynced sectors survive one by one or not, and so does the length."""
        if not self.dirty:
            return
        low, high = sorted((len(self.durable), len(self.cache)))
        size = random.choice((low, high, random.randint(low, high)))
        image = bytearray(size)
        for start in range(0, size, SECTOR):
            source = self.cache if random.random() < 0.5 else self.durable
            piece = source[start : min(start + SECTOR, size)]
            image[start : start + len(piece)] = piece
        self.cache = image
        self.durable = bytearray(image)
        self.dirty = False


@dataclass(slots=True)
class _Directory:
    entries: dict[str, _Inode | _Directory] = field(default_factory=dict)
    durable: dict[str, _Inode | _Directory] = field(default_factory=dict)
    journal: list[dict[str, _Inode | _Directory | None]] = field(default_factory=list)
    """Changes since the last fsync, in order; each is atomic (a rename is one change of two names)."""

    def change(self, names: dict[str, _Inode | _Directory | None]) -> None:
        _apply(self.entries, names)
        self.journal.append(names)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.journal.clear()

    def lose(self, random: Random) -> None:
        survived = random.choice((0, len(self.journal), random.randint(0, len(self.journal))))
        for names in self.journal[:survived]:
            _apply(self.durable, names)
        self.journal.clear()
        self.entries = dict(self.durable)
        for _, node in sorted(self.entries.items()):
            node.lose(random)


def _apply(entries: dict[str, _Inode | _Directory], names: dict[str, _Inode | _Directory | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


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

    def __init__(self, files: MemoryFiles, path: str, inode: _Inode) -> None:
        self.path = path
        self.size = len(inode.cache)
        self._files = files
        self._inode = inode
        self._generation = files.generation

    def append(self, buffers: Sequence[Buffer]) -> None:
        self._check_alive()
        data = b"".join(buffers)
        inode = self._inode
        inode.dirty = True
        fault = self._files.take_fault("write", self.path)
        if fault is not None:
            if not self._files.leave_torn_writes:
                del inode.cache[self.size :]
            else:
                inode.cache[self.size :] = data[: fault.short_write]
            raise DiskError("write", self.path, fault.errno)
        inode.cache[self.size :] = data
        self.size += len(data)

    def pread(self, size: int, position: int, *, may_block: bool = True) -> memoryview:
        self._check_alive()
        self._files.maybe_fail("read", self.path)
        end = min(self.size, position + max(0, size))
        return memoryview(bytes(self._inode.cache[position:end]))

    def pwrite(self, data: Buffer, position: int) -> None:
        self._check_alive()
        self._files.maybe_fail("write", self.path)
        self._inode.dirty = True
        self._inode.cache[position : position + len(data)] = data
        self.size = max(self.size, position + len(data))

    def truncate(self, size: int) -> None:
        self._check_alive()
        self._files.maybe_fail("truncate", self.path)
        self._inode.dirty = True
        cache = self._inode.cache
        del cache[size:]
        cache.extend(bytes(size - len(cache)))
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
        self._random = random or Random(0)
        self._root = _Directory()
        self._faults: list[_Fault] = []
        self.locks: set[str] = set()
        self.generation = 0
        """Counts the crashes; files opened before one are dead."""
        self.leave_torn_writes = False
        """Whether a failed write leaves its first bytes behind (the truncation after it failed as well)."""
        self.fsyncs = 0

    # -- faults ---------------------------------------------------------------------------------------------------

    def crash(self, *, lossy: bool = True) -> None:
        """The machine (lossy) or only the process dies. Open files are dead, locks are free, planted errors forgotten."""
        if lossy:
            self._root.lose(self._random)
        self.locks.clear()
        self._faults.clear()
        self.generation += 1

    def fail_next(self, operation: str, pattern: str, error: int, *, times: int = 1, short_write: int = 0) -> None:
        """The next `times` operations ("open", "read", "write", "truncate", "fsync", "rename", "unlink", ...) on a path
        that matches the pattern fail with errno `error`."""
        self._faults.append(_Fault(operation, pattern, error, times, short_write))

    def take_fault(self, operation: str, path: str) -> _Fault | None:
        for fault in self._faults:
            if fault.operation == operation and fnmatchcase(path, fault.pattern):
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                return fault
        return None

    def maybe_fail(self, operation: str, path: str) -> None:
        if self._faults:
            fault = self.take_fault(operation, path)
            if fault is not None:
                raise DiskError(operation, path, fault.errno)

    def flip_bit(self, path: str, bit: int) -> None:
        """The disk rots: one bit of the file changes, in the cache and on the platter."""
        inode = self._inode("flip", path)
        inode.sync()
        for image in (inode.cache, inode.durable):
            image[bit // 8] ^= 1 << (bit % 8)

    def sync_inode(self, path: str, inode: _Inode) -> None:
        self.fsyncs += 1
        fault = self.take_fault("fsync", path)
        if fault is not None:
            inode.dirty = False  # the kernel dropped the dirty pages: a second fsync will succeed and prove nothing
            raise DiskError("fsync", path, fault.errno)
        inode.sync()

    # -- the file system ------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool) -> MemoryFile:
        self.maybe_fail("open", path)
        directory, name = self._locate("open", path)
        node = directory.entries.get(name)
        if node is None:
            if not create:
                raise DiskError("open", path, errno.ENOENT)
            node = _Inode()
            directory.change({name: node})
        if isinstance(node, _Directory):
            raise DiskError("open", path, errno.EISDIR)
        return MemoryFile(self, path, node)

    def read(self, path: str) -> bytes:
        self.maybe_fail("read", path)
        return bytes(self._inode("read", path).cache)

    def write(self, path: str, data: Buffer) -> None:
        self._replace(path, data, durable=False)

    def write_atomic(self, path: str, data: Buffer) -> None:
        self._replace(path, data, durable=True)
        self.fsync_dir(parent(path))

    def _replace(self, path: str, data: Buffer, *, durable: bool) -> None:
        temporary = path + ".tmp"
        self.maybe_fail("write", path)
        directory, name = self._locate("write", temporary)
        inode = _Inode(cache=bytearray(data), dirty=True)
        directory.change({name: inode})
        if durable:
            self.sync_inode(temporary, inode)
        self.rename(temporary, path)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_dir(self, path: str) -> bool:
        return isinstance(self._find(path), _Directory)

    def size(self, path: str) -> int:
        return len(self._inode("stat", path).cache)

    def list(self, path: str) -> list[str]:
        self.maybe_fail("list", path)
        return sorted(self._directory("list", path).entries)

    def make_dirs(self, path: str) -> None:
        self.maybe_fail("mkdir", path)
        directory = self._root
        for name in _parts(path):
            node = directory.entries.get(name)
            if node is None:
                node = _Directory()
                directory.change({name: node})
            if not isinstance(node, _Directory):
                raise DiskError("mkdir", path, errno.ENOTDIR)
            directory = node

    def remove(self, path: str) -> None:
        self.maybe_fail("unlink", path)
        if self._find(path) is not None:
            directory, name = self._locate("unlink", path)
            directory.change({name: None})

    def remove_tree(self, path: str) -> None:
        self.remove(path)

    def rename(self, source: str, target: str) -> None:
        self.maybe_fail("rename", source)
        directory, old = self._locate("rename", source)
        other, new = self._locate("rename", target)
        node = directory.entries.get(old)
        if node is None:
            raise DiskError("rename", source, errno.ENOENT)
        if directory is not other:
            raise DiskError("rename", source, errno.EXDEV)
        if isinstance(node, _Directory) and new in directory.entries:
            raise DiskError("rename", source, errno.ENOTEMPTY)
        directory.change({old: None, new: node})

    def fsync_dir(self, path: str) -> None:
        self.maybe_fail("fsync", path)
        self._directory("fsync", path).sync()

    def fsync_path(self, path: str) -> None:
        if self.is_dir(path):
            self.fsync_dir(path)
        else:
            self.sync_inode(path, self._inode("open", path))

    def warm(self, path: str, size: int, position: int) -> None:
        self.maybe_fail("read", path)

    def exclusive(self) -> AbstractContextManager[object]:
        return nullcontext()

    def lock(self, path: str) -> MemoryLock:
        if path in self.locks:
            raise UsageError(f"data directory {parent(path)} is in use by another process")
        self.open(path, create=True)
        self.locks.add(path)
        return MemoryLock(self, path)

    # -- names ----------------------------------------------------------------------------------------------------

    def _find(self, path: str) -> _Inode | _Directory | None:
        node: _Inode | _Directory | None = self._root
        for name in _parts(path):
            if not isinstance(node, _Directory):
                return None
            node = node.entries.get(name)
        return node

    def _inode(self, operation: str, path: str) -> _Inode:
        node = self._find(path)
        if not isinstance(node, _Inode):
            raise DiskError(operation, path, errno.ENOENT if node is None else errno.EISDIR)
        return node

    def _directory(self, operation: str, path: str) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise DiskError(operation, path, errno.ENOENT if node is None else errno.ENOTDIR)
        return node

    def _locate(self, operation: str, path: str) -> tuple[_Directory, str]:
        return self._directory(operation, parent(path) if "/" in path else ""), _parts(path)[-1]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
