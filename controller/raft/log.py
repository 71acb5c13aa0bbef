"""The log that the Raft core needs. It has two implementations: `metadata_log.py` on the disk, and one in memory in the tests.

End offsets are exclusive: `end_offset` is the offset of the next record. The log knows how much of it is on the disk
(`flushed_offset`), and the offset of its first record (`start_offset`): 0, or the end of a snapshot that it keeps.
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
    """A snapshot that is being written, under a temporary name."""

    size: int

    def append(self, data: Buffer) -> None:
        """Append the next bytes."""

    def freeze(self) -> None:
        """Check the snapshot from header to footer, flush it, and give it its name. If it is damaged, remove it and raise
        BrokerError CORRUPT_MESSAGE."""

    def discard(self) -> None:
        """Remove the unfinished snapshot."""


class RaftLog(Protocol):
    """The metadata log and its snapshots, as the core uses them."""

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    @property
    def last_epoch(self) -> int:
        """The epoch of the last record; without records that of the snapshot, and 0 if there is no snapshot either."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """The largest epoch <= `epoch` of the log, and its end. If the log has none, the epoch of its first snapshot (0 without a
        snapshot) and `start_offset`, even if that epoch is above `epoch`."""
        ...

    def append_as_leader(self, records: memoryview, epoch: int) -> int:
        """Stamp whole batches with offsets and `epoch`, append them, and return the last offset."""
        ...

    def append_as_follower(self, records: memoryview, max_epoch: int) -> int:
        """Append the leader's batches unchanged, up to `max_epoch`, exactly at the log's end; return the new end offset."""
        ...

    def read(self, offset: int, max_bytes: int) -> tuple[list[Buffer], int]:
        """Whole batches from `offset` on, at least one if there is one, and their size in bytes."""
        ...

    def truncate_to(self, offset: int) -> None:
        """Remove all records from `offset` on, and lower `flushed_offset` if need be. The caller checks that none is
        committed."""

    def update_high_watermark(self, offset: int) -> None:
        """Take the node's new high watermark."""

    @property
    def first_snapshot_id(self) -> SnapshotId | None:
        """The snapshot that ends at `start_offset`; None if the log starts at 0."""
        ...

    @property
    def latest_snapshot_id(self) -> SnapshotId | None:
        """The snapshot with the highest end offset; None if there is none."""
        ...

    def snapshot_size(self, snapshot_id: SnapshotId) -> int | None:
        """The size of a snapshot in bytes; None if there is no such snapshot."""
        ...

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        """At most `max_bytes` of a snapshot that exists, from `position` on."""
        ...

    def create_snapshot(self, snapshot_id: SnapshotId) -> SnapshotSink:
        """Begin to write a snapshot. It does not exist before `freeze`."""
        ...

    def install_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Remove all records, and restart the log at the end of this snapshot (which is on the disk)."""
        ...
