"""The shell of a coordinator: one shard for each partition of its internal topic that this broker leads.

When this broker becomes the leader, it loads the records of the partition into a new shard; until then, requests get
COORDINATOR_LOAD_IN_PROGRESS. When the leadership ends, the shard is dropped with its uncommitted changes, and the requests that
wait fail with NOT_COORDINATOR.

A decision takes effect in this order, without an `await` in between: its records are appended to the partition, the shard replays
them, and its replies wait. A reply is sent when the high watermark has passed everything that the shard knew when it decided. So
no reply shows a client a change that a later coordinator may not have. An append is refused while the partition has fewer
replicas in sync than `min.insync.replicas`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Generic

from strandline.broker.coordination.loader import LoadTurns, Shard, ShardLoader
from strandline.broker.coordination.partitioning import partition_of
from strandline.broker.coordination.replies import Asker, DelayedReplies, OnCommit, Replies, send
from strandline.broker.disk_work import RunBlocking
from strandline.broker.log_cleaner.throttle import RequestLoad
from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.leader_state import LeaderState
from strandline.broker.partition.log_failures import LogFailures
from strandline.broker.partition.partition import Partition
from strandline.broker.purgatory import CallLater, Purgatory, Timer
from strandline.controller.metadata.image import MetadataDelta, TopicImage
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.metrics import Histogram
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.disk import Buffer
from strandline.storage.files import DiskError
from strandline.storage.log.log import AppendInfo


class Host:
    """The parts of a broker that its coordinators use."""

    def __init__(
        self,
        directory: PartitionDirectory,
        failures: LogFailures,
        purgatory: Purgatory,
        *,
        now: Callable[[], float],
        stopwatch: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        call_later: CallLater,
        run_blocking: RunBlocking | None,
        requests_served: Callable[[], int],
    ) -> None:
        """`stopwatch`: a clock in seconds that also advances within an iteration of the event loop. `requests_served`: how many
        requests the broker has served and, as a follower, sent."""
        self.directory = directory
        self.failures = failures
        self.purgatory = purgatory
        self.now = now
        self.stopwatch = stopwatch
        self.wall_clock_ms = wall_clock_ms
        self.call_later = call_later
        self.run_blocking = run_blocking
        load = RequestLoad()
        self.load_turns = LoadTurns(call_later, lambda: load.is_busy(requests_served(), now()))
        """All coordinators of a broker take turns with their loads."""


@dataclass(slots=True, eq=False)
class ActiveShard(Generic[Shard]):
    """The shard of a partition in one leader epoch."""

    partition: Partition
    leader_state: LeaderState
    shard: Shard
    loader: ShardLoader[Shard] | None
    """None when the load has ended; `failure` shows whether it succeeded."""
    loaded_end: int
    """The log end at which the leader epoch began. Records below it may be committed although the high watermark is lower. Which
    ones is unknown until the high watermark has reached this offset."""
    known_end: int
    """The end offset of the records that the shard knows: replies wait for the high watermark to reach it."""
    began_at: float
    """When the leadership began, on the loop's clock."""
    failure: str | None = None
    """Why the load failed; None if it has not."""
    timer: Timer | None = None
    timer_due: float = float("inf")

    @property
    def number(self) -> int:
        return self.partition.key[1]

    @property
    def is_current(self) -> bool:
        """Whether the leadership still holds. A new epoch has a new leader state."""
        return self.partition.leader_state is self.leader_state

    @property
    def is_loaded(self) -> bool:
        """Whether the shard can answer."""
        return self.is_current and self.loader is None and self.failure is None


class Coordinator(ABC, Generic[Shard]):
    """The shards of one broker."""

    topic_name: str
    """The internal topic."""
    loader_class: type[ShardLoader[Shard]]
    """Reads the records of a shard."""
    subject: str
    """The word in error messages for what the coordinator stores: groups or transactions."""

    def __init__(self, host: Host, commit_timeout_ms: int) -> None:
        """`commit_timeout_ms`: how long a reply waits for its records to be committed."""
        self.host = host
        self.commit_wait = Histogram()
        """Seconds that replies have waited until the records that they depend on were committed."""
        self._commit_timeout_ms = commit_timeout_ms
        self.shards: dict[int, ActiveShard[Shard]] = {}
        """Partition number -> the shard."""
        self.is_stopped = False

    # -- hooks of a subclass -------------------------------------------------------------------------------------------

    @abstractmethod
    def _new_shard(self) -> Shard: ...

    @abstractmethod
    def _on_loaded(self, active: ActiveShard[Shard], loader: ShardLoader[Shard], took_s: float) -> None:
        """Called when the load of a shard has succeeded. The shard answers requests from now on."""

    @abstractmethod
    def _on_load_failed(self, active: ActiveShard[Shard], error: Exception) -> None:
        """Called when a load has failed: log it. The shard refuses requests until the leader epoch ends."""

    @abstractmethod
    def _on_unloaded(self, active: ActiveShard[Shard]) -> None:
        """Called when the leadership of a shard has ended: refuse the requests that it keeps."""

    # -- leadership ---------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> TopicImage | None:
        """The internal topic; None before it exists."""
        return self.host.directory.image.topic(self.topic_name)

    def apply_delta(self, delta: MetadataDelta) -> None:
        """Drop the shards whose leadership has ended, and load new ones. Called after the partitions have applied the delta."""
        if self.is_stopped:
            return
        for active in list(self.shards.values()):
            if not active.is_current:
                self._unload(active)
        topic = self.topic
        if topic is not None:
            for topic_id, number in delta.changed_partitions:
                if topic_id == topic.topic_id:
                    self._maybe_load((topic_id, number))

    def _maybe_load(self, key: TopicIdPartition) -> None:
        partition = self.host.directory.partitions.get(key)
        if partition is None or partition.leader_state is None or key[1] in self.shards:
            return
        leader_state = partition.leader_state
        end = leader_state.log.log_end_offset
        active = ActiveShard(partition, leader_state, self._new_shard(), None, end, end, self.host.now())
        self.shards[key[1]] = active
        active.loader = self.loader_class(
            leader_state,
            active.shard,
            is_current=lambda: active.is_current,
            call_soon=self.host.load_turns.add,
            run_blocking=self.host.run_blocking,
            on_end=lambda error: self._on_load_end(active, error),
        )
        active.loader.start()

    def _on_load_end(self, active: ActiveShard[Shard], error: Exception | None) -> None:
        loader, active.loader = active.loader, None
        assert loader is not None
        if not active.is_current:
            self._unload(active)
            return
        if error is not None:
            active.failure = str(error)
            self._on_load_failed(active, error)
            if isinstance(error, DiskError):
                self.host.failures.on_disk_error(error)
            return
        self._on_loaded(active, loader, self.host.now() - active.began_at)

    def _unload(self, active: ActiveShard[Shard]) -> None:
        if self.shards.get(active.number) is active:
            del self.shards[active.number]
        if active.loader is not None:
            active.loader.cancel()
        self._cancel_timer(active)
        self._on_unloaded(active)

    def stop(self) -> None:
        """Drop all shards, because the broker stops. Waiting requests are refused, so clients look for the next coordinator."""
        self.is_stopped = True
        for active in list(self.shards.values()):
            self._unload(active)

    # -- requests -----------------------------------------------------------------------------------------------------

    def shard_of(self, key: str) -> ActiveShard[Shard]:
        """The loaded shard of a group or a transactional id. Raises NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or
        COORDINATOR_NOT_AVAILABLE."""
        topic = self.topic
        if topic is None:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"there is no topic {self.topic_name} yet")
        return self.shard_at(partition_of(key, len(topic.partitions)))

    def shard_at(self, number: int) -> ActiveShard[Shard]:
        """The loaded shard of a partition. Raises what `shard_of` raises."""
        active = self.shards.get(number)
        if active is not None and not active.is_current:
            self._unload(active)
            active = None
        if active is None:
            raise BrokerError(ErrorCode.NOT_COORDINATOR, f"this broker does not lead {self.topic_name}-{number}")
        if active.failure is not None:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the {self.subject} could not be loaded: {active.failure}")
        if active.loader is not None:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return active

    def loaded_shards(self) -> Iterator[ActiveShard[Shard]]:
        """The shards that can answer now."""
        return (active for active in self.shards.values() if active.is_loaded)

    @property
    def is_loading(self) -> bool:
        return any(active.loader is not None for active in self.shards.values())

    def partitions_by_state(self) -> dict[str, int]:
        """The number of partitions of the topic that this broker leads, by the state of their shard."""
        states = {"active": 0, "loading": 0, "failed": 0}
        for active in self.shards.values():
            if active.is_current:
                states["failed" if active.failure is not None else "active" if active.loader is None else "loading"] += 1
        return states

    # -- replies ------------------------------------------------------------------------------------------------------

    def when_committed(self, active: ActiveShard[Shard], replies: Replies) -> None:
        """Send replies once the high watermark has reached all that the shard knows now."""
        self._when_reached(active, active.known_end, [asker for asker, _ in replies], lambda: replies)

    def read_committed(self, active: ActiveShard[Shard], asker: Asker, read: Callable[[int], Message]) -> None:
        """Send the message that `read` builds from the committed state, once all loaded records are committed. `read` gets the
        high watermark."""
        log_ = active.partition.log
        self._when_reached(active, active.loaded_end, [asker], lambda: [(asker, read(log_.high_watermark))])

    def _when_reached(self, active: ActiveShard[Shard], required: int, askers: list[Asker], make: Callable[[], Replies]) -> None:
        partition = active.partition
        if partition.log.high_watermark >= required:
            send(make())
            return
        delayed = DelayedReplies(partition, askers, partial(self._make_late, make, self.host.now()))
        partition.waiters.add(required, 0, delayed, partition.leader_epoch)
        self.host.purgatory.park(delayed, self._commit_timeout_ms)

    def _make_late(self, make: Callable[[], Replies], began_at: float) -> Replies:
        self.commit_wait.observe(self.host.now() - began_at)
        return make()

    def on_committed(self, active: ActiveShard[Shard], action: Callable[[], None]) -> None:
        """Call `action` once all that the shard knows now is committed, unless the leadership ends before."""
        required = active.known_end
        if active.partition.log.high_watermark >= required:
            action()
        else:
            self._wait(OnCommit(action, partial(self._wait, active=active, required=required)), active, required)

    @staticmethod
    def _wait(waiter: OnCommit, active: ActiveShard[Shard], required: int) -> None:
        partition = active.partition
        if active.is_current:
            partition.waiters.add(required, 0, waiter, partition.leader_epoch)

    # -- appending ----------------------------------------------------------------------------------------------------

    def _append_batches(
        self, active: ActiveShard[Shard], batches: Buffer, now_ms: int, *, is_transactional: bool = False
    ) -> AppendInfo:
        """Append batches to the partition. If this raises a `BrokerError`, nothing has changed. The caller must let the shard
        replay the records at once. `is_transactional`: the batches belong to a transaction."""
        return self._append_by(
            active, lambda leader_state: leader_state.append(batches, now_ms, is_transactional=is_transactional)
        )

    def _append_by(self, active: ActiveShard[Shard], append: Callable[[LeaderState], AppendInfo]) -> AppendInfo:
        leader_state, failures = active.leader_state, self.host.failures
        try:
            if not active.is_current:
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if leader_state.is_under_min_isr:
                raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS)
            info = append(leader_state)
        except BrokerError as e:
            if e.code == ErrorCode.KAFKA_STORAGE_ERROR:
                failures.on_damage(active.partition.key)
            raise
        except DiskError as e:
            failures.on_disk_error(e)
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(e)) from None
        active.known_end = info.last_offset + 1
        return info

    # -- a timer for each shard ---------------------------------------------------------------------------------------

    def _set_timer(self, active: ActiveShard[Shard], due: float, action: Callable[[], None]) -> None:
        """Set the shard's only timer, which calls `action` at `due`, on the loop's clock. If it is already set for an earlier
        time, it is kept: when it fires, its action finds nothing to do yet, and sets the timer for the later time."""
        if due >= active.timer_due or not active.is_current:
            return
        self._cancel_timer(active)
        active.timer_due = due
        active.timer = self.host.call_later(max(0.0, due - self.host.now()), lambda: self._on_timer(active, action))

    def _cancel_timer(self, active: ActiveShard[Shard]) -> None:
        if active.timer is not None:
            active.timer.cancel()
        active.timer, active.timer_due = None, float("inf")

    def _on_timer(self, active: ActiveShard[Shard], action: Callable[[], None]) -> None:
        active.timer, active.timer_due = None, float("inf")
        if active.is_current and not self.is_stopped:
            action()
