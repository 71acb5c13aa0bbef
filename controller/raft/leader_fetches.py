"""The leader's side of replication: it answers Fetch and FetchSnapshot, and describes the quorum.

The leader pushes nothing. A voter's fetch names the end of its log (which is flushed up to there), so the requests that move the
data also show the leader what a majority has. A fetch that has nothing to receive is parked. An append
or a higher high watermark completes it at once. So a record is committed one round trip to a majority after its append (the
records to the voter, its next fetch back), and no node polls.
"""

from __future__ import annotations

from strandline.controller.metadata.records import METADATA_TOPIC_ID
from strandline.controller.raft.fetch_replies import fetch_part, refuse_fetch, reply_fetch
from strandline.controller.raft.leader_handler import LeaderHandler
from strandline.controller.raft.outbox import Reply
from strandline.controller.raft.raft_state import RaftState
from strandline.controller.raft.roles import Leader, ParkedFetch, ReplicaProgress
from strandline.protocol.errors import ErrorCode
from strandline.protocol.frames import Buffer
from strandline.protocol.messages.cluster import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumReplicaState,
)
from strandline.protocol.messages.common import EpochEndOffset, SnapshotId
from strandline.protocol.messages.data import FetchPartition, FetchRequest

FETCH_WAIT_MS_MAX = 30_000
"""The longest time for which an observer's fetch is parked, whatever it asks for."""


class LeaderFetches:
    """Answers the requests of voters and observers that only the leader may answer: Fetch, FetchSnapshot, DescribeQuorum."""

    def __init__(self, state: RaftState, leader: LeaderHandler) -> None:
        self.state = state
        self._leader = leader

    # -- Fetch ---------------------------------------------------------------------------------------------------------

    def on_fetch_request(self, request: FetchRequest, ticket: object, session: int, now: float) -> None:
        """Record how far the replica has come, and answer its fetch or park it. `session` numbers the connections in the order in
        which they were accepted. On a new connection the leader sends its high watermark again, because a response on the earlier
        one may have been lost."""
        state = self.state
        error = self._fetch_request_error(request)
        if error != ErrorCode.NONE:
            refuse_fetch(state, ticket, error)
            return
        role, partition = state.role, request.partitions[0]
        assert isinstance(role, Leader)
        progress = self._progress(role, request.replica_id)
        if session < progress.session and request.replica_id in role.voters:
            # The voter sent this fetch before it connected again. It may have lost its disk since (`voter_recovery.py`).
            refuse_fetch(state, ticket, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        # The session is never lowered. If it were, two processes with the same replica id would reset `sent_high_watermark` with
        # every fetch, and none of their fetches would be parked.
        if session > progress.session:
            progress.session, progress.sent_high_watermark = session, -1
        previous_at, progress.fetched_at = progress.fetched_at, now
        fetch = ParkedFetch(
            ticket,
            request.replica_id,
            session,
            partition.fetch_offset,
            partition.last_fetched_epoch,
            max(0, min(request.max_bytes, partition.partition_max_bytes, state.config.fetch_bytes_max)),
            now + self._wait_ms(request) / 1000,
        )
        if self._reply_divergent(fetch):
            return
        self._record_position(role, progress, request.replica_id, partition, previous_at, now)
        self._answer_or_park(role, progress, fetch, now)

    def _fetch_request_error(self, request: FetchRequest) -> ErrorCode:
        state = self.state
        if state.is_other_cluster(request.cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if len(request.partitions) != 1 or request.partitions[0].partition != 0:
            return ErrorCode.INVALID_REQUEST
        partition = request.partitions[0]
        if partition.topic_id != METADATA_TOPIC_ID:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if partition.fetch_offset < 0 or (request.replica_id in state.voter_ids and partition.current_leader_epoch < 0):
            return ErrorCode.INVALID_REQUEST
        return state.leader_request_error(request.cluster_id, partition.current_leader_epoch)

    def _wait_ms(self, request: FetchRequest) -> int:
        is_voter = request.replica_id in self.state.voter_ids
        return min(request.max_wait_ms, self.state.config.fetch_wait_ms_max if is_voter else FETCH_WAIT_MS_MAX)

    def _progress(self, role: Leader, replica_id: int) -> ReplicaProgress:
        if replica_id in role.voters:
            return role.voters[replica_id]
        if replica_id < 0 or replica_id == self.state.node_id:
            return ReplicaProgress()
        observer = role.observers.get(replica_id)
        if observer is None:
            observer = role.observers[replica_id] = ReplicaProgress()
        return observer

    def _reply_divergent(self, fetch: ParkedFetch) -> bool:
        """If the replica's history is not a prefix of the leader's, reply with the diverging epoch or with a snapshot."""
        state, offset, epoch = self.state, fetch.fetch_offset, fetch.last_fetched_epoch
        log = state.log
        if offset == 0 and log.start_offset == 0:
            return False
        first = log.first_snapshot_id
        if first is not None and (
            offset < first.end_offset or epoch < first.epoch or (offset == first.end_offset and epoch != first.epoch)
        ):
            reply_fetch(state, fetch.ticket, fetch_part(state, snapshot_id=log.latest_snapshot_id or first))
            return True
        end = log.end_offset_for_epoch(epoch)
        if end.epoch != epoch or end.end_offset < offset:
            diverging = EpochEndOffset(end.epoch, end.end_offset)
            reply_fetch(state, fetch.ticket, fetch_part(state, diverging_epoch=diverging))
            return True
        return False

    def _record_position(
        self, role: Leader, progress: ReplicaProgress, replica_id: int, partition: FetchPartition, previous_at: float, now: float
    ) -> None:
        """Record the replica's log end, and when it was last caught up. `previous_at` is the time of its previous fetch: if the
        replica now has everything that the leader had at that time, it was caught up then."""
        end_offset = self.state.log.end_offset
        if partition.fetch_offset >= end_offset:
            progress.caught_up_at = now
        elif 0 <= progress.leader_end_offset <= partition.fetch_offset:
            progress.caught_up_at = max(progress.caught_up_at, previous_at)
        progress.leader_end_offset = end_offset
        progress.end_offset = partition.fetch_offset
        if replica_id in role.voters:
            self._leader.maybe_advance_high_watermark(now)

    def _answer_or_park(self, role: Leader, progress: ReplicaProgress, fetch: ParkedFetch, now: float) -> None:
        state = self.state
        has_news = fetch.fetch_offset < state.log.end_offset or progress.sent_high_watermark < state.high_watermark
        if has_news or fetch.deadline <= now or fetch.replica_id < 0:
            self._answer(progress, fetch)
            return
        key = fetch.replica_id, fetch.session
        before = role.parked.get(key)
        if before is not None:
            self._answer(progress, before)
        role.parked[key] = fetch

    def _answer(self, progress: ReplicaProgress, fetch: ParkedFetch) -> None:
        state = self.state
        buffers: list[Buffer] = []
        if fetch.fetch_offset < state.log.end_offset:
            buffers, _ = state.log.read(fetch.fetch_offset, fetch.max_bytes)
        progress.sent_high_watermark = state.high_watermark
        reply_fetch(state, fetch.ticket, fetch_part(state), records=buffers)

    def answer_expired(self, role: Leader, now: float) -> None:
        """Answer the parked fetches whose wait is over."""
        for key in [key for key, fetch in role.parked.items() if fetch.deadline <= now]:
            self._answer(self._progress(role, key[0]), role.parked.pop(key))

    def complete_fetches(self, now: float) -> None:
        """Answer the parked fetches that an append or a higher high watermark completes; once per event-loop iteration."""
        role = self.state.role
        if not isinstance(role, Leader) or not role.parked:
            return
        for key in list(role.parked):
            self._answer_or_park(role, self._progress(role, key[0]), role.parked.pop(key), now)

    # -- FetchSnapshot, DescribeQuorum ---------------------------------------------------------------------------------

    def on_fetch_snapshot_request(self, request: FetchSnapshotRequest, ticket: object, now: float) -> None:
        """Answer with a chunk of a snapshot (FetchSnapshot, KIP-630). A voter that fetches one counts as alive.

        Errors: SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE, and those of `RaftState.leader_request_error`."""
        state = self.state
        error = state.leader_request_error(request.cluster_id, request.current_leader_epoch)
        size, data = 0, b""
        if error == ErrorCode.NONE:
            if isinstance(state.role, Leader) and request.replica_id in state.role.voters:
                state.role.voters[request.replica_id].fetched_at = now
            error, size, data = self._read_chunk(request)
        leader = (-1, -1) if error == ErrorCode.INCONSISTENT_CLUSTER_ID else (state.leader_id, state.epoch)
        body = FetchSnapshotResponse(error, *leader, request.snapshot_id, size, max(0, request.position), [])
        state.outbox.at_once.append(Reply(ticket, body, [[data]]))

    def _read_chunk(self, request: FetchSnapshotRequest) -> tuple[ErrorCode, int, bytes]:
        """The error, the size of the whole snapshot, and the bytes from the requested position on."""
        log = self.state.log
        size = log.snapshot_size(request.snapshot_id)
        if size is None:
            return ErrorCode.SNAPSHOT_NOT_FOUND, 0, b""
        if not 0 <= request.position < size:
            return ErrorCode.POSITION_OUT_OF_RANGE, 0, b""
        chunk = max(1, min(request.max_bytes, self.state.config.snapshot_chunk_bytes_max))
        return ErrorCode.NONE, size, log.read_snapshot(request.snapshot_id, request.position, chunk)

    def on_describe_request(self, request: DescribeQuorumRequest, ticket: object, now: float) -> None:
        """Answer DescribeQuorum (KIP-595) with the log end, the last fetch and the last time caught up of each voter and observer
        (KIP-836). If this node does not lead, the error is NOT_LEADER_OR_FOLLOWER, with the leader if it is known. The shell adds
        the addresses (`nodes`), which the core does not have."""
        state, role = self.state, self.state.role
        if not isinstance(role, Leader):
            text = f"node {state.node_id} does not lead the quorum"
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            state.reply(ticket, DescribeQuorumResponse(error, text, state.leader_id, state.epoch, -1, [], [], []))
            return
        voters = [QuorumReplicaState(state.node_id, state.log.end_offset, 0, 0)]
        voters += [_describe(voter_id, progress, now) for voter_id, progress in role.voters.items()]
        observers = [_describe(replica_id, progress, now) for replica_id, progress in sorted(role.observers.items())]
        body = DescribeQuorumResponse(
            ErrorCode.NONE,
            None,
            state.node_id,
            state.epoch,
            state.high_watermark,
            sorted(voters, key=lambda v: v.replica_id),
            observers,
            [],
        )
        body.log_start_offset = state.log.start_offset
        body.snapshot_id = state.log.latest_snapshot_id or SnapshotId()
        state.reply(ticket, body)


def _describe(replica_id: int, progress: ReplicaProgress, now: float) -> QuorumReplicaState:
    def age_ms(at: float) -> int:
        return -1 if at < 0 else max(0, round((now - at) * 1000))

    return QuorumReplicaState(replica_id, progress.end_offset, age_ms(progress.fetched_at), age_ms(progress.caught_up_at))
