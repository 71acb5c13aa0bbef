"""Checks of a log that need more than the headers of its batches: the records of each batch, and the producer snapshots.

    5000.snapshot    the last batches of each producer before offset 5000; each must be in the log, unless retention, a cleaner or
                     damage removed it

The records are decoded as a consumer decodes them. Files are opened for reading only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

from strandline.pipeline.jobs.verify_checks import LogCheck
from strandline.pipeline.jobs.verify_log import Batch, Damage, segment_path
from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import TIMESTAMP_TYPE_MASK, next_sequence, read_header
from strandline.protocol.records.reader import decode_columns
from strandline.storage.log.producer_state import SNAPSHOT_VERSION, ProducerStates

_SNAPSHOT = re.compile(r"(\d{20})\.snapshot\Z", re.ASCII)


def checked(items: Iterable[Batch | Damage], folder: Path, check: LogCheck) -> Iterator[Batch | Damage]:
    """Passes the items on, and adds a finding to `check` for each batch whose records cannot be read, and for each snapshot that
    contradicts the batches."""
    snapshots, segment = _Snapshots(folder, check), _OpenSegment(folder)
    try:
        for item in items:
            if isinstance(item, Batch):
                problem = records_problem(segment.read(item))
                if problem:
                    where = f"{item.segment:020}.log, byte {item.position}: {problem}"
                    check.find("records", item.base_offset, item.next_offset, where, check.facts.path)
                snapshots.take(item)
            yield item
    finally:
        segment.close()


def records_problem(data: bytes) -> str:
    """Returns what is wrong with the records of a batch whose header and checksum are right; empty if nothing is."""
    try:
        header = read_header(data, 0)
        columns = decode_columns(data, 0, header, check_crc=False)
    except BrokerError as e:
        return e.message or str(e)
    offsets = columns.offsets()
    if len(offsets) != header.record_count:
        return f"the header claims {header.record_count} records, but there are {len(offsets)}"
    if offsets and (offsets[-1] > header.last_offset or any(a >= b for a, b in pairwise(offsets))):
        return "the offsets of its records do not ascend within those of the header"
    newest = max(columns.timestamps or [columns.base_timestamp])
    if offsets and newest > header.max_timestamp and not header.attributes & TIMESTAMP_TYPE_MASK:
        return f"a record has timestamp {newest}, but the header's largest is {header.max_timestamp}"
    return ""


class _OpenSegment:
    """Reads batches again, by their positions. Only the file of the last segment stays open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._base = -1
        self._file: BinaryIO | None = None

    def read(self, batch: Batch) -> bytes:
        if self._file is None or self._base != batch.segment:
            self.close()
            self._file, self._base = segment_path(self._folder, batch.segment).open("rb"), batch.segment
        self._file.seek(batch.position)
        return self._file.read(batch.size)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _Claim(NamedTuple):
    """A snapshot's claim: this batch of a producer ended at `last_offset`."""

    last_offset: int
    producer_id: int
    last_sequence: int
    snapshot: str
    at: int
    """The offset in the name of the snapshot."""


class _Snapshots:
    """Compares the snapshots with the batches, which are taken in the order of their offsets."""

    def __init__(self, folder: Path, check: LogCheck) -> None:
        self._check = check
        found = ((_SNAPSHOT.match(path.name), path) for path in sorted(folder.iterdir()))
        self._claims = sorted(claim for match, path in found if match for claim in self._read(path, int(match[1])))
        self._next = 0

    def _read(self, path: Path, at: int) -> Iterator[_Claim]:
        data = path.read_bytes()
        states = ProducerStates.decode(data)
        if states is None:
            version = int.from_bytes(data[:2], "big")
            if len(data) >= 2 and version != SNAPSHOT_VERSION:
                self._check.find("snapshot_version", None, None, f"{path.name} has version {version}", str(path))
            else:
                self._fault(path.name, at, "is cut off, or its checksum is wrong")
            return
        for producer_id, (_, batches) in states.dump().items():
            for batch in batches:
                yield _Claim(batch.last_offset, producer_id, batch.last_sequence, path.name, at)

    def take(self, batch: Batch) -> None:
        while self._next < len(self._claims) and self._claims[self._next].last_offset < batch.next_offset:
            claim = self._claims[self._next]
            self._next += 1
            # If retention, a cleaner or damage has removed the claimed batch, its absence is no fault.
            is_removed = claim.last_offset < batch.base_offset or (batch.record_count == 0 and batch.producer_id < 0)
            if not is_removed and not _is_of(claim, batch):
                text = (
                    f"has a batch of producer {claim.producer_id} that ends at offset {claim.last_offset}, but the log has none"
                )
                self._fault(claim.snapshot, claim.at, text)

    def _fault(self, name: str, at: int, text: str) -> None:
        """Adds a finding about a snapshot. After a kill it is only a note, because a snapshot is written without an fsync."""
        facts = self._check.facts
        kind = "snapshot" if facts.is_clean or at <= (facts.recovery_point or 0) else "snapshot_old"
        self._check.find(kind, None, None, f"{name} {text}", f"{facts.path}/{name}")


def _is_of(claim: _Claim, batch: Batch) -> bool:
    last_sequence = next_sequence(batch.base_sequence, batch.next_offset - 1 - batch.base_offset)
    stored = (batch.next_offset - 1, batch.producer_id, last_sequence)
    return stored == (claim.last_offset, claim.producer_id, claim.last_sequence)
