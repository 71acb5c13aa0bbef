"""The times at which the target assignments of groups are computed.

- At most once per interval and group (`group.consumer.assignment.interval.ms`, or the group's own
  `consumer.assignment.interval.ms`; KAFKA-20291). So a thousand members that join at the same time cost a few computations.
- The first assignment of a group is computed at once, in the heartbeat that joins.
- A heartbeat that finds the target out of date computes it, if the interval is over.
- Otherwise a deadline computes it at the end of the interval, without a heartbeat. (Kafka waits for the next heartbeat.) It also
  serves changes that no heartbeat makes: a member left, a session ended, a topic has more partitions.

While the deadline of a group is in the future, its interval has not ended, unless a change of the configuration has made the
interval shorter. The deadline counts the loop's time, so a wall clock that is set back delays nothing. A new coordinator does not
know when the last target was computed, and may compute the next one too early.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from strandline.broker.groups.consumer.group import ConsumerGroup
from strandline.broker.groups.deadlines import Deadlines
from strandline.broker.groups.group_config_manager import GroupConfigManager
from strandline.broker.groups.result import Result

ASSIGNMENT = "assignment"
RETRY_S = 0.5
"""If the interval is 0, a target that could not be appended is computed again after this time."""

Compute = Callable[[str, float, int], Result | None]
"""Group, now in seconds and in ms -> the decision; None if the target is up to date."""


class AssignmentSchedule:
    """The deadlines of the groups' target assignments."""

    def __init__(self, settings: GroupConfigManager, deadlines: Deadlines, compute: Compute) -> None:
        self._settings = settings
        self._deadlines = deadlines
        self._compute = compute
        self._computed_at: dict[str, float] = {}
        """Groups whose deadline is the end of an interval -> the loop's time when this interval began."""

    def may_assign(self, group: ConsumerGroup, now: float) -> bool:
        """Whether the interval is over, or the group has no assignment yet."""
        interval_s = self._interval_s(group.group_id)
        due = self._deadlines.due_at((ASSIGNMENT, group.group_id)) if interval_s else None
        if due is None or due <= now or not group.targets:
            return True
        began_at = self._computed_at.get(group.group_id)
        return began_at is not None and began_at + interval_s <= now

    def hold(self, group_id: str, now: float) -> None:
        """Record that the target is computed now. At the end of the interval it is computed again if it is out of date, because
        of a change in between or because it could not be appended."""
        self._computed_at[group_id] = now
        self._set(group_id, now + (self._interval_s(group_id) or RETRY_S))

    def request(self, group_id: str, now: float) -> None:
        """Compute a target that is out of date as soon as the interval is over."""
        if not self._interval_s(group_id) or (ASSIGNMENT, group_id) not in self._deadlines:
            self._set(group_id, now)

    def _interval_s(self, group_id: str) -> float:
        return self._settings.of(group_id).assignment_interval_ms / 1000

    def _set(self, group_id: str, due: float) -> None:
        self._deadlines.set((ASSIGNMENT, group_id), due, partial(self._on_due, group_id))

    def _on_due(self, group_id: str, now: float, now_ms: int) -> Result | None:
        self._computed_at.pop(group_id, None)
        return self._compute(group_id, now, now_ms)
