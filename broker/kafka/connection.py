"""A connection of a Kafka client: it translates between Kafka's frames and Strandline's requests.

Answers are sent in the order of the requests. As in Kafka, a request is served when all requests before it are answered, so it
sees their effects. The exception is a Produce request after Produce requests: the batches of the earlier ones are already in the
log, and only wait for followers.

Mistakes of a client have the same effect as in Kafka. Bytes that are no request, an API or a version that is not served, and any
request before the authentication close the connection. The response to ApiVersions of an unknown version lists the versions that
are served (KIP-511).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol, cast

from strandline.broker.kafka.call import KafkaApi, KafkaCall, answer_fields, checked, read_body, refusal_fields, write_fields
from strandline.broker.kafka.codec import TooLargeError
from strandline.broker.kafka.context import KafkaContext
from strandline.broker.kafka.errors import kafka_code
from strandline.broker.kafka.heads import read_head
from strandline.broker.kafka.raw_sasl import RAW_SASL
from strandline.broker.kafka.slices import has_slices, run, serve_in_slices
from strandline.broker.kafka.wrong_protocol import refusal, speaks_strandline
from strandline.protocol.apis import API_VERSIONS, PRODUCE
from strandline.protocol.errors import ErrorCode, PeerError
from strandline.protocol.frames import Buffer, Records
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.request_memory import BoundedConnection, RequestMemory
from strandline.protocol.rpc.server_connection import ConnectionServer, Handler, ServerConnection, ServerRequest, answer_error

logger = get_logger(__name__)

_PRODUCE_HEAD = PRODUCE.to_bytes(2, "big")


class KafkaListener(ConnectionServer, Protocol):
    """The part of a Kafka listener that its connections use."""

    context: KafkaContext
    strandline_address: str
    """The address at which Strandline's clients reach this broker."""
    kafka_apis: Mapping[int, KafkaApi]
    """The APIs that are served, by Kafka's key."""
    unknown_api_versions: KafkaApi
    """Answers ApiVersions in a version that is not served."""


class _KafkaFrames(ServerConnection):
    """Turns frames into requests, and answers into frames.

    `encode` keeps the answer in its call, because an earlier request may have to be answered first
    (`KafkaConnection.on_answer`)."""

    __slots__ = ()

    server: KafkaListener
    _calls: dict[int, KafkaCall]
    _number: int
    is_raw_sasl: bool

    def keep(self, frame: bytearray) -> None:
        """Serve this frame when the requests before it are answered."""
        raise NotImplementedError

    def _on_frame(self, frame: bytearray) -> None:
        if self._calls and not self._may_overlap(frame):
            self.keep(frame)
            return
        call, client_id, body_at = self._call_of(frame)
        handler = self.handlers.get(call.api.ours)
        if handler is None:
            raise PeerError(f"it sent {call.api.name} {self._why_not}")
        call.fields = read_body(call, frame, body_at)
        self.client_id = client_id
        self._serve(call, handler, self._request_of(call, client_id))

    def _may_overlap(self, frame: bytearray) -> bool:
        """Whether the frame and the requests before it are Produce. (If one of those is, all are.)"""
        return frame.startswith(_PRODUCE_HEAD) and next(iter(self._calls.values())).api.ours == PRODUCE

    @property
    def _why_not(self) -> str:
        return "before it was authenticated" if self.handlers is not self.server.handlers else "which this broker does not serve"

    def _call_of(self, frame: bytearray) -> tuple[KafkaCall, str | None, int]:
        context = self.server.context
        if self.is_raw_sasl:
            return KafkaCall(RAW_SASL, 0, 0, len(frame), self, context), self.client_id, 0
        try:
            head = read_head(frame)
            api = self.server.kafka_apis.get(head.api_key)
            if api is None:
                raise PeerError(f"API {head.api_key} of Kafka's protocol is not served")
        except PeerError as e:
            raise self._unreadable(frame, e) from None
        version = head.api_version
        if not api.min_version <= version <= api.max_version:
            if api.ours != API_VERSIONS:
                raise PeerError(f"version {version} of {api.name} is not served, but {api.min_version} to {api.max_version}")
            api, version = self.server.unknown_api_versions, 0
        return KafkaCall(api, version, head.correlation_id, len(frame), self, context), head.client_id, head.end

    def _unreadable(self, frame: bytearray, e: PeerError) -> PeerError:
        """The error of a frame that is no request of Kafka's. A client of Strandline is answered in its own protocol first,
        because its operator may have entered the wrong port."""
        address = self.server.strandline_address
        if not speaks_strandline(frame):
            return e
        self._write(refusal(frame, address))
        reason = f"it sent Strandline's protocol to listener {self.listener_name}, which speaks Kafka's"
        return PeerError(f"{reason}; Strandline's listener is {address}")

    def _request_of(self, call: KafkaCall, client_id: str | None) -> ServerRequest:
        metrics = self.server.metrics[call.api.ours]
        metrics.on_request(call.size, self._free_at - self._arrived_at)
        self._number += 1  # type: ignore[misc]  # a slot of KafkaConnection
        self._calls[self._number] = call
        self._in_flight += 1
        self._in_flight_bytes += call.size
        return ServerRequest(
            self, call.api.ours, 0, self._number, client_id, None, self.last_received_at, call.size, metrics, self._arrived_at
        )

    def _serve(self, call: KafkaCall, handler: Handler, request: ServerRequest) -> None:
        begins_at = self._free_at
        api = call.api
        serve = run
        if api.read is None:
            handler = cast(Handler, partial(checked, handler))
            serve = serve_in_slices if has_slices(call) else run
        try:
            result = serve(request, call, handler)
        except Exception as e:
            answer_error(request, e)
        else:
            if result is not None:
                self.server.run_coroutine(request, result)
        self._free_at = self.stopwatch()
        request._metrics.local_s += self._free_at - begins_at

    # -- answers ------------------------------------------------------------------------------------------------------

    def encode(self, request: ServerRequest, body: Message, records: Records | None) -> list[Buffer]:
        call = self._calls[request.correlation_id]
        write = call.api.write
        try:
            call.buffers = write_fields(call, answer_fields(call, body)) if write is None else write(call, body, records)
        except Exception as e:
            self._on_bug(request, call, e)
        return []

    def encode_refusal(self, request: ServerRequest, code: ErrorCode, message: str | None) -> list[Buffer]:
        call = self._calls[request.correlation_id]
        try:
            call.buffers = write_fields(call, refusal_fields(call, ErrorCode(kafka_code(code)), message))
        except Exception as e:
            self._on_bug(request, call, e)
        return []

    def _on_bug(self, request: ServerRequest, call: KafkaCall, e: Exception) -> None:
        """Close the connection, because the answer is too large or a bug prevents its translation. If the connection stayed open,
        the client would wait for the answer."""
        call.buffers = []
        if isinstance(e, TooLargeError):
            self.close_because(f"the answer to its {call.api.name} request would have {e}", self.client_id)
            return
        suppressed = self.server.bugs.admit(call.api.name, request.received_at)
        if suppressed is not None:
            logger.error("request.failed", api=call.api.name, peer=self.peer, exc_info=e, **suppressed.fields)
        self.close()

    def encode_nothing(self, request: ServerRequest) -> list[Buffer]:
        self._calls[request.correlation_id].buffers = []
        return []


class KafkaConnection(BoundedConnection, _KafkaFrames):
    """One connection of a Kafka client."""

    __slots__ = ("_calls", "_next", "_number", "asked", "is_raw_sasl")

    def __init__(self, server: KafkaListener, connection_id: int, memory: RequestMemory) -> None:
        super().__init__(server, connection_id, memory)
        self._calls: dict[int, KafkaCall] = {}
        """Number of a request -> its call, in the order of the requests, until its answer is sent."""
        self._next: bytearray | None = None
        """The frame that waits until the requests in `_calls` are answered."""
        self._number = 0
        self.is_raw_sasl = False
        """Whether the next frames are tokens of SASL without a head (SaslHandshake version 0)."""
        self.asked: dict[asyncio.Future[Any], None] = {}
        """The answers that requests of this connection wait for (`inner_request.py`)."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._calls.clear()
        self._next = None
        for answer in list(self.asked):
            answer.cancel()

    def unrestrict(self) -> None:
        super().unrestrict()
        self.is_raw_sasl = False

    def keep(self, frame: bytearray) -> None:
        self._next, self._kept = frame, len(frame)
        self.hold()

    def on_answer(self, size: int, buffers: list[Buffer]) -> None:
        """Send the answers that are ready, up to the first request that waits."""
        calls = self._calls
        while calls:
            number, call = next(iter(calls.items()))
            if call.buffers is None:
                return
            del calls[number]
            super().on_answer(call.size, call.buffers)
        if self._next is not None:
            self.release()

    def _take_frames(self) -> None:
        if self._next is not None:
            self._take_kept(self._next)
        if not self.closed:
            super()._take_frames()

    def _take_kept(self, frame: bytearray) -> None:
        self._next, self._kept = None, 0
        try:
            _KafkaFrames._on_frame(self, frame)
        except PeerError as e:
            self._on_bad_peer(e)
        else:
            self._count()
