"""A member's side of the newer group protocol (KIP-848): the fields of its heartbeats, and the effect of the responses. Pure.

The coordinator decides which partitions the member may own (the *target*). The heartbeat is the only request: it contains the
fields that have changed, and its response the member epoch and the target.

                    subscribe                      the target lacks what is owned
    UNSUBSCRIBED ---------------> JOINING --> STABLE -------------------> RECONCILING
         ^                          ^           ^                              | the program has given it up
         |                          |           +------- ACKNOWLEDGING <-------+
      LEAVING <-- leave             |              the next heartbeat says so
                                    | the program holds nothing any more
             FENCED ----------------+-------- STALE, after the next poll
                ^ the coordinator has              ^ the program has not asked for records for too long:
                | removed the member               | the member leaves by itself

    FAILED: the coordinator does not accept the member, and trying again would not help; `subscribe` tries again.

Rules:

- The member owns a partition from the response whose target names it, whether the program has taken it already or not, until the
  program has given it up. It reports the partition as owned for that time. So the coordinator gives a partition to no other
  member while the program might read it, however late the program reacts to a target.
- The *tenure* is the number of a stay in the group. It changes whenever the member loses all that it owned. Reports of the
  program about an older tenure are ignored, so no part of a lost assignment is mistaken for a part of the next one.
- A heartbeat contains the fields that differ from those that the coordinator is known to have. After a request without a response
  nothing is known: the next heartbeat has all fields and the same epoch, and its response the whole target.
- A heartbeat without changed fields may wait at the coordinator until there is news (`max_wait_ms`). If another
  heartbeat is due meanwhile (a field has changed, or `beat_now`), the member gives the waiting one up (`give_up_waiting`) as if
  its response were lost.
- A member that was removed joins again (epoch 0) only after the program holds no partition of the tenure that has ended.
- The last successful heartbeat began a session at the coordinator. The member relies on its partitions until that session may
  end, counted from the time when the heartbeat was sent. After that the consumer returns no more records, although it keeps its
  partitions: a later heartbeat that succeeds shows whether it still owns them. If the connection to the coordinator breaks, the
  coordinator may end the session after its grace time, so the member relies on the session no longer than that. If the
  coordinator does not send its session timeout, three heartbeat intervals count, as in its defaults: if its sessions are longer,
  the consumer only stops returning records too early; if they are shorter, another member may read a partition before this one
  notices.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from itertools import groupby
from random import Random
from typing import NamedTuple

from strandline.client.errors import GroupMembershipFailed, GroupMembershipNotAuthorized, describe, request_failed
from strandline.protocol.errors import ERRORS, ErrorCode, StrandlineError, to_code
from strandline.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    GroupTopicPartitions,
)
from strandline.protocol.partitions import TopicIdPartition

JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
FIRST_INTERVAL_S = 3.0
"""The heartbeat interval before the coordinator has named one."""
SESSION_INTERVALS = 3
WAIT_MS_MAX = 60_000
"""The longest time that a heartbeat may wait for news. The coordinator waits no longer than its heartbeat interval."""
EARLY_S = 0.02
"""Seconds. A waiting heartbeat that is answered sooner than this, without news, has an early answer."""
EARLY_MAX = 10
"""After this many early answers in a row, the member itself waits a heartbeat interval, so that a broken coordinator does not
keep it busy."""
RETRY_MAX_S = 1.0
"""The pause between heartbeats that fail doubles up to this."""

FIND_AGAIN = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""Errors that mean that another broker may be the coordinator."""
REMOVED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND})
"""Errors that mean that this member, or this epoch of it, is no longer in the group."""

_ADVICE = {
    ErrorCode.UNRELEASED_INSTANCE_ID: "stop the other member, or wait until its session has ended",
    ErrorCode.FENCED_INSTANCE_ID: "each running member needs a group_instance_id of its own",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "choose another group_remote_assignor",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the brokers' group.consumer.max.size limits the members of a group",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "subscribe with a pattern in RE2 syntax",
    ErrorCode.UNSUPPORTED_VERSION: "the brokers must be upgraded before they can coordinate groups",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the group has members of the classic protocol that cannot be migrated",
}


class MemberState(Enum):
    """The states of the picture at the head of this module."""

    UNSUBSCRIBED = "unsubscribed"
    JOINING = "joining"
    STABLE = "stable"
    RECONCILING = "reconciling"
    ACKNOWLEDGING = "acknowledging"
    FENCED = "fenced"
    STALE = "stale"
    LEAVING = "leaving"
    FAILED = "failed"


_S = MemberState
_IN_GROUP = frozenset({_S.STABLE, _S.RECONCILING, _S.ACKNOWLEDGING})
"""The states in which the coordinator has accepted the member in this tenure."""

TRANSITIONS: dict[MemberState, frozenset[MemberState]] = {
    _S.UNSUBSCRIBED: frozenset({_S.JOINING}),
    _S.JOINING: _IN_GROUP | {_S.FENCED, _S.STALE, _S.LEAVING, _S.FAILED, _S.UNSUBSCRIBED},
    _S.STABLE: frozenset({_S.RECONCILING, _S.ACKNOWLEDGING, _S.FENCED, _S.STALE, _S.LEAVING, _S.FAILED}),
    _S.RECONCILING: frozenset({_S.STABLE, _S.ACKNOWLEDGING, _S.FENCED, _S.STALE, _S.LEAVING, _S.FAILED}),
    _S.ACKNOWLEDGING: frozenset({_S.STABLE, _S.RECONCILING, _S.FENCED, _S.STALE, _S.LEAVING, _S.FAILED}),
    _S.FENCED: frozenset({_S.JOINING, _S.UNSUBSCRIBED}),
    _S.STALE: frozenset({_S.JOINING, _S.LEAVING, _S.UNSUBSCRIBED}),
    _S.LEAVING: frozenset({_S.UNSUBSCRIBED}),
    _S.FAILED: frozenset({_S.FENCED, _S.LEAVING, _S.UNSUBSCRIBED}),
}
"""State -> the states that may follow."""


class Identity(NamedTuple):
    """The fields of a member that never change."""

    group_id: str
    member_id: str
    """A random UUID, chosen by the member (KIP-1082)."""
    instance_id: str | None = None
    rack_id: str | None = None
    assignor: str | None = None
    rebalance_timeout_ms: int = 300_000


class Topics(NamedTuple):
    """A member's subscription: topics by name, or a regular expression, which the coordinator evaluates."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def include(self, topic: str) -> bool:
        """Whether the subscription includes the topic. An invalid pattern includes nothing here; the coordinator rejects it."""
        if self.pattern is None:
            return topic in self.names
        import re2  # Imported here, because only programs with patterns need it.

        options = re2.Options()
        options.log_errors = False
        try:
            return topic in self.names or re2.compile(self.pattern, options).fullmatch(topic) is not None
        except re2.error:
            return topic in self.names


class _Fields(NamedTuple):
    """The fields of a heartbeat that may change."""

    topics: Topics
    owned_keys: frozenset[TopicIdPartition] | None
    """None (only in `Membership._known`): the coordinator has sent another target since the last report, and waits for a new
    report."""


class _Sent(NamedTuple):
    """The heartbeat in flight."""

    tenure: int
    fields: _Fields | None
    """None: the request leaves the group."""
    sent_at: float
    waits: bool = False
    """The heartbeat has no changed fields, so the coordinator may hold the response back until there is news."""


class Membership:
    """The state of one member. All times are on the loop's clock, in seconds. `random` spreads the retries of many members."""

    def __init__(self, identity: Identity, random: Random, *, retry_backoff_s: float = 0.1) -> None:
        self.identity = identity
        self._random = random
        self._retry_backoff_s = retry_backoff_s
        self.state = MemberState.UNSUBSCRIBED
        self.topics: Topics | None = None
        """None: the member does not want to be in the group."""
        self.epoch = JOIN_EPOCH
        """The member epoch of the newest response; 0 outside the group."""
        self.tenure = 0
        """Increases by one whenever the member loses or gives up all that it owned."""
        self.target_at = float("-inf")
        """When the heartbeat whose response brought the target was sent. The coordinator's rebalance timeout for the target does
        not begin before that."""
        self.target_keys: frozenset[TopicIdPartition] | None = None
        """The partitions that the member may own, by the newest response; None before the first response of this tenure."""
        self.owned_keys: frozenset[TopicIdPartition] = frozenset()
        """The partitions of all targets of this tenure, without those that the program has given up. A superset of `target_keys`.
        Empty outside the group."""
        self.interval_s = FIRST_INTERVAL_S
        """Seconds from one heartbeat to the next, as the coordinator's newest response says."""
        self._session_s = self._grace_s = 0.0
        """The coordinator's session timeout, and its grace time after a lost connection, in seconds; 0: not known."""
        self._connection_lost_at: float | None = None
        """When the connection to the coordinator was lost, if no heartbeat has succeeded since; None otherwise."""
        self.due_at = float("inf")
        """When the next heartbeat is to be sent."""
        self.confirmed_at: float | None = None
        """When the last heartbeat that succeeded in this tenure was sent."""
        self.failures = 0
        """Heartbeats that failed in a row."""
        self.last_error: StrandlineError | None = None
        """Why the last heartbeat failed; None if it succeeded."""
        self.error: StrandlineError | None = None
        """Why the member has failed. Not None exactly in the state FAILED."""
        self.poll_gap_s: float | None = None
        """Seconds for which the program had not polled when the member left because of that; None once a heartbeat succeeds."""
        self._known: _Fields | None = None
        """The fields that the coordinator is known to have. None: perhaps it has none, so the next heartbeat has all fields."""
        self._in_flight: _Sent | None = None
        self._early_answers = 0
        """Early answers in a row (see EARLY_S)."""
        self._is_released = True
        """The program holds nothing of an earlier tenure."""
        self._has_asked_to_join = False
        """A request of this tenure was sent, so the coordinator may count this member as one of the group."""
        self._farewell_until: float | None = None
        """The request that leaves the group is due, or in flight, and is repeated until this time; None: the member has no such
        request to send."""
        self._is_program_back = False
        """Counts in the state STALE: the program has asked for records again."""
        self._has_sent_pattern = False

    @property
    def valid_until(self) -> float:
        """The time until which the member relies on the partitions that it owns (the last rule at the head of this module)."""
        if self.confirmed_at is None:
            return float("-inf")
        until = self.confirmed_at + (self._session_s or SESSION_INTERVALS * self.interval_s)
        if self._connection_lost_at is None or not self._grace_s:
            return until
        return min(until, self._connection_lost_at + self._grace_s)

    # -- what the program does ----------------------------------------------------------------------------------------

    def subscribe(self, topics: Topics, now: float) -> None:
        """Join the group with this subscription, or change the member's subscription."""
        is_same, self.topics = topics == self.topics, topics
        if self.state is _S.UNSUBSCRIBED:
            self._join(now)
        elif self.state is _S.FAILED:
            self.error = None
            self._become(_S.FENCED)
            self._maybe_join(now)
        elif not is_same and (self.state in _IN_GROUP or self.state is _S.JOINING):
            self.due_at = now

    def leave(self, now: float, within_s: float) -> None:
        """Leave the group: the program has given up everything. The request is repeated for at most `within_s` seconds."""
        self.topics = self.error = None
        if self.state in (_S.UNSUBSCRIBED, _S.LEAVING):
            return
        if self._has_asked_to_join:
            self._farewell(now, within_s)
        self._end_tenure()
        self._is_released = True
        if self._farewell_until is None:
            self._become(_S.UNSUBSCRIBED)
        else:
            self._farewell_until = min(self._farewell_until, now + within_s)
            self._become(_S.LEAVING)

    def on_given_up(self, tenure: int, given_up: Iterable[TopicIdPartition], now: float) -> None:
        """The program no longer reads these partitions, or has never taken them. A partition that a newer target names again is
        still owned, because the program will take it again."""
        if tenure != self.tenure or self.target_keys is None or self.state not in _IN_GROUP:
            return
        owned = self.owned_keys.difference(given_up) | self.target_keys
        if owned != self.owned_keys:
            self.owned_keys = owned
            self._become(_S.ACKNOWLEDGING)
            self.due_at = now

    def on_released(self, tenure: int, now: float) -> None:
        """The program holds nothing of the tenures before this one."""
        if tenure == self.tenure:
            self._is_released = True
            self._maybe_join(now)

    def on_poll(self, now: float) -> None:
        """The program asks for records. If the member left because the program had not done so for too long, it joins again."""
        if self.state is _S.STALE:
            self._is_program_back = True
            self._maybe_join(now)

    def on_poll_expired(self, gap_s: float, now: float) -> None:
        """The program has not asked for records for `gap_s` seconds, which is too long: leave the group."""
        if self.state not in _IN_GROUP and self.state is not _S.JOINING:
            return
        self.poll_gap_s = gap_s
        self._is_program_back = False
        if self._has_asked_to_join:
            self._farewell(now, SESSION_INTERVALS * self.interval_s)
        self._end_tenure()
        self._become(_S.STALE)

    def beat_now(self, now: float) -> None:
        """Make the next heartbeat due now, because its response is needed soon."""
        if self.state in _IN_GROUP or self.state is _S.JOINING:
            self.due_at = min(self.due_at, now)

    def on_connection_lost(self, now: float) -> None:
        """The connection to the coordinator was lost: send the next heartbeat at once, as `returns_at_once` in each request has
        promised."""
        if self._connection_lost_at is None:
            self._connection_lost_at = now
        self.beat_now(now)

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether a heartbeat is in flight that may wait for news."""
        return self._in_flight is not None and self._in_flight.waits

    def give_up_waiting(self) -> None:
        """Another heartbeat is due while the one in flight waits: give up the one in flight. A response to it would be
        ignored."""
        assert self.is_waiting, "only a heartbeat that waits is given up"
        self._in_flight, self._known = None, None

    def next_request(self, now: float) -> ConsumerGroupHeartbeatRequest:
        """The heartbeat that is due. `on_response` or `on_failure` follows before the next one."""
        assert self._in_flight is None, "there is one heartbeat at a time"
        group_id, member_id, instance_id = self.identity.group_id, self.identity.member_id, self.identity.instance_id
        if self._farewell_until is not None:
            self._in_flight = _Sent(self.tenure, None, now)
            epoch = LEAVE_EPOCH if instance_id is None else STATIC_LEAVE_EPOCH
            return ConsumerGroupHeartbeatRequest(group_id, member_id, epoch, instance_id, returns_at_once=True)
        assert self.topics is not None, "a member has a subscription"
        fields = _Fields(self.topics, self.owned_keys)
        waits = fields == self._known
        self._in_flight = _Sent(self.tenure, fields, now, waits)
        self._has_asked_to_join = True
        request = ConsumerGroupHeartbeatRequest(group_id, member_id, self.epoch, instance_id, returns_at_once=True)
        self._fill(request, fields)
        request.max_wait_ms = WAIT_MS_MAX
        if waits:
            self.due_at = float("inf")
        return request

    def _fill(self, request: ConsumerGroupHeartbeatRequest, fields: _Fields) -> None:
        """Set the fields that differ from what the coordinator is known to have."""
        known, topics = self._known, fields.topics
        if known is None:
            request.rebalance_timeout_ms = self.identity.rebalance_timeout_ms
            request.rack_id, request.server_assignor = self.identity.rack_id, self.identity.assignor
        if known is None or topics.names != known.topics.names:
            request.subscribed_topic_names = list(topics.names)
        if topics.pattern != (None if known is None else known.topics.pattern) or (known is None and self._has_sent_pattern):
            request.subscribed_topic_regex = topics.pattern or ""
            self._has_sent_pattern = True
        if known is None or self.owned_keys != known.owned_keys:
            request.topic_partitions = by_topic_id(sorted(self.owned_keys))

    def on_response(self, response: ConsumerGroupHeartbeatResponse, now: float) -> None:
        """The coordinator has answered the heartbeat in flight."""
        code = to_code(response.error_code)
        if code != ErrorCode.NONE:
            self._on_error(code, response.error_message, now)
            return
        sent = self._take_in_flight()
        if sent.fields is None:
            self._on_left(now)
        elif sent.tenure == self.tenure and self.state is not _S.LEAVING:
            self._on_success(sent, sent.fields, response, now)

    def on_failure(self, error: StrandlineError, now: float) -> None:
        """The heartbeat in flight has failed: an error rejected the whole request, or there was no response."""
        code = getattr(error, "code", None)
        if isinstance(code, ErrorCode) and not error.retriable:
            self._on_error(code, str(error), now)
        else:
            self._on_retriable(self._take_in_flight(), error, now)

    def _take_in_flight(self) -> _Sent:
        sent, self._in_flight = self._in_flight, None
        assert sent is not None, "an answer follows a request"
        return sent

    def _on_success(self, sent: _Sent, fields: _Fields, response: ConsumerGroupHeartbeatResponse, now: float) -> None:
        self.failures, self.last_error, self.poll_gap_s = 0, None, None
        is_early = sent.waits and response.assignment is None and response.member_epoch == self.epoch
        self._early_answers = self._early_answers + 1 if is_early and now - sent.sent_at < EARLY_S else 0
        self.epoch, self._known = response.member_epoch, fields
        self.interval_s = max(1, response.heartbeat_interval_ms) / 1000
        self._session_s, self._grace_s = response.session_timeout_ms / 1000, response.connection_loss_grace_ms / 1000
        self.confirmed_at, self._connection_lost_at = sent.sent_at, None
        if response.assignment is not None:
            self._take_target(response.assignment, sent.sent_at)
        elif self.target_keys is None:
            self.target_keys = frozenset()
        asks_at_once = response.next_at_once and self._early_answers < EARLY_MAX
        next_due = now if asks_at_once else sent.sent_at + self.interval_s
        self.due_at = min(self.due_at, next_due) if sent.waits else next_due
        if fields.owned_keys is not None and fields.owned_keys - self.owned_keys:
            self._become(_S.ACKNOWLEDGING)  # A partition was given up while the request was in flight.
            self.due_at = sent.sent_at
        else:
            self._become(_S.STABLE if self.owned_keys == self.target_keys else _S.RECONCILING)
        if fields.topics != self.topics:
            self.due_at = sent.sent_at

    def _take_target(self, assignment: list[GroupTopicPartitions], sent_at: float) -> None:
        target = frozenset((topic.topic_id, index) for topic in assignment for index in topic.partitions)
        if target != self.target_keys:
            self.target_at = sent_at
        if target != self.target_keys and self._known is not None:
            self._known = self._known._replace(owned_keys=None)
        self.target_keys, self.owned_keys = target, self.owned_keys | target

    def _on_error(self, code: ErrorCode, message: str | None, now: float) -> None:
        sent = self._take_in_flight()
        if ERRORS[code].retriable and code not in REMOVED:
            self._on_retriable(sent, _rejected(code, message), now)
        elif sent.fields is None:
            self._on_left(now)  # The member was removed already, or the coordinator will never accept the request.
        elif sent.tenure == self.tenure and self.state is not _S.LEAVING:
            self.last_error = _rejected(code, message)
            if code in REMOVED:
                self.failures += 1
                self._end_tenure()
                self._become(_S.FENCED)
            else:
                self._fail(code, message, now)

    def _on_retriable(self, sent: _Sent, error: StrandlineError, now: float) -> None:
        """Send the heartbeat again after a pause, or at once if the coordinator may be another broker and this is the first
        failure."""
        self.failures += 1
        self.last_error, self._known = error, None
        if sent.fields is None and self._farewell_until is not None and now >= self._farewell_until:
            self._on_left(now)
        elif sent.fields is None or sent.tenure == self.tenure:
            is_moved = getattr(error, "code", None) in FIND_AGAIN and self.failures == 1
            self.due_at = now if is_moved else now + self._pause_s()

    def _pause_s(self) -> float:
        pause_s = min(self._retry_backoff_s * 2.0 ** min(self.failures - 1, 10), RETRY_MAX_S)
        return pause_s * self._random.uniform(0.8, 1.2)

    # -- tenures ------------------------------------------------------------------------------------------------------

    def _become(self, state: MemberState) -> None:
        assert state is self.state or state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    def _end_tenure(self) -> None:
        """The member no longer owns any partition. The program must still give up those that it has."""
        self.tenure += 1
        self.epoch, self.target_keys, self.owned_keys = JOIN_EPOCH, None, frozenset()
        self.confirmed_at, self._known = None, None
        self._is_released = self._has_asked_to_join = False
        if self._farewell_until is None:
            self.due_at = float("inf")

    def _join(self, now: float) -> None:
        """Join at once, or after a pause if the coordinator removes the member again and again."""
        self._become(_S.JOINING)
        self.due_at = now if self.failures <= 1 else now + self._pause_s()

    def _maybe_join(self, now: float) -> None:
        """Join again if everything of the last tenure is settled."""
        if not self._is_released or self._farewell_until is not None or self.topics is None:
            return
        if self.state is _S.FENCED or (self.state is _S.STALE and self._is_program_back):
            self._join(now)

    def _farewell(self, now: float, within_s: float) -> None:
        self._farewell_until, self.due_at = now + within_s, now

    def _on_left(self, now: float) -> None:
        """The request that leaves the group was answered, or was repeated for long enough."""
        self._farewell_until, self.due_at, self.failures = None, float("inf"), 0
        if self.state is _S.LEAVING:
            self._become(_S.UNSUBSCRIBED)
            if self.topics is not None:
                self._join(now)
        else:
            self._maybe_join(now)

    def _fail(self, code: ErrorCode, message: str | None, now: float) -> None:
        """The coordinator rejects the member for good. If it is still in the group, leave, so that other members get its
        partitions before its session ends."""
        identity = self.identity
        text = f"the coordinator of group {identity.group_id!r} refuses the member: {describe(code, message)}"
        advice = _ADVICE.get(code)
        kind = GroupMembershipNotAuthorized if code == ErrorCode.GROUP_AUTHORIZATION_FAILED else GroupMembershipFailed
        self.error = kind(text if advice is None else f"{text}; {advice}", code=code)
        if self.epoch > JOIN_EPOCH:
            self._farewell(now, SESSION_INTERVALS * self.interval_s)
        self._end_tenure()
        self.failures = 0
        self._become(_S.FAILED)


def _rejected(code: ErrorCode, message: str | None) -> StrandlineError:
    return request_failed(describe(code, message), api="ConsumerGroupHeartbeat", code=code)


def by_topic_id(partitions: Iterable[TopicIdPartition]) -> list[GroupTopicPartitions]:
    """The partitions in the form of requests: by topic id, in order."""
    grouped = groupby(sorted(partitions), key=lambda key: key[0])
    return [GroupTopicPartitions(topic_id, [index for _, index in keys]) for topic_id, keys in grouped]
