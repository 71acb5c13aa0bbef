"""The heads of Kafka's frames.

    frame            u32 length | head | body
    request head     int16 api key | int16 api version | int32 correlation id | nullable string client id | tagged fields
    response head    int32 correlation id | tagged fields

Only flexible versions have tagged fields in their heads. The client id is a classic string (int16 length) in all versions, and
the response to ApiVersions has no tagged fields in any version, so that a client can read it before it knows the server's
versions (KIP-511).
"""

from __future__ import annotations

from struct import Struct as Pack
from typing import NamedTuple

from strandline.protocol.errors import PeerError
from strandline.protocol.frames import LENGTH, Buffer

_HEAD = Pack(">hhih")
_RESPONSE_HEAD = Pack(">Ii")
_TAGGED_RESPONSE_HEAD = Pack(">Iix")


CLIENT_ID_MAX = 1024
"""The maximum number of characters of a client id. A longer one is cut, because Strandline's messages do not accept it."""


class RequestHead(NamedTuple):
    """The head of a request. `end`: the offset after its client id."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    end: int


def read_head(frame: bytearray) -> RequestHead:
    """Read the head of a request's frame (without its length). Raises PeerError if it is malformed."""
    if len(frame) < _HEAD.size:
        raise PeerError(f"a frame of {len(frame)} bytes is no request of Kafka's protocol")
    api_key, version, correlation_id, length = _HEAD.unpack_from(frame)
    end = _HEAD.size + max(length, 0)
    if length < -1 or end > len(frame):
        raise PeerError("malformed head of a request: the client id is longer than the frame")
    try:
        client_id = None if length < 0 else frame[_HEAD.size : end].decode()[:CLIENT_ID_MAX]
    except UnicodeDecodeError:
        raise PeerError("malformed head of a request: the client id is no UTF-8") from None
    return RequestHead(api_key, version, correlation_id, client_id, end)


def response_frame(correlation_id: int, is_tagged: bool, body: Buffer) -> list[Buffer]:
    """The frame of a response. `is_tagged`: its head ends with tagged fields, of which there are none."""
    return response_frames(correlation_id, is_tagged, [body])


def response_frames(correlation_id: int, is_tagged: bool, body: list[Buffer]) -> list[Buffer]:
    """The frame of a response whose body is in several buffers, which are not copied."""
    size = sum(map(len, body))
    if is_tagged:
        return [_TAGGED_RESPONSE_HEAD.pack(size + 5, correlation_id), *body]
    return [_RESPONSE_HEAD.pack(size + 4, correlation_id), *body]


def raw_frame(body: bytes) -> list[Buffer]:
    """The frame of a SASL exchange after SaslHandshake version 0, which has no head."""
    return [LENGTH.pack(len(body)) + body]
