"""Notifies the listener of committed records (in order and once, on the leader and on followers alike) and of leaders.

The feed compares the node's state with what the listener knows already. So it may run as often as the shell likes, and
several events of the node become one notification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.controller.metrics import QuorumMetrics
from strandline.controller.raft.election import NO_NODE
from strandline.controller.raft.listener import QuorumListener, QuorumWriter
from strandline.controller.raft.metadata_log import MetadataLog
from strandline.controller.raft.raft_state import RaftState
from strandline.controller.raft.roles import Leader
from strandline.controller.raft.snapshots import snapshot_values
from strandline.protocol.frames import Buffer
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import SnapshotId
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.reader import decode_values

logger = get_logger(__name__)


@dataclass(slots=True, eq=False)
class Applied:
    """The listener's position in the log, and how much it has received since the last snapshot."""

    end_offset: int = 0
    """The listener has every record below."""
    epoch: int = 0
    timestamp_ms: int = 0
    """Timestamp of the last batch that the listener received from the log."""
    bytes_since_snapshot: int = 0
    records_since_snapshot: int = 0

    def restart_at(self, snapshot_id: SnapshotId) -> None:
        self.end_offset, self.epoch = snapshot_id.end_offset, snapshot_id.epoch
        self.bytes_since_snapshot = self.records_since_snapshot = 0


class ListenerFeed:
    def __init__(
        self,
        state: RaftState,
        log: MetadataLog,
        listener: QuorumListener,
        writer: QuorumWriter,
        *,
        metrics: QuorumMetrics,
        stopwatch: Callable[[], float],
        schedule: Callable[[], None],
    ) -> None:
        """`schedule` makes the shell call `notify` again soon."""
        self.applied = Applied()
        self._state = state
        self._log = log
        self._listener = listener
        self._writer = writer
        self._metrics = metrics
        self._stopwatch = stopwatch
        self._schedule = schedule
        self._notified_leader = (NO_NODE, -1)
        self._led_epoch: int | None = None
        """The epoch of the last `on_leader` without an `on_resign` after it."""

    def notify(self) -> None:
        """Notify the listener of all that changed since the last call."""
        self._notify_resigned()
        self._metrics.on_high_watermark(self._state.high_watermark, self._stopwatch())
        self._apply()
        self._notify_leader_changed()
        self._notify_leading()

    def resign(self) -> None:
        """Call `on_resign` if the listener was notified with `on_leader` and not with `on_resign` since."""
        if self._led_epoch is not None:
            epoch, self._led_epoch = self._led_epoch, None
            self._listener.on_resign(epoch)

    # -- leaders -------------------------------------------------------------------------------------------------------

    def _notify_resigned(self) -> None:
        state = self._state
        if self._led_epoch is not None and not (state.is_leader and state.epoch == self._led_epoch):
            logger.info("quorum.leader_resigned", node_id=state.node_id, controller_epoch=self._led_epoch)
            self._metrics.on_resign()
            self.resign()

    def _notify_leader_changed(self) -> None:
        state = self._state
        leader_id, epoch = leader = (state.leader_id, state.epoch)
        if leader == self._notified_leader:
            return
        self._notified_leader = leader
        self._metrics.on_leader_known(leader_id != NO_NODE, self._stopwatch())
        if leader_id not in (NO_NODE, state.node_id):
            logger.info("quorum.leader_discovered", node_id=state.node_id, leader_id=leader_id, controller_epoch=epoch)
        self._listener.on_leader_changed(leader_id, epoch)

    def _notify_leading(self) -> None:
        state, role = self._state, self._state.role
        if isinstance(role, Leader) and self._led_epoch is None and self.applied.end_offset > role.epoch_start_offset:
            self._led_epoch = state.epoch
            hw = state.high_watermark
            logger.info("quorum.became_leader", node_id=state.node_id, controller_epoch=state.epoch, high_watermark=hw)
            self._listener.on_leader(state.epoch, self._writer)

    # -- records -------------------------------------------------------------------------------------------------------

    def _apply(self) -> None:
        """Hand committed records to the listener, up to `apply_bytes_max` per event-loop iteration."""
        self._maybe_load_snapshot()
        applied, high_watermark = self.applied, self._state.high_watermark
        if applied.end_offset >= high_watermark:
            return
        buffers, size = self._log.read_below(applied.end_offset, self._state.config.apply_bytes_max, high_watermark)
        applied.bytes_since_snapshot += size
        for buffer in buffers:
            self._apply_buffer(buffer)
        if applied.end_offset < self._state.high_watermark:
            self._schedule()

    def _apply_buffer(self, buffer: Buffer) -> None:
        applied = self.applied
        for pos, header in iter_headers(buffer):
            values = () if header.is_control else decode_values(buffer, pos, header)
            applied.end_offset = header.last_offset + 1
            applied.epoch = header.leader_epoch
            applied.timestamp_ms = header.max_timestamp
            applied.records_since_snapshot += len(values)
            records = [value or b"" for value in values]
            self._listener.on_committed(header.base_offset, header.last_offset, header.leader_epoch, records)

    def _maybe_load_snapshot(self) -> None:
        """Hand over the newest snapshot at the start, and when the log no longer has the listener's next record, because a
        snapshot was installed."""
        applied, latest = self.applied, self._log.latest_snapshot_id
        if latest is None or (applied.end_offset >= self._log.start_offset and applied.end_offset > 0):
            return
        if latest.end_offset > applied.end_offset:
            self._listener.on_snapshot(latest, snapshot_values(self._log.load_snapshot(latest)))
            applied.restart_at(latest)
