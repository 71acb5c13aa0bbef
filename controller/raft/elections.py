"""Elections: pre-votes, votes, the beginning and the end of an epoch.

A voter that misses its leader first asks, in its present epoch, who *would* vote for it (pre-vote, KIP-996). A voter
that hears a leader says no, so a voter behind a bad link disturbs nobody; and since no state changes, asking is cheap
enough to be done within milliseconds of a lost connection. Only with a majority of pre-votes does it open a new epoch
with a vote for itself.

A real vote is given once in an epoch, to a candidate whose log is at least as complete as ours, and reaches the disk
before it leaves.
"""

from __future__ import annotations

from strandline.controller.raft.base import NodeBase, logger
from strandline.controller.raft.election import NO_NODE
from strandline.controller.raft.roles import NEVER, Candidate, Follower, Leader, Poll, Prospective, Resigned, Unattached, Voted
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.cluster import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    VoteRequest,
    VoteResponse,
)


class Elections(NodeBase):
    # -- start and timers ----------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Take up the role that the durable state allows: never leader, and never candidate, of an epoch already seen."""
        if self.log.last_epoch > self.epoch:
            # The log reached the disk before quorum-state did. No vote of that epoch can have left this node.
            self.become_unattached(self.log.last_epoch, now + self.first_backoff())
            return
        election = self.election
        if election.leader_id == self.node_id:
            self.role = self.resigned(now, self.other_voters)
        elif election.leader_id != NO_NODE:
            self.become_follower(election.epoch, election.leader_id, now)
            return
        elif election.voted_id != NO_NODE:
            self.role = Voted(election.voted_id, now + self.first_backoff())
        else:
            self.role = Unattached(now + self.first_backoff())
        if not self.other_voters:
            self.role = Unattached(now)
            self.tick_unattached(now)

    def first_backoff(self) -> float:
        return self.election_backoff() if self.other_voters else 0.0

    def tick_unattached(self, now: float) -> None:
        role = self.role
        assert isinstance(role, (Unattached, Voted))
        if now >= role.deadline:
            self.miss_leader(now)

    def tick_prospective(self, now: float) -> None:
        role = self.role
        assert isinstance(role, Prospective)
        if role.poll.won:
            self.become_candidate(now)
            self.tick_candidate(now)
        elif role.poll.lost or now >= role.deadline:
            self.lose_pre_vote(now)
        else:
            self._ask(role.poll, now, pre_vote=True)

    def lose_pre_vote(self, now: float) -> None:
        """Back to the leader that we know, with less patience than before; or to waiting."""
        leader_id = self.election.leader_id
        if leader_id in (NO_NODE, self.node_id) or self.leader_has_resigned:
            self.become_unattached(self.epoch, now + self.election_backoff())
        else:
            self.become_follower(self.epoch, leader_id, now, now + self.election_timeout())

    def tick_candidate(self, now: float) -> None:
        role = self.role
        assert isinstance(role, Candidate)
        if now >= role.deadline:
            self.become_prospective(now)
            self.tick_prospective(now)
        elif (role.poll.lost or role.poll.is_stuck) and not role.lost:
            role.lost, role.deadline = True, now + self.election_backoff()
        elif not role.lost:
            self._ask(role.poll, now, pre_vote=False)

    def on_own_vote_synced(self, now: float) -> None:
        """The candidate's vote for itself is on the disk: now it counts."""
        role = self.role
        if isinstance(role, Candidate):
            role.poll.record(self.node_id, granted=True)
            self._maybe_win(role, now)

    def tick_resigned(self, now: float) -> None:
        role = self.role
        assert isinstance(role, Resigned)
        if now >= role.deadline:
            self.become_unattached(self.epoch, now + self.first_backoff())
            return
        for voter_id in [voter_id for voter_id, at in role.end_epoch_at.items() if at <= now]:
            del role.end_epoch_at[voter_id]
            body = EndQuorumEpochRequest(self.cluster_id, self.node_id, self.epoch, role.successors)
            self.send(voter_id, apis.END_QUORUM_EPOCH, body, after_sync=False)

    def _ask(self, poll: Poll, now: float, *, pre_vote: bool) -> None:
        for voter_id in poll.take_due(now):
            body = VoteRequest(
                self.cluster_id, voter_id, self.epoch, self.node_id, self.log.last_epoch, self.log.end_offset, pre_vote
            )
            self.send(voter_id, apis.VOTE, body, after_sync=not pre_vote)

    # -- Vote ----------------------------------------------------------------------------------------------------------

    def on_vote_request(self, request: VoteRequest, ticket: object, now: float) -> None:
        error = self._vote_request_error(request)
        if error in (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH):
            self.on_sign_of_life(request.replica_id, now)
        if error != ErrorCode.NONE:
            self.reply(ticket, VoteResponse(error, self.leader_id, self.epoch, False))
            return
        if request.replica_epoch > self.epoch:
            self.become_unattached(request.replica_epoch, now + self.election_backoff())
        granted = self._would_vote(request) if request.pre_vote else self._may_vote(request)
        if granted and not request.pre_vote and self.election.voted_id == NO_NODE:
            self.become_voted(request.replica_id, now)
        self.reply_after_sync(ticket, VoteResponse(ErrorCode.NONE, self.leader_id, self.epoch, granted))

    def _vote_request_error(self, request: VoteRequest) -> ErrorCode:
        if self.is_other_cluster(request.cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if request.voter_id != self.node_id or request.replica_id not in self.voter_ids or request.replica_id == self.node_id:
            return ErrorCode.INCONSISTENT_VOTER_SET
        if request.last_offset < 0 or request.last_offset_epoch > request.replica_epoch:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.FENCED_LEADER_EPOCH if request.replica_epoch < self.epoch else ErrorCode.NONE

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        """Whether the candidate's log is at least as complete as ours: then it has every committed record that we have."""
        return (request.last_offset_epoch, request.last_offset) >= (self.log.last_epoch, self.log.end_offset)

    def _would_vote(self, request: VoteRequest) -> bool:
        role = self.role
        if self.lessons is not None:
            return False
        if isinstance(role, Leader) or (isinstance(role, Follower) and role.hears_leader):
            return False
        return self._is_up_to_date(request)

    def _may_vote(self, request: VoteRequest) -> bool:
        election = self.election
        if self.lessons is not None:
            return False
        if election.voted_id != NO_NODE:
            return election.voted_id == request.replica_id
        return election.leader_id == NO_NODE and self._is_up_to_date(request)

    def on_vote_response(self, from_id: int, response: VoteResponse, role: object, now: float) -> None:
        if self.lessons is not None:
            self.on_told(from_id, response, now)
            return
        # Who grants a vote may still name the leader that both of us miss: that is no reason to go back to it.
        granted = response.vote_granted and response.error_code == ErrorCode.NONE and response.leader_epoch == self.epoch
        if not granted and self.hear(response.error_code, response.leader_id, response.leader_epoch, now):
            return
        if role is not self.role or not isinstance(role, (Prospective, Candidate)):
            return
        if response.error_code != ErrorCode.NONE:
            self.on_vote_failed(from_id, response.error_code, role, now)
            return
        role.poll.record(from_id, response.vote_granted)
        if isinstance(role, Prospective):
            self.tick_prospective(now)
        else:
            self._maybe_win(role, now)

    def on_vote_failed(self, voter_id: int, error: int, role: object, now: float) -> None:
        """No answer, or an error: ask again soon, until the round is over."""
        if error in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INCONSISTENT_VOTER_SET):
            suppressed = self.limits.admit(f"vote {voter_id}", now)
            if suppressed is not None:
                name = ErrorCode(error).name
                logger.error("quorum.vote_refused", node_id=self.node_id, voter_id=voter_id, error=name, **suppressed.fields)
        if self.lessons is not None:
            self.on_not_told(voter_id, now)
        elif role is self.role and isinstance(role, (Prospective, Candidate)):
            role.poll.retry_at[voter_id] = now + self.retry_backoff()
            role.poll.unreachable.add(voter_id)
            self.tick(now)

    def _maybe_win(self, role: Candidate, now: float) -> None:
        if role.poll.won and not role.lost:
            self.become_leader(now)
        else:
            self.tick_candidate(now)

    # -- BeginQuorumEpoch ----------------------------------------------------------------------------------------------

    def on_begin_epoch_request(self, request: BeginQuorumEpochRequest, ticket: object, now: float) -> None:
        error = self._epoch_request_error(request.cluster_id, request.leader_id, request.leader_epoch)
        if error == ErrorCode.NONE and request.voter_id != self.node_id:
            error = ErrorCode.INCONSISTENT_VOTER_SET
        if error == ErrorCode.NONE:
            self.maybe_follow(request.leader_id, request.leader_epoch, now)
        self.reply_after_sync(ticket, BeginQuorumEpochResponse(error, self.leader_id, self.epoch))

    def _epoch_request_error(self, cluster_id: str | None, leader_id: int, leader_epoch: int) -> ErrorCode:
        if self.is_other_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if leader_id not in self.voter_ids or leader_id == self.node_id:
            return ErrorCode.INCONSISTENT_VOTER_SET
        if leader_epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_epoch == self.epoch and self.election.leader_id not in (NO_NODE, leader_id):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def on_begin_epoch_response(self, from_id: int, response: BeginQuorumEpochResponse, role: object, now: float) -> None:
        if self.hear(response.error_code, response.leader_id, response.leader_epoch, now) or role is not self.role:
            return
        if response.error_code != ErrorCode.NONE:
            self.on_begin_epoch_failed(from_id, role, now)
        elif isinstance(role, Leader):
            role.begin_epoch_at[from_id] = now + self.config.fetch_timeout_ms / 1000

    def on_begin_epoch_failed(self, voter_id: int, role: object, now: float) -> None:
        if role is self.role and isinstance(role, Leader):
            role.begin_epoch_at[voter_id] = now + self.config.election_backoff_ms_max / 1000

    def tick_begin_epoch(self, role: Leader, now: float) -> None:
        """Tell the voters that have not fetched lately who leads."""
        fetch_timeout = self.config.fetch_timeout_ms / 1000
        for voter_id in [voter_id for voter_id, at in role.begin_epoch_at.items() if at <= now]:
            again_at = role.voters[voter_id].fetched_at + fetch_timeout
            if role.voters[voter_id].fetched_at >= 0 and now < again_at:
                role.begin_epoch_at[voter_id] = again_at
                continue
            del role.begin_epoch_at[voter_id]
            body = BeginQuorumEpochRequest(self.cluster_id, voter_id, self.node_id, self.epoch)
            self.send(voter_id, apis.BEGIN_QUORUM_EPOCH, body, after_sync=True)

    # -- EndQuorumEpoch ------------------------------------------------------------------------------------------------

    def on_end_epoch_request(self, request: EndQuorumEpochRequest, ticket: object, now: float) -> None:
        error = self._epoch_request_error(request.cluster_id, request.leader_id, request.leader_epoch)
        if error == ErrorCode.NONE:
            if request.leader_epoch > self.epoch:
                self.become_unattached(request.leader_epoch, now + self.election_backoff())
            self._on_leader_resigned(request.preferred_candidates, now)
        self.reply_after_sync(ticket, EndQuorumEpochResponse(error, self.leader_id, self.epoch))

    def _on_leader_resigned(self, successors: list[int], now: float) -> None:
        """The best successor starts at once; the others give each one before them a head start."""
        self.leader_has_resigned = True
        role = self.role
        position = successors.index(self.node_id) if self.node_id in successors else len(successors)
        delay = position * self.config.election_backoff_ms_max / 1000 + (self.election_backoff() if position else 0.0)
        if isinstance(role, Follower):
            role.leader_lost = True
            role.fetch_deadline, role.fetch_at = now + delay, NEVER
            self.tick_follower(now)
        elif isinstance(role, (Unattached, Voted)):
            role.deadline = min(role.deadline, now + delay)
            self.tick_unattached(now)

    def on_end_epoch_response(self, from_id: int, response: EndQuorumEpochResponse, role: object, now: float) -> None:
        if self.hear(response.error_code, response.leader_id, response.leader_epoch, now) or role is not self.role:
            return
        if isinstance(role, Resigned):
            role.unconfirmed.discard(from_id)

    def on_end_epoch_failed(self, voter_id: int, role: object, now: float) -> None:
        if role is self.role and isinstance(role, Resigned):
            role.end_epoch_at[voter_id] = now + self.retry_backoff()
