"""Counters of a broker: the traffic of each topic, and what happens to its partitions.

A topic has counters as long as one of its partitions is on this broker. When the last partition leaves, they are added to
`departed`, so that the sum over all topics never decreases.
"""

from __future__ import annotations

from strandline.protocol.metrics import Histogram

COUNTERS = (
    "bytes_in",
    "bytes_out",
    "failed_fetches",
    "failed_produces",
    "fetches",
    "follower_bytes_out",
    "messages_in",
    "nominations",
    "produces",
    "replication_bytes_in",
    "replication_bytes_out",
)


class TopicMetrics:
    """Counters of one topic on this broker."""

    __slots__ = (*COUNTERS, "partitions")

    def __init__(self) -> None:
        self.partitions = 0
        """The number of the topic's partitions on this broker."""
        self.bytes_in = 0
        """Bytes appended for producers. A batch that is recognised as a duplicate does not count."""
        self.messages_in = 0
        self.bytes_out = 0
        """Bytes of records sent to consumers."""
        self.follower_bytes_out = 0
        """The part of `bytes_out` that this broker sent from partitions that it follows (KIP-392)."""
        self.nominations = 0
        """Partitions of consumers' fetches that were answered with the id of a replica in the consumer's rack (KIP-392)."""
        self.replication_bytes_in = 0
        """Bytes of records fetched from leaders."""
        self.replication_bytes_out = 0
        """Bytes of records sent to followers."""
        self.produces = 0
        """Partitions of Produce requests. `failed_produces` counts those that failed."""
        self.failed_produces = 0
        self.fetches = 0
        """Reads of the log for fetches, and the partitions of Fetch responses that have an error (`failed_fetches`)."""
        self.failed_fetches = 0

    def add(self, other: TopicMetrics) -> None:
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class BrokerMetrics:
    """Counters of one broker."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicMetrics] = {}
        """The counters of each topic, by its name. A topic that is created again under the same name starts at zero."""
        self.departed = TopicMetrics()
        """Sum of the topics that are no longer on this broker, and of the requests that failed because their topic is not
        here."""
        self.isr_shrinks = 0
        self.isr_expands = 0
        """Committed ISR changes of partitions that this broker leads. A partition counts once per metadata delta."""
        self.refused_isr_proposals = 0
        self.reassignment_bytes_in = 0
        self.reassignment_bytes_out = 0
        """Bytes of records that this broker fetched for replicas which a reassignment adds here, and sent to such replicas. They
        are a part of the replication bytes."""
        self.became_leader = 0
        self.became_follower = 0
        self.truncated_below_hw = 0
        """Truncations of records that this replica had considered committed, because a later leader lacks them: see the log."""
        self.restarted_out_of_range = 0
        self.restarted_for_tombstones = 0
        self.restarted_for_values = 0
        """Logs that were emptied to be copied again from the leader's log start: the leader had deleted the records after the log
        end, or had removed tombstones that this replica lacked; or our cleaner had removed values because of newer records, which
        were cut off."""
        self.elected_with_missing_records = 0
        """Elections of this broker with a log that may have lost records since it was last in sync: see the log."""
        self.metadata_apply = Histogram()
        self.leader_takeover = Histogram()
        """Seconds from the arrival of a metadata delta until this broker has taken the last leader's role in it."""
        self.expired_produces = 0
        self.expired_consumer_fetches = 0
        self.expired_follower_fetches = 0

    def on_partition_added(self, topic: str) -> TopicMetrics:
        metrics = self.topics.get(topic)
        if metrics is None:
            metrics = self.topics[topic] = TopicMetrics()
        metrics.partitions += 1
        return metrics

    def on_partition_removed(self, topic: str) -> None:
        metrics = self.topics[topic]
        metrics.partitions -= 1
        if not metrics.partitions:
            self.departed.add(self.topics.pop(topic))

    def on_isr_changed(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """Count a committed ISR change of a partition that this broker leads."""
        self.isr_shrinks += any(member not in after for member in before)
        self.isr_expands += any(member not in before for member in after)

    def total(self) -> TopicMetrics:
        """Sum over all topics that have ever been on this broker."""
        total = TopicMetrics()
        for metrics in (self.departed, *self.topics.values()):
            total.add(metrics)
        return total
