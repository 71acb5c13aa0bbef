"""The leader-epoch cache: where each leader epoch of a log begins.

    entries   (0, 0) (3, 5000) (7, 5000) (8, 10500)        epoch, start offset

    epoch 3 ended where 7 began: at 5000 it wrote nothing that lived. The newest epoch ends at the log's end.

Epochs strictly increase, start offsets never decrease (I11). An epoch is entered when its leader starts, even when it
never writes: a later question "where did epoch 2 end?" is answered from the entry that follows (KAFKA-7415).

The cache can be derived from the batches, all but an epoch that wrote nothing; and such an entry only matters while the
leader that made it lives. So the file is replaced without waiting for the disk, and `Log.flush` makes it durable before
a recovery point relies on it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

NO_EPOCH = -1
NO_OFFSET = -1
UNKNOWN = (NO_EPOCH, NO_OFFSET)


class LeaderEpochCache:
    """Answers "which epoch wrote this offset" and "where did this epoch end"; tells `on_change` to save it."""

    def __init__(self, entries: Iterable[tuple[int, int]] = (), on_change: Callable[[], None] | None = None) -> None:
        self._epochs: list[int] = []
        """Strictly increasing."""
        self._starts: list[int] = []
        """Never decreasing; `_starts[i]` is the first offset of `_epochs[i]`."""
        self._on_change = on_change
        for epoch, start in entries:
            self._append(epoch, start)

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest_epoch(self) -> int:
        """The newest epoch, -1 for none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def latest_start(self) -> int:
        return self._starts[-1] if self._starts else NO_OFFSET

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Enter that `epoch` begins at `start_offset`; False when it is known already.

        Entries that contradict it (a newer epoch, or one that begins later) are dropped: they were of leaders whose
        records did not survive.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"no epoch {epoch} can begin at {start_offset}")
        if self._epochs and epoch == self._epochs[-1] and start_offset >= self._starts[-1]:
            return False
        self._append(epoch, start_offset)
        self._changed()
        return True

    def _append(self, epoch: int, start: int) -> None:
        keep = min(bisect_left(self._epochs, epoch), bisect_right(self._starts, start))
        del self._epochs[keep:], self._starts[keep:]
        self._epochs.append(epoch)
        self._starts.append(start)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch that is not newer than `epoch`, and where it ended (exclusive): the answer to
        OffsetForLeaderEpoch and the pivot of a truncation (KIP-101, KIP-279).

        (-1, -1) for an epoch newer than all known ones. For one older than all known ones it is itself and the start
        of the oldest: nothing of it is left here.
        """
        if not self._epochs or epoch < 0 or epoch > self._epochs[-1]:
            return UNKNOWN
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        after = bisect_right(self._epochs, epoch)
        return (self._epochs[after - 1] if after else epoch), self._starts[after]

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that wrote the record at `offset` (which must exist), -1 when unknown."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drop every epoch that begins at or after the log's new end: also when that is the old end (KAFKA-10706), for
        an epoch without records must not outlive the truncation that was asked because of it."""
        keep = bisect_left(self._starts, end_offset)
        if keep == len(self._starts):
            return False
        del self._epochs[keep:], self._starts[keep:]
        self._changed()
        return True

    def truncate_from_start(self, start_offset: int) -> bool:
        """The log now starts at `start_offset`: the epoch that covers it becomes the first and starts there."""
        covering = bisect_right(self._starts, start_offset) - 1
        if covering < 0 or (covering == 0 and self._starts[0] == start_offset):
            return False
        del self._epochs[:covering], self._starts[:covering]
        self._starts[0] = start_offset
        self._changed()
        return True

    def clear(self) -> None:
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self._changed()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()
