"""Tracks which records of one partition were taken, and which of them are finished. Pure.

    offset          10   11   12   14   15   |
    finished         x    x         x        |  position 16: the next record to be taken
                              ^
                              finished offset: what may be committed

Records may be finished in any order. The offset of the first unfinished record may be committed, because all records before it
are finished. If the process ends now, a record that was finished ahead of an earlier one is handled again, and no record is
skipped.
"""

from __future__ import annotations

from collections.abc import Iterable

from strandline.client.consumer.group.handed_over import Offset
from strandline.client.consumer.records import AnyRecord


class TakenRecords:
    """The unfinished records of one partition."""

    __slots__ = ("_last_epoch", "_open")

    def __init__(self, epoch: int) -> None:
        """`epoch`: the leader epoch of the record before the first one that is taken; -1: not known."""
        self._open: dict[int, int] = {}
        """The offset of each unfinished record, ascending -> the leader epoch of the record that was taken before it."""
        self._last_epoch = epoch
        """The leader epoch of the last record that was taken."""

    def __len__(self) -> int:
        """The number of unfinished records."""
        return len(self._open)

    def take(self, records: Iterable[AnyRecord]) -> None:
        """Add records that were taken. Their offsets are ascending, and above those of all earlier records."""
        opened, epoch = self._open, self._last_epoch
        for record in records:
            opened[record.offset] = epoch
            epoch = record.leader_epoch
        self._last_epoch = epoch

    def finish(self, offset: int) -> None:
        """A record that was taken is finished."""
        del self._open[offset]

    def first_open(self) -> Offset | None:
        """The first unfinished record: its offset, and the leader epoch of the record before it. None if all are finished."""
        return next(iter(self._open.items()), None)
