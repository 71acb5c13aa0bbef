"""The table of APIs: key, name, versions, message classes, and the roles that serve each.

Keys and names are Kafka's, up to 119. Each API has one schema. New fields are appended with defaults, so a new version number is
needed only if a request would mean something else to an older server.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.protocol.messages import admin, cluster, data, groups, security, transactions
from strandline.protocol.messages.common import Message

BROKER = "broker"
CONTROLLER = "controller"


class Api(NamedTuple):
    """One API: its key, name, message classes, the roles that serve it, and the supported versions."""

    key: int
    name: str
    request: type[Message]
    response: type[Message]
    served_by: tuple[str, ...]
    min_version: int = 0
    max_version: int = 0


PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
OFFSET_COMMIT = 8
OFFSET_FETCH = 9
FIND_COORDINATOR = 10
JOIN_GROUP = 11
HEARTBEAT = 12
LEAVE_GROUP = 13
SYNC_GROUP = 14
DESCRIBE_GROUPS = 15
LIST_GROUPS = 16
SASL_HANDSHAKE = 17
API_VERSIONS = 18
CREATE_TOPICS = 19
DELETE_TOPICS = 20
DELETE_RECORDS = 21
INIT_PRODUCER_ID = 22
OFFSET_FOR_LEADER_EPOCH = 23
ADD_PARTITIONS_TO_TXN = 24
ADD_OFFSETS_TO_TXN = 25
END_TXN = 26
WRITE_TXN_MARKERS = 27
TXN_OFFSET_COMMIT = 28
DESCRIBE_ACLS = 29
CREATE_ACLS = 30
DELETE_ACLS = 31
DESCRIBE_CONFIGS = 32
ALTER_REPLICA_LOG_DIRS = 34
DESCRIBE_LOG_DIRS = 35
SASL_AUTHENTICATE = 36
CREATE_PARTITIONS = 37
DELETE_GROUPS = 42
ELECT_LEADERS = 43
INCREMENTAL_ALTER_CONFIGS = 44
ALTER_PARTITION_REASSIGNMENTS = 45
LIST_PARTITION_REASSIGNMENTS = 46
OFFSET_DELETE = 47
DESCRIBE_CLIENT_QUOTAS = 48
ALTER_CLIENT_QUOTAS = 49
DESCRIBE_USER_SCRAM_CREDENTIALS = 50
ALTER_USER_SCRAM_CREDENTIALS = 51
VOTE = 52
BEGIN_QUORUM_EPOCH = 53
END_QUORUM_EPOCH = 54
DESCRIBE_QUORUM = 55
ALTER_PARTITION = 56
UPDATE_FEATURES = 57
ENVELOPE = 58
FETCH_SNAPSHOT = 59
DESCRIBE_CLUSTER = 60
DESCRIBE_PRODUCERS = 61
BROKER_REGISTRATION = 62
BROKER_HEARTBEAT = 63
UNREGISTER_BROKER = 64
DESCRIBE_TRANSACTIONS = 65
LIST_TRANSACTIONS = 66
ALLOCATE_PRODUCER_IDS = 67
CONSUMER_GROUP_HEARTBEAT = 68
CONSUMER_GROUP_DESCRIBE = 69
ASSIGN_REPLICAS_TO_DIRS = 73
GET_REPLICA_LOG_INFO = 93
INIT_NAMED_PRODUCER = 120
"""Not in Kafka, whose keys are far below it."""
DESCRIBE_UNCLEAN_ELECTIONS = 121
"""Not in Kafka."""
DESCRIBE_OFFSET_LAG = 122
"""Not in Kafka."""

_BOTH = (BROKER, CONTROLLER)

APIS: dict[int, Api] = {
    api.key: api
    for api in [
        Api(PRODUCE, "Produce", data.ProduceRequest, data.ProduceResponse, (BROKER,), max_version=4),
        Api(FETCH, "Fetch", data.FetchRequest, data.FetchResponse, _BOTH),
        Api(LIST_OFFSETS, "ListOffsets", data.ListOffsetsRequest, data.ListOffsetsResponse, (BROKER,)),
        Api(METADATA, "Metadata", admin.MetadataRequest, admin.MetadataResponse, (BROKER,)),
        Api(OFFSET_COMMIT, "OffsetCommit", groups.OffsetCommitRequest, groups.OffsetCommitResponse, (BROKER,)),
        Api(OFFSET_FETCH, "OffsetFetch", groups.OffsetFetchRequest, groups.OffsetFetchResponse, (BROKER,)),
        Api(FIND_COORDINATOR, "FindCoordinator", groups.FindCoordinatorRequest, groups.FindCoordinatorResponse, (BROKER,)),
        Api(JOIN_GROUP, "JoinGroup", groups.JoinGroupRequest, groups.JoinGroupResponse, (BROKER,)),
        Api(HEARTBEAT, "Heartbeat", groups.HeartbeatRequest, groups.HeartbeatResponse, (BROKER,)),
        Api(LEAVE_GROUP, "LeaveGroup", groups.LeaveGroupRequest, groups.LeaveGroupResponse, (BROKER,)),
        Api(SYNC_GROUP, "SyncGroup", groups.SyncGroupRequest, groups.SyncGroupResponse, (BROKER,)),
        Api(DESCRIBE_GROUPS, "DescribeGroups", groups.DescribeGroupsRequest, groups.DescribeGroupsResponse, (BROKER,)),
        Api(LIST_GROUPS, "ListGroups", groups.ListGroupsRequest, groups.ListGroupsResponse, (BROKER,)),
        Api(SASL_HANDSHAKE, "SaslHandshake", security.SaslHandshakeRequest, security.SaslHandshakeResponse, _BOTH),
        Api(API_VERSIONS, "ApiVersions", admin.ApiVersionsRequest, admin.ApiVersionsResponse, _BOTH),
        Api(CREATE_TOPICS, "CreateTopics", admin.CreateTopicsRequest, admin.CreateTopicsResponse, _BOTH),
        Api(DELETE_TOPICS, "DeleteTopics", admin.DeleteTopicsRequest, admin.DeleteTopicsResponse, _BOTH),
        Api(DELETE_RECORDS, "DeleteRecords", data.DeleteRecordsRequest, data.DeleteRecordsResponse, (BROKER,)),
        Api(
            INIT_PRODUCER_ID,
            "InitProducerId",
            data.InitProducerIdRequest,
            data.InitProducerIdResponse,
            (BROKER,),
            max_version=1,
        ),
        Api(
            OFFSET_FOR_LEADER_EPOCH,
            "OffsetForLeaderEpoch",
            data.OffsetForLeaderEpochRequest,
            data.OffsetForLeaderEpochResponse,
            (BROKER,),
        ),
        Api(
            ADD_PARTITIONS_TO_TXN,
            "AddPartitionsToTxn",
            transactions.AddPartitionsToTxnRequest,
            transactions.AddPartitionsToTxnResponse,
            (BROKER,),
        ),
        Api(
            ADD_OFFSETS_TO_TXN,
            "AddOffsetsToTxn",
            transactions.AddOffsetsToTxnRequest,
            transactions.AddOffsetsToTxnResponse,
            (BROKER,),
        ),
        Api(END_TXN, "EndTxn", transactions.EndTxnRequest, transactions.EndTxnResponse, (BROKER,)),
        Api(
            WRITE_TXN_MARKERS,
            "WriteTxnMarkers",
            transactions.WriteTxnMarkersRequest,
            transactions.WriteTxnMarkersResponse,
            (BROKER,),
        ),
        Api(
            TXN_OFFSET_COMMIT,
            "TxnOffsetCommit",
            transactions.TxnOffsetCommitRequest,
            transactions.TxnOffsetCommitResponse,
            (BROKER,),
        ),
        Api(DESCRIBE_ACLS, "DescribeAcls", security.DescribeAclsRequest, security.DescribeAclsResponse, _BOTH),
        Api(CREATE_ACLS, "CreateAcls", security.CreateAclsRequest, security.CreateAclsResponse, _BOTH),
        Api(DELETE_ACLS, "DeleteAcls", security.DeleteAclsRequest, security.DeleteAclsResponse, _BOTH),
        Api(DESCRIBE_CONFIGS, "DescribeConfigs", admin.DescribeConfigsRequest, admin.DescribeConfigsResponse, _BOTH),
        Api(
            ALTER_REPLICA_LOG_DIRS,
            "AlterReplicaLogDirs",
            admin.AlterReplicaLogDirsRequest,
            admin.AlterReplicaLogDirsResponse,
            (BROKER,),
        ),
        Api(DESCRIBE_LOG_DIRS, "DescribeLogDirs", admin.DescribeLogDirsRequest, admin.DescribeLogDirsResponse, (BROKER,)),
        Api(SASL_AUTHENTICATE, "SaslAuthenticate", security.SaslAuthenticateRequest, security.SaslAuthenticateResponse, _BOTH),
        Api(CREATE_PARTITIONS, "CreatePartitions", admin.CreatePartitionsRequest, admin.CreatePartitionsResponse, _BOTH),
        Api(DELETE_GROUPS, "DeleteGroups", groups.DeleteGroupsRequest, groups.DeleteGroupsResponse, (BROKER,)),
        Api(ELECT_LEADERS, "ElectLeaders", admin.ElectLeadersRequest, admin.ElectLeadersResponse, _BOTH),
        Api(
            INCREMENTAL_ALTER_CONFIGS,
            "IncrementalAlterConfigs",
            admin.IncrementalAlterConfigsRequest,
            admin.IncrementalAlterConfigsResponse,
            _BOTH,
        ),
        Api(
            ALTER_PARTITION_REASSIGNMENTS,
            "AlterPartitionReassignments",
            admin.AlterPartitionReassignmentsRequest,
            admin.AlterPartitionReassignmentsResponse,
            _BOTH,
        ),
        Api(
            LIST_PARTITION_REASSIGNMENTS,
            "ListPartitionReassignments",
            admin.ListPartitionReassignmentsRequest,
            admin.ListPartitionReassignmentsResponse,
            _BOTH,
        ),
        Api(OFFSET_DELETE, "OffsetDelete", groups.OffsetDeleteRequest, groups.OffsetDeleteResponse, (BROKER,)),
        Api(
            DESCRIBE_CLIENT_QUOTAS,
            "DescribeClientQuotas",
            security.DescribeClientQuotasRequest,
            security.DescribeClientQuotasResponse,
            _BOTH,
        ),
        Api(
            ALTER_CLIENT_QUOTAS, "AlterClientQuotas", security.AlterClientQuotasRequest, security.AlterClientQuotasResponse, _BOTH
        ),
        Api(
            DESCRIBE_USER_SCRAM_CREDENTIALS,
            "DescribeUserScramCredentials",
            security.DescribeUserScramCredentialsRequest,
            security.DescribeUserScramCredentialsResponse,
            _BOTH,
        ),
        Api(
            ALTER_USER_SCRAM_CREDENTIALS,
            "AlterUserScramCredentials",
            security.AlterUserScramCredentialsRequest,
            security.AlterUserScramCredentialsResponse,
            _BOTH,
        ),
        Api(VOTE, "Vote", cluster.VoteRequest, cluster.VoteResponse, (CONTROLLER,)),
        Api(
            BEGIN_QUORUM_EPOCH,
            "BeginQuorumEpoch",
            cluster.BeginQuorumEpochRequest,
            cluster.BeginQuorumEpochResponse,
            (CONTROLLER,),
        ),
        Api(END_QUORUM_EPOCH, "EndQuorumEpoch", cluster.EndQuorumEpochRequest, cluster.EndQuorumEpochResponse, (CONTROLLER,)),
        Api(DESCRIBE_QUORUM, "DescribeQuorum", cluster.DescribeQuorumRequest, cluster.DescribeQuorumResponse, _BOTH),
        Api(ALTER_PARTITION, "AlterPartition", cluster.AlterPartitionRequest, cluster.AlterPartitionResponse, (CONTROLLER,)),
        Api(UPDATE_FEATURES, "UpdateFeatures", admin.UpdateFeaturesRequest, admin.UpdateFeaturesResponse, _BOTH),
        Api(ENVELOPE, "Envelope", security.EnvelopeRequest, security.EnvelopeResponse, (CONTROLLER,)),
        Api(FETCH_SNAPSHOT, "FetchSnapshot", cluster.FetchSnapshotRequest, cluster.FetchSnapshotResponse, (CONTROLLER,)),
        Api(DESCRIBE_CLUSTER, "DescribeCluster", admin.DescribeClusterRequest, admin.DescribeClusterResponse, _BOTH),
        Api(
            DESCRIBE_PRODUCERS,
            "DescribeProducers",
            data.DescribeProducersRequest,
            data.DescribeProducersResponse,
            (BROKER,),
        ),
        Api(
            BROKER_REGISTRATION,
            "BrokerRegistration",
            cluster.BrokerRegistrationRequest,
            cluster.BrokerRegistrationResponse,
            (CONTROLLER,),
        ),
        Api(BROKER_HEARTBEAT, "BrokerHeartbeat", cluster.BrokerHeartbeatRequest, cluster.BrokerHeartbeatResponse, (CONTROLLER,)),
        Api(UNREGISTER_BROKER, "UnregisterBroker", admin.UnregisterBrokerRequest, admin.UnregisterBrokerResponse, _BOTH),
        Api(
            DESCRIBE_TRANSACTIONS,
            "DescribeTransactions",
            transactions.DescribeTransactionsRequest,
            transactions.DescribeTransactionsResponse,
            (BROKER,),
        ),
        Api(
            LIST_TRANSACTIONS,
            "ListTransactions",
            transactions.ListTransactionsRequest,
            transactions.ListTransactionsResponse,
            (BROKER,),
        ),
        Api(
            ALLOCATE_PRODUCER_IDS,
            "AllocateProducerIds",
            cluster.AllocateProducerIdsRequest,
            cluster.AllocateProducerIdsResponse,
            (CONTROLLER,),
        ),
        Api(
            CONSUMER_GROUP_HEARTBEAT,
            "ConsumerGroupHeartbeat",
            groups.ConsumerGroupHeartbeatRequest,
            groups.ConsumerGroupHeartbeatResponse,
            (BROKER,),
        ),
        Api(
            CONSUMER_GROUP_DESCRIBE,
            "ConsumerGroupDescribe",
            groups.ConsumerGroupDescribeRequest,
            groups.ConsumerGroupDescribeResponse,
            (BROKER,),
        ),
        Api(
            ASSIGN_REPLICAS_TO_DIRS,
            "AssignReplicasToDirs",
            cluster.AssignReplicasToDirsRequest,
            cluster.AssignReplicasToDirsResponse,
            (CONTROLLER,),
        ),
        Api(
            GET_REPLICA_LOG_INFO,
            "GetReplicaLogInfo",
            cluster.GetReplicaLogInfoRequest,
            cluster.GetReplicaLogInfoResponse,
            (BROKER,),
        ),
        Api(
            INIT_NAMED_PRODUCER,
            "InitNamedProducer",
            cluster.InitNamedProducerRequest,
            cluster.InitNamedProducerResponse,
            (CONTROLLER,),
        ),
        Api(
            DESCRIBE_UNCLEAN_ELECTIONS,
            "DescribeUncleanElections",
            admin.DescribeUncleanElectionsRequest,
            admin.DescribeUncleanElectionsResponse,
            (BROKER,),
        ),
        Api(
            DESCRIBE_OFFSET_LAG,
            "DescribeOffsetLag",
            data.DescribeOffsetLagRequest,
            data.DescribeOffsetLagResponse,
            (BROKER,),
        ),
    ]
}

assert all(key <= 127 for key in APIS), "an api key must fit the one byte that the frame reader looks at"


def api_name(key: int) -> str:
    """The API's name, for logs and errors; `api <key>` for an unknown key."""
    return APIS[key].name if key in APIS else f"api {key}"
