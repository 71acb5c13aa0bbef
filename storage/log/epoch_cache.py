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
    """Where each leader epoch begins. Answers which epoch wrote an offset, and where an epoch ended. Calls `on_change` after each
    change, so that the owner saves the checkpoint."""

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
        """The newest epoch; -1 if there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def latest_start(self) -> int:
        return self._starts[-1] if self._starts else NO_OFFSET

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` begins at `start_offset`. False if it is the latest epoch already.

        Entries that contradict it (a newer epoch, or one that begins later) are dropped: they belong to leaders whose records did
        not survive.
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
        """The largest known epoch <= `epoch`, and its exclusive end offset: the answer to OffsetForLeaderEpoch, which decides
        where a follower truncates (KIP-101, KIP-279).

        (-1, -1) if `epoch` is newer than all known epochs. If it is older than all of them: `epoch` and the start of the oldest,
        because the log has no record of it any more.
        """
        if not self._epochs or epoch < 0 or epoch > self._epochs[-1]:
            return UNKNOWN
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        after = bisect_right(self._epochs, epoch)
        return (self._epochs[after - 1] if after else epoch), self._starts[after]

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch that wrote the record at `offset`, which must exist; -1 if not known."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drop every epoch that begins at or after the log's new end. False if there was none.

        This includes an epoch that begins at the old end (KAFKA-10706): an epoch without records must not survive the truncation
        that it caused."""
        keep = bisect_left(self._starts, end_offset)
        if keep == len(self._starts):
            return False
        del self._epochs[keep:], self._starts[keep:]
        self._changed()
        return True

    def truncate_from_start(self, start_offset: int) -> bool:
        """The log now starts at `start_offset`: drop older epochs, and let the epoch of that offset start there. False if nothing
        changed."""
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
