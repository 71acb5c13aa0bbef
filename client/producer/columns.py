"""Records by column, for `Producer.send_columns`: many records at once, without an object per record. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from strandline.client.producer.batch import Headers
from strandline.protocol.errors import UsageError


class Columns(NamedTuple):
    """The columns of some records: values, and as many keys and headers, or None for a column that is missing."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers | None] | None = None

    def check_lengths(self) -> None:
        """UsageError if there are not as many keys, or headers, as values."""
        for name, column in (("keys", self.keys), ("headers", self.headers)):
            if column is not None and len(column) != len(self.values):
                raise UsageError(f"there are {len(self.values)} values, but {len(column)} {name}; give as many, or none")

    def run(self, start: int, stop: int) -> Columns:
        """The records from index `start` up to `stop`."""
        rows = slice(start, stop)
        return Columns(self.values[rows], self.keys and self.keys[rows], self.headers and self.headers[rows])

    def pick(self, indexes: Sequence[int]) -> Columns:
        """The records at these indexes, in this order."""
        values, keys, headers = self
        return Columns(
            [values[i] for i in indexes],
            None if keys is None else [keys[i] for i in indexes],
            None if headers is None else [headers[i] for i in indexes],
        )

    def pieces(self, bytes_max: int) -> Iterator[Columns]:
        """The rows in order, in pieces of at most `bytes_max` bytes of keys and values, or of one record."""
        size = sum(map(len, filter(None, self.values))) + sum(map(len, filter(None, self.keys or ())))
        count = len(self.values)
        if size <= bytes_max or count == 1:
            yield self
            return
        step = max(1, count * bytes_max // size)
        for start in range(0, count, step):
            yield from self.run(start, start + step).pieces(bytes_max)

    def by_choice(self, choose: Callable[[bytes | None], int | None]) -> Iterator[tuple[int | None, Columns]]:
        """The rows, grouped by the partition that `choose` returns for their key (None without a key), in order."""
        rows: dict[int | None, list[int]] = {}
        for index, key in enumerate(repeat(None, len(self.values)) if self.keys is None else self.keys):
            rows.setdefault(choose(key), []).append(index)
        for partition, indexes in rows.items():
            yield partition, self.pick(indexes)
