"""I7, I10, I12, I15: which records are committed, which replicas have them, and what leaders may report about them.

Records become committed in `on_leader_moved`: a leader has raised its high watermark to h. It is accepted as the true one if the
ISR that this leader knows is large enough, and if every member of the ISR in the committed metadata really holds the leader's
records up to h. What the brokers claim does not matter.

Two cases look like mistakes and are none. A leader that was replaced, and has not received the change, may still commit: its
followers fetched that far while they followed it, and each later leader is one of them. And a replica that is down, or was
restarted and is not registered yet, is not checked: a loss on it is a fault, and it must register before it counts.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING

from strandline.testing.simulation.invariants import producers, reports
from strandline.testing.simulation.invariants.ghosts import Ghosts, Loss, PartitionGhost, ReplicaGhost
from strandline.testing.simulation.invariants.paths import NOTHING

if TYPE_CHECKING:
    from strandline.broker.partition.leader_state import LeaderState


# -- high watermarks --------------------------------------------------------------------------------------------------


def on_moved(ghosts: Ghosts, replica: ReplicaGhost, high_watermark: int) -> None:
    """A replica has raised its own high watermark."""
    ghosts.dirty[replica] = None
    leader_state = replica.live.leader_state if replica.live is not None else None
    if leader_state is None:
        check_local(replica, high_watermark)
    else:
        on_leader_moved(ghosts, replica, leader_state, high_watermark)


def check_local(replica: ReplicaGhost, high_watermark: int) -> None:
    """I10: a follower's high watermark is not above the true one. I4: the records below it are the committed ones."""
    partition, committed = replica.partition, replica.partition.committed
    if partition.is_deleted or partition.losses:
        return
    if high_watermark > partition.high_watermark_max:
        text = f"the high watermark of broker {replica.node} is {high_watermark}, but the true one is {committed.end}"
        raise partition.violation("I10", text, replica.node)
    _check_same(replica, high_watermark)


def check_recovered(replica: ReplicaGhost, high_watermark: int) -> None:
    """I10, for a high watermark that was read from a checkpoint or was lowered. The records below it may be missing, or belong to
    another history: after a power cut a disk may return records that were truncated. The leader's responses correct that."""
    partition = replica.partition
    if high_watermark > max(partition.high_watermark_max, partition.deleted_below) and not partition.is_deleted:
        text = f"the high watermark of broker {replica.node} is {high_watermark}, but the true one is {partition.committed.end}"
        raise partition.violation("I10", text, replica.node)


def _check_same(replica: ReplicaGhost, high_watermark: int) -> None:
    partition, path, committed = replica.partition, replica.path, replica.partition.committed
    if high_watermark <= max(path.start, 0) or partition.loss_permitted:
        return
    ours, theirs = path.epoch_at(high_watermark - 1), committed.epoch_at(high_watermark - 1)
    if ours != theirs and NOTHING not in (ours, theirs):
        text = (
            f"below its high watermark {high_watermark}, broker {replica.node} has record {high_watermark - 1} of epoch {ours}, "
            f"but the committed one is of epoch {theirs}"
        )
        raise partition.violation("I4", text, replica.node)


def on_leader_moved(ghosts: Ghosts, replica: ReplicaGhost, leader_state: LeaderState, high_watermark: int) -> None:
    """I10, I7: accept the high watermark that a leader has raised as the true one, or raise a violation."""
    partition, path, committed = replica.partition, replica.path, replica.partition.committed
    if partition.loss_permitted:
        if not _is_deposed(partition, leader_state.epoch):
            _maybe_lose(replica, leader_state.epoch)
        elif not path.holds_all_of(committed):
            return  # its successor's log is the truth, and has more
    if high_watermark <= committed.end:
        _check_same(replica, high_watermark)
        return
    if high_watermark > path.end:
        text = f"broker {replica.node} commits up to {high_watermark}, but its log ends at {path.end}"
        raise partition.violation("I10", text, replica.node)
    if not partition.loss_permitted:
        _check_min_isr(ghosts, replica, leader_state, high_watermark)
        _check_isr_holds(ghosts, replica, high_watermark)
        if not path.holds_all_of(committed):
            parts = path.agrees_until(committed)
            text = f"broker {replica.node} commits up to {high_watermark}, but lacks the committed records from {parts} on"
            raise partition.violation("I7", text, replica.node)
    partition.asked.append((high_watermark, ghosts.min_isr(partition, replica)))
    _commit(replica, high_watermark)


def _commit(replica: ReplicaGhost, high_watermark: int) -> None:
    partition, before = replica.partition, replica.partition.committed.end
    partition.committed.follow(replica.path, high_watermark)
    partition.high_watermark_max = max(partition.high_watermark_max, high_watermark)
    producers.on_committed(partition, before, high_watermark)


def _check_min_isr(ghosts: Ghosts, replica: ReplicaGhost, leader_state: LeaderState, high_watermark: int) -> None:
    """I10: the ISR that was committed with the partition epoch that this leader knows has the minimum size."""
    partition, live = replica.partition, replica.live
    assert live is not None
    known = partition.history.get(live.partition_epoch)
    isr = leader_state.isr.isr if known is None else known.isr
    needed = ghosts.min_isr(partition, replica)
    if len(isr) < needed:
        text = f"broker {replica.node} commits up to {high_watermark} with the ISR {list(isr)}, which needs {needed} members"
        raise partition.violation("I10", text, replica.node)


def _check_isr_holds(ghosts: Ghosts, replica: ReplicaGhost, high_watermark: int) -> None:
    partition, registration = replica.partition, replica.partition.registration
    if registration is None:
        return
    epoch = replica.path.epoch_at(high_watermark - 1)
    for node in registration.isr:
        member = partition.replicas.get(node)
        if member is None or member is replica or not ghosts.is_judged(member):
            continue
        if not member.path.holds(high_watermark - 1, epoch):
            text = (
                f"broker {replica.node} commits up to {high_watermark} in epoch {epoch}, but broker {node} of the ISR "
                f"{list(registration.isr)} has only {member.path}"
            )
            raise partition.violation("I10", text, replica.node)


# -- completeness -----------------------------------------------------------------------------------------------------


def check_members(ghosts: Ghosts, partition: PartitionGhost) -> None:
    """I7: every member that may be elected has every committed record."""
    registration, committed = partition.registration, partition.committed
    if registration is None or partition.is_deleted or partition.loss_permitted:
        return
    for node in (*registration.isr, *registration.elr):
        member = partition.replicas.get(node)
        if member is not None and ghosts.is_judged(member) and not member.path.holds_all_of(committed):
            parts = member.path.agrees_until(committed)
            lacks = f"lacks the committed records {parts} to {committed.end - 1}"
            text = f"broker {node} is in the ISR {list(registration.isr)} or ELR {list(registration.elr)}, but {lacks}"
            raise partition.violation("I7", text, node)


def on_leader(ghosts: Ghosts, replica: ReplicaGhost, epoch: int) -> None:
    """I7: the elected leader has every record that was acknowledged or read. A permitted loss is noted."""
    partition, committed, path = replica.partition, replica.partition.committed, replica.path
    if _is_deposed(partition, epoch):
        return  # it has received an old election late: a newer leader was elected since
    if partition.loss_permitted:
        _maybe_lose(replica, epoch)
        _maybe_bring_back(replica)
        return
    if not path.holds_all_of(committed):
        parts = path.agrees_until(committed)
        acked = f", {partition.acked_end - parts} of them acknowledged" if partition.acked_end > parts else ""
        text = (
            f"broker {replica.node} leads in epoch {epoch}, but lacks the committed records {parts} to {committed.end - 1}{acked}"
        )
        raise partition.violation("I7", text, replica.node)


def _maybe_bring_back(replica: ReplicaGhost) -> None:
    """If an earlier leader had lost committed records that this leader has, they are committed again. Its high watermark covers
    them from the beginning, and so need not move."""
    high_watermark = 0 if replica.log is None else replica.log.high_watermark
    if high_watermark > replica.partition.committed.end:
        _commit(replica, high_watermark)


def _is_deposed(partition: PartitionGhost, epoch: int) -> bool:
    registration = partition.registration
    return registration is not None and registration.leader_epoch != epoch


def _maybe_lose(replica: ReplicaGhost, epoch: int) -> None:
    """If the leader lacks committed records, and the run permits it: note the loss; from here on its log is the committed one."""
    partition, committed = replica.partition, replica.partition.committed
    if replica.path.holds_all_of(committed):
        return
    parts = replica.path.agrees_until(committed)
    loss = Loss(parts, committed.end, replica.node, epoch)
    partition.losses.append(loss)
    reports.on_loss(partition, loss)
    committed.truncate(parts)
    partition.acked_end, partition.read_end = min(partition.acked_end, parts), min(partition.read_end, parts)
    for base in [base for base in partition.read if base >= parts]:
        del partition.read[base]
    partition.applied.clear()
    producers.rebuild(partition)


# -- the ISR as the leader sees it ------------------------------------------------------------------------------------


def check_maximal_isr(ghosts: Ghosts, partition: PartitionGhost) -> None:
    """I12, for the leader of the newest epoch."""
    registration = partition.registration
    leader = None if registration is None else partition.replicas.get(registration.leader)
    if registration is None or leader is None or leader.leads_in != registration.leader_epoch or partition.is_deleted:
        return
    leader_state = leader.live.leader_state if leader.live is not None else None
    if leader_state is None:
        return
    isr = leader_state.isr
    if not isr.is_in_flight and set(isr.maximal) != set(isr.isr):
        text = (
            f"broker {leader.node} has no proposal in flight, but its maximal ISR {sorted(isr.maximal)} differs from its ISR "
            f"{sorted(isr.isr)}"
        )
        raise partition.violation("I12", text, leader.node)
    counted = {*registration.isr, *registration.elr}
    if leader_state.elr:
        return  # The leader knows of an ELR, and its high watermark does not move.
    if len(isr.isr) >= ghosts.min_isr(partition, leader) and not counted <= set(isr.maximal):
        text = (
            f"broker {leader.node} waits for {sorted(isr.maximal)} only, but the controllers may elect any of {sorted(counted)}"
        )
        raise partition.violation("I12", text, leader.node)


# -- acknowledgements -------------------------------------------------------------------------------------------------


def on_acked(ghosts: Ghosts, replica: ReplicaGhost, required: int) -> None:
    """I15: the leader sends a successful acks=all response for the records below `required`."""
    partition, committed, registration = replica.partition, replica.partition.committed, replica.partition.registration
    partition.acked_end = max(partition.acked_end, required)
    if partition.loss_permitted or partition.is_deleted:
        return
    epoch = committed.epoch_at(required - 1) if required <= committed.end else NOTHING
    if required > committed.end or not replica.path.holds(required - 1, epoch):
        text = f"broker {replica.node} acknowledges records up to {required}, but the committed log is {committed!r}"
        raise partition.violation("I15", text, replica.node)
    for node in () if registration is None else registration.isr:
        member = partition.replicas.get(node)
        if member is not None and ghosts.is_judged(member) and not member.path.holds(required - 1, epoch):
            text = f"broker {replica.node} acknowledges record {required - 1}, but broker {node} of the ISR does not have it"
            raise partition.violation("I15", text, replica.node)
    _check_copies(ghosts, replica, required - 1, epoch)


def _check_copies(ghosts: Ghosts, replica: ReplicaGhost, offset: int, epoch: int) -> None:
    """Copies on disks that have lost something since still count. The minimum is the one at the time of the commit: the response
    may leave later, when the minimum is higher."""
    partition = replica.partition
    others = partition.replicas.values()
    copies = sum(other.path.holds(offset, epoch) or other.is_unclean or other.damage is not None for other in others)
    commit = bisect_right(partition.asked, offset, key=itemgetter(0))
    needed = partition.asked[commit][1] if commit < len(partition.asked) else ghosts.min_isr(partition, replica)
    if copies < needed:
        text = f"broker {replica.node} acknowledges record {offset}, but there are only {copies} copies, not {needed}"
        raise partition.violation("I15", text, replica.node)
