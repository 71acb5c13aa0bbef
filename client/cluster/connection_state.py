"""One address of the cluster: the connection to it, the handshake, and the last error.

A wrong address is distinguished from a dead one. If the handshake fails although the port accepted the connection, the client
probes once which protocol the port speaks, and the error says "this port speaks HTTP", "... TLS", "... Kafka's protocol", or
"this is a controller".

A host that disappears from the network sends nothing, so a connection to it does not break by itself. A connection on which a
response is overdue is therefore *suspected*: for a moment, requests are sent to other brokers first. If nothing at all arrives on
it, the client sends a handshake, which every living broker answers at once, even while it holds another request for long. Without
an answer the connection is closed, and its requests fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.client.cluster.port_probe import KAFKA, protocol_of
from strandline.client.errors import AuthenticationFailed, ClientClosed, NoBrokersAvailable, authentication_error
from strandline.client.option_types import Address
from strandline.client.options import ClientOptions
from strandline.protocol.apis import API_VERSIONS, BROKER
from strandline.protocol.errors import BrokerError, ErrorCode, PeerError, StrandlineError, UsageError
from strandline.protocol.messages.admin import ApiVersionsRequest, ApiVersionsResponse
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.connection import Connection

HANDSHAKE_TIMEOUT_MS = 5_000
SLOW_S = 0.1
"""An attempt to connect that takes this long (seconds) is reported like one that failed, again after each such time until it
ends. A host that is gone does not reject the attempt, and the callers that wait for it may find another leader."""
SUSPECTED_S = 2.0
"""For this time (seconds) after a response was overdue, other brokers are asked first."""
QUIET_S = 1.0
"""If a response of a broker is overdue, and nothing has arrived from the broker for this time (seconds), the client sends it a
handshake."""
PING_TIMEOUT_MS = 2_000
"""The client closes the connection if that handshake is not answered within this time."""
SOFTWARE = ("strandline-python", "0.1.0")


class ConnectionState:
    """Connects to one address on request, and keeps its failures, its suspicion and the broker's id."""

    def __init__(self, address: Address, options: ClientOptions, on_change: Callable[[ConnectionState, bool], None]) -> None:
        """`on_change(state, lost)` is called when the connection was opened (False), and when it was lost, could not be opened,
        or takes long to open (True)."""
        self.address = address
        self.connection: Connection | None = None
        """The open connection, after its handshake; None if there is none."""
        self.node_id = -1
        """The id of the broker at this address, from its handshake; -1 before that."""
        self.failures = 0
        """Attempts to connect that failed since the last one that succeeded."""
        self.last_error: StrandlineError | None = None
        """Why the last attempt failed, or the last connection was lost; None after an attempt that succeeded."""
        self.retry_at = 0.0
        """When the backoff ends, on the loop's clock."""
        self._suspected_until = 0.0
        """The time until which other brokers are asked first, on the loop's clock."""
        self._pinged: Connection | None = None
        """The connection on which the answer to a handshake of `suspect` is awaited; None if there is none."""
        self._options = options
        self._on_change = on_change
        self._task: asyncio.Task[Connection] | None = None
        """The attempt to connect that is in progress; None if there is none."""
        self._slow_timer: asyncio.TimerHandle | None = None
        self._closed = False

    def describe(self) -> str:
        """The address, and the result of the last attempt to connect to it, for an error message."""
        host, port = self.address
        reason = "connected, no answer" if self.last_error is None else str(self.last_error).removeprefix("NETWORK_EXCEPTION: ")
        return reason if f"{host}:{port}" in reason else f"{host}:{port}: {reason}"

    def suspect(self) -> None:
        """A response on this connection is overdue: ask other brokers first for a while, and check whether this one still
        responds."""
        connection, now = self.connection, asyncio.get_running_loop().time()
        self._suspected_until = now + SUSPECTED_S
        if connection is not None and connection is not self._pinged and connection.quiet_s(now) >= QUIET_S:
            self._pinged = connection
            # If this times out and nothing has arrived on the connection since, the connection closes itself. Requests that are
            # still being sent over a slow line are in front of it: as long as they move, the broker is not gone.
            ping = ApiVersionsRequest(*SOFTWARE)
            connection.send(API_VERSIONS, ping, on_response=self._on_pinged, timeout_ms=PING_TIMEOUT_MS, of_silence=True)

    def _on_pinged(self, _: Message | Exception) -> None:
        self._pinged = None

    def is_suspected(self, now: float) -> bool:
        """Whether a response was overdue less than SUSPECTED_S before `now` (on the loop's clock)."""
        return now < self._suspected_until

    def connect_soon(self) -> float:
        """Begin to connect, unless an attempt is in progress. Returns the seconds that the backoff still lasts; 0 if an attempt
        is in progress now."""
        loop = asyncio.get_running_loop()
        if self._task is not None or self._closed:
            return 0.0
        delay = self.retry_at - loop.time()
        if delay > 0:
            return delay
        self._begin()
        return 0.0

    def is_backing_off(self, now: float) -> bool:
        """Whether the last attempt has failed and the next one may not begin yet."""
        return self._task is None and self.last_error is not None and self.retry_at > now

    def attempt(self) -> asyncio.Task[Connection]:
        """The attempt to connect that is in progress; one is begun if there is none. During the backoff, the error of the last
        attempt is raised again; after `close`, ClientClosed. Several callers share the attempt, so none of them may cancel it."""
        if self._closed:
            raise ClientClosed("the client was stopped")
        if self._task is not None:
            return self._task
        if self.last_error is not None and self.is_backing_off(asyncio.get_running_loop().time()):
            raise self.last_error.with_traceback(None)  # Otherwise its traceback would grow with each caller.
        return self._begin()

    def _begin(self) -> asyncio.Task[Connection]:
        loop = asyncio.get_running_loop()
        task = self._task = loop.create_task(self._connect())
        task.add_done_callback(self._on_done)
        self._slow_timer = loop.call_later(SLOW_S, self._on_slow)
        return task

    def _on_slow(self) -> None:
        self._slow_timer = asyncio.get_running_loop().call_later(SLOW_S, self._on_slow)
        self._on_change(self, True)

    def _on_done(self, task: asyncio.Task[Connection]) -> None:
        self._task = None
        if self._slow_timer is not None:
            self._slow_timer.cancel()
        if task.cancelled():
            if not self._closed:
                self._on_change(self, False)  # The program has cancelled it: callers that wait may begin another attempt.
            return
        error = task.exception()
        if error is None:
            self.failures, self.last_error = 0, None
        else:
            self.failures += 1
            self.last_error = error if isinstance(error, StrandlineError) else NoBrokersAvailable(f"{error}")
            doublings = 20 if isinstance(error, AuthenticationFailed) else min(self.failures - 1, 20)
            backoff_ms = self._options.reconnect_backoff_ms * 2**doublings
            self.retry_at = task.get_loop().time() + min(backoff_ms, self._options.reconnect_backoff_max_ms) / 1000
        self._on_change(self, error is not None)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def request(self, api_key: int, body: Message, timeout_ms: float) -> Message:
        """Send a request, and return its response. Connects first if there is no connection; `timeout_ms` bounds both together.

        Raises BrokerError, with `code` REQUEST_TIMED_OUT after `timeout_ms`, or the error of the attempt to connect."""
        connection = self.connection
        if connection is None:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_ms / 1000
            connection = await self._connected(timeout_ms)
            timeout_ms = (deadline - loop.time()) * 1000
        return await connection.request(api_key, body, timeout_ms=max(1, round(timeout_ms)))

    def begin_request(self, api_key: int, body: Message, timeout_ms: float) -> asyncio.Future[Message]:
        """The same as `request`, but returns a future. It costs a task only if there is no connection."""
        if self.connection is not None:
            return self.connection.request(api_key, body, timeout_ms=max(1, round(timeout_ms)))
        return asyncio.get_running_loop().create_task(self.request(api_key, body, timeout_ms))

    async def _connected(self, timeout_ms: float) -> Connection:
        try:
            attempt = self.attempt()
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.shield(attempt)
        except TimeoutError:
            host, port = self.address
            text = f"{host}:{port}: not connected within {timeout_ms:.0f} ms"
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, text) from None

    # -- connecting ---------------------------------------------------------------------------------------------------

    async def _connect(self) -> Connection:
        connection = await self._open()
        try:
            timeout_ms = min(HANDSHAKE_TIMEOUT_MS, self._options.request_timeout_ms)
            answer = await connection.request(API_VERSIONS, ApiVersionsRequest(*SOFTWARE), timeout_ms=timeout_ms)
            self._check(answer)
        except (BrokerError, PeerError) as e:
            connection.close()
            raise await self._explain(e) from e
        except BaseException:
            connection.close()
            raise
        self.connection = connection
        return connection

    async def _open(self) -> Connection:
        """Open a connection, with TLS and SASL if they are configured. AuthenticationFailed; BrokerError."""
        host, port = self.address
        try:
            return await Connection.connect(
                host,
                port,
                client_id=self._options.client_id,
                connect_timeout_ms=self._options.connect_timeout_ms,
                request_timeout_ms=self._options.request_timeout_ms,
                on_lost=self._on_lost,
                security=self._options.connection_security,
            )
        except BrokerError as e:
            raise authentication_error(e, f"{host}:{port}") or e from e.__cause__
        except UsageError as e:  # A file of the settings cannot be used.
            raise AuthenticationFailed(str(e)) from e

    def _check(self, answer: object) -> None:
        assert isinstance(answer, ApiVersionsResponse)
        if answer.error_code:
            raise BrokerError(answer.error_code, "the handshake was rejected")
        self.node_id = answer.node_id
        if answer.role != BROKER:
            host, port = self.address
            raise NoBrokersAvailable(f"{host}:{port} is a {answer.role} (node {answer.node_id}); clients talk to brokers")

    async def _explain(self, error: StrandlineError) -> StrandlineError:
        """The error for a handshake that failed on an open port. It names the protocol that the port speaks, if that is another
        one."""
        host, port = self.address
        if isinstance(error, BrokerError) and error.code == ErrorCode.INVALID_REQUEST:  # A listener for Kafka's clients.
            return NoBrokersAvailable(f"{host}:{port}: {error.message}")
        spoken = await protocol_of(host, port)
        if spoken is None:
            return error
        hint = "; it needs security_protocol SSL or SASL_SSL, if it is a broker's" if spoken == "TLS" else ""
        other = "Strandline's" if spoken == KAFKA else "Strandline's protocol"
        return NoBrokersAvailable(f"{host}:{port}: this port speaks {spoken}, not {other}{hint}")

    def _on_lost(self, connection: Connection, error: Exception | None) -> None:
        if self.connection is connection:
            self.connection = None
            reason = f"the connection was lost{f': {error}' if error else ''}"
            self.last_error = BrokerError(ErrorCode.NETWORK_EXCEPTION, f"{self.address[0]}:{self.address[1]}: {reason}")
            if not self._closed:
                self._on_change(self, True)

    async def close(self) -> None:
        """Close the connection, and cancel the attempt to open one."""
        self._closed = True
        if self._slow_timer is not None:
            self._slow_timer.cancel()
        if self._task is not None:
            task = self._task
            task.cancel()
            await asyncio.wait([task])
        if self.connection is not None:
            self.connection.close()
            self.connection = None
