"""I8, I9, and the half of I10 that clients see: what a broker sends to a consumer.

**The applied high watermark** (I10) is what clients are told: by ListOffsets, and with each fetch. A new leader may know an
older high watermark than the one that its predecessor told. To a request for the latest offset it must answer "not available";
its fetch responses carry the old one, as Kafka's do, until it has reached the start of its own epoch. From then on, and always
for ListOffsets, no leader tells less than it or a leader of an older epoch told before. A leader that was replaced and does not
know it may tell old offsets: it is compared with its own and older epochs.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.protocol.records.batch import check_crc, iter_headers
from strandline.storage.disk import Buffer
from strandline.testing.simulation.invariants.ghosts import Ghosts, PartitionGhost, ReplicaGhost


def on_records(replica: ReplicaGhost, high_watermark: int, buffers: Sequence[Buffer]) -> None:
    """I8, I9: this broker sends batches to a consumer."""
    partition = replica.partition
    for buffer in buffers:
        for position, header in iter_headers(buffer):
            end = header.next_offset
            if end > high_watermark:
                text = f"broker {replica.node} serves up to {end}, its high watermark is {high_watermark}"
                raise partition.violation("I8", text, replica.node)
            if not check_crc(buffer, position, header.size):
                text = f"broker {replica.node} serves damaged bytes for the records {header.base_offset} to {end - 1}"
                raise partition.violation("I8", text, replica.node)
            on_batch(replica, header.base_offset, end, header.leader_epoch, header.crc)


def on_batch(replica: ReplicaGhost, base: int, end: int, epoch: int, crc: int) -> None:
    partition, committed = replica.partition, replica.partition.committed
    if partition.is_deleted:
        return
    before = partition.read.get(base)
    if before is not None and before != (epoch, crc) and not partition.loss_permitted:
        text = (
            f"broker {replica.node} serves at offset {base} the batch {crc:08x} of epoch {epoch}; a consumer got {before[1]:08x} "
            f"of epoch {before[0]} there before"
        )
        raise partition.violation("I9", text, replica.node)
    if not partition.loss_permitted:
        _check_committed(replica, base, end, epoch, crc)
    partition.read[base] = (epoch, crc)
    if end > partition.read_end:
        partition.read_end = min(end, committed.end)


def _check_committed(replica: ReplicaGhost, base: int, end: int, epoch: int, crc: int) -> None:
    partition, committed = replica.partition, replica.partition.committed
    if end > committed.end or committed.epoch_at(base) != epoch:
        text = f"broker {replica.node} serves the records {base} to {end - 1} of epoch {epoch}, committed is {committed}"
        raise partition.violation("I8", text, replica.node)
    batch = partition.tree.find(epoch, base)
    if batch is None or batch.crc != crc or batch.next != end:
        text = f"broker {replica.node} serves at offset {base} of epoch {epoch} what was never written there"
        raise partition.violation("I8", text, replica.node)


def on_out_of_range(ghosts: Ghosts, replica: ReplicaGhost, offset: int) -> None:
    """I9: a position that a consumer has reached does not vanish, unless it was deleted."""
    partition, registration = replica.partition, replica.partition.registration
    is_stale = registration is None or replica.leads_in != registration.leader_epoch
    if is_stale or partition.loss_permitted or partition.is_deleted:
        return
    if partition.deleted_below <= offset <= partition.read_end:
        text = f"broker {replica.node} says that offset {offset} is out of range; consumers have read up to {partition.read_end}"
        raise partition.violation("I9", text, replica.node)


def on_told(replica: ReplicaGhost, high_watermark: int, *, is_answer: bool) -> None:
    """I10: a client is told a high watermark. `is_answer`: it asked for the latest offset."""
    partition, leader_state = replica.partition, replica.live.leader_state if replica.live is not None else None
    if partition.is_deleted:
        return
    if high_watermark > partition.told_end:
        text = f"broker {replica.node} tells the high watermark {high_watermark}, the true one is {partition.committed.end}"
        raise partition.violation("I10", text, replica.node)
    if leader_state is None or not (is_answer or high_watermark >= leader_state.epoch_start_offset):
        return
    _check_applied(partition, replica.node, leader_state.epoch, high_watermark)


def _check_applied(partition: PartitionGhost, node: int, epoch: int, high_watermark: int) -> None:
    applied = partition.applied
    if applied.get(epoch, -1) < high_watermark or epoch not in applied:
        applied[epoch] = max(high_watermark, applied.get(epoch, -1))
    for other, told in applied.items():
        if other <= epoch and told > high_watermark and not partition.loss_permitted:
            text = f"broker {node} tells {high_watermark} in epoch {epoch}, and {told} was told in epoch {other} before"
            raise partition.violation("I10", text, node)
