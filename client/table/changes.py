"""The changes that wait for one watcher of a table. Pure.

At most one change of each key waits. If the key changes again before that change is taken, the two are merged: the watcher gets
the value that it saw last, the newest value, and the number of changes that were merged into this one. So a watcher that is slow,
or that has stopped, costs at most one waiting change per key, and sees the last value of every key. A merged change keeps its
place in the queue, so a key that changes all the time cannot delay other keys. Changes of different keys may be returned in
another order than that of their records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class RawChange(NamedTuple):
    """A change of one key, in bytes."""

    key: bytes
    old: bytes | None
    new: bytes | None
    version: int | None
    merged: int


class Watcher:
    """One watcher: the keys that it watches, and the changes of them that it has not taken yet."""

    def __init__(self, key: bytes | None, prefix: bytes, wake: Callable[[], None]) -> None:
        """`key`: the only key to watch; None: all keys that begin with `prefix`. `wake` is called when there is a change."""
        self._key = key
        self._prefix = prefix
        self._wake = wake
        self._waiting: dict[bytes, RawChange] = {}
        self.is_ended = False
        """No more changes are added: the table or the watcher was stopped."""

    def __len__(self) -> int:
        return len(self._waiting)

    def wants(self, key: bytes) -> bool:
        return key.startswith(self._prefix) if self._key is None else key == self._key

    def add(self, key: bytes, old: bytes | None, new: bytes | None, version: int | None) -> None:
        """A key has changed."""
        before = self._waiting.get(key)
        if before is None:
            self._waiting[key] = RawChange(key, old, new, version, 0)
        else:
            self._waiting[key] = RawChange(key, before.old, new, version, before.merged + 1)
        self._wake()

    def end(self) -> None:
        """Accept no more changes. Those that wait can still be taken."""
        self.is_ended = True
        self._wake()

    def take(self) -> RawChange | None:
        """The change that has waited longest; None if there is none."""
        if not self._waiting:
            return None
        return self._waiting.pop(next(iter(self._waiting)))
