"""Limits of addresses, of the rate of new connections, and of the bytes of all requests, over real sockets."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace

import pytest
from rpc_world import Parking, on_produce, produce_frame, raw_peer, request_frame, serving
from waiting import until

from strandline.protocol.apis import API_VERSIONS, METADATA, PRODUCE
from strandline.protocol.messages.admin import MetadataResponse
from strandline.protocol.rpc.address_limits import AddressLimits, CreationRate
from strandline.protocol.rpc.request_memory import RequestMemory
from strandline.protocol.rpc.turns import Turns

HERE = "127.0.0.1"


def addresses(per_address_max: int = 2**31 - 1, **overrides: int) -> AddressLimits:
    limits = AddressLimits()
    limits.per_address_max = per_address_max
    limits.overrides = {host.replace("_", "."): number for host, number in overrides.items()}
    return limits


# -- connections per address ------------------------------------------------------------------------------------------


def test_connection_above_the_limit_of_its_address_is_closed(on_loop):
    """One machine must not take all connections of a broker. A closed connection makes room for another."""

    async def scenario():
        limits = addresses(2)
        async with serving(addresses=limits) as (_, port), raw_peer(port) as first:
            async with raw_peer(port) as second:
                for peer in (first, second):
                    peer.send(produce_frame(1))
                    await peer.receive()
                async with raw_peer(port) as third:
                    assert await third.is_closed()
            await until(lambda: limits.count_of(HERE) == 1)
            async with raw_peer(port) as fourth:
                fourth.send(produce_frame(1))
                await fourth.receive()
        assert limits.refused == 1

    on_loop(scenario)


def test_override_counts_instead_of_the_limit(on_loop):
    """`max.connections.per.ip.overrides` is for the load balancer that all clients come through."""

    async def scenario():
        limits = addresses(0)
        limits.overrides = {HERE: 1}
        async with serving(addresses=limits) as (_, port), raw_peer(port) as first:
            first.send(produce_frame(1))
            await first.receive()
            async with raw_peer(port) as second:
                assert await second.is_closed()

    on_loop(scenario)


def test_listeners_of_a_node_count_together(on_loop):
    """The limit is the node's: a second listener is no way around it."""

    async def scenario():
        limits = addresses(1)
        async with serving(addresses=limits) as (_, port), serving(addresses=limits) as (_, other), raw_peer(port) as first:
            first.send(produce_frame(1))
            await first.receive()
            async with raw_peer(other) as second:
                assert await second.is_closed()

    on_loop(scenario)


# -- rates ------------------------------------------------------------------------------------------------------------


def test_connection_above_the_rate_waits_and_is_served(on_loop):
    """Kafka delays the accepting, too. A client that connects too often becomes slow, and gets no errors."""

    async def scenario():
        limits = addresses()
        limits.use_rates(lambda host: 5.0)
        loop = asyncio.get_running_loop()
        async with serving(addresses=limits) as (_, port):
            began_at = loop.time()
            for number in range(6):
                async with raw_peer(port) as peer:
                    peer.send(produce_frame(number))
                    assert (await peer.receive())[0] == number
            assert loop.time() - began_at > 0.1
        assert (limits.refused, limits.delayed) == (0, 1)

    on_loop(scenario)


def test_rate_of_connections_is_exact():
    """Each connection waits for its turn, one turn after the one before it."""
    rate = CreationRate(10.0, 0.0)
    waits = [rate.wait_s(0.0) for _ in range(13)]
    assert waits[:10] == [0.0] * 10
    assert waits[10:] == pytest.approx([0.1, 0.2, 0.3])


def test_flood_of_connections_is_refused_when_too_many_wait():
    """Waiting connections cost memory and file descriptors, so an attacker must not have any number of them."""
    rate = CreationRate(10.0, 0.0)
    waits = [rate.wait_s(0.0) for _ in range(1000)]
    assert 100 < sum(wait is not None for wait in waits) < 130
    assert rate.wait_s(1.0) is not None


def test_refused_connections_of_an_address_do_not_spend_the_rate_of_the_listener():
    """Otherwise one address could keep all others out."""
    limits, of_listener = addresses(), CreationRate(10.0, 0.0)
    limits.use_rates(lambda host: 1.0 if host == "10.0.0.1" else None)
    for _ in range(300):
        limits.check("10.0.0.1", 0.0, of_listener)
    wait_s, problem = limits.check("10.0.0.2", 0.0, of_listener)
    assert problem is None
    assert wait_s < 2.0


def test_rates_of_silent_addresses_are_forgotten():
    """A broker runs for years, and its addresses change."""
    limits = addresses()
    limits.use_rates(lambda host: 1.0)
    for number in range(100):
        limits.check(f"10.0.0.{number}", 0.0, None)
    limits.sweep(100.0)
    assert not limits._rates


def test_rate_of_the_listener_counts_too(on_loop):
    """`max.connection.creation.rate` holds for all addresses together."""

    async def scenario():
        async with serving() as (server, port):
            server.limit_creation_rate(2.0)
            for number in range(3):
                async with raw_peer(port) as peer:
                    peer.send(produce_frame(number))
                    await peer.receive()
            assert server.addresses.delayed == 1

    on_loop(scenario)


# -- the memory of requests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, 200_000])
def test_produce_waits_while_the_requests_of_all_connections_hold_too_much(on_loop, size):
    """`queued.max.request.bytes`: many connections together must not hold more than one of them might. Small frames are received
    whole before they wait; the rest of a large one is not read."""

    async def scenario():
        memory, parking = RequestMemory(2 * size), Parking()
        async with serving({PRODUCE: parking}, memory=memory) as (_, port):
            async with raw_peer(port) as a, raw_peer(port) as b, raw_peer(port) as c, raw_peer(port) as d:
                for number, peer in enumerate((a, b, c, d)):
                    peer.send(produce_frame(number, size))
                await until(lambda: memory.waiting == 2 and len(parking.parked) == 2)
                assert memory.used <= 2 * (size + 100)
                for _ in range(2):
                    await until(lambda: len(parking.parked) == 2)
                    parking.answer_all()
                assert sorted([(await peer.receive())[0] for peer in (a, b, c, d)]) == [0, 1, 2, 3]
            await until(lambda: memory.used == 0)

    on_loop(scenario)


def test_waiting_requests_keep_their_order(on_loop):
    """A producer's batches must not overtake each other."""

    async def scenario():
        memory, parking = RequestMemory(1000), Parking()
        async with serving({PRODUCE: parking}, memory=memory) as (_, port), raw_peer(port) as peer:
            peer.send(b"".join(produce_frame(number, 600) for number in range(7)))
            seen: list[int] = []
            while len(seen) < 7:
                await until(lambda: bool(parking.parked))
                seen += [request.correlation_id for request in parking.parked]
                parking.answer_all()
            assert seen == list(range(7))

    on_loop(scenario)


def test_other_requests_do_not_wait_for_the_memory(on_loop):
    """The waiting produce requests wait for the followers' fetches."""

    async def scenario():
        memory, parking = RequestMemory(100), Parking()
        handlers = {PRODUCE: parking, METADATA: lambda request: request.reply(MetadataResponse([], "c", 1, []))}
        async with serving(handlers, memory=memory) as (_, port), raw_peer(port) as producer, raw_peer(port) as other:
            producer.send(produce_frame(1, 1000))
            await until(lambda: memory.is_full)
            other.send(request_frame(METADATA, [None], 7))
            assert (await other.receive())[0] == 7

    on_loop(scenario)


def test_lost_connection_gives_its_memory_back(on_loop):
    """Otherwise clients that die would fill the memory forever."""

    async def scenario():
        memory, parking = RequestMemory(1000), Parking()
        async with serving({PRODUCE: parking}, memory=memory) as (_, port), raw_peer(port) as waiting:
            async with raw_peer(port) as dying:
                dying.send(produce_frame(1, 2000))
                await until(lambda: memory.is_full)
                waiting.send(produce_frame(2, 100_000))
                await until(lambda: memory.waiting == 1)
            await until(lambda: len(parking.parked) == 2)
            parking.parked = parking.parked[1:]
            parking.answer_all()
            assert (await waiting.receive())[0] == 2
            await until(lambda: memory.used == 0)

    on_loop(scenario)


def test_lost_connection_that_waits_does_not_hold_up_the_others(on_loop):
    """Nothing is read from a waiting connection, so its end is noticed only when it is its turn."""

    async def scenario():
        memory, parking = RequestMemory(1000), Parking()
        async with serving({PRODUCE: parking}, memory=memory) as (_, port), raw_peer(port) as first, raw_peer(port) as last:
            first.send(produce_frame(1, 2000))
            await until(lambda: memory.is_full)
            async with raw_peer(port) as dying:
                dying.send(produce_frame(2, 100_000))
                await until(lambda: memory.waiting == 1)
            last.send(produce_frame(3, 100_000))
            await until(lambda: memory.waiting == 2)
            parking.answer_all()
            await until(lambda: any(request.correlation_id == 3 for request in parking.parked))
            parking.answer_all()
            assert (await last.receive())[0] == 3
            await until(lambda: memory.used == 0)

    on_loop(scenario)


# -- turns ------------------------------------------------------------------------------------------------------------


def test_connections_that_wait_take_turns_one_by_one():
    """A flood through ten connections delays the others no more than one through a single connection."""

    class Taker:
        def __init__(self, number: int) -> None:
            self.number = number

        def take_turn(self) -> None:
            taken.append(self.number)

    taken: list[int] = []
    scheduled: list[tuple] = []

    class Loop:
        def call_soon(self, callback, *arguments):
            scheduled.append((callback, arguments))

    turns, loop = Turns(), Loop()
    for number in range(3):
        turns.wait(Taker(number), loop)
    for expected in ([0], [0, 1], [0, 1, 2]):
        assert len(scheduled) == 1
        callback, arguments = scheduled.pop()
        callback(*arguments)
        assert taken == expected
    assert not scheduled


def test_connection_with_many_requests_lets_others_have_their_turn(on_loop):
    """One read may hold a thousand requests. Their sender must not keep the event loop for all of them."""

    async def scenario():
        handled: list[str] = []
        clock = [0.0]

        def slow(request):
            clock[0] += 0.001
            handled.append(request.client_id)
            on_produce(request)

        async with serving({PRODUCE: slow}) as (server, port), raw_peer(port) as flood, raw_peer(port) as other:
            for peer in (flood, other):
                peer.send(produce_frame(1))
                await peer.receive()
            for connection in server.connections.values():
                connection.stopwatch = lambda: clock[0]
            handled.clear()
            turns: list[int] = []
            flood.send(b"".join(produce_frame(number) for number in range(100)))

            def watch():
                turns.append(len(handled))
                if len(handled) < 100:
                    server.loop.call_soon(watch)

            watch()
            await until(lambda: len(handled) == 100)
            steps = [after - before for before, after in itertools.pairwise(turns)]
            assert max(steps) <= 10
            answers = [(await flood.receive())[0] for _ in range(100)]
            assert answers == list(range(100))

    on_loop(scenario)


def test_handshake_of_a_muted_connection_waits(on_loop):
    """A connection above the rate does not even get its handshake before its time, because the handshake is the expensive
    part."""

    async def scenario():
        limits = addresses()
        limits.use_rates(lambda host: 1.0)
        async with serving(addresses=limits) as (server, port), raw_peer(port) as first, raw_peer(port) as second:
            first.send(request_frame(API_VERSIONS, ["", ""], 1))
            await first.receive()
            second.send(request_frame(API_VERSIONS, ["", ""], 2))
            await until(lambda: len(server.connections) == 2)
            assert server.metrics[API_VERSIONS].requests == 1

    on_loop(scenario)


def test_long_request_with_nothing_behind_it_does_not_wait_for_a_turn(on_loop):
    """Stopping and resuming costs two system calls, and other connections gain nothing: this one has no further request."""

    async def scenario():
        waited: list[object] = []
        clock = [0.0]

        def slow(request):
            clock[0] += 1.0
            on_produce(request)

        async with serving({PRODUCE: slow}) as (server, port), raw_peer(port) as peer:
            peer.send(produce_frame(1))
            await peer.receive()
            (connection,) = server.connections.values()
            connection.stopwatch = lambda: clock[0]
            server.turns = SimpleNamespace(wait=lambda waiting, loop: waited.append(waiting))
            for number in range(3):
                peer.send(produce_frame(number))
                await peer.receive()
            assert clock[0] == 4.0
            assert not waited

    on_loop(scenario)
