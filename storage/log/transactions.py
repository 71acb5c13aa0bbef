"""The transactions of a log that readers of committed records must not see yet.

    ongoing         begun by a first transactional batch, and not ended by a marker
    unreplicated    ended by a marker that is not committed (it is at or above the high watermark), so a truncation may remove it

The smallest first offset of both is the first unstable offset. The last stable offset (LSO) is that offset or the high watermark,
if that is lower: below it, every record belongs to no transaction or to one whose end is decided and will not change. Since a
marker that is committed stays, and a new transaction begins at the log end, the LSO does not decrease while the high watermark
does not.
"""

from __future__ import annotations

from heapq import heappop, heappush


class Transactions:
    """The ongoing and the unreplicated transactions of one log."""

    __slots__ = ("_ongoing", "_unreplicated")

    def __init__(self, ongoing: dict[int, int] | None = None) -> None:
        """`ongoing`: first offset -> producer id."""
        self._ongoing = dict(sorted(ongoing.items())) if ongoing else {}
        """First offset -> producer id, in the order of the offsets."""
        self._unreplicated: list[tuple[int, int]] = []
        """A heap of (first offset, offset of the marker). An entry whose marker is committed stays until it is the first one."""

    def __bool__(self) -> bool:
        """Whether there may be a first unstable offset."""
        return bool(self._ongoing or self._unreplicated)

    def ongoing(self) -> list[tuple[int, int]]:
        """(first offset, producer id) of the ongoing transactions, in the order of the offsets."""
        return list(self._ongoing.items())

    def is_ongoing(self, first_offset: int) -> bool:
        """Whether the transaction that begins there is ongoing."""
        return first_offset in self._ongoing

    def begin(self, first_offset: int, producer_id: int) -> None:
        self._ongoing[first_offset] = producer_id

    def complete(self, first_offset: int, marker_offset: int, high_watermark: int) -> int:
        """End a transaction. Returns the first offset of the oldest ongoing one; the offset after the marker if there is none."""
        del self._ongoing[first_offset]
        self._drop_replicated(high_watermark)
        if marker_offset >= high_watermark:
            heappush(self._unreplicated, (first_offset, marker_offset))
        return next(iter(self._ongoing), marker_offset + 1)

    def first_unstable(self, high_watermark: int) -> int:
        """The first unstable offset; the high watermark if there is none below it."""
        self._drop_replicated(high_watermark)
        first = next(iter(self._ongoing), high_watermark)
        if self._unreplicated:
            first = min(first, self._unreplicated[0][0])
        return min(first, high_watermark)

    def has_unreplicated(self, marker_offset: int) -> bool:
        """Whether the transaction that this marker has ended may be unreplicated."""
        return any(marker == marker_offset for _, marker in self._unreplicated)

    def _drop_replicated(self, high_watermark: int) -> None:
        waiting = self._unreplicated
        while waiting and waiting[0][1] < high_watermark:
            heappop(waiting)
