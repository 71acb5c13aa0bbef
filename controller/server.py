"""A controller process: the quorum, the controller on top of it, and the listeners for both and for the brokers.

At the start it locks the data directory, checks that the directory belongs to this node and that this version supports the level
of the metadata in it, binds the ports, agrees on the cluster's id (`cluster_id.py`) if neither the directory nor the
configuration has one, formats an empty directory, opens the quorum, and serves requests. During the agreement the ports are open
already: the handshake answers that there is no id yet, and every other request is rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any

from strandline.controller.cluster_id import Agreed, agree_on_cluster_id, log_agreed
from strandline.controller.config import ControllerConfig
from strandline.controller.controller import Controller
from strandline.controller.dynamic_config import current_values
from strandline.controller.feature_upgrade import FeatureUpgrades
from strandline.controller.handlers import ControllerApis
from strandline.controller.leader_balancer import BalanceSettings, LeaderBalancer
from strandline.controller.liveness import BrokerLiveness, probe_broker
from strandline.controller.metadata.features import SUPPORTED, Levels, check_level, finalized
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.node_security.node_security import NodeSecurity, log_settings
from strandline.controller.metadata.security.authorizer_config import authorizer_of
from strandline.controller.metadata.security.budgets import StrictWindow
from strandline.controller.name_expiry import NameExpiry
from strandline.controller.phases import Opened, Running
from strandline.controller.raft.listener import QuorumWriter
from strandline.controller.raft.quorum import Quorum
from strandline.controller.raft.recorded_level import recorded_level
from strandline.controller.security.authorization import authorized
from strandline.controller.security.decisions import security_decisions
from strandline.controller.security.mutation_quota import MutationQuota
from strandline.controller.topic_control import TopicControl, TopicDefaults
from strandline.controller.unclean_recoverer import UncleanRecoverer, UncleanSettings, ask_broker
from strandline.protocol import apis
from strandline.protocol.doors import Doors, new_uuid
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError, StrandlineError, UsageError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import UNCLEAN_ELECTION, FinalizedFeature
from strandline.protocol.rpc.request_metrics import RequestMetrics
from strandline.protocol.rpc.server import Limits, Server, ServerConnection, ServerRequest
from strandline.storage.directory.log_dir import Claim, LogDir
from strandline.storage.files import DiskError, Files

logger = get_logger(__name__)

DRAIN_MS = 200
"""How long `stop` waits for requests in progress."""


class ControllerServer:
    """One controller: its metadata log, its voter of the quorum, and its listeners."""

    def __init__(self, config: ControllerConfig, doors: Doors, files: Files, *, levels: Levels = SUPPORTED) -> None:
        """`levels`: the levels of the metadata that this controller supports; tests pass others to play another version."""
        self.config = config
        self._levels = levels
        self.port = config.port
        """The port of the quorum's listener: the configured one, and after `start` the one that was bound."""
        self.ready = asyncio.Event()
        """Set when this node first knows an active controller."""
        self.failure: asyncio.Future[StrandlineError] | None = None
        """Set by `start`; completed with the error when this node cannot continue."""
        self.incarnation_id = new_uuid(doors.random)
        self.stopwatch = doors.stopwatch
        self.created_at = doors.stopwatch()
        self.opened: Opened | None = None
        """None before the metadata log is open."""
        self.running: Running | None = None
        """The phase that follows; None before the quorum's node has taken up a role."""
        self.security = NodeSecurity(config.security, files, doors)
        """How the listeners authenticate their peers, and how this controller authenticates itself to other nodes."""
        self.servers: list[Server] = []
        """One for each listener, once they listen."""
        self.request_metrics = RequestMetrics(doors.stopwatch)
        self.authorizer = authorizer_of(config.values)
        """None if no authorizer is configured: every client may do everything."""
        self.mutation_quota: MutationQuota | None = None
        """None before the handlers exist."""
        self._doors = doors
        self._files = files

    # -- state that other modules read --------------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        return bool(self.servers)

    @property
    def has_quorum(self) -> bool:
        """Whether the quorum's node has taken up a role."""
        return self.running is not None

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id; None until it is known and on the disk (during `start`)."""
        return None if self.opened is None else self.opened.cluster_id

    @property
    def controller(self) -> Controller:
        """The controller's state. Raises InternalError before the metadata log is open."""
        if self.opened is None:
            raise self._not_open()
        return self.opened.controller

    @property
    def quorum(self) -> Quorum:
        """This node's voter. Raises InternalError before the metadata log is open."""
        if self.opened is None:
            raise self._not_open()
        return self.opened.quorum

    def _not_open(self) -> InternalError:
        return InternalError(f"the metadata log of controller {self.config.node_id} is not open yet")

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the quorum and listen. Raises UsageError if the data directory or the address cannot be used, or if this version
        does not support the level of the metadata."""
        config = self.config
        claim = Claim.take(self._files, config.data_dir, node_id=config.node_id, cluster_id=config.cluster_id, role="controller")
        try:
            check_level(recorded_level(self._files, config.data_dir), self._levels)
            await self._start(claim)
        except DiskError as e:
            claim.release()
            raise UsageError(f"data directory {config.data_dir} cannot be used: {e}") from e
        except BaseException:
            claim.release()
            raise

    async def _start(self, claim: Claim) -> None:
        servers: list[Server] = []
        try:
            await self._bind(servers)
            opened = self.opened = await self._open(claim, servers)
            opened.quorum.start()
            self.running = Running(opened)
        except BaseException:
            for server in servers:
                await server.stop()
            raise
        handlers = self._handlers(opened)
        for server in servers:
            server.handlers.update(handlers)
        if not self.listening:
            await self._listen(servers)

    async def _bind(self, servers: list[Server]) -> None:
        """Bind every listener, and add its server to `servers`, so that the caller can stop the bound ones after an error. The
        first is that of the quorum."""
        connection_ids = count(1)
        for listener in self.config.listeners:
            server = self._make_server(listener.name, connection_ids)
            port = await server.bind(listener.host, listener.port)
            own = self.config.security.overrides.get(listener.name.lower(), {})
            server.limit_creation_rate(own.get("max.connection.creation.rate"))
            servers.append(server)
            if len(servers) == 1:
                self.port = port

    async def _listen(self, servers: list[Server]) -> None:
        log_settings(self.config.security)
        for server in servers:
            await server.serve()
        self.servers = servers

    async def _open(self, claim: Claim, servers: list[Server]) -> Opened:
        """Open the data directory and the metadata log in it, and format the directory if it is empty. By the end the cluster's
        id is on the disk, and is sent in the handshake."""
        if claim.cluster_id is None:
            agreed = await self._agree(servers)
            cluster_id = agreed.cluster_id
            log_dir = self._open_log_dir(claim, cluster_id)
            log_agreed(self.config.node_id, self.config.voters, agreed)
        else:
            cluster_id = claim.cluster_id
            log_dir = self._open_log_dir(claim, cluster_id)
        for server in servers:
            server.cluster_id = cluster_id
            server.finalized_features = self._finalized_features
        return self._open_quorum(tuple(servers), cluster_id, log_dir)

    async def _agree(self, servers: list[Server]) -> Agreed:
        """Listen, and agree with the other controllers on a cluster id. In no other case does a controller listen before it knows
        its cluster."""
        await self._listen(servers)
        config = self.config
        timeout_ms = config.cluster_id_agreement_timeout_ms
        to_others = self.security.to_controllers
        return await agree_on_cluster_id(config.node_id, config.voters, self._doors.random, timeout_ms, to_others)

    def _open_log_dir(self, claim: Claim, cluster_id: str) -> LogDir:
        return LogDir.open_claimed(claim, cluster_id=cluster_id, random=self._doors.random)

    def _open_quorum(self, servers: tuple[Server, ...], cluster_id: str, log_dir: LogDir) -> Opened:
        config, loop = self.config, asyncio.get_running_loop()
        self.failure = loop.create_future()
        session_timeout_ms = config.broker_session_timeout_ms
        controller = _ReadyController(
            node_id=config.node_id,
            session_timeout_ms=session_timeout_ms,
            now=loop.time,
            levels=self._levels,
            ready=self.ready,
        )
        liveness = BrokerLiveness(
            controller,
            grace_ms=config.broker_connection_loss_grace_ms,
            session_timeout_ms=session_timeout_ms,
            probe=partial(probe_broker, to_listener=self.security.to_listener),
        )
        name_expiry = NameExpiry(
            controller, wall_clock_ms=self._doors.wall_clock_ms, expiration_ms=config.producer_name_expiration_ms
        )
        leader_balancer = LeaderBalancer(controller, lambda: balance_settings(controller.image, config))
        controller.on_configs_changed.append(leader_balancer.on_configs_changed)
        unclean_recoverer = UncleanRecoverer(
            controller,
            lambda: unclean_settings(controller.image, config),
            wall_clock_ms=self._doors.wall_clock_ms,
            ask=partial(ask_broker, to_listener=self.security.to_listener),
        )
        controller.timers += [liveness, name_expiry, leader_balancer, unclean_recoverer]
        quorum = Quorum.open(
            node_id=config.node_id,
            cluster_id=cluster_id,
            voters=config.voters,
            data_dir=config.data_dir,
            files=self._files,
            doors=self._doors,
            config=config.raft,
            listener=controller,
            on_fatal=self._on_fatal,
            security=self.security.to_controllers,
        )
        self.security.credentials = lambda: controller.committed.scram_credentials
        return Opened(servers, cluster_id, log_dir, controller, quorum, liveness, name_expiry, leader_balancer, unclean_recoverer)

    # -- stop ---------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Resign first, so that another controller is active before this one stops."""
        opened = self.opened
        if opened is None:
            return
        opened.name_expiry.on_inactive()
        opened.leader_balancer.on_inactive()
        await opened.unclean_recoverer.stop()
        await opened.liveness.stop()
        await opened.quorum.stop()
        for server in opened.servers:
            await server.stop(DRAIN_MS)
        opened.log_dir.close(clean=False)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _finalized_features(self) -> tuple[int, list[FinalizedFeature]]:
        image = MetadataImage.EMPTY if self.opened is None else self.opened.controller.committed
        return image.offset, finalized(image.feature_level)

    def _make_server(self, listener_name: str, connection_ids: Iterator[int]) -> Server:
        config = self.config
        own = config.security.overrides.get(listener_name.lower(), {})
        server = Server(
            {
                api.key: self._refuse_early
                for api in apis.APIS.values()
                if "controller" in api.served_by and api.key != apis.API_VERSIONS
            },
            role="controller",
            node_id=config.node_id,
            cluster_id=None,
            incarnation_id=self.incarnation_id,
            listener_name=listener_name,
            limits=Limits(
                max_frame_bytes=config.socket_request_max_bytes,
                max_connections=own.get("max.connections", config.max_connections),
                idle_ms_max=config.connections_max_idle_ms,
            ),
            on_connection_lost=self._on_connection_lost,
            metrics=self.request_metrics,
            security=self.security.listener(listener_name),
            connection_ids=connection_ids,
        )
        server.supported_features = self._levels.features
        return server

    def _refuse_early(self, request: ServerRequest) -> None:
        """Refuse a request that arrives during the start. The error is retriable: the client tries another controller, or this
        one later."""
        raise BrokerError(ErrorCode.NOT_CONTROLLER, f"controller {self.config.node_id} is starting")

    def _handlers(self, opened: Opened) -> Mapping[int, Any]:
        controller, liveness = opened.controller, opened.liveness
        defaults = TopicDefaults(self.config.num_partitions, self.config.default_replication_factor)
        topics = TopicControl(self._doors.random, defaults)
        loop = asyncio.get_running_loop()
        security = security_decisions(
            controller, self._doors.random, has_authorizer=bool(self.config.values.get("authorizer.class.name"))
        )
        values = self.config.values
        window = StrictWindow(values["controller.quota.window.num"], values["controller.quota.window.size.seconds"])
        wall_clock_ms = self._doors.wall_clock_ms
        apis_ = ControllerApis(controller, topics, opened.cluster_id, wall_clock_ms, loop.call_soon, security, window, values)
        self.mutation_quota = apis_.mutations
        ours: dict[int, Callable[[Any], Any]] = dict(apis_.handlers())
        decide_heartbeat, decide_registration = ours[apis.BROKER_HEARTBEAT], ours[apis.BROKER_REGISTRATION]

        def handle_heartbeat(request: ServerRequest) -> None:
            decide_heartbeat(request)
            controller.metrics.on_heard(request.body.broker_id)
            liveness.on_heartbeat(request.connection, request.body.broker_id, request.body.broker_epoch)

        def handle_registration(request: ServerRequest) -> None:
            decide_registration(request)
            broker = controller.image.brokers.get(request.body.broker_id)
            if broker is not None and broker.incarnation_id == request.body.incarnation_id:
                # A registration counts like a heartbeat, so a process that dies before its first one is detected like any other.
                liveness.on_heartbeat(request.connection, broker.broker_id, broker.broker_epoch)
            else:
                liveness.on_duplicate(request.body.broker_id)

        elect_preferred = ours[apis.ELECT_LEADERS]

        async def handle_elections(request: ServerRequest) -> None:
            if request.body.election_type == UNCLEAN_ELECTION:
                await opened.unclean_recoverer.handle(request)
            else:
                elect_preferred(request)

        ours[apis.ELECT_LEADERS] = handle_elections
        ours[apis.BROKER_HEARTBEAT] = handle_heartbeat
        ours[apis.BROKER_REGISTRATION] = handle_registration
        ours[apis.UPDATE_FEATURES] = FeatureUpgrades(
            controller, self.config.voters, opened.cluster_id, self.security.to_controllers, self.security.to_listener
        ).handle
        return authorized(
            {**opened.quorum.handlers, **ours}, self.authorizer, lambda: controller.committed, opened.servers[0].handlers.get
        )

    def _on_connection_lost(self, connection: ServerConnection) -> None:
        opened = self.opened
        if opened is None:
            return
        if connection.tag is not None:
            assert isinstance(connection.tag, int)
            opened.controller.metrics.on_connection_lost(connection.tag, opened.controller.now())
        opened.liveness.on_connection_lost(connection)

    # -- failures -----------------------------------------------------------------------------------------------------

    def _on_fatal(self, error: BaseException) -> None:
        """The quorum's node has failed: reject every request that waits for a commit."""
        active = self.controller.active
        if active is not None:
            self.controller.on_resign(active.epoch)
        if self.failure is not None and not self.failure.done():
            if isinstance(error, DiskError):
                text = f"the data directory {self.config.data_dir} failed ({error}); the controller cannot continue without it"
                error = UsageError(text)
            elif not isinstance(error, StrandlineError):
                error = InternalError(f"the metadata quorum's node stopped: {error!r}")
            self.failure.set_result(error)


class _ReadyController(Controller):
    """Sets `ready` when a leader is first known."""

    def __init__(
        self, *, node_id: int, session_timeout_ms: int, now: Callable[[], float], levels: Levels, ready: asyncio.Event
    ) -> None:
        super().__init__(node_id=node_id, session_timeout_ms=session_timeout_ms, now=now, levels=levels)
        self._ready = ready

    def on_leader(self, epoch: int, writer: QuorumWriter) -> None:
        super().on_leader(epoch, writer)
        self._ready.set()

    def on_leader_changed(self, leader_id: int | None, epoch: int) -> None:
        super().on_leader_changed(leader_id, epoch)
        if leader_id is not None and leader_id >= 0 and leader_id != self.node_id:
            self._ready.set()


def balance_settings(image: MetadataImage, config: ControllerConfig) -> BalanceSettings:
    """The present settings by which leaders return to their preferred replicas."""
    values = current_values(image, config.values)
    return BalanceSettings(
        values["auto.leader.rebalance.enable"],
        values["leader.imbalance.check.interval.seconds"],
        values["leader.imbalance.per.broker.percentage"],
    )


def unclean_settings(image: MetadataImage, config: ControllerConfig) -> UncleanSettings:
    """The present settings of unclean elections."""
    values = current_values(image, config.values)
    return UncleanSettings(values["unclean.leader.election.interval.ms"] / 1000, values["unclean.recovery.timeout.ms"] / 1000)
