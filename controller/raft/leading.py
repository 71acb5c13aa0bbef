"""The leader's half of replication: answering fetches, and moving the high watermark.

Nothing is pushed. A voter's fetch says where its log ends (and that it is on its disk up to there), so the leader learns
what a majority holds from the very requests that move the data. A fetch with nothing to answer is parked; an append or
a new high watermark answers it at once, so that a commit costs two round trips and no polling.

The high watermark is the offset that a majority has flushed, the leader's own flushed end among them, and it moves only
beyond the LeaderChange record that opens the leader's own epoch: counting copies of older epochs' records would commit
what a later leader may still replace (Raft, figure 8).
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.controller.metadata.records import METADATA_TOPIC_ID
from strandline.controller.raft.base import NodeBase
from strandline.controller.raft.outbox import Reply
from strandline.controller.raft.roles import Leader, ParkedFetch, ReplicaProgress
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.frames import Buffer
from strandline.protocol.messages.cluster import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumReplicaState,
)
from strandline.protocol.messages.common import CurrentLeader, EpochEndOffset, SnapshotId
from strandline.protocol.messages.data import FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse
from strandline.protocol.records.control import LeaderChange, encode_control_batch

OBSERVER_FORGOTTEN_AFTER_S = 300.0
FETCH_WAIT_MS_MAX = 30_000
"""An observer may ask for longer; it is answered, if empty, after this."""
_NO_DIVERGENCE = EpochEndOffset()
_NO_SNAPSHOT = SnapshotId()


class Leading(NodeBase):
    # -- the epoch -----------------------------------------------------------------------------------------------------

    def become_leader(self, now: float) -> None:
        self._elect(self.election._replace(leader_id=self.node_id))
        others = self.other_voters
        role = Leader(
            epoch_start_offset=self.log.end_offset,
            began_at=now,
            flushed_offset=self.log.flushed_offset,
            voters={voter_id: ReplicaProgress() for voter_id in others},
            begin_epoch_at=dict.fromkeys(others, now),
        )
        role.check_quorum_at = now + self.config.check_quorum_timeout_ms / 1000
        granted = sorted(self.role.poll.granted)  # type: ignore[union-attr]
        self._become(role)
        record = LeaderChange(self.node_id, self.voter_ids, tuple(granted))
        batch = encode_control_batch(record, self.wall_clock_ms, leader_epoch=self.epoch)
        self.log.append_as_leader(memoryview(bytearray(batch)), self.epoch)
        self.tick_leader(now)

    wall_clock_ms: int = 0
    """The timestamp for the next LeaderChange record; the shell keeps it roughly current. Nothing depends on it."""

    def append(self, batch: bytearray, epoch: int) -> int:
        """Append one batch as leader of `epoch`; returns its last offset. It is committed when the high watermark passes it."""
        if not self.is_leader or epoch != self.epoch:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, f"node {self.node_id} does not lead the quorum in epoch {epoch}")
        return self.log.append_as_leader(memoryview(batch), epoch)

    def resign(self, now: float) -> None:
        """Stop leading on purpose; the voters are told, the most complete one first."""
        self.become_resigned(now)

    def answer_parked(self, role: Leader) -> None:
        """We lead no longer: whoever waits shall know at once."""
        for fetch in role.parked.values():
            self._reply_fetch(fetch.ticket, self._fetch_error(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    # -- timers --------------------------------------------------------------------------------------------------------

    def tick_leader(self, now: float) -> None:
        role = self.role
        assert isinstance(role, Leader)
        if now >= role.check_quorum_at and not self._hears_majority(role, now):
            self.become_resigned(now)
            self.tick_resigned(now)
            return
        self.tick_begin_epoch(role, now)
        for place in [place for place, fetch in role.parked.items() if fetch.deadline <= now]:
            fetch = role.parked.pop(place)
            self._answer_fetch(role, fetch, now)

    def _hears_majority(self, role: Leader, now: float) -> bool:
        """Whether a majority, ourselves included, has fetched within the check-quorum timeout; sets when to look next."""
        timeout = self.config.check_quorum_timeout_ms / 1000
        heard_at = sorted((max(progress.fetched_at, role.began_at) for progress in role.voters.values()), reverse=True)
        needed = len(self.voter_ids) // 2  # of the others; none when we are the only voter
        role.check_quorum_at = timeout + (heard_at[needed - 1] if needed else now)
        for replica_id in [i for i, p in role.observers.items() if now - p.fetched_at > OBSERVER_FORGOTTEN_AFTER_S]:
            del role.observers[replica_id]
        return now < role.check_quorum_at

    # -- Fetch ---------------------------------------------------------------------------------------------------------

    def on_fetch_request(self, request: FetchRequest, ticket: object, session: int, now: float) -> None:
        """`session`: the connection, by a number that grows; what was told on another one may have been lost with it."""
        error = self._fetch_request_error(request)
        if error != ErrorCode.NONE:
            self._reply_fetch(ticket, self._fetch_error(error), error if error == ErrorCode.INCONSISTENT_CLUSTER_ID else 0)
            return
        role, partition = self.role, request.partitions[0]
        assert isinstance(role, Leader)
        progress = self._progress(role, request.replica_id)
        if session < progress.session and request.replica_id in role.voters:
            # It comes late, from before the voter connected anew; its disk may have been lost since (`learning.py`).
            self._reply_fetch(ticket, self._fetch_error(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        if session > progress.session:  # Two processes that both claim to be this replica take no turns in it.
            progress.session, progress.told_high_watermark = session, -1
        progress.fetched_at = now
        fetch = ParkedFetch(
            ticket,
            request.replica_id,
            session,
            partition.fetch_offset,
            partition.last_fetched_epoch,
            max(0, min(request.max_bytes, partition.partition_max_bytes, self.config.fetch_bytes_max)),
            now + self._wait_ms(request) / 1000,
        )
        if self._refuse_divergent(fetch):
            return
        self._record_position(role, progress, request.replica_id, partition, now)
        self._answer_or_park(role, fetch, now)

    def _fetch_request_error(self, request: FetchRequest) -> ErrorCode:
        if self.is_other_cluster(request.cluster_id):
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if len(request.partitions) != 1 or request.partitions[0].partition != 0:
            return ErrorCode.INVALID_REQUEST
        partition = request.partitions[0]
        if partition.topic_id != METADATA_TOPIC_ID:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if partition.fetch_offset < 0 or (request.replica_id in self.voter_ids and partition.current_leader_epoch < 0):
            return ErrorCode.INVALID_REQUEST
        return self.leader_request_error(request.cluster_id, partition.current_leader_epoch)

    def _wait_ms(self, request: FetchRequest) -> int:
        return min(
            request.max_wait_ms, self.config.fetch_wait_ms_max if request.replica_id in self.voter_ids else FETCH_WAIT_MS_MAX
        )

    def _progress(self, role: Leader, replica_id: int) -> ReplicaProgress:
        if replica_id in role.voters:
            return role.voters[replica_id]
        if replica_id < 0 or replica_id == self.node_id:
            return ReplicaProgress()
        observer = role.observers.get(replica_id)
        if observer is None:
            observer = role.observers[replica_id] = ReplicaProgress()
        return observer

    def _refuse_divergent(self, fetch: ParkedFetch) -> bool:
        """Answer with where the logs part, or with a snapshot, when the asker's history is not a prefix of ours."""
        log, offset, epoch = self.log, fetch.fetch_offset, fetch.last_fetched_epoch
        if offset == 0 and log.start_offset == 0:
            return False
        first, latest = log.first_snapshot_id, log.latest_snapshot_id
        if first is not None and (
            offset < first.end_offset or epoch < first.epoch or (offset == first.end_offset and epoch != first.epoch)
        ):
            assert latest is not None
            self._reply_fetch(fetch.ticket, self._fetch_part(snapshot_id=latest))
            return True
        end = log.end_offset_for_epoch(epoch)
        if end.epoch != epoch or end.end_offset < offset:
            self._reply_fetch(fetch.ticket, self._fetch_part(diverging_epoch=EpochEndOffset(end.epoch, end.end_offset)))
            return True
        return False

    def _record_position(
        self, role: Leader, progress: ReplicaProgress, replica_id: int, partition: FetchPartition, now: float
    ) -> None:
        if partition.fetch_offset >= self.log.end_offset:
            progress.caught_up_at = now
        elif 0 <= progress.leader_end_offset <= partition.fetch_offset:
            progress.caught_up_at = max(progress.caught_up_at, progress.fetched_at)
        progress.leader_end_offset = self.log.end_offset
        progress.end_offset = partition.fetch_offset
        if replica_id in role.voters:
            self.maybe_advance_high_watermark(now)

    def _answer_or_park(self, role: Leader, fetch: ParkedFetch, now: float) -> None:
        progress = self._progress(role, fetch.replica_id)
        news = fetch.fetch_offset < self.log.end_offset or progress.told_high_watermark < self.high_watermark
        if news or fetch.deadline <= now or fetch.replica_id < 0:
            self._answer_fetch(role, fetch, now)
            return
        place = fetch.replica_id, fetch.session
        before = role.parked.get(place)
        if before is not None:
            self._answer_fetch(role, before, now)
        role.parked[place] = fetch

    def _answer_fetch(self, role: Leader, fetch: ParkedFetch, now: float) -> None:
        buffers: list[Buffer] = []
        if fetch.fetch_offset < self.log.end_offset:
            buffers, _ = self.log.read(fetch.fetch_offset, fetch.max_bytes)
        self._progress(role, fetch.replica_id).told_high_watermark = self.high_watermark
        self._reply_fetch(fetch.ticket, self._fetch_part(), records=buffers)

    def complete_fetches(self, now: float) -> None:
        """Answer the parked fetches that an append or a new high watermark has news for; once per turn of the loop."""
        role = self.role
        if not isinstance(role, Leader) or not role.parked:
            return
        for place in list(role.parked):
            self._answer_or_park(role, role.parked.pop(place), now)

    def _fetch_part(
        self, diverging_epoch: EpochEndOffset = _NO_DIVERGENCE, snapshot_id: SnapshotId = _NO_SNAPSHOT
    ) -> FetchPartitionResponse:
        return FetchPartitionResponse(
            METADATA_TOPIC_ID,
            0,
            high_watermark=self.high_watermark,
            last_stable_offset=self.high_watermark,
            log_start_offset=self.log.start_offset,
            diverging_epoch=diverging_epoch,
            current_leader=CurrentLeader(self.leader_id, self.epoch),
            snapshot_id=snapshot_id,
        )

    def _fetch_error(self, error: ErrorCode) -> FetchPartitionResponse:
        leader = CurrentLeader() if error == ErrorCode.INCONSISTENT_CLUSTER_ID else CurrentLeader(self.leader_id, self.epoch)
        return FetchPartitionResponse(METADATA_TOPIC_ID, 0, error_code=error, current_leader=leader)

    def _reply_fetch(self, ticket: object, part: FetchPartitionResponse, error: int = 0, records: Sequence[Buffer] = ()) -> None:
        self.outbox.at_once.append(Reply(ticket, FetchResponse(0, error, 0, [part], []), [records]))

    # -- the high watermark --------------------------------------------------------------------------------------------

    def on_log_synced(self, now: float) -> None:
        """Our own log is on the disk up to its end: we count ourselves."""
        if isinstance(self.role, Leader):
            self.role.flushed_offset = self.log.flushed_offset
            self.maybe_advance_high_watermark(now)

    def maybe_advance_high_watermark(self, now: float) -> None:
        role = self.role
        assert isinstance(role, Leader)
        ends = sorted([role.flushed_offset, *[progress.end_offset for progress in role.voters.values()]], reverse=True)
        majority_end = min(ends[len(ends) // 2], self.log.end_offset)
        if majority_end > role.epoch_start_offset:
            self.advance_high_watermark(majority_end)

    # -- FetchSnapshot, DescribeQuorum ---------------------------------------------------------------------------------

    def on_fetch_snapshot_request(self, request: FetchSnapshotRequest, ticket: object, now: float) -> None:
        error = self.leader_request_error(request.cluster_id, request.current_leader_epoch)
        size, data = 0, b""
        if error == ErrorCode.NONE:
            if isinstance(self.role, Leader) and request.replica_id in self.role.voters:
                self.role.voters[request.replica_id].fetched_at = now
            found = self.log.snapshot_size(request.snapshot_id)
            if found is None:
                error = ErrorCode.SNAPSHOT_NOT_FOUND
            elif not 0 <= request.position < found:
                error = ErrorCode.POSITION_OUT_OF_RANGE
            else:
                size = found
                chunk = max(1, min(request.max_bytes, self.config.snapshot_chunk_bytes_max))
                data = self.log.read_snapshot(request.snapshot_id, request.position, chunk)
        leader = (-1, -1) if error == ErrorCode.INCONSISTENT_CLUSTER_ID else (self.leader_id, self.epoch)
        body = FetchSnapshotResponse(error, *leader, request.snapshot_id, size, max(0, request.position), [])
        self.outbox.at_once.append(Reply(ticket, body, [[data]]))

    def on_describe_request(self, request: DescribeQuorumRequest, ticket: object, now: float) -> None:
        """The leader's view of the quorum; `nodes` is filled in by the shell, which knows the addresses."""
        role = self.role
        if not isinstance(role, Leader):
            text = f"node {self.node_id} does not lead the quorum"
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            self.reply(ticket, DescribeQuorumResponse(error, text, self.leader_id, self.epoch, -1, [], [], []))
            return
        voters = [QuorumReplicaState(self.node_id, self.log.end_offset, 0, 0)]
        voters += [_describe(voter_id, progress, now) for voter_id, progress in role.voters.items()]
        observers = [_describe(replica_id, progress, now) for replica_id, progress in sorted(role.observers.items())]
        body = DescribeQuorumResponse(
            ErrorCode.NONE,
            None,
            self.node_id,
            self.epoch,
            self.high_watermark,
            sorted(voters, key=lambda v: v.replica_id),
            observers,
            [],
        )
        body.log_start_offset = self.log.start_offset
        body.snapshot_id = self.log.latest_snapshot_id or SnapshotId()
        self.reply(ticket, body)


def _describe(replica_id: int, progress: ReplicaProgress, now: float) -> QuorumReplicaState:
    def age_ms(at: float) -> int:
        return -1 if at < 0 else max(0, round((now - at) * 1000))

    return QuorumReplicaState(replica_id, progress.end_offset, age_ms(progress.fetched_at), age_ms(progress.caught_up_at))
