"""The partitions of one broker, and the cluster's metadata about them: every request looks here first.

A lookup costs one dict access. Only if the partition is missing is the metadata searched for the reason: unknown topic, not a
replica, or on a disk that failed."""

from __future__ import annotations

from strandline.broker.metrics import BrokerMetrics
from strandline.broker.partition.partition import Partition
from strandline.broker.replication.throttle import ReplicationThrottle
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import CurrentLeader
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.files import DiskError


class PartitionDirectory:
    """The online partitions of this broker, and the newest metadata image that was applied to them."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = -1
        """The broker epoch of this broker's registration in the image; -1 before the first image."""
        self.image = MetadataImage.EMPTY
        self.partitions: dict[TopicIdPartition, Partition] = {}
        self.converting: set[TopicIdPartition] = set()
        """The partitions whose topic is compacted, or has a codec of its own (`compression.type` is not `producer`). While it is
        empty, as on many brokers, a produce request need not look up its partitions before the append."""
        self.metrics = BrokerMetrics()
        self.sending = ReplicationThrottle()
        """The throttle for records that this broker sends to replicas that reassignments add."""
        self.offline: dict[TopicIdPartition, None] = {}
        """The partitions of this broker whose logs are, or may be, in a log directory that is offline. None of them is in
        `partitions`. A dict serves as an ordered set."""
        self.announced: dict[TopicIdPartition, bytes] = {}
        """The new directories of replicas that move, as announced to the controller. The replicas are not there yet."""
        self.disk_error: DiskError | None = None
        """Set once the last log directory failed: nothing is served any more."""

    def partition(self, key: TopicIdPartition) -> Partition:
        """The partition. Raises UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR if its log directory is
        offline, or NOT_LEADER_OR_FOLLOWER if this broker is not a replica."""
        partition = self.partitions.get(key)
        if partition is not None:
            return partition
        topic = self.image.topics_by_id.get(key[0])
        if topic is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID)
        registration = topic.partitions.get(key[1])
        if registration is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {key[1]}")
        if key in self.offline or (self.disk_error is not None and self.broker_id in registration.replicas):
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)
        raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.broker_id} is not a replica of {topic.name}-{key[1]}")

    def current_leader(self, key: TopicIdPartition) -> CurrentLeader:
        """The leader in this broker's metadata. Sent with a refusal, it saves the client a metadata request (KIP-951)."""
        registration = self.image.partition(key)
        return CurrentLeader() if registration is None else CurrentLeader(registration.leader, registration.leader_epoch)

    def registered_epoch(self, broker_id: int) -> int:
        """The broker epoch of a registered broker; -1 if it is not registered."""
        registration = self.image.brokers.get(broker_id)
        return -1 if registration is None else registration.broker_epoch

    def rack_of(self, broker_id: int) -> str | None:
        """The rack of a broker; None if it has none or is not registered."""
        registration = self.image.brokers.get(broker_id)
        return None if registration is None else registration.rack

    def is_active(self, broker_id: int) -> bool:
        """Whether a broker is registered, not fenced and not in controlled shutdown."""
        registration = self.image.brokers.get(broker_id)
        return registration is not None and registration.is_active
