"""Fetching the metadata log, as voters and brokers both do it: the requests, the decoded answer, and where to truncate.

A voter appends what it fetches to its own log (`controller/raft/follower_handler.py`). A broker keeps it until it is committed,
and then applies it to its image (`broker/process/quorum_observer.py`). Both follow KIP-595: a fetch names the end of the
replica's log and the epoch of its last record, and the leader answers with records, a diverging epoch or a snapshot's id.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from strandline.controller.metadata.records import METADATA_TOPIC_ID
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.cluster import FetchSnapshotRequest, FetchSnapshotResponse
from strandline.protocol.messages.common import CurrentLeader, EpochEndOffset, SnapshotId
from strandline.protocol.messages.data import FetchPartition, FetchRequest, FetchResponse

SNAPSHOT_GONE = frozenset({ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE})
"""The voter leads, but no longer has this snapshot: the replica fetches the log again, and is offered another snapshot."""


class Records(NamedTuple):
    """The batches after the end of the replica's log, and the leader's high watermark."""

    data: memoryview
    high_watermark: int


class MetadataAnswer(NamedTuple):
    """The answer of a voter to a fetch of the metadata log, decoded."""

    error: int
    leader: CurrentLeader
    """The leader as the answering voter knows it."""
    content: Records | EpochEndOffset | SnapshotId
    """Without an error: the next records; or where the leader's log diverges from the replica's; or the snapshot to fetch first,
    because the leader's log no longer reaches back that far."""


_NO_RECORDS = Records(memoryview(b""), -1)


class EpochHistory(Protocol):
    """The epochs of a replica's log, which `truncation_offset` needs."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch <= `epoch` of the replica's log, and its exclusive end. If the log has none, any other epoch, and the
        log start."""
        ...


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


def metadata_answer(response: FetchResponse) -> MetadataAnswer | None:
    """The part of the response about the metadata partition; None if the response has no error and not exactly one partition."""
    if not len(response.partitions) == len(response.records) == 1:
        return MetadataAnswer(response.error_code, CurrentLeader(), _NO_RECORDS) if response.error_code else None
    part = response.partitions[0]
    content: Records | EpochEndOffset | SnapshotId = Records(response.records[0], part.high_watermark)
    if part.diverging_epoch.end_offset >= 0:
        content = part.diverging_epoch
    elif part.snapshot_id.end_offset >= 0:
        content = part.snapshot_id
    return MetadataAnswer(response.error_code or part.error_code, part.current_leader, content)


def truncation_offset(log: EpochHistory, diverging: EpochEndOffset) -> int:
    """Where to cut a log whose history differs from the leader's.

    `diverging` is the largest epoch of the leader's log up to the epoch that the fetch named, and its end there. If the replica's
    log does not have that epoch, the log is cut after its next lower one, and the next fetch may find that more has to be cut."""
    own_epoch, own_end_offset = log.end_offset_for_epoch(diverging.epoch)
    return min(own_end_offset, diverging.end_offset) if own_epoch == diverging.epoch else own_end_offset


def snapshot_fetch_request(
    *, replica_id: int, cluster_id: str, leader_epoch: int, snapshot_id: SnapshotId, position: int, bytes_max: int
) -> FetchSnapshotRequest:
    """A fetch of the bytes of a snapshot from `position` on."""
    return FetchSnapshotRequest(replica_id, cluster_id, bytes_max, leader_epoch, snapshot_id, position)


def is_next_chunk(response: FetchSnapshotResponse, snapshot_id: SnapshotId, position: int) -> bool:
    """Whether the response holds bytes of this snapshot from `position` on, and no more than the snapshot has."""
    size = len(response.records[0]) if response.records else 0
    return response.snapshot_id == snapshot_id and response.position == position and 0 < size <= response.size - position
