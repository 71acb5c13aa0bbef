"""Who has begun a session: a bounded table of keys and the principals that they belong to."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from strandline.protocol.security.principal import Principal

K = TypeVar("K", bound=Hashable)


class Owners(Generic[K]):
    """Key -> principal, of at most `limit` keys: beyond that, the one that was claimed first is forgotten, and belongs to whoever
    uses it next."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._owners: dict[K, Principal] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, key: K) -> bool:
        return key in self._owners

    def is_of_another(self, key: K, principal: Principal) -> bool:
        owner = self._owners.get(key)
        return owner is not None and owner != principal

    def claim(self, key: K, principal: Principal) -> None:
        if key not in self._owners and len(self._owners) >= self._limit:
            del self._owners[next(iter(self._owners))]
        self._owners[key] = principal

    def release(self, key: K) -> None:
        self._owners.pop(key, None)
