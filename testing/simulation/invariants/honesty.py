"""I20: whatever may have cost acknowledged records is told, by a metric and a line; what is not told has cost nothing.

The causes that a broker can see: a damaged range, a truncation below its high watermark, a failed log directory, an unclean
election. Each is held against its metric as it happens. At rest every real loss (there is one only where the run permitted
it) must be among those that were told.
"""

from __future__ import annotations

from strandline.testing.simulation.invariants.ghosts import Ghosts, PartitionGhost, ReplicaGhost


def on_damage(replica: ReplicaGhost, offset: int, counted_before: int) -> None:
    """The log has found damaged bytes at `offset`."""
    partition, log = replica.partition, replica.log
    counted = 0 if log is None else log.metrics.corrupt_ranges
    if counted <= counted_before:
        text = f"broker {replica.node} found damage at {offset}, and its metric says so of {counted} ranges as before"
        raise partition.violation("I20", text, replica.node)
    partition.reported.append(f"damage at {offset} on broker {replica.node}")


def on_truncated_below(replica: ReplicaGhost, high_watermark: int, end: int, counted: int) -> None:
    """A follower cut its log below what it took for committed. `counted`: by how much the metric rose."""
    partition = replica.partition
    if end >= high_watermark:
        return
    if not counted:
        text = f"broker {replica.node} truncated to {end}, below its high watermark {high_watermark}, and counts no such thing"
        raise partition.violation("I20", text, replica.node)
    partition.reported.append(f"truncation to {end} below the high watermark {high_watermark} on broker {replica.node}")


def on_elected_with_missing_records(replica: ReplicaGhost) -> None:
    """A leader says, by line and metric, that its log had lost something."""
    replica.partition.reported.append(f"broker {replica.node} leads with less than it had")


def on_log_dir_failed(ghosts: Ghosts, node: int, counted: int, is_told: bool) -> None:
    """`counted`: how many replicas the metric says to be offline."""
    for partition in ghosts.partitions.values():
        replica = partition.replicas.get(node)
        if replica is None:
            continue
        if not is_told:
            raise partition.violation("I20", f"the log directory of broker {node} failed, and it does not say so", node)
        partition.reported.append(f"{counted} replicas of broker {node} offline")


def check(partition: PartitionGhost) -> None:
    """At rest: every loss was told."""
    if partition.losses and not partition.reported:
        loss = partition.losses[0]
        text = (
            f"the committed records {loss.start} to {loss.end - 1} are lost since broker {loss.leader} leads in epoch "
            f"{loss.leader_epoch}, and no metric says that anything may be lost"
        )
        raise partition.violation("I20", text)
