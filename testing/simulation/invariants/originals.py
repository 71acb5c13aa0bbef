"""The records of a compacted partition as their leaders wrote them. The cleaned logs are compared with them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator
from typing import NamedTuple

from strandline.protocol.records.batch import BatchHeader, read_header
from strandline.protocol.records.reader import decode_batch
from strandline.storage.disk import Buffer
from strandline.testing.simulation.invariants.paths import Path


class Original(NamedTuple):
    """A record as its leader wrote it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int

    @property
    def is_tombstone(self) -> bool:
        return self.value is None and self.key is not None


class Originals:
    """Every record of one partition, in every epoch."""

    __slots__ = ("by_epoch", "offsets", "unseen")

    def __init__(self, unseen: Container[int] = ()) -> None:
        self.unseen = unseen
        """The offsets of records in the committed log whose transaction is open or aborted: they supersede nothing."""
        self.by_epoch: dict[int, dict[int, Original]] = {}
        """Leader epoch -> offset -> record."""
        self.offsets: dict[bytes, list[int]] = {}
        """Key -> the offsets of its records in any epoch, ascending."""

    def learn(self, header: BatchHeader, data: Buffer, position: int = 0) -> None:
        """Remember the records of a batch that a leader wrote."""
        if header.is_control:
            return
        header = read_header(data, position)  # the broker may have written its own time since `header` was read
        records = self.by_epoch.setdefault(header.leader_epoch, {})
        if header.base_offset in records:
            return
        for offset, record in read_batch(header, data, position).items():
            records[offset] = record
            known = self.offsets.setdefault(record.key, []) if record.key is not None else [offset]
            index = bisect_left(known, offset)
            if known[index : index + 1] != [offset]:  # else another epoch has a record of this key at this offset
                known.insert(index, offset)

    def newest(self, key: bytes, path: Path) -> int:
        """The offset of the newest record of the key in this path that readers of committed records see; -1: there is none."""
        known = self.offsets[key]
        for index in range(bisect_left(known, path.end) - 1, -1, -1):
            if known[index] in self.unseen:
                continue
            if known[index] in self.by_epoch.get(path.epoch_at(known[index]), ()) and self._is_of(key, known[index], path):
                return known[index]
        return -1

    def before(self, key: bytes, offset: int, path: Path) -> Iterator[int]:
        """The offsets of the older records of the key in this path, from its log start on, that readers of committed records
        see."""
        known = self.offsets[key]
        for index in range(bisect_left(known, path.start), bisect_left(known, offset)):
            if known[index] not in self.unseen and self._is_of(key, known[index], path):
                yield known[index]

    def _is_of(self, key: bytes, offset: int, path: Path) -> bool:
        record = self.by_epoch.get(path.epoch_at(offset), {}).get(offset)
        return record is not None and record.key == key


def read_batch(header: BatchHeader, data: Buffer, position: int = 0) -> dict[int, Original]:
    """Offset -> record of each record in this batch."""
    records = decode_batch(data, position, header, check_crc=False) if header.record_count else []
    return {r.offset: Original(r.key, r.value, tuple(r.headers), r.timestamp_ms) for r in records}
