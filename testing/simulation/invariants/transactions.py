"""I41 to I44, I46: how transactions are decided, marked and read.

The records that leaders append are the evidence. Those of `__transaction_state` are decoded here; the memory of a coordinator is
not used. A record counts if it is in the committed log of its partition.

- **I41 decisions**: a leader appends a marker only if a committed Prepare record of the producer's transactional id says so: the
  producer id, the epoch, the outcome, and the partition. An operator's marker (without a coordinator epoch) is not judged.
- **I42 completion**: when a coordinator appends a Complete record, each partition of the Prepare record before it has its
  marker, committed. A partition whose topic was deleted needs none.
- **I43 membership**: a leader appends a record of a transaction only after a committed record says that the transaction is
  ongoing and has the partition, and never behind a marker of a higher epoch. (A late record would begin a hanging transaction,
  KIP-890.)
- **I44 stability**: the last stable offset in an answer to a reader of committed records is not above the first record of a
  transaction without a committed marker; in one epoch, a leader sends none that is lower than before; and the list of aborted
  transactions is in the order of their first offsets.
- **I46 takeovers**: a process that takes over a transactional id gets an epoch that is higher than all before it.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from strandline.broker.transactions.records import UnknownKeyVersion, decode_record
from strandline.broker.transactions.states import NO_EPOCH, State, Transaction
from strandline.controller.metadata.internal_topics import TRANSACTION_STATE_TOPIC
from strandline.protocol.messages.data import FetchPartitionResponse
from strandline.protocol.records.batch import BatchHeader
from strandline.protocol.records.fence import FIRST_FENCE
from strandline.protocol.records.marker import NO_COORDINATOR_EPOCH, is_marker, read_marker
from strandline.protocol.records.reader import iter_records
from strandline.storage.disk import Buffer
from strandline.testing.simulation.invariants.paths import Batch
from strandline.testing.simulation.invariants.transaction_views import Decision, Marker

if TYPE_CHECKING:
    from strandline.testing.simulation.invariants.ghosts import Ghosts, PartitionGhost, ReplicaGhost


# -- appends ----------------------------------------------------------------------------------------------------------


def on_appended(ghosts: Ghosts, replica: ReplicaGhost, records: Buffer, headers: Sequence[BatchHeader]) -> None:
    """A leader has appended these new batches."""
    position = 0
    for header in headers:
        if replica.partition.topic == TRANSACTION_STATE_TOPIC:
            for offset, value in _decoded(records[position : position + header.size], header.base_offset):
                _on_decision(ghosts, replica, Decision(replica.partition.key, header.leader_epoch, offset, value))
        elif is_marker(header):
            _on_marker(ghosts, replica, records, position, header)
        elif header.is_transactional:
            _check_membership(ghosts, replica, header)
        position += header.size


def _decoded(batch: Buffer, base: int) -> Iterator[tuple[int, Transaction]]:
    for number, record in enumerate(iter_records(batch)):
        key = None if record.key is None else bytes(record.key)
        with contextlib.suppress(UnknownKeyVersion):
            value = decode_record(key, None if record.value is None else bytes(record.value)).value
            if value is not None:
                yield base + number, value


def _on_decision(ghosts: Ghosts, replica: ReplicaGhost, decision: Decision) -> None:
    value = decision.value
    known = ghosts.transactions.by_id.setdefault(value.transactional_id, [])
    # A coordinator that was replaced without knowing it has its own history; no record that it adds becomes committed.
    before = [d for d in known if d.key == decision.key and replica.path.holds(d.offset, d.epoch)]
    if value.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
        _check_complete(ghosts, replica, value, before)
    elif value.state is State.EMPTY and value.last_producer_epoch == NO_EPOCH:
        _check_takeover(ghosts, replica, value, before)
    known.append(decision)
    ghosts.transactions.decisions.setdefault(value.producer_id, []).append(decision)


def _is_committed(ghosts: Ghosts, decision: Decision) -> bool:
    partition = ghosts.partitions.get(decision.key)
    return partition is not None and partition.committed.holds(decision.offset, decision.epoch)


def _check_complete(ghosts: Ghosts, replica: ReplicaGhost, value: Transaction, before: Sequence[Decision]) -> None:
    prepared = next((d.value for d in reversed(before) if d.value.state.is_prepared and _is_committed(ghosts, d)), None)
    if prepared is None or replica.partition.loss_permitted:
        return
    is_commit = value.state is State.COMPLETE_COMMIT
    for topic, number in prepared.partitions:
        found = ghosts.metadata.image.topic(topic)
        partition = None if found is None else ghosts.partitions.get((bytes(found.topic_id), number))
        if partition is None or partition.is_deleted or partition.loss_permitted:
            continue
        markers = partition.markers.get(prepared.producer_id, ())
        wanted = (prepared.producer_epoch, is_commit)
        if not any(m[2:] == wanted and partition.committed.holds(m.offset, m.epoch) for m in markers):
            text = f"broker {replica.node} completes the transaction of {value.transactional_id!r}, but {partition.name} has no "
            text += f"committed marker of producer {prepared.producer_id} with epoch {prepared.producer_epoch}"
            raise partition.violation("I42", text, replica.node)


def _check_takeover(ghosts: Ghosts, replica: ReplicaGhost, value: Transaction, before: Sequence[Decision]) -> None:
    epochs = [d.value.producer_epoch for d in before if d.value.producer_id == value.producer_id and _is_committed(ghosts, d)]
    if epochs and max(epochs) >= value.producer_epoch and not replica.partition.loss_permitted:
        text = (
            f"broker {replica.node} gives {value.transactional_id!r} to a process with epoch {value.producer_epoch} of producer "
        )
        text += f"{value.producer_id}, which had epoch {max(epochs)} before"
        raise replica.partition.violation("I46", text, replica.node)


def _on_marker(ghosts: Ghosts, replica: ReplicaGhost, records: Buffer, position: int, header: BatchHeader) -> None:
    marker, partition = read_marker(records, position, header), replica.partition
    if marker is None:
        return
    known = partition.markers.setdefault(header.producer_id, [])
    known.append(Marker(header.leader_epoch, header.base_offset, header.producer_epoch, marker.is_commit))
    if marker.coordinator_epoch == NO_COORDINATOR_EPOCH or partition.loss_permitted:
        return
    state = State.PREPARE_COMMIT if marker.is_commit else State.PREPARE_ABORT
    place = (partition.topic, partition.key[1])
    for decision in reversed(ghosts.transactions.decisions.get(header.producer_id, ())):
        value = decision.value
        fits = value.state is state and value.producer_epoch == header.producer_epoch and place in value.partitions
        if fits and _is_committed(ghosts, decision):
            return
    outcome = "commits" if marker.is_commit else "aborts"
    text = f"broker {replica.node} appends a marker at {header.base_offset} that {outcome} the transaction of producer "
    text += f"{header.producer_id} with epoch {header.producer_epoch}, and no committed record of its coordinator says that"
    raise partition.violation("I41", text, replica.node)


def _check_membership(ghosts: Ghosts, replica: ReplicaGhost, header: BatchHeader) -> None:
    partition = replica.partition
    if partition.loss_permitted:
        return
    what = f"broker {replica.node} appends a record of producer {header.producer_id} with epoch {header.producer_epoch} at "
    for marker in partition.markers.get(header.producer_id, ()):
        if marker.producer_epoch > header.producer_epoch and replica.path.holds(marker.offset, marker.epoch):
            text = f"{what}{header.base_offset}, after the marker with epoch {marker.producer_epoch} at {marker.offset}"
            raise partition.violation("I43", text, replica.node)
    place = (partition.topic, partition.key[1])
    for decision in reversed(ghosts.transactions.decisions.get(header.producer_id, ())):
        value = decision.value
        fits = value.state is State.ONGOING and value.producer_epoch == header.producer_epoch and place in value.partitions
        if fits and _is_committed(ghosts, decision):
            return
    text = f"{what}{header.base_offset}, and no committed record says that its transaction has this partition"
    raise partition.violation("I43", text, replica.node)


# -- the answers to readers -------------------------------------------------------------------------------------------


def on_committed(partition: PartitionGhost, epoch: int, batch: Batch) -> None:
    """The batch has just become committed, after all batches before it."""
    if not batch.is_transactional or (batch.is_control and batch.producer_id >= FIRST_FENCE):
        return
    if not batch.is_control:
        offsets = range(batch.base, batch.next)
        partition.open_transactions.setdefault(batch.producer_id, []).append(offsets)
        partition.unseen.update(dict.fromkeys(offsets))
        return
    markers = partition.markers.get(batch.producer_id, ())
    is_commit = any(m.is_commit for m in markers if (m.epoch, m.offset) == (epoch, batch.base))
    for offsets in partition.open_transactions.pop(batch.producer_id, ()):
        for offset in offsets:
            if is_commit:
                del partition.unseen[offset]
            else:
                partition.aborted[offset] = None


def on_stable_sent(replica: ReplicaGhost, response: FetchPartitionResponse) -> None:
    """I44: a leader sends this answer to a reader of committed records."""
    partition, stable = replica.partition, response.last_stable_offset
    if partition.is_deleted or partition.loss_permitted:
        return
    first = min((ranges[0].start for ranges in partition.open_transactions.values()), default=partition.committed.end)
    if stable > min(first, partition.committed.end):
        text = f"broker {replica.node} sends the last stable offset {stable}, but the transaction from {first} on is open"
        raise partition.violation("I44", text, replica.node)
    leads_in = replica.leads_in
    if leads_in is not None:
        before = partition.stable_offsets.get(leads_in, -1)
        if stable < before:
            text = f"broker {replica.node} sends the last stable offset {stable} in epoch {leads_in}, after {before}"
            raise partition.violation("I44", text, replica.node)
        partition.stable_offsets[leads_in] = stable
    aborted = response.aborted_transactions or ()
    if any(after.first_offset < before.first_offset for before, after in pairwise(aborted)):
        text = f"broker {replica.node} sends the aborted transactions {[(a.producer_id, a.first_offset) for a in aborted]}"
        raise partition.violation("I44", f"{text}, which are not in the order of their first offsets", replica.node)
