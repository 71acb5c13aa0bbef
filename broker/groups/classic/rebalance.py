"""The rebalances of groups of the classic protocol, and the sessions of their members.

A rebalance has two phases. In the first phase, members send JoinGroup and wait. It ends when all members have joined, or
after the rebalance timeout of the slowest member. Then the next generation begins: each member that has joined gets its
JoinGroup response, and the response of the leader names all members. In the second phase, members send SyncGroup and wait
for the SyncGroup of the leader, which contains the assignments. They get their assignments when the record is committed. A
member that sends no SyncGroup within the rebalance timeout is removed, and the group rebalances again.

The first rebalance of an empty group waits for `group.initial.rebalance.delay.ms` (KIP-134). If members join during this
delay, the rebalance waits for the same delay again, up to the rebalance timeout of the first member.

A member that is silent for its session timeout is removed, except while it waits for the coordinator. A new member that
does not know its id yet cannot send heartbeats. Its JoinGroup stands for its session, and waits for at most five minutes.

Each request that waits gets one answer. If something happens to its member meanwhile, the answer is an error:

    the member joins or syncs again             REBALANCE_IN_PROGRESS for the earlier request
    the member leaves or is removed             UNKNOWN_MEMBER_ID
    another process has the instance id         FENCED_INSTANCE_ID
    a rebalance begins during the second phase  REBALANCE_IN_PROGRESS

(Kafka does not answer some of these requests. Their clients wait until the request times out.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from strandline.broker.coordination.replies import Asker, Replies
from strandline.broker.groups.classic.group import ClassicGroup, InitialRebalance, State
from strandline.broker.groups.classic.member import ClassicMember
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.deadlines import Deadlines
from strandline.broker.groups.records.types import ClassicGroupValue, GroupMetadataRecord
from strandline.broker.groups.result import Removed, Result
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""The time for which the JoinGroup of a new member may wait. A constant in Kafka, too."""

_EXTENSION_MIN_MS = 1000
"""The first phase is extended by at least this time if no member has joined. A rebalance timeout of 0 would keep the
coordinator busy."""

_SESSION, _JOIN, _SYNC = "classic session", "classic join", "classic sync"
"""The first part of the keys of deadlines. The group id follows, and for a session the member id."""


class Moment(NamedTuple):
    now: float
    """The loop's time in seconds, for deadlines."""
    now_ms: int
    """The wall clock, for records."""


class Rebalances:
    """The rebalances and sessions of all groups of a shard. Methods append their decisions to `out`."""

    def __init__(self, config: GroupConfig, deadlines: Deadlines, find: Callable[[str], ClassicGroup | None]) -> None:
        """`find`: returns the classic group with this id."""
        self._config = config
        self._deadlines = deadlines
        self._find = find

    # -- sessions -----------------------------------------------------------------------------------------------------

    def keep_alive(self, group: ClassicGroup, member: ClassicMember, now: float) -> None:
        """Restart the session of a member that has sent a request."""
        self.begin_session(group, member.member_id, member.session_timeout_ms, now)

    def begin_session(self, group: ClassicGroup, member_id: str, timeout_ms: int, now: float) -> None:
        action = partial(self._on_session_end, group.group_id, member_id)
        self._deadlines.set((_SESSION, group.group_id, member_id), now + timeout_ms / 1000, action)

    def end_session(self, group: ClassicGroup, member_id: str) -> None:
        self._deadlines.cancel((_SESSION, group.group_id, member_id))

    def _on_session_end(self, group_id: str, member_id: str, now: float, now_ms: int) -> Result | None:
        group, out = self._find(group_id), Result()
        if group is None:
            return None
        member = group.members.get(member_id)
        if member is None and member_id not in group.pending:
            return None
        if member is not None and group.is_session_paused(member):
            return None
        self.remove(group, member_id, out)
        if member is not None:
            out.removed.append(Removed(group_id, member_id, "its session has ended"))
        self.after_removal(group, Moment(now, now_ms), out, is_rebalance_needed=member is not None)
        return out

    # -- members ------------------------------------------------------------------------------------------------------

    def remove(self, group: ClassicGroup, member_id: str, out: Result) -> None:
        """Remove a member or a pending member. If its process still runs, the error for its waiting request makes it join
        again."""
        self.end_session(group, member_id)
        asker = group.remove(member_id)
        if asker is not None:
            out.replies.append((asker, BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, "the member was removed from the group")))

    def replace(self, group: ClassicGroup, old_id: str, member: ClassicMember, out: Result) -> None:
        """Replace a static member by `member`, which has joined with the same instance id, and fence the earlier one."""
        self.end_session(group, old_id)
        asker = group.replace(old_id, member)
        if asker is not None:
            error = BrokerError(ErrorCode.FENCED_INSTANCE_ID, f"the instance has joined again as member {member.member_id}")
            out.replies.append((asker, error))

    def after_removal(self, group: ClassicGroup, at: Moment, out: Result, *, is_rebalance_needed: bool) -> None:
        """Continue after the removal of members or pending members. `is_rebalance_needed`: at least one was a member."""
        if group.state is State.PREPARING:
            self.maybe_complete_join(group, at, out)
        elif is_rebalance_needed:
            self.prepare(group, at, out)

    def join(self, group: ClassicGroup, member: ClassicMember, asker: Asker, at: Moment, out: Result) -> None:
        """Let the member wait for the end of the rebalance, and start a rebalance if none is in progress."""
        earlier = group.take_waiting(member.member_id)
        if earlier is not None:
            out.replies.append((earlier, BrokerError(ErrorCode.REBALANCE_IN_PROGRESS, "the member has joined again")))
        group.joining[member.member_id] = asker
        if group.state is State.PREPARING:
            self.maybe_complete_join(group, at, out)
        else:
            self.prepare(group, at, out)

    # -- the first phase: JoinGroup -----------------------------------------------------------------------------------

    def prepare(self, group: ClassicGroup, at: Moment, out: Result) -> None:
        """Start a rebalance. Its first phase ends at once if all members have joined already."""
        if group.state is State.COMPLETING:
            self._abandon_syncs(group, BrokerError(ErrorCode.REBALANCE_IN_PROGRESS), at, out.replies)
        group.unsynced.clear()
        self._deadlines.cancel((_SYNC, group.group_id))
        is_initial = group.is_empty
        group.become(State.PREPARING, at.now_ms)
        if is_initial:
            group.initial = InitialRebalance(at.now + group.rebalance_timeout_ms / 1000)
            self._wait_for_joins(group, at.now + self._config.group_initial_rebalance_delay_ms / 1000)
        elif group.have_all_joined:
            self._complete_join(group, at, out)
        else:
            self._wait_for_joins(group, at.now + group.rebalance_timeout_ms / 1000)

    def maybe_complete_join(self, group: ClassicGroup, at: Moment, out: Result) -> None:
        """End the first phase if all members have joined. The first rebalance of a group continues until the end of its
        delay, unless no member is left."""
        if group.have_all_joined and (group.initial is None or not group.members):
            self._complete_join(group, at, out)

    def _wait_for_joins(self, group: ClassicGroup, due: float) -> None:
        self._deadlines.set((_JOIN, group.group_id), due, partial(self._on_join_deadline, group.group_id))

    def _on_join_deadline(self, group_id: str, now: float, now_ms: int) -> Result | None:
        group = self._find(group_id)
        if group is None or group.state is not State.PREPARING:
            return None
        initial = group.initial
        if initial is not None and initial.has_newcomer and now < initial.latest:
            initial.has_newcomer = False
            self._wait_for_joins(group, min(now + self._config.group_initial_rebalance_delay_ms / 1000, initial.latest))
            return None
        out = Result()
        self._complete_join(group, Moment(now, now_ms), out)
        return out

    def _complete_join(self, group: ClassicGroup, at: Moment, out: Result) -> None:
        """Remove dynamic members that have not joined, and begin the next generation with the other members. Static
        members stay until the second phase or their session ends. If no member has joined, extend the phase."""
        self._deadlines.cancel((_JOIN, group.group_id))
        for member in list(group.members.values()):
            if member.member_id not in group.joining and not member.is_static:
                self.remove(group, member.member_id, out)
                out.removed.append(Removed(group.group_id, member.member_id, "it has not joined again in time"))
        if not group.members:
            self._empty(group, at, out)
        elif not group.ensure_leader():
            self._wait_for_joins(group, at.now + max(group.rebalance_timeout_ms, _EXTENSION_MIN_MS) / 1000)
        else:
            self._begin_generation(group, at, out)

    def _empty(self, group: ClassicGroup, at: Moment, out: Result) -> None:
        value = group.emptied_value(at.now_ms)
        out.records.append(GroupMetadataRecord(group.group_id, value))
        out.on_append = partial(self._on_emptied, group, value)

    def _on_emptied(self, group: ClassicGroup, value: ClassicGroupValue, error: BrokerError | None) -> Replies:
        """Empty the group after a failed append, too, because this coordinator has removed its members. The next coordinator
        loads the last generation, and removes its members when their sessions end."""
        if error is not None:
            group.adopt(value)
        return []

    def _begin_generation(self, group: ClassicGroup, at: Moment, out: Result) -> None:
        group.begin_generation(at.now_ms)
        for member in group.members.values():
            asker = group.joining.pop(member.member_id, None)
            if asker is not None:
                out.replies.append((asker, joined(group, member)))
            member.is_new = False
            self.keep_alive(group, member, at.now)
        due = at.now + group.rebalance_timeout_ms / 1000
        self._deadlines.set((_SYNC, group.group_id), due, partial(self._on_sync_deadline, group.group_id))

    # -- the second phase: SyncGroup ----------------------------------------------------------------------------------

    def note_sync(self, group: ClassicGroup, member_id: str) -> None:
        """Record that the member has sent SyncGroup in this generation."""
        group.unsynced.pop(member_id, None)
        if not group.unsynced:
            self._deadlines.cancel((_SYNC, group.group_id))

    def sync(self, group: ClassicGroup, member_id: str, asker: Asker, out: Result) -> None:
        """Let the member wait for the leader's assignment."""
        earlier = group.take_waiting(member_id)
        if earlier is not None:
            out.replies.append((earlier, BrokerError(ErrorCode.REBALANCE_IN_PROGRESS, "the member has synced again")))
        group.syncing[member_id] = asker

    def assign(self, group: ClassicGroup, assignments: Mapping[str, bytes], at: Moment, out: Result) -> None:
        """Write the leader's assignments, and then answer all SyncGroup requests that wait."""
        out.records.append(GroupMetadataRecord(group.group_id, group.value(assignments, at.now_ms)))
        out.on_append = partial(self._on_assigned, group, at)

    def _on_assigned(self, group: ClassicGroup, at: Moment, error: BrokerError | None) -> Replies:
        if error is not None:
            out = Result()
            self._abandon_syncs(group, error, at, out.replies)
            self.prepare(group, at, out)
            return out.replies
        replies: Replies = []
        for member_id, asker in self._take_syncs(group, at):
            replies.append((asker, synced(group, group.members[member_id])))
        return replies

    def _abandon_syncs(self, group: ClassicGroup, error: BrokerError, at: Moment, replies: Replies) -> None:
        """Reject all SyncGroup requests that wait: this generation gets no assignment. The members keep the last assignment
        that was written: cooperative members continue to work with it, and an upgrade to the newer protocol depends on it."""
        replies.extend((asker, error) for _, asker in self._take_syncs(group, at))

    def _take_syncs(self, group: ClassicGroup, at: Moment) -> list[tuple[str, Asker]]:
        """Remove and return the SyncGroup requests that wait, and restart the sessions of their members."""
        waiting = list(group.syncing.items())
        group.syncing.clear()
        for member_id, _ in waiting:
            self.keep_alive(group, group.members[member_id], at.now)
        return waiting

    def _on_sync_deadline(self, group_id: str, now: float, now_ms: int) -> Result | None:
        """Remove the members that have sent no SyncGroup in time."""
        group = self._find(group_id)
        if group is None or not group.unsynced:
            return None
        out = Result()
        for member_id in list(group.unsynced):
            self.remove(group, member_id, out)
            out.removed.append(Removed(group_id, member_id, "it has sent no SyncGroup in time"))
        self.after_removal(group, Moment(now, now_ms), out, is_rebalance_needed=True)
        return out

    # -- the end of a group -------------------------------------------------------------------------------------------

    def forget(self, group: ClassicGroup) -> None:
        """Cancel all deadlines of a group that is deleted."""
        self._deadlines.cancel((_JOIN, group.group_id))
        self._deadlines.cancel((_SYNC, group.group_id))
        for member_id in (*group.members, *group.pending):
            self.end_session(group, member_id)


def joined(group: ClassicGroup, member: ClassicMember) -> JoinGroupResponse:
    """The response to a JoinGroup in this generation. Only the leader gets the list of members."""
    is_leader = member.member_id == group.leader
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        member_id=member.member_id,
        members=[other.for_leader(group.protocol) for other in group.members.values()] if is_leader else [],
    )


def synced(group: ClassicGroup, member: ClassicMember) -> SyncGroupResponse:
    """The response to a SyncGroup in this generation, when its assignments are known."""
    return SyncGroupResponse(0, group.protocol_type, group.protocol, member.assignment)
