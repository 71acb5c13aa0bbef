"""The content of logs without a copy of the records: a tree of batches per partition, and a path in it per log.

Only the leader of an epoch creates records in it, one after the other. So all batches ever written to a partition form a
**tree**: a *chain* of batches per leader epoch, which hangs on a record of an earlier chain. A log is a **path** in this tree. A
path needs only the offset at which each of its epochs begins, and its end.

    chain e1    0 1 2 3 4 5 6           path of broker 1   [(e1, 0)]          up to 7
    chain e2            4 5             path of broker 2   [(e1, 0) (e2, 4)]  up to 6

That it is a tree is log matching (I4), which is checked when each batch is entered. From then on two logs with the same epoch at
the same offset hold the same bytes up to there, and one look at its path shows whether a replica has a record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

NOTHING = -1
"""The epoch of a record that does not exist."""


class Batch(NamedTuple):
    """The fields that must be the same in every copy of a batch."""

    base: int
    next: int
    crc: int
    """The checksum of everything but offset, length and epoch."""
    size: int
    producer_id: int
    producer_epoch: int
    sequence: int
    is_control: bool
    is_transactional: bool = False


class Path:
    """The records of one log, from `start` to `end`, with the epoch of each."""

    __slots__ = ("end", "epochs", "start", "starts")

    def __init__(self, start: int = 0) -> None:
        self.start = start
        """The log start: records below it may be deleted, and count as held."""
        self.end = start
        self.epochs: list[int] = []
        """The epochs of the records, in order; an epoch without records is left out."""
        self.starts: list[int] = []
        """The offset at which each epoch begins, strictly increasing. The first may lie below `start`."""

    def copy(self) -> Path:
        path = Path(self.start)
        path.end, path.epochs, path.starts = self.end, list(self.epochs), list(self.starts)
        return path

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at `offset`, which must be below `end`."""
        index = bisect_right(self.starts, offset) - 1
        return self.epochs[index] if index >= 0 else NOTHING

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1] if self.epochs else NOTHING

    def holds(self, offset: int, epoch: int) -> bool:
        """Whether the path has the record at `offset` of `epoch` (and so every record before it), or has deleted it."""
        return offset < self.start or (offset < self.end and self.epoch_at(offset) == epoch)

    def holds_all_of(self, other: Path) -> bool:
        """Whether the other path is a beginning of this one."""
        return other.end <= other.start or self.holds(other.end - 1, other.epoch_at(other.end - 1))

    def extend(self, epoch: int, next_offset: int) -> None:
        if not self.epochs or self.epochs[-1] != epoch:
            self.epochs.append(epoch)
            self.starts.append(self.end)
        self.end = next_offset

    def truncate(self, end: int) -> None:
        keep = bisect_left(self.starts, end)
        del self.epochs[keep:], self.starts[keep:]
        self.end = end
        self.start = min(self.start, end)

    def restart(self, offset: int) -> None:
        """Make the path empty, from `offset` on."""
        self.epochs.clear()
        self.starts.clear()
        self.start = self.end = offset

    def follow(self, other: Path, end: int) -> None:
        """Become equal to the other path up to `end`. For records that the other path has deleted, this one keeps the epochs that
        it has."""
        keep = bisect_left(other.starts, end)
        epochs, starts = other.epochs[:keep], other.starts[:keep]
        known = bisect_left(self.starts, starts[0] if starts else end)
        if known and epochs and self.epochs[known - 1] == epochs[0]:
            del epochs[0], starts[0]
        self.epochs, self.starts, self.end = self.epochs[:known] + epochs, self.starts[:known] + starts, end

    def agrees_until(self, other: Path) -> int:
        """The offset at which the two paths diverge; if they do not, the end of the shorter one."""
        offset = min(self.end, other.end)
        while offset > 0:
            ours, theirs = self.epoch_at(offset - 1), other.epoch_at(offset - 1)
            if ours == theirs or NOTHING in (ours, theirs):  # deleted in one of the two
                return offset
            # The newer of the two epochs is missing in the other path (epochs do not decrease along a path).
            path = self if ours > theirs else other
            offset = path.starts[bisect_right(path.starts, offset - 1) - 1]
        return 0

    def segments(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(epoch, first offset, end offset) of the epochs that have records in the range."""
        for index in range(max(0, bisect_right(self.starts, start) - 1), len(self.epochs)):
            last = self.starts[index + 1] if index + 1 < len(self.starts) else self.end
            low, high = max(start, self.starts[index]), min(end, last)
            if low < high:
                yield self.epochs[index], low, high

    def __repr__(self) -> str:
        epochs = " ".join(f"e{epoch}@{start}" for epoch, start in zip(self.epochs, self.starts, strict=True))
        return f"<{self.start}..{self.end} {epochs}>"


class Chain:
    """The batches that the leader of one epoch wrote."""

    __slots__ = ("batches", "by_base", "end", "parent", "start")

    def __init__(self, start: int, parent: int) -> None:
        self.start = start
        self.parent = parent
        """The epoch of the record before the first one; NOTHING if there is none or it is unknown."""
        self.end = start
        self.batches: list[Batch] = []
        self.by_base: dict[int, Batch] = {}

    def add(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.by_base[batch.base] = batch
        self.end = batch.next


class Tree:
    """Every batch that was ever written to one partition."""

    __slots__ = ("chains",)

    def __init__(self) -> None:
        self.chains: dict[int, Chain] = {}

    def find(self, epoch: int, base: int) -> Batch | None:
        chain = self.chains.get(epoch)
        return None if chain is None else chain.by_base.get(base)

    def find_bytes(self, base: int, crc: int) -> int:
        """The epoch in which a batch of this content was written at this offset, or NOTHING."""
        for epoch, chain in self.chains.items():
            batch = chain.by_base.get(base)
            if batch is not None and batch.crc == crc:
                return epoch
        return NOTHING

    def enter(self, epoch: int, batch: Batch, parent: int) -> str:
        """Add a new batch. Returns why it cannot be the next one of its epoch; empty if it can."""
        chain = self.chains.get(epoch)
        if chain is None:
            chain = self.chains[epoch] = Chain(batch.base, parent)
        elif batch.base != chain.end:
            return (
                f"epoch {epoch} has records from {chain.start} up to {chain.end}, so its next batch cannot begin at {batch.base}"
            )
        chain.add(batch)
        return ""

    def walk(self, path: Path, start: int, end: int) -> Iterator[tuple[int, Batch]]:
        """(epoch, batch) of the batches of a path that begin in the range."""
        for epoch, low, high in path.segments(start, end):
            batches = self.chains[epoch].batches
            for index in range(bisect_left(batches, low, key=_base), len(batches)):
                if batches[index].base >= high:
                    break
                yield epoch, batches[index]


def _base(batch: Batch) -> int:
    return batch.base
