"""How the parts of a broker are put together: what exists before the data directory is open, and what needs its logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from strandline.broker.admin import AdminHandlers
from strandline.broker.broker_channels import BrokerChannels, BrokerTarget
from strandline.broker.config import BrokerConfig
from strandline.broker.coordination.coordinator import Host
from strandline.broker.coordination.find_coordinator import FindCoordinatorHandler
from strandline.broker.disk_work import WorkThreads, run_blocking
from strandline.broker.dynamic_config import DynamicConfig
from strandline.broker.groups.coordinator import GroupCoordinator
from strandline.broker.groups.handlers import GroupHandlers
from strandline.broker.groups.lag_handler import OffsetLagHandler
from strandline.broker.groups.lag_monitor import LagMonitor
from strandline.broker.log_cleaner.runner import CleanerSettings, LogCleaner
from strandline.broker.log_manager_tasks import LogManagerTasks
from strandline.broker.partition.alter_partition import AlterPartitionManager
from strandline.broker.process.controller_channel import NodeToControllerChannel
from strandline.broker.process.directory_assignment import DirectoryAssignmentManager
from strandline.broker.process.handlers import data_handlers
from strandline.broker.process.lifecycle import BrokerLifecycle
from strandline.broker.process.lifecycle_core import Identity
from strandline.broker.process.metadata_loader import MetadataLoader
from strandline.broker.process.pause_detector import PauseDetector, pause_ms_max, refuse_unless_trusted, while_trusted
from strandline.broker.process.phases import Opened
from strandline.broker.produce.producer_ids import ProducerIds
from strandline.broker.quotas.client_quotas import BrokerQuotas
from strandline.broker.quotas.installation import QuotaInstallation
from strandline.broker.replica_manager import ReplicaConfig, ReplicaManager
from strandline.broker.replication.fetcher import FetcherSettings
from strandline.broker.replication.fetcher_manager import FetcherManager
from strandline.broker.security.guarding import guarded_handlers
from strandline.broker.security.reading import Reading
from strandline.broker.transactions.coordinator import TransactionCoordinator
from strandline.broker.transactions.handlers import TransactionHandlers
from strandline.broker.transactions.names import ProducerNameCheck
from strandline.broker.transactions.partition_adder import PartitionAdder
from strandline.controller.metadata.features import Levels
from strandline.controller.metadata.node_security.node_security import NodeSecurity
from strandline.controller.metadata.security.access import Rights
from strandline.controller.metadata.security.authorizer_config import authorizer_of
from strandline.controller.metadata.security.budgets import Window
from strandline.protocol import apis
from strandline.protocol.doors import Doors
from strandline.protocol.errors import StrandlineError
from strandline.protocol.messages.common import Listener
from strandline.protocol.messages.groups import KEY_TYPE_GROUP, KEY_TYPE_TRANSACTION
from strandline.protocol.rpc.address_limits import AddressLimits
from strandline.protocol.rpc.request_metrics import RequestMetrics
from strandline.protocol.rpc.server import Handler, ServerConnection
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.directory.log_dirs import LogDirs
from strandline.storage.files import Files

PREPARING_THREADS = 2
"""More would not help: most of the work needs Python's global interpreter lock, which the event loop needs, too."""


class ControllerLink:
    """The parts of a broker that talk to the controllers: they follow the metadata, register the broker, and send requests."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: Identity,
        on_fatal: Callable[[StrandlineError], None],
        security: NodeSecurity,
    ) -> None:
        self.security = security
        self.metadata = MetadataLoader(
            broker_id=config.node_id,
            cluster_id=config.cluster_id,
            voters=config.voters,
            on_fatal=on_fatal,
            levels=identity.levels,
            security=security.to_controllers,
        )
        security.credentials = lambda: self.metadata.image.scram_credentials
        self.authorizer = authorizer_of(config.values)
        """None if there is no authorizer: every request is allowed."""
        if self.authorizer is not None:
            self.metadata.listeners.append(self.authorizer.apply)
        self.channel = NodeToControllerChannel(broker_id=config.node_id, finder=self.metadata, security=security.to_controllers)
        self.lifecycle = BrokerLifecycle(
            identity,
            channel=self.channel,
            metadata_offset=lambda: self.metadata.image.offset,
            heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
            session_timeout_ms=config.broker_session_timeout_ms,
            registration_timeout_ms=config.initial_broker_registration_timeout_ms,
            on_fatal=on_fatal,
            no_controller_listens=lambda: self.metadata.no_controller_listens,
        )
        self.pause_detector = PauseDetector(
            limit_ms=pause_ms_max(config.broker_session_timeout_ms, config.broker_heartbeat_interval_ms),
            heard_at=lambda: self.metadata.heard_at,
        )
        self.alter_partition = AlterPartitionManager(config.node_id, self.channel, self.lifecycle)
        self.directory_assignment = DirectoryAssignmentManager(config.node_id, self.channel, self.lifecycle)

    def start(self) -> None:
        self.metadata.start()
        self.lifecycle.start()
        self.alter_partition.start()
        self.directory_assignment.start()

    async def stop(self) -> None:
        await self.directory_assignment.stop()
        await self.alter_partition.stop()
        await self.lifecycle.stop()
        await self.metadata.stop()
        self.channel.close()
        await asyncio.sleep(0)  # A login that one of these closed connections has cancelled ends in the next iteration.


def identity_of(
    config: BrokerConfig, incarnation_id: bytes, listeners: tuple[Listener, ...], log_dirs: LogDirs | None, levels: Levels
) -> Identity:
    """Build the data that the broker sends when it registers. `log_dirs`: None before they are open."""
    # The controllers check at the first listener whether the broker lives: it must be the one for traffic between nodes.
    listeners = tuple(sorted(listeners, key=lambda listener: listener.name != config.inter_broker_listener_name))
    return Identity(
        broker_id=config.node_id,
        cluster_id=config.cluster_id,
        incarnation_id=incarnation_id,
        listeners=listeners,
        rack=config.broker_rack,
        log_dirs=() if log_dirs is None else tuple(log_dir.directory_id for log_dir in log_dirs.online),
        previous_broker_epoch=-1 if log_dirs is None else log_dirs.previous_broker_epoch,
        levels=levels,
        loss=None if log_dirs is None else log_dirs.record_loss(trust_only_clean_stops=config.broker_unclean_shutdown == "any"),
        min_insync_replicas=config.values["min.insync.replicas"],
    )


def open_replicas(
    config: BrokerConfig,
    log_dirs: LogDirs,
    *,
    link: ControllerLink,
    doors: Doors,
    files: Files,
    call_soon: Callable[[Callable[[], None]], object],
    request_metrics: RequestMetrics,
    addresses: AddressLimits,
    on_log_dir_failed: Callable[[LogDir, bool], None],
) -> Opened:
    """Create the parts that need the data directories. The logs in them are not recovered yet."""
    fetchers, replicas = _replication(
        config, log_dirs, link=link, doors=doors, call_soon=call_soon, on_log_dir_failed=on_log_dir_failed
    )
    tasks = LogManagerTasks(log_dirs, files, wall_clock_ms=doors.wall_clock_ms, on_disk_error=replicas.on_disk_error)

    def requests_served() -> int:
        return request_metrics.requests + fetchers.fetches

    cleaner_threads = WorkThreads(config.log_cleaner_threads)
    cleaner = LogCleaner(
        log_dirs,
        replicas.directory,
        replicas.failures,
        _cleaner_settings(config),
        files=files.for_thread(),
        run_blocking=cleaner_threads,
        remove_later=tasks.remove_later,
        apply_retention=tasks.apply_retention,
        wall_clock_ms=doors.wall_clock_ms,
        stopwatch=doors.stopwatch,
        requests_served=requests_served,
    )
    work_threads = WorkThreads(PREPARING_THREADS)
    host = _host(replicas, doors, requests_served)
    groups, group_lag = _groups(config, replicas, host, link=link, doors=doors)
    dynamic_config = DynamicConfig(config)
    producer_ids = ProducerIds(config.node_id, link.channel, link.lifecycle)
    channels = BrokerChannels(
        config.node_id, lambda broker_id: _target_of(link.metadata, config, broker_id), link.security.to_brokers
    )
    transactions = TransactionCoordinator(config.transactions, host, channels, producer_ids)
    adder = PartitionAdder(channels, lambda: replicas.image)
    opened = Opened(
        log_dirs,
        tasks,
        fetchers,
        replicas,
        work_threads,
        cleaner,
        cleaner_threads,
        dynamic_config,
        groups,
        group_lag,
        producer_ids,
        transactions,
        channels,
        adder,
        _quotas(config, addresses, doors),
    )
    _cordon(opened, link, config)
    _listen_to_changes(opened)
    opened.dynamic_config.listen("cordoned.log.dirs", lambda new: _cordon(opened, link, new))
    return opened


def _replication(
    config: BrokerConfig,
    log_dirs: LogDirs,
    *,
    link: ControllerLink,
    doors: Doors,
    call_soon: Callable[[Callable[[], None]], object],
    on_log_dir_failed: Callable[[LogDir, bool], None],
) -> tuple[FetcherManager, ReplicaManager]:
    """Create the replicas of this broker, and the fetchers of its followers."""
    loop = asyncio.get_running_loop()
    fetchers = FetcherManager(
        broker_id=config.node_id,
        broker_epoch=lambda: link.lifecycle.broker_epoch,
        fetchers_per_leader=config.num_replica_fetchers,
        settings=_fetcher_settings(config),
        address_of=lambda broker_id: _address_of(link.metadata, config, broker_id),
        on_progress=lambda keys: replicas.complete_follower_appends(keys),
        on_disk_error=lambda error: replicas.on_disk_error(error),
        security=link.security.to_brokers,
    )
    replicas = ReplicaManager(
        broker_id=config.node_id,
        log_dirs=log_dirs,
        config=_replica_config(config),
        doors=doors,
        now=loop.time,
        call_later=loop.call_later,
        call_soon=call_soon,
        alter_partition=link.alter_partition,
        fetchers=fetchers,
        run_blocking=run_blocking,
        on_log_dir_failed=on_log_dir_failed,
        on_leader_damaged=link.lifecycle.step_down,
        on_records_lost=link.lifecycle.report_loss,
    )
    replicas.moves.assign = link.directory_assignment.submit
    link.directory_assignment.on_answered = lambda answered: replicas.moves.on_assigned(*answered)
    return fetchers, replicas


def _replica_config(config: BrokerConfig) -> ReplicaConfig:
    return ReplicaConfig(
        replica_lag_time_max_ms=config.replica_lag_time_max_ms,
        fetch_max_bytes=config.fetch_max_bytes,
        max_incremental_fetch_session_cache_slots=config.max_incremental_fetch_session_cache_slots,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        replica_alter_log_dirs_io_max_bytes_per_second=config.replica_alter_log_dirs_io_max_bytes_per_second,
        replica_selector_class=config.replica_selector_class,
        topic_defaults=config.topic_defaults,
    )


def _host(replicas: ReplicaManager, doors: Doors, requests_served: Callable[[], int]) -> Host:
    """The parts of the broker that its coordinators use. `requests_served`: the number of requests so far, from which the loading
    of a shard finds out whether the broker is busy."""
    loop = asyncio.get_running_loop()
    return Host(
        replicas.directory,
        replicas.failures,
        replicas.purgatory,
        now=loop.time,
        stopwatch=doors.stopwatch,
        wall_clock_ms=doors.wall_clock_ms,
        call_later=loop.call_later,
        run_blocking=run_blocking,
        requests_served=requests_served,
    )


def _groups(
    config: BrokerConfig, replicas: ReplicaManager, host: Host, *, link: ControllerLink, doors: Doors
) -> tuple[GroupCoordinator, LagMonitor]:
    """The coordinator of consumer groups, and the monitor of their lag."""
    groups = GroupCoordinator(config.groups, host, doors.random)
    group_lag = LagMonitor(
        groups,
        OffsetLagHandler(replicas.directory, replicas.failures, run_blocking),
        lambda: replicas.image,
        broker_id=config.node_id,
        config=config.groups,
        address_of=lambda broker_id: _address_of(link.metadata, config, broker_id),
        wall_clock_ms=doors.wall_clock_ms,
        security=link.security.to_brokers,
    )
    groups.on_offsets = group_lag.wake
    return groups, group_lag


def _quotas(config: BrokerConfig, addresses: AddressLimits, doors: Doors) -> QuotaInstallation:
    window = Window(config.values["quota.window.num"], config.values["quota.window.size.seconds"])
    return QuotaInstallation(BrokerQuotas(window), addresses, asyncio.get_running_loop().time, doors.stopwatch)


def _cordon(opened: Opened, link: ControllerLink, config: BrokerConfig) -> None:
    opened.log_dirs.cordon(config.cordoned_log_dirs)
    link.lifecycle.on_cordoned(opened.log_dirs.cordoned_ids)


def _listen_to_changes(opened: Opened) -> None:
    """Apply changes of dynamic configuration keys to the parts that use them."""
    listen = opened.dynamic_config.listen
    listen("log.cleaner.", lambda new: opened.log_cleaner.use_settings(_cleaner_settings(new)))
    listen("log.cleaner.threads", lambda new: opened.cleaner_threads.resize(new.log_cleaner_threads))
    listen("num.replica.fetchers", lambda new: opened.fetchers.resize(new.num_replica_fetchers))
    listen("replica.fetch.", lambda new: opened.fetchers.use_settings(_fetcher_settings(new)))
    listen(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        lambda new: opened.replicas.moves.use_rate(new.replica_alter_log_dirs_io_max_bytes_per_second),
    )
    listen("group.lag.", lambda new: opened.group_lag.use_config(new.groups))
    listen("producer.id.expiration.ms", lambda new: opened.replicas.expire_producers_after(new.producer_id_expiration_ms))


class BrokerHandlers(NamedTuple):
    """The callbacks of a broker's listeners."""

    by_api: dict[int, Handler]
    """Api key -> handler, for every API of a broker."""
    on_connection_lost: Callable[[ServerConnection], None]
    rights: Rights | None
    """None if there is no authorizer: every request is allowed."""


def broker_handlers(config: BrokerConfig, opened: Opened, link: ControllerLink, doors: Doors) -> BrokerHandlers:
    """Create the handlers of all requests, with the guards of the authorizer if there is one."""
    now = asyncio.get_running_loop().time
    rights = None if link.authorizer is None else Rights(link.authorizer, lambda: link.metadata.image)
    data = data_handlers(
        opened.replicas,
        now=now,
        wall_clock_ms=doors.wall_clock_ms,
        log_dirs=opened.log_dirs,
        run_blocking=run_blocking,
        run_preparation=opened.work_threads,
        may_append=refuse_unless_trusted(link.pause_detector, now),
        adder=opened.partition_adder,
        offset_transactions=opened.groups,
        reading=None if rights is None else partial(Reading, rights),
        quotas=opened.quotas,
    )
    data[apis.PRODUCE] = while_trusted(link.pause_detector, data[apis.PRODUCE])
    transactions = TransactionHandlers(opened.transactions, link.pause_detector.is_trusted)
    admin = _admin_handlers(config, opened, link, transactions)
    groups = GroupHandlers(opened.groups, link.pause_detector.is_trusted, opened.partition_adder)
    internal_topics = {KEY_TYPE_GROUP: config.groups.offsets_topic, KEY_TYPE_TRANSACTION: config.transactions.state_topic}
    finder = FindCoordinatorHandler(internal_topics, lambda: opened.replicas.image, link.channel, now)
    by_api = {**data, **admin, **groups.handlers(), **transactions.handlers(), apis.FIND_COORDINATOR: finder.handle}
    by_api[apis.DESCRIBE_OFFSET_LAG] = opened.group_lag.handler.handle
    if rights is not None:
        by_api = guarded_handlers(by_api, rights, opened.groups.static_member)
    return BrokerHandlers(by_api, groups.on_connection_lost, rights)


def _admin_handlers(
    config: BrokerConfig, opened: Opened, link: ControllerLink, transactions: TransactionHandlers
) -> dict[int, Handler]:
    names = ProducerNameCheck(opened.channels, lambda: opened.replicas.image)
    return AdminHandlers(
        config,
        link.metadata,
        link.channel,
        opened.producer_ids,
        init_transactional=transactions.init_producer_id,
        check_name=names.check,
    ).handlers()


def _address_of(metadata: MetadataLoader, config: BrokerConfig, broker_id: int) -> tuple[str, int] | None:
    broker = metadata.image.brokers.get(broker_id)
    endpoint = broker.endpoint(config.inter_broker_listener_name) if broker is not None else None
    return None if endpoint is None else (endpoint.host, endpoint.port)


def _target_of(metadata: MetadataLoader, config: BrokerConfig, broker_id: int) -> BrokerTarget | None:
    broker, address = metadata.image.brokers.get(broker_id), _address_of(metadata, config, broker_id)
    return None if broker is None or address is None else BrokerTarget(*address, broker.broker_epoch)


def _cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        threads=config.log_cleaner_threads,
        dedupe_buffer_size=config.log_cleaner_dedupe_buffer_size,
        io_buffer_load_factor=config.log_cleaner_io_buffer_load_factor,
        io_buffer_size=config.log_cleaner_io_buffer_size,
        io_max_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
        backoff_ms=config.log_cleaner_backoff_ms,
    )


def _fetcher_settings(config: BrokerConfig) -> FetcherSettings:
    return FetcherSettings(
        wait_ms_max=config.replica_fetch_wait_max_ms,
        bytes_min=config.replica_fetch_min_bytes,
        partition_bytes_max=config.replica_fetch_max_bytes,
        response_bytes_max=config.replica_fetch_response_max_bytes,
        backoff_ms=config.replica_fetch_backoff_ms,
    )
