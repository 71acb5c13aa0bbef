"""The follower's half of replication: fetch, append, truncate where the histories part, install a snapshot.

One fetch is under way at a time. It names the end of our log and the epoch of the last record; the leader answers with
what comes next, or with the epoch at which our log must be cut, or with a snapshot when its log no longer reaches back
to us. A fetch leaves only after the log is flushed: the leader counts it.
"""

from __future__ import annotations

from strandline.controller.metadata.records import METADATA_TOPIC_ID
from strandline.controller.raft.base import CommittedTruncation, NodeBase, logger
from strandline.controller.raft.roles import NEVER, Download, Follower
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.messages.cluster import FetchSnapshotRequest, FetchSnapshotResponse
from strandline.protocol.messages.common import EpochEndOffset, SnapshotId
from strandline.protocol.messages.data import FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse


class Following(NodeBase):
    def tick_follower(self, now: float) -> None:
        role = self.role
        assert isinstance(role, Follower)
        if now >= role.fetch_deadline:
            self.miss_leader(now)
        elif now >= role.fetch_at:
            role.fetch_at = NEVER
            if not self.may_fetch:
                return
            if role.download is None:
                self._send_fetch(role)
            else:
                self._send_fetch_snapshot(role, role.download)

    def _send_fetch(self, role: Follower) -> None:
        config, log = self.config, self.log
        partition = FetchPartition(
            METADATA_TOPIC_ID, 0, self.epoch, log.end_offset, log.last_epoch, log.start_offset, config.fetch_bytes_max
        )
        body = FetchRequest(
            replica_id=self.node_id,
            replica_epoch=-1,
            max_wait_ms=config.fetch_wait_ms_max,
            min_bytes=0,
            max_bytes=config.fetch_bytes_max,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            partitions=[partition],
            cluster_id=self.cluster_id,
        )
        self.send(role.leader_id, apis.FETCH, body, after_sync=True)

    def _succeeded(self, role: Follower, now: float) -> None:
        """The leader answered as leader: it is alive, ask on."""
        role.has_fetched, role.leader_lost = True, False
        role.fetch_deadline = now + self.config.fetch_timeout_ms / 1000
        role.fetch_at = now

    def on_fetch_failed(self, role: object, error: int, now: float) -> None:
        """The leader cannot be reached, or says that it is none: ask the others soon, and keep knocking meanwhile."""
        if role is not self.role or not isinstance(role, Follower):
            return
        if not role.leader_lost:
            logger.info(
                "quorum.leader_lost",
                node_id=self.node_id,
                leader_id=role.leader_id,
                controller_epoch=self.epoch,
                error=to_code(error).name,
            )
        role.leader_lost = True
        role.fetch_deadline = min(role.fetch_deadline, now + self.election_backoff())
        role.fetch_at = now + self.retry_backoff()

    def _retry_later(self, role: Follower, reason: str, now: float, detail: str = "") -> None:
        """The leader lives, and what it sent is of no use."""
        suppressed = self.limits.admit(reason, now)
        if suppressed is not None:
            logger.warning(
                "quorum.fetch_of_no_use",
                node_id=self.node_id,
                leader_id=role.leader_id,
                controller_epoch=self.epoch,
                metadata_offset=self.log.end_offset,
                reason=f"{reason}: {detail}" if detail else reason,
                **suppressed.fields,
            )
        role.fetch_at = now + self.config.election_backoff_ms_max / 1000

    # -- Fetch ---------------------------------------------------------------------------------------------------------

    def on_fetch_response(self, response: FetchResponse, role: object, now: float) -> None:
        if len(response.partitions) != 1 or len(response.records) != 1:
            self.on_fetch_failed(role, response.error_code or ErrorCode.INVALID_REQUEST, now)
            return
        part = response.partitions[0]
        error = response.error_code or part.error_code
        if self.hear(error, part.current_leader.leader_id, part.current_leader.leader_epoch, now) or role is not self.role:
            return
        assert isinstance(role, Follower)
        if error != ErrorCode.NONE:
            self.on_fetch_failed(role, error, now)
            return
        self._succeeded(role, now)
        if part.diverging_epoch.end_offset >= 0:
            self._truncate(part.diverging_epoch)
        elif part.snapshot_id.end_offset >= 0:
            self._start_download(role, part.snapshot_id, now)
        else:
            self._append(role, part, response.records[0], now)
            role.told_high_watermark = part.high_watermark
        self.tick_follower(now)

    def _append(self, role: Follower, part: FetchPartitionResponse, records: memoryview, now: float) -> None:
        if len(records):
            before = self.log.end_offset
            try:
                after = self.log.append_as_follower(records, self.epoch)
            except BrokerError as e:
                self._retry_later(role, "the leader's records were refused", now, str(e))
                return
            if after == before:
                self._retry_later(role, "the leader's records are of a newer epoch than its own", now)
                return
        self.advance_high_watermark(min(part.high_watermark, self.log.end_offset))

    def _truncate(self, diverging: EpochEndOffset) -> None:
        """Cut the log where the leader's history parts from ours (KIP-595); the next fetch may cut further back."""
        ours = self.log.end_offset_for_epoch(diverging.epoch)
        offset = min(ours.end_offset, diverging.end_offset) if ours.epoch == diverging.epoch else ours.end_offset
        if offset < self.high_watermark:
            raise CommittedTruncation(
                f"node {self.node_id} was told to truncate the metadata log to {offset} (epoch {diverging.epoch} ends at "
                f"{diverging.end_offset}), below its high watermark {self.high_watermark}: committed records would be lost"
            )
        end = self.log.end_offset
        logger.info(
            "quorum.log_truncated",
            node_id=self.node_id,
            controller_epoch=self.epoch,
            high_watermark=self.high_watermark,
            log_end_offset=end,
            offset=offset,
        )
        self.log.truncate_to(offset)
        self._check_cut(offset)

    def _check_cut(self, offset: int) -> None:
        """What is fetched from the log's new end on is not on the disk, and nothing that is committed has gone."""
        log = self.log
        if log.end_offset < self.high_watermark or log.flushed_offset > log.end_offset:
            raise CommittedTruncation(
                f"node {self.node_id} truncated the metadata log to {offset}; it ends at {log.end_offset} with "
                f"{log.flushed_offset} counted as flushed, and its high watermark is {self.high_watermark}"
            )

    # -- FetchSnapshot -------------------------------------------------------------------------------------------------

    def _start_download(self, role: Follower, snapshot_id: SnapshotId, now: float) -> None:
        if snapshot_id.end_offset <= self.high_watermark:
            self._retry_later(role, "the leader offers a snapshot older than what is committed here", now, str(snapshot_id))
            return
        end, epoch = snapshot_id.end_offset, snapshot_id.epoch
        logger.info("quorum.snapshot_wanted", node_id=self.node_id, controller_epoch=epoch, metadata_offset=end)
        role.download = Download(snapshot_id, self.log.create_snapshot(snapshot_id))

    def _send_fetch_snapshot(self, role: Follower, download: Download) -> None:
        body = FetchSnapshotRequest(
            self.node_id,
            self.cluster_id,
            self.config.snapshot_chunk_bytes_max,
            self.epoch,
            download.snapshot_id,
            download.sink.size,
        )
        self.send(role.leader_id, apis.FETCH_SNAPSHOT, body, after_sync=False)

    def on_fetch_snapshot_response(self, response: FetchSnapshotResponse, role: object, now: float) -> None:
        error = response.error_code
        if self.hear(error, response.leader_id, response.leader_epoch, now) or role is not self.role:
            return
        assert isinstance(role, Follower)
        download = role.download
        if download is None or error not in (ErrorCode.NONE, ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
            self.on_fetch_failed(role, error, now)
            return
        self._succeeded(role, now)
        chunk = response.records[0] if response.records else memoryview(b"")
        fits = response.snapshot_id == download.snapshot_id and response.position == download.sink.size
        if error != ErrorCode.NONE or not fits or not len(chunk) or len(chunk) > response.size - response.position:
            self._drop_download(role, "the snapshot can no longer be fetched", now, to_code(error).name)
        else:
            self._take_chunk(role, download, chunk, response.size, now)
        self.tick_follower(now)

    def _take_chunk(self, role: Follower, download: Download, chunk: memoryview, size: int, now: float) -> None:
        download.sink.append(chunk)
        if download.sink.size < size:
            return
        role.download = None
        try:
            download.sink.freeze()
        except BrokerError as e:
            self._retry_later(role, "a fetched snapshot is damaged", now, str(e))
            return
        self.log.install_snapshot(download.snapshot_id)
        self.advance_high_watermark(download.snapshot_id.end_offset)
        end, epoch = download.snapshot_id.end_offset, download.snapshot_id.epoch
        logger.info("quorum.snapshot_installed", node_id=self.node_id, controller_epoch=epoch, metadata_offset=end)

    def _drop_download(self, role: Follower, reason: str, now: float, detail: str) -> None:
        assert role.download is not None
        role.download.sink.discard()
        role.download = None
        self._retry_later(role, reason, now, detail)
