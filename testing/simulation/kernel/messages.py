"""The frames in the bytes of a connection, found only if a story or a fault looks for them.

Connections carry bytes. A **message** is one frame of Strandline's protocol in them. It can be watched, held back and released,
or made the point at which its connection breaks (`network.py`). While no one uses these, frames are counted and not parsed.

Strandline's connections write whole frames. Other bytes (on a port that speaks HTTP) are no messages, and are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from strandline.protocol import frames
from strandline.protocol.apis import api_name

_HEAD = 4
_ARRAY_OF_5 = 0x95
_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


class Message:
    """One frame on its way from one machine to another."""

    __slots__ = ("_body", "api_key", "connection", "correlation_id", "data", "is_request", "source", "target")

    def __init__(
        self, connection: int, source: int, target: int, is_request: bool, api_key: int, correlation_id: int, data: bytes
    ) -> None:
        self.connection = connection
        """Number of the connection, unique in the world."""
        self.source = source
        """Machine ids."""
        self.target = target
        self.is_request = is_request
        self.api_key = api_key
        """-1 if unknown: a response to a request that the sender of the request has given up."""
        self.correlation_id = correlation_id
        self.data = data
        """The whole frame, length included."""
        self._body: Any = None

    @property
    def api(self) -> str:
        """The name of its API, such as "Fetch"."""
        return api_name(self.api_key)

    @property
    def body(self) -> Any:
        """The decoded request or response; for a refusal the `frames.Refusal`."""
        if self._body is None:
            content = bytearray(memoryview(self.data)[_HEAD:])
            if self.is_request:
                self._body = frames.decode_request(content).body
            else:
                answer = frames.decode_response(self.api_key, content)
                self._body = answer if isinstance(answer, frames.Refusal) else answer[1]
        return self._body

    def __repr__(self) -> str:
        return f"<{self.api} {'request' if self.is_request else 'response'} {self.correlation_id} {self.source}->{self.target}>"


Predicate = Callable[[Message], bool]


class Place(NamedTuple):
    """The position of a message in a segment. The beginning of the first message may have been sent in an earlier segment."""

    start: int
    end: int
    message: Message


def count_frames(data: bytes) -> int:
    """Number of whole frames, counted from the beginning."""
    size = len(data)
    end = _HEAD + int.from_bytes(data[:_HEAD], "big")
    if end == size:
        return 1
    count = 0
    while end <= size:
        count += 1
        end += _HEAD + int.from_bytes(data[end : end + _HEAD], "big") if end + _HEAD <= size else size + 1
    return count


def split_frames(data: bytes) -> list[tuple[int, int]]:
    """Start and end of each whole frame."""
    found, start, size = [], 0, len(data)
    while start + _HEAD <= size:
        end = start + _HEAD + int.from_bytes(data[start : start + _HEAD], "big")
        if end > size:
            break
        found.append((start, end))
        start = end
    return found


def request_head(frame: bytes) -> tuple[int, int]:
    """API key and correlation id of `[api_key, api_version, correlation_id, ...]`; (-1, -1) when it is no request."""
    if len(frame) < 8 or frame[_HEAD] != _ARRAY_OF_5:
        return -1, -1
    api_key, position = _integer(frame, _HEAD + 1)
    _, position = _integer(frame, position)
    correlation_id, _ = _integer(frame, position)
    return (-1, -1) if min(api_key, correlation_id) < 0 else (api_key, correlation_id)


def response_id(frame: bytes) -> int:
    """Correlation id of `[correlation_id, ...]`; -1 when it is no response."""
    return _integer(frame, _HEAD + 1)[0] if len(frame) > _HEAD + 1 and frame[_HEAD] & 0xF0 == 0x90 else -1


def _integer(data: bytes, position: int) -> tuple[int, int]:
    """A msgpack integer that is not negative, and the position after it; -1 when there is none."""
    head = data[position] if position < len(data) else 0xC1
    if head < 0x80:
        return head, position + 1
    width = _WIDTHS.get(head, 0)
    return (int.from_bytes(data[position + 1 : position + 1 + width], "big") if width else -1), position + 1 + width
