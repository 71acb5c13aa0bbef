"""The shell of the group coordinator: one shard for each partition of `__consumer_offsets` that this broker leads.

A shard comes with the leadership of its partition: its records are loaded first, and requests get COORDINATOR_LOAD_IN_PROGRESS
meanwhile. It goes with it: requests that wait fail with NOT_COORDINATOR, and what was not committed is forgotten here.

A decision takes effect in this order, without an `await` in between: its records are appended to the partition, the shard replays
them, and its replies wait. A reply leaves when the high watermark has passed everything that the shard knew when it was made; so
no asker ever learns what a later coordinator may not know. An append is refused while the partition has fewer replicas in sync
than `min.insync.replicas`.

Errors of the partition become those of a coordinator (as in Kafka's `CoordinatorOperationExceptionHelper`):

    not enough replicas, timeout, unknown topic or partition    COORDINATOR_NOT_AVAILABLE
    not the leader, a failed disk                               NOT_COORDINATOR
    a batch that is too large                                   UNKNOWN_SERVER_ERROR
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random

from strandline.broker.disk_work import RunBlocking
from strandline.broker.groups.census import GroupCensus
from strandline.broker.groups.change_log_lines import ChangeLogLines
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.loader import Loader, LoadTurns
from strandline.broker.groups.metrics import GroupMetrics
from strandline.broker.groups.partitioning import partition_of
from strandline.broker.groups.records.codec import encode_record
from strandline.broker.groups.records.types import GroupRecord
from strandline.broker.groups.result import Asker, Replies, RequestContext, Result
from strandline.broker.groups.shard import GroupShard
from strandline.broker.log_cleaner.throttle import RequestLoad
from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.leader_state import LeaderState
from strandline.broker.partition.log_failures import LogFailures
from strandline.broker.partition.partition import Partition
from strandline.broker.purgatory import CallLater, DelayedOperation, Purgatory, Timer
from strandline.controller.metadata.image import MetadataDelta, TopicImage
from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import Message
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.batch import HEADER_SIZE
from strandline.protocol.records.builder import OVERHEAD_MAX, BatchBuilder
from strandline.storage.files import DiskError

logger = get_logger(__name__)

_AS_COORDINATOR = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_ID: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def as_coordinator(error: BrokerError) -> BrokerError:
    """The error of a coordinator for an error of its partition."""
    code = _AS_COORDINATOR.get(error.code)
    return error if code is None else BrokerError(code, error.message or error.code.name)


class DelayedReplies(DelayedOperation):
    """Replies that wait until the records that they rest on are committed."""

    __slots__ = ("_askers", "_make", "_partition")

    def __init__(self, partition: Partition, askers: list[Asker], make: Callable[[], Replies]) -> None:
        """`make`: returns the replies, when the wait is over."""
        super().__init__()
        self._partition = partition
        self._askers = askers
        self._make = make

    def on_reached(self, index: int) -> None:
        self.complete()

    def on_failed(self, index: int, error_code: int) -> None:
        if not self.is_completed:
            self._leave()
            self._refuse(ErrorCode(error_code))

    def on_complete(self) -> None:
        send(self._make())

    def on_expiration(self) -> None:
        self._partition.waiters.discard(self)
        self._refuse(ErrorCode.REQUEST_TIMED_OUT)

    def _refuse(self, code: ErrorCode) -> None:
        error = as_coordinator(BrokerError(code, "the change was not committed in time"))
        send([(asker, error) for asker in self._askers])


def send(replies: Iterable[tuple[Asker, object]]) -> None:
    for asker, answer in replies:
        if isinstance(answer, BrokerError):
            asker.refuse(answer.code, answer.message)
        else:
            asker.reply(answer)  # type: ignore[arg-type]


@dataclass(slots=True, eq=False)
class ActiveShard:
    """A shard, and the leadership that it belongs to."""

    partition: Partition
    leader_state: LeaderState
    shard: GroupShard
    loader: Loader | None
    """None when the load has succeeded."""
    loaded_end: int
    """The log end at which the leader epoch began: what lies below it may be committed although the high watermark is lower.
    Until the high watermark has reached it, it is not known which offsets are committed."""
    known_end: int
    """The log end after the last record that the shard knows: replies wait for the high watermark to reach it."""
    began_at: float
    """When the leadership came, on the loop's clock."""
    failure: str | None = None
    """Why the load failed."""
    timer: Timer | None = None
    timer_due: float = field(default=float("inf"))

    @property
    def number(self) -> int:
        return self.partition.key[1]

    @property
    def is_current(self) -> bool:
        """Whether the leadership still holds. A new epoch has a new leader state."""
        return self.partition.leader_state is self.leader_state


class GroupCoordinator:
    """The shards of one broker."""

    def __init__(
        self,
        config: GroupConfig,
        directory: PartitionDirectory,
        failures: LogFailures,
        purgatory: Purgatory,
        *,
        random: Random,
        now: Callable[[], float],
        stopwatch: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        call_later: CallLater,
        run_blocking: RunBlocking | None,
        requests_served: Callable[[], int],
    ) -> None:
        """`stopwatch`: a clock in seconds that also advances within an iteration of the event loop. `requests_served`: how many
        requests the broker has served and, as a follower, sent."""
        self.config = config
        self.metrics = GroupMetrics()
        self.on_offsets: Callable[[], None] = lambda: None
        """Called when offsets were loaded or committed."""
        self._directory = directory
        self._failures = failures
        self._purgatory = purgatory
        self._random = random
        self._now = now
        self._stopwatch = stopwatch
        self._wall_clock_ms = wall_clock_ms
        self._call_later = call_later
        self._run_blocking = run_blocking
        self.shards: dict[int, ActiveShard] = {}
        """By the number of the partition."""
        load = RequestLoad()
        self._load_turns = LoadTurns(call_later, lambda: load.is_busy(requests_served(), now()))
        self.census = GroupCensus(lambda: (active.shard for active in self.loaded_shards()), call_later)
        self._is_stopped = False
        self._limits = LineLimits()
        self._lines = ChangeLogLines()

    # -- leadership ---------------------------------------------------------------------------------------------------

    @property
    def topic(self) -> TopicImage | None:
        """The internal topic; None before it exists."""
        return self._directory.image.topic(OFFSETS_TOPIC)

    def apply_delta(self, delta: MetadataDelta) -> None:
        """The partitions of this broker have the roles of this delta: drop shards without leadership, load new ones, and tell all
        shards what has changed in the topics that groups read."""
        if self._is_stopped:
            return
        for active in list(self.shards.values()):
            if not active.is_current:
                self._unload(active)
        topic = self.topic
        if topic is not None:
            for topic_id, number in delta.changed_partitions:
                if topic_id == topic.topic_id:
                    self._maybe_load((topic_id, number))
        changed = {delta.image.topics_by_id[topic_id].name for topic_id in delta.changed_topics}
        changed.update(removed.name for removed in delta.removed_topics)
        changed.discard(OFFSETS_TOPIC)
        if changed:
            for active in list(self.shards.values()):
                self._on_image(active, changed, delta.removed_topics)

    def _maybe_load(self, key: TopicIdPartition) -> None:
        partition = self._directory.partitions.get(key)
        if partition is None or partition.leader_state is None or key[1] in self.shards:
            return
        active = self.shards[key[1]] = self._new_shard(partition, partition.leader_state)
        assert active.loader is not None
        active.loader.start()

    def _new_shard(self, partition: Partition, leader_state: LeaderState) -> ActiveShard:
        shard = GroupShard(self.config, self._random, self._directory.image)
        end = leader_state.log.log_end_offset
        active = ActiveShard(partition, leader_state, shard, None, end, end, self._now())
        active.loader = Loader(
            leader_state,
            shard,
            is_current=lambda: active.is_current,
            call_soon=self._load_turns.add,
            run_blocking=self._run_blocking,
            on_end=lambda error: self._on_load_end(active, error),
        )
        return active

    def _on_load_end(self, active: ActiveShard, error: Exception | None) -> None:
        loader, active.loader = active.loader, None
        assert loader is not None
        if not active.is_current:
            self._unload(active)
            return
        if error is not None:
            active.failure = str(error)
            logger.error("groups.load_failed", **active.partition.fields, reason=str(error))
            if isinstance(error, DiskError):
                self._failures.on_disk_error(error)
            return
        shard, took_s = active.shard, self._now() - active.began_at
        self.metrics.on_load(took_s, self._now())
        if loader.records or loader.skipped:
            logger.info(
                "groups.loaded",
                **active.partition.fields,
                records=loader.records,
                skipped=loader.skipped,
                groups=len(shard.groups),
                took_ms=round(took_s * 1000),
            )
        # The metadata may have changed during the load.
        shard.use_image(self._directory.image)
        self._apply_all(active, shard.on_loaded(self._now(), self._wall_clock_ms()))
        if len(shard.offsets):
            self.on_offsets()

    def _unload(self, active: ActiveShard) -> None:
        if self.shards.get(active.number) is active:
            del self.shards[active.number]
        if active.loader is not None:
            active.loader.cancel()
        self._cancel_timer(active)
        if len(active.shard.groups):
            logger.info("groups.unloaded", **active.partition.fields, groups=len(active.shard.groups))
        error = BrokerError(ErrorCode.NOT_COORDINATOR, "the leadership of the group's partition has ended")
        send([(asker, error) for asker in active.shard.take_waiting()])

    def stop(self) -> None:
        """The broker stops: refuse what waits, so that clients look for the next coordinator."""
        self._is_stopped = True
        for active in list(self.shards.values()):
            self._unload(active)

    def recent_loads_s(self) -> list[float]:
        """How long each load of about the last half minute took."""
        return self.metrics.recent_loads_s(self._now())

    # -- requests -----------------------------------------------------------------------------------------------------

    def shard_of(self, group_id: str) -> ActiveShard:
        """The loaded shard of a group. Raises NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE."""
        topic = self.topic
        if topic is None:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"there is no topic {OFFSETS_TOPIC} yet")
        return self._loaded(partition_of(group_id, len(topic.partitions)))

    def _loaded(self, number: int) -> ActiveShard:
        active = self.shards.get(number)
        if active is not None and not active.is_current:
            self._unload(active)
            active = None
        if active is None:
            raise BrokerError(ErrorCode.NOT_COORDINATOR, f"this broker does not lead {OFFSETS_TOPIC}-{number}")
        if active.failure is not None:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the groups could not be loaded: {active.failure}")
        if active.loader is not None:
            raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return active

    def loaded_shards(self) -> Iterator[ActiveShard]:
        """The shards that can answer now."""
        for active in self.shards.values():
            if active.is_current and active.loader is None and active.failure is None:
                yield active

    @property
    def is_loading(self) -> bool:
        return any(active.loader is not None for active in self.shards.values())

    def context(self, asker: Asker, client_id: str, client_host: str) -> RequestContext:
        return RequestContext(asker, client_id, client_host, self._now(), self._wall_clock_ms())

    def decide(self, group_id: str, decide: Callable[[GroupShard], Result]) -> None:
        """Have the shard of a group decide, and carry that out. Raises the `BrokerError` of the request."""
        active = self.shard_of(group_id)
        result = decide(active.shard)
        error = self._apply(active, result)
        if error is not None and result.on_append is None and not result.replies:
            raise error

    def when_committed(self, active: ActiveShard, replies: Replies) -> None:
        """Send replies once the high watermark has reached all that the shard knows now."""
        self._when_reached(active, active.known_end, [asker for asker, _ in replies], lambda: replies)

    def read_committed(self, active: ActiveShard, asker: Asker, read: Callable[[int], Message]) -> None:
        """Answer from what is committed: `read` gets the high watermark, once that covers all that was loaded."""
        log_ = active.partition.log
        self._when_reached(active, active.loaded_end, [asker], lambda: [(asker, read(log_.high_watermark))])

    def _when_reached(self, active: ActiveShard, required: int, askers: list[Asker], make: Callable[[], Replies]) -> None:
        partition = active.partition
        if partition.log.high_watermark >= required:
            send(make())
            return
        delayed = DelayedReplies(partition, askers, partial(self._make_late, make, self._now()))
        partition.waiters.add(required, 0, delayed, partition.leader_epoch)
        self._purgatory.park(delayed, self.config.offsets_commit_timeout_ms)

    def _make_late(self, make: Callable[[], Replies], began_at: float) -> Replies:
        self.metrics.commit_wait.observe(self._now() - began_at)
        return make()

    def on_member_connection_lost(self, group_id: str, member_id: str) -> None:
        """The peer closed the connection on which this member sent its last heartbeat."""
        with suppress(BrokerError):
            active = self.shard_of(group_id)
            active.shard.consumer.on_connection_lost(group_id, member_id, self._now())
            self._arm(active)

    # -- carrying out -------------------------------------------------------------------------------------------------

    def _apply_all(self, active: ActiveShard, results: Iterable[Result]) -> None:
        for result in results:
            if not active.is_current:
                return
            self._apply(active, result)
        self._arm(active)

    def _apply(self, active: ActiveShard, result: Result) -> BrokerError | None:
        """Carry out a decision; returns the error of its append."""
        error = self._append(active, result) if result.records else None
        if error is not None:
            send([(asker, error) for asker, _ in result.replies])
            if result.on_append is not None:
                send(result.on_append(error))
        else:
            if result.records or result.removed:
                self._lines.log(result, active.shard.groups, self._now())
            replies = result.replies if result.on_append is None else [*result.replies, *result.on_append(None)]
            if result.records:
                replies = [*replies, *active.shard.take_woken()]
            if replies:
                self.when_committed(active, replies)
        self._arm(active)
        return error

    def _append(self, active: ActiveShard, result: Result) -> BrokerError | None:
        """Append the records and have the shard replay them; returns the error, after which nothing has changed."""
        leader_state, records, began = active.leader_state, result.records, self._stopwatch()
        try:
            if not active.is_current:
                raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if leader_state.is_under_min_isr:
                raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS)
            now_ms = self._wall_clock_ms()
            batches = encode_batches(records, now_ms, leader_state.log.config.max_message_bytes)
            info = leader_state.append(batches, now_ms)
        except BrokerError as e:
            if e.code == ErrorCode.KAFKA_STORAGE_ERROR:
                self._failures.on_damage(active.partition.key)
            suppressed = self._limits.admit("append", self._now())
            if suppressed is not None:
                logger.warning("groups.append_failed", **active.partition.fields, reason=str(e), **suppressed.fields)
            return as_coordinator(e)
        except DiskError as e:
            self._failures.on_disk_error(e)
            return BrokerError(ErrorCode.NOT_COORDINATOR, str(e))
        active.known_end = info.last_offset + 1
        has_commits = self.metrics.on_append(records, result.removal, active.shard.groups)
        active.shard.offsets.on_high_watermark(leader_state.log.high_watermark)
        for index, record in enumerate(records):
            active.shard.replay(record, info.first_offset + index)
        self.metrics.append.observe(self._stopwatch() - began)
        if has_commits:
            self.on_offsets()
        return None

    def _on_image(self, active: ActiveShard, changed: set[str], removed: list[TopicImage]) -> None:
        if active.loader is None and active.failure is None:
            image = self._directory.image
            self._apply_all(active, active.shard.on_image(image, changed, removed, self._now(), self._wall_clock_ms()))

    # -- deadlines ----------------------------------------------------------------------------------------------------

    def _arm(self, active: ActiveShard) -> None:
        due = active.shard.deadlines.next_due()
        if due is None or due >= active.timer_due or not active.is_current:
            return
        self._cancel_timer(active)
        active.timer_due = due
        active.timer = self._call_later(max(0.0, due - self._now()), lambda: self._on_timer(active))

    def _cancel_timer(self, active: ActiveShard) -> None:
        if active.timer is not None:
            active.timer.cancel()
        active.timer, active.timer_due = None, float("inf")

    def _on_timer(self, active: ActiveShard) -> None:
        active.timer, active.timer_due = None, float("inf")
        if not active.is_current or self._is_stopped:
            return
        self._apply_all(active, active.shard.expire(self._now(), self._wall_clock_ms()))


def encode_batches(records: list[GroupRecord], now_ms: int, bytes_max: int) -> bytearray:
    """The records as one batch, or as several if one would be larger than the topic allows."""
    batches, builder, size = bytearray(), BatchBuilder(), HEADER_SIZE
    for record in records:
        key, value = encode_record(record)
        needed = OVERHEAD_MAX + len(key) + (0 if value is None else len(value))
        if len(builder) and size + needed > bytes_max:
            batches += builder.build()
            builder, size = BatchBuilder(), HEADER_SIZE
        builder.append(key, value, (), now_ms)
        size += needed
    batches += builder.build()
    return batches
