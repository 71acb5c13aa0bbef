"""The fencing tokens of a log: the lowest token that an append must carry, and the offset of its fence.

A token counts from its fence on (`protocol/records/fence.py`). The newest few fences are kept:

    truncated       the fences of removed batches are gone, and an older token counts again
    deleted         a fence outlives its batch: before old segments are deleted, their fences are saved in a producer snapshot
    late follower   a follower that starts at its leader's log start asks the leader for its fences

If the fence that counted at an offset was dropped, because FENCES_KEPT newer ones were written, the oldest known one takes its
place. Its token is higher. This does no harm, because every replica that may be elected has that fence in its log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from strandline.protocol.records.fence import NO_TOKEN

FENCES_KEPT = 16
"""More fences than are ever uncommitted at once, because a token is raised only when a writer takes over."""


class Fence(NamedTuple):
    """A token that was higher than all before it, and the offset of its fence."""

    token: int
    offset: int


class Fences:
    """The newest fences of one log."""

    __slots__ = ("_kept", "token")

    def __init__(self, kept: list[Fence] | None = None) -> None:
        self._kept = kept or []
        """The fences, ascending by token and by offset, at most FENCES_KEPT."""
        self.token = self._kept[-1].token if self._kept else NO_TOKEN
        """The highest token; NO_TOKEN if there is none. Appends with lower tokens are rejected."""

    def __iter__(self) -> Iterator[Fence]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def newest(self) -> Fence:
        """The fence of `token`. Raises IndexError if there is none."""
        return self._kept[-1]

    def add(self, token: int, offset: int) -> None:
        """Note a fence of the log. One with a lower token than the newest changes nothing."""
        if token < self.token:
            return
        if token == self.token:  # It was known from the leader, and now its batch was replicated.
            self._kept.pop()
        self.token = token
        self._kept = [*self._kept, Fence(token, offset)][-FENCES_KEPT:]

    def before(self, offset: int) -> Fences:
        """The fences below `offset`."""
        kept = [fence for fence in self._kept if fence.offset < offset]
        if not kept and offset > 0 and len(self._kept) == FENCES_KEPT:
            kept = [Fence(self._kept[0].token, offset - 1)]
        return Fences(kept)
