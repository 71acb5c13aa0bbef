"""One voter of the metadata quorum, as a plain state machine: events in, two outboxes out.

    shell                                    RaftNode
    a request arrived          ->  on_request(api_key, body, ticket, session, now)
    a response arrived         ->  on_response(send, body, now)  or  on_failure(send, error, now)
    the deadline passed        ->  tick(now)
    once per event-loop
    iteration:                 ->  complete_fetches(now)
                                   state.outbox.take_at_once()                     leaves now
                                   state.outbox.take_after_sync()                  held until the next three are done:
                                   quorum-state written if `state.election_dirty`, log flushed
                               ->  on_synced(now)

The node hands each event to a handler. The handlers share the `RaftState`, and change its role through `RoleTransitions`
alone. Each one knows only those above it:

    raft_state           the shared state
    transitions          every change of role and election, by one table
    resigned_handler     Resigned: EndQuorumEpoch is sent
    leader_handler       Leader: BeginQuorumEpoch is sent, the high watermark advances
    leader_fetches       Leader: Fetch and FetchSnapshot are answered
    voter_recovery       a voter that lost its disk, in any role without a vote
    election_handler     Unattached, Voted, Prospective, Candidate: Vote is sent and answered
    follower_handler     Follower: Fetch and FetchSnapshot are sent
    epoch_announcements  BeginQuorumEpoch and EndQuorumEpoch are received
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.election import ElectionState
from strandline.controller.raft.election_handler import ElectionHandler
from strandline.controller.raft.epoch_announcements import EpochAnnouncements
from strandline.controller.raft.follower_handler import FollowerHandler
from strandline.controller.raft.leader_fetches import LeaderFetches
from strandline.controller.raft.leader_handler import LeaderHandler
from strandline.controller.raft.log import RaftLog
from strandline.controller.raft.outbox import Send
from strandline.controller.raft.raft_state import RaftState
from strandline.controller.raft.resigned_handler import ResignedHandler
from strandline.controller.raft.roles import Candidate, Follower, Leader, Prospective, Resigned
from strandline.controller.raft.transitions import RoleTransitions
from strandline.controller.raft.voter_recovery import VoterRecovery
from strandline.protocol import apis


class RaftNode:
    """One voter. The text of this module is its contract with the shell, which reads `state` and empties its outbox."""

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
        self.state = state = RaftState(
            node_id=node_id,
            cluster_id=cluster_id,
            voter_ids=voter_ids,
            log=log,
            election=election,
            config=config,
            random=random,
            committed_offset=committed_offset,
        )
        self._transitions = RoleTransitions(state)
        self._resigned = ResignedHandler(state, self._transitions)
        self._leader = LeaderHandler(state, self._transitions, self._resigned)
        self._fetches = LeaderFetches(state, self._leader)
        self._voter_recovery = VoterRecovery(state, self._transitions)
        self._elections = ElectionHandler(state, self._transitions, self._leader, self._voter_recovery)
        self._follower = FollowerHandler(state, self._transitions, self._elections)
        self._announcements = EpochAnnouncements(state, self._transitions, self._elections, self._follower)
        self._handlers: dict[int, Callable[[Any, object, float], None]] = {
            apis.VOTE: self._elections.on_vote_request,
            apis.BEGIN_QUORUM_EPOCH: self._announcements.on_begin_epoch_request,
            apis.END_QUORUM_EPOCH: self._announcements.on_end_epoch_request,
            apis.FETCH_SNAPSHOT: self._fetches.on_fetch_snapshot_request,
            apis.DESCRIBE_QUORUM: self._fetches.on_describe_request,
        }

    # -- time ----------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Take up the first role. The only voter of a cluster starts its election at once."""
        self._transitions.start(now)
        if not self.state.other_voters:
            self.tick(now)

    def tick(self, now: float) -> None:
        """Do what is due. May be called at any time; `next_deadline()` says when it is needed."""
        state = self.state
        if state.recovery is not None:
            self._voter_recovery.tick(state.recovery, now)
        role = state.role
        if isinstance(role, Leader):
            self._leader.tick(now)
            if state.role is role:
                self._fetches.answer_expired(role, now)
        elif isinstance(role, Follower):
            self._follower.tick(now)
        elif isinstance(role, Prospective):
            self._elections.tick_prospective(now)
        elif isinstance(role, Candidate):
            self._elections.tick_candidate(now)
        elif isinstance(role, Resigned):
            self._resigned.tick(now)
        else:
            self._elections.tick_unattached(now)

    def next_deadline(self) -> float:
        """When `tick` is needed next, on the clock of `now`; infinity if nothing is scheduled."""
        state = self.state
        deadline = state.role.next_deadline()
        return deadline if state.recovery is None else min(deadline, state.recovery.next_deadline())

    # -- for the active controller -------------------------------------------------------------------------------------

    def append(self, batch: bytearray, epoch: int) -> int:
        """Append one batch as leader of `epoch`, and return its last offset (`LeaderHandler.append`)."""
        return self._leader.append(batch, epoch)

    def resign(self, now: float) -> None:
        """Stop leading on purpose; the other voters are notified, and the one with the longest log is the first successor. Only
        for a leader."""
        self._transitions.become_resigned(now)

    # -- the disk and the network --------------------------------------------------------------------------------------

    def complete_fetches(self, now: float) -> None:
        """Answer the parked fetches that an append or a higher high watermark completes."""
        self._fetches.complete_fetches(now)

    def on_synced(self, now: float) -> None:
        """`quorum-state` and the log are on the disk, as they were when the shell started the sync."""
        self._voter_recovery.maybe_recover()
        self._elections.on_own_vote_synced(now)
        self._leader.on_log_synced(now)

    def on_request(self, api_key: int, body: Any, ticket: object, session: int, now: float) -> None:
        """Handle one request of `QUORUM_APIS`. The reply carries `ticket`; `session` numbers the connections."""
        if api_key == apis.FETCH:
            self._fetches.on_fetch_request(body, ticket, session, now)
        else:
            self._handlers[api_key](body, ticket, now)

    def on_response(self, send: Send, body: Any, now: float) -> None:
        """The response to `send`. Its leader and epoch always count; the rest only while the role that sent it lasts."""
        if send.api_key == apis.FETCH:
            self._follower.on_fetch_response(body, send.role, now)
        elif send.api_key == apis.FETCH_SNAPSHOT:
            self._follower.on_fetch_snapshot_response(body, send.role, now)
        elif send.api_key == apis.VOTE:
            self._on_vote_response(send, body, now)
        elif send.api_key == apis.BEGIN_QUORUM_EPOCH:
            self._leader.on_begin_epoch_response(send.to_id, body, send.role, now)
        else:
            self._resigned.on_end_epoch_response(body, now)

    def _on_vote_response(self, send: Send, body: Any, now: float) -> None:
        recovery = self.state.recovery
        if recovery is None:
            self._elections.on_vote_response(send.to_id, body, send.role, now)
        elif self._voter_recovery.on_vote_response(recovery, send.to_id, body, now):
            self._follower.tick(now)

    def on_failure(self, send: Send, error: int, now: float) -> None:
        """No response to `send`: the connection broke, or the request timed out."""
        if send.api_key in (apis.FETCH, apis.FETCH_SNAPSHOT):
            self._follower.on_fetch_failed(send.role, error, now)
        elif send.api_key == apis.VOTE:
            self._elections.on_vote_failed(send.to_id, error, send.role, now)
        elif send.api_key == apis.BEGIN_QUORUM_EPOCH:
            self._leader.on_begin_epoch_failed(send.to_id, send.role, now)
        else:
            self._resigned.on_end_epoch_failed(send.to_id, send.role, now)


QUORUM_APIS = (
    apis.FETCH,
    apis.VOTE,
    apis.BEGIN_QUORUM_EPOCH,
    apis.END_QUORUM_EPOCH,
    apis.FETCH_SNAPSHOT,
    apis.DESCRIBE_QUORUM,
)
