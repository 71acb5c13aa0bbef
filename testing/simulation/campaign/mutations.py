"""Production code with one guard removed: does the simulation detect that?

A simulation that finds nothing proves something only if it would have found a bug. Each mutation removes one guard from the
running code, from outside, while `applied` lasts. The simulation has to find each of them within a bounded number of seeds
(`hunt.py`). A mutation that is not found shows that the faults, the workload or the invariants are too weak.

The numbers are those of the list from which the invariants were taken; the meaning of each mutation names the purpose of its
guard.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from strandline.broker.coordination.coordinator import Coordinator
from strandline.broker.coordination.replies import send
from strandline.broker.fetch import fetch_handler
from strandline.broker.fetch.fetch_handler import Fetch
from strandline.broker.groups.consumer.draft import Draft
from strandline.broker.groups.consumer.group import ConsumerGroup
from strandline.broker.groups.consumer.protocol import ConsumerProtocol
from strandline.broker.groups.loader import GroupLoader
from strandline.broker.groups.member_connections import MemberConnections
from strandline.broker.groups.offset_table import OffsetTable
from strandline.broker.moves.move import Move, MoveState, Step
from strandline.broker.partition.leader_state import LeaderState
from strandline.broker.partition.partition import Partition
from strandline.broker.partition.partition_state import CommittedIsr
from strandline.broker.partition.replica import Replica
from strandline.broker.process.quorum_observer import QuorumObserver
from strandline.broker.produce.produce_handler import ProduceHandler
from strandline.broker.transactions import records as transaction_records
from strandline.broker.transactions import shard
from strandline.broker.transactions.admission import Admission
from strandline.broker.transactions.coordinator import TransactionCoordinator
from strandline.broker.transactions.marker_handler import DelayedMarkers
from strandline.broker.transactions.marker_queue import MarkerQueue
from strandline.broker.transactions.shard import TransactionShard
from strandline.broker.transactions.states import State, Transaction
from strandline.client.consumer.group.member import GroupMember
from strandline.controller import (
    cluster_control,
    leader_balance,
    leader_balancer,
    partition_change,
    reassignment,
    reassignment_control,
    replication_control,
    unclean_recovery,
)
from strandline.controller.metadata.records import NO_LEADER
from strandline.controller.partition_change import PartitionChangeBuilder
from strandline.controller.raft.leader_handler import LeaderHandler
from strandline.controller.raft.roles import Leader
from strandline.controller.raft.state_store import QuorumStateStore
from strandline.controller.reassignment import Assignment
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.records.fence import FIRST_FENCE
from strandline.storage.checkpoints import CLEAN_SHUTDOWN, CleanShutdown
from strandline.storage.cleaner import batch_cleaning, cleaning
from strandline.storage.cleaner.offset_map import OffsetMap
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.disk import join
from strandline.storage.files import Files
from strandline.storage.log import log_read
from strandline.storage.log.appending import FencedToken
from strandline.storage.log.log import Log
from strandline.storage.log.log_state import LogState
from strandline.storage.log.producer_state import AppendedBatch, ProducerEntry, ProducerStates
from strandline.storage.memory.memory_files import MemoryFiles
from strandline.testing.simulation.campaign import group_config_mutations, security_mutations
from strandline.testing.simulation.campaign.mutation import MUTATIONS, WAITING, Patch, mutation
from strandline.testing.simulation.observation.wrapping import removed

__all__ = ["MUTATIONS", "WAITING", "applied", "group_config_mutations", "security_mutations"]


@contextlib.contextmanager
def applied(number: str) -> Iterator[None]:
    """Remove the guard within this block. Raises `UsageError` for an unknown number."""
    if number not in MUTATIONS:
        raise UsageError(f"there is no mutation {number!r}; there are {', '.join(sorted(MUTATIONS))}")
    undo: list[Patch] = []
    with removed():
        try:
            for owner, name, replacement in MUTATIONS[number].patches():
                undo.append((owner, name, vars(owner)[name]))
                setattr(owner, name, replacement)
            yield
        finally:
            for owner, name, original in reversed(undo):
                setattr(owner, name, original)


# -- replication ------------------------------------------------------------------------------------------------------


@mutation("M01", "a follower truncates to its high watermark, not to the end of the common epoch (KIP-101)")
def _truncate_to_high_watermark() -> list[Patch]:
    make_follower = Partition.make_follower

    def truncating(self: Partition, registration: Any) -> bool:
        is_new = make_follower(self, registration)
        if is_new and self.log.high_watermark < self.log.log_end_offset:
            self.log.truncate_to(self.log.high_watermark)
        return is_new

    def diverging(self: Partition, position: Any, _answer: Any) -> None:
        if self._is_at(position):
            self.truncate_to(min(self.log.high_watermark, self.log.log_end_offset), "diverging epoch")

    return [(Partition, "make_follower", truncating), (Partition, "truncate_to_divergence", diverging)]


@mutation("M02", "a replica joins the ISR at the high watermark, below the start of the leader's epoch (KAFKA-7128)")
def _skip_epoch_start() -> list[Patch]:
    def is_in_sync(self: LeaderState, replica: Any) -> bool:
        return bool(replica.log_end_offset >= self.log.high_watermark)

    return [(LeaderState, "is_in_sync", is_in_sync)]


@mutation("M03", "the high watermark is computed from the committed ISR, not from the maximal ISR (KIP-497)")
def _committed_isr_for_high_watermark() -> list[Patch]:
    def smallest(self: LeaderState) -> int:
        isr = self.isr if isinstance(self.isr, CommittedIsr) else self.isr.committed
        members = [replica.log_end_offset for broker_id, replica in self.replicas.items() if broker_id in isr.isr]
        return min([self.log.log_end_offset, *members])

    return [(LeaderState, "smallest_log_end", smallest)]


@mutation("M04", "the controller accepts an AlterPartition request that is based on an older partition epoch")
def _old_partition_epoch() -> list[Patch]:
    def stale(partition: Any, broker_id: int, item: Any) -> ErrorCode | None:
        if item.leader_epoch > partition.leader_epoch:
            return ErrorCode.NOT_CONTROLLER
        if item.leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.INVALID_REQUEST if broker_id != partition.leader else None

    return [(replication_control, "_stale", stale)]


@mutation("M05", "the broker epochs in an AlterPartition request are not compared (KIP-903)")
def _any_broker_epoch_in_isr() -> list[Patch]:
    def ineligible(image: Any, _partition: Any, proposed: Any) -> ErrorCode | None:
        alive = all((b := image.brokers.get(member.broker_id)) is not None and b.is_active for member in proposed)
        return None if alive else ErrorCode.INELIGIBLE_REPLICA

    def is_eligible(self: LeaderState, replica: Any) -> bool:
        return bool(self.context.is_active(replica.broker_id))

    return [(replication_control, "_ineligible", ineligible), (LeaderState, "_is_eligible", is_eligible)]


@mutation("M06", "a fenced broker may be in the ISR (KIP-841)")
def _fenced_in_isr() -> list[Patch]:
    def ineligible(image: Any, _partition: Any, proposed: Any) -> ErrorCode | None:
        known = all(member.broker_id in image.brokers for member in proposed)
        return None if known else ErrorCode.INELIGIBLE_REPLICA

    def is_eligible(self: LeaderState, replica: Any) -> bool:
        return bool(replica.broker_epoch == self.context.registered_epoch(replica.broker_id))

    return [(replication_control, "_ineligible", ineligible), (LeaderState, "_is_eligible", is_eligible)]


@mutation("M07", "the high watermark advances while the ISR is smaller than min.insync.replicas (KAFKA-15583)")
def _move_under_min_isr() -> list[Patch]:
    def increment(self: LeaderState) -> bool:
        log = self.log
        end = self.smallest_log_end()
        if end <= log.high_watermark or not log.update_high_watermark(end):
            return False
        self.events.high_watermark_moved()
        return True

    return [(LeaderState, "maybe_increment_high_watermark", increment)]


@mutation("M08", "a leader is elected from outside the ISR if no member of the ISR is alive")
def _unclean_election() -> list[Patch]:
    elect, build = partition_change.elect, PartitionChangeBuilder.build

    def anybody(partition: Any, isr: Any, may_lead: Any, **keywords: Any) -> int:
        leader = elect(partition, isr, may_lead, **keywords)
        return leader if leader != NO_LEADER else next((r for r in partition.replicas if may_lead(r)), NO_LEADER)

    def with_its_isr(self: PartitionChangeBuilder) -> Any:
        leader = anybody(self.partition, self.isr, self.rules.may_lead)
        self.isr = self.isr if leader == NO_LEADER or leader in self.isr else (leader,)
        return build(self)

    return [(partition_change, "elect", anybody), (PartitionChangeBuilder, "build", with_its_isr)]


@mutation("M09", "a broker that may have lost records stays in the ELR (KIP-966)")
def _keep_struck_replica() -> list[Patch]:
    return [(PartitionChangeBuilder, "_without_lost", lambda self, members: members)]


@mutation("M30", "the ELR stays when the ISR has reached the min ISR (KIP-966)")
def _elr_survives_min_isr() -> list[Patch]:
    beside = PartitionChangeBuilder.elr_beside

    def staying(self: PartitionChangeBuilder, isr: Any) -> Any:
        former = (*self.partition.elr, *self.partition.isr) if self.partition.elr else ()
        kept = tuple(replica for replica in self.partition.replicas if replica in former and replica not in isr)
        return beside(self, isr) or self._without_lost(kept)

    return [(PartitionChangeBuilder, "elr_beside", staying)]


@mutation("M31", "a leader that is elected from the ELR stays in the ELR (KIP-966)")
def _elected_stays_in_elr() -> list[Patch]:
    build = PartitionChangeBuilder.build

    def uncleared(self: PartitionChangeBuilder) -> Any:
        record = build(self)
        if record is None or record.leader not in self.partition.elr:
            return record
        return msgspec.structs.replace(record, eligible_leader_replicas=None)

    return [(PartitionChangeBuilder, "build", uncleared)]


@mutation("M32", "the high watermark moves while there is an ELR, if the leader's own min ISR allows it (KIP-966)")
def _move_beside_elr() -> list[Patch]:
    small = property(lambda self: len(self.isr.isr) < self.min_isr)
    return [(LeaderState, "is_under_min_isr", small)]


@mutation("M33", "a leader that recovers from an unclean election expands its ISR (KIP-704)")
def _recovering_leader_expands() -> list[Patch]:
    expand = LeaderState.maybe_expand_isr

    def as_recovered(self: LeaderState, replica: Any) -> None:
        is_recovering, self.is_recovering = self.is_recovering, False
        expand(self, replica)
        self.is_recovering = is_recovering

    return [(LeaderState, "maybe_expand_isr", as_recovered)]


@mutation("M34", "the range of a report begins at the new leader's log end, although its last records are of an older epoch")
def _report_trusts_old_epochs() -> list[Patch]:
    lost_range = unclean_recovery.lost_range

    def too_small(partition: Any, earlier: Any, leader: int, answers: Any) -> tuple[int, int]:
        _, end = lost_range(partition, earlier, leader, answers)
        start = answers[leader].log_end_offset
        return start, end if end < 0 else max(start, end)

    return [(unclean_recovery, "lost_range", too_small)]


@mutation("M35", "the range of a report ends with the longest log that answered, although the last leader did not answer")
def _report_guesses_the_end() -> list[Patch]:
    lost_range = unclean_recovery.lost_range

    def too_short(partition: Any, earlier: Any, leader: int, answers: Any) -> tuple[int, int]:
        start, end = lost_range(partition, earlier, leader, answers)
        longest = max(answer.log_end_offset for answer in answers.values())
        return start, max(start, longest) if end < 0 else end

    return [(unclean_recovery, "lost_range", too_short)]


@mutation("M36", "the throttle of a reassignment also slows down members of the ISR (KIP-73)")
def _throttle_isr_members() -> list[Patch]:
    return [(LeaderState, "is_throttled", lambda self, broker_id: broker_id in self.throttled)]


@mutation("M39", "a reassignment does not complete when its last added replica joins the ISR (KIP-455)")
def _never_complete() -> list[Patch]:
    return [(replication_control, "completion", lambda *_: None)]


@mutation("M40", "the throttle of a reassignment outlives it (KIP-73)")
def _keep_throttle() -> list[Patch]:
    without_removed = Assignment.without_removed

    def throttled(self: Assignment) -> Assignment:
        return without_removed(self)._replace(throttle_rate=self.throttle_rate)

    return [(Assignment, "without_removed", throttled)]


@mutation("M41", "a reassignment completes before all added replicas are in the ISR (KIP-455)")
def _complete_early() -> list[Patch]:
    may_complete = reassignment.may_complete

    def hasty(assignment: Assignment, isr: Any, min_isr: int) -> bool:
        return may_complete(assignment._replace(adding=()), isr, min_isr)

    return [(module, "may_complete", hasty) for module in (reassignment, reassignment_control)]


@mutation("M10", "the leader serves a follower's fetch with any leader epoch")
def _any_epoch_in_fetch() -> list[Patch]:
    def leading_follower(self: Partition, _epoch: int) -> LeaderState:
        return self.leading(-1)

    return [(Partition, "leading_follower", leading_follower)]


@mutation("M22", "a fetch by a follower whose history diverges from the leader's counts as progress")
def _diverging_fetch_counts() -> list[Patch]:
    visit = Fetch.visit_for_follower

    def visiting(self: Fetch, cached: Any, partition: Partition, answer: Any, arrival: bool) -> None:
        leader_state = partition.leader_state
        if arrival and leader_state is not None and leader_state.epoch == cached.current_leader_epoch:
            session = self.session if self.session.id else None
            replica = leader_state.replicas.get(self.session.replica_id)
            if replica is not None:
                args = (cached.fetch_offset, cached.log_start_offset, self.session.replica_epoch, session)
                leader_state.on_follower_fetch(replica, *args)
        visit(self, cached, partition, answer, arrival)

    return [(Fetch, "visit_for_follower", visiting)]


@mutation("M11", "a batch with acks=all is acknowledged as soon as the leader has appended it")
def _acknowledge_at_append() -> list[Patch]:
    append = ProduceHandler.append

    def at_once(self: ProduceHandler, *args: Any) -> tuple[Any, int]:
        return append(self, *args)[0], 0

    return [(ProduceHandler, "append", at_once)]


# -- the quorum -------------------------------------------------------------------------------------------------------


@mutation("M12", "a voter sends its vote before the vote is on disk")
def _vote_before_fsync() -> list[Patch]:
    write = QuorumStateStore.write

    def without_waiting(self: QuorumStateStore, *args: Any) -> None:
        files = self._files
        self._files = _Hasty(files)  # type: ignore[assignment]
        try:
            write(self, *args)
        finally:
            self._files = files

    return [(QuorumStateStore, "write", without_waiting)]


class _Hasty:
    """A disk whose `write_atomic` is not durable."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, "write" if name == "write_atomic" else name)


@mutation("M13", "the quorum's leader commits entries of older epochs by counting copies (Raft, figure 8)")
def _commit_old_epochs() -> list[Patch]:
    def advance(self: Any, now: float) -> None:
        state, role = self.state, self.state.role
        assert isinstance(role, Leader)
        ends = sorted([role.flushed_offset, *(progress.end_offset for progress in role.voters.values())], reverse=True)
        majority_end = min(ends[len(ends) // 2], state.log.end_offset)
        if majority_end > state.high_watermark:
            state.advance_high_watermark(majority_end)

    return [(LeaderHandler, "maybe_advance_high_watermark", advance)]


@mutation("M14", "brokers apply uncommitted metadata records")
def _apply_uncommitted() -> list[Patch]:
    apply = QuorumObserver.apply_committed

    def eagerly(self: QuorumObserver) -> Any:
        known, self.high_watermark = self.high_watermark, 1 << 60
        try:
            return apply(self)
        finally:
            self.high_watermark = known

    return [(QuorumObserver, "apply_committed", eagerly)]


@mutation("M23", "a voter that returns with an empty disk votes at once")
def _vote_without_memory() -> list[Patch]:
    check = QuorumStateStore.check

    def forgetful(self: QuorumStateStore, state: Any, log_end_offset: int) -> Any:
        return check(self, state, log_end_offset)._replace(recovering=False)

    return [(QuorumStateStore, "check", forgetful)]


@mutation("M20", "the controller accepts a heartbeat with any broker epoch")
def _any_broker_epoch_in_heartbeat() -> list[Patch]:
    def check(image: Any, broker_id: int, _broker_epoch: int) -> None:
        if broker_id not in image.brokers:
            raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is not registered")

    return [(cluster_control, "check_broker_epoch", check)]


@mutation("M28", "leaders return to their preferred replicas while a broker is in controlled shutdown")
def _return_during_shutdown() -> list[Patch]:
    return [(module, "leaving_brokers", lambda image: []) for module in (leader_balance, leader_balancer)]


# -- readers and writers ----------------------------------------------------------------------------------------------


@mutation("M15", "consumers read up to the log end, not only up to the high watermark")
def _consumers_read_all() -> list[Patch]:
    def visit(self: Fetch, cached: Any, partition: Partition, answer: Any) -> None:
        partition.check_leader_epoch(cached.current_leader_epoch)
        diverging = partition.divergence(cached.fetch_offset, cached.last_fetched_epoch)
        self._add(cached, partition, partition.log.log_end_offset, diverging, False, answer)

    return [(Fetch, "visit_for_consumer", visit)]


@mutation("M29", "a leader sends consumers to any replica in their rack, also to one outside the ISR (KIP-392)")
def _nomination_outside_the_isr() -> list[Patch]:
    def readable(self: LeaderState, fetch_offset: int) -> list[Replica]:
        return list(self.replicas.values())

    return [(LeaderState, "readable_replicas", readable)]


@mutation("M37", "a log moves to another directory before the controller has accepted that (KIP-858)")
def _promote_before_acceptance() -> list[Patch]:
    def at_once(self: Move) -> None:
        self.state = MoveState.ACCEPTED

    return [(Move, "announce", at_once)]


@mutation("M38", "a copy in another directory takes the place of a log before it has caught up (KIP-113)")
def _promote_before_caught_up() -> list[Patch]:
    next_step = Move.next_step

    def hasty(self: Move, *facts: Any, **needs: Any) -> Step:
        return Step.PROMOTE if self.state is MoveState.ACCEPTED else next_step(self, *facts, **needs)

    return [(Move, "next_step", hasty)]


@mutation("M16", "a duplicate of an appended batch is appended again")
def _no_deduplication() -> list[Patch]:
    def check(self: ProducerStates, header: Any, pending: Any) -> AppendedBatch | None:
        pending[header.producer_id] = (header.producer_epoch, header.last_sequence)
        return None

    return [(ProducerStates, "check", check), (Log, "_find_duplicates", lambda self, headers: [])]


@mutation("M17", "a broker remembers only the last batch of a producer, not the last five (KAFKA-5494)")
def _remember_one() -> list[Patch]:
    begin = ProducerEntry.__init__

    def forgetful(self: ProducerEntry, *arguments: Any) -> None:
        begin(self, *arguments)
        self.batches = deque(maxlen=1)

    return [(ProducerEntry, "__init__", forgetful)]


@mutation("M50", "a conditional append is not compared with the log end")
def _append_anywhere() -> list[Patch]:
    append = Log.append_as_leader

    def anywhere(self: Log, records: Any, leader_epoch: int, now_ms: int, *checked: Any) -> Any:
        return append(self, records, leader_epoch, now_ms, *checked[:1])

    return [(Log, "append_as_leader", anywhere)]


@mutation("M70", "a fencing token is not compared with that of the log")
def _append_fenced() -> list[Patch]:
    return [(Log, "_find_unfenced", lambda self, headers, token: self._find_duplicates(headers))]


@mutation("M71", "a leader keeps the fencing token in memory only, and appends no fence")
def _remember_token_only() -> list[Patch]:
    def fenceless(self: Log, records: Any, headers: Any, token: int, leader_epoch: int, now_ms: int) -> Any:
        self.producers.fences.add(token, self.log_end_offset)
        return self.append_as_leader(records, leader_epoch, now_ms)

    return [(Log, "_append_behind_fence", fenceless)]


@mutation("M72", "a follower that begins after deleted records does not ask for their fencing token")
def _start_without_token() -> list[Patch]:
    from_leader = ProducerStates.from_leader.__func__  # type: ignore[attr-defined]

    def forgetful(cls: type[ProducerStates], known: Any, before: int) -> ProducerStates:
        return from_leader(cls, [each for each in known if each.producer_id < FIRST_FENCE], before)  # type: ignore[no-any-return]

    return [(ProducerStates, "from_leader", classmethod(forgetful))]


@mutation("M73", "a deleted fence is not written into the snapshot that outlives it")
def _forget_deleted_fence() -> list[Patch]:
    return [(ProducerStates, "outlives_batches", property(lambda self: False))]


@mutation("M74", "a record is rejected for its fencing token before the fence is committed")
def _reject_at_once() -> list[Patch]:
    fenced = FencedToken.__init__

    def at_once(self: FencedToken, token: int, newest: Any) -> None:
        fenced(self, token, newest)
        self.reason_end = 0

    return [(FencedToken, "__init__", at_once)]


# -- consumer groups --------------------------------------------------------------------------------------------------


@mutation("M51", "a partition is given to a member before its owner has given it up (KAFKA-16147)")
def _give_owned_partitions() -> list[Patch]:
    return [(Draft, "is_free_for", lambda *_: True)]


@mutation("M52", "a member may commit in an older epoch for a partition that it has given up (KIP-1251)")
def _commit_given_up() -> list[Patch]:
    check = ConsumerGroup.check_offset_commit

    def lenient(self: ConsumerGroup, *given: Any, **options: Any) -> list[int]:
        return [0] * len(check(self, *given, **options))

    return [(ConsumerGroup, "check_offset_commit", lenient)]


@mutation("M53", "an OffsetFetch response has offsets that are appended, but possibly not committed")
def _serve_uncommitted_offsets() -> list[Patch]:
    def newest(self: OffsetTable, group_id: str, topic: str, partition: int) -> Any:
        return self.topics(group_id).get(topic, {}).get(partition)

    return [(OffsetTable, "committed", newest)]


@mutation("M54", "the coordinator replies before the records that the reply depends on are committed")
def _reply_before_high_watermark() -> list[Patch]:
    return [(Coordinator, "when_committed", lambda self, active, replies: send(replies))]


@mutation("M55", "the commit of a member that was removed is accepted")
def _commit_of_stranger() -> list[Patch]:
    check = ConsumerGroup.check_offset_commit

    def lenient(self: ConsumerGroup, member_id: str, *given: Any, **options: Any) -> list[int]:
        if member_id not in self.members:
            return [0] * len(given[2])
        return check(self, member_id, *given, **options)

    return [(ConsumerGroup, "check_offset_commit", lenient)]


@mutation("M56", "a coordinator that has loaded its groups starts no sessions: a dead member stays in the group")
def _no_sessions_after_load() -> list[Patch]:
    return [(ConsumerProtocol, "_restart_timers", lambda *_: None)]


@mutation("M57", "the last committed offset is dropped when a newer one is appended, so the group seems to have none")
def _forget_earlier_offset() -> list[Patch]:
    replay = OffsetTable.replay

    def forgetful(self: OffsetTable, record: Any, log_offset: int) -> None:
        replay(self, record, log_offset)
        earlier = self._earlier.get(record.group_id, {}).get((record.topic, record.partition))
        if earlier:
            earlier[-1] = None

    return [(OffsetTable, "replay", forgetful)]


@mutation("M58", "a new coordinator returns offsets before its high watermark shows which are committed")
def _read_before_loaded_end() -> list[Patch]:
    read = Coordinator.read_committed

    def hasty(self: Coordinator[Any], active: Any, asker: Any, read_at: Any) -> None:
        end, active.loaded_end = active.loaded_end, 0
        try:
            read(self, active, asker, read_at)
        finally:
            active.loaded_end = end

    return [(Coordinator, "read_committed", hasty)]


@mutation("M59", "a member's late requests are accepted on a connection that it has abandoned")
def _accept_late_requests() -> list[Patch]:
    return [(MemberConnections, "check", lambda *_: None)]


@mutation("M60", "a consumer that was paused for longer than its session returns its buffered records")
def _trust_membership_after_pause() -> list[Patch]:
    return [(GroupMember, "_maybe_suspend", lambda self: None)]


@mutation("M61", "a coordinator's load skips commits of several partitions")
def _lose_offsets_in_load() -> list[Patch]:
    collect = GroupLoader._collect

    def careless(self: GroupLoader, columns: Any) -> bool:
        before = dict(self._newest)
        is_collected = collect(self, columns)
        if is_collected:
            self._newest = before
        return is_collected

    return [(GroupLoader, "_collect", careless)]


# -- transactions -----------------------------------------------------------------------------------------------------


@mutation("M80", "one partition of a transaction gets no marker")
def _skip_a_marker() -> list[Patch]:
    put = MarkerQueue.put

    def forgetful(self: MarkerQueue, sending: Any, partitions: Any, image: Any) -> Any:
        names = list(partitions)
        if len(sending.markers.partitions) > 1 and sending.markers.partitions[-1] in names:
            names.remove(sending.markers.partitions[-1])
            sending.left.pop(sending.markers.partitions[-1], None)
        return put(self, sending, names, image)

    return [(MarkerQueue, "put", forgetful)]


@mutation("M81", "readers of committed records read up to the high watermark, and not to the last stable offset")
def _stable_offset_ahead() -> list[Patch]:
    return [(LogState, "last_stable_offset", property(lambda self: self.high_watermark))]


@mutation("M82", "the aborted transactions of a fetch response are not in the order of their first offsets")
def _unsorted_aborted() -> list[Patch]:
    find = fetch_handler._aborted

    def unsorted(*args: Any) -> Any:
        found = find(*args)
        return found and found[::-1]

    return [(fetch_handler, "_aborted", unsorted)]


@mutation("M83", "the fetch response to a reader of committed records does not name the aborted transactions")
def _no_aborted() -> list[Patch]:
    return [(fetch_handler, "_aborted", lambda *_: None)]


@mutation("M84", "the coordinator serves a producer that was replaced: it does not compare the epochs")
def _no_fencing() -> list[Patch]:
    def of_producer(self: TransactionShard, transactional_id: str, asker: Any) -> Any:
        return self._known(transactional_id)

    return [(TransactionShard, "_of_producer", of_producer), (shard, "_check_end", lambda *_, **__: None)]


@mutation("M85", "the record that gives a transactional id to a new process does not have its new epoch")
def _epoch_not_persisted() -> list[Patch]:
    encode = transaction_records._encode_value

    def stale(value: Transaction) -> bytes:
        is_takeover = value.state is State.EMPTY and value.last_producer_epoch < 0 and value.producer_epoch > 0
        return encode(replace(value, producer_epoch=value.producer_epoch - 1) if is_takeover else value)

    return [(transaction_records, "_encode_value", stale)]


@mutation("M86", "markers are sent before the decision is committed")
def _hasty_markers() -> list[Patch]:
    return [(TransactionCoordinator, "_send_when_committed", TransactionCoordinator._send_markers)]


@mutation("M87", "a leader appends to a transaction without asking the coordinator (KIP-890)")
def _no_admission() -> list[Patch]:
    return [(Admission, "question", lambda *_: None), (Admission, "check", lambda *_: None)]


@mutation("M88", "transactions that take longer than their time-out are not aborted")
def _no_timeout() -> list[Patch]:
    return [(TransactionShard, "abort_timed_out", lambda *_: iter(()))]


@mutation("M89", "a new coordinator does not send the markers of transactions that were decided before")
def _no_markers_after_load() -> list[Patch]:
    return [(TransactionShard, "on_loaded", lambda self: iter(()))]


@mutation("M90", "a transaction counts as complete when its markers are appended, but possibly not committed")
def _markers_not_committed() -> list[Patch]:
    return [(DelayedMarkers, "wait_for", lambda *_: None)]


@mutation("M91", "a new coordinator does not have the last epoch of a producer, and fences the producer's retry (KAFKA-20357)")
def _last_epoch_not_persisted() -> list[Patch]:
    tags = transaction_records._tags_of

    def without(value: Transaction) -> dict[int, bytes]:
        return {tag: data for tag, data in tags(value).items() if tag != transaction_records._LAST_EPOCH}

    return [(transaction_records, "_tags_of", without)]


@mutation("M92", "the cleaner lets records of aborted transactions supersede others")
def _aborted_supersede() -> list[Patch]:
    put = cleaning._put

    def put_all(offset_map: Any, header: Any, data: Any, reader: Any, *, is_aborted: bool) -> bool:
        return put(offset_map, header, data, reader, is_aborted=False)

    return [(cleaning, "_put", put_all)]


@mutation("M93", "a marker does not put the offsets of its transaction in force (KIP-447)")
def _marker_without_offsets() -> list[Patch]:
    return [(OffsetTable, "replay_marker", lambda self, producer_id, *_: len(self.pending.take(producer_id)) * 0)]


# -- the log cleaner --------------------------------------------------------------------------------------------------


@mutation("M24", "the cleaner drops a live key: it also removes the record that its map has as the key's newest one")
def _drop_live_key() -> list[Patch]:
    newest_rows = batch_cleaning._newest_rows

    def too_few(layout: Any, header: Any, rules: Any) -> list[int]:
        newest, offsets = rules.map.get(layout.keys), layout.offsets(header.base_offset)
        return [row for row in newest_rows(layout, header, rules) if offsets[row] != newest[row]]

    return [(batch_cleaning, "_newest_rows", too_few), (OffsetMap, "kept_rows", lambda self, header: None)]


@mutation("M25", "a follower that has missed removed tombstones continues to fetch, and keeps the values that they deleted")
def _no_fresh_copy() -> list[Patch]:
    return [(Partition, "needs_fresh_copy", lambda self, position, tombstones_removed_below: False)]


@mutation("M26", "the cleaner drops tombstones at once, without a delete horizon (KIP-534)")
def _no_delete_horizon() -> list[Patch]:
    def at_once(layout: Any, header: Any, rules: Any, live: list[int]) -> list[int]:
        latest, offsets = rules.map.latest_offset, layout.offsets(header.base_offset)
        return [row for row in live if row not in layout.tombstones or offsets[row] > latest]

    return [(batch_cleaning, "_without_expired", at_once)]


@mutation("M27", "the cleaner also cleans records above the last offset of its map")
def _judge_above_the_map() -> list[Patch]:
    clean_batch = batch_cleaning.clean_batch

    def judging_all(data: Any, header: Any, rules: Any, reader: Any) -> Any:
        return clean_batch(data, header, rules._replace(map=_Endless(rules.map)), reader)

    return [(cleaning, "clean_batch", judging_all)]


class _Endless:
    """An offset map that says it has seen every record."""

    latest_offset = 1 << 62

    def __init__(self, offset_map: Any) -> None:
        self.get = offset_map.get

    def kept_rows(self, header: Any) -> None:
        """Return None, so that each batch is judged record by record, because the marks of kept rows do not cover the records
        above the map."""


# -- the disk ---------------------------------------------------------------------------------------------------------


class _Equal(int):
    """A checksum that equals every other."""

    def __ne__(self, other: object) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


@mutation("M18", "checksums are not verified when a log is read")
def _no_checksums() -> list[Patch]:
    return [(log_read, "crc32c", lambda data: _Equal()), (log_read, "check_crc", lambda *_: True)]


@mutation("M19", "a file is replaced without an fsync of its directory")
def _no_directory_fsync() -> list[Patch]:
    return [(MemoryFiles, "fsync_dir", lambda self, path: None)]


@mutation("M21", "the clean-shutdown marker is removed at the first checkpoint, not before the first write")
def _late_marker() -> list[Patch]:
    load, write = LogDir.load, LogDir.checkpoint_all

    def load_and_keep(self: LogDir) -> None:
        load(self)
        if self.was_clean:
            self.files.write_atomic(_marker(self), CleanShutdown.encode(self.previous_broker_epoch))

    def write_and_remove(self: LogDir) -> None:
        self.files.remove(_marker(self))
        write(self)

    return [(LogDir, "load", load_and_keep), (LogDir, "checkpoint_all", write_and_remove)]


def _marker(log_dir: LogDir) -> str:
    return join(log_dir.path, CLEAN_SHUTDOWN)
