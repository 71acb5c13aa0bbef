"""One voter of the metadata quorum, as a plain state machine: events in, two outboxes out.

    shell                                    RaftNode
    a request arrived          ->  on_request(api_key, body, ticket, session, now)
    a response arrived         ->  on_response(send, body, now)  or  on_failure(send, error, now)
    the deadline passed        ->  tick(now)
    once per turn of the loop: ->  complete_fetches(now)
                                   outbox.take_at_once()                           leaves now
                                   outbox.take_after_sync()                        held until the next three are done:
                                   quorum-state written if `election_dirty`, log flushed
                               ->  on_synced(now)

The class is put together from four parts that share the state of `base.NodeBase`: `elections`, `leading`, `following`,
`learning`. Which role may follow which is the table in `roles.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.controller.raft.elections import Elections
from strandline.controller.raft.following import Following
from strandline.controller.raft.leading import Leading
from strandline.controller.raft.outbox import Send
from strandline.controller.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role
from strandline.controller.raft.voter_recovery import Learning
from strandline.protocol import apis


class RaftNode(Following, Leading, Learning, Elections):
    """See the module's text for the contract with the shell."""

    def tick(self, now: float) -> None:
        """Do what is due. May be called at any time; `next_deadline()` says when it is needed."""
        if self.lessons is not None:
            self.tick_learning(self.lessons, now)
        role = self.role
        if isinstance(role, Leader):
            self.tick_leader(now)
        elif isinstance(role, Follower):
            self.tick_follower(now)
        elif isinstance(role, Prospective):
            self.tick_prospective(now)
        elif isinstance(role, Candidate):
            self.tick_candidate(now)
        elif isinstance(role, Resigned):
            self.tick_resigned(now)
        else:
            self.tick_unattached(now)

    def next_deadline(self) -> float:
        deadline = self.role.next_deadline()
        return deadline if self.lessons is None else min(deadline, self.lessons.next_deadline())

    def on_left(self, role: Role) -> None:
        if isinstance(role, Leader):
            self.answer_parked(role)
        elif isinstance(role, Follower) and role.download is not None:
            role.download.sink.discard()

    def on_synced(self, now: float) -> None:
        """`quorum-state` and the log, as they were when the shell began this, are on the disk."""
        self.maybe_take_up_vote()
        self.on_own_vote_synced(now)
        self.on_log_synced(now)

    def on_request(self, api_key: int, body: Any, ticket: object, session: int, now: float) -> None:
        if api_key == apis.FETCH:
            self.on_fetch_request(body, ticket, session, now)
            return
        handlers: dict[int, Callable[[Any, object, float], None]] = {
            apis.VOTE: self.on_vote_request,
            apis.BEGIN_QUORUM_EPOCH: self.on_begin_epoch_request,
            apis.END_QUORUM_EPOCH: self.on_end_epoch_request,
            apis.FETCH_SNAPSHOT: self.on_fetch_snapshot_request,
            apis.DESCRIBE_QUORUM: self.on_describe_request,
        }
        handlers[api_key](body, ticket, now)

    def on_response(self, send: Send, body: Any, now: float) -> None:
        """The answer to `send`. What it says of epochs is always heard, the rest only while the asking role lasts."""
        if send.api_key == apis.FETCH:
            self.on_fetch_response(body, send.role, now)
        elif send.api_key == apis.FETCH_SNAPSHOT:
            self.on_fetch_snapshot_response(body, send.role, now)
        elif send.api_key == apis.VOTE:
            self.on_vote_response(send.to_id, body, send.role, now)
        elif send.api_key == apis.BEGIN_QUORUM_EPOCH:
            self.on_begin_epoch_response(send.to_id, body, send.role, now)
        else:
            self.on_end_epoch_response(send.to_id, body, send.role, now)

    def on_failure(self, send: Send, error: int, now: float) -> None:
        """No answer to `send`: the connection was lost, or the time is over."""
        if send.api_key in (apis.FETCH, apis.FETCH_SNAPSHOT):
            self.on_fetch_failed(send.role, error, now)
        elif send.api_key == apis.VOTE:
            self.on_vote_failed(send.to_id, error, send.role, now)
        elif send.api_key == apis.BEGIN_QUORUM_EPOCH:
            self.on_begin_epoch_failed(send.to_id, send.role, now)
        else:
            self.on_end_epoch_failed(send.to_id, send.role, now)


QUORUM_APIS = (
    apis.FETCH,
    apis.VOTE,
    apis.BEGIN_QUORUM_EPOCH,
    apis.END_QUORUM_EPOCH,
    apis.FETCH_SNAPSHOT,
    apis.DESCRIBE_QUORUM,
)
