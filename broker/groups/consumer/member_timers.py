"""The deadlines of members: the end of the session, and of the rebalance timeout.

Each heartbeat restarts the session. Some members promise to send the next heartbeat at once if their connection breaks
(`returns_at_once`). When that happens, their sessions are shortened: a member that stays silent has crashed.

**A shorter session** (`group_config_manager.py`) begins when the member knows it. If the response with the new session timeout is
lost, the member reads its partitions until its previous session ends:

    heartbeat   session   the member has got         its session ends
    1           50 s                                 50 s after 1
    2            9 s      the answer to 1            50 s after 1
    3            9 s      the answer to 2             9 s after 3
    3            9 s      perhaps not that to 2      50 s after 1

(Kafka's session ends 9 s after the second heartbeat. Its members do not know how long their sessions are.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.deadlines import Deadlines
from strandline.broker.groups.group_config_manager import GroupConfigManager
from strandline.broker.groups.result import Removed, Result

SESSION, REBALANCE = "session", "rebalance"
RETRY_S = 0.5
"""A removal is repeated after this time if it could not be appended. Its replay cancels the deadline."""

RemoveMember = Callable[[str, str, float, int], Result | None]
"""Group, member, now in seconds and in ms -> the decision that removes the member; None if there is no such member."""
IsRevoking = Callable[[str, str, int], bool]
"""Group, member, member epoch -> whether the member still has to revoke partitions in this epoch."""


class MemberTimers:
    """The sessions and rebalance timeouts of the members of one shard."""

    def __init__(
        self,
        config: GroupConfig,
        settings: GroupConfigManager,
        deadlines: Deadlines,
        remove_member: RemoveMember,
        is_revoking: IsRevoking,
    ) -> None:
        self._config = config
        self._settings = settings
        self._deadlines = deadlines
        self._remove_member = remove_member
        self._is_revoking = is_revoking
        self._returning: dict[tuple[str, str], None] = {}
        """The members whose last heartbeats had `returns_at_once`."""
        self._shortened: dict[tuple[str, str], float] = {}
        """Members that may rely on a longer session than that of the last response -> the session end by the last response."""

    def start_session(self, group_id: str, member_id: str, now: float, timeout_ms: int | None = None) -> None:
        """Start the session of a member that does not rely on a longer one. `timeout_ms`: the session timeout of a member of the
        classic protocol, which chooses its own; None: that of the group."""
        due = self._session_end(group_id, now) if timeout_ms is None else now + timeout_ms / 1000
        self._shortened.pop((group_id, member_id), None)
        self._set_session(group_id, member_id, due)

    def resume_session(self, group_id: str, member_id: str, now: float) -> None:
        """Start the session of a member that this coordinator finds in the log. The member may rely on a longer session that a
        previous coordinator has named."""
        self._set_session(group_id, member_id, now + self._settings.session_to_resume_ms(group_id, now) / 1000)

    def extend_session(self, group_id: str, member_id: str, now: float, *, knows_last_answer: bool) -> None:
        """Extend the session of a member that may own partitions, because it has sent a heartbeat. `knows_last_answer`: it has
        received the response to its previous heartbeat."""
        key, due = (group_id, member_id), self._session_end(group_id, now)
        present = self._deadlines.due_at((SESSION, group_id, member_id))
        if present is None or present <= due:
            if self._shortened:
                self._shortened.pop(key, None)
            self._set_session(group_id, member_id, due)
            return
        relied_on = self._shortened.pop(key, present) if knows_last_answer else present
        if relied_on > due:
            self._shortened[key] = due
        self._set_session(group_id, member_id, max(due, relied_on))

    def _session_end(self, group_id: str, now: float) -> float:
        """The end of a session that begins now."""
        return now + self._settings.of(group_id).session_timeout_ms / 1000

    def _set_session(self, group_id: str, member_id: str, due: float) -> None:
        self._deadlines.set((SESSION, group_id, member_id), due, partial(self._on_session_end, group_id, member_id))

    def on_heartbeat(self, group_id: str, member_id: str, *, returns_at_once: bool) -> None:
        key = (group_id, member_id)
        if returns_at_once:
            self._returning[key] = None
        elif key in self._returning:
            del self._returning[key]

    def on_connection_lost(self, group_id: str, member_id: str, now: float) -> None:
        key = (SESSION, group_id, member_id)
        present = self._deadlines.due_at(key)
        due = now + self._config.group_consumer_connection_loss_grace_ms / 1000
        if (group_id, member_id) in self._returning and present is not None and due < present:
            self._deadlines.set(key, due, partial(self._on_session_end, group_id, member_id))

    def start_rebalance(self, group_id: str, member_id: str, epoch: int, timeout_ms: int, now: float) -> None:
        """Start the rebalance timeout of a member that has to revoke partitions in this epoch. The member is removed if it has
        not revoked them when the timeout ends."""
        action = partial(self._on_rebalance_end, group_id, member_id, epoch)
        self._deadlines.set((REBALANCE, group_id, member_id), now + timeout_ms / 1000, action)

    def cancel(self, group_id: str, member_id: str) -> None:
        self._deadlines.cancel((SESSION, group_id, member_id))
        self._deadlines.cancel((REBALANCE, group_id, member_id))
        self._returning.pop((group_id, member_id), None)
        self._shortened.pop((group_id, member_id), None)

    def _on_session_end(self, group_id: str, member_id: str, now: float, now_ms: int) -> Result | None:
        result = self._remove_member(group_id, member_id, now, now_ms)
        if result is not None:
            again = partial(self._on_session_end, group_id, member_id)
            self._deadlines.set((SESSION, group_id, member_id), now + RETRY_S, again)
            result.removed.append(Removed(group_id, member_id, "its session has ended"))
        return result

    def _on_rebalance_end(self, group_id: str, member_id: str, epoch: int, now: float, now_ms: int) -> Result | None:
        if not self._is_revoking(group_id, member_id, epoch):
            return None
        again = partial(self._on_rebalance_end, group_id, member_id, epoch)
        self._deadlines.set((REBALANCE, group_id, member_id), now + RETRY_S, again)
        result = self._remove_member(group_id, member_id, now, now_ms)
        if result is not None:
            result.removed.append(Removed(group_id, member_id, "it has not revoked its partitions in its rebalance timeout"))
        return result
