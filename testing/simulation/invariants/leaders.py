"""I1: in an epoch, one process leads, on the broker that the metadata names. I19: the metadata names a leader of this epoch.

I1 is stricter than one *node*: a broker that was restarted may have fewer records than its previous process, so it must not
continue in that process's epoch either.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from strandline.testing.simulation.invariants.ghosts import Ghosts, Process, ReplicaGhost
from strandline.testing.simulation.invariants.violation import Violation


def on_leader(ghosts: Ghosts, replica: ReplicaGhost, epoch: int) -> None:
    """The broker begins to act as leader of the partition in this epoch."""
    partition, process = replica.partition, replica.process
    named = partition.leaders.get(epoch)
    if partition.leaders and named != replica.node:
        leader = "no leader" if named is None else f"broker {named} as the leader"
        text = f"broker {replica.node} acts as leader in epoch {epoch}, but the metadata names {leader} of this epoch"
        raise partition.violation("I1" if named is not None else "I19", text, replica.node)
    if process is None:
        return
    actor = partition.actors.setdefault(epoch, process)
    if actor is not process:
        text = f"broker {_name(process)} acts as leader in epoch {epoch}, but broker {_name(actor)} has already led in it"
        raise partition.violation("I1", text, replica.node)
    ghosts.disturbed[partition] = None


def on_quorum_leader(ghosts: Ghosts, process: Process, epoch: int) -> None:
    """A controller has won the election of this epoch."""
    leader = ghosts.metadata.leaders.setdefault(epoch, process)
    if leader is not process:
        text = (
            f"controller {_name(process)} leads the quorum in epoch {epoch}, but controller {_name(leader)} has already led in it"
        )
        raise Violation("I1", text, node=process.node)


def _name(process: Process) -> str:
    return f"{process.node} (process {process.number})"
