"""A voter with an empty disk, which may have replaced a disk with state: it has no vote until it has recovered.

Raft relies on what a voter remembers. A voter that lost its disk and starts with an empty one could vote a second time in an
epoch, which makes two leaders of that epoch; it could vote for a leader that lacks records which were committed because this
voter had them; or it could let a leader commit records after it had voted for that leader's successor. At the first start of a
cluster every disk is empty, too, and a voter cannot tell the two cases apart from its own disk. So in both it starts as a
*recovering voter*, which grants no vote and no pre-vote, and is no candidate. That state is durable (`"learner": true` in
quorum-state; no quorum-state file means the same), so a restart does not end it.

    1. It asks every other voter for its epoch, and takes over the highest. It does not fetch before all have answered.
    2. Then it follows the leader like any follower, and the leader counts its fetches.
    3. It becomes a voter again in one of two cases. Either all epochs are still 0, its own too: no epoch was ever started, so
       there was no vote and no commit. Or it follows the leader of its current epoch, has flushed its log up to the high
       watermark that this leader sent, and that high watermark covers a record of the leader's own epoch.

**No promise to an older epoch.** If the lost disk held a vote in epoch e for candidate A, A had epoch e on its disk before it
requested that vote, so A answers with an epoch of at least e. By (1) the recovering voter fetches from no leader of an epoch
before e, so a leader that it helped to depose cannot commit with its help. It must hear from *all* others, not a majority: any
single one of them may be the candidate whose election is still in progress.

**No second vote in an epoch.** As above, the recovering voter is in epoch e or a later one when it becomes a voter. In a later
epoch it has not voted yet. In e itself it knows the leader by then (3), and a voter that knows the leader of its epoch grants
no vote in it.

**No committed record is lost.** A record that was committed with the help of the lost disk was counted by a leader L of an
epoch e, and as above the voter is in an epoch E >= e when it recovers. If E > e, the elections in between were decided without
it (it has no vote), by voters that remember. So the leader of E has the record, below the first record of its own epoch, and
the recovered voter has all records up to there. If E = e, the leader is L, and L sent its high watermark after the recovering
voter's first fetch, which set what L counts for it back to what it really has.
Assumption: no fetch of the process on the lost disk reaches L after its successor has started to fetch. L refuses a fetch on a
connection older than the newest that the voter has used, and connections end with their process.

**A leader can always be elected if only one disk is lost at a time.** An epoch above 0 exists only after a majority had a vote
(a candidate needs their pre-votes, and uses its own vote only once that is on its disk), and each of those voters keeps its
vote for as long as it keeps its disk. If a majority of the disks is lost at once, the remaining voters cannot tell what was
committed: then no leader is elected, and the recovering voters log what they wait for.

The price: at the first start, and after the loss of a disk, every controller has to be up once. At the first start recovery
takes one round trip after the last controller has started: it asks all others, and a voter that receives such a request asks
back at once. (If the first leader dies within that round trip, the third voter waits until it returns.) The request is a
pre-vote whose answer is not counted: the response names the epoch, and the leader if there is one.
"""

from __future__ import annotations

from strandline.controller.raft.raft_state import RaftState
from strandline.controller.raft.roles import Follower, Unattached, VoterWithoutState
from strandline.controller.raft.transitions import RoleTransitions
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.cluster import VoteRequest, VoteResponse

logger = get_logger(__name__)

_NO_ANSWER = frozenset({ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INCONSISTENT_VOTER_SET, ErrorCode.INVALID_REQUEST})


class VoterRecovery:
    """Asks the other voters until this voter may vote again."""

    def __init__(self, state: RaftState, transitions: RoleTransitions) -> None:
        self.state = state
        self._transitions = transitions

    def look_for_leader(self, recovery: VoterWithoutState, now: float) -> None:
        """The leader is lost: ask every other voter again, and meanwhile follow no leader."""
        state = self.state
        for voter_id in state.other_voters:
            recovery.ask_at.setdefault(voter_id, now)
        deadline = now + state.election_timeout()
        if isinstance(state.role, Unattached):
            state.role.deadline = deadline
        else:
            self._transitions.become_unattached(state.epoch, deadline)
        self.tick(recovery, now)

    def tick(self, recovery: VoterWithoutState, now: float) -> None:
        """Send the pre-vote requests that are due. Each asks for the other voter's epoch and leader; its vote is not counted."""
        state = self.state
        for voter_id in [voter_id for voter_id, at in recovery.ask_at.items() if at <= now]:
            del recovery.ask_at[voter_id]
            body = VoteRequest(
                state.cluster_id, voter_id, state.epoch, state.node_id, state.log.last_epoch, state.log.end_offset, pre_vote=True
            )
            state.send(voter_id, apis.VOTE, body, after_sync=False)

    def on_request_from(self, voter_id: int, now: float) -> None:
        """A request of this voter arrived, so the voter is up: ask it for its epoch now. The epoch in the request is no answer,
        because the request may be old."""
        recovery = self.state.recovery
        if recovery is not None and voter_id in recovery.unanswered and voter_id in recovery.ask_at:
            recovery.ask_at[voter_id] = now
            self.tick(recovery, now)

    def on_vote_response(self, recovery: VoterWithoutState, from_id: int, response: VoteResponse, now: float) -> bool:
        """Take over another voter's epoch if it is higher, and follow the leader that the response names. True if a first fetch
        from that leader is due now."""
        if response.error_code in _NO_ANSWER:
            self.on_vote_failed(recovery, from_id, now)
            return False
        self._transitions.maybe_follow_response(response.error_code, response.leader_id, response.leader_epoch, now)
        recovery.unanswered.discard(from_id)
        self.maybe_recover()
        role = self.state.role
        if not self.state.may_fetch or not isinstance(role, Follower) or role.has_fetched:
            return False
        role.fetch_at = now
        return True

    def on_vote_failed(self, recovery: VoterWithoutState, voter_id: int, now: float) -> None:
        """A voter that has never answered this process has failed to answer again: ask it after the backoff."""
        if voter_id in recovery.unanswered:
            recovery.ask_at[voter_id] = now + self.state.config.election_backoff_ms_max / 1000

    def maybe_recover(self) -> None:
        """Become a voter again in two steps, first on the disk and then here: no vote may depend on what a crash would undo."""
        state = self.state
        if state.recovery is None:
            return
        if state.election.recovering:
            if self._has_recovered(state.recovery):
                self._transitions.end_recovery()
        elif not state.election_dirty:
            state.recovery = None
            logger.info(
                "quorum.voter_recovered", node_id=state.node_id, controller_epoch=state.epoch, log_end_offset=state.log.end_offset
            )

    def _has_recovered(self, recovery: VoterWithoutState) -> bool:
        if recovery.unanswered:
            return False
        if self.state.epoch == 0:
            return True
        log, role = self.state.log, self.state.role
        if not isinstance(role, Follower) or role.leader_high_watermark < 0:
            return False
        return log.flushed_offset >= role.leader_high_watermark and self._covers_own_epoch(role.leader_high_watermark)

    def _covers_own_epoch(self, high_watermark: int) -> bool:
        """Whether a record of the current epoch is below `high_watermark`. Only then are all records that earlier epochs
        committed below it, too."""
        log, epoch = self.state.log, self.state.epoch
        snapshot_id = log.latest_snapshot_id
        if snapshot_id is not None and snapshot_id.epoch == epoch:
            return True
        return log.last_epoch == epoch and log.end_offset_for_epoch(epoch - 1).end_offset < high_watermark
