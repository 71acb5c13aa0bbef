"""The wall clock and the random source, which are passed to components as `Doors`.

All contact with the outside world goes through four doors (time, network, disk, randomness), so that the production code runs
unchanged in a seeded simulation. Durations and timers come from the event loop, the network is `loop.create_server` and
`loop.create_connection`, the disk is `storage/files.py`. This module has the rest: the wall clock, which is used only for
timestamps, the random source, and the stopwatch, which is used only for metrics (the time of uvloop has milliseconds, and does
not change within an iteration). No component reads them in another way.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

STOPWATCH: Callable[[], float] = time.perf_counter
"""Returns seconds since an arbitrary start, with a resolution below a microsecond. For metrics only; no decision may depend on
it."""
SECURE_RANDOM: Callable[[int], bytes] = secrets.token_bytes
"""Returns this many unpredictable bytes, for nonces, salts and keys."""


@dataclass(frozen=True, slots=True)
class Doors:
    """A component's access to the outside world, besides its event loop and its files."""

    wall_clock_ms: Callable[[], int]
    """Milliseconds since 1970. May jump, so it is used for timestamps only, never for durations or an order."""
    random: Random
    """The generator of ids and jitter. Nothing that must be secret comes from it (`secure_random`)."""
    stopwatch: Callable[[], float] = STOPWATCH
    secure_random: Callable[[int], bytes] = SECURE_RANDOM
    """The source of unpredictable bytes. A simulation has a seeded one."""


def real_doors() -> Doors:
    """The doors of a production process: the system's clock and a randomly seeded generator."""
    return Doors(wall_clock_ms=lambda: time.time_ns() // 1_000_000, random=Random(secrets.randbits(128)))


_DASH = 0b111110
"""`-` in base64."""


def new_uuid(random: Random) -> bytes:
    """A random (version 4) UUID as its 16 bytes. Its text in base64 does not begin with a dash, as in Kafka: on a command line it
    would be taken for an option."""
    raw = bytearray(random.randbytes(16))
    while raw[0] >> 2 == _DASH:
        raw[:1] = random.randbytes(1)
    raw[6] = (raw[6] & 0x0F) | 0x40
    raw[8] = (raw[8] & 0x3F) | 0x80
    return bytes(raw)
