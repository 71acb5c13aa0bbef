"""The leader-epoch cache: where each leader epoch of a log begins.

    entries   (0, 0) (3, 5000) (7, 5000) (8, 10500)        epoch, start offset

    An epoch ends where the next one begins: 3 and 7 both begin at 5000, so no record of epoch 3 survived. The newest epoch ends
    at the log end.

Epochs strictly increase, start offsets never decrease (I11). An epoch is added when its leader starts, even if that leader never
writes a record: the entry after it then tells where an older epoch ended (KAFKA-7415).

All entries can be derived from the batches, except those of epochs without a record, and such an entry matters only while its
leader lives. So the file is replaced without an fsync, and `Log.flush` makes it durable before a recovery point relies on it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

NO_EPOCH = -1
NO_OFFSET = -1
UNKNOWN = (NO_EPOCH, NO_OFFSET)


class LeaderEpochCache:
    """The start offset of each leader epoch in a log. It finds the epoch of an offset, and the end offset of an epoch. It calls
    `on_change` after each change, so that the owner saves the checkpoint."""

    def __init__(self, entries: Iterable[tuple[int, int]] = (), on_change: Callable[[], None] | None = None) -> None:
        self.epochs: list[int] = []
        """The known epochs, which strictly increase. Only this class changes the list."""
        self.starts: list[int] = []
        """`starts[i]` is the first offset of `epochs[i]`; never decreasing. Only this class changes the list."""
        self._on_change = on_change
        for epoch, start in entries:
            self._append(epoch, start)

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self.epochs, self.starts, strict=True))

    @property
    def latest_epoch(self) -> int:
        """The newest epoch; -1 if there is none."""
        return self.epochs[-1] if self.epochs else NO_EPOCH

    @property
    def latest_start(self) -> int:
        return self.starts[-1] if self.starts else NO_OFFSET

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` begins at `start_offset`. False if it is the latest epoch already.

        Entries that contradict it (a newer epoch, or one that begins later) are dropped: they belong to leaders whose records did
        not survive.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"no epoch {epoch} can begin at {start_offset}")
        if self.epochs and epoch == self.epochs[-1] and start_offset >= self.starts[-1]:
            return False
        self._append(epoch, start_offset)
        self._changed()
        return True

    def _append(self, epoch: int, start: int) -> None:
        keep = min(bisect_left(self.epochs, epoch), bisect_right(self.starts, start))
        del self.epochs[keep:], self.starts[keep:]
        self.epochs.append(epoch)
        self.starts.append(start)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch <= `epoch`, and its exclusive end offset: the answer to OffsetForLeaderEpoch, which decides
        where a follower truncates (KIP-101, KIP-279).

        (-1, -1) if `epoch` is newer than all known epochs. If it is older than all of them: `epoch` and the start of the oldest,
        because the log no longer has a record of it.
        """
        if not self.epochs or epoch < 0 or epoch > self.epochs[-1]:
            return UNKNOWN
        if epoch == self.epochs[-1]:
            return epoch, log_end_offset
        after = bisect_right(self.epochs, epoch)
        return (self.epochs[after - 1] if after else epoch), self.starts[after]

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that wrote the record at `offset`, which must exist; -1 if not known."""
        index = bisect_right(self.starts, offset) - 1
        return self.epochs[index] if index >= 0 else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drop every epoch that begins at or after the log's new end. False if there was none.

        This includes an epoch that begins at the old end (KAFKA-10706): an epoch without records must not survive the truncation
        that it caused."""
        keep = bisect_left(self.starts, end_offset)
        if keep == len(self.starts):
            return False
        del self.epochs[keep:], self.starts[keep:]
        self._changed()
        return True

    def truncate_from_start(self, start_offset: int) -> bool:
        """The log now starts at `start_offset`: drop older epochs, and let the epoch of that offset start there. False if nothing
        changed."""
        covering = bisect_right(self.starts, start_offset) - 1
        if covering < 0 or (covering == 0 and self.starts[0] == start_offset):
            return False
        del self.epochs[:covering], self.starts[:covering]
        self.starts[0] = start_offset
        self._changed()
        return True

    def clear(self) -> None:
        if self.epochs:
            self.epochs.clear()
            self.starts.clear()
            self._changed()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()
