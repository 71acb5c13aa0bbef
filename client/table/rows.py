"""The contents of a table: the latest record of each key, by key. Pure.

Each partition of the topic has a latest record for a key, and the table shows one of them. Usually there is only one, because a
key always goes to one partition. When partitions are added to a topic, many keys go to another one from then on, and their old
records stay where they are. Then the table shows the record of the partition to which the key goes now (`home`). If that has no
record of the key, it shows that of the highest partition that has one. So the contents follow from the log alone, and do not
depend on when it was read.

Loading a partition fills a dict of its own (`begin`, `apply`), and `finish` replaces the partition's old rows by it. Until then
the table shows the old contents. Loading costs a few C calls per batch, and no Python code per record, unless there are
tombstones. Later records are applied one by one, because watchers get the change that each of them makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat

import msgspec

from strandline.client.table.changes import Watcher


class Row(msgspec.Struct, frozen=True, gc=False):
    """The latest record of a key. The garbage collector does not track rows: a million of them would cost it more time than it
    takes to create them."""

    value: bytes
    offset: int
    partition: int


class Rows:
    """The latest value of each key, and the watchers of its changes."""

    def __init__(self, home: Callable[[bytes], int]) -> None:
        self._home = home
        """Returns the partition to which a key goes now."""
        self._rows: dict[bytes, Row] = {}
        """The rows that the table shows."""
        self._doubles: dict[bytes, dict[int, Row]] = {}
        """By key and partition, the rows of each key that more than one partition has. One of them is in `_rows`."""
        self._staged: dict[int, dict[bytes, Row]] = {}
        """By partition that is being loaded, the rows that were read so far."""
        self._loaded: dict[int, None] = {}
        """The partitions that may have rows in the table."""
        self._watchers: dict[Watcher, None] = {}

    # -- reading ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: bytes) -> bool:
        return key in self._rows

    def get(self, key: bytes) -> Row | None:
        return self._rows.get(key)

    def items(self) -> list[tuple[bytes, Row]]:
        """All keys and rows, as they are now."""
        return list(self._rows.items())

    def keys(self) -> list[bytes]:
        return list(self._rows)

    def everything(self) -> list[tuple[bytes, Row]]:
        """The latest row of each key in each partition, also those that the table does not show."""
        if not self._doubles:
            return self.items()
        shown = [(key, row) for key, row in self._rows.items() if key not in self._doubles]
        return shown + [(key, row) for key, rows in self._doubles.items() for row in rows.values()]

    def partitions_of(self, key: bytes) -> list[int]:
        """The partitions that have a row of the key, ascending."""
        doubles, row = self._doubles.get(key), self._rows.get(key)
        if doubles is not None:
            return sorted(doubles)
        return [] if row is None else [row.partition]

    # -- loading ------------------------------------------------------------------------------------------------------

    def begin(self, partition: int) -> None:
        """Load the partition from the beginning of its log."""
        self._staged[partition] = {}

    def begin_with(self, partition: int, rows: dict[bytes, Row]) -> None:
        """Load the partition from the end of a snapshot. `rows`: its rows, in a dict that is not copied."""
        self._staged[partition] = rows

    def is_loading(self, partition: int) -> bool:
        return partition in self._staged

    def finish(self, partition: int) -> None:
        """The partition is loaded: the table shows it from now on."""
        staged = self._staged.pop(partition)
        if partition in self._loaded or self._watchers or not self._rows.keys().isdisjoint(staged):
            self._replace(partition, staged)
        elif self._rows:
            self._rows.update(staged)
        else:
            self._rows = staged
        self._loaded[partition] = None

    def drop(self, partition: int) -> None:
        """The partition no longer exists: remove its rows."""
        self._staged.pop(partition, None)
        if self._loaded.pop(partition, True) is None:
            self._replace(partition, {})

    def _replace(self, partition: int, rows: dict[bytes, Row]) -> None:
        """Replace all rows of a partition by these."""
        gone = [key for key, row in self.everything() if row.partition == partition and key not in rows]
        for key in gone:
            self._put(key, partition, None, None)
        for key, row in rows.items():
            self._put(key, partition, row, row.offset)

    # -- records ------------------------------------------------------------------------------------------------------

    def apply(self, partition: int, keys: Sequence[bytes | None], values: Sequence[bytes | None], offsets: Sequence[int]) -> None:
        """Apply records of a partition, in the order of the log. A record without a key is ignored; a record without a value (a
        tombstone) deletes its key."""
        staged = self._staged.get(partition)
        if staged is None:
            self._apply_live(partition, keys, values, offsets)
        elif None in values or None in keys:
            _apply_each(staged, partition, keys, values, offsets)
        else:
            staged.update(zip(keys, map(Row, values, offsets, repeat(partition)), strict=True))  # type: ignore[arg-type]

    def _apply_live(
        self, partition: int, keys: Sequence[bytes | None], values: Sequence[bytes | None], offsets: Sequence[int]
    ) -> None:
        self._loaded[partition] = None
        for key, value, offset in zip(keys, values, offsets, strict=True):
            if key is not None:
                self._put(key, partition, None if value is None else Row(value, offset, partition), offset)

    def _put(self, key: bytes, partition: int, row: Row | None, offset: int | None) -> None:
        """Set the latest row of a key in a partition; None: the partition no longer has one. `offset`: that of the record which
        changed it; None: not known."""
        old = self._rows.get(key)
        shown = row
        if old is not None and (old.partition != partition or key in self._doubles):
            shown = self._put_double(key, partition, row, old)
        if shown is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = shown
        if self._watchers and shown != old:
            version = offset if shown is row or shown is None else shown.offset
            self._notify(key, old, shown, version)

    def _put_double(self, key: bytes, partition: int, row: Row | None, old: Row) -> Row | None:
        """The same as `_put`, for a key that another partition has, too. Returns the row that the table must show."""
        rows = self._doubles.setdefault(key, {old.partition: old})
        if row is None:
            rows.pop(partition, None)
        else:
            rows[partition] = row
        if len(rows) < 2:
            del self._doubles[key]
        home = self._home(key)
        return rows[home] if home in rows else rows[max(rows)] if rows else None

    # -- watchers -----------------------------------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        """Notify this watcher of every change from now on."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def watchers(self) -> Iterator[Watcher]:
        return iter(list(self._watchers))

    def _notify(self, key: bytes, old: Row | None, new: Row | None, version: int | None) -> None:
        for watcher in self._watchers:
            if watcher.wants(key):
                watcher.add(key, None if old is None else old.value, None if new is None else new.value, version)


def _apply_each(
    staged: dict[bytes, Row],
    partition: int,
    keys: Iterable[bytes | None],
    values: Iterable[bytes | None],
    offsets: Iterable[int],
) -> None:
    for key, value, offset in zip(keys, values, offsets, strict=True):
        if key is None:
            continue
        if value is None:
            staged.pop(key, None)
        else:
            staged[key] = Row(value, offset, partition)
