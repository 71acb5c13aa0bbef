"""The deadlines of classic members in a group of the newer protocol.

    JoinGroup    within the rebalance timeout after a REBALANCE_IN_PROGRESS
    SyncGroup    within the rebalance timeout after the JoinGroup

A member that is late is removed, although it sends heartbeats, because other members may wait for its partitions. The
deadlines are in no record. A new coordinator sets them when it answers the member.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from strandline.broker.groups.consumer.groups import ConsumerGroups
from strandline.broker.groups.consumer.member_timers import RETRY_S, RemoveMember
from strandline.broker.groups.deadlines import Deadlines
from strandline.broker.groups.result import Result

JOIN, SYNC = "join of a classic member", "sync of a classic member"


class ClassicMemberTimers:
    """The deadlines of classic members for JoinGroup and SyncGroup."""

    def __init__(self, deadlines: Deadlines, groups: ConsumerGroups, remove_member: RemoveMember) -> None:
        self._deadlines = deadlines
        self._groups = groups
        self._remove_member = remove_member

    def expect_join(self, group_id: str, member_id: str, timeout_ms: int, now: float) -> None:
        """Set the deadline for the JoinGroup of a member that gets REBALANCE_IN_PROGRESS. An earlier deadline stays."""
        if (JOIN, group_id, member_id) not in self._deadlines:
            self._set(JOIN, group_id, member_id, now + timeout_ms / 1000)

    def on_joined(self, group_id: str, member_id: str, timeout_ms: int, now: float) -> None:
        self._deadlines.cancel((JOIN, group_id, member_id))
        self._set(SYNC, group_id, member_id, now + timeout_ms / 1000)

    def on_synced(self, group_id: str, member_id: str) -> None:
        self._deadlines.cancel((SYNC, group_id, member_id))

    def forget(self, group_id: str, member_ids: Iterable[str]) -> None:
        """Cancel the deadlines of members whose group has become a classic one."""
        for member_id in member_ids:
            self._deadlines.cancel((JOIN, group_id, member_id))
            self._deadlines.cancel((SYNC, group_id, member_id))

    def _set(self, kind: str, group_id: str, member_id: str, due: float) -> None:
        self._deadlines.set((kind, group_id, member_id), due, partial(self._on_end, kind, group_id, member_id))

    def _on_end(self, kind: str, group_id: str, member_id: str, now: float, now_ms: int) -> Result | None:
        member = self._groups.member(group_id, member_id)
        if member is None or not member.is_classic:
            return None
        # If the removal cannot be appended, this deadline repeats it. Otherwise the member no longer exists when it is due.
        self._set(kind, group_id, member_id, now + RETRY_S)
        return self._remove_member(group_id, member_id, now, now_ms)
