"""The ground that the parts of a Raft node stand on: its state, its transitions, its two outboxes.

`election` is the durable part (epoch, leader, vote), `role` the volatile one; both change only in the `become_*`
methods here, so this file is the whole list of ways in which a node changes its mind. Rules that hold between any two
events:

- the epoch never decreases, and within an epoch the vote and the leader are set at most once;
- `high_watermark` never decreases while the process lives, and nothing below it is ever truncated;
- what depends on `election` or on the log being on the disk is in `outbox.after_sync`.

The node reads no clock (`now`, in seconds, is handed in), draws jitter from the generator that it was given, and
touches no socket; its log is behind `log.RaftLog`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.election import NO_NODE, ElectionState
from strandline.controller.raft.log import RaftLog
from strandline.controller.raft.outbox import Outbox, Reply, Send
from strandline.controller.raft.roles import (
    NEVER,
    Candidate,
    Follower,
    Leader,
    Poll,
    Prospective,
    Resigned,
    Role,
    Unattached,
    Voted,
    VoterWithoutState,
    check_transition,
)
from strandline.protocol.errors import ErrorCode, InternalError
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.cluster import VoteResponse
from strandline.protocol.messages.common import Message

logger = get_logger(__name__)


class CommittedTruncation(InternalError):
    """This node was asked to drop records that are committed. It stops rather than do so."""


class NodeBase:
    """State and transitions; the parts that decide when to use them are in the sub-classes."""

    def __init__(
        self,
        *,
        node_id: int,
        cluster_id: str,
        voter_ids: Sequence[int],
        log: RaftLog,
        election: ElectionState,
        config: RaftConfig,
        random: Random,
        committed_offset: int = 0,
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.voter_ids = tuple(sorted(voter_ids))
        self.config = config
        self.log = log
        self.random = random
        self.outbox = Outbox()
        self.election = election
        """(epoch, leader, vote). On the disk before anything leaves that depends on it."""
        self.election_dirty = False
        """`election` differs from the file; the shell writes it and clears this."""
        latest = log.latest_snapshot_id
        self.high_watermark = max(log.start_offset, latest.end_offset if latest else 0, committed_offset)
        """Everything below is committed. After a restart only a part of it is known to be; never decreases."""
        self.role: Role = Unattached(NEVER)
        self.leader_has_resigned = False
        """The leader of the present epoch said that it stopped leading: it is not followed again."""
        self.lessons: VoterWithoutState | None = (
            VoterWithoutState(set(self.other_voters), dict.fromkeys(self.other_voters, 0.0)) if election.learner else None
        )
        """What this voter has to learn before it has a vote; None: it has one."""
        self.limits = LineLimits()
        self.candidacies = 0
        """Elections that this node stood for."""

    # -- what others ask -----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def is_leader(self) -> bool:
        return isinstance(self.role, Leader)

    @property
    def leader_id(self) -> int:
        """Whom to name as leader to whoever asks; NO_NODE when we do not know or have reason to doubt."""
        if isinstance(self.role, Leader):
            return self.node_id
        if isinstance(self.role, Follower) and not self.role.leader_lost:
            return self.role.leader_id
        return NO_NODE

    @property
    def other_voters(self) -> list[int]:
        return [voter_id for voter_id in self.voter_ids if voter_id != self.node_id]

    @property
    def may_fetch(self) -> bool:
        """Not before every other voter was heard: a fetch is counted, and may commit records in the leader's epoch, which an
        earlier disk of ours may have voted to be over."""
        return self.lessons is None or not self.lessons.unheard

    @property
    def needs_sync(self) -> bool:
        """Something waits for the disk."""
        return (
            bool(self.outbox.after_sync)
            or self.election_dirty
            or (isinstance(self.role, Leader) and self.role.flushed_offset < self.log.end_offset)
        )

    # -- transitions ---------------------------------------------------------------------------------------------------

    def become_unattached(self, epoch: int, deadline: float) -> None:
        if epoch > self.epoch:
            self._elect(self.election.of_epoch(epoch))
        self._become(Unattached(deadline))

    def become_voted(self, candidate_id: int, now: float) -> None:
        self._elect(self.election._replace(voted_id=candidate_id))
        self._become(Voted(candidate_id, now + self.election_timeout()))

    def become_prospective(self, now: float) -> None:
        poll = Poll(self.voter_ids, dict.fromkeys(self.other_voters, now))
        poll.record(self.node_id, granted=True)
        self._become(Prospective(now + self.election_timeout(), poll))

    def become_candidate(self, now: float) -> None:
        self._elect(ElectionState(self.epoch + 1, NO_NODE, self.node_id))
        poll = Poll(self.voter_ids, dict.fromkeys(self.other_voters, now))
        self.candidacies += 1
        self._become(Candidate(now + self.election_timeout(), poll))

    def become_follower(self, epoch: int, leader_id: int, now: float, fetch_deadline: float | None = None) -> None:
        if leader_id == self.node_id or leader_id not in self.voter_ids:
            raise InternalError(f"node {leader_id} cannot be the leader that node {self.node_id} follows")
        before = self.election if epoch == self.epoch else self.election.of_epoch(epoch)
        if before.leader_id not in (NO_NODE, leader_id):
            raise InternalError(f"epoch {epoch} has two leaders: {before.leader_id} and {leader_id}")
        self._elect(before._replace(leader_id=leader_id))
        deadline = now + self.config.fetch_timeout_ms / 1000 if fetch_deadline is None else fetch_deadline
        self._become(Follower(leader_id, deadline, fetch_at=now))

    def become_resigned(self, now: float) -> None:
        role = self.role
        assert isinstance(role, Leader)
        successors = sorted(role.voters, key=lambda voter_id: (-role.voters[voter_id].end_offset, voter_id))
        self._become(self.resigned(now, successors))

    def resigned(self, now: float, successors: list[int]) -> Resigned:
        end_epoch_at = dict.fromkeys(successors, now)
        return Resigned(now + self.election_timeout(), successors, end_epoch_at, set(successors))

    def _elect(self, election: ElectionState) -> None:
        if election.epoch < self.election.epoch:
            raise InternalError(f"the epoch cannot go back from {self.election.epoch} to {election.epoch}")
        if election.epoch != self.election.epoch:
            self.leader_has_resigned = False
        if election != self.election:
            self.election, self.election_dirty = election, True

    def _become(self, role: Role) -> None:
        before = self.role
        check_transition(before, role)
        self.role = role
        self.on_left(before)
        was, now_is = type(before).__name__, type(role).__name__
        logger.debug("quorum.role_changed", node_id=self.node_id, controller_epoch=self.epoch, role=now_is, previous_role=was)

    def on_left(self, role: Role) -> None:
        """What a role leaves behind is tidied: parked fetches answered, a half-fetched snapshot dropped."""
        raise NotImplementedError

    # Each role's timer, and the steps that one part takes into another's field.

    def become_leader(self, now: float) -> None:
        raise NotImplementedError

    def tick(self, now: float) -> None:
        raise NotImplementedError

    def tick_prospective(self, now: float) -> None:
        raise NotImplementedError

    def miss_leader(self, now: float) -> None:
        raise NotImplementedError

    def on_sign_of_life(self, voter_id: int, now: float) -> None:
        raise NotImplementedError

    def on_told(self, from_id: int, response: VoteResponse, now: float) -> None:
        raise NotImplementedError

    def on_not_told(self, voter_id: int, now: float) -> None:
        raise NotImplementedError

    def tick_follower(self, now: float) -> None:
        raise NotImplementedError

    def tick_resigned(self, now: float) -> None:
        raise NotImplementedError

    def tick_begin_epoch(self, role: Leader, now: float) -> None:
        raise NotImplementedError

    # -- small shared things -------------------------------------------------------------------------------------------

    def election_timeout(self) -> float:
        timeout_ms = self.config.election_timeout_ms
        return (timeout_ms + self.random.uniform(0, timeout_ms)) / 1000

    def election_backoff(self) -> float:
        """The jitter that keeps voters from starting at the same instant; short, since a pre-vote disturbs nobody."""
        return self.random.uniform(self.config.election_backoff_ms_min, self.config.election_backoff_ms_max) / 1000

    def retry_backoff(self) -> float:
        return self.config.retry_backoff_ms / 1000

    def send(self, to_id: int, api_key: int, body: Message, *, after_sync: bool) -> None:
        box = self.outbox.after_sync if after_sync else self.outbox.at_once
        box.append(Send(to_id, api_key, body, self.role))

    def reply(self, ticket: object, body: Message) -> None:
        """An answer that promises nothing."""
        self.outbox.at_once.append(Reply(ticket, body))

    def reply_after_sync(self, ticket: object, body: Message) -> None:
        self.outbox.after_sync.append(Reply(ticket, body))

    def is_other_cluster(self, cluster_id: str | None) -> bool:
        return cluster_id is not None and cluster_id != self.cluster_id

    def leader_request_error(self, cluster_id: str | None, epoch: int) -> ErrorCode:
        """Whether a request that only the leader of `epoch` answers may be answered (epoch -1: unchecked)."""
        if self.is_other_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if 0 <= epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def maybe_follow(self, leader_id: int, epoch: int, now: float) -> bool:
        """Take in what a response or request says of the quorum; True when that changed our role.

        A higher epoch is always taken over; the leader of our own epoch when we knew none, or have been missing it (then
        with less patience than before).
        """
        known = leader_id in self.voter_ids and leader_id != self.node_id
        if epoch < self.epoch or (epoch == self.epoch and not known):
            return False
        if epoch > self.epoch:
            if known:
                self.become_follower(epoch, leader_id, now)
            else:
                self.become_unattached(epoch, now + self.election_backoff())
            return True
        if self.election.leader_id not in (NO_NODE, leader_id):
            leaders = [self.election.leader_id, leader_id]
            logger.error("quorum.two_leaders", node_id=self.node_id, controller_epoch=epoch, leader_ids=leaders)
            return False
        if self.leader_has_resigned or isinstance(self.role, (Follower, Leader, Resigned)):
            return False
        missed = self.election.leader_id == leader_id
        self.become_follower(epoch, leader_id, now, now + self.election_timeout() if missed else None)
        return True

    def hear(self, error: int, leader_id: int, epoch: int, now: float) -> bool:
        """`maybe_follow` for a response; what a node of another cluster says of its quorum is not for us."""
        return error != ErrorCode.INCONSISTENT_CLUSTER_ID and self.maybe_follow(leader_id, epoch, now)

    def advance_high_watermark(self, offset: int) -> bool:
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.log.update_high_watermark(offset)
        return True
