"""A consumer's side of an incremental fetch session (KIP-227) with one broker. Pure.

`wanted` lists the partitions to fetch. A request of an established session contains only those that changed since the last one.
The broker may drop the session at any time; then the next request lists all of them again.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.protocol.fetch_sessions import next_epoch
from strandline.protocol.messages.data import FetchPartition, ForgottenPartition
from strandline.protocol.partitions import TopicIdPartition


class FetchPlan(NamedTuple):
    """The part of a fetch request that the session determines."""

    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[ForgottenPartition]


class FetchSession:
    """The partitions that the consumer fetches from one broker, and the part of them that the broker's session has already."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        """The session epoch of the next request; 0: no session is established, and the next request lists everything."""
        self.wanted: dict[TopicIdPartition, FetchPartition] = {}
        self._changed: dict[TopicIdPartition, None] = {}
        self._listed: set[TopicIdPartition] = set()
        """The partitions in the broker's session."""

    def put(self, partition: FetchPartition) -> None:
        """Fetch this partition, or fetch it from another offset than before.

        A request that lists everything then lists it last. A broker fills its response in that order, so without a session a busy
        partition would keep those behind it from being read."""
        key = (partition.topic_id, partition.partition)
        if self.wanted.get(key) != partition:
            self.wanted.pop(key, None)
            self.wanted[key] = partition
            self._changed[key] = None

    def remove(self, key: TopicIdPartition) -> None:
        """Stop fetching this partition."""
        if self.wanted.pop(key, None) is not None:
            self._changed[key] = None

    def plan(self) -> FetchPlan:
        """The next request: everything if no session is established, otherwise the changes since the last plan."""
        if self.epoch == 0:
            self._changed.clear()
            self._listed = set(self.wanted)
            return FetchPlan(0, 0, list(self.wanted.values()), [])
        partitions = [self.wanted[key] for key in self._changed if key in self.wanted]
        forgotten = [key for key in self._changed if key not in self.wanted and key in self._listed]
        self._listed.difference_update(forgotten)
        self._listed.update((p.topic_id, p.partition) for p in partitions)
        self._changed.clear()
        return FetchPlan(self.session_id, self.epoch, partitions, [ForgottenPartition(*key) for key in forgotten])

    def on_response(self, error_code: int, session_id: int) -> bool:
        """Move to the next session epoch. Returns False if the response has an error: its partitions do not count, and the next
        request establishes a new session."""
        if error_code:
            self.reset()
            return False
        if self.epoch == 0:
            self.session_id, self.epoch = session_id, (1 if session_id else 0)
        else:
            self.epoch = next_epoch(self.epoch)
        return True

    def reset(self) -> None:
        """Drop the session: the connection was lost, or the broker dropped it."""
        self.session_id, self.epoch = 0, 0
        self._changed.clear()
        self._listed.clear()
