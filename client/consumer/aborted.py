"""Determines which fetched batches belong to aborted transactions, so that a reader of committed records does not get them. Pure.

A fetch response names the aborted transactions that have records in it, in the order of their first offsets. A later response may
name one again. Those that begin after the batches read so far wait in a heap. Of the others, the last one of each producer is
enough, because the transactions of a producer follow one another.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from strandline.protocol.messages.data import AbortedTransaction
from strandline.protocol.records.batch import BatchHeader


class AbortedTransactions:
    """The aborted transactions of one partition that a consumer knows."""

    __slots__ = ("_begun", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, int]] = []
        """A heap of (first offset, last offset, producer id)."""
        self._begun: dict[int, tuple[int, int]] = {}
        """Producer id -> (first offset, last offset)."""

    def add(self, transactions: Iterable[AbortedTransaction]) -> None:
        for each in transactions:
            heappush(self._waiting, (each.first_offset, each.last_offset, each.producer_id))

    def has(self, header: BatchHeader) -> bool:
        """Whether the transactional batch was aborted. Called for the batches in the order of their offsets."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= header.last_offset:
            first, last, producer_id = heappop(waiting)
            self._begun[producer_id] = (first, last)
        first, last = self._begun.get(header.producer_id, (0, -1))
        return first <= header.base_offset <= last
