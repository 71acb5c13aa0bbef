"""The context that all partitions of a broker share, and the callbacks by which the state of a leader reports changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from strandline.broker.metrics import BrokerMetrics
from strandline.broker.partition.alter_partition import AlterPartitionItem
from strandline.protocol.partitions import TopicIdPartition

if TYPE_CHECKING:
    from strandline.storage.log.log import Log


class AlterPartitionSubmitter(Protocol):
    """Carries ISR proposals to the controller (`broker/partition/alter_partition.py`)."""

    def submit(self, item: AlterPartitionItem) -> bool:
        """Queue a proposal for the controller. Returns False, and queues nothing, if one is already pending for this
        partition."""

    def cancel(self, key: TopicIdPartition) -> None:
        """Drop the proposal because newer metadata superseded it: its `on_result` will not be called."""


@dataclass(slots=True)
class PartitionContext:
    """The objects that all partitions of a broker use: configuration, clock, metrics, and the way to the controller."""

    broker_id: int
    now: Callable[[], float]
    call_later: Callable[[float, Callable[[], None]], object]
    """`loop.call_later`."""
    alter_partition: AlterPartitionSubmitter
    replica_lag_s_max: float
    own_broker_epoch: Callable[[], int]
    registered_epoch: Callable[[int], int]
    """Broker id -> the broker epoch in the metadata image; -1 if the broker is not registered."""
    is_active: Callable[[int], bool]
    """Broker id -> registered, not fenced and not in controlled shutdown, as far as the metadata image knows."""
    metrics: BrokerMetrics = field(default_factory=BrokerMetrics)
    save_log_starts: Callable[[], None] = lambda: None
    """Schedules a write of the log starts to the disk."""
    save_cleaner_offsets: Callable[[Log], None] = lambda log: None
    """Makes the cleaner's offsets of a log durable now. Raises `DiskError`."""


@dataclass(frozen=True, slots=True)
class LeaderEvents:
    """Callbacks of a leader's state for changes that waiting requests may depend on."""

    log_end_moved: Callable[[], object]
    high_watermark_moved: Callable[[], object]
    isr_changed: Callable[[], object]
    log_start_moved: Callable[[], object]
    low_watermark_moved: Callable[[], object]


def log_fields(topic: str, key: TopicIdPartition, leader_epoch: int, partition_epoch: int, log: Log) -> dict[str, object]:
    """The fields of every log line about a partition."""
    return {
        "topic": topic,
        "partition": key[1],
        "leader_epoch": leader_epoch,
        "partition_epoch": partition_epoch,
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "log_end_offset": log.log_end_offset,
    }
