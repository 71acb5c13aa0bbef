"""The phases of a broker's start. Each phase holds the one before it, so that no step can be taken too early."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.broker.broker_channels import BrokerChannels
from strandline.broker.disk_work import WorkThreads
from strandline.broker.dynamic_config import DynamicConfig
from strandline.broker.groups.coordinator import GroupCoordinator
from strandline.broker.groups.lag_monitor import LagMonitor
from strandline.broker.log_cleaner.runner import LogCleaner
from strandline.broker.log_manager_tasks import LogManagerTasks
from strandline.broker.produce.producer_ids import ProducerIds
from strandline.broker.quotas.installation import QuotaInstallation
from strandline.broker.replica_manager import ReplicaManager
from strandline.broker.replication.fetcher_manager import FetcherManager
from strandline.broker.transactions.coordinator import TransactionCoordinator
from strandline.broker.transactions.partition_adder import PartitionAdder
from strandline.storage.directory.log_dirs import LogDirs


@dataclass(frozen=True, slots=True)
class Opened:
    """The ports are taken, the cluster is known, and the data directories are open. Their logs may still be in recovery."""

    log_dirs: LogDirs
    log_manager_tasks: LogManagerTasks
    fetchers: FetcherManager
    replicas: ReplicaManager
    work_threads: WorkThreads
    """The threads that prepare compressed batches."""
    log_cleaner: LogCleaner
    cleaner_threads: WorkThreads
    dynamic_config: DynamicConfig
    groups: GroupCoordinator
    group_lag: LagMonitor
    producer_ids: ProducerIds
    transactions: TransactionCoordinator
    channels: BrokerChannels
    partition_adder: PartitionAdder
    quotas: QuotaInstallation


@dataclass(frozen=True, slots=True)
class Registered:
    """The logs are recovered, the listeners serve (but not those for Kafka's clients), the periodic tasks run, and the controller
    has given a broker epoch."""

    opened: Opened
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class Running:
    """The broker applies the cluster's metadata, from its own registration on, and takes the roles that it names."""

    registered: Registered

    @property
    def opened(self) -> Opened:
        return self.registered.opened
