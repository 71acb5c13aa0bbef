"""A broker process: its start and its stop, step by step. `wiring.py` puts the parts together, `phases.py` names the phases.

Start: claim the data directories, bind the ports, ask the controllers for the cluster id, format fresh directories, recover the
logs, listen, find the quorum, register, catch up with the metadata log, take the roles that it names, be unfenced, listen for
Kafka's clients. `start` returns when the controller has registered the broker; `ready` is set when it is unfenced.

Stop: hand over the leaders (controlled shutdown), answer the waiting requests, flush and close the logs, write the checkpoints,
and then the clean-shutdown marker with the broker epoch. A process that ends without these steps has crashed, and the next start
treats it as a crash.

`failure` is done when the broker cannot go on: for example because its last data directory failed, another process has its id, or
the controllers belong to another cluster. The code that runs the process waits for it and for signals.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from strandline.broker.config import BrokerConfig
from strandline.broker.log_cleaner.runner import LogCleaner
from strandline.broker.log_manager_tasks import LogManagerTasks
from strandline.broker.partition.alter_partition import AlterPartitionManager
from strandline.broker.process.cluster_id import find_cluster
from strandline.broker.process.controller_channel import NodeToControllerChannel
from strandline.broker.process.directory_assignment import wrong_assignments
from strandline.broker.process.kafka_door import server_class, set_other_addresses, use_context
from strandline.broker.process.lifecycle import BrokerLifecycle
from strandline.broker.process.lifecycle_core import Identity
from strandline.broker.process.metadata_loader import MetadataLoader
from strandline.broker.process.pause_detector import TICK_MS
from strandline.broker.process.phases import Opened, Registered, Running
from strandline.broker.process.wiring import ControllerLink, broker_handlers, identity_of, open_replicas
from strandline.broker.quotas.connections import connections_max, follow_limits, request_memory
from strandline.broker.replica_manager import ReplicaManager
from strandline.broker.replication.fetcher_manager import FetcherManager
from strandline.broker.timers import Timers
from strandline.controller.metadata.features import SUPPORTED, Levels, finalized
from strandline.controller.metadata.image import MetadataDelta
from strandline.controller.metadata.node_security.node_security import NodeSecurity, log_settings
from strandline.controller.metadata.security.authorizer import Authorizer
from strandline.protocol.doors import Doors, new_uuid
from strandline.protocol.errors import InternalError, StrandlineError, UsageError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import FinalizedFeature
from strandline.protocol.messages.common import Listener
from strandline.protocol.rpc.address_limits import AddressLimits
from strandline.protocol.rpc.end_of_iteration import EndOfIteration
from strandline.protocol.rpc.request_metrics import RequestMetrics
from strandline.protocol.rpc.server import Limits, Server
from strandline.storage.directory.claims import Claims
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.directory.log_dirs import LogDirs
from strandline.storage.files import DiskError, Files

logger = get_logger(__name__)

DRAIN_MS = 500
IDLE_QUOTAS_MS = 600_000
"""How often the broker forgets the quota budgets of clients that have sent no request for a long time."""
OFFLINE_NOTICE_S = 1.0
"""How long a broker whose last disk failed keeps running, so that its heartbeat can report the failure to the controller."""


_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that is full, and has lost nothing."""


class BrokerServer:
    """One broker. Call `start` and `stop` once each; `kill` in place of `stop` ends it as a crash would."""

    def __init__(self, config: BrokerConfig, doors: Doors, files: Files, *, levels: Levels = SUPPORTED) -> None:
        """`levels`: the levels of the metadata that this broker supports. Tests pass others to simulate another version."""
        self.config = config
        self._levels = levels
        self._doors = doors
        self._files = files
        self.port = 0
        """The first listener's port, once bound."""
        self.incarnation_id = new_uuid(doors.random)
        self.failure: asyncio.Future[StrandlineError] | None = None
        """Done when the broker cannot go on; created by `start`."""
        self.stopwatch = doors.stopwatch
        self.wall_clock_ms = doors.wall_clock_ms
        self.created_at = doors.stopwatch()
        self.request_metrics = RequestMetrics(doors.stopwatch)
        self.security = NodeSecurity(config.security, files, doors)
        """How the listeners authenticate their peers, and how this broker authenticates itself."""
        identity = self._identity(config.advertised_listeners or config.listeners)
        self.link = ControllerLink(config, identity, self._on_fatal, self.security)
        self.link.metadata.listeners += [  # after the authorizer, which applies new rules first
            self._apply_configs,
            self._apply_to_replicas,
            self._apply_to_fetchers,
            self.link.lifecycle.on_metadata,
            self._serve_kafka_once_unfenced,
        ]
        self.ready = self.link.lifecycle.ready
        """Set while the broker is unfenced."""
        self.phase: Opened | Registered | Running | None = None
        """The phase that the start has reached; None before the data directories are open."""
        self.addresses = AddressLimits()
        self.request_memory = request_memory(config)
        """The memory limit for queued requests; None if there is no limit."""
        self._servers: list[Server] = []
        self._bound: tuple[Listener, ...] = ()
        """The listeners with the ports that were bound."""
        self._waiting_servers: list[Server] = []
        """The listeners for Kafka's clients, until they serve."""
        self._serving: asyncio.Task[None] | None = None
        """The task that starts the waiting listeners; None before."""
        self._timers = Timers()
        self._stopped = False

    # -- parts and state ----------------------------------------------------------------------------------------------

    @property
    def servers(self) -> Sequence[Server]:
        """The server of each listener, once bound."""
        return self._servers

    @property
    def is_stopping(self) -> bool:
        return self._stopped

    @property
    def opened(self) -> Opened | None:
        """The parts of a broker with open data directories, in whatever phase; None before."""
        return self.phase.opened if isinstance(self.phase, (Registered, Running)) else self.phase

    @property
    def has_logs(self) -> bool:
        """Whether the data directories are open: only then are there `log_manager_tasks`, `fetchers` and `replicas`."""
        return self.opened is not None

    @property
    def log_dirs(self) -> LogDirs | None:
        return None if self.opened is None else self.opened.log_dirs

    @property
    def log_manager_tasks(self) -> LogManagerTasks:
        return self._open_data().log_manager_tasks

    @property
    def fetchers(self) -> FetcherManager:
        return self._open_data().fetchers

    @property
    def log_cleaner(self) -> LogCleaner:
        return self._open_data().log_cleaner

    @property
    def replicas(self) -> ReplicaManager:
        return self._open_data().replicas

    def _open_data(self) -> Opened:
        if self.opened is None:
            raise InternalError(f"the data directories of broker {self.config.node_id} are not open yet")
        return self.opened

    @property
    def metadata(self) -> MetadataLoader:
        return self.link.metadata

    @property
    def channel(self) -> NodeToControllerChannel:
        return self.link.channel

    @property
    def authorizer(self) -> Authorizer | None:
        """None if there is no authorizer: every request is allowed."""
        return self.link.authorizer

    @property
    def lifecycle(self) -> BrokerLifecycle:
        return self.link.lifecycle

    @property
    def alter_partition(self) -> AlterPartitionManager:
        return self.link.alter_partition

    # -- metadata -----------------------------------------------------------------------------------------------------

    def _identity(self, listeners: tuple[Listener, ...], log_dirs: LogDirs | None = None) -> Identity:
        return identity_of(self.config, self.incarnation_id, listeners, log_dirs, self._levels)

    def _apply_configs(self, delta: MetadataDelta) -> None:
        if not self.lifecycle.is_replaced(delta.image):
            self._open_data().dynamic_config.apply_delta(delta)

    def _apply_to_replicas(self, delta: MetadataDelta) -> None:
        if self.lifecycle.is_replaced(delta.image):
            return
        if delta.before.offset < 0:
            self.log_manager_tasks.clear_strays(delta.image, self.config.node_id, self.lifecycle.broker_epoch)
        self.replicas.apply_delta(delta, self.lifecycle.broker_epoch, lambda: self._apply_to_coordinators(delta))

    def _apply_to_coordinators(self, delta: MetadataDelta) -> None:
        """Called when the replicas have the roles of the delta: the coordinators find the partitions that this broker leads."""
        opened = self._open_data()
        opened.quotas.apply_delta(delta)
        opened.groups.apply_delta(delta)
        opened.transactions.apply_delta(delta)
        self.link.directory_assignment.submit(wrong_assignments(delta, opened.replicas.directory, opened.log_dirs))

    def _apply_to_fetchers(self, delta: MetadataDelta) -> None:
        for broker_id in delta.changed_brokers:
            before, after = delta.before.brokers.get(broker_id), delta.image.brokers.get(broker_id)
            if after is not None and (before is None or before.broker_epoch != after.broker_epoch):
                self.fetchers.hurry(broker_id)

    def _serve_kafka_once_unfenced(self, delta: MetadataDelta) -> None:
        """Accept Kafka's clients once this broker is unfenced in its own metadata, as a broker of Kafka does. Earlier, the
        response to Metadata would lack this broker, and librdkafka gives up brokers that are missing there."""
        if self._waiting_servers and self.lifecycle.is_unfenced_in(delta.image):
            servers, self._waiting_servers = self._waiting_servers, []
            self._serving = asyncio.get_running_loop().create_task(self._serve(servers))

    async def _serve(self, servers: Sequence[Server]) -> None:
        try:
            for server in servers:
                await server.serve()
        except UsageError as e:
            self._on_fatal(e)

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the broker. Returns when the controller has registered it; raises `StrandlineError` with one sentence if not."""
        self.failure = asyncio.get_running_loop().create_future()
        try:
            opened = self.phase = await self._open()
            await self._recover_logs(opened)
            registered = self.phase = await self._register(opened, self.failure)
        except BaseException:
            await self._abandon()
            raise
        self.phase = self._run(registered)

    async def _open(self) -> Opened:
        """Bind the ports, find the cluster id, open the data directories. If a port is in use, no controller is found, or the
        controllers belong to another cluster, nothing in the directories is changed."""
        config = self.config
        claims = Claims.take(
            self._files, config.data_dirs, node_id=config.node_id, cluster_id=config.cluster_id or None, role="broker"
        )
        try:
            end_of_iteration = await self._bind()
            cluster_id = await self._find_cluster(claims.cluster_id)
        except BaseException:
            claims.release()
            raise
        self.config = replace(config, cluster_id=cluster_id)
        self.metadata.use_cluster(cluster_id)
        return open_replicas(
            self.config,
            claims.open(cluster_id=cluster_id, random=self._doors.random),
            link=self.link,
            doors=self._doors,
            files=self._files,
            call_soon=end_of_iteration.call_before_writes,
            request_metrics=self.request_metrics,
            addresses=self.addresses,
            on_log_dir_failed=self._on_log_dir_failed,
        )

    async def _find_cluster(self, known: str | None) -> str:
        config = self.config
        timeout_ms = config.initial_broker_registration_timeout_ms
        return await find_cluster(config.node_id, config.voters, known, timeout_ms, self._levels, self.security.to_controllers)

    async def _recover_logs(self, opened: Opened) -> None:
        try:
            await opened.log_manager_tasks.recover()
        except DiskError as e:
            raise UsageError(f"data directory {self._named_dirs} cannot be used: {e}") from None

    async def _register(self, opened: Opened, failure: asyncio.Future[StrandlineError]) -> Registered:
        listeners = await self._listen(opened)
        lifecycle = self.link.lifecycle
        lifecycle.core.identity = self._identity(listeners, opened.log_dirs)
        self.link.start()
        self._start_timers(opened)
        if self.config.log_cleaner_enable:
            opened.log_cleaner.start()
        opened.log_manager_tasks.remove_deleted()
        await self._until_registered(failure)
        try:
            opened.log_dirs.on_registered()
        except DiskError as e:
            opened.replicas.on_disk_error(e)
        return Registered(opened, lifecycle.broker_epoch)

    def _run(self, registered: Registered) -> Running:
        self.metadata.allow_publication(registered.broker_epoch)
        logger.info("broker.started", broker_id=self.config.node_id, broker_epoch=registered.broker_epoch, port=self.port)
        return Running(registered)

    async def _bind(self) -> EndOfIteration:
        """Bind every port; connections are not accepted yet."""
        end_of_iteration = EndOfIteration(asyncio.get_running_loop().call_soon)
        bound, connection_ids = [], count(1)
        for listener in self.config.listeners:
            server = self._server(listener.name, end_of_iteration, connection_ids)
            self._servers.append(server)
            port = await server.bind(listener.host, listener.port)
            bound.append(Listener(listener.name, listener.host, port))
        self._bound = tuple(bound)
        self.port = bound[0].port
        return end_of_iteration

    async def _listen(self, opened: Opened) -> tuple[Listener, ...]:
        """Accept connections, but none of Kafka's clients yet; returns the listeners to advertise."""
        handlers = broker_handlers(self.config, opened, self.link, self._doors)
        log_settings(self.config.security)
        follow_limits(opened.dynamic_config, self._servers, self.addresses)
        advertised = self._advertised()
        set_other_addresses(self._servers, advertised, self.config)
        for server in self._servers:
            server.cluster_id = self.config.cluster_id
            server.handlers.update(handlers.by_api)
            server.on_connection_lost = handlers.on_connection_lost
            if self.config.speaks_kafka(server.listener_name):
                use_context(server, self.config, self.link, handlers.rights, self.wall_clock_ms)
                self._waiting_servers.append(server)
            else:
                await server.serve()
        opened.quotas.serve(self._servers)
        return advertised

    def _advertised(self) -> tuple[Listener, ...]:
        """The addresses of the listeners for clients and other nodes, with the bound port where the configured one is 0."""
        advertised = self.config.advertised_listeners or self._bound
        return tuple(Listener(a.name, a.host, a.port or b.port) for a, b in zip(advertised, self._bound, strict=True))

    def _server(self, listener_name: str, end_of_iteration: EndOfIteration, connection_ids: Iterator[int]) -> Server:
        config = self.config
        is_for_clients = len(config.listeners) == 1 or listener_name != config.inter_broker_listener_name
        server = server_class(config.speaks_kafka(listener_name))(
            {},
            role="broker",
            node_id=config.node_id,
            cluster_id=None,
            incarnation_id=self.incarnation_id,
            listener_name=listener_name,
            limits=Limits(
                max_frame_bytes=config.socket_request_max_bytes,
                max_connections=connections_max(config, listener_name),
                idle_ms_max=config.connections_max_idle_ms,
            ),
            end_of_iteration=end_of_iteration,
            metrics=self.request_metrics,
            addresses=self.addresses,
            memory=self.request_memory if is_for_clients else None,
            security=self.security.listener(listener_name),
            connection_ids=connection_ids,
        )
        server.supported_features = self._levels.features
        server.finalized_features = self._finalized_features
        return server

    def _finalized_features(self) -> tuple[int, list[FinalizedFeature]]:
        image = self.metadata.image
        return image.offset, finalized(image.feature_level)

    def _start_timers(self, opened: Opened) -> None:
        config, detector, replicas, tasks = self.config, self.link.pause_detector, opened.replicas, opened.log_manager_tasks
        every, now = self._timers.every, asyncio.get_running_loop().time
        tick_ms = max(1, min(TICK_MS, config.broker_session_timeout_ms // 8))
        self._timers.at_multiples(tick_ms, lambda: detector.tick(now()))
        every(config.replica_lag_time_max_ms / 2, replicas.maybe_shrink_isrs)
        every(config.replica_high_watermark_checkpoint_interval_ms, replicas.checkpoint_high_watermarks)
        every(config.log_flush_offset_checkpoint_interval_ms, self._guarded(tasks.checkpoint))
        every(config.log_flush_scheduler_interval_ms, self._guarded(lambda: tasks.flush_due(replicas)))
        every(config.log_retention_check_interval_ms, self._guarded(lambda: tasks.delete_old_segments(replicas)))
        every(config.log_retention_check_interval_ms, self._guarded(self._remove_strays))
        every(IDLE_QUOTAS_MS, opened.quotas.drop_idle)

    def _remove_strays(self) -> None:
        image = self.metadata.image
        if not self.lifecycle.is_replaced(image):
            self.log_manager_tasks.remove_strays(image, self.config.node_id, self.config.log_stray_retention_ms)

    def _guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """Wrap a periodic task: a disk error in it takes its log directory offline, like a disk error anywhere else."""

        def run() -> None:
            if self.replicas.disk_error is None:
                try:
                    action()
                except DiskError as e:
                    self.replicas.on_disk_error(e)

        return run

    async def _until_registered(self, failure: asyncio.Future[StrandlineError]) -> None:
        registered = asyncio.ensure_future(self.lifecycle.registered.wait())
        waited: set[asyncio.Future[Any]] = {registered, failure}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            registered.cancel()
        if failure.done():
            raise failure.result()

    async def _abandon(self) -> None:
        """The start failed: release the locks and the ports, end the tasks, and leave the data directories as they were."""
        await self._close_network()
        if self.log_dirs is not None:
            self.log_dirs.close_as_found()
        self._stopped = True

    # -- stop ---------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop the broker in order, within a bounded time. A second call does nothing."""
        opened = self.opened
        if self._stopped or opened is None:
            return
        self._stopped = True
        await self._hand_over()
        await opened.log_cleaner.stop()
        opened.fetchers.close()
        opened.groups.stop()
        opened.transactions.stop()
        opened.replicas.shutdown()
        await self._close_network()
        self._close_logs(opened)

    async def kill(self) -> None:
        """End like a killed process, as far as other nodes and the files can tell: hand over nothing, write nothing."""
        if self._stopped or self.log_dirs is None:
            return
        self._stopped = True
        await self._close_network(drain_ms=0)
        self.log_dirs.close(clean=False)

    async def _hand_over(self) -> None:
        if not (self.config.controlled_shutdown_enable and self.lifecycle.registered.is_set()):
            return
        broker_id, broker_epoch = self.config.node_id, self.lifecycle.broker_epoch
        led = sum(partition.leader_state is not None for partition in self.replicas.partitions.values())
        logger.info("broker.shutdown_requested", broker_id=broker_id, broker_epoch=broker_epoch, leaders=led)
        if await self.lifecycle.controlled_shutdown(self.config.controlled_shutdown_timeout_ms):
            logger.info("broker.shutdown_granted", broker_id=broker_id, broker_epoch=broker_epoch)
        else:
            logger.warning("broker.stopped_without_handover", broker_id=broker_id, broker_epoch=broker_epoch)

    async def _close_network(self, drain_ms: int = DRAIN_MS) -> None:
        self._timers.cancel()
        self._waiting_servers.clear()
        if self._serving is not None:
            self._serving.cancel()
        if self.opened is not None:
            self.opened.fetchers.close()
            self.opened.group_lag.stop()
            self.opened.transactions.close()
            self.opened.channels.close()
            self.opened.log_cleaner.kill()
            self.opened.replicas.abandon_changes()
            self.opened.replicas.moves.stop()
        for server in self._servers:
            await server.stop(drain_ms)
        if self.opened is not None:
            self.opened.work_threads.stop()
            self.opened.cleaner_threads.stop()
        await self.link.stop()

    def _close_logs(self, opened: Opened) -> None:
        try:
            opened.log_dirs.close(broker_epoch=self.lifecycle.broker_epoch)
        except DiskError as e:
            logger.error("broker.clean_shutdown_failed", reason=str(e))
        logger.info("broker.stopped", broker_id=self.config.node_id, broker_epoch=self.lifecycle.broker_epoch)

    # -- failures -----------------------------------------------------------------------------------------------------

    def _on_fatal(self, error: StrandlineError) -> None:
        if self.failure is not None and not self.failure.done():
            logger.error("broker.failed", reason=str(error))
            self.failure.set_result(error)

    def _on_log_dir_failed(self, log_dir: LogDir, had_leaders: bool) -> None:
        """Report the failure to the controller, which elects other leaders for the partitions of the directory. At level 0 of the
        metadata, the controller does not know the directories of partitions, so a broker that led one of them asks to be fenced
        for a moment. When the last directory has failed, the process ends."""
        if log_dir.offline is not None and log_dir.offline.errno not in _FULL:
            # The disk may have lost writes, and nothing can show which ones, now or when it returns.
            for log in log_dir.logs.values():
                self.lifecycle.report_loss((log.topic_id, log.partition))
        self.lifecycle.on_log_dir_offline(log_dir.directory_id)
        if self.replicas.disk_error is None:
            if had_leaders and not self.metadata.image.feature_level:
                self.lifecycle.step_down()
            return
        sentence = UsageError(
            f"the data directory {self._named_dirs} failed ({self.replicas.disk_error}); a broker cannot go on without one"
        )
        asyncio.get_running_loop().call_later(OFFLINE_NOTICE_S, self._on_fatal, sentence)

    @property
    def _named_dirs(self) -> str:
        return ", ".join(self.config.data_dirs)


__all__ = ["BrokerServer"]
