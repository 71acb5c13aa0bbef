"""Messages with which clients read and change the cluster: ApiVersions, Metadata, topics, configs, elections."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from strandline.protocol.messages.common import (
    MANY,
    ZERO_UUID,
    BrokerEpoch,
    Count,
    Epoch,
    Int16,
    Int32,
    Int64,
    Message,
    Name,
    NodeId,
    Offset,
    PartitionIndex,
    SupportedFeature,
    Text,
    Uuid,
)

# -- ApiVersions ------------------------------------------------------------------------------------------------------


class ApiVersionsRequest(Message):
    """The handshake. The response to an unknown version is UNSUPPORTED_VERSION with the supported ranges."""

    client_software_name: Name = ""
    client_software_version: Name = ""


class ApiVersionRange(Message):
    api_key: Int16
    min_version: Int16
    max_version: Int16


class FinalizedFeature(Message):
    """A feature of the cluster and its level (KIP-584). Both fields hold the same level, because a level is never lowered."""

    name: Name
    max_version_level: Int16
    min_version_level: Int16


class ApiVersionsResponse(Message):
    """The APIs and versions that the answering process serves, its identity (`role`: "broker" or "controller"), and its features.

    `finalized_features_epoch` is the metadata offset at which the process knows `finalized_features`; -1: not known yet."""

    error_code: Int16
    api_keys: list[ApiVersionRange]
    throttle_time_ms: Count = 0
    cluster_id: Name | None = None
    node_id: NodeId = -1
    role: Name = ""
    incarnation_id: Uuid = ZERO_UUID
    supported_features: list[SupportedFeature] = []
    finalized_features_epoch: Int64 = -1
    finalized_features: list[FinalizedFeature] = []


# -- Metadata ---------------------------------------------------------------------------------------------------------


class MetadataTopicRequest(Message):
    """A topic by name, or by id if `name` is nil."""

    name: Name | None
    topic_id: Uuid = ZERO_UUID


class MetadataRequest(Message):
    """`topics` nil: all topics; an empty list: no topics, only the brokers."""

    topics: list[MetadataTopicRequest] | None


class MetadataBroker(Message):
    node_id: NodeId
    host: Name
    port: Int32
    rack: Name | None = None


class MetadataPartition(Message):
    error_code: Int16
    partition: PartitionIndex
    leader_id: NodeId
    leader_epoch: Epoch
    partition_epoch: Int32
    replica_nodes: list[NodeId]
    isr_nodes: list[NodeId]
    offline_replicas: list[NodeId]
    eligible_leader_replicas: list[NodeId] = []
    last_known_elr: list[NodeId] = []
    adding_replicas: list[NodeId] = []


class MetadataTopic(Message):
    error_code: Int16
    name: Name | None
    topic_id: Uuid
    partitions: list[MetadataPartition]
    is_internal: bool = False


class MetadataResponse(Message):
    brokers: list[MetadataBroker]
    cluster_id: Name | None
    controller_id: NodeId
    topics: list[MetadataTopic]
    throttle_time_ms: Count = 0


# -- topics -----------------------------------------------------------------------------------------------------------


class TopicConfig(Message):
    name: Name
    value: Text | None


class CreatableReplicaAssignment(Message):
    partition: PartitionIndex
    broker_ids: list[NodeId]


class CreatableTopic(Message):
    """`num_partitions` and `replication_factor`: -1 for the cluster's defaults. With `assignments`, both must be -1."""

    name: Name
    num_partitions: Int32 = -1
    replication_factor: Int16 = -1
    assignments: Annotated[list[CreatableReplicaAssignment], MANY] = []
    configs: Annotated[list[TopicConfig], MANY] = []


class CreateTopicsRequest(Message):
    topics: Annotated[list[CreatableTopic], MANY]
    timeout_ms: Count = 30000
    validate_only: bool = False


class CreatableTopicResult(Message):
    """`warnings`: sentences for people about a topic that was created."""

    name: Name
    topic_id: Uuid = ZERO_UUID
    error_code: Int16 = 0
    error_message: Text | None = None
    num_partitions: Int32 = -1
    replication_factor: Int16 = -1
    warnings: list[Text] = []


class CreateTopicsResponse(Message):
    topics: list[CreatableTopicResult]
    throttle_time_ms: Count = 0


class DeleteTopicState(Message):
    name: Name | None
    topic_id: Uuid = ZERO_UUID


class DeleteTopicsRequest(Message):
    topics: Annotated[list[DeleteTopicState], MANY]
    timeout_ms: Count = 30000


class DeletableTopicResult(Message):
    name: Name | None
    topic_id: Uuid = ZERO_UUID
    error_code: Int16 = 0
    error_message: Text | None = None


class DeleteTopicsResponse(Message):
    topics: list[DeletableTopicResult]
    throttle_time_ms: Count = 0


class CreatePartitionsTopic(Message):
    """`count` is the new number of partitions. `assignments`, if given, lists the replicas of each *added* partition."""

    name: Name
    count: Int32
    assignments: Annotated[list[list[NodeId]], MANY] | None = None


class CreatePartitionsRequest(Message):
    topics: Annotated[list[CreatePartitionsTopic], MANY]
    timeout_ms: Count = 30000
    validate_only: bool = False


class CreatePartitionsTopicResult(Message):
    name: Name
    error_code: Int16 = 0
    error_message: Text | None = None


class CreatePartitionsResponse(Message):
    results: list[CreatePartitionsTopicResult]
    throttle_time_ms: Count = 0


# -- configs ----------------------------------------------------------------------------------------------------------

RESOURCE_TOPIC = 2
RESOURCE_BROKER = 4
"""A broker resource is named by its broker id; the empty name stands for the default of all brokers."""
RESOURCE_GROUP = 32
"""A consumer group, which need not exist yet."""

CONFIG_SOURCE_DYNAMIC_TOPIC = 1
CONFIG_SOURCE_DYNAMIC_BROKER = 2
CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER = 3
CONFIG_SOURCE_STATIC_BROKER = 4
CONFIG_SOURCE_DEFAULT = 5
CONFIG_SOURCE_DYNAMIC_GROUP = 8

CONFIG_SET = 0
CONFIG_DELETE = 1
CONFIG_APPEND = 2
CONFIG_SUBTRACT = 3
"""Append items to, and subtract items from, a key whose type is "list" (KIP-339)."""


class DescribeConfigsResource(Message):
    resource_type: Int16
    resource_name: Name
    configuration_keys: list[Name] | None = None


class DescribeConfigsRequest(Message):
    resources: list[DescribeConfigsResource]
    include_documentation: bool = False
    include_synonyms: bool = False


class ConfigSynonym(Message):
    """A value of a key and the source that sets it. On a broker, the default of a topic key has another name than the key."""

    name: Name
    value: Text | None
    source: Int16


class DescribedConfig(Message):
    """`synonyms`: every source that sets a value, the effective one first (KIP-226). `update`: where the key can be changed while
    the nodes run: "restart" (nowhere), "topic", "cluster", "broker", "cluster, broker" or "group"."""

    name: Name
    value: Text | None
    read_only: bool
    config_source: Int16
    is_sensitive: bool = False
    config_type: Name = "string"
    documentation: Text | None = None
    synonyms: list[ConfigSynonym] = []
    update: Name = ""


class DescribeConfigsResult(Message):
    error_code: Int16
    error_message: Text | None
    resource_type: Int16
    resource_name: Name
    configs: list[DescribedConfig] = []


class DescribeConfigsResponse(Message):
    results: list[DescribeConfigsResult]
    throttle_time_ms: Count = 0


class AlterableConfig(Message):
    name: Name
    config_operation: Int16
    value: Text | None = None


class AlterConfigsResource(Message):
    resource_type: Int16
    resource_name: Name
    configs: Annotated[list[AlterableConfig], MANY]


class IncrementalAlterConfigsRequest(Message):
    resources: Annotated[list[AlterConfigsResource], MANY]
    validate_only: bool = False


class AlterConfigsResourceResponse(Message):
    """`warnings`: sentences for people about a change that was accepted."""

    error_code: Int16
    error_message: Text | None
    resource_type: Int16
    resource_name: Name
    warnings: list[Text] = []


class IncrementalAlterConfigsResponse(Message):
    responses: list[AlterConfigsResourceResponse]
    throttle_time_ms: Count = 0


# -- cluster ----------------------------------------------------------------------------------------------------------


class DescribeClusterRequest(Message):
    include_fenced_brokers: bool = True


class DescribeClusterBroker(Message):
    broker_id: NodeId
    host: Name
    port: Int32
    rack: Name | None = None
    is_fenced: bool = False
    broker_epoch: BrokerEpoch = -1
    in_controlled_shutdown: bool = False
    is_draining: bool = False
    is_cordoned: bool = False


class DescribeClusterResponse(Message):
    error_code: Int16
    error_message: Text | None
    cluster_id: Name
    controller_id: NodeId
    brokers: list[DescribeClusterBroker]
    throttle_time_ms: Count = 0


class UnregisterBrokerRequest(Message):
    """Removes the registration of a broker that has stopped for good (KIP-631)."""

    broker_id: NodeId


class UnregisterBrokerResponse(Message):
    """BROKER_ID_NOT_REGISTERED if the broker is not registered; INVALID_REQUEST if it is alive or hosts replicas."""

    error_code: Int16
    error_message: Text | None = None
    throttle_time_ms: Count = 0


class DescribableLogDirTopic(Message):
    """A topic in a DescribeLogDirs request. `partitions` nil: all partitions of the topic that the broker has."""

    topic: Name
    partitions: Annotated[list[PartitionIndex], MANY] | None = None


class DescribeLogDirsRequest(Message):
    """Asks a broker for the sizes of its replicas of these topics, or of all (nil). A broker answers for its own log directories
    only."""

    topics: Annotated[list[DescribableLogDirTopic], MANY] | None = None


class DescribeLogDirsPartition(Message):
    """The size in bytes and the lag of one replica. `offset_lag`: how far its log end is below the high watermark that it knows.
    With `is_future_key` it is the copy of a replica that moves to this directory, and `offset_lag` is how far the copy's log end
    is below that of the replica."""

    partition_index: PartitionIndex
    partition_size: Int64
    offset_lag: Int64 = 0
    is_future_key: bool = False


class DescribeLogDirsTopic(Message):
    name: Name
    partitions: list[DescribeLogDirsPartition]


class DescribeLogDirsResult(Message):
    """One log directory; KAFKA_STORAGE_ERROR if it is offline. Topics without a replica in it are left out."""

    error_code: Int16
    log_dir: Text
    topics: list[DescribeLogDirsTopic] = []
    is_cordoned: bool = False
    """The directory gets no new replicas (KIP-1066)."""
    total_bytes: Int64 = -1
    """The size of the directory's file system; -1: unknown."""
    usable_bytes: Int64 = -1
    """How many bytes of the file system the broker may still write; -1: unknown."""


class DescribeLogDirsResponse(Message):
    results: list[DescribeLogDirsResult]
    error_code: Int16 = 0
    throttle_time_ms: Count = 0


class AlterReplicaLogDirTopic(Message):
    name: Name
    partitions: Annotated[list[PartitionIndex], MANY]


class AlterReplicaLogDir(Message):
    """Replicas that move to the log directory with this path."""

    path: Text
    topics: Annotated[list[AlterReplicaLogDirTopic], MANY]


class AlterReplicaLogDirsRequest(Message):
    """Moves replicas of the broker that receives it between its log directories (KIP-113). A replica that moves is served from
    its present directory until the copy has caught up. To name the present directory cancels a move."""

    dirs: Annotated[list[AlterReplicaLogDir], MANY]


class AlterReplicaLogDirPartitionResult(Message):
    """LOG_DIR_NOT_FOUND if the broker has no such directory; KAFKA_STORAGE_ERROR if it, or the replica, is offline;
    INVALID_REPLICA_ASSIGNMENT if it is cordoned, or has no room for the copy; REPLICA_NOT_AVAILABLE if the broker has no such
    replica."""

    partition_index: PartitionIndex
    error_code: Int16
    error_message: Text | None = None


class AlterReplicaLogDirTopicResult(Message):
    topic_name: Name
    partitions: list[AlterReplicaLogDirPartitionResult]


class AlterReplicaLogDirsResponse(Message):
    """The result of each replica. The response is sent when the moves have begun, and does not wait for their end."""

    results: list[AlterReplicaLogDirTopicResult]
    throttle_time_ms: Count = 0


PREFERRED_ELECTION = 0
UNCLEAN_ELECTION = 1


class ElectLeadersPartition(Message):
    """`leader`: the replica that an unclean election elects; -1: the one with the newest and longest log. Not in Kafka."""

    topic: Name
    partition: PartitionIndex
    leader: NodeId = -1


class ElectLeadersRequest(Message):
    """`partitions` nil: all partitions of the cluster."""

    election_type: Annotated[int, Meta(ge=0, le=1)]
    partitions: Annotated[list[ElectLeadersPartition], MANY] | None
    timeout_ms: Count = 30000


class ElectLeadersResult(Message):
    topic: Name
    partition: PartitionIndex
    error_code: Int16 = 0
    error_message: Text | None = None


class ElectLeadersResponse(Message):
    error_code: Int16
    results: list[ElectLeadersResult]
    throttle_time_ms: Count = 0


# -- reassignments ----------------------------------------------------------------------------------------------------


class ReassignablePartition(Message):
    """`replicas`: the wanted ones, the preferred leader first; nil cancels the partition's reassignment."""

    partition_index: PartitionIndex
    replicas: Annotated[list[NodeId], MANY] | None = None


class ReassignableTopic(Message):
    name: Name
    partitions: Annotated[list[ReassignablePartition], MANY]


class AlterPartitionReassignmentsRequest(Message):
    """Move replicas to other brokers, or cancel that (KIP-455). A new target replaces the one of a running reassignment.

    `allow_replication_factor_change` false: a target with another number of replicas is INVALID_REPLICATION_FACTOR (KIP-860).
    `throttle_rate`: bytes per second that each broker may send, and receive, for these reassignments; 0: no limit."""

    topics: Annotated[list[ReassignableTopic], MANY]
    timeout_ms: Count = 60000
    allow_replication_factor_change: bool = True
    throttle_rate: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class ReassignablePartitionResult(Message):
    partition_index: PartitionIndex
    error_code: Int16 = 0
    error_message: Text | None = None


class ReassignableTopicResult(Message):
    name: Name
    partitions: list[ReassignablePartitionResult]


class AlterPartitionReassignmentsResponse(Message):
    error_code: Int16
    error_message: Text | None
    responses: list[ReassignableTopicResult]
    throttle_time_ms: Count = 0


class ListPartitionReassignmentsTopic(Message):
    name: Name
    partition_indexes: Annotated[list[PartitionIndex], MANY]


class ListPartitionReassignmentsRequest(Message):
    """`topics` nil: all reassignments of the cluster."""

    topics: Annotated[list[ListPartitionReassignmentsTopic], MANY] | None = None
    timeout_ms: Count = 60000


class OngoingPartitionReassignment(Message):
    """A running reassignment. `replicas` has the target first, then `removing_replicas`. `original_replicas` are those to which
    a cancellation returns."""

    partition_index: PartitionIndex
    replicas: list[NodeId]
    adding_replicas: list[NodeId]
    removing_replicas: list[NodeId]
    original_replicas: list[NodeId] = []
    throttle_rate: Int64 = 0


class OngoingTopicReassignment(Message):
    name: Name
    partitions: list[OngoingPartitionReassignment]


class ListPartitionReassignmentsResponse(Message):
    error_code: Int16
    error_message: Text | None
    topics: list[OngoingTopicReassignment]
    throttle_time_ms: Count = 0


# -- DescribeUncleanElections -----------------------------------------------------------------------------------------


class DescribeUncleanElectionsRequest(Message):
    """Ask for the reports of unclean elections that the metadata holds; `topics` nil: of all topics. Not in Kafka."""

    topics: list[Name] | None


class AskedReplicaState(Message):
    """The answer of a replica before the election; `log_end_offset` is -1 if it did not answer."""

    broker_id: NodeId
    last_epoch: Epoch
    log_end_offset: Offset
    high_watermark: Offset
    may_lack_records: bool


class UncleanElectionReport(Message):
    """The records from `lost_from` to `lost_to`, exclusive, may be lost; `lost_to` -1: the end is unknown. `strategy`: balanced,
    aggressive or operator."""

    topic: Name
    partition: PartitionIndex
    leader: NodeId
    leader_epoch: Epoch
    last_known_leader: NodeId
    last_known_leader_epoch: Epoch
    high_watermark: Offset
    lost_from: Offset
    lost_to: Offset
    strategy: Name
    elected_at_ms: Int64
    replicas: list[AskedReplicaState]


class DescribeUncleanElectionsResponse(Message):
    """The newest reports of each partition, the oldest of them first."""

    error_code: Int16
    reports: list[UncleanElectionReport]
    throttle_time_ms: Count = 0


# -- UpdateFeatures ---------------------------------------------------------------------------------------------------

UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3


class FeatureUpdate(Message):
    feature: Name
    max_version_level: Int16
    upgrade_type: Annotated[int, Meta(ge=0, le=127)] = UPGRADE
    """1: raise the level; 2 and 3 (safe and unsafe downgrade) are refused."""


class UpdateFeaturesRequest(Message):
    """Raise the level of features (KIP-584)."""

    timeout_ms: Count
    feature_updates: Annotated[list[FeatureUpdate], MANY]
    validate_only: bool = False


class UpdatableFeatureResult(Message):
    feature: Name
    error_code: Int16 = 0
    error_message: Text | None = None


class UpdateFeaturesResponse(Message):
    error_code: Int16
    error_message: Text | None
    results: list[UpdatableFeatureResult]
    throttle_time_ms: Count = 0
