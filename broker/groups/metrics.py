"""What the group coordinator of a broker counts. `strandline/observe` reads it.

Counted is what the records say, when they are in the log of this broker: so a load counts nothing, and neither does a decision
whose append has failed. The records of one decision come through `on_append`, before the shard replays them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from strandline.broker.groups.records.types import (
    ConsumerGroupMetadataRecord,
    GroupMetadataRecord,
    GroupRecord,
    OffsetCommitRecord,
)
from strandline.broker.groups.result import Removal
from strandline.broker.groups.state import CLASSIC, CONSUMER, Group, GroupTable
from strandline.protocol.metrics import DURATION_S, Histogram

RECENT_S = 30.0
"""How far back Kafka's load times look."""
_COMPLETING = "CompletingRebalance"


class GroupMetrics:
    """The counters of all shards of a broker. Except for `recent_loads_s`, they only increase."""

    def __init__(self) -> None:
        self.offset_commits = 0
        """Committed offsets: one request may commit many."""
        self.offset_removals = dict.fromkeys(Removal, 0)
        """Offsets that were deleted, by why."""
        self.rebalances = {CLASSIC: 0, CONSUMER: 0}
        """Of the classic protocol the rebalances that ended with an assignment, of the newer one the group epochs that began:
        what Kafka counts."""
        self.load = Histogram(DURATION_S)
        """Seconds from the leadership of a partition to the end of its load."""
        self.append = Histogram()
        """Seconds that an append and the replay of its records took."""
        self._recent_loads: deque[tuple[float, float]] = deque()
        """When each of the last loads ended, and how long it took."""

    # -- counting -----------------------------------------------------------------------------------------------------

    def on_append(self, records: Iterable[GroupRecord], removal: Removal, groups: GroupTable) -> bool:
        """Count the records of a decision. `removal`: why its offsets are deleted. `groups`: as they were before it. Returns
        whether offsets were committed."""
        commits = 0
        with_new_epoch: dict[str, None] = {}
        for record in records:
            if isinstance(record, OffsetCommitRecord):
                if record.value is not None:
                    commits += 1
                else:
                    self.offset_removals[removal] += 1
            elif record.value is not None:
                if isinstance(record, ConsumerGroupMetadataRecord):
                    # Twice in one decision: a group that is converted, and gets its next epoch.
                    with_new_epoch[record.group_id] = None
                elif isinstance(record, GroupMetadataRecord):
                    self.rebalances[CLASSIC] += _is_assigning(groups.get(record.group_id))
        self.offset_commits += commits
        self.rebalances[CONSUMER] += len(with_new_epoch)
        return commits > 0

    def on_load(self, seconds: float, now: float) -> None:
        """A load has succeeded. `now`: the loop's time."""
        self.load.observe(seconds)
        self._recent_loads.append((now, seconds))
        self._forget_loads(now)

    def _forget_loads(self, now: float) -> None:
        while self._recent_loads and self._recent_loads[0][0] < now - RECENT_S:
            self._recent_loads.popleft()

    # -- reading ------------------------------------------------------------------------------------------------------

    def recent_loads_s(self, now: float) -> list[float]:
        """How long each load of the last `RECENT_S` seconds took."""
        self._forget_loads(now)
        return [seconds for _, seconds in self._recent_loads]


def _is_assigning(group: Group | None) -> bool:
    """Whether a record of this classic group ends a rebalance: one of a member that has returned under a new id does not."""
    return group is not None and group.state_name == _COMPLETING
