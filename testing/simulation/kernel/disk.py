"""The disk of a simulated machine. It outlives the processes, and can show every fault that real disks have shown.

    SimFiles    the disk and its faults. File operations on it directly are those of an administrator: they do not fail and
                take no time
    Mount       the view of one process. It ends with the process: from then on every operation raises `ProcessDied`, and none
                writes another byte

`storage/memory/memory_inodes.py` models what a cache forgets: the bytes of each file and the names of each directory,
independently. Here is the rest: errors, full disks, failed fsyncs, flipped bits, misdirected writes, stale reads, slowness, a
disk that returns empty or is another one, and deaths in the middle of operations with several steps.

All of it is drawn from one random source, in streams of their own: one fault more or less does not change what a power cut
leaves. While no fault is armed, a write costs what it costs in `MemoryFiles`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Never

from strandline.storage.disk import Buffer, ColdRead, DiskError, Lock
from strandline.storage.memory.memory_files import MemoryFile, MemoryFiles, matches
from strandline.storage.memory.memory_inodes import SECTOR, Directory, Inode, sectors
from strandline.testing.simulation.kernel.disk_faults import ANYWHERE, MOMENTS, CrashPoint, Damage, Fault, Kind, Latency, Moment
from strandline.testing.simulation.kernel.process import ProcessDied

__all__ = ["Damage", "Fault", "Latency", "Mount", "ProcessDied", "SimFiles"]


def _ignore(*_: object) -> None:
    pass


class SimFiles(MemoryFiles):
    """The disk of one machine."""

    def __init__(self, random: Random | None = None) -> None:
        random = random or Random(0)
        super().__init__(Random(random.getrandbits(64)))
        self.chances = Random(random.getrandbits(64))
        """The random numbers that decide whether a fault strikes, and where exactly."""
        self.latencies = Random(random.getrandbits(64))
        self.faults: list[Fault] = []
        self.damage: list[Damage] = []
        """The damage that faults have done to bytes at rest so far."""
        self.operations: list[tuple[str, str]] | None = None
        """Operation and path of everything that processes do here, after `record` was called."""
        self.on_fault: Callable[[str, str, str], object] = _ignore
        """Called with (kind, operation, path) whenever a fault strikes."""
        self.crash_point: CrashPoint | None = None
        self.latency: Latency | None = None
        self.slowness = 1.0
        self.cold_probability = 0.0
        self.capacity_bytes: int | None = None
        self.mounts: list[Mount] = []
        """The mounts of live processes."""
        self.deployed: dict[str, bytes] = {}
        """Files that belong to the configuration of the machine, such as passwords: path -> content. They are not on the disk of
        the data, so no fault touches them, and `wipe` keeps them."""

    # -- processes ------------------------------------------------------------------------------------------------

    def mount(self, *, on_latency: Callable[[float], object] = _ignore, on_death: Callable[[], object] = _ignore) -> Mount:
        """Return the view of a new process. `on_latency` is called with the seconds of each operation, for which the process is
        blocked. `on_death` is called when the process dies in an operation, before any more of its code can run."""
        mount = Mount(self, on_latency, on_death)
        self.mounts.append(mount)
        self.rearm()
        return mount

    def crash(self, *, lossy: bool = True) -> None:
        """End all processes; with `lossy`, because the machine loses its power. Faults and damage stay."""
        for mount in list(self.mounts):
            mount.die()
        if lossy:
            self.root.lose(self._random)
            self.boots += 1
        self.generation += 1

    def crash_at(self, n: int = 1, *, operation: str | None = None, pattern: str = "*", moment: Moment | None = None) -> None:
        """Let a process die at the n-th operation from now on that changes the disk, or that has this name and path: before it,
        after it, or in the middle (part of a write is done). By default this moment is drawn."""
        chosen: Moment = moment if moment is not None else self.chances.choice(MOMENTS)
        self.crash_point = CrashPoint(n, operation, pattern, chosen)
        self.rearm()

    def record(self) -> list[tuple[str, str]]:
        """Record what processes do from now on; each call starts a new list."""
        self.operations = []
        self.rearm()
        return self.operations

    def rearm(self) -> None:
        """Set whether operations of the mounts take the slow path, because a fault, a limit, a latency or a recording is set."""
        self.faults = [fault for fault in self.faults if not fault.is_over]
        armed = bool(
            self.faults
            or self.crash_point is not None
            or self.operations is not None
            or self.latency is not None
            or self.cold_probability
            or self.capacity_bytes is not None
        )
        for mount in self.mounts:
            mount.armed = armed

    # -- errors ---------------------------------------------------------------------------------------------------

    def fail(
        self,
        operation: str,
        pattern: str = "*",
        error: int = errno.EIO,
        *,
        times: int | None = None,
        skip: int = 0,
        probability: float = 1.0,
        offsets: range = ANYWHERE,
        short_write: int | None = None,
        is_torn: bool = False,
        reads_back_old: bool | None = None,
    ) -> Fault:
        """Let operations fail until the fault is ended; `Fault` explains the arguments."""
        fault = Fault("error", operation, pattern, probability, times, offsets, error)
        fault.short_write, fault.is_torn, fault.reads_back_old = short_write, is_torn, reads_back_old
        fault.skip = skip
        return self.arm(fault)

    def fail_next(self, operation: str, pattern: str, error: int, *, times: int = 1, short_write: int = 0) -> None:
        self.fail(operation, pattern, error, times=times, short_write=short_write)

    def arm(self, fault: Fault) -> Fault:
        self.faults.append(fault)
        self.rearm()
        return fault

    def heal(self) -> None:
        """End all faults and slowness. Damage stays."""
        for fault in self.faults:
            fault.end()
        self.slowness, self.cold_probability = 1.0, 0.0
        self.crash_point = None
        self.free()

    def bite(self, kind: Kind, operation: str, path: str, start: int = 0, end: int = ANYWHERE.stop) -> Fault | None:
        """The fault that strikes this operation, or None."""
        for fault in self.faults:
            if fault.bites(kind, operation, path, start, end, self.chances):
                self.on_fault(kind, operation, path)
                break
        else:
            return None
        if fault.is_over:
            self.rearm()
        return fault

    # -- space ----------------------------------------------------------------------------------------------------

    def fill(self, room_bytes: int = 0) -> None:
        """Fill the disk: only so many further bytes fit. Unlinking files makes room."""
        self.capacity_bytes = self.used_bytes + room_bytes
        self.rearm()

    def free(self) -> None:
        """Remove the limit of `fill`."""
        self.capacity_bytes = None
        self.rearm()

    @property
    def used_bytes(self) -> int:
        return sum(len(inode.cache) for _, inode in self.root.files())

    @property
    def free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return ANYWHERE.stop
        return max(0, self.capacity_bytes - self.used_bytes)

    # -- time -----------------------------------------------------------------------------------------------------

    def take_time(self, latency: Latency | None) -> None:
        """Operations take time from now on; None: they take none."""
        self.latency = latency
        self.rearm()

    def slow(self, factor: float) -> None:
        """Multiply the time of every operation."""
        self.slowness = factor

    def stall(
        self, seconds: float, operation: str = "*", pattern: str = "*", *, times: int | None = 1, probability: float = 1.0
    ) -> Fault:
        """Let the next matching operations take so long."""
        return self.arm(Fault("stalled", operation, pattern, probability, times, seconds=seconds))

    def cold_reads(self, probability: float) -> None:
        """Let reads miss the page cache with this probability. They take longer, and a read that must not block has to be
        repeated."""
        self.cold_probability = probability
        self.rearm()

    # -- bytes that are not what was written ----------------------------------------------------------------------

    def rot(self, pattern: str, *, offsets: range = ANYWHERE, flips: int = 1) -> list[Damage]:
        """Flip bits of files at rest, each in some matching file that has bytes there. Returns what was damaged; empty if no
        file matched."""
        found = [(path, inode, _clip(offsets, len(inode.cache))) for path, inode in self._matching(pattern)]
        places = [place for place in found if place[2]]
        done = []
        for _ in range(flips if places else 0):
            path, inode, room = self.chances.choice(places)
            position = self.chances.choice(room)
            inode.flip(8 * position + self.chances.randrange(8))
            done.append(Damage("flipped", path, position, position + 1))
        self.damage += done
        return done

    def misdirect(
        self,
        pattern: str,
        onto: str | None = None,
        *,
        times: int | None = 1,
        probability: float = 1.0,
        is_hidden: bool = False,
    ) -> Fault:
        """The next matching writes land elsewhere, sector for sector, and not where they should."""
        return self.arm(Fault("misdirected", "write", pattern, probability, times, onto=onto, is_hidden=is_hidden))

    def stale_reads(self, pattern: str, *, times: int | None = 1, probability: float = 1.0) -> Fault:
        """The next matching reads return one sector as it was before the last write that follows this call; a sector not written
        since then reads as zeros."""
        for _, inode in self._matching(pattern):
            inode.keep_previous()
        return self.arm(Fault("stale", "read", pattern, probability, times))

    def land_elsewhere(self, fault: Fault, path: str, inode: Inode, start: int, end: int) -> None:
        """Take back the bytes just written to [start, end), and write them to the place that the fault hits, if there is one."""
        written = sectors(start, end)
        target = self._victim(fault.onto, path, inode, written)
        contents = [bytes(inode.cache[sector * SECTOR : (sector + 1) * SECTOR]) for sector in written]
        inode.misplace(start, end)
        self.damage.append(Damage("lost", path, start, end))
        hit = [inode]
        if target is not None:
            hit.append(target[1])
            target[1].plant(target[2], contents)
            first, last = SECTOR * target[2], SECTOR * (target[2] + len(contents))
            self.damage.append(Damage("overwritten", target[0], first, min(last, len(target[1].cache))))
        if not fault.is_hidden:
            for struck in hit:
                struck.evict()

    def _victim(self, onto: str | None, path: str, inode: Inode, written: range) -> tuple[str, Inode, int] | None:
        """Path, file and first sector of the place that is hit, or None if only the right place exists."""
        files = list(self._matching(onto)) if onto is not None else [(path, inode)]
        places = [
            (name, file, sector)
            for name, file in files
            for sector in sectors(0, len(file.cache))
            if file is not inode or sector not in written
        ]
        return self.chances.choice(places) if places else None

    def evict(self, pattern: str = "*") -> None:
        """Evict clean pages: the next read takes them from the disk."""
        for _, inode in self._matching(pattern):
            inode.evict()

    def write_back(self, pattern: str = "*") -> None:
        """Write back the dirty pages of matching files, and all names, as the kernel does after some time."""
        for _, inode in self._matching(pattern):
            inode.sync()
        self.root.sync_all()

    # -- the whole disk -------------------------------------------------------------------------------------------

    def wipe(self) -> None:
        """Replace the disk by a new, empty one. The machine must be off."""
        self._must_be_off()
        self.root = Directory()
        self.damage = []

    def swap(self, other: SimFiles) -> None:
        """Exchange the disks of two machines. Both must be off."""
        self._must_be_off()
        other._must_be_off()
        self.root, other.root = other.root, self.root
        self.damage, other.damage = other.damage, self.damage

    def _must_be_off(self) -> None:
        if self.mounts:
            raise ValueError("a process works on this disk: crash it first")

    def contents(self, pattern: str = "*") -> dict[str, bytes]:
        """All files, as the cache has them."""
        return {path: bytes(inode.cache) for path, inode in self._matching(pattern)}

    def durable(self, path: str) -> bytes | None:
        """The bytes of a file that survive a power cut for certain, if its name survives; None if there is no such file."""
        node = self.find(path)
        return bytes(node.durable) if isinstance(node, Inode) else None

    def _matching(self, pattern: str) -> Iterator[tuple[str, Inode]]:
        """Matching files in the order of their paths. Pattern and path may omit the first `/`."""
        return (found for found in self.root.files() if matches(found[0], pattern) or matches(found[0][1:], pattern))


def _clip(offsets: range, size: int) -> range:
    return range(offsets.start, min(offsets.stop, size))


# -- the view of a process ------------------------------------------------------------------------------------------


class SimFile(MemoryFile):
    __slots__ = ()

    files: Mount

    def _append_with_care(self, data: bytes) -> None:
        mount, inode = self.files, self.inode
        start, end = self.size, self.size + len(data)
        moment = mount.begin("write", self.path, len(data))
        if moment == "half":
            inode.replace_tail(start, data[: mount.disk.chances.randint(0, len(data))])
            mount.die_here()
        self._maybe_fail_to_write(data, end - len(inode.cache))
        inode.replace_tail(start, data)
        self.size = end
        if mount.disk.faults:
            self._maybe_misdirect(start, end)
        mount.finish(moment)

    def _maybe_fail_to_write(self, data: bytes, growth: int) -> None:
        """Let a write fail after a part of it. The part is cut off again, if that works."""
        disk, start = self.files.disk, self.size
        if not disk.faults and disk.capacity_bytes is None:
            return
        fault = disk.bite("error", "write", self.path, start, start + max(1, len(data)))
        if fault is not None:
            short = disk.chances.randint(0, len(data)) if fault.short_write is None else fault.short_write
            error, is_torn = fault.errno, fault.is_torn or disk.leave_torn_writes
        elif disk.capacity_bytes is not None and growth > (room := disk.free_bytes):
            short, error, is_torn = max(0, room), errno.ENOSPC, disk.leave_torn_writes
            disk.on_fault("full", "write", self.path)
        else:
            return
        self.inode.replace_tail(start, data[:short] if is_torn else b"")
        raise DiskError("write", self.path, error)

    def _maybe_misdirect(self, start: int, end: int) -> None:
        disk = self.files.disk
        fault = disk.bite("misdirected", "write", self.path, start, end) if end > start else None
        if fault is not None:
            disk.land_elsewhere(fault, self.path, self.inode, start, end)

    def _pread_with_care(self, position: int, end: int, may_block: bool) -> memoryview:
        mount = self.files
        disk = mount.disk
        size = max(0, end - position)
        is_cold = disk.cold_probability > 0 and disk.chances.random() < disk.cold_probability
        if is_cold and not may_block and mount.is_alive:
            raise ColdRead(mount, self.path, size, position)
        moment = mount.begin("read", self.path, size, is_cold=is_cold)
        mount.maybe_raise("read", self.path, position, end)
        data = self.inode.cache[position:end]
        if disk.faults:
            disturb(disk, self.path, self.inode, data, position)
        mount.finish(moment)
        return memoryview(data).toreadonly()

    def pwrite(self, data: Buffer, position: int) -> None:
        mount, inode = self.files, self.inode
        end = position + len(data)
        moment = mount.begin("write", self.path, len(data))
        if moment == "half":
            inode.overwrite(position, data[: mount.disk.chances.randint(0, len(data))])
            mount.die_here()
        mount.maybe_raise("write", self.path, position, end)
        if end - len(inode.cache) > mount.disk.free_bytes:
            raise DiskError("write", self.path, errno.ENOSPC)
        inode.overwrite(position, data)
        self.size = max(self.size, end)
        if mount.disk.faults:
            self._maybe_misdirect(position, end)
        mount.finish(moment)

    def _check_alive(self) -> None:
        self.files.must_live()

    def truncate(self, size: int) -> None:
        mount = self.files
        moment = mount.begin("truncate", self.path)
        mount.maybe_raise("truncate", self.path)
        self.inode.truncate(size)
        self.size = size
        mount.finish(moment)


def disturb(disk: SimFiles, path: str, inode: Inode, data: bytearray, position: int) -> None:
    """Let a read return the old content of a sector."""
    fault = disk.bite("stale", "read", path, position, position + len(data)) if data else None
    if fault is None:
        return
    sector = disk.chances.choice(sectors(position, position + len(data)))
    old = (inode.previous or {}).get(sector, b"").ljust(SECTOR, b"\0")
    start, end = max(position, sector * SECTOR), min(position + len(data), (sector + 1) * SECTOR)
    data[start - position : end - position] = old[start - sector * SECTOR : end - sector * SECTOR]


class SimLock(Lock):
    """A dead process no longer owns its lock, and does not release it."""

    def __init__(self, mount: Mount, path: str) -> None:
        self._mount, self._path = mount, path

    def release(self) -> None:
        self._mount.unlock(self._path)


class _Grave(Directory):
    """The root directory of a dead process: every look-up raises `ProcessDied`."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Never:
        raise ProcessDied


class Mount(MemoryFiles):
    """The view of one process on the disk."""

    def __init__(self, disk: SimFiles, on_latency: Callable[[float], object], on_death: Callable[[], object]) -> None:
        """Use `SimFiles.mount`."""
        super().__init__(disk.chances)
        self.disk = disk
        self.root = disk.root
        self.locks = disk.locks
        self.is_alive = True
        self.on_latency = on_latency
        self.on_death = on_death
        self._held: list[str] = []
        """Paths of the locks that this process holds."""

    # -- life -----------------------------------------------------------------------------------------------------

    def free_space(self, path: str) -> int | None:
        return None if self.disk.capacity_bytes is None else self.disk.free_bytes

    def total_space(self, path: str) -> int | None:
        return self.disk.capacity_bytes

    def boot_id(self) -> str:
        return self.disk.boot_id()

    def die(self) -> None:
        """End the process: its locks are released, and none of its operations reaches the disk."""
        if self.is_alive:
            self.is_alive = False
            self.armed = True
            self.generation += 1  # every file that it had open
            self.root = _Grave()
            for path in self._held:
                self.locks.discard(path)
            self.disk.mounts.remove(self)

    def die_here(self) -> Never:
        self.die()
        self.on_death()
        raise ProcessDied

    # -- every operation ------------------------------------------------------------------------------------------

    def begin(self, operation: str, path: str, size: int = 0, *, is_cold: bool = False) -> Moment | None:
        """Called before an operation has any effect. Returns the moment of the operation at which the process dies, or None."""
        if not self.armed:
            return None
        self.must_live()
        disk = self.disk
        if disk.operations is not None:
            disk.operations.append((operation, path))
        if disk.latency is not None or disk.faults:
            self._take_time(operation, path, size, is_cold)
        return None if disk.crash_point is None else self._maybe_die(disk.crash_point, operation, path)

    def _maybe_die(self, point: CrashPoint, operation: str, path: str) -> Moment | None:
        disk = self.disk
        if not point.is_here(operation, path):
            return None
        disk.crash_point = None
        disk.rearm()
        disk.on_fault("death", operation, path)
        moment = point.moment
        if moment == "half" and operation != "write":
            moment = disk.chances.choice(("before", "after"))
        if moment == "before":
            self.die_here()
        return moment

    def finish(self, moment: Moment | None) -> None:
        if moment is not None:
            self.die_here()

    def _take_time(self, operation: str, path: str, size: int, is_cold: bool) -> None:
        disk = self.disk
        seconds = 0.0
        if disk.latency is not None:
            seconds = disk.latency.cost(operation, size, disk.latencies)
            if is_cold:
                seconds += disk.latency.cold_read_s
            seconds *= disk.slowness
        if disk.faults:
            stall = disk.bite("stalled", operation, path)
            if stall is not None:
                seconds += stall.seconds
        if seconds:
            self.on_latency(seconds)

    def maybe_raise(self, operation: str, path: str, start: int = 0, end: int = ANYWHERE.stop) -> None:
        disk = self.disk
        fault = disk.bite("error", operation, path, start, end) if disk.faults else None
        if fault is not None:
            raise DiskError(operation, path, fault.errno)

    def maybe_fail(self, operation: str, path: str) -> None:
        moment = self.begin(operation, path)
        self.maybe_raise(operation, path)
        self.finish(moment)

    def change(self, operation: str, path: str, directory: Directory, names: dict[str, Inode | Directory | None]) -> None:
        moment = self.begin(operation, path)
        self.maybe_raise(operation, path)
        directory.change(names)
        self.finish(moment)

    def sync_inode(self, path: str, inode: Inode) -> None:
        disk = self.disk
        self.fsyncs += 1
        disk.fsyncs += 1
        moment = self.begin("fsync", path)
        fault = disk.bite("error", "fsync", path) if disk.faults else None
        if fault is not None:
            inode.drop_dirty()
            old = fault.reads_back_old
            if disk.chances.random() < 0.5 if old is None else old:
                inode.evict()
            raise DiskError("fsync", path, fault.errno)
        inode.sync()
        self.finish(moment)

    def sync_directory(self, path: str, directory: Directory) -> None:
        moment = self.begin("fsync", path)
        self.maybe_raise("fsync", path)
        directory.sync()
        self.finish(moment)

    # -- what the files in memory do a little otherwise -----------------------------------------------------------

    def _file(self, path: str, inode: Inode) -> SimFile:
        if inode.previous is None and any(f.kind == "stale" and matches(path, f.pattern) for f in self.disk.faults):
            inode.keep_previous()
        return SimFile(self, path, inode)

    def size(self, path: str) -> int:
        deployed = self.disk.deployed.get(path)
        return super().size(path) if deployed is None else len(deployed)

    def read(self, path: str) -> bytes:
        deployed = self.disk.deployed.get(path)
        if deployed is not None:
            return deployed
        inode = self.find(path)
        moment = self.begin("read", path, len(inode.cache) if isinstance(inode, Inode) else 0)
        self.maybe_raise("read", path)
        data = bytearray(self._inode("read", path).cache)
        if self.disk.faults:
            disturb(self.disk, path, self._inode("read", path), data, 0)
        self.finish(moment)
        return bytes(data)

    def warm(self, path: str, size: int, position: int) -> None:
        self._inode("open", path)
        moment = self.begin("read", path, size, is_cold=True)
        self.maybe_raise("read", path, position, position + size)
        self.finish(moment)

    def must_live(self) -> None:
        if not self.is_alive:
            raise ProcessDied

    def _removal_order(self, names: Iterable[str]) -> Iterable[str]:
        order = sorted(names)
        self.disk.chances.shuffle(order)
        return order

    def lock(self, path: str) -> Lock:
        super().lock(path)
        self._held.append(path)
        return SimLock(self, path)

    def unlock(self, path: str) -> None:
        if self.is_alive and path in self._held:
            self._held.remove(path)
            self.locks.discard(path)
