"""I16: every batch of an idempotent producer is committed once, and in order.

The first batch of a producer may have any sequence number: earlier ones may have been given up, or deleted, before a surviving
leader received them. From then on the numbers have no gap as long as a record of the producer is in the log; a leader that has
deleted all of them has dropped the producer's state.

A *named* producer is stricter: its sequences are the rows of one work epoch, whichever attempt writes them. They begin at 0,
continue through all producer epochs, are remembered longer than the records, and end with the first row of a higher work epoch.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.protocol.producer_names import family_of, is_named
from strandline.protocol.records.batch import MAX_SEQUENCE, NO_PRODUCER_EPOCH
from strandline.protocol.records.fence import FIRST_FENCE, NO_TOKEN
from strandline.testing.simulation.invariants import fencing, transactions
from strandline.testing.simulation.invariants.ghosts import PartitionGhost, ReplicaGhost
from strandline.testing.simulation.invariants.paths import Batch

REMEMBERED = 5
"""Number of batches that a log keeps per producer."""


class Place(NamedTuple):
    """The last position of a producer, or of the owner of a name."""

    producer_id: int
    epoch: int
    next_sequence: int
    last_offset: int


def on_committed(partition: PartitionGhost, start: int, end: int) -> None:
    """The records of this range have just become committed."""
    for epoch, batch in partition.tree.walk(partition.committed, start, end):
        fencing.on_committed(partition, epoch, batch)
        transactions.on_committed(partition, epoch, batch)
        if batch.producer_id >= 0 and batch.sequence >= 0 and not batch.is_control:
            _take(partition, batch)


def rebuild(partition: PartitionGhost) -> None:
    partition.producers.clear()
    for known in (partition.open_transactions, partition.unseen, partition.aborted):
        known.clear()
    partition.token = NO_TOKEN
    on_committed(partition, 0, partition.committed.end)


def _take(partition: PartitionGhost, batch: Batch) -> None:
    family, named = family_of(batch.producer_id), is_named(batch.producer_id)
    known: Place | None = partition.producers.get(family)
    if named and known is None:
        known = Place(batch.producer_id, batch.producer_epoch, 0, -1)
    counts = known is not None and (named or known.last_offset >= partition.deleted_below)
    if known is not None and counts and not _follows(known, batch, named):
        before = "" if batch.producer_id == known.producer_id else f"producer {known.producer_id} "
        text = (
            f"producer {batch.producer_id} epoch {batch.producer_epoch} has sequence {batch.sequence} at offset {batch.base}, "
            f"but its previous batch ends with {before}epoch {known.epoch} sequence "
            f"{(known.next_sequence - 1) & MAX_SEQUENCE} at offset {known.last_offset}"
        )
        raise partition.violation("I16", text)
    following = (batch.sequence + batch.next - batch.base) & MAX_SEQUENCE
    partition.producers[family] = Place(batch.producer_id, batch.producer_epoch, following, batch.next - 1)


def _follows(known: Place, batch: Batch, named: bool) -> bool:
    if (batch.producer_id, batch.producer_epoch) < (known.producer_id, known.epoch):
        return False  # the work epoch or the attempt is over
    is_same = batch.producer_id == known.producer_id and (named or batch.producer_epoch == known.epoch)
    return bool(batch.sequence == (known.next_sequence if is_same else 0))


def check_states(replica: ReplicaGhost) -> None:
    """The producer states of a log are those that its batches result in. Walks over the batches, so it runs at rest only."""
    log, partition, path = replica.log, replica.partition, replica.path
    if log is None or replica.damage is not None:
        return
    fencing.check_state(replica)
    expected = _states(replica, log.segments[0].base_offset)
    found = {
        producer_id: (epoch, [(batch.last_sequence, batch.last_offset) for batch in batches])
        for producer_id, (epoch, batches) in log.producers.dump().items()
        if batches and producer_id < FIRST_FENCE
    }
    fits = _fits if partition.originals is None else _fits_cleaned
    for producer_id, state in expected.items():
        if not fits(found.get(producer_id), state) and not (producer_id not in found and replica.has_forgotten):
            text = (
                f"broker {replica.node} has the state {found.get(producer_id)} for producer {producer_id}, but the batches in "
                f"its log result in {state} (epoch, [(last sequence, last offset)])"
            )
            raise partition.violation("I16", text, replica.node)
    strangers = [p for p in found if p not in expected and found[p][1][-1][1] >= path.start]
    if strangers:
        text = f"broker {replica.node} has states for the producers {strangers}, but its log has no batch of them"
        raise partition.violation("I16", text, replica.node)


State = tuple[int, list[tuple[int, int]]]


def _states(replica: ReplicaGhost, start: int) -> dict[int, State]:
    states: dict[int, State] = {}
    newest: dict[int, int] = {}
    """Producer name -> the producer id of its newest work epoch. The states of older ones are dropped."""
    for _, batch in replica.partition.tree.walk(replica.path, start, replica.path.end):
        if batch.producer_id < 0 or (batch.is_control and batch.producer_id >= FIRST_FENCE):
            continue
        if batch.is_control:
            if states.get(batch.producer_id, (NO_PRODUCER_EPOCH, []))[0] < batch.producer_epoch:
                states.pop(batch.producer_id, None)  # the marker fences the epoch of these batches
            continue
        family = family_of(batch.producer_id)
        if newest.get(family, batch.producer_id) != batch.producer_id:
            del states[newest[family]]
        newest[family] = batch.producer_id
        epoch, batches = states.get(batch.producer_id, (batch.producer_epoch, []))
        if epoch != batch.producer_epoch:
            epoch, batches = batch.producer_epoch, []
        last_sequence = (batch.sequence + batch.next - 1 - batch.base) & MAX_SEQUENCE
        states[batch.producer_id] = (epoch, [*batches, (last_sequence, batch.next - 1)][-REMEMBERED:])
    return states


def _fits(found: State | None, state: State) -> bool:
    """Whether the state of the log fits; it may contain batches that the log has deleted since."""
    epoch, batches = state
    return found is not None and found[0] == epoch and found[1][-len(batches) :] == batches


def _fits_cleaned(found: State | None, state: State) -> bool:
    """Whether the state fits a log that a cleaner has changed, here or on the leader that it was copied from: the last batch of a
    producer stays, others may be gone."""
    epoch, batches = state
    return found is not None and found[0] == epoch and found[1][-1] == batches[-1]
