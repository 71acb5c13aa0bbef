"""The four families of errors, and the one table of wire error codes.

1. The caller's mistake: `UsageError` (a wrong argument, a wrong config value).
2. The peer's mistake: `PeerError` (its bytes do not follow the protocol); the connection is closed.
3. A wire error code: `BrokerError`, with a code of the table below. `retriable` says whether the same request may succeed later,
   `refresh_metadata` whether the client's metadata (leaders, topic ids) is out of date.
4. A bug of this package: `InternalError`, and any other Python exception. These are never swallowed silently.

Codes and names are Kafka's (`org.apache.kafka.common.protocol.Errors`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class StrandlineError(Exception):
    """Base class of every error that this package raises deliberately."""

    retriable: bool = False


class UsageError(StrandlineError):
    """The caller's mistake: a wrong argument or option, or a call that cannot be made now."""


class PeerError(StrandlineError):
    """The peer sent bytes that do not follow the protocol; its connection is closed."""


class InternalError(StrandlineError):
    """A bug of this package: a state that the code rules out."""


class ErrorCode(IntEnum):
    """Wire error codes, with Kafka's numbers."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128
    FENCED_BROKER = 200
    """Not in Kafka: the answering broker is fenced or not registered yet, so it leads no partition."""
    UNEXPECTED_LOG_END = 201
    """Not in Kafka: a conditional append expects another log end offset."""
    FENCED_TOKEN = 202
    """Not in Kafka: the partition has a higher fencing token than the append."""


class Flags(NamedTuple):
    """Properties of an error code: how a client should react, and what the code means."""

    retriable: bool
    refresh_metadata: bool
    meaning: str


_FATAL, _RETRY, _REFRESH = (False, False), (True, False), (True, True)

ERRORS: dict[ErrorCode, Flags] = {
    code: Flags(*kind, meaning)
    for code, kind, meaning in [
        (ErrorCode.UNKNOWN_SERVER_ERROR, _FATAL, "the server met an error that it did not expect"),
        (ErrorCode.NONE, _FATAL, "no error"),
        (ErrorCode.OFFSET_OUT_OF_RANGE, _FATAL, "the offset is below the log's start or above its end"),
        (ErrorCode.CORRUPT_MESSAGE, _RETRY, "a record batch failed its checksum or is malformed"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _REFRESH, "this broker does not know the topic or partition"),
        (ErrorCode.INVALID_FETCH_SIZE, _FATAL, "the fetch size is invalid"),
        (ErrorCode.LEADER_NOT_AVAILABLE, _REFRESH, "the partition has no leader at present"),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, _REFRESH, "this broker is not the leader (or not a replica) of the partition"),
        (ErrorCode.REQUEST_TIMED_OUT, _RETRY, "the request was not completed in its time"),
        (ErrorCode.BROKER_NOT_AVAILABLE, _REFRESH, "the broker is not available"),
        (ErrorCode.REPLICA_NOT_AVAILABLE, _REFRESH, "the replica is not available"),
        (ErrorCode.MESSAGE_TOO_LARGE, _FATAL, "a record batch is larger than max.message.bytes"),
        (ErrorCode.STALE_CONTROLLER_EPOCH, _FATAL, "the controller epoch is out of date"),
        (
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            _FATAL,
            "the metadata of a committed offset is larger than offset.metadata.max.bytes",
        ),
        (ErrorCode.NETWORK_EXCEPTION, _REFRESH, "the connection was lost before the response arrived"),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, _RETRY, "the coordinator is reading the groups of its partition"),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, _RETRY, "there is no coordinator at present, or it cannot write"),
        (ErrorCode.NOT_COORDINATOR, _RETRY, "this broker is not the coordinator of the group"),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, _FATAL, "the topic name is not allowed"),
        (ErrorCode.RECORD_LIST_TOO_LARGE, _FATAL, "the records are larger than a segment may be"),
        (ErrorCode.NOT_ENOUGH_REPLICAS, _RETRY, "fewer replicas are in sync than min.insync.replicas; nothing was written"),
        (
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            _RETRY,
            "the records were written, but fewer replicas are in sync than min.insync.replicas",
        ),
        (ErrorCode.INVALID_REQUIRED_ACKS, _FATAL, "acks must be 0, 1 or -1 (all)"),
        (ErrorCode.ILLEGAL_GENERATION, _FATAL, "the generation is not the group's present one"),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, _FATAL, "the member shares no protocol with the other members of the group"),
        (ErrorCode.INVALID_GROUP_ID, _FATAL, "the group id is not allowed"),
        (ErrorCode.UNKNOWN_MEMBER_ID, _FATAL, "the group has no such member"),
        (ErrorCode.INVALID_SESSION_TIMEOUT, _FATAL, "the session timeout is outside the range that the broker allows"),
        (ErrorCode.REBALANCE_IN_PROGRESS, _FATAL, "the group is rebalancing: join again"),
        (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, _FATAL, "the committed offsets are larger than a batch may be"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, _FATAL, "the client's principal lacks a right on the topic"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, _FATAL, "the client's principal lacks a right on the group"),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, _FATAL, "the client's principal lacks a right on the cluster"),
        (ErrorCode.INVALID_TIMESTAMP, _FATAL, "a record's timestamp is out of the accepted range"),
        (ErrorCode.UNSUPPORTED_SASL_MECHANISM, _FATAL, "the listener does not offer the SASL mechanism"),
        (ErrorCode.ILLEGAL_SASL_STATE, _FATAL, "the request does not belong at this point of the authentication"),
        (ErrorCode.UNSUPPORTED_VERSION, _FATAL, "the API or its version is not supported"),
        (ErrorCode.TOPIC_ALREADY_EXISTS, _FATAL, "a topic of this name exists already"),
        (ErrorCode.INVALID_PARTITIONS, _FATAL, "the number of partitions is not allowed"),
        (ErrorCode.INVALID_REPLICATION_FACTOR, _FATAL, "the replication factor is not allowed, or there are too few brokers"),
        (ErrorCode.INVALID_REPLICA_ASSIGNMENT, _FATAL, "the replica assignment is not allowed"),
        (ErrorCode.INVALID_CONFIG, _FATAL, "a configuration key or value is not allowed"),
        (ErrorCode.NOT_CONTROLLER, _REFRESH, "this node is not the active controller"),
        (ErrorCode.INVALID_REQUEST, _FATAL, "the request is malformed or breaks a rule"),
        (ErrorCode.POLICY_VIOLATION, _FATAL, "a policy of the cluster forbids it"),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, _FATAL, "the batch's sequence number is not the next one of its producer"),
        (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, _FATAL, "the batch was appended before, longer ago than the broker remembers"),
        (ErrorCode.INVALID_PRODUCER_EPOCH, _FATAL, "the producer's epoch is older than the newest one seen"),
        (ErrorCode.INVALID_TXN_STATE, _FATAL, "the state of the transaction does not allow it"),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, _FATAL, "the transactional id belongs to another producer id, or to none"),
        (ErrorCode.INVALID_TRANSACTION_TIMEOUT, _FATAL, "the timeout of transactions is outside the allowed range"),
        (ErrorCode.CONCURRENT_TRANSACTIONS, _RETRY, "the previous transaction of this transactional id is not complete yet"),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, _FATAL, "another transaction coordinator has taken over"),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _FATAL, "the client's principal lacks a right on the transactional id"),
        (ErrorCode.SECURITY_DISABLED, _FATAL, "the cluster has no authorizer"),
        (
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            _FATAL,
            "nothing was tried for this partition, because another one of the request has an error",
        ),
        (ErrorCode.KAFKA_STORAGE_ERROR, _REFRESH, "the disk of the log failed: its directory is offline, or the data damaged"),
        (ErrorCode.LOG_DIR_NOT_FOUND, _FATAL, "the broker has no such log directory"),
        (ErrorCode.SASL_AUTHENTICATION_FAILED, _FATAL, "the client could not be authenticated"),
        (ErrorCode.UNKNOWN_PRODUCER_ID, _FATAL, "the broker has no state of this producer id"),
        (ErrorCode.REASSIGNMENT_IN_PROGRESS, _FATAL, "a reassignment of the partition is in progress"),
        (ErrorCode.NON_EMPTY_GROUP, _FATAL, "the group has members"),
        (ErrorCode.GROUP_ID_NOT_FOUND, _FATAL, "there is no such group of this type"),
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, _RETRY, "the fetch session is unknown; start with a full fetch"),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, _RETRY, "the fetch session's epoch is not the expected one"),
        (ErrorCode.TOPIC_DELETION_DISABLED, _FATAL, "topic deletion is switched off"),
        (ErrorCode.FENCED_LEADER_EPOCH, _REFRESH, "the leader epoch of the request is older than the replica's"),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, _REFRESH, "the leader epoch of the request is newer than the replica's"),
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, _FATAL, "the compression codec is not supported"),
        (ErrorCode.STALE_BROKER_EPOCH, _FATAL, "the broker epoch is not the current one"),
        (ErrorCode.OFFSET_NOT_AVAILABLE, _RETRY, "the new leader does not know the high watermark yet"),
        (ErrorCode.MEMBER_ID_REQUIRED, _FATAL, "the member joins again with the id of this response"),
        (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, _REFRESH, "the preferred leader is not in sync or not alive"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, _FATAL, "the group has as many members as it may have"),
        (ErrorCode.FENCED_INSTANCE_ID, _FATAL, "another member has the instance id now"),
        (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, _REFRESH, "no eligible leader is alive"),
        (ErrorCode.ELECTION_NOT_NEEDED, _REFRESH, "the leader is already the wanted one"),
        (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, _FATAL, "the partition is not being reassigned"),
        (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, _FATAL, "a member of the group is subscribed to the topic"),
        (ErrorCode.INVALID_RECORD, _FATAL, "a record is malformed, or breaks a rule of its topic"),
        (ErrorCode.UNSTABLE_OFFSET_COMMIT, _RETRY, "an open transaction will replace the committed offset"),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, _RETRY, "the quota is used up: retry after the throttle time"),
        (ErrorCode.PRODUCER_FENCED, _FATAL, "a newer producer of the same identity has taken over"),
        (ErrorCode.RESOURCE_NOT_FOUND, _FATAL, "there is no such resource"),
        (ErrorCode.DUPLICATE_RESOURCE, _FATAL, "the resource exists already or is named twice"),
        (ErrorCode.UNACCEPTABLE_CREDENTIAL, _FATAL, "the credential is not acceptable"),
        (ErrorCode.INCONSISTENT_VOTER_SET, _FATAL, "the voter sets differ"),
        (ErrorCode.INVALID_UPDATE_VERSION, _FATAL, "the partition epoch or the feature level is not an allowed one"),
        (ErrorCode.FEATURE_UPDATE_FAILED, _FATAL, "the features of the cluster could not be updated"),
        (ErrorCode.SNAPSHOT_NOT_FOUND, _FATAL, "there is no such snapshot"),
        (ErrorCode.POSITION_OUT_OF_RANGE, _FATAL, "the position is outside the snapshot"),
        (ErrorCode.UNKNOWN_TOPIC_ID, _REFRESH, "this broker does not know the topic id"),
        (ErrorCode.DUPLICATE_BROKER_REGISTRATION, _FATAL, "another live process is registered with this broker id"),
        (ErrorCode.BROKER_ID_NOT_REGISTERED, _FATAL, "the broker id is not registered"),
        (ErrorCode.INCONSISTENT_TOPIC_ID, _REFRESH, "the topic id is not that of the log"),
        (ErrorCode.INCONSISTENT_CLUSTER_ID, _FATAL, "the peer belongs to another cluster"),
        (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, _FATAL, "the coordinator does not know the transactional id"),
        (
            ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
            _RETRY,
            "the request adds a topic without an id to a fetch session",
        ),
        (ErrorCode.INELIGIBLE_REPLICA, _FATAL, "a proposed ISR member is fenced, shutting down, or of an older broker epoch"),
        (ErrorCode.NEW_LEADER_ELECTED, _REFRESH, "the change made another replica the leader"),
        (ErrorCode.FENCED_MEMBER_EPOCH, _FATAL, "the member epoch is not the present one: the member has lost its partitions"),
        (ErrorCode.UNRELEASED_INSTANCE_ID, _FATAL, "another member has the instance id and has not left"),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, _FATAL, "the assignor or the assignment is not supported"),
        (
            ErrorCode.STALE_MEMBER_EPOCH,
            _FATAL,
            "the member epoch of the request is out of date: repeat it after the next heartbeat",
        ),
        (ErrorCode.TRANSACTION_ABORTABLE, _FATAL, "the transaction cannot be committed: abort it, and go on with the next one"),
        (ErrorCode.INVALID_REGULAR_EXPRESSION, _FATAL, "the regular expression is not valid"),
        (ErrorCode.FENCED_BROKER, _REFRESH, "the broker is fenced or has not registered yet"),
        (ErrorCode.UNEXPECTED_LOG_END, _FATAL, "the log end is not at the offset that the append expects; nothing was written"),
        (ErrorCode.FENCED_TOKEN, _FATAL, "an append with a higher fencing token came before; nothing was written"),
    ]
}

assert set(ERRORS) == set(ErrorCode), "every wire error code has its flags"


class BrokerError(StrandlineError):
    """A wire error code as an exception, with `code`, `retriable`, `refresh_metadata`, and a sentence (`message`)."""

    def __init__(self, code: ErrorCode | int, message: str | None = None) -> None:
        self.code = to_code(code)
        flags = ERRORS[self.code]
        self.retriable = flags.retriable
        self.refresh_metadata = flags.refresh_metadata
        self.message = message
        super().__init__(f"{self.code.name}: {message or flags.meaning}")


def to_code(code: int) -> ErrorCode:
    """The error code with this number; UNKNOWN_SERVER_ERROR for a number that this version does not have."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
