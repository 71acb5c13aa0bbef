"""Finds where the frames of a byte stream begin, and their API: enough to lose or delay single messages.

A request begins with `u32 length | 0x95 | api key | api version | correlation id`, a response with `u32 length | array of
2..4 | correlation id` (`protocol/frames.py`). The bodies are not read. Bytes that are no frame of the protocol (such as a web
browser's request) count as one long frame of an unknown API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

_LENGTH = 4
_HEAD_MAX = 12
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
    if len(head) < 8 or head[_LENGTH] != 0x95 or head[5] > 0x7F or head[6] > 0x7F:
        return Head(UNKNOWN, UNKNOWN)
    return Head(head[5], _uint(head, 7))


def response_head(head: bytes) -> Head:
    """The head of a response. Its API is UNKNOWN; it is that of the request with the same correlation id."""
    if len(head) < 6 or not 0x92 <= head[_LENGTH] <= 0x94:
        return Head(UNKNOWN, UNKNOWN)
    return Head(UNKNOWN, _uint(head, 5))


def _uint(head: bytes, position: int) -> int:
    """A msgpack unsigned integer."""
    first = head[position]
    if first <= 0x7F:
        return first
    size = _UINT_BYTES.get(first)
    return UNKNOWN if size is None else int.from_bytes(head[position + 1 : position + 1 + size], "big")
