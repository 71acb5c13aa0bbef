"""The offsets of aborted transactions. The cleaner removes the records of these transactions. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from strandline.protocol.records.batch import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader
from strandline.storage.log.transaction_index import AbortedTransaction


class AbortedRanges:
    """Answers whether a batch belongs to an aborted transaction. Its markers do not count."""

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        """`transactions`: in the order of their first offsets."""
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        """Producer id -> (first offset, offset of the marker) of its transactions, one after the other."""
        for each in transactions:
            self._ranges.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))

    def __contains__(self, header: BatchHeader) -> bool:
        if not header.attributes & TRANSACTIONAL_MASK or header.attributes & CONTROL_MASK:
            return False
        ranges = self._ranges.get(header.producer_id, [])
        index = bisect_right(ranges, header.base_offset, key=_first_offset) - 1
        return index >= 0 and header.base_offset < ranges[index][1]


def _first_offset(offsets: tuple[int, int]) -> int:
    return offsets[0]
