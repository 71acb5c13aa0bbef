"""The partitions that a consumer reads, assigned by hand or through subscribed topics. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strandline.client.consumer.partition_state import EARLIEST, PartitionState
from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import CorruptRecords
from strandline.protocol.partitions import TopicIdPartition


class Subscription:
    """The assigned partitions, by hand or all those of the subscribed topics."""

    def __init__(
        self,
        default_reset: int | None,
        skips: Callable[[CorruptRecords], bool] = lambda error: False,
        checks_crcs: bool = True,
    ) -> None:
        self._skips = skips
        self._checks_crcs = checks_crcs
        self.default_reset = default_reset
        """What `auto_offset_reset` says: EARLIEST, LATEST, or None for an error."""
        self.topics: dict[str, None] = {}
        """Subscribed; empty when assigned by hand."""
        self.states: dict[TopicPartition, PartitionState] = {}
        self.by_key: dict[TopicIdPartition, PartitionState] = {}
        self.failed: dict[PartitionState, None] = {}
        """Those of `states` that have an error."""
        self._seen: dict[str, bytes] = {}
        """Subscribed topics whose partitions were assigned before, and their topic ids."""

    def subscribe(self, topics: Iterable[str]) -> list[PartitionState]:
        """Returns the states that are no longer read; the same topics are looked at anew."""
        removed = self.clear()
        self.topics = dict.fromkeys(topics)
        return removed

    def clear(self) -> list[PartitionState]:
        removed = [self.remove(place) for place in list(self.states)]
        self.topics = {}
        self._seen = {}
        return removed

    def add(self, place: TopicPartition, topic_id: bytes, reset: int | None) -> PartitionState:
        state = PartitionState(place, topic_id, self.failed, self._skips, self._checks_crcs)
        state.reset = reset
        self.states[place] = state
        self.by_key[state.key] = state
        return state

    def remove(self, place: TopicPartition) -> PartitionState:
        state = self.states.pop(place)
        state.abandon()
        if self.by_key.get(state.key) is state:
            del self.by_key[state.key]
        return state

    def renew(self, state: PartitionState, topic_id: bytes, reset: int | None) -> PartitionState:
        """The same partition of the topic that has the name now: nothing that was known of the old one's log is kept."""
        self.remove(state.place)
        renewed = self.add(state.place, topic_id, reset)
        renewed.paused = state.paused
        return renewed

    def on_topic(
        self, topic: str, topic_id: bytes, partitions: Iterable[int]
    ) -> tuple[list[PartitionState], list[PartitionState]]:
        """A subscribed topic as the metadata has it: states added, states removed.

        Partitions that appear later are read from their beginning, whatever the reset policy: nothing in them was
        there before we looked. So is a topic that was deleted and made anew under the same name.
        """
        removed = []
        seen = self._seen.get(topic)
        if seen is not None and seen != topic_id:
            removed = [self.remove(place) for place in list(self.states) if place.topic == topic]
        reset = self.default_reset if seen is None else EARLIEST
        added = []
        for index in sorted(partitions):
            place = TopicPartition(topic, index)
            if place not in self.states:
                added.append(self.add(place, topic_id, reset))
        self._seen[topic] = topic_id
        return added, removed
