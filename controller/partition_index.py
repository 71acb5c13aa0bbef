"""The partitions of each broker, so that the controller finds them without a search through all partitions.

The active controller keeps the index beside its image and applies every delta to both. It is built when a controller becomes
active. If a broker with 1,000 of 100,000 partitions dies, the work is proportional to the 1,000.
"""

from __future__ import annotations

from strandline.controller.metadata.image import MetadataDelta, MetadataImage, PartitionRegistration
from strandline.controller.metadata.records import NO_LEADER, BrokerIds
from strandline.protocol.partitions import TopicIdPartition

_Keys = dict[TopicIdPartition, None]
"""An ordered set. The order of iteration decides the order of records, and that of a `set` would not be deterministic."""


class PartitionIndex:
    """Looks up partitions by a member of their ISR, by a missing leader, by a preferred replica that does not lead and by a
    reassignment, and topics by the form of their name."""

    def __init__(self, image: MetadataImage) -> None:
        self._in_isr: dict[int, _Keys] = {}
        """Broker -> partitions that have it in the ISR."""
        self._in_elr: dict[int, _Keys] = {}
        """Broker -> partitions that have it in the ELR. A broker without any has no entry."""
        self._led: dict[int, int] = {}
        """Broker -> how many partitions it leads."""
        self._leaderless: _Keys = {}
        self._hosted: dict[int, int] = {}
        """Broker -> how many partitions have it among their replicas."""
        self._preferring: dict[int, int] = {}
        """Broker -> how many partitions have it as their preferred replica."""
        self._imbalanced: dict[int, _Keys] = {}
        """Broker -> partitions whose preferred replica it is, and that it does not lead. A broker without any has no entry."""
        self._out_of_isr: dict[int, int] = {}
        """Broker -> how many partitions have it among their replicas, and not in the ISR. A replica that a reassignment adds does
        not count until it has joined the ISR."""
        self._reassigning: _Keys = {}
        self._by_folded_name: dict[str, dict[str, None]] = {}
        """Topic name with '_' for '.' -> the topics of that form. Two of them would share metric names."""
        for topic in image.topics_by_id.values():
            self._add_name(topic.name)
            for index, partition in topic.partitions.items():
                self._update((topic.topic_id, index), None, partition)

    def apply(self, delta: MetadataDelta) -> None:
        """Bring the index up to date with `delta.image`. Deltas must be applied in order, and each once."""
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
        """The partitions whose ISR has this broker."""
        return list(self._in_isr.get(broker_id, ()))

    @property
    def has_leaderless(self) -> bool:
        """Whether a partition has no leader."""
        return bool(self._leaderless)

    def with_broker_in_elr(self, broker_id: int) -> list[TopicIdPartition]:
        """The partitions whose eligible leader replicas include this broker."""
        return list(self._in_elr.get(broker_id, ()))

    def with_elr(self) -> list[TopicIdPartition]:
        """The partitions that have eligible leader replicas."""
        return list(dict.fromkeys(key for keys in self._in_elr.values() for key in keys))

    def without_leader(self) -> list[TopicIdPartition]:
        """The partitions that have no leader."""
        return list(self._leaderless)

    def led_by(self, broker_id: int) -> int:
        """How many partitions the broker leads."""
        return self._led.get(broker_id, 0)

    def hosted_by(self, broker_id: int) -> int:
        """How many partitions have a replica on the broker."""
        return self._hosted.get(broker_id, 0)

    def is_in_all_isrs(self, broker_id: int) -> bool:
        """Whether the broker is in the ISR of every partition that has a replica on it, except one that a reassignment adds."""
        return not self.out_of_isr(broker_id)

    def out_of_isr(self, broker_id: int) -> int:
        """How many partitions have a replica on the broker that is not in the ISR, without those that a reassignment adds."""
        return self._out_of_isr.get(broker_id, 0)

    def reassigning(self) -> list[TopicIdPartition]:
        """The partitions that are being reassigned."""
        return list(self._reassigning)

    def brokers_out_of_balance(self) -> list[int]:
        """The brokers that do not lead every partition whose preferred replica they are."""
        return list(self._imbalanced)

    def imbalanced(self, broker_id: int) -> list[TopicIdPartition]:
        """The partitions whose preferred replica is on this broker, and that it does not lead."""
        return list(self._imbalanced.get(broker_id, ()))

    def imbalance_percentage(self, broker_id: int) -> float:
        """The percentage of the partitions with their preferred replica on this broker that the broker does not lead."""
        return 100 * len(self._imbalanced.get(broker_id, ())) / max(1, self._preferring.get(broker_id, 0))

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
        self._update_elr(key, before.elr if before else (), after.elr if after else ())
        self._update_replicas(before.replicas if before else (), after.replicas if after else ())
        self._update_out_of_isr(before, after)
        if after is not None and after.is_reassigning:
            self._reassigning[key] = None
        elif before is not None and before.is_reassigning:
            del self._reassigning[key]
        self._update_balance(key, before, after)
        old_leader = before.leader if before else None
        new_leader = after.leader if after else None
        if old_leader != new_leader:
            self._leader_left(key, old_leader)
            self._leader_came(key, new_leader)

    def _update_elr(self, key: TopicIdPartition, before: BrokerIds, after: BrokerIds) -> None:
        for broker_id in before:
            if broker_id not in after:
                del self._in_elr[broker_id][key]
                if not self._in_elr[broker_id]:
                    del self._in_elr[broker_id]
        for broker_id in after:
            if broker_id not in before:
                self._in_elr.setdefault(broker_id, {})[key] = None

    def _update_replicas(self, before: BrokerIds, after: BrokerIds) -> None:
        if before == after:
            return
        for broker_id in before:
            self._hosted[broker_id] -= 1
        for broker_id in after:
            self._hosted[broker_id] = self._hosted.get(broker_id, 0) + 1
        if before:
            self._preferring[before[0]] -= 1
        if after:
            self._preferring[after[0]] = self._preferring.get(after[0], 0) + 1

    def _update_out_of_isr(self, before: PartitionRegistration | None, after: PartitionRegistration | None) -> None:
        was, is_now = _outside(before), _outside(after)
        if was != is_now:
            for broker_id in was:
                self._out_of_isr[broker_id] -= 1
            for broker_id in is_now:
                self._out_of_isr[broker_id] = self._out_of_isr.get(broker_id, 0) + 1

    def _update_balance(
        self, key: TopicIdPartition, before: PartitionRegistration | None, after: PartitionRegistration | None
    ) -> None:
        was, is_now = _missing_leader(before), _missing_leader(after)
        if was == is_now:
            return
        if was is not None:
            keys = self._imbalanced[was]
            del keys[key]
            if not keys:
                del self._imbalanced[was]
        if is_now is not None:
            self._imbalanced.setdefault(is_now, {})[key] = None

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


def _outside(partition: PartitionRegistration | None) -> BrokerIds:
    """The replicas of the partition that should be in the ISR and are not."""
    if partition is None or len(partition.isr) == len(partition.replicas):
        return ()
    isr, adding = partition.isr, partition.adding_replicas
    return tuple(replica for replica in partition.replicas if replica not in isr and replica not in adding)


def _missing_leader(partition: PartitionRegistration | None) -> int | None:
    """The preferred replica of the partition if it does not lead. None if it leads, if a reassignment adds it and it is not in
    the ISR yet, or if there is no partition."""
    if partition is None or partition.leader == partition.replicas[0]:
        return None
    preferred = partition.replicas[0]
    return None if preferred in partition.adding_replicas and preferred not in partition.isr else preferred


def fold_name(name: str) -> str:
    """The form of a topic's name in the names of metrics, where '.' and '_' are one character."""
    return name.replace(".", "_")
