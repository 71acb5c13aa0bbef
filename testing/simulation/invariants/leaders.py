"""I1: in an epoch, one process leads.

This is stricter than one *node*: a broker that was started again may have less than its predecessor had, so it must not continue
in the predecessor's epoch either.
"""

from __future__ import annotations

from strandline.testing.simulation.invariants.ghosts import Ghosts, Process, ReplicaGhost
from strandline.testing.simulation.invariants.violation import Violation


def on_leader(ghosts: Ghosts, replica: ReplicaGhost, epoch: int) -> None:
    """The broker begins to act as leader of the partition in this epoch."""
    partition, process = replica.partition, replica.process
    named = partition.leaders.get(epoch)
    if partition.leaders and named != replica.node:
        who = "nobody" if named is None else f"broker {named}"
        text = f"broker {replica.node} leads in epoch {epoch}, for which the metadata names {who}"
        raise partition.violation("I1" if named is not None else "I19", text, replica.node)
    if process is None:
        return
    actor = partition.actors.setdefault(epoch, process)
    if actor is not process:
        text = f"broker {replica.node} (its process {process.number}) leads in epoch {epoch}, in which {_name(actor)} led already"
        raise partition.violation("I1", text, replica.node)
    ghosts.disturbed[partition] = None


def on_quorum_leader(ghosts: Ghosts, process: Process, epoch: int) -> None:
    """A controller has won the election of this epoch."""
    leader = ghosts.metadata.leaders.setdefault(epoch, process)
    if leader is not process:
        text = (
            f"controller {process.node} (its process {process.number}) leads the quorum in epoch {epoch}, as {_name(leader)} did"
        )
        raise Violation("I1", text, node=process.node)


def _name(process: Process) -> str:
    return f"node {process.node} (its process {process.number})"
