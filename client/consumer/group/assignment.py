"""The partitions that a member of a group has taken. Pure, except that it calls the subscription and the fetcher.

in transit   taken, and being assigned or revoked by the rebalance in progress
announced    `on_assigned` was called for it, so `on_revoked` or `on_lost` follows
held         its records are not returned now: it is in transit, the membership is in doubt, or the program is no longer
             subscribed to its topic
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strandline.client.consumer.fetcher import Fetcher
from strandline.client.consumer.group.handed_over import HandedOver
from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.records import TopicPartition
from strandline.client.consumer.subscription import Subscription
from strandline.protocol.partitions import TopicIdPartition


class Assignment:
    """Takes and drops partitions for a member, and holds those whose records must not be returned."""

    def __init__(self, subscription: Subscription, fetcher: Fetcher, handed: HandedOver) -> None:
        self._subscription = subscription
        self._fetcher = fetcher
        self._handed = handed
        self.tenure = 0
        """The tenure in which the partitions were taken."""
        self.states: dict[TopicIdPartition, PartitionState] = {}
        self.in_transit: dict[TopicIdPartition, None] = {}
        self.announced: dict[TopicIdPartition, None] = {}

    def __bool__(self) -> bool:
        """Whether the member has taken any partition."""
        return bool(self.states)

    def may_take(self, tp: TopicPartition, key: TopicIdPartition) -> bool:
        """Whether the partition's name is free. If the topic was recreated, the state of the old topic's partition may still use
        it."""
        return key in self.states or tp not in self._subscription.states

    def take(self, tp: TopicPartition, key: TopicIdPartition) -> None:
        """Take a partition; it is in transit from now on. A partition that an interrupted step has taken keeps its state."""
        self.in_transit[key] = None
        if key not in self.states:
            self.states[key] = self._subscription.add(tp, key[0], None)

    def drop(self, keys: Iterable[TopicIdPartition]) -> None:
        """Stop reading these partitions. Partitions that were not taken are ignored."""
        dropped = [state for key in keys if (state := self.states.pop(key, None)) is not None]
        for state in dropped:
            self.in_transit.pop(state.key, None)
            self.announced.pop(state.key, None)
            self._handed.drop(state)
            if self._subscription.states.get(state.tp) is state:
                self._subscription.remove(state.tp)
        self._fetcher.drop(dropped)

    def names(self, keys: Iterable[TopicIdPartition]) -> list[TopicPartition]:
        """The names of those of these partitions that were announced, sorted."""
        return sorted(self.states[key].tp for key in keys if key in self.announced)

    def update_holds(self, is_valid: bool, reads: Callable[[str], bool]) -> None:
        """Hold the partitions whose records must not be returned, and release the others. `reads`: whether the program is
        subscribed to a topic."""
        for key, state in self.states.items():
            is_held = not is_valid or key in self.in_transit or not reads(state.tp.topic)
            if is_held and not state.is_held:
                state.hold()
            elif not is_held and state.is_held:
                state.release()
                self._fetcher.on_resumed(state)
