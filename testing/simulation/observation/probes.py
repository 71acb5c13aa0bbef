"""Probes: report to the invariants and the trace what happens inside the production classes.

While a `Probes` is entered, methods of production classes are wrapped from outside. A wrapped method does what it did before.
The probe runs after it (a few before it), and never raises into it. Production code contains nothing for the probes and pays
nothing for them.

The process of a call is found from its objects: that of a log from its files (each process has its own view of its disk), that of
a partition from its log, that of a quorum from its node id. Calls of a process that has died, or was replaced by a new one, are
ignored.

    invariants = Invariants(world.trace, on_violation=world.scheduler.fail)
    world.scheduler.after_step.append(invariants.after_step)
    with Probes(invariants):
        world.run(story)
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Self

from strandline.broker.fetch import offsets_handler as offsets
from strandline.broker.fetch.fetch_handler import READ_COMMITTED, Fetch
from strandline.broker.groups.consumer.member_timers import SESSION
from strandline.broker.groups.consumer.protocol import ConsumerProtocol
from strandline.broker.groups.shard import GroupShard
from strandline.broker.partition.leader_state import LeaderState
from strandline.broker.partition.log_failures import LogFailures
from strandline.broker.partition.partition import Partition
from strandline.broker.process import wiring
from strandline.broker.process.quorum_observer import QuorumObserver
from strandline.broker.process.server import BrokerServer
from strandline.broker.produce.produce_handler import ACKS_ALL, DelayedProduce, ProduceHandler
from strandline.controller import handlers, leader_balancer
from strandline.controller import server as controller_server
from strandline.controller.controller import Controller
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import decode_record
from strandline.controller.metadata.security.access import Access
from strandline.controller.raft.leader_handler import LeaderHandler
from strandline.controller.raft.metadata_log import FileSink, MetadataLog
from strandline.controller.raft.node_shell import NodeShell
from strandline.controller.raft.outbox import Send
from strandline.controller.raft.quorum import Quorum
from strandline.controller.raft.raft_state import RaftState
from strandline.controller.raft.roles import Leader
from strandline.controller.raft.snapshots import snapshot_values
from strandline.controller.security.envelope import EnvelopedRequest
from strandline.controller.server import ControllerServer
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.cluster import VoteResponse
from strandline.protocol.messages.data import LATEST_TIMESTAMP, ProduceResponse
from strandline.protocol.messages.security import TOPIC_RESOURCE
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.rpc.server import ServerRequest
from strandline.protocol.rpc.server_connection import ServerConnection
from strandline.storage.directory.future_logs import FUTURE_SUFFIX
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.log.log import AppendInfo, Log
from strandline.storage.log.log_state import LogState
from strandline.storage.memory.memory_files import TEMPORARY, MemoryFile, MemoryFiles
from strandline.testing.simulation.invariants import fencing, honesty, resources, rights
from strandline.testing.simulation.invariants.ghosts import METADATA, Process, ReplicaGhost
from strandline.testing.simulation.invariants.groups import ANSWERS
from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.observation.wrapping import is_keeping, wrap

Function = Callable[..., Any]
_ALLOWED_AT_STOP = 2
"""Tasks that remain when a server has stopped: the one that stops it, and the one that waits for its failure."""


def node_of() -> int | None:
    """The simulated machine whose code runs at this moment; None outside of a simulated process."""
    machine = getattr(asyncio._get_running_loop(), "machine", None)
    return None if machine is None else int(machine.id)


def _clock_ms() -> int:
    """The latest time that the wall clock of the machine which runs now may have shown."""
    machine = getattr(asyncio._get_running_loop(), "machine", None)
    return 1 << 62 if machine is None else int(machine.latest_clock_ms())


def replica_of(log: Log) -> ReplicaGhost | None:
    """The ghost of this log; None if its process has ended or was never seen."""
    replica: ReplicaGhost | None = getattr(log, "ghost", None)
    if replica is None or replica.log is not log or replica.process is None or not replica.process.is_alive:
        return None
    return replica


class _Deaf:
    """The trace between two runs: it drops every event."""

    def emit(self, kind: str, node: int, partition: str = "", /, **fields: Any) -> None:
        pass


@functools.cache
def idle() -> Probes:
    """The probes between two runs. They keep no reference to the last run."""
    return Probes(Invariants(_Deaf()))


class Probes:
    def __init__(self, invariants: Invariants) -> None:
        self.invariants = invariants
        self._undo: list[Callable[[], None]] = []
        self._produced: dict[int, tuple[object, ReplicaGhost, int, int]] = {}
        """`id` of the response for a partition -> that response, the replica that appended, the base offset, and the offset that
        the high watermark must reach."""

    def __enter__(self) -> Self:
        self._install()
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()
        if is_keeping():
            nobody = idle()
            nobody._install()
            nobody._undo.clear()
        self._produced.clear()

    def _install(self) -> None:
        for install in (
            self._processes,
            self._logs,
            self._partitions,
            self._isr,
            self._clients,
            self._quorum,
            self._metadata,
            self._rights,
        ):
            install()

    # -- wrapping -----------------------------------------------------------------------------------------------------

    def _wrap(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        self._undo.append(wrap("probes", owner, name, make))

    def _after(self, owner: Any, name: str, tell: Function) -> None:
        """Call `tell(result, *arguments)` after the function, unless it raised."""
        note = self.invariants.note

        def make(original: Function) -> Function:
            def wrapped(*args: Any, **keywords: Any) -> Any:
                result = original(*args, **keywords)
                try:
                    tell(result, *args, **keywords)
                except Exception as e:
                    note(e)
                return result

            return wrapped

        self._wrap(owner, name, make)

    def _around(self, owner: Any, name: str, before: Function, after: Function) -> None:
        """Call `after(state, result, *arguments)`, where `before(*arguments)` returned the state; skipped if the state is
        None."""
        guarded = self._guarded

        def make(original: Function) -> Function:
            def wrapped(*args: Any, **keywords: Any) -> Any:
                seen = guarded(before, *args, **keywords)
                result = original(*args, **keywords)
                if seen is not None:
                    guarded(after, seen, result, *args, **keywords)
                return result

            return wrapped

        self._wrap(owner, name, make)

    def _before(self, owner: Any, name: str, tell: Function) -> None:
        note = self.invariants.note

        def make(original: Function) -> Function:
            def wrapped(*args: Any, **keywords: Any) -> Any:
                try:
                    tell(*args, **keywords)
                except Exception as e:
                    note(e)
                return original(*args, **keywords)

            return wrapped

        self._wrap(owner, name, make)

    def _guarded(self, function: Function, *args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except Exception as e:
            self.invariants.note(e)
            return None

    # -- processes ----------------------------------------------------------------------------------------------------

    def _processes(self) -> None:
        invariants = self.invariants

        def made(_: None, server: Any, config: Any, doors: Any, files: Any, **_levels: Any) -> None:
            # Otherwise this is a second process with an id that is in use, which the controller must refuse.
            if node_of() in (None, config.node_id):
                invariants.on_process(config.node_id, server, files, asyncio._get_running_loop())

        def make_start(original: Function) -> Function:
            async def start(server: Any) -> None:
                await original(server)
                process = self._process(server)
                if process is not None:
                    process.has_started = True

            return start

        def make_stop(original: Function) -> Function:
            async def stop(server: Any) -> None:
                does_nothing = getattr(server, "is_stopping", False) or getattr(server, "log_dirs", server) is None
                await original(server)
                if not does_nothing:
                    self._stopped(server)

            return stop

        for kind in (BrokerServer, ControllerServer):
            self._after(kind, "__init__", made)
            self._wrap(kind, "start", make_start)
            self._wrap(kind, "stop", make_stop)
        self._wrap(BrokerServer, "kill", make_stop)
        self._after(MemoryFiles, "open", self._opened)
        self._after(MemoryFile, "close", self._closed)

    def _stopped(self, server: Any) -> None:
        process = self._process(server)
        if process is None:
            return
        if process.has_started:
            self._guarded(resources.check_stopped, process, _ALLOWED_AT_STOP)
        self.invariants.on_process_ended(server)

    def _process(self, server: Any) -> Process | None:
        process = self.invariants.ghosts.processes.get(server.config.node_id)
        return process if process is not None and process.server is server and process.is_alive else None

    def _opened(self, file: MemoryFile, files: MemoryFiles, path: str, **_: Any) -> None:
        process = self.invariants.ghosts.process_of_files(files)
        if process is not None and not path.endswith((TEMPORARY, ".lock")):
            process.open_files[id(file)] = file

    def _closed(self, _: None, file: MemoryFile) -> None:
        process = self.invariants.ghosts.process_of_files(file.files)
        if process is not None:
            process.open_files.pop(id(file), None)

    # -- logs ---------------------------------------------------------------------------------------------------------

    def _logs(self) -> None:
        self._after(Log, "open", self._log_opened)
        self._wrap(Log, "append_batches", self._make_append)
        self._after(Log, "append_as_leader", self._note_token)
        self._around(Log, "truncate_to", self._before_truncation, self._after_truncation)
        self._around(Log, "truncate_fully_and_start_at", self._before_truncation, self._after_truncation)
        self._after(Log, "update_high_watermark", self._high_watermark)
        self._after(Log, "increment_log_start_offset", self._log_start)
        self._after(Log, "delete_old_segments", self._log_start)
        self._around(Log, "roll", lambda log, *_: len(log.segments), self._rolled)
        self._around(Log, "replace_segments", self._before_replacement, self._replaced)
        self._after(Log, "flush", self._flushed)
        self._around(LogState, "mark_corrupt", lambda log, *_: (log.metrics.corrupt_ranges, log.corrupt_at), self._damage)
        self._around(Log, "expire_producers", lambda log, *_: len(log.producers), self._forgotten)
        self._before(LogDir, "delete_log", self._log_leaves)
        self._before(LogDir, "set_aside", self._log_leaves)
        self._before(LogDir, "close", self._logs_close)
        self._before(LogDir, "close_cleanly", self._logs_close_in_order)
        self._after(LogDir, "load", self._logs_found)

    def _log_opened(self, log: Log, *_: Any, **__: Any) -> None:
        """Show the log, unless it is a future replica: that becomes a log of its partition when it takes the place of one."""
        if not log.dir.endswith(FUTURE_SUFFIX):
            self._show_log(log)

    def _log_moved(self, before: tuple[ReplicaGhost], _: None, partition: Partition, log: Log) -> None:
        """The copy in another directory takes the place of a log."""
        replica, path = before[0], before[0].path
        self._show_log(log)
        self.invariants.on_partition(replica, partition)
        self.invariants.on_log_moved(replica, path)

    def _before_log_moved(self, partition: Partition, _: Log) -> tuple[ReplicaGhost] | None:
        replica = replica_of(partition.log)
        return None if replica is None else (replica,)

    def _show_log(self, log: Log) -> None:
        replica = self.invariants.on_log_opened(log)
        if replica is not None:
            object.__setattr__(log, "ghost", replica)  # Do not use `vars(log)`: that makes every attribute of the object slower.

    def _make_append(self, original: Function) -> Function:
        invariants = self.invariants
        on_appended, note = invariants.on_appended, invariants.note

        def append(log: Log, records: Any, headers: Any, now_ms: int, log_append_time_ms: int) -> Any:
            replica = replica_of(log)
            if replica is None:
                return original(log, records, headers, now_ms, log_append_time_ms)
            try:
                info = original(log, records, headers, now_ms, log_append_time_ms)
            except BaseException:
                self._guarded(invariants.on_append_failed, replica, records, headers, log_append_time_ms >= 0)
                raise
            try:
                on_appended(replica, records, headers, log_append_time_ms >= 0)
            except Exception as e:
                note(e)
            return info

        return append

    def _note_token(
        self,
        info: AppendInfo,
        log: Log,
        _: Any,
        epoch: int,
        _now: int,
        _checked: Any = (),
        _offset: int = -1,
        token: int = -1,
        _is_transactional: bool = False,
    ) -> None:
        replica = replica_of(log)
        if replica is not None and token >= 0 and not info.duplicate:
            fencing.on_sent(replica.partition, epoch, info.first_offset, token)

    def _before_truncation(self, log: Log, *_: Any) -> tuple[ReplicaGhost, int | None] | None:
        replica = replica_of(log)
        return None if replica is None else (replica, log.corrupt_at)

    def _after_truncation(self, seen: tuple[ReplicaGhost, int | None], _result: Any, log: Log, *_: Any) -> None:
        self.invariants.on_truncated(seen[0], log, seen[1])

    def _high_watermark(self, moved: bool, log: Log, _: int) -> None:
        replica = replica_of(log) if moved else None
        if replica is not None:
            self.invariants.on_high_watermark(replica, log.high_watermark)

    def _log_start(self, _: Any, log: Log, *__: Any) -> None:
        replica = replica_of(log)
        if replica is not None:
            self.invariants.on_log_start(replica, log)

    def _rolled(self, segments: int, _: None, log: Log, *__: Any) -> None:
        replica = replica_of(log)
        if replica is not None and len(log.segments) != segments:
            self.invariants.on_rolled(replica, log)

    def _before_replacement(self, log: Log, old: Any, cleaned: Any, *_: Any) -> tuple[ReplicaGhost, Any] | None:
        replica = replica_of(log)
        if replica is None or replica.partition.key == METADATA:
            return None
        return replica, self.invariants.on_replacing(replica, old, cleaned.end_offset)

    def _replaced(self, seen: tuple[ReplicaGhost, Any], _: Any, log: Log, *__: Any) -> None:
        self.invariants.on_replaced(seen[0], log, seen[1], _clock_ms())

    def _flushed(self, _: None, log: Log) -> None:
        replica = replica_of(log)
        if replica is not None:
            self.invariants.on_flushed(replica)

    def _damage(self, seen: tuple[int, int | None], _: None, log: Log, offset: int, *__: Any) -> None:
        counted, known = seen
        replica = replica_of(log)
        if replica is not None and log.corrupt_at == offset != known:
            self.invariants.on_damage(replica, offset, counted)

    def _forgotten(self, known: int, _: None, log: Log, *__: Any) -> None:
        replica = replica_of(log)
        if replica is not None and len(log.producers) < known:
            replica.has_forgotten = True

    def _log_leaves(self, log_dir: LogDir, topic: str, partition: int, *_: Any) -> None:
        log = log_dir.logs.get((topic, partition))
        replica = None if log is None else replica_of(log)
        if replica is not None:
            self.invariants.on_log_gone(replica)

    def _logs_close(self, log_dir: LogDir, *_: Any, **__: Any) -> None:
        for log in log_dir.logs.values():
            replica = replica_of(log)
            if replica is not None:
                self.invariants.on_log_gone(replica)

    def _logs_close_in_order(self, log_dir: LogDir, *_: Any) -> None:
        disk = getattr(log_dir.files, "disk", None)
        if disk is not None:
            self.invariants.on_logs_closing((disk, log_dir.directory_id))

    def _logs_found(self, _: None, log_dir: LogDir) -> None:
        disk = getattr(log_dir.files, "disk", None)
        if disk is not None:
            self.invariants.on_logs_found((disk, log_dir.directory_id), log_dir.meta.node_id, log_dir.was_clean)

    # -- partitions ---------------------------------------------------------------------------------------------------

    def _partitions(self) -> None:
        self._after(Partition, "__init__", self._partition)
        self._around(Partition, "make_leader", self._before_leading, self._leader)
        self._after(Partition, "make_follower", self._follower)
        self._after(Partition, "stop", self._role_ended)
        self._around(Partition, "use_log", self._before_log_moved, self._log_moved)
        self._before(Partition, "truncate_to_divergence", self._diverging)

        self._around(Partition, "truncate_to", self._before_cut, self._after_cut)
        self._around(LogFailures, "on_disk_error", lambda failures, _: len(failures.failed_dirs), self._disk_failed)

    def _partition(self, _: None, partition: Partition, *__: Any, **___: Any) -> None:
        replica = replica_of(partition.log)
        if replica is not None:
            self.invariants.on_partition(replica, partition)

    def _before_leading(self, partition: Partition, _: Any) -> tuple[int]:
        return (partition.context.metrics.elected_with_missing_records,)

    def _leader(self, seen: tuple[int], is_new: bool, partition: Partition, _: Any) -> None:
        replica, leader_state = replica_of(partition.log), partition.leader_state
        if replica is None:
            return
        self.invariants.ghosts.disturbed[replica.partition] = None
        if partition.context.metrics.elected_with_missing_records > seen[0]:
            honesty.on_elected_with_missing_records(replica)
        if is_new and leader_state is not None:
            self.invariants.on_leader(replica, leader_state.epoch, leader_state.epoch_start_offset)

    def _follower(self, is_new: bool, partition: Partition, _: Any) -> None:
        replica = replica_of(partition.log)
        if replica is not None and is_new:
            self.invariants.on_follower(replica, partition.leader_epoch, partition.leader_id)

    def _role_ended(self, _: None, partition: Partition, *__: Any) -> None:
        replica = replica_of(partition.log)
        if replica is not None:
            self.invariants.on_role_ended(replica)

    def _diverging(self, partition: Partition, position: Any, diverging: Any) -> None:
        replica = replica_of(partition.log)
        if replica is not None:
            said = {"epoch": diverging.epoch, "end_offset": diverging.end_offset}
            self.invariants.trace.emit("fetch.diverging", replica.node, replica.partition.name, **said)

    def _before_cut(self, partition: Partition, *_: Any) -> tuple[int, int]:
        return partition.log.high_watermark, partition.context.metrics.truncated_below_hw

    def _after_cut(self, seen: tuple[int, int], _: None, partition: Partition, *__: Any) -> None:
        replica = replica_of(partition.log)
        if replica is not None:
            self.invariants.on_truncated_below(replica, seen[0], partition.context.metrics.truncated_below_hw - seen[1])

    def _disk_failed(self, failed_before: int, _: None, failures: LogFailures, *__: Any) -> None:
        is_reported = bool(failures.failed_dirs)
        if len(failures.failed_dirs) > failed_before or not is_reported:
            self.invariants.on_log_dir_failed(failures.broker_id, failures.offline, is_reported)

    # -- the ISR ------------------------------------------------------------------------------------------------------

    def _isr(self) -> None:
        self._around(LeaderState, "propose", self._isr_state, self._proposed)
        self._around(LeaderState, "install_isr", self._isr_state, self._installed)
        self._after(LeaderState, "on_refusal", self._refused)
        self._after(LeaderState, "is_throttled", self._throttled)
        self._after(LeaderState, "drop_proposal", lambda _, leader_state: self._disturb(leader_state))

    def _isr_state(self, leader_state: LeaderState, *_: Any) -> tuple[Any]:
        return (leader_state.isr,)

    def _disturb(self, leader_state: LeaderState) -> ReplicaGhost | None:
        replica = replica_of(leader_state.log)
        if replica is not None:
            self.invariants.ghosts.disturbed[replica.partition] = None
        return replica

    def _proposed(self, before: tuple[Any], _: None, leader_state: LeaderState, pending: Any) -> None:
        replica, proposed = self._disturb(leader_state), list(pending.proposed)
        if replica is not None and leader_state.isr is pending and before[0] is not pending:
            self.invariants.on_proposal(replica, leader_state.partition_epoch, proposed)

    def _installed(self, before: tuple[Any], _: None, leader_state: LeaderState, isr: tuple[int, ...], *_elr: Any) -> None:
        replica = self._disturb(leader_state)
        if replica is not None and set(before[0].isr) != set(isr):
            epoch = leader_state.partition_epoch
            self.invariants.on_isr("isr.committed", replica, isr=list(isr), partition_epoch=epoch)

    def _refused(self, _: None, leader_state: LeaderState, _pending: Any, code: ErrorCode, _is_doubtful: bool) -> None:
        replica = self._disturb(leader_state)
        if replica is not None:
            self.invariants.on_isr("isr.refused", replica, error=code.name)

    def _throttled(self, is_throttled: bool, leader_state: LeaderState, follower: int) -> None:
        replica = replica_of(leader_state.log) if is_throttled else None
        if replica is not None:
            self.invariants.on_throttled(replica, follower, tuple(leader_state.isr.isr))

    # -- clients ------------------------------------------------------------------------------------------------------

    def _clients(self) -> None:
        self._after(ProduceHandler, "append", self._produced_to)
        self._after(DelayedProduce, "wait_for", self._parked)
        self._wrap(ServerRequest, "reply", self._make_reply)
        self._wrap(Fetch, "reply", self._make_fetch_reply)
        self._after(Fetch, "add_error", self._fetch_error)
        self._after(offsets, "list_offset", self._listed)
        self._after(GroupShard, "commit_offsets", self._commit_decided)
        self._before(ConsumerProtocol, "on_loaded", self._groups_loaded)
        self._after(ConsumerProtocol, "heartbeat", self._heartbeat_accepted)
        self._before(ConsumerProtocol, "on_connection_lost", self._connection_lost)
        self._before(ConsumerProtocol, "remove_expired", self._member_expires)

    def _produced_to(
        self, result: tuple[Partition | None, int], _handler: Any, item: Any, records: Any, acks: int, *rest: Any
    ) -> None:
        partition, _ = result
        response = rest[0]
        is_appended = partition is not None and not response.error_code
        replica = replica_of(partition.log) if partition is not None and is_appended and acks else None
        if replica is not None:
            # This is not the offset that the handler waits for: I15 checks whether the handler waits for the right one.
            end = response.base_offset + sum(header.last_offset_delta + 1 for _, header in iter_headers(records))
            self._produced[id(response)] = (response, replica, response.base_offset, end)

    def _parked(self, _: None, _operation: Any, partition: Partition, _index: int, required: int) -> None:
        replica = replica_of(partition.log)
        if replica is not None:
            self.invariants.trace.emit("produce.parked", replica.node, replica.partition.name, last=required - 1)

    def _make_reply(self, original: Function) -> Function:
        invariants, note = self.invariants, self.invariants.note

        def reply(request: ServerRequest, body: Any, records: Any = None) -> None:
            try:
                if request.is_answered:
                    invariants.on_answer(request.connection.server.node_id, request)
                if type(body) is ProduceResponse:
                    self._produce_answered(request, body)
                elif type(body) in ANSWERS and not request.connection.closed:
                    node = request.connection.server.node_id
                    invariants.on_group_answer(node, request.body, body, request.received_at)
            except Exception as e:
                note(e)
            original(request, body, records)

        return reply

    def _produce_answered(self, request: ServerRequest, body: ProduceResponse) -> None:
        acks, leaves = request.body.acks, not request.connection.closed
        for response in body.partitions:
            if response.error_code == ErrorCode.FENCED_TOKEN and acks == ACKS_ALL:
                fencing.on_rejected(self.invariants.ghosts, response)
            appended = self._produced.pop(id(response), None)
            if appended is None or not leaves:
                continue
            _, replica, base, required = appended
            if response.error_code:
                code = ErrorCode(response.error_code).name
                self.invariants.trace.emit("produce.failed", replica.node, replica.partition.name, error=code, base=base)
            elif replica.process is not None and replica.process.is_alive:
                self.invariants.on_acked(replica, base, required, acks)

    def _commit_decided(self, result: Any, _shard: GroupShard, request: Any, _context: Any) -> None:
        node = node_of()
        if node is not None and result.records:
            self.invariants.on_commit_decided(node, request, result.records)

    def _groups_loaded(self, protocol: ConsumerProtocol, now: float, _now_ms: int) -> None:
        shard = self._shard_with(protocol)
        if shard is not None:
            self.invariants.on_groups_loaded(node_of() or 0, protocol, shard.groups, now)

    def _heartbeat_accepted(self, _: Any, protocol: ConsumerProtocol, request: Any, context: Any) -> None:
        shard = self._shard_with(protocol)
        if shard is not None:
            self.invariants.on_group_heartbeat(node_of() or 0, protocol, shard.groups, request, context.now)

    def _connection_lost(self, protocol: ConsumerProtocol, group_id: str, member_id: str, _now: float) -> None:
        self.invariants.on_member_doubtful(group_id, member_id, is_removed=False)
        self.invariants.on_member_cut(protocol, group_id, member_id)

    def _member_expires(self, protocol: ConsumerProtocol, group_id: str, member_id: str, now: float, _now_ms: int) -> None:
        """A coordinator removes a member: its session has ended, or else it did not give up partitions in time."""
        shard = self._shard_with(protocol)
        if shard is not None and (SESSION, group_id, member_id) in shard.deadlines:
            self.invariants.on_member_doubtful(group_id, member_id, is_removed=True)
        elif shard is not None and shard.groups.get(group_id) is not None:
            self.invariants.on_session_ended(node_of() or 0, protocol, shard.groups.get(group_id), member_id, now)

    def _shard_with(self, protocol: ConsumerProtocol) -> GroupShard | None:
        """The groups of the coordinator that has this protocol; None outside of a simulated process."""
        process = self.invariants.ghosts.processes.get(node_of() or 0)
        opened = None if process is None else process.server.opened
        shards = [] if opened is None else [active.shard for active in opened.groups.shards.values()]
        return next((shard for shard in shards if shard.consumer is protocol), None)

    def _make_fetch_reply(self, original: Function) -> Function:
        invariants, note = self.invariants, self.invariants.note

        def reply(fetch: Fetch, answer: Any) -> None:
            if not fetch.request.connection.closed:
                try:
                    invariants.on_fetch_answered(fetch, answer)
                    if not fetch.session.is_follower:
                        self._consumer_answered(fetch, answer)
                        self._given(fetch, answer)
                except Exception as e:
                    note(e)
            original(fetch, answer)

        return reply

    def _consumer_answered(self, fetch: Fetch, answer: Any) -> None:
        reads_committed = fetch.request.body.isolation_level == READ_COMMITTED
        for response, buffers, (cached, _, _) in zip(answer.responses, answer.records, answer.seen, strict=True):
            partition = cached.partition
            replica = replica_of(partition.log) if partition is not None else None
            if replica is None or response.error_code:
                continue
            if buffers:
                self.invariants.on_served(replica, partition.log.high_watermark, buffers)
            if response.preferred_read_replica >= 0:
                self.invariants.on_nominated(replica, response.preferred_read_replica)
            self.invariants.on_high_watermark_sent(replica, response.high_watermark, is_answer=False)
            if reads_committed:
                self.invariants.on_stable_sent(replica, response)

    def _fetch_error(self, _: None, fetch: Fetch, cached: Any, code: int, _answer: Any) -> None:
        partition = cached.partition
        replica = replica_of(partition.log) if partition is not None else None
        if code != cached.sent_error and (
            replica is None or not fetch.session.is_follower or code != ErrorCode.OFFSET_OUT_OF_RANGE
        ):
            node = fetch.handler.directory.broker_id
            self.invariants.on_fetch_error(replica, node, cached.fetch_offset, cached.current_leader_epoch, code)

    def _listed(self, _: Any, partition: Partition, item: Any, answer: Any, from_follower: bool, **__: Any) -> None:
        replica = replica_of(partition.log)
        if replica is not None and item.timestamp == LATEST_TIMESTAMP and not from_follower:
            self.invariants.on_high_watermark_sent(replica, answer.offset, is_answer=True)

    # -- rights -------------------------------------------------------------------------------------------------------

    def _rights(self) -> None:
        self._wrap(wiring, "guarded_handlers", self._make_guarded)
        self._wrap(controller_server, "authorized", self._make_authorized)
        self._after(Access, "may", self._decided)
        self._after(Access, "sees", self._decided)
        self._after(Access, "topic_refusal", self._decided_about_topic)
        self._before(ServerConnection, "mute", self._muted)

    def _make_guarded(self, original: Function) -> Function:
        judged = self._judged

        def guarded_handlers(handlers: Any, rights: Any, *more: Any) -> Any:
            return original({key: judged(handler, True) for key, handler in handlers.items()}, rights, *more)

        return guarded_handlers

    def _make_authorized(self, original: Function) -> Function:
        judged = self._judged

        def authorized(handlers: Any, authorizer: Any, committed: Any, find_handler: Any) -> Any:
            if authorizer is not None:
                handlers = {key: judged(handler, False) for key, handler in handlers.items()}
            return original(handlers, authorizer, committed, find_handler)

        return authorized

    def _judged(self, handler: Function, is_broker: bool) -> Function:
        """Wrap the handler of an API, so that each request that has passed the guards is judged first."""

        def judged(request: Any) -> Any:
            self._guarded(self._passed, request, is_broker)
            return handler(request)

        return judged

    def _passed(self, request: Any, is_broker: bool) -> None:
        node = node_of()
        process = self.invariants.ghosts.processes.get(node or 0)
        if node is None or process is None or not process.is_alive:
            return
        server = process.server
        image = server.metadata.image if is_broker else server.controller.committed
        if type(request) is EnvelopedRequest:
            rights.check_envelope(node, request)
        rights.check_passed(self.invariants.ghosts, node, is_broker, image, request)

    def _decided(self, is_granted: bool, access: Access, operation: int, resource_type: int, name: str) -> None:
        node = node_of()
        if node is not None:
            rights.check_decision(self.invariants.ghosts, node, access, (operation, resource_type, name), is_granted)

    def _decided_about_topic(self, code: Any, access: Access, topic_id: bytes, operation: int) -> None:
        topic = access.image.topics_by_id.get(topic_id)
        if topic is not None:
            self._decided(code is None, access, operation, TOPIC_RESOURCE, topic.name)

    def _given(self, fetch: Fetch, answer: Any) -> None:
        """A fetch response gives records to a consumer: check the consumer's rights."""
        node = node_of()
        process = self.invariants.ghosts.processes.get(node or 0)
        if node is None or process is None or process.server.authorizer is None:
            return
        request, image = fetch.request, process.server.metadata.image
        for response, buffers in zip(answer.responses, answer.records, strict=True):
            if buffers:
                topic_id = response.topic_id
                rights.check_given(self.invariants.ghosts, node, image, request.principal, request.client_host, topic_id)

    def _muted(self, connection: ServerConnection, duration_s: float) -> None:
        node = node_of()
        if node is not None and duration_s > 0:
            rights.check_unthrottled(node, connection.principal, "mutes a connection")

    # -- the quorum ---------------------------------------------------------------------------------------------------

    def _quorum(self) -> None:
        self._before(Quorum, "start", self._quorum_starts)
        self._around(LeaderHandler, "start_epoch", self._wins, lambda *_: None)
        self._before(Controller, "on_resign", self._resigns)
        self._after(RaftState, "advance_high_watermark", self._quorum_high_watermark)
        self._before(NodeShell, "transmit", self._transmitted)
        self._after(FileSink, "freeze", self._snapshot)

    def _quorum_starts(self, quorum: Quorum) -> None:
        self.invariants.ghosts.metadata.voters = tuple(voter.id for voter in quorum.voters)

    def _wins(self, handler: LeaderHandler, _candidate: Any, _now: float) -> None:
        state = handler.state
        if self._voter(state) is not None:
            self.invariants.on_quorum_leader(state.node_id, state.epoch)

    def _resigns(self, controller: Controller, epoch: int) -> None:
        if controller.active is not None and self._is_current(controller):
            self.invariants.trace.emit("controller.resigned", controller.node_id, epoch=epoch)

    def _voter(self, state: RaftState) -> ReplicaGhost | None:
        return replica_of(state.log.log) if isinstance(state.log, MetadataLog) else None

    def _quorum_high_watermark(self, moved: bool, state: RaftState, _: int) -> None:
        replica = self._voter(state) if moved else None
        if replica is not None:
            leads_in = state.epoch if isinstance(state.role, Leader) else None
            self.invariants.on_quorum_high_watermark(replica, state.high_watermark, leads_in)

    def _transmitted(self, shell: NodeShell, messages: list[Any]) -> None:
        """A vote or a fetch is sent: the state that it reports must be on the disk."""
        if self._voter(shell.node.state) is None:
            return
        path, voter = shell.store.path, shell.node.state.node_id
        for message in messages:
            body = message.body
            if not isinstance(message, Send):
                asked = message.ticket.body if isinstance(body, VoteResponse) else None
                if asked is not None and body.vote_granted and not asked.pre_vote and not body.error_code:
                    self.invariants.on_vote(voter, body.leader_epoch, asked.replica_id, path)
            elif message.api_key == apis.VOTE and not body.pre_vote:
                self.invariants.on_vote(voter, body.replica_epoch, voter, path)
            elif message.api_key == apis.FETCH:
                self.invariants.on_voter_fetch(voter, body.partitions[0].fetch_offset)

    def _snapshot(self, _: None, sink: FileSink) -> None:
        process = self.invariants.ghosts.process_of_files(sink.files)
        if process is None:
            return
        snapshot_id = sink.snapshot_id
        inode = getattr(sink.files, "find", lambda _: None)(sink.path)
        image = None
        if inode is not None:
            records = [decode_record(value) for value in snapshot_values(bytes(inode.cache))]
            image = MetadataImage.from_records(records, snapshot_id.end_offset - 1, snapshot_id.epoch)
        self.invariants.on_snapshot(process.node, snapshot_id, image)

    # -- metadata -----------------------------------------------------------------------------------------------------

    def _metadata(self) -> None:
        self._around(Controller, "on_committed", lambda controller, *_: (controller.committed.offset,), self._committed)
        self._around(QuorumObserver, "apply_committed", lambda observer: list(observer.waiting), self._observed)
        self._after(QuorumObserver, "install_snapshot", self._installed_snapshot)
        self._after(handlers, "alter_partition", self._accepted)
        self._after(handlers, "alter_partition_reassignments", self._reassigned)
        self._after(handlers, "heartbeat", self._heard)
        self._after(leader_balancer, "move_leaders_back", self._leaders_return)

    def _committed(
        self, before: tuple[int], _: None, controller: Controller, base: int, last: int, epoch: int, values: Any
    ) -> None:
        if self._is_current(controller):
            batch = (base, last, epoch)
            self.invariants.on_controller_applied(controller.node_id, batch, values, controller.committed, before[0])

    def _is_current(self, controller: Controller) -> bool:
        process = self.invariants.ghosts.processes.get(controller.node_id)
        opened = None if process is None else process.server.opened
        return opened is not None and opened.controller is controller

    def _observed(self, waiting: list[Any], delta: Any, observer: QuorumObserver) -> None:
        applied = waiting[: len(waiting) - len(observer.waiting)]
        if applied and observer.broker_id in self.invariants.ghosts.processes:
            self.invariants.on_broker_applied(observer.broker_id, [item.header for item in applied], delta)

    def _installed_snapshot(self, delta: Any, observer: QuorumObserver, _: Any) -> None:
        self.invariants.on_broker_applied(observer.broker_id, [], delta)

    def _accepted(self, decision: Any, image: MetadataImage, request: Any) -> None:
        self.invariants.on_accepted(image, request, decision.reply)

    def _reassigned(self, decision: Any, _: MetadataImage, request: Any) -> None:
        self.invariants.on_reassigned(request, decision.reply)

    def _leaders_return(self, decision: Any, image: MetadataImage, _index: Any, broker_id: int) -> None:
        self.invariants.on_leaders_return(image, broker_id, decision.records)

    def _heard(self, _decision: Any, image: MetadataImage, _index: Any, _sessions: Any, request: Any, **__: Any) -> None:
        self.invariants.on_heartbeat(image, request.broker_id, request.broker_epoch)
