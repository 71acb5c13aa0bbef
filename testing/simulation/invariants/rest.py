"""I24, and the checks that run at rest only: whole logs, producer states, images, idle lists.

No single moment breaks liveness: a state must be reached in time. So `unsettled` returns the reasons, one sentence each, why it
is not reached yet. A run heals the faults, waits until there is no reason, and after its bound reports those that are left as a
violation.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.testing.simulation.invariants import compaction
from strandline.testing.simulation.invariants.bytes_on_disk import is_damaged, segment_bytes, valid_batches
from strandline.testing.simulation.invariants.ghosts import NO_LEADER, Ghosts, PartitionGhost, ReplicaGhost
from strandline.testing.simulation.invariants.paths import NOTHING

MAXIMUM_TOLD = 10


def unsettled(ghosts: Ghosts) -> list[str]:
    """The reasons why the cluster is not at rest, one sentence each. Only running nodes count."""
    found = list(_nodes(ghosts))
    if not ghosts.metadata.is_given_up:
        for partition in ghosts.partitions.values():
            if not partition.is_deleted:
                found += _partition(ghosts, partition)
    return found


def _nodes(ghosts: Ghosts) -> Iterator[str]:
    end, is_known = ghosts.metadata.end, not ghosts.metadata.is_given_up
    controllers = list(ghosts.live_controllers())
    if not any(c.server.has_quorum and c.server.controller.active is not None for c in controllers):
        yield "there is no active controller"
    for process in controllers:
        if not process.server.has_quorum:
            yield f"controller {process.node} has not started"
        elif is_known and process.server.controller.committed_offset + 1 != end:
            applied = process.server.controller.committed_offset + 1
            yield f"controller {process.node} has applied {applied} of {end} metadata records"
    for process in ghosts.live_brokers():
        broker = ghosts.metadata.brokers.get(process.node)
        if is_known and (broker is None or broker.fenced or broker.incarnation_id != process.incarnation_id):
            yield f"broker {process.node} is not registered, or still fenced"
        elif not process.server.ready.is_set():
            yield f"broker {process.node} has not applied its unfencing"
        elif is_known and process.server.metadata.image.offset + 1 != end:
            yield f"broker {process.node} has applied {process.server.metadata.image.offset + 1} of {end} metadata records"


def _partition(ghosts: Ghosts, partition: PartitionGhost) -> Iterator[str]:
    registration, name = partition.registration, partition.name
    if registration is None:
        return
    live = {p.node for p in ghosts.live_brokers()} & set(registration.replicas)
    if not live & {*registration.isr, *registration.elr}:
        return  # no eligible replica runs
    leader = partition.replicas.get(registration.leader)
    if registration.leader == NO_LEADER or registration.leader not in live or leader is None:
        yield f"{name} has no running leader (ISR {list(registration.isr)}, running replicas {sorted(live)})"
    elif leader.leads_in != registration.leader_epoch:
        yield f"broker {registration.leader} has not become leader of {name} in epoch {registration.leader_epoch}"
    if set(registration.isr) != live:
        yield f"the ISR of {name} is {sorted(registration.isr)}, but the running replicas are {sorted(live)}"
    for node in sorted(live):
        yield from _replica(partition, partition.replicas.get(node), node)


def _replica(partition: PartitionGhost, replica: ReplicaGhost | None, node: int) -> Iterator[str]:
    committed, name = partition.committed, partition.name
    if replica is None or not replica.is_live or replica.log is None:
        yield f"broker {node} does not serve {name}"
    elif replica.path.end != committed.end or not replica.path.holds_all_of(committed):
        yield f"broker {node} has the log {replica.path} of {name}, but the committed log is {committed}"
    elif replica.log.high_watermark != committed.end:
        yield f"broker {node} has the high watermark {replica.log.high_watermark} of {name}, but the true one is {committed.end}"


def diagnosis(reasons: list[str]) -> str:
    more = len(reasons) - MAXIMUM_TOLD
    return "; ".join(reasons[:MAXIMUM_TOLD]) + (f"; and {more} more" if more > 0 else "")


# -- whole logs -------------------------------------------------------------------------------------------------------


def check_bytes(replica: ReplicaGhost) -> None:
    """I4, by the bytes: the files of a replica hold the batches of its path, one after the other."""
    log, partition = replica.log, replica.partition
    if log is None or replica.damage is not None:
        return
    if partition.originals is not None:
        if not is_damaged(log.files, log.dir):
            compaction.check_bytes(replica, log)
            compaction.check_values(replica)
        return
    expected = partition.tree.walk(replica.path, log.segments[0].base_offset, replica.path.end)
    offset = log.segments[0].base_offset
    for segment in log.segments:
        data, size = segment_bytes(segment), 0
        for position, header in valid_batches(data):
            epoch, batch = next(expected, (NOTHING, None))
            if batch is None or (header.base_offset, header.leader_epoch, header.crc) != (batch.base, epoch, batch.crc):
                _differs(replica, header.base_offset)
                return
            size, offset = position + header.size, batch.next
        if size != len(data):
            _differs(replica, offset)
            return
    if next(expected, None) is not None:
        _differs(replica, offset)


def _differs(replica: ReplicaGhost, offset: int) -> None:
    log, partition = replica.log, replica.partition
    if log is None or is_damaged(log.files, log.dir):
        return  # rotten bytes that no process has read yet
    text = f"the files of node {replica.node} do not hold the batch that was written at offset {offset}"
    raise partition.violation("I4", text, replica.node)
