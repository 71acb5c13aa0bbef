"""Finds the committed records of a log in its files, for reads with `isolation.level=read_committed`.

    00000000000000005000.txnindex    the aborted transactions whose markers are in this segment (storage/log/transaction_index.py)
    00000000000000005000.snapshot    the transactions that were open before offset 5000 (storage/log/producer_state.py)
    the batches of the last segment  transactions that were begun, committed or aborted since

The broker writes both files when it closes a segment and begins the next one, so only the last segment's batches must be looked
at. If the snapshot at its begin is missing, or a file is damaged, all batches of the log are looked at instead.

Only headers and markers are read. A log's files do not say what is replicated, so every record that was appended counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from strandline.pipeline.segments.files import SegmentMissing, opened
from strandline.pipeline.segments.layout import SegmentFile
from strandline.pipeline.segments.walk import Extent, Range, Read, Walk, Wanted
from strandline.protocol.records.batch import BatchHeader
from strandline.protocol.records.marker import is_marker, read_marker
from strandline.storage.log.producer_state import snapshot_rows

_ENTRY = Struct(">hqqqq")
"""An entry of a `.txnindex`: version, producer id, first offset, offset of the marker, last stable offset."""


class Committed(NamedTuple):
    """The transactions of a log that have records without a commit."""

    aborted: Mapping[int, Sequence[tuple[int, int]]]
    """Producer id -> (first offset, offset of the marker) of each aborted transaction, in the order of the log."""
    last_stable_offset: int | None = None
    """The first offset of the oldest open transaction; None: no transaction is open."""

    def has(self, header: BatchHeader) -> bool:
        """Whether a reader of committed records gets the records of this batch."""
        if header.is_control or (self.last_stable_offset is not None and header.base_offset >= self.last_stable_offset):
            return False
        return not header.is_transactional or not self._is_aborted(header)

    def _is_aborted(self, header: BatchHeader) -> bool:
        transactions = self.aborted.get(header.producer_id, ())
        following = bisect_left(transactions, header.base_offset, key=lambda transaction: transaction[1])
        return following < len(transactions) and transactions[following][0] <= header.base_offset

    def since(self, offset: int) -> Committed:
        """A copy without the transactions that ended before `offset`: a task needs only those of its file."""
        left = {p: [each for each in transactions if each[1] >= offset] for p, transactions in self.aborted.items()}
        return self._replace(aborted={producer_id: transactions for producer_id, transactions in left.items() if transactions})


class Transactions:
    """The transactions of a log, from its batches in the order of their offsets. Pure."""

    def __init__(self, open_ones: Mapping[int, int], aborted: Iterable[tuple[int, int, int]] = ()) -> None:
        self._open = dict(open_ones)
        """Producer id -> the first offset of its open transaction."""
        self._aborted = {(producer_id, last): first for producer_id, first, last in aborted}
        """(Producer id, offset of the marker) -> the first offset of the aborted transaction."""

    def take(self, header: BatchHeader, batch: memoryview | None) -> None:
        """Takes the next batch; `batch` has its bytes if it is a marker."""
        if batch is None:
            if header.is_transactional and not header.is_control and header.record_count:
                self._open.setdefault(header.producer_id, header.base_offset)
            return
        marker = read_marker(batch, 0, header)
        if marker is None:
            return
        first = self._open.pop(header.producer_id, None)
        if first is not None and not marker.is_commit:
            self._aborted[header.producer_id, header.last_offset] = first

    def committed(self) -> Committed:
        aborted: dict[int, list[tuple[int, int]]] = {}
        for (producer_id, last), first in sorted(self._aborted.items()):
            aborted.setdefault(producer_id, []).append((first, last))
        return Committed(aborted, min(self._open.values(), default=None))


# -- files ------------------------------------------------------------------------------------------------------------


def committed_of(segments: Sequence[SegmentFile], *, ignore_missing: bool = False) -> Committed:
    """The committed records of a log; `segments` are all its segments, in order. Raises SegmentMissing, unless `ignore_missing`:
    the broker deletes the oldest segments, so no record that is left needs them."""
    aborted, open_ones = _from_indexes(segments), _from_snapshot(segments[-1])
    if aborted is None or open_ones is None:
        return _walked(segments, Transactions({}), ignore_missing)
    return _walked(segments[-1:], Transactions(open_ones, aborted), ignore_missing)


def _walked(segments: Sequence[SegmentFile], transactions: Transactions, ignore_missing: bool) -> Committed:
    """Takes the batches of these segments."""
    for file in segments:
        try:
            with opened(file.path) as read:
                for header, batch in _batches(read, file):
                    transactions.take(header, batch)
        except SegmentMissing:
            if not ignore_missing:
                raise
    return transactions.committed()


def _batches(read: Read, file: SegmentFile) -> Iterator[tuple[BatchHeader, memoryview | None]]:
    """The headers of a segment's batches, with the bytes of those that are markers."""
    walk = Walk(read, Extent(file.base_offset, file.size, file.is_last), Range(0, file.size, file.base_offset), Wanted.HEADERS)
    for found in walk:
        if found.header is not None and found.damage is None:
            yield found.header, walk.batch(found) if is_marker(found.header) else None


def _from_indexes(segments: Sequence[SegmentFile]) -> list[tuple[int, int, int]] | None:
    """Producer id, first offset and offset of the marker of the transactions in the `.txnindex` files; None if one is damaged."""
    found = []
    for segment in segments:
        data = _read(segment.path.removesuffix(".log") + ".txnindex") or b""
        if len(data) % _ENTRY.size:
            return None
        for version, producer_id, first, last, _ in _ENTRY.iter_unpack(data):
            if version != 0 or producer_id < 0 or not 0 <= first < last:
                return None
            found.append((producer_id, first, last))
    return found


def _from_snapshot(last: SegmentFile) -> dict[int, int] | None:
    """The transactions that were open when the last segment was created: first offset by producer id. None: it has no sound
    snapshot."""
    data = _read(last.path.removesuffix(".log") + ".snapshot")
    rows = None if data is None else snapshot_rows(data)
    if rows is None:
        return None
    first_offsets = {producer_id: first for producer_id, *_, first in rows}
    return {producer_id: first for producer_id, first in first_offsets.items() if first >= 0}


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
