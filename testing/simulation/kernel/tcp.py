"""TCP between simulated machines: the two ends that kernels have of a connection, and the transport that a process has.

    transport.write -> transport's buffer | kernel's send buffer -> wire -> peer's receive buffer | -> peer's protocol
         process    -->                   |                    kernels                            |    process

TCP's promises hold under every fault: within a connection bytes arrive in order, once, or the connection ends. So a lossy link
only delays, and a cut link is silent: bytes are sent again when the link is open, or the connection ends with a time-out
(`TCP_USER_TIMEOUT` or keepalive, if the process has set them).

An `End` outlives its process. What the kernel has taken is sent, then the FIN; what was in the process is lost with it. As on
Linux:

- A connection closes in the same way by `close`, by `abort` and by the end of the process: FIN, but RST if the process has not
  read all bytes, and in answer to later bytes. `abort` only drops what the kernel has not taken.
- A process reads the bytes that arrived before an RST, and then gets the error; a process that does not read gets no error,
  unless it writes.
- A machine without power is silent. When it is back, it answers RST to segments of earlier connections.

This model is simpler than the truth: acknowledgements take the shortest time of the link and no bandwidth; the sender always
knows the exact window; there is no congestion window.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections import deque
from math import floor, log, log2
from typing import Any

import msgspec

from strandline.testing.simulation.kernel.interfaces import Host, Keeper, Wires
from strandline.testing.simulation.kernel.links import FAST, RTO_S, Link
from strandline.testing.simulation.kernel.loop import NodeLoop
from strandline.testing.simulation.kernel.messages import Place, count_frames
from strandline.testing.simulation.kernel.scheduler import QUIET, Entry, cancel

WINDOW_BYTES = 256 * 1024
"""Bytes that the receiver's kernel takes in before its process reads."""
SEND_BUFFER_BYTES = 256 * 1024
"""Bytes that the sender's kernel takes in before they are acknowledged."""
RETRIES_S = 924.0
"""Seconds for which bytes are sent again if the process has set no bound (Linux: tcp_retries2 = 15)."""
READ_BYTES = 64 * 1024
_PIECE_BYTES_MIN = 16 * 1024


def reset_error() -> OSError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


def timeout_error() -> OSError:
    return TimeoutError(errno.ETIMEDOUT, "Connection timed out")


class Segment(msgspec.Struct, eq=False):
    """Bytes that travel together."""

    data: bytes
    frames: int = 0
    """Number of frames that this segment completes."""
    ends: bool = False
    """Carries the FIN."""
    resets: bool = False
    """Is an RST."""
    places: list[Place] | None = None
    """The messages in it; None: not parsed."""

    def split(self, at: int, places: list[Place]) -> tuple[Segment, Segment]:
        first, rest = Segment(self.data[:at]), Segment(self.data[at:], ends=self.ends)
        first.places = [place for place in places if place.end <= at]
        rest.places = [Place(place.start - at, place.end - at, place.message) for place in places if place.end > at]
        first.frames, rest.frames = len(first.places), len(rest.places)
        return first, rest


class End:
    """One end of a connection, as the kernel of its machine has it, and the bytes that it sends."""

    __slots__ = (
        "_acked",
        "_acks",
        "_blocked",
        "_blocked_since",
        "_flight",
        "_flying",
        "_flying_bytes",
        "_is_turn_due", "_is_window_due",
        "_last_arrival",
        "_probe",
        "_queue",
        "_retry",
        "_silence",
        "_stuck",
        "_stuck_since",
        "address",
        "apis",
        "back",
        "eof",
        "error",
        "fin_arrived",
        "heard_at",
        "held_by",
        "here",
        "inbox",
        "inbox_bytes",
        "is_client",
        "is_muted",
        "is_orphan",
        "is_over",
        "keepalive",
        "loop",
        "network",
        "number",
        "peer",
        "received",
        "sent_fin",
        "there",
        "transport",
        "user_timeout_s",
        "way",
        "written",
    )  # fmt: skip

    def __init__(
        self, network: Wires, loop: NodeLoop, there: Host, number: int, address: tuple[str, int], *, is_client: bool
    ) -> None:
        self.network = network
        self.loop = loop
        """The loop of its process, also after the process has ended."""
        self.here, self.there = loop.machine, there
        self.number = number
        self.address = address
        self.is_client = is_client
        self.peer: End
        self.way: Link = network.link(self.here.id, there.id)
        self.back: Link = network.link(there.id, self.here.id)
        self.transport: SimTransport | None = None
        """The process's side of this end; None: the process has not accepted the connection yet, or has closed it."""
        self.is_orphan = False
        """Its process has closed it; the kernel ends it."""
        self.is_over = False
        """The kernel has no state of it: it answers each segment that arrives with RST."""
        self.error: OSError | None = None
        """The error that the process gets once it has read what arrived before."""
        self.is_muted = False
        """A NAT or firewall between the two machines has lost the state of this connection: no segment of it arrives."""

        self._queue: deque[Segment] = deque()
        """Segments taken from the process and not on the wire: held, cut off, or beyond the receiver's window."""
        self._flying: deque[Segment] = deque()
        """Segments on the wire, in order. The scheduler draws the order of events of one moment, but the first segment sent is
        the first to arrive."""
        self._flying_bytes = 0
        self._flight = 0
        """Number of times that everything on the wire was lost."""
        self._last_arrival = 0.0
        self.written = 0
        """Bytes that the kernel has taken from the process."""
        self.received = 0
        """Bytes that have arrived here."""
        self._acked = 0
        self._acks: deque[tuple[float, int]] = deque()
        """Acknowledgements on their way: the time of arrival, and the number of bytes."""
        self.held_by: Keeper | None = None
        self.sent_fin = self.fin_arrived = False
        self._stuck_since = -1.0
        """The time since which bytes wait for their acknowledgement; -1: none do."""
        self._stuck: Entry | None = None
        self._retry: Entry | None = None
        self._blocked_since = -1.0
        """The time since which the receiver has no room; -1: it has room."""
        self._blocked: Entry | None = None
        self._is_window_due = self._is_turn_due = False
        self.user_timeout_s = 0.0
        """TCP_USER_TIMEOUT; 0: none. Set by the process, as is `keepalive`."""
        self.keepalive: tuple[float, float, int] | None = None
        """Idle time, interval and number of probes."""
        self.heard_at = network.scheduler.now
        self._silence: Entry | None = None
        """The event at which the connection is given up for silence."""
        self._probe: Entry | None = None
        """The event at which a probe finds out, after a silence, whether the other end still exists."""

        self.inbox: deque[bytes | memoryview] = deque()
        self.inbox_bytes = 0
        self.eof = False
        """The peer's FIN has arrived."""
        self.apis: dict[int, int] = {}
        """API keys of parsed requests, by correlation id."""

    # -- sending ------------------------------------------------------------------------------------------------------

    @property
    def is_way_open(self) -> bool:
        return not self.way.cut and self.there.has_power and not self.is_muted

    @property
    def is_broken(self) -> bool:
        """Whether at least one direction carries nothing."""
        return bool(self.way.cut or self.back.cut or not self.there.has_power or self.is_muted)

    @property
    def acknowledged(self) -> int:
        """Number of bytes whose acknowledgement has arrived here."""
        acks, now = self._acks, self.network.scheduler.now
        while acks and acks[0][0] <= now:
            self._acked = acks.popleft()[1]
        return self._acked

    def room(self) -> int:
        """Number of bytes that the kernel takes now."""
        room = SEND_BUFFER_BYTES - (self.written - self._acked)
        return room if room >= SEND_BUFFER_BYTES // 2 else SEND_BUFFER_BYTES - (self.written - self.acknowledged)

    def take(self, segment: Segment) -> None:
        """Take bytes from the process."""
        size, way, network = len(segment.data), self.way, self.network
        self.written += size
        if segment.ends:
            self.sent_fin = True
        if (
            not self._queue
            and not (way.cut or way.loss or way.bytes_per_s < FAST)
            and self._stuck_since < 0
            and self.held_by is None
            and not network.holds
            and self.there.has_power
            and not self.is_muted
            and size <= WINDOW_BYTES - self.peer.inbox_bytes - self._flying_bytes
        ):
            self._depart(segment)  # the usual case
        else:
            self._queue.append(segment)
            self.pump()

    @property
    def is_held(self) -> bool:
        return self.held_by is not None

    def pump(self) -> None:
        """Put on the wire what may be sent."""
        queue, network, way = self._queue, self.network, self.way
        if self.held_by is not None or (self._stuck_since >= 0 and self._waits_for_acks()):
            return
        while queue:
            segment = queue[0]
            if network.holds:
                segment = self._maybe_hold(segment)
                if self.is_held:
                    return
            if way.cut or self.is_muted or not self.there.has_power:
                self._be_stuck()
                return
            most = WINDOW_BYTES - self.peer.inbox_bytes - self._flying_bytes
            if way.bytes_per_s < FAST:
                if way.free_at > network.scheduler.now:
                    self._await_turn()
                    return
                most = min(most, way.piece_bytes)
            if len(segment.data) > most:
                if most <= 0:
                    self._await_window()
                    return
                segment = self._split(most)
            if not self._depart(segment):
                self._be_stuck()
                return
            queue.popleft()

    def _await_turn(self) -> None:
        """Wait for the slow link: its pieces are sent one after the other, at the rate that the link has when each leaves."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self.network.scheduler.at(self.way.free_at, self._on_turn)

    def _on_turn(self) -> None:
        self._is_turn_due = False
        self.pump()

    def _waits_for_acks(self) -> bool:
        """Whether no new bytes are sent: sent ones are unacknowledged, and the link is cut or `RTO_S` has passed."""
        return self._stuck_since >= 0 and (not self.is_way_open or self.network.scheduler.now - self._stuck_since > RTO_S)

    def _maybe_hold(self, segment: Segment) -> Segment:
        """The segment, or the part of it that may leave before a message that is to be held."""
        for place in self.places(segment):
            hold = self.network.hold_of(place.message)
            if hold is None:
                continue
            if place.start > 0:
                return self._split(place.start)
            hold.keep(self, place.message)
            break
        return segment

    def _split(self, at: int) -> Segment:
        segment = self._queue.popleft()
        first, rest = segment.split(at, self.places(segment))
        self._queue.appendleft(rest)
        self._queue.appendleft(first)
        return first

    def places(self, segment: Segment) -> list[Place]:
        if segment.places is None:
            segment.places = self.network.places_in(self, segment.data)
        return segment.places

    def _depart(self, segment: Segment) -> bool:
        """Send the segment. Returns False if the link loses it for longer than the retries last."""
        network, way, size = self.network, self.way, len(segment.data)
        scheduler = network.scheduler
        now = scheduler.now
        if way.bytes_per_s < FAST or way.clogged_until > now:
            arrival = way.arrival(now, network.draw, size)
        else:  # the same as `Link.arrival`, inlined for the usual case
            arrival = now + way.delay_s - log(1.0 - network.draw()) * way.jitter_s
        if way.loss:
            lost_s = way.lost_s(network.draw)
            if lost_s > (self.user_timeout_s or RETRIES_S):
                return False
            arrival += lost_s
        if arrival < self._last_arrival:
            arrival = self._last_arrival
        self._last_arrival = arrival
        self._flying.append(segment)
        self._flying_bytes += size
        scheduler.at(arrival, self._arrive, self._flight)
        return True

    def _arrive(self, flight: int) -> object:
        """The segment arrives at the peer's kernel, unless the link was cut meanwhile."""
        if flight != self._flight:
            return QUIET
        there = self.there
        if self.way.cut or self.is_muted or not there.has_power:
            self._lose_flight()
            return None
        network, peer, segment = self.network, self.peer, self._flying.popleft()
        size, now = len(segment.data), network.scheduler.now
        self._flying_bytes -= size
        network.trace_step(now, there.id, size)
        if peer.is_over:
            if not segment.resets:
                peer.send_reset()
            return None
        peer.heard_at = now
        peer.received += size
        if not self.is_over:
            self._acknowledge(now)
        network.messages += segment.frames
        if network.breaks and network.maybe_break(self, segment):
            return None
        if segment.ends:
            self.fin_arrived = True
        elif not segment.resets and not peer.is_orphan:
            peer.inbox.append(segment.data)
            peer.inbox_bytes += size
            if peer.transport is not None:
                peer.transport.maybe_read()
            return QUIET  # No process sees these bytes before it reads them.
        peer.receive(segment)
        if self.is_orphan:
            self._maybe_forget()
        return None

    def _acknowledge(self, now: float) -> None:
        """Acknowledge the bytes that have arrived to the peer's kernel."""
        if self.back.cut:
            self._be_stuck()
            return
        arrives_at = now + self.back.delay_s
        self._acks.append((arrives_at, self.peer.received))
        if self.transport is not None and self.transport.wants_room:
            self.network.scheduler.at(arrives_at, self._on_room)

    def _on_room(self) -> None:
        if self.transport is not None:
            self.transport.on_room()

    def _lose_flight(self) -> None:
        """All segments on the wire have to be sent again."""
        lost = [segment for segment in self._flying if not segment.resets]
        self._flying.clear()
        self._flying_bytes = 0
        self._flight += 1
        if not self.is_over:
            self._queue.extendleft(reversed(lost))
            self._be_stuck()

    # -- silence ------------------------------------------------------------------------------------------------------

    def _be_stuck(self) -> None:
        if self._stuck_since < 0:
            self._stuck_since = self.network.scheduler.now
            self._stuck = self.network.scheduler.after(self.user_timeout_s or RETRIES_S, self._on_timeout)

    def _await_window(self) -> None:
        if self._blocked_since < 0:
            self._blocked_since = self.network.scheduler.now
            if self.user_timeout_s:
                self._blocked = self.network.scheduler.after(self.user_timeout_s, self._on_timeout)

    def _on_timeout(self) -> None:
        self.die(timeout_error())

    def on_broken(self) -> None:
        """A direction was cut. The process gets an error only when a time-out that it has set passes."""
        if self.is_over:
            return
        acks, now = self._acks, self.network.scheduler.now
        if self.back.cut and acks and acks[-1][0] > now:
            while acks and acks[-1][0] > now:
                acks.pop()
            self._be_stuck()
        if self.keepalive is not None and self._silence is None:
            idle_s, interval_s, probes = self.keepalive
            last_answer_at = self.heard_at + idle_s * floor((now - self.heard_at) / idle_s)
            self._silence = self.network.scheduler.at(
                last_answer_at + (self.user_timeout_s or idle_s + interval_s * probes), self._on_timeout
            )

    def on_peer_gone(self) -> None:
        """The peer is gone, perhaps without a FIN or RST: then the next keepalive probe detects it."""
        if not self.is_over and not self.eof and self.keepalive is not None:
            if self.is_broken:
                self.on_broken()
            elif self._probe is None:
                idle_s, now = self.keepalive[0], self.network.scheduler.now
                next_at = self.heard_at + idle_s * (floor((now - self.heard_at) / idle_s) + 1)
                self._probe = self.network.scheduler.at(next_at, self._on_probe)

    def _on_probe(self) -> None:
        self._probe = None
        if self.peer.is_over and not self.is_broken:
            self.die(reset_error())

    def on_mended(self) -> None:
        """A direction is open again: what was lost is sent again at its next retry."""
        if self.is_over or self.is_broken:
            return
        scheduler = self.network.scheduler
        if self._silence is not None and self.keepalive is not None:
            cancel(self._silence)
            self._silence = None
            if self._probe is not None:
                cancel(self._probe)
            self._probe = scheduler.after(self.network.draw() * self.keepalive[1], self._on_probe)
        self.heard_at = scheduler.now
        if self._stuck_since >= 0 and self._retry is None:
            self._retry = scheduler.at(self._next_retry_at(), self._send_again)
        if self._blocked_since >= 0:
            self._on_window()

    def _next_retry_at(self) -> float:
        """RTO_S after the first loss, then after twice as long, and so on."""
        waited_s = self.network.scheduler.now - self._stuck_since
        tries = floor(log2(waited_s / RTO_S + 1)) + 1
        return self._stuck_since + RTO_S * float(2**tries - 1)

    def _send_again(self) -> None:
        self._retry = None
        if self.is_over or self._stuck_since < 0 or self.is_broken:
            return
        if self.peer.is_over:
            self.die(reset_error())
            return
        self._stuck_since = -1.0
        if self._stuck is not None:
            cancel(self._stuck)
        self._acks.clear()
        self._acked = self.peer.received
        self.heard_at = self.network.scheduler.now
        self.pump()
        self._on_room()

    # -- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, segment: Segment) -> None:
        if segment.resets:
            self.die(BrokenPipeError(errno.EPIPE, "Broken pipe") if self.eof else reset_error())
            return
        if segment.ends:
            self.eof = True
        if self.is_orphan:
            if segment.data:  # no process reads it
                self.die(None)
                self.send_reset()
            self._maybe_forget()
            return
        if segment.data:
            self.inbox.append(segment.data)
            self.inbox_bytes += len(segment.data)
        if self.transport is not None:
            self.transport.maybe_read()

    def on_read(self, size: int) -> None:
        """The process has read so many bytes from the receive buffer."""
        self.inbox_bytes -= size
        peer = self.peer
        if peer._blocked_since >= 0 and not peer._is_window_due and self.is_way_open:
            peer._is_window_due = True
            self.network.scheduler.after(self.way.delay_s, peer._on_window)

    def _on_window(self) -> None:
        self._is_window_due = False
        if self._blocked_since >= 0:
            self._blocked_since = -1.0
            if self._blocked is not None:
                cancel(self._blocked)
            self.pump()

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The process closes the connection."""
        if self.is_over or self.is_orphan:
            return
        self.transport = None
        self.is_orphan = True
        if self.inbox:
            self.die(None)
            self.send_reset()
        elif not self.sent_fin:
            self.take(Segment(b"", ends=True))
        else:
            self._maybe_forget()

    def on_process_gone(self) -> None:
        """The process has ended. Held messages have not left it, and are lost."""
        if self.is_orphan:
            return
        is_known = self.transport is not None
        self.transport = None
        if self.held_by is not None:
            self.held_by.drop(self)
            self._queue.clear()
        if is_known:
            self.close()
        else:  # it waited to be accepted, or for its connection
            self.die(None)
            self.send_reset()

    def vanish(self) -> None:
        """Its machine has lost its power."""
        self.transport = None
        self.die(None)

    def send_reset(self) -> None:
        """Send an RST after what is on the wire. If it is lost, the next bytes from the peer cause another one."""
        if self.is_way_open and self.here.has_power:
            self._depart(Segment(b"", resets=True))

    def die(self, error: OSError | None) -> None:
        """End this side without notifying the peer."""
        if self.is_over:
            return
        self.is_over = True
        self.error = error
        self._queue.clear()
        self.apis.clear()
        for entry in (self._stuck, self._blocked, self._retry, self._silence, self._probe):
            if entry is not None:
                cancel(entry)
        if self.held_by is not None:
            self.held_by.drop(self)
        self.network.forget(self)
        if self.transport is not None:
            self.transport.on_error()
        self.peer.on_peer_gone()

    def _maybe_forget(self) -> None:
        """Drop the connection if both sides have sent everything."""
        if self.fin_arrived and self.eof and not self.is_over:
            self.die(None)


class SimTransport(asyncio.Transport):
    """The transport that a protocol gets: the process's side of an end."""

    def __init__(self, end: End) -> None:
        super().__init__()
        self.end = end
        self.network, self.loop = end.network, end.loop
        self.wants_room = False
        """Bytes wait for room in the kernel."""
        self.protocol: Any = None
        self._is_buffered = False
        """The protocol is a `BufferedProtocol`."""
        self._is_closing = False
        self._is_loss_notified = False
        """`connection_lost` was called or is scheduled."""
        self._buffer: deque[Segment] = deque()
        """Bytes that the kernel has not taken yet."""
        self._buffered_bytes = 0
        self._later: list[Segment] = []
        """Bytes written while the process is blocked. They count as written when it continues."""
        self._is_full = False
        self._ends_after = False
        """`write_eof` was called: the FIN follows the buffered bytes."""
        self._high, self._low = 64 * 1024, 16 * 1024
        self._is_reading = True
        self._is_read_due = False
        self._is_eof_notified = False
        self._socket = SimSocket(end)

    @property
    def machine(self) -> Host:
        return self.end.here

    @property
    def peer(self) -> SimTransport | None:
        return self.end.peer.transport

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.end.peer.address
        if name == "sockname":
            return self.end.address
        return self._socket if name == "socket" else default

    def is_closing(self) -> bool:
        return self._is_closing

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Any) -> None:
        if self._ends_after:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._is_closing or self.loop.is_dead:
            return
        data = b"".join(list_of_data)
        if not data:
            return
        segment = Segment(data, count_frames(data))
        for tap in self.network.taps:
            for place in self.end.places(segment):
                tap(place.message)
        loop = self.loop
        if self._later or loop._busy_until > loop._scheduler.now:
            if not self._later:
                self.loop.io(self._write_later)
            self._later.append(segment)
        else:
            self._write(segment)

    def _write_later(self) -> None:
        later, self._later = self._later, []
        for segment in later:
            if not self._is_loss_notified:
                self._write(segment)
        if self._is_closing or self._ends_after:
            self._maybe_end()

    def _write(self, segment: Segment) -> None:
        end = self.end
        if end.is_over:
            self._notify_lost(end.error)
            return
        if not self._buffer and len(segment.data) <= end.room():
            end.take(segment)
            return
        self._buffer.append(segment)
        self._buffered_bytes += len(segment.data)
        self.wants_room = True
        self._fill()
        if self._buffered_bytes > self._high and not self._is_full and not self._is_closing:
            self._is_full = True
            self.protocol.pause_writing()

    def _fill(self) -> None:
        """Hand the kernel what it takes. A large piece is not split for a little room."""
        end, buffer = self.end, self._buffer
        while buffer and not end.is_over:
            segment, room = buffer[0], end.room()
            if len(segment.data) > room:
                if room < _PIECE_BYTES_MIN:
                    break
                segment, buffer[0] = segment.split(room, end.places(segment))
            else:
                buffer.popleft()
            self._buffered_bytes -= len(segment.data)
            end.take(segment)
        self.wants_room = bool(buffer)

    def on_room(self) -> None:
        """Some bytes were acknowledged, so the kernel has room."""
        if self.wants_room:
            self.loop.io(self._on_room)

    def _on_room(self) -> None:
        if self._is_loss_notified:
            return
        self._fill()
        if self._is_full and self._buffered_bytes <= self._low:
            self._is_full = False
            self.protocol.resume_writing()
        if self._is_closing or self._ends_after:
            self._maybe_end()

    def get_write_buffer_size(self) -> int:
        return self._buffered_bytes + sum(len(segment.data) for segment in self._later)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = 64 * 1024 if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._is_closing and not self._ends_after:
            self._ends_after = True
            self._maybe_end()

    # -- reading ------------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.maybe_read()

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def maybe_read(self) -> None:
        """Something has arrived, or the process resumes reading."""
        if self._is_read_due or not self._is_reading or self._is_closing:
            return
        end = self.end
        if end.inbox or end.error is not None or (end.eof and not self._is_eof_notified):
            self._is_read_due = True
            delays = self.network.read_delays
            if delays and delays.get(end.here.id):
                self.network.scheduler.after(delays[end.here.id], self.loop.io, self._read)
            else:
                self.loop.io(self._read)

    def _read(self) -> None:
        self._is_read_due = False
        if self._is_closing or not self._is_reading:
            return
        end = self.end
        if end.inbox:
            self._read_some()
            if end.inbox or end.eof or end.error is not None:
                self.maybe_read()
        elif end.error is not None:
            self._notify_lost(end.error)
        elif end.eof and not self._is_eof_notified:
            self._is_eof_notified = True
            if not self.protocol.eof_received():
                self.close()

    def _read_some(self) -> None:
        end, protocol, network = self.end, self.protocol, self.network
        limit = network.read_limit(end.here.id) if network.read_limits else READ_BYTES
        if self._is_buffered:
            buffer = protocol.get_buffer(-1)
            size = len(buffer)
            if size > limit:
                size = limit
            inbox = end.inbox
            if len(inbox) == 1 and len(inbox[0]) <= size:
                piece = inbox.popleft()
                done = len(piece)
                buffer[:done] = piece
            else:
                done = self._take(buffer, size)
            end.on_read(done)
            protocol.buffer_updated(done)
        else:
            data = end.inbox.popleft()
            if len(data) > limit:
                end.inbox.appendleft(memoryview(data)[limit:])
                data = data[:limit]
            end.on_read(len(data))
            protocol.data_received(bytes(data))

    def _take(self, buffer: Any, size: int) -> int:
        """Move bytes from the kernel to the protocol's buffer; returns their number."""
        inbox, done = self.end.inbox, 0
        while inbox and done < size:
            piece = inbox.popleft()
            take = len(piece)
            if take > size - done:
                take = size - done
                inbox.appendleft(memoryview(piece)[take:])
                piece = piece[:take]
            buffer[done : done + take] = piece
            done += take
        return done

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection when the buffered bytes are sent. Nothing more is read."""
        if not self._is_closing and not self.loop.is_dead:
            self._is_closing = True
            self._maybe_end()

    def abort(self) -> None:
        if not self._is_loss_notified and not self.loop.is_dead:
            self._buffer.clear()
            self._later.clear()
            self._buffered_bytes = 0
            self._notify_lost(None)

    def _maybe_end(self) -> None:
        """When the kernel has taken all bytes: finish a close, or send the FIN of `write_eof`."""
        if self._buffer or self._later or self._is_loss_notified:
            return
        if self._is_closing:
            self._notify_lost(None)
        elif self._ends_after and not self.end.sent_fin and not self.end.is_over:
            self.end.take(Segment(b"", ends=True))

    def on_error(self) -> None:
        """The kernel has given the connection up. A process that reads or writes gets the error now, others when they do."""
        if self._is_closing or self._buffer:
            self._notify_lost(self.end.error)
        else:
            self.maybe_read()

    def _notify_lost(self, error: OSError | None) -> None:
        if self._is_loss_notified or self.loop.is_dead:
            return
        self._is_closing = self._is_loss_notified = True
        self.wants_room = False
        self._buffer.clear()
        self._buffered_bytes = 0
        self.end.close()
        self.loop.io(self.protocol.connection_lost, error)


class SimSocket:
    """The socket of a transport, with the options that the product sets."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM

    def __init__(self, end: End) -> None:
        self._end = end
        self._idle_s, self._interval_s, self._probes = 7200.0, 75.0, 9

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Options that decide when a silent connection is given up take effect; all others are accepted and have none."""
        end = self._end
        if (level, option) == (socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            end.keepalive = (self._idle_s, self._interval_s, self._probes) if value else None
        elif level == socket.IPPROTO_TCP:
            if option == getattr(socket, "TCP_USER_TIMEOUT", None):
                end.user_timeout_s = value / 1000
            elif option in (getattr(socket, "TCP_KEEPIDLE", None), getattr(socket, "TCP_KEEPALIVE", None)):
                self._idle_s = float(value)
            elif option == socket.TCP_KEEPINTVL:
                self._interval_s = float(value)
            elif option == socket.TCP_KEEPCNT:
                self._probes = value
            if end.keepalive is not None:
                end.keepalive = (self._idle_s, self._interval_s, self._probes)

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        """The option TCP_INFO, as a struct whose last eight bytes are the number of acknowledged bytes, the only field that the
        product reads; all other bytes are 0. Any other option is 0."""
        return bytes(size - 8) + self._end.acknowledged.to_bytes(8, sys.byteorder) if size >= 8 else 0

    def getsockname(self) -> tuple[str, int]:
        return self._end.address

    def getpeername(self) -> tuple[str, int]:
        return self._end.peer.address

    def fileno(self) -> int:
        return -1
