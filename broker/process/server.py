"""A broker process: everything wired together, started in order, stopped in order.

Start: take the data directory, take the ports, ask the controllers which cluster they are of, format a fresh directory,
recover its logs, listen, find the quorum, register, catch up with the metadata log, take the roles that it
names, be unfenced. `start` returns when the controller has taken the broker; `ready` is set
when it is unfenced.

Stop: hand leadership over (controlled shutdown), answer who waits, write the checkpoints, flush, close, and leave the
clean-shutdown marker with the broker epoch. Whatever ends the process without these steps is a crash, and the next
start treats it as one.

What can not go on is told by `failure`: the only data directory failed, another process has our id, the controllers
belong to another cluster. The owner of the process waits for it beside its signals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from strandline.broker.admin import AdminHandlers
from strandline.broker.config import BrokerConfig
from strandline.broker.log_manager_tasks import LogManagerTasks
from strandline.broker.partition.alter_partition import AlterPartitionManager
from strandline.broker.process.cluster_id import find_cluster
from strandline.broker.process.controller_channel import NodeToControllerChannel
from strandline.broker.process.lifecycle import BrokerLifecycle, Identity
from strandline.broker.process.metadata_loader import MetadataLoader
from strandline.broker.process.standstill import TICK_MS, Standstill, sleep_ms_max, while_trusted
from strandline.broker.produce.producer_ids import ProducerIds
from strandline.broker.replica_manager import ReplicaConfig, ReplicaManager
from strandline.broker.replication.fetcher import FetcherSettings
from strandline.broker.replication.fetcher_manager import FetcherManager
from strandline.broker.timers import Timers
from strandline.controller.metadata.image import MetadataDelta
from strandline.protocol import apis
from strandline.protocol.doors import Doors, new_uuid
from strandline.protocol.errors import StrandlineError, UsageError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import Listener
from strandline.protocol.rpc.end_of_iteration import EndOfIteration
from strandline.protocol.rpc.request_metrics import RequestMetrics
from strandline.protocol.rpc.server import Handler, Limits, Server
from strandline.protocol.rpc.sockets import describe_bind_error
from strandline.storage.directory.log_dir import Claim, LogDir
from strandline.storage.files import DiskError, Files

logger = get_logger(__name__)

DRAIN_MS = 500
OFFLINE_NOTICE_S = 1.0
"""How long a broker without a disk stays to see that the controller fenced it."""


class BrokerServer:
    def __init__(self, config: BrokerConfig, doors: Doors, files: Files) -> None:
        self.config = config
        self._doors = doors
        self._files = files
        self.port = 0
        """The first listener's port, once bound."""
        self.incarnation_id = new_uuid(doors.random)
        self.failure: asyncio.Future[StrandlineError]
        """Done when the broker can not go on; made by `start`."""
        self.ready: asyncio.Event
        self.stopwatch = doors.stopwatch
        self.made_at = doors.stopwatch()
        self.has_logs = False
        """The data directory is ours, and open: there are `log_manager_tasks` and `replicas`."""
        self.request_metrics = RequestMetrics(doors.stopwatch)
        self.log_dir: LogDir | None = None
        self._servers: list[Server] = []
        self._bound: tuple[Listener, ...] = ()
        """The listeners with the ports that were taken."""
        self._stopped = False
        self._build()

    @property
    def servers(self) -> Sequence[Server]:
        """One for each listener, once bound."""
        return self._servers

    @property
    def is_stopping(self) -> bool:
        return self._stopped

    # -- wiring -------------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        config = self.config
        self.metadata = MetadataLoader(
            broker_id=config.node_id, cluster_id=config.cluster_id, voters=config.voters, on_fatal=self._on_fatal
        )
        self.channel = NodeToControllerChannel(broker_id=config.node_id, finder=self.metadata)
        self.lifecycle = BrokerLifecycle(
            self._identity(config.advertised_listeners or config.listeners),
            channel=self.channel,
            metadata_offset=lambda: self.metadata.image.offset,
            heartbeat_interval_ms=config["broker.heartbeat.interval.ms"],
            session_timeout_ms=config["broker.session.timeout.ms"],
            registration_timeout_ms=config["initial.broker.registration.timeout.ms"],
            on_fatal=self._on_fatal,
            nobody_listens=lambda: self.metadata.nobody_listens,
        )
        self.ready = self.lifecycle.ready
        sleep_ms = sleep_ms_max(config["broker.session.timeout.ms"], config["broker.heartbeat.interval.ms"])
        self.standstill = Standstill(limit_ms=sleep_ms, heard_at=lambda: self.metadata.heard_at)
        self.alter_partition = AlterPartitionManager(config.node_id, self.channel, self.lifecycle)
        self.fetchers = FetcherManager(
            broker_id=config.node_id,
            broker_epoch=lambda: self.lifecycle.broker_epoch,
            fetchers_per_leader=config["num.replica.fetchers"],
            settings=_fetcher_settings(config),
            address_of=self._address_of,
            on_progress=lambda keys: self.replicas.complete_follower_appends(keys),
            on_disk_error=lambda error: self.replicas.on_disk_error(error),
        )
        self.metadata.listeners += [self._apply_to_replicas, self._apply_to_fetchers, self.lifecycle.on_metadata]

    def _identity(self, listeners: tuple[Listener, ...]) -> Identity:
        config, log_dir = self.config, self.log_dir
        # The controllers knock at the first one: it must be the one that works between nodes.
        listeners = tuple(sorted(listeners, key=lambda listener: listener.name != config.inter_broker_listener_name))
        return Identity(
            broker_id=config.node_id,
            cluster_id=config.cluster_id,
            incarnation_id=self.incarnation_id,
            listeners=listeners,
            rack=config["broker.rack"],
            log_dirs=() if log_dir is None else (log_dir.directory_id,),
            previous_broker_epoch=-1 if log_dir is None else log_dir.previous_broker_epoch,
        )

    def _address_of(self, broker_id: int) -> tuple[str, int] | None:
        broker = self.metadata.image.brokers.get(broker_id)
        endpoint = broker.endpoint(self.config.inter_broker_listener_name) if broker is not None else None
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def _apply_to_replicas(self, delta: MetadataDelta) -> None:
        if self.lifecycle.is_replaced(delta.image):
            return
        if delta.before.offset < 0:
            try:
                self.log_manager_tasks.clear_strays(delta.image, self.config.node_id, self.lifecycle.broker_epoch)
            except DiskError as e:
                self.replicas.on_disk_error(e)
        self.replicas.apply_delta(delta, self.lifecycle.broker_epoch)

    def _apply_to_fetchers(self, delta: MetadataDelta) -> None:
        for broker_id in delta.changed_brokers:
            before, after = delta.before.brokers.get(broker_id), delta.image.brokers.get(broker_id)
            if after is not None and (before is None or before.broker_epoch != after.broker_epoch):
                self.fetchers.hurry(broker_id)

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when the controller has taken the broker; raises `StrandlineError` with one clear sentence."""
        self.failure = asyncio.get_running_loop().create_future()
        try:
            await self._open()
            await self._recover_logs()
            listeners = await self._listen()
            self.lifecycle.core.identity = self._identity(listeners)
            self.metadata.start()
            self.lifecycle.start()
            self.alter_partition.start()
            self._start_timers()
            self.log_manager_tasks.remove_leavings()
            await self._until_registered()
        except BaseException:
            await self._abandon()
            raise
        self.metadata.allow_publication(self.lifecycle.broker_epoch)
        logger.info("broker.started", broker_id=self.config.node_id, broker_epoch=self.lifecycle.broker_epoch, port=self.port)

    async def _open(self) -> None:
        """The data directory, which is left as it was, byte for byte, when a port is taken, when no controller is found, and
        when the controllers are of another cluster."""
        config = self.config
        claim = Claim.take(
            self._files, config.data_dir, node_id=config.node_id, cluster_id=config.cluster_id or None, role="broker"
        )
        try:
            await self._bind()
            cluster_id = await self._find_cluster(claim.cluster_id)
        except BaseException:
            claim.release()
            raise
        self.config = replace(config, cluster_id=cluster_id)
        self.metadata.use_cluster(cluster_id)
        self._open_log_dir(claim)

    async def _find_cluster(self, known: str | None) -> str:
        config = self.config
        timeout_ms = config["initial.broker.registration.timeout.ms"]
        return await find_cluster(config.node_id, config.voters, known, timeout_ms)

    def _open_log_dir(self, claim: Claim) -> None:
        config, loop = self.config, asyncio.get_running_loop()
        self.log_dir = LogDir.open_claimed(claim, cluster_id=config.cluster_id, random=self._doors.random)
        self.log_manager_tasks = LogManagerTasks(
            self.log_dir,
            self._files,
            wall_clock_ms=self._doors.wall_clock_ms,
            on_disk_error=lambda error: self.replicas.on_disk_error(error),
        )
        self.replicas = ReplicaManager(
            broker_id=config.node_id,
            log_dir=self.log_dir,
            config=ReplicaConfig(
                replica_lag_time_max_ms=config["replica.lag.time.max.ms"],
                fetch_max_bytes=config["fetch.max.bytes"],
                max_incremental_fetch_session_cache_slots=config["max.incremental.fetch.session.cache.slots"],
                producer_id_expiration_ms=config["producer.id.expiration.ms"],
                topic_defaults=config.topic_defaults,
            ),
            doors=self._doors,
            now=loop.time,
            call_later=loop.call_later,
            call_soon=self._end_of_iteration.call_before_writes,
            alter_partition=self.alter_partition,
            fetchers=self.fetchers,
            run_blocking=_run_blocking,
            on_log_dir_failed=self._on_log_dir_failed,
            on_leader_damaged=self.lifecycle.step_down,
        )
        self.has_logs = True

    async def _recover_logs(self) -> None:
        try:
            await self.log_manager_tasks.recover()
        except DiskError as e:
            raise UsageError(f"data directory {self.config.data_dir} cannot be used: {e}") from None

    async def _bind(self) -> None:
        """Take every port; nobody is let in yet."""
        self._end_of_iteration = EndOfIteration(asyncio.get_running_loop().call_soon)
        bound = []
        for listener in self.config.listeners:
            server = self._server(listener.name)
            self._servers.append(server)
            try:
                port = await server.bind(listener.host, listener.port)
            except OSError as e:
                raise UsageError(describe_bind_error(listener.host, listener.port, e)) from None
            bound.append(Listener(listener.name, listener.host, port))
        self._bound = tuple(bound)
        self.port = bound[0].port

    async def _listen(self) -> tuple[Listener, ...]:
        """Let others in; returns the addresses to advertise."""
        handlers = self._handlers()
        for server in self._servers:
            server.cluster_id = self.config.cluster_id
            server.handlers.update(handlers)
            await server.serve()
        advertised = self.config.advertised_listeners or self._bound
        return tuple(Listener(a.name, a.host, a.port or b.port) for a, b in zip(advertised, self._bound, strict=True))

    def _server(self, listener_name: str) -> Server:
        config = self.config
        return Server(
            {},
            role="broker",
            node_id=config.node_id,
            cluster_id=None,
            incarnation_id=self.incarnation_id,
            listener_name=listener_name,
            limits=Limits(
                max_frame_bytes=config["socket.request.max.bytes"],
                max_connections=config["max.connections"],
                idle_ms_max=config["connections.max.idle.ms"],
            ),
            end_of_iteration=self._end_of_iteration,
            metrics=self.request_metrics,
        )

    def _handlers(self) -> dict[int, Handler]:
        producer_ids = ProducerIds(self.config.node_id, self.channel, self.lifecycle)
        data: dict[int, Handler] = {
            apis.PRODUCE: while_trusted(self.standstill, self.replicas.handle_produce),
            apis.FETCH: self.replicas.handle_fetch,
            apis.LIST_OFFSETS: self.replicas.handle_list_offsets,
            apis.OFFSET_FOR_LEADER_EPOCH: self.replicas.handle_offset_for_leader_epoch,
            apis.DESCRIBE_PRODUCERS: self.replicas.handle_describe_producers,
            apis.DESCRIBE_LOG_DIRS: self.replicas.handle_describe_log_dirs,
        }
        return data | AdminHandlers(self.config, self.metadata, self.channel, producer_ids).handlers()

    def _start_timers(self) -> None:
        config, replicas, log_manager_tasks = self.config, self.replicas, self.log_manager_tasks
        self._timers = Timers()
        every, now = self._timers.every, asyncio.get_running_loop().time
        every(min(TICK_MS, config["broker.session.timeout.ms"] / 8), lambda: self.standstill.tick(now()))
        every(config["replica.lag.time.max.ms"] / 2, replicas.maybe_shrink_isrs)
        every(config["replica.high.watermark.checkpoint.interval.ms"], replicas.checkpoint_high_watermarks)
        every(config["log.flush.offset.checkpoint.interval.ms"], self._guarded(log_manager_tasks.checkpoint))
        every(config["log.flush.scheduler.interval.ms"], self._guarded(lambda: log_manager_tasks.flush_due(replicas)))
        every(config["log.retention.check.interval.ms"], self._guarded(lambda: log_manager_tasks.delete_old_segments(replicas)))
        every(config["log.retention.check.interval.ms"], self._guarded(self._remove_strays))

    def _remove_strays(self) -> None:
        image = self.metadata.image
        if not self.lifecycle.is_replaced(image):
            self.log_manager_tasks.remove_strays(image, self.config.node_id, self.config["log.stray.retention.ms"])

    def _guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """A disk error in the background takes the log directory offline like any other."""

        def run() -> None:
            if self.replicas.disk_error is None:
                try:
                    action()
                except DiskError as e:
                    self.replicas.on_disk_error(e)

        return run

    async def _until_registered(self) -> None:
        registered = asyncio.ensure_future(self.lifecycle.registered.wait())
        waited: set[asyncio.Future[Any]] = {registered, self.failure}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            registered.cancel()
        if self.failure.done():
            raise self.failure.result()

    async def _abandon(self) -> None:
        """The start failed: leave no lock, no port and no task behind, and the data directory as it was."""
        await self._stop_talking()
        if self.log_dir is not None:
            self.log_dir.close(clean=self.log_dir.was_clean, broker_epoch=self.log_dir.previous_broker_epoch)
        self._stopped = True

    # -- stop ---------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """In order; bounded; safe to call twice."""
        if self._stopped or self.log_dir is None:
            return
        self._stopped = True
        await self._leave()
        self.fetchers.close()
        self.replicas.shutdown()
        await self._stop_talking()
        self._close_logs()

    async def kill(self) -> None:
        """End as a killed process does, as far as others and the files can tell: nothing handed over, nothing written."""
        if self._stopped or self.log_dir is None:
            return
        self._stopped = True
        await self._stop_talking(drain_ms=0)
        self.log_dir.close(clean=False)

    async def _leave(self) -> None:
        if not (self.config["controlled.shutdown.enable"] and self.lifecycle.registered.is_set()):
            return
        broker_id, broker_epoch = self.config.node_id, self.lifecycle.broker_epoch
        led = sum(partition.leader_state is not None for partition in self.replicas.partitions.values())
        logger.info("broker.shutdown_requested", broker_id=broker_id, broker_epoch=broker_epoch, leaders=led)
        if await self.lifecycle.leave(self.config["controlled.shutdown.timeout.ms"]):
            logger.info("broker.shutdown_granted", broker_id=broker_id, broker_epoch=broker_epoch)
        else:
            logger.warning("broker.stopped_without_handover", broker_id=broker_id, broker_epoch=broker_epoch)

    async def _stop_talking(self, drain_ms: int = DRAIN_MS) -> None:
        if hasattr(self, "_timers"):
            self._timers.cancel()
        self.fetchers.close()
        for server in self._servers:
            await server.stop(drain_ms)
        await self.alter_partition.stop()
        await self.lifecycle.stop()
        await self.metadata.stop()
        self.channel.close()

    def _close_logs(self) -> None:
        assert self.log_dir is not None
        try:
            self.log_dir.close(clean=self.replicas.disk_error is None, broker_epoch=self.lifecycle.broker_epoch)
        except DiskError as e:
            logger.error("broker.clean_shutdown_failed", reason=str(e))
        logger.info("broker.stopped", broker_id=self.config.node_id, broker_epoch=self.lifecycle.broker_epoch)

    # -- failures -----------------------------------------------------------------------------------------------------

    def _on_fatal(self, error: StrandlineError) -> None:
        if not self.failure.done():
            logger.error("broker.failed", reason=str(error))
            self.failure.set_result(error)

    def _on_log_dir_failed(self, error: DiskError) -> None:
        """The controller hears of it at once and moves the leaders; then the process has nothing left to do."""
        assert self.log_dir is not None
        self.lifecycle.on_log_dir_offline(self.log_dir.directory_id)
        sentence = UsageError(f"the data directory {self.config.data_dir} failed ({error}); a broker without one can not go on")
        asyncio.get_running_loop().call_later(OFFLINE_NOTICE_S, self._on_fatal, sentence)


def _fetcher_settings(config: BrokerConfig) -> FetcherSettings:
    return FetcherSettings(
        wait_ms_max=config["replica.fetch.wait.max.ms"],
        bytes_min=config["replica.fetch.min.bytes"],
        partition_bytes_max=config["replica.fetch.max.bytes"],
        response_bytes_max=config["replica.fetch.response.max.bytes"],
        backoff_ms=config["replica.fetch.backoff.ms"],
    )


def _run_blocking(work: Callable[[], None], then: Callable[[], None]) -> None:
    """The first on a thread, then the second on the loop; whether the first failed or not."""

    def on_done(done: asyncio.Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.warning("broker.blocking_work_failed", reason=str(error))
        then()

    asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(on_done)


__all__ = ["BrokerServer"]
