"""Messages between nodes: of the metadata quorum (KIP-595, KIP-630, KIP-996), and from brokers to the controller."""

from __future__ import annotations

from strandline.protocol.messages.common import (
    BrokerEpoch,
    Count,
    Epoch,
    Int16,
    Int32,
    Int64,
    Listener,
    Message,
    Name,
    NodeId,
    Offset,
    PartitionIndex,
    ProducerName,
    ProducerNote,
    SnapshotId,
    SupportedFeature,
    Text,
    Uuid,
)

# -- quorum -----------------------------------------------------------------------------------------------------------


class VoteRequest(Message):
    """A candidate (with `pre_vote`: a prospective candidate) asks for a vote in `replica_epoch`."""

    cluster_id: Name | None
    voter_id: NodeId
    replica_epoch: Epoch
    replica_id: NodeId
    last_offset_epoch: Epoch
    last_offset: Offset
    pre_vote: bool = False


class VoteResponse(Message):
    error_code: Int16
    leader_id: NodeId
    leader_epoch: Epoch
    vote_granted: bool


class BeginQuorumEpochRequest(Message):
    cluster_id: Name | None
    voter_id: NodeId
    leader_id: NodeId
    leader_epoch: Epoch


class BeginQuorumEpochResponse(Message):
    error_code: Int16
    leader_id: NodeId
    leader_epoch: Epoch


class EndQuorumEpochRequest(Message):
    cluster_id: Name | None
    leader_id: NodeId
    leader_epoch: Epoch
    preferred_candidates: list[NodeId]


class EndQuorumEpochResponse(Message):
    error_code: Int16
    leader_id: NodeId
    leader_epoch: Epoch


class DescribeQuorumRequest(Message):
    pass


class QuorumReplicaState(Message):
    replica_id: NodeId
    log_end_offset: Offset
    last_fetch_age_ms: Int64 = -1
    """How long ago the replica last fetched, in ms; -1: never, 0 for the leader itself."""
    last_caught_up_age_ms: Int64 = -1
    """How long ago the replica last had the leader's whole log, in ms; -1: never, 0 for the leader itself."""


class QuorumNode(Message):
    node_id: NodeId
    host: Name
    port: Int32


class DescribeQuorumResponse(Message):
    error_code: Int16
    error_message: Text | None
    leader_id: NodeId
    leader_epoch: Epoch
    high_watermark: Offset
    current_voters: list[QuorumReplicaState]
    observers: list[QuorumReplicaState]
    nodes: list[QuorumNode]
    log_start_offset: Offset = -1
    snapshot_id: SnapshotId = SnapshotId()


class FetchSnapshotRequest(Message):
    replica_id: NodeId
    cluster_id: Name | None
    max_bytes: Count
    current_leader_epoch: Epoch
    snapshot_id: SnapshotId
    position: Offset


class FetchSnapshotResponse(Message):
    """`records` has one entry: the snapshot's bytes from `position` on, at most `max_bytes` of the request."""

    error_code: Int16
    leader_id: NodeId
    leader_epoch: Epoch
    snapshot_id: SnapshotId
    size: Offset
    position: Offset
    records: list[memoryview]


# -- brokers ----------------------------------------------------------------------------------------------------------


class BrokerState(Message):
    """A proposed ISR member, with the broker epoch of its last fetch (KIP-903)."""

    broker_id: NodeId
    broker_epoch: BrokerEpoch


class AlterPartitionPartition(Message):
    topic_id: Uuid
    partition: PartitionIndex
    leader_epoch: Epoch
    new_isr: list[BrokerState]
    leader_recovery_state: Int16
    partition_epoch: Int32
    lost_replicas: list[NodeId] = []
    """Replicas that lack records which they had: they leave the ISR and the ELR. Not in Kafka."""


class AlterPartitionRequest(Message):
    broker_id: NodeId
    broker_epoch: BrokerEpoch
    partitions: list[AlterPartitionPartition]


class AlterPartitionPartitionResponse(Message):
    topic_id: Uuid
    partition: PartitionIndex
    error_code: Int16 = 0
    leader_id: NodeId = -1
    leader_epoch: Epoch = -1
    isr: list[NodeId] = []
    leader_recovery_state: Int16 = 0
    partition_epoch: Int32 = -1
    eligible_leader_replicas: list[NodeId] = []
    """Not in Kafka. The leader does not raise its high watermark while the partition has an ELR, so it must know the ELR as soon
    as the ISR has changed."""


class AlterPartitionResponse(Message):
    error_code: Int16
    partitions: list[AlterPartitionPartitionResponse]
    throttle_time_ms: Count = 0


LOSS_UNKNOWN, LOSS_NO, LOSS_MAYBE, LOSS_YES = -1, 0, 1, 2
"""Whether the logs of a broker may lack records that they had. UNKNOWN: a version without this field does not say. MAYBE: a page
cache was lost. YES: its logs or its disk show it."""


class LossyPartitions(Message):
    """Partitions of one topic whose logs may lack records."""

    topic_id: Uuid
    partitions: list[PartitionIndex]


class BrokerRegistrationRequest(Message):
    """A broker's registration. `incarnation_id` is random for each start of the process; the same process may register twice.

    `previous_broker_epoch` is the broker epoch of the last clean shutdown on this log directory, -1 after an unclean one
    (KIP-966). `features`: the levels that the broker supports; empty from a version that is older than the levels.

    Not in Kafka: `record_loss` is one of LOSS_..., and `lossy_partitions` are those that it concerns; all if the list is empty.
    `min_insync_replicas` is the value in the broker's configuration file.

    `cordoned_log_dirs`: those that get no new replicas (KIP-1066).
    """

    broker_id: NodeId
    cluster_id: Name
    incarnation_id: Uuid
    listeners: list[Listener]
    rack: Name | None = None
    log_dirs: list[Uuid] = []
    previous_broker_epoch: BrokerEpoch = -1
    features: list[SupportedFeature] = []
    record_loss: Int16 = LOSS_UNKNOWN
    lossy_partitions: list[LossyPartitions] = []
    min_insync_replicas: Count = 0
    cordoned_log_dirs: list[Uuid] = []


class BrokerRegistrationResponse(Message):
    error_code: Int16
    broker_epoch: BrokerEpoch = -1
    error_message: Text | None = None
    throttle_time_ms: Count = 0


class BrokerHeartbeatRequest(Message):
    broker_id: NodeId
    broker_epoch: BrokerEpoch
    current_metadata_offset: Offset
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: list[Uuid] = []
    lossy_partitions: list[LossyPartitions] = []
    """Not in Kafka: partitions whose log was found to lack records or to have damaged ones since the registration."""
    cordoned_log_dirs: list[Uuid] | None = None
    """The log directories that get no new replicas now; nil from a broker whose version does not have this field."""


class BrokerHeartbeatResponse(Message):
    error_code: Int16
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False
    throttle_time_ms: Count = 0


class AssignedTopic(Message):
    topic_id: Uuid
    partitions: list[PartitionIndex]


class AssignedDirectory(Message):
    """Replicas of a broker that are in one of its log directories, or in one that it could not open (`directory_id` 1)."""

    directory_id: Uuid
    topics: list[AssignedTopic]


class AssignReplicasToDirsRequest(Message):
    """A broker with several log directories reports to the controller which of them holds each replica (KIP-858)."""

    broker_id: NodeId
    broker_epoch: BrokerEpoch
    directories: list[AssignedDirectory]


class AssignReplicasToDirsPartition(Message):
    topic_id: Uuid
    partition: PartitionIndex
    error_code: Int16 = 0


class AssignReplicasToDirsResponse(Message):
    """The result of each replica of the request."""

    error_code: Int16
    partitions: list[AssignReplicasToDirsPartition] = []
    throttle_time_ms: Count = 0


class AllocateProducerIdsRequest(Message):
    broker_id: NodeId
    broker_epoch: BrokerEpoch


class AllocateProducerIdsResponse(Message):
    error_code: Int16
    producer_id_start: Int64 = -1
    producer_id_len: Count = 0
    throttle_time_ms: Count = 0


class InitNamedProducerRequest(Message):
    """A broker forwards a client's InitProducerId with a name, because the controller assigns the ids of named producers. Not in
    Kafka."""

    broker_id: NodeId
    broker_epoch: BrokerEpoch
    name: ProducerName
    work_epoch: Count
    note: ProducerNote | None = None
    producer_epoch: Int16 = -1


class InitNamedProducerResponse(Message):
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    throttle_time_ms: Count = 0
    note: ProducerNote | None = None


# -- GetReplicaLogInfo ------------------------------------------------------------------------------------------------


class ReplicaLogInfoTopic(Message):
    topic_id: Uuid
    partitions: list[PartitionIndex]


class GetReplicaLogInfoRequest(Message):
    """The controller, or an operator's tool, asks a broker where the logs of its replicas end (KIP-966)."""

    broker_id: NodeId
    topics: list[ReplicaLogInfoTopic]


class ReplicaLogInfo(Message):
    """`last_written_leader_epoch`: the leader epoch of the last records, -1 without any. Not in Kafka: the high watermark that
    this replica knows; and whether its log may lack records that it had, for example because the machine lost power."""

    partition: PartitionIndex
    last_written_leader_epoch: Epoch = -1
    current_leader_epoch: Epoch = -1
    log_end_offset: Offset = -1
    error_code: Int16 = 0
    error_message: Text | None = None
    high_watermark: Offset = -1
    may_lack_records: bool = False


class ReplicaLogInfoTopicResponse(Message):
    topic_id: Uuid
    partitions: list[ReplicaLogInfo]


class GetReplicaLogInfoResponse(Message):
    """`broker_epoch` is that of the process that answers; -1 before it has registered."""

    broker_epoch: BrokerEpoch
    topics: list[ReplicaLogInfoTopicResponse]
