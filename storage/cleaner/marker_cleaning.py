"""Cleaning the markers of transactions: which ones are removed. Pure, but for the state that passes from one batch to the next.

A marker is needed as long as the log has a batch of its transaction: a replica that copies that batch must find the end of the
transaction, too. When no batch is left, the marker is removed like a tombstone (KIP-534), so that a replica or a consumer that
has read such a batch before it vanished still finds the marker for a while:

    first cleaning     sets attribute bit 6 of the marker, and writes now + delete.retention.ms as base timestamp
    later cleaning     drops the marker once that time has passed

A replica whose log ends below a dropped marker takes a fresh copy of the log, as it does for tombstones.

A marker stays as long as it alone shows the log the epoch of an active producer. That is the last marker of a producer of
version 2, whose epoch rises with each transaction.

**Where this is weak**: a fresh copy that stands still for longer than `delete.retention.ms` between a record of a transaction
and its marker misses the marker, if the record was superseded meanwhile. The transaction is then open in this replica for ever.
If the replica is elected, the metric for late transactions shows that, and an operator can end it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from strandline.protocol.records import batch as v2
from strandline.protocol.records.batch import BatchHeader, Buffer
from strandline.protocol.records.layout import record_starts
from strandline.protocol.records.marker import is_marker
from strandline.storage.cleaner.batch_cleaning import CleanedBatch, Rules, with_horizon


class MarkerPosition(NamedTuple):
    """The last marker of a producer that has no batch in its present epoch in the log."""

    epoch: int
    marker_offset: int
    """The offset of its newest marker; -1 if it is not known."""


class MarkerCleaner:
    """Looks at every batch of one cleaning, from the log's first segment on, and cleans the markers."""

    def __init__(self, needed: Mapping[int, MarkerPosition]) -> None:
        """`needed`: the producers, by id, of whose epoch the log has only a marker."""
        self._needed = needed
        self._open: dict[int, None] = {}
        """The producers with a transactional batch that no marker has followed yet. A dict serves as an ordered set."""

    def note(self, header: BatchHeader) -> None:
        """Note the producer of a batch that is not a marker. `header`: as it was before this cleaning."""
        if header.attributes & v2.TRANSACTIONAL_MASK:
            self._open[header.producer_id] = None

    def clean(self, data: Buffer, header: BatchHeader, rules: Rules) -> CleanedBatch:
        """Clean a marker. Called in the order of the log, between the calls of `note`."""
        assert is_marker(header)
        has_batches = self._open.pop(header.producer_id, self) is not self
        if has_batches or header.base_offset > rules.map.latest_offset or self._is_needed(header):
            return CleanedBatch(data)
        if not header.record_count:
            return CleanedBatch(None)
        if not header.attributes & v2.DELETE_HORIZON_MASK:
            encoded = v2.record_bytes(data, 0, header)
            return CleanedBatch(with_horizon(header, encoded, record_starts(encoded, header.record_count), rules))
        if rules.now_ms < header.base_timestamp:
            return CleanedBatch(data)
        return CleanedBatch(None, removed_tombstones_end=header.next_offset)

    def _is_needed(self, header: BatchHeader) -> bool:
        """Whether this marker alone shows the log the epoch of an active producer."""
        needed = self._needed.get(header.producer_id)
        if needed is None:
            return False
        if needed.marker_offset >= 0:
            return needed.marker_offset == header.last_offset
        return needed.epoch == header.producer_epoch
