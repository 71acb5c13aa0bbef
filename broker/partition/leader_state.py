"""A partition's leader in one leader epoch: what it knows of its followers, and how it moves the ISR and the high watermark.

An instance lives as long as the leader epoch. A new epoch begins with a new instance, so a fetch of an earlier epoch cannot move
the high watermark in this one.

- **High watermark**: the smallest log end over the maximal ISR and over every other follower that is caught up and eligible.
  Such a follower may join the ISR a moment later; counting it now means that it never joins below the HW (KAFKA-14139). The HW
  does not move while the committed ISR is smaller than the effective min ISR or the partition has an ELR, and it never
  decreases. Safety needs the maximal ISR alone, because no other replica can be elected. So the HW waits for a follower that left
  the ISR or was fenced only after that follower has caught up again.
- **Expansion**: the leader proposes a follower whose log reaches the HW *and* the start of this leader epoch (KAFKA-7128).
  Without the second condition the follower could be elected while it lacks records between a new leader's stale HW and the true
  one. The proposal names the process (broker epoch) that fetched (KIP-903); before it is repeated, all conditions are checked
  again.
- **Shrink**: a timer proposes to remove members that have not been caught up for `replica.lag.time.max.ms`. A member whose fetch
  asks for committed records that it had before is proposed for removal at once.
- **Recovery**: after an unclean election the leader is alone in the ISR and RECOVERING (KIP-704). It does not expand the ISR
  before it has finished, and proposes RECOVERED then. Its recovery has no work to do yet, so it finishes as soon as it leads. If
  the controller refuses the proposal, the leader repeats it after a short pause, or, if it is fenced, once it is unfenced.
- **Commit**: the controller commits a proposal (AlterPartition, KIP-497) and raises the partition epoch. At most one proposal is
  in flight. The leader learns its outcome from the answer or from the metadata log, whichever arrives first; the other is stale.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from strandline.broker.metrics import TopicMetrics
from strandline.broker.partition.alter_partition import RETRY_BACKOFF_MS, AlterPartitionItem
from strandline.broker.partition.context import LeaderEvents, PartitionContext, log_fields
from strandline.broker.partition.partition_state import CommittedIsr, IsrState, PendingExpandIsr, PendingShrinkIsr
from strandline.broker.partition.replica import NEVER, UNKNOWN_OFFSET, FetchTimes, Replica
from strandline.controller.metadata.records import RECOVERED, RECOVERING
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.cluster import AlterPartitionPartitionResponse
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.marker import EndTransactionMarker
from strandline.storage.log.validation import NONE_CHECKED, CheckedTimes

if TYPE_CHECKING:
    from strandline.controller.metadata.image import PartitionRegistration
    from strandline.storage.disk import Buffer
    from strandline.storage.log.log import AppendInfo, Log

logger = get_logger(__name__)


_NOT_APPLIED = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST})
"""The controller checked the proposal and refused it: nothing was committed."""
_WAIT_FOR_METADATA = frozenset(
    {
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""The controller has a newer epoch than the proposal, perhaps because it accepted an earlier copy. The leader waits for the
metadata log, which brings the present ISR."""


class LeaderState:
    """The leader's side of one partition, in one leader epoch."""

    __slots__ = (
        "_min_insync_replicas",
        "_repeat",
        "adding_replicas",
        "context",
        "elr",
        "epoch",
        "epoch_start_offset",
        "events",
        "is_reassigning",
        "is_recovering",
        "isr",
        "key",
        "log",
        "metrics",
        "min_isr",
        "partition_epoch",
        "replicas",
        "replication_factor",
        "throttle_rate",
        "throttled",
        "topic",
    )

    def __init__(
        self,
        registration: PartitionRegistration,
        epoch_start_offset: int,
        *,
        key: TopicIdPartition,
        topic: str,
        log: Log,
        context: PartitionContext,
        metrics: TopicMetrics,
        events: LeaderEvents,
        min_insync_replicas: int,
    ) -> None:
        self.key = key
        self.topic = topic
        self.log = log
        self.context = context
        self.metrics = metrics
        """Counters of the topic."""
        self.events = events
        self.epoch = registration.leader_epoch
        self.partition_epoch = registration.partition_epoch
        """The newest epoch that the controller has named, in the metadata log or in an answer. The next proposal carries it."""
        self.epoch_start_offset = epoch_start_offset
        """The log end at which this epoch began. Records below it may be committed although this leader's HW is lower."""
        self._min_insync_replicas = min_insync_replicas
        self.isr: IsrState = CommittedIsr(registration.isr)
        self.is_recovering = registration.leader_recovery_state == RECOVERING
        """Whether this leader was elected uncleanly, and the controller has not accepted RECOVERED yet."""
        self.elr = registration.elr
        """The eligible leader replicas that were committed with this partition epoch (KIP-966). While there is one, the high
        watermark does not move: each of them must have every committed record, because it may be elected."""
        self.replicas: dict[int, Replica] = {}
        """Every assigned replica except the leader."""
        self.min_isr = 1
        """`min.insync.replicas`, capped by the number of replicas."""
        self.replication_factor = len(registration.replicas)
        """The number of replicas, without those that a reassignment adds."""
        self.is_reassigning = False
        self.adding_replicas: tuple[int, ...] = ()
        """The replicas that a reassignment adds, in the ISR or not."""
        self.throttle_rate = 0
        """Bytes per second for the reassignment; 0: no limit."""
        self.throttled: frozenset[int] = frozenset()
        """The replicas that this rate slows down until they are in the ISR. Empty if there is no limit."""
        self._repeat = False
        """The proposal in flight got an answer that decides nothing: propose it again at the next tick of the shrink timer."""
        self._assign(registration)

    def _assign(self, registration: PartitionRegistration) -> None:
        self.replication_factor = len(registration.replicas) - len(registration.adding_replicas)
        self.is_reassigning = registration.is_reassigning
        self.adding_replicas = registration.adding_replicas
        self.throttle_rate = registration.throttle_rate
        self.throttled = frozenset(registration.adding_replicas if registration.throttle_rate else ())
        known, now = self.replicas, self.context.now()
        in_sync = self.isr.maximal
        self.replicas = {}
        for broker_id in registration.replicas:
            if broker_id != self.context.broker_id:
                # A member of the ISR has the whole lag time for its first fetch in this epoch.
                caught_up = now if broker_id in in_sync else NEVER
                self.replicas[broker_id] = known.get(broker_id) or Replica(broker_id, last_caught_up_time=caught_up)
        self._set_min_isr()

    def _set_min_isr(self) -> None:
        self.min_isr = min(self._min_insync_replicas, len(self.replicas) + 1)

    @property
    def fields(self) -> dict[str, object]:
        """The fields of every log line about this leadership."""
        return log_fields(self.topic, self.key, self.epoch, self.partition_epoch, self.log)

    def on_new_partition_epoch(self, registration: PartitionRegistration) -> None:
        """Take a registration in which the controller changed the ISR or the assigned replicas. The proposal in flight is
        dropped: this change has accepted it or made it stale."""
        self.partition_epoch = registration.partition_epoch
        is_ours = not isinstance(self.isr, CommittedIsr) and set(registration.isr) == set(self.isr.proposed)
        self.drop_proposal()
        if set(registration.isr) != set(self.isr.isr):
            reason = "this leader proposed it" if is_ours else "the controller changed it"
            logger.info("isr.committed", **self.fields, isr=list(registration.isr), reason=reason)
        self.install_isr(registration.isr, registration.elr)
        self._assign(registration)
        self.is_recovering = registration.leader_recovery_state == RECOVERING
        self._after_isr_change()
        self.maybe_finish_recovery()

    def install_isr(self, isr: tuple[int, ...], elr: tuple[int, ...]) -> None:
        """Take a committed ISR and ELR. A member that leaves the ISR must show its progress again before it may rejoin."""
        for member in self.isr.isr:
            if member not in isr and member in self.replicas:
                self.replicas[member].forget_progress(self.context.now())
        self.isr, self.elr = CommittedIsr(isr), elr

    def resign(self) -> None:
        self.drop_proposal()
        self.is_recovering = False

    def drop_proposal(self) -> None:
        """Cancel the proposal in flight, if there is one. Its answer will be ignored."""
        if self.isr.is_in_flight:
            self.context.alter_partition.cancel(self.key)
            self.isr = self.isr.committed

    # -- appends ------------------------------------------------------------------------------------------------------

    def append(
        self,
        records: Buffer,
        now_ms: int,
        checked: CheckedTimes = NONE_CHECKED,
        expected_offset: int = -1,
        fencing_token: int = -1,
        is_transactional: bool = False,
    ) -> AppendInfo:
        """Append a producer's batches. For `acks=all` the caller has checked the min ISR. `checked`: times of batches that were
        checked before. `expected_offset`: where the log end must be; -1: anywhere. `fencing_token`: the highest token that the
        log may have; -1: any. `is_transactional`: the batches may belong to a transaction. Raises what `Log.append_as_leader`
        raises."""
        log_ = self.log
        end = log_.log_end_offset
        for replica in self.replicas.values():
            if replica.log_end_offset == end:
                replica.before_leader_appends()
        info = log_.append_as_leader(records, self.epoch, now_ms, checked, expected_offset, fencing_token, is_transactional)
        if not info.duplicate:
            metrics = self.metrics
            metrics.bytes_in += info.size
            metrics.messages_in += info.last_offset - info.first_offset + 1
            self.events.log_end_moved()
            # If the ISR has another member, the HW waits for that member's fetch.
            if len(self.isr.maximal) == 1:
                self.maybe_increment_high_watermark()
        return info

    def append_marker(
        self, marker: EndTransactionMarker, producer_id: int, producer_epoch: int, now_ms: int, transaction_version: int
    ) -> AppendInfo:
        """Append the marker that ends a producer's transaction here. Raises what `Log.append_marker` raises."""
        log_ = self.log
        for replica in self.replicas.values():
            if replica.log_end_offset == log_.log_end_offset:
                replica.before_leader_appends()
        info = log_.append_marker(marker, producer_id, producer_epoch, self.epoch, now_ms, transaction_version)
        self.events.log_end_moved()
        if len(self.isr.maximal) == 1:
            self.maybe_increment_high_watermark()
        return info

    # -- the high watermark -------------------------------------------------------------------------------------------

    @property
    def is_under_min_isr(self) -> bool:
        """Whether the ISR is too small to commit records, by this broker's settings or (if there is an ELR) the controller's."""
        return len(self.isr.isr) < self.min_isr or bool(self.elr)

    def maybe_increment_high_watermark(self) -> bool:
        """Raise the high watermark as far as the followers' log ends allow. True if it moved."""
        log_ = self.log
        if log_.high_watermark >= log_.log_end_offset or self.is_under_min_isr:
            return False
        high_watermark = self.smallest_log_end()
        if high_watermark <= log_.high_watermark or not log_.update_high_watermark(high_watermark):
            return False
        self.events.high_watermark_moved()
        return True

    def smallest_log_end(self) -> int:
        """The offset up to which every member of the maximal ISR, and every follower that may join it now, has the log."""
        end = smallest = self.log.log_end_offset
        maximal = self.isr.maximal
        for broker_id, replica in self.replicas.items():
            if replica.log_end_offset < smallest and (
                broker_id in maximal
                or (replica.is_caught_up(end, self.context.now(), self.context.replica_lag_s_max) and self._is_eligible(replica))
            ):
                smallest = replica.log_end_offset
        return smallest

    # -- deleting records ---------------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> None:
        """Move the log start up to this offset. Raises OFFSET_OUT_OF_RANGE above the high watermark, where records may still be
        replaced."""
        log_ = self.log
        if before_offset > log_.high_watermark:
            reason = f"{before_offset} is above the high watermark, {log_.high_watermark}"
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, reason)
        if log_.increment_log_start_offset(before_offset):
            logger.info("partition.records_deleted", **self.fields)
            self.events.log_start_moved()

    def low_watermark(self) -> int:
        """The smallest log start of the replicas that are alive (KIP-107), and of the eligible leader replicas, alive or not,
        because one of these may be elected as soon as it returns: no record below it can be read. -1 if one of them has not named
        its log start in this leader epoch."""
        context, smallest = self.context, self.log.log_start_offset
        for broker_id, replica in self.replicas.items():
            if context.is_active(broker_id) or broker_id in self.elr:
                is_known = replica.broker_epoch == context.registered_epoch(broker_id)
                smallest = min(smallest, replica.log_start_offset if is_known else UNKNOWN_OFFSET)
        return smallest

    # -- followers ----------------------------------------------------------------------------------------------------

    def replica(self, broker_id: int) -> Replica:
        """Return the state of a follower. Raises NOT_LEADER_OR_FOLLOWER if the broker is not an assigned replica."""
        replica = self.replicas.get(broker_id)
        if replica is None:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker_id} is not a replica of this partition")
        return replica

    def on_follower_fetch(
        self, replica: Replica, fetch_offset: int, log_start_offset: int, broker_epoch: int, session: FetchTimes | None
    ) -> None:
        """Record a fetch in this leader epoch from a position that agrees with our log: the follower has all records before it.

        Raises NOT_LEADER_OR_FOLLOWER if the fetch comes from a process that has registered again since (KIP-903)."""
        context = self.context
        if broker_epoch < context.registered_epoch(replica.broker_id):
            reason = f"broker {replica.broker_id} has registered again since this fetch was sent"
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, reason)
        end = self.log.log_end_offset
        is_start_news = log_start_offset != replica.log_start_offset or broker_epoch != replica.broker_epoch
        moved = replica.on_fetch(fetch_offset, log_start_offset, end, broker_epoch, context.now())
        replica.session = session
        if fetch_offset < self.log.high_watermark and (replica.broker_id in self.isr.maximal or replica.broker_id in self.elr):
            self._on_member_lost_records(replica)
        elif replica.broker_id not in self.isr.maximal:
            self.maybe_expand_isr(replica)
        if moved:
            self.maybe_increment_high_watermark()
        if is_start_news:
            self.events.low_watermark_moved()

    def forget_session(self, broker_id: int, session: FetchTimes) -> None:
        """Called when a fetch session of the follower ends: its fetches no longer count as progress."""
        replica = self.replicas.get(broker_id)
        if replica is not None and replica.session is session:
            replica.session = None

    def readable_replicas(self, fetch_offset: int) -> list[Replica]:
        """The followers in the committed ISR whose logs hold this position, for a consumer that asks where to read (KIP-392)."""
        return [
            replica
            for member in self.isr.isr
            if (replica := self.replicas.get(member)) is not None
            and replica.log_start_offset <= fetch_offset <= replica.log_end_offset
            and self._is_eligible(replica)
        ]

    def count_reassignment_bytes(self, broker_id: int, size: int) -> None:
        """Count the bytes of records that were sent to this follower, if the reassignment adds it."""
        if broker_id in self.adding_replicas:
            self.context.metrics.reassignment_bytes_out += size

    def is_throttled(self, broker_id: int) -> bool:
        """Whether the reassignment's throttle applies to this follower. Never to a member of the ISR, which it could slow down so
        much that the ISR shrinks (KIP-73)."""
        return broker_id in self.throttled and broker_id not in self.isr.maximal

    def _is_eligible(self, replica: Replica) -> bool:
        """Whether the replica may be in the ISR: the process that fetched must be the one that is registered and active."""
        context = self.context
        return context.is_active(replica.broker_id) and replica.broker_epoch == context.registered_epoch(replica.broker_id)

    def is_in_sync(self, replica: Replica) -> bool:
        """Whether the follower's log reaches the high watermark and the start of this leader epoch (KAFKA-7128)."""
        return replica.log_end_offset >= max(self.log.high_watermark, self.epoch_start_offset)

    def has_deleted(self, replica: Replica) -> bool:
        """Whether the follower has deleted what this log has deleted. DeleteRecords waits for no replica that is down and not
        eligible, so such a replica may only become eligible once its log start has moved, which takes a fetch or two."""
        return replica.log_start_offset >= self.log.log_start_offset

    def knows_history_of(self, replica: Replica) -> bool:
        """Whether the follower's last fetch could be compared with the epochs of this log, or the follower has no records. This
        log has no epochs below its log start. So a follower whose log ends there may hold a fork, and starts over
        (`Partition.has_unknown_history`)."""
        return replica.log_start_offset >= replica.log_end_offset or replica.log_end_offset > self.log.log_start_offset

    # -- the ISR ------------------------------------------------------------------------------------------------------

    def maybe_finish_recovery(self) -> None:
        """Propose that the recovery from an unclean election has ended: the ISR stays as it is."""
        if self.is_recovering and isinstance(self.isr, CommittedIsr):
            self.propose(self.isr.shrink(()))

    def _repeat_recovered(self) -> None:
        """Propose RECOVERED again after a refusal, unless this broker is not active: the controller would refuse that, too."""
        if self.context.is_active(self.context.broker_id):
            self.maybe_finish_recovery()

    def maybe_expand_isr(self, replica: Replica) -> None:
        isr = self.isr
        if self.is_recovering or not isinstance(isr, CommittedIsr) or replica.broker_id in isr.maximal:
            return
        is_complete = self.is_in_sync(replica) and self.knows_history_of(replica) and self.has_deleted(replica)
        if is_complete and self._is_eligible(replica):
            self.propose(isr.expand(replica.broker_id, replica.broker_epoch))

    def on_brokers_changed(self, changed: list[int]) -> None:
        """A broker was registered, fenced or unfenced. A follower that caught up before it became active is proposed now, without
        waiting for its next fetch; but only if it has fetched since its progress became void. A broker that was cut off is
        unfenced by a heartbeat, and its fetches may need seconds longer to get through."""
        if self.context.broker_id in changed:
            self._repeat_recovered()
        for broker_id in changed:
            replica = self.replicas.get(broker_id)
            if replica is None:
                continue
            if not self.context.is_active(broker_id):
                replica.forget_progress(self.context.now())
            elif replica.is_heard:
                self.maybe_expand_isr(replica)
        self.events.low_watermark_moved()

    def maybe_shrink_isr(self) -> None:
        isr = self.isr
        self.maybe_finish_recovery()
        if isr is not self.isr:
            return
        if isinstance(isr, CommittedIsr):
            removed = self.out_of_sync()
            if removed:
                self._log_lag(removed)
                self.propose(isr.shrink(removed))
        elif self._repeat:
            self.propose(self._still_right(isr))

    def _still_right(self, pending: PendingExpandIsr | PendingShrinkIsr) -> PendingExpandIsr | PendingShrinkIsr:
        """The proposal to repeat. An expansion is based on the log end of one process of the replica. If that process is gone, or
        its log no longer reaches far enough, the expansion is withdrawn, because a copy may have reached the controller."""
        if isinstance(pending, PendingShrinkIsr) or pending.is_withdrawn:
            return pending
        replica = self.replicas.get(pending.added)
        if replica is None or replica.broker_epoch != pending.added_epoch:
            return pending.withdraw()
        return pending if self.is_in_sync(replica) and self._is_eligible(replica) else pending.withdraw()

    def _on_member_lost_records(self, replica: Replica) -> None:
        """A member of the ISR or ELR asks for committed records that it had before: its disk lost or damaged them. It must not
        be elected before it has them again."""
        isr = self.isr
        if isinstance(isr, CommittedIsr):
            logger.warning(
                "isr.member_lost_records", **self.fields, broker_id=replica.broker_id, fetch_offset=replica.log_end_offset
            )
            member = (replica.broker_id,)
            self.propose(isr.shrink(member if replica.broker_id in isr.maximal else (), lost=member))

    def _log_lag(self, removed: tuple[int, ...]) -> None:
        for member in removed:
            replica = self.replicas[member]
            since, at = replica.last_caught_up_time, replica.log_end_offset
            behind_ms = None if since == NEVER else round((self.context.now() - since) * 1000)
            logger.info("isr.member_lagged", **self.fields, broker_id=member, fetch_offset=at, behind_ms=behind_ms)

    def out_of_sync(self) -> tuple[int, ...]:
        """Members of the ISR that have not been caught up for the lag time, whether they are stuck or slow."""
        end, now, lag = self.log.log_end_offset, self.context.now(), self.context.replica_lag_s_max
        return tuple(
            member for member in self.isr.isr if member in self.replicas and not self.replicas[member].is_caught_up(end, now, lag)
        )

    def propose(self, pending: PendingExpandIsr | PendingShrinkIsr) -> None:
        """Ask the controller for this ISR. Without effect while the partition has another proposal in the queue."""
        before, self.isr, self._repeat = self.isr, pending, False
        item = AlterPartitionItem(
            topic_id=self.key[0],
            partition=self.key[1],
            leader_epoch=self.epoch,
            partition_epoch=self.partition_epoch,
            isr=tuple((member, self._broker_epoch_of(member, pending)) for member in pending.proposed),
            on_result=partial(self._on_result, pending),
            leader_recovery_state=RECOVERING if self.is_recovering and len(pending.proposed) > 1 else RECOVERED,
            lost=pending.lost if isinstance(pending, PendingShrinkIsr) else (),
        )
        if not self.context.alter_partition.submit(item):
            self.isr = before
            self._repeat = before.is_in_flight
            return
        logger.info("isr.proposed", **self.fields, isr=list(pending.isr), proposed_isr=list(pending.proposed))

    def _broker_epoch_of(self, member: int, pending: PendingExpandIsr | PendingShrinkIsr) -> int:
        """The broker epoch of the member's last fetch; -1 (unknown) if it has not fetched yet. For the replica to be added, the
        broker epoch of the fetch that showed it to be in sync."""
        if isinstance(pending, PendingExpandIsr) and member == pending.added:
            return pending.added_epoch
        return self.context.own_broker_epoch() if member == self.context.broker_id else self.replicas[member].broker_epoch

    def _on_result(self, pending: IsrState, answer: AlterPartitionPartitionResponse, is_doubtful: bool) -> None:
        """Take the controller's answer. It counts only if the ISR's state has not changed since the proposal."""
        if self.isr is not pending:  # also when this leadership has ended: it dropped its proposal then
            logger.info("isr.stale_answer_ignored", **self.fields, error=to_code(answer.error_code).name)
            return
        if answer.error_code:
            self.on_refusal(pending, to_code(answer.error_code), is_doubtful)
        elif answer.leader_epoch != self.epoch or answer.partition_epoch < self.partition_epoch:
            epochs = [answer.leader_epoch, answer.partition_epoch]
            logger.info("isr.stale_answer_ignored", **self.fields, stale_epochs=epochs)
        else:
            self.partition_epoch = answer.partition_epoch
            self.install_isr(tuple(answer.isr), tuple(answer.eligible_leader_replicas))
            self.is_recovering = answer.leader_recovery_state == RECOVERING
            logger.info("isr.committed", **self.fields, isr=list(answer.isr), reason="this leader proposed it")
            self._after_isr_change()

    def on_refusal(self, pending: IsrState, code: ErrorCode, is_doubtful: bool) -> None:
        """The controller refused the proposal: drop it, withdraw it, repeat it later, or wait for newer metadata."""
        self.context.metrics.refused_isr_proposals += 1
        logger.info("isr.refused", **self.fields, isr=list(pending.isr), error=code.name)
        if code in _WAIT_FOR_METADATA:
            return
        is_withdrawn = isinstance(pending, PendingExpandIsr) and pending.is_withdrawn
        if isinstance(pending, PendingExpandIsr) and is_doubtful and not is_withdrawn:
            self.propose(pending.withdraw())
        elif code in _NOT_APPLIED and not is_withdrawn:
            self.isr = pending.committed
            self.maybe_increment_high_watermark()
            if self.is_recovering:
                self.context.call_later(RETRY_BACKOFF_MS / 1000, self._repeat_recovered)
        else:
            self._repeat = True

    def _after_isr_change(self) -> None:
        self.events.isr_changed()
        self.events.low_watermark_moved()  # A replica that has left the ELR is no longer waited for.
        self.maybe_increment_high_watermark()

    def set_min_insync_replicas(self, value: int) -> None:
        self._min_insync_replicas = value
        self._set_min_isr()
        self._after_isr_change()
