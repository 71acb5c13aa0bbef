"""The state that the handlers of one Raft node share: its election, its role, its high watermark and its two outboxes.

The handlers (`node.py` lists them) read this state, and each changes the fields of the role that it handles. The role and the
election change only in `transitions.py`. Rules that hold between any two events:

- the epoch never decreases, and within an epoch the vote and the leader are set at most once;
- `high_watermark` never decreases while the process lives, and no record below it is ever truncated;
- a message that depends on `election` or on the log being on the disk is in `outbox.after_sync`.

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
from strandline.controller.raft.roles import Follower, Leader, Role, Uninitialized, VoterWithoutState
from strandline.protocol.errors import ErrorCode, InternalError
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.messages.common import Message


class CommittedTruncation(InternalError):
    """The leader asked this node to truncate committed records. The node stops instead."""


class RaftState:
    """The state that all parts of a voter share. Only `RoleTransitions` changes role and election."""

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
        """Epoch, leader and vote. The shell writes them to the disk before it sends a message that depends on them."""
        self.election_dirty = False
        """`election` differs from the file; the shell writes the file and clears this."""
        latest = log.latest_snapshot_id
        self.high_watermark = max(log.start_offset, latest.end_offset if latest else 0, committed_offset)
        """Every record below is committed; never decreases. After a restart it may lag behind what was committed before."""
        self.role: Role = Uninitialized()
        self.leader_has_resigned = False
        """The leader of the current epoch sent EndQuorumEpoch: this node does not follow it again in this epoch."""
        self.recovery: VoterWithoutState | None = (
            VoterWithoutState(set(self.other_voters), dict.fromkeys(self.other_voters, 0.0)) if election.recovering else None
        )
        """What this voter still waits for before it has a vote; None if it has a vote."""
        self.limits = LineLimits()
        self.candidacies = 0
        """Elections in which this node was a candidate."""
        self.wall_clock_ms = 0
        """Timestamp of the next LeaderChange record. The shell keeps it roughly current; no decision depends on it."""

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def is_leader(self) -> bool:
        return isinstance(self.role, Leader)

    @property
    def leader_id(self) -> int:
        """The leader to name in responses; NO_NODE if this node knows none, or has lost its connection to it."""
        if isinstance(self.role, Leader):
            return self.node_id
        if isinstance(self.role, Follower) and not self.role.leader_lost:
            return self.role.leader_id
        return NO_NODE

    @property
    def hears_leader(self) -> bool:
        """Whether this node follows a leader that has answered, and has not lost it since."""
        return isinstance(self.role, Follower) and self.role.leader_is_alive

    @property
    def known_high_watermark(self) -> int:
        """The high watermark of this node, or the leader's in its last response if that is higher."""
        return max(self.high_watermark, self.role.leader_high_watermark if isinstance(self.role, Follower) else -1)

    @property
    def other_voters(self) -> list[int]:
        return [voter_id for voter_id in self.voter_ids if voter_id != self.node_id]

    @property
    def may_fetch(self) -> bool:
        """A recovering voter must not fetch before every other voter has answered: the leader counts fetches, so it might
        commit records with them in an epoch that an earlier disk of this voter had voted to end."""
        return self.recovery is None or not self.recovery.unanswered

    @property
    def needs_sync(self) -> bool:
        """Whether a message, the election or the leader's log waits for the disk."""
        return (
            bool(self.outbox.after_sync)
            or self.election_dirty
            or (isinstance(self.role, Leader) and self.role.flushed_offset < self.log.end_offset)
        )

    def is_other_cluster(self, cluster_id: str | None) -> bool:
        """Whether a request names another cluster. A request without an id is accepted."""
        return cluster_id is not None and cluster_id != self.cluster_id

    def leader_request_error(self, cluster_id: str | None, epoch: int) -> ErrorCode:
        """The error for a request that only the leader of `epoch` may answer; NONE if this node leads it. An `epoch` of -1 stands
        for the current one."""
        if self.is_other_cluster(cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if 0 <= epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    # -- durations, in seconds -----------------------------------------------------------------------------------------

    def election_timeout(self) -> float:
        """A random time between one and two election timeouts, so that voters seldom ask for votes at the same time."""
        timeout_ms = self.config.election_timeout_ms
        return (timeout_ms + self.random.uniform(0, timeout_ms)) / 1000

    def election_backoff(self) -> float:
        """Jitter that keeps voters from starting at the same instant. It is short, because a pre-vote disturbs no leader."""
        return self.random.uniform(self.config.election_backoff_ms_min, self.config.election_backoff_ms_max) / 1000

    def first_backoff(self) -> float:
        """The backoff before the first pre-vote; 0 for the only voter of a cluster."""
        return self.election_backoff() if self.other_voters else 0.0

    def retry_backoff(self) -> float:
        return self.config.retry_backoff_ms / 1000

    # -- changes -------------------------------------------------------------------------------------------------------

    def send(self, to_id: int, api_key: int, body: Message, *, after_sync: bool) -> None:
        """Send a request from the current role; its response counts only while this role lasts. `after_sync`: send it after the
        log and the election are on the disk."""
        box = self.outbox.after_sync if after_sync else self.outbox.at_once
        box.append(Send(to_id, api_key, body, self.role))

    def reply(self, ticket: object, body: Message) -> None:
        """Reply at once: the response depends on nothing that a crash could undo."""
        self.outbox.at_once.append(Reply(ticket, body))

    def reply_after_sync(self, ticket: object, body: Message) -> None:
        """Reply after the log and the election are on the disk, because the response promises something about them."""
        self.outbox.after_sync.append(Reply(ticket, body))

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to `offset`; False if it was there already."""
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.log.update_high_watermark(offset)
        return True
