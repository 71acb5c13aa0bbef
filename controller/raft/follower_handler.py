"""The follower's side of replication: it fetches, appends, truncates what diverges from the leader's log, and installs snapshots.

One fetch is in flight at a time. It names the end of the follower's log and the epoch of its last record. The leader answers
with the next records; or with the epoch after which the follower's log diverges; or with a snapshot, if the leader's log no
longer reaches back that far. A fetch is sent only after the log is flushed, because the leader counts every record below the log
end that the fetch names as flushed.
"""

from __future__ import annotations

from strandline.controller.metadata.log_fetch import (
    SNAPSHOT_GONE,
    Records,
    is_next_chunk,
    metadata_answer,
    metadata_fetch_request,
    snapshot_fetch_request,
    truncation_offset,
)
from strandline.controller.raft.election_handler import ElectionHandler
from strandline.controller.raft.raft_state import CommittedTruncation, RaftState
from strandline.controller.raft.roles import NO_DEADLINE, Download, Follower
from strandline.controller.raft.transitions import RoleTransitions
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.cluster import FetchSnapshotResponse
from strandline.protocol.messages.common import EpochEndOffset, SnapshotId
from strandline.protocol.messages.data import FetchResponse

logger = get_logger(__name__)


class FollowerHandler:
    """Fetches from the leader, and applies its answers to the log."""

    def __init__(self, state: RaftState, transitions: RoleTransitions, elections: ElectionHandler) -> None:
        self.state = state
        self._transitions = transitions
        self._elections = elections

    def tick(self, now: float) -> None:
        """Send the next fetch when it is due; look for another leader when the fetch deadline has passed."""
        role = self.state.role
        assert isinstance(role, Follower)
        if now >= role.fetch_deadline:
            self._elections.look_for_leader(now)
        elif now >= role.fetch_at:
            role.fetch_at = NO_DEADLINE
            if not self.state.may_fetch:
                return
            if role.download is None:
                self._send_fetch(role)
            else:
                self._send_fetch_snapshot(role, role.download)

    def _send_fetch(self, role: Follower) -> None:
        state = self.state
        body = metadata_fetch_request(
            replica_id=state.node_id,
            cluster_id=state.cluster_id,
            leader_epoch=state.epoch,
            fetch_offset=state.log.end_offset,
            last_fetched_epoch=state.log.last_epoch,
            log_start_offset=state.log.start_offset,
            wait_ms_max=state.config.fetch_wait_ms_max,
            bytes_max=state.config.fetch_bytes_max,
        )
        state.send(role.leader_id, apis.FETCH, body, after_sync=True)

    def _on_leader_answered(self, role: Follower, now: float) -> None:
        """The leader answered as leader: postpone the fetch deadline and fetch again."""
        role.has_fetched, role.leader_lost = True, False
        role.fetch_deadline = now + self.state.config.fetch_timeout_ms / 1000
        role.fetch_at = now

    def on_fetch_failed(self, role: object, error: int, now: float) -> None:
        """The leader is unreachable, or answers that it is not the leader: ask for pre-votes soon, and retry it meanwhile."""
        state = self.state
        if role is not state.role or not isinstance(role, Follower):
            return
        if not role.leader_lost:
            logger.info(
                "quorum.leader_lost",
                node_id=state.node_id,
                leader_id=role.leader_id,
                controller_epoch=state.epoch,
                error=to_code(error).name,
            )
        role.leader_lost = True
        role.fetch_deadline = min(role.fetch_deadline, now + state.election_backoff())
        role.fetch_at = now + state.retry_backoff()

    def _retry_later(self, role: Follower, reason: str, now: float, detail: str = "") -> None:
        """Log that this node cannot use the leader's answer, and fetch again after a pause."""
        state = self.state
        suppressed = state.limits.admit(reason, now)
        if suppressed is not None:
            logger.warning(
                "quorum.fetch_rejected",
                node_id=state.node_id,
                leader_id=role.leader_id,
                controller_epoch=state.epoch,
                metadata_offset=state.log.end_offset,
                reason=f"{reason}: {detail}" if detail else reason,
                **suppressed.fields,
            )
        role.fetch_at = now + state.config.election_backoff_ms_max / 1000

    # -- Fetch ---------------------------------------------------------------------------------------------------------

    def on_fetch_response(self, response: FetchResponse, role: object, now: float) -> None:
        """Append the leader's records, truncate where the logs diverge, or begin to fetch a snapshot (KIP-595, KIP-630). A newer
        leader in the response is followed instead. A response to a fetch of an earlier role is dropped.

        Raises CommittedTruncation if the truncation would remove committed records."""
        answer = metadata_answer(response)
        if answer is None:
            self.on_fetch_failed(role, ErrorCode.INVALID_REQUEST, now)
            return
        error, leader = answer.error, answer.leader
        followed = self._transitions.maybe_follow_response(error, leader.leader_id, leader.leader_epoch, now)
        if followed or role is not self.state.role:
            return
        assert isinstance(role, Follower)
        if error != ErrorCode.NONE:
            self.on_fetch_failed(role, error, now)
            return
        self._on_leader_answered(role, now)
        match answer.content:
            case EpochEndOffset() as diverging:
                self._truncate(diverging)
            case SnapshotId() as snapshot_id:
                self._start_download(role, snapshot_id, now)
            case Records() as records:
                self._append(role, records, now)
                role.leader_high_watermark = records.high_watermark
        self.tick(now)

    def _append(self, role: Follower, records: Records, now: float) -> None:
        state = self.state
        if len(records.data):
            before = state.log.end_offset
            try:
                after = state.log.append_as_follower(records.data, state.epoch)
            except BrokerError as e:
                self._retry_later(role, "the log rejected the leader's records", now, str(e))
                return
            if after == before:
                self._retry_later(role, "the leader sent records of a newer epoch than its own", now)
                return
        state.advance_high_watermark(min(records.high_watermark, state.log.end_offset))

    def _truncate(self, diverging: EpochEndOffset) -> None:
        """Cut the log where it diverges from the leader's (KIP-595); the next fetch may cut further back."""
        state = self.state
        offset = truncation_offset(state.log, diverging)
        if offset < state.high_watermark:
            raise CommittedTruncation(
                f"node {state.node_id} was asked to truncate the metadata log to {offset} (epoch {diverging.epoch} ends at "
                f"{diverging.end_offset}), below its high watermark {state.high_watermark}: committed records would be lost"
            )
        logger.info(
            "quorum.log_truncated",
            node_id=state.node_id,
            controller_epoch=state.epoch,
            high_watermark=state.high_watermark,
            log_end_offset=state.log.end_offset,
            offset=offset,
        )
        state.log.truncate_to(offset)
        self._check_truncated(offset)

    def _check_truncated(self, offset: int) -> None:
        """Raise CommittedTruncation if a committed record is gone, or a record after the log's new end counts as flushed."""
        state, log = self.state, self.state.log
        if log.end_offset < state.high_watermark or log.flushed_offset > log.end_offset:
            raise CommittedTruncation(
                f"node {state.node_id} truncated the metadata log to {offset}; it ends at {log.end_offset} with "
                f"{log.flushed_offset} counted as flushed, and its high watermark is {state.high_watermark}"
            )

    # -- FetchSnapshot -------------------------------------------------------------------------------------------------

    def _start_download(self, role: Follower, snapshot_id: SnapshotId, now: float) -> None:
        state = self.state
        if snapshot_id.end_offset <= state.high_watermark:
            reason = "the leader offers a snapshot older than what is committed here"
            self._retry_later(role, reason, now, str(snapshot_id))
            return
        end, epoch = snapshot_id.end_offset, snapshot_id.epoch
        logger.info("quorum.snapshot_requested", node_id=state.node_id, controller_epoch=epoch, metadata_offset=end)
        role.download = Download(snapshot_id, state.log.create_snapshot(snapshot_id))

    def _send_fetch_snapshot(self, role: Follower, download: Download) -> None:
        state = self.state
        body = snapshot_fetch_request(
            replica_id=state.node_id,
            cluster_id=state.cluster_id,
            leader_epoch=state.epoch,
            snapshot_id=download.snapshot_id,
            position=download.sink.size,
            bytes_max=state.config.snapshot_chunk_bytes_max,
        )
        state.send(role.leader_id, apis.FETCH_SNAPSHOT, body, after_sync=False)

    def on_fetch_snapshot_response(self, response: FetchSnapshotResponse, role: object, now: float) -> None:
        """Append a chunk of the snapshot (FetchSnapshot, KIP-630). After the last one the snapshot is checked, and the log
        restarts at its end. A damaged snapshot, or one that the leader no longer has, is dropped, and the follower fetches
        again."""
        error, epoch = response.error_code, response.leader_epoch
        followed = self._transitions.maybe_follow_response(error, response.leader_id, epoch, now)
        if followed or role is not self.state.role:
            return
        assert isinstance(role, Follower)
        download = role.download
        if download is None or (error != ErrorCode.NONE and error not in SNAPSHOT_GONE):
            self.on_fetch_failed(role, error, now)
            return
        self._on_leader_answered(role, now)
        if error != ErrorCode.NONE or not is_next_chunk(response, download.snapshot_id, download.sink.size):
            self._drop_download(role, download, "the snapshot can no longer be fetched", now, to_code(error).name)
        else:
            self._append_chunk(role, download, response, now)
        self.tick(now)

    def _append_chunk(self, role: Follower, download: Download, response: FetchSnapshotResponse, now: float) -> None:
        state = self.state
        download.sink.append(response.records[0])
        if download.sink.size < response.size:
            return
        role.download = None
        try:
            download.sink.freeze()
        except BrokerError as e:
            self._retry_later(role, "a fetched snapshot is damaged", now, str(e))
            return
        end, epoch = download.snapshot_id.end_offset, download.snapshot_id.epoch
        state.log.install_snapshot(download.snapshot_id)
        state.advance_high_watermark(end)
        logger.info("quorum.snapshot_installed", node_id=state.node_id, controller_epoch=epoch, metadata_offset=end)

    def _drop_download(self, role: Follower, download: Download, reason: str, now: float, detail: str) -> None:
        download.sink.discard()
        role.download = None
        self._retry_later(role, reason, now, detail)
