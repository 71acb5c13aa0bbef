"""The offsets of open transactions: stored, but not in force before their transaction is committed (KIP-447).

They are kept by producer, because a producer has one transaction at a time. Its marker removes all of them at once: a commit puts
them in force, an abort drops them. Until then the positions are unstable: a consumer that requires stable offsets gets
UNSTABLE_OFFSET_COMMIT, and retries.

**The newest record counts, not the newest marker.** A later commit of the same position, be it outside of a transaction or in one
that ends earlier, is not undone by the marker. So it removes the pending offset, and the position is stable again:

    record 10   producer 1: offset 700      unstable
    record 11   commit of offset 800        in force: 800
    record 12   producer 1: commit          in force: 800, as record 11 is newer than record 10

The log says the same after compaction has removed record 10. A tombstone counts as such a commit, too. (Kafka keeps a position
unstable until the marker, although that cannot change it.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from strandline.broker.groups.records.types import CommittedOffset

PositionKey = tuple[str, str, int]
"""Group, topic and partition."""


class PendingOffset(NamedTuple):
    log_offset: int
    """The offset of its record in the log."""
    value: CommittedOffset


class PendingOffsets:
    """The offsets of the open transactions of one shard."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[PositionKey, PendingOffset]] = {}
        """Producer id -> position -> offset. No dict in it is empty."""
        self._by_group: dict[str, dict[tuple[str, int], dict[int, None]]] = {}
        """Group -> (topic, partition) -> the producers that have a pending offset there. No dict in it is empty."""

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    # -- change -------------------------------------------------------------------------------------------------------

    def add(self, producer_id: int, key: PositionKey, value: CommittedOffset, log_offset: int) -> None:
        """Add an offset that a producer stores in its transaction. It replaces an earlier one of the same transaction."""
        group_id, topic, partition = key
        self._by_producer.setdefault(producer_id, {})[key] = PendingOffset(log_offset, value)
        self._by_group.setdefault(group_id, {}).setdefault((topic, partition), {})[producer_id] = None

    def supersede(self, key: PositionKey, log_offset: int) -> None:
        """Drop the pending offsets of a position that are older than the record at `log_offset`, which has set the position."""
        for producer_id in list(self._producers(key)):
            if self._by_producer[producer_id][key].log_offset < log_offset:
                self._remove(producer_id, key)

    def take(self, producer_id: int) -> list[tuple[PositionKey, PendingOffset]]:
        """Remove and return the offsets of a producer whose transaction has ended, in the order in which their positions were
        first stored."""
        taken = list(self._by_producer.get(producer_id, {}).items())
        for key, _ in taken:
            self._remove(producer_id, key)
        return taken

    def _producers(self, key: PositionKey) -> Collection[int]:
        group_id, topic, partition = key
        of_group = self._by_group.get(group_id)
        return of_group.get((topic, partition), ()) if of_group is not None else ()

    def _remove(self, producer_id: int, key: PositionKey) -> None:
        group_id, topic, partition = key
        del self._by_producer[producer_id][key]
        if not self._by_producer[producer_id]:
            del self._by_producer[producer_id]
        of_group = self._by_group[group_id]
        del of_group[(topic, partition)][producer_id]
        if not of_group[(topic, partition)]:
            del of_group[(topic, partition)]
        if not of_group:
            del self._by_group[group_id]

    # -- queries ------------------------------------------------------------------------------------------------------

    @property
    def groups(self) -> Collection[str]:
        """The ids with a pending offset."""
        return self._by_group.keys()

    def positions(self, group_id: str) -> Collection[tuple[str, int]]:
        """The topics and partitions of a group that have a pending offset."""
        return self._by_group.get(group_id, {}).keys()

    def has(self, key: PositionKey) -> bool:
        """Whether an open transaction has stored this position."""
        return bool(self._producers(key))

    def values(self, key: PositionKey) -> Iterable[CommittedOffset]:
        """The pending offsets of a position."""
        return (self._by_producer[producer_id][key].value for producer_id in self._producers(key))
