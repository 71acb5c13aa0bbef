"""I8, I9, I29, and the half of I10 that clients see: what a broker sends to a consumer.

**The applied high watermark** (I10) is the one that leaders send to clients, by ListOffsets and with each fetch. A new leader may
know an older high watermark than the one that its predecessor sent. To a request for the latest offset it must answer "not
available"; its fetch responses carry the old one, as Kafka's do, until it has reached the start of its own epoch. From then on,
and always for ListOffsets, a leader sends no lower one than it or a leader of an older epoch sent before. A leader that was
replaced and does not know it may send old offsets: it is compared with its own and older epochs.


A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.protocol.records.batch import BatchHeader, check_crc, iter_headers
from strandline.storage.disk import Buffer
from strandline.testing.simulation.invariants import compaction
from strandline.testing.simulation.invariants.bytes_on_disk import batch_of
from strandline.testing.simulation.invariants.ghosts import Ghosts, PartitionGhost, ReplicaGhost


def on_records(replica: ReplicaGhost, high_watermark: int, buffers: Sequence[Buffer]) -> None:
    """I8, I9: this broker sends batches to a consumer."""
    partition = replica.partition
    for buffer in buffers:
        for position, header in iter_headers(buffer):
            end = header.next_offset
            if end > high_watermark:
                text = f"broker {replica.node} serves records up to {end}, but its high watermark is {high_watermark}"
                raise partition.violation("I8", text, replica.node)
            if not check_crc(buffer, position, header.size):
                text = f"broker {replica.node} serves damaged bytes for the records {header.base_offset} to {end - 1}"
                raise partition.violation("I8", text, replica.node)
            if partition.originals is not None and compaction.is_cleaned(partition, header.leader_epoch, batch_of(header)):
                on_cleaned_batch(replica, header, buffer, position)
            else:
                on_batch(replica, header.base_offset, end, header.leader_epoch, header.crc)


def on_batch(replica: ReplicaGhost, base: int, end: int, epoch: int, crc: int) -> None:
    partition, committed = replica.partition, replica.partition.committed
    if partition.is_deleted:
        return
    before = partition.read.get(base)
    if before is not None and before != (epoch, crc) and not partition.loss_permitted:
        text = (
            f"broker {replica.node} serves at offset {base} the batch {crc:08x} of epoch {epoch}, but a consumer has read the "
            f"batch {before[1]:08x} of epoch {before[0]} there"
        )
        raise partition.violation("I9", text, replica.node)
    if not partition.loss_permitted:
        _check_committed(replica, base, end, epoch, crc)
    partition.read[base] = (epoch, crc)
    if end > partition.read_end:
        partition.read_end = min(end, committed.end)


def on_cleaned_batch(replica: ReplicaGhost, header: BatchHeader, buffer: Buffer, position: int) -> None:
    """The records that are left must be committed, and equal to those that the leader wrote; so all consumers read the same."""
    partition, committed = replica.partition, replica.partition.committed
    if partition.is_deleted or partition.loss_permitted:
        return
    _check_range(replica, header.base_offset, header.next_offset, header.leader_epoch)
    compaction.missing_from(replica, header, buffer, position)
    partition.read_end = max(partition.read_end, min(header.next_offset, committed.end))


def _check_committed(replica: ReplicaGhost, base: int, end: int, epoch: int, crc: int) -> None:
    partition = replica.partition
    _check_range(replica, base, end, epoch)
    batch = partition.tree.find(epoch, base)
    if batch is None or batch.crc != crc or batch.next != end:
        text = f"broker {replica.node} serves at offset {base} of epoch {epoch} a batch that no leader wrote"
        raise partition.violation("I8", text, replica.node)


def _check_range(replica: ReplicaGhost, base: int, end: int, epoch: int) -> None:
    partition, committed = replica.partition, replica.partition.committed
    if end > committed.end or committed.epoch_at(base) != epoch:
        text = (
            f"broker {replica.node} serves the records {base} to {end - 1} of epoch {epoch}, but the committed log is {committed}"
        )
        raise partition.violation("I8", text, replica.node)


def on_out_of_range(ghosts: Ghosts, replica: ReplicaGhost, offset: int) -> None:
    """I9: an offset up to which consumers have read is not out of range, unless its records were deleted."""
    partition, registration = replica.partition, replica.partition.registration
    is_stale = registration is None or replica.leads_in != registration.leader_epoch
    if is_stale or partition.loss_permitted or partition.is_deleted:
        return
    if partition.deleted_below <= offset <= partition.read_end:
        text = (
            f"broker {replica.node} rejects offset {offset} as out of range, but consumers have read up to {partition.read_end}"
        )
        raise partition.violation("I9", text, replica.node)


def on_nominated(replica: ReplicaGhost, nominee: int) -> None:
    """I29: a leader sends a consumer only to a member of the ISR that it knows. Other replicas may lag without a bound."""
    leader_state = replica.live.leader_state if replica.live is not None else None
    if leader_state is None:
        text = f"broker {replica.node} sends a consumer to broker {nominee}, but does not lead"
        raise replica.partition.violation("I29", text, replica.node)
    if nominee == replica.node or nominee not in leader_state.isr.isr:
        text = f"broker {replica.node} sends a consumer to broker {nominee}, but the ISR is {list(leader_state.isr.isr)}"
        raise replica.partition.violation("I29", text, replica.node)


def on_high_watermark_sent(replica: ReplicaGhost, high_watermark: int, *, is_answer: bool) -> None:
    """I10: a broker sends a high watermark to a client. `is_answer`: the client asked for the latest offset."""
    partition, leader_state = replica.partition, replica.live.leader_state if replica.live is not None else None
    if partition.is_deleted:
        return
    if high_watermark > partition.high_watermark_max:
        text = f"broker {replica.node} sends the high watermark {high_watermark}, but the true one is {partition.committed.end}"
        raise partition.violation("I10", text, replica.node)
    if leader_state is None or not (is_answer or high_watermark >= leader_state.epoch_start_offset):
        return
    _check_applied(partition, replica.node, leader_state.epoch, high_watermark)


def _check_applied(partition: PartitionGhost, node: int, epoch: int, high_watermark: int) -> None:
    applied = partition.applied
    if applied.get(epoch, -1) < high_watermark or epoch not in applied:
        applied[epoch] = max(high_watermark, applied.get(epoch, -1))
    for other, sent in applied.items():
        if other <= epoch and sent > high_watermark and not partition.loss_permitted:
            text = (
                f"broker {node} sends the high watermark {high_watermark} in epoch {epoch}, but {sent} was sent in epoch {other} "
                "before"
            )
            raise partition.violation("I10", text, node)
