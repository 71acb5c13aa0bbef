"""Searches among the records of one batch, for lookups by timestamp.

The records of a compressed batch must be decompressed and decoded, which takes a second for a million records. So an event loop
passes a `BatchSearches`: the lookup then raises `SlowSearch` at such a batch instead of searching it. The caller runs the search
on a thread and repeats the lookup, which finds the result in the `BatchSearches`.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.protocol.errors import StrandlineError
from strandline.protocol.records.batch import BatchHeader
from strandline.protocol.records.reader import iter_records
from strandline.storage.disk import Buffer

Found = tuple[int, int] | None
"""Timestamp and offset of a record."""
Search = Callable[[Buffer, int, int], Found]
"""Searches a batch; gets its bytes, a timestamp and the log start."""
Key = tuple[Search, int, int, str, int, int]
"""The search, its timestamp, the log start, and what identifies the batch: log directory, base offset, checksum."""


class SlowSearch(StrandlineError):
    """A compressed batch has to be searched, which may take long.

    `run()` searches it. It touches no state of the log and may run on a thread. Then the caller repeats the lookup."""

    def __init__(self, searches: BatchSearches, key: Key, data: Buffer) -> None:
        self._searches, self._key, self._data = searches, key, data
        super().__init__(f"the batch at offset {key[4]} of {key[3]} is compressed")

    @property
    def size(self) -> int:
        """Number of bytes of the batch."""
        return len(self._data)

    def run(self) -> None:
        search, timestamp, log_start, *_ = self._key
        found: Found | Exception
        try:
            found = search(self._data, timestamp, log_start)
        except Exception as e:
            found = e
        self._searches.found[self._key] = found


class BatchSearches:
    """The results of the searches that one request needs."""

    def __init__(self) -> None:
        self.found: dict[Key, Found | Exception] = {}
        """The result of each search. The lookup raises a result that is an exception."""


def search_batch(
    searches: BatchSearches | None, search: Search, data: Buffer, header: BatchHeader, timestamp: int, log_start: int, place: str
) -> Found:
    """Search a batch whose checksum is right. Raises SlowSearch if it is compressed and `searches` does not have the result
    yet."""
    if searches is None or not header.compression:
        return search(data, timestamp, log_start)
    key = (search, timestamp, log_start, place, header.base_offset, header.crc)
    if key not in searches.found:
        raise SlowSearch(searches, key, data)
    found = searches.found[key]
    if isinstance(found, Exception):
        raise found
    return found


def first_not_older(data: Buffer, timestamp: int, log_start: int) -> Found:
    """The first record at or after the timestamp."""
    for record in iter_records(data):
        if record.timestamp_ms >= timestamp and record.offset >= log_start:
            return record.timestamp_ms, record.offset
    return None


def newest_record(data: Buffer, timestamp: int, log_start: int) -> Found:
    """The first record with the newest timestamp, if that is newer than `timestamp`."""
    found = None
    for record in iter_records(data):
        if record.timestamp_ms > timestamp and record.offset >= log_start:
            timestamp, found = record.timestamp_ms, (record.timestamp_ms, record.offset)
    return found
