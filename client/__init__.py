"""The client: `Producer`, `Consumer`, `Admin`, their records and their errors. Async first.

options.py        the table of options                  option_types.py      what each type of option accepts
errors.py         what can go wrong                     reference.py, option_docs.py   docs/client.md, and what help() shows
cluster.py        bootstrap, metadata, connections      metadata.py     what is believed about the cluster
shared_cluster.py connections that producers share, one after the other
producer.py       the calls of a producer               sender.py       its shell: lanes to brokers
arguments.py      names and partitions, checked
home.py           the event loop that a client is on    call_order.py   calls that wait, in order
accumulator.py    batches waiting, by partition         partition_queue.py   order, sequences, retries
leader_offsets.py offsets, asked of the leaders
identity.py       the producer id, or the name's           producer_states.py   what the logs know of producers
consumer.py       the calls of a consumer               fetcher.py      its shell: fetches ahead
records.py        what it reads, record by record       batches.py      by column, and into Arrow (arrow.py)
"""

from strandline.client.admin import Admin
from strandline.client.admin_types import (
    BrokerDescription,
    ClusterDescription,
    ConfigEntry,
    ElectionResult,
    LogDirDescription,
    NewTopic,
    PartitionDescription,
    PartitionProducers,
    ProducerDescription,
    QuorumDescription,
    QuorumReplica,
    ReplicaInfo,
    TopicDescription,
)
from strandline.client.consumer.batches import FetchedBatch, arrow_batches, arrow_schema
from strandline.client.consumer.columns import BinaryColumn, HeadersColumn
from strandline.client.consumer.consumer import Consumer
from strandline.client.consumer.records import ConsumerRecord, OffsetAndTimestamp, TopicPartition
from strandline.client.errors import (
    BufferFull,
    ClientClosed,
    ClientError,
    CorruptRecords,
    DeliveryFailed,
    DeliveryTimeout,
    LogTruncated,
    NoBrokersAvailable,
    OffsetOutOfRange,
    ProducerFenced,
    RecordTooLarge,
    RequestFailed,
    RequestTimeout,
    StrandlineError,
    TopicRecreated,
    UnknownTopic,
    UsageError,
)
from strandline.client.producer.producer import Producer
from strandline.client.producer.receipts import BatchMetadata, Receipt, Receipts, RecordMetadata

__all__ = [
    "Admin",
    "BatchMetadata",
    "BinaryColumn",
    "BrokerDescription",
    "BufferFull",
    "ClientClosed",
    "ClientError",
    "ClusterDescription",
    "ConfigEntry",
    "Consumer",
    "ConsumerRecord",
    "CorruptRecords",
    "DeliveryFailed",
    "DeliveryTimeout",
    "ElectionResult",
    "FetchedBatch",
    "HeadersColumn",
    "LogDirDescription",
    "LogTruncated",
    "NewTopic",
    "NoBrokersAvailable",
    "OffsetAndTimestamp",
    "OffsetOutOfRange",
    "PartitionDescription",
    "PartitionProducers",
    "Producer",
    "ProducerDescription",
    "ProducerFenced",
    "QuorumDescription",
    "QuorumReplica",
    "Receipt",
    "Receipts",
    "RecordMetadata",
    "RecordTooLarge",
    "ReplicaInfo",
    "RequestFailed",
    "RequestTimeout",
    "StrandlineError",
    "TopicDescription",
    "TopicPartition",
    "TopicRecreated",
    "UnknownTopic",
    "UsageError",
    "arrow_batches",
    "arrow_schema",
]
