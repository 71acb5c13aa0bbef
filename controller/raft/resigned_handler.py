"""A leader that has resigned: it sends EndQuorumEpoch to the other voters, and waits for its successor."""

from __future__ import annotations

from strandline.controller.raft.raft_state import RaftState
from strandline.controller.raft.roles import Resigned
from strandline.controller.raft.transitions import RoleTransitions
from strandline.protocol import apis
from strandline.protocol.messages.cluster import EndQuorumEpochRequest, EndQuorumEpochResponse


class ResignedHandler:
    """Announces the end of the epoch until a successor is known."""

    def __init__(self, state: RaftState, transitions: RoleTransitions) -> None:
        self.state = state
        self._transitions = transitions

    def tick(self, now: float) -> None:
        """Send the EndQuorumEpoch requests (KIP-595) that are due. When the deadline has passed without a successor, become
        Unattached and take part in the next election."""
        state, role = self.state, self.state.role
        assert isinstance(role, Resigned)
        if now >= role.deadline:
            self._transitions.become_unattached(state.epoch, now + state.first_backoff())
            return
        for voter_id in [voter_id for voter_id, at in role.end_epoch_at.items() if at <= now]:
            del role.end_epoch_at[voter_id]
            body = EndQuorumEpochRequest(state.cluster_id, state.node_id, state.epoch, role.successors)
            state.send(voter_id, apis.END_QUORUM_EPOCH, body, after_sync=False)

    def on_end_epoch_response(self, response: EndQuorumEpochResponse, now: float) -> None:
        """Follow the successor if the response names one."""
        self._transitions.maybe_follow_response(response.error_code, response.leader_id, response.leader_epoch, now)

    def on_end_epoch_failed(self, voter_id: int, role: object, now: float) -> None:
        """Send EndQuorumEpoch to this voter again after the retry backoff."""
        if role is self.state.role and isinstance(role, Resigned):
            role.end_epoch_at[voter_id] = now + self.state.retry_backoff()
