"""Compares the aborted transactions of a log with its `.txnindex` files, which a broker reads instead of the batches. Pure.

    00000000000000005000.txnindex    an entry for each ABORT marker of the segment: producer id, first offset, marker's offset

If an aborted transaction has no entry, or one that begins too late, readers of committed records would get its records. An entry
may begin too early: retention or a cleaner has removed the first records since. If retention or a cleaner has removed all records
of a transaction, its marker may have an entry or not. After damage and gaps it is not known which transactions are open, so they
are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from strandline.pipeline.jobs.verify_log import Batch

SUFFIX = "txnindex"
_ENTRY = Struct(">hqqqq")
_VERSION = 0


class Entry(NamedTuple):
    producer_id: int
    first: int
    last: int
    """Offset of the marker."""


def read_entries(path: Path) -> tuple[Entry, ...] | None:
    """The entries of a `.txnindex`; none if it does not exist, as for a segment without an aborted transaction. None: the file
    ends within an entry, or has an entry of an unknown version."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    if len(data) % _ENTRY.size:
        return None
    rows = list(_ENTRY.iter_unpack(data))
    return tuple(Entry(*row[1:4]) for row in rows) if all(row[0] == _VERSION for row in rows) else None


class TransactionCheck:
    """Takes the batches of a log in order; after those of each segment, `end_segment` compares its index."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        """Producer id -> the first offset of its open transaction."""
        self._aborted: dict[int, Entry] = {}
        """The aborted transactions whose markers are in this segment, by the offset of the marker."""
        self._markers: dict[int, int] = {}
        """The producer ids of all markers in this segment, by offset."""

    def take(self, batch: Batch) -> None:
        if batch.is_marker:
            last = batch.next_offset - 1
            self._markers[last] = batch.producer_id
            first = self._open.pop(batch.producer_id, None)
            if first is not None and batch.is_abort:
                self._aborted[last] = Entry(batch.producer_id, first, last)
        elif batch.is_transactional and batch.record_count:
            self._open.setdefault(batch.producer_id, batch.base_offset)

    def forget(self) -> None:
        """Forgets the open transactions: batches are missing."""
        self._open.clear()

    def end_segment(self, entries: Sequence[Entry] | None) -> list[str]:
        """The faults of the segment's index, one sentence each. `entries` is None if the index file cannot be decoded."""
        aborted, markers = self._aborted, self._markers
        self._aborted, self._markers = {}, {}
        if entries is None:
            return ["the file is damaged"]
        return list(_problems({entry.last: entry for entry in entries}, aborted, markers))


def _problems(entries: Mapping[int, Entry], aborted: Mapping[int, Entry], markers: Mapping[int, int]) -> Iterator[str]:
    for last, found in aborted.items():
        entry = entries.get(last)
        text = f"the transaction of producer {found.producer_id} that was aborted at offset {last}"
        if entry is None or entry.producer_id != found.producer_id:
            yield f"there is no entry for {text}"
        elif entry.first > found.first:
            yield f"the entry for {text} begins at offset {entry.first}, and its records at {found.first}"
    for last, entry in entries.items():
        if markers.get(last) != entry.producer_id:
            yield f"the entry (producer {entry.producer_id}, offset {last}) points to no marker"
