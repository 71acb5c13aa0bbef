"""What the admin client takes and gives: plain dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.client.consumer.records import TopicPartition
from strandline.protocol.errors import ErrorCode
from strandline.protocol.producer_names import is_named, work_epoch_of


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1: the cluster's default. With `replica_assignments` (partition -> brokers) both are implied."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | int | float | bool] | None = None
    replica_assignments: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    partition: int
    leader_id: int
    """-1: none."""
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    """In order of preference: the first is the preferred leader."""
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    eligible_leader_replicas: tuple[int, ...]

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: bytes
    partitions: list[PartitionDescription]
    is_internal: bool = False

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: str
    """ "topic", "broker", "cluster" (the default of all brokers), "static" (a broker's file), "default"."""
    read_only: bool = False
    is_sensitive: bool = False
    type: str = "string"
    documentation: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    broker_id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False
    broker_epoch: int = -1
    in_controlled_shutdown: bool = False


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str
    controller_id: int
    """The active controller; -1: none known."""
    brokers: list[BrokerDescription]


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    replica_id: int
    host: str
    port: int
    log_end_offset: int
    last_fetch_age_ms: int = -1
    last_caught_up_age_ms: int = -1


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    leader_id: int
    leader_epoch: int
    high_watermark: int
    log_start_offset: int
    voters: list[QuorumReplica]
    observers: list[QuorumReplica]


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A replica on the disk of one broker."""

    size_bytes: int
    """Of its segments."""
    offset_lag: int
    """By so many records its log ends before the high watermark that it knows."""


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory of a broker, and the replicas in it."""

    path: str
    replicas: Mapping[TopicPartition, ReplicaInfo]
    error: ErrorCode = ErrorCode.NONE
    """KAFKA_STORAGE_ERROR: the directory is offline, and its replicas are not named."""


@dataclass(frozen=True, slots=True)
class ElectionResult:
    partition: TopicPartition
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """The newest batch that a log has of an idempotent producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """Of a named producer: the number of the last row of its work epoch in this partition; the first one has 0."""
    last_offset: int
    last_timestamp_ms: int
    name: str | None = None
    """As long as the cluster knows it."""

    @property
    def is_named(self) -> bool:
        return is_named(self.producer_id)

    @property
    def work_epoch(self) -> int:
        """Of a named producer; else 0."""
        return work_epoch_of(self.producer_id)


@dataclass(frozen=True, slots=True)
class PartitionProducers:
    """What the leader of a partition knows of producers, at one moment."""

    partition: TopicPartition
    leader_id: int
    leader_epoch: int
    high_watermark: int
    """Below it all is committed; another leader may lack what is not."""
    producers: list[ProducerDescription]
