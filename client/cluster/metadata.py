"""A client's view of the cluster: brokers, topics, leaders and their epochs. Pure.

Answers come from different brokers and may be out of order, so a leader with a lower epoch never replaces one with a higher epoch
of the same topic id. Another topic id is another topic, whatever its epochs are.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import MetadataBroker, MetadataPartition, MetadataResponse, MetadataTopic


class PartitionInfo(NamedTuple):
    leader_id: int
    """Broker id; -1: the partition has no leader."""
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


class TopicInfo:
    __slots__ = ("is_internal", "name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, is_internal: bool = False) -> None:
        self.name = name
        self.topic_id = topic_id
        self.is_internal = is_internal
        self.partitions: dict[int, PartitionInfo] = {}

    @property
    def available(self) -> list[int]:
        """The partitions that have a leader, ascending."""
        return sorted(index for index, info in self.partitions.items() if info.leader_id >= 0)


class MetadataCache:
    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, MetadataBroker] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.names: dict[bytes, str] = {}
        """Topic id -> name."""
        self.failed: dict[str, ErrorCode] = {}
        """Topics for which the newest answer is an error, and its code."""

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        info = self.topics.get(topic)
        return None if info is None else info.partitions.get(partition)

    def is_current(self, topic: str, topic_id: bytes) -> bool:
        """Whether the topic that has the name has this id. If not, the leaders known by that name are another topic's."""
        info = self.topics.get(topic)
        return info is not None and info.topic_id == topic_id

    def leader(self, topic: str, partition: int) -> int:
        """The leader's broker id; -1 if none is known."""
        info = self.topics.get(topic)
        known = None if info is None else info.partitions.get(partition)
        return -1 if known is None else known.leader_id

    def forget_topics(self) -> None:
        self.topics, self.names, self.failed = {}, {}, {}

    def update(self, response: MetadataResponse) -> list[str]:
        """Take over an answer. Returns the topics that changed."""
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        if response.brokers:
            self.brokers = {broker.node_id: broker for broker in response.brokers}
        return [topic.name for topic in response.topics if topic.name is not None and self._update_topic(topic.name, topic)]

    def update_leader(self, topic: str, partition: int, leader_id: int, leader_epoch: int) -> bool:
        """Take over the leader that an error response names, if it is newer and a known broker. Returns whether it was."""
        info = self.topics.get(topic)
        known = None if info is None else info.partitions.get(partition)
        if info is None or known is None or leader_epoch <= known.leader_epoch or leader_id not in self.brokers:
            return False
        info.partitions[partition] = known._replace(leader_id=leader_id, leader_epoch=leader_epoch)
        return True

    def forget_leader(self, topic: str, partition: int, leader_id: int) -> None:
        """This broker does not lead the partition any more: no broker is asked as its leader until newer metadata names one."""
        info = self.topics.get(topic)
        known = None if info is None else info.partitions.get(partition)
        if info is not None and known is not None and known.leader_id == leader_id:
            info.partitions[partition] = known._replace(leader_id=-1)

    def _update_topic(self, name: str, topic: MetadataTopic) -> bool:
        if topic.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
            self.failed[name] = (
                ErrorCode(topic.error_code) if topic.error_code in set(ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR
            )
            return self._forget_deleted(name, topic)
        self.failed.pop(name, None)
        known = self.topics.get(name)
        if known is None or known.topic_id != topic.topic_id:
            if known is not None:
                self.names.pop(known.topic_id, None)
            known = self.topics[name] = TopicInfo(name, topic.topic_id, topic.is_internal)
            self.names[topic.topic_id] = name
            self._update_partitions(known, topic.partitions)
            return True
        return self._update_partitions(known, topic.partitions)

    def _forget_deleted(self, name: str, topic: MetadataTopic) -> bool:
        if topic.error_code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            return False
        known = self.topics.pop(name, None)
        if known is not None:
            self.names.pop(known.topic_id, None)
        return known is not None

    @staticmethod
    def _update_partitions(info: TopicInfo, partitions: list[MetadataPartition]) -> bool:
        changed = False
        for new in partitions:
            known = info.partitions.get(new.partition)
            if known is not None and new.leader_epoch < known.leader_epoch:
                continue
            news = PartitionInfo(
                new.leader_id,
                new.leader_epoch,
                tuple(new.replica_nodes),
                tuple(new.isr_nodes),
                tuple(new.offline_replicas),
            )
            if news != known:
                info.partitions[new.partition] = news
                changed = True
        return changed
