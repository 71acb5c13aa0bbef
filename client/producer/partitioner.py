"""The partition of a record: chosen by its key, exactly as Java's default partitioner does; without a key, sticky (KIP-480).

The hash is murmur2 in the 32-bit form of Kafka's `Utils.murmur2` (seed 0x9747b28c). Pure Python needs about 1.5 us for a short
key, so the result is cached by key. An empty key is a key; only None is no key.

Sticky: all records without a key go to one partition until its batch is closed, then to the next one. The result is a few full
batches instead of many small ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import unpack_from

MURMUR2_SEED = 0x9747B28C
MURMUR2_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 of `data`, as Java's signed int."""
    length = len(data)
    h = MURMUR2_SEED ^ length
    words = length >> 2
    for k in unpack_from(f"<{words}I", data):
        k = (k * MURMUR2_M) & _MASK
        k = ((k ^ (k >> 24)) * MURMUR2_M) & _MASK
        h = ((h * MURMUR2_M) & _MASK) ^ k
    tail = data[words << 2 :]
    if tail:
        h = ((h ^ int.from_bytes(tail, "little")) * MURMUR2_M) & _MASK
    h = ((h ^ (h >> 13)) * MURMUR2_M) & _MASK
    h ^= h >> 15
    return h - 0x1_0000_0000 if h & 0x8000_0000 else h


@lru_cache(maxsize=65536)
def positive_hash(key: bytes) -> int:
    """Java's `toPositive(murmur2(key))`, which clears the sign bit."""
    return murmur2(key) & 0x7FFFFFFF


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a key, as Kafka's Java client chooses it."""
    return positive_hash(key) % partition_count


def next_sticky(current: int, available: Sequence[int]) -> int:
    """The partition after `current` in `available`, which is treated as a ring."""
    for partition in available:
        if partition > current:
            return partition
    return available[0]
