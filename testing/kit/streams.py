"""Finds where the frames of a byte stream begin, and their API: enough to lose or delay single messages.

A request begins with `u32 length | 0x95 | api key | api version | correlation id`, a response with `u32 length | array of
2..4 | correlation id` (`protocol/frames.py`). On a listener for Kafka's clients a request begins with `u32 length | u16 api key |
u16 api version | u32 correlation id`, a response with `u32 length | u32 correlation id`; the keys are the same. The bodies are
not read. Bytes that are no frame of either protocol (such as a web browser's request) count as one long frame of an unknown API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

_LENGTH = 4
_HEAD_MAX = 12
_KAFKA_LENGTH_MAX = 1 << 28
_UINT_BYTES = {0xCC: 1, 0xCD: 2, 0xCE: 4}
UNKNOWN = -1


class Head(NamedTuple):
    api_key: int
    """UNKNOWN: the head does not contain it (a response), or the bytes are no frame of the protocol."""
    correlation_id: int


class FrameStream:
    """Splits a byte stream into pieces, each of which begins or continues one frame. The order of the bytes is kept."""

    def __init__(self, read_head: Callable[[bytes], Head]) -> None:
        self._read_head = read_head
        self._left = 0
        """Bytes of the current frame that have not arrived yet."""
        self._partial = b""
        """First bytes of a frame, too few to read its head."""

    def feed(self, data: bytes) -> Iterator[tuple[Head | None, bytes]]:
        """Yield (head, bytes) where a frame begins and (None, bytes) where it continues."""
        data, self._partial = self._partial + data, b""
        position = 0
        while position < len(data):
            if self._left:
                piece = data[position : position + self._left]
                self._left -= len(piece)
                position += len(piece)
                yield None, piece
                continue
            head = data[position : position + _HEAD_MAX]
            size = _LENGTH + int.from_bytes(head[:_LENGTH], "big")
            if len(head) < _LENGTH or len(head) < min(_HEAD_MAX, size):
                self._partial = data[position:]
                return
            piece = data[position : position + size]
            self._left = size - len(piece)
            position += len(piece)
            yield self._read_head(head), piece


def request_head(head: bytes) -> Head:
    if _has_kafkas_length(head, 10) and head[_LENGTH] == 0 and head[5] <= 0x7F:
        return Head(head[5], int.from_bytes(head[8:12], "big"))
    if len(head) < 8 or head[_LENGTH] != 0x95 or head[5] > 0x7F or head[6] > 0x7F:
        return Head(UNKNOWN, UNKNOWN)
    return Head(head[5], _uint(head, 7))


def response_head(head: bytes) -> Head:
    """The head of a response. Its API is UNKNOWN; it is that of the request with the same correlation id."""
    if _has_kafkas_length(head, 4) and head[_LENGTH] <= 0x7F:  # Kafka's correlation ids are not negative.
        return Head(UNKNOWN, int.from_bytes(head[4:8], "big"))
    if len(head) < 6 or not 0x92 <= head[_LENGTH] <= 0x94:
        return Head(UNKNOWN, UNKNOWN)
    return Head(UNKNOWN, _uint(head, 5))


def _has_kafkas_length(head: bytes, length_min: int) -> bool:
    """Whether the bytes can be the head of a frame of Kafka's protocol. Those of HTTP and TLS would begin a longer one."""
    return length_min <= int.from_bytes(head[:_LENGTH], "big") < _KAFKA_LENGTH_MAX


def _uint(head: bytes, position: int) -> int:
    """A msgpack unsigned integer."""
    first = head[position]
    if first <= 0x7F:
        return first
    size = _UINT_BYTES.get(first)
    return UNKNOWN if size is None else int.from_bytes(head[position + 1 : position + 1 + size], "big")
