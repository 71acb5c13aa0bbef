"""The leader's epoch: how it begins, how the high watermark advances, and when the leader resigns.

The high watermark is the offset up to which a majority has flushed its log, the leader's own flushed end included. It advances
only past the LeaderChange record that opens the leader's own epoch: if copies of records of older epochs counted alone, the
leader would commit records that a later leader may still replace (Raft, figure 8).
"""

from __future__ import annotations

from strandline.controller.raft.raft_state import RaftState
from strandline.controller.raft.resigned_handler import ResignedHandler
from strandline.controller.raft.roles import Candidate, Leader
from strandline.controller.raft.transitions import RoleTransitions
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.cluster import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from strandline.protocol.records.control import LeaderChange, encode_control_batch

OBSERVER_FORGOTTEN_AFTER_S = 300.0
"""DescribeQuorum no longer lists an observer that has not fetched for this long."""


class LeaderHandler:
    """Begins the leader's epoch, advances the high watermark, and ends the epoch."""

    def __init__(self, state: RaftState, transitions: RoleTransitions, resigned: ResignedHandler) -> None:
        self.state = state
        self._transitions = transitions
        self._resigned = resigned

    # -- the epoch -----------------------------------------------------------------------------------------------------

    def start_epoch(self, candidate: Candidate, now: float) -> None:
        """The candidate has won: become the leader, and append the record that opens its epoch."""
        state = self.state
        granted = sorted(candidate.poll.granted)
        self._transitions.become_leader(now)
        record = LeaderChange(state.node_id, state.voter_ids, tuple(granted))
        batch = encode_control_batch(record, state.wall_clock_ms, leader_epoch=state.epoch)
        state.log.append_as_leader(memoryview(bytearray(batch)), state.epoch)
        self.tick(now)

    def append(self, batch: bytearray, epoch: int) -> int:
        """Append one batch as leader of `epoch`, and return its last offset. The batch is committed when the high watermark
        passes that offset. Raises BrokerError NOT_CONTROLLER if this node does not lead `epoch`."""
        state = self.state
        if not state.is_leader or epoch != state.epoch:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, f"node {state.node_id} does not lead the quorum in epoch {epoch}")
        return state.log.append_as_leader(memoryview(batch), epoch)

    # -- timers --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Resign if no majority has fetched within the check-quorum timeout; otherwise announce the epoch to the voters that do
        not fetch."""
        role = self.state.role
        assert isinstance(role, Leader)
        if now >= role.check_quorum_at and not self.hears_majority(role, now):
            self._transitions.become_resigned(now)
            self._resigned.tick(now)
        else:
            self._announce_epoch(role, now)

    def hears_majority(self, role: Leader, now: float) -> bool:
        """Whether a majority, this node included, has fetched within the check-quorum timeout. Schedules the next check, and
        removes the observers that no longer fetch."""
        state = self.state
        timeout = state.config.check_quorum_timeout_ms / 1000
        heard_at = sorted((max(progress.fetched_at, role.began_at) for progress in role.voters.values()), reverse=True)
        needed = len(state.voter_ids) // 2  # of the others; none if this node is the only voter
        role.check_quorum_at = timeout + (heard_at[needed - 1] if needed else now)
        for replica_id in [i for i, p in role.observers.items() if now - p.fetched_at > OBSERVER_FORGOTTEN_AFTER_S]:
            del role.observers[replica_id]
        return now < role.check_quorum_at

    # -- BeginQuorumEpoch ----------------------------------------------------------------------------------------------

    def _announce_epoch(self, role: Leader, now: float) -> None:
        """Send BeginQuorumEpoch to the voters that have not fetched within the fetch timeout."""
        state = self.state
        fetch_timeout = state.config.fetch_timeout_ms / 1000
        for voter_id in [voter_id for voter_id, at in role.begin_epoch_at.items() if at <= now]:
            again_at = role.voters[voter_id].fetched_at + fetch_timeout
            if role.voters[voter_id].fetched_at >= 0 and now < again_at:
                role.begin_epoch_at[voter_id] = again_at
                continue
            del role.begin_epoch_at[voter_id]
            body = BeginQuorumEpochRequest(state.cluster_id, voter_id, state.node_id, state.epoch)
            state.send(voter_id, apis.BEGIN_QUORUM_EPOCH, body, after_sync=True)

    def on_begin_epoch_response(self, from_id: int, response: BeginQuorumEpochResponse, role: object, now: float) -> None:
        """A voter has answered BeginQuorumEpoch: announce the epoch to it again only if it does not fetch. A higher epoch in the
        answer ends this leadership."""
        error, leader_id = response.error_code, response.leader_id
        followed = self._transitions.maybe_follow_response(error, leader_id, response.leader_epoch, now)
        if followed or role is not self.state.role:
            return
        if error != ErrorCode.NONE:
            self.on_begin_epoch_failed(from_id, role, now)
        elif isinstance(role, Leader):
            role.begin_epoch_at[from_id] = now + self.state.config.fetch_timeout_ms / 1000

    def on_begin_epoch_failed(self, voter_id: int, role: object, now: float) -> None:
        """A voter has not answered BeginQuorumEpoch: send it again after the backoff."""
        if role is self.state.role and isinstance(role, Leader):
            role.begin_epoch_at[voter_id] = now + self.state.config.election_backoff_ms_max / 1000

    # -- the high watermark --------------------------------------------------------------------------------------------

    def on_log_synced(self, now: float) -> None:
        """The leader's log is on its disk up to `flushed_offset`, so the leader counts for the majority up to there."""
        role = self.state.role
        if isinstance(role, Leader):
            role.flushed_offset = self.state.log.flushed_offset
            self.maybe_advance_high_watermark(now)

    def maybe_advance_high_watermark(self, now: float) -> None:
        """Raise the high watermark to the offset that a majority has flushed, if that is past the start of the leader's own
        epoch."""
        state, role = self.state, self.state.role
        assert isinstance(role, Leader)
        ends = sorted([role.flushed_offset, *[progress.end_offset for progress in role.voters.values()]], reverse=True)
        majority_end = min(ends[len(ends) // 2], state.log.end_offset)
        if majority_end > role.epoch_start_offset:
            state.advance_high_watermark(majority_end)
