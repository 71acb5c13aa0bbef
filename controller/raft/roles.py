"""The role states of a voter, one class each with only its own fields. `transitions.py` changes from one to the next.

A role object lives from one transition to the next. A request remembers the role object that it was sent from, and the
handler ignores its response unless that very object is still the node's role. So a late response never changes a newer state.

The epoch, the vote and the known leader are not here: they outlive roles and processes (`election.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strandline.controller.raft.log import SnapshotSink
from strandline.protocol.messages.common import SnapshotId

NO_DEADLINE = float("inf")
"""The time of a step that is not scheduled."""


@dataclass(slots=True, eq=False)
class Uninitialized:
    """The node has not started."""

    def next_deadline(self) -> float:
        return NO_DEADLINE


@dataclass(slots=True, eq=False)
class Unattached:
    """Follows no leader, and waits before it asks for pre-votes. It may have voted in this epoch, or lost or been its leader."""

    deadline: float
    """When to ask for pre-votes."""

    def next_deadline(self) -> float:
        return self.deadline


@dataclass(slots=True, eq=False)
class Voted:
    """Voted in this epoch (perhaps for itself, before a restart), and waits for the candidate to win."""

    candidate_id: int
    deadline: float
    """When to ask for pre-votes itself."""

    def next_deadline(self) -> float:
        return self.deadline


@dataclass(slots=True, eq=False)
class Poll:
    """The answers to one round of vote requests. A voter's first answer counts; a failed request is sent again."""

    voter_ids: Sequence[int]
    retry_at: dict[int, float] = field(default_factory=dict)
    """When to send the next request to a voter. A voter with a request in flight, or with an answer, has no entry."""
    granted: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    unreachable: set[int] = field(default_factory=set)
    """Voters whose last request failed."""

    def record(self, voter_id: int, granted: bool) -> None:
        """Count a voter's answer. A second answer of a voter, and an answer of a node that is not a voter, are ignored."""
        if voter_id in self.voter_ids and voter_id not in self.granted | self.refused:
            (self.granted if granted else self.refused).add(voter_id)
            self.unreachable.discard(voter_id)

    @property
    def won(self) -> bool:
        """Whether a majority of all voters has granted its vote."""
        return len(self.granted) * 2 > len(self.voter_ids)

    @property
    def lost(self) -> bool:
        """Whether so many voters have refused that no majority is possible."""
        return (len(self.voter_ids) - len(self.refused)) * 2 <= len(self.voter_ids)

    @property
    def is_stuck(self) -> bool:
        """Every voter has answered or is unreachable, and there is no majority: for example a split vote with one voter dead."""
        return not self.won and len(self.granted) + len(self.refused) + len(self.unreachable) == len(self.voter_ids)

    def take_due(self, now: float) -> list[int]:
        """The voters to which a request is due, which count as asked from now on."""
        due = [voter_id for voter_id, at in self.retry_at.items() if at <= now]
        for voter_id in due:
            del self.retry_at[voter_id]
        return due

    def next_retry(self) -> float:
        return min(self.retry_at.values(), default=NO_DEADLINE)


@dataclass(slots=True, eq=False)
class Prospective:
    """Asks the voters whether they would vote for it. That changes no node's epoch (KIP-996)."""

    deadline: float
    poll: Poll

    def next_deadline(self) -> float:
        return min(self.deadline, self.poll.next_retry())


@dataclass(slots=True, eq=False)
class Candidate:
    """Has started a new epoch with a vote for itself, and asks the other voters for theirs."""

    deadline: float
    poll: Poll
    """Counts the candidate's own vote once it is on the disk."""
    lost: bool = False
    """No majority is possible any more; the deadline is now the end of the backoff before the next round."""

    def next_deadline(self) -> float:
        return self.deadline if self.lost else min(self.deadline, self.poll.next_retry())


@dataclass(slots=True, eq=False)
class VoterWithoutState:
    """The answers that a recovering voter still waits for (`voter_recovery.py`). They are kept beside the role, because they
    outlive roles."""

    unanswered: set[int]
    """Other voters that have not answered this process with their epoch yet."""
    ask_at: dict[int, float] = field(default_factory=dict)
    """When to send the next request to a voter. A voter with a request in flight has no entry."""

    def next_deadline(self) -> float:
        return min(self.ask_at.values(), default=NO_DEADLINE)


@dataclass(slots=True, eq=False)
class Download:
    """A snapshot that is being fetched from the leader; `sink.size` is the position of the next chunk."""

    snapshot_id: SnapshotId
    sink: SnapshotSink


@dataclass(slots=True, eq=False)
class Follower:
    """Fetches from the leader of its epoch, one request at a time."""

    leader_id: int
    fetch_deadline: float
    """Every successful fetch postpones it. When it passes, the follower treats the leader as lost."""
    fetch_at: float
    """When to send the next fetch; NO_DEADLINE while one is in flight."""
    has_fetched: bool = False
    """The leader has answered since this role began. Until then the follower grants pre-votes to others."""
    leader_lost: bool = False
    """The connection to the leader broke, or it answered that it is not the leader. A successful fetch clears this."""
    download: Download | None = None
    leader_high_watermark: int = -1
    """The leader's high watermark in its last response, -1 before the first. The node's own may lag behind it."""

    def next_deadline(self) -> float:
        return min(self.fetch_deadline, self.fetch_at)

    @property
    def leader_is_alive(self) -> bool:
        """Whether the leader has answered in this role, and was not lost since."""
        return self.has_fetched and not self.leader_lost


@dataclass(slots=True, eq=False)
class ReplicaProgress:
    """One voter or observer, as the leader sees it from its fetches."""

    end_offset: int = -1
    """The replica's log end, which a voter has flushed; -1 until its first valid fetch."""
    fetched_at: float = -1.0
    """Time of its last fetch, -1 before the first in this epoch."""
    caught_up_at: float = -1.0
    """The last time at which it had the whole log of the leader."""
    leader_end_offset: int = -1
    """The leader's log end at its last fetch. A replica that reaches it later was caught up at the time of that fetch."""
    sent_high_watermark: int = -1
    """The last high watermark sent to it on `session`. The leader parks a fetch that has no newer one to receive."""
    session: int = -1
    """The newest connection that it has fetched on."""


@dataclass(slots=True, eq=False)
class ParkedFetch:
    """A fetch that waits for records or a higher high watermark."""

    ticket: object
    replica_id: int
    session: int
    """The connection it arrived on."""
    fetch_offset: int
    last_fetched_epoch: int
    max_bytes: int
    deadline: float


@dataclass(slots=True, eq=False)
class Leader:
    """Appends, answers fetches, and raises the high watermark to the offset that a majority has flushed."""

    epoch_start_offset: int
    """Offset of this epoch's LeaderChange record. No record is committed in this epoch before that one (Raft, figure 8)."""
    began_at: float
    flushed_offset: int
    """The end of the leader's log on its disk: the leader's own part of the majority."""
    voters: dict[int, ReplicaProgress]
    """The other voters."""
    observers: dict[int, ReplicaProgress] = field(default_factory=dict)
    parked: dict[tuple[int, int], ParkedFetch] = field(default_factory=dict)
    """The parked fetches by replica id and connection, at most one for each."""
    begin_epoch_at: dict[int, float] = field(default_factory=dict)
    """When to send BeginQuorumEpoch to a voter that does not fetch. A voter with a request in flight has no entry."""
    check_quorum_at: float = NO_DEADLINE
    """When to check next that a majority still fetches. A fetch does not move it; the check does."""

    def next_deadline(self) -> float:
        parked = min([fetch.deadline for fetch in self.parked.values()], default=NO_DEADLINE)
        return min(self.check_quorum_at, parked, min(self.begin_epoch_at.values(), default=NO_DEADLINE))


@dataclass(slots=True, eq=False)
class Resigned:
    """Was the leader of this epoch and must not lead it again. It sends EndQuorumEpoch to the voters, best successor first."""

    deadline: float
    successors: list[int]
    end_epoch_at: dict[int, float]
    """When to send EndQuorumEpoch to a voter. A voter with a request in flight has no entry."""

    def next_deadline(self) -> float:
        return min(self.deadline, min(self.end_epoch_at.values(), default=NO_DEADLINE))


Role = Uninitialized | Unattached | Voted | Prospective | Candidate | Follower | Leader | Resigned
