"""The data path: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, InitProducerId."""

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
    SnapshotId,
    Text,
    Uuid,
)

# -- Produce ----------------------------------------------------------------------------------------------------------


class ProducePartition(Message):
    topic_id: Uuid
    partition: PartitionIndex


class ProduceRequest(Message):
    """Record batches for partitions that the receiver leads. `records[i]` belongs to `partitions[i]`.

    `acks`: 0 no response at all, 1 after the leader's append, -1 after the high watermark passed the batch.
    """

    transactional_id: Name | None
    acks: Int16
    timeout_ms: Count
    partitions: Annotated[list[ProducePartition], MANY]
    records: Annotated[list[memoryview], MANY]


class ProducePartitionResponse(Message):
    topic_id: Uuid
    partition: PartitionIndex
    error_code: Int16 = 0
    base_offset: Offset = -1
    log_append_time_ms: Int64 = -1
    log_start_offset: Offset = -1
    error_message: Text | None = None
    current_leader: CurrentLeader = CurrentLeader()


class ProduceResponse(Message):
    partitions: list[ProducePartitionResponse]
    throttle_time_ms: Count = 0


# -- Fetch ------------------------------------------------------------------------------------------------------------


class FetchPartition(Message):
    """What the asker wants of one partition. From a follower, `fetch_offset` is at the same time its LEO.

    `last_fetched_epoch` is the epoch of the asker's last record: the leader answers a diverging epoch when its own
    history disagrees (KIP-595, truncation on fetch). `current_leader_epoch` fences in both directions (KIP-320).
    """

    topic_id: Uuid
    partition: PartitionIndex
    current_leader_epoch: Epoch
    fetch_offset: Int64
    last_fetched_epoch: Epoch
    log_start_offset: Offset
    partition_max_bytes: Int32


class ForgottenPartition(Message):
    topic_id: Uuid
    partition: PartitionIndex


class FetchRequest(Message):
    """One read path for followers (`replica_id` >= 0), consumers (-1) and the metadata log's voters and observers.

    Session rules as in KIP-227: epoch 0 with id 0 asks for a new session and lists every partition, epoch -1 means a
    full fetch without a session, epoch n continues the session and lists only what changed.
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


class FetchPartitionResponse(Message):
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


class FetchResponse(Message):
    """`records[i]` holds whole record batches for `partitions[i]`, empty where there is nothing to read."""

    throttle_time_ms: Count
    error_code: Int16
    session_id: Int32
    partitions: list[FetchPartitionResponse]
    records: list[memoryview]


# -- ListOffsets ------------------------------------------------------------------------------------------------------

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3


class ListOffsetsPartition(Message):
    """`timestamp`: -1 latest, -2 earliest, -3 the record with the largest timestamp, else the first record at or after it."""

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
    """ "For this epoch, what is the end offset in your log?" (KIP-101, KIP-279)."""

    replica_id: NodeId
    partitions: Annotated[list[OffsetForLeaderPartition], MANY]


class EpochEndOffsetPartition(Message):
    """`leader_epoch` is the largest epoch known that is <= the asked one; -1 with end offset -1: no such epoch."""

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
    transactional_id: Name | None = None
    transaction_timeout_ms: Count = 60000
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1


class InitProducerIdResponse(Message):
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    throttle_time_ms: Count = 0
