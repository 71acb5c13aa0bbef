"""The producer states of a log: what it must know of idempotent producers to append each batch exactly once and in order.

Per producer id these are the newest epoch and the last five batches. A client has at most five batches in flight, so every retry
that it can still send is among them. A batch with the sequences of one of the five is a duplicate and is answered with the
offsets of its first append. An older one is refused as a duplicate, and one that leaves a gap as out of order.

**A named producer** (`protocol/producer_names.py`) may be several processes with the same name, one after the other or at the
same time. Its sequences are the row numbers of its work epoch in this partition, no matter which process wrote a row:

    higher epoch           continues after the rows of the lower epoch, and fences it; overlapping rows are refused as duplicates
    higher work epoch      begins at row 0 and replaces the older one: there is one entry per name
    unknown producer       begins at row 0: a broker that does not know the earlier rows must not append later ones
    largest sequence       is the last one: row numbers do not wrap

Its entry is kept when its records are deleted, and however long it is silent, until the cluster drops the name: a process that
continues the work must be able to find out which rows are written.

A replica that restarts at its leader's log start has no batches from which to derive the states of older producers. It asks the
leader by DescribeProducers for the named producers whose last batch lies before that offset (`from_leader`).

The fencing tokens of the log (`fences.py`) are kept with the producers, because a fence has the form of a producer's batch: in
headers, in snapshots and in DescribeProducers.

**A transaction** of a producer (not of a named one) is open from its first transactional batch on until a marker ends it
(`protocol/records/marker.py`). The state has its first offset, and the newest coordinator epoch of the producer's markers. A
producer with an open transaction is not forgotten. `transactions.py` says what follows from open transactions for readers.

    marker with a lower producer epoch       INVALID_PRODUCER_EPOCH; with transactions of version 2, in which each transaction
                                             raises the epoch, also the same one, unless no transaction is open (KAFKA-19999)
    marker of an older coordinator epoch     TRANSACTION_COORDINATOR_FENCED
    marker of a producer without an open     appended, and ends nothing: the coordinator repeats a marker whose answer was lost
      transaction
    marker with a higher producer epoch      fences batches of lower epochs; the next batch has sequence 0
    batch outside of the open transaction    INVALID_TXN_STATE

All states follow from the batches of the log, and are rebuilt from them. A snapshot shortens that. It is written when a
segment is rolled, and on an orderly close:

    <offset>.snapshot    i16 version = 1 | u32 CRC-32C of the rest | i32 n | n entries      state just before `offset`
    entry                i64 producer id | i16 epoch | i32 last sequence | i64 last offset | i32 offset delta
                         | i64 timestamp | i32 coordinator epoch | i64 first offset of the open transaction (-1)

Of a producer without a batch in its epoch, the sequence and the last offset are -1.

Kafka writes one entry per producer. This format has up to five consecutive entries, oldest first, and one for each fence; a
reader that keeps the last entry of an id, as Kafka does, reads it correctly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from struct import Struct, error
from typing import NamedTuple

import crc32c

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.producer_names import FIRST_NAMED, family_of, number_of, work_epoch_of
from strandline.protocol.records.batch import CONTROL_MASK, MAX_SEQUENCE, TRANSACTIONAL_MASK, BatchHeader
from strandline.protocol.records.fence import FIRST_FENCE, producer_id_of, sequence_of, token_of
from strandline.protocol.records.marker import NO_COORDINATOR_EPOCH, EndTransactionMarker
from strandline.storage.log.fences import Fences
from strandline.storage.log.transaction_index import AbortedTransaction
from strandline.storage.log.transactions import Transactions

BATCHES_KEPT = 5
_NO_EPOCH = -1
_HALF = 2**30
NO_TIMESTAMP = -1
NO_TRANSACTION = -1
TRANSACTION_VERSION_2 = 2
"""The version of the protocol in which each transaction raises the producer epoch (KIP-890)."""

_SNAPSHOT_HEAD = Struct(">hIi")
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_CRC_END = 6
SNAPSHOT_VERSION = 1


class AppendedBatch(NamedTuple):
    """One of the last batches of a producer in this log."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE


class ProducerEntry:
    """The state of one producer: its epoch, its last batches, and its transaction."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "marker_offset", "marker_timestamp", "txn_first_offset", "work_epoch")

    work_epoch: int
    """The newest work epoch of a named producer; 0 for others."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        """The newest producer epoch seen. Batches of older epochs are refused."""
        self.batches: deque[AppendedBatch] = deque(maxlen=BATCHES_KEPT)
        """The last batches of this epoch, oldest first, with sequences without a gap."""
        self.txn_first_offset = NO_TRANSACTION
        """The first offset of the open transaction; -1 if there is none."""
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        """The coordinator epoch of the newest marker; -1 if no marker is known."""
        self.marker_offset = -1
        """The offset of the newest marker; -1 if it is not known."""
        self.marker_timestamp = NO_TIMESTAMP

    @property
    def newest_offset(self) -> int:
        """The offset of the newest batch or marker; -1 if it is not known."""
        return max(self.marker_offset, self.batches[-1].last_offset if self.batches else -1)

    @property
    def newest_timestamp(self) -> int:
        """The timestamp, in ms, of the newest batch or marker."""
        return max(self.marker_timestamp, self.batches[-1].timestamp if self.batches else NO_TIMESTAMP)

    def inherit(self, before: ProducerEntry) -> None:
        """Take over what does not belong to the epoch `before`: the transaction, and the newest marker."""
        self.txn_first_offset, self.coordinator_epoch = before.txn_first_offset, before.coordinator_epoch
        self.marker_offset, self.marker_timestamp = before.marker_offset, before.marker_timestamp

    def find(self, first_sequence: int, last_sequence: int) -> AppendedBatch | None:
        """The kept batch with exactly these sequences; None if there is none."""
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                return batch
        return None


class Position(NamedTuple):
    """The state that a producer's next batch must follow: id, epoch and last sequence."""

    producer_id: int
    epoch: int
    last_sequence: int


Pending = dict[int, Position]
"""Producer family -> its state after batches of the same request that were checked but are not appended yet."""


class KnownProducer(NamedTuple):
    """A producer and its newest batch, as DescribeProducers reports it."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    timestamp: int
    """The batch's max timestamp, in ms."""
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    """The coordinator epoch of the producer's newest marker; -1 if no marker is known."""
    txn_first_offset: int = NO_TRANSACTION
    """The first offset of the producer's open transaction; -1 if there is none."""


class Standing(NamedTuple):
    """The state of a transactional producer in one log. All fields are -1 if the log has no entry of the producer."""

    epoch: int
    last_sequence: int
    """The sequence of the producer's last batch in this epoch."""
    txn_first_offset: int
    """The first offset of the producer's open transaction."""
    marker_offset: int
    """The offset of the producer's newest marker."""


_UNKNOWN = Standing(_NO_EPOCH, -1, NO_TRANSACTION, -1)


class ProducerStates:
    """The producer states of one log. `check` before an append, `update` after it."""

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        """The entries, by family, so that all work epochs of a name share one entry."""
        self._last_seen: dict[int, tuple[int, int]] = {}
        """Family -> the last offset of its newest batch or marker, and the time (ms) at which `expire` first saw that one."""
        self._open_since: dict[int, int] = {}
        """First offset of an open transaction -> the time (ms) at which `expire` first saw it."""
        self.fences = Fences()
        self.transactions = Transactions()
        self.newest_marker_offset = -1
        """No marker above this offset has changed the states."""

    @classmethod
    def from_leader(cls, known: Iterable[KnownProducer], before: int) -> ProducerStates:
        """The fences before the offset `before`, and the states of the named producers whose newest batch ended before it, as the
        leader reported them.

        The size of that batch is not known, so it counts as its last row only: a retry of the whole batch is refused because its
        rows are written already."""
        states, fences = cls(), Fences()
        for each in known:
            if each.producer_id >= FIRST_FENCE:
                fences.add(token_of(each.producer_id, each.last_sequence), each.last_offset)
            elif each.producer_id >= FIRST_NAMED and each.last_offset < before:
                batch = AppendedBatch(each.last_sequence, each.last_offset, 0, each.timestamp)
                states._entry(each.producer_id, each.epoch).batches.append(batch)
        states.fences = fences.before(before)
        return states

    def __len__(self) -> int:
        """Number of producers."""
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerStates) and self.dump() == other.dump() and self._ends() == other._ends()

    def _ends(self) -> dict[int, tuple[int, int]]:
        """The coordinator epochs and the open transactions, for comparisons."""
        return {
            producer_id: (entry.coordinator_epoch, entry.txn_first_offset)
            for producer_id, entry in self._entries.items()
            if entry.coordinator_epoch >= 0 or entry.txn_first_offset >= 0
        }

    @property
    def has_markers(self) -> bool:
        """Whether a marker of one of the producers is known."""
        return any(entry.coordinator_epoch >= 0 for entry in self._entries.values())

    __hash__ = None  # type: ignore[assignment]

    def dump(self) -> dict[int, tuple[int, list[AppendedBatch]]]:
        """All entries by producer id, for comparisons and printing. The fences with one producer id are its batches."""
        found = {family | e.work_epoch: (e.epoch, list(e.batches)) for family, e in sorted(self._entries.items())}
        for fence in self.fences:
            batches = found.setdefault(producer_id_of(fence.token), (0, []))[1]
            batches.append(AppendedBatch(sequence_of(fence.token), fence.offset, 0, NO_TIMESTAMP))
        return found

    @property
    def outlives_batches(self) -> bool:
        """Whether some state is kept when its batches are deleted: that of a named producer, or a fence."""
        return bool(self.fences) or any(family >= FIRST_NAMED for family in self._entries)

    def describe(self, producer_ids: Iterable[int] | None = None) -> Iterator[KnownProducer]:
        """Those of these producers that the log knows; for None, all known producers and all fences. The id of a named producer
        stands for its name: the result has the newest work epoch that has written here."""
        families = self._entries if producer_ids is None else dict.fromkeys(map(family_of, producer_ids))
        for family in families:
            entry = self._entries.get(family)
            if entry is not None and entry.batches:
                last = entry.batches[-1]
                producer_id = family | entry.work_epoch
                last_batch = (last.last_sequence, last.last_offset, last.timestamp)
                yield KnownProducer(producer_id, entry.epoch, *last_batch, entry.coordinator_epoch, entry.txn_first_offset)
        for token, offset in self.fences if producer_ids is None else ():
            yield KnownProducer(producer_id_of(token), 0, sequence_of(token), offset, NO_TIMESTAMP)

    def without_batches(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """The producers of which only a marker is known: id -> epoch, and the marker's offset (-1: not known)."""
        for producer_id, entry in self._entries.items():
            if not entry.batches:
                yield producer_id, (entry.epoch, entry.marker_offset)

    def next_sequence(self, producer_id: int, epoch: int) -> int:
        """The sequence that the next batch of a producer without a name must have; 0 if the log has no batch of this epoch. For
        the group coordinator, which writes on behalf of producers that do not count their requests."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != epoch or not entry.batches:
            return 0
        return (entry.batches[-1].last_sequence + 1) & MAX_SEQUENCE

    def standing(self, producer_id: int) -> Standing:
        """The state of a producer that is not a named producer."""
        entry = self._entries.get(producer_id)
        if entry is None:
            return _UNKNOWN
        last_sequence = entry.batches[-1].last_sequence if entry.batches else -1
        return Standing(entry.epoch, last_sequence, entry.txn_first_offset, entry.marker_offset)

    def check(self, header: BatchHeader, pending: Pending) -> AppendedBatch | None:
        """Check a batch against the state of its producer. Returns None if it is the producer's next batch, and the earlier batch
        if it is a duplicate.

        Raises INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER, INVALID_RECORD, or
        INVALID_TXN_STATE. An unknown producer may start with any sequence, because its state may have expired or been deleted
        with its records. An unknown named producer must start at row 0; otherwise UNKNOWN_PRODUCER_ID is raised.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        if producer_id >= FIRST_NAMED:
            return self._check_named(header, pending)
        entry = self._entries.get(producer_id)
        _, known_epoch, last_sequence = pending.get(producer_id) or _position(producer_id, entry)
        if epoch < known_epoch:
            raise BrokerError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {epoch} of producer {producer_id} is fenced: epoch {known_epoch} has written to this partition",
            )
        first, last = header.base_sequence, header.last_sequence
        if first < 0:
            raise BrokerError(ErrorCode.INVALID_RECORD, f"a batch of producer {producer_id} has no sequence number")
        if epoch == known_epoch and last_sequence >= 0:
            if entry is not None and entry.epoch == epoch and (duplicate := entry.find(first, last)) is not None:
                return duplicate
            self._check_sequence(producer_id, last_sequence, first, last)
        elif known_epoch != _NO_EPOCH and first != 0:
            raise BrokerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"the first batch of epoch {epoch} of producer {producer_id} has sequence {first}, not 0",
            )
        if entry is not None and entry.txn_first_offset >= 0 and not header.attributes & TRANSACTIONAL_MASK:
            text = f"producer {producer_id} has an open transaction in this partition, and the batch is outside of it"
            raise BrokerError(ErrorCode.INVALID_TXN_STATE, text)
        pending[producer_id] = Position(producer_id, epoch, last)
        return None

    def check_marker(
        self, marker: EndTransactionMarker, producer_id: int, epoch: int, transaction_version: int = TRANSACTION_VERSION_2
    ) -> None:
        """Check a marker before it is appended. Raises INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED or
        INVALID_RECORD."""
        if not 0 <= producer_id < FIRST_NAMED or epoch < 0:
            raise BrokerError(ErrorCode.INVALID_RECORD, f"producer {producer_id} with epoch {epoch} has no transactions")
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        must_rise = transaction_version >= TRANSACTION_VERSION_2 and entry.txn_first_offset >= 0
        if epoch < entry.epoch or (epoch == entry.epoch and must_rise):
            text = f"a marker has epoch {epoch} of producer {producer_id}; epoch {entry.epoch} has written to this partition"
            raise BrokerError(ErrorCode.INVALID_PRODUCER_EPOCH, text)
        if _coordinator_epoch(marker) < entry.coordinator_epoch:
            text = f"coordinator epoch {marker.coordinator_epoch} is fenced: producer {producer_id} has a marker"
            raise BrokerError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, f"{text} of coordinator epoch {entry.coordinator_epoch}")

    def _check_named(self, header: BatchHeader, pending: Pending) -> AppendedBatch | None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        first, last = header.base_sequence, header.last_sequence
        if producer_id >= FIRST_FENCE:
            raise BrokerError(ErrorCode.INVALID_RECORD, f"producer id {producer_id} is that of a fence, which only leaders write")
        if header.attributes & TRANSACTIONAL_MASK:
            text = f"named producer {producer_id} sent a transactional batch; named producers have no transactions"
            raise BrokerError(ErrorCode.INVALID_RECORD, text)
        if not 0 <= first <= last:
            raise BrokerError(ErrorCode.INVALID_RECORD, f"named producer {producer_id}: {first} to {last} are not row numbers")
        family = family_of(producer_id)
        entry = self._entries.get(family)
        known = pending.get(family) or _position(family, entry)
        _check_not_fenced(known, producer_id, epoch)
        if producer_id != known.producer_id or known.epoch == _NO_EPOCH:
            if first:
                text = f"no row of its work epoch {work_epoch_of(producer_id)} is known here, so row {first} cannot be the first"
                raise BrokerError(ErrorCode.UNKNOWN_PRODUCER_ID, f"producer {producer_id}: {text}")
        elif entry is not None and _is_of(entry, producer_id, epoch) and (duplicate := entry.find(first, last)) is not None:
            return duplicate
        else:
            _check_next_row(known, first, last)
        pending[family] = Position(producer_id, epoch, last)
        return None

    @staticmethod
    def _check_sequence(producer_id: int, last_sequence: int, first: int, last: int) -> None:
        if last_sequence < 0 or first == (last_sequence + 1) & MAX_SEQUENCE:
            return
        if (last_sequence - last) & MAX_SEQUENCE < _HALF:
            raise BrokerError(
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                f"producer {producer_id} repeats sequences {first} to {last}; its last appended sequence is {last_sequence}",
            )
        raise BrokerError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} sent sequence {first} after {last_sequence}",
        )

    def update(self, header: BatchHeader, last_offset: int) -> None:
        """Record an appended batch, without a check: on a follower and in a replay the log decides."""
        if header.producer_id >= FIRST_FENCE:
            self.fences.add(token_of(header.producer_id, header.base_sequence), last_offset)
            return
        entry = self._entry(header.producer_id, header.producer_epoch)
        if header.base_sequence >= 0:
            entry.batches.append(AppendedBatch(header.last_sequence, last_offset, header.last_offset_delta, header.max_timestamp))

    def update_transaction(
        self, header: BatchHeader, marker: EndTransactionMarker | None, high_watermark: int
    ) -> AbortedTransaction | None:
        """Record what a transactional batch, after its `update`, means for the transaction of its producer. `marker`: the one in
        a control batch. Returns the transaction that it has aborted, if there is one, for the index of its segment.

        A batch without records begins nothing: the cleaner has emptied it after its transaction had ended."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return None  # a named producer, which has no transactions
        first = entry.txn_first_offset
        if not header.attributes & CONTROL_MASK:
            if first < 0 and header.record_count:
                entry.txn_first_offset = header.base_offset
                self.transactions.begin(header.base_offset, header.producer_id)
            return None
        offset = self.newest_marker_offset = header.last_offset
        if marker is None:
            return None
        entry.coordinator_epoch, entry.txn_first_offset = _coordinator_epoch(marker), NO_TRANSACTION
        entry.marker_offset, entry.marker_timestamp = offset, header.max_timestamp
        if first < 0:
            return None
        stable = self.transactions.complete(first, offset, high_watermark)
        return None if marker.is_commit else AbortedTransaction(header.producer_id, first, offset, stable)

    def _entry(self, producer_id: int, epoch: int) -> ProducerEntry:
        """The producer's entry. An entry of another epoch or work epoch is replaced by a new one."""
        family = producer_id if producer_id < FIRST_NAMED else family_of(producer_id)
        entry = self._entries.get(family)
        if entry is None or entry.epoch != epoch or family | entry.work_epoch != producer_id:
            before = entry
            entry = self._entries[family] = ProducerEntry(epoch)
            entry.work_epoch = work_epoch_of(producer_id)
            if before is not None:
                entry.inherit(before)
        return entry

    def before(self, offset: int) -> ProducerStates:
        """The states without the batches from `offset` on; a replay from there restores the rest.

        A transaction that was open at `offset` and has ended since is missing. If it has records after `offset`, it begins with
        the first of these in the replay; its records before `offset` are not in the log for which these states are."""
        earlier = ProducerStates()
        for family, entry in self._entries.items():
            for batch in entry.batches:
                if batch.last_offset < offset:
                    kept = earlier._entry(family | entry.work_epoch, entry.epoch)
                    kept.batches.append(batch)
                    kept.coordinator_epoch = entry.coordinator_epoch
                    if entry.txn_first_offset < offset:
                        kept.txn_first_offset = entry.txn_first_offset
        earlier.fences = self.fences.before(offset)
        earlier._restore_transactions(min(self.newest_marker_offset, offset - 1))
        return earlier

    def _restore_transactions(self, newest_marker_offset: int) -> None:
        ongoing = {
            entry.txn_first_offset: producer_id for producer_id, entry in self._entries.items() if entry.txn_first_offset >= 0
        }
        self.transactions = Transactions(ongoing)
        self.newest_marker_offset = newest_marker_offset

    def all_end_before(self, offset: int) -> bool:
        """Whether a truncation to `offset` would leave the states as they are."""
        if self.fences and self.fences.newest.offset >= offset:
            return False
        if self.newest_marker_offset >= offset:
            return False
        return all(not e.batches or e.batches[-1].last_offset < offset for e in self._entries.values())

    def clear(self) -> None:
        self._entries.clear()
        self.fences = Fences()
        self._restore_transactions(-1)

    def expire(self, now_ms: int, expiration_ms: int, is_kept: Callable[[int], bool]) -> None:
        """Forget producers that have not written for `expiration_ms` and have no open transaction.

        Record timestamps do not show when a producer wrote: it may copy records of last year, and if it were forgotten between a
        batch and its retry, the batch would be appended twice. `is_kept`: whether the cluster still knows the name with this
        number; such a producer is kept."""
        self._open_since = {first: self._open_since.get(first, now_ms) for first, _ in self.transactions.ongoing()}
        known, self._last_seen = self._last_seen, {}
        for family, entry in list(self._entries.items()):
            if self._has_open_end(entry) or (family >= FIRST_NAMED and is_kept(number_of(family))):
                continue
            offset = entry.newest_offset
            seen = known.get(family)
            if seen is None or seen[0] != offset:
                seen = (offset, now_ms)
            if now_ms - max(entry.newest_timestamp, seen[1]) > expiration_ms:
                del self._entries[family]
            else:
                self._last_seen[family] = seen

    def has_transaction_since(self, time_ms: int) -> bool:
        """Whether a transaction is open that `expire` saw open at or before `time_ms`. `expire` runs every few minutes, so a
        transaction may be that much older. The timestamps of its records do not show when it began."""
        return any(since <= time_ms and self.transactions.is_ongoing(first) for first, since in self._open_since.items())

    def _has_open_end(self, entry: ProducerEntry) -> bool:
        """Whether the producer has an open transaction, or may have one again if the newest marker is truncated."""
        return entry.txn_first_offset >= 0 or self.transactions.has_unreplicated(entry.marker_offset)

    # -- snapshots ------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The states as the bytes of a snapshot."""
        rows = list(self._rows())
        body = b"".join(_SNAPSHOT_ENTRY.pack(*row) for row in rows)
        count = len(rows).to_bytes(4, "big")
        return _SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, crc32c.crc32c(count + body), len(rows)) + body

    def _rows(self) -> Iterable[tuple[int, ...]]:
        for family, entry in self._entries.items():
            producer_id = family | entry.work_epoch
            if not entry.batches:
                yield producer_id, entry.epoch, -1, -1, 0, entry.marker_timestamp, entry.coordinator_epoch, entry.txn_first_offset
            for batch in entry.batches:
                yield (
                    producer_id,
                    entry.epoch,
                    batch.last_sequence,
                    batch.last_offset,
                    batch.offset_delta,
                    batch.timestamp,
                    entry.coordinator_epoch,
                    entry.txn_first_offset,
                )
        for token, offset in self.fences:
            yield producer_id_of(token), 0, sequence_of(token), offset, 0, NO_TIMESTAMP, -1, -1

    @classmethod
    def decode(cls, data: bytes, offset: int = 0) -> ProducerStates | None:
        """The states of the snapshot at `offset`; None unless it is whole and of a known version."""
        rows = snapshot_rows(data)
        if rows is None:
            return None
        states = cls()
        for row in rows:
            states._add_row(*row)
        states._restore_transactions(offset - 1 if states.has_markers else -1)
        return states

    def _add_row(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        offset: int,
        delta: int,
        timestamp: int,
        coordinator_epoch: int,
        txn_first_offset: int,
    ) -> None:
        if producer_id >= FIRST_FENCE:
            self.fences.add(token_of(producer_id, sequence), offset)
            return
        entry = self._entry(producer_id, epoch)
        if sequence >= 0:
            entry.batches.append(AppendedBatch(sequence, offset, delta, timestamp))
        else:
            entry.marker_timestamp = timestamp
        entry.coordinator_epoch, entry.txn_first_offset = coordinator_epoch, txn_first_offset


def snapshot_rows(data: bytes) -> list[tuple[int, int, int, int, int, int, int, int]] | None:
    """The entries of a snapshot as they are in the file; None unless it is whole and of a known version."""
    try:
        version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    except error:
        return None
    if version != SNAPSHOT_VERSION or crc32c.crc32c(data[_CRC_END:]) != crc:
        return None
    if count < 0 or len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        return None
    return [tuple(row) for row in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :])]


def _coordinator_epoch(marker: EndTransactionMarker) -> int:
    """The coordinator epoch of a marker. -1, from an operator who does not know the epoch, counts as 0, so that `has_markers` is
    true for this producer."""
    return max(marker.coordinator_epoch, 0)


def _position(family: int, entry: ProducerEntry | None) -> Position:
    if entry is None:
        return Position(family, _NO_EPOCH, -1)
    return Position(family | entry.work_epoch, entry.epoch, entry.batches[-1].last_sequence if entry.batches else -1)


def _is_of(entry: ProducerEntry, producer_id: int, epoch: int) -> bool:
    return entry.epoch == epoch and entry.work_epoch == work_epoch_of(producer_id)


def _check_not_fenced(known: Position, producer_id: int, epoch: int) -> None:
    """Raise INVALID_PRODUCER_EPOCH if a later work epoch of the name, or a later epoch of this work epoch, has written here."""
    work_epoch, newest = work_epoch_of(producer_id), work_epoch_of(known.producer_id)
    if work_epoch < newest:
        text = f"work epoch {work_epoch} is fenced: work epoch {newest} of this name has written to this partition"
    elif work_epoch == newest and epoch < known.epoch:
        text = f"epoch {epoch} is fenced: epoch {known.epoch} has written to this partition"
    else:
        return
    raise BrokerError(ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id}: {text}")


def _check_next_row(known: Position, first: int, last: int) -> None:
    """Check that the rows continue without a gap or an overlap."""
    if first == known.last_sequence + 1:
        return
    rows = f"named producer {known.producer_id} sent rows {first} to {last}; the last row here is {known.last_sequence}"
    if first <= known.last_sequence:
        raise BrokerError(
            ErrorCode.DUPLICATE_SEQUENCE_NUMBER, f"{rows}; continue after the last row that DescribeProducers returns"
        )
    raise BrokerError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, rows)
