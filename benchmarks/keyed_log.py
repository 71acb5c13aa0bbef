"""The log that both cleaners clean: batches of keyed records, most keys once and some twice, in random order."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

from strandline.protocol.records.builder import encode_batch

NOW_MS = 1_700_000_000_000
BATCH_BYTES = 16_384
KEY_BYTES = 12


def key_of(number: int) -> bytes:
    return b"%0*d" % (KEY_BYTES, number)


def per_batch(size: int) -> int:
    """The number of records in a batch. `size`: bytes of key and value."""
    return max(1, BATCH_BYTES // (size + 10))


def batches(size: int, keys: int, records: int, seed: int = 1) -> Iterator[bytes]:
    """Every key occurs at least once. The values are random bytes."""
    source = random.Random(seed)
    numbers = [*range(keys), *(source.randrange(keys) for _ in range(records - keys))]
    source.shuffle(numbers)
    noise = os.urandom(1 << 20)
    step = per_batch(size)
    for start in range(0, len(numbers), step):
        rows = []
        for number in numbers[start : start + step]:
            at = source.randrange(len(noise) - size)
            rows.append((key_of(number), noise[at : at + size - KEY_BYTES], [], NOW_MS))
        yield bytes(encode_batch(rows))
