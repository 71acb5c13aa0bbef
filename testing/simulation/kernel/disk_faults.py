"""What may go wrong with the operations of a simulated disk, and what they cost; `disk.py` lets it happen.

A `Fault` waits for operations that match it. It bites with its probability, at most so many times, until it is ended; what
it then does is its kind:

    error         the operation fails with an errno: EIO, ENOSPC, EROFS; an fsync loses the dirty pages (fsyncgate)
    misdirected   a write is told to have succeeded and lands elsewhere: in the same file, or in another
    stale         a read brings what one of its sectors held before the last write
    stalled       the operation takes so many seconds more
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from math import log
from random import Random
from typing import Literal, NamedTuple

from strandline.storage.memory.memory_files import matches

Kind = Literal["error", "misdirected", "stale", "stalled"]
Moment = Literal["before", "half", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "half", "after")

MUTATING = frozenset({"create", "mkdir", "write", "truncate", "fsync", "rename", "unlink", "rmdir"})
"""What changes the disk, or what is known of it. A process that dies at a read leaves nothing else than before it."""
ANYWHERE = range(1 << 62)


@dataclass(slots=True, eq=False)
class Fault:
    kind: Kind
    operation: str
    """"create", "mkdir", "write", "truncate", "fsync", "rename", "unlink", "rmdir", "open", "read", "list", "stat", or "*"."""
    pattern: str = "*"
    """Of the path, shell style."""
    probability: float = 1.0
    times: int | None = None
    """How often it may still bite; None: without end."""
    offsets: range = ANYWHERE
    """Only reads and writes that touch one of these bytes."""
    errno: int = errno.EIO
    short_write: int | None = None
    """"write": so many bytes get through before the error; None: drawn."""
    is_torn: bool = False
    """"write": and they stay behind the file's end, since cutting them off fails, too."""
    reads_back_old: bool | None = None
    """"fsync": whether the pages that were dropped read as the platter has them at once (some kernels), or only when they
    have left the cache (others). None: drawn."""
    onto: str | None = None
    """"misdirected": pattern of the file that is hit; None: the same file."""
    is_hidden: bool = False
    """"misdirected": the cache still has it right, until it is evicted or the machine loses its power."""
    seconds: float = 0.0
    """"stalled"."""
    skip: int = 0
    """So many operations that match are spared first."""
    happened: int = 0
    """How often it has bitten."""

    def end(self) -> None:
        self.times = 0

    @property
    def is_over(self) -> bool:
        return self.times == 0

    def bites(self, kind: Kind, operation: str, path: str, start: int, end: int, random: Random) -> bool:
        if self.kind != kind or self.operation not in ("*", operation) or self.times == 0:
            return False
        if start >= self.offsets.stop or end <= self.offsets.start or not matches(path, self.pattern):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.probability < 1 and random.random() >= self.probability:
            return False
        self.happened += 1
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(slots=True, eq=False)
class CrashPoint:
    """The process dies inside the operation at which `left` comes to 0."""

    left: int
    operation: str | None
    """None: any that changes the disk."""
    pattern: str
    moment: Moment

    def is_here(self, operation: str, path: str) -> bool:
        if operation not in MUTATING if self.operation is None else operation != self.operation:
            return False
        if not matches(path, self.pattern):
            return False
        self.left -= 1
        return self.left == 0


class Damage(NamedTuple):
    """Bytes that are not what was written: for whoever has to know how much redundancy is left."""

    kind: str
    """"flipped", "overwritten" (by a misdirected write) or "lost" (the place that it did not reach)."""
    path: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Latency:
    """What an operation costs, in seconds. The defaults are a good SSD behind a page cache."""

    call_s: float = 3e-6
    """Every system call."""
    byte_s: float = 6e-10
    """Each byte of a read or write."""
    fsync_s: float = 8e-4
    cold_read_s: float = 2e-4
    """A read of what is not in the cache."""
    spike_probability: float = 0.0
    """Of an operation that meets the disk's own housekeeping."""
    spike_s: float = 0.5

    def cost(self, operation: str, size: int, random: Random) -> float:
        base = self.fsync_s if operation == "fsync" else self.call_s + size * self.byte_s
        if self.spike_probability and random.random() < self.spike_probability:
            base += self.spike_s
        return base * (0.5 - 0.5 * log(1.0 - random.random()))
