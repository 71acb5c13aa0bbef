"""One replica of one partition on this broker: its role, its log, and what it answers.

Roles come from the metadata log. `make_leader` and `make_follower` apply a registration. One with an older partition epoch is
refused; one with the same leader epoch leaves the role's state as it is. A new leader records durably where its epoch begins
before it serves any request, so that a replica that led without appending a record still knows where its epoch began.

Everything here is synchronous and owned by the event loop, so no other code runs between a check and the change that rests on
it. What arrives after a wait (a fetch response, an AlterPartition answer) names the epoch of its request, and is compared with
the present epoch before anything is changed.

Reading: a follower reads up to the log end, a consumer up to the high watermark, or up to the last stable offset if it reads
committed records only. A consumer with a rack may also read from a follower, up to that follower's own high watermark. The
position of a fetch is first compared with the history of the log. Below the log start the error is OFFSET_OUT_OF_RANGE, also if
the epochs diverge, because then only a restart at the leader's log start helps.

Damage (for example a bit that flipped on the disk): the log serves nothing from `corrupt_at` on. A damaged leader logs it, and
its broker asks to be fenced for a moment if another member of the ISR can lead. A damaged follower fetches from `corrupt_at`, and
cuts its own records behind the damage once the leader's records have arrived. It must not do that while it is in the ISR or ELR:
if it were elected then, it would lack acknowledged records, and no replica would notice. Its fetch from below the high watermark
makes the leader remove it from the ISR first.

No deleted key comes back: a cleaner removes a tombstone some time after it has removed the values that the tombstone deletes. A
follower that has copied such a value, but not the tombstone, would keep the value for ever. So each fetch response says below
which offset the leader's log may lack tombstones (`tombstones_removed_below`). If that lies above the follower's log end, the
follower needs a fresh copy of the log. While it makes one, the leader goes on removing tombstones, which does no harm below
`copy_clean_below`: when the copy began, the values that those tombstones delete were gone from the leader's log already.

No last value is missing: the cleaner removes a record when a newer one of its key is committed. After an unclean election a
follower may have to cut the newer record off, and then lacks the key's last value of the leader's history. So a follower whose
log ends below the records by which its cleaner has judged (`superseded_below`) drops its log, and copies the leader's.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from strandline.broker.partition.context import LeaderEvents, PartitionContext, log_fields
from strandline.broker.partition.leader_state import LeaderState
from strandline.broker.partition.watchers import PartitionWatcher
from strandline.broker.purgatory import WatermarkWatchers
from strandline.controller.metadata.image import NO_LEADER, PartitionRegistration
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import EpochEndOffset
from strandline.protocol.messages.data import FetchPartitionResponse
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.batch import read_header
from strandline.storage.log.producer_state import KnownProducer, ProducerStates

if TYPE_CHECKING:
    from strandline.storage.log.log import Log

logger = get_logger(__name__)


class Role(Enum):
    """The role of a replica, as the metadata log names it."""

    NONE = "none"
    """The replica has no role yet, is offline, or was deleted."""
    LEADER = "leader"
    FOLLOWER = "follower"


class FetchPosition(NamedTuple):
    """The position from which a follower fetches. The response counts only if the follower is still at this position."""

    leader_epoch: int
    fetch_offset: int
    """The follower's log end; or the first damaged offset if its log has damage, or its log start if it has to start over."""
    last_fetched_epoch: int
    """The newest epoch of its log up to there; -1 if it has none."""
    log_start_offset: int


class PartitionObserver(Protocol):
    """Is notified when an offset, the ISR or the role of a partition changes. It only records that, and acts at the end of the
    event-loop iteration (`broker/action_queue.py`)."""

    def on_log_end_moved(self, partition: Partition) -> None: ...
    def on_high_watermark_moved(self, partition: Partition) -> None: ...
    def on_isr_changed(self, partition: Partition) -> None: ...
    def on_log_start_moved(self, partition: Partition) -> None:
        """The leader has moved its log start, and its followers should move theirs."""

    def on_low_watermark_moved(self, partition: Partition) -> None:
        """The low watermark may have moved: a follower has moved its log start, or a broker was fenced or unfenced."""

    def on_follower_truncated(self, partition: Partition) -> None:
        """This follower has removed records: its consumers may be at a position that its log no longer has."""

    def on_role_changed(self, partition: Partition) -> None:
        """The role or the leader epoch has changed, or the partition is no longer on this broker."""


class Partition:
    """The replica of one partition on this broker."""

    __slots__ = (
        "_partition_epoch",
        "absence",
        "consumers",
        "context",
        "copy_clean_below",
        "deletions",
        "followers",
        "handled_damage",
        "is_added",
        "key",
        "leader_epoch",
        "leader_id",
        "leader_state",
        "log",
        "may_be_elected",
        "metrics",
        "min_insync_replicas",
        "observer",
        "role",
        "throttle_rate",
        "topic",
        "waiters",
    )

    def __init__(
        self,
        key: TopicIdPartition,
        topic: str,
        log: Log,
        context: PartitionContext,
        observer: PartitionObserver,
        min_insync_replicas: int = 1,
    ) -> None:
        self.key = key
        self.topic = topic
        self.log = log
        self.context = context
        self.observer = observer
        self.metrics = context.metrics.on_partition_added(topic)
        """Counters of the topic."""
        self.min_insync_replicas = min_insync_replicas
        self.may_be_elected = False
        """Whether this replica, as a follower, is in the ISR or the ELR by the newest registration."""
        self.is_added = False
        """Whether this replica is a follower that a reassignment adds."""
        self.throttle_rate = 0
        """Bytes per second that this replica may fetch while a reassignment adds it; 0: no limit, also once it is in the ISR."""
        self.handled_damage: int | None = None
        """The value of `log.corrupt_at` at which the fetcher begins; None if there is no damage."""
        self.copy_clean_below = 0
        """The leader's first dirty offset at the moment when this follower began to copy the log from its start: values below it
        that the leader had removed by then are not in the copy. It holds for one leader in one epoch; 0 if no copy was begun."""
        self.role = Role.NONE
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        """Never decreases."""
        self._partition_epoch = -1
        """The newest partition epoch while this replica does not lead. While it leads, the leader's state has it."""
        self.leader_state: LeaderState | None = None
        """Not None exactly when the role is LEADER."""
        self.absence = ErrorCode.NOT_LEADER_OR_FOLLOWER
        """Error returned to produce requests that are waiting when the leadership ends."""
        self.waiters = WatermarkWatchers()
        """Produce requests that wait for the high watermark."""
        self.deletions = WatermarkWatchers()
        """DeleteRecords requests that wait for the low watermark."""
        self.followers: dict[PartitionWatcher, None] = {}
        """The entries of followers' fetch sessions for this partition; woken when the log end moves."""
        self.consumers: dict[PartitionWatcher, None] = {}
        """The entries of consumers' fetch sessions; woken when the high watermark moves."""

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.key[1]} {self.role.value} e{self.leader_epoch} p{self.partition_epoch})"

    @property
    def fields(self) -> dict[str, object]:
        """The fields of every log line about this partition."""
        return log_fields(self.topic, self.key, self.leader_epoch, self.partition_epoch, self.log)

    @property
    def partition_epoch(self) -> int:
        """The newest partition epoch that this replica knows; never decreases. The controller's answer to a proposal may bring it
        to the leader before the metadata log does."""
        return self._partition_epoch if self.leader_state is None else self.leader_state.partition_epoch

    # -- roles --------------------------------------------------------------------------------------------------------

    def make_leader(self, registration: PartitionRegistration) -> bool:
        """Take the leader's role as registered. True if a new leader epoch began."""
        if self._is_stale(registration):
            return False
        if self.leader_state is not None and registration.leader_epoch == self.leader_epoch:
            # If the same epoch is applied twice, a proposal based on it may be in flight, and stays.
            if registration.partition_epoch > self.partition_epoch:
                self.leader_state.on_new_partition_epoch(registration)
            return False
        start = self.log.log_end_offset
        self.log.assign_epoch_start_offset(registration.leader_epoch, start)
        self._leave_role(registration)
        self.role = Role.LEADER
        self.log.superseded_below = min(self.log.superseded_below, start)  # No replica has what a leader lacks.
        self._log_damage("reads from this offset on and all writes are refused; another replica should lead")
        self._log_missing_records(registration)
        self.leader_state = self._new_leader_state(registration, start)
        self.observer.on_role_changed(self)
        self.leader_state.maybe_increment_high_watermark()
        self.leader_state.maybe_finish_recovery()
        return True

    def _new_leader_state(self, registration: PartitionRegistration, epoch_start_offset: int) -> LeaderState:
        observer = self.observer
        return LeaderState(
            registration,
            epoch_start_offset,
            key=self.key,
            topic=self.topic,
            log=self.log,
            context=self.context,
            metrics=self.metrics,
            events=LeaderEvents(
                log_end_moved=partial(observer.on_log_end_moved, self),
                high_watermark_moved=partial(observer.on_high_watermark_moved, self),
                isr_changed=partial(observer.on_isr_changed, self),
                log_start_moved=partial(observer.on_log_start_moved, self),
                low_watermark_moved=partial(observer.on_low_watermark_moved, self),
            ),
            min_insync_replicas=self.min_insync_replicas,
        )

    def make_follower(self, registration: PartitionRegistration) -> bool:
        """Take the follower's role as registered; the registration may name no leader. True if the leader epoch advanced: then
        the fetcher must start over."""
        if self._is_stale(registration):
            return False
        self.may_be_elected = self.context.broker_id in (*registration.isr, *registration.elr)
        self.is_added = self.context.broker_id in registration.adding_replicas
        is_throttled = self.is_added and self.context.broker_id not in registration.isr
        self.throttle_rate = registration.throttle_rate if is_throttled else 0
        if self.role is Role.FOLLOWER and registration.leader_epoch == self.leader_epoch:
            self._partition_epoch = registration.partition_epoch
            return False
        self._leave_role(registration)
        if registration.leader >= 0:
            self.log.possible_data_loss = False  # If the leader lacks records, too, the leader logs it.
        self.role = Role.FOLLOWER
        self._log_damage("everything from this offset on will be fetched again from the leader")
        self.observer.on_role_changed(self)
        return True

    def stop(self, reason: ErrorCode) -> None:
        """Give up the role because the partition is deleted or offline, or because the broker stops. Waiting requests
        fail with `reason`."""
        self.absence = reason
        self._resign()
        self.role = Role.NONE
        self.observer.on_role_changed(self)

    def _is_stale(self, registration: PartitionRegistration) -> bool:
        stale = registration.partition_epoch < self.partition_epoch or registration.leader_epoch < self.leader_epoch
        if stale:
            epochs = [registration.leader_epoch, registration.partition_epoch]
            logger.info("partition.stale_registration_ignored", **self.fields, stale_epochs=epochs)
        return stale

    def _resign(self) -> None:
        if self.leader_state is not None:
            self._partition_epoch = self.leader_state.partition_epoch
            self.leader_state.resign()
            self.leader_state = None

    def _leave_role(self, registration: PartitionRegistration) -> None:
        self._resign()
        self._partition_epoch = registration.partition_epoch
        self.leader_id = registration.leader
        self.leader_epoch = registration.leader_epoch
        self.copy_clean_below = 0
        log_ = self.log
        # The previous leader may lack tombstones that lie above our log end. The next records are copied from another log.
        log_.tombstones_removed_below = min(log_.tombstones_removed_below, log_.log_end_offset)

    def _log_damage(self, outcome: str) -> None:
        damage = self.handled_damage = self.log.corrupt_at
        if damage is not None:
            logger.warning("partition.damaged", **self.fields, offset=damage, role=self.role.value, reason=outcome)

    def _log_missing_records(self, registration: PartitionRegistration) -> None:
        """Log that this replica leads although it may have lost records: it was the last one in sync. In the first leader epoch
        the partition is empty, and nothing can be lost."""
        if self.log.possible_data_loss and registration.leader_epoch > 0:
            self.context.metrics.elected_with_missing_records += 1
            logger.warning("partition.elected_with_missing_records", **self.fields, isr=list(registration.isr))
        self.log.possible_data_loss = False

    def set_min_insync_replicas(self, value: int) -> None:
        self.min_insync_replicas = value
        if self.leader_state is not None:
            self.leader_state.set_min_insync_replicas(value)

    def use_log(self, log: Log) -> None:
        """Continue with another log that has the same records: the copy in another log directory."""
        self.log = log
        if self.leader_state is not None:
            self.leader_state.log = log

    # -- fencing ------------------------------------------------------------------------------------------------------

    def check_leader_epoch(self, epoch: int) -> None:
        """Check that a request means the present leader epoch; -1 means that it names none.

        Raises FENCED_LEADER_EPOCH if its epoch is older than ours, UNKNOWN_LEADER_EPOCH if it is newer (KIP-320)."""
        if epoch == self.leader_epoch or epoch == -1:
            return
        if epoch < self.leader_epoch:
            raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH, f"epoch {epoch} is older than ours, {self.leader_epoch}")
        raise BrokerError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"epoch {epoch} is newer than ours, {self.leader_epoch}")

    def leading(self, epoch: int = -1) -> LeaderState:
        """The leader's state. Raises `BrokerError` if this replica does not lead, or if the request means another epoch."""
        if epoch != self.leader_epoch:
            self.check_leader_epoch(epoch)
        if self.leader_state is None:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.leader_state

    def leading_follower(self, epoch: int) -> LeaderState:
        """Return the leader's state for a follower's request, like `leading`. The request must name the leader epoch, because
        progress of an older epoch must not move our HW."""
        if epoch < 0:
            raise BrokerError(ErrorCode.FENCED_LEADER_EPOCH, "a follower must name the leader epoch")
        return self.leading(epoch)

    # -- reading ------------------------------------------------------------------------------------------------------

    def divergence(self, fetch_offset: int, last_fetched_epoch: int) -> EpochEndOffset | None:
        """Compare the position of a fetch with our log: the epoch and end offset at which the histories diverge, or None if the
        position is one of our log. Raises OFFSET_OUT_OF_RANGE (KIP-320, KIP-392, KIP-595).

        A follower cannot judge histories: its log may lack what the leader's has, or may not be truncated yet. So a follower
        never names a divergence. It answers OFFSET_OUT_OF_RANGE instead, and the consumer asks the leader."""
        log_ = self.log
        if fetch_offset < log_.log_start_offset:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{fetch_offset} is below the start, {log_.log_start_offset}")
        end = log_.log_end_offset
        if last_fetched_epoch >= 0:
            known = last_fetched_epoch
            if known != log_.latest_epoch:
                known, end = log_.end_offset_for_epoch(last_fetched_epoch)
                if known < 0:
                    raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"epoch {last_fetched_epoch} is not in our history")
            if known < last_fetched_epoch or end < fetch_offset:
                if self.leader_state is None:
                    raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{fetch_offset} is not a position of this follower's log")
                return EpochEndOffset(known, end)
        elif fetch_offset > end:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{fetch_offset} is above the end, {end}")
        return None

    def check_serves_readers(self, rack_id: str) -> None:
        """Check that a consumer may read from this replica, which does not lead. `rack_id`: the consumer's rack; empty if the
        consumer reads from leaders only (KIP-392).

        Raises NOT_LEADER_OR_FOLLOWER. A follower that has left the ISR still serves, as in Kafka. Its consumers leave it when
        their metadata says so."""
        if self.role is not Role.FOLLOWER or not rack_id:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def last_offset_for_leader_epoch(self, current_leader_epoch: int, epoch: int) -> tuple[int, int]:
        """The largest epoch <= `epoch` in the leader's history and its end offset; (-1, -1) if there is none (KIP-101).

        Raises `BrokerError` if this replica does not lead in `current_leader_epoch`."""
        self.leading(current_leader_epoch)
        return self.log.end_offset_for_epoch(epoch)

    # -- the follower's side ------------------------------------------------------------------------------------------

    def fetch_position(self) -> FetchPosition:
        """Return the position of the next fetch: the log end, the first damaged offset if the log has damage, or the log start if
        the log has to start over."""
        log_ = self.log
        if self.lacks_last_values:
            # Not the log end: the leader could let us into the ISR at once, and we must not drop a record from then on.
            return FetchPosition(self.leader_epoch, log_.log_start_offset, -1, log_.log_start_offset)
        if (damage := log_.corrupt_at) is not None:
            return FetchPosition(self.leader_epoch, damage, log_.epochs.epoch_for_offset(damage - 1), log_.log_start_offset)
        return FetchPosition(self.leader_epoch, log_.log_end_offset, log_.latest_epoch, log_.log_start_offset)

    @property
    def _fetch_offset(self) -> int:
        """The offset of `fetch_position`."""
        return self.log.log_start_offset if self.lacks_last_values else self._sound_end

    @property
    def _sound_end(self) -> int:
        """The log end, or the first damaged offset if the log has damage."""
        log_ = self.log
        return log_.log_end_offset if log_.corrupt_at is None else log_.corrupt_at

    @property
    def has_readers(self) -> bool:
        """Whether consumers read from this follower. Consumers without a rack may watch it, too, but get an error."""
        return bool(self.consumers) and any(watcher.names_rack for watcher in self.consumers)

    def _is_at(self, position: FetchPosition) -> bool:
        """Whether this replica still follows in the epoch of `position`, and would still fetch from there."""
        return (
            self.role is Role.FOLLOWER
            and self.leader_epoch == position.leader_epoch
            and position.fetch_offset == self._fetch_offset
        )

    def append_fetched(self, position: FetchPosition, response: FetchPartitionResponse, records: memoryview) -> bool:
        """Apply a fetch response: append its records up to the epoch of the fetch, then take the leader's HW and log start.

        False if the response is stale; then nothing was changed. Also False if the leader's first batch begins before our log
        end. The leader's log start lies inside that batch then, our records below it are another history, and they are dropped.
        A response of a leader that cannot know our history does not get here (`has_unknown_history`).
        Raises `DiskError`, and `BrokerError` if the records cannot be appended.
        """
        if not self._is_at(position):
            return False
        log_ = self.log
        if self.lacks_last_values:
            self._drop_log_without_last_values()
            return False
        if response.tombstones_removed_below > position.fetch_offset:
            self._note_removed_tombstones(response.tombstones_removed_below)
        if log_.corrupt_at is not None:
            self._cut_damage(log_.corrupt_at)
            if log_.log_end_offset != position.fetch_offset:
                return False
        if len(records):
            first = read_header(records, 0)
            if first.base_offset < log_.log_end_offset <= response.log_start_offset and log_.size_bytes:
                self._drop_fork(response.log_start_offset)
                return False
            self._check_own_epoch(first.leader_epoch)
            info = log_.append_as_follower(records, position.leader_epoch)
            size = 0 if info is None else info.size
            self.metrics.replication_bytes_in += size
            if self.is_added:
                self.context.metrics.reassignment_bytes_in += size
            if info is None or info.size < len(records):
                # The leader entered a newer epoch while it built the response, so its HW is of that epoch, too.
                logger.info("partition.newer_epoch_ignored", **self.fields)
                return True
            if self.copy_clean_below > log_.first_dirty_offset:
                log_.first_dirty_offset = min(self.copy_clean_below, log_.log_end_offset)
        moved = response.high_watermark > log_.high_watermark and log_.update_high_watermark(response.high_watermark)
        if log_.log_start_offset < response.log_start_offset <= log_.high_watermark:
            log_.increment_log_start_offset(response.log_start_offset)
            self.context.save_log_starts()  # A restart would bring the deleted records back, here and in a later leader's log.
        if moved:
            self.observer.on_high_watermark_moved(self)
        return True

    def _check_own_epoch(self, epoch: int) -> None:
        """Detect a damaged leader epoch in our own log, because the checksum of a batch does not cover the epoch. If the leader
        knows our last epoch, and its records after our log end are of an older epoch, then the epoch in our log is not the one
        that was written. Raises KAFKA_STORAGE_ERROR."""
        log_ = self.log
        if 0 <= epoch < log_.latest_epoch:
            known, start = log_.epochs.entries[-1]
            log_.mark_corrupt(max(start, log_.log_start_offset))
            reason = f"the leader continues in epoch {epoch}, but our last epoch is {known}: our log is damaged from {start} on"
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, reason)

    # -- a fresh copy -------------------------------------------------------------------------------------------------

    def needs_fresh_copy(self, position: FetchPosition, tombstones_removed_below: int) -> bool:
        """Whether the leader's log may lack tombstones that this log needs: they lie at or above our log end, and this log may
        hold values that they delete.

        Raises KAFKA_STORAGE_ERROR if this replica is in the ISR or ELR, and so must not drop a record. A leader removes only
        committed tombstones, so such a replica has copied them, unless its disk has lost them."""
        if not self._is_at(position) or tombstones_removed_below <= max(position.fetch_offset, self.copy_clean_below):
            return False
        self._check_may_start_over()
        return True

    def _check_may_start_over(self) -> None:
        if self.may_be_elected and self.has_records:
            reason = "this replica lacks tombstones that the leader has removed, and keeps its records until it has left the ISR"
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, reason)

    @property
    def has_records(self) -> bool:
        return self.log.log_end_offset > self.log.log_start_offset

    def begin_copy(self, position: FetchPosition, start: int, clean_below: int, producers: Iterable[KnownProducer]) -> None:
        """Begin a fresh copy of the leader's log, whose first dirty offset is `clean_below`. If this log has records, they are
        dropped, and the copy begins at the leader's log start, or at ours if that is higher: a log start does not move back."""
        if not self._is_at(position):
            return
        if self.has_records:
            self._check_may_start_over()
            reason = "the leader has removed tombstones that this replica lacks"
            self._restart_at(max(start, self.log.log_start_offset), producers, reason)
            self.context.metrics.restarted_for_tombstones += 1
        self.copy_clean_below = clean_below

    @property
    def lacks_last_values(self) -> bool:
        """Whether this log ends, or is damaged, below a record that had superseded older ones (see `LogState.superseded_below`),
        and has to start over: the leader's history may not have that record, and the leader's log has the last values.

        Never in the ISR or ELR: all records that the cleaner of such a replica has judged by are committed, so it lacks them only
        if its disk has lost them, and it must not drop what is left."""
        superseded_below = self.log.superseded_below
        if not superseded_below or self.may_be_elected or not self.has_records:
            return False
        return self._sound_end < superseded_below

    def _drop_log_without_last_values(self) -> None:
        """Start over at our log start. The leader has answered in this epoch, so a copy can begin."""
        log_ = self.log
        start = log_.log_start_offset
        self._restart_with(log_.producers.before(start), start, "its cleaner has removed values for records that it has lost")
        self.context.metrics.restarted_for_values += 1

    def _note_removed_tombstones(self, removed_below: int) -> None:
        """Record durably that the records of this response lack tombstones that the leader has removed. Called before they are
        appended, because this replica may lead later."""
        log_ = self.log
        if removed_below > log_.tombstones_removed_below:
            log_.tombstones_removed_below = removed_below
            self.context.save_cleaner_offsets(log_)

    def _cut_damage(self, offset: int) -> None:
        """Cut the log at the damage: the leader's history agrees with ours up to there, and its records are at hand."""
        log_ = self.log
        self._check_may_drop_damage(offset)
        logger.warning("partition.damaged_tail_dropped", **self.fields, offset=offset, records=log_.log_end_offset - offset)
        log_.truncate_to(offset)
        self.handled_damage = log_.corrupt_at

    def _check_may_drop_damage(self, offset: int) -> None:
        """Refuse to cut if this replica is in the ISR or ELR: behind the damage are whole records that it must keep."""
        if self.may_be_elected:
            reason = f"the batch at offset {offset} is damaged on this replica, and is kept until the replica has left the ISR"
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, reason)

    def has_unknown_history(self, position: FetchPosition, leader_log_start_offset: int) -> bool:
        """Whether this log has records and ends where the leader's log starts, or before. The leader has forgotten the epochs
        below its log start, so its comparison with the last epoch of the fetch says nothing about those records. They may be a
        fork, and no record of a fork may lie below the high watermark. So the log is emptied and starts at the leader's log start
        (`truncate_fully_and_start_at`). The log end does not decrease, because the leader may already rely on it.

        The records of a member of the ISR or ELR are of the leader's history, and so are records that this leader has sent."""
        return (
            self._is_at(position)
            and not self.may_be_elected
            and self.log.log_start_offset < position.fetch_offset <= leader_log_start_offset
        )

    def _drop_fork(self, leader_log_start_offset: int) -> None:
        """Remove all records, which lie below the leader's log start and may belong to another history.

        The log begins one offset before the leader's log start. So the next fetch is out of range, and the requests that follow
        bring the producers' state."""
        self._restart_at(leader_log_start_offset - 1, (), "its records may belong to another history than the leader's")

    def truncate_to_divergence(self, position: FetchPosition, diverging: EpochEndOffset) -> None:
        """Cut the records that the leader's history does not have (KIP-101, KIP-279). The next fetch compares again.

        | the leader's answer                      | cut at                                                       |
        | no end offset                            | our high watermark                                           |
        | its epoch is ours too                    | the smallest of: our end of it, the leader's end, our end    |
        | we only know smaller epochs              | our end of the largest of them, and ask again                |
        | all our epochs are newer                 | the start of our oldest, or the leader's end if smaller      |
        | we know no epoch at all                  | the leader's end                                             |

        The high watermark of such a response is ignored, because it says nothing about the part that is cut. If the leader's log
        starts after the point of divergence, the leader does not know that point, and names its log start. Then the next fetch is
        at or below that log start, and finds an unknown history or is out of range.

        Raises DamagedBatch if a batch below the cut cannot be read. Then nothing is cut, and the next fetch starts at the damage.
        """
        if not self._is_at(position):
            return
        log_ = self.log
        if diverging.end_offset < 0:
            offset = log_.high_watermark
        else:
            epoch, end = log_.end_offset_for_epoch(diverging.epoch)
            is_common = epoch == diverging.epoch
            offset = diverging.end_offset if epoch < 0 else min(end, diverging.end_offset) if is_common else end
        self.truncate_to(min(offset, log_.log_end_offset), "diverging epoch")

    def truncate_to_leader_end(self, position: FetchPosition, leader_end_offset: int) -> None:
        """The fetch was out of range because the leader's log ends below ours: cut our log to the leader's end."""
        if self._is_at(position) and leader_end_offset < self.log.log_end_offset:
            self.truncate_to(leader_end_offset, "the leader's log is shorter")

    def truncate_fully_and_start_at(
        self, position: FetchPosition, offset: int, producers: Iterable[KnownProducer] = (), clean_below: int = 0
    ) -> None:
        """Empty the log and start at `offset`, with the leader's state of named producers whose batches are deleted: the leader
        has deleted the records after our log end, or our log ends where the leader's starts and may hold a fork
        (`has_unknown_history`). `clean_below`: the leader's first dirty offset."""
        if self._is_at(position):
            what = "the records after the log end" if offset > position.fetch_offset else "all its records"
            self._restart_at(offset, producers, f"the leader has deleted {what}")
            self.context.metrics.restarted_out_of_range += 1
            self.copy_clean_below = clean_below

    def _restart_at(self, offset: int, producers: Iterable[KnownProducer], reason: str) -> None:
        """Remove all records, and start the log at `offset`. Raises KAFKA_STORAGE_ERROR if a member of the ISR would drop records
        behind a damage."""
        self._restart_with(ProducerStates.from_leader(producers, offset), offset, reason)

    def _restart_with(self, producers: ProducerStates, offset: int, reason: str) -> None:
        if self.log.corrupt_at is not None:
            self._check_may_drop_damage(self.log.corrupt_at)
        logger.info("partition.restarted", **self.fields, offset=offset, reason=reason)
        self.log.truncate_fully_and_start_at(offset, producers)
        self.observer.on_follower_truncated(self)

    def truncate_to(self, offset: int, reason: str) -> None:
        """Cut the log, and log and count what was cut."""
        log_ = self.log
        high_watermark, end = log_.high_watermark, log_.log_end_offset
        was_cut = log_.truncate_to(offset)  # If not, the logs differ only in epochs in which no record was appended.
        offset = min(offset, log_.log_end_offset)  # The cut is lower if the requested offset lies inside a batch.
        if was_cut:
            logger.info("partition.truncated", **self.fields, offset=offset, records=end - offset, reason=reason)
            self.observer.on_follower_truncated(self)
        if offset < high_watermark:
            self.context.metrics.truncated_below_hw += 1
            logger.warning("partition.truncated_below_hw", **self.fields, offset=offset, previous_high_watermark=high_watermark)
