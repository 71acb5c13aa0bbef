"""I20: everything that may have cost acknowledged records is reported, by a metric and a log line; without a report, nothing was
lost.

A broker can see these causes: a damaged range, a truncation below its high watermark, a failed log directory, an unclean
election. Each is compared with its metric when it happens. At rest every real loss (there can only be one if the run permitted
it) must be among the reported ones.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from collections.abc import Collection

from strandline.protocol.partitions import TopicIdPartition
from strandline.testing.simulation.invariants.ghosts import Ghosts, PartitionGhost, ReplicaGhost


def on_damage(replica: ReplicaGhost, offset: int, counted_before: int) -> None:
    """The log has found damaged bytes at `offset`."""
    partition, log = replica.partition, replica.log
    counted = 0 if log is None else log.metrics.corrupt_ranges
    if counted <= counted_before:
        text = f"broker {replica.node} found damage at offset {offset}, but its metric of damaged ranges is still {counted}"
        raise partition.violation("I20", text, replica.node)
    partition.reported.append(f"damage at {offset} on broker {replica.node}")


def on_truncated_below(replica: ReplicaGhost, high_watermark: int, end: int, counted: int) -> None:
    """A follower cut its log below its own high watermark. `counted` is the increase of the metric."""
    partition = replica.partition
    if end >= high_watermark:
        return
    if not counted:
        text = (
            f"broker {replica.node} truncated its log to {end}, below its high watermark {high_watermark}, but did not count it"
        )
        raise partition.violation("I20", text, replica.node)
    partition.reported.append(f"truncation to {end} below the high watermark {high_watermark} on broker {replica.node}")


def on_elected_with_missing_records(replica: ReplicaGhost) -> None:
    """A leader reports, by line and metric, that its log had lost records."""
    replica.partition.reported.append(f"broker {replica.node} became leader although its log had lost records")


def on_log_dir_failed(ghosts: Ghosts, node: int, offline: Collection[TopicIdPartition], is_reported: bool) -> None:
    """A log directory has failed. `offline`: the partitions whose replicas on this node the metric counts as offline from now on.
    `is_reported`: whether the failure was reported."""
    for partition in ghosts.partitions.values():
        if node not in partition.replicas:
            continue
        if not is_reported:
            raise partition.violation("I20", f"a log directory of broker {node} failed, but the broker did not report it", node)
        if partition.key in offline:
            partition.reported.append(f"replica of broker {node} offline")


def check(partition: PartitionGhost) -> None:
    """Check at rest that a partition with losses has reported one."""
    if partition.losses and not partition.reported:
        loss = partition.losses[0]
        text = (
            f"the committed records {loss.start} to {loss.end - 1} are lost since broker {loss.leader} became leader in epoch "
            f"{loss.leader_epoch}, but no metric reported a possible loss"
        )
        raise partition.violation("I20", text)
