"""Guards of groups with a configuration of their own: M114 to M119. `mutations.py` imports this file, so that they are in its
table."""

from __future__ import annotations

from typing import Any

from strandline.broker.groups import group_config_manager
from strandline.broker.groups.consumer.assignment_schedule import AssignmentSchedule
from strandline.broker.groups.consumer.member_timers import MemberTimers
from strandline.broker.groups.group_config_manager import GroupConfigManager
from strandline.testing.simulation.campaign.mutation import Patch, mutation


@mutation("M114", "a shortened session ends before its member has received the new length")
def _shorten_at_once() -> list[Patch]:
    def extend(self: MemberTimers, group_id: str, member_id: str, now: float, *, knows_last_answer: bool) -> None:
        self.start_session(group_id, member_id, now)

    return [(MemberTimers, "extend_session", extend)]


@mutation("M115", "a new coordinator starts shorter sessions than the previous coordinator sent to the members")
def _forget_longer_session() -> list[Patch]:
    return [(GroupConfigManager, "session_to_resume_ms", lambda self, group_id, now: self.of(group_id).session_timeout_ms)]


@mutation("M116", "a configuration that was removed stays in effect")
def _keep_removed_configuration() -> list[Patch]:
    use = GroupConfigManager._use

    def keep(self: GroupConfigManager, group_id: str, values: Any) -> None:
        if values:
            use(self, group_id, values)

    return [(GroupConfigManager, "_use", keep)]


@mutation("M117", "a coordinator uses values outside the bounds of its configuration file")
def _ignore_bounds() -> list[Patch]:
    return [(group_config_manager, "value_in_bounds", lambda name, value, node: value)]


@mutation("M118", "a session ends sooner than the configuration says")
def _end_early() -> list[Patch]:
    session_end = MemberTimers._session_end

    def soon(self: MemberTimers, group_id: str, now: float) -> float:
        return min(session_end(self, group_id, now), now + 0.3)

    return [(MemberTimers, "_session_end", soon)]


@mutation("M119", "a target assignment is computed before the group's assignment interval is over")
def _assign_at_once() -> list[Patch]:
    return [(AssignmentSchedule, "may_assign", lambda self, group, now: True)]
