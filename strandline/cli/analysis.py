"""Counts the contents of a partition (records, keys, sizes, gaps), from the columns of its batches. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.client import FetchedBatch

KEYS_MAX = 1_000_000
"""Different keys are counted up to here, which bounds the memory to about 100 MB per partition."""


@dataclass(slots=True)
class Analysis:
    """The records from `start_offset` up to, not including, `next_offset`. Times are milliseconds since 1970."""

    start_offset: int
    end_offset: int
    """The offset at which the analysis ends: the high watermark when it began."""
    next_offset: int = -1
    records: int = 0
    batches: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    header_bytes: int = 0
    largest_value: int = 0
    null_keys: int = 0
    tombstones: int = 0
    """Records with a key and without a value, which delete the key in a compacted topic."""
    gaps: int = 0
    """Runs of offsets without a record: compacted away, or of control records."""
    first_timestamp_ms: int = -1
    last_timestamp_ms: int = -1
    _keys: set[int] = field(default_factory=set)
    """Hashes of the keys."""

    def __post_init__(self) -> None:
        self.next_offset = self.start_offset

    @property
    def is_complete(self) -> bool:
        return self.next_offset >= self.end_offset

    @property
    def keys(self) -> int | None:
        """How many different keys the records have; None if they are more than KEYS_MAX."""
        return len(self._keys) if len(self._keys) <= KEYS_MAX else None

    @property
    def bytes(self) -> int:
        """The bytes of keys, values and headers."""
        return self.key_bytes + self.value_bytes + self.header_bytes

    def add(self, batch: FetchedBatch) -> None:
        """Count the rows of the next batch. Rows at or after `end_offset` are not counted."""
        batch = batch.clip(self.next_offset, self.end_offset)
        if len(batch):
            self.batches += 1
            self.records += len(batch)
            self.key_bytes += batch.keys.nbytes
            self.value_bytes += batch.values.nbytes
            self.header_bytes += batch.headers.nbytes if batch.headers is not None else 0
            self._count_gaps(batch)
            self._count_rows(batch)
            self._note_times(min(batch.timestamps_ms), max(batch.timestamps_ms))
        self.next_offset = max(self.next_offset, batch.next_offset)

    def _count_gaps(self, batch: FetchedBatch) -> None:
        self.gaps += batch.first_offset > self.next_offset
        if batch.last_offset - batch.first_offset + 1 > len(batch):
            self.gaps += sum(after - before > 1 for before, after in pairwise(batch.offsets))

    def _count_rows(self, batch: FetchedBatch) -> None:
        for row in range(len(batch)):
            key, value = batch.keys[row], batch.values[row]
            if key is None:
                self.null_keys += 1
            else:
                self.tombstones += value is None
                if len(self._keys) <= KEYS_MAX:
                    self._keys.add(hash(key))
            if value is not None and len(value) > self.largest_value:
                self.largest_value = len(value)

    def _note_times(self, first: int, last: int) -> None:
        if self.first_timestamp_ms < 0 or first < self.first_timestamp_ms:
            self.first_timestamp_ms = first
        self.last_timestamp_ms = max(self.last_timestamp_ms, last)

    @property
    def document(self) -> dict[str, Any]:
        return {
            "start_offset": self.start_offset,
            "end_offset": self.end_offset,
            "records": self.records,
            "batches": self.batches,
            "bytes": self.bytes,
            "key_bytes": self.key_bytes,
            "value_bytes": self.value_bytes,
            "header_bytes": self.header_bytes,
            "largest_value_bytes": self.largest_value,
            "keys": self.keys,
            "null_keys": self.null_keys,
            "tombstones": self.tombstones,
            "gaps": self.gaps,
            "missing_offsets": self.next_offset - self.start_offset - self.records,
            "first_timestamp_ms": self.first_timestamp_ms,
            "last_timestamp_ms": self.last_timestamp_ms,
        }
