"""What a broker counts: by topic what flows, and for itself what happens to its partitions.

A topic's counters exist as long as one of its partitions is here; what they held when the last one left stays in
`departed`, so that the sum over all topics never goes back.
"""

from __future__ import annotations

from strandline.protocol.metrics import Histogram

COUNTERS = (
    "bytes_in",
    "bytes_out",
    "failed_fetches",
    "failed_produces",
    "fetches",
    "messages_in",
    "produces",
    "replication_bytes_in",
    "replication_bytes_out",
)


class TopicMetrics:
    """Of one topic, on this broker."""

    __slots__ = (*COUNTERS, "partitions")

    def __init__(self) -> None:
        self.partitions = 0
        """How many of the topic's are here."""
        self.bytes_in = 0
        """Appended for producers; a batch that was recognised as a duplicate is not."""
        self.messages_in = 0
        self.bytes_out = 0
        """Sent to consumers."""
        self.replication_bytes_in = 0
        """Fetched from leaders."""
        self.replication_bytes_out = 0
        """Sent to followers."""
        self.produces = 0
        """Once per partition of a request, as the following three."""
        self.failed_produces = 0
        self.fetches = 0
        self.failed_fetches = 0

    def add(self, other: TopicMetrics) -> None:
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class BrokerMetrics:
    def __init__(self) -> None:
        self.topics: dict[str, TopicMetrics] = {}
        """By name: a topic that comes anew under its name begins anew."""
        self.departed = TopicMetrics()
        """Of topics that are here no more; and what failed because its topic is not here."""
        self.isr_shrinks = 0
        self.isr_expands = 0
        """Committed ones of partitions that we lead; in one delta of the metadata a partition counts once."""
        self.refused_isr_proposals = 0
        self.became_leader = 0
        self.became_follower = 0
        self.truncated_below_hw = 0
        """What another leader did not have and we had taken for committed: see the log."""
        self.elected_with_missing_records = 0
        """Leaderships begun with a log that had lost something since it was last in sync: see the log."""
        self.metadata_apply = Histogram()
        self.leader_takeover = Histogram()
        """Deltas that made this broker a leader: from their arrival to the last leader."""
        self.expired_produces = 0
        self.expired_consumer_fetches = 0
        self.expired_follower_fetches = 0

    def on_partition_came(self, topic: str) -> TopicMetrics:
        metrics = self.topics.get(topic)
        if metrics is None:
            metrics = self.topics[topic] = TopicMetrics()
        metrics.partitions += 1
        return metrics

    def on_partition_left(self, topic: str) -> None:
        metrics = self.topics[topic]
        metrics.partitions -= 1
        if not metrics.partitions:
            self.departed.add(self.topics.pop(topic))

    def on_isr_changed(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Committed; of a partition that we lead."""
        self.isr_shrinks += any(member not in after for member in before)
        self.isr_expands += any(member not in before for member in after)

    def total(self) -> TopicMetrics:
        """All topics that ever were here."""
        total = TopicMetrics()
        for metrics in (self.departed, *self.topics.values()):
            total.add(metrics)
        return total
