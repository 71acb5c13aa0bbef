"""TCP's guarantees hold under all faults of networks, processes and machines.

What both kinds of network do alike is in `test_network_conformance.py`. Here is what real ones do rarely, and on their own.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.protocol import apis, frames
from strandline.protocol.errors import BrokerError
from strandline.protocol.messages.admin import ApiVersionsRequest, ApiVersionsResponse
from strandline.protocol.rpc import sockets
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.dial import resolve
from strandline.protocol.rpc.server import Server, ServerRequest
from strandline.testing.simulation.kernel.machine import Machine
from strandline.testing.simulation.kernel.messages import count_frames, request_head, response_id, split_frames
from strandline.testing.simulation.kernel.network import WINDOW_BYTES, Message, Network
from strandline.testing.simulation.kernel.tcp import SEND_BUFFER_BYTES
from strandline.testing.simulation.kernel.world import World

A, B, PORT = 1, 2, 9000
STREAM = Random(7).randbytes(1 << 20)
"""The bytes that are sent: those at each offset of a connection are known."""


def stream(start: int, stop: int) -> bytes:
    size = len(STREAM)
    return (STREAM * (stop // size + 1))[start:stop]


class Side(asyncio.BufferedProtocol):
    """One end of a connection; it checks that it reads the sent bytes once and in order."""

    def __init__(self, is_tuned: bool = True) -> None:
        self.is_tuned = is_tuned
        self.transport: Any = None
        self.written = 0
        self.has_ended = False
        self.got = 0
        self.got_at = 0.0
        self.calls: list[str] = []
        self.lost_at = 0.0
        self.error: Exception | None = None
        self._buffer = bytearray(65536)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if self.is_tuned:
            sockets.tune_socket(transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert "lost" not in self.calls
        assert self._buffer[:nbytes] == stream(self.got, self.got + nbytes)
        self.got += nbytes
        self.got_at = asyncio.get_running_loop().machine.world.now  # type: ignore[attr-defined]

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return False

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        assert "lost" not in self.calls
        self.calls.append("lost")
        self.error = exc
        self.lost_at = asyncio.get_running_loop().machine.world.now  # type: ignore[attr-defined]

    @property
    def is_lost(self) -> bool:
        return "lost" in self.calls

    @property
    def may_write(self) -> bool:
        return not self.has_ended and not self.transport.is_closing()

    def end(self) -> None:
        self.has_ended = True
        self.transport.write_eof()

    def write(self, size: int) -> None:
        self.transport.write(stream(self.written, self.written + size))
        self.written += size


class Two:
    """Two machines with a process each, and connections from A to B."""

    def __init__(self, world: World, *, is_tuned: bool = True) -> None:
        self.world = world
        self.network: Network = world.network
        self.is_tuned = is_tuned
        self.a, self.b = world.add_machine(A, "a"), world.add_machine(B, "b")
        self.a.boot()
        self.b.boot()

    async def serve(self, accept: Callable[[], Any]) -> Any:
        assert self.b.loop is not None
        return await self.world.join(self.b.spawn(self.b.loop.create_server(accept, self.b.address, PORT)))

    def start_connecting(self, host: str | None = None) -> asyncio.Task[tuple[Any, Side]]:
        assert self.a.loop is not None
        return self.a.spawn(self.a.loop.create_connection(lambda: Side(self.is_tuned), host or self.b.address, PORT))

    async def open(self) -> tuple[Side, Side]:
        accepted: list[Side] = []

        def accept() -> Side:
            accepted.append(Side(self.is_tuned))
            return accepted[-1]

        if self.network.server_at(self.b, PORT) is None:
            await self.serve(accept)
        else:
            self.network.server_at(self.b, PORT).factory = accept  # type: ignore[union-attr]
        _, side = await self.world.join(self.start_connecting())
        await self.world.until(lambda: accepted)
        return side, accepted[0]

    def cut(self, *, there: bool = True, back: bool = True) -> None:
        if there:
            self.network.cut(A, B)
        if back:
            self.network.cut(B, A)

    def mend(self, *, there: bool = True, back: bool = True) -> None:
        if there:
            self.network.mend(A, B)
        if back:
            self.network.mend(B, A)


@pytest.fixture
def world() -> Iterator[World]:
    with closing(World(1)) as world:
        yield world


@pytest.fixture
def two(world: World) -> Two:
    return Two(world)


def do(machine: Machine, function: Callable[..., Any], *args: Any) -> Any:
    """Run the function in the event loop of that process, as all processes do."""
    assert machine.loop is not None
    machine.loop.call_soon(function, *args)


# -- whatever happens -------------------------------------------------------------------------------------------------

SIDE = st.sampled_from(["a", "b"])
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), SIDE, st.one_of(st.integers(1, 3000), st.sampled_from([60_000, 300_000, 1_000_000]))),
    st.tuples(st.just("wait"), st.sampled_from([0.000_05, 0.001, 0.3, 3.0, 20.0, 40.0])),
    st.tuples(st.just("stop reading"), SIDE),
    st.tuples(st.just("go on reading"), SIDE),
    st.tuples(st.just("cut"), st.sampled_from(["there", "back", "both"])),
    st.tuples(st.just("mend"), st.sampled_from(["there", "back", "both"])),
    st.tuples(st.just("loss"), st.sampled_from([0.0, 0.3, 0.9, 1.0])),
    st.tuples(st.just("speed"), st.sampled_from([1e9, 1e5, 2e3])),
    st.tuples(st.just("delay"), st.sampled_from([0.0, 0.001, 1.0])),
    st.tuples(st.just("clog"), st.sampled_from([0.1, 5.0])),
    st.tuples(st.just("fragment"), SIDE, st.sampled_from([1, 100])),
    st.tuples(st.just("slow reader"), SIDE),
    st.tuples(st.just("hold"), SIDE),
    st.tuples(st.just("release")),
    st.tuples(st.just("spend"), SIDE),
    st.tuples(st.just("pause"), SIDE),
    st.tuples(st.just("resume"), SIDE),
)
ENDINGS = st.one_of(
    st.none(),
    st.tuples(st.sampled_from(["close", "abort", "crash", "power cut", "end of file"]), SIDE),
    st.tuples(st.sampled_from(["reset", "mute"]), SIDE),
)


class Torment:
    """Runs the operations, one after the other."""

    def __init__(self, two: Two, sides: tuple[Side, Side]) -> None:
        self.two, self.world, self.network = two, two.world, two.network
        self.sides = dict(zip("ab", sides, strict=True))
        self.machines = {"a": two.a, "b": two.b}
        self.holds: list[Any] = []

    def in_process(self, name: str, action: Callable[[Side], object]) -> None:
        side, machine = self.sides[name], self.machines[name]
        if machine.loop is not None:
            machine.loop.call_soon(lambda: None if side.is_lost else action(side))

    async def do(self, operation: str, *args: Any) -> None:
        match operation, *args:
            case "write", name, size:
                self.in_process(name, lambda side: side.write(size) if side.may_write else None)
            case "wait", seconds:
                await self.world.sleep(seconds)
            case "stop reading", name:
                self.in_process(name, lambda side: side.transport.pause_reading())
            case "go on reading", name:
                self.in_process(name, lambda side: side.transport.resume_reading())
            case (("cut" | "mend"), way):
                for name, link in (("there", (A, B)), ("back", (B, A))):
                    if way in (name, "both"):
                        getattr(self.network, operation)(*link)
            case (("loss" | "speed" | "delay"), number):
                field = {"loss": "loss", "speed": "bytes_per_s", "delay": "delay_s"}[operation]
                for link in ((A, B), (B, A)):
                    setattr(self.network.link(*link), field, number)
            case "clog", seconds:
                self.network.clog(A, B, seconds)
            case "fragment", name, size:
                self.network.fragment(self.machines[name].id, 0.5, size)
            case "slow reader", name:
                self.network.slow_reader(self.machines[name].id, 0.01)
            case "hold", name:
                source = self.machines[name].id
                self.holds.append(self.network.hold(lambda message: message.source == source, 1))
            case ("release",):
                for hold in self.holds:
                    hold.release()
            case "spend", name:
                self.in_process(name, lambda side: side.transport.loop.spend(2.0))
            case "pause", name:
                self.machines[name].pause()
            case "resume", name:
                self.machines[name].resume()
            case "close", name:
                self.in_process(name, lambda side: side.transport.close())
            case "abort", name:
                self.in_process(name, lambda side: side.transport.abort())
            case "end of file", name:
                self.in_process(name, lambda side: side.end())
            case "crash", name:
                self.machines[name].crash()
            case "power cut", name:
                self.machines[name].power_cut()
            case "reset", _:
                self.network.reset_between(A, B)
            case "mute", _:
                self.network.mute_between(A, B)

    def calm_down(self) -> None:
        for machine in self.machines.values():
            machine.resume()
        self.network.heal()
        for name in "ab":
            self.in_process(name, lambda side: side.transport.resume_reading())


def is_settled(one: Side, other: Side, one_lives: bool) -> bool:
    """Each live end has received all bytes that were sent to it, or its connection has ended."""
    return not one_lives or one.is_lost or one.got == other.written


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.lists(OPERATIONS, max_size=25), ENDINGS, st.lists(OPERATIONS, max_size=8))
def test_bytes_arrive_in_order_once_or_the_connection_ends(
    seed: int, before: list[tuple[Any, ...]], ending: tuple[Any, ...] | None, after: list[tuple[Any, ...]]
) -> None:
    """Each side checks every byte that it reads. After the heal, the sent bytes arrive, or a living side knows that the
    connection ended."""
    with closing(World(seed)) as world:
        two = Two(world)

        async def story() -> None:
            sides = await two.open()
            torment = Torment(two, sides)
            for operation in (*before, *([] if ending is None else [ending]), *after):
                await torment.do(*operation)
            torment.calm_down()
            await world.sleep(100.0)
            a, b = sides
            assert is_settled(a, b, two.a.is_up), (a.got, b.written, a.calls)
            assert is_settled(b, a, two.b.is_up), (b.got, a.written, b.calls)
            if a.is_lost or not two.a.is_up:
                assert b.is_lost or not two.b.is_up
            if b.is_lost or not two.b.is_up:
                assert a.is_lost or not two.a.is_up
            if a.is_lost and b.is_lost:
                assert world.network.connections == 0
                assert world.network._ends == {}
            for side in sides:
                assert side.calls.count("pause") - side.calls.count("resume") in (0, 1)

        world.run(story(), limit_s=5000)


# -- silence ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [{}, {"there": False}, {"back": False}], ids=["both ways", "no way back", "no way there"])
def test_unacknowledged_bytes_end_the_connection_after_half_a_minute(two: Two, way: dict[str, bool]) -> None:
    """`tune_socket` sets that. On a one-way cut the bytes may have arrived; the sender does not know."""

    async def story() -> None:
        a, b = await two.open()
        two.cut(**way)
        began = two.world.now
        do(two.a, a.write, 1000)
        await two.world.sleep(20)
        assert not a.is_lost
        assert b.got == (1000 if not way.get("there", True) else 0)
        await two.world.until(lambda: a.is_lost, 20)
        assert isinstance(a.error, TimeoutError)
        assert two.world.now - began == pytest.approx(30, abs=0.1)

    two.world.run(story())


def test_connection_without_a_bound_waits_a_quarter_of_an_hour(world: World) -> None:
    """That is Linux' own bound. This would expose a socket of ours that is not tuned."""
    two = Two(world, is_tuned=False)

    async def story() -> None:
        a, _ = await two.open()
        two.cut()
        do(two.a, a.write, 10)
        await world.sleep(900)
        assert not a.is_lost
        await world.until(lambda: a.is_lost, 60)

    world.run(story(), limit_s=2000)


def test_bytes_lost_before_the_heal_arrive_with_their_next_retry(two: Two) -> None:
    async def story() -> None:
        a, b = await two.open()
        two.cut()
        began = two.world.now
        do(two.a, a.write, 1000)
        await two.world.sleep(5)
        two.mend()
        await two.world.until(lambda: b.got == 1000)
        assert two.world.now - began == pytest.approx(6.2, abs=0.1)  # 0.2 + 0.4 + 0.8 + 1.6 + 3.2
        assert not a.is_lost

    two.world.run(story())


def test_cut_link_drops_segments_on_their_way(two: Two) -> None:
    """A story that cuts a link expects that nothing arrives from then on."""

    async def story() -> None:
        a, b = await two.open()
        two.network.link(A, B).delay_s = 1.0
        do(two.a, a.write, 1000)
        await two.world.sleep(0.5)
        two.cut()
        await two.world.sleep(3)
        assert b.got == 0
        two.mend()
        await two.world.until(lambda: b.got == 1000)

    two.world.run(story())


def test_an_idle_connection_over_a_cut_is_given_up_by_keepalive(two: Two) -> None:
    async def story() -> None:
        a, b = await two.open()
        await two.world.sleep(25)
        two.cut(back=False)
        cut_at = two.world.now
        await two.world.until(lambda: a.is_lost and b.is_lost, 60)
        assert isinstance(a.error, TimeoutError)
        assert isinstance(b.error, TimeoutError)
        for side in (a, b):
            assert 20 <= side.lost_at - cut_at <= 30  # the last probe that was answered was at most 10 s before

    two.world.run(story())


def test_idle_connection_survives_a_short_cut(world: World) -> None:
    two = Two(world)

    async def story() -> None:
        a, b = await two.open()
        two.is_tuned = False
        c, d = await two.open()
        for _ in range(3):
            two.cut()
            await world.sleep(15)
            two.mend()
            await world.sleep(15)
        assert not a.is_lost
        assert not b.is_lost
        two.cut()
        await world.sleep(500)
        assert a.is_lost
        assert b.is_lost
        assert not c.is_lost
        assert not d.is_lost

    world.run(story(), limit_s=2000)


def test_muted_connection_is_silent_and_others_are_not(two: Two) -> None:
    """A half-open connection: neither end is notified. A new connection works."""

    async def story() -> None:
        a, b = await two.open()
        assert two.network.mute_between(A, B) == 1
        do(two.a, a.write, 10)
        c, d = await two.open()
        do(two.a, c.write, 10)
        await two.world.sleep(1)
        assert (b.got, d.got) == (0, 10)
        await two.world.until(lambda: a.is_lost and b.is_lost, 60)
        assert not c.is_lost

    two.world.run(story())


# -- processes and machines that end ----------------------------------------------------------------------------------


def test_peer_of_a_dying_process_is_notified_at_once(two: Two) -> None:
    async def story() -> None:
        a, b = await two.open()
        do(two.b, b.write, 1000)
        await two.world.sleep(0.1)
        two.b.crash()
        await two.world.until(lambda: a.is_lost, 0.1)
        assert (a.got, a.error, a.calls) == (1000, None, ["eof", "lost"])

    two.world.run(story())


def test_only_bytes_in_the_kernel_arrive_after_the_process_died(two: Two) -> None:
    async def story() -> None:
        a, b = await two.open()
        do(two.a, a.transport.pause_reading)
        do(two.b, b.write, 5_000_000)
        await two.world.sleep(0.1)
        two.b.crash()
        do(two.a, a.transport.resume_reading)
        await two.world.until(lambda: a.is_lost)
        assert WINDOW_BYTES <= a.got <= WINDOW_BYTES + SEND_BUFFER_BYTES

    two.world.run(story())


def test_close_with_unread_bytes_is_a_reset(two: Two) -> None:
    async def story() -> None:
        a, b = await two.open()
        do(two.b, b.transport.pause_reading)
        do(two.b, b.write, 10)
        await two.world.sleep(0.01)
        do(two.a, a.write, 10)
        await two.world.sleep(0.1)
        two.b.crash()
        await two.world.until(lambda: a.is_lost, 0.1)
        assert a.got == 10
        assert isinstance(a.error, ConnectionResetError)

    two.world.run(story())


def test_bytes_of_a_dead_process_arrive_after_the_heal(two: Two) -> None:
    async def story() -> None:
        a, b = await two.open()
        two.cut()
        do(two.b, b.write, 1000)
        await two.world.sleep(0.1)
        two.b.crash()
        await two.world.sleep(5)
        assert a.calls == []
        two.mend()
        await two.world.until(lambda: a.is_lost, 5)
        assert a.got == 1000

    two.world.run(story())


def test_machine_is_silent_without_power_and_resets_afterwards(two: Two) -> None:
    async def story() -> None:
        a, _ = await two.open()
        c, _ = await two.open()
        await two.world.sleep(1)
        two.b.power_cut()
        do(two.a, a.write, 10)
        await two.world.sleep(10)
        assert not a.is_lost
        two.b.boot()
        await two.world.until(lambda: a.is_lost, 5)
        assert isinstance(a.error, ConnectionResetError)
        await two.world.until(lambda: c.is_lost, 15)  # idle: its next probe
        assert isinstance(c.error, ConnectionResetError)

    two.world.run(story())


def test_a_machine_that_stays_without_power_is_given_up(two: Two) -> None:
    async def story() -> None:
        a, _ = await two.open()
        idle, _ = await two.open()
        two.b.power_cut()
        do(two.a, a.write, 10)
        await two.world.until(lambda: a.is_lost and idle.is_lost, 45)
        assert isinstance(a.error, TimeoutError)
        assert isinstance(idle.error, TimeoutError)

    two.world.run(story())


def test_kernel_of_a_paused_process_buffers_and_acknowledges(two: Two) -> None:
    async def story() -> None:
        a, b = await two.open()
        two.b.pause()
        do(two.a, a.write, 1000)
        await two.world.sleep(100)
        assert not a.is_lost
        assert sockets.acknowledged_bytes(a.transport) == 1000
        two.b.resume()
        await two.world.until(lambda: b.got == 1000, 0.1)
        two.b.pause()
        do(two.a, a.write, 10 * WINDOW_BYTES)
        await two.world.until(lambda: a.is_lost, 31)  # TCP_USER_TIMEOUT counts for a closed window, too
        assert isinstance(a.error, TimeoutError)
        two.b.resume()

    two.world.run(story())


def test_a_paused_process_sends_nothing_that_its_kernel_has_not_taken(two: Two) -> None:
    async def story() -> None:
        a, b = await two.open()
        do(two.a, a.write, 4 * SEND_BUFFER_BYTES)
        await two.world.sleep(0.000_15)
        two.a.pause()
        await two.world.sleep(5)
        assert b.got < 4 * SEND_BUFFER_BYTES
        two.a.resume()
        await two.world.until(lambda: b.got == 4 * SEND_BUFFER_BYTES, 5)

    two.world.run(story())


def test_writes_after_a_disk_wait_leave_later_and_die_with_the_process(two: Two) -> None:
    async def story() -> None:
        a, b = await two.open()

        def write_and_wait(side: Side) -> None:
            side.write(10)
            side.transport.loop.spend(2.0)
            side.write(10)
            side.transport.loop.spend(1.0)
            side.write(10)
            assert side.transport.get_write_buffer_size() == 20

        do(two.a, write_and_wait, a)
        await two.world.sleep(0.5)
        assert b.got == 10
        await two.world.sleep(3)
        assert b.got == 30
        do(two.a, write_and_wait, a)
        await two.world.sleep(0.5)
        two.a.crash()
        await two.world.sleep(5)
        assert b.got == 40

    two.world.run(story())


# -- connecting -------------------------------------------------------------------------------------------------------


async def outcome(attempt: Awaitable[Any]) -> type[BaseException] | None:
    try:
        await attempt
    except BaseException as e:
        return type(e)
    return None


def test_connect_to_an_unused_address_fails(two: Two) -> None:
    async def story() -> None:
        assert await outcome(two.world.join(two.start_connecting("10.9.9.9"))) is OSError
        assert await outcome(two.world.join(two.start_connecting("nobody"))) is socket.gaierror

    two.world.run(story())


@pytest.mark.parametrize("state", ["no process", "no server", "server is gone"])
def test_machine_refuses_connections_to_unused_ports(two: Two, state: str) -> None:
    async def story() -> None:
        if state == "no process":
            two.b.crash()
        elif state == "server is gone":
            server = await two.serve(asyncio.Protocol)
            do(two.b, server.close)
            await two.world.sleep(0.1)
        began = two.world.now
        assert await outcome(two.world.join(two.start_connecting())) is ConnectionRefusedError
        assert two.world.now - began < 0.1

    two.world.run(story())


@pytest.mark.parametrize("fault", ["cut there", "cut back", "no power"])
def test_unanswered_syn_is_retried_for_two_minutes(two: Two, fault: str) -> None:
    async def story() -> None:
        await two.serve(asyncio.Protocol)
        if fault == "no power":
            two.b.power_cut()
        else:
            two.cut(there=fault == "cut there", back=fault == "cut back")
        began = two.world.now
        assert await outcome(two.world.join(two.start_connecting())) is TimeoutError
        assert two.world.now - began == pytest.approx(127, abs=0.1)
        attempt = two.start_connecting()
        await two.world.sleep(5)
        if fault != "no power":
            two.network.heal()
            await two.world.join(attempt)  # with the third SYN

    two.world.run(story())


def test_an_attempt_that_is_given_up_leaves_no_connection(two: Two) -> None:
    """This holds whenever it is cancelled: before the SYN arrives, before its answer does, or at the same time."""

    async def story() -> None:
        sides: list[Side] = []
        await two.serve(lambda: sides.append(Side()) or sides[-1])  # type: ignore[func-returns-value]
        for number in range(200):
            attempt = two.start_connecting()
            await two.world.sleep(number * 0.000_005)
            do(two.a, attempt.cancel)
            assert await outcome(two.world.join(attempt)) in (asyncio.CancelledError, None)
            if not attempt.cancelled():
                attempt.result()[0].abort()
        await two.world.sleep(1)
        assert two.network.connections == 0
        assert two.network._ends == {}
        assert all(side.is_lost for side in sides)

    two.world.run(story())


def test_a_process_that_dies_while_it_connects_leaves_no_connection(world: World) -> None:
    two = Two(world)

    async def story() -> None:
        sides: list[Side] = []
        await two.serve(lambda: sides.append(Side()) or sides[-1])  # type: ignore[func-returns-value]
        for number in range(100):
            two.start_connecting()
            await world.sleep(number * 0.000_005)
            two.a.crash()
            two.a.boot()
        await world.sleep(1)
        assert two.network._ends == {}
        assert all(side.is_lost for side in sides)

    world.run(story())


def test_a_paused_process_is_connected_to_by_its_kernel(two: Two) -> None:
    """That is why a connection alone is no sign of life."""

    async def story() -> None:
        sides: list[Side] = []
        await two.serve(lambda: sides.append(Side()) or sides[-1])  # type: ignore[func-returns-value]
        two.b.pause()
        _, side = await two.world.join(two.start_connecting())
        do(two.a, side.write, 100)
        await two.world.sleep(1)
        assert sides == []
        assert sockets.acknowledged_bytes(side.transport) == 100
        two.b.resume()
        await two.world.until(lambda: sides and sides[0].got == 100, 0.1)
        two.b.pause()
        _, other = await two.world.join(two.start_connecting())
        two.b.crash()
        await two.world.until(lambda: other.is_lost and side.is_lost, 0.1)
        assert isinstance(other.error, ConnectionResetError)
        assert len(sides) == 1

    two.world.run(story())


def test_names_lead_to_machines(two: Two) -> None:
    """The production code looks names up itself (`dial.py`); the world replaces the resolver."""

    async def story() -> None:
        assert await two.world.join(two.a.spawn(resolve("b"))) == [two.b.address]
        assert await outcome(two.world.join(two.a.spawn(resolve("nobody")))) is socket.gaierror
        two.network.names["both"] = [two.a.address, two.b.address]
        assert await two.world.join(two.a.spawn(resolve("both"))) == [two.a.address, two.b.address]
        two.network.silent_names.add("b")
        question = two.a.spawn(resolve("b"))
        await two.world.sleep(60)
        assert not question.done()
        two.network.answer_names()
        assert await two.world.join(question) == [two.b.address]
        await two.serve(asyncio.Protocol)
        await two.world.join(two.start_connecting("b"))

    two.world.run(story())


# -- slow and clogged -------------------------------------------------------------------------------------------------


def test_slow_link_delivers_late_but_acknowledges_progress(two: Two) -> None:
    """`of_silence` of `protocol/rpc/connection.py` relies on that."""

    async def story() -> None:
        a, b = await two.open()
        two.network.link(A, B).bytes_per_s = 10_000
        do(two.a, a.write, 100_000)
        acknowledged = []
        for _ in range(10):
            await two.world.sleep(1)
            acknowledged.append(sockets.acknowledged_bytes(a.transport))
        assert all(8_000 < later - earlier < 12_000 for earlier, later in pairwise(acknowledged))
        await two.world.until(lambda: b.got == 100_000, 2)
        assert not a.is_lost

    two.world.run(story())


def test_connections_share_a_slow_link(two: Two) -> None:
    async def story() -> None:
        pairs = [await two.open() for _ in range(4)]
        two.network.link(A, B).bytes_per_s = 10_000
        began = two.world.now
        for a, _ in pairs:
            do(two.a, a.write, 10_000)
        await two.world.until(lambda: all(b.got == 10_000 for _, b in pairs), 60)
        assert two.world.now - began == pytest.approx(4, abs=0.1)

    two.world.run(story())


def test_clogged_link_delivers_all_messages_later(two: Two) -> None:
    async def story() -> None:
        a, b = await two.open()
        two.network.clog(A, B, 3.0)
        do(two.a, a.write, 10)
        do(two.b, b.write, 10)
        await two.world.sleep(2.9)
        assert (a.got, b.got) == (10, 0)
        await two.world.sleep(0.2)
        assert b.got == 10

    two.world.run(story())


def test_a_reader_may_be_slow_and_get_little_at_a_time(two: Two) -> None:
    async def story() -> None:
        _, b = await two.open()
        a, b = await two.open()
        two.network.fragment(B, 1.0, 1)
        two.network.slow_reader(B, 0.01)
        do(two.a, a.write, 100)
        await two.world.sleep(0.5)
        assert 40 <= b.got <= 55
        two.network.fragment(B, 0.0)
        two.network.slow_reader(B, 0)
        await two.world.sleep(0.02)
        assert b.got == 100

    two.world.run(story())


def test_a_swizzle_cuts_nodes_off_and_brings_them_back_in_another_order(world: World) -> None:
    nodes = list(range(1, 7))
    for node in nodes:
        world.add_machine(node, f"n{node}").boot()
    cuts: list[int] = []
    mends: list[int] = []

    def is_cut(node: int) -> bool:
        return all(
            world.network.link(node, other).cut and world.network.link(other, node).cut for other in nodes if other != node
        )

    def look() -> None:
        for node in nodes:
            if is_cut(node) and node not in cuts:
                cuts.append(node)
            if not is_cut(node) and node in cuts and node not in mends:
                mends.append(node)

    world.scheduler.after_step.append(look)
    world.run(world.network.swizzle(nodes, nodes, Random(3), pace_s=1.0))
    look()
    assert sorted(cuts) == sorted(mends) == nodes
    assert cuts != mends
    assert not any(link.cut for link in world.network._links.values())


def test_cuts_add_up(two: Two) -> None:
    async def story() -> None:
        a, b = await two.open()
        undo = two.network.partition([A], [B])
        two.cut()
        undo()
        undo()  # a second call has no effect
        do(two.a, a.write, 10)
        await two.world.sleep(1)
        assert b.got == 0
        two.mend()
        await two.world.until(lambda: b.got == 10)

    two.world.run(story())


# -- messages ---------------------------------------------------------------------------------------------------------


class Service:
    """A server of ours on B that answers ApiVersions, and connections of ours from A."""

    def __init__(self, two: Two) -> None:
        self.two = two
        self.seen: list[int] = []
        self.answers: list[Any] = []

    async def start(self) -> None:
        loop = self.two.b.loop

        async def start() -> None:
            self.server = Server({}, role="broker", node_id=B, cluster_id="c", incarnation_id=bytes(16))
            answer = self.server.handlers[apis.API_VERSIONS]

            def handle(request: ServerRequest) -> None:
                self.seen.append(request.correlation_id)
                answer(request)

            self.server.handlers[apis.API_VERSIONS] = handle
            await self.server.start(self.two.b.address, PORT)

        assert loop is not None
        await self.two.world.join(self.two.b.spawn(start()))

    async def connect(self) -> Connection:
        return await self.two.world.join(self.two.a.spawn(Connection.connect(self.two.b.address, PORT, client_id="c")))

    def ask(self, connection: Connection, times: int = 1) -> None:
        def ask() -> None:
            for _ in range(times):
                connection.send(apis.API_VERSIONS, ApiVersionsRequest("x", "1"), on_response=self.answers.append)

        do(self.two.a, ask)


def is_response(message: Message) -> bool:
    return not message.is_request


def test_a_tap_sees_every_message_with_its_api_and_body(two: Two) -> None:
    seen: list[tuple[str, bool, int, int, int, type]] = []
    service = Service(two)
    two.network.taps.append(lambda m: seen.append((m.api, m.is_request, m.source, m.target, m.correlation_id, type(m.body))))

    async def story() -> None:
        await service.start()
        connection = await service.connect()
        service.ask(connection, 3)
        await two.world.until(lambda: len(service.answers) == 3)

    two.world.run(story())
    assert seen == [
        *(("ApiVersions", True, A, B, n, ApiVersionsRequest) for n in (1, 2, 3)),
        *(("ApiVersions", False, B, A, n, ApiVersionsResponse) for n in (1, 2, 3)),
    ]
    assert two.network.messages == 6


def test_held_message_blocks_only_the_messages_behind_it(two: Two) -> None:
    """Three requests leave in one segment; the second is held."""
    service = Service(two)

    async def story() -> None:
        await service.start()
        connection = await service.connect()
        other = await service.connect()
        hold = two.network.hold(lambda m: m.is_request and m.correlation_id == 2, 1)
        service.ask(connection, 3)
        await two.world.sleep(50)
        assert service.seen == [1]
        assert hold.has
        assert [m.correlation_id for m in hold.held] == [2]
        service.ask(other, 3)  # the hold has its message, and another connection has another queue
        await two.world.until(lambda: service.seen == [1, 1, 2, 3])
        hold.release()
        await two.world.until(lambda: service.seen == [1, 1, 2, 3, 2, 3])
        assert not hold.has

    two.world.run(story())


def test_response_has_its_api_even_if_the_request_was_not_watched(two: Two) -> None:
    service = Service(two)

    async def story() -> None:
        await service.start()
        connection = await service.connect()
        service.ask(connection)
        await two.world.until(lambda: service.seen == [1])  # handled, and the response not sent yet
        hold = two.network.hold(lambda m: m.api == "ApiVersions" and is_response(m))
        await two.world.sleep(1)
        assert hold.has
        assert service.answers == []
        assert isinstance(hold.held[0].body, ApiVersionsResponse)
        hold.release()
        await two.world.until(lambda: service.answers)

    two.world.run(story())


def test_held_messages_are_lost_by_death_and_sent_after_close(two: Two) -> None:
    service = Service(two)

    async def story() -> None:
        await service.start()
        connection, closing = await service.connect(), await service.connect()
        hold = two.network.hold(is_response)
        service.ask(connection)
        service.ask(closing)
        await two.world.until(lambda: len(hold.held) == 2)
        server_end = two.network._ends[two.network._connections * 2 + 1]
        do(two.b, server_end.transport.close)
        await two.world.sleep(0.1)
        two.b.crash()
        await two.world.sleep(0.1)
        assert len(hold.held) == 1
        hold.release()
        await two.world.until(lambda: len(service.answers) == 2)
        assert [type(answer) for answer in service.answers] == [BrokerError, ApiVersionsResponse]

    two.world.run(story())


@pytest.mark.parametrize("after", [False, True])
def test_a_connection_breaks_at_a_message_before_or_after_its_delivery(two: Two, after: bool) -> None:
    service = Service(two)

    async def story() -> None:
        await service.start()
        connection = await service.connect()
        two.network.break_on(lambda m: m.is_request and m.correlation_id == 2, after=after)
        service.ask(connection, 3)
        await two.world.until(lambda: len(service.answers) == 3)
        assert service.seen == ([1, 2] if after else [1])
        assert connection.closed
        assert two.network.connections == 0
        again = await service.connect()  # the rule breaks only one connection
        service.ask(again, 3)
        await two.world.until(lambda: len(service.answers) == 6)
        assert [type(answer) for answer in service.answers[3:]] == 3 * [ApiVersionsResponse]

    two.world.run(story())


def test_a_break_may_be_a_matter_of_chance(two: Two) -> None:
    service = Service(two)

    async def story() -> None:
        await service.start()
        two.network.break_on(is_response, 10_000, chance=0.3)
        for _ in range(100):
            connection = await service.connect()
            service.ask(connection)
            asked = len(service.answers) + 1
            await two.world.until(lambda asked=asked: len(service.answers) == asked)
        lost = sum(isinstance(answer, BrokerError) for answer in service.answers)
        assert 15 < lost < 45
        assert len(service.seen) == 100

    two.world.run(story())


def test_reset_between_two_machines_notifies_both_ends(two: Two) -> None:
    async def story() -> None:
        pairs = [await two.open() for _ in range(3)]
        assert two.network.connections == 3
        assert two.network.reset_between(B, A) == 3
        await two.world.sleep(0.01)
        assert all(isinstance(side.error, ConnectionResetError) for pair in pairs for side in pair)
        assert two.network.connections == 0

    two.world.run(story())


def test_bytes_that_are_no_frames_of_ours_do_no_harm(two: Two) -> None:
    """A peer speaks HTTP to us, or we to it."""
    two.network.taps.append(lambda m: None)

    async def story() -> None:
        a, b = await two.open()
        for _ in range(20):
            do(two.a, a.write, 997)
            do(two.b, b.write, 1)
        await two.world.until(lambda: b.got == 20 * 997 and a.got == 20)

    two.world.run(story())


@given(st.lists(st.binary(max_size=40), max_size=8), st.binary(max_size=30))
def test_frames_are_counted_as_they_are_split(bodies: list[bytes], rest: bytes) -> None:
    data = b"".join(frames.LENGTH.pack(len(body)) + body for body in bodies) + rest
    found = split_frames(data)
    assert count_frames(data) == len(found) >= len(bodies)
    assert [data[start + 4 : end] for start, end in found[: len(bodies)]] == bodies
    for start, end in found:
        request_head(data[start:end])
        response_id(data[start:end])


@given(st.sampled_from(sorted(apis.APIS)), st.integers(0, 2**31 - 1))
def test_heads_of_frames_are_read_as_they_are_written(api_key: int, correlation_id: int) -> None:
    request = b"".join(frames.encode_request(api_key, 0, correlation_id, "c", ApiVersionsRequest("x", "1")))
    response = b"".join(frames.encode_refusal(correlation_id, 3, "no"))
    assert request_head(request) == (api_key, correlation_id)
    assert response_id(response) == correlation_id
    assert (request_head(response), request_head(b"GET / HTTP/1.1")) == ((-1, -1), (-1, -1))
