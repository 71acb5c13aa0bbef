"""Fetching the metadata log, as voters and brokers both do it: the request, the shape of its answer, and where to truncate.

A voter appends what it fetches to its own log (`controller/raft/follower_handler.py`). A broker keeps it until it is committed,
and then applies it to its image (`broker/process/metadata_loader.py`). Both follow KIP-595: a fetch names the end of the
replica's log and the epoch of its last record, and the leader answers with records, a diverging epoch or a snapshot's id.
"""

from __future__ import annotations

from strandline.controller.metadata.records import METADATA_TOPIC_ID
from strandline.protocol.messages.cluster import FetchSnapshotResponse
from strandline.protocol.messages.common import EpochEndOffset, SnapshotId
from strandline.protocol.messages.data import FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse


def metadata_fetch_request(
    *,
    replica_id: int,
    cluster_id: str,
    leader_epoch: int,
    fetch_offset: int,
    last_fetched_epoch: int,
    log_start_offset: int,
    wait_ms_max: int,
    bytes_max: int,
) -> FetchRequest:
    """A fetch of the metadata partition alone. It belongs to no fetch session; `leader_epoch` -1 is not checked."""
    partition = FetchPartition(METADATA_TOPIC_ID, 0, leader_epoch, fetch_offset, last_fetched_epoch, log_start_offset, bytes_max)
    return FetchRequest(
        replica_id=replica_id,
        replica_epoch=-1,
        max_wait_ms=wait_ms_max,
        min_bytes=0,
        max_bytes=bytes_max,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        partitions=[partition],
        cluster_id=cluster_id,
    )


def metadata_answer(response: FetchResponse) -> FetchPartitionResponse | None:
    """The answer for the metadata partition; None if the response is not for exactly one partition. Its records are
    `response.records[0]`."""
    return response.partitions[0] if len(response.partitions) == len(response.records) == 1 else None


def truncation_offset(own_epoch: int, own_end_offset: int, diverging: EpochEndOffset) -> int:
    """Where a log must be cut whose history differs from the leader's.

    `diverging` is the largest epoch of the leader's log up to the epoch that was fetched with, and its end there. `own_epoch` is
    the largest epoch of the replica's log up to that one, and `own_end_offset` its end in it. If the two epochs differ, the
    next fetch may find that more has to be cut.
    """
    return min(own_end_offset, diverging.end_offset) if own_epoch == diverging.epoch else own_end_offset


def is_next_chunk(response: FetchSnapshotResponse, snapshot_id: SnapshotId, position: int) -> bool:
    """Whether the response holds bytes of this snapshot from `position` on, and no more than the snapshot has."""
    size = len(response.records[0]) if response.records else 0
    return response.snapshot_id == snapshot_id and response.position == position and 0 < size <= response.size - position
