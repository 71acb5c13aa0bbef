"""The partitions of each broker, so that the controller finds them without a search through all partitions.

The active controller keeps the index beside its image and applies every delta to both. It is built when a controller becomes
active. If a broker with 1,000 of 100,000 partitions dies, the work is proportional to the 1,000.
"""

from __future__ import annotations

from strandline.controller.metadata.image import MetadataDelta, MetadataImage, PartitionRegistration
from strandline.controller.metadata.records import NO_LEADER
from strandline.protocol.partitions import TopicIdPartition

_Keys = dict[TopicIdPartition, None]
"""An ordered set. The order of iteration decides the order of records, and that of a `set` would not be deterministic."""


class PartitionIndex:
    def __init__(self, image: MetadataImage) -> None:
        self._in_isr: dict[int, _Keys] = {}
        """Broker -> partitions that have it in the ISR."""
        self._led: dict[int, int] = {}
        """Broker -> how many partitions it leads."""
        self._leaderless: _Keys = {}
        self._by_folded_name: dict[str, dict[str, None]] = {}
        """Topic name with '_' for '.' -> the topics of that form. Two of them would share metric names."""
        for topic in image.topics_by_id.values():
            self._add_name(topic.name)
            for index, partition in topic.partitions.items():
                self._update((topic.topic_id, index), None, partition)

    def apply(self, delta: MetadataDelta) -> None:
        for topic in delta.removed_topics:
            self._remove_name(topic.name)
            for index, partition in topic.partitions.items():
                self._update((topic.topic_id, index), partition, None)
        for topic_id in delta.created_topics:
            self._add_name(delta.image.topics_by_id[topic_id].name)
        before, image = delta.before, delta.image
        for key in delta.changed_partitions:
            self._update(key, before.partition(key), image.partition(key))

    def with_broker_in_isr(self, broker_id: int) -> list[TopicIdPartition]:
        return list(self._in_isr.get(broker_id, ()))

    def without_leader(self) -> list[TopicIdPartition]:
        return list(self._leaderless)

    def led_by(self, broker_id: int) -> int:
        """How many partitions the broker leads."""
        return self._led.get(broker_id, 0)

    def colliding_name(self, name: str) -> str | None:
        """The name of another topic that differs from `name` only in '.' and '_'; None if there is none."""
        return next((other for other in self._by_folded_name.get(fold_name(name), ()) if other != name), None)

    def _update(self, key: TopicIdPartition, before: PartitionRegistration | None, after: PartitionRegistration | None) -> None:
        old_isr = before.isr if before else ()
        new_isr = after.isr if after else ()
        if old_isr != new_isr:
            for broker_id in old_isr:
                if broker_id not in new_isr:
                    del self._in_isr[broker_id][key]
            for broker_id in new_isr:
                if broker_id not in old_isr:
                    self._in_isr.setdefault(broker_id, {})[key] = None
        old_leader = before.leader if before else None
        new_leader = after.leader if after else None
        if old_leader != new_leader:
            self._leader_left(key, old_leader)
            self._leader_came(key, new_leader)

    def _leader_left(self, key: TopicIdPartition, leader: int | None) -> None:
        if leader == NO_LEADER:
            del self._leaderless[key]
        elif leader is not None:
            self._led[leader] -= 1

    def _leader_came(self, key: TopicIdPartition, leader: int | None) -> None:
        if leader == NO_LEADER:
            self._leaderless[key] = None
        elif leader is not None:
            self._led[leader] = self._led.get(leader, 0) + 1

    def _add_name(self, name: str) -> None:
        if "." in name or "_" in name:
            self._by_folded_name.setdefault(fold_name(name), {})[name] = None

    def _remove_name(self, name: str) -> None:
        if "." in name or "_" in name:
            names = self._by_folded_name[fold_name(name)]
            del names[name]
            if not names:
                del self._by_folded_name[fold_name(name)]


def fold_name(name: str) -> str:
    return name.replace(".", "_")
