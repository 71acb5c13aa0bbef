"""Frames: encode messages to the bytes of a connection, and decode them.

    frame    := u32 length (big-endian, of what follows) | one msgpack array
    request  := [api_key, api_version, correlation_id, client_id, body]
    response := [correlation_id, body]                                        the ordinary case
              | [correlation_id, nil, error_code, error_message]              the request as a whole was refused

Every frame is a complete msgpack document that any msgpack library can read. `api_key` is one byte (a positive fixint), so byte 1
of the frame selects the typed decoder.

Record batches are the last field of their message (`messages/common.py`). An encoded frame is a list of buffers: one packed head,
then for each partition its `bin` header and the bytes of its batches, which are never copied:

    | length | head ... | array header of `records` | bin header | batch bytes | bin header | batch bytes | ...

Decoding is typed and copies no batches: `records` of a decoded message are memoryviews into the frame's buffer. They are writable
if the buffer is a bytearray, so that a broker can stamp base offsets in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct as Pack
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from strandline.protocol.apis import APIS, PRODUCE, api_name
from strandline.protocol.errors import PeerError
from strandline.protocol.field_paths import with_field_names
from strandline.protocol.messages.common import Message

Buffer = bytes | bytearray | memoryview
Records = Sequence[Sequence[Buffer]]
"""Per partition of the message: the buffers of its record batches, perhaps none."""

LENGTH = Pack(">I")
_BIN32 = Pack(">BI")
_ARRAY32 = Pack(">BI")
_EMPTY_ARRAY, _ARRAY_OF_5 = 0x90, 0x95
_BYTES_WITHOUT_RECORDS_MAX = 8 * 1024 * 1024
"""The largest request other than Produce; 100,000 partitions fit. A decoded list of small structs takes 30 times its bytes, and
0.1 s per MiB. Batches are not decoded, so Produce may be larger."""

_encoder = msgspec.msgpack.Encoder()


class RequestHead(msgspec.Struct, array_like=True, gc=False):
    """The first four fields of a request; decoding skips the body."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


_Body = TypeVar("_Body", bound=Message)


class Request(msgspec.Struct, Generic[_Body], array_like=True, gc=False):
    """A whole request: the frame's array is decoded directly into this class."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: _Body


class Refusal(NamedTuple):
    """A response that refuses the request as a whole."""

    correlation_id: int
    error_code: int
    error_message: str | None


_head_decoder = msgspec.msgpack.Decoder(RequestHead)


class _CorrelationOnly(msgspec.Struct, array_like=True, gc=False):
    correlation_id: int


class _RefusalFrame(msgspec.Struct, array_like=True, gc=False):
    correlation_id: int
    body: None
    error_code: int
    error_message: str | None = None


_correlation_only = msgspec.msgpack.Decoder(_CorrelationOnly)
_refusal_decoder = msgspec.msgpack.Decoder(_RefusalFrame)


class _Response(msgspec.Struct, Generic[_Body], array_like=True):
    """The frame of a response. It only names the fields in errors: a tuple is decoded faster."""

    correlation_id: int
    body: _Body


class _RequestDecoders(dict[int, Callable[[Buffer], Request[Any]]]):
    """Decoders by API key, each created at its first use. Raises KeyError for an unknown key."""

    def __missing__(self, key: int) -> Callable[[Buffer], Request[Any]]:
        decode = self[key] = msgspec.msgpack.Decoder(Request[APIS[key].request]).decode  # type: ignore[misc]
        return decode


class _ResponseDecoders(dict[int, Callable[[Buffer], tuple[int, Message]]]):
    """Decoders by API key, each created at its first use."""

    def __missing__(self, key: int) -> Callable[[Buffer], tuple[int, Message]]:
        decode = self[key] = msgspec.msgpack.Decoder(tuple[int, APIS[key].response]).decode  # type: ignore[misc]
        return decode


_request_decoders = _RequestDecoders()
_response_decoders = _ResponseDecoders()
_served_versions = {key: range(api.min_version, api.max_version + 1) for key, api in APIS.items()}


# -- encoding ---------------------------------------------------------------------------------------------------------


def encode_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, body: Message, records: Records | None = None
) -> list[Buffer]:
    """The frame of a request as a list of buffers for `writelines`.

    `records` become the last field of `body`, which must be empty there."""
    return _finish(_encoder.encode((api_key, api_version, correlation_id, client_id, body)), records)


def encode_response(correlation_id: int, body: Message, records: Records | None = None) -> list[Buffer]:
    """The frame of a response; parameters as in `encode_request`."""
    return _finish(_encoder.encode((correlation_id, body)), records)


def encode_refusal(correlation_id: int, error_code: int, error_message: str | None) -> list[Buffer]:
    """The frame of a response that refuses the request as a whole."""
    return _finish(_encoder.encode((correlation_id, None, error_code, error_message)), None)


def _finish(head: bytes, records: Records | None) -> list[Buffer]:
    if records is None:
        return [LENGTH.pack(len(head)) + head]
    if head[-1] != _EMPTY_ARRAY:
        raise ValueError("a message with records must be encoded with an empty `records` field, its last field")
    lead = head[:-1] + _array_header(len(records))
    total = len(lead) + _BIN32.size * len(records)
    buffers: list[Buffer] = []
    for parts in records:
        size = 0
        for part in parts:
            size += len(part)
        total += size
        lead += _BIN32.pack(0xC6, size)
        if size:
            buffers.append(lead)
            buffers += parts
            lead = b""
    if lead:
        buffers.append(lead)
    buffers[0] = LENGTH.pack(total) + buffers[0]
    return buffers


def _array_header(n: int) -> bytes:
    return bytes((0x90 | n,)) if n < 16 else _ARRAY32.pack(0xDD, n)


# -- decoding ---------------------------------------------------------------------------------------------------------


class BadBody(PeerError):
    """The frame's head is valid, its body does not match the schema. The server answers INVALID_REQUEST and does not close."""

    def __init__(self, head: RequestHead, message: str) -> None:
        super().__init__(message)
        self.head = head


class UnsupportedVersion(PeerError):
    """The frame's head is valid, but names an unknown API or version."""

    def __init__(self, head: RequestHead) -> None:
        super().__init__(f"{api_name(head.api_key)} version {head.api_version} is not supported")
        self.head = head


def decode_request(frame: Buffer) -> Request[Any]:
    """Decode the frame of a request (without its length field). Raises `BadBody` and `UnsupportedVersion`, for which the
    server can send an error response; after any other `PeerError` the connection must be closed."""
    if len(frame) < 2 or frame[0] != _ARRAY_OF_5:
        raise _unreadable(frame)
    if len(frame) > _BYTES_WITHOUT_RECORDS_MAX and frame[1] != PRODUCE and frame[1] in APIS:
        raise _bad_body(frame, frame[1], f"the request has {len(frame)} bytes; at most {_BYTES_WITHOUT_RECORDS_MAX} are accepted")
    try:
        request = _request_decoders[frame[1]](frame)
    except KeyError:
        raise _unreadable(frame) from None
    except msgspec.ValidationError as e:
        problem = with_field_names(Request[APIS[frame[1]].request], str(e))  # type: ignore[misc]
        raise _bad_body(frame, frame[1], problem) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise PeerError(f"malformed frame: {e}") from None
    if request.api_version not in _served_versions[request.api_key]:
        raise UnsupportedVersion(_head_decoder.decode(frame))
    return request


def decode_response(api_key: int, frame: Buffer) -> tuple[int, Message] | Refusal:
    """Decode the frame of a response to a request of `api_key`: (correlation id, body) or a `Refusal`. Raises PeerError if it is
    malformed."""
    try:
        return _response_decoders[api_key](frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        reason = str(e)
    try:
        refusal = _refusal_decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        problem = with_field_names(_Response[APIS[api_key].response], reason)  # type: ignore[misc]
        raise PeerError(f"malformed response to {api_name(api_key)}: {problem}") from None
    return Refusal(refusal.correlation_id, refusal.error_code, refusal.error_message)


def correlation_id_of(frame: Buffer) -> int:
    """Return the correlation id of a response's frame, which identifies the request and with it the type of the body."""
    if len(frame) >= 6 and 0x92 <= frame[0] <= 0x94:
        first = frame[1]
        if first < 0x80:
            return first
        if first in _UINT_END:
            return int.from_bytes(frame[2 : _UINT_END[first]], "big")
    try:
        return _correlation_only.decode(frame).correlation_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise PeerError(f"malformed response: {e}") from None


_UINT_END = {0xCC: 3, 0xCD: 4, 0xCE: 6}
"""First byte of a msgpack uint8, uint16 or uint32 -> the end of the number, if it starts at byte 1."""


def decode_head(frame: Buffer) -> RequestHead:
    """Decode the first four fields of a request of any API. Raises PeerError if it is malformed."""
    try:
        return _head_decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise PeerError(f"malformed frame: {e}") from None


def speaks_kafka(frame: Buffer) -> bool:
    """Whether a frame that cannot be decoded is the first request of a Kafka client: its API key has two bytes, the first of
    which begins no request here."""
    return len(frame) >= 10 and bytes(frame[:3]) in _FIRST_OF_KAFKA


_FIRST_OF_KAFKA = tuple(bytes((0, key, 0)) for key in (18, 3, 17))
"""ApiVersions, Metadata, SaslHandshake, and the upper byte of their version."""


def _unreadable(frame: Buffer) -> PeerError:
    try:
        head = decode_head(frame)
    except PeerError as e:
        return e
    if head.api_key in APIS:
        return PeerError("malformed frame: a request is an array of five elements")
    return UnsupportedVersion(head)


def _bad_body(frame: Buffer, api_key: int, reason: str) -> PeerError:
    try:
        head = decode_head(frame)
    except PeerError as e:
        return e
    api = APIS[api_key]
    if not api.min_version <= head.api_version <= api.max_version:
        return UnsupportedVersion(head)
    return BadBody(head, f"{api.name}: {reason}")
