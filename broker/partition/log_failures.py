"""What a broker does when its disk fails or a batch on it is damaged.

- **A log directory fails** (any `DiskError` on a path in it): the broker gives up the roles of the partitions there, and answers
  the requests that wait for them. The other partitions go on. When the last directory has failed, the process ends soon
  afterwards.
- **A batch is damaged**: a follower fetches its log again from there. A leader refuses the reads, and asks for another leader if
  the ISR has another member.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.partition import Partition, Role
from strandline.broker.replication.fetcher_port import FetcherPort
from strandline.controller.metadata.image import NO_LEADER
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.directory.log_dirs import LogDirs
from strandline.storage.files import DiskError

logger = get_logger(__name__)

DAMAGE_WARNING_INTERVAL_S = 60.0
"""The least time between two warnings about refused reads, of all partitions together. Each damage has its own `log.damaged`."""


class LogFailures:
    """The policy for failed logs. The handlers, the fetchers and the periodic tasks report errors of the disk and damage here."""

    def __init__(
        self,
        directory: PartitionDirectory,
        fetchers: FetcherPort,
        log_dirs: LogDirs,
        *,
        now: Callable[[], float],
        on_log_dir_failed: Callable[[LogDir, bool], None] | None,
        on_leader_damaged: Callable[[], None] | None,
        on_records_lost: Callable[[TopicIdPartition], None] | None = None,
    ) -> None:
        """`on_log_dir_failed` gets the directory, and whether this broker led a partition in it."""
        self._directory = directory
        self._fetchers = fetchers
        self._log_dirs = log_dirs
        self._now = now
        self._on_log_dir_failed = on_log_dir_failed
        self._on_leader_damaged = on_leader_damaged
        self._on_records_lost = on_records_lost
        self._damage_quiet_until = 0.0
        self.on_dir_failed: Callable[[LogDir], None] = lambda log_dir: None
        """Called for each directory that fails, when its partitions have lost their roles."""
        self.failed_dirs: list[LogDir] = []
        """The directories that have failed in this process, in that order."""

    @property
    def broker_id(self) -> int:
        return self._directory.broker_id

    @property
    def disk_error(self) -> DiskError | None:
        return self._directory.disk_error

    @property
    def offline(self) -> Collection[TopicIdPartition]:
        """The partitions of this broker that are, or may be, in an offline log directory."""
        return self._directory.offline

    def code_of(self, key: TopicIdPartition, error: BrokerError) -> ErrorCode:
        """The error code for a client whose read failed. CORRUPT_MESSAGE becomes KAFKA_STORAGE_ERROR, because it would blame the
        client for a damage of this broker's disk."""
        if error.code != ErrorCode.CORRUPT_MESSAGE:
            return error.code
        self.on_damage(key)
        return ErrorCode.KAFKA_STORAGE_ERROR

    def on_disk_error(self, error: DiskError) -> None:
        """A log directory failed: give up the roles of the partitions there, and answer the requests that wait for them with
        KAFKA_STORAGE_ERROR."""
        for log_dir in self._log_dirs.of_error(error):
            if log_dir not in self.failed_dirs:
                self._on_dir_failed(log_dir, error)

    def _on_dir_failed(self, log_dir: LogDir, error: DiskError) -> None:
        self.failed_dirs.append(log_dir)
        log_dir.fail(error)
        if not self._log_dirs.online:
            self._directory.disk_error = error
        lost = [partition for partition in self._directory.partitions.values() if partition.log.failure is log_dir.failure]
        has_leaders = any(partition.leader_state is not None for partition in lost)
        logger.error("log_dir.offline", log_dir=log_dir.path, partitions=len(lost), reason=str(error))
        self._directory.offline.update(dict.fromkeys(partition.key for partition in lost))
        self._stop(lost, ErrorCode.KAFKA_STORAGE_ERROR)
        self.on_dir_failed(log_dir)
        if self._on_log_dir_failed is not None:
            self._on_log_dir_failed(log_dir, has_leaders)

    def on_damage(self, key: TopicIdPartition) -> None:
        """Called when a read found a damaged batch, or a damaged log refused a write. A follower fetches again from the damage; a
        leader asks for another leader. Does nothing if the partition's log is not damaged."""
        partition = self._directory.partitions.get(key)
        if partition is None or partition.log.corrupt_at is None:
            return
        self._warn_of_damage(partition)
        if partition.leader_state is not None and len(partition.leader_state.isr.isr) > 1 and self._on_leader_damaged is not None:
            self.report_loss(key)
            self._on_leader_damaged()
        if partition.handled_damage != partition.log.corrupt_at:
            partition.handled_damage = partition.log.corrupt_at
            if partition.role is Role.FOLLOWER:
                self.report_loss(key)
                if partition.leader_id != NO_LEADER:
                    self._fetchers.add(partition, partition.leader_id)

    def report_loss(self, key: TopicIdPartition) -> None:
        """Report to the controller that this broker's log of the partition lacks records or has damaged ones."""
        if self._on_records_lost is not None:
            self._on_records_lost(key)

    def _warn_of_damage(self, partition: Partition) -> None:
        now = self._now()
        if now >= self._damage_quiet_until:
            self._damage_quiet_until = now + DAMAGE_WARNING_INTERVAL_S
            offset, role = partition.log.corrupt_at, partition.role.value
            logger.warning("partition.damaged_read_refused", **partition.fields, offset=offset, role=role)

    def stop_all(self, reason: ErrorCode) -> None:
        self._stop(list(self._directory.partitions.values()), reason)

    def _stop(self, partitions: list[Partition], reason: ErrorCode) -> None:
        for partition in partitions:
            del self._directory.partitions[partition.key]
            self._directory.converting.discard(partition.key)
        for partition in partitions:
            self._fetchers.remove(partition.key)
            partition.stop(reason)
            self._directory.metrics.on_partition_removed(partition.topic)
