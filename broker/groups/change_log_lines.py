"""The log lines about groups: members that join or change their subscription, members that are removed, and new assignments.

The lines follow from the records of an appended decision, so a load logs nothing. Clients can cause them as often as they like,
so each group has at most one line of a kind per second, with a count of the lines that were left out.
"""

from __future__ import annotations

from strandline.broker.groups.records.types import (
    ClassicGroupValue,
    GroupMetadataRecord,
    MemberMetadataRecord,
    TargetAssignmentMetadataRecord,
    TargetAssignmentMetadataValue,
)
from strandline.broker.groups.result import Result
from strandline.broker.groups.state import GroupTable
from strandline.protocol.log_limits import LineLimits, printable
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

INTERVAL_S = 1.0


class ChangeLogLines:
    """Logs the changes of decisions."""

    def __init__(self) -> None:
        self._limits = LineLimits(INTERVAL_S)

    def log(self, result: Result, groups: GroupTable, now: float) -> None:
        """Log a decision that was appended. `groups`: the groups after its replay."""
        for removed in result.removed:
            suppressed = self._limits.admit(f"removed {removed.group_id}", now)
            if suppressed is not None:
                logger.info(
                    "group.member_removed",
                    group_id=printable(removed.group_id),
                    member_id=printable(removed.member_id),
                    reason=removed.reason,
                    **suppressed.fields,
                )
        for record in result.records:
            if isinstance(record, (TargetAssignmentMetadataRecord, GroupMetadataRecord, MemberMetadataRecord)):
                self._log_record(record, groups, now)

    def _log_record(
        self, record: TargetAssignmentMetadataRecord | GroupMetadataRecord | MemberMetadataRecord, groups: GroupTable, now: float
    ) -> None:
        group = groups.get(record.group_id)
        if record.value is None or group is None or group.is_empty:
            return
        if isinstance(record, MemberMetadataRecord):
            suppressed = self._limits.admit(f"joined {record.group_id}", now)
            if suppressed is not None:
                logger.info(
                    "group.member_subscribed",
                    group_id=printable(record.group_id),
                    member_id=printable(record.member_id),
                    client_id=printable(record.value.client_id),
                    **suppressed.fields,
                )
            return
        suppressed = self._limits.admit(f"assigned {record.group_id}", now)
        if suppressed is not None:
            logger.info(
                "group.rebalanced",
                group_id=printable(record.group_id),
                group_type=group.group_type,
                assignment_epoch=_epoch_of(record.value),
                members=group.member_count,
                **suppressed.fields,
            )


def _epoch_of(value: TargetAssignmentMetadataValue | ClassicGroupValue) -> int:
    return value.generation_id if isinstance(value, ClassicGroupValue) else value.assignment_epoch
