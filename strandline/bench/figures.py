"""The figures of a load, and its progress on stderr.

Times are taken with `perf_counter`: the event loop's own clock ticks in milliseconds, and an acknowledgement takes less.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random


@dataclass(frozen=True, slots=True)
class Figures:
    """The result of one load."""

    records: int
    seconds: float
    value_bytes: int
    """Size of all values together, without keys and headers."""
    p50_ms: float
    p99_ms: float
    max_gap_ms: float
    """The longest time between two acknowledgements (or two polls that returned records)."""

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds

    @property
    def mb_per_s(self) -> float:
        """10^6 bytes of values."""
        return self.value_bytes / self.seconds / 1e6

    def to_json(self) -> dict[str, float | int]:
        return {
            "records": self.records,
            "seconds": round(self.seconds, 3),
            "records_per_s": round(self.records_per_s),
            "mb_per_s": round(self.mb_per_s, 2),
            "p50_ms": round(self.p50_ms, 3),
            "p99_ms": round(self.p99_ms, 3),
            "max_gap_ms": round(self.max_gap_ms, 3),
        }


def percentile(values: Sequence[float], share: float) -> float:
    """The value at index `int(share * n)` of the `n` sorted values, at most the last one; 0 if there are none. `share`: 0 to
    1."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def longest_gap(times: Sequence[float]) -> float:
    ordered = sorted(times)
    return max((after - before for before, after in pairwise(ordered)), default=0.0)


def payloads(size: int, count: int = 64) -> list[bytes]:
    """`count` incompressible values of `size` bytes."""
    random = Random(size)
    return [random.randbytes(size) for _ in range(count)]


def lines_of_words(size: int) -> list[bytes]:
    """Values of `size` bytes, 2 MiB of them and at least 64: random words, which codecs compress to between a third and a half.

    A batch of the default size is smaller than that, so that no batch has the same value twice, which would compress better.
    """
    random, count = Random(size), max(64, (2 << 20) // size)
    words = [bytes(random.choices(b"abcdefghijklmnopqrstuvwxyz", k=random.randint(3, 10))) for _ in range(500)]
    return [b" ".join(random.choices(words, k=size // 4 + 1))[:size] for _ in range(count)]


class Progress:
    """A line on stderr that is overwritten; prints nothing if stderr is no terminal."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._shown = -1
        self._visible = sys.stderr.isatty()

    def at(self, done: int) -> None:
        percent = 100 * done // self._total if self._total else 100
        if self._visible and percent != self._shown:
            self._shown = percent
            print(f"\r{self._what}: {percent:3d} %", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._visible and self._shown >= 0:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
