"""The simulated network: machines with addresses and names, links between them, and the faults of both.

    connections     tcp.py: bytes arrive in order, once, or the connection ends
    links           links.py: one per direction, so a partition may be one-way
    messages        messages.py: the frames in the bytes, for stories and faults that watch, hold or lose one

Faults of links: delay, jitter, loss, low bandwidth (`link(a, b)`), clogs, cuts. Of connections: `reset_between` (both ends are
notified), `mute_between` (neither end is notified: an end that sends, or probes with keepalive, detects it). Of readers:
`fragment`, `slow_reader`. Of names: `names`, `silent_names`.

Messages can be watched (`taps`), held back and released (`hold`), or made the point at which a connection breaks (`break_on`).
So a story says "hold the response that carries the new high watermark". A held message also holds up later messages of its
connection, because TCP does not reorder. It has not left its process yet, so it is lost if the process dies. A message cannot be
lost alone; `break_on` is how TCP loses one. A request whose connection breaks after its delivery arrives twice, on two
connections.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from strandline.protocol.rpc.connection import Connection
from strandline.testing.simulation.kernel.interfaces import Host
from strandline.testing.simulation.kernel.links import FAST, Link
from strandline.testing.simulation.kernel.loop import NodeLoop
from strandline.testing.simulation.kernel.messages import Message, Place, Predicate, request_head, response_id, split_frames
from strandline.testing.simulation.kernel.scheduler import Scheduler
from strandline.testing.simulation.kernel.tcp import (
    READ_BYTES,
    WINDOW_BYTES,
    End,
    Segment,
    SimTransport,
    reset_error,
    timeout_error,
)

__all__ = ["WINDOW_BYTES", "Hold", "Link", "Message", "Network", "Predicate", "SimServer", "SimTransport"]

SYN_RETRY_S = (1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 127.0)
"""Seconds after which an unanswered SYN is sent again; after the last one the connect fails."""
READS_FIRST = 0.25
"""The chance that a protocol reads before `create_connection` returns its connection. uvloop allows that order, asyncio does
not."""
RESOLVE_S = 0.001
"""Mean time of a name look-up, in seconds."""
_PORTS, _EPHEMERAL_PORTS = 30_000, range(32_768, 61_000)


@dataclass(slots=True, eq=False)
class Hold:
    """A breakpoint for messages: those that match are held back until `release`."""

    matches: Predicate
    network: Network
    left: int = -1
    """How many more messages it will hold; -1: all."""
    held: list[Message] = field(default_factory=list)
    """The messages that it holds, in the order in which they were written. Those of ended connections are dropped."""
    _ends: list[tuple[End, Message]] = field(default_factory=list)

    @property
    def has(self) -> bool:
        """Whether at least one message is held."""
        return bool(self.held)

    def keep(self, end: End, message: Message) -> None:
        self.held.append(message)
        self._ends.append((end, message))
        self.left -= self.left > 0
        end.held_by = self

    def drop(self, end: End) -> None:
        """Drop the held messages of a connection that has ended."""
        end.held_by = None
        self.held = [message for other, message in self._ends if other is not end]
        self._ends = [(other, message) for other, message in self._ends if other is not end]

    def release(self) -> None:
        """Release the held messages in their order, and hold no more."""
        if self in self.network.holds:
            self.network.holds.remove(self)
        ends, self._ends = self._ends, []
        self.held = []
        for end, _ in ends:
            if end.held_by is self:
                end.held_by = None
                end.pump()


@dataclass(slots=True, eq=False)
class Break:
    """A message that matches breaks its connection."""

    matches: Predicate
    times: int
    after: bool
    chance: float


class SimServer(asyncio.AbstractServer):
    """A listening socket. Before `start_serving` it owns its address and refuses connections."""

    def __init__(
        self, network: Network, loop: NodeLoop, factory: Callable[[], Any], address: tuple[str, int], is_listening: bool
    ) -> None:
        self.network = network
        self.loop = loop
        self.factory = factory
        self.address = address
        self.is_listening = is_listening
        self.sockets: tuple[SimServer, ...] = (self,)
        self._is_closed: asyncio.Future[None] = loop.create_future()

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def fileno(self) -> int:
        """-1 if the listener is closed, as for a real socket, and 0 otherwise. The number is not used for anything else."""
        return -1 if self._is_closed.done() else 0

    def get_loop(self) -> NodeLoop:
        return self.loop

    def is_serving(self) -> bool:
        return self.is_listening

    async def start_serving(self) -> None:
        if self._is_closed.done():
            raise RuntimeError(f"server {self.address!r} is closed")
        self.is_listening = True

    async def serve_forever(self) -> None:
        await self.start_serving()
        try:
            await asyncio.shield(self._is_closed)
        finally:
            self.close()

    def close(self) -> None:
        """Close the socket. Accepted connections live on; the ones not accepted yet are reset."""
        self.is_listening = False
        self.sockets = ()
        self.network.unlisten(self)
        if not self._is_closed.done():
            self._is_closed.set_result(None)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._is_closed)


class Network:
    """All links and connections of a world."""

    def __init__(self, scheduler: Scheduler, random: Random, trace_step: Callable[..., None]) -> None:
        self.scheduler = scheduler
        self.random = random
        self.draw = random.random
        self.delay_s = 0.000_1
        self.jitter_s = 0.000_1
        """The defaults of links that are created from now on."""
        self.messages = 0
        """Number of frames that arrived."""
        self.holds: list[Hold] = []
        self.breaks: list[Break] = []
        self.taps: list[Callable[[Message], object]] = []
        """Called with each message when its process writes it."""
        self.names: dict[str, list[str]] = {}
        """Addresses by name. Machines have their own; a look-up of an unknown name fails."""
        self.silent_names: set[str] = set()
        """Look-ups of these names get no answer as long as the names are here."""
        self._links: dict[tuple[int, int], Link] = {}
        self._servers: dict[tuple[str, int], SimServer] = {}
        self._machines: dict[str, Host] = {}
        self._ends: dict[int, End] = {}
        """The ends of open connections, by number; client ends are even."""
        self._backlog: dict[SimServer, list[End]] = {}
        """Connections that are open for the client and not accepted yet."""
        self.read_limits: dict[int, tuple[float, int]] = {}
        """Machine -> the probability of a short read, and its size in bytes."""
        self.read_delays: dict[int, float] = {}
        self._questions: list[tuple[str, asyncio.Future[list[str]]]] = []
        """Look-ups that wait for the resolver while it is silent."""
        self._connections = 0
        self.trace_step = trace_step
        self._ports: dict[str, int] = {}

    # -- links --------------------------------------------------------------------------------------------------------

    def add(self, machine: Host) -> None:
        self._machines[machine.address] = machine
        self.names[machine.name] = [machine.address]

    def link(self, source: int, target: int) -> Link:
        """The link from one machine to the other. Every call returns the same object, so its numbers can be changed."""
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link(self.delay_s, self.jitter_s)
        return found

    def cut(self, source: int, target: int) -> None:
        """Block this direction, also for what is on its way. Cuts add up; each needs its own `mend`."""
        link = self.link(source, target)
        link.cut += 1
        if link.cut == 1:
            for end in self._ends_between(source, target):
                end.on_broken()

    def mend(self, source: int, target: int) -> None:
        link = self.link(source, target)
        if link.cut:
            link.cut -= 1
            if not link.cut:
                for end in self._ends_between(source, target):
                    end.on_mended()

    def clog(self, source: int, target: int, for_s: float) -> None:
        """Delay all segments that are sent in this direction during the next `for_s` seconds until the end of this time."""
        link = self.link(source, target)
        link.clogged_until = max(link.clogged_until, self.scheduler.now + for_s)

    def heal(self) -> None:
        """Open all links, without loss and at the default delay; release everything that is held, and end breaks and slow
        reads."""
        for hold in list(self.holds):
            hold.release()
        self.breaks.clear()
        self.read_limits.clear()
        self.read_delays.clear()
        for link in self._links.values():
            link.loss, link.delay_s, link.jitter_s, link.bytes_per_s = 0.0, self.delay_s, self.jitter_s, FAST
            link.clogged_until = 0.0
        for (source, target), link in self._links.items():
            if link.cut:
                link.cut = 1
                self.mend(source, target)
        self.answer_names()

    def partition(self, one: Iterable[int], other: Iterable[int], *, both_ways: bool = True) -> Callable[[], None]:
        """Cut all links between the two groups (in one direction, if so asked); returns the function that mends them."""
        ways = [(a, b) for a in one for b in other if a != b]
        if both_ways:
            ways += [(b, a) for a, b in ways]
        for way in ways:
            self.cut(*way)

        def undo() -> None:
            while ways:
                self.mend(*ways.pop())

        return undo

    async def swizzle(self, nodes: Iterable[int], others: Iterable[int], random: Random, *, pace_s: float) -> None:
        """Cut the nodes off from all others one by one, and reconnect them one by one in another order."""
        order, others = list(nodes), list(others)
        random.shuffle(order)
        mends = {}
        for node in order:
            mends[node] = self.partition([node], [other for other in others if other != node])
            await asyncio.sleep(pace_s * random.random())
        random.shuffle(order)
        for node in order:
            mends[node]()
            await asyncio.sleep(pace_s * random.random())

    # -- readers ------------------------------------------------------------------------------------------------------

    def fragment(self, machine: int, chance: float, bytes_max: int = 1) -> None:
        """Reads of this machine return at most so many bytes, with this probability."""
        self.read_limits[machine] = (chance, bytes_max)

    def slow_reader(self, machine: int, delay_s: float) -> None:
        """Delay each read of this machine by so many seconds; 0 ends the delay."""
        self.read_delays[machine] = delay_s

    def read_limit(self, machine: int) -> int:
        chance, bytes_max = self.read_limits.get(machine, (0.0, 0))
        return bytes_max if chance and self.draw() < chance else READ_BYTES

    # -- messages -----------------------------------------------------------------------------------------------------

    def hold(self, matches: Predicate, limit: int = -1) -> Hold:
        """Hold back each message that matches (at most `limit` of them), and everything behind it on its connection."""
        hold = Hold(matches, self, limit)
        self.holds.append(hold)
        return hold

    def hold_of(self, message: Message) -> Hold | None:
        return next((hold for hold in self.holds if hold.left and hold.matches(message)), None)

    def break_on(self, matches: Predicate, times: int = 1, *, after: bool = False, chance: float = 1.0) -> None:
        """Break the connection of a message that matches when the message arrives, and reset both ends. The receiver has read the
        bytes before the message and, with `after`, the message itself."""
        self.breaks.append(Break(matches, times, after, chance))

    def maybe_break(self, sender: End, segment: Segment) -> bool:
        for place in sender.places(segment):
            for each in self.breaks:
                if each.matches(place.message) and (each.chance >= 1 or self.draw() < each.chance):
                    each.times -= 1
                    if not each.times:
                        self.breaks.remove(each)  # without breaks, messages are not parsed
                    seen = segment.data[: place.end if each.after else max(0, place.start)]
                    receiver = sender.peer
                    receiver.receive(Segment(seen))
                    receiver.die(reset_error())
                    sender.die(reset_error())
                    return True
        return False

    def places_in(self, end: End, data: bytes) -> list[Place]:
        """The messages in bytes that leave an end."""
        number, source, target = end.number // 2, end.here.id, end.there.id
        found = []
        for start, stop in split_frames(data):
            frame = data[start:stop]
            if end.is_client:
                api_key, correlation_id = request_head(frame)
                end.apis[correlation_id] = api_key
            else:
                correlation_id = response_id(frame)
                api_key = _asked(end.peer, correlation_id)
            found.append(Place(start, stop, Message(number, source, target, end.is_client, api_key, correlation_id, frame)))
        return found

    # -- connections --------------------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """Number of connections of which at least one process holds an end."""
        return sum(not (end.is_orphan and end.peer.is_orphan) for end in self._ends.values() if end.is_client)

    def reset_between(self, one: int, other: int) -> int:
        """Reset every connection between the two machines, and notify both ends; returns the number of connections."""
        ends = self._ends_between(one, other)
        for end in ends:
            end.die(reset_error())
        return sum(end.is_client for end in ends)

    def mute_between(self, one: int, other: int) -> int:
        """Silence the present connections between the two machines without notifying them, like a firewall that has lost its
        state. New connections work. Returns the number of connections."""
        ends = self._ends_between(one, other)
        for end in ends:
            end.is_muted = True
        for end in ends:
            end.on_broken()
        return sum(end.is_client for end in ends)

    def _ends_between(self, one: int, other: int) -> list[End]:
        return [end for end in self._ends.values() if (end.here.id, end.there.id) in ((one, other), (other, one))]

    def forget(self, end: End) -> None:
        self._ends.pop(end.number, None)

    def on_process_gone(self, loop: NodeLoop) -> None:
        """The process is gone: its kernel closes its sockets."""
        for server in [server for server in self._servers.values() if server.loop is loop]:
            self.unlisten(server)
        for end in [end for end in self._ends.values() if end.loop is loop]:
            end.on_process_gone()

    def on_power_cut(self, machine: Host) -> None:
        """The machine has lost its power: none of its sockets is closed, and nothing more arrives there."""
        for server in [server for server in self._servers.values() if server.loop.machine is machine]:
            del self._servers[server.address]
        self._backlog = {server: ends for server, ends in self._backlog.items() if server.loop.machine is not machine}
        for end in [end for end in self._ends.values() if end.here is machine]:
            end.vanish()

    def on_power(self, machine: Host) -> None:
        """The machine is back without its connections: the next segment of one of them is answered with RST."""
        for end in [end for end in self._ends.values() if end.there is machine]:
            end.on_mended()

    # -- listening and connecting -------------------------------------------------------------------------------------

    def listen(
        self, loop: NodeLoop, factory: Callable[[], Any], host: str | None, port: int | None, *, start_serving: bool
    ) -> SimServer:
        address = loop.machine.address
        if host not in (address, "0.0.0.0", "", None, loop.machine.name):
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        if not port:
            port = self._ports[address] = self._ports.get(address, _PORTS) + 1
        if (address, port) in self._servers:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        server = self._servers[address, port] = SimServer(self, loop, factory, (address, port), start_serving)
        return server

    def unlisten(self, server: SimServer) -> None:
        if self._servers.get(server.address) is server:
            del self._servers[server.address]
        for end in self._backlog.pop(server, ()):
            end.on_process_gone()

    def server_at(self, machine: Host, port: int) -> SimServer | None:
        return self._servers.get((machine.address, port))

    async def connect(self, loop: NodeLoop, factory: Callable[[], Any], host: str, port: int) -> tuple[SimTransport, Any]:
        if not is_address(host):
            host = (await self.look_up(host))[0]
        target = self._machines.get(host)
        if target is None:
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        attempt = _Attempt(self, loop, target, port, factory)
        attempt.send_syn()
        try:
            return await attempt.established
        except asyncio.CancelledError:
            if attempt.made is not None:  # in the same moment
                attempt.made.close()
            raise
        finally:
            attempt.is_over = True

    def open(self, attempt: _Attempt, server: SimServer) -> End:
        """The SYN reached a listening socket. Returns the client's end of the new connection."""
        self._connections += 1
        number = 2 * self._connections
        own = attempt.loop.machine
        port = _EPHEMERAL_PORTS[self._connections % len(_EPHEMERAL_PORTS)]
        client = End(self, attempt.loop, attempt.target, number, (own.address, port), is_client=True)
        answering = End(self, server.loop, own, number + 1, server.address, is_client=False)
        client.peer, answering.peer = answering, client
        self._ends[client.number], self._ends[answering.number] = client, answering
        self._backlog.setdefault(server, []).append(answering)
        server.loop.io(self._accept, server, answering)
        return client

    def _accept(self, server: SimServer, end: End) -> None:
        waiting = self._backlog.get(server, [])
        if end not in waiting:
            return  # the server was closed
        waiting.remove(end)
        transport = end.transport = SimTransport(end)
        transport.set_protocol(server.factory())
        transport.protocol.connection_made(transport)
        transport.maybe_read()

    # -- names --------------------------------------------------------------------------------------------------------

    def look_up(self, host: str) -> asyncio.Future[list[str]]:
        """Replaces `protocol/rpc/resolver.py`: the addresses of a name, as the asking process gets them."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NodeLoop)
        found: asyncio.Future[list[str]] = loop.create_future()
        if host in self.silent_names:
            self._questions.append((host, found))
        else:
            self.scheduler.after(2 * RESOLVE_S * self.draw(), loop.io, self._tell_address, host, found)
        return found

    def answer_names(self) -> None:
        """Let the resolver answer again, including the look-ups that waited."""
        self.silent_names.clear()
        questions, self._questions = self._questions, []
        for host, found in questions:
            loop = found.get_loop()
            assert isinstance(loop, NodeLoop)
            loop.io(self._tell_address, host, found)

    def _tell_address(self, host: str, found: asyncio.Future[list[str]]) -> None:
        if found.done():
            return
        addresses = self.names.get(host)
        if addresses:
            found.set_result(list(addresses))
        else:
            found.set_exception(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))

    def close(self) -> None:
        """The world ends."""
        for each in (self._ends, self._servers, self._backlog, self._machines):
            each.clear()
        for seen in (self.holds, self.breaks, self.taps, self._questions):
            seen.clear()


def is_address(host: str) -> bool:
    return host.replace(".", "").isdigit()


def _asked(asker: End, correlation_id: int) -> int:
    """The API key of a request, if it is known: from a tap that parsed the request, or from the connection that waits for the
    response."""
    api_key = asker.apis.pop(correlation_id, -1)
    if api_key < 0 and asker.transport is not None and isinstance(asker.transport.protocol, Connection):
        return asker.transport.protocol.api_key_of(correlation_id)
    return api_key


class _Attempt:
    """A connection that is being opened."""

    def __init__(self, network: Network, loop: NodeLoop, target: Host, port: int, factory: Callable[[], Any]) -> None:
        self.network, self.loop, self.target, self.port = network, loop, target, port
        self.factory = factory
        self.established: asyncio.Future[tuple[SimTransport, Any]] = loop.create_future()
        self.made: SimTransport | None = None
        self.is_over = False
        """Whether the attempt, or the process that began it, has ended."""
        self._began_at = network.scheduler.now
        self._tries = 0
        self._is_answered = False

    def send_syn(self) -> None:
        network = self.network
        if self.is_over or self._is_answered or self.loop.is_dead:
            return
        if self._tries == len(SYN_RETRY_S):
            self._is_answered = True
            self._fail(timeout_error())
            return
        link = network.link(self.loop.machine.id, self.target.id)
        if not link.cut and not (link.loss and network.draw() < link.loss):
            network.scheduler.at(link.arrival(network.scheduler.now, network.draw, 0), self._on_syn)
        network.scheduler.at(self._began_at + SYN_RETRY_S[self._tries], self.send_syn)
        self._tries += 1

    def _on_syn(self) -> None:
        """The SYN arrives at the target's kernel. If the answer is lost, the SYN is sent again."""
        network, target, asker = self.network, self.target, self.loop.machine
        way, back = network.link(asker.id, target.id), network.link(target.id, asker.id)
        if self._is_answered or self.is_over or self.loop.is_dead or way.cut or back.cut or not target.has_power:
            return
        if back.loss and network.draw() < back.loss:
            return
        self._is_answered = True
        server = network.server_at(target, self.port)
        arrives_at = back.arrival(network.scheduler.now, network.draw, 0)
        if server is None or not server.is_listening:
            error = ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {(target.address, self.port)!r}")
            network.scheduler.at(arrives_at, self._fail, error)
        else:
            client = network.open(self, server)
            network.scheduler.at(arrives_at, self.loop.io, self._on_established, client)

    def _on_established(self, client: End) -> None:
        """The connection is open: runs in a turn of the process that asked."""
        if self.is_over or self.established.done():
            client.on_process_gone()
        elif client.is_over:
            self.established.set_exception(client.error or reset_error())
        else:
            transport = self.made = client.transport = SimTransport(client)
            transport.set_protocol(self.factory())
            transport.protocol.connection_made(transport)
            if self.network.draw() < READS_FIRST:
                transport.maybe_read()
                self.loop.io(self._hand_over, transport)
            else:
                self._hand_over(transport)
                transport.maybe_read()

    def _hand_over(self, transport: SimTransport) -> None:
        if not self.established.done():
            self.established.set_result((transport, transport.protocol))

    def _fail(self, error: OSError) -> None:
        self.loop.io(self._tell, error)

    def _tell(self, error: OSError) -> None:
        if not self.established.done():
            self.established.set_exception(error)
