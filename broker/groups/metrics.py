"""The counters of the group coordinator of a broker. `strandline/observe` reads them.

They count records that this broker has appended: a load counts nothing, and neither does a decision whose append fails.
`on_append` gets the records of a decision before the shard replays them.
"""

from __future__ import annotations

from collections.abc import Iterable

from strandline.broker.coordination.load_times import LoadTimes
from strandline.broker.groups.records.types import (
    ConsumerGroupMetadataRecord,
    GroupMetadataRecord,
    GroupRecord,
    OffsetCommitRecord,
)
from strandline.broker.groups.result import Removal
from strandline.broker.groups.state import CLASSIC, CONSUMER, Group, GroupTable
from strandline.protocol.metrics import Histogram

_COMPLETING = "CompletingRebalance"


class GroupMetrics(LoadTimes):
    """The counters of all shards of a broker. Except for `recent_loads_s`, they only increase."""

    def __init__(self) -> None:
        super().__init__()
        self.offset_commits = 0
        """Offsets that were committed: one request may commit many."""
        self.offset_removals = dict.fromkeys(Removal, 0)
        """Offsets that were deleted, by reason."""
        self.rebalances = {CLASSIC: 0, CONSUMER: 0}
        """Rebalances by group type, as Kafka counts them: rebalances of classic groups that ended with an assignment, and new
        group epochs of groups of the newer protocol."""
        self.append = Histogram()
        """Seconds that an append and the replay of its records took."""

    # -- counting -----------------------------------------------------------------------------------------------------

    def on_append(self, records: Iterable[GroupRecord], removal: Removal, groups: GroupTable) -> bool:
        """Count the records of a decision. `removal`: why its offsets are deleted. `groups`: the groups before its replay.
        Returns whether offsets were committed."""
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
                    # A decision has two of these records if it converts a group and gives it the next epoch. They count once.
                    with_new_epoch[record.group_id] = None
                elif isinstance(record, GroupMetadataRecord):
                    self.rebalances[CLASSIC] += _is_assigning(groups.get(record.group_id))
        self.offset_commits += commits
        self.rebalances[CONSUMER] += len(with_new_epoch)
        return commits > 0


def _is_assigning(group: Group | None) -> bool:
    """Whether a record of this classic group ends a rebalance. The record of a static member that returns under a new id does
    not."""
    return group is not None and group.state_name == _COMPLETING
