"""The two sparse indexes of a segment, in Kafka's layout; offsets are relative to the segment's base offset.

    .index       u32 last offset of a batch | u32 its position in the segment        one entry per ~4 KiB of batches
    .timeindex   u64 timestamp | u32 offset      no record up to that offset is newer than the timestamp

Offsets (and timestamps) strictly increase within a file. An index can be derived from its segment, so it is not trusted: `load`
accepts a file only if all its entries are possible, `Segment` checks the batch that an entry points to, and rebuilds the index
from the batches if it is wrong.

New entries are kept in memory. `save` writes them when a new segment begins or the log is closed, so that an index entry costs
no system call at the append.
"""

from __future__ import annotations

from struct import Struct, iter_unpack

from strandline.storage.disk import DiskError, Files

_OFFSET_ENTRY = Struct(">II")
_TIME_ENTRY = Struct(">QI")
MAX_RELATIVE_OFFSET = 2**31 - 1
"""Kafka reads the field as a signed int, so a new segment begins before a relative offset exceeds this."""


class _Index:
    """The entries of one index file, including those that are not written yet."""

    __slots__ = ("_saved", "entries", "files", "path")

    ENTRY: Struct

    def __init__(self, files: Files, path: str, entries: bytes = b"", *, saved: bool = False) -> None:
        self.files = files
        self.path = path
        self.entries = bytearray(entries)
        self._saved = saved
        """Whether the file holds exactly `entries`."""

    def __len__(self) -> int:
        return len(self.entries) // self.ENTRY.size

    def save(self) -> None:
        """Write the file, without an fsync: if a power cut tears it, it is rebuilt."""
        if not self._saved:
            self.files.write(self.path, self.entries)
            self._saved = True

    def _add(self, first: int, second: int) -> None:
        self.entries += self.ENTRY.pack(first, second)
        self._saved = False

    def _keep(self, count: int) -> None:
        if count < len(self):
            del self.entries[count * self.ENTRY.size :]
            self._saved = False

    def _entry(self, index: int) -> tuple[int, int]:
        first, second = self.ENTRY.unpack_from(self.entries, index * self.ENTRY.size)
        return first, second

    def _count_up_to(self, limit: int, field: int) -> int:
        """Count the entries whose field (0 or 1) is at or below `limit`, by binary search, because both fields increase."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle)[field] <= limit:
                low = middle + 1
            else:
                high = middle
        return low


class OffsetIndex(_Index):
    """Maps the relative last offset of a batch to the batch's position in the segment."""

    __slots__ = ()
    ENTRY = _OFFSET_ENTRY

    @classmethod
    def load(cls, files: Files, path: str, segment_size: int) -> OffsetIndex | None:
        """Load the file. None if it is missing, or cannot be the index of a segment of this size."""
        data = _read(files, path, cls.ENTRY)
        if data is None:
            return None
        offset, position = -1, -1
        for next_offset, next_position in iter_unpack(">II", data):
            if not (offset < next_offset <= MAX_RELATIVE_OFFSET and position < next_position < segment_size):
                return None
            offset, position = next_offset, next_position
        return cls(files, path, data, saved=True)

    def append(self, relative_offset: int, position: int) -> None:
        self.entries += _OFFSET_ENTRY.pack(relative_offset, position)
        self._saved = False

    def lookup(self, relative_offset: int) -> tuple[int, int]:
        """The last entry at or below `relative_offset`; (0, 0), the segment's start, if there is none."""
        count = self._count_up_to(relative_offset, 0)
        return self._entry(count - 1) if count else (0, 0)

    def last(self) -> tuple[int, int]:
        return self._entry(len(self) - 1) if len(self) else (0, 0)

    def truncate_to_position(self, position: int) -> None:
        """Drop the entries of batches at or after `position`."""
        self._keep(self._count_up_to(position - 1, 1))


class TimeIndex(_Index):
    """Maps a timestamp to the relative offset up to which no record is newer."""

    __slots__ = ()
    ENTRY = _TIME_ENTRY

    @classmethod
    def load(cls, files: Files, path: str) -> TimeIndex | None:
        """Load the file. None if it is missing or its entries are impossible."""
        data = _read(files, path, cls.ENTRY)
        if data is None:
            return None
        timestamp, offset = -1, -1
        for next_timestamp, next_offset in iter_unpack(">QI", data):
            if not (timestamp < next_timestamp < 2**63 and offset < next_offset <= MAX_RELATIVE_OFFSET):
                return None
            timestamp, offset = next_timestamp, next_offset
        return cls(files, path, data, saved=True)

    def maybe_append(self, timestamp: int, relative_offset: int) -> None:
        """Append a new maximum. Does nothing unless both the timestamp and the offset are greater than the last entry's."""
        if timestamp < 0:
            return
        if len(self):
            last_timestamp, last_offset = self.last()
            if timestamp <= last_timestamp or relative_offset <= last_offset:
                return
        self._add(timestamp, relative_offset)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The last entry strictly older than `timestamp`; a record of that time lies after its offset. (-1, 0) if there is
        none."""
        count = self._count_up_to(timestamp - 1, 0)
        return self._entry(count - 1) if count else (-1, 0)

    def last(self) -> tuple[int, int]:
        return self._entry(len(self) - 1) if len(self) else (-1, 0)

    def last_before(self, relative_offset: int) -> tuple[int, int]:
        """The last entry below `relative_offset`; (-1, 0) if there is none."""
        count = self._count_up_to(relative_offset - 1, 1)
        return self._entry(count - 1) if count else (-1, 0)

    def truncate_from(self, relative_offset: int) -> None:
        """Drop the entries at or above `relative_offset`."""
        self._keep(self._count_up_to(relative_offset - 1, 1))


def _read(files: Files, path: str, entry: Struct) -> bytes | None:
    try:
        data = files.read(path)
    except DiskError as e:
        if e.is_missing:
            return None
        raise
    return data if len(data) % entry.size == 0 else None
