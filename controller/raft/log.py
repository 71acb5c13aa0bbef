"""What the Raft core asks of a log. Two implementations: `metadata_log.py` on the disk, and one in memory in the tests.

Offsets are exclusive ends: `end_offset` is the next record's offset. The log knows how much of itself is on the disk
(`flushed_offset`), and where its first record would be (`start_offset`): 0, or the end of a snapshot that it keeps.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from strandline.protocol.frames import Buffer
from strandline.protocol.messages.common import SnapshotId


class EpochEnd(NamedTuple):
    """An epoch of the log and its exclusive end offset."""

    epoch: int
    end_offset: int


class SnapshotSink(Protocol):
    """A snapshot that is being written under a temporary name."""

    size: int

    def append(self, data: Buffer) -> None: ...

    def freeze(self) -> None:
        """Check it from header to footer, flush it and give it its name. Raises BrokerError CORRUPT_MESSAGE and drops it."""

    def discard(self) -> None: ...


class RaftLog(Protocol):
    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or of the snapshot when there is none after it; 0 for nothing at all."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """The largest epoch <= `epoch` that the log (or its snapshot) knows, and its end. Never unknown."""
        ...

    def append_as_leader(self, records: memoryview, epoch: int) -> int:
        """Append whole batches, stamped with offsets and `epoch`; returns the last offset."""
        ...

    def append_as_follower(self, records: memoryview, max_epoch: int) -> int:
        """Append what the leader sent, as it is, exactly at the end; returns the new end offset."""
        ...

    def read(self, offset: int, max_bytes: int) -> tuple[list[Buffer], int]:
        """Whole batches from `offset` to the end, at least one if there is one; and where they end in bytes (their size)."""
        ...

    def truncate_to(self, offset: int) -> None: ...

    def update_high_watermark(self, offset: int) -> None: ...

    @property
    def first_snapshot_id(self) -> SnapshotId | None:
        """The snapshot at `start_offset`, when the log does not begin at 0."""
        ...

    @property
    def latest_snapshot_id(self) -> SnapshotId | None: ...

    def snapshot_size(self, snapshot_id: SnapshotId) -> int | None: ...

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes: ...

    def create_snapshot(self, snapshot_id: SnapshotId) -> SnapshotSink: ...

    def install_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Drop the whole log and start it anew, empty, at the end of this snapshot (which is on the disk)."""
        ...
