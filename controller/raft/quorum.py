"""The shell of the metadata quorum: sockets, timers and the disk around a `RaftNode`.

Every event of the node schedules one callback of the event loop, which settles all events up to then. It sends the messages
that may leave at once. In the next callback, when these are on their way, it writes `quorum-state` if that changed, flushes the
log once for everything that gathered, and sends the messages that waited for the disk. It hands committed records to the
listener, in order and once, on the leader and on followers alike.

An error after which the node must not continue (the disk failed, the leader asked it to truncate committed records, a bug)
stops it for good, because to go on could break a promise: the shell logs it, closes the connections, and calls `on_fatal`.
If the disk rejects a snapshot that this node writes, no promise depends on it: the shell drops it and retries later.
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
    """How the quorum notifies the controller. Called from the event loop, never re-entrantly, never after `stop()` returned."""

    def on_committed(self, base_offset: int, last_offset: int, epoch: int, records: Sequence[bytes]) -> None:
        """One committed batch, in order and once. A control batch is handed over without records, for its offsets."""

    def on_snapshot(self, snapshot_id: SnapshotId, records: Iterable[bytes]) -> None:
        """Replace the whole state by these records. The next committed batch starts at `snapshot_id.end_offset`."""

    def on_leader(self, epoch: int) -> None:
        """This node leads, and the listener has every record that earlier leaders committed."""

    def on_resign(self, epoch: int) -> None:
        """This node no longer leads. Records that it appended may still become committed later, or may be lost."""

    def on_leader_changed(self, leader_id: int, epoch: int) -> None:
        """`leader_id` leads `epoch`; -1 if no leader is known."""

    def snapshot_records(self) -> Iterable[bytes]:
        """The whole state at the last committed offset, from an immutable image: it is consumed over several event-loop
        iterations."""


class Quorum:
    """One voter of the metadata quorum. Mount `handlers` on the controller's server before `start()`.

    Raises UsageError if the voters cannot be a quorum, or `node_id` is not one of them."""

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
        """The error that stopped this node for good."""
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
        """When `_timer` is due. Kept here, because a uvloop handle that is due at once does not have it."""
        self._applied_offset = 0
        """The listener has every record below."""
        self._applied_epoch = 0
        self._applied_timestamp_ms = 0
        self._notified_leader = (NO_NODE, -1)
        self._led_epoch: int | None = None
        """The epoch of the last `on_leader` without an `on_resign` after it."""
        self._bytes_since_snapshot = 0
        self._records_since_snapshot = 0
        self._closing: asyncio.Task[None] | None = None
        """Closes the connections of a node that failed."""
        self._snapshot_task: asyncio.Task[SnapshotId | None] | None = None
        self._snapshot_retry: asyncio.TimerHandle | None = None
        """A snapshot failed: the next one is written when this is due."""
        self._notice: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()
        """Set whenever the events have been settled; `stop` waits on it for a successor."""

    # -- for the controller --------------------------------------------------------------------------------------------

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
        """False while this voter recovers from the loss of its disk (`voter_recovery.py`)."""
        return self.node.state.recovery is None

    @property
    def high_watermark(self) -> int:
        return self.node.state.high_watermark

    @property
    def log_end_offset(self) -> int:
        return self.log.end_offset

    def append(self, records: Sequence[bytes], epoch: int) -> int:
        """Append one batch, which is applied whole or not at all, and return its last offset.

        Raises BrokerError NOT_CONTROLLER if this node does not lead `epoch`, and RECORD_LIST_TOO_LARGE."""
        if not self._running:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, f"the metadata quorum of node {self.node_id} is not running")
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
        """Open the log, and take up the role that the log and `quorum-state` allow.

        Raises UsageError if one of them is missing, damaged, or of another cluster."""
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
            self._notice = self._loop.call_later(PATIENCE_S, self._log_recovering)

    def _log_recovering(self) -> None:
        """Once soon after the start, then once a minute."""
        recovery = self.node.state.recovery
        if recovery is None or not self._running:
            return
        self._notice = self._loop.call_later(NOTICE_S, self._log_recovering)
        reason = "this controller started without a metadata log, and an earlier log of it may have held votes and records"
        unanswered = [f"an answer of controller {voter_id}" for voter_id in sorted(recovery.unanswered)]
        awaited = ", ".join(unanswered) or "a leader's committed records"
        logger.warning(
            "quorum.voter_recovering", node_id=self.node_id, controller_epoch=self.epoch, reason=reason, awaited=awaited
        )

    async def stop(self) -> None:
        """Stop in order: a leader resigns first, and waits up to an election timeout for its successor."""
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
            logger.warning("quorum.stopped_without_successor", node_id=self.node_id, controller_epoch=self.epoch)

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
        # An error of the disk, or damage on it, explains itself. Any other error is a bug, and needs its traceback.
        bug = None if isinstance(error, (DiskError, UsageError)) else error
        logger.critical("quorum.failed", node_id=self.node_id, controller_epoch=self.epoch, reason=str(error), exc_info=bug)
        self._closing = self._loop.create_task(self._close_connections(), name="close the failed quorum node")
        if self._on_fatal is not None:
            self._on_fatal(error)

    def _guard(self, step: Callable[..., None], *args: Any) -> None:
        """Run a step of the node; after an error in it the node stops."""
        if not self._running:
            return
        try:
            step(*args)
        except Exception as e:
            self._fail(e)

    # -- events in -----------------------------------------------------------------------------------------------------

    def _on_request(self, request: ServerRequest) -> None:
        if not self._running:
            request.refuse(ErrorCode.NOT_CONTROLLER, f"the metadata quorum of controller {self.node_id} is not running")
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
        self._notify_listener()
        self._arm_timer()
        self._settled.set()

    def _sync(self) -> None:
        """The only place that waits for the disk."""
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

    def _notify_listener(self) -> None:
        node, role = self.node, self.node.state.role
        if self._led_epoch is not None and not (isinstance(role, Leader) and node.state.epoch == self._led_epoch):
            epoch, self._led_epoch = self._led_epoch, None
            logger.info("quorum.leader_resigned", node_id=self.node_id, controller_epoch=epoch)
            self.metrics.on_resign()
            self._listener.on_resign(epoch)
        self.metrics.on_high_watermark(node.state.high_watermark, self._doors.stopwatch())
        self._apply()
        leader = (node.state.leader_id, node.state.epoch)
        if leader != self._notified_leader:
            self._notified_leader = leader
            self.metrics.on_leader_known(node.state.leader_id != NO_NODE, self._doors.stopwatch())
            if node.state.leader_id not in (NO_NODE, self.node_id):
                logger.info(
                    "quorum.leader_discovered",
                    node_id=self.node_id,
                    leader_id=node.state.leader_id,
                    controller_epoch=node.state.epoch,
                )
            self._listener.on_leader_changed(*leader)
        if isinstance(role, Leader) and self._led_epoch is None and self._applied_offset > role.epoch_start_offset:
            self._led_epoch = node.state.epoch
            hw = node.state.high_watermark
            logger.info("quorum.became_leader", node_id=self.node_id, controller_epoch=node.state.epoch, high_watermark=hw)
            self._listener.on_leader(node.state.epoch)
        self._maybe_snapshot()

    def _apply(self) -> None:
        """Hand committed records to the listener, up to `apply_bytes_max` per event-loop iteration."""
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
        """At the start, and after a snapshot was installed: the log no longer has the listener's next record."""
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
        """Write a snapshot now. None if nothing was committed since the last one, or the disk rejected it."""
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
        """`bytes_before` and `records_before` are the counters that this snapshot has reset. They are restored if the disk
        rejects the snapshot (because it is full, for example) or returns other bytes than were written."""
        try:
            size = await self._write_snapshot(snapshot_id, records)
        except (DiskError, BrokerError) as e:
            self._bytes_since_snapshot += bytes_before
            self._records_since_snapshot += records_before
            self._snapshot_retry = self._loop.call_later(self.config.snapshot_retry_ms / 1000, self._on_snapshot_retry)
            end, retry_ms = snapshot_id.end_offset, self.config.snapshot_retry_ms
            reason = f"{e}; the next attempt is in {retry_ms} ms"
            logger.warning("quorum.snapshot_failed", node_id=self.node_id, metadata_offset=end, reason=reason)
            return None
        if size is None:
            return None
        # From here on the files of the log itself change: an error there is fatal.
        self.log.clean(self._doors.wall_clock_ms())
        end = snapshot_id.end_offset
        logger.info("quorum.snapshot_written", node_id=self.node_id, metadata_offset=end, size_bytes=size)
        return snapshot_id

    def _on_snapshot_retry(self) -> None:
        self._snapshot_retry = None
        self._schedule()

    async def _write_snapshot(self, snapshot_id: SnapshotId, records: Iterable[bytes]) -> int | None:
        """Write one batch per event-loop iteration, so that a large image delays no other work. Returns the snapshot's size, or
        None if a newer snapshot was installed meanwhile."""
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
