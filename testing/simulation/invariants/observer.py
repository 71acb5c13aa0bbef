"""`Invariants`: receives the events of a run, updates the ghosts, and calls the checks of every family.

The probes (`probes.py`) call an `on_...` method for each state change. The method first updates the ghosts, then calls the
checks that can be judged at this change, and raises `Violation`. Checks of a whole log or a whole partition run in `after_step`,
for those that changed since the last call; if none did, that costs a check of two empty dicts. Every `SWEEP_STEPS` steps
`after_step` also checks what no event reports: timers, resources.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from strandline.controller.metadata.directory_ids import UNASSIGNED
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import ConsumerGroupHeartbeatResponse
from strandline.protocol.records.batch import BatchHeader
from strandline.storage.disk import Buffer
from strandline.testing.simulation.invariants import (
    balance,
    circles,
    clean_starts,
    compaction,
    group_memory,
    group_sessions,
    groups,
    honesty,
    leaders,
    logs,
    membership,
    producers,
    purgatory,
    quorum,
    reads,
    reassignments,
    resources,
    rest,
    transactions,
    watermark,
)
from strandline.testing.simulation.invariants.ghosts import METADATA, Ghosts, PartitionGhost, Process, ReplicaGhost
from strandline.testing.simulation.invariants.violation import Violation

if TYPE_CHECKING:
    from strandline.broker.partition.partition import Partition
    from strandline.controller.metadata.image import MetadataImage, PartitionRegistration
    from strandline.protocol.messages.common import SnapshotId
    from strandline.protocol.partitions import TopicIdPartition
    from strandline.storage.log.log import Log
    from strandline.storage.log.segment import Segment
    from strandline.testing.simulation.invariants.paths import Path

SWEEP_STEPS = 1024


_OF_ANOTHER_EPOCH = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH})


class Trace(Protocol):
    """`testing/simulation/kernel/trace.py`."""

    def emit(self, kind: str, node: int, partition: str = "", /, **fields: Any) -> None: ...


class Invariants:
    """The ghosts of one run, and the checks. `after_step` goes into the scheduler's list of that name."""

    def __init__(self, trace: Trace, *, on_violation: Callable[[BaseException], object] | None = None) -> None:
        """`on_violation` ends the run at once (`scheduler.fail`); without it `after_step` raises."""
        self.trace = trace
        self.ghosts = Ghosts()
        self.failure: BaseException | None = None
        """The first violation, or the first error in a check."""
        self._on_violation = on_violation
        self._until_sweep = SWEEP_STEPS
        self._last_responses: dict[Any, circles.LastResponses] = {}
        """Connection of a broker -> its fetch responses over that connection."""

    # -- when -------------------------------------------------------------------------------------------------------

    def note(self, error: BaseException) -> None:
        """Remember an error of a check, so that production code cannot hide it by catching it: the run ends after this step."""
        if self.failure is None and not self.ghosts.metadata.is_given_up:
            self.failure = error
            if self._on_violation is not None:
                self._on_violation(error)

    def after_step(self) -> None:
        ghosts = self.ghosts
        if ghosts.dirty or ghosts.disturbed:
            self._look()
        self._until_sweep = left = self._until_sweep - 1
        if not left:
            self._until_sweep = SWEEP_STEPS
            self._guarded(self._sweep)
        if self.failure is not None and self._on_violation is None:
            raise self.failure

    def _look(self) -> None:
        ghosts = self.ghosts
        try:
            for replica in ghosts.dirty:
                logs.check_log(ghosts, replica)
            for partition in ghosts.disturbed:
                if partition is not ghosts.metadata.log:
                    watermark.check_members(ghosts, partition)
                    watermark.check_maximal_isr(ghosts, partition)
                    membership.check_epochs_of_replica(ghosts, partition)
        except Exception as e:
            self.note(e)
        ghosts.dirty.clear()
        ghosts.disturbed.clear()

    def _sweep(self) -> None:
        purgatory.check_deadlines(self.ghosts)
        resources.check_bounds(self.ghosts)

    def _guarded(self, check: Callable[[], object]) -> None:
        try:
            check()
        except Exception as e:
            self.note(e)

    def unsettled(self) -> list[str]:
        """The reasons, one sentence each, why the cluster is not at rest after all faults have ended (I24); empty if it is."""
        return rest.unsettled(self.ghosts)

    def at_rest(self) -> None:
        """Judge everything, after all faults have ended, all clients have stopped, and `unsettled` had its time."""
        ghosts = self.ghosts
        self._look()
        if self.failure is not None:
            raise self.failure
        reasons = self.unsettled()
        if reasons:
            raise Violation("I24", f"the cluster does not come to rest: {rest.diagnosis(reasons)}")
        if not ghosts.metadata.is_given_up:
            self._judge_data()
        purgatory.check_idle(ghosts)
        self._sweep()

    def _judge_data(self) -> None:
        ghosts = self.ghosts
        for partition in (*ghosts.partitions.values(), ghosts.metadata.log):
            for replica in partition.replicas.values():
                if replica.process is not None and replica.process.is_alive and not partition.is_deleted:
                    rest.check_bytes(replica)
                    if partition is not ghosts.metadata.log:
                        logs.check_log(ghosts, replica)
                        producers.check_states(replica)
            honesty.check(partition)
        quorum.check_states(ghosts)
        group_memory.check(ghosts)

    # -- processes ----------------------------------------------------------------------------------------------------

    def on_process(self, node: int, server: Any, files: Any, loop: Any = None) -> Process:
        return self.ghosts.begin(node, server, files, loop)

    def on_process_ended(self, server: Any) -> None:
        self.ghosts.end(server)

    def on_logs_closing(self, disk: object) -> None:
        """The process of this disk stops in order, and closes its logs now."""
        clean_starts.on_closing(self.ghosts, disk)

    def on_logs_found(self, disk: object, node: int, was_clean: bool) -> None:
        """A process has found the logs of the previous process. `was_clean`: it assumes a clean shutdown."""
        clean_starts.on_loaded(self.ghosts, disk, node, was_clean)

    # -- logs ---------------------------------------------------------------------------------------------------------

    def on_log_opened(self, log: Log) -> ReplicaGhost | None:
        process = self.ghosts.process_of_files(log.files)
        if process is None:
            return None
        partition = self.ghosts.partition((log.topic_id, log.partition), log.name)
        replica = partition.replica(process.node)
        if log.topic_id != partition.key[0]:
            text = (
                f"broker {process.node} opens a log of topic id {log.topic_id.hex()}, but the partition's is "
                f"{partition.key[0].hex()}"
            )
            raise partition.violation("I22", text, process.node)
        logs.opened(self.ghosts, replica, log)
        replica.log, replica.process, replica.live, replica.has_forgotten = log, process, None, False
        if partition is self.ghosts.metadata.log:
            replica.flushed = 0
        if partition is not self.ghosts.metadata.log:
            self.trace.emit("log.recovered", process.node, partition.name, end=log.log_end_offset)
            watermark.check_recovered(replica, log.high_watermark)
        return replica

    def on_log_moved(self, replica: ReplicaGhost, before: Path) -> None:
        """The log was replaced by its copy in another directory, which was read from the disk; `before` is the path of the old
        log."""
        partition, node = replica.partition, replica.node
        if not replica.path.holds_all_of(before) or replica.path.start > before.start:
            text = f"broker {node} uses a copy of its log that lacks records: {replica.path} in place of {before}"
            raise partition.violation("I32", text, node)
        known = partition.registration.directory_of(node) if partition.registration is not None else UNASSIGNED
        actual = _directory_of(replica)
        if known not in (UNASSIGNED, actual):
            text = f"broker {node} has moved its log to directory {actual.hex()}, but the controller has {known.hex()}"
            raise partition.violation("I32", text, node)

    def on_log_gone(self, replica: ReplicaGhost) -> None:
        """The log was closed, deleted, or renamed out of the way."""
        replica.log = replica.live = None

    def on_appended(self, replica: ReplicaGhost, records: Buffer, headers: Sequence[BatchHeader], renewed: bool) -> None:
        partition = replica.partition
        is_new = logs.append(self.ghosts, replica, records, headers, renewed=renewed)
        if partition.key == METADATA:
            if is_new:
                self._keep_payloads(records, headers)
            return
        if groups.is_offsets(partition):
            groups.remember(self.ghosts, replica, records, headers)
            if is_new:
                groups.on_appended(self.ghosts, replica, headers)
        if is_new:
            transactions.on_appended(self.ghosts, replica, records, headers)
        role = "leader" if is_new else "follower"
        # If a fetch response spans several epochs, each has an event of its own.
        runs = [headers] if headers[0].leader_epoch == headers[-1].leader_epoch else _by_epoch(headers)
        for run in runs:
            first, last = run[0], run[-1]
            self.trace.emit(
                "log.appended",
                replica.node,
                partition.name,
                base=first.base_offset,
                last=last.base_offset + last.last_offset_delta,
                epoch=last.leader_epoch,
                role=role,
            )

    def _keep_payloads(self, records: Buffer, headers: Sequence[BatchHeader]) -> None:
        position = 0
        for header in headers:
            payload = bytes(records[position : position + header.size])
            self.ghosts.metadata.payloads[header.leader_epoch, header.base_offset] = payload
            position += header.size

    def on_append_failed(self, replica: ReplicaGhost, records: Buffer, headers: Sequence[BatchHeader], renewed: bool) -> None:
        logs.may_have_appended(replica, records, headers, renewed=renewed)
        if groups.is_offsets(replica.partition):
            groups.remember(self.ghosts, replica, records, headers)
        if replica.partition.key == METADATA:
            self._keep_payloads(records, headers)

    def on_truncated(self, replica: ReplicaGhost, log: Log, corrupt_at: int | None) -> None:
        was = replica.path.end
        logs.truncated(self.ghosts, replica, log, corrupt_at=corrupt_at)
        if replica.partition.key != METADATA:
            self.trace.emit("log.truncated", replica.node, replica.partition.name, to=replica.path.end, was=was)
            watermark.check_recovered(replica, log.high_watermark)

    def on_truncated_below(self, replica: ReplicaGhost, high_watermark: int, counted: int) -> None:
        honesty.on_truncated_below(replica, high_watermark, replica.path.end, counted)

    def on_damage(self, replica: ReplicaGhost, offset: int, counted_before: int) -> None:
        replica.damage = offset if replica.damage is None else min(offset, replica.damage)
        honesty.on_damage(replica, offset, counted_before)

    def on_log_dir_failed(self, node: int, offline: Collection[TopicIdPartition], is_reported: bool) -> None:
        honesty.on_log_dir_failed(self.ghosts, node, offline, is_reported)

    def on_log_start(self, replica: ReplicaGhost, log: Log) -> None:
        if log.log_start_offset != replica.path.start:
            logs.log_start_moved(self.ghosts, replica, log)
            if replica.partition.key != METADATA:
                self.trace.emit("log.start_moved", replica.node, replica.partition.name, to=log.log_start_offset)

    def on_rolled(self, replica: ReplicaGhost, log: Log) -> None:
        self.ghosts.dirty[replica] = None
        if replica.partition.key != METADATA:
            self.trace.emit("log.rolled", replica.node, replica.partition.name, base=log.segments[-1].base_offset)

    def on_replacing(self, replica: ReplicaGhost, old: Sequence[Segment], end: int) -> compaction.Replaced:
        """A cleaned segment is about to take the place of the old ones, which end at this offset."""
        return compaction.before_replacement(replica, old, end)

    def on_replaced(self, replica: ReplicaGhost, log: Log, was: compaction.Replaced, clock_ms: int) -> None:
        self.ghosts.dirty[replica] = None
        compaction.replaced(replica, log, was, clock_ms)
        emit = self.trace.emit
        emit("log.cleaned", replica.node, replica.partition.name, base=was.base, end=was.end, absent=len(replica.absent))

    def on_flushed(self, replica: ReplicaGhost) -> None:
        self.ghosts.dirty[replica] = None
        if replica.partition.key == METADATA:
            quorum.on_flushed(replica)

    def on_high_watermark(self, replica: ReplicaGhost, high_watermark: int) -> None:
        partition = replica.partition
        if partition.key == METADATA:
            return  # the node reports this itself, see `on_quorum_high_watermark`
        watermark.on_moved(self.ghosts, replica, high_watermark)
        self.trace.emit("hw.advanced", replica.node, partition.name, hw=high_watermark, true=partition.committed.end)

    # -- roles, ISR ---------------------------------------------------------------------------------------------------

    def on_partition(self, replica: ReplicaGhost, partition: Partition) -> None:
        if partition.key != replica.partition.key or partition.log is not replica.log:
            text = (
                f"broker {replica.node} serves topic id {partition.key[0].hex()} from the log of topic id "
                f"{replica.partition.key[0].hex()}"
            )
            raise replica.partition.violation("I22", text, replica.node)
        replica.live, replica.checked_epochs = partition, (-1, -1)
        self.ghosts.disturbed[replica.partition] = None

    def on_leader(self, replica: ReplicaGhost, epoch: int, start_offset: int) -> None:
        self.trace.emit("leader.became", replica.node, replica.partition.name, epoch=epoch, start_offset=start_offset)
        leaders.on_leader(self.ghosts, replica, epoch)
        watermark.on_leader(self.ghosts, replica, epoch)
        if groups.is_offsets(replica.partition):
            groups.on_leader(self.ghosts, replica, epoch)
        self.ghosts.dirty[replica] = None

    def on_follower(self, replica: ReplicaGhost, epoch: int, leader: int) -> None:
        self.trace.emit("follower.became", replica.node, replica.partition.name, epoch=epoch, leader=leader)
        self.ghosts.disturbed[replica.partition] = None

    def on_proposal(self, replica: ReplicaGhost, partition_epoch: int, proposed: Sequence[int]) -> None:
        """The leader proposes an ISR, in the newest partition epoch that it knows."""
        self.on_isr("isr.proposed", replica, isr=list(proposed))
        membership.check_proposal(replica, partition_epoch, proposed)

    def on_isr(self, kind: str, replica: ReplicaGhost, **fields: Any) -> None:
        """The leader has proposed an ISR, or received the outcome."""
        self.ghosts.disturbed[replica.partition] = None
        self.trace.emit(kind, replica.node, replica.partition.name, **fields)

    def on_throttled(self, replica: ReplicaGhost, follower: int, isr: tuple[int, ...]) -> None:
        reassignments.check_throttled(replica, follower, isr)

    def on_role_ended(self, replica: ReplicaGhost) -> None:
        """The partition was deleted here, is offline, or was shut down."""
        replica.live = None

    # -- clients ------------------------------------------------------------------------------------------------------

    def on_acked(self, replica: ReplicaGhost, base: int, required: int, acks: int) -> None:
        self.trace.emit("produce.acked", replica.node, replica.partition.name, base=base, last=required - 1, acks=acks)
        if acks == -1:
            watermark.on_acked(self.ghosts, replica, required)

    def on_served(self, replica: ReplicaGhost, high_watermark: int, buffers: Sequence[Buffer]) -> None:
        reads.on_records(replica, high_watermark, buffers)

    def on_fetch_error(self, replica: ReplicaGhost | None, node: int, offset: int, epoch: int, code: int) -> None:
        if code in _OF_ANOTHER_EPOCH:
            name = "" if replica is None else replica.partition.name
            self.trace.emit("fetch.fenced", node, name, error=ErrorCode(code).name, epoch=epoch, offset=offset)
        if replica is not None and code == ErrorCode.OFFSET_OUT_OF_RANGE:
            reads.on_out_of_range(self.ghosts, replica, offset)

    def on_fetch_answered(self, fetch: Any, answer: Any) -> None:
        connection = fetch.request.connection
        last = self._last_responses.get(connection)
        if last is None:
            last = self._last_responses[connection] = circles.LastResponses()
        circles.on_fetch_answered(last, connection.server.node_id, fetch, answer, fetch.handler.now())

    def on_nominated(self, replica: ReplicaGhost, nominee: int) -> None:
        reads.on_nominated(replica, nominee)

    def on_high_watermark_sent(self, replica: ReplicaGhost, high_watermark: int, *, is_answer: bool) -> None:
        reads.on_high_watermark_sent(replica, high_watermark, is_answer=is_answer)

    def on_stable_sent(self, replica: ReplicaGhost, response: Any) -> None:
        """A leader sends this answer to a reader of committed records."""
        transactions.on_stable_sent(replica, response)

    def on_answer(self, node: int, request: Any) -> None:
        purgatory.check_answered_once(node, request)

    # -- groups -------------------------------------------------------------------------------------------------------

    def on_group_answer(self, node: int, request: Any, response: Any, received_at: float) -> None:
        """A broker sends a response about a group."""
        groups.on_answer(self.ghosts, node, request, response, received_at)
        if isinstance(response, ConsumerGroupHeartbeatResponse) and not response.error_code:
            group_sessions.on_answer(self.ghosts, node, request, response, received_at)

    def on_groups_loaded(self, node: int, protocol: Any, found: Any, now: float) -> None:
        group_sessions.on_loaded(self.ghosts, node, protocol, found, now)

    def on_group_heartbeat(self, node: int, protocol: Any, found: Any, request: Any, now: float) -> None:
        """A coordinator has accepted a heartbeat of the newer protocol."""
        group_sessions.on_heartbeat(self.ghosts, node, protocol, found, request, now)

    def on_member_cut(self, protocol: Any, group: str, member_id: str) -> None:
        """A coordinator has seen the end of the member's connection."""
        group_sessions.on_connection_lost(self.ghosts, protocol, group, member_id)

    def on_session_ended(self, node: int, protocol: Any, group: Any, member_id: str, now: float) -> None:
        """A coordinator removes the member, because its session has ended."""
        group_sessions.on_session_ended(self.ghosts, node, protocol, group, member_id, now)
        if group_sessions.relies_on_earlier_coordinator(self.ghosts, protocol, group.group_id, member_id):
            self.on_member_doubtful(group.group_id, member_id, is_removed=True)

    def on_member_doubtful(self, group: str, member_id: str, *, is_removed: bool) -> None:
        """A coordinator has removed the member before its session has ended (`is_removed`), or may soon do so."""
        self.ghosts.groups.doubtful[group, member_id] = is_removed

    def on_commit_decided(self, node: int, request: Any, records: Sequence[Any]) -> None:
        """A coordinator is about to append the offsets of this request."""
        groups.on_commit_decided(self.ghosts, node, request, records)

    # -- the quorum ---------------------------------------------------------------------------------------------------

    def on_quorum_leader(self, node: int, epoch: int) -> None:
        self.trace.emit("controller.elected", node, epoch=epoch)
        leaders.on_quorum_leader(self.ghosts, self.ghosts.processes[node], epoch)
        quorum.on_leader(self.ghosts, self.ghosts.metadata.log.replica(node), epoch)

    def on_quorum_high_watermark(self, replica: ReplicaGhost, offset: int, leads_in: int | None) -> None:
        changes = self.ghosts.metadata.changes
        known = len(changes)
        quorum.on_high_watermark(self.ghosts, replica, offset, leads_in=leads_in)
        for last, partitions, brokers in changes[known:]:
            self._emit_changes(replica.node, self.ghosts.metadata.images[last], partitions, brokers)
        if leads_in is not None:
            self.trace.emit("raft.high_watermark", replica.node, offset=offset)

    def _emit_changes(
        self, node: int, image: MetadataImage, partitions: Iterable[TopicIdPartition], brokers: Iterable[int]
    ) -> None:
        """Emit what one committed batch has changed. `image` is the metadata up to this batch: later ones that were committed
        with it have their own events."""
        for broker in brokers:
            known = image.brokers.get(broker)
            if known is not None:
                self.trace.emit("metadata.broker", node, broker=broker, epoch=known.broker_epoch, fenced=known.fenced)
        for key in partitions:
            self._emit_partition(node, self.ghosts.partitions[key], key, image.partition(key))

    def _emit_partition(
        self, node: int, partition: PartitionGhost, key: TopicIdPartition, known: PartitionRegistration | None
    ) -> None:
        if known is None:
            return
        if known.partition_epoch == 0 and key[1] == 0:
            self.trace.emit("metadata.topic", node, name=partition.topic, topic_id=key[0].hex())
        self.trace.emit(
            "metadata.partition",
            node,
            partition.name,
            leader=known.leader,
            leader_epoch=known.leader_epoch,
            partition_epoch=known.partition_epoch,
            isr=list(known.isr),
            elr=list(known.elr),
        )

    def on_vote(self, voter: int, epoch: int, candidate: int, path: str) -> None:
        self.trace.emit("raft.voted", voter, epoch=epoch, candidate=candidate)
        quorum.on_vote_leaves(self.ghosts, voter, epoch, candidate, path)

    def on_voter_fetch(self, node: int, offset: int) -> None:
        quorum.on_fetch_leaves(self.ghosts, node, offset)

    def on_controller_applied(
        self, node: int, batch: tuple[int, int, int], values: Sequence[bytes], image: MetadataImage, since: int
    ) -> None:
        quorum.on_applied(self.ghosts, "controller", node, batch, values)
        if image.offset == batch[1]:
            quorum.compare_images(self.ghosts, f"controller {node}", node, since, image)

    def on_broker_applied(self, node: int, headers: Sequence[BatchHeader], delta: Any) -> None:
        quorum.on_observed(self.ghosts, node, headers, delta)

    def on_snapshot(self, node: int, snapshot_id: SnapshotId, image: MetadataImage | None) -> None:
        quorum.on_snapshot(self.ghosts, node, snapshot_id, image)

    def on_accepted(self, image: MetadataImage, request: Any, answer: Any) -> None:
        membership.on_accepted(self.ghosts, image, request, answer)

    def on_reassigned(self, request: Any, answer: Any) -> None:
        """A controller has decided about this request for reassignments."""
        reassignments.on_decided(self.ghosts, request, answer)

    def on_leaders_return(self, image: MetadataImage, node: int, records: Sequence[Any]) -> None:
        balance.check_return(image, node, records)

    def on_heartbeat(self, image: MetadataImage, node: int, broker_epoch: int) -> None:
        membership.check_heartbeat(image, node, broker_epoch)


def _by_epoch(headers: Sequence[BatchHeader]) -> list[list[BatchHeader]]:
    return [list(run) for _, run in groupby(headers, key=lambda header: header.leader_epoch)]


def _directory_of(replica: ReplicaGhost) -> bytes:
    """The id of the log directory that the broker's present log is in."""
    process, log = replica.process, replica.log
    if process is None or log is None or process.server.log_dirs is None:
        return UNASSIGNED
    found: bytes = process.server.log_dirs.of(log).directory_id
    return found
