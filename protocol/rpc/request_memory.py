"""The bytes of requests that a node holds, over all its connections (`queued.max.request.bytes`).

A request counts with its whole length from the beginning of its frame until it is answered. While the limit is reached, further
Produce requests wait: a small one is not passed to its handler, and no more is read of a large one. They continue in the order in
which they arrived, as requests are answered. One Produce request may exceed the limit, so that a request larger than the limit is
served, too.

Other requests count, but do not wait. They are small, and most are answered at once. And fetches of followers must not wait for
Produce requests, because a Produce request with acks=all waits for these fetches.

A node without the limit uses `ServerConnection` instead of `BoundedConnection`.
"""

from __future__ import annotations

import asyncio

from strandline.protocol.apis import PRODUCE
from strandline.protocol.errors import PeerError
from strandline.protocol.rpc.server_connection import HELD, ConnectionServer, ServerConnection


class RequestMemory:
    """The bytes that the requests of all connections hold, and the connections that wait for room."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.waits = 0
        """How often a request had to wait."""
        self._waiting: dict[BoundedConnection, None] = {}
        """The connections whose next request waits, the longest waiting first."""
        self._is_waking = False

    @property
    def is_full(self) -> bool:
        return self.used >= self.bytes_max

    @property
    def waiting(self) -> int:
        """How many connections wait."""
        return len(self._waiting)

    @property
    def must_wait(self) -> bool:
        """Whether a new request has to wait, for room or behind others."""
        return self.is_full or bool(self._waiting)

    def add(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        """Count `size` bytes more; fewer if it is negative. If that makes room, the first waiting connection continues in the
        next iteration of the loop."""
        self.used += size
        if size < 0 and self._waiting and not self._is_waking and not self.is_full:
            self._is_waking = True
            loop.call_soon(self._wake, loop)

    def wait(self, connection: BoundedConnection) -> None:
        self.waits += 1
        self._waiting[connection] = None

    def forget(self, connection: BoundedConnection) -> None:
        self._waiting.pop(connection, None)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let one connection continue. The next one follows in the next iteration, if there is still room."""
        self._is_waking = False
        if not self._waiting or self.is_full:
            return
        connection = next(iter(self._waiting))
        del self._waiting[connection]
        connection.on_room()
        if self._waiting:
            self._is_waking = True
            loop.call_soon(self._wake, loop)


class BoundedConnection(ServerConnection):
    """A connection whose requests count in the `RequestMemory`."""

    __slots__ = ("_begun", "_counted", "_is_next", "_is_waiting", "_kept", "_memory", "_postponed")

    def __init__(self, server: ConnectionServer, connection_id: int, memory: RequestMemory) -> None:
        super().__init__(server, connection_id)
        self._memory = memory
        self._counted = 0
        """The bytes of this connection that count."""
        self._begun = 0
        """The length of the incomplete frame, if it counts already."""
        self._kept = 0
        """The length of a frame that a subclass keeps for later."""
        self._postponed: bytearray | None = None
        """A Produce request that waits for room."""
        self._is_waiting = False
        self._is_next = False
        """The connection has waited for room, so its next Produce request does not wait again."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._memory.forget(self)
        self._memory.add(-self._counted, self._loop)
        self._counted, self._postponed = 0, None

    def on_room(self) -> None:
        """There is room for the next request of this connection: process it."""
        self._is_waiting, self._is_next = False, True
        self.release()

    def on_answer(self, size: int, buffers: list) -> None:  # type: ignore[type-arg]
        super().on_answer(size, buffers)
        self._count()

    def _take_frames(self) -> None:
        if self._postponed is not None and not self._is_waiting:
            frame, self._postponed = self._postponed, None
            try:
                self._on_frame(frame)
            except PeerError as e:
                self._on_bad_peer(e)
        if not self.closed:
            super()._take_frames()
        if not self.closed:
            self._count_begun()

    def _on_frame(self, frame: bytearray) -> None:
        if not self._begun and frame[1:2] == _PRODUCE and self._has_to_wait():
            self._postponed = frame
            return
        super()._on_frame(frame)
        self._begun = 0
        self._count()

    def _count_begun(self) -> None:
        """Count a large frame as soon as it has begun; if it is a Produce request and there is no room, read no more of it."""
        length, api = self._reader.begun_frame()
        if not length or self._begun or not api or self._is_waiting:
            return
        if api == _PRODUCE and self._has_to_wait():
            self.pause()
            return
        self._begun = length
        self._count()

    def _has_to_wait(self) -> bool:
        """Whether the next Produce request has to wait. If so, the connection is on hold until `on_room`."""
        is_next, self._is_next = self._is_next, False
        if is_next or not self._memory.must_wait:
            return False
        self._is_waiting = True
        self.hold()
        self._memory.wait(self)
        return True

    def _count(self) -> None:
        counted = self._in_flight_bytes % HELD + self._begun + self._kept
        if counted != self._counted:
            change, self._counted = counted - self._counted, counted
            self._memory.add(change, self._loop)


_PRODUCE = bytes((PRODUCE,))
