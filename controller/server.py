"""A controller process: the quorum, the controller on top of it, and one listener for both and for the brokers.

At the start it locks the data directory and checks whose it is, binds the port, agrees on the cluster's id (`cluster_id.py`) if
neither the directory nor the configuration has one, formats an empty directory, opens the quorum, and serves requests. During
the agreement the port is open already: the handshake answers that there is no id yet, and every other request is rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from strandline.controller.cluster_id import Agreed, agree_on_cluster_id, log_agreed
from strandline.controller.config import ControllerConfig
from strandline.controller.controller import Controller
from strandline.controller.handlers import ControllerApis
from strandline.controller.liveness import BrokerLiveness, probe_broker
from strandline.controller.name_expiry import NameExpiry
from strandline.controller.raft.quorum import Quorum
from strandline.controller.topic_control import TopicControl, TopicDefaults
from strandline.protocol import apis
from strandline.protocol.doors import Doors, new_uuid
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError, StrandlineError, UsageError
from strandline.protocol.loggers import get_logger
from strandline.protocol.rpc.request_metrics import RequestMetrics
from strandline.protocol.rpc.server import Limits, Server, ServerConnection, ServerRequest
from strandline.protocol.rpc.sockets import describe_bind_error
from strandline.storage.directory.log_dir import Claim, LogDir
from strandline.storage.files import DiskError, Files

logger = get_logger(__name__)

DRAIN_MS = 200
"""How long `stop` waits for requests in progress."""


class ControllerServer:
    def __init__(self, config: ControllerConfig, doors: Doors, files: Files) -> None:
        self.config = config
        self.port = config.port
        """After `start`: the port that was bound."""
        self.listening = False
        self.ready = asyncio.Event()
        """Set when this node first knows an active controller."""
        self.failure: asyncio.Future[StrandlineError] | None = None
        """Set by `start`; completed with the error when this node cannot continue."""
        self.incarnation_id = new_uuid(doors.random)
        self.stopwatch = doors.stopwatch
        self.made_at = doors.stopwatch()
        self.has_quorum = False
        """The metadata log is open; `controller` and `quorum` exist."""
        self.servers: list[Server] = []
        """The server of the one listener, once it listens."""
        self.request_metrics = RequestMetrics(doors.stopwatch)
        self._doors = doors
        self._files = files
        self.cluster_id: str | None = None
        """None until it is known and on the disk, during `start`."""
        self.controller: Controller
        self.quorum: Quorum
        self._log_dir: LogDir
        """Holds the lock and meta.properties. The quorum owns the metadata log in it."""
        self._liveness: BrokerLiveness | None = None
        self._name_expiry: NameExpiry
        self._server: Server

    async def start(self) -> None:
        """Open the quorum and listen. Raises UsageError if the data directory or the address cannot be used."""
        config = self.config
        claim = Claim.take(self._files, config.data_dir, node_id=config.node_id, cluster_id=config.cluster_id, role="controller")
        try:
            await self._start(claim)
        except DiskError as e:
            claim.release()
            raise UsageError(f"data directory {config.data_dir} cannot be used: {e}") from e
        except BaseException:
            claim.release()
            raise

    async def _start(self, claim: Claim) -> None:
        await self._bind()
        try:
            cluster_id = await self._open(claim)
            self._build(cluster_id)
            await self.quorum.start()
            self.has_quorum = True
        except BaseException:
            await self._server.stop()
            raise
        self._server.handlers.update(self._handlers(cluster_id))
        if not self.listening:
            await self._listen()

    async def _open(self, claim: Claim) -> str:
        """Open the data directory, and format it if it is empty. Returns the cluster's id, which is on the disk by then."""
        agreed = await self._agree() if claim.cluster_id is None else None
        cluster_id = agreed.cluster_id if agreed is not None else claim.cluster_id
        self._log_dir = LogDir.open_claimed(claim, cluster_id=cluster_id, random=self._doors.random)
        assert cluster_id is not None
        self.cluster_id = self._server.cluster_id = cluster_id  # and sent in the handshake
        if agreed is not None:
            log_agreed(self.config.node_id, self.config.voters, agreed)
        return cluster_id

    async def _bind(self) -> None:
        config = self.config
        self._server = self._make_server()
        try:
            self.port = await self._server.bind(config.host, config.port)
        except OSError as e:
            raise UsageError(describe_bind_error(config.host, config.port, e)) from e

    async def _listen(self) -> None:
        await self._server.serve()
        self.servers = [self._server]
        self.listening = True

    async def _agree(self) -> Agreed:
        """Only during the agreement does a controller listen before it knows its cluster."""
        await self._listen()
        config = self.config
        timeout_ms = config.cluster_id_agreement_timeout_ms
        return await agree_on_cluster_id(config.node_id, config.voters, self._doors.random, timeout_ms)

    async def stop(self) -> None:
        """Resign first, so that another controller is active before this one stops."""
        if self._liveness is not None:
            self._name_expiry.on_inactive()
            await self._liveness.stop()
        await self.quorum.stop()
        await self._server.stop(DRAIN_MS)
        self._log_dir.close(clean=False)

    def _build(self, cluster_id: str) -> None:
        config, loop = self.config, asyncio.get_running_loop()
        self.failure = loop.create_future()
        session_timeout_ms = config.broker_session_timeout_ms
        self.controller = _ReadyController(
            node_id=config.node_id, session_timeout_ms=session_timeout_ms, now=loop.time, ready=self.ready
        )
        self.quorum = Quorum(
            node_id=config.node_id,
            cluster_id=cluster_id,
            voters=config.voters,
            data_dir=config.data_dir,
            files=self._files,
            doors=self._doors,
            config=config.raft,
            listener=self.controller,
            on_fatal=self._on_fatal,
        )
        self.controller.quorum = self.quorum
        self._liveness = BrokerLiveness(
            self.controller,
            grace_ms=config.broker_connection_loss_grace_ms,
            session_timeout_ms=session_timeout_ms,
            probe=probe_broker,
        )
        self._name_expiry = NameExpiry(
            self.controller,
            wall_clock_ms=self._doors.wall_clock_ms,
            expiration_ms=config.producer_name_expiration_ms,
        )
        self.controller.on_active = self._on_active
        self.controller.on_inactive = self._on_inactive

    def _on_active(self) -> None:
        assert self._liveness is not None
        self._liveness.on_active()
        self._name_expiry.on_active()

    def _on_inactive(self) -> None:
        assert self._liveness is not None
        self._liveness.on_inactive()
        self._name_expiry.on_inactive()

    def _make_server(self) -> Server:
        config = self.config
        return Server(
            {
                api.key: self._refuse_early
                for api in apis.APIS.values()
                if "controller" in api.served_by and api.key != apis.API_VERSIONS
            },
            role="controller",
            node_id=config.node_id,
            cluster_id=None,
            incarnation_id=self.incarnation_id,
            listener_name=config.listener_name,
            limits=Limits(
                max_frame_bytes=config.socket_request_max_bytes,
                max_connections=config.max_connections,
                idle_ms_max=config.connections_max_idle_ms,
            ),
            on_connection_lost=self._on_connection_lost,
            metrics=self.request_metrics,
        )

    def _refuse_early(self, request: ServerRequest) -> None:
        """The error is retriable: the client tries another controller, or this one later."""
        raise BrokerError(ErrorCode.NOT_CONTROLLER, f"controller {self.config.node_id} is starting")

    def _handlers(self, cluster_id: str) -> Mapping[int, Any]:
        assert self._liveness is not None
        liveness = self._liveness
        defaults = TopicDefaults(self.config.num_partitions, self.config.default_replication_factor)
        topics = TopicControl(self._doors.random, defaults)
        apis_ = ControllerApis(self.controller, topics, cluster_id, self._doors.wall_clock_ms)
        ours: dict[int, Callable[[Any], None]] = dict(apis_.handlers())
        decide_heartbeat, decide_registration = ours[apis.BROKER_HEARTBEAT], ours[apis.BROKER_REGISTRATION]

        def handle_heartbeat(request: ServerRequest) -> None:
            decide_heartbeat(request)
            self.controller.metrics.on_heard(request.body.broker_id)
            liveness.on_heartbeat(request.connection, request.body.broker_id, request.body.broker_epoch)

        def handle_registration(request: ServerRequest) -> None:
            decide_registration(request)
            broker = self.controller.image.brokers.get(request.body.broker_id)
            if broker is not None and broker.incarnation_id == request.body.incarnation_id:
                # So a process that dies before its first heartbeat is detected like any other.
                liveness.on_heartbeat(request.connection, broker.broker_id, broker.broker_epoch)

        ours[apis.BROKER_HEARTBEAT] = handle_heartbeat
        ours[apis.BROKER_REGISTRATION] = handle_registration
        return {**self.quorum.handlers, **ours}

    def _on_connection_lost(self, connection: ServerConnection) -> None:
        if self._liveness is not None:
            if connection.tag is not None:
                assert isinstance(connection.tag, int)
                self.controller.metrics.on_connection_lost(connection.tag, self.controller.now())
            self._liveness.on_connection_lost(connection)

    def _on_fatal(self, error: BaseException) -> None:
        """The quorum's node has failed: reject every request that waits for a commit."""
        if self.controller.active is not None:
            self.controller.on_resign(self.controller.active.epoch)
        if self.failure is not None and not self.failure.done():
            if isinstance(error, DiskError):
                text = f"the data directory {self.config.data_dir} failed ({error}); the controller cannot continue without it"
                error = UsageError(text)
            elif not isinstance(error, StrandlineError):
                error = InternalError(f"the metadata quorum's node stopped: {error!r}")
            self.failure.set_result(error)


class _ReadyController(Controller):
    """Sets `ready` when a leader is first known."""

    def __init__(self, *, node_id: int, session_timeout_ms: int, now: Callable[[], float], ready: asyncio.Event) -> None:
        super().__init__(node_id=node_id, session_timeout_ms=session_timeout_ms, now=now)
        self._ready = ready

    def on_leader(self, epoch: int) -> None:
        super().on_leader(epoch)
        self._ready.set()

    def on_leader_changed(self, leader_id: int | None, epoch: int) -> None:
        super().on_leader_changed(leader_id, epoch)
        if leader_id is not None and leader_id >= 0 and leader_id != self.node_id:
            self._ready.set()
