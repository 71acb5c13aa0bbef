"""The two interfaces between the quorum and the controller: `QuorumListener`, which the quorum notifies, and `QuorumWriter`,
with which the active controller appends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from strandline.protocol.messages.common import SnapshotId


class QuorumWriter(Protocol):
    """The part of the quorum that an active controller needs. It gets the writer when it becomes active."""

    @property
    def log_end_offset(self) -> int: ...

    def append(self, records: Sequence[bytes], epoch: int) -> int:
        """Append one atomic batch and return its last offset. Raises BrokerError NOT_CONTROLLER if this node does not lead
        `epoch`."""
        ...


class QuorumListener(Protocol):
    """The notifications of the quorum to the controller. They are called from the event loop, never re-entrantly, and never after
    `Quorum.stop()` has returned."""

    def on_committed(self, base_offset: int, last_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        """One committed batch, in order and once. A control batch is handed over without records, for its offsets."""

    def on_snapshot(self, snapshot_id: SnapshotId, records: Iterable[bytes]) -> None:
        """Replace the whole state by these records. The next committed batch starts at `snapshot_id.end_offset`."""

    def on_leader(self, epoch: int, writer: QuorumWriter) -> None:
        """This node leads, and the listener has every record that earlier leaders committed. Until `on_resign`, it may append
        with `writer`."""

    def on_resign(self, epoch: int) -> None:
        """This node no longer leads. Records that it appended may still become committed later, or may be lost."""

    def on_leader_changed(self, leader_id: int, epoch: int) -> None:
        """`leader_id` leads `epoch`; -1 if no leader is known."""

    def snapshot_records(self) -> Iterable[bytes]:
        """The whole state at the last committed offset, from an immutable image: it is consumed over several event-loop
        iterations."""
