"""The partitions that a consumer reads: those assigned by hand, all of its topics, or those that its group assigns. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strandline.client.consumer.partition_state import EARLIEST, PartitionState
from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import CorruptRecords
from strandline.protocol.partitions import TopicIdPartition


class Subscription:
    """The states of the assigned partitions."""

    def __init__(
        self,
        default_reset: int | None,
        skips: Callable[[CorruptRecords], bool] = lambda error: False,
        checks_crcs: bool = True,
    ) -> None:
        self._skips = skips
        self._checks_crcs = checks_crcs
        self.default_reset = default_reset
        """The reset policy (`auto_offset_reset`): EARLIEST, LATEST, or None for an error."""
        self.topics: dict[str, None] = {}
        """The topics that are subscribed by name; empty if partitions are assigned by hand."""
        self.by_group = False
        """The group's coordinator decides which partitions of the subscribed topics are read."""
        self.states: dict[TopicPartition, PartitionState] = {}
        """The states that are read, by topic name and partition."""
        self.by_key: dict[TopicIdPartition, PartitionState] = {}
        """The states of `states`, by topic id and partition."""
        self.failed: dict[PartitionState, None] = {}
        """The states that have a failure. They add and remove themselves."""
        self._seen: dict[str, bytes] = {}
        """The id of each subscribed topic at the time when its partitions were last added."""

    def subscribe(self, topics: Iterable[str]) -> list[PartitionState]:
        """Subscribe to these topics only. `on_topic` adds their partitions. Returns the states that are no longer read: all
        earlier ones."""
        removed = self.clear()
        self.topics = dict.fromkeys(topics)
        return removed

    def subscribe_by_group(self, topics: Iterable[str]) -> list[PartitionState]:
        """Subscribe to these topics as a member of a group, which adds and removes states. Returns the states that are no longer
        read: those from before the consumer was in the group."""
        removed = [] if self.by_group else self.clear()
        self.topics, self.by_group = dict.fromkeys(topics), True
        return removed

    def clear(self) -> list[PartitionState]:
        """Read nothing. Returns the states that are no longer read."""
        removed = [self.remove(tp) for tp in list(self.states)]
        self.topics, self.by_group = {}, False
        self._seen = {}
        return removed

    def add(self, tp: TopicPartition, topic_id: bytes, reset: int | None) -> PartitionState:
        """Begin to read a partition. `reset`: the timestamp (or EARLIEST, LATEST) that selects its first position; None: a seek
        selects it."""
        state = PartitionState(tp, topic_id, self.failed, self._skips, self._checks_crcs, reset)
        self.states[tp] = state
        self.by_key[state.key] = state
        return state

    def remove(self, tp: TopicPartition) -> PartitionState:
        """Stop reading an assigned partition. Returns its state."""
        state = self.states.pop(tp)
        state.abandon()
        if self.by_key.get(state.key) is state:
            del self.by_key[state.key]
        return state

    def renew(self, state: PartitionState, topic_id: bytes, reset: int | None) -> PartitionState:
        """Replace the state by one for the topic that has the name now. Of the old state, only a pause by the program is kept."""
        self.remove(state.tp)
        renewed = self.add(state.tp, topic_id, reset)
        if state.is_paused_by_program:
            renewed.pause()
        return renewed

    def is_other(self, topic: str, topic_id: bytes) -> bool:
        """Whether the subscribed topic had another id when its partitions were added."""
        return self._seen.get(topic, topic_id) != topic_id

    def on_topic(
        self, topic: str, topic_id: bytes, partitions: Iterable[int]
    ) -> tuple[list[PartitionState], list[PartitionState]]:
        """Take over a subscribed topic from the metadata. Returns the states that were added, and those that were removed.

        Partitions that are added to a topic later are read from their beginning, whatever the reset policy is: their records are
        all newer than the subscription. The same holds for a topic that is deleted and recreated.
        """
        removed = []
        seen = self._seen.get(topic)
        if seen is not None and seen != topic_id:
            removed = [self.remove(tp) for tp in list(self.states) if tp.topic == topic]
        reset = self.default_reset if seen is None else EARLIEST
        added = []
        for index in sorted(partitions):
            tp = TopicPartition(topic, index)
            if tp not in self.states:
                added.append(self.add(tp, topic_id, reset))
        self._seen[topic] = topic_id
        return added, removed
