"""The responses to Fetch that a node of the quorum sends: with records, with an error, and to fetches that were parked."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.controller.metadata.records import METADATA_TOPIC_ID
from strandline.controller.raft.outbox import Reply
from strandline.controller.raft.raft_state import RaftState
from strandline.controller.raft.roles import Leader
from strandline.protocol.errors import ErrorCode
from strandline.protocol.frames import Buffer
from strandline.protocol.messages.common import CurrentLeader, EpochEndOffset, SnapshotId
from strandline.protocol.messages.data import FetchPartitionResponse, FetchResponse

_NO_DIVERGENCE = EpochEndOffset()
_NO_SNAPSHOT = SnapshotId()


def reply_fetch(
    state: RaftState, ticket: object, part: FetchPartitionResponse, error: int = 0, records: Sequence[Buffer] = ()
) -> None:
    """Reply at once to a fetch of the metadata partition."""
    state.outbox.at_once.append(Reply(ticket, FetchResponse(0, error, 0, [part], []), [records]))


def fetch_part(
    state: RaftState, diverging_epoch: EpochEndOffset = _NO_DIVERGENCE, snapshot_id: SnapshotId = _NO_SNAPSHOT
) -> FetchPartitionResponse:
    """The leader's answer for the metadata partition: its offsets, and where the logs diverge or which snapshot to fetch."""
    return FetchPartitionResponse(
        METADATA_TOPIC_ID,
        0,
        high_watermark=state.high_watermark,
        last_stable_offset=state.high_watermark,
        log_start_offset=state.log.start_offset,
        diverging_epoch=diverging_epoch,
        current_leader=CurrentLeader(state.leader_id, state.epoch),
        snapshot_id=snapshot_id,
    )


def refuse_fetch(state: RaftState, ticket: object, error: ErrorCode) -> None:
    """Reply with `error` and, within the cluster, the current leader."""
    is_other_cluster = error == ErrorCode.INCONSISTENT_CLUSTER_ID
    leader = CurrentLeader() if is_other_cluster else CurrentLeader(state.leader_id, state.epoch)
    part = FetchPartitionResponse(METADATA_TOPIC_ID, 0, error_code=error, current_leader=leader)
    reply_fetch(state, ticket, part, error if is_other_cluster else 0)


def refuse_parked_fetches(state: RaftState, role: Leader) -> None:
    """Refuse the parked fetches when the leadership ends, so that the replicas look for the new leader at once, not only after
    their timeout."""
    for fetch in role.parked.values():
        refuse_fetch(state, fetch.ticket, ErrorCode.NOT_LEADER_OR_FOLLOWER)
