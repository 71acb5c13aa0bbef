"""Marks for offsets: one bit for each offset from a first one on. Pure."""

from __future__ import annotations


class OffsetMarks:
    """Remembers which offsets were marked. It has a fixed size, and ignores marks beyond it."""

    def __init__(self, count: int) -> None:
        """`count`: the number of offsets that have a bit."""
        self.count = count
        self.first_offset = 0
        self._bits = bytearray((count + 7) // 8)

    def covers(self, first: int, last: int) -> bool:
        """Whether all offsets from `first` to `last` have a bit."""
        return self.first_offset <= first and last - self.first_offset < self.count

    def mark(self, offset: int) -> None:
        index = offset - self.first_offset
        if 0 <= index < self.count:
            self._bits[index >> 3] |= 1 << (index & 7)

    def between(self, first: int, last: int) -> int:
        """The marks of the offsets from `first` to `last`, which have bits: that of `first` is the lowest bit."""
        index = first - self.first_offset
        count = last - first + 1
        bits = int.from_bytes(self._bits[index >> 3 : (index + count + 7) >> 3], "little")
        return bits >> (index & 7) & (1 << count) - 1
