"""The simulated network: machines with addresses, links between them, and connections that behave as TCP does.

    transport.write -> frames -> segment -> link (delay, loss, cut) -> peer's kernel -> peer's protocol, in its turn

What TCP promises holds under every fault: within a connection bytes arrive in order, once, or the connection ends.
A link that loses packets therefore only delays (they are sent again), and a cut link is silence: what was sent waits for
the heal, and a connection whose bytes nobody acknowledges for half a minute ends with a time-out, as `TCP_USER_TIMEOUT`
ends it in production. Links have a direction each, so a partition may be one-way.

A **message** is one frame of ours. Messages can be watched, held back and let go, or made the point at which a connection
breaks (`taps`, `hold`, `break_on`): so a story says "hold the response that carries the new high watermark". A held
message holds up what comes behind it on its connection, since TCP has no overtaking.

How connections end: a process that exits closes them (FIN, or RST when it left bytes unread), a machine without power is
silent, and answers RST when it is back.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from strandline.protocol import frames
from strandline.protocol.apis import api_name
from strandline.testing.simulation.loop import NodeLoop
from strandline.testing.simulation.scheduler import Entry, Scheduler

if TYPE_CHECKING:
    from strandline.testing.simulation.machine import Machine
    from strandline.testing.simulation.world import World

USER_TIMEOUT_S = 30.0
"""Bytes that nobody acknowledges for so long end the connection (`protocol/rpc/sockets.py` sets it)."""
SYN_RETRY_S = (1.0, 3.0, 7.0, 15.0, 31.0, 63.0)
"""When an unanswered SYN is sent again; after the last the connect fails."""
WINDOW_BYTES = 256 * 1024
"""What a receiver's kernel takes in before its process reads."""
RTO_S = 0.2
"""A lost packet is sent again after this, then after twice as long, and so on."""
SEND_BUFFER_BYTES = 64 * 1024
"""What a sender's kernel takes, so that a process that closes need not wait for it to leave."""
_READ_BYTES = 64 * 1024

Predicate = Callable[["Message"], bool]


# -- what is on its way -----------------------------------------------------------------------------------------------


class Message:
    """One frame on its way from one machine to another."""

    __slots__ = ("_body", "api_key", "connection", "correlation_id", "data", "is_request", "source", "target")

    def __init__(
        self, connection: int, source: int, target: int, is_request: bool, api_key: int, correlation_id: int, data: bytes
    ):
        self.connection = connection
        self.source = source
        """Machine ids."""
        self.target = target
        self.is_request = is_request
        self.api_key = api_key
        self.correlation_id = correlation_id
        self.data = data
        """The whole frame, length included."""
        self._body: Any = None

    @property
    def api(self) -> str:
        """Such as "Fetch"."""
        return api_name(self.api_key)

    @property
    def body(self) -> Any:
        """The request or response as its message class; for a refusal the `frames.Refusal`."""
        if self._body is None:
            content = bytearray(memoryview(self.data)[4:])
            if self.is_request:
                self._body = frames.decode_request(content).body
            else:
                answer = frames.decode_response(self.api_key, content)
                self._body = answer if isinstance(answer, frames.Refusal) else answer[1]
        return self._body

    def __repr__(self) -> str:
        return f"<{self.api} {'request' if self.is_request else 'response'} {self.correlation_id} {self.source}->{self.target}>"


class Segment:
    """Bytes that travel together: whole messages, or the rest of a flow that the window had held back."""

    __slots__ = ("data", "ends", "last", "messages")

    def __init__(self, data: bytes, messages: list[Message], ends: bool = False) -> None:
        self.data = data
        self.messages = messages
        self.ends = ends
        """Carries the FIN."""


@dataclass(slots=True)
class Link:
    """One direction between two machines."""

    delay_s: float
    """The shortest way."""
    jitter_s: float
    """Mean of what is added to it (exponential)."""
    loss: float = 0.0
    """Share of segments that must be sent again."""
    cut: int = 0
    """How many faults keep it cut now; 0: open."""
    bytes_per_s: float = 1e9

    def travel_s(self, random: Random, size: int) -> float:
        delay_s = self.delay_s + random.expovariate(1.0) * self.jitter_s + size / self.bytes_per_s
        if self.loss:
            rto_s = RTO_S
            while random.random() < self.loss:
                delay_s += rto_s
                rto_s *= 2
        return delay_s


@dataclass(slots=True)
class Hold:
    """A breakpoint for messages: those that match stay where they are until `release`."""

    matches: Predicate
    network: Network
    held: list[Message] = field(default_factory=list)
    _flows: list[Flow] = field(default_factory=list)
    _limit: int = -1

    @property
    def has(self) -> bool:
        """Whether a message is being held."""
        return bool(self.held)

    def release(self) -> None:
        """Let go what is held, and hold nothing more."""
        if self in self.network.holds:
            self.network.holds.remove(self)
        flows, self._flows = self._flows, []
        self.held.clear()
        for flow in flows:
            flow.held_by = None
            flow.pump()


# -- one direction of a connection ------------------------------------------------------------------------------------


class Flow:
    """The bytes from one end of a connection to the other."""

    __slots__ = (
        "_flying", "_network", "_timeout", "acknowledged", "held_by", "in_window", "last_arrival", "owner", "peer", "queue",
        "stuck_since", "taken",
    )  # fmt: skip

    def __init__(self, network: Network, owner: SimTransport) -> None:
        self._network = network
        self.owner = owner
        self.peer: SimTransport
        self.queue: deque[Segment] = deque()
        """Not on the wire yet: held, cut, or beyond the receiver's window."""
        self._flying: deque[Segment] = deque()
        """On the wire. Which of several events of one time comes first is open, which segment arrives first is not."""
        self.in_window = 0
        """Bytes on the wire or in the receiver's kernel, not read by its process."""
        self.last_arrival = 0.0
        self.taken = 0
        """Bytes that reached the other kernel."""
        self.acknowledged = 0
        self.held_by: Hold | None = None
        self.stuck_since = -1.0
        """Since when the oldest unacknowledged bytes wait, while the way there or back is cut; -1: nothing is stuck."""
        self._timeout: Entry | None = None

    def send(self, segment: Segment) -> None:
        self.queue.append(segment)
        self.pump()

    @property
    def waiting_bytes(self) -> int:
        return sum(len(segment.data) for segment in self.queue)

    def pump(self) -> None:
        """Put on the wire what may go."""
        network = self._network
        queue = self.queue
        while queue and self.held_by is None and not self.owner.is_gone:
            segment = queue[0]
            if self.in_window and self.in_window + len(segment.data) > WINDOW_BYTES:
                return
            if network.holds and self._maybe_hold(segment):
                continue
            link = network.link(self.owner.machine.id, self.peer.machine.id)
            if link.cut:
                self._be_stuck()
                return
            queue.popleft()
            self._depart(segment, link)
        if not queue and self.owner.is_closing():
            self.owner.finish()

    def _maybe_hold(self, segment: Segment) -> bool:
        """Whether the segment was split before a message that is to be held, or is held as a whole."""
        for index, message in enumerate(segment.messages):
            hold = next((hold for hold in self._network.holds if hold._limit != 0 and hold.matches(message)), None)
            if hold is None:
                continue
            if index:
                size = sum(len(m.data) for m in segment.messages[:index])
                rest = Segment(segment.data[size:], segment.messages[index:], segment.ends)
                self.queue[0] = Segment(segment.data[:size], segment.messages[:index])
                self.queue.insert(1, rest)
                # The first part goes now, the second is looked at next.
                link = self._network.link(self.owner.machine.id, self.peer.machine.id)
                if not link.cut:
                    self._depart(self.queue.popleft(), link)
                    return True
                return False
            hold.held.append(message)
            hold._flows.append(self)
            hold._limit -= hold._limit > 0
            self.held_by = hold
            return True
        return False

    def _depart(self, segment: Segment, link: Link) -> None:
        network, size = self._network, len(segment.data)
        start = self.owner.loop.busy_until
        arrival = start + link.travel_s(network.random, size)
        if arrival < self.last_arrival:
            arrival = self.last_arrival
        self.last_arrival = arrival
        self.in_window += size
        self._flying.append(segment)
        network.scheduler.at(arrival, self._arrive)

    def _arrive(self) -> None:
        """At the peer's kernel. What was on the wire when the link was cut had passed already."""
        segment = self._flying.popleft()
        network, peer = self._network, self.peer
        if not peer.machine.has_power:
            self._be_stuck()
            return
        network.messages += len(segment.messages)
        network.trace_arrival(peer.machine.id, segment)
        self.taken += len(segment.data)
        if network.link(peer.machine.id, self.owner.machine.id).cut:
            self._be_stuck()
        else:
            self.acknowledged = self.taken
        if network.breaks and network.maybe_break(self.owner, segment):
            return
        peer.receive(segment)

    def _be_stuck(self) -> None:
        if self.stuck_since < 0:
            self.stuck_since = self._network.scheduler.now
            self._timeout = self._network.scheduler.after(USER_TIMEOUT_S, self._on_timeout)

    def _on_timeout(self) -> None:
        if self.stuck_since >= 0 and not self.owner.is_gone:
            self.owner.end(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))

    def on_healed(self) -> None:
        """The way is open again, there and back: what was lost is sent again, a moment later."""
        if self.stuck_since < 0:
            return
        network = self._network
        waited_s = network.scheduler.now - self.stuck_since
        self.stuck_since = -1.0
        if self._timeout is not None:
            self._timeout.cancel()
        network.scheduler.after(network.random.random() * min(max(waited_s, RTO_S), 2.0), self._resend)

    def _resend(self) -> None:
        network = self._network
        if self.owner.is_gone:
            return
        here, there = self.owner.machine, self.peer.machine
        if network.link(here.id, there.id).cut or not there.has_power:
            self._be_stuck()
            return
        if self.peer.is_gone:
            self.owner.end(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        if network.link(there.id, here.id).cut:
            self._be_stuck()
        else:
            self.acknowledged = self.taken
        self.pump()

    def on_read(self, size: int) -> None:
        self.in_window -= size
        if self.queue:
            self.pump()
        if self.owner.wants_room:
            self.owner.on_room()


# -- one end of a connection ------------------------------------------------------------------------------------------


class SimTransport(asyncio.Transport):
    """What a protocol is given; one end of a connection."""

    def __init__(self, network: Network, loop: NodeLoop, number: int, is_client: bool) -> None:
        super().__init__()
        self.network = network
        self.loop = loop
        self.machine: Machine = loop.machine
        self.number = number
        self.is_client = is_client
        self.is_gone = False
        """The socket is closed: nothing arrives, nothing leaves."""
        self.wants_room = False
        self.flow: Flow = Flow(network, self)
        """What leaves here."""
        self.protocol: Any = None
        self._closing = False
        self._was_told = False
        """The process knows, or is about to be told, that this is over; its kernel may still be sending."""
        self._inbox: deque[memoryview] = deque()
        self._eof = False
        self._read_is_due = False
        self._reading = True
        self._high = 64 * 1024
        self._low = 16 * 1024
        self._extra_socket = SimSocket(self)
        self.peer_address: tuple[str, int] = ("", 0)
        self.own_address: tuple[str, int] = ("", 0)
        self._apis: dict[int, int] = {}
        """Of the requests that left here and are not answered: correlation id -> API key."""
        self._partial = b""

    @property
    def peer(self) -> SimTransport:
        return self.flow.peer

    # -- what protocols call ------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.peer_address
        if name == "sockname":
            return self.own_address
        if name == "socket":
            return self._extra_socket
        return default

    def is_closing(self) -> bool:
        return self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self.flow.waiting_bytes if self.flow.queue else 0

    def write(self, data: Any) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Any) -> None:
        if self.is_gone or self._closing or self.loop.is_dead:
            return
        data = b"".join(list_of_data)
        self.flow.send(Segment(data, list(self.network.messages_in(self, data))))
        if not self.wants_room and self.flow.queue and self.flow.waiting_bytes > self._high:
            self.wants_room = True
            self.protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._maybe_read()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def close(self) -> None:
        if self._closing or self.loop.is_dead:
            return
        self._closing = True
        self.flow.send(Segment(b"", [], ends=True))
        self.finish()

    def abort(self) -> None:
        if not self.is_gone and not self.loop.is_dead:
            self._closing = True
            self._leave(reset=True)
            self._tell_lost(None)

    # -- the kernel's side --------------------------------------------------------------------------------------------

    def on_room(self) -> None:
        """The other side has read something."""
        if self.flow.waiting_bytes <= self._low:
            self.wants_room = False
            if not self.is_gone:
                self.loop.io(self._resume_writing)
        self.finish()

    def _resume_writing(self) -> None:
        if not self.is_gone and not self.wants_room:
            self.protocol.resume_writing()

    def finish(self) -> None:
        """As far as it can be: a process that closes is done when its kernel has taken everything, and the kernel when
        everything has left for the wire."""
        if self._closing and not self.is_gone:
            if not self.flow.queue:
                self.is_gone = True
                self.network.forget(self)
            if self.is_gone or self.flow.waiting_bytes <= SEND_BUFFER_BYTES:
                self._tell_lost(None)

    def receive(self, segment: Segment) -> None:
        if self.is_gone:
            # Nobody is there any more: the kernel says so, if it can.
            self.network.reset(self, self.peer)
            return
        if self._was_told:
            if segment.data:  # for nobody: the kernel resets the connection, and drops what it has not sent
                self._leave(reset=True)
            return
        if segment.data:
            self._inbox.append(memoryview(segment.data))
        if segment.ends:
            self._eof = True
        self._maybe_read()

    def _maybe_read(self) -> None:
        if (
            not self._read_is_due
            and self._reading
            and (self._inbox or self._eof)
            and self.protocol is not None
            and not self.is_gone
        ):
            self._read_is_due = True
            self.loop.io(self._read)

    def _read(self) -> None:
        self._read_is_due = False
        if self.is_gone or not self._reading or self._closing:
            return
        if self._inbox:
            self._read_some()
            self._maybe_read()
        elif self._eof:
            self._eof = False
            keep_open = self.protocol.eof_received()
            if not keep_open and not self.is_gone:
                self.close()

    def _read_some(self) -> None:
        limit = self.network.read_limit(self.machine.id)
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            piece = self._inbox.popleft()
            if len(piece) > limit:
                self._inbox.appendleft(piece[limit:])
            self.protocol.data_received(bytes(piece[:limit]))
            self.peer.flow.on_read(min(len(piece), limit))
            return
        buffer = self.protocol.get_buffer(-1)
        size = min(len(buffer), limit)
        done = 0
        while done < size and self._inbox:
            piece = self._inbox[0]
            take = min(len(piece), size - done)
            buffer[done : done + take] = piece[:take]
            done += take
            if take == len(piece):
                self._inbox.popleft()
            else:
                self._inbox[0] = piece[take:]
        self.protocol.buffer_updated(done)
        self.peer.flow.on_read(done)

    @property
    def unread(self) -> bool:
        return bool(self._inbox)

    def end(self, error: Exception | None) -> None:
        """The connection is over for this end, and the kernel tells its process why."""
        if not self.is_gone:
            self._closing = True
            self._leave(reset=False)
            self._tell_lost(error)

    def _leave(self, *, reset: bool) -> None:
        self.is_gone = True
        self.flow.queue.clear()
        self._inbox.clear()
        self.network.forget(self)
        if reset:
            self.network.reset(self, self.peer)

    def _tell_lost(self, error: Exception | None) -> None:
        if not self._was_told:
            self._was_told = True
            self.loop.io(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        if self.protocol is not None:  # else it was reset before its process knew of it: the attempt fails
            self.protocol.connection_lost(error)


class SimSocket:
    """What the production code asks of a transport's socket."""

    family = socket.AF_INET

    def __init__(self, transport: SimTransport) -> None:
        self._transport = transport

    def setsockopt(self, *_: Any) -> None:
        return None

    def getsockname(self) -> tuple[str, int]:
        return self._transport.own_address

    def getsockopt(self, level: int, option: int, size: int = 0) -> bytes:
        """TCP_INFO with the one field that is looked at: acknowledged bytes, the last eight."""
        return bytes(size - 8) + self._transport.flow.acknowledged.to_bytes(8, sys.byteorder)


class SimServer:
    """A listening socket."""

    def __init__(self, network: Network, loop: NodeLoop, factory: Callable[[], Any], address: str, port: int) -> None:
        self.network = network
        self.loop = loop
        self.factory = factory
        self.address = address
        self.port = port
        self.is_serving = False
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return self.address, self.port

    async def start_serving(self) -> None:
        self.is_serving = True

    def close(self) -> None:
        self.is_serving = False
        self.network.unlisten(self)

    async def wait_closed(self) -> None:
        return None


# -- the network ------------------------------------------------------------------------------------------------------


class Network:
    """All links and connections of a world."""

    def __init__(self, world: World, scheduler: Scheduler, random: Random) -> None:
        self.world = world
        self.scheduler = scheduler
        self.random = random
        self.delay_s = 0.000_1
        self.jitter_s = 0.000_1
        """Defaults of links that are made from now on."""
        self.messages = 0
        """Frames that arrived."""
        self.holds: list[Hold] = []
        self.breaks: list[tuple[Predicate, list[int]]] = []
        self.taps: list[Callable[[Message], object]] = []
        """Called with each message as it is sent."""
        self._links: dict[tuple[int, int], Link] = {}
        self._servers: dict[tuple[str, int], SimServer] = {}
        self._addresses: dict[str, Machine] = {}
        self._transports: dict[int, SimTransport] = {}
        """Both ends of every connection that is not over; by number (client ends are even)."""
        self._read_limits: dict[int, tuple[float, int]] = {}
        self._number = 0
        self._ports: dict[str, int] = {}

    # -- links and faults ---------------------------------------------------------------------------------------------

    def add(self, machine: Machine) -> None:
        self._addresses[machine.address] = machine

    def link(self, source: int, target: int) -> Link:
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link(self.delay_s, self.jitter_s)
        return found

    def cut(self, source: int, target: int) -> None:
        """Nothing goes this way any more. Cuts add up; each needs its `mend`."""
        self.link(source, target).cut += 1

    def mend(self, source: int, target: int) -> None:
        link = self.link(source, target)
        link.cut = max(0, link.cut - 1)
        if not link.cut:
            for transport in list(self._transports.values()):
                ends = (transport.machine.id, transport.peer.machine.id)
                if ends in ((source, target), (target, source)):
                    transport.flow.on_healed()

    def heal(self) -> None:
        """Every link is open, without loss, at the default delay; nothing is held."""
        for hold in list(self.holds):
            hold.release()
        self.breaks.clear()
        self._read_limits.clear()
        for (source, target), link in self._links.items():
            link.loss, link.delay_s, link.jitter_s, link.bytes_per_s = 0.0, self.delay_s, self.jitter_s, 1e9
            if link.cut:
                link.cut = 1
                self.mend(source, target)

    def fragment(self, machine: int, chance: float, bytes_max: int = 1) -> None:
        """Reads of this machine bring so little with this chance."""
        self._read_limits[machine] = (chance, bytes_max)

    def read_limit(self, machine: int) -> int:
        if self._read_limits:
            chance, bytes_max = self._read_limits.get(machine, (0.0, 0))
            if chance and self.random.random() < chance:
                return bytes_max
        return _READ_BYTES

    def hold(self, matches: Predicate, limit: int = -1) -> Hold:
        """Keep back each message that matches (at most `limit` of them), and what comes behind it on its connection."""
        hold = Hold(matches, self)
        hold._limit = limit
        self.holds.append(hold)
        return hold

    def break_on(self, matches: Predicate, times: int = 1) -> None:
        """The connection of a message that matches breaks as it arrives: the receiver never sees it, both ends are reset."""
        self.breaks.append((matches, [times]))

    def maybe_break(self, owner: SimTransport, segment: Segment) -> bool:
        for matches, left in self.breaks:
            if left[0] and any(matches(message) for message in segment.messages):
                left[0] -= 1
                error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
                owner.peer.end(error)
                owner.end(error)
                return True
        return False

    def reset_between(self, one: int, other: int) -> int:
        """Every connection between the two machines is reset; returns how many there were."""
        count = 0
        for transport in list(self._transports.values()):
            if transport.is_client and {transport.machine.id, transport.peer.machine.id} == {one, other}:
                count += 1
                for end in (transport, transport.peer):
                    end.end(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        return count

    @property
    def connections(self) -> int:
        return sum(transport.is_client for transport in self._transports.values())

    # -- listening and connecting -------------------------------------------------------------------------------------

    def listen(self, loop: NodeLoop, factory: Callable[[], Any], host: str, port: int, *, start_serving: bool) -> SimServer:
        address = loop.machine.address
        if host not in (address, "0.0.0.0", "", None, loop.machine.name):
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        if not port:
            port = self._ports[address] = self._ports.get(address, 30_000) + 1
        if (address, port) in self._servers:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        server = self._servers[address, port] = SimServer(self, loop, factory, address, port)
        server.is_serving = start_serving
        return server

    def unlisten(self, server: SimServer) -> None:
        if self._servers.get((server.address, server.port)) is server:
            del self._servers[server.address, server.port]

    async def connect(self, loop: NodeLoop, factory: Callable[[], Any], address: str, port: int) -> tuple[SimTransport, Any]:
        target = self._addresses.get(address)
        if target is None:
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        established = loop.create_future()
        attempt = _Attempt(self, loop, target, port, factory, established)
        attempt.send_syn()
        try:
            return await established
        finally:
            attempt.is_over = True

    def establish(self, attempt: _Attempt, server: SimServer) -> None:
        """The SYN reached a listening socket."""
        self._number += 2
        client = SimTransport(self, attempt.loop, self._number, True)
        answering = SimTransport(self, server.loop, self._number + 1, False)
        client.flow.peer, answering.flow.peer = answering, client
        client.peer_address = answering.own_address = (server.address, server.port)
        client.own_address = answering.peer_address = (attempt.loop.machine.address, 40_000 + self._number // 2)
        self._transports[client.number], self._transports[answering.number] = client, answering
        server.loop.io(self._accept, server, answering)
        attempt.answer(client)

    def _accept(self, server: SimServer, transport: SimTransport) -> None:
        protocol = server.factory()
        transport.protocol = protocol
        protocol.connection_made(transport)
        transport._maybe_read()

    def server_at(self, machine: Machine, port: int) -> SimServer | None:
        return self._servers.get((machine.address, port))

    # -- ends ---------------------------------------------------------------------------------------------------------

    def forget(self, transport: SimTransport) -> None:
        self._transports.pop(transport.number, None)

    def reset(self, source: SimTransport, target: SimTransport) -> None:
        """An RST on its way to `target`; lost if the way is cut (then the next bytes bring another, or a time-out)."""
        link = self.link(source.machine.id, target.machine.id)
        if not target.is_gone and not link.cut:
            error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            self.scheduler.after(link.travel_s(self.random, 0), target.end, error)

    def on_process_gone(self, machine: Machine, *, power: bool) -> None:
        """The process ended: its kernel closes its sockets. Without power nobody closes anything."""
        for server in [server for server in self._servers.values() if server.loop.machine is machine]:
            self.unlisten(server)
        for transport in [t for t in self._transports.values() if t.machine is machine]:
            peer = transport.peer
            unread = transport.unread
            transport.is_gone = True
            self.forget(transport)
            if power:
                # Nobody sends anything. Who has sent something finds out by its time-out, who has not by keepalive.
                self.scheduler.after(USER_TIMEOUT_S, self._keepalive, transport, peer)
            elif unread:
                transport.flow.queue.clear()
                self.reset(transport, peer)
            else:
                self._last_bytes(transport)

    def _last_bytes(self, transport: SimTransport) -> None:
        """What the kernel had taken still leaves, then the FIN."""
        link = self.link(transport.machine.id, transport.peer.machine.id)
        waiting = [segment for segment in transport.flow.queue if segment.data]
        transport.flow.queue.clear()
        if link.cut or transport.flow.held_by is not None:
            return
        for segment in waiting[: self.random.randint(0, len(waiting))]:
            transport.flow._depart(segment, link)
        transport.flow._depart(Segment(b"", [], ends=True), link)

    def on_power(self, machine: Machine) -> None:
        """It is back, and knows nothing of its connections: who sends into one of them is told so."""
        for transport in list(self._transports.values()):
            if transport.peer.machine is machine and transport.peer.is_gone:
                transport.flow.on_healed()

    def _keepalive(self, gone: SimTransport, peer: SimTransport) -> None:
        if not peer.is_gone:
            peer.end(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))

    # -- messages -----------------------------------------------------------------------------------------------------

    def messages_in(self, transport: SimTransport, data: bytes) -> Iterator[Message]:
        """The frames of what a transport writes. Our connections write whole frames; others' bytes are no messages."""
        position, source, target = 0, transport.machine.id, transport.peer.machine.id
        apis = transport._apis if transport.is_client else transport.peer._apis
        while position + 4 < len(data):
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if end > len(data):
                return
            frame = data[position:end]
            if transport.is_client:
                api_key, correlation_id = _request_head(frame)
                apis[correlation_id] = api_key
            else:
                correlation_id = frames.correlation_id_of(bytearray(frame[4:16]))
                api_key = apis.pop(correlation_id, -1)
            message = Message(transport.number // 2, source, target, transport.is_client, api_key, correlation_id, frame)
            for tap in self.taps:
                tap(message)
            yield message
            position = end

    def trace_arrival(self, machine: int, segment: Segment) -> None:
        self.world.trace.step(self.scheduler.now, machine, len(segment.data))


class _Attempt:
    """A connection that is being opened."""

    def __init__(
        self, network: Network, loop: NodeLoop, target: Machine, port: int, factory: Callable[[], Any], established: Any
    ) -> None:
        self.network, self.loop, self.target, self.port = network, loop, target, port
        self.factory = factory
        self.established = established
        self.is_over = False
        self._tries = 0
        self._answered = False

    def send_syn(self) -> None:
        if self.is_over or self._answered or self.loop.is_dead:
            return
        network = self.network
        link = network.link(self.loop.machine.id, self.target.id)
        now = network.scheduler.now
        lost = link.cut or (link.loss and network.random.random() < link.loss)
        if not lost:
            network.scheduler.after(link.travel_s(network.random, 0), self._on_syn)
        if self._tries == len(SYN_RETRY_S):
            self._fail(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
            return
        gap = SYN_RETRY_S[self._tries] - (SYN_RETRY_S[self._tries - 1] if self._tries else 0.0)
        self._tries += 1
        network.scheduler.at(now + gap, self.send_syn)

    def _on_syn(self) -> None:
        """At the target's kernel."""
        network = self.network
        back = network.link(self.target.id, self.loop.machine.id)
        if self._answered or self.is_over or back.cut or not self.target.has_power:
            return
        server = network.server_at(self.target, self.port)
        self._answered = True
        if server is None or not server.is_serving:
            delay_s = back.travel_s(network.random, 0)
            network.scheduler.after(delay_s, self._fail, ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
        else:
            network.establish(self, server)

    def answer(self, client: SimTransport) -> None:
        network = self.network
        back = network.link(self.target.id, self.loop.machine.id)
        network.scheduler.after(back.travel_s(network.random, 0), self.loop.io, self._on_established, client)

    def _on_established(self, client: SimTransport) -> None:
        if self.established.done() or self.is_over:
            client.protocol = asyncio.Protocol()
            client.abort()
            return
        if client.is_gone:
            self._tell(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        client.protocol = self.factory()
        client.protocol.connection_made(client)
        self.established.set_result((client, client.protocol))
        client._maybe_read()

    def _fail(self, error: OSError) -> None:
        self.loop.io(self._tell, error)

    def _tell(self, error: OSError) -> None:
        if not self.established.done():
            self.established.set_exception(error)


def _request_head(frame: bytes) -> tuple[int, int]:
    """API key and correlation id of `[api_key, api_version, correlation_id, ...]`, from the head of the frame."""
    api_key, position = _integer(frame, 5)
    _, position = _integer(frame, position)
    correlation_id, _ = _integer(frame, position)
    return api_key, correlation_id


_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}


def _integer(data: bytes, position: int) -> tuple[int, int]:
    """A msgpack integer that is not negative, and the position behind it."""
    head = data[position]
    if head < 0x80:
        return head, position + 1
    width = _WIDTHS.get(head, 0)
    return int.from_bytes(data[position + 1 : position + 1 + width], "big"), position + 1 + width
