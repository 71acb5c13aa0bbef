"""What a log knows of its idempotent producers: enough to append each batch exactly once and in order.

Per producer id: its newest epoch and its last five batches (a client has at most five in flight, so that any retry it
can still send is among them). A batch whose sequences equal one of the five is a duplicate and is answered with the
offsets of the first time; an older one is refused as a duplicate; one that leaves a gap is out of order.

**A named producer** (`protocol/producer_names.py`) is whoever has the name, one after the other or even at once: its
sequences are the row numbers of its work epoch in this partition, whoever of them wrote a row. So

    a higher epoch         goes on where the lower one stopped, and fences it; what overlaps is refused as a duplicate
    a higher work epoch    begins at 0, and takes the place of the older one: there is one entry per name
    one that is unknown    begins at 0: a broker that knows nothing of the rows before must not take those behind them
    the largest sequence   is the last one: row numbers do not begin again

and its entry is kept when its records are deleted and however long it is silent, until the cluster drops the name: an
attempt that comes back must find out what is there.

A replica that begins again at its leader's log start has no batch to learn it from. It asks the leader, by
DescribeProducers, for the names whose last batch lies before that (`told`).

It all follows from the batch headers in the log, and is rebuilt from them. A snapshot, written when a segment rolls and
on an orderly close, only shortens that:

    <offset>.snapshot    i16 version = 1 | u32 CRC-32C of the rest | i32 n | n entries      state just before `offset`
    entry                i64 producer id | i16 epoch | i32 last sequence | i64 last offset | i32 offset delta
                         | i64 timestamp | i32 coordinator epoch | i64 first offset of the open transaction (-1)

Kafka writes one entry per producer; ours has up to five in a row, oldest first: a reader that keeps the last one of an
id, as Kafka does, sees exactly its own format.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from struct import Struct, error
from typing import NamedTuple

import crc32c

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.producer_names import FIRST_NAMED, family_of, number_of, work_epoch_of
from strandline.protocol.records.batch import MAX_SEQUENCE, BatchHeader

BATCHES_KEPT = 5
_NO_EPOCH = -1
_HALF = 2**30

_SNAPSHOT_HEAD = Struct(">hIi")
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_CRC_END = 6
SNAPSHOT_VERSION = 1


class AppendedBatch(NamedTuple):
    """One of the last batches of a producer."""

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
    __slots__ = ("batches", "epoch", "work_epoch")

    work_epoch: int
    """Of a named producer: the newest one seen. Else 0."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        """The newest epoch seen; batches of older ones are refused."""
        self.batches: deque[AppendedBatch] = deque(maxlen=BATCHES_KEPT)
        """Of this epoch only, oldest first; sequences without a gap."""

    def find(self, first_sequence: int, last_sequence: int) -> AppendedBatch | None:
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                return batch
        return None


class Position(NamedTuple):
    """What the next batch is measured against."""

    producer_id: int
    epoch: int
    last_sequence: int


Pending = dict[int, Position]
"""By family of producer ids: batches that were checked but are not appended yet."""


class KnownProducer(NamedTuple):
    """What there is to tell of a producer: its newest batch."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    timestamp: int
    """The batch's largest, in ms."""


class ProducerStates:
    """The producers of one log. `check` before an append, `update` after it."""

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        """By family: of a name there is one entry, whatever its work epoch."""
        self._heard: dict[int, tuple[int, int]] = {}
        """Family -> the last offset of its newest batch, and when `expire` first saw that one."""

    @classmethod
    def told(cls, known: Iterable[KnownProducer], before: int) -> ProducerStates:
        """What somebody else knows of named producers whose newest batch ended before an offset. How long that batch was is not
        told: it counts as its last record, and a retry of the whole batch is refused as rows that are here already."""
        states = cls()
        for producer_id, epoch, last_sequence, last_offset, timestamp in known:
            if producer_id >= FIRST_NAMED and last_offset < before:
                batch = AppendedBatch(last_sequence, last_offset, 0, timestamp)
                states._entry(producer_id, epoch).batches.append(batch)
        return states

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerStates) and self.dump() == other.dump()

    __hash__ = None  # type: ignore[assignment]

    def dump(self) -> dict[int, tuple[int, list[AppendedBatch]]]:
        """For comparison and for people."""
        return {family | e.work_epoch: (e.epoch, list(e.batches)) for family, e in sorted(self._entries.items())}

    @property
    def has_named(self) -> bool:
        return any(family >= FIRST_NAMED for family in self._entries)

    def describe(self, producer_ids: Iterable[int] | None = None) -> Iterator[KnownProducer]:
        """Those of these producers that are known here, or all. An id with a name stands for its name: what is told is
        the newest work epoch that has written here."""
        families = self._entries if producer_ids is None else dict.fromkeys(map(family_of, producer_ids))
        for family in families:
            entry = self._entries.get(family)
            if entry is not None and entry.batches:
                last = entry.batches[-1]
                producer_id = family | entry.work_epoch
                yield KnownProducer(producer_id, entry.epoch, last.last_sequence, last.last_offset, last.timestamp)

    def check(self, header: BatchHeader, pending: Pending) -> AppendedBatch | None:
        """Whether the batch is its producer's next one (None), or was appended before (that batch).

        Raises INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or DUPLICATE_SEQUENCE_NUMBER. A producer that is not
        known here may start with any sequence: its state may have expired, or been deleted with its records. Not so a
        named one: UNKNOWN_PRODUCER_ID.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        if producer_id >= FIRST_NAMED:
            return self._check_named(header, pending)
        entry = self._entries.get(producer_id)
        _, known_epoch, last_sequence = pending.get(producer_id) or _position(producer_id, entry)
        if epoch < known_epoch:
            raise BrokerError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {epoch}, and epoch {known_epoch} has written here",
            )
        first, last = header.base_sequence, header.last_sequence
        if first < 0:
            raise BrokerError(ErrorCode.INVALID_RECORD, f"a batch of producer {producer_id} has no sequence number")
        if epoch == known_epoch:
            if entry is not None and entry.epoch == epoch and (duplicate := entry.find(first, last)) is not None:
                return duplicate
            self._check_sequence(producer_id, last_sequence, first, last)
        elif known_epoch != _NO_EPOCH and first != 0:
            raise BrokerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"the first batch of epoch {epoch} of producer {producer_id} has sequence {first}, not 0",
            )
        pending[producer_id] = Position(producer_id, epoch, last)
        return None

    def _check_named(self, header: BatchHeader, pending: Pending) -> AppendedBatch | None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        first, last = header.base_sequence, header.last_sequence
        if not 0 <= first <= last:
            raise BrokerError(ErrorCode.INVALID_RECORD, f"named producer {producer_id}: {first} to {last} are no row numbers")
        family = family_of(producer_id)
        entry = self._entries.get(family)
        known = pending.get(family) or _position(family, entry)
        _check_not_fenced(known, producer_id, epoch)
        if producer_id != known.producer_id or known.epoch == _NO_EPOCH:
            if first:
                text = f"nothing of work epoch {work_epoch_of(producer_id)} of this name is here: row {first} cannot be the first"
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
                f"producer {producer_id} repeats sequences {first} to {last}; the last one appended is {last_sequence}",
            )
        raise BrokerError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} sends sequence {first} after {last_sequence}",
        )

    def update(self, header: BatchHeader, last_offset: int) -> None:
        """Note an appended batch. Unchecked: on a follower and in a replay the log itself is the truth."""
        entry = self._entry(header.producer_id, header.producer_epoch)
        if header.base_sequence >= 0:
            entry.batches.append(AppendedBatch(header.last_sequence, last_offset, header.last_offset_delta, header.max_timestamp))

    def _entry(self, producer_id: int, epoch: int) -> ProducerEntry:
        """The producer's entry; one of another epoch or work epoch gives way to a new one."""
        family = producer_id if producer_id < FIRST_NAMED else family_of(producer_id)
        entry = self._entries.get(family)
        if entry is None or entry.epoch != epoch or family | entry.work_epoch != producer_id:
            entry = self._entries[family] = ProducerEntry(epoch)
            entry.work_epoch = work_epoch_of(producer_id)
        return entry

    def before(self, offset: int) -> ProducerStates:
        """What is left of this when all batches from `offset` on are left out; a replay from there gives it back."""
        earlier = ProducerStates()
        for family, entry in self._entries.items():
            for batch in entry.batches:
                if batch.last_offset < offset:
                    earlier._entry(family | entry.work_epoch, entry.epoch).batches.append(batch)
        return earlier

    def all_end_before(self, offset: int) -> bool:
        """Whether cutting the log at `offset` changes nothing here."""
        return all(not e.batches or e.batches[-1].last_offset < offset for e in self._entries.values())

    def clear(self) -> None:
        self._entries.clear()

    def expire(self, now_ms: int, expiration_ms: int, is_kept: Callable[[int], bool]) -> None:
        """Forget producers that were silent for `expiration_ms`. Their records' timestamps alone do not tell: a producer may
        copy in records of last year, and forgetting it between a batch and its retry would double the batch.

        `is_kept`: whether the cluster knows the name of this number. As long as it does, the producer is not silent."""
        known, self._heard = self._heard, {}
        for family, entry in list(self._entries.items()):
            if not entry.batches or (family >= FIRST_NAMED and is_kept(number_of(family))):
                continue
            last = entry.batches[-1]
            heard = known.get(family)
            if heard is None or heard[0] != last.last_offset:
                heard = (last.last_offset, now_ms)
            if now_ms - max(last.timestamp, heard[1]) > expiration_ms:
                del self._entries[family]
            else:
                self._heard[family] = heard

    # -- snapshots ------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        rows = list(self._rows())
        body = b"".join(_SNAPSHOT_ENTRY.pack(*row) for row in rows)
        count = len(rows).to_bytes(4, "big")
        return _SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, crc32c.crc32c(count + body), len(rows)) + body

    def _rows(self) -> Iterable[tuple[int, ...]]:
        for family, entry in self._entries.items():
            producer_id = family | entry.work_epoch
            if not entry.batches:
                yield producer_id, entry.epoch, -1, -1, 0, -1, -1, -1
            for batch in entry.batches:
                yield (
                    producer_id,
                    entry.epoch,
                    batch.last_sequence,
                    batch.last_offset,
                    batch.offset_delta,
                    batch.timestamp,
                    -1,
                    -1,
                )

    @classmethod
    def decode(cls, data: bytes) -> ProducerStates | None:
        """None for anything but a whole snapshot of a version that we know."""
        try:
            version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
        except error:
            return None
        if version != SNAPSHOT_VERSION or crc32c.crc32c(data[_CRC_END:]) != crc:
            return None
        if count < 0 or len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
            return None
        states = cls()
        for row in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :]):
            states._add_row(*row)
        return states

    def _add_row(
        self, producer_id: int, epoch: int, sequence: int, offset: int, delta: int, timestamp: int, *_transaction: int
    ) -> None:
        entry = self._entry(producer_id, epoch)
        if sequence >= 0:
            entry.batches.append(AppendedBatch(sequence, offset, delta, timestamp))


def _position(family: int, entry: ProducerEntry | None) -> Position:
    if entry is None:
        return Position(family, _NO_EPOCH, -1)
    return Position(family | entry.work_epoch, entry.epoch, entry.batches[-1].last_sequence if entry.batches else -1)


def _is_of(entry: ProducerEntry, producer_id: int, epoch: int) -> bool:
    return entry.epoch == epoch and entry.work_epoch == work_epoch_of(producer_id)


def _check_not_fenced(known: Position, producer_id: int, epoch: int) -> None:
    """Neither a later work epoch of the name has written here, nor a later epoch of this one."""
    work_epoch, newest = work_epoch_of(producer_id), work_epoch_of(known.producer_id)
    if work_epoch < newest:
        text = f"work epoch {work_epoch} is over, work epoch {newest} of this name has written here"
    elif work_epoch == newest and epoch < known.epoch:
        text = f"epoch {epoch} is over, epoch {known.epoch} has written here"
    else:
        return
    raise BrokerError(ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id}: {text}")


def _check_next_row(known: Position, first: int, last: int) -> None:
    """Row by row, without a gap, each of them once."""
    if first == known.last_sequence + 1:
        return
    rows = f"named producer {known.producer_id} sends rows {first} to {last}, and the last one here is {known.last_sequence}"
    if first <= known.last_sequence:
        raise BrokerError(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, f"{rows}; DescribeProducers tells where to go on")
    raise BrokerError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, rows)
