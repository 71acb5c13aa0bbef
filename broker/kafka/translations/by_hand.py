"""The parts of Kafka's encoding that Produce and Fetch read and write by hand (`codec.py` describes it).

The functions of both encodings have the same shape, so that one reader serves all versions of an API:

    classic    fixed lengths and counts, no tagged fields
    flexible   lengths and counts as varints of n + 1, tagged fields after each struct
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct as Pack
from typing import Any, NamedTuple

from strandline.broker.kafka.call import KafkaCall
from strandline.broker.kafka.codec import read_varint, skip_tagged, write_varint
from strandline.protocol.errors import PeerError
from strandline.protocol.frames import LENGTH

INT32 = Pack(">i")
_INT16 = Pack(">h")


class Encoding(NamedTuple):
    """The functions that read the parts of one encoding. Each reads at an offset of the frame, and returns the offset after the
    part, too."""

    size: Callable[[bytearray, int], tuple[int, int]]
    """The size of bytes, or the count of an array; -1: null."""
    text: Callable[[bytearray, int], tuple[str | None, int]]
    skip_tags: Callable[[bytearray, int], int]


def _classic_size(frame: bytearray, at: int) -> tuple[int, int]:
    (size,) = INT32.unpack_from(frame, at)
    return size, at + 4


def _classic_text(frame: bytearray, at: int) -> tuple[str | None, int]:
    (size,) = _INT16.unpack_from(frame, at)
    return _text(frame, at + 2, size)


def _no_tags(frame: bytearray, at: int) -> int:
    return at


def _compact_size(frame: bytearray, at: int) -> tuple[int, int]:
    size = frame[at]
    if size < 0x80:
        return size - 1, at + 1
    second = frame[at + 1]
    if second < 0x80:
        return (size & 0x7F | second << 7) - 1, at + 2
    size, at = read_varint(frame, at)
    return size - 1, at


def _compact_text(frame: bytearray, at: int) -> tuple[str | None, int]:
    size, at = _compact_size(frame, at)
    return _text(frame, at, size)


def _skip_tags(frame: bytearray, at: int) -> int:
    return skip_tagged(frame, at) if frame[at] else at + 1


def _text(frame: bytearray, at: int, size: int) -> tuple[str | None, int]:
    if size < 0:
        return None, at
    end = at + size
    if end > len(frame) or size > TEXT_MAX:
        raise PeerError(f"a string of {size} bytes is announced, {len(frame) - at} are left")
    return frame[at:end].decode(), end


CLASSIC = Encoding(_classic_size, _classic_text, _no_tags)
FLEXIBLE = Encoding(_compact_size, _compact_text, _skip_tags)


ITEMS_MAX = 100_000


def items(count: int, frame: bytearray, at: int, before: int = 0, most: int = ITEMS_MAX) -> range:
    """The indexes of an array that must not be null, and has at least one byte per item. Raises PeerError if it claims more items
    than its bytes allow, or if the request then has more than `most` items of its kind, `before` of which precede the array.
    (Requests that are not read by hand have the limits of their messages, which `call.checked` enforces.)"""
    if not 0 <= count <= len(frame) - at:
        raise PeerError(f"an array of {count} items is announced, {len(frame) - at} bytes are left")
    if count + before > most:
        raise PeerError(f"the request has more than {most} topics or partitions")
    return range(count)


TEXT_MAX = 0x7FFF
"""The maximum bytes of a string. The classic encoding cannot have a larger one."""


def text(frame: bytearray, at: int, encoding: Encoding) -> tuple[str, int]:
    """A string that must not be null."""
    value, at = encoding.text(frame, at)
    if value is None:
        raise PeerError("a string that must not be null is null")
    return value, at


def uuid(frame: bytearray, at: int) -> tuple[bytes, int]:
    """16 bytes."""
    end = at + 16
    if end > len(frame):
        raise PeerError(f"a uuid is announced, {len(frame) - at} bytes are left")
    return bytes(frame[at:end]), end


# -- what is written --------------------------------------------------------------------------------------------------


def encoded_text(value: str | None, is_flexible: bool) -> bytes:
    """A string, or null."""
    data = b"" if value is None else value.encode()
    size = -1 if value is None else len(data)
    return encoded_size(size) + data if is_flexible else _INT16.pack(size) + data


def encoded_size(size: int) -> bytes:
    """The size or count of the flexible encoding."""
    if size < 0x7F:
        return _SMALL[size + 1]
    out = bytearray()
    write_varint(out, size + 1)
    return bytes(out)


_SMALL = [bytes((value,)) for value in range(0x80)]

_HEAD, _TAGGED_HEAD = Pack(">Ii"), Pack(">Iix")


def response_head(is_flexible: bool) -> bytearray:
    """The place for the head of a response, to which its body is appended."""
    return bytearray(_TAGGED_HEAD.size if is_flexible else _HEAD.size)


def finish_response(out: bytearray, correlation_id: int, is_flexible: bool, more: int = 0) -> None:
    """Fill in the head (`heads.py`). `more`: the number of bytes of the response that are in other buffers."""
    (_TAGGED_HEAD if is_flexible else _HEAD).pack_into(out, 0, len(out) + more - LENGTH.size, correlation_id)


def node_endpoints(call: KafkaCall, leaders: Iterable[int]) -> list[dict[str, Any]]:
    """The addresses of leaders that a response names, on the client's listener. They save it a Metadata request (KIP-951)."""
    brokers, listener = call.context.image().brokers, call.connection.listener_name
    found = []
    for node_id in dict.fromkeys(leaders):
        broker = brokers.get(node_id)
        endpoint = None if broker is None else broker.endpoint(listener)
        if broker is not None and endpoint is not None:
            found.append({"node_id": node_id, "host": endpoint.host, "port": endpoint.port, "rack": broker.rack})
    return found


def head_of_response(size: int, correlation_id: int, is_flexible: bool) -> bytes:
    """The head of a response whose body has `size` bytes."""
    return _TAGGED_HEAD.pack(size + 5, correlation_id) if is_flexible else _HEAD.pack(size + 4, correlation_id)
