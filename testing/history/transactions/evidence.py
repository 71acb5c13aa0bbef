"""Collects what the reads prove about each append: which consumers saw it, and which passed its offset without seeing it.

A read covers the offsets from where it began to the position after it. A record of a transaction whose offset is known, from an
acknowledgement or from any read, and that lies in this range, is *seen* or *missed* by the read. Every check of a transaction's
atomicity compares these two lists."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from strandline.testing.history.operations import Partition, Value
from strandline.testing.history.transactions.operations import Append, Read, Transaction, TransactionHistory


class Seen(NamedTuple):
    append: Append
    read: Read
    offset: int


class Missed(NamedTuple):
    append: Append
    read: Read
    offset: int
    """-1: unknown. The read is final and covers the whole log."""


class Evidence:
    def __init__(self, history: TransactionHistory) -> None:
        self.history = history
        self.seen: dict[int, list[Seen]] = {}
        """Number of the transaction -> what consumers saw of it."""
        self.missed: dict[int, list[Missed]] = {}
        self.offset_of: dict[Append, int] = {}
        """The acknowledged offset, else the first at which the value was read."""
        self.unwritten: list[tuple[Partition, int, Value, Read]] = []
        self.values_at: dict[tuple[Partition, int], dict[Value, str]] = {}
        """(partition, offset) -> each value that was reported for it -> the send or the reader that reported it first."""
        self._newest_of_key: dict[tuple[Partition, Hashable], int] = {}
        self._take_acknowledgements()
        self._take_reads()
        self._take_misses()

    def placed(self, transaction: Transaction) -> Iterator[tuple[Append, int]]:
        """The appends of a transaction whose offsets are known."""
        return ((append, self.offset_of[append]) for append in transaction.appends if append in self.offset_of)

    def is_committed(self, transaction: Transaction) -> bool:
        """Whether the transaction is known to be committed: its producer received that answer, or a consumer saw a record of
        it."""
        return transaction.outcome == "committed" or transaction.number in self.seen

    def _take_acknowledgements(self) -> None:
        for append in self.history.appends.values():
            if append.offset >= 0:
                self.offset_of[append] = append.offset
                holder = f"acknowledged to {append.transaction.process}"
                self.values_at.setdefault((append.partition, append.offset), {}).setdefault(append.value, holder)

    def _take_reads(self) -> None:
        for read in self.history.reads:
            for offset, value in read.records:
                self.values_at.setdefault((read.partition, offset), {}).setdefault(value, f"read by {read.process}")
                append = self.history.appends.get((read.partition, value))
                if append is None:
                    self.unwritten.append((read.partition, offset, value, read))
                    continue
                self.offset_of.setdefault(append, offset)
                self.seen.setdefault(append.transaction.number, []).append(Seen(append, read, offset))

    def _take_misses(self) -> None:
        places: dict[Partition, list[tuple[int, int, Append]]] = {}
        for n, (append, offset) in enumerate(self.offset_of.items()):
            places.setdefault(append.partition, []).append((offset, n, append))
            if append.key is not None:
                key = (append.partition, append.key)
                self._newest_of_key[key] = max(offset, self._newest_of_key.get(key, -1))
        for placed in places.values():
            placed.sort()
        for read in self.history.reads:
            self._take_misses_of(read, places.get(read.partition, []))

    def _take_misses_of(self, read: Read, placed: list[tuple[int, int, Append]]) -> None:
        values = {value for _, value in read.records}
        first = max(read.first, self.history.log_starts.get(read.partition, 0))
        for offset, _, append in placed[bisect_left(placed, first, key=lambda place: place[0]) :]:
            if offset >= read.end:
                break
            if append.value not in values and not append.failed and not self._may_be_cleaned(append, offset):
                self.missed.setdefault(append.transaction.number, []).append(Missed(append, read, offset))

    def unplaced(self) -> Iterator[Missed]:
        """Appends without a known offset, in partitions whose whole log was read at the end. The final read did not find them, so
        they are missing."""
        whole = {read.partition: read for read in self.history.reads if read.final}
        for partition, start in self.history.log_starts.items():
            if start > 0:
                whole.pop(partition, None)
        for append in self.history.appends.values():
            if append.partition in whole and append not in self.offset_of and not append.failed and append.key is None:
                yield Missed(append, whole[append.partition], -1)

    def _may_be_cleaned(self, append: Append, offset: int) -> bool:
        """Whether a cleaner may have removed the record, because a newer record of its key was appended. This does not check
        whether the newer record was committed, so it does not find a cleaner that removes a record because of an aborted one."""
        if append.partition not in self.history.compacted_partitions or append.key is None:
            return False
        return self._newest_of_key[append.partition, append.key] > offset
