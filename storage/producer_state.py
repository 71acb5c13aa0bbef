"""What a log knows of its idempotent producers: enough to append each batch exactly once and in order.

Per producer id: its newest epoch and its last five batches (a client has at most five in flight, so that any retry it
can still send is among them). A batch whose sequences equal one of the five is a duplicate and is answered with the
offsets of the first time; an older one is refused as a duplicate; one that leaves a gap is out of order.

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
from collections.abc import Iterable
from struct import Struct, error
from typing import NamedTuple

import crc32c

from strandline.protocol.errors import BrokerError, ErrorCode
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
    __slots__ = ("batches", "epoch")

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


Pending = dict[int, tuple[int, int]]
"""Producer id -> (epoch, last sequence) of batches that were checked but are not appended yet."""


class ProducerStates:
    """The producers of one log. `check` before an append, `update` after it."""

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._heard: dict[int, tuple[int, int]] = {}
        """Producer id -> the last offset of its newest batch, and when `expire` first saw that one."""

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerStates) and self.dump() == other.dump()

    __hash__ = None  # type: ignore[assignment]

    def dump(self) -> dict[int, tuple[int, list[AppendedBatch]]]:
        """For comparison and for people."""
        return {pid: (entry.epoch, list(entry.batches)) for pid, entry in sorted(self._entries.items())}

    def check(self, header: BatchHeader, pending: Pending) -> AppendedBatch | None:
        """Whether the batch is its producer's next one (None), or was appended before (that batch).

        Raises INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or DUPLICATE_SEQUENCE_NUMBER. A producer that is not
        known here may start with any sequence: its state may have expired, or been deleted with its records.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        entry = self._entries.get(producer_id)
        known_epoch, last_sequence = pending.get(producer_id) or _position(entry)
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
        pending[producer_id] = (epoch, last)
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
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            entry = self._entries[header.producer_id] = ProducerEntry(header.producer_epoch)
        if header.base_sequence >= 0:
            entry.batches.append(AppendedBatch(header.last_sequence, last_offset, header.last_offset_delta, header.max_timestamp))

    def all_end_before(self, offset: int) -> bool:
        """Whether cutting the log at `offset` changes nothing here."""
        return all(not e.batches or e.batches[-1].last_offset < offset for e in self._entries.values())

    def clear(self) -> None:
        self._entries.clear()

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that were silent for `expiration_ms`. Their records' timestamps alone do not tell: a producer may
        copy in records of last year, and forgetting it between a batch and its retry would double the batch."""
        known, self._heard = self._heard, {}
        for producer_id, entry in list(self._entries.items()):
            if not entry.batches:
                continue
            last = entry.batches[-1]
            heard = known.get(producer_id)
            if heard is None or heard[0] != last.last_offset:
                heard = (last.last_offset, now_ms)
            if now_ms - max(last.timestamp, heard[1]) > expiration_ms:
                del self._entries[producer_id]
            else:
                self._heard[producer_id] = heard

    # -- snapshots ------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        rows = list(self._rows())
        body = b"".join(_SNAPSHOT_ENTRY.pack(*row) for row in rows)
        count = len(rows).to_bytes(4, "big")
        return _SNAPSHOT_HEAD.pack(SNAPSHOT_VERSION, crc32c.crc32c(count + body), len(rows)) + body

    def _rows(self) -> Iterable[tuple[int, ...]]:
        for producer_id, entry in self._entries.items():
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
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self._entries[producer_id] = ProducerEntry(epoch)
        if sequence >= 0:
            entry.batches.append(AppendedBatch(sequence, offset, delta, timestamp))


def _position(entry: ProducerEntry | None) -> tuple[int, int]:
    """(epoch, last sequence) that the next batch is measured against."""
    if entry is None:
        return _NO_EPOCH, -1
    return entry.epoch, entry.batches[-1].last_sequence if entry.batches else -1
