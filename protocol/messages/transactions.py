"""Transactions: what producers ask the transaction coordinator, and what it asks the leaders of partitions (KIP-98, KIP-890).

A transactional id belongs to one coordinator: the leader of one partition of `__transaction_state`. FindCoordinator with key
type 1 names it.

    producer       --InitProducerId, AddOffsetsToTxn, EndTxn-->  coordinator
    leader         --AddPartitionsToTxn----------------------->  coordinator     when a producer first writes to its partition
    producer       --TxnOffsetCommit-------------------------->  group coordinator
    coordinator    --WriteTxnMarkers-------------------------->  leaders of the transaction's partitions

**Two protocols of transactions** (`transaction_version`). In version 2, which Strandline's client speaks, the leader of a
partition adds it to the transaction, and the end of each transaction gives the producer its next epoch. In version 1 the
producer adds each partition before it writes there, and keeps its epoch."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from strandline.protocol.messages.common import (
    MANY,
    Count,
    Int16,
    Int32,
    Int64,
    Message,
    Name,
    PartitionIndex,
    Text,
    TransactionalId,
    Uuid,
)
from strandline.protocol.messages.groups import GroupId, GroupTopicPartitions, MemberId, OffsetCommitPartition

TransactionVersion = Annotated[int, Meta(ge=0, le=2)]

# -- AddPartitionsToTxn -----------------------------------------------------------------------------------------------


class AddPartitionsToTxnTransaction(Message):
    """`verify_only`: add nothing; partitions that the ongoing transaction does not have get TRANSACTION_ABORTABLE."""

    transactional_id: TransactionalId
    producer_id: Int64
    producer_epoch: Int16
    topics: Annotated[list[GroupTopicPartitions], MANY]
    verify_only: bool = False
    transaction_version: TransactionVersion = 2


class AddPartitionsToTxnRequest(Message):
    """Adds partitions to ongoing transactions, or begins them. A producer of version 1 sends this before it writes to a
    partition; for one of version 2, the partition's leader sends it."""

    transactions: Annotated[list[AddPartitionsToTxnTransaction], MANY]


class TxnPartitionResult(Message):
    topic_id: Uuid
    partition: PartitionIndex
    error_code: Int16 = 0


class AddPartitionsToTxnResult(Message):
    """`error_code`: of the whole transaction; then none of its partitions was added. If a partition has an error, none was added
    either: the others have OPERATION_NOT_ATTEMPTED."""

    transactional_id: TransactionalId
    error_code: Int16 = 0
    error_message: Text | None = None
    partitions: list[TxnPartitionResult] = []


class AddPartitionsToTxnResponse(Message):
    results: list[AddPartitionsToTxnResult]
    throttle_time_ms: Count = 0


# -- AddOffsetsToTxn --------------------------------------------------------------------------------------------------


class AddOffsetsToTxnRequest(Message):
    """Adds the partition of `__consumer_offsets` that a group belongs to. Only producers of version 1 send it: for those of
    version 2 the group coordinator adds the partition when it gets the offsets (TxnOffsetCommit)."""

    transactional_id: TransactionalId
    producer_id: Int64
    producer_epoch: Int16
    group_id: GroupId
    transaction_version: TransactionVersion = 2


class AddOffsetsToTxnResponse(Message):
    error_code: Int16 = 0
    error_message: Text | None = None
    throttle_time_ms: Count = 0


# -- EndTxn -----------------------------------------------------------------------------------------------------------


class EndTxnRequest(Message):
    """Commits or aborts the ongoing transaction. The response is sent when the decision is committed, before the markers are
    written."""

    transactional_id: TransactionalId
    producer_id: Int64
    producer_epoch: Int16
    committed: bool
    transaction_version: TransactionVersion = 2


class EndTxnResponse(Message):
    """The producer's id and epoch for its next transaction; in version 1 they do not change."""

    error_code: Int16 = 0
    error_message: Text | None = None
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    throttle_time_ms: Count = 0


# -- WriteTxnMarkers --------------------------------------------------------------------------------------------------


class WritableTxnMarker(Message):
    """The end of one transaction. A leader refuses a `coordinator_epoch` (the leader epoch of the coordinator's partition)
    that is lower than one it has seen from this producer's coordinator: TRANSACTION_COORDINATOR_FENCED. `transaction_version`:
    by whose rules the leader checks the epoch; 0: unknown, as from an operator who ends a hanging transaction."""

    producer_id: Int64
    producer_epoch: Int16
    committed: bool
    topics: Annotated[list[GroupTopicPartitions], MANY]
    coordinator_epoch: Int32
    transaction_version: TransactionVersion = 0


class WriteTxnMarkersRequest(Message):
    """Asks the leader of partitions to write the markers of transactions that are decided."""

    markers: Annotated[list[WritableTxnMarker], MANY]


class WritableTxnMarkerResult(Message):
    producer_id: Int64
    partitions: list[TxnPartitionResult]


class WriteTxnMarkersResponse(Message):
    """One result for each marker, in the order of the request. A marker without an error is committed."""

    markers: list[WritableTxnMarkerResult]
    throttle_time_ms: Count = 0


# -- TxnOffsetCommit --------------------------------------------------------------------------------------------------


class TxnOffsetCommitRequest(Message):
    """Commits offsets of a group as part of a transaction: they take effect when it is committed (KIP-447). A member sends its id
    and its generation or member epoch; a program that is not a member sends an empty id and -1."""

    transactional_id: TransactionalId
    group_id: GroupId
    producer_id: Int64
    producer_epoch: Int16
    partitions: Annotated[list[OffsetCommitPartition], MANY]
    generation_id_or_member_epoch: Int32 = -1
    member_id: MemberId = ""
    group_instance_id: Name | None = None
    transaction_version: TransactionVersion = 2


class TxnOffsetCommitResponse(Message):
    """The response is sent when all in-sync replicas have the offsets, as pending ones."""

    partitions: list[TxnPartitionResult]
    throttle_time_ms: Count = 0


# -- DescribeTransactions, ListTransactions ---------------------------------------------------------------------------


class DescribeTransactionsRequest(Message):
    """Asks the coordinator for the state of these transactional ids (KIP-664)."""

    transactional_ids: Annotated[list[TransactionalId], MANY]


class TransactionTopic(Message):
    """A topic by name, as in the coordinator's records, because the topic may be deleted by now."""

    topic: Name
    partitions: list[PartitionIndex]


class DescribedTransaction(Message):
    """`transaction_start_time_ms`: -1 if none is ongoing. The state as Kafka spells it."""

    transactional_id: TransactionalId
    error_code: Int16 = 0
    error_message: Text | None = None
    transaction_state: Name = ""
    transaction_timeout_ms: Int32 = -1
    transaction_start_time_ms: Int64 = -1
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    topics: list[TransactionTopic] = []
    transaction_last_update_time_ms: Int64 = -1


class DescribeTransactionsResponse(Message):
    transactions: list[DescribedTransaction]
    throttle_time_ms: Count = 0


class ListTransactionsRequest(Message):
    """Asks a broker for the transactional ids that it coordinates. Empty lists filter nothing. `duration_filter_ms`: only ongoing
    transactions that have run for longer; -1: all. `transactional_id_pattern`: only ids that match this regular expression as a
    whole (KIP-1152)."""

    states: Annotated[list[Name], MANY] = []
    producer_ids: Annotated[list[Int64], MANY] = []
    duration_filter_ms: Int64 = -1
    transactional_id_pattern: Name | None = None


class ListedTransaction(Message):
    transactional_id: TransactionalId
    producer_id: Int64
    transaction_state: Name


class ListTransactionsResponse(Message):
    """`unknown_states`: the states of the filter that do not exist. COORDINATOR_LOAD_IN_PROGRESS: some are not known yet."""

    error_code: Int16 = 0
    unknown_states: list[Name] = []
    transactions: list[ListedTransaction] = []
    throttle_time_ms: Count = 0
