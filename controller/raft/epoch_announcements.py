"""BeginQuorumEpoch and EndQuorumEpoch, as the other voters receive them: the leader has started its epoch, or resigned."""

from __future__ import annotations

from strandline.controller.raft.election import NO_NODE
from strandline.controller.raft.election_handler import ElectionHandler
from strandline.controller.raft.follower_handler import FollowerHandler
from strandline.controller.raft.raft_state import RaftState
from strandline.controller.raft.roles import NO_DEADLINE, Follower, Unattached, Voted
from strandline.controller.raft.transitions import RoleTransitions
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.cluster import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
)


class EpochAnnouncements:
    """Answers the leader's announcements that its epoch begins or ends."""

    def __init__(
        self, state: RaftState, transitions: RoleTransitions, elections: ElectionHandler, follower: FollowerHandler
    ) -> None:
        self.state = state
        self._transitions = transitions
        self._elections = elections
        self._follower = follower

    def on_begin_epoch_request(self, request: BeginQuorumEpochRequest, ticket: object, now: float) -> None:
        """Follow the leader that announces its epoch (BeginQuorumEpoch, KIP-595), and answer when the epoch is on the disk.

        Errors: INCONSISTENT_CLUSTER_ID, INCONSISTENT_VOTER_SET, FENCED_LEADER_EPOCH for an older epoch, INVALID_REQUEST for a
        second leader of this epoch."""
        state = self.state
        error = self._request_error(request.cluster_id, request.leader_id, request.leader_epoch)
        if error == ErrorCode.NONE and request.voter_id != state.node_id:
            error = ErrorCode.INCONSISTENT_VOTER_SET
        if error == ErrorCode.NONE:
            self._transitions.maybe_follow(request.leader_id, request.leader_epoch, now)
        state.reply_after_sync(ticket, BeginQuorumEpochResponse(error, state.leader_id, state.epoch))

    def on_end_epoch_request(self, request: EndQuorumEpochRequest, ticket: object, now: float) -> None:
        """The leader has resigned (EndQuorumEpoch, KIP-595): no longer follow it in this epoch, and ask for votes in the order
        that it proposes. The errors are those of `on_begin_epoch_request`."""
        state = self.state
        error = self._request_error(request.cluster_id, request.leader_id, request.leader_epoch)
        if error == ErrorCode.NONE:
            if request.leader_epoch > state.epoch:
                self._transitions.become_unattached(request.leader_epoch, now + state.election_backoff())
            self.on_leader_resigned(request.preferred_candidates, now)
        state.reply_after_sync(ticket, EndQuorumEpochResponse(error, state.leader_id, state.epoch))

    def _request_error(self, cluster_id: str | None, leader_id: int, leader_epoch: int) -> ErrorCode:
        state = self.state
        if state.is_other_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if leader_id not in state.voter_ids or leader_id == state.node_id:
            return ErrorCode.INCONSISTENT_VOTER_SET
        if leader_epoch < state.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_epoch == state.epoch and state.election.leader_id not in (NO_NODE, leader_id):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def on_leader_resigned(self, successors: list[int], now: float) -> None:
        """The first of `successors` asks for votes at once; each voter after it gives those before it a head start."""
        state = self.state
        state.leader_has_resigned = True
        role = state.role
        position = successors.index(state.node_id) if state.node_id in successors else len(successors)
        delay = position * state.config.election_backoff_ms_max / 1000 + (state.election_backoff() if position else 0.0)
        if isinstance(role, Follower):
            role.leader_lost = True
            role.fetch_deadline, role.fetch_at = now + delay, NO_DEADLINE
            self._follower.tick(now)
        elif isinstance(role, (Unattached, Voted)):
            role.deadline = min(role.deadline, now + delay)
            self._elections.tick_unattached(now)
