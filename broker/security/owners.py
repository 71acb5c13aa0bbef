"""A bounded table of keys, such as member ids and producer ids, and the principal that owns each.

When the table is full, the key that was claimed first is dropped, and the next principal that uses this key owns it. A principal
with half of the table loses its own first key instead. Otherwise it could claim new keys until those of other principals are
dropped, and then use these."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from strandline.protocol.security.principal import Principal

K = TypeVar("K", bound=Hashable)


class Owner(NamedTuple):
    principal: Principal
    epoch: int = 0
    """If the key has a producer id: the highest producer epoch with which the owner has written."""


class Owners(Generic[K]):
    """Key -> owner, of at most `limit` keys."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._owners: dict[K, Owner] = {}
        self._keys: dict[Principal, dict[K, None]] = {}
        """The keys of each principal that has any, in the order in which they were claimed."""

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, key: K) -> bool:
        return key in self._owners

    def get(self, key: K) -> Owner | None:
        return self._owners.get(key)

    def is_of_another(self, key: K, principal: Principal) -> bool:
        owner = self._owners.get(key)
        return owner is not None and owner.principal != principal

    def claim(self, key: K, principal: Principal, epoch: int = 0) -> None:
        if self.is_of_another(key, principal):
            self.release(key)
        if key not in self._owners:
            if len(self._owners) >= self._limit:
                self._forget_one(principal)
            self._keys.setdefault(principal, {})[key] = None
        self._owners[key] = Owner(principal, epoch)

    def release(self, key: K) -> None:
        owner = self._owners.pop(key, None)
        if owner is not None:
            keys = self._keys[owner.principal]
            del keys[key]
            if not keys:
                del self._keys[owner.principal]

    def _forget_one(self, principal: Principal) -> None:
        own = self._keys.get(principal, {})
        self.release(next(iter(own if 2 * len(own) >= self._limit else self._owners)))
