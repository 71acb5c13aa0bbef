"""What a broker does when its disk fails or a batch on it is damaged.

- **The log directory fails** (any `DiskError`): the broker leads and follows nothing any more, and answers what waits. There is
  one directory, so the process ends soon afterwards.
- **A batch is damaged**: a follower fetches its log again from there. A leader refuses the reads, and asks for another leader if
  the ISR has another member.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.partition import Partition, Role
from strandline.broker.replication.fetcher_port import FetcherPort
from strandline.controller.metadata.image import NO_LEADER
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.files import DiskError

logger = get_logger(__name__)

DAMAGE_WARNING_INTERVAL_S = 60.0
"""Between two warnings about refused reads, however many partitions are damaged: each has had a line of its own before."""


class LogFailures:
    """The policy for failed logs. The handlers, the fetchers and the periodic tasks report what they met."""

    def __init__(
        self,
        directory: PartitionDirectory,
        fetchers: FetcherPort,
        log_dir: LogDir,
        *,
        now: Callable[[], float],
        on_log_dir_failed: Callable[[DiskError], None] | None,
        on_leader_damaged: Callable[[], None] | None,
    ) -> None:
        self._directory = directory
        self._fetchers = fetchers
        self._log_dir = log_dir
        self._now = now
        self._on_log_dir_failed = on_log_dir_failed
        self._on_leader_damaged = on_leader_damaged
        self._damage_quiet_until = 0.0
        self.offline_replicas = 0
        """How many partitions were here when the log directory failed."""

    @property
    def broker_id(self) -> int:
        return self._directory.broker_id

    @property
    def disk_error(self) -> DiskError | None:
        return self._directory.disk_error

    def code_of(self, key: TopicIdPartition, error: BrokerError) -> ErrorCode:
        """The error code for a client whose read failed. CORRUPT_MESSAGE would blame what the client sent; it is this broker's
        disk that is damaged."""
        if error.code != ErrorCode.CORRUPT_MESSAGE:
            return error.code
        self.on_damage(key)
        return ErrorCode.KAFKA_STORAGE_ERROR

    def on_disk_error(self, error: DiskError) -> None:
        """The log directory failed: give up every role, and answer all waiting requests with KAFKA_STORAGE_ERROR."""
        if self._directory.disk_error is not None:
            return
        self._directory.disk_error = error
        self.offline_replicas = len(self._directory.partitions)
        self._log_dir.fail(error)
        logger.error("log_dir.offline", log_dir=self._log_dir.path, partitions=len(self._directory.partitions), reason=str(error))
        self.stop_all(ErrorCode.KAFKA_STORAGE_ERROR)
        if self._on_log_dir_failed is not None:
            self._on_log_dir_failed(error)

    def on_damage(self, key: TopicIdPartition) -> None:
        """A read met a damaged batch, or a damaged log refused a write. A follower fetches again from the damage; a leader asks
        for another leader. Nothing happens if the partition's log is not damaged."""
        partition = self._directory.partitions.get(key)
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
        now = self._now()
        if now >= self._damage_quiet_until:
            self._damage_quiet_until = now + DAMAGE_WARNING_INTERVAL_S
            offset, role = partition.log.corrupt_at, partition.role.value
            logger.warning("partition.damaged_read_refused", **partition.fields, offset=offset, role=role)

    def stop_all(self, reason: ErrorCode) -> None:
        partitions = list(self._directory.partitions.values())
        self._directory.partitions.clear()
        self._directory.converting.clear()
        for partition in partitions:
            self._fetchers.remove(partition.key)
            partition.stop(reason)
            self._directory.metrics.on_partition_left(partition.topic)
