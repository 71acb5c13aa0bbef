"""The offset map of one cleaning: the newest offset of each key in the part of a log that is not cleaned yet. Pure.

    slot    16 bytes MD5 of the key | i64 offset        all zero: free

A key is known by its hash alone, as in Kafka: with 128 bits two keys of one partition never collide in practice, and a key of any
length takes 24 bytes. The slots lie in one bytearray of a fixed size, with open addressing. A dict would take five times as much.
When the map is full, the cleaning ends at that offset, and the next one continues there.

Beside the slots there may be two bits for each offset of the part that is not cleaned yet: whether its key has a newer record,
and whether it is a tombstone. With them, the second pass need not read the keys of most batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import md5 as openssl_md5
from struct import Struct

from strandline.protocol.errors import UsageError
from strandline.protocol.records.batch import BatchHeader
from strandline.storage.cleaner.offset_marks import OffsetMarks

try:
    # OpenSSL allocates a context per hash, which takes longer than to hash a key.
    from _md5 import md5  # type: ignore[import-not-found]
except ImportError:
    md5 = partial(openssl_md5, usedforsecurity=False)

SLOT_BYTES = 24
_HASH_BYTES = 16
_FREE = bytes(_HASH_BYTES)
_SLOT = Struct(">16sq")
NOT_FOUND = -1
NO_OFFSET = -1
MARKED_PER_BYTE = 4
"""How many offsets a byte of marks covers: each offset has two bits."""


class OffsetMap:
    """Maps keys to offsets. `latest_offset`: the last offset that was looked at; nothing above it may be judged by this map."""

    def __init__(self, memory_bytes: int, load_factor: float = 0.9, marked_offsets: int = 0) -> None:
        """`memory_bytes`: the size of all slots; `load_factor`: the part of them that may be filled (a full table is slow);
        `marked_offsets`: how many offsets have marks, which take additional memory."""
        slots = _prime_up_to(memory_bytes // SLOT_BYTES)
        self._slots = slots
        self._table = bytearray(slots * SLOT_BYTES)
        self.capacity = int(slots * load_factor)
        """The number of keys that fit."""
        if self.capacity < 1:
            raise UsageError(f"an offset map of {memory_bytes} bytes holds no key")
        self.size = 0
        self.latest_offset = NO_OFFSET
        self._superseded = OffsetMarks(marked_offsets)
        """Marks every record up to `latest_offset` that has no key, or whose key has a newer record in the map."""
        self._tombstones = OffsetMarks(marked_offsets)

    def begin(self, first_offset: int) -> None:
        """Set the offset of the first record that may be put. Called before the first `put`."""
        self.latest_offset = first_offset - 1
        self._superseded.first_offset = self._tombstones.first_offset = first_offset

    def __len__(self) -> int:
        return self.size

    def put(self, keys: Iterable[bytes | None], offsets: Sequence[int]) -> bool:
        """Put the keys of consecutive records, oldest first; None for a record without a key. False if the map is full: the
        records from `latest_offset` + 1 on are not in it."""
        table, slots, size, capacity = self._table, self._slots, self.size, self.capacity
        hash_of, number_of, read, write = md5, int.from_bytes, _SLOT.unpack_from, _SLOT.pack_into
        supersede = self._superseded.mark
        offset = self.latest_offset
        for key, offset in zip(keys, offsets, strict=True):
            if key is None:
                supersede(offset)
                continue
            digest = hash_of(key).digest()
            number = number_of(digest)
            slot = number % slots
            at = slot * SLOT_BYTES
            found, older = read(table, at)
            if found != digest and found != _FREE:
                at, found, older = self._probe(digest, number, slot)
            if found == digest:
                supersede(older)
            elif size >= capacity:
                self.size, self.latest_offset = size, max(self.latest_offset, offset - 1)
                return False
            else:
                size += 1
            write(table, at, digest, offset)
        self.size, self.latest_offset = size, max(self.latest_offset, offset)
        return True

    def mark_tombstone(self, offset: int) -> None:
        self._tombstones.mark(offset)

    def kept_rows(self, header: BatchHeader) -> list[int] | None:
        """The rows of a batch that have no newer record, if its marks suffice to decide that; None otherwise. They suffice if the
        whole batch was put, none of its offsets lacks a record, and none of its records is a tombstone."""
        first, last, count = header.base_offset, header.last_offset, header.record_count
        marks = self._superseded
        if last > self.latest_offset or not marks.covers(first, last) or count <= header.last_offset_delta:
            return None
        if self._tombstones.between(first, last):
            return None
        superseded = marks.between(first, last)
        if not superseded:
            return list(range(count))
        return [row for row, bit in enumerate(reversed(f"{superseded:0{count}b}")) if bit == "0"]

    def get(self, keys: Iterable[bytes | None], without_key: int = NOT_FOUND) -> list[int]:
        """The newest offset of each key; NOT_FOUND if the map does not have it, `without_key` for None."""
        table, slots, hash_of, number_of, read = self._table, self._slots, md5, int.from_bytes, _SLOT.unpack_from
        offsets = []
        for key in keys:
            if key is None:
                offsets.append(without_key)
                continue
            digest = hash_of(key).digest()
            number = number_of(digest)
            slot = number % slots
            at = slot * SLOT_BYTES
            found, offset = read(table, at)
            if found != digest and found != _FREE:
                _, found, offset = self._probe(digest, number, slot)
            offsets.append(offset if found == digest else NOT_FOUND)
        return offsets

    def _probe(self, digest: bytes, number: int, slot: int) -> tuple[int, bytes, int]:
        """Position, hash and offset of the slot of this key, or of the free slot where it belongs; `slot` has another key. If the
        table is full and does not have this key, any other slot.

        The step depends on the hash, so that keys that collide in one slot continue to different ones. The number of slots is a
        prime, so every step visits them all."""
        table, slots, read = self._table, self._slots, _SLOT.unpack_from
        step = 1 + (number >> 64) % (slots - 1) if slots > 1 else 1
        at, found, offset = 0, b"", NOT_FOUND
        for _ in range(slots):
            slot = (slot + step) % slots
            at = slot * SLOT_BYTES
            found, offset = read(table, at)
            if found in (digest, _FREE):
                break
        return at, found, offset


def _prime_up_to(number: int) -> int:
    """The largest prime that is at most `number`; `number` itself below 2."""
    while number > 3 and any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number -= 1
    return number
