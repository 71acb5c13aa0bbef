"""Strandline: a replicated log with Kafka's replication, in Python.

    from strandline import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition

The public API: the clients, their parameter and result types, and every error that they raise. Each name is imported on
first use, so that the command line and the nodes start quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.client import (
        Acl,
        AclFilter,
        Admin,
        AuthenticationFailed,
        AuthorizationFailed,
        Backoff,
        BufferFull,
        ClientClosed,
        ClientError,
        ClientSecurity,
        ClusterAuthorizationFailed,
        CommitFailed,
        Consumer,
        ConsumerGroupMetadata,
        ConsumerRecord,
        CorruptRecords,
        DeliveryFailed,
        DeliveryNotAuthorized,
        DeliveryTimeout,
        GroupAuthorizationFailed,
        GroupMembershipFailed,
        GroupMembershipNotAuthorized,
        GroupStateChange,
        HandlerFailed,
        LogTruncated,
        NewTopic,
        NoBrokersAvailable,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        OffsetConflict,
        OffsetOutOfRange,
        Producer,
        ProducerFenced,
        QuotaEntity,
        RebalanceCallbackFailed,
        Receipt,
        Receipts,
        RecordMetadata,
        RecordTooLarge,
        RequestFailed,
        RequestTimeout,
        StrandlineError,
        Table,
        TableChange,
        TableChanges,
        TableEntry,
        TokenFenced,
        TopicAuthorizationFailed,
        TopicPartition,
        TopicRecreated,
        TransactionAbortable,
        TransactionalIdAuthorizationFailed,
        TransactionFailed,
        TransactionOutcomeUnknown,
        TransactionTimedOut,
        Undelivered,
        UnknownTopic,
        UsageError,
        VersionConflict,
        attempt_of,
    )
    from strandline.local_cluster import LocalCluster

    __version__: str

__all__ = [
    "Acl",
    "AclFilter",
    "Admin",
    "AuthenticationFailed",
    "AuthorizationFailed",
    "Backoff",
    "BufferFull",
    "ClientClosed",
    "ClientError",
    "ClientSecurity",
    "ClusterAuthorizationFailed",
    "CommitFailed",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "CorruptRecords",
    "DeliveryFailed",
    "DeliveryNotAuthorized",
    "DeliveryTimeout",
    "GroupAuthorizationFailed",
    "GroupMembershipFailed",
    "GroupMembershipNotAuthorized",
    "GroupStateChange",
    "HandlerFailed",
    "LocalCluster",
    "LogTruncated",
    "NewTopic",
    "NoBrokersAvailable",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetConflict",
    "OffsetOutOfRange",
    "Producer",
    "ProducerFenced",
    "RebalanceCallbackFailed",
    "QuotaEntity",
    "Receipt",
    "Receipts",
    "RecordMetadata",
    "RecordTooLarge",
    "RequestFailed",
    "RequestTimeout",
    "StrandlineError",
    "Table",
    "TableChange",
    "TableChanges",
    "TableEntry",
    "TokenFenced",
    "TopicAuthorizationFailed",
    "TopicPartition",
    "TopicRecreated",
    "TransactionAbortable",
    "TransactionFailed",
    "TransactionOutcomeUnknown",
    "TransactionTimedOut",
    "TransactionalIdAuthorizationFailed",
    "Undelivered",
    "UnknownTopic",
    "UsageError",
    "VersionConflict",
    "__version__",
    "attempt_of",
]

if not TYPE_CHECKING:  # A type checker would accept any misspelt name of a module with __getattr__.

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "__version__":
            from importlib.metadata import version

            return version("strandline")
        from importlib import import_module

        return getattr(import_module("strandline.local_cluster" if name == "LocalCluster" else "strandline.client"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
