"""I34 and I35: reassignments (KIP-455) and their throttle (KIP-73).

- **I34** is checked for each committed change of a partition: a reassignment ends with the replicas of its target, all added ones
  in the ISR, or with the original replicas, in their order; and it leaves no added or removed replicas and no throttle behind.
  That each one ends in time, and at the target that was asked for, is liveness: the run waits for it when the faults are over
  (`phases.py`, `cluster/reassigner.py`).
- **I35**: the throttle slows down no member of the ISR.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from strandline.protocol.messages.admin import AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse
from strandline.testing.simulation.invariants.ghosts import Ghosts, PartitionGhost, Registration, ReplicaGhost


def check_change(partition: PartitionGhost, before: Registration, after: Registration) -> None:
    """I34, for a committed change of the partition."""
    problem = _running_problem(before, after) if after.original else _end_problem(before, after)
    if problem:
        raise partition.violation("I34", f"{problem} (from {_text_of(before)} to {_text_of(after)})")


def _running_problem(before: Registration, after: Registration) -> str:
    if after.original != (before.original or before.replicas):
        return "the original replicas of a reassignment are not those from before it"
    if not {*after.original, *after.adding, *after.removing} <= set(after.replicas):
        return "a replica left before its reassignment was complete"
    if set(after.adding) & set(after.original):
        return "an original replica counts as added"
    return ""


def _end_problem(before: Registration, after: Registration) -> str:
    if after.adding or after.removing or after.throttle_rate:
        return "a reassignment has ended, but something of it is left"
    if after.replicas == before.replicas or after.replicas == before.original:
        return ""
    former = before.original or before.replicas
    missing = [node for node in after.replicas if node not in former and node not in after.isr]
    if missing:
        return f"a reassignment completes without the added replicas {missing} in the ISR"
    return "" if set(after.replicas) <= set(before.replicas) else "a partition has replicas that were never added"


def _text_of(known: Registration) -> str:
    more = f", adding {list(known.adding)}, removing {list(known.removing)}" if known.original else ""
    rate = f", {known.throttle_rate} bytes per second" if known.throttle_rate else ""
    return f"replicas {list(known.replicas)} with ISR {list(known.isr)}{more}{rate}"


def on_decided(ghosts: Ghosts, request: AlterPartitionReassignmentsRequest, answer: AlterPartitionReassignmentsResponse) -> None:
    """Note the targets that a controller has accepted. Whether a decision is committed is not known yet."""
    for topic, results in zip(request.topics, answer.responses, strict=True):
        for item, result in zip(topic.partitions, results.partitions, strict=True):
            if not result.error_code:
                target = None if item.replicas is None else tuple(item.replicas)
                ghosts.metadata.targets.append(((topic.name, item.partition_index), target))


def check_throttled(replica: ReplicaGhost, follower: int, isr: tuple[int, ...]) -> None:
    """I35: the leader delays records of this follower, because of a throttle."""
    if follower in isr:
        text = f"broker {replica.node} throttles broker {follower}, which is in the ISR {list(isr)}"
        raise replica.partition.violation("I35", text, replica.node)
