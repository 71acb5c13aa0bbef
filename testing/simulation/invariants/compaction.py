"""I26, I27: which changes a cleaner may make to a log, and that a deleted key stays deleted.

Each replica runs its own cleaner, so the copies of a compacted partition need not hold the same bytes. But each record that a
copy holds must be the same, at the same offset, in every other copy that holds it. From the first cleaning of a partition on, its
ghost therefore has every **original** record (`Originals`), and each replica's ghost has the offsets of those that its log lacks
(`absent`).

- **I26 compaction.** A batch that no leader wrote is one that a cleaner has built from batches that a leader wrote: its records
  are originals, byte for byte, and it spans the offsets of those that are missing. A missing record has a newer one of its key
  below the true high watermark, or it is a tombstone, or its transaction was aborted. A record of a transaction that is open or
  aborted supersedes none. Only a tombstone whose delete horizon has passed is removed for good. Below the first dirty offset each
  key has one record.
- **I27 deleted keys.** A replica that lacks the tombstone of a key, without a newer record of the key, holds no older value of
  it: such a value would be read again as soon as the replica leads. The tombstone lies below the offset that the log reports
  (`tombstones_removed_below`). A follower whose log ends below that offset deletes its log and copies the leader's.

A partition that no cleaner has touched has no `Originals`, and costs nothing here. A check raises `Violation`, with the number of
its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from strandline.protocol.records.batch import DELETE_HORIZON_MASK, BatchHeader
from strandline.storage.disk import Buffer
from strandline.testing.simulation.invariants.bytes_on_disk import batch_of, segment_bytes, valid_batches
from strandline.testing.simulation.invariants.ghosts import PartitionGhost, ReplicaGhost
from strandline.testing.simulation.invariants.originals import Originals, read_batch
from strandline.testing.simulation.invariants.paths import Batch, Path

if TYPE_CHECKING:
    from strandline.storage.log.log import Log
    from strandline.storage.log.segment import Segment


# -- batches that a cleaner has built ---------------------------------------------------------------------------------


def is_cleaned(partition: PartitionGhost, epoch: int, batch: Batch) -> bool:
    """Whether this is a cleaned form of a batch that the leader of the epoch wrote, and not a new batch."""
    chain = partition.tree.chains.get(epoch)
    if partition.originals is None or chain is None or not chain.start <= batch.base < chain.end:
        return False
    known = chain.by_base.get(batch.base)
    return known is None or known[:4] != batch[:4]


def missing_from(replica: ReplicaGhost, header: BatchHeader, data: Buffer, position: int = 0) -> list[int]:
    """I26: the offsets of the records that a cleaned batch lacks. Its other records must be the originals."""
    partition, originals = replica.partition, replica.partition.originals
    assert originals is not None
    epoch, base, end = header.leader_epoch, header.base_offset, header.next_offset
    _check_frame(replica, header)
    if header.is_control:
        return []  # a marker, with a delete horizon or without its record
    records, found = originals.by_epoch.get(epoch, {}), read_batch(header, data, position)
    for offset, record in found.items():
        if records.get(offset) != record:
            text = f"broker {replica.node} has the record {record} at offset {offset} of epoch {epoch}, but its leader wrote "
            raise partition.violation("I26", f"{text}{records.get(offset)}", replica.node)
    return [offset for offset in range(base, end) if offset in records and offset not in found]


def _check_frame(replica: ReplicaGhost, header: BatchHeader) -> None:
    """A batch with records or a producer keeps its offsets and sequences; a filler spans whole batches of one epoch."""
    partition, batch = replica.partition, batch_of(header)
    chain = partition.tree.chains[header.leader_epoch]
    known = chain.by_base.get(batch.base)
    is_filler = not header.record_count and header.producer_id < 0
    is_same = known is not None and (known.next, *known[4:]) == (batch.next, *batch[4:])
    if batch.next > chain.end or not (is_filler or is_same):
        text = (
            f"broker {replica.node} has a batch of epoch {header.leader_epoch} with the offsets {batch.base} to "
            f"{batch.next - 1}, producer {batch.producer_id} and sequence {batch.sequence}, which no cleaning of {known} produces"
        )
        raise partition.violation("I26", text, replica.node)


def take(replica: ReplicaGhost, header: BatchHeader, data: Buffer, position: int) -> None:
    """A follower has appended a batch that a cleaner on its leader has built."""
    lacks(replica, missing_from(replica, header, data, position))


def lacks(replica: ReplicaGhost, offsets: Sequence[int]) -> None:
    """Note that the log of the replica lacks these records from now on. Its path has their epochs already, or gets them in this
    step."""
    replica.absent.update(dict.fromkeys(offsets))
    replica.unjudged += offsets


def check_absent(replica: ReplicaGhost) -> None:
    """Judge the records that were removed from the log in this step."""
    offsets, replica.unjudged = replica.unjudged, []
    partition, originals = replica.partition, replica.partition.originals
    if originals is None or replica.damage is not None or partition.loss_permitted or partition.is_deleted:
        return
    for offset in offsets:
        if offset < replica.path.end:
            _check_missing(replica, originals, offset)


def _check_missing(replica: ReplicaGhost, originals: Originals, offset: int) -> None:
    partition = replica.partition
    record = originals.by_epoch.get(replica.path.epoch_at(offset), {}).get(offset)
    if record is None or record.key is None or offset in partition.aborted:
        return
    newest = originals.newest(record.key, partition.committed)
    if newest > offset:
        return
    if not record.is_tombstone or newest < offset:
        what = "the last value" if newest == offset else "a value above the high watermark"
        text = f"broker {replica.node} lacks record {offset}, {what} of the key {record.key!r}"
        raise partition.violation("I26", f"{text}; the committed log is {partition.committed}", replica.node)
    replica.deleted_below = max(replica.deleted_below, offset + 1)
    check_deleted(replica, originals, record.key, offset)


def check_deleted(replica: ReplicaGhost, originals: Originals, key: bytes, tombstone: int) -> None:
    """I27: no record of the key is left below its tombstone, which this log lacks."""
    for offset in originals.before(key, tombstone, replica.path):
        if offset not in replica.absent:
            text = (
                f"broker {replica.node} holds record {offset} of the key {key!r}, which was deleted at offset {tombstone}; it "
                "lacks the tombstone, so the key would come back if it led"
            )
            raise replica.partition.violation("I27", text, replica.node)


# -- a cleaning -------------------------------------------------------------------------------------------------------


def begin(partition: PartitionGhost) -> None:
    """A cleaner is about to change the first segment of this partition: remember all records."""
    partition.originals = Originals(partition.unseen)
    for replica in partition.replicas.values():
        if replica.log is not None:
            _learn_log(partition, replica.log)


def _learn_log(partition: PartitionGhost, log: Log) -> None:
    assert partition.originals is not None
    for segment in log.segments:
        data = segment_bytes(segment)
        for position, header in valid_batches(data):
            known = partition.tree.find(header.leader_epoch, header.base_offset)
            if known is not None and known.crc == header.crc:
                partition.originals.learn(header, data, position)


class Replaced(NamedTuple):
    """The segments that a cleaned one is about to replace."""

    base: int
    end: int
    horizons: list[tuple[int, int]]
    """(base offset, delete horizon) of each of their batches; horizon -1: it has none."""


def before_replacement(replica: ReplicaGhost, old: Sequence[Segment], end: int) -> Replaced:
    if replica.partition.originals is None:
        begin(replica.partition)
    horizons = []
    for segment in old:
        for _, header in valid_batches(segment_bytes(segment)):
            horizon = header.base_timestamp if header.attributes & DELETE_HORIZON_MASK else -1
            horizons.append((header.base_offset, horizon))
    return Replaced(old[0].base_offset, end, horizons)


def replaced(replica: ReplicaGhost, log: Log, was: Replaced, clock_ms: int) -> None:
    """I26: a cleaned segment has taken the place of others. `clock_ms`: the latest time that the machine's clock has shown."""
    partition = replica.partition
    segment = log.segments[log.segment_for(was.base)]
    data, offset, missing = segment_bytes(segment), was.base, []
    for position, header in valid_batches(data):
        epoch = header.leader_epoch
        same = epoch == replica.path.epoch_at(header.base_offset) == replica.path.epoch_at(header.last_offset)
        if header.base_offset != offset or not same:
            text = f"the cleaner of broker {replica.node} left a hole, or another epoch, at offset {offset}: {header}"
            raise partition.violation("I5", text, replica.node)
        if is_cleaned(partition, epoch, batch_of(header)):
            missing += missing_from(replica, header, data, position)
        offset = header.next_offset
    if offset != was.end:
        text = f"the cleaner of broker {replica.node} left a segment that ends at offset {offset} instead of {was.end}"
        raise partition.violation("I5", text, replica.node)
    new = [offset for offset in missing if offset not in replica.absent]
    returned = [o for o in _between(replica.absent, was.base, was.end) if o not in set(missing)]
    if returned:
        raise partition.violation("I26", f"the cleaner of broker {replica.node} wrote removed records: {returned}", replica.node)
    _check_horizons(replica, was, new, clock_ms)
    lacks(replica, new)
    check_absent(replica)


def _between(offsets: Iterable[int], start: int, end: int) -> list[int]:
    return [offset for offset in offsets if start <= offset < end]


def _check_horizons(replica: ReplicaGhost, was: Replaced, removed: list[int], clock_ms: int) -> None:
    partition, originals = replica.partition, replica.partition.originals
    assert originals is not None
    for offset in removed:
        record = originals.by_epoch[replica.path.epoch_at(offset)][offset]
        if not record.is_tombstone or record.key is None or offset in partition.aborted:
            continue
        if originals.newest(record.key, partition.committed) > offset:
            continue
        _, horizon = was.horizons[bisect_right(was.horizons, (offset, 1 << 63)) - 1]
        if not 0 <= horizon <= clock_ms:
            text = (
                f"the cleaner of broker {replica.node} removed the tombstone of the key {record.key!r} at offset {offset} before "
                f"its delete horizon (the horizon is {horizon}, the clock {clock_ms})"
            )
            raise partition.violation("I26", text, replica.node)


# -- the whole log ----------------------------------------------------------------------------------------------------


def truncated(replica: ReplicaGhost) -> None:
    """The path has become shorter, or was restarted at another offset."""
    path = replica.path
    replica.absent = {offset: None for offset in replica.absent if path.start <= offset < path.end}
    replica.deleted_below = 0 if path.start == path.end else min(replica.deleted_below, path.end)


def needs_fresh_copy(replica: ReplicaGhost, old: Path) -> bool:
    """Whether a replica outside the ISR, whose path was `old`, rightly restarted its log. It must if another replica has removed
    tombstones above its end, because it may hold the values that they have deleted."""
    partition, registration = replica.partition, replica.partition.registration
    if replica.path.start != replica.path.end or registration is None or replica.node in registration.isr:
        return False
    logs = [other.log for other in partition.replicas.values() if other is not replica and other.log is not None]
    return any(log.tombstones_removed_below > old.end for log in logs)


def check_log(replica: ReplicaGhost, log: Log) -> None:
    """I26, I27, for a log that changed in this step: the offsets that its cleaner keeps."""
    if replica.unjudged:
        check_absent(replica)
    partition, below, first_dirty = replica.partition, log.tombstones_removed_below, log.first_dirty_offset
    if replica.damage is not None or partition.loss_permitted:
        return
    if below < replica.deleted_below:
        text = f"the log of broker {replica.node} lacks the tombstone at {replica.deleted_below - 1}, but it reports {below}"
        raise partition.violation("I27", text, replica.node)
    if replica.leads_in is not None and below > log.log_end_offset:
        text = f"broker {replica.node} leads with the log end {log.log_end_offset}, but reports removed tombstones below {below}"
        raise partition.violation("I27", text, replica.node)
    if first_dirty != replica.clean_to:
        replica.clean_to = first_dirty
        if log.log_start_offset < first_dirty <= log.log_end_offset:
            check_clean(replica, first_dirty)


def check_clean(replica: ReplicaGhost, first_dirty: int) -> None:
    """I26: below the first dirty offset no record supersedes another one."""
    partition, originals = replica.partition, replica.partition.originals
    assert originals is not None
    for key in originals.offsets:
        held = [o for o in originals.before(key, first_dirty, replica.path) if o not in replica.absent]
        if len(held) > 1:
            text = f"broker {replica.node} reports a clean log below {first_dirty}, but has the records {held} of {key!r}"
            raise partition.violation("I26", text, replica.node)


def check_bytes(replica: ReplicaGhost, log: Log) -> None:
    """I4 at rest: the files of the replica hold what its ghost says: the path without holes, and the originals that are not
    absent."""
    partition, missing, offset = replica.partition, [], log.segments[0].base_offset
    for segment in log.segments:
        data = segment_bytes(segment)
        for position, header in valid_batches(data):
            epochs = (replica.path.epoch_at(header.base_offset), replica.path.epoch_at(header.last_offset))
            if header.base_offset != offset or epochs != (header.leader_epoch, header.leader_epoch):
                raise partition.violation("I5", f"the log of broker {replica.node} has a hole at offset {offset}", replica.node)
            if is_cleaned(partition, header.leader_epoch, batch_of(header)):
                missing += missing_from(replica, header, data, position)
            offset = header.next_offset
    start = max(log.segments[0].base_offset, replica.path.start)  # `truncated` drops the offsets below the path
    missing = _between(missing, start, log.log_end_offset)
    held = _between(replica.absent, start, log.log_end_offset)
    if offset != replica.path.end or sorted(missing) != sorted(held):
        text = (
            f"the files of broker {replica.node} end at offset {offset} and lack the records {sorted(set(missing) - set(held))}; "
            f"they hold {sorted(set(held) - set(missing))}, which were removed"
        )
        raise partition.violation("I4", text, replica.node)


def check_values(replica: ReplicaGhost) -> None:
    """I26 at rest: the last committed value of every key can be read here, and no value of a deleted key."""
    partition, originals, path = replica.partition, replica.partition.originals, replica.path
    if originals is None or replica.damage is not None or partition.loss_permitted:
        return
    for key in originals.offsets:
        newest = originals.newest(key, partition.committed)
        if not path.start <= newest < path.end:
            continue
        if newest in replica.absent:
            if not originals.by_epoch[path.epoch_at(newest)][newest].is_tombstone:
                text = f"broker {replica.node} lacks record {newest}, the last value of the key {key!r}"
                raise partition.violation("I26", text, replica.node)
            check_deleted(replica, originals, key, newest)
