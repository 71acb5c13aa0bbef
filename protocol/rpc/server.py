"""The server side of connections: a listener, its connections, and its handlers.

A handler is a plain function. The connection calls it with a `ServerRequest` as soon as the frame is complete, in order of
arrival, and the handler answers the request once, at once or later: a parked fetch does not delay the requests after it. No
task, future or copy is created per request. For rare and slow APIs a handler may be a coroutine function; it runs as a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count

from strandline.protocol.apis import API_VERSIONS, APIS
from strandline.protocol.doors import STOPWATCH
from strandline.protocol.errors import ErrorCode
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.messages.admin import ApiVersionRange, ApiVersionsResponse, FinalizedFeature
from strandline.protocol.messages.common import SupportedFeature
from strandline.protocol.rpc.address_limits import AddressLimits, CreationRate
from strandline.protocol.rpc.end_of_iteration import EndOfIteration
from strandline.protocol.rpc.frame_reader import Scratch
from strandline.protocol.rpc.limits import Limits
from strandline.protocol.rpc.request_memory import BoundedConnection, RequestMemory
from strandline.protocol.rpc.request_metrics import RequestMetrics
from strandline.protocol.rpc.sasl_door import SaslDoor
from strandline.protocol.rpc.server_connection import Handler, ServerConnection, ServerRequest, answer_error
from strandline.protocol.rpc.sockets import BadPeers, bind_errors, open_files_max, start_serving
from strandline.protocol.rpc.tls_door import TlsDoor
from strandline.protocol.rpc.turns import Turns
from strandline.protocol.rpc.unauthenticated import Unauthenticated
from strandline.protocol.security.listener_security import ListenerSecurity

__all__ = ["Handler", "Limits", "Server", "ServerConnection", "ServerRequest"]

_CLOSE_MS = 1000
"""How long, in ms, a stopping server waits until its last responses are sent."""
_SWEEP_S_MAX = 5.0


class Server:
    """A listener and its connections."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        role: str,
        node_id: int,
        cluster_id: str | None,
        incarnation_id: bytes,
        listener_name: str = "PLAINTEXT",
        limits: Limits = Limits(),  # noqa: B008 - frozen
        on_connection_lost: Callable[[ServerConnection], None] | None = None,
        end_of_iteration: EndOfIteration | None = None,
        metrics: RequestMetrics | None = None,
        security: ListenerSecurity | None = None,
        addresses: AddressLimits | None = None,
        memory: RequestMemory | None = None,
        connection_ids: Iterator[int] | None = None,
    ) -> None:
        """`security` None: a PLAINTEXT listener, on which every peer is ANONYMOUS. `addresses`: the limits of addresses;
        `memory`: that of the bytes of requests; `connection_ids`: the ids of connections, in ascending order. The listeners of a
        node share all three."""
        self.handlers: dict[int, Handler] = {API_VERSIONS: self._handle_api_versions, **handlers}
        self.role = role
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.incarnation_id = incarnation_id
        self.listener_name = listener_name
        self.kafka_address = ""
        """The address of this node's listener for Kafka's clients, which is logged when one of them connects to this listener by
        mistake; empty if there is none."""
        self.security = security
        self.supported_features: tuple[SupportedFeature, ...] = ()
        self.finalized_features: Callable[[], tuple[int, list[FinalizedFeature]]] = _unknown_features
        """Returns the metadata offset up to which this node knows the cluster's features (-1: not known yet), and the
        features."""
        self.limits = limits
        self.addresses = addresses or AddressLimits()
        self.memory = memory
        self._creation_rate: CreationRate | None = None
        """None: connections are served as soon as they are opened."""
        self.on_connection_lost = on_connection_lost
        self.connections: dict[int, ServerConnection] = {}
        """By connection id. Ids are never reused."""
        self.metrics = RequestMetrics(STOPWATCH) if metrics is None else metrics
        """Shared by the listeners of a node."""
        self.connections_accepted = 0
        self.connections_closed = 0
        """Accepted connections that are closed."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.is_serving = False
        """Whether connections are accepted; stays True when the server stops."""
        self.is_stopping = False
        self._connections_max = limits.max_connections
        self._ids = count(1) if connection_ids is None else connection_ids
        self.scratch = Scratch()
        self.turns = Turns()
        self.bad_peers = BadPeers()
        self.bugs = LineLimits()
        """Limits the tracebacks to one per API and minute, because a request that meets a bug is often sent again."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        """Running coroutine handlers, in the order of their requests, so that `stop` cancels them in a fixed order."""
        self._listener: asyncio.Server | None = None
        self._address = "", 0
        """Host and port, once bound."""
        self._sweep: asyncio.TimerHandle | None = None
        self._progress: asyncio.Future[None] | None = None
        self.loop: asyncio.AbstractEventLoop
        self.unauthenticated = Unauthenticated(0 if security is None else security.unauthenticated_max)
        self.tls_doors: dict[int, TlsDoor] = {}
        """The connections during their TLS handshake, by connection id."""
        self._tls = security.tls if security is not None and security.has_tls else None
        self._sasl_door: SaslDoor | None = None
        if security is not None and security.has_sasl:
            self._sasl_door = SaslDoor(security, self.unauthenticated, self.bad_peers, self._handle_api_versions)
            self.handlers.update(self._sasl_door.handlers)
        self.end_of_iteration = end_of_iteration
        """Shared with the broker's `ActionQueue`, so that responses to parked requests leave in the same iteration."""

    async def start(self, host: str, port: int) -> int:
        """Listen and accept connections. Returns the bound port (`port` may be 0). Raises UsageError if the address is taken."""
        bound = await self.bind(host, port)
        await self.serve()
        return bound

    async def bind(self, host: str, port: int) -> int:
        """Bind the address without accepting connections; `serve` accepts them. Returns the bound port.

        A node binds first, so that it has changed nothing else if the address is taken. Raises UsageError if the address cannot
        be bound."""
        self.loop = asyncio.get_running_loop()
        self.end_of_iteration = self.end_of_iteration or EndOfIteration(self.loop.call_soon)
        self._connections_max = self.limits.connections_max(open_files_max())
        new_protocol = self._new_connection if self._tls is None else self._new_tls_door
        with bind_errors(host, port):
            self._listener = await self.loop.create_server(
                new_protocol, host, port, backlog=self.limits.accept_backlog, reuse_address=True, start_serving=False
            )
        self._address = host, int(self._listener.sockets[0].getsockname()[1])
        return self._address[1]

    def limit_connections(self, max_connections: int) -> None:
        """Change the largest number of connections. Connections above it stay open until they end."""
        self.limits = replace(self.limits, max_connections=max_connections)
        self._connections_max = self.limits.connections_max(open_files_max())

    def limit_creation_rate(self, per_second: float | None) -> None:
        """Change how many connections per second are served; None: no limit. Those above it wait."""
        self._creation_rate = None if per_second is None else CreationRate(per_second, self.loop.time())

    async def serve(self) -> None:
        """Accept connections on the address of `bind`. Raises UsageError if another process has begun to accept them there:
        several processes can bind an address while none accepts connections."""
        assert self._listener is not None
        with bind_errors(*self._address):
            await start_serving(self._listener)
        self.is_serving = True
        self._schedule_sweep()

    async def stop(self, drain_ms: int = 0) -> None:
        """Stop accepting and reading, wait up to `drain_ms` for requests in flight, then close all connections."""
        self.is_stopping = True
        if self._listener is not None:
            self._listener.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for door in list(self.tls_doors.values()):
            door.abort()
        for connection in list(self.connections.values()):
            connection.pause()
        if drain_ms:
            await self._wait_until(lambda: not any(c.in_flight for c in self.connections.values()), drain_ms)
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self.connections.values()):
            connection.close()
        if not await self._wait_until(lambda: not self.connections, _CLOSE_MS):
            for connection in list(self.connections.values()):
                connection.abort()
        if self._sasl_door is not None:
            self._sasl_door.close()

    def api_versions(self, error_code: ErrorCode = ErrorCode.NONE) -> ApiVersionsResponse:
        """The APIs and versions that this server serves, its identity and its features."""
        served = [APIS[key] for key in sorted(self.handlers)]
        epoch, finalized = self.finalized_features()
        return ApiVersionsResponse(
            error_code=error_code,
            api_keys=[ApiVersionRange(api.key, api.min_version, api.max_version) for api in served],
            cluster_id=self.cluster_id,
            node_id=self.node_id,
            role=self.role,
            incarnation_id=self.incarnation_id,
            supported_features=list(self.supported_features),
            finalized_features_epoch=epoch,
            finalized_features=finalized,
        )

    # -- connections --------------------------------------------------------------------------------------------------

    def _new_connection(self) -> ServerConnection:
        connection_id = next(self._ids)
        if self.memory is not None:
            return BoundedConnection(self, connection_id, self.memory)
        return ServerConnection(self, connection_id)

    def _new_tls_door(self) -> TlsDoor:
        assert self.security is not None
        assert self._tls is not None
        return TlsDoor(self, self.security, self._tls, self._new_connection())

    def admit(self, connection: ServerConnection) -> bool:
        """Register a new connection; False if the server stops, or it or the peer's address has too many connections. A
        connection above the creation rate is muted at first."""
        if self.is_stopping or not self.has_room(connection.peer):
            return False
        now = self.loop.time()
        wait_s, problem = self.addresses.check(connection.host, now, self._creation_rate)
        if problem is not None:
            self.bad_peers.closed(connection.peer, now, problem)
            return False
        if self._sasl_door is not None and not self._admit_to_sasl(self._sasl_door, connection):
            return False
        self.connections[connection.id] = connection
        self.connections_accepted += 1
        self.addresses.on_made(connection.host)
        connection.mute(wait_s)
        return True

    def has_room(self, peer: str) -> bool:
        """Return True if one more connection may be opened; log it otherwise."""
        if len(self.connections) + len(self.tls_doors) < self._connections_max:
            return True
        self.bad_peers.closed(peer, self.loop.time(), f"{self._connections_max} connections are open already")
        return False

    def _admit_to_sasl(self, door: SaslDoor, connection: ServerConnection) -> bool:
        refused = self.unauthenticated.add(connection.id, connection.host)
        if refused is not None:
            self.bad_peers.closed(connection.peer, self.loop.time(), refused)
            return False
        door.admit(connection, self.loop)
        return True

    def on_lost(self, connection: ServerConnection) -> None:
        """Remove a connection that is closed, and call `on_connection_lost` if it had been admitted."""
        was_admitted = self.connections.pop(connection.id, None) is not None
        self.unauthenticated.discard(connection.id)
        if self._sasl_door is not None:
            self._sasl_door.on_lost(connection)
        self.connections_closed += was_admitted
        if was_admitted:
            self.addresses.on_lost(connection.host)
        self.on_progress()
        if was_admitted and self.on_connection_lost is not None:
            self.on_connection_lost(connection)

    def _schedule_sweep(self) -> None:
        limits = self.limits
        shortest_ms = min(limits.frame_ms_max, limits.idle_ms_max, limits.write_stall_ms_max)
        self._sweep = self.loop.call_later(min(shortest_ms / 4000, _SWEEP_S_MAX), self._check_connections)

    def _check_connections(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections.values()):
            connection.check(now, self.limits)
        self.bad_peers.sweep(now)
        self.addresses.sweep(now)
        self._schedule_sweep()

    # -- handlers -----------------------------------------------------------------------------------------------------

    def _handle_api_versions(self, request: ServerRequest) -> None:
        request.reply(self.api_versions())

    def run_coroutine(self, request: ServerRequest, result: Awaitable[None]) -> None:
        """Run the rest of a coroutine handler as a task."""
        task = self.loop.create_task(_finish(request, result))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    # -- stopping -----------------------------------------------------------------------------------------------------

    def on_progress(self) -> None:
        """Called when a connection was closed, or when a request got its response while the server stops."""
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    async def _wait_until(self, is_met: Callable[[], bool], timeout_ms: int) -> bool:
        deadline = self.loop.time() + timeout_ms / 1000
        while not is_met():
            left = deadline - self.loop.time()
            if left <= 0:
                return False
            self._progress = self.loop.create_future()
            await asyncio.wait([self._progress], timeout=left)
        return True


def _unknown_features() -> tuple[int, list[FinalizedFeature]]:
    return -1, []


async def _finish(request: ServerRequest, result: Awaitable[None]) -> None:
    try:
        await result
    except Exception as e:
        answer_error(request, e)
