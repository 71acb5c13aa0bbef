"""The interface of the fetch sessions that watch a partition (`broker/fetch/fetch_session.py`)."""

from __future__ import annotations

from typing import Protocol


class ParkedFetch(Protocol):
    """A fetch request that waits until one of its partitions has news (`broker/fetch/fetch_handler.py`)."""

    def complete(self) -> bool:
        """Respond with the records available now. Returns False if the request already has a response."""

    def try_complete(self) -> None:
        """Visit the session's dirty partitions again, and respond if the result is enough for a response."""


class PartitionWatcher(Protocol):
    """A session's entry for one partition."""

    has_readers: bool
    """Whether consumers read the partition from the follower to which this session belongs."""

    @property
    def names_rack(self) -> bool:
        """Whether the session belongs to a consumer that also reads from followers."""

    def mark_dirty(self) -> ParkedFetch | None:
        """Let the session visit the partition before its next answer. Returns the session's parked fetch, if it has one."""

    def detach(self) -> None:
        """Stop watching, because the partition leaves this broker."""
