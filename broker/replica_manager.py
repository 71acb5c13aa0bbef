"""The replicas of one broker: puts together their directory, the applier of metadata, the policy for failed logs, the purgatory
and the fetch sessions.

The parts do the work: `partition/directory.py`, `metadata_applier.py`, `partition/log_failures.py`, `moves/mover.py`,
`purgatory.py` and `fetch/fetch_session.py`. This file has the periodic tasks over all partitions, and the shutdown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strandline.broker.action_queue import ActionQueue
from strandline.broker.disk_work import DiskWork, RunBlocking
from strandline.broker.fetch.fetch_session import FetchSessionCache
from strandline.broker.log_start_saver import LogStartSaver
from strandline.broker.metadata_applier import MetadataApplier
from strandline.broker.moves.mover import LogMover
from strandline.broker.partition.context import AlterPartitionSubmitter, PartitionContext
from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.log_failures import LogFailures
from strandline.broker.purgatory import CallLater, Purgatory
from strandline.broker.replication.fetcher_port import FetcherPort
from strandline.controller.metadata.image import MetadataDelta, MetadataImage
from strandline.protocol.doors import Doors
from strandline.protocol.errors import ErrorCode
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.directory.log_dirs import LogDirs
from strandline.storage.files import DiskError


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """The settings of the replicas and their requests, named after Kafka's keys."""

    replica_lag_time_max_ms: int = 10_000
    """A follower that has not been caught up for this long leaves the ISR."""
    fetch_max_bytes: int = 55 << 20
    """The largest fetch response, even if a request allows more; a single batch may exceed it."""
    max_incremental_fetch_session_cache_slots: int = 1000
    replica_alter_log_dirs_io_max_bytes_per_second: float = float("inf")
    """The largest rate at which replicas are copied to other log directories of this broker."""
    producer_id_expiration_ms: int = 86_400_000
    """The state of a producer without a name is dropped if it has sent nothing for this long."""
    replica_selector_class: str | None = None
    """Selects the replica that a consumer with a rack reads from (`fetch/replica_selector.py`); None: always the leader."""
    topic_defaults: dict[str, Any] | None = None
    """The broker's own defaults for topic settings, by the broker's keys (`log.segment.bytes`, `min.insync.replicas`, ...)."""


class ReplicaManager:
    """Owns the replicas of one broker: it creates and removes them as the metadata says, and gives requests access to them."""

    def __init__(
        self,
        *,
        broker_id: int,
        log_dirs: LogDirs,
        config: ReplicaConfig,
        doors: Doors,
        now: Callable[[], float],
        call_later: CallLater,
        alter_partition: AlterPartitionSubmitter,
        fetchers: FetcherPort,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
        run_blocking: RunBlocking | None = None,
        on_log_dir_failed: Callable[[LogDir, bool], None] | None = None,
        on_leader_damaged: Callable[[], None] | None = None,
        on_records_lost: Callable[[TopicIdPartition], None] | None = None,
    ) -> None:
        """Without `call_soon` the end of an event-loop iteration is `call_later(0)`; without `run_blocking` work on the disk may
        block the loop."""
        directory = self.directory = PartitionDirectory(broker_id)
        self.partitions = directory.partitions
        self.metrics = directory.metrics
        self.config = config
        self.fetchers = fetchers
        self._log_dirs = log_dirs
        self._is_checkpointing = False
        self._action_queue = ActionQueue(call_soon or (lambda callback: call_later(0.0, callback)))
        self.failures = LogFailures(
            directory,
            fetchers,
            log_dirs,
            now=now,
            on_log_dir_failed=on_log_dir_failed,
            on_leader_damaged=on_leader_damaged,
            on_records_lost=on_records_lost,
        )
        self._disk_work = DiskWork(run_blocking, self.failures.on_disk_error)
        self.moves = LogMover(
            directory,
            log_dirs,
            on_disk_error=self.failures.on_disk_error,
            on_damage=self.failures.on_damage,
            now=now,
            call_later=call_later,
            wall_clock_ms=doors.wall_clock_ms,
            run_blocking=run_blocking,
            bytes_per_second=config.replica_alter_log_dirs_io_max_bytes_per_second,
        )
        self.failures.on_dir_failed = self.moves.on_dir_failed
        self.log_starts = LogStartSaver(log_dirs, self._disk_work)
        self._applier = MetadataApplier(
            directory,
            failures=self.failures,
            fetchers=fetchers,
            log_dirs=log_dirs,
            disk_work=self._disk_work,
            context=PartitionContext(
                broker_id=broker_id,
                now=now,
                call_later=call_later,
                alter_partition=alter_partition,
                replica_lag_s_max=config.replica_lag_time_max_ms / 1000,
                own_broker_epoch=lambda: directory.broker_epoch,
                registered_epoch=directory.registered_epoch,
                is_active=directory.is_active,
                metrics=directory.metrics,
                save_log_starts=self.log_starts.save,
                save_cleaner_offsets=lambda log: log_dirs.of(log).save_cleaner_offsets(),
            ),
            observer=self._action_queue,
            doors=doors,
            call_later=call_later,
            topic_defaults=config.topic_defaults,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            moves=self.moves,
        )
        self.purgatory = Purgatory(now, call_later)
        self.sessions = FetchSessionCache(doors.random, config.max_incremental_fetch_session_cache_slots)

    @property
    def image(self) -> MetadataImage:
        """The newest metadata that was applied."""
        return self.directory.image

    @property
    def disk_error(self) -> DiskError | None:
        """The error that took the last log directory offline; None while a log directory is online."""
        return self.directory.disk_error

    @property
    def offline_replicas(self) -> int:
        """How many partitions of this broker are, or may be, in an offline log directory."""
        return len(self.failures.offline)

    def apply_delta(self, delta: MetadataDelta, broker_epoch: int, then: Callable[[], None] = lambda: None) -> None:
        """Make the replicas agree with the image after the delta. `then` is called when that is done: before this returns, or, if
        this delta or an earlier one brings very many partitions, in a later iteration of the event loop."""
        self._applier.apply_delta(delta, broker_epoch, then)

    def abandon_changes(self) -> None:
        """Drop the deltas that are not applied yet, because the broker stops."""
        self._applier.abandon()

    def expire_producers_after(self, silence_ms: int) -> None:
        """Change `producer.id.expiration.ms`."""
        self._applier.expire_producers_after(silence_ms)

    def on_disk_error(self, error: DiskError) -> None:
        """Take the log directory of the error's path offline."""
        self.failures.on_disk_error(error)

    # -- periodic tasks -----------------------------------------------------------------------------------------------

    def maybe_shrink_isrs(self) -> None:
        """Propose to remove members that fell behind from the ISRs, and raise high watermarks that no longer wait for a follower.
        Called every half `replica.lag.time.max.ms`."""
        for partition in list(self.partitions.values()):
            if partition.leader_state is not None:
                partition.leader_state.maybe_shrink_isr()
                partition.leader_state.maybe_increment_high_watermark()

    def checkpoint_high_watermarks(self) -> None:
        if self.disk_error is not None or self._is_checkpointing:
            return
        self._is_checkpointing = True
        writes = [log_dir.high_watermark_checkpoint().write for log_dir in self._log_dirs.online]
        self._disk_work.run_each(writes, self._on_checkpoint)

    def _on_checkpoint(self) -> None:
        self._is_checkpointing = False

    def complete_follower_appends(self, keys: list[TopicIdPartition]) -> None:
        """Called after a fetcher has appended to these partitions: answer waiting consumers at once, and not only at the end of
        the event-loop iteration."""
        if any(self.partitions[key].consumers for key in keys if key in self.partitions):
            self._action_queue.run()

    # -- the end ------------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Give up every role, and answer all waiting requests. The logs stay open; their owner closes them."""
        self._applier.abandon()
        self.moves.stop()
        self.failures.stop_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._action_queue.run()
        for operation in self.purgatory.take_all():
            operation.expire()  # not `complete`: the records of a produce that still waits are not known to be committed
        self.purgatory.close()
