"""docs/error-codes.md: `python -m strandline.client.code_reference > docs/error-codes.md`.

Numbers, flags and meanings are those of `protocol/errors.py`. The advice about a code is text in this module; a test checks that
every code has one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from strandline.protocol.errors import ERRORS, ErrorCode

_INTRODUCTION = """\
# Error codes

Generated from the table of error codes by `python -m strandline.client.code_reference`; do not edit.

Numbers and names are Kafka's. A program sees a code as `code` of the client's error (`RequestFailed`, `DeliveryFailed`, ...;
[client.md](client.md#errors) lists the errors and what to do about each), in the result of a call of `Admin`, or at the end of a
message of the command line. The message beside the code says which topic, partition or broker it is about.

*Retriable*: the same request may succeed later. The clients repeat such a request by themselves until its time limit has
passed (`delivery_timeout_ms`, `request_timeout_ms`, the `timeout_ms` of a call), so a program sees the code only if it lasts.
With "refresh" they first ask for newer metadata.

If something does not work and no code says why, ask `strandline doctor`.
"""

_SECTIONS: Mapping[str, Mapping[ErrorCode, str]] = {
    "Any request": {
        ErrorCode.UNKNOWN_SERVER_ERROR: "Read the log of the broker that the message names, and report it as a bug.",
        ErrorCode.NONE: "Nothing.",
        ErrorCode.REQUEST_TIMED_OUT: "Repeat it, or give it more time. A change may have been made all the same: look first.",
        ErrorCode.NETWORK_EXCEPTION: "Nothing. If it lasts: is the broker alive (`strandline cluster describe`)?",
        ErrorCode.BROKER_NOT_AVAILABLE: "Nothing: a broker that starts does not know the cluster yet. If it lasts, read its log.",
        ErrorCode.INVALID_REQUEST: "Correct the call, as the message says.",
        ErrorCode.UNSUPPORTED_VERSION: "Upgrade the older side. If the message names a level: `strandline features upgrade`, "
        "after all nodes have the new version.",
        ErrorCode.POLICY_VIOLATION: "The message names the rule: a limit of one request, or a topic whose records may not be "
        "deleted.",
    },
    "Topics and partitions": {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Create the topic, or correct its name. Just after its creation a broker may "
        "not know it yet.",
        ErrorCode.UNKNOWN_TOPIC_ID: "Nothing: the topic was recreated, and the client asks for its new id.",
        ErrorCode.INCONSISTENT_TOPIC_ID: "Nothing: the topic was recreated, and the client asks for its new id.",
        ErrorCode.INVALID_TOPIC_EXCEPTION: "Choose another name: letters, digits, `.`, `_` and `-`, at most 249. Names that "
        "differ in `.` and `_` alone collide. Internal topics are written by brokers only.",
        ErrorCode.TOPIC_ALREADY_EXISTS: "Use it, or choose another name (`topic create --if-not-exists`).",
        ErrorCode.INVALID_PARTITIONS: "A topic has at least one partition, and their number only grows.",
        ErrorCode.INVALID_REPLICATION_FACTOR: "Ask for no more replicas than there are brokers that are alive and not draining.",
        ErrorCode.INVALID_REPLICA_ASSIGNMENT: "Name each broker once, and only registered ones that accept replicas "
        "(`strandline cluster describe`).",
        ErrorCode.INVALID_CONFIG: "Correct the key or the value; the message has the nearest known key "
        "([configuration-keys.md](configuration-keys.md)).",
        ErrorCode.LEADER_NOT_AVAILABLE: "Nothing for a moment, while a leader is elected. If it lasts: [a partition without "
        "a leader](unclean-elections.md).",
        ErrorCode.NOT_LEADER_OR_FOLLOWER: "Nothing: the leader has moved, and the client follows it.",
        ErrorCode.REPLICA_NOT_AVAILABLE: "Name a broker that has a replica of the partition (`strandline topic describe`).",
        ErrorCode.KAFKA_STORAGE_ERROR: "The client waits for the next leader. Repair or replace the broker's disk "
        "([disks.md](disks.md)).",
    },
    "Produce": {
        ErrorCode.NOT_ENOUGH_REPLICAS: "Nothing was written. Bring the missing brokers back (`strandline topic describe "
        "--under-min-isr`).",
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "Bring the missing brokers back. The records are in the leader's log, and "
        "an idempotent producer may send them again.",
        ErrorCode.MESSAGE_TOO_LARGE: "Send less in one record or batch, or raise `max.message.bytes` of the topic.",
        ErrorCode.RECORD_LIST_TOO_LARGE: "Send smaller batches, or raise `segment.bytes`.",
        ErrorCode.INVALID_RECORD: "Correct the record, for example give it a key: the topic is compacted. "
        "`e.is_invalid_record` tells it from valid records of its batch, which can be sent again.",
        ErrorCode.INVALID_TIMESTAMP: "Correct the timestamp or the clock, or `message.timestamp.before.max.ms` and "
        "`.after.max.ms`.",
        ErrorCode.CORRUPT_MESSAGE: "A producer: repeat. A consumer: [CorruptRecords](client.md#errors); repair the replica.",
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "Use gzip, snappy, lz4, zstd or none.",
        ErrorCode.INVALID_REQUIRED_ACKS: 'Use `acks=0`, `1` or `"all"`.',
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "The producer goes on with a new epoch. If a named producer sees it: another "
        "attempt wrote; call `written()`.",
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "The record is probably in the log: later ones of this producer are. "
        "Read the log to be sure; a named producer calls `written()`.",
        ErrorCode.INVALID_PRODUCER_EPOCH: "A newer producer has taken over, if it is a named one: stop. Otherwise the "
        "producer goes on with a new epoch.",
        ErrorCode.UNKNOWN_PRODUCER_ID: "The log has no row of this work epoch: call `written()` to learn where to continue.",
        ErrorCode.PRODUCER_FENCED: "Stop: the newer producer writes the remaining rows.",
        ErrorCode.UNEXPECTED_LOG_END: "OffsetConflict: read up to the log end that it names, decide again, and send again.",
        ErrorCode.FENCED_TOKEN: "TokenFenced: stop; a program with a higher fencing token has written.",
    },
    "Fetch": {
        ErrorCode.OFFSET_OUT_OF_RANGE: "Seek to an offset in the log, or set `auto_offset_reset`.",
        ErrorCode.OFFSET_NOT_AVAILABLE: "Nothing: a new leader learns the high watermark within a moment.",
        ErrorCode.FENCED_LEADER_EPOCH: "Nothing: the client's metadata is older than the leader.",
        ErrorCode.UNKNOWN_LEADER_EPOCH: "Nothing: the broker's metadata is older than the client's.",
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND: "Nothing: the client begins a new fetch session.",
        ErrorCode.INVALID_FETCH_SESSION_EPOCH: "Nothing: the client begins a new fetch session.",
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: "Nothing: the client begins a new fetch session.",
    },
    "Consumer groups": {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "Nothing: the group's new coordinator reads its offsets.",
        ErrorCode.COORDINATOR_NOT_AVAILABLE: "Nothing for a moment. If it lasts: has `__consumer_offsets` a leader, and "
        "enough in-sync replicas?",
        ErrorCode.NOT_COORDINATOR: "Nothing: the client looks for the coordinator again.",
        ErrorCode.UNKNOWN_MEMBER_ID: "Nothing: the consumer joins again. Its partitions are lost, and `on_lost` was called.",
        ErrorCode.FENCED_MEMBER_EPOCH: "Nothing: the consumer joins again. It was silent for too long, or a rebalance timed out.",
        ErrorCode.STALE_MEMBER_EPOCH: "Nothing: the consumer repeats the commit after its next heartbeat.",
        ErrorCode.ILLEGAL_GENERATION: "Nothing: a member of the classic protocol joins again.",
        ErrorCode.REBALANCE_IN_PROGRESS: "Nothing: a member of the classic protocol joins again.",
        ErrorCode.MEMBER_ID_REQUIRED: "Nothing: the first step of joining by the classic protocol.",
        ErrorCode.UNRELEASED_INSTANCE_ID: "Two members have the same `group_instance_id`: stop one. After a crash the id is "
        "free when the session has timed out.",
        ErrorCode.FENCED_INSTANCE_ID: "Another member has taken the instance id: stop this one.",
        ErrorCode.GROUP_MAX_SIZE_REACHED: "Start fewer members, or raise `group.consumer.max.size`.",
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "Members of a classic group need an assignor in common; a group of the newer "
        "protocol accepts only classic members that a `consumer` protocol can describe.",
        ErrorCode.UNSUPPORTED_ASSIGNOR: "Use one of `group.consumer.assignors`: `uniform` or `range`.",
        ErrorCode.INVALID_REGULAR_EXPRESSION: "Write the pattern in RE2's syntax: no look-around, no back-references.",
        ErrorCode.INVALID_SESSION_TIMEOUT: "Choose one between `group.min.session.timeout.ms` and "
        "`group.max.session.timeout.ms`.",
        ErrorCode.INVALID_GROUP_ID: "Give the group a name.",
        ErrorCode.GROUP_ID_NOT_FOUND: "Correct the name (`strandline group list`).",
        ErrorCode.NON_EMPTY_GROUP: "Stop the members first, or remove them (`strandline group remove-member`).",
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Stop the members that read the topic first.",
        ErrorCode.OFFSET_METADATA_TOO_LARGE: "Commit a shorter text, or raise `offset.metadata.max.bytes`.",
    },
    "Transactions": {
        ErrorCode.INVALID_TXN_STATE: "A producer with an open transaction wrote outside of it: one of its processes is wrong.",
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: "Start a new producer: the transactional id has expired, or belongs to another.",
        ErrorCode.INVALID_TRANSACTION_TIMEOUT: "Choose a shorter timeout, or raise `transaction.max.timeout.ms`.",
        ErrorCode.CONCURRENT_TRANSACTIONS: "Nothing: repeat the request until the previous transaction is complete.",
        ErrorCode.TRANSACTION_ABORTABLE: "Abort the transaction, and begin the next one.",
        ErrorCode.TRANSACTION_COORDINATOR_FENCED: "Nothing: the transaction's new coordinator ends it.",
        ErrorCode.OPERATION_NOT_ATTEMPTED: "Nothing: the error of another partition of the request is the reason.",
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "Correct the name (`strandline transaction list`).",
        ErrorCode.UNSTABLE_OFFSET_COMMIT: "Nothing: the client repeats the request until the transaction has ended.",
    },
    "Elections, moves, disks, brokers": {
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "Wait until the preferred leader is back in the ISR.",
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "Start a broker with a complete replica, or decide by hand "
        "([unclean-elections.md](unclean-elections.md)).",
        ErrorCode.ELECTION_NOT_NEEDED: "Nothing: the wanted leader leads.",
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "Nothing is left to cancel.",
        ErrorCode.LOG_DIR_NOT_FOUND: "Name one of the broker's directories (`strandline log-dirs describe`).",
        ErrorCode.BROKER_ID_NOT_REGISTERED: "Correct the broker's id (`strandline cluster describe`).",
        ErrorCode.FEATURE_UPDATE_FAILED: "The message names the node that does not support the level: upgrade or start it.",
        ErrorCode.INVALID_UPDATE_VERSION: "Name a level that all nodes support; a level is never lowered.",
    },
    "Security and quotas": {
        ErrorCode.SASL_AUTHENTICATION_FAILED: "AuthenticationFailed: correct the user name, the password or the token. The "
        "message does not say which of them is wrong; the broker's log does (`connection.authentication_failed`).",
        ErrorCode.UNSUPPORTED_SASL_MECHANISM: "AuthenticationFailed: use a mechanism that the listener offers; the message names "
        "them (`sasl.enabled.mechanisms`).",
        ErrorCode.ILLEGAL_SASL_STATE: "AuthenticationFailed: the listener expects no SASL, or another step of it: compare "
        "`security_protocol` with the listener's.",
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Grant the right: `strandline acl add ... --topic NAME`; `strandline acl check` "
        "says which rule decides.",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: "Grant READ on the group: `strandline acl add ... --group NAME`.",
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Grant WRITE on the transactional id or producer name: `strandline acl "
        "add ... --transactional-id NAME`.",
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Grant the right on the cluster: `strandline acl add ... --cluster`.",
        ErrorCode.SECURITY_DISABLED: "Configure `authorizer.class.name` before there can be access rules.",
        ErrorCode.RESOURCE_NOT_FOUND: "The user has no credential of this mechanism (`strandline user list`).",
        ErrorCode.DUPLICATE_RESOURCE: "Name each user once in a request.",
        ErrorCode.UNACCEPTABLE_CREDENTIAL: "Use 4096 to 16384 iterations, and a user name that is not empty.",
        ErrorCode.THROTTLING_QUOTA_EXCEEDED: "Nothing: the client waits for the throttle time. If it lasts, raise the user's "
        "`controller_mutation_rate`.",
    },
    "Between nodes": {
        ErrorCode.NOT_CONTROLLER: "Nothing: the sender looks for the active controller.",
        ErrorCode.STALE_BROKER_EPOCH: "Nothing: a newer process of the broker is registered.",
        ErrorCode.DUPLICATE_BROKER_REGISTRATION: "Two brokers have the same `node.id`: give one of them another.",
        ErrorCode.INCONSISTENT_CLUSTER_ID: "The node or its disk belongs to another cluster: correct the addresses, or its "
        "data directory.",
        ErrorCode.INCONSISTENT_VOTER_SET: "Give all controllers the same `controller.quorum.voters`.",
        ErrorCode.INELIGIBLE_REPLICA: "Nothing: the leader proposes the replica again when its broker is ready.",
        ErrorCode.NEW_LEADER_ELECTED: "Nothing: the leader that is replaced learns of it.",
        ErrorCode.SNAPSHOT_NOT_FOUND: "Nothing: the node asks for the newer snapshot.",
        ErrorCode.POSITION_OUT_OF_RANGE: "Nothing: the node asks for the newer snapshot.",
    },
}
"""The advice about each code, by the kind of request that returns it."""

NEVER_SENT = (
    ErrorCode.TOPIC_DELETION_DISABLED,
    ErrorCode.INVALID_FETCH_SIZE,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.REASSIGNMENT_IN_PROGRESS,
    ErrorCode.STALE_CONTROLLER_EPOCH,
    ErrorCode.FENCED_BROKER,
)
"""Codes that the clients understand, and no node sends."""


def reference() -> str:
    """The whole page."""
    return "".join([_INTRODUCTION, *(part for title, codes in _SECTIONS.items() for part in _section(title, codes)), _rest()])


def _section(title: str, codes: Mapping[ErrorCode, str]) -> Iterator[str]:
    yield f"\n## {title}\n\n| code | name | retriable | meaning | what to do |\n|---:|---|---|---|---|\n"
    for code, advice in codes.items():
        flags = ERRORS[code]
        retriable = "yes, refresh" if flags.refresh_metadata else "yes" if flags.retriable else ""
        yield f"| {int(code)} | `{code.name}` | {retriable} | {flags.meaning} | {advice} |\n"


def _rest() -> str:
    names = ", ".join(f"{int(code)} `{code.name}`" for code in NEVER_SENT)
    return f"\n## Never sent\n\nThe clients know these codes, but no node of this version sends them: {names}.\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
