"""The partitions of one broker: what the metadata log says of them, and the APIs that read and write them.

`apply_delta` acts on a change of the cluster's metadata: deletions first (a topic of the same name may come anew), then
the partitions that we lead now, then those that we follow. A partition's fetcher is stopped before we lead it, and is
started anew only when its leader epoch advanced.

The handlers (`produce.py`, `fetch.py`, `offsets.py`) find partitions here and are told why one is not: unknown topic id,
not a replica, or on a disk that failed. Nothing here costs more for a request than the partitions that it names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from strandline.broker.action_queue import ActionQueue
from strandline.broker.describe_log_dirs import DescribeLogDirsHandler
from strandline.broker.fetch.fetch_handler import FetchHandler, RunBlocking
from strandline.broker.fetch.fetch_session import FetchSessionCache
from strandline.broker.fetch.offsets_handler import OffsetsHandler
from strandline.broker.metrics import BrokerMetrics
from strandline.broker.partition.context import AlterPartitionSubmitter, PartitionContext
from strandline.broker.partition.partition import Partition, Role
from strandline.broker.produce.describe_producers import DescribeProducersHandler
from strandline.broker.produce.produce_handler import ProduceHandler
from strandline.broker.purgatory import CallLater, Purgatory
from strandline.controller.metadata.image import (
    NO_LEADER,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
)
from strandline.protocol.doors import Doors
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import RESOURCE_BROKER, RESOURCE_TOPIC
from strandline.protocol.messages.common import CurrentLeader
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.files import DiskError
from strandline.storage.log.log_config import LogConfig

if TYPE_CHECKING:
    from strandline.storage.directory.log_dir import LogDir
    from strandline.storage.log.log import Log

logger = get_logger(__name__)


ROLE_LINES_MAX = 100
"""Of one delta: with more, the roles are counted and not told one by one. A thousand lines are 50 ms of the fail-over."""
DAMAGE_WARNING_INTERVAL_S = 60.0
"""However often damage is met, on however many partitions: the log's own line told each of them once."""


class FetcherPort(Protocol):
    """Who copies from leaders (`broker/replication/fetcher_manager.py`)."""

    def add(self, partition: Partition, leader_id: int) -> None:
        """Fetch the partition from this leader, from now on and from where its log ends."""

    def remove(self, key: TopicIdPartition) -> None: ...


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """The broker's settings of the data side. Kafka's keys, `replica.lag.time.max.ms` and so on."""

    replica_lag_time_max_ms: int = 10_000
    """A follower that was not caught up for so long leaves the ISR."""
    fetch_max_bytes: int = 55 << 20
    """The largest fetch response, whatever was asked for; one batch may exceed it."""
    max_incremental_fetch_session_cache_slots: int = 1000
    producer_id_expiration_ms: int = 86_400_000
    """A producer without a name that was silent for so long is forgotten."""
    topic_defaults: dict[str, Any] | None = None
    """The broker's own defaults of topic settings (`log.segment.bytes`, `min.insync.replicas`, ...)."""


class ReplicaManager:
    def __init__(
        self,
        *,
        broker_id: int,
        log_dir: LogDir,
        config: ReplicaConfig,
        doors: Doors,
        now: Callable[[], float],
        call_later: CallLater,
        alter_partition: AlterPartitionSubmitter,
        fetchers: FetcherPort,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
        run_blocking: RunBlocking | None = None,
        on_log_dir_failed: Callable[[DiskError], None] | None = None,
        on_leader_damaged: Callable[[], None] | None = None,
    ) -> None:
        """Without `call_soon` the end of a turn is `call_later(0)`; without `run_blocking` reads may block the loop."""
        self.broker_id = broker_id
        self.broker_epoch = -1
        self.image = MetadataImage.EMPTY
        self.partitions: dict[TopicIdPartition, Partition] = {}
        """Those that are here and in order."""
        self.disk_error: DiskError | None = None
        """Set once the log directory failed: nothing is served from it any more."""
        self._log_dir = log_dir
        self._config = config
        self._doors = doors
        self._fetchers = fetchers
        self._run_blocking = run_blocking
        self._is_checkpointing = False
        self._logs_roles = True
        """A line for each role that is taken; not when very many are taken at once."""
        self._damage_quiet_until = 0.0
        self._on_log_dir_failed = on_log_dir_failed
        self._on_leader_damaged = on_leader_damaged
        self._action_queue = ActionQueue(call_soon or (lambda callback: call_later(0.0, callback)))
        self.metrics = BrokerMetrics()
        self.offline_replicas = 0
        """Those that were here when the log directory failed."""
        self._context = PartitionContext(
            broker_id=broker_id,
            now=now,
            alter_partition=alter_partition,
            replica_lag_s_max=config.replica_lag_time_max_ms / 1000,
            own_broker_epoch=lambda: self.broker_epoch,
            registered_epoch=self._registered_epoch,
            is_active=self._is_active,
            metrics=self.metrics,
        )
        self.purgatory = Purgatory(now, call_later)
        self.sessions = FetchSessionCache(doors.random, config.max_incremental_fetch_session_cache_slots)
        offsets = OffsetsHandler(self)
        self.handle_produce = ProduceHandler(self, self.purgatory, doors.wall_clock_ms, lambda: self.image).handle
        self.handle_fetch = FetchHandler(
            self,
            self.sessions,
            self.purgatory,
            now,
            response_bytes_max=config.fetch_max_bytes,
            run_blocking=run_blocking,
        ).handle
        self.handle_list_offsets = offsets.list_offsets
        self.handle_offset_for_leader_epoch = offsets.offset_for_leader_epoch
        self.handle_describe_log_dirs = DescribeLogDirsHandler(self, log_dir.path).handle
        self.handle_describe_producers = DescribeProducersHandler(self, lambda: self.image).handle

    # -- finding partitions -------------------------------------------------------------------------------------------

    def partition(self, key: TopicIdPartition) -> Partition:
        partition = self.partitions.get(key)
        if partition is not None:
            return partition
        topic = self.image.topics_by_id.get(key[0])
        if topic is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID)
        registration = topic.partitions.get(key[1])
        if registration is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {key[1]}")
        if self.disk_error is not None and self.broker_id in registration.replicas:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)
        raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.broker_id} is not a replica of {topic.name}-{key[1]}")

    def current_leader(self, key: TopicIdPartition) -> CurrentLeader:
        """Who leads, as far as we know: saves a refused asker a question."""
        registration = self.image.partition(key)
        return CurrentLeader() if registration is None else CurrentLeader(registration.leader, registration.leader_epoch)

    def _registered_epoch(self, broker_id: int) -> int:
        registration = self.image.brokers.get(broker_id)
        return -1 if registration is None else registration.broker_epoch

    def _is_active(self, broker_id: int) -> bool:
        registration = self.image.brokers.get(broker_id)
        return registration is not None and registration.is_active

    # -- metadata -----------------------------------------------------------------------------------------------------

    def apply_delta(self, delta: MetadataDelta, broker_epoch: int) -> None:
        """Make what is here agree with the image after the delta."""
        began_at = self._doors.stopwatch()
        self.broker_epoch = broker_epoch
        self.image = delta.image
        if self.disk_error is None:
            try:
                self._apply_topics(delta, began_at)
            except DiskError as e:
                self.on_disk_error(e)
        if delta.changed_brokers:
            self._on_brokers_changed(delta.changed_brokers)
        self.metrics.metadata_apply.observe(self._doors.stopwatch() - began_at)

    def _apply_topics(self, delta: MetadataDelta, began_at: float) -> None:
        for topic in delta.removed_topics:
            for index in topic.partitions:
                self._delete((topic.topic_id, index), ErrorCode.UNKNOWN_TOPIC_ID)
        leaders, followers = [], []
        for key in delta.changed_partitions:
            registration = delta.image.partition(key)
            assert registration is not None, "a changed partition is in the image"
            if self.broker_id not in registration.replicas:
                self._delete(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif registration.leader == self.broker_id:
                leaders.append((key, registration))
                known = delta.before.partition(key)
                if known is not None:
                    self.metrics.on_isr_changed(known.isr, registration.isr)
            else:
                followers.append((key, registration))
        self._apply_configs(delta)
        if leaders or followers:
            logger.info("metadata.applied", metadata_offset=delta.image.offset, leaders=len(leaders), followers=len(followers))
        self._logs_roles = len(leaders) + len(followers) <= ROLE_LINES_MAX
        became_leader = self.metrics.became_leader
        for key, registration in leaders:
            self._take_role(key, registration, self._lead)
        if self.metrics.became_leader > became_leader:
            self.metrics.leader_takeover.observe(self._doors.stopwatch() - began_at)
        for key, registration in followers:
            self._take_role(key, registration, self._follow)

    def _take_role(
        self, key: TopicIdPartition, registration: PartitionRegistration, take: Callable[[Partition, PartitionRegistration], None]
    ) -> None:
        """A partition whose log cannot be opened must not keep the others from their roles."""
        try:
            take(self._partition_for(key), registration)
        except BrokerError as e:
            topic, epochs = self.image.topics_by_id[key[0]].name, (registration.leader_epoch, registration.partition_epoch)
            logger.error(
                "partition.open_failed",
                topic=topic,
                partition=key[1],
                leader_epoch=epochs[0],
                partition_epoch=epochs[1],
                reason=str(e),
            )

    def _lead(self, partition: Partition, registration: PartitionRegistration) -> None:
        self._fetchers.remove(partition.key)
        is_new = partition.make_leader(registration)
        self.metrics.became_leader += is_new
        leader_state = partition.leader_state
        if is_new and self._logs_roles and leader_state is not None:
            logger.info(
                "partition.became_leader",
                **partition.fields,
                epoch_start_offset=leader_state.epoch_start_offset,
                isr=list(registration.isr),
                replicas=list(registration.replicas),
                min_insync_replicas=leader_state.min_isr,
            )

    def _follow(self, partition: Partition, registration: PartitionRegistration) -> None:
        if not partition.make_follower(registration):
            return
        self.metrics.became_follower += 1
        if self._logs_roles:
            isr, leader_id = list(registration.isr), registration.leader
            logger.info("partition.became_follower", **partition.fields, leader_id=leader_id, isr=isr)
        if registration.leader == NO_LEADER:
            self._fetchers.remove(partition.key)
        else:
            self._fetchers.add(partition, registration.leader)

    def _partition_for(self, key: TopicIdPartition) -> Partition:
        """The partition, with its log opened or created if it is new here."""
        partition = self.partitions.get(key)
        if partition is None:
            name = self.image.topics_by_id[key[0]].name
            settings = self._topic_config(name)
            opened = self._open(name, key, settings)
            opened.config = self._log_config(settings)  # it may have been opened before the settings were known
            partition = Partition(key, name, opened, self._context, self._action_queue, settings["min.insync.replicas"])
            self.partitions[key] = partition
        return partition

    def _open(self, name: str, key: TopicIdPartition, settings: dict[str, Any]) -> Log:
        registration = self.image.partition(key)
        open_log = partial(
            self._log_dir.open_log,
            *(name, key[1], key[0], self._log_config(settings), self._doors.wall_clock_ms()),
            may_be_new=registration is None or registration.leader_epoch == 0,
        )
        try:
            return open_log()
        except BrokerError as e:
            if e.code != ErrorCode.INCONSISTENT_TOPIC_ID:
                raise
            # An earlier topic of this name. It is gone from the cluster, but its bytes are not ours to destroy here.
            self._log_dir.set_aside(name, key[1], "another topic has the name now")
            return open_log()

    def _delete(self, key: TopicIdPartition, reason: ErrorCode) -> None:
        partition = self.partitions.pop(key, None)
        if partition is None:
            return
        self._fetchers.remove(key)
        partition.stop(reason)
        self.metrics.on_partition_left(partition.topic)
        logger.info("partition.deleted", **partition.fields)
        self._discard(self._log_dir.delete_log(partition.topic, key[1], key[0]))

    def _discard(self, path: str | None) -> None:
        """Remove a renamed directory; it may be large, so not on the loop if there is another place."""
        if path is not None:
            self._run_aside(partial(self._log_dir.files.remove_tree, path))

    def _run_aside(self, work: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        """Slow work on the disk that nobody waits for: on a thread, if there is one."""
        failures: list[DiskError] = []

        def guarded() -> None:
            try:
                work()
            except DiskError as e:
                failures.append(e)

        def done() -> None:
            for failure in failures:
                self.on_disk_error(failure)
            if then is not None:
                then()

        if self._run_blocking is not None:
            self._run_blocking(guarded, done)
        else:
            guarded()
            done()

    def _apply_configs(self, delta: MetadataDelta) -> None:
        """A changed topic concerns its own partitions, a changed broker default all of them."""
        if not delta.changed_configs:
            return
        changed = {name for kind, name in delta.changed_configs if kind == RESOURCE_TOPIC}
        all_of_them = any(kind == RESOURCE_BROKER and name in ("", str(self.broker_id)) for kind, name in delta.changed_configs)
        settings: dict[str, dict[str, Any]] = {}
        for partition in self.partitions.values():
            if all_of_them or partition.topic in changed:
                if partition.topic not in settings:
                    settings[partition.topic] = self._topic_config(partition.topic)
                values = settings[partition.topic]
                partition.log.config = self._log_config(values)
                partition.set_min_insync_replicas(int(values["min.insync.replicas"]))

    def _log_config(self, settings: dict[str, Any]) -> LogConfig:
        """The topic's, and what the broker says for all logs."""
        return replace(log_config(settings), producer_id_expiration_ms=self._config.producer_id_expiration_ms)

    def _topic_config(self, name: str) -> dict[str, Any]:
        return self.image.topic_config(name, broker_id=self.broker_id, static=self._config.topic_defaults)

    def _on_brokers_changed(self, changed: list[int]) -> None:
        """A follower that is fenced now holds no high watermark back any more; one that is unfenced may join the ISR.

        The latter may have caught up before we heard that it is active: its next fetch is a long poll away.
        """
        for partition in self.partitions.values():
            if partition.leader_state is not None:
                partition.leader_state.maybe_increment_high_watermark()
                partition.leader_state.on_brokers_changed(changed)

    # -- timers -------------------------------------------------------------------------------------------------------

    def maybe_shrink_isrs(self) -> None:
        """Due every half `replica.lag.time.max.ms`: drop who fell behind, and see whether that frees a high watermark."""
        for partition in list(self.partitions.values()):
            if partition.leader_state is not None:
                partition.leader_state.maybe_shrink_isr()
                partition.leader_state.maybe_increment_high_watermark()

    def checkpoint_high_watermarks(self) -> None:
        if self.disk_error is not None or self._is_checkpointing:
            return
        self._is_checkpointing = True
        self._run_aside(self._log_dir.high_watermark_checkpoint().write, self._on_checkpoint)

    def _on_checkpoint(self) -> None:
        self._is_checkpointing = False

    def expire(self, now: float) -> None:
        """Complete what is due. The purgatory has its own timer; this is for a shell that wants to be sure."""
        self.purgatory.expire(now)

    def complete_follower_appends(self, keys: list[TopicIdPartition]) -> None:
        """A fetcher appended to these: who waits for what that moved is answered with this turn, not the next."""
        if any(self.partitions[key].consumers for key in keys if key in self.partitions):
            self._action_queue.run()

    # -- ends ---------------------------------------------------------------------------------------------------------

    def on_disk_error(self, error: DiskError) -> None:
        """The log directory failed: lead and follow nothing any more, and say so to everyone who waits."""
        if self.disk_error is not None:
            return
        self.disk_error = error
        self.offline_replicas = len(self.partitions)
        self._log_dir.fail(error)
        logger.error("log_dir.offline", log_dir=self._log_dir.path, partitions=len(self.partitions), reason=str(error))
        self._stop_all(ErrorCode.KAFKA_STORAGE_ERROR)
        if self._on_log_dir_failed is not None:
            self._on_log_dir_failed(error)

    def on_damage(self, key: TopicIdPartition) -> None:
        """A read met a damaged batch. A follower fetches from there anew; a leader refuses, and lets another one lead."""
        partition = self.partitions.get(key)
        if partition is None or partition.log.corrupt_at is None:
            return
        self._warn_of_damage(partition)
        if partition.leader_state is not None and len(partition.leader_state.isr.isr) > 1 and self._on_leader_damaged is not None:
            self._on_leader_damaged()
        if partition.handled_damage != partition.log.corrupt_at:
            partition.handled_damage = partition.log.corrupt_at
            if partition.role is Role.FOLLOWER and partition.leader_id != NO_LEADER:
                self._fetchers.add(partition, partition.leader_id)

    def _warn_of_damage(self, partition: Partition) -> None:
        now = self._context.now()
        if now >= self._damage_quiet_until:
            self._damage_quiet_until = now + DAMAGE_WARNING_INTERVAL_S
            offset, role = partition.log.corrupt_at, partition.role.value
            logger.warning("partition.damaged_read_refused", **partition.fields, offset=offset, role=role)

    def shutdown(self) -> None:
        """Lead nothing any more and answer everyone who waits. The logs stay open for their owner to close."""
        self._stop_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._action_queue.run()
        for operation in self.purgatory.take_all():
            operation.expire()  # not `complete`: of a produce that still waits here nothing is known to be committed
        self.purgatory.close()

    def _stop_all(self, reason: ErrorCode) -> None:
        partitions = list(self.partitions.values())
        self.partitions.clear()
        for partition in partitions:
            self._fetchers.remove(partition.key)
            partition.stop(reason)
            self.metrics.on_partition_left(partition.topic)


def log_config(topic_config: dict[str, Any]) -> LogConfig:
    """A topic's settings, as far as its logs act on them."""
    return LogConfig(
        segment_bytes=topic_config["segment.bytes"],
        segment_ms=topic_config["segment.ms"],
        index_interval_bytes=topic_config["index.interval.bytes"],
        segment_index_bytes=topic_config["segment.index.bytes"],
        max_message_bytes=topic_config["max.message.bytes"],
        flush_messages=topic_config["flush.messages"],
        flush_ms=topic_config["flush.ms"],
        retention_ms=topic_config["retention.ms"],
        retention_bytes=topic_config["retention.bytes"],
        message_timestamp_type=topic_config["message.timestamp.type"],
    )
