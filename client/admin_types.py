"""The arguments and results of the admin client's calls: plain dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from strandline.client.consumer.records import OffsetAndMetadata, TopicPartition
from strandline.protocol.errors import ErrorCode, StrandlineError
from strandline.protocol.producer_names import is_named, work_epoch_of


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. `partitions` and `replication_factor`: -1 is the cluster's default. `replica_assignments`: by partition,
    the ids of the brokers that get a replica, the preferred leader first; it implies the other two. `configs`: topic configs by
    name."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | int | float | bool] | None = None
    replica_assignments: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition, as it is in the metadata. Replicas are broker ids."""

    partition: int
    leader_id: int
    """Broker id; -1 if the partition has no leader."""
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    """In order of preference: the first is the preferred leader."""
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    """Replicas on brokers that are not alive."""
    eligible_leader_replicas: tuple[int, ...]
    """Replicas outside the ISR that have all committed records (ELR, KIP-966)."""
    last_known_elr: tuple[int, ...] = ()
    """While the partition has no leader, the replica that led it last (KIP-966)."""
    adding_replicas: tuple[int, ...] = ()
    """The replicas that a reassignment adds (KIP-455); empty if a broker of an older version describes the partition."""

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is out of sync. As in Kafka, replicas that a reassignment adds do not count."""
        return len(self.isr) < len(self.replicas) - len(self.adding_replicas)

    def effective_min_isr(self, min_insync_replicas: int) -> int:
        """The number of replicas that must be in sync for `acks=all`: at most the number of replicas that the partition has."""
        return min(min_insync_replicas, len(self.replicas))


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions, ascending. `topic_id`: 16 bytes (KIP-516)."""

    name: str
    topic_id: bytes
    partitions: list[PartitionDescription]
    is_internal: bool = False
    warnings: tuple[str, ...] = ()
    """Sentences for people, if the description is the result of `create_topics`."""

    @property
    def replication_factor(self) -> int:
        """The largest number of replicas that a partition has."""
        return max((len(partition.replicas) for partition in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One source that sets a value of a config. In the brokers' configuration, the default of a topic config has another name."""

    name: str
    value: str | None
    source: str
    """See `ConfigEntry.source`."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config of a topic, group or broker."""

    name: str
    value: str | None
    source: str
    """The level at which the value is set: "topic", "group", "broker", "cluster" (for all brokers), "static" (a broker's file),
    "default"."""
    read_only: bool = False
    is_sensitive: bool = False
    type: str = "string"
    documentation: str | None = None
    synonyms: tuple[ConfigSynonym, ...] = ()
    """All sources that set a value, the one that applies first, and the default last."""
    update: str = ""
    """The levels at which it can be changed while the nodes run: "topic", "cluster", "broker", "cluster, broker", or "restart"
    (none).
    """


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A registered broker. `is_fenced`: it must not lead. `broker_epoch`: the offset of its registration in the metadata log."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False
    broker_epoch: int = -1
    in_controlled_shutdown: bool = False
    is_draining: bool = False
    """The broker gets no new replicas (`strandline broker drain`)."""
    is_cordoned: bool = False
    """The broker gets no new replicas, because all its log directories are cordoned (`cordoned.log.dirs`)."""


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster and its registered brokers, by ascending id."""

    cluster_id: str
    controller_id: int
    """Node id of the active controller; -1 if none is known."""
    brokers: list[BrokerDescription]


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A voter or observer of the metadata log. The ages are the milliseconds since it last fetched, and since it last had all
    records of the leader; 0 for the leader itself, -1 if it never did."""

    replica_id: int
    host: str
    port: int
    log_end_offset: int
    last_fetch_age_ms: int = -1
    last_caught_up_age_ms: int = -1


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The quorum of controllers (voters) and the brokers that follow it (observers)."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    log_start_offset: int
    voters: list[QuorumReplica]
    observers: list[QuorumReplica]


@dataclass(frozen=True, slots=True)
class FeatureRange:
    """The levels of a feature that a node supports."""

    min_level: int
    max_level: int


@dataclass(frozen=True, slots=True)
class BrokerFeatures:
    """The features that a broker supports, by name; None if the broker did not answer."""

    broker_id: int
    supported: Mapping[str, FeatureRange] | None


@dataclass(frozen=True, slots=True)
class FeaturesDescription:
    """The features of the cluster, and those that its brokers support (KIP-584)."""

    levels: Mapping[str, int]
    """The level of each feature of the cluster. "metadata.version" is the level of the metadata records."""
    metadata_offset: int
    """The offset of the metadata log at which the answering broker knows `levels`; -1 if it does not know them yet."""
    brokers: list[BrokerFeatures]


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A replica on the disk of one broker."""

    size_bytes: int
    """Bytes of its segments."""
    offset_lag: int
    """The number of offsets that the log lacks up to the high watermark that the replica knows."""


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory of a broker, and the replicas in it."""

    path: str
    replicas: Mapping[TopicPartition, ReplicaInfo]
    error: ErrorCode = ErrorCode.NONE
    """KAFKA_STORAGE_ERROR: the directory is offline, and `replicas` is empty."""
    future_replicas: Mapping[TopicPartition, ReplicaInfo] = field(default_factory=dict)
    """The copies of replicas that move here from another directory of the broker. Their `offset_lag` counts the offsets that they
    lack."""
    is_cordoned: bool = False
    """The directory gets no new replicas (KIP-1066)."""


@dataclass(frozen=True, slots=True)
class LogDirMoveResult:
    """`code` NONE: the replica moves, or is in that directory. Otherwise `message` says why it does not move."""

    partition: TopicPartition
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ElectionResult:
    """`code` NONE: the leader was elected. ELECTION_NOT_NEEDED: the partition has that leader already. Otherwise `message` says
    why there was no election."""

    partition: TopicPartition
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """The end of a replica's log. `last_epoch`: the leader epoch of its last records, -1 without any. `high_watermark`: as far as
    the replica knows it. `may_lack_records`: the log may have lost records that it had, for example because its machine lost
    power."""

    broker_id: int
    last_epoch: int
    log_end_offset: int
    high_watermark: int
    may_lack_records: bool


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """The report of an unclean election. The records from `lost_from` to `lost_to`, exclusive, may be lost; `lost_to` None: the
    end is unknown. If both are equal, nothing is lost. `high_watermark`: the highest one that a replica knew; -1 if none did.
    `strategy`: "balanced", "aggressive", or "operator" for one that was requested. `replicas`: those that answered before the
    election."""

    partition: TopicPartition
    leader_id: int
    leader_epoch: int
    last_known_leader_id: int
    last_known_leader_epoch: int
    high_watermark: int
    lost_from: int
    lost_to: int | None
    strategy: str
    elected_at_ms: int
    replicas: tuple[ReplicaLog, ...] = ()

    @property
    def is_loss_possible(self) -> bool:
        return self.lost_from != self.lost_to


@dataclass(frozen=True, slots=True)
class ReassignmentResult:
    """`code` NONE: the reassignment has begun, is complete already, or is cancelled. Otherwise `message` says why nothing was
    changed."""

    partition: TopicPartition
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A reassignment that is not complete. Replicas are broker ids."""

    replicas: tuple[int, ...]
    """The wanted replicas, in order of preference, and then `removing_replicas`."""
    adding_replicas: tuple[int, ...]
    """The wanted replicas that the partition did not have before."""
    removing_replicas: tuple[int, ...]
    """The replicas that are removed when the reassignment completes."""
    original_replicas: tuple[int, ...]
    """The replicas that the partition has again after a cancellation."""
    throttle_rate: int | None = None
    """Bytes per second that each broker may send, and receive, for the reassignment; None: no limit."""

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The wanted replicas."""
        return tuple(replica for replica in self.replicas if replica not in self.removing_replicas)


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """The outcome of `delete_records` for one partition. `code` NONE: no replica that is alive, or is an eligible leader replica,
    has a record below `low_watermark`. REQUEST_TIMED_OUT: the leader may have deleted the records, but not every replica has.
    Otherwise `message` says why nothing was deleted."""

    low_watermark: int = -1
    """The smallest log start of those replicas; -1 if `code` is not NONE."""
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """The last batch of an idempotent producer in one partition."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """For a named producer, the number of the last row of its work epoch in this partition, counted from 0."""
    last_offset: int
    last_timestamp_ms: int
    name: str | None = None
    """The name of a named producer, while the cluster knows it."""
    coordinator_epoch: int = -1
    """The coordinator epoch of this producer's newest marker: the leader epoch of its transaction coordinator's partition; -1:
    there is no marker."""
    transaction_start_offset: int | None = None
    """The offset of the first record of its open transaction in this partition; None: it has none."""

    @property
    def is_named(self) -> bool:
        """Whether the producer has a `producer_name`."""
        return is_named(self.producer_id)

    @property
    def work_epoch(self) -> int:
        """The work epoch of a named producer; 0 for other producers."""
        return work_epoch_of(self.producer_id)


@dataclass(frozen=True, slots=True)
class PartitionProducers:
    """The producers that wrote to a partition, as its leader knew them at one moment."""

    partition: TopicPartition
    leader_id: int
    leader_epoch: int
    high_watermark: int
    """Records below it are committed; another leader may not have later ones."""
    producers: list[ProducerDescription]
    fencing_token: int | None = None
    """The highest fencing token that a record has carried; None if no record has carried one, or if the request was for certain
    producers."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One group in a list. `group_type`: "consumer" (KIP-848) or "classic"."""

    group_id: str
    state: str
    group_type: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class GroupListing:
    """The groups that the brokers have listed, sorted by id."""

    groups: list[GroupSummary]
    errors: dict[int, StrandlineError]
    """By broker id, the error because of which all or some of the groups that it coordinates are missing."""


@dataclass(frozen=True, slots=True)
class GroupMemberDescription:
    """One member of a group."""

    member_id: str
    instance_id: str | None
    """The `group_instance_id` of a static member; None for any other member."""
    client_id: str
    host: str
    assignment: list[TopicPartition]
    """The partitions that the member owns."""
    rack_id: str | None = None
    member_epoch: int = -1
    """-1 for a member of a classic group."""
    subscribed_topics: tuple[str, ...] = ()
    pattern: str | None = None
    target_assignment: list[TopicPartition] = field(default_factory=list)
    """The partitions that the member will own after the rebalance that is in progress; the same as `assignment` if there is
    none."""
    is_classic: bool = False
    """Whether the member uses the classic protocol. A group of the newer protocol may have such members."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members. If there is an `error`, nothing else is known."""

    group_id: str
    state: str = ""
    group_type: str = ""
    """ "consumer" (KIP-848) or "classic"."""
    coordinator: int = -1
    """Broker id."""
    protocol: str = ""
    """The assignor of the group."""
    group_epoch: int = -1
    assignment_epoch: int = -1
    """The group epoch for which the newest assignment was computed. Both epochs are -1 for a classic group."""
    members: list[GroupMemberDescription] = field(default_factory=list)
    error: StrandlineError | None = None


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The outcome of a change of one group. `message` says why if `code` is not NONE."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class GroupMemberResult:
    """The outcome of `remove_group_members` for one member."""

    member_id: str
    instance_id: str | None
    code: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class GroupOffsetResult:
    """The outcome of a change of one committed offset. `message` says why if `code` is not NONE."""

    code: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The progress of a group in one partition."""

    committed: OffsetAndMetadata
    log_end_offset: int | None
    """The offset after the last record that consumers may read; None if the leader has not answered."""
    lag: int | None
    """The number of offsets from the committed offset to that end; None if the end is not known."""


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The progress of a group, by partition."""

    partitions: dict[TopicPartition, PartitionLag]
    error: StrandlineError | None = None
    """The error because of which the committed offsets are not known."""

    @property
    def total(self) -> int:
        """The sum of the lags that are known."""
        return sum(partition.lag or 0 for partition in self.partitions.values())
