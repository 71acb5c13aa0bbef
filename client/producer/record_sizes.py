"""Upper bounds of the bytes of a record, so that a batch is closed before it could become too large. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.client.producer.batch import BARE_OVERHEAD, Headers

RICH_OVERHEAD = BARE_OVERHEAD + 15
"""The most bytes that any record needs beside key, value and headers, for example for a timestamp of its own and the key's
length."""


def headers_size_max(headers: Headers) -> int:
    """An upper bound of the bytes of a record's headers."""
    return sum(4 * len(name) + 10 + (0 if value is None else len(value)) for name, value in headers)


def sizes_max(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, headers: Sequence[Headers | None] | None
) -> list[int]:
    """An upper bound of the bytes of each record."""
    if keys is None and headers is None:
        try:
            return list(map(BARE_OVERHEAD.__add__, map(len, values)))  # type: ignore[arg-type]
        except TypeError:
            pass  # A value is None.
    sizes = [RICH_OVERHEAD + len(value or b"") for value in values]
    if keys is not None:
        sizes = [size + len(key or b"") for size, key in zip(sizes, keys, strict=True)]
    if headers is not None:
        sizes = [size + headers_size_max(own or ()) for size, own in zip(sizes, headers, strict=True)]
    return sizes


def last_that_fits(ends: Sequence[int], start: int, limit: int) -> int:
    """The largest stop > start with ends[stop - 1] <= limit; at least start + 1, so that one record is taken in any case."""
    low, high = start + 1, len(ends)
    while low < high:
        middle = (low + high + 1) // 2
        if ends[middle - 1] <= limit:
            low = middle
        else:
            high = middle - 1
    return low
