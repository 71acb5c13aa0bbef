"""Elections: pre-votes and votes of a voter that knows no leader (Unattached, Voted, Prospective, Candidate).

A voter that has lost its leader first asks the others, without changing its epoch, whether they *would* vote for it (pre-vote,
KIP-996). A voter that hears from a leader refuses, so a voter with a bad link deposes no leader. Because no state changes,
the voter can ask within milliseconds of a lost connection. Only with a majority of pre-votes does it start a new epoch with a
vote for itself.

A voter grants one vote per epoch, to a candidate whose log is at least as complete as its own, and writes the vote to its disk
before it answers.
"""

from __future__ import annotations

from strandline.controller.raft.election import NO_NODE
from strandline.controller.raft.leader_handler import LeaderHandler
from strandline.controller.raft.raft_state import RaftState
from strandline.controller.raft.roles import Candidate, Follower, Leader, Poll, Prospective, Unattached, Voted
from strandline.controller.raft.transitions import RoleTransitions
from strandline.controller.raft.voter_recovery import VoterRecovery
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.cluster import VoteRequest, VoteResponse

logger = get_logger(__name__)


class ElectionHandler:
    """Asks for votes and grants them."""

    def __init__(
        self, state: RaftState, transitions: RoleTransitions, leader: LeaderHandler, voter_recovery: VoterRecovery
    ) -> None:
        self.state = state
        self._transitions = transitions
        self._leader = leader
        self._voter_recovery = voter_recovery

    # -- timers --------------------------------------------------------------------------------------------------------

    def look_for_leader(self, now: float) -> None:
        """The leader is lost: ask for pre-votes, or, if this voter has no vote yet, ask the others for their leader."""
        if self.state.recovery is not None:
            self._voter_recovery.look_for_leader(self.state.recovery, now)
        else:
            self._transitions.become_prospective(now)
            self.tick_prospective(now)

    def tick_unattached(self, now: float) -> None:
        """Look for a leader when the deadline of Unattached or Voted has passed."""
        role = self.state.role
        assert isinstance(role, (Unattached, Voted))
        if now >= role.deadline:
            self.look_for_leader(now)

    def tick_prospective(self, now: float) -> None:
        """Become a candidate with a majority of pre-votes. Give up if none is possible any more or the deadline has passed.
        Otherwise send the pre-vote requests that are due."""
        role = self.state.role
        assert isinstance(role, Prospective)
        if role.poll.won:
            self._transitions.become_candidate(now)
            self.tick_candidate(now)
        elif role.poll.lost or now >= role.deadline:
            self.lose_pre_vote(now)
        else:
            self._ask(role.poll, now, pre_vote=True)

    def lose_pre_vote(self, now: float) -> None:
        """Follow the known leader again, with a shorter deadline than before; if none is known, wait."""
        state, leader_id = self.state, self.state.election.leader_id
        if leader_id in (NO_NODE, state.node_id) or state.leader_has_resigned:
            self._transitions.become_unattached(state.epoch, now + state.election_backoff())
        else:
            self._transitions.become_follower(state.epoch, leader_id, now, now + state.election_timeout())

    def tick_candidate(self, now: float) -> None:
        """Send the vote requests that are due. If no majority is possible any more, wait for a random backoff, then begin with a
        new pre-vote."""
        role = self.state.role
        assert isinstance(role, Candidate)
        if now >= role.deadline:
            self._transitions.become_prospective(now)
            self.tick_prospective(now)
        elif (role.poll.lost or role.poll.is_stuck) and not role.lost:
            role.lost, role.deadline = True, now + self.state.election_backoff()
        elif not role.lost:
            self._ask(role.poll, now, pre_vote=False)

    def on_own_vote_synced(self, now: float) -> None:
        """The candidate's vote for itself is on the disk: count it."""
        role = self.state.role
        if isinstance(role, Candidate):
            role.poll.record(self.state.node_id, granted=True)
            self._maybe_win(role, now)

    def _ask(self, poll: Poll, now: float, *, pre_vote: bool) -> None:
        state = self.state
        for voter_id in poll.take_due(now):
            body = VoteRequest(
                state.cluster_id, voter_id, state.epoch, state.node_id, state.log.last_epoch, state.log.end_offset, pre_vote
            )
            state.send(voter_id, apis.VOTE, body, after_sync=not pre_vote)

    # -- the vote of this node -----------------------------------------------------------------------------------------

    def on_vote_request(self, request: VoteRequest, ticket: object, now: float) -> None:
        """Answer a request for a vote or a pre-vote (KIP-595, KIP-996), after the vote is on the disk. A higher epoch in the
        request makes this node Unattached in that epoch.

        Errors: INCONSISTENT_CLUSTER_ID, INCONSISTENT_VOTER_SET, INVALID_REQUEST, FENCED_LEADER_EPOCH for an older epoch."""
        state = self.state
        error = self._vote_request_error(request)
        if error in (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH):
            self._voter_recovery.on_request_from(request.replica_id, now)
        if error != ErrorCode.NONE:
            state.reply(ticket, VoteResponse(error, state.leader_id, state.epoch, False))
            return
        if request.replica_epoch > state.epoch:
            self._transitions.become_unattached(request.replica_epoch, now + state.election_backoff())
        granted = self.would_vote(request) if request.pre_vote else self.may_vote(request)
        if granted and not request.pre_vote and state.election.voted_id == NO_NODE:
            self._transitions.become_voted(request.replica_id, now)
        state.reply_after_sync(ticket, VoteResponse(ErrorCode.NONE, state.leader_id, state.epoch, granted))

    def _vote_request_error(self, request: VoteRequest) -> ErrorCode:
        state = self.state
        if state.is_other_cluster(request.cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if request.voter_id != state.node_id or request.replica_id not in state.voter_ids or request.replica_id == state.node_id:
            return ErrorCode.INCONSISTENT_VOTER_SET
        if request.last_offset < 0 or request.last_offset_epoch > request.replica_epoch:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.FENCED_LEADER_EPOCH if request.replica_epoch < state.epoch else ErrorCode.NONE

    def is_up_to_date(self, request: VoteRequest) -> bool:
        """Whether the candidate's log is at least as complete as this node's, and so has every committed record that this node
        has."""
        log = self.state.log
        return (request.last_offset_epoch, request.last_offset) >= (log.last_epoch, log.end_offset)

    def would_vote(self, request: VoteRequest) -> bool:
        """Whether this voter grants a pre-vote: it hears no leader, and the candidate's log is complete enough."""
        role = self.state.role
        if self.state.recovery is not None:
            return False
        if isinstance(role, Leader) or (isinstance(role, Follower) and role.leader_is_alive):
            return False
        return self.is_up_to_date(request)

    def may_vote(self, request: VoteRequest) -> bool:
        """Whether this voter grants its vote of the epoch: it has granted it to this candidate before; or it has not voted in
        the epoch, knows no leader of the epoch, and the candidate's log is complete enough."""
        election = self.state.election
        if self.state.recovery is not None:
            return False
        if election.voted_id != NO_NODE:
            return election.voted_id == request.replica_id
        return election.leader_id == NO_NODE and self.is_up_to_date(request)

    # -- the votes of the others ---------------------------------------------------------------------------------------

    def on_vote_response(self, from_id: int, response: VoteResponse, role: object, now: float) -> None:
        """Count another voter's answer; the last vote of a majority makes this node candidate or leader. A higher epoch or a
        known leader in the answer ends the round. An answer to an earlier role is not counted."""
        state, error, epoch = self.state, response.error_code, response.leader_epoch
        # A voter that grants its vote may still name the leader that both have lost: that is no reason to follow it again.
        granted = response.vote_granted and error == ErrorCode.NONE and epoch == state.epoch
        if not granted and self._transitions.maybe_follow_response(error, response.leader_id, epoch, now):
            return
        if role is not state.role or not isinstance(role, (Prospective, Candidate)):
            return
        if error != ErrorCode.NONE:
            self.on_vote_failed(from_id, error, role, now)
            return
        role.poll.record(from_id, response.vote_granted)
        if isinstance(role, Prospective):
            self.tick_prospective(now)
        else:
            self._maybe_win(role, now)

    def on_vote_failed(self, voter_id: int, error: int, role: object, now: float) -> None:
        """No response, or an error: ask again after the retry backoff, until the round is over."""
        state = self.state
        if error in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INCONSISTENT_VOTER_SET):
            suppressed = state.limits.admit(f"vote {voter_id}", now)
            if suppressed is not None:
                name = ErrorCode(error).name
                logger.error("quorum.vote_refused", node_id=state.node_id, voter_id=voter_id, error=name, **suppressed.fields)
        if state.recovery is not None:
            self._voter_recovery.on_vote_failed(state.recovery, voter_id, now)
        elif role is state.role and isinstance(role, (Prospective, Candidate)):
            role.poll.retry_at[voter_id] = now + state.retry_backoff()
            role.poll.unreachable.add(voter_id)
            if isinstance(role, Prospective):
                self.tick_prospective(now)
            else:
                self.tick_candidate(now)

    def _maybe_win(self, role: Candidate, now: float) -> None:
        if role.poll.won and not role.lost:
            self._leader.start_epoch(role, now)
        else:
            self.tick_candidate(now)
