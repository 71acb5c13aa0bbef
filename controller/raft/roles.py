"""The role states of a voter, one class each with only its own fields, and the one table of transitions between them.

A role object lives from one transition to the next: a request remembers the role object that it was sent from, and its
response is heard only while that very object is still the node's role. So a late answer can never touch a newer state.

The epoch, the vote and the known leader are not here: they outlive roles and processes (`election.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strandline.controller.raft.log import SnapshotSink
from strandline.protocol.errors import InternalError
from strandline.protocol.messages.common import SnapshotId

NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Unattached:
    """Knows an epoch, and no leader in it; has not voted in it."""

    deadline: float
    """When to ask for a pre-vote."""

    def next_deadline(self) -> float:
        return self.deadline


@dataclass(slots=True, eq=False)
class Voted:
    """Gave its vote in this epoch (perhaps to itself, before a restart), and gives the candidate time to win."""

    candidate_id: int
    deadline: float

    def next_deadline(self) -> float:
        return self.deadline


@dataclass(slots=True, eq=False)
class Poll:
    """The answers to a round of vote requests. A voter's answer counts once; a failed request is sent again."""

    voter_ids: Sequence[int]
    retry_at: dict[int, float] = field(default_factory=dict)
    """Voters to ask (again), and when. A voter that is being asked, or has answered, is not in it."""
    granted: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    unreachable: set[int] = field(default_factory=set)
    """Voters to which the last request failed."""

    def record(self, voter_id: int, granted: bool) -> None:
        if voter_id in self.voter_ids and voter_id not in self.granted | self.refused:
            (self.granted if granted else self.refused).add(voter_id)
            self.unreachable.discard(voter_id)

    @property
    def won(self) -> bool:
        return len(self.granted) * 2 > len(self.voter_ids)

    @property
    def lost(self) -> bool:
        return (len(self.voter_ids) - len(self.refused)) * 2 <= len(self.voter_ids)

    @property
    def is_stuck(self) -> bool:
        """Every voter has answered or cannot be reached, and it is not won: a split vote with a voter dead, say."""
        return not self.won and len(self.granted) + len(self.refused) + len(self.unreachable) == len(self.voter_ids)

    def take_due(self, now: float) -> list[int]:
        due = [voter_id for voter_id, at in self.retry_at.items() if at <= now]
        for voter_id in due:
            del self.retry_at[voter_id]
        return due

    def next_retry(self) -> float:
        return min(self.retry_at.values(), default=NEVER)


@dataclass(slots=True, eq=False)
class Prospective:
    """Asks who would vote for it, without touching anybody's epoch (KIP-996)."""

    deadline: float
    poll: Poll

    def next_deadline(self) -> float:
        return min(self.deadline, self.poll.next_retry())


@dataclass(slots=True, eq=False)
class Candidate:
    """Has opened a new epoch with a vote for itself, and asks for the others'."""

    deadline: float
    poll: Poll
    """Its own vote is counted only once it is on the disk."""
    lost: bool = False
    """Enough voters refused; waits out its backoff (the deadline) before the next try."""

    def next_deadline(self) -> float:
        return self.deadline if self.lost else min(self.deadline, self.poll.next_retry())


@dataclass(slots=True, eq=False)
class VoterWithoutState:
    """What a voter without a memory has still to learn (`learning.py`). Beside the role, not in it: it outlives roles."""

    unheard: set[int]
    """Other voters that have not told this process their epoch yet."""
    ask_at: dict[int, float] = field(default_factory=dict)
    """Voters to ask (again), and when. One that is being asked is not in it."""

    def next_deadline(self) -> float:
        return min(self.ask_at.values(), default=NEVER)


@dataclass(slots=True, eq=False)
class Download:
    """A snapshot on its way from the leader; `sink.size` is the position to ask for next."""

    snapshot_id: SnapshotId
    sink: SnapshotSink


@dataclass(slots=True, eq=False)
class Follower:
    """Fetches from the leader of its epoch, one request at a time."""

    leader_id: int
    fetch_deadline: float
    """Pushed out by every successful fetch; when it passes, the leader counts as gone."""
    fetch_at: float
    """When to send the next fetch; NEVER while one is under way."""
    has_fetched: bool = False
    """Whether the leader has answered since this role began: until then a pre-vote for another is granted."""
    leader_lost: bool = False
    """The connection to the leader broke, or it said that it does not lead; cleared by a successful fetch."""
    download: Download | None = None
    told_high_watermark: int = -1
    """The leader's high watermark as its last answer had it, -1: none yet. Ours may lag behind it."""

    def next_deadline(self) -> float:
        return min(self.fetch_deadline, self.fetch_at)

    @property
    def hears_leader(self) -> bool:
        return self.has_fetched and not self.leader_lost


@dataclass(slots=True, eq=False)
class ReplicaProgress:
    """What the leader knows of one voter or observer, from its fetches."""

    end_offset: int = -1
    """The replica's log end, flushed there (voters); -1 until its first valid fetch."""
    fetched_at: float = -1.0
    """When it last fetched, -1: never in this epoch."""
    caught_up_at: float = -1.0
    """When it last was at the leader's log end."""
    leader_end_offset: int = -1
    """The leader's log end at its last fetch: reaching that later means having been caught up then."""
    told_high_watermark: int = -1
    """The last one sent to it on `session`: a fetch that can learn nothing new is parked."""
    session: int = -1
    """The connection of its last fetch: the newest that it has used."""


@dataclass(slots=True, eq=False)
class ParkedFetch:
    """A fetch with nothing to answer yet."""

    ticket: object
    replica_id: int
    session: int
    """The connection that it came on."""
    fetch_offset: int
    last_fetched_epoch: int
    max_bytes: int
    deadline: float


@dataclass(slots=True, eq=False)
class Leader:
    """Appends, answers fetches, and moves the high watermark by what a majority holds."""

    epoch_start_offset: int
    """The offset of this epoch's LeaderChange record. Nothing commits before that record does (Raft figure 8)."""
    began_at: float
    flushed_offset: int
    """The leader's own contribution to the majority: its log end that is on the disk."""
    voters: dict[int, ReplicaProgress]
    """The other voters."""
    observers: dict[int, ReplicaProgress] = field(default_factory=dict)
    parked: dict[tuple[int, int], ParkedFetch] = field(default_factory=dict)
    """By replica id and connection; one at a time for each."""
    begin_epoch_at: dict[int, float] = field(default_factory=dict)
    """When to tell each voter (again) that this epoch has begun, unless it fetches. Being told: not in it."""
    check_quorum_at: float = NEVER
    """When to look whether a majority still fetches; moved on lazily."""

    def next_deadline(self) -> float:
        parked = min([fetch.deadline for fetch in self.parked.values()], default=NEVER)
        return min(self.check_quorum_at, parked, min(self.begin_epoch_at.values(), default=NEVER))


@dataclass(slots=True, eq=False)
class Resigned:
    """Was leader of this epoch and must not lead it again; tells the voters so, best successor first."""

    deadline: float
    successors: list[int]
    end_epoch_at: dict[int, float]
    """Voters to tell (again), and when. One that is being told is not in it."""
    unconfirmed: set[int]
    """Voters that have not confirmed yet; an orderly stop waits a little for them."""

    def next_deadline(self) -> float:
        return min(self.deadline, min(self.end_epoch_at.values(), default=NEVER))


Role = Unattached | Voted | Prospective | Candidate | Follower | Leader | Resigned

TRANSITIONS: dict[tuple[type[Role], type[Role]], str] = {
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
    (Follower, Unattached): "learned of a higher epoch, or missed the leader and has no vote to ask with",
    (Follower, Prospective): "the fetch timeout passed, the leader was lost, or it resigned",
    (Follower, Follower): "discovered the leader of a higher epoch",
    (Leader, Unattached): "learned of a higher epoch",
    (Leader, Follower): "discovered the leader of a higher epoch",
    (Leader, Resigned): "shuts down, or heard no majority for the check-quorum timeout",
    (Resigned, Unattached): "learned of a higher epoch, or waited long enough for a successor",
    (Resigned, Follower): "discovered the leader of a higher epoch",
}
"""Every edge there is, with its reason. Note what is missing: no way into Leader but from Candidate, none from Resigned
back to Leader or Candidate in the same epoch, and none from a role that voted to another vote."""


def check_transition(before: Role, after: Role) -> None:
    if (type(before), type(after)) not in TRANSITIONS:
        raise InternalError(f"no transition from {type(before).__name__} to {type(after).__name__}")
