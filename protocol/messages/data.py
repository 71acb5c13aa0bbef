"""The data path: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, InitProducerId, DescribeProducers, DeleteRecords,
DescribeOffsetLag."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from strandline.protocol.messages.common import (
    MANY,
    BrokerEpoch,
    Count,
    CurrentLeader,
    Epoch,
    EpochEndOffset,
    Int16,
    Int32,
    Int64,
    Message,
    Name,
    NodeId,
    Offset,
    PartitionIndex,
    ProducerName,
    ProducerNote,
    SnapshotId,
    Text,
    TransactionalId,
    Uuid,
)
from strandline.protocol.records.fence import FENCING_TOKEN_MAX

# -- Produce ----------------------------------------------------------------------------------------------------------

FencingToken = Annotated[int, Meta(ge=-1, le=FENCING_TOKEN_MAX)]
"""-1: none."""


class ProducePartition(Message):
    """`expected_offset`: append the records only if the log end is at this offset, so that the first record gets it. If it is
    not, the error is UNEXPECTED_LOG_END. -1: append the records at any log end.

    `fencing_token`: append the records only if no append has carried a higher token. If one has, the error is FENCED_TOKEN. -1:
    append the records whatever the token is. If no append has carried this token yet, the leader writes a fence before the
    records, which takes one offset; the first record then gets the offset after the expected one.

    A batch that was appended before is a duplicate, which is not an error."""

    topic_id: Uuid
    partition: PartitionIndex
    expected_offset: Offset = -1
    fencing_token: FencingToken = -1


class ProduceRequest(Message):
    """Record batches for partitions that the receiver leads. `records[i]` belongs to `partitions[i]`.

    With a `transactional_id`, the batches are marked as transactional, and belong to the producer's ongoing transaction. In
    version 4 the leader adds its partitions to the transaction (TV2 of KIP-890); in version 3 the producer has added them
    before, and the leader verifies that.

    `acks`: when the leader responds. 0: never; 1: after its own append; -1: when the high watermark has passed the batch.
    """

    transactional_id: TransactionalId | None
    acks: Int16
    timeout_ms: Count
    partitions: Annotated[list[ProducePartition], MANY]
    records: Annotated[list[memoryview], MANY]

    def version(self) -> int:
        """1 with an expected offset, 2 with a fencing token: an older broker would ignore it, and append. 4 in a transaction."""
        if self.transactional_id is not None:
            return 4
        version = 0
        for partition in self.partitions:
            if partition.fencing_token >= 0:
                return 2
            if partition.expected_offset >= 0:
                version = 1
        return version


class RecordError(Message):
    """A record that breaks a rule of its topic. `batch_index`: the number of the record in its batch, from 0."""

    batch_index: Count
    message: Text | None = None


class ProducePartitionResponse(Message):
    """Where the batch is in the log, or why it was rejected.

    `record_errors` names the records because of which the batch was rejected (KIP-467): all of them, or the first 100;
    `invalid_records` counts them all. It is empty if the error is not one of single records. In a request with several batches
    for the partition, these are records of the first batch that has invalid ones.

    `log_end_offset`, with UNEXPECTED_LOG_END: the log end. With acks=-1 the response waits until all records below it are
    committed.

    `fencing_token`, with FENCED_TOKEN: the token of the partition. With acks=-1 the response waits until its fence is committed.
    """

    topic_id: Uuid
    partition: PartitionIndex
    error_code: Int16 = 0
    base_offset: Offset = -1
    log_append_time_ms: Int64 = -1
    log_start_offset: Offset = -1
    error_message: Text | None = None
    current_leader: CurrentLeader = CurrentLeader()
    record_errors: Annotated[list[RecordError], MANY] = []
    invalid_records: Count = 0
    log_end_offset: Offset = -1
    fencing_token: FencingToken = -1


class ProduceResponse(Message):
    partitions: list[ProducePartitionResponse]
    throttle_time_ms: Count = 0


# -- Fetch ------------------------------------------------------------------------------------------------------------


class FetchPartition(Message):
    """The fetch position of one partition. A follower's `fetch_offset` is also its LEO.

    `last_fetched_epoch` is the epoch of the last record that the follower or consumer has; if the leader's log disagrees, the
    response has a `diverging_epoch` (KIP-595). If `current_leader_epoch` is known and not the leader's, the response has an
    error (KIP-320).

    `readers_high_watermark`, of followers only: the high watermark up to which consumers may read from this follower (KIP-392);
    -1 if no consumer reads the partition there. The leader answers the fetch as soon as consumers may read more of what the
    follower has. Other followers learn of a new high watermark with their next response.
    """

    topic_id: Uuid
    partition: PartitionIndex
    current_leader_epoch: Epoch
    fetch_offset: Int64
    last_fetched_epoch: Epoch
    log_start_offset: Offset
    partition_max_bytes: Int32
    readers_high_watermark: Offset = -1


class ForgottenPartition(Message):
    topic_id: Uuid
    partition: PartitionIndex


class FetchRequest(Message):
    """A fetch of followers (`replica_id` >= 0), of consumers (-1), and of voters and observers of the metadata log.

    Sessions follow KIP-227: epoch 0 with id 0 asks for a new session and lists every partition; epoch -1 is a full fetch without
    a session; epoch n continues the session and lists only the changed partitions.
    """

    replica_id: NodeId
    replica_epoch: BrokerEpoch
    max_wait_ms: Count
    min_bytes: Int32
    max_bytes: Int32
    isolation_level: Annotated[int, Meta(ge=0, le=1)]
    session_id: Int32
    session_epoch: Int32
    partitions: Annotated[list[FetchPartition], MANY]
    forgotten: Annotated[list[ForgottenPartition], MANY] = []
    rack_id: Name = ""
    cluster_id: Name | None = None


class AbortedTransaction(Message, frozen=True):  # type: ignore[misc]  # msgspec allows it
    """The records of this producer from the first offset to the last one, which is that of the ABORT marker, were aborted."""

    producer_id: Int64
    first_offset: Offset
    last_offset: Offset


class FetchPartitionResponse(Message):
    """The leader's offsets of one partition, or an error.

    `last_stable_offset`: below it, no record belongs to a transaction whose end is not committed. A request with
    `isolation_level` 1 (read_committed) gets records below it only, and `aborted_transactions`: those that have records among
    them, in the order of their first offsets.

    `tombstones_removed_below`, in responses to followers only: every tombstone that the leader's log lacks, because a cleaner has
    removed it after `delete.retention.ms`, lies below this offset. A follower whose log ends below it may hold values that such a
    tombstone has deleted, so it copies the log again from its start.
    """

    topic_id: Uuid
    partition: PartitionIndex
    error_code: Int16 = 0
    high_watermark: Offset = -1
    last_stable_offset: Offset = -1
    log_start_offset: Offset = -1
    diverging_epoch: EpochEndOffset = EpochEndOffset()
    current_leader: CurrentLeader = CurrentLeader()
    snapshot_id: SnapshotId = SnapshotId()
    preferred_read_replica: NodeId = -1
    tombstones_removed_below: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    aborted_transactions: list[AbortedTransaction] | None = None


class FetchResponse(Message):
    """`records[i]` holds whole record batches of `partitions[i]`; it is empty if there is nothing to read."""

    throttle_time_ms: Count
    error_code: Int16
    session_id: Int32
    partitions: list[FetchPartitionResponse]
    records: list[memoryview]


# -- ListOffsets ------------------------------------------------------------------------------------------------------

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
FIRST_DIRTY_TIMESTAMP = -1001
"""Not one of Kafka's: asks for the first dirty offset, below which the leader's log is compacted. Only followers may ask."""


class ListOffsetsPartition(Message):
    """A partition whose offset is looked up by timestamp. `timestamp`: -1 for the latest offset, -2 for the earliest, -3 for the
    record with the largest timestamp, otherwise the first record at or after that time, in ms. A follower may ask with -1001 for
    the offset below which the leader's log is compacted: no record below it is superseded by another record below it."""

    topic_id: Uuid
    partition: PartitionIndex
    current_leader_epoch: Epoch
    timestamp: Int64


class ListOffsetsRequest(Message):
    replica_id: NodeId
    isolation_level: Annotated[int, Meta(ge=0, le=1)]
    partitions: Annotated[list[ListOffsetsPartition], MANY]


class ListOffsetsPartitionResponse(Message):
    topic_id: Uuid
    partition: PartitionIndex
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Offset = -1
    leader_epoch: Epoch = -1


class ListOffsetsResponse(Message):
    partitions: list[ListOffsetsPartitionResponse]
    throttle_time_ms: Count = 0


# -- OffsetForLeaderEpoch ---------------------------------------------------------------------------------------------


class OffsetForLeaderPartition(Message):
    topic_id: Uuid
    partition: PartitionIndex
    current_leader_epoch: Epoch
    leader_epoch: Epoch


class OffsetForLeaderEpochRequest(Message):
    """Asks for the end offset of leader epochs in the receiver's log (KIP-101, KIP-279)."""

    replica_id: NodeId
    partitions: Annotated[list[OffsetForLeaderPartition], MANY]


class EpochEndOffsetPartition(Message):
    """`leader_epoch` is the largest known epoch <= the requested one; -1 with end offset -1 if there is none."""

    topic_id: Uuid
    partition: PartitionIndex
    error_code: Int16 = 0
    leader_epoch: Epoch = -1
    end_offset: Offset = -1


class OffsetForLeaderEpochResponse(Message):
    partitions: list[EpochEndOffsetPartition]
    throttle_time_ms: Count = 0


# -- InitProducerId ---------------------------------------------------------------------------------------------------


class InitProducerIdRequest(Message):
    """Asks for an unused producer id or, since version 1, for the id of a named producer.

    For a `name`, the same `work_epoch` gets the same id with the next producer epoch, which fences the epoch before it. A higher
    work epoch gets another id with producer epoch 0; a lower one is refused with PRODUCER_FENCED. The `note` of the first request
    for a work epoch is stored, and every response for that work epoch returns it; nil if the first request had none.

    With a `producer_epoch`, the request begins no new epoch. It fences all older epochs in every partition, also in those to
    which this epoch has not written. A leader refuses their batches as soon as its metadata has the change, which a
    DescribeProducers request with a `producer_epoch` waits for.
    """

    transactional_id: TransactionalId | None = None
    transaction_timeout_ms: Count = 60000
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    name: ProducerName | None = None
    work_epoch: Count = 0
    note: ProducerNote | None = None

    def version(self) -> int:
        """1 with a name: an older broker would ignore the name and return a new id for each request."""
        return 0 if self.name is None else 1


class InitProducerIdResponse(Message):
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    throttle_time_ms: Count = 0
    error_message: Text | None = None
    note: ProducerNote | None = None


# -- DescribeProducers ------------------------------------------------------------------------------------------------


class DescribeProducersPartition(Message):
    topic_id: Uuid
    partition: PartitionIndex
    current_leader_epoch: Epoch = -1


class DescribeProducersRequest(Message):
    """Asks the leaders of partitions for the states of these producers, or of all (nil) (KIP-664). A request for all that names
    no leader epoch is answered by any replica.

    The id of a named producer stands for its name: the response has the newest work epoch of that name that has written to the
    partition. With a `producer_epoch`, a leader answers only when its metadata says that no older epoch of the named producer may
    write (InitProducerId); then neither this leader nor a later one appends batches of an older epoch.
    """

    partitions: Annotated[list[DescribeProducersPartition], MANY]
    producer_ids: Annotated[list[Int64], MANY] | None = None
    producer_epoch: Int16 = -1


class ProducerState(Message):
    """The newest batch of a producer in a log. `name` is set for a named producer that the cluster knows.

    `coordinator_epoch`: the leader epoch of the coordinator's partition, from the newest marker of this producer.
    `current_txn_start_offset`: the offset of the first record of its open transaction. Each is -1 if there is none."""

    producer_id: Int64
    producer_epoch: Int16
    last_sequence: Int32
    last_offset: Offset
    last_timestamp: Int64
    name: ProducerName | None = None
    coordinator_epoch: Int32 = -1
    current_txn_start_offset: Offset = -1


class DescribeProducersPartitionResponse(Message):
    """The states, the high watermark and the leader epoch of the same moment.

    A batch whose `last_offset` lies below `high_watermark` is committed; other batches may be lost if this leader fails.
    """

    topic_id: Uuid
    partition: PartitionIndex
    error_code: Int16 = 0
    error_message: Text | None = None
    leader_epoch: Epoch = -1
    high_watermark: Offset = -1
    active_producers: list[ProducerState] = []


class DescribeProducersResponse(Message):
    partitions: list[DescribeProducersPartitionResponse]
    throttle_time_ms: Count = 0


# -- DeleteRecords ----------------------------------------------------------------------------------------------------


class DeleteRecordsPartition(Message):
    """Delete the records below `before_offset`; -1: below the high watermark."""

    topic_id: Uuid
    partition: PartitionIndex
    before_offset: Offset


class DeleteRecordsRequest(Message):
    """Asks the leaders of partitions to delete their oldest records (KIP-107).

    A leader moves its log start at once, and answers when the log start of each follower that is alive, or is an eligible
    leader replica, has moved as well. If that takes longer than `timeout_ms`, the answer is REQUEST_TIMED_OUT, although the
    leader has deleted the records.
    """

    partitions: Annotated[list[DeleteRecordsPartition], MANY]
    timeout_ms: Count


class DeleteRecordsPartitionResponse(Message):
    """`low_watermark`: the smallest log start of the replicas that are alive or eligible; no record below it can be read."""

    topic_id: Uuid
    partition: PartitionIndex
    error_code: Int16 = 0
    error_message: Text | None = None
    low_watermark: Offset = -1
    current_leader: CurrentLeader = CurrentLeader()


class DeleteRecordsResponse(Message):
    partitions: list[DeleteRecordsPartitionResponse]
    throttle_time_ms: Count = 0


# -- DescribeOffsetLag ------------------------------------------------------------------------------------------------


class OffsetLagPartition(Message):
    """A partition, and the offsets at which readers continue in it. `offsets` may be empty."""

    topic_id: Uuid
    partition: PartitionIndex
    current_leader_epoch: Epoch = -1
    offsets: Annotated[list[Offset], MANY] = []


class DescribeOffsetLagRequest(Message):
    """Asks the leaders of partitions how far readers at these offsets lag behind. Group coordinators send it for metrics."""

    partitions: Annotated[list[OffsetLagPartition], MANY]


class OffsetLagPartitionResponse(Message):
    """The offsets of the partition, and in `timestamps`, for each offset of the request, the timestamp in ms of the first batch
    that has a committed record at or after it; -1 if there is none, or if that batch has no timestamp.

    The timestamp of a batch is that of its first record. It is the newest one if the broker has set the timestamps, or if
    compaction has replaced the first one by a delete horizon."""

    topic_id: Uuid
    partition: PartitionIndex
    error_code: Int16 = 0
    high_watermark: Offset = -1
    log_start_offset: Offset = -1
    timestamps: list[Int64] = []


class DescribeOffsetLagResponse(Message):
    partitions: list[OffsetLagPartitionResponse]
    throttle_time_ms: Count = 0
