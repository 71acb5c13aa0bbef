"""One accepted connection and its requests: reads frames, calls handlers, writes what they answer.

What a peer may do is bounded everywhere (`Limits`). A bad *request* gets an error code; a bad *connection* is closed:

    frame length out of bounds, not msgpack, not five elements, unknown API    closed
    API that is known, version or role that is not                             refused: UNSUPPORTED_VERSION (version: and closed)
    body that breaks its schema                                                refused: INVALID_REQUEST
    too many requests in flight, peer does not read its responses              reading pauses
    peer reads nothing for long, or too much is waiting for it                 closed
    a frame begun and not completed, idle for long                             closed
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from strandline.protocol import frames
from strandline.protocol.apis import API_VERSIONS, APIS, FETCH, api_name
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError, PeerError, UsageError
from strandline.protocol.frames import Buffer, Records
from strandline.protocol.log_limits import printable
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.frame_reader import FrameReader
from strandline.protocol.rpc.request_metrics import FETCH_FOLLOWER, ApiMetrics
from strandline.protocol.rpc.sockets import describe_peer, pauses_late, tune_socket

if TYPE_CHECKING:
    from strandline.protocol.rpc.server import Server

logger = get_logger(__name__)

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What one peer may claim of a server."""

    max_frame_bytes: int = 100 * MIB
    max_in_flight_per_connection: int = 1000
    """Requests read and not answered; at this number reading pauses."""
    in_flight_bytes_max: int = 256 * MIB
    """Likewise for the bytes of their frames. A frame is read whole, so this may be exceeded by one frame."""
    write_buffer_bytes_high: int = MIB
    """Unsent response bytes at which reading pauses."""
    write_buffer_bytes_max: int = 256 * MIB
    """Unsent response bytes at which the connection is closed. Larger than any single response."""
    write_stall_ms_max: int = 30_000
    """How long a peer may read nothing of what waits for it."""
    frame_ms_max: int = 30_000
    """From a frame's first byte to its last (time in which we paused reading is not counted)."""
    idle_ms_max: int = 600_000
    """Without a request and with none in flight."""
    max_connections: int = 10_000
    """Also bounded by the process's limit of open files, of which `reserved_files` (at most half) are left to the log."""
    reserved_files: int = 256
    accept_backlog: int = 1024

    def __post_init__(self) -> None:
        if min(self.max_frame_bytes, self.max_in_flight_per_connection, self.in_flight_bytes_max) < 1:
            raise UsageError("limits of a connection must be at least 1")
        if self.write_buffer_bytes_high > self.write_buffer_bytes_max:
            raise UsageError("write_buffer_bytes_high must not be larger than write_buffer_bytes_max")

    def connections_max(self, open_files_max: int) -> int:
        return min(self.max_connections, max(open_files_max - self.reserved_files, open_files_max // 2))


class ServerRequest(msgspec.Struct, eq=False):
    """One request; answered once by `reply`, `refuse` or `no_reply`, at any time."""

    connection: ServerConnection
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: Any
    """A message of the API's request class."""
    received_at: float
    """Loop time."""
    _size: int
    _metrics: ApiMetrics
    _arrived_at: float
    """By the server's stopwatch."""
    _is_answered: bool = False

    @property
    def is_open(self) -> bool:
        """Not answered yet, and there is still somebody to answer."""
        return not self._is_answered and not self.connection.closed

    def reply(self, body: Message, records: Records | None = None) -> None:
        connection = self.connection
        if not connection.closed:
            self._answer(frames.encode_response(self.correlation_id, body, records))
            self._metrics.on_answer(connection._stopwatch() - self._arrived_at, body)

    def refuse(self, code: ErrorCode, message: str | None = None) -> None:
        """Refuse the request as a whole: for errors that are not those of one partition or topic."""
        if not self.connection.closed:
            self._answer(frames.encode_refusal(self.correlation_id, code, message))
            self._metrics.on_refusal(self.connection._stopwatch() - self._arrived_at, code)

    def no_reply(self) -> None:
        """The asker expects no response (Produce with acks=0)."""
        if not self.connection.closed:
            self._answer([])
            self._metrics.total.observe(self.connection._stopwatch() - self._arrived_at)

    def _answer(self, buffers: list[Buffer]) -> None:
        if self._is_answered:
            raise InternalError(f"{self!r} was answered twice")
        self._is_answered = True
        self.connection._on_answer(self._size, buffers)

    def __repr__(self) -> str:
        return f"<{api_name(self.api_key)} {self.correlation_id} from {self.client_id} at {self.connection.peer}>"


Handler = Callable[[ServerRequest], None] | Callable[[ServerRequest], Awaitable[None]]


class ServerConnection(asyncio.BufferedProtocol):
    """One accepted connection."""

    __slots__ = (
        "_arrived_at",
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
        "_out",
        "_out_bytes",
        "_pauses_late",
        "_reader",
        "_server",
        "_stalled_at",
        "_stalled_bytes",
        "_stopwatch",
        "_transport",
        "client_id",
        "closed",
        "closed_by_peer",
        "id",
        "last_received_at",
        "listener_name",
        "peer",
        "tag",
    )

    def __init__(self, server: Server, connection_id: int) -> None:
        self._server = server
        self._loop = server._loop
        assert server._end_of_iteration is not None
        self._end_of_iteration = server._end_of_iteration
        self.id = connection_id
        self.peer = "?"
        self.listener_name = server.listener_name
        self.client_id: str | None = None
        """As the last request had it."""
        self.tag: object | None = None
        """For the owner: for example which broker this is."""
        self.closed = False
        """Set before the transport is told, so that late answers stop here."""
        self.closed_by_peer = False
        """The peer's FIN or RST came: its host was there a moment ago, and whoever held the connection let go of it."""
        self._transport: asyncio.Transport
        self._reader = FrameReader(server.limits.max_frame_bytes, server._scratch)
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._out: list[Buffer] = []
        """Answers of this loop turn; one `writelines` at its end."""
        self._out_bytes = 0
        self._is_flush_scheduled = self._is_resume_scheduled = False
        self._is_reading = True
        self._is_peer_slow = False
        """The transport's buffer is above its high mark."""
        self._pauses_late = False
        """See `sockets.pauses_late`."""
        self.last_received_at = self._loop.time()
        self._mid_frame_since = 0.0
        """When the first byte of an incomplete frame came; 0: none is incomplete."""
        self._stalled_at = self._stalled_bytes = 0.0
        self._stopwatch = server.metrics.stopwatch
        self._arrived_at = 0.0
        """When bytes were read last, by the stopwatch."""
        self._free_at = 0.0
        """When the request before the next one left its handler, or the next one arrived if that was later."""

    @property
    def in_flight(self) -> int:
        """Requests that were handed to handlers and are not answered."""
        return self._in_flight

    # -- asyncio's callbacks ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]
        self.peer = describe_peer(transport)
        if not self._server._admit(self):
            self.abort()
            return
        self._transport.set_write_buffer_limits(high=self._server.limits.write_buffer_bytes_high)
        self._pauses_late = pauses_late(transport)
        tune_socket(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed and isinstance(exc, (ConnectionResetError, BrokenPipeError)):
            self.closed_by_peer = True
        self.closed = True
        self._out.clear()
        self._server._on_connection_lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        self.last_received_at = self._loop.time()
        self._arrived_at = self._free_at = self._stopwatch()
        self._server.bytes_in += nbytes
        self._reader.received(nbytes)
        self._take_frames()

    def eof_received(self) -> bool:
        """The peer will send no more: it gets the answers that are ready, and parked ones are dropped with it."""
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
        """Hand on every whole frame, until there is none or this peer has enough in flight."""
        reader, limits = self._reader, self._server.limits
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
        except PeerError as e:
            self._on_bad_peer(e)
            return
        self._pause()

    def _note_mid_frame(self) -> None:
        if not self._reader.is_mid_frame:
            self._mid_frame_since = 0.0
        elif not self._mid_frame_since:
            self._mid_frame_since = self.last_received_at

    def _on_frame(self, frame: bytearray) -> None:
        try:
            head = frames.decode_request(frame)
        except frames.BadBody as e:
            self._refuse(e.head.correlation_id, ErrorCode.INVALID_REQUEST, str(e))
            self.on_malformed(str(e), e.head.client_id)
            return
        except frames.UnsupportedVersion as e:
            self._on_unsupported(e)
            return
        self.client_id = head.client_id
        api_key, size = head.api_key, len(frame)
        handler = self._server.handlers.get(api_key)
        if handler is None:
            text = f"{api_name(api_key)} is not served by this node"
            self._refuse(head.correlation_id, ErrorCode.UNSUPPORTED_VERSION, text)
            return
        arrived_at, begins_at = self._arrived_at, self._free_at
        is_followers = api_key == FETCH and head.body.replica_id >= 0
        metrics = self._server.metrics[FETCH_FOLLOWER if is_followers else api_key]
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
                self._server._run(request, result)
        self._free_at = self._stopwatch()
        metrics.local_s += self._free_at - begins_at

    def _on_unsupported(self, e: frames.UnsupportedVersion) -> None:
        """ApiVersions of any version is answered, so that a newer peer learns what we speak; others are closed."""
        head = e.head
        if head.api_key == API_VERSIONS:
            self._write(frames.encode_response(head.correlation_id, self._server.api_versions(ErrorCode.UNSUPPORTED_VERSION)))
            return
        if head.api_key in APIS:
            self._refuse(head.correlation_id, ErrorCode.UNSUPPORTED_VERSION, str(e))
        self._server.bad_peers.closed(self.peer, self._loop.time(), str(e), head.client_id)
        self.close()

    def _on_bad_peer(self, e: PeerError) -> None:
        self._server.bad_peers.closed(self.peer, self._loop.time(), str(e), self.client_id)
        self.close()

    def on_malformed(self, reason: str, client_id: str | None) -> None:
        """A request of this peer was refused for what it holds (for a handler, too: batches that fail their checksum)."""
        self._server.bad_peers.refused(self.peer, self._loop.time(), reason, client_id)

    def close_because(self, reason: str, client_id: str | None) -> None:
        """A handler can tell this peer in no other way that something is wrong."""
        self._server.bad_peers.closed(self.peer, self._loop.time(), reason, client_id)
        self.close()

    # -- back pressure ------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._reader.hold()
            self._mid_frame_since = 0.0
            self._transport.pause_reading()

    def _maybe_resume(self) -> None:
        """Take up reading again when half of what is allowed has been answered; not from within a handler."""
        if (
            not self._is_reading
            and not self._is_resume_scheduled
            and not self._is_peer_slow
            and self._in_flight <= self._server.limits.max_in_flight_per_connection // 2
            and self._in_flight_bytes <= self._server.limits.in_flight_bytes_max // 2
        ):
            self._is_resume_scheduled = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._is_resume_scheduled = False
        if self.closed or self._server.is_stopping or self._is_peer_slow:
            return
        self._is_reading = True
        self.last_received_at = self._loop.time()
        self._free_at = self._stopwatch()
        self._transport.resume_reading()
        self._take_frames()

    # -- answers ------------------------------------------------------------------------------------------------------

    def _on_answer(self, size: int, buffers: list[Buffer]) -> None:
        self._in_flight -= 1
        self._in_flight_bytes -= size
        self._write(buffers)
        if not self._is_reading:
            self._maybe_resume()
            if self._server.is_stopping:
                self._server._on_progress()

    def _refuse(self, correlation_id: int, code: ErrorCode, message: str) -> None:
        self._write(frames.encode_refusal(correlation_id, code, message))

    def _write(self, buffers: list[Buffer]) -> None:
        self._out += buffers
        for buffer in buffers:
            self._out_bytes += len(buffer)
        if self._out_bytes > self._server.limits.write_buffer_bytes_high:
            self._flush()  # so that a peer that does not read is noticed before the next answer
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
        self._server.bytes_out += size
        self._transport.writelines(out)
        if self._pauses_late and not self._is_peer_slow:
            self._transport.set_write_buffer_limits(high=self._server.limits.write_buffer_bytes_high)
        if self._is_peer_slow and self._unsent_bytes() > self._server.limits.write_buffer_bytes_max:
            reason = "it does not read its responses: too many bytes wait"
            self._server.bad_peers.closed(self.peer, self._loop.time(), reason, self.client_id)
            self.abort()

    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close after what is already answered has been sent."""
        if not self.closed:
            self._flush()
            self.closed = True
            self._transport.close()

    def abort(self) -> None:
        """Close now."""
        self.closed = True
        self._out.clear()
        self._transport.abort()

    def _check(self, now: float, limits: Limits) -> None:
        """Called by the server's sweep: is this connection still worth its file descriptor?"""
        if self._mid_frame_since and now - self._mid_frame_since > limits.frame_ms_max / 1000:
            reason = f"a frame was not complete after {limits.frame_ms_max} ms"
            self._server.bad_peers.closed(self.peer, now, reason, self.client_id)
            self.abort()
        elif self._is_peer_slow or self.closed:
            unsent = self._unsent_bytes()
            if unsent != self._stalled_bytes:
                self._stalled_at, self._stalled_bytes = now, unsent
            elif now - self._stalled_at > limits.write_stall_ms_max / 1000:
                reason = f"it read nothing for {limits.write_stall_ms_max} ms"
                self._server.bad_peers.closed(self.peer, now, reason, self.client_id)
                self.abort()
        elif not self._in_flight and now - self.last_received_at > limits.idle_ms_max / 1000:
            logger.debug("connection.idle_closed", peer=self.peer, client_id=printable(self.client_id))
            self.close()

    def __repr__(self) -> str:
        return f"<connection {self.id} from {self.peer}>"


def answer_error(request: ServerRequest, e: Exception) -> None:
    """The uniform mapping of what a handler raises."""
    if not isinstance(e, BrokerError):
        suppressed = request.connection._server.bugs.admit(api_name(request.api_key), request.received_at)
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
