"""The shell of the metadata quorum: sockets, timers and the disk around a `RaftNode`.

Everything that happens to the node marks the shell as having something to settle, and one callback per turn of the loop
settles it: what may leave at once leaves; then, in the next callback (so that the first half is on its way already),
`quorum-state` is written if it changed and the log is flushed, once for all that gathered, and what waited for that
leaves. Committed records are handed to the listener, in order and once, on leader and followers alike.

An error that the node must not survive (the disk failed, it was told to drop committed records, a bug) stops it for
good: it says so in the log, closes its connections, and tells its owner by `on_fatal`. Going on could break a promise.
A snapshot of its own that the disk refuses is none of these: nothing rests on it yet, so it is given up and tried later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from strandline.controller.metadata.voters import Voter, check_quorum
from strandline.controller.metrics import QuorumMetrics
from strandline.controller.raft.channel import NOTICE_S, PATIENCE_S, VoterChannel
from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.election import NO_NODE
from strandline.controller.raft.metadata_log import DIRECTORY, MetadataLog
from strandline.controller.raft.node import QUORUM_APIS, RaftNode
from strandline.controller.raft.outbox import Reply, Send
from strandline.controller.raft.roles import Leader
from strandline.controller.raft.snapshots import SnapshotWriter, in_batches, snapshot_values
from strandline.controller.raft.state_store import QuorumStateStore
from strandline.protocol.doors import Doors
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.cluster import DescribeQuorumResponse, QuorumNode, VoteRequest
from strandline.protocol.messages.common import Message, SnapshotId
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.builder import encode_values
from strandline.protocol.records.reader import decode_values
from strandline.protocol.rpc.server import ServerRequest
from strandline.storage.files import DiskError, Files, join

logger = get_logger(__name__)


class QuorumListener(Protocol):
    """What the quorum tells the controller. Called from the loop, never re-entrantly, never after `stop()` returned."""

    def on_committed(self, base_offset: int, last_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        """One committed batch, in order and once. Control batches come with no records: only the offsets move on."""

    def on_snapshot(self, snapshot_id: SnapshotId, records: Iterable[bytes]) -> None:
        """Replace all state; what follows begins at `snapshot_id.end_offset`."""

    def on_leader(self, epoch: int) -> None:
        """This node leads, and everything that earlier leaders committed has been handed over."""

    def on_resign(self, epoch: int) -> None:
        """This node no longer leads; what it appended and did not see committed may or may not become so."""

    def on_leader_changed(self, leader_id: int, epoch: int) -> None:
        """Somebody (-1: nobody known) leads in this epoch."""

    def snapshot_records(self) -> Iterable[bytes]:
        """The whole state at the last committed offset. Consumed over several turns of the loop: an immutable image."""


class Quorum:
    """One voter. Mount `handlers` on the controller's server before `start()`."""

    def __init__(
        self,
        *,
        node_id: int,
        cluster_id: str,
        voters: Sequence[Voter],
        data_dir: str,
        files: Files,
        doors: Doors,
        config: RaftConfig,
        listener: QuorumListener,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        check_quorum(voters, node_id)
        self.voters = sorted(voters)
        self.config = config
        self.metrics = QuorumMetrics()
        self.failure: BaseException | None = None
        """What stopped this node for good."""
        self.handlers: Mapping[int, Callable[[ServerRequest], None]] = dict.fromkeys(QUORUM_APIS, self._on_request)
        self._data_dir = data_dir
        self._files = files
        self._doors = doors
        self._listener = listener
        self._on_fatal = on_fatal
        self._running = False
        self._settle_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        """When `_timer` is due. Kept here, since a uvloop handle that is due at once cannot say it."""
        self._applied_offset = 0
        """Everything below has been handed to the listener."""
        self._applied_epoch = 0
        self._applied_timestamp_ms = 0
        self._told_leader = (NO_NODE, -1)
        self._led_epoch: int | None = None
        """The epoch of the last `on_leader` that no `on_resign` has followed."""
        self._bytes_since_snapshot = 0
        self._records_since_snapshot = 0
        self._closing: asyncio.Task[None] | None = None
        """Of a node that failed: its connections are being closed."""
        self._snapshot_task: asyncio.Task[SnapshotId | None] | None = None
        self._snapshot_retry: asyncio.TimerHandle | None = None
        """One was given up: until this is due, none is tried."""
        self._notice: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()
        """Set by every settling; `stop` waits on it for a successor."""

    # -- what the controller asks --------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.node.state.epoch

    @property
    def leader_id(self) -> int:
        return self.node.state.leader_id

    @property
    def is_leader(self) -> bool:
        return self._running and self.node.state.is_leader

    @property
    def has_vote(self) -> bool:
        """False while this voter has still to learn what an earlier disk of it may have promised (`learning.py`)."""
        return self.node.state.recovery is None

    @property
    def high_watermark(self) -> int:
        return self.node.state.high_watermark

    @property
    def log_end_offset(self) -> int:
        return self.log.end_offset

    def append(self, records: Sequence[bytes], epoch: int) -> int:
        """Leader of `epoch` only: one batch, applied whole or not at all; returns its last offset."""
        if not self._running:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, f"node {self.node_id} does not run")
        batch = bytearray(encode_values(records, self._doors.wall_clock_ms()))
        if len(batch) > self.config.batch_bytes_max:
            raise BrokerError(ErrorCode.RECORD_LIST_TOO_LARGE, f"{len(batch)} bytes of metadata records in one batch")
        try:
            last_offset = self.node.append(batch, epoch)
            self.metrics.on_append(last_offset, self._doors.stopwatch())
            return last_offset
        except BrokerError:
            raise
        except (DiskError, UsageError) as e:
            self._fail(e)
            raise BrokerError(ErrorCode.NOT_CONTROLLER, f"controller {self.node_id} stops: {e}") from e
        except Exception as e:
            self._fail(e)
            raise
        finally:
            self._schedule()

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the log, take up the role that it and `quorum-state` allow, and begin."""
        self._loop = asyncio.get_running_loop()
        voter_ids = [voter.id for voter in self.voters]
        directory = join(self._data_dir, DIRECTORY)
        self._store = QuorumStateStore(self._files, directory, cluster_id=self.cluster_id, voter_ids=voter_ids)
        state = self._store.read()
        committed_offset = state.applied_offset if state else 0
        now_ms = self._doors.wall_clock_ms()
        self.log = MetadataLog.open(self._files, self._data_dir, self.config, committed_offset=committed_offset, now_ms=now_ms)
        self.node = RaftNode(
            node_id=self.node_id,
            cluster_id=self.cluster_id,
            voter_ids=voter_ids,
            log=self.log,
            election=self._store.check(state, self.log.end_offset),
            committed_offset=committed_offset,
            config=self.config,
            random=self._doors.random,
        )
        client_id = f"raft-{self.node_id}"
        self._channels = {
            voter.id: VoterChannel(voter, client_id, self.config, self._doors.random)
            for voter in self.voters
            if voter.id != self.node_id
        }
        self._running = True
        self.metrics.on_leader_known(False, self._doors.stopwatch())
        self.node.start(self._loop.time())
        self._guard(self._settle)
        if not self.has_vote:
            self._notice = self._loop.call_later(PATIENCE_S, self._tell_why_there_is_no_vote)

    def _tell_why_there_is_no_vote(self) -> None:
        """Once soon after the start, then once a minute."""
        recovery = self.node.state.recovery
        if recovery is None or not self._running:
            return
        self._notice = self._loop.call_later(NOTICE_S, self._tell_why_there_is_no_vote)
        reason = "this controller began without a metadata log: what an earlier one may have promised is not known here"
        unanswered = [f"an answer of controller {voter_id}" for voter_id in sorted(recovery.unanswered)]
        awaited = ", ".join(unanswered) or "a leader's committed records"
        logger.warning(
            "quorum.voter_recovering", node_id=self.node_id, controller_epoch=self.epoch, reason=reason, awaited=awaited
        )

    async def stop(self) -> None:
        """Orderly: a leader hands over first and gives its successor a moment to be elected."""
        if not self._running and self._closing is None:
            return
        if self._running:
            await self._hand_over()
        if self._snapshot_task is not None:
            self._snapshot_task.cancel()
            await asyncio.gather(self._snapshot_task, return_exceptions=True)
        await (self._close_connections() if self._closing is None else self._closing)
        if self.failure is None:
            self.log.close()
        else:
            self.log.abandon()

    async def _hand_over(self) -> None:
        if self.node.state.is_leader and self._channels:
            self.node.resign(self._loop.time())
            self._schedule()
            await self._wait_for_successor(self.config.election_timeout_ms / 1000)
        self._running = False
        if self._led_epoch is not None:
            epoch, self._led_epoch = self._led_epoch, None
            self._listener.on_resign(epoch)

    async def _wait_for_successor(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while self._running and self.node.state.leader_id == NO_NODE:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            logger.warning("quorum.left_without_successor", node_id=self.node_id, controller_epoch=self.epoch)

    async def _close_connections(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._snapshot_retry is not None:
            self._snapshot_retry.cancel()
        if self._notice is not None:
            self._notice.cancel()
        for channel in self._channels.values():
            await channel.close()

    def _fail(self, error: BaseException) -> None:
        if self.failure is not None:
            return
        self.failure = error
        self._running = False
        self._settled.set()
        # What the disk says, and what is damaged on it, is a sentence; all else is our own mistake.
        bug = None if isinstance(error, (DiskError, UsageError)) else error
        logger.critical("quorum.failed", node_id=self.node_id, controller_epoch=self.epoch, reason=str(error), exc_info=bug)
        self._closing = self._loop.create_task(self._close_connections(), name="close the failed quorum node")
        if self._on_fatal is not None:
            self._on_fatal(error)

    def _guard(self, step: Callable[..., None], *args: Any) -> None:
        """Run a step of the node; an error out of it is not one to go on after."""
        if not self._running:
            return
        try:
            step(*args)
        except Exception as e:
            self._fail(e)

    # -- events in -----------------------------------------------------------------------------------------------------

    def _on_request(self, request: ServerRequest) -> None:
        if not self._running:
            request.refuse(ErrorCode.NOT_CONTROLLER, f"controller {self.node_id} does not take part in the quorum")
            return
        if isinstance(request.body, VoteRequest) and request.body.replica_id in self._channels:
            self._channels[request.body.replica_id].seems_alive()
        self._guard(self.node.on_request, request.api_key, request.body, request, request.connection.id, self._loop.time())
        self._schedule()

    def _on_done(self, send: Send, result: Message | Exception) -> None:
        if isinstance(result, Exception):
            error = result.code if isinstance(result, BrokerError) else ErrorCode.NETWORK_EXCEPTION
            self._guard(self.node.on_failure, send, error, self._loop.time())
        else:
            self._guard(self.node.on_response, send, result, self._loop.time())
        self._schedule()

    def _on_timer(self) -> None:
        self._timer = None
        self._guard(self.node.tick, self._loop.time())
        self._guard(self._settle)

    # -- settling ------------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._settle_scheduled and self._running:
            self._settle_scheduled = True
            self._loop.call_soon(self._guard, self._settle)

    def _settle(self) -> None:
        self._settle_scheduled = False
        node = self.node
        node.complete_fetches(self._loop.time())
        at_once = node.state.outbox.take_at_once()
        self._transmit(at_once)
        if node.state.needs_sync:
            if at_once:
                self._loop.call_soon(self._guard, self._sync)
            else:
                self._sync()
                return
        self._tell_listener()
        self._arm_timer()
        self._settled.set()

    def _sync(self) -> None:
        """The one place that waits for the disk."""
        node = self.node
        waiting = node.state.outbox.take_after_sync()
        if node.state.election_dirty:
            self._store.write(node.state.election, min(node.state.high_watermark, self.log.flushed_offset))
            node.state.election_dirty = False
        self.log.flush()
        node.state.wall_clock_ms = self._doors.wall_clock_ms()
        node.on_synced(self._loop.time())
        self._transmit(waiting)
        self._schedule()
        self._arm_timer()

    def _transmit(self, messages: list[Send | Reply]) -> None:
        for message in messages:
            if isinstance(message, Send):
                self._send(message)
                continue
            request, body = message.ticket, message.body
            assert isinstance(request, ServerRequest)
            if isinstance(body, DescribeQuorumResponse):
                body.nodes = [QuorumNode(*voter) for voter in self.voters]
            request.reply(body, message.records)

    def _send(self, send: Send) -> None:
        self._channels[send.to_id].send(send.api_key, send.body, lambda result: self._on_done(send, result))

    def _arm_timer(self) -> None:
        deadline = self.node.next_deadline()
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._on_timer) if deadline != float("inf") else None

    # -- the listener --------------------------------------------------------------------------------------------------

    def _tell_listener(self) -> None:
        node, role = self.node, self.node.state.role
        if self._led_epoch is not None and not (isinstance(role, Leader) and node.state.epoch == self._led_epoch):
            epoch, self._led_epoch = self._led_epoch, None
            logger.info("quorum.leader_resigned", node_id=self.node_id, controller_epoch=epoch)
            self.metrics.on_resign()
            self._listener.on_resign(epoch)
        self.metrics.on_high_watermark(node.state.high_watermark, self._doors.stopwatch())
        self._apply()
        leader = (node.state.leader_id, node.state.epoch)
        if leader != self._told_leader:
            self._told_leader = leader
            self.metrics.on_leader_known(node.state.leader_id != NO_NODE, self._doors.stopwatch())
            if node.state.leader_id not in (NO_NODE, self.node_id):
                logger.info(
                    "quorum.following", node_id=self.node_id, leader_id=node.state.leader_id, controller_epoch=node.state.epoch
                )
            self._listener.on_leader_changed(*leader)
        if isinstance(role, Leader) and self._led_epoch is None and self._applied_offset > role.epoch_start_offset:
            self._led_epoch = node.state.epoch
            hw = node.state.high_watermark
            logger.info("quorum.became_leader", node_id=self.node_id, controller_epoch=node.state.epoch, high_watermark=hw)
            self._listener.on_leader(node.state.epoch)
        self._maybe_snapshot()

    def _apply(self) -> None:
        """Hand over what is committed, a bounded piece per turn; the rest comes in the next turns."""
        self._maybe_load_snapshot()
        if self._applied_offset >= self.node.state.high_watermark:
            return
        buffers, size = self.log.read_below(self._applied_offset, self.config.apply_bytes_max, self.node.state.high_watermark)
        self._bytes_since_snapshot += size
        for buffer in buffers:
            for pos, header in iter_headers(buffer):
                values = () if header.is_control else decode_values(buffer, pos, header)
                self._applied_offset = header.last_offset + 1
                self._applied_epoch = header.leader_epoch
                self._applied_timestamp_ms = header.max_timestamp
                self._records_since_snapshot += len(values)
                self._listener.on_committed(
                    header.base_offset, header.last_offset, header.leader_epoch, [value or b"" for value in values]
                )
        if self._applied_offset < self.node.state.high_watermark:
            self._schedule()

    def _maybe_load_snapshot(self) -> None:
        """At the start, and when one was installed: the log no longer holds what comes next for the listener."""
        latest = self.log.latest_snapshot_id
        if latest is None or (self._applied_offset >= self.log.start_offset and self._applied_offset > 0):
            return
        if latest.end_offset <= self._applied_offset:
            return
        self._listener.on_snapshot(latest, snapshot_values(self.log.load_snapshot(latest)))
        self._applied_offset, self._applied_epoch = latest.end_offset, latest.epoch
        self._bytes_since_snapshot = self._records_since_snapshot = 0

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def _maybe_snapshot(self) -> None:
        due = (
            self._bytes_since_snapshot >= self.config.snapshot_after_bytes
            or self._records_since_snapshot >= self.config.snapshot_after_records
        )
        if due and self._snapshot_task is None and self._snapshot_retry is None:
            self._start_snapshot()

    async def take_snapshot(self) -> SnapshotId | None:
        """Write a snapshot now, wherever the counters are; None when there is nothing new to write, or the disk refused."""
        task = self._snapshot_task or self._start_snapshot()
        return await task

    def _start_snapshot(self) -> asyncio.Task[SnapshotId | None]:
        snapshot_id = SnapshotId(self._applied_offset, self._applied_epoch)
        latest = self.log.latest_snapshot_id
        is_new = snapshot_id.end_offset > (latest.end_offset if latest else 0)
        records = self._listener.snapshot_records() if is_new else ()
        counted = self._bytes_since_snapshot, self._records_since_snapshot
        self._bytes_since_snapshot = self._records_since_snapshot = 0
        self._snapshot_task = self._loop.create_task(
            self._try_snapshot(snapshot_id, records, *counted) if is_new else _nothing(), name="write a metadata snapshot"
        )
        self._snapshot_task.add_done_callback(self._on_snapshot_done)
        return self._snapshot_task

    async def _try_snapshot(
        self, snapshot_id: SnapshotId, records: Iterable[bytes], bytes_before: int, records_before: int
    ) -> SnapshotId | None:
        """`*_before`: what the counters said; they say so again if the disk (a full one, say) refuses the snapshot, or gives it
        back otherwise than it was written."""
        try:
            size = await self._write_snapshot(snapshot_id, records)
        except (DiskError, BrokerError) as e:
            self._bytes_since_snapshot += bytes_before
            self._records_since_snapshot += records_before
            self._snapshot_retry = self._loop.call_later(self.config.snapshot_retry_ms / 1000, self._on_snapshot_retry)
            end, retry_ms = snapshot_id.end_offset, self.config.snapshot_retry_ms
            reason = f"{e}; again in {retry_ms} ms"
            logger.warning("quorum.snapshot_given_up", node_id=self.node_id, metadata_offset=end, reason=reason)
            return None
        if size is None:
            return None
        # From here on it is the log's own files that change: an error there is fatal as any other of the log's.
        self.log.clean(self._doors.wall_clock_ms())
        end = snapshot_id.end_offset
        logger.info("quorum.snapshot_written", node_id=self.node_id, metadata_offset=end, size_bytes=size)
        return snapshot_id

    def _on_snapshot_retry(self) -> None:
        self._snapshot_retry = None
        self._schedule()

    async def _write_snapshot(self, snapshot_id: SnapshotId, records: Iterable[bytes]) -> int | None:
        """Its size. A batch per turn of the loop, so that a big image delays nothing else."""
        sink = self.log.create_snapshot(snapshot_id)
        try:
            writer = SnapshotWriter(sink, snapshot_id.epoch, self._applied_timestamp_ms)
            for batch in in_batches(records):
                writer.write(batch)
                await asyncio.sleep(0)
            if snapshot_id.end_offset <= self.log.start_offset:
                return None  # a newer one was installed meanwhile
            writer.finish()
        finally:
            sink.discard()
        return sink.size

    def _on_snapshot_done(self, task: asyncio.Task[SnapshotId | None]) -> None:
        self._snapshot_task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)


async def _nothing() -> None:
    return None
