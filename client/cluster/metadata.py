"""A client's view of the cluster: brokers, topics, leaders and their epochs. Pure.

Answers come from different brokers and may be out of order, so a leader with a lower epoch never replaces one with a higher epoch
of the same topic id. Another topic id is another topic, whatever its epochs are.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.client.errors import UnknownTopic, describe, no_such_partition, request_failed, to_client_error
from strandline.protocol.errors import BrokerError, ErrorCode, StrandlineError
from strandline.protocol.messages.admin import MetadataBroker, MetadataPartition, MetadataResponse, MetadataTopic


class PartitionInfo(NamedTuple):
    """The leader and the replicas (broker ids) of one partition."""

    leader_id: int
    """Broker id; -1: the partition has no leader."""
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


class TopicInfo:
    """One topic with its partitions, by number."""

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
    """The brokers, and the topics that the client asked about, by the newest metadata responses."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        """The cluster's id; None before the first answer."""
        self.controller_id = -1
        """The id of the active controller; -1 if the broker that answered knows none."""
        self.brokers: dict[int, MetadataBroker] = {}
        """The brokers with their advertised addresses, by id. Kept if an answer lists no brokers."""
        self.topics: dict[str, TopicInfo] = {}
        """The topics that exist, by name."""
        self.names: dict[bytes, str] = {}
        """Topic id -> name."""
        self.failed: dict[str, ErrorCode] = {}
        """Topics for which the newest answer is an error, and the code of that error."""

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        """The metadata of the partition; None if the topic or the partition is not known."""
        info = self.topics.get(topic)
        return None if info is None else info.partitions.get(partition)

    def is_current(self, topic: str, topic_id: bytes) -> bool:
        """Whether the topic with this name has this id. If not, the leaders that are known under the name belong to another
        topic."""
        info = self.topics.get(topic)
        return info is not None and info.topic_id == topic_id

    def leader(self, topic: str, partition: int) -> int:
        """The leader's broker id; -1 if none is known."""
        info = self.topics.get(topic)
        known = None if info is None else info.partitions.get(partition)
        return -1 if known is None else known.leader_id

    def is_denied(self, topic: str) -> bool:
        """Whether the newest answer about the topic is that the client's principal may not describe it."""
        return self.failed.get(topic) == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def unknown_topic(self, name: str, elapsed_ms: float, partition: int | None = None) -> StrandlineError:
        """The error for a topic that does not exist or has no such partition (UnknownTopic), or whose metadata request was
        rejected (RequestFailed; TopicAuthorizationFailed without a right on it). `elapsed_ms`: how long the caller has waited for
        it."""
        code, info = self.failed.get(name), self.topics.get(name)
        if code is None and info is not None and info.partitions and partition is not None:
            text = no_such_partition(len(info.partitions))
            return UnknownTopic(text, topic=name, partition=partition, elapsed_ms=elapsed_ms)
        if code in (None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            return UnknownTopic("the topic does not exist", topic=name, partition=partition, elapsed_ms=elapsed_ms, code=code)
        if self.is_denied(name):
            return request_failed(describe(ErrorCode.TOPIC_AUTHORIZATION_FAILED), topic=name, code=code)
        return to_client_error(BrokerError(code or ErrorCode.UNKNOWN_SERVER_ERROR, f"metadata of topic {name!r} was rejected"))

    def forget_topics(self) -> None:
        """Drop the metadata of all topics. The brokers stay known."""
        self.topics, self.names, self.failed = {}, {}, {}

    def update(self, response: MetadataResponse) -> list[str]:
        """Take over an answer to a metadata request. Returns the names of the topics that changed."""
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        if response.brokers:
            self.brokers = {broker.node_id: broker for broker in response.brokers}
        return [topic.name for topic in response.topics if topic.name is not None and self._update_topic(topic.name, topic)]

    def update_leader(self, topic: str, partition: int, leader_id: int, leader_epoch: int) -> bool:
        """Take over the leader that an error response names, if its epoch is newer and the broker is known. Returns whether that
        was so."""
        info = self.topics.get(topic)
        known = None if info is None else info.partitions.get(partition)
        if info is None or known is None or leader_epoch <= known.leader_epoch or leader_id not in self.brokers:
            return False
        info.partitions[partition] = known._replace(leader_id=leader_id, leader_epoch=leader_epoch)
        return True

    def forget_leader(self, topic: str, partition: int, leader_id: int) -> None:
        """Mark the partition as without a leader, because the broker `leader_id` has answered that it does not lead it. Nothing
        is sent to a leader until newer metadata names one. If the cache already names another leader, nothing changes."""
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
