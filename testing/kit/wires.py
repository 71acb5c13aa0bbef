"""One node's end of a connection: between the real transport and the protocol of the production code.

    real transport  <->  Wire  <->  Connection or ServerConnection

For the real loop a wire is a protocol, for the production code a transport. It passes events of the real loop to the node, in
the node's own loop. While the node is stalled or the link is cut, the wire does not read, so that arriving bytes stay in
the socket, as they would stay on the other side of a cut cable.

`DroppingWire` is the end that accepted the connection and receives the requests. It finds where frames begin, and applies the
network's rules, which lose or delay frames.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from strandline.testing.kit.network import Network
from strandline.testing.kit.process_loop import ProcessLoop
from strandline.testing.kit.streams import UNKNOWN, FrameStream, Head, request_head, response_head

_ASKED_MAX = 10_000
"""Maximum number of unanswered requests whose API is remembered; a produce request with acks=0 is never answered."""

Buffer = bytes | bytearray | memoryview


class Wire(asyncio.Protocol):
    """The end of the node that opened the connection."""

    is_dialled = True

    def __init__(self, network: Network, loop: ProcessLoop, node: int, make: Callable[[], Any], other: int | None = None) -> None:
        self.loop = loop
        self.node = node
        self.transport = WireTransport(self)
        """The transport that the production code gets."""
        self.real: asyncio.Transport | None = None
        self.local_port = self.remote_port = -1
        self._network = network
        self._make = make
        self._other = other
        """The node at the other end; None: not known yet, or a client."""
        self._inner: Any = None
        """The production code's protocol; None before `greet`."""
        self._arrived: deque[Buffer | None] = deque()
        """Data that was read and not handed over yet; None stands for the end of the stream."""
        self._lost: tuple[Exception | None] | None = None
        """After the real connection has ended: its error, if any."""
        self._is_lost_told = False
        self.is_closing = False
        """The production code has closed the connection."""
        self._is_held = False
        """The production code has paused reading."""
        self._is_reading = True

    @property
    def other(self) -> int:
        """The node at the other end, or CLIENT."""
        if self._other is not None:
            return self._other
        found = self._network.dialler(self.remote_port, self.local_port)
        if found:
            self._other = found
        return found

    @property
    def is_cut(self) -> bool:
        return self._network.is_cut(self.node, self.other)

    # -- from the real loop -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.real = transport  # type: ignore[assignment]
        self.local_port = transport.get_extra_info("sockname")[1]
        self.remote_port = transport.get_extra_info("peername")[1]
        if self.loop.is_dead:
            self.abort()
            return
        self._network.add(self)
        self.update()

    def data_received(self, data: bytes) -> None:
        self._arrived.append(data)
        self._hand_over()

    def eof_received(self) -> bool:
        self._arrived.append(None)
        self._hand_over()
        return True  # Keep it open: the production code decides when the end of the stream is delivered to it.

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = (exc,)
        self._network.remove(self)
        self._hand_over()

    def pause_writing(self) -> None:
        self.loop.post(self._tell, "pause_writing")

    def resume_writing(self) -> None:
        self.loop.post(self._tell, "resume_writing")

    # -- to the production code ---------------------------------------------------------------------------------------

    def greet(self) -> Any:
        """Create the node's protocol and connect it to this wire. Runs in the node's loop."""
        self._inner = self._make()
        self._inner.connection_made(self.transport)
        self.loop.post(self._deliver)
        return self._inner

    def update(self) -> None:
        """Re-check whether bytes may pass, after a change of links, pauses or reading."""
        is_open = not self.is_cut and not self.loop.is_paused
        self._read(is_open and not self._is_held)
        self._hand_over()

    def _read(self, wanted: bool) -> None:
        real = self.real
        if real is None or self._lost is not None or real.is_closing() or wanted == self._is_reading:
            return
        self._is_reading = wanted
        if wanted:
            real.resume_reading()
        else:
            real.pause_reading()

    def _hand_over(self) -> None:
        if self._arrived or self._lost is not None:
            self.loop.post(self._deliver)

    def _deliver(self) -> None:
        """Pass the arrived data on to the production code, as far as it may pass. Runs in the node's loop."""
        if self._inner is None:
            return
        while self._arrived and not self._is_held and not self.is_cut and not self._is_lost_told and not self.loop.is_dead:
            if self.is_closing:
                self._arrived.clear()
                break
            if self.loop.is_stalled:  # The data before has made the node wait for its disk.
                self._hand_over()
                return
            data = self._arrived.popleft()
            if data is None:
                self._deliver_eof()
            else:
                self._feed(data)
        # If the node closed the connection, notify it at once; if the other end did, only after all data that was sent before.
        if self._lost is not None and not self._is_lost_told and (self.is_closing or not (self._arrived or self.is_cut)):
            self._is_lost_told = True
            self._inner.connection_lost(self._lost[0])

    def _deliver_eof(self) -> None:
        if not self._inner.eof_received():
            self.close()

    def _feed(self, data: Buffer) -> None:
        """Give data to the protocol; if it raises, abort the connection, as asyncio's own transports do."""
        try:
            self._feed_protocol(data)
        except BaseException:
            self.abort()
            raise

    def _feed_protocol(self, data: Buffer) -> None:
        """Give data to a `Protocol`, or fill the buffers of a `BufferedProtocol`, as asyncio does."""
        if not isinstance(self._inner, asyncio.BufferedProtocol):
            self._inner.data_received(bytes(data))
            return
        rest = memoryview(data)
        while rest and not self.is_closing and not self._is_held:
            buffer: Any = self._inner.get_buffer(-1)
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            rest = rest[size:]
            self._inner.buffer_updated(size)
        if rest and self._is_held:  # The protocol has stopped reading in between.
            self._arrived.appendleft(bytes(rest))

    def _tell(self, what: str) -> None:
        if self._inner is not None and not self._is_lost_told:
            getattr(self._inner, what)()

    # -- from the production code -------------------------------------------------------------------------------------

    def send(self, buffers: Iterable[Buffer]) -> None:
        self._write(b"".join(buffers))

    def _write(self, data: Buffer) -> None:
        if self.real is not None and self._lost is None and not self.loop.is_dead:
            self.real.write(data)

    def hold(self, is_held: bool) -> None:
        """Stop or resume reading. As with asyncio's transports, the call that resumes does not deliver data itself."""
        self._is_held = is_held
        if is_held:
            self.update()
        else:
            self.loop.call_soon(self.update)

    def close(self) -> None:
        self.is_closing = True
        if self.real is not None:
            self.real.close()
        if self._lost is not None:
            self._hand_over()

    def abort(self) -> None:
        self.is_closing = True
        if self.real is not None:
            self.real.abort()
        if self._lost is not None:
            self._hand_over()


class DroppingWire(Wire):
    """The end of the node that accepted the connection; it applies the network's rules to requests and responses.

    A client has no wire at its own end. While its link is cut, this wire keeps back what is sent to it.
    """

    is_dialled = False

    def __init__(self, network: Network, loop: ProcessLoop, node: int, make: Callable[[], Any]) -> None:
        super().__init__(network, loop, node, make)
        self._asked: dict[int, int] = {}
        """Correlation id -> API of the requests that are not answered yet."""
        self._kept_back: list[Buffer] = []
        """Data for a client whose link is cut; it is sent when the link is healed."""
        self._requests = _Lane("request", FrameStream(request_head))
        self._responses = _Lane("response", FrameStream(response_head))

    def update(self) -> None:
        """Also accept the connection for the node and send the data that was kept back, once the link is not cut. Until then only
        the kernel has accepted the connection."""
        if not self.is_cut:
            if self._inner is None:
                self.loop.post(self._take)
            kept, self._kept_back = self._kept_back, []
            for data in kept:
                self._write(data)
            if self.is_closing and kept:
                self.close()
        super().update()

    def _take(self) -> None:
        if self._inner is None and self._lost is None:
            self.greet()

    def data_received(self, data: bytes) -> None:
        self._pass(self._requests, data)

    def eof_received(self) -> bool:
        self._at_its_time(self._requests, None)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        for lane in (self._requests, self._responses):
            lane.late.clear()
        super().connection_lost(exc)

    def send(self, buffers: Iterable[Buffer]) -> None:
        if not self.loop.is_dead:
            self._pass(self._responses, b"".join(buffers))

    def _write(self, data: Buffer) -> None:
        if self.is_cut and not self.other:
            self._kept_back.append(data)
        else:
            super()._write(data)

    def close(self) -> None:
        if self.is_cut and not self.other and self._lost is None:
            self.is_closing = True
            self._kept_back.append(b"")
        else:
            super().close()

    def _pass(self, lane: _Lane, data: bytes) -> None:
        for head, piece in lane.stream.feed(data):
            if head is not None:
                lane.is_lost = False
                self._judge(lane, head)
                if self.is_closing:
                    return
            if not lane.is_lost:
                self._at_its_time(lane, piece)

    def _judge(self, lane: _Lane, head: Head) -> None:
        """Apply the network's rules to a frame that begins."""
        api_key = head.api_key
        if lane is self._requests:
            if len(self._asked) >= _ASKED_MAX:
                self._asked.clear()
            self._asked[head.correlation_id] = api_key
        else:
            api_key = self._asked.pop(head.correlation_id, UNKNOWN)
        for rule in self._network.rules:
            if not rule.takes(lane.name, api_key, self.node, self.other):
                continue
            if rule.kind == "delay":
                lane.due = max(lane.due, self.loop.time() + rule.delay_s)
            elif rule.silently:
                lane.is_lost = True
            else:
                self.loop.post(self._break)
                lane.is_lost = True
                return

    def _break(self) -> None:
        """Close the connection because a message is lost. Earlier messages still arrive."""
        self.close()

    def _at_its_time(self, lane: _Lane, piece: Buffer | None) -> None:
        """Let the piece pass now, or when it and every piece in front of it is due."""
        if not lane.late and lane.due <= self.loop.time():
            self._let_through(lane, piece)
            return
        lane.late.append((lane.due, piece))
        if len(lane.late) == 1:
            self._wait_for(lane)

    def _wait_for(self, lane: _Lane) -> None:
        self.loop.call_outside_at(lane.late[0][0], self._on_due, lane)

    def _on_due(self, lane: _Lane) -> None:
        now = self.loop.time()
        while lane.late and lane.late[0][0] <= now:
            self._let_through(lane, lane.late.popleft()[1])
        if lane.late and self._lost is None:
            self._wait_for(lane)

    def _let_through(self, lane: _Lane, piece: Buffer | None) -> None:
        if lane is self._responses:
            assert piece is not None
            self._write(piece)
        else:
            self._arrived.append(piece)
            self._hand_over()


class _Lane:
    """One direction of a connection."""

    def __init__(self, name: str, stream: FrameStream) -> None:
        self.name = name
        self.stream = stream
        self.is_lost = False
        """The current frame is lost."""
        self.due = 0.0
        """Time of the loop, in seconds, before which nothing passes."""
        self.late: deque[tuple[float, Buffer | None]] = deque()


class WireTransport(asyncio.Transport):
    """The transport that the production code has."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def write(self, data: Any) -> None:
        self._wire.send((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self._wire.send(list_of_data)

    def close(self) -> None:
        self._wire.close()

    def abort(self) -> None:
        self._wire.abort()

    def is_closing(self) -> bool:
        wire = self._wire
        return wire.is_closing or wire.real is None or (wire.real.is_closing() and not wire.is_cut)

    def pause_reading(self) -> None:
        self._wire.hold(True)

    def resume_reading(self) -> None:
        self._wire.hold(False)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._wire.real is None else self._wire.real.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._wire.real is not None and not self._wire.real.is_closing():
            self._wire.real.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._wire.real is None else self._wire.real.get_write_buffer_size()
