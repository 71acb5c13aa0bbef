"""One request of a Kafka client, and the functions that translate it.

A `KafkaCall` is the client's request: its version, its fields, and the notes that its answer needs. The handler of the broker
gets a `ServerRequest`, as from any other client, whose body is a message of Strandline's protocol ("ours"). `KafkaApi` has the
functions that translate between the two:

    frame --read--> fields --to_ours--> our request --handler--> our response --to_kafka--> fields --write--> frame

Produce and Fetch have a `read` and a `write` of their own, because record batches are neither copied nor decoded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from struct import error as UnpackError
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from strandline.broker.kafka.codec import REQUIRED, Field, Struct, skip_tagged
from strandline.broker.kafka.heads import response_frame
from strandline.protocol.apis import API_VERSIONS
from strandline.protocol.errors import BrokerError, ErrorCode, PeerError
from strandline.protocol.field_paths import with_field_names
from strandline.protocol.frames import Buffer, Records
from strandline.protocol.messages.common import Message

if TYPE_CHECKING:
    from strandline.broker.kafka.context import KafkaContext
    from strandline.protocol.rpc.server_connection import Handler, ServerConnection, ServerRequest


class KafkaCall:
    """One request of a Kafka client."""

    __slots__ = (
        "api",
        "buffers",
        "connection",
        "context",
        "correlation_id",
        "earlier",
        "fields",
        "notes",
        "size",
        "version",
        "whole",
    )

    def __init__(
        self,
        api: KafkaApi,
        version: int,
        correlation_id: int,
        size: int,
        connection: ServerConnection,
        context: KafkaContext,
    ) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.size = size
        """The bytes of its frame."""
        self.connection = connection
        self.context = context
        """The parts of the broker that translations use: metadata, rights, settings."""
        self.fields: Any = None
        """The body of the request: `Fields`, unless the API has a `read` of its own."""
        self.notes: Any = None
        """Free for the translation: what `to_ours` leaves for `to_kafka`, for example the items that need no handler."""
        self.whole: Any = None
        """All fields of a request that is served in slices (`slices.py`)."""
        self.earlier: tuple[str, list[Any]] | None = None
        """The rows of the slices before the last one, and their field of the response."""
        self.buffers: list[Buffer] | None = None
        """The frame of the answer; None until it is ready, empty if no answer is sent."""


ToOurs = Callable[[KafkaCall], Message]
"""Returns our request for the call. Raises BrokerError to refuse the call as a whole."""
ToKafka = Callable[[KafkaCall, Any], dict[str, Any]]
"""Returns the fields of Kafka's response, for our response: the fields of all versions. The codec writes only those that the
version has."""
Refused = Callable[[KafkaCall, ErrorCode, str | None], dict[str, Any]]
"""Returns the fields of Kafka's response to a call that is refused as a whole."""
Serve = Callable[["ServerRequest", KafkaCall, "Handler"], Awaitable[None] | None]
"""Sets `request.body` and calls the handler, or answers the request itself."""
Read = Callable[[KafkaCall, bytearray, int], Any]
"""Reads the body of the request at an offset of the frame."""
WriteFrame = Callable[[KafkaCall, Message, Records | None], list[Buffer]]
"""Returns the frame of Kafka's response, for our response and its records."""


class KafkaApi(NamedTuple):
    """One API of Kafka, and the functions that serve it.

    `advertised_min` differs from `min_version` for Produce alone (KAFKA-18659)."""

    key: int
    name: str
    ours: int
    """The key of our API whose handler answers."""
    min_version: int
    max_version: int
    to_ours: ToOurs
    to_kafka: ToKafka
    refused: Refused
    serve: Serve | None = None
    """Used instead of `to_ours` and one call of the handler, for APIs that need more than that."""
    read: Read | None = None
    write: WriteFrame | None = None
    advertised_min: int = -1


def read_body(call: KafkaCall, frame: bytearray, at: int) -> Any:
    """Read the body of a request. Raises PeerError if it does not follow its schema, which closes the connection, as in Kafka."""
    api = call.api
    try:
        if api.read is not None:
            return api.read(call, frame, at)
        codec = call.context.schemas.request(api.key, call.version)
        if codec.is_flexible:
            at = skip_tagged(frame, at)
        fields, at = codec.read(frame, at)
    except PeerError as e:
        raise PeerError(f"{api.name} version {call.version}: {e}") from None
    except (IndexError, ValueError, OverflowError, RecursionError, UnpackError) as e:
        raise PeerError(f"{api.name} version {call.version}: malformed: {e}") from None
    return fields


def checked(handler: Handler, request: ServerRequest) -> Awaitable[None] | None:
    """Call a handler if our request is within the limits of Strandline's protocol; raise BrokerError (INVALID_REQUEST) otherwise,
    as for a client of that protocol. Kafka's fields allow more, such as a leader epoch of -9, which no answer of ours could
    repeat."""
    check_limits(request.body)
    return handler(request)


def check_limits(body: Message) -> None:
    """Raise BrokerError (INVALID_REQUEST) if the message breaks a limit that the decoder of Strandline's protocol checks."""
    try:
        _decoder(type(body)).decode(_encode(body))
    except msgspec.ValidationError as e:
        raise BrokerError(ErrorCode.INVALID_REQUEST, with_field_names(type(body), str(e))) from None


_encode = msgspec.msgpack.Encoder().encode


@cache
def _decoder(kind: type[Message]) -> msgspec.msgpack.Decoder[Message]:
    return msgspec.msgpack.Decoder(kind)


def answer_fields(call: KafkaCall, body: Any) -> dict[str, Any]:
    """The fields of a response, those of earlier slices included."""
    fields = call.api.to_kafka(call, body)
    if call.earlier is not None:
        name, rows = call.earlier
        fields[name] = rows + list(fields[name])
    return fields


def refusal_fields(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    """The fields of a response to a request that is refused as a whole."""
    if call.whole is not None:
        call.fields = call.whole
    return call.api.refused(call, code, message)


def write_fields(call: KafkaCall, fields: dict[str, Any]) -> list[Buffer]:
    """The frame of a response."""
    codec = call.context.schemas.response(call.api.key, call.version)
    body = bytearray()
    codec.write(body, fields)
    return response_frame(call.correlation_id, codec.is_flexible and call.api.key != API_VERSIONS, body)


def refused_at_top(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    """`Refused` for the APIs whose response has an error code at the top. All other fields are empty."""
    struct = call.context.schemas.response(call.api.key, call.version).struct
    given: dict[str, Any] = {"error_code": code, "error_message": message, "throttle_time_ms": 0}
    return {field.name: given.get(field.name, _empty(field)) for field in struct.fields}


def _empty(field: Field) -> Any:
    if field.default is not REQUIRED:
        return field.default
    if field.is_nullable:
        return None
    if field.is_array:
        return []
    if isinstance(field.kind, Struct):
        return {inner.name: _empty(inner) for inner in field.kind.fields}
    return {"string": "", "bytes": b"", "uuid": bytes(16), "bool": False}.get(field.kind, -1)
