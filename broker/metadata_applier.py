"""Makes the partitions of a broker agree with the cluster's metadata.

A delta is applied in this order: deletions first (a topic of the same name may be created again), then configurations, then the
partitions that this broker leads, then those that it follows. A partition's fetcher is stopped before the broker leads it, and
starts over only when the leader epoch advanced. Last, the leaders take account of brokers that were fenced or unfenced.

A delta may bring thousands of new partitions (a topic, a reassignment), whose logs take seconds to create. So they are created
in slices, between which the event loop serves requests. A request for a partition that is not created yet is refused as if this
broker were not a replica. A delta that arrives meanwhile is applied afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from strandline.broker.disk_work import DiskWork
from strandline.broker.moves.mover import LogMover
from strandline.broker.partition.context import PartitionContext
from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.log_failures import LogFailures
from strandline.broker.partition.partition import Partition, PartitionObserver
from strandline.broker.purgatory import CallLater
from strandline.broker.replication.fetcher_port import FetcherPort
from strandline.controller.metadata.image import NO_LEADER, MetadataDelta, PartitionRegistration
from strandline.protocol.doors import Doors
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import RESOURCE_BROKER, RESOURCE_TOPIC
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.compression import LEVELS, Codec, Compression
from strandline.storage.directory.log_dirs import LogDirs
from strandline.storage.files import DiskError
from strandline.storage.log.log import Log
from strandline.storage.log.log_config import LogConfig

logger = get_logger(__name__)

ROLE_LINES_MAX = 100
"""If a delta has more roles, or deletions, than this, they are only counted, and not logged one by one: a thousand log lines
lengthen a fail-over by 50 ms."""
NEW_PER_SLICE = 500
"""How many new partitions are created in one slice, which takes 50 to 200 ms."""

Registered = tuple[TopicIdPartition, PartitionRegistration]
Take = Callable[[Partition, PartitionRegistration], None]


class Delta(NamedTuple):
    """A change of the metadata that is to be applied."""

    delta: MetadataDelta
    broker_epoch: int
    then: Callable[[], None]


class MetadataApplier:
    """Applies metadata deltas to the partitions of a broker: creates, deletes and configures them, and gives them roles."""

    def __init__(
        self,
        directory: PartitionDirectory,
        *,
        failures: LogFailures,
        fetchers: FetcherPort,
        log_dirs: LogDirs,
        disk_work: DiskWork,
        context: PartitionContext,
        observer: PartitionObserver,
        doors: Doors,
        call_later: CallLater,
        topic_defaults: dict[str, Any] | None,
        producer_id_expiration_ms: int,
        moves: LogMover,
    ) -> None:
        self._directory = directory
        self._failures = failures
        self._fetchers = fetchers
        self._log_dirs = log_dirs
        self._disk_work = disk_work
        self._context = context
        self._observer = observer
        self._doors = doors
        self._call_later = call_later
        self._topic_defaults = topic_defaults
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._moves = moves
        self._logs_roles = True
        """Whether each role of the present delta gets a log line."""
        self._deltas: deque[Delta] = deque()
        """The delta that is being applied, and those that have arrived since."""
        self._rest: deque[tuple[TopicIdPartition, PartitionRegistration, Take]] = deque()
        """The new partitions of the first delta that are not created yet."""

    def apply_delta(self, delta: MetadataDelta, broker_epoch: int, then: Callable[[], None]) -> None:
        """Make the partitions agree with the image after the delta. `broker_epoch`: that of this broker's registration. `then` is
        called when that is done: before this returns, unless this delta or an earlier one brings very many partitions."""
        self._deltas.append(Delta(delta, broker_epoch, then))
        if len(self._deltas) == 1:
            self._apply_first()

    def abandon(self) -> None:
        """Drop the deltas that are not applied yet, because the broker stops."""
        self._deltas.clear()
        self._rest.clear()

    def _apply_first(self) -> None:
        if not self._deltas:
            return
        delta, broker_epoch, _ = self._deltas[0]
        try:
            self._apply(delta, broker_epoch)
        finally:
            self._go_on()

    def _apply(self, delta: MetadataDelta, broker_epoch: int) -> None:
        began_at, directory = self._doors.stopwatch(), self._directory
        directory.broker_epoch = broker_epoch
        directory.image = delta.image
        if directory.disk_error is None:
            try:
                self._apply_topics(delta, began_at)
            except DiskError as e:
                self._failures.on_disk_error(e)
            if delta.before.offset < 0:
                self._moves.resume()
        if delta.changed_brokers:
            self._on_brokers_changed(delta.changed_brokers)
        self._directory.metrics.metadata_apply.observe(self._doors.stopwatch() - began_at)

    def _go_on(self) -> None:
        """If the delta has more new partitions, create them in a later iteration of the event loop. Otherwise the delta is done,
        and the next one, if there is one, is applied in a later iteration."""
        if self._rest:
            self._call_later(0.0, self._create_slice)
            return
        done = self._deltas.popleft()
        try:
            done.then()
        finally:
            if self._deltas:
                self._call_later(0.0, self._apply_first)

    def _create_slice(self) -> None:
        if not self._deltas:
            return
        delta = self._deltas[0].delta
        try:
            for _ in range(min(NEW_PER_SLICE, len(self._rest))):
                key, registration, take = self._rest.popleft()
                if self._directory.disk_error is None:
                    self._take_role(delta, key, registration, take)
        finally:
            self._go_on()

    def expire_producers_after(self, silence_ms: int) -> None:
        """Change how long the logs remember a silent producer."""
        self._producer_id_expiration_ms = silence_ms
        for partition in self._directory.partitions.values():
            partition.log.config = replace(partition.log.config, producer_id_expiration_ms=silence_ms)

    def _apply_topics(self, delta: MetadataDelta, began_at: float) -> None:
        self._logs_roles = sum(len(topic.partitions) for topic in delta.removed_topics) <= ROLE_LINES_MAX
        gone: list[str] = []
        for topic in delta.removed_topics:
            for index in topic.partitions:
                gone += self._delete((topic.topic_id, index), ErrorCode.UNKNOWN_TOPIC_ID)
        leaders, followers = [], []
        for key in delta.changed_partitions:
            registration = delta.image.partition(key)
            assert registration is not None, "a changed partition is in the image"
            if self._directory.broker_id not in registration.replicas:
                gone += self._delete(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif registration.leader == self._directory.broker_id:
                leaders.append((key, registration))
                known = delta.before.partition(key)
                if known is not None:
                    self._directory.metrics.on_isr_changed(known.isr, registration.isr)
            else:
                followers.append((key, registration))
        self._discard(gone)
        self._apply_configs(delta)
        if leaders or followers:
            logger.info("metadata.applied", metadata_offset=delta.image.offset, leaders=len(leaders), followers=len(followers))
        self._logs_roles = len(leaders) + len(followers) <= ROLE_LINES_MAX
        became_leader = self._directory.metrics.became_leader
        if delta.before.offset >= 0:
            leaders, followers = self._without_rest(leaders, followers)
        for key, registration in leaders:
            self._take_role(delta, key, registration, self._lead)
        if self._directory.metrics.became_leader > became_leader:
            self._directory.metrics.leader_takeover.observe(self._doors.stopwatch() - began_at)
        for key, registration in followers:
            self._take_role(delta, key, registration, self._follow)

    def _without_rest(self, leaders: list[Registered], followers: list[Registered]) -> tuple[list[Registered], list[Registered]]:
        """The given partitions without the new ones beyond `NEW_PER_SLICE`, which are added to `_rest` for later slices."""
        roles = [*((*each, self._lead) for each in leaders), *((*each, self._follow) for each in followers)]
        new = [role for role in roles if role[0] not in self._directory.partitions]
        self._rest.extend(new[NEW_PER_SLICE:])
        if not self._rest:
            return leaders, followers
        later = {key for key, _, _ in self._rest}
        return [each for each in leaders if each[0] not in later], [each for each in followers if each[0] not in later]

    def _take_role(self, delta: MetadataDelta, key: TopicIdPartition, registration: PartitionRegistration, take: Take) -> None:
        """Give a partition its role, unless its log directory is offline or fails. If its log cannot be opened, that is logged,
        and the other partitions still get their roles."""
        if self._log_dirs.has_offline and self._is_offline(delta, key):
            self._directory.offline[key] = None
            return
        try:
            take(self._partition_for(key), registration)
        except DiskError as e:
            self._failures.on_disk_error(e)
            self._directory.offline[key] = None
        except BrokerError as e:
            logger.error(
                "partition.open_failed",
                topic=self._directory.image.topics_by_id[key[0]].name,
                partition=key[1],
                leader_epoch=registration.leader_epoch,
                partition_epoch=registration.partition_epoch,
                reason=str(e),
            )

    def _lead(self, partition: Partition, registration: PartitionRegistration) -> None:
        self._fetchers.remove(partition.key)
        is_new = partition.make_leader(registration)
        self._directory.metrics.became_leader += is_new
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
        self._directory.metrics.became_follower += 1
        if self._logs_roles:
            isr, leader_id = list(registration.isr), registration.leader
            logger.info("partition.became_follower", **partition.fields, leader_id=leader_id, isr=isr)
        if registration.leader == NO_LEADER:
            self._fetchers.remove(partition.key)
        else:
            self._fetchers.add(partition, registration.leader)

    def _partition_for(self, key: TopicIdPartition) -> Partition:
        """The partition. If it is new on this broker, its log is opened or created."""
        partition = self._directory.partitions.get(key)
        if partition is None:
            name = self._directory.image.topics_by_id[key[0]].name
            settings = self._topic_config(name)
            opened = self._open(name, key, settings)
            self._configure(key, opened, settings)  # the recovery opened it before the settings were known
            partition = Partition(key, name, opened, self._context, self._observer, settings["min.insync.replicas"])
            self._directory.partitions[key] = partition
        return partition

    def _open(self, name: str, key: TopicIdPartition, settings: dict[str, Any]) -> Log:
        registration = self._directory.image.partition(key)
        may_be_new = registration is None or registration.leader_epoch == 0 or self._is_being_added(registration)
        if not may_be_new and self._log_dirs.find(name, key[1], key[0]) is None:
            # The log is gone, so this replica must not be elected for the records that it had.
            self._failures.report_loss(key)
        open_log = partial(
            self._log_dirs.open_log,
            *(name, key[1], key[0], self._log_config(settings), self._doors.wall_clock_ms()),
            may_be_new=may_be_new,
        )
        try:
            return open_log()
        except BrokerError as e:
            if e.code != ErrorCode.INCONSISTENT_TOPIC_ID:
                raise
            # The log belongs to an earlier topic of this name, which the cluster has deleted. It is set aside, not destroyed.
            self._log_dirs.set_aside(name, key[1], "another topic has the name now")
            return open_log()

    def _is_being_added(self, registration: PartitionRegistration) -> bool:
        """Whether a reassignment adds the replica here, and it is not in the ISR or ELR: then it may have no log yet."""
        broker_id = self._directory.broker_id
        had_a_log = broker_id in registration.isr or broker_id in registration.elr
        return broker_id in registration.adding_replicas and not had_a_log

    def _is_offline(self, delta: MetadataDelta, key: TopicIdPartition) -> bool:
        """Whether the partition's log is, or may be, in an offline directory. It cannot be there if the partition was assigned to
        this broker while this process ran."""
        if key in self._directory.partitions or key in self._directory.offline:
            return key in self._directory.offline
        before, registration = delta.before.partition(key), delta.image.partition(key)
        assert registration is not None, "a changed partition is in the image"
        assigned = registration.directory_of(self._directory.broker_id)
        if any(log_dir.directory_id == assigned and key not in log_dir.futures for log_dir in self._log_dirs.online):
            return False
        is_new = delta.before.offset >= 0 and (before is None or self._directory.broker_id not in before.replicas)
        name = self._directory.image.topics_by_id[key[0]].name
        return not is_new and self._log_dirs.may_be_offline(name, key[1], key[0])

    def _delete(self, key: TopicIdPartition, reason: ErrorCode) -> list[str]:
        """Remove the partition and rename its log directory. Returns the new path, for `_discard`, if there is one."""
        self._directory.converting.discard(key)
        self._directory.offline.pop(key, None)
        partition = self._directory.partitions.pop(key, None)
        if partition is None:
            return []
        self._fetchers.remove(key)
        self._moves.cancel(key, "the partition has left this broker")
        partition.stop(reason)
        self._directory.metrics.on_partition_removed(partition.topic)
        if self._logs_roles:
            logger.info("partition.deleted", **partition.fields)
        try:
            path = self._log_dirs.delete_log(partition.topic, key[1], key[0])
        except DiskError as e:
            self._failures.on_disk_error(e)
            return []
        return [] if path is None else [path]

    def _discard(self, paths: list[str]) -> None:
        """Remove renamed directories, on threads if there are any, because they may be large. Many of them share one thread."""
        works = [partial(self._log_dirs.files.remove_tree, path) for path in paths]
        if len(works) > ROLE_LINES_MAX:
            self._disk_work.run_each(works)
        else:
            for work in works:
                self._disk_work.run(work)

    def _apply_configs(self, delta: MetadataDelta) -> None:
        """Apply changed settings: those of a topic to its partitions, those of the broker to all partitions."""
        if not delta.changed_configs:
            return
        changed = {name for kind, name in delta.changed_configs if kind == RESOURCE_TOPIC}
        all_of_them = any(
            kind == RESOURCE_BROKER and name in ("", str(self._directory.broker_id)) for kind, name in delta.changed_configs
        )
        settings: dict[str, dict[str, Any]] = {}
        for partition in self._directory.partitions.values():
            if all_of_them or partition.topic in changed:
                if partition.topic not in settings:
                    settings[partition.topic] = self._topic_config(partition.topic)
                values = settings[partition.topic]
                self._configure(partition.key, partition.log, values)
                partition.set_min_insync_replicas(int(values["min.insync.replicas"]))

    def _configure(self, key: TopicIdPartition, log: Log, settings: dict[str, Any]) -> None:
        log.config = self._log_config(settings)
        if log.config.needs_preparation:
            self._directory.converting.add(key)
        else:
            self._directory.converting.discard(key)

    def _log_config(self, settings: dict[str, Any]) -> LogConfig:
        """The settings of a log: those of its topic, and those that the broker has for all logs."""
        return replace(log_config(settings), producer_id_expiration_ms=self._producer_id_expiration_ms)

    def _topic_config(self, name: str) -> dict[str, Any]:
        return self._directory.image.topic_config(name, broker_id=self._directory.broker_id, static=self._topic_defaults)

    def _on_brokers_changed(self, changed: list[int]) -> None:
        """Raise high watermarks that no longer wait for a fenced follower, and propose unfenced followers for the ISR.

        An unfenced follower may have caught up before the metadata here showed it as active, and its next fetch may be a long
        poll away.
        """
        for partition in self._directory.partitions.values():
            if partition.leader_state is not None:
                partition.leader_state.maybe_increment_high_watermark()
                partition.leader_state.on_brokers_changed(changed)


def log_config(topic_config: dict[str, Any]) -> LogConfig:
    """The settings of a topic that its logs act on."""
    compacts = "compact" in topic_config["cleanup.policy"]
    segment_ms, lag_ms = topic_config["segment.ms"], topic_config["max.compaction.lag.ms"]
    return LogConfig(
        segment_bytes=topic_config["segment.bytes"],
        segment_ms=min(segment_ms, lag_ms) if compacts else segment_ms,  # only closed segments are compacted
        segment_jitter_ms=topic_config["segment.jitter.ms"],
        index_interval_bytes=topic_config["index.interval.bytes"],
        segment_index_bytes=topic_config["segment.index.bytes"],
        max_message_bytes=topic_config["max.message.bytes"],
        flush_messages=topic_config["flush.messages"],
        flush_ms=topic_config["flush.ms"],
        retention_ms=topic_config["retention.ms"],
        retention_bytes=topic_config["retention.bytes"],
        deletes="delete" in topic_config["cleanup.policy"],
        compacts=compacts,
        min_cleanable_dirty_ratio=topic_config["min.cleanable.dirty.ratio"],
        delete_retention_ms=topic_config["delete.retention.ms"],
        min_compaction_lag_ms=topic_config["min.compaction.lag.ms"],
        max_compaction_lag_ms=lag_ms,
        file_delete_delay_ms=topic_config["file.delete.delay.ms"],
        message_timestamp_type=topic_config["message.timestamp.type"],
        message_timestamp_before_max_ms=topic_config["message.timestamp.before.max.ms"],
        message_timestamp_after_max_ms=topic_config["message.timestamp.after.max.ms"],
        compression=_compression(topic_config),
    )


def _compression(topic_config: dict[str, Any]) -> Compression | None:
    name = topic_config["compression.type"]
    if name == "producer":
        return None
    codec = Codec.NONE if name == "uncompressed" else Codec[name.upper()]
    return Compression(codec, topic_config[f"compression.{name}.level"] if codec in LEVELS else None)
