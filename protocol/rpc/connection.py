"""The client side of a connection: pipelined requests, responses matched by correlation id.

The hot path is `send` with a callback: no future, task or timer per request. The callback of each `send` is called exactly
once, with the response or with a `BrokerError` (refused, timed out, connection lost). The writes of one event-loop iteration
leave together.

One timer per connection checks the deadlines. If a request times out and nothing at all was received since it was sent, the
peer has disappeared without closing (a half-open connection), and the connection is closed.

A slow link should not make a short timeout fail. A request may therefore have a timeout *of silence*: it expires when nothing
was received, and the peer's kernel acknowledged none of the sent bytes, for that long.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from weakref import WeakKeyDictionary

import msgspec

from strandline.protocol import frames
from strandline.protocol.apis import api_name
from strandline.protocol.errors import BrokerError, ErrorCode, PeerError
from strandline.protocol.frames import Buffer, Records
from strandline.protocol.log_limits import LineLimits, printable
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.dial import dial, is_looking_up
from strandline.protocol.rpc.frame_reader import FrameReader, Scratch
from strandline.protocol.rpc.login import Login, describe_secure_error, plain_error, tls_of
from strandline.protocol.rpc.sockets import acknowledged_bytes, describe_connect_error, tune_socket
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity

logger = get_logger(__name__)

OnResponse = Callable[[Message | Exception], None]

_CORRELATION_MASK = 2**31 - 1
_SMALL_BYTES = 1000
_PAUSE_S = 0.01
"""Delay of a timer, in seconds, that shows that the process did not run in the meantime."""

_bad_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, LineLimits] = WeakKeyDictionary()
"""Per loop: limits the lines about servers with malformed responses to one per `host:port` and minute."""

_scratches: WeakKeyDictionary[asyncio.AbstractEventLoop, Scratch] = WeakKeyDictionary()
"""Per loop: the receive buffer that its connections share, since they read one after the other."""


class _Pending(msgspec.Struct, eq=False):
    api_key: int
    on_response: OnResponse
    sent_at: float
    deadline: float
    silence_s: float = 0.0
    """For a timeout of silence, the time from the last sign of life to the deadline; 0 for a fixed deadline."""
    acknowledged: int | None = None
    """How many bytes the peer's kernel had acknowledged at the last check; more counts as a sign of life. None if no other
    request was in flight before this one: then acknowledgements do not count."""


class Connection(asyncio.BufferedProtocol):
    """A connection to one server. Open it with `Connection.connect`; a closed connection is not reused."""

    __slots__ = (
        "_api_version",
        "_client_id",
        "_correlation_id",
        "_is_flush_scheduled",
        "_is_held",
        "_last_received_at",
        "_login",
        "_loop",
        "_lost_because",
        "_next_sweep_at",
        "_on_lost",
        "_out",
        "_pending",
        "_reader",
        "_request_timeout_ms",
        "_sweep",
        "_transport",
        "closed",
        "host",
        "port",
    )

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        request_timeout_ms: int,
        max_response_bytes: int,
    ) -> None:
        self.host = host
        self.port = port
        self.closed = True
        self._loop = asyncio.get_running_loop()
        self._client_id = client_id
        self._request_timeout_ms = request_timeout_ms
        self._on_lost: Callable[[Connection, Exception | None], None] | None = None
        """Set when `connect` returns the connection. A connection that was opened too late to be returned has none."""
        self._lost_because: Exception | None = None
        self._reader = FrameReader(max_response_bytes, _scratch_of(self._loop))
        self._transport: asyncio.Transport
        self._correlation_id = 0
        self._pending: dict[int, _Pending] = {}
        """Requests that wait for their response, by correlation id, oldest first."""
        self._out: list[Buffer] = []
        self._is_flush_scheduled = False
        self._is_held = False
        """Requests are kept in `_out`, because the connection authenticates again."""
        self._sweep: asyncio.TimerHandle | None = None
        self._next_sweep_at = 0.0
        self._last_received_at = 0.0
        self._login: Login | None = None
        """Authenticates again, if the session has an end (KIP-368)."""

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        connect_timeout_ms: int = 5000,
        request_timeout_ms: int = 30000,
        max_response_bytes: int = 128 * 1024 * 1024,
        on_lost: Callable[[Connection, Exception | None], None] | None = None,
        security: ClientSecurity = NO_SECURITY,
    ) -> Connection:
        """Open a connection; TLS and SASL are finished when it returns.

        Raises BrokerError NETWORK_EXCEPTION if that fails; its cause is the system's error (`ConnectionRefusedError`: every
        address of the host refused). The code is SASL_AUTHENTICATION_FAILED or UNSUPPORTED_SASL_MECHANISM if the server rejects
        the login. Raises UsageError if a file of `security` cannot be used. `on_lost` is called once when the connection ends,
        after the callbacks of all pending requests. Its second argument is the reason, or None if `close` was called."""

        def new() -> Connection:
            return cls(host, port, client_id, request_timeout_ms, max_response_bytes)

        is_open = security.security_protocol == "PLAINTEXT"
        tls = None if is_open else tls_of(security)
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                connection = await dial(new, host, port, drop=cls.close, tls=tls)
                if not is_open:
                    await connection._enter(security)
        except TimeoutError as e:
            silence = f"no answer within {connect_timeout_ms} ms"
            if is_looking_up(host):
                raise BrokerError(ErrorCode.NETWORK_EXCEPTION, f"cannot resolve {host}:{port} ({silence})") from e
            raise BrokerError(ErrorCode.NETWORK_EXCEPTION, f"could not connect to {host}:{port}: {silence}") from e
        except (OSError, UnicodeError) as e:
            text = describe_connect_error(host, port, e) if tls is None else describe_secure_error(host, port, e)
            raise BrokerError(ErrorCode.NETWORK_EXCEPTION, text) from e
        if connection.closed:
            raise BrokerError(ErrorCode.NETWORK_EXCEPTION, f"could not connect to {host}:{port}: the peer closed at once")
        connection._on_lost = on_lost
        return connection

    @property
    def in_flight(self) -> int:
        """Requests that wait for their response."""
        return len(self._pending)

    def api_key_of(self, correlation_id: int) -> int:
        """The API key of a request that waits for its response; -1 if no such request waits."""
        pending = self._pending.get(correlation_id)
        return -1 if pending is None else pending.api_key

    def quiet_s(self, now: float) -> float:
        """Return for how many seconds nothing was received while a request was pending; 0 if none is pending."""
        oldest = next(iter(self._pending.values()), None)
        return 0.0 if oldest is None else now - max(oldest.sent_at, self._last_received_at)

    def idle_s(self, now: float) -> float:
        """Return for how many seconds nothing was received, with or without a pending request."""
        return now - self._last_received_at

    def send(
        self,
        api_key: int,
        body: Message,
        records: Records | None = None,
        *,
        on_response: OnResponse | None,
        timeout_ms: int | None = None,
        of_silence: bool = False,
    ) -> None:
        """Send one request; `on_response` is called with the response or a `BrokerError`.

        `on_response` None: the request gets no response (Produce with acks=0). `of_silence`: the timeout counts from the last
        sign of life of the peer; the connection's own request timeout still bounds it."""
        if self.closed:
            if on_response is not None:
                self._loop.call_soon(on_response, self._network_error("the connection is closed"))
            return
        correlation_id = self._correlation_id = (self._correlation_id + 1) & _CORRELATION_MASK
        frame = frames.encode_request(api_key, body.version(), correlation_id, self._client_id, body, records)
        self._out += frame
        if on_response is not None:
            now = self._loop.time()
            deadline = now + (self._request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
            pending = _Pending(api_key, on_response, now, deadline)
            if of_silence:
                pending.silence_s = deadline - now
                if self._pending:  # It may wait behind many bytes that are still being sent.
                    # An acknowledgement of the small request itself proves nothing: the kernel of a paused process sends it, too.
                    own_bytes = min(sum(map(len, frame)), _SMALL_BYTES)
                    pending.acknowledged = acknowledged_bytes(self._transport) + own_bytes
            self._pending[correlation_id] = pending
            if self._sweep is None or deadline < self._next_sweep_at:
                self._schedule_sweep(deadline)
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def request(
        self,
        api_key: int,
        body: Message,
        records: Records | None = None,
        *,
        timeout_ms: int | None = None,
        of_silence: bool = False,
    ) -> asyncio.Future[Message]:
        """Send one request. The future has its response, or raises a `BrokerError`. Parameters as in `send`."""
        future: asyncio.Future[Message] = self._loop.create_future()

        def on_response(response: Message | Exception) -> None:
            if future.done():
                return
            if isinstance(response, Exception):
                future.set_exception(response)
            else:
                future.set_result(response)

        self.send(api_key, body, records, on_response=on_response, timeout_ms=timeout_ms, of_silence=of_silence)
        return future

    def close(self) -> None:
        """Close. Requests sent in this event-loop iteration still leave; pending requests fail with NETWORK_EXCEPTION."""
        if not self.closed:
            self._flush()
            self.closed = True
            if self._login is not None:
                self._login.stop()
            self._transport.close()

    # -- authentication -----------------------------------------------------------------------------------------------

    async def _enter(self, security: ClientSecurity) -> None:
        """Authenticate, or check that a TLS connection is usable. Raises BrokerError or UsageError, and closes the connection."""
        login = Login(self, security)
        try:
            await login.run()
        except BaseException:
            self.close()
            raise
        if not self.closed:
            self._login = login

    def request_ahead(self, api_key: int, body: Message, *, timeout_ms: int | None = None) -> asyncio.Future[Message]:
        """Send a request at once, before those that wait to be written."""
        waiting, self._out = self._out, []
        response = self.request(api_key, body, timeout_ms=timeout_ms)
        ahead, self._out = self._out, waiting
        if not self.closed and not self._transport.is_closing():
            self._transport.writelines(ahead)
        return response

    def hold_back(self) -> None:
        """Keep the requests that are sent from now on, until `let_go`: the connection authenticates again."""
        self._flush()
        self._is_held = True

    def let_go(self) -> None:
        """Write the requests that `hold_back` kept."""
        self._is_held = False
        self._flush()

    def fail(self, reason: Exception) -> None:
        """Close the connection because of an error on this side. Pending requests fail with `reason` as their text."""
        if not self.closed:
            self._give_up(reason)

    # -- asyncio's callbacks ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self.closed = False
        tune_socket(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        by_peer = not self.closed
        self.closed = True
        self._out.clear()
        if self._sweep is not None:
            self._sweep.cancel()
        if self._login is not None:
            self._login.stop()
        reason = self._lost_because or plain_error(exc)
        text = str(reason) if reason else self._closed_text() if by_peer else "the connection was closed"
        pending, self._pending = self._pending, {}
        for request in pending.values():
            error = self._network_error(text)
            if isinstance(exc, ssl.SSLError):
                error.__cause__ = exc
            self._call_back(request, error)
        if self._on_lost is not None:
            self._on_lost(self, reason or (self._network_error(text) if by_peer else None))

    def _closed_text(self) -> str:
        if self._last_received_at or not self._pending:
            return "the peer closed the connection"
        return "the peer closed the connection without an answer (does the port have another security_protocol?)"

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        self._last_received_at = self._loop.time()
        reader = self._reader
        reader.received(nbytes)
        try:
            while not self.closed and (frame := reader.next_frame()) is not None:
                self._on_frame(frame)
        except PeerError as e:
            limits = _bad_servers.setdefault(self._loop, LineLimits())
            suppressed = limits.admit(f"{self.host}:{self.port}", self._last_received_at)
            if suppressed is not None:
                logger.warning(
                    "server.response_rejected", peer=f"{self.host}:{self.port}", reason=printable(e), **suppressed.fields
                )
            self._give_up(e)

    def eof_received(self) -> bool:
        return False

    # -- inside -------------------------------------------------------------------------------------------------------

    def _on_frame(self, frame: bytearray) -> None:
        correlation_id = frames.correlation_id_of(frame)
        request = self._pending.pop(correlation_id, None)
        if request is None:
            # The request timed out, or expected no response (Produce with acks=0 may still be refused).
            if not 0 < correlation_id <= _CORRELATION_MASK:
                raise PeerError(f"a response to request {correlation_id}, which was never sent")
            return
        try:
            answer = frames.decode_response(request.api_key, frame)
        except PeerError as e:
            self._call_back(request, self._network_error(str(e)))
            raise
        if isinstance(answer, frames.Refusal):
            self._call_back(request, BrokerError(answer.error_code, answer.error_message))
        else:
            self._call_back(request, answer[1])

    def _call_back(self, request: _Pending, response: Message | Exception) -> None:
        try:
            request.on_response(response)
        except Exception:
            logger.exception("response.callback_failed", api=api_name(request.api_key), peer=f"{self.host}:{self.port}")

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        # A transport with an error closes one iteration before `connection_lost`; Python 3.12 would still write to its socket.
        if self._out and not self._is_held and not self._transport.is_closing():
            out, self._out = self._out, []
            self._transport.writelines(out)

    def _network_error(self, text: str) -> BrokerError:
        return BrokerError(ErrorCode.NETWORK_EXCEPTION, f"{self.host}:{self.port}: {text}")

    def _give_up(self, reason: Exception) -> None:
        self._lost_because = reason
        self.closed = True
        self._transport.abort()

    def _schedule_sweep(self, at: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._next_sweep_at = at
        self._sweep = self._loop.call_at(at, self._expire)

    def _extend(self, request: _Pending, now: float) -> bool:
        """Move the deadline of a timeout of silence after the last sign of life. True if the request has not expired."""
        if not request.silence_s:
            return False
        alive_at = self._last_received_at
        if request.acknowledged is not None:
            acknowledged = acknowledged_bytes(self._transport)
            if acknowledged > request.acknowledged:
                request.acknowledged, alive_at = acknowledged, now
        request.deadline = min(alive_at + request.silence_s, request.sent_at + self._request_timeout_ms / 1000)
        return request.deadline > now

    def _expire(self) -> None:
        self._sweep = None
        now = self._loop.time()
        if now - self._next_sweep_at > _PAUSE_S:
            # This process was late. Responses may lie unread in the socket and are read in this event-loop iteration.
            self._schedule_sweep(now + 0.001)
            return
        expired = [item for item in self._pending.items() if item[1].deadline <= now and not self._extend(item[1], now)]
        for correlation_id, _ in expired:
            del self._pending[correlation_id]
        if self._pending:
            self._schedule_sweep(min(request.deadline for request in self._pending.values()))
        for _, request in expired:
            waited_ms = round((now - request.sent_at) * 1000)
            text = f"{self.host}:{self.port}: no response to {api_name(request.api_key)} within {waited_ms} ms"
            self._call_back(request, BrokerError(ErrorCode.REQUEST_TIMED_OUT, text))
        if not self.closed and any(self._last_received_at < request.sent_at for _, request in expired):
            self._give_up(self._network_error("nothing was received since the request was sent; the connection is closed"))


def _scratch_of(loop: asyncio.AbstractEventLoop) -> Scratch:
    scratch = _scratches.get(loop)
    if scratch is None:
        scratch = _scratches[loop] = Scratch()
    return scratch
