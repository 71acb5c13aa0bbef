"""I4, I5, I6, I11, I22: the content of a log.

- **I4 log matching** is checked when a batch is appended, or found by a recovery. It must be the batch that the leader of its
  epoch wrote at this offset, after the same record. Then an equal (offset, epoch) means equal logs up to there, for good
  (`paths.py`). The second half, equal logs below both high watermarks, is checked when a high watermark moves (`watermark.py`).
- **I6 truncation**: a replica must not drop committed records, unless another member of the ISR has them and the replica either
  repairs damage or restarts its log because it has missed tombstones.
- **I22 topic identity**: a batch that is not in this topic's tree is looked up in the other trees, to name its topic.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from strandline.protocol.records.batch import CRC_POS, BatchHeader
from strandline.storage.disk import Buffer
from strandline.testing.simulation.invariants import compaction
from strandline.testing.simulation.invariants.bytes_on_disk import batch_of, is_damaged, segment_bytes, valid_batches
from strandline.testing.simulation.invariants.ghosts import Ghosts, PartitionGhost, ReplicaGhost
from strandline.testing.simulation.invariants.paths import NOTHING, Batch, Path

if TYPE_CHECKING:
    from strandline.storage.log.log import Log


# -- appends ----------------------------------------------------------------------------------------------------------


def append(ghosts: Ghosts, replica: ReplicaGhost, records: Buffer, headers: Sequence[BatchHeader], *, renewed: bool) -> bool:
    """The log has appended these batches. `renewed`: the broker wrote its own time and new checksums into them. Returns whether
    they are new, which means that this replica leads."""
    path, tree = replica.path, replica.partition.tree
    position, is_new = 0, False
    for header in headers:
        base, epoch = header.base_offset, header.leader_epoch
        known = tree.find(epoch, base)
        crc = header.crc if not renewed else int.from_bytes(records[position + CRC_POS : position + CRC_POS + 4], "big")
        if path.start == path.end and base < path.end < header.next_offset:
            path.end = base  # the log is empty, and its start lies inside its first batch (DeleteRecords)
        if base != path.end:
            text = f"broker {replica.node} appends a batch at offset {base}, but its log ends at {path.end}"
            raise replica.partition.violation("I5", text, replica.node)
        batch = batch_of(header, crc)
        if replica.partition.originals is not None and compaction.is_cleaned(replica.partition, epoch, batch):
            compaction.take(replica, header, records, position)
            _check_parent(replica, path, epoch, batch)
        elif known is None:
            _enter(ghosts, replica, path, epoch, batch)
            is_new = True
        else:
            _compare(ghosts, replica, path, epoch, known, batch)
        if replica.partition.originals is not None and (known is None or known.crc == crc):
            replica.partition.originals.learn(header, records, position)
        path.extend(epoch, base + header.last_offset_delta + 1)
        position += header.size
    ghosts.dirty[replica] = None
    return is_new


def may_have_appended(replica: ReplicaGhost, records: Buffer, headers: Sequence[BatchHeader], *, renewed: bool) -> None:
    """The process died, or its disk failed, in the middle of an append: a later recovery may find some of these batches."""
    parent, end, position = replica.path.last_epoch, replica.path.end, 0
    for header in headers:
        crc = header.crc if not renewed else int.from_bytes(records[position + CRC_POS : position + CRC_POS + 4], "big")
        tree, epoch = replica.partition.tree, header.leader_epoch
        if header.base_offset == end and tree.find(epoch, end) is None:
            tree.enter(epoch, batch_of(header, crc), parent)
            if replica.partition.originals is not None:
                replica.partition.originals.learn(header, records, position)
        parent, end, position = epoch, header.next_offset, position + header.size


def _enter(ghosts: Ghosts, replica: ReplicaGhost, path: Path, epoch: int, batch: Batch) -> None:
    """No other replica has this batch: only the leader of its epoch can have created it."""
    partition, node = replica.partition, replica.node
    if partition is not ghosts.metadata.log and partition.leaders.get(epoch, node) != node:
        owner = _owner(ghosts, partition, epoch, batch)
        if owner is not None:
            text = f"broker {node} holds a batch of {owner.name} (topic id {owner.key[0].hex()[:8]}) at offset {batch.base}"
            raise partition.violation("I22", text, node)
        leader = partition.leaders[epoch]
        text = f"broker {node} created a batch at offset {batch.base} in epoch {epoch}, whose leader is broker {leader}"
        raise partition.violation("I1", text, node)
    if epoch < path.last_epoch:
        text = f"broker {node} appended record {batch.base} of epoch {epoch} after a record of epoch {path.last_epoch}"
        raise partition.violation("I11", text, node)
    problem = partition.tree.enter(epoch, batch, path.last_epoch)
    if problem:
        raise partition.violation("I4", f"broker {node} has a batch that no other replica has: {problem}", node)


def _owner(ghosts: Ghosts, partition: PartitionGhost, epoch: int, batch: Batch) -> PartitionGhost | None:
    for other in ghosts.partitions.values():
        found = other.tree.find(epoch, batch.base) if other is not partition else None
        if found is not None and found == batch:
            return other
    return None


def _compare(ghosts: Ghosts, replica: ReplicaGhost, path: Path, epoch: int, known: Batch, batch: Batch) -> None:
    partition, node = replica.partition, replica.node
    if known[:4] != batch[:4]:
        owner = _owner(ghosts, partition, epoch, batch)
        if owner is not None:
            raise partition.violation("I22", f"broker {node} appended a batch of {owner.name} at offset {batch.base}", node)
        text = (
            f"broker {node} has at offset {batch.base} of epoch {epoch} a batch that ends at {batch.next} with checksum "
            f"{batch.crc:08x}, but the leader wrote one that ends at {known.next} with checksum {known.crc:08x}"
        )
        raise partition.violation("I4", text, node)
    _check_parent(replica, path, epoch, batch)


def _check_parent(replica: ReplicaGhost, path: Path, epoch: int, batch: Batch) -> None:
    """The record before this batch is the one that the leader of its epoch had there."""
    partition, node = replica.partition, replica.node
    chain = partition.tree.chains[epoch]
    expected = epoch if batch.base > chain.start else chain.parent
    before = path.last_epoch
    if before == NOTHING or path.end <= path.start or expected == NOTHING or replica.damage is not None:
        return  # no earlier record could differ, or none is known
    if before != expected and batch.base <= partition.deleted_below:
        replica.fork = (path.agrees_until(partition.committed), batch.base)
    elif before != expected:
        text = (
            f"broker {node} has record {batch.base} of epoch {epoch} after a record of epoch {before}, but the leader wrote it "
            f"after a record of epoch {expected}"
        )
        raise partition.violation("I4", text, node)


# -- recovery ---------------------------------------------------------------------------------------------------------


def opened(ghosts: Ghosts, replica: ReplicaGhost, log: Log) -> None:
    """A process has opened the log, perhaps after a crash: read and judge the batches that the disk really has."""
    before, is_first = replica.path, replica.log is None and not replica.path.epochs and replica.path.end == 0
    path, damage = _read(ghosts, replica, log, is_first)
    if damage is not None and not is_first:
        _assume_rest(path, before, log)
    if damage is None and path.end != log.log_end_offset:
        text = (
            f"the recovery of node {replica.node} found the log end {log.log_end_offset}, but the log on disk ends at {path.end}"
        )
        raise replica.partition.violation("I5", text, replica.node)
    path.end = log.log_end_offset
    path.start = log.log_start_offset
    lost = not is_first and not path.holds_all_of(before)
    if damage is None:
        damage = log.corrupt_at  # a stale read: the disk is sound, and the replica repairs itself
    replica.path, replica.damage = path, damage
    replica.is_unclean = replica.is_unclean or lost or damage is not None
    if is_first:
        replica.partition.deleted_below = max(replica.partition.deleted_below, path.start)
    ghosts.dirty[replica] = None
    ghosts.disturbed[replica.partition] = None


def _read(ghosts: Ghosts, replica: ReplicaGhost, log: Log, is_first: bool) -> tuple[Path, int | None]:
    """The path of the batches on the disk, and the offset at which the first one is damaged."""
    path = Path(log.segments[0].base_offset)
    replica.absent, replica.unjudged, replica.deleted_below = {}, [], 0
    for segment in log.segments:
        data, size = segment_bytes(segment), 0
        if segment.base_offset != path.end:
            return path, path.end
        for position, header in valid_batches(data):
            if header.base_offset != path.end:
                return path, path.end
            if not _recognise(ghosts, replica, log, path, batch_of(header), header, is_first):
                return path, path.end
            if replica.partition.originals is not None:
                _learn(replica, header, data, position)
            path.extend(header.leader_epoch, header.next_offset)
            size = position + header.size
        if size < len(data):
            return path, path.end
    return path, None


def _learn(replica: ReplicaGhost, header: BatchHeader, data: bytes, position: int) -> None:
    partition = replica.partition
    assert partition.originals is not None
    if compaction.is_cleaned(partition, header.leader_epoch, batch_of(header)):
        compaction.take(replica, header, data, position)
    else:
        partition.originals.learn(header, data, position)


def _recognise(
    ghosts: Ghosts, replica: ReplicaGhost, log: Log, path: Path, batch: Batch, header: BatchHeader, is_first: bool
) -> bool:
    """Whether a batch that was found is one that was written there; a damaged disk may contain anything."""
    partition, epoch = replica.partition, header.leader_epoch
    known = partition.tree.find(epoch, batch.base)
    if known is None and is_first:
        partition.tree.enter(epoch, batch, path.last_epoch)
        return True
    if compaction.is_cleaned(partition, epoch, batch):
        return True
    if is_damaged(log.files, log.dir) and (known is None or known[:4] != batch[:4]):
        return False
    if known is None:
        if partition.tree.find_bytes(batch.base, batch.crc) != NOTHING:
            return False  # the checksum does not cover base offset and epoch
        text = f"the recovery of broker {replica.node} found a batch at offset {batch.base} of epoch {epoch} that no leader wrote"
        raise partition.violation("I4", text, replica.node)
    _compare(ghosts, replica, path, epoch, known, batch)
    return True


def _assume_rest(path: Path, before: Path, log: Log) -> None:
    """Extend the path beyond the damage: with the records that the log had before, and after them with the epochs it reports."""
    end = log.log_end_offset
    said = [(epoch, max(start, before.end)) for epoch, start in log.epochs.entries]
    rest = [(epoch, low, high) for (epoch, low), (_, high) in pairwise([*said, (NOTHING, end)])]
    for epoch, low, high in [*before.segments(path.end, min(end, before.end)), *rest]:
        if low == path.end and low < high and epoch >= path.last_epoch:
            path.extend(epoch, high)


# -- truncation -------------------------------------------------------------------------------------------------------


def truncated(ghosts: Ghosts, replica: ReplicaGhost, log: Log, *, corrupt_at: int | None) -> None:
    """The log was cut back. `corrupt_at` is the damage that it knew before."""
    path, partition = replica.path, replica.partition
    start, end = log.log_start_offset, log.log_end_offset
    old = path.copy()
    is_restart = start == end and start > path.end
    if is_restart:
        path.restart(start)
    else:
        path.truncate(min(end, path.end))
        path.start = min(start, path.end)
    replica.flushed = min(replica.flushed, end)
    if partition.originals is not None:
        compaction.truncated(replica)
    ghosts.dirty[replica] = None
    ghosts.disturbed[partition] = None
    if not (is_restart and partition is ghosts.metadata.log):  # a snapshot replaces what was dropped
        check_truncation(ghosts, replica, old, old.start if is_restart else end, corrupt_at)
    if replica.damage is not None and replica.damage >= end:
        replica.damage = None


def check_truncation(ghosts: Ghosts, replica: ReplicaGhost, old: Path, end: int, corrupt_at: int | None) -> None:
    """I6: the path was `old`, and ends at `end` now."""
    partition, committed = replica.partition, replica.partition.committed
    lost_to = min(old.agrees_until(committed), old.end)
    lost_from = max(end, partition.deleted_below, old.start)
    if lost_from >= lost_to or partition.loss_permitted or partition.is_deleted:
        return
    text = (
        f"broker {replica.node} truncated its log from {old.end} to {end} and removed the committed records "
        f"{lost_from} to {lost_to - 1} (the true high watermark is {committed.end})"
    )
    if partition is ghosts.metadata.log:
        raise partition.violation("I19", text.replace("broker", "controller", 1), replica.node)
    is_repair = corrupt_at is not None or replica.damage is not None or replica.is_unclean
    is_repair = is_repair or compaction.needs_fresh_copy(replica, old)
    if not is_repair or not _others_have(ghosts, replica, lost_to - 1):
        raise partition.violation("I6", text, replica.node)


def _others_have(ghosts: Ghosts, replica: ReplicaGhost, offset: int) -> bool:
    partition = replica.partition
    registration, epoch = partition.registration, partition.committed.epoch_at(offset)
    isr = tuple(partition.replicas) if registration is None else registration.isr
    others = (partition.replicas[node] for node in isr if node in partition.replicas and node != replica.node)
    return any(other.path.holds(offset, epoch) for other in others)


# -- the whole log ----------------------------------------------------------------------------------------------------


def log_start_moved(ghosts: Ghosts, replica: ReplicaGhost, log: Log) -> None:
    """I5: a log start only increases, unless the log is truncated below it or restarted."""
    if log.log_start_offset < replica.path.start:
        text = f"the log start of node {replica.node} moved back from {replica.path.start} to {log.log_start_offset}"
        raise replica.partition.violation("I5", text, replica.node)
    replica.path.start = log.log_start_offset
    replica.partition.deleted_below = max(replica.partition.deleted_below, log.log_start_offset)
    ghosts.dirty[replica] = None


def check_log(ghosts: Ghosts, replica: ReplicaGhost) -> None:
    """I5 and I11, for a log that changed in this step."""
    log = replica.log
    if log is None or replica.process is None or not replica.process.is_alive or log.failure.error is not None:
        return
    start, hw, end, partition = log.log_start_offset, log.high_watermark, log.log_end_offset, replica.partition
    if not 0 <= start <= hw <= end or not 0 <= log.recovery_point <= end:
        text = (
            f"node {replica.node} has log start {start}, high watermark {hw}, log end {end} and recovery point "
            f"{log.recovery_point}; required: log start <= high watermark <= log end, and recovery point <= log end"
        )
        raise partition.violation("I5", text, replica.node)
    if end != replica.path.end or start != replica.path.start:
        text = (
            f"node {replica.node} reports the log range [{start}, {end}), but its appends and deletions result in {replica.path}"
        )
        raise partition.violation("I5", text, replica.node)
    if partition.originals is not None:
        compaction.check_log(replica, log)
    if replica.fork is not None:
        check_fork(replica, replica.fork, hw)
    if replica.damage is None and partition is not ghosts.metadata.log:
        check_epochs(replica, log.epochs.epochs, log.epochs.starts)


def check_fork(replica: ReplicaGhost, fork: tuple[int, int], high_watermark: int) -> None:
    """I4: a leader that has deleted the offset at which the two logs diverge cannot report it, so a follower may keep a fork that
    ends at the leader's log start. The follower must drop the fork, by moving its own log start, before its high watermark covers
    any of it."""
    start, end = fork
    if replica.path.start >= end or replica.path.end < end:
        replica.fork = None
    elif high_watermark > start:
        which = f"records {start} to {end - 1}, which only it holds"
        text = f"the high watermark {high_watermark} of broker {replica.node} covers the {which}"
        raise replica.partition.violation("I4", text, replica.node)


def check_epochs(replica: ReplicaGhost, epochs: list[int], starts: list[int]) -> None:
    """I11: the cache holds the offset at which each epoch of the path begins. An epoch without records begins where the next one
    does."""
    path, partition = replica.path, replica.partition
    registration = partition.registration
    if registration is not None and path.last_epoch > registration.leader_epoch:
        text = (
            f"broker {replica.node} has records of epoch {path.last_epoch}, but the newest leader epoch is "
            f"{registration.leader_epoch}"
        )
        raise partition.violation("I11", text, replica.node)
    if epochs == path.epochs and starts == path.starts and (not starts or starts[0] >= path.start):
        return
    said = list(zip(epochs, starts, strict=True))
    expected = [(epoch, _begins(path, epoch)) for epoch in epochs]
    missing = [epoch for epoch, _, _ in path.segments(path.start, path.end) if epoch not in epochs]
    if said != expected or missing or any(a >= b for a, b in pairwise(epochs)):
        held = list(path.segments(path.start, path.end))
        text = f"the epoch cache of broker {replica.node} is {said}, but its records are {held} (epoch, start, end)"
        raise partition.violation("I11", text, replica.node)


def _begins(path: Path, epoch: int) -> int:
    """The first offset of this epoch or a newer one; the end of the log if there is none."""
    index = bisect_left(path.epochs, epoch)
    return max(path.starts[index], path.start) if index < len(path.starts) else path.end
