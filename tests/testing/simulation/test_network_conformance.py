"""All production code takes the simulated network for the real one: connections must open, flow and end in the same way.

`PROGRAMS` run over real sockets on asyncio's own loop, and over simulated ones, and must log the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest

from strandline.testing.simulation.kernel.world import World

Log = list[Any]
Program = Callable[[Log, str], Awaitable[None]]
PROGRAMS: list[Program] = []
LARGE = bytes(range(256)) * 4 * 16 * 1024
"""16 MB: more than any kernel buffers."""
WAIT_S = 0.05


def program(function: Program) -> Program:
    PROGRAMS.append(function)
    return function


class Side(asyncio.BufferedProtocol):
    """One end of a connection, which records the calls of its protocol."""

    def __init__(self, log: Log, name: str, *, keeps_open: bool = False) -> None:
        self.log, self.name = log, name
        self.keeps_open = keeps_open
        self.got = bytearray()
        self.is_over = asyncio.get_running_loop().create_future()
        self.made = asyncio.get_running_loop().create_future()
        self.transport: Any
        self._buffer = bytearray(65536)

    def note(self, *what: object) -> None:
        self.log.append((self.name, *what))

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.made.set_result(None)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self._buffer[:nbytes]

    def pause_writing(self) -> None:
        self.note("pause_writing")

    def resume_writing(self) -> None:
        self.note("resume_writing")

    def eof_received(self) -> bool:
        self.note("eof", bytes(self.got[:20]), len(self.got))
        return self.keeps_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.note("lost", type(exc).__name__, len(self.got))
        self.is_over.set_result(None)


class Pair:
    """A server with one connection to it."""

    def __init__(self, log: Log, host: str) -> None:
        self.log, self.host = log, host

    async def open(self, **options: bool) -> tuple[Side, Side]:
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[Side] = loop.create_future()

        def accept() -> Side:
            side = Side(self.log, "server", **options)
            if not accepted.done():
                accepted.set_result(side)
            return side

        self.server = await loop.create_server(accept, self.host, 0)
        self.port = self.server.sockets[0].getsockname()[1]
        _, client = await loop.create_connection(lambda: Side(self.log, "client", **options), self.host, self.port)
        server = await accepted
        await server.made
        return client, server


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@program
async def what_is_written_arrives_and_closing_tells_both(log: Log, host: str) -> None:
    client, server = await Pair(log, host).open()
    client.transport.write(b"one")
    client.transport.writelines([b" two", b" three"])
    client.transport.close()
    log.append(client.transport.is_closing())
    client.transport.write(b"after closing")
    await asyncio.gather(client.is_over, server.is_over)


@program
async def closing_twice_is_closing_once(log: Log, host: str) -> None:
    client, server = await Pair(log, host).open()
    client.transport.close()
    client.transport.close()
    client.transport.abort()
    await asyncio.gather(client.is_over, server.is_over)
    client.transport.close()
    client.transport.abort()
    await asyncio.sleep(WAIT_S)


@program
async def aborting_throws_away_only_what_the_kernel_has_not_taken(log: Log, host: str) -> None:
    """An RST is sent for bytes that were not read, not for `abort`."""
    client, server = await Pair(log, host).open()
    client.transport.write(b"small")
    client.transport.abort()
    log.append("aborted")
    await asyncio.gather(client.is_over, server.is_over)


@program
async def aborting_with_much_unsent_leaves_a_prefix(log: Log, host: str) -> None:
    pair = Pair([], host)
    client, server = await pair.open()
    server.transport.pause_reading()
    client.transport.write(LARGE)
    await asyncio.sleep(WAIT_S)
    client.transport.abort()
    await client.is_over
    server.transport.resume_reading()
    await server.is_over
    log.append((0 < len(server.got) < len(LARGE), LARGE.startswith(server.got)))


@program
async def closing_with_bytes_unread_resets(log: Log, host: str) -> None:
    client, server = await Pair(log, host).open()
    server.transport.pause_reading()
    client.transport.write(b"nobody reads this")
    await asyncio.sleep(WAIT_S)
    server.transport.close()
    await asyncio.gather(client.is_over, server.is_over)


@program
async def bytes_for_a_closed_peer_are_answered_with_a_reset(log: Log, host: str) -> None:
    client, server = await Pair(log, host).open(keeps_open=True)
    server.transport.close()
    await server.is_over
    await asyncio.sleep(WAIT_S)
    log.append("half open")
    client.transport.write(b"for nobody")
    await asyncio.sleep(WAIT_S)
    client.transport.write(b"again")
    await client.is_over


@program
async def one_side_may_say_that_it_has_said_all_and_go_on_listening(log: Log, host: str) -> None:
    client, server = await Pair(log, host).open(keeps_open=True)
    log.append(client.transport.can_write_eof())
    client.transport.write(b"question")
    client.transport.write_eof()
    with contextlib.suppress(RuntimeError):
        client.transport.write(b"more")
        log.append("written after the end")
    await until(lambda: len(log) > 1)
    server.transport.write(b"answer")
    await until(lambda: client.got == b"answer")
    server.transport.close()
    await server.is_over
    await asyncio.sleep(WAIT_S)
    client.transport.close()
    await client.is_over


@program
async def a_reader_that_pauses_pauses_the_writer(log: Log, host: str) -> None:
    client, server = await Pair(log, host).open()
    server.transport.pause_reading()
    log.append((server.transport.is_reading(), client.transport.is_reading()))
    client.transport.write(LARGE)
    await asyncio.sleep(WAIT_S)
    log.append((client.transport.get_write_buffer_size() > 0, len(server.got) == 0))
    server.transport.resume_reading()
    await until(lambda: len(server.got) == len(LARGE))
    log.append((server.got == LARGE, client.transport.get_write_buffer_size()))
    client.transport.close()
    await asyncio.gather(client.is_over, server.is_over)


@program
async def limits_of_the_buffer_are_kept(log: Log, host: str) -> None:
    client, server = await Pair(log, host).open()
    client.transport.set_write_buffer_limits(high=0)
    log.append(client.transport.get_write_buffer_limits())
    client.transport.set_write_buffer_limits(high=100_000)
    log.append(client.transport.get_write_buffer_limits())
    client.transport.set_write_buffer_limits(low=1_000)
    log.append(client.transport.get_write_buffer_limits())
    with contextlib.suppress(ValueError):
        client.transport.set_write_buffer_limits(high=1, low=2)
        log.append("taken")
    client.transport.write(b"small")
    log.append(client.transport.get_write_buffer_size())
    client.transport.close()
    await asyncio.gather(client.is_over, server.is_over)


@program
async def closing_flushes_what_was_written(log: Log, host: str) -> None:
    client, server = await Pair(log, host).open()
    server.transport.pause_reading()
    client.transport.write(LARGE)
    client.transport.close()
    await asyncio.sleep(WAIT_S)
    log.append("not over: " + str(client.is_over.done()))
    server.transport.resume_reading()
    await asyncio.gather(client.is_over, server.is_over)
    log.append(server.got == LARGE)


@program
async def a_paused_reader_does_not_get_the_end(log: Log, host: str) -> None:
    client, server = await Pair(log, host).open()
    client.transport.pause_reading()
    server.transport.write(b"the last words")
    server.transport.close()
    await server.is_over
    await asyncio.sleep(WAIT_S)
    log.append("client has got the end: " + str(client.is_over.done()))
    client.transport.resume_reading()
    await client.is_over


@program
async def what_came_before_a_reset_is_read_before_it(log: Log, host: str) -> None:
    client, server = await Pair(log, host).open()
    client.transport.pause_reading()
    server.transport.pause_reading()
    client.transport.write(b"unread")
    await asyncio.sleep(WAIT_S)
    server.transport.write(b"answer")
    await asyncio.sleep(WAIT_S)
    server.transport.close()
    await server.is_over
    await asyncio.sleep(WAIT_S)
    log.append("client has got the end: " + str(client.is_over.done()))
    client.transport.resume_reading()
    await client.is_over
    log.append(bytes(client.got))


read: list[bytes] = []


@program
async def a_connection_is_made_before_it_is_returned(log: Log, host: str) -> None:
    class Eager(Side):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            transport.write(b"hello from the " + self.name.encode())

    loop = asyncio.get_running_loop()
    sides: list[Eager] = []

    def accept() -> Eager:
        sides.append(Eager(log, "server"))
        return sides[-1]

    server = await loop.create_server(accept, host, 0)
    port = server.sockets[0].getsockname()[1]
    _, client = await loop.create_connection(lambda: Eager(log, "client"), host, port)
    log.append(client.made.done())
    read.append(bytes(client.got))
    await until(lambda: client.got and sides and sides[0].got)
    log.append((bytes(client.got), bytes(sides[0].got)))
    peername, sockname = client.transport.get_extra_info("peername"), client.transport.get_extra_info("sockname")
    log.append((peername == (host, port), sides[0].transport.get_extra_info("peername") == sockname))
    log.append(client.transport.get_extra_info("nothing", "default"))
    client.transport.close()
    await asyncio.gather(client.is_over, sides[0].is_over)


def test_a_protocol_may_read_before_its_connection_is_handed_over() -> None:
    """Both orders must occur: uvloop's, on which nodes run, and asyncio's."""
    read.clear()
    for seed in range(20):
        simulated(a_connection_is_made_before_it_is_returned, seed)
    assert set(read) == {b"", b"hello from the server"}


@program
async def where_no_controller_listens_one_is_refused(log: Log, host: str) -> None:
    loop = asyncio.get_running_loop()
    bound = await loop.create_server(lambda: Side(log, "server"), host, 0, start_serving=False)
    port = bound.sockets[0].getsockname()[1]

    async def attempt() -> None:
        try:
            transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
            log.append("connected")
            transport.abort()
        except OSError as e:
            log.append((type(e), e.errno == errno.ECONNREFUSED))

    await attempt()  # bound to its address, but not listening
    await bound.start_serving()
    log.append(bound.is_serving())
    client, _ = await loop.create_connection(asyncio.Protocol, host, port)
    await asyncio.sleep(WAIT_S)
    client.abort()
    await asyncio.sleep(WAIT_S)
    bound.close()
    log.append((bound.is_serving(), list(bound.sockets)))
    await attempt()  # closed


@program
async def an_address_is_taken_once(log: Log, host: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, host, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        await loop.create_server(asyncio.Protocol, host, port)
    except OSError as e:
        log.append(e.errno == errno.EADDRINUSE)
    server.close()
    again = await loop.create_server(asyncio.Protocol, host, port)
    log.append("taken again")
    again.close()


@program
async def a_server_that_closes_keeps_its_connections(log: Log, host: str) -> None:
    pair = Pair(log, host)
    client, server = await pair.open()
    pair.server.close()
    client.transport.write(b"still here")
    await until(lambda: server.got == b"still here")
    client.transport.close()
    await asyncio.gather(client.is_over, server.is_over)


@program
async def streams_work(log: Log, host: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        log.append("served")

    server = await asyncio.start_server(serve, host, 0, limit=1 << 23)
    reader, writer = await asyncio.open_connection(host, server.sockets[0].getsockname()[1])
    writer.write(b"one\ntwo\n")
    log.append(await reader.readline())
    log.append(await reader.readexactly(4))
    writer.write(LARGE.replace(b"\n", b".")[:5_000_000] + b"\n")
    writer.write_eof()
    log.append(len(await reader.read()))
    writer.close()
    await writer.wait_closed()
    server.close()
    await asyncio.sleep(WAIT_S)


@program
async def an_attempt_that_is_cancelled_leaves_nothing(log: Log, host: str) -> None:
    pair = Pair([], host)
    await pair.open()
    loop = asyncio.get_running_loop()
    attempt = loop.create_task(loop.create_connection(lambda: Side(log, "late"), host, pair.port))
    await asyncio.sleep(0)
    attempt.cancel()
    log.append(await asyncio.gather(attempt, return_exceptions=True))
    pair.server.close()
    await asyncio.sleep(WAIT_S)


def over_real_sockets(function: Program) -> Log:
    log: Log = []
    with asyncio.Runner() as runner:
        runner.run(function(log, "127.0.0.1"))  # type: ignore[arg-type]
    return log


def simulated(function: Program, seed: int) -> Log:
    """Run a program with both ends in one process, as over real sockets; its address is 10.0.0.0."""
    log: Log = []
    with closing(World(seed)) as world:
        world.run(function(log, world.machine.address))  # type: ignore[arg-type]
    return log


def by_side(log: Log) -> dict[object, list[str]]:
    """The calls by side: those of one side have an order, those of two sides have none."""
    sides: dict[object, list[str]] = {}
    for item in log:
        name = item[0] if isinstance(item, tuple) and item and item[0] in ("client", "server", "late") else "program"
        sides.setdefault(name, []).append(str(item))
    return sides


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_a_connection_does_the_same_over_the_simulated_network(function: Program) -> None:
    if sys.platform != "linux":
        pytest.skip("other kernels report the close differently")
    expected = over_real_sockets(function)
    assert expected
    for seed in range(4):
        assert by_side(simulated(function, seed)) == by_side(expected)
