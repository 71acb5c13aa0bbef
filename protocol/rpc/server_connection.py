"""One accepted connection and its requests: reads frames, calls handlers, writes their responses.

`Limits` bounds everything that a peer can claim. A bad *request* gets an error code; a bad *connection* is closed:

    frame length out of bounds, not msgpack, not five elements, unknown API    closed
    unsupported version of an API                                              refused: UNSUPPORTED_VERSION, and closed
    API that this node does not serve                                          refused: UNSUPPORTED_VERSION
    body that does not match its schema                                        refused: INVALID_REQUEST
    too many requests in flight, or unread responses                           the server stops reading
    many requests at once                                                      others get their turn in between
    `mute`: the client has exceeded a quota (KIP-219)                          the server stops reading for so long
    no response read for `write_stall_ms_max`, or too many unread bytes        closed
    a frame incomplete after `frame_ms_max`, or idle for `idle_ms_max`         closed

A listener with SASL (`sasl_door.py`) replaces `handlers` and `_decode` of its connections until they are authenticated, so an
authenticated or open connection does no work per request for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Protocol

import msgspec

from strandline.protocol import frames
from strandline.protocol.apis import API_VERSIONS, APIS, FETCH, api_name
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError, PeerError
from strandline.protocol.frames import Buffer, Records
from strandline.protocol.log_limits import LineLimits, host_of, printable
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import ApiVersionsResponse
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.end_of_iteration import EndOfIteration
from strandline.protocol.rpc.frame_reader import FrameReader, Scratch, SpeaksTls
from strandline.protocol.rpc.limits import Limits
from strandline.protocol.rpc.request_metrics import FETCH_FOLLOWER, ApiMetrics, RequestMetrics
from strandline.protocol.rpc.sockets import BadPeers, describe_peer, pauses_late, plain_host, tune_socket
from strandline.protocol.rpc.turns import TURN_S, Turns
from strandline.protocol.security.principal import ANONYMOUS, Principal

logger = get_logger(__name__)


class ServerRequest(msgspec.Struct, eq=False):
    """One request. The handler answers it exactly once, at any time, by `reply`, `refuse` or `no_reply`."""

    connection: ServerConnection
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: Any
    """A message of the API's request class."""
    received_at: float
    """When its bytes were read, on the clock of the event loop."""
    _size: int
    _metrics: ApiMetrics
    _arrived_at: float
    """Arrival time of the request, on the server's stopwatch, in seconds."""
    is_answered: bool = False
    """Set before the response is sent; a second response is a bug."""
    ownership: ClassVar[Any] = None
    """Set on a Produce request whose producer ids must be checked again right before the append (`broker/security`)."""

    @property
    def is_open(self) -> bool:
        """True if the request has no response yet and its connection is open."""
        return not self.is_answered and not self.connection.closed

    @property
    def principal(self) -> Principal:
        """The authenticated identity of the sender."""
        return self.connection.principal

    @property
    def client_host(self) -> str:
        """The sender's address, without the port."""
        return self.connection.host

    @property
    def size(self) -> int:
        """The size of the request's frame, in bytes."""
        return self._size

    def reply(self, body: Message, records: Records | None = None) -> None:
        """Answer with `body` and the record batches that become its last field. Does nothing on a closed connection."""
        connection = self.connection
        if not connection.closed:
            self._answer(connection.encode(self, body, records))
            self._metrics.on_answer(connection.stopwatch() - self._arrived_at, body)

    def refuse(self, code: ErrorCode, message: str | None = None) -> None:
        """Answer with an error of the whole request, as opposed to an error of one partition or topic."""
        if not self.connection.closed:
            self._answer(self.connection.encode_refusal(self, code, message))
            self._metrics.on_refusal(self.connection.stopwatch() - self._arrived_at, code)

    def no_reply(self) -> None:
        """Finish a request that gets no response (Produce with acks=0)."""
        if not self.connection.closed:
            self._answer(self.connection.encode_nothing(self))
            self._metrics.total.observe(self.connection.stopwatch() - self._arrived_at)

    def _answer(self, buffers: list[Buffer]) -> None:
        if self.is_answered:
            raise InternalError(f"{self!r} was answered twice")
        self.is_answered = True
        self.connection.on_answer(self._size, buffers)

    def __repr__(self) -> str:
        return f"<{api_name(self.api_key)} {self.correlation_id} from {self.client_id} at {self.connection.peer}>"


HELD = 1 << 62
"""Added to the bytes in flight of a connection on hold: more than any limit."""
_UNEXPECTED_MESSAGE = bytes((0x15, 3, 1, 0, 2, 2, 10))
"""A TLS alert that no TLS server sends in answer to a hello, so that the client can say that this port speaks plaintext."""

Decoder = Callable[[bytearray], frames.Request[Any]]
"""Decodes a request's frame, or raises a `PeerError`."""

Handler = Callable[[ServerRequest], None] | Callable[[ServerRequest], Awaitable[None]]


class ConnectionServer(Protocol):
    """The part of a server that its connections use."""

    node_id: int
    handlers: dict[int, Handler]
    limits: Limits
    listener_name: str
    kafka_address: str
    """The address of this node's listener for Kafka's clients; empty if there is none."""
    loop: asyncio.AbstractEventLoop
    end_of_iteration: EndOfIteration | None
    scratch: Scratch
    """The receive buffer that the connections share."""
    metrics: RequestMetrics
    bad_peers: BadPeers
    bugs: LineLimits
    bytes_in: int
    bytes_out: int
    is_stopping: bool
    turns: Turns
    """The connections that have more requests than fit into one turn."""

    def admit(self, connection: ServerConnection) -> bool:
        """Register a new connection; False if it must be closed."""

    def on_lost(self, connection: ServerConnection) -> None:
        """Called when a registered connection is closed."""

    def on_progress(self) -> None:
        """Called when a request got its response while the server stops."""

    def run_coroutine(self, request: ServerRequest, result: Awaitable[None]) -> None:
        """Run the rest of a handler that is a coroutine."""

    def api_versions(self, error_code: ErrorCode = ErrorCode.NONE) -> ApiVersionsResponse:
        """The response to an ApiVersions request."""


class ServerConnection(asyncio.BufferedProtocol):
    """One accepted connection."""

    __slots__ = (
        "_arrived_at",
        "_decode",
        "_end_of_iteration",
        "_free_at",
        "_in_flight",
        "_in_flight_bytes",
        "_is_flush_scheduled",
        "_is_peer_slow",
        "_is_reading",
        "_is_resume_scheduled",
        "_loop",
        "_mid_frame_since",
        "_mute_timer",
        "_muted_until",
        "_out",
        "_out_bytes",
        "_pauses_late",
        "_reader",
        "_stalled_at",
        "_stalled_bytes",
        "_transport",
        "client_id",
        "closed",
        "closed_by_peer",
        "handlers",
        "host",
        "id",
        "last_received_at",
        "listener_name",
        "peer",
        "principal",
        "server",
        "stopwatch",
        "tag",
    )

    def __init__(self, server: ConnectionServer, connection_id: int) -> None:
        self.server = server
        self._loop = server.loop
        assert server.end_of_iteration is not None
        self._end_of_iteration = server.end_of_iteration
        self.id = connection_id
        self.peer = self.host = "?"
        """`host:port`, and the address alone."""
        self.principal = ANONYMOUS
        """The authenticated identity of the peer."""
        self.handlers: Mapping[int, Handler] = server.handlers
        """The handlers that this connection may call now: before it is authenticated, those of the authentication."""
        self._decode: Decoder = frames.decode_request
        self.listener_name = server.listener_name
        self.client_id: str | None = None
        """The client id of the last request."""
        self.tag: object | None = None
        """Free for the owner of the server: for example the id of the broker at the other end."""
        self.closed = False
        """Set before the transport is closed, so that later responses are dropped."""
        self.closed_by_peer = False
        """The peer's FIN or RST arrived, so its host was up a moment ago: its process closed the connection or died."""
        self._transport: asyncio.Transport
        self._reader = FrameReader(server.limits.max_frame_bytes, server.scratch)
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._out: list[Buffer] = []
        """Responses of this event-loop iteration; one `writelines` at its end."""
        self._out_bytes = 0
        self._is_flush_scheduled = self._is_resume_scheduled = False
        self._is_reading = True
        self._is_peer_slow = False
        """The transport's write buffer is above its high-water mark."""
        self._pauses_late = False
        """See `sockets.pauses_late`."""
        self.last_received_at = self._loop.time()
        self._mid_frame_since = 0.0
        """When the first byte of an incomplete frame arrived; 0 if no frame is incomplete."""
        self._stalled_at = self._stalled_bytes = 0.0
        self._muted_until = 0.0
        self._mute_timer: asyncio.TimerHandle | None = None
        """Set while the connection is muted."""
        self.stopwatch = server.metrics.stopwatch
        self._arrived_at = 0.0
        """When bytes were read last, by the stopwatch."""
        self._free_at = 0.0
        """When the handler became free for the next request: its arrival, or the end of the request before it if that is
        later."""

    @property
    def request_began_at(self) -> float:
        """When the server began to decode the request whose handler runs, on the stopwatch."""
        return self._free_at

    @property
    def in_flight(self) -> int:
        """Number of requests that were passed to handlers and have no response yet."""
        return self._in_flight

    # -- asyncio's callbacks ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]
        self.peer = describe_peer(transport)
        self.host = plain_host(host_of(self.peer))
        if not self.server.admit(self):
            self.abort()
            return
        self._transport.set_write_buffer_limits(high=self.server.limits.write_buffer_bytes_high)
        self._pauses_late = pauses_late(transport)
        tune_socket(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed and isinstance(exc, (ConnectionResetError, BrokenPipeError)):
            self.closed_by_peer = True
        self.closed = True
        self._out.clear()
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        self.server.on_lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        self.last_received_at = self._loop.time()
        self._arrived_at = self._free_at = self.stopwatch()
        self.server.bytes_in += nbytes
        self._reader.received(nbytes)
        self._take_frames()

    def take_early(self, early: bytes) -> None:
        """Process bytes that arrived before this connection was the protocol of its transport."""
        if self.closed or not early:
            return
        self._arrived_at = self._free_at = self.stopwatch()
        self.server.bytes_in += len(early)
        self._reader.begin_with(early)
        self._take_frames()

    def eof_received(self) -> bool:
        """The peer closed its side: send the responses that are ready, then close. Responses to parked requests are dropped."""
        self.closed_by_peer = not self.closed
        self._flush()
        return False

    def pause_writing(self) -> None:
        self._is_peer_slow = True
        self._stalled_at, self._stalled_bytes = self._loop.time(), self._unsent_bytes()

    def resume_writing(self) -> None:
        self._is_peer_slow = False
        self._maybe_resume()

    # -- requests -----------------------------------------------------------------------------------------------------

    def _take_frames(self) -> None:
        """Process complete frames until there is none, the peer has too many requests in flight, or its turn is over."""
        reader, limits, turn_ends_at = self._reader, self.server.limits, self._free_at + TURN_S
        in_flight_max, bytes_max = limits.max_in_flight_per_connection, limits.in_flight_bytes_max
        try:
            while self._in_flight < in_flight_max and self._in_flight_bytes < bytes_max and not self._is_peer_slow:
                frame = reader.next_frame()
                if frame is None:
                    self._note_mid_frame()
                    return
                self._mid_frame_since = 0.0
                self._on_frame(frame)
                if self.closed:
                    return
                if self._free_at > turn_ends_at and reader.has_unread:
                    self._wait_for_turn()
                    return
        except PeerError as e:
            self._on_bad_peer(e)
            return
        self.pause()

    def _wait_for_turn(self) -> None:
        self.pause()
        if not self._is_resume_scheduled:
            self._is_resume_scheduled = True
            self.server.turns.wait(self, self._loop)

    def take_turn(self) -> None:
        """Go on with the requests that have arrived (`turns.py`)."""
        self._resume()

    def _note_mid_frame(self) -> None:
        if not self._reader.is_mid_frame:
            self._mid_frame_since = 0.0
        elif not self._mid_frame_since:
            self._mid_frame_since = self.last_received_at

    def _on_frame(self, frame: bytearray) -> None:
        try:
            head = self._decode(frame)
        except frames.BadBody as e:
            self._refuse(e.head.correlation_id, ErrorCode.INVALID_REQUEST, str(e))
            self.on_malformed(str(e), e.head.client_id)
            return
        except frames.UnsupportedVersion as e:
            self._on_unsupported(e)
            return
        except PeerError:
            if frames.speaks_kafka(frame):
                raise PeerError(self._not_kafkas) from None
            raise
        self.client_id = head.client_id
        api_key, size = head.api_key, len(frame)
        handler = self.handlers.get(api_key)
        if handler is None:
            text = f"{api_name(api_key)} is not served by this node"
            self._refuse(head.correlation_id, ErrorCode.UNSUPPORTED_VERSION, text)
            return
        arrived_at, begins_at = self._arrived_at, self._free_at
        is_followers = api_key == FETCH and head.body.replica_id >= 0
        metrics = self.server.metrics[FETCH_FOLLOWER if is_followers else api_key]
        metrics.on_request(size, begins_at - arrived_at)
        request = ServerRequest(
            self,
            api_key,
            head.api_version,
            head.correlation_id,
            head.client_id,
            head.body,
            self.last_received_at,
            size,
            metrics,
            arrived_at,
        )
        self._in_flight += 1
        self._in_flight_bytes += size
        try:
            result = handler(request)
        except Exception as e:
            answer_error(request, e)
        else:
            if result is not None:
                self.server.run_coroutine(request, result)
        self._free_at = self.stopwatch()
        metrics.local_s += self._free_at - begins_at

    @property
    def _not_kafkas(self) -> str:
        address = self.server.kafka_address
        where = f"Kafka's clients connect to {address}" if address else "no listener of this node is for Kafka's clients"
        ours = f"listener {self.listener_name} speaks Strandline's"
        return f"it speaks Kafka's protocol, but {ours}; {where} (kafka.listener.names)"

    def _on_unsupported(self, e: frames.UnsupportedVersion) -> None:
        """Answer ApiVersions of any version, so that a newer peer learns the supported versions. Close after any other API."""
        head = e.head
        if head.api_key == API_VERSIONS:
            self._write(frames.encode_response(head.correlation_id, self.server.api_versions(ErrorCode.UNSUPPORTED_VERSION)))
            return
        if head.api_key in APIS:
            self._refuse(head.correlation_id, ErrorCode.UNSUPPORTED_VERSION, str(e))
        self.server.bad_peers.closed(self.peer, self._loop.time(), str(e), head.client_id)
        self.close()

    def _on_bad_peer(self, e: PeerError) -> None:
        if isinstance(e, SpeaksTls):
            self._write([_UNEXPECTED_MESSAGE])
        self.server.bad_peers.closed(self.peer, self._loop.time(), str(e), self.client_id)
        self.close()

    def on_malformed(self, reason: str, client_id: str | None) -> None:
        """Log that a request was refused for its content. Handlers call it too, for example for a batch with a wrong checksum."""
        self.server.bad_peers.refused(self.peer, self._loop.time(), reason, client_id)

    def close_because(self, reason: str, client_id: str | None) -> None:
        """Log `reason` and close, when a handler has no response to report an error with (Produce with acks=0)."""
        self.server.bad_peers.closed(self.peer, self._loop.time(), reason, client_id)
        self.close()

    # -- back pressure ------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop reading from the peer."""
        if self._is_reading:
            self._is_reading = False
            self._reader.hold()
            self._mid_frame_since = 0.0
            self._transport.pause_reading()

    def hold(self) -> None:
        """Pass no further request of this connection to a handler until `release`, because an earlier one is still processed."""
        self._in_flight_bytes += HELD

    def release(self) -> None:
        """Undo `hold`, and resume in the next iteration of the loop."""
        self._in_flight_bytes -= HELD
        if not self.closed:
            self._maybe_resume()

    def mute(self, duration_s: float) -> None:
        """Pass no further request to a handler for `duration_s`; responses still leave (KIP-219). Mutes do not add up: the later
        end counts."""
        if self.closed or duration_s <= 0:
            return
        self._muted_until = max(self._muted_until, self._loop.time() + duration_s)
        if self._mute_timer is None:
            self.hold()
            self._mute_timer = self._loop.call_at(self._muted_until, self._maybe_unmute)

    def _maybe_unmute(self) -> None:
        if self._muted_until > self._loop.time():
            self._mute_timer = self._loop.call_at(self._muted_until, self._maybe_unmute)
            return
        self._mute_timer = None
        self.release()

    # -- authentication -----------------------------------------------------------------------------------------------

    def restrict(self, handlers: Mapping[int, Handler], decode: Decoder, frame_bytes_max: int) -> None:
        """Accept only the requests that `handlers` and `decode` accept, until `unrestrict`."""
        self.handlers, self._decode = handlers, decode
        self._reader.frame_bytes_max = frame_bytes_max

    def unrestrict(self) -> None:
        """Accept every request that the server handles."""
        self.restrict(self.server.handlers, frames.decode_request, self.server.limits.max_frame_bytes)

    def _maybe_resume(self) -> None:
        """Resume reading when at most half of the limits is in flight. In the next iteration, never from within a handler."""
        if (
            not self._is_reading
            and not self._is_resume_scheduled
            and not self._is_peer_slow
            and self._in_flight <= self.server.limits.max_in_flight_per_connection // 2
            and self._in_flight_bytes <= self.server.limits.in_flight_bytes_max // 2
        ):
            self._is_resume_scheduled = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._is_resume_scheduled = False
        if self.closed or self.server.is_stopping or self._is_peer_slow or self._in_flight_bytes >= HELD:
            return  # When this obstacle ends, `_maybe_resume` is called again.
        self._is_reading = True
        self.last_received_at = self._loop.time()
        self._free_at = self.stopwatch()
        self._transport.resume_reading()
        self._take_frames()

    # -- answers ------------------------------------------------------------------------------------------------------

    def encode(self, request: ServerRequest, body: Message, records: Records | None) -> list[Buffer]:
        """The frame of a response. (A Kafka client's connection has another encoding.)"""
        return frames.encode_response(request.correlation_id, body, records)

    def encode_refusal(self, request: ServerRequest, code: ErrorCode, message: str | None) -> list[Buffer]:
        """The frame of a response that refuses a request."""
        return frames.encode_refusal(request.correlation_id, code, message)

    def encode_nothing(self, request: ServerRequest) -> list[Buffer]:
        """The bytes to send for a request that gets no response."""
        return []

    def on_answer(self, size: int, buffers: list[Buffer]) -> None:
        """Send `buffers`, the response to a request whose frame had `size` bytes, and resume reading if the limits allow it."""
        self._in_flight -= 1
        self._in_flight_bytes -= size
        self._write(buffers)
        if not self._is_reading:
            self._maybe_resume()
            if self.server.is_stopping:
                self.server.on_progress()

    def _refuse(self, correlation_id: int, code: ErrorCode, message: str) -> None:
        self._write(frames.encode_refusal(correlation_id, code, message))

    def _write(self, buffers: list[Buffer]) -> None:
        self._out += buffers
        for buffer in buffers:
            self._out_bytes += len(buffer)
        if self._out_bytes > self.server.limits.write_buffer_bytes_high:
            self._flush()  # so that a peer that does not read is noticed before the next response
        elif not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._end_of_iteration.call_to_write(self._on_end_of_iteration)

    def _on_end_of_iteration(self) -> None:
        self._is_flush_scheduled = False
        if self._out:
            self._flush()

    def _flush(self) -> None:
        out, size = self._out, self._out_bytes
        self._out, self._out_bytes = [], 0
        if not out or self._transport.is_closing():
            return
        self.server.bytes_out += size
        self._transport.writelines(out)
        if self._pauses_late and not self._is_peer_slow:
            self._transport.set_write_buffer_limits(high=self.server.limits.write_buffer_bytes_high)
        if self._is_peer_slow and self._unsent_bytes() > self.server.limits.write_buffer_bytes_max:
            reason = "it does not read its responses: too many bytes wait"
            self.server.bad_peers.closed(self.peer, self._loop.time(), reason, self.client_id)
            self.abort()

    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send the responses that are ready, then close."""
        if not self.closed:
            self._flush()
            self.closed = True
            self._transport.close()

    def abort(self) -> None:
        """Close without sending the responses that are ready."""
        self.closed = True
        self._out.clear()
        self._transport.abort()

    def check(self, now: float, limits: Limits) -> None:
        """Close the connection if it has exceeded a time limit. The server calls this regularly."""
        if self._mid_frame_since and now - self._mid_frame_since > limits.frame_ms_max / 1000:
            reason = f"a frame was not complete after {limits.frame_ms_max} ms"
            self.server.bad_peers.closed(self.peer, now, reason, self.client_id)
            self.abort()
        elif self._is_peer_slow or self.closed:
            unsent = self._unsent_bytes()
            if unsent != self._stalled_bytes:
                self._stalled_at, self._stalled_bytes = now, unsent
            elif now - self._stalled_at > limits.write_stall_ms_max / 1000:
                reason = f"it read nothing for {limits.write_stall_ms_max} ms"
                self.server.bad_peers.closed(self.peer, now, reason, self.client_id)
                self.abort()
        elif not self._in_flight and now - self.last_received_at > limits.idle_ms_max / 1000:
            logger.debug("connection.idle_closed", peer=self.peer, client_id=printable(self.client_id))
            self.close()

    def __repr__(self) -> str:
        return f"<connection {self.id} from {self.peer}>"


def answer_error(request: ServerRequest, e: Exception) -> None:
    """Answer a request whose handler raised `e`: a BrokerError by its code, anything else as UNKNOWN_SERVER_ERROR, with a
    traceback."""
    if not isinstance(e, BrokerError):
        suppressed = request.connection.server.bugs.admit(api_name(request.api_key), request.received_at)
        if suppressed is not None:
            client_id, peer = printable(request.client_id), request.connection.peer
            logger.error(
                "request.failed", api=api_name(request.api_key), client_id=client_id, peer=peer, exc_info=e, **suppressed.fields
            )
    if not request.is_open:
        return
    if isinstance(e, BrokerError):
        request.refuse(e.code, e.message)
    else:
        request.refuse(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(e).__name__}: {e}")
