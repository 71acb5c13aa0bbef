"""What a client believes about the cluster: brokers, topics, leaders and their epochs. Pure.

Answers come from different brokers and may be out of order: a leader with a lower epoch never replaces one with a
higher epoch of the same topic id. A new topic id is a new topic, whatever its epochs.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import MetadataBroker, MetadataPartition, MetadataResponse, MetadataTopic


class PartitionInfo(NamedTuple):
    leader_id: int
    """-1: none."""
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
        """Topics that the newest answer about them refused, and why."""

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        info = self.topics.get(topic)
        return None if info is None else info.partitions.get(partition)

    def is_current(self, topic: str, topic_id: bytes) -> bool:
        """False as well when another topic has the name by now: what is known of that one's leaders says nothing about this."""
        info = self.topics.get(topic)
        return info is not None and info.topic_id == topic_id

    def leader(self, topic: str, partition: int) -> int:
        """The leader's broker id; -1: none known."""
        info = self.topics.get(topic)
        known = None if info is None else info.partitions.get(partition)
        return -1 if known is None else known.leader_id

    def forget_topics(self) -> None:
        self.topics, self.names, self.failed = {}, {}, {}

    def update(self, response: MetadataResponse) -> list[str]:
        """Take in an answer; returns the topics of which something changed."""
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        if response.brokers:
            self.brokers = {broker.node_id: broker for broker in response.brokers}
        return [topic.name for topic in response.topics if topic.name is not None and self._update_topic(topic.name, topic)]

    def update_leader(self, topic: str, partition: int, leader_id: int, leader_epoch: int) -> bool:
        """A hint from an error response; True when it is news about a broker that is known."""
        info = self.topics.get(topic)
        known = None if info is None else info.partitions.get(partition)
        if info is None or known is None or leader_epoch <= known.leader_epoch or leader_id not in self.brokers:
            return False
        info.partitions[partition] = known._replace(leader_id=leader_id, leader_epoch=leader_epoch)
        return True

    def forget_leader(self, topic: str, partition: int, leader_id: int) -> None:
        """This broker said that it does not lead the partition (or cannot be reached): nobody is asked until there is news."""
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
        for told in partitions:
            known = info.partitions.get(told.partition)
            if known is not None and told.leader_epoch < known.leader_epoch:
                continue
            news = PartitionInfo(
                told.leader_id,
                told.leader_epoch,
                tuple(told.replica_nodes),
                tuple(told.isr_nodes),
                tuple(told.offline_replicas),
            )
            if news != known:
                info.partitions[told.partition] = news
                changed = True
        return changed
