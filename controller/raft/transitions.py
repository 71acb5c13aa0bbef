"""Every change of a node's role and election: the table of allowed transitions, and the one class that makes them.

`RoleTransitions` is the only code that assigns `RaftState.role` and `RaftState.election`. Each of its methods goes through
`become`, which checks the table. That includes `start`, which takes up the first role from the durable state.
"""

from __future__ import annotations

from strandline.controller.raft.election import NO_NODE, ElectionState
from strandline.controller.raft.fetch_replies import refuse_parked_fetches
from strandline.controller.raft.raft_state import RaftState
from strandline.controller.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Poll,
    Prospective,
    ReplicaProgress,
    Resigned,
    Role,
    Unattached,
    Uninitialized,
    Voted,
)
from strandline.protocol.errors import ErrorCode, InternalError
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

TRANSITIONS: dict[tuple[type[Role], type[Role]], str] = {
    (Uninitialized, Unattached): "started, and knows no leader and no vote of its epoch",
    (Uninitialized, Voted): "started in an epoch in which it had voted",
    (Uninitialized, Follower): "started in an epoch whose leader it knows",
    (Uninitialized, Resigned): "started in an epoch in which it had been the leader",
    (Unattached, Unattached): "learned of a higher epoch",
    (Unattached, Voted): "granted its vote",
    (Unattached, Prospective): "the election timeout passed",
    (Unattached, Follower): "discovered the leader of the same or a higher epoch",
    (Voted, Unattached): "learned of a higher epoch",
    (Voted, Prospective): "the election timeout passed",
    (Voted, Follower): "discovered the leader of the same or a higher epoch",
    (Prospective, Unattached): "learned of a higher epoch, or found no majority and knows no leader",
    (Prospective, Voted): "granted its vote in an epoch without a leader",
    (Prospective, Candidate): "a majority would vote for it",
    (Prospective, Follower): "discovered a leader, or found no majority against the one it knows",
    (Candidate, Unattached): "learned of a higher epoch",
    (Candidate, Prospective): "lost, or the election timeout passed",
    (Candidate, Leader): "won a majority of the votes, its own flushed",
    (Candidate, Follower): "discovered the leader of the same or a higher epoch",
    (Follower, Unattached): "learned of a higher epoch, or lost the leader while it has no vote to ask with",
    (Follower, Prospective): "the fetch timeout passed, the leader was lost, or it resigned",
    (Follower, Follower): "discovered the leader of a higher epoch",
    (Leader, Unattached): "learned of a higher epoch",
    (Leader, Follower): "discovered the leader of a higher epoch",
    (Leader, Resigned): "shuts down, or heard no majority for the check-quorum timeout",
    (Resigned, Unattached): "learned of a higher epoch, or waited long enough for a successor",
    (Resigned, Follower): "discovered the leader of a higher epoch",
}
"""Every allowed transition, with its reason. Note what is missing: the only way to Leader is from Candidate, there is no way
from Resigned back to Leader or Candidate in the same epoch, and none from a role that voted to another vote."""


def check_transition(before: Role, after: Role) -> None:
    """Raise InternalError if the table does not allow a change from role `before` to role `after`."""
    if (type(before), type(after)) not in TRANSITIONS:
        raise InternalError(f"no transition from {type(before).__name__} to {type(after).__name__}")


class RoleTransitions:
    """Changes the role and the election of a voter."""

    def __init__(self, state: RaftState) -> None:
        self.state = state

    def start(self, now: float) -> None:
        """Take up the role that the durable state allows. A node never starts as leader or candidate: another voter may have
        been elected in its epoch meanwhile."""
        state, election = self.state, self.state.election
        if state.log.last_epoch > election.epoch:
            # The log reached the disk before quorum-state did, so no vote of that epoch can have left this node.
            self.become_unattached(state.log.last_epoch, now + state.first_backoff())
        elif not state.other_voters:
            self.become_unattached(election.epoch, now)
        elif election.leader_id == state.node_id:
            self.become(self._resigned(now, state.other_voters))
        elif election.leader_id != NO_NODE:
            self.become_follower(election.epoch, election.leader_id, now)
        elif election.voted_id != NO_NODE:
            self.become(Voted(election.voted_id, now + state.first_backoff()))
        else:
            self.become_unattached(election.epoch, now + state.first_backoff())

    def become_unattached(self, epoch: int, deadline: float) -> None:
        """Follow no leader, and enter `epoch` if it is higher than the present one. Ask for pre-votes at `deadline`."""
        if epoch > self.state.epoch:
            self._elect(self.state.election.of_epoch(epoch))
        self.become(Unattached(deadline))

    def become_voted(self, candidate_id: int, now: float) -> None:
        """Grant the vote of this epoch to a candidate. The caller sends the vote after the election is on the disk."""
        self._elect(self.state.election._replace(voted_id=candidate_id))
        self.become(Voted(candidate_id, now + self.state.election_timeout()))

    def become_prospective(self, now: float) -> None:
        """Begin to ask for pre-votes, in the present epoch (KIP-996)."""
        state = self.state
        poll = Poll(state.voter_ids, dict.fromkeys(state.other_voters, now))
        poll.record(state.node_id, granted=True)
        self.become(Prospective(now + state.election_timeout(), poll))

    def become_candidate(self, now: float) -> None:
        """Start the next epoch with a vote for this node."""
        state = self.state
        self._elect(ElectionState(state.epoch + 1, NO_NODE, state.node_id))
        poll = Poll(state.voter_ids, dict.fromkeys(state.other_voters, now))
        state.candidacies += 1
        self.become(Candidate(now + state.election_timeout(), poll))

    def become_leader(self, now: float) -> Leader:
        """Lead the present epoch. The caller appends the LeaderChange record."""
        state, others = self.state, self.state.other_voters
        self._elect(state.election._replace(leader_id=state.node_id))
        role = Leader(
            epoch_start_offset=state.log.end_offset,
            began_at=now,
            flushed_offset=state.log.flushed_offset,
            voters={voter_id: ReplicaProgress() for voter_id in others},
            begin_epoch_at=dict.fromkeys(others, now),
            check_quorum_at=now + state.config.check_quorum_timeout_ms / 1000,
        )
        self.become(role)
        return role

    def become_follower(self, epoch: int, leader_id: int, now: float, fetch_deadline: float | None = None) -> None:
        """Follow a voter as the leader of `epoch`, and fetch from it at once. `fetch_deadline`: by default a whole fetch timeout
        from now. Raises InternalError if the leader is this node or no voter, or if the epoch has another leader."""
        state = self.state
        if leader_id == state.node_id or leader_id not in state.voter_ids:
            raise InternalError(f"node {leader_id} cannot be the leader that node {state.node_id} follows")
        before = state.election if epoch == state.epoch else state.election.of_epoch(epoch)
        if before.leader_id not in (NO_NODE, leader_id):
            raise InternalError(f"epoch {epoch} has two leaders: {before.leader_id} and {leader_id}")
        self._elect(before._replace(leader_id=leader_id))
        deadline = now + state.config.fetch_timeout_ms / 1000 if fetch_deadline is None else fetch_deadline
        self.become(Follower(leader_id, deadline, fetch_at=now))

    def become_resigned(self, now: float) -> None:
        """End the own leadership within the epoch. The successors are the other voters, the one with the longest log first."""
        role = self.state.role
        assert isinstance(role, Leader)
        successors = sorted(role.voters, key=lambda voter_id: (-role.voters[voter_id].end_offset, voter_id))
        self.become(self._resigned(now, successors))

    def _resigned(self, now: float, successors: list[int]) -> Resigned:
        return Resigned(now + self.state.election_timeout(), successors, dict.fromkeys(successors, now))

    def end_recovery(self) -> None:
        """End the recovery in the durable state: once quorum-state is written, this voter has a vote again."""
        self._elect(self.state.election._replace(recovering=False))

    def _elect(self, election: ElectionState) -> None:
        state = self.state
        if election.epoch < state.election.epoch:
            raise InternalError(f"the epoch cannot go back from {state.election.epoch} to {election.epoch}")
        if election.epoch != state.election.epoch:
            state.leader_has_resigned = False
        if election != state.election:
            state.election, state.election_dirty = election, True

    def become(self, role: Role) -> None:
        """Take a role after a check against the table, and end what belonged to the role before. For this class's methods."""
        state, before = self.state, self.state.role
        check_transition(before, role)
        state.role = role
        if isinstance(before, Leader):
            refuse_parked_fetches(state, before)
        elif isinstance(before, Follower) and before.download is not None:
            before.download.sink.discard()
        was, now_is = type(before).__name__, type(role).__name__
        logger.debug("quorum.role_changed", node_id=state.node_id, controller_epoch=state.epoch, role=now_is, previous_role=was)

    # -- the leader and epoch that other voters name -------------------------------------------------------------------

    def maybe_follow(self, leader_id: int, epoch: int, now: float) -> bool:
        """Act on the leader and epoch that a request or response names; True if that changed the role.

        A node always moves to a higher epoch. In its own epoch it follows the named leader if it knew none or had lost this one.
        A leader that it had lost gets one election timeout to answer, instead of the fetch timeout.
        """
        state = self.state
        known = leader_id in state.voter_ids and leader_id != state.node_id
        if epoch < state.epoch or (epoch == state.epoch and not known):
            return False
        if epoch > state.epoch:
            if known:
                self.become_follower(epoch, leader_id, now)
            else:
                self.become_unattached(epoch, now + state.election_backoff())
            return True
        if state.election.leader_id not in (NO_NODE, leader_id):
            leaders = [state.election.leader_id, leader_id]
            logger.error("quorum.second_leader_rejected", node_id=state.node_id, controller_epoch=epoch, leader_ids=leaders)
            return False
        if state.leader_has_resigned or isinstance(state.role, (Follower, Leader, Resigned)):
            return False
        was_lost = state.election.leader_id == leader_id
        self.become_follower(epoch, leader_id, now, now + state.election_timeout() if was_lost else None)
        return True

    def maybe_follow_response(self, error: int, leader_id: int, epoch: int, now: float) -> bool:
        """Act on the leader and epoch that a response names, like `maybe_follow`. True if that changed the role; the caller then
        drops the rest of the response, because the role that sent the request is over. A response with INCONSISTENT_CLUSTER_ID
        names the leader of another cluster and is ignored."""
        return error != ErrorCode.INCONSISTENT_CLUSTER_ID and self.maybe_follow(leader_id, epoch, now)
