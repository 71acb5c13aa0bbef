"""The fetches of a consumer from one broker: the fetch session, and the requests in flight."""

from __future__ import annotations

from strandline.client.consumer.fetch_session import FetchSession
from strandline.client.consumer.partition_state import PartitionState
from strandline.protocol.messages.data import FetchPartition
from strandline.protocol.partitions import TopicIdPartition


class SentFetch:
    """One fetch request in flight, and the partitions that it asks for."""

    __slots__ = ("followed", "partitions", "sent_at")

    def __init__(self, partitions: dict[TopicIdPartition, FetchPartition]) -> None:
        self.partitions = partitions
        self.followed: dict[TopicIdPartition, None] = {}
        """The partitions for which the broker was asked as a follower (KIP-392)."""
        self.sent_at = 0.0
        """When the request was sent, on the loop's clock."""


class BrokerFetches:
    """The fetch session with one broker, and the fetches that it has not answered yet."""

    __slots__ = ("broker_id", "extras", "held_back", "left_session", "main", "session", "throttled_until")

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.session = FetchSession()
        self.throttled_until = 0.0
        """No fetch is sent before this time (on the loop's clock), because of a quota."""
        self.held_back: dict[PartitionState, None] = {}
        """Partitions that need an extra fetch. They are checked when the throttle time ends."""
        self.main: SentFetch | None = None
        """The long-polling fetch of the session."""
        self.extras: dict[SentFetch, None] = {}
        """Fetches without a session, beside the main one."""
        self.left_session: dict[PartitionState, None] = {}
        """Partitions that have left the session, although the main fetch in flight asks for them. They are checked when it is
        answered."""

    def in_flight(self) -> list[SentFetch]:
        """The requests that the broker has not answered yet, the main one first."""
        return [*self.extras] if self.main is None else [self.main, *self.extras]

    def oldest_sent_at(self) -> float | None:
        """When the oldest request in flight was sent."""
        return min((sent.sent_at for sent in self.in_flight()), default=None)

    def asks_for(self, state: PartitionState) -> bool:
        """Whether a request in flight asks for exactly the records that the partition needs now."""
        for sent in self.in_flight():
            known = sent.partitions.get(state.key)
            if known is not None and known.fetch_offset == state.fetch_offset:
                return True
        return False
