"""Time and randomness, the two doors that are not a file or a socket.

All contact with the world goes through four doors (design: time, network, disk, randomness), so that the production
code runs unchanged under a seeded simulation. Durations and timers come from the event loop; network is
`loop.create_server` and `loop.create_connection`; disk is `storage/files.py`. What is left is here: the wall clock,
which only ever becomes a record's timestamp, and a random source. Both are handed in; nothing reads them by itself. So is
the stopwatch, which is for metrics alone: uvloop's time is one for a whole turn, and in milliseconds.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

STOPWATCH: Callable[[], float] = time.perf_counter
"""Seconds from any start, finer than a microsecond. For measurements only: nothing that is decided rests on it."""


@dataclass(frozen=True, slots=True)
class Doors:
    """What a component needs of the outer world besides its loop and its files."""

    wall_clock_ms: Callable[[], int]
    """Milliseconds since 1970; may jump. For timestamps only, never for a duration or an order."""
    random: Random
    """The only source of randomness: ids, jitter."""
    stopwatch: Callable[[], float] = STOPWATCH


def real_doors() -> Doors:
    """The doors of a production process: the system's clock, a randomly seeded generator."""
    return Doors(wall_clock_ms=lambda: time.time_ns() // 1_000_000, random=Random(secrets.randbits(128)))


def new_uuid(random: Random) -> bytes:
    """A random (version 4) UUID as its 16 bytes."""
    raw = bytearray(random.randbytes(16))
    raw[6] = (raw[6] & 0x0F) | 0x40
    raw[8] = (raw[8] & 0x3F) | 0x80
    return bytes(raw)
