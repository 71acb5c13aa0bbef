"""Faults of the operations of a simulated disk, and their costs in time. `disk.py` applies them.

A `Fault` matches operations. It takes effect with its probability, up to a number of times, until it is ended. Its kind says
what it does:

    error         the operation fails with an errno: EIO, ENOSPC, EROFS; an fsync loses the dirty pages (fsyncgate)
    misdirected   a write is reported as successful and lands elsewhere: in the same file, or in another
    stale         a read returns the content of one of its sectors before the last write
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
"""Operations that change the disk, or what is known of it. A process that dies at a read leaves the same disk as one that dies
before it."""
ANYWHERE = range(1 << 62)


@dataclass(slots=True, eq=False)
class Fault:
    kind: Kind
    operation: str
    """"create", "mkdir", "write", "truncate", "fsync", "rename", "unlink", "rmdir", "open", "read", "list", "stat", or "*"."""
    pattern: str = "*"
    """Shell-style pattern of the path."""
    probability: float = 1.0
    times: int | None = None
    """How many more times it may take effect; None: without limit."""
    offsets: range = ANYWHERE
    """Only reads and writes that touch one of these bytes match."""
    errno: int = errno.EIO
    short_write: int | None = None
    """"write": this many bytes are written before the error; None: drawn."""
    is_torn: bool = False
    """"write": these bytes stay beyond the end of the file, because truncating them fails, too."""
    reads_back_old: bool | None = None
    """"fsync": whether the dropped pages read as on the disk at once (some kernels), or only after they have left the cache
    (others). None: drawn."""
    onto: str | None = None
    """"misdirected": pattern of the file that is written to instead; None: the same file."""
    is_hidden: bool = False
    """"misdirected": the cache still has the right bytes, until they are evicted or the machine loses its power."""
    seconds: float = 0.0
    """"stalled": the additional time of the operation."""
    skip: int = 0
    """This many matching operations are spared first."""
    happened: int = 0
    """How often it has taken effect."""

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
    """The process dies inside the operation at which `left` reaches 0."""

    left: int
    operation: str | None
    """The name of the operation; None: any operation that changes the disk."""
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
    """Bytes that differ from those that were written. The budget reads them to count the good copies that are left."""

    kind: str
    """"flipped", "overwritten" (by a misdirected write) or "lost" (the place that a misdirected write did not reach)."""
    path: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Latency:
    """The cost of operations, in seconds. The defaults are those of a good SSD behind a page cache."""

    call_s: float = 3e-6
    """Per system call."""
    byte_s: float = 6e-10
    """Per byte of a read or write."""
    fsync_s: float = 8e-4
    cold_read_s: float = 2e-4
    """Per read of bytes that are not in the cache."""
    spike_probability: float = 0.0
    """Probability that an operation waits for the housekeeping of the disk."""
    spike_s: float = 0.5

    def cost(self, operation: str, size: int, random: Random) -> float:
        base = self.fsync_s if operation == "fsync" else self.call_s + size * self.byte_s
        if self.spike_probability and random.random() < self.spike_probability:
            base += self.spike_s
        return base * (0.5 - 0.5 * log(1.0 - random.random()))
