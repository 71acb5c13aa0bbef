"""The data path: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, InitProducerId, DescribeProducers."""

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
    """A producer id that nobody had before; or, since version 1, that of a name.

    The same `work_epoch` of a `name` again is the same id with the next epoch, which fences who has the one before; a
    higher work epoch is another id, epoch 0; a lower one is answered with PRODUCER_FENCED. The `note` of the first who asks
    for a work epoch is kept with it, and is everybody's answer, nil where the first had none.

    With a `producer_epoch` of the work epoch no epoch is begun: who has that one wants nothing older to be written any more,
    by anybody, to any partition.
    """

    transactional_id: Name | None = None
    transaction_timeout_ms: Count = 60000
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    name: ProducerName | None = None
    work_epoch: Count = 0
    note: ProducerNote | None = None

    def version(self) -> int:
        """An older broker would take no notice of the name, and give an id to whoever asks twice."""
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
    """What do your logs know of these producers, or of all (nil)? Only the leader of a partition answers (KIP-664).

    Asked for the id of a named producer, it tells of the newest work epoch of that name that has written there,
    whichever that is. With a `producer_epoch` only a leader answers that knows from the metadata that nothing older of the
    named producer may be written (InitProducerId): neither this leader takes it any more, nor whoever leads next.
    """

    partitions: Annotated[list[DescribeProducersPartition], MANY]
    producer_ids: Annotated[list[Int64], MANY] | None = None
    producer_epoch: Int16 = -1


class ProducerState(Message):
    """The newest batch of a producer in a log. `name`: of a named one, as long as the cluster knows it."""

    producer_id: Int64
    producer_epoch: Int16
    last_sequence: Int32
    last_offset: Offset
    last_timestamp: Int64
    name: ProducerName | None = None


class DescribeProducersPartitionResponse(Message):
    """What has a `last_offset` below `high_watermark` is committed; the rest of it may still be lost with this leader.

    Told in one breath: it was so at one moment, in `leader_epoch`.
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
