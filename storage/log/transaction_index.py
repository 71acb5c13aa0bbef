"""The index of aborted transactions of a segment, in Kafka's format.

    00000000000000005000.txnindex    one entry of 34 bytes for each ABORT marker in the segment, in their order

    entry    i16 version = 0 | i64 producer id | i64 first offset | i64 last offset | i64 last stable offset

`first offset` is that of the transaction's first batch, which may lie in an earlier segment. `last offset` is that of the marker.
`last stable offset` is the one after the transaction ended: the first offset of the oldest transaction that was still open then,
or the offset after the marker. Neither of these two decreases in the entries of a log. So a search for the aborted transactions
of a range of offsets ends at the first entry whose last stable offset is not below the range's end: the transactions of later
entries begin there or after it.

The file can be derived from the batches, so it is checked when a log is opened, and rebuilt if it is damaged. A segment without
an aborted transaction has no file.
"""

from __future__ import annotations

from collections.abc import Collection
from struct import Struct
from typing import NamedTuple

from strandline.storage.disk import Files

TRANSACTION_INDEX_SUFFIX = ".txnindex"
_ENTRY = Struct(">hqqqq")
assert _ENTRY.size == 34
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted, as a segment's index has it."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the ABORT marker."""
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions whose markers are in one segment, including those that are not written yet."""

    __slots__ = ("_is_saved", "entries")

    def __init__(self, entries: bytes = b"", *, is_saved: bool = False) -> None:
        self.entries = bytearray(entries)
        self._is_saved = is_saved
        """Whether the file holds exactly `entries`."""

    @classmethod
    def load(cls, data: bytes, base_offset: int, end_offset: int) -> TransactionIndex | None:
        """The index in the bytes of a file; None if it cannot be that of a segment with these offsets."""
        if len(data) % _ENTRY.size:
            return None
        last_offset, stable = base_offset - 1, 0
        for version, producer_id, first, last, last_stable in _ENTRY.iter_unpack(data):
            if version != _VERSION or producer_id < 0 or not 0 <= first < last < end_offset or last <= last_offset:
                return None
            if not stable <= last_stable <= last + 1:
                return None
            last_offset, stable = last, last_stable
        return cls(data, is_saved=True)

    def __len__(self) -> int:
        return len(self.entries) // _ENTRY.size

    def __getitem__(self, index: int) -> AbortedTransaction:
        return AbortedTransaction._make(_ENTRY.unpack_from(self.entries, index * _ENTRY.size)[1:])

    def append(self, transaction: AbortedTransaction) -> None:
        """Add a transaction whose marker comes after those of all others."""
        self.entries += _ENTRY.pack(_VERSION, *transaction)
        self._is_saved = False

    def collect(self, offset: int, end_offset: int, found: list[AbortedTransaction]) -> bool:
        """Add the transactions that have offsets within `offset` to `end_offset` (exclusive). True if no later entry, also of
        other segments, has any."""
        for index in range(self._count_ending_before(offset), len(self)):
            transaction = self[index]
            if transaction.first_offset < end_offset:
                found.append(transaction)
            if transaction.last_stable_offset >= end_offset:
                return True
        return False

    def without(self, markers: Collection[int]) -> bytes:
        """The entries but for those of the markers at these offsets."""
        if not markers:
            return bytes(self.entries)
        entries = (bytes(self.entries[at : at + _ENTRY.size]) for at in range(0, len(self.entries), _ENTRY.size))
        return b"".join(entry for entry in entries if _ENTRY.unpack(entry)[3] not in markers)

    def truncate_from(self, offset: int) -> None:
        """Drop the transactions whose markers are at or above `offset`."""
        count = self._count_ending_before(offset)
        if count < len(self):
            del self.entries[count * _ENTRY.size :]
            self._is_saved = False

    def save(self, files: Files, path: str) -> bool:
        """Write the file, or remove it if there is no entry, without an fsync. False if it was up to date."""
        if self._is_saved:
            return False
        if self.entries:
            files.write(path, self.entries)
        else:
            files.remove(path)
        self._is_saved = True
        return True

    def _count_ending_before(self, offset: int) -> int:
        """The number of transactions whose marker is below `offset`, by binary search."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self[middle].last_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low
