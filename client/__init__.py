"""The client: `Producer`, `Consumer`, `Table`, `Admin`, their records and their errors, for asyncio.

options.py, option_types.py    the options, and what they accept
errors.py                      the tree of errors          home.py         the event loop that a client belongs to
admin_types.py                 what the admin client returns
arguments.py                   names and partitions, checked
reference.py, option_docs.py   docs/client.md, and the options that `help` shows

admin/       the admin client: its calls by subject (topics, partitions, groups, transactions, ...)
cluster/     connections, metadata and its refreshes, requests to any broker, questions to the leaders of many partitions
producer/    the producer: accumulator and partition queues (pure), the sender and how deliveries fail
consumer/    the consumer: partition states and fetch sessions (pure), the fetcher, records and columns; group/: its membership;
             run/: hands records to a handler
table/       the latest value of each key of a topic, in memory, with conditional writes and snapshots
"""

from strandline.client.admin.admin import Admin
from strandline.client.admin.transaction_types import (
    HangingTransaction,
    OpenTransaction,
    TransactionDescription,
    TransactionListing,
    TransactionSummary,
)
from strandline.client.admin_types import (
    BrokerDescription,
    BrokerFeatures,
    ClusterDescription,
    ConfigEntry,
    ConfigSynonym,
    DeletedRecords,
    ElectionResult,
    FeatureRange,
    FeaturesDescription,
    GroupDescription,
    GroupLag,
    GroupListing,
    GroupMemberDescription,
    GroupMemberResult,
    GroupOffsetResult,
    GroupResult,
    GroupSummary,
    LogDirDescription,
    LogDirMoveResult,
    NewTopic,
    PartitionDescription,
    PartitionLag,
    PartitionProducers,
    PartitionReassignment,
    ProducerDescription,
    QuorumDescription,
    QuorumReplica,
    ReassignmentResult,
    ReplicaInfo,
    ReplicaLog,
    TopicDescription,
    UncleanElection,
)
from strandline.client.consumer.batches import FetchedBatch, arrow_batches, arrow_schema
from strandline.client.consumer.columns import BinaryColumn, HeadersColumn
from strandline.client.consumer.consumer import Consumer
from strandline.client.consumer.records import (
    ConsumerRecord,
    GroupStateChange,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from strandline.client.consumer.run.backoff import Backoff
from strandline.client.consumer.run.headers import attempt_of
from strandline.client.errors import (
    BufferFull,
    ClientClosed,
    ClientError,
    CommitFailed,
    CorruptRecords,
    DeliveryFailed,
    DeliveryTimeout,
    GroupMembershipFailed,
    HandlerFailed,
    LogTruncated,
    NoBrokersAvailable,
    OffsetConflict,
    OffsetOutOfRange,
    ProducerFenced,
    RebalanceCallbackFailed,
    RecordTooLarge,
    RequestFailed,
    RequestTimeout,
    StrandlineError,
    TokenFenced,
    TopicRecreated,
    UnknownTopic,
    UsageError,
)
from strandline.client.producer.producer import Producer
from strandline.client.producer.receipts import BatchMetadata, Receipt, Receipts, RecordMetadata
from strandline.client.producer.undelivered import Undelivered
from strandline.client.table.entry import TableChange, TableEntry, VersionConflict
from strandline.client.table.table import Table, TableChanges

__all__ = [
    "Admin",
    "Backoff",
    "BatchMetadata",
    "BinaryColumn",
    "BrokerDescription",
    "BrokerFeatures",
    "BufferFull",
    "ClientClosed",
    "ClientError",
    "ClusterDescription",
    "CommitFailed",
    "ConfigEntry",
    "ConfigSynonym",
    "Consumer",
    "ConsumerRecord",
    "CorruptRecords",
    "DeletedRecords",
    "DeliveryFailed",
    "DeliveryTimeout",
    "ElectionResult",
    "FeatureRange",
    "FeaturesDescription",
    "FetchedBatch",
    "GroupDescription",
    "GroupLag",
    "GroupListing",
    "GroupMemberDescription",
    "GroupMemberResult",
    "GroupMembershipFailed",
    "GroupOffsetResult",
    "GroupResult",
    "GroupStateChange",
    "GroupSummary",
    "HandlerFailed",
    "HangingTransaction",
    "HeadersColumn",
    "LogDirDescription",
    "LogDirMoveResult",
    "LogTruncated",
    "NewTopic",
    "NoBrokersAvailable",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetConflict",
    "OffsetOutOfRange",
    "OpenTransaction",
    "PartitionDescription",
    "PartitionLag",
    "PartitionProducers",
    "PartitionReassignment",
    "Producer",
    "ProducerDescription",
    "ProducerFenced",
    "QuorumDescription",
    "QuorumReplica",
    "ReassignmentResult",
    "RebalanceCallbackFailed",
    "ReplicaLog",
    "Receipt",
    "Receipts",
    "RecordMetadata",
    "RecordTooLarge",
    "ReplicaInfo",
    "RequestFailed",
    "RequestTimeout",
    "StrandlineError",
    "Table",
    "TableChange",
    "TableChanges",
    "TableEntry",
    "TokenFenced",
    "TopicDescription",
    "TopicPartition",
    "TopicRecreated",
    "TransactionDescription",
    "TransactionListing",
    "TransactionSummary",
    "UnknownTopic",
    "UsageError",
    "arrow_batches",
    "arrow_schema",
    "attempt_of",
    "UncleanElection",
    "Undelivered",
    "VersionConflict",
]
