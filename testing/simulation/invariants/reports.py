"""I31: the report of an unclean election names every committed record that the new leader lacks.

The report is in the batch that elects the leader. The loss shows as soon as this leader begins: the committed records that its
log does not have. They must lie in the range of the report. If the range is empty, no record may be lost.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from strandline.controller.metadata.records import UncleanElectionRecord
from strandline.testing.simulation.invariants.ghosts import Ghosts, Loss, PartitionGhost, Registration


def on_report(ghosts: Ghosts, record: UncleanElectionRecord) -> None:
    partition = ghosts.partitions[record.topic_id, record.partition]
    partition.reports[record.leader_epoch] = (record.lost_from, record.lost_to)


def check_reported(partition: PartitionGhost, registration: Registration) -> None:
    """Check at the end of a committed batch that the partition's unclean election has a report."""
    epoch, partition.unreported = partition.unreported, -1
    if epoch >= 0 and epoch not in partition.reports:
        text = f"broker {registration.leader} is elected uncleanly in epoch {epoch}, but there is no report"
        raise partition.violation("I31", text, registration.leader)


def on_loss(partition: PartitionGhost, loss: Loss) -> None:
    """The leader of an epoch lacks these committed records. A log that is damaged may have lost them since the election."""
    report = partition.reports.get(loss.leader_epoch)
    leader = partition.replica(loss.leader)
    if report is None or leader.damage is not None or names(report, loss.start, loss.end):
        return
    start, end = report
    told = "that nothing is lost" if start == end else f"that {start} to {'an unknown end' if end < 0 else end - 1} may be lost"
    text = (
        f"broker {loss.leader}, elected uncleanly in epoch {loss.leader_epoch}, lacks the committed records {loss.start} to "
        f"{loss.end - 1}, but the report says {told}"
    )
    raise partition.violation("I31", text, loss.leader)


def names(report: tuple[int, int], start: int, end: int) -> bool:
    """Whether the range of the report contains this one."""
    return report[0] <= start and (report[1] < 0 or end <= report[1])
