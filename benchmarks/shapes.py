"""The records of the rows about ways to use a client: five shapes, the same for every client."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

Headers = Sequence[tuple[str, bytes]]
DISTINCT = 10_000
"""Number of different records; they are sent again and again."""


class Shape(NamedTuple):
    name: str
    keys: Sequence[bytes | None]
    values: Sequence[bytes]
    headers: Headers | None
    share: float
    """Factor of a row's number of records: fewer records are sent if they are larger."""


def shapes(seed: int = 1) -> list[Shape]:
    source = random.Random(seed)
    values = [source.randbytes(100) for _ in range(DISTINCT)]
    no_keys: list[bytes | None] = [None] * DISTINCT
    keys: list[bytes | None] = [b"key-%08d" % source.randrange(100_000) for _ in range(DISTINCT)]
    return [
        Shape("100 B", no_keys, values, None, 1.0),
        Shape("1,000 B", no_keys, [source.randbytes(1000) for _ in range(DISTINCT)], None, 0.4),
        Shape("100 B, keyed", keys, values, None, 1.0),
        Shape("100 B, 2 headers", no_keys, values, [("trace", b"0af7651916cd43dd"), ("type", b"order")], 0.6),
        Shape("50 to 150 B", no_keys, [source.randbytes(source.randint(50, 150)) for _ in range(DISTINCT)], None, 1.0),
    ]
