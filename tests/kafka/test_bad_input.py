"""Bad input at a listener for Kafka's clients: bad bytes close their connection, and other connections are not affected.

The ids are those of the project's list of bad input."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import socket
import time
from pathlib import Path

import pytest
from kafka_world import (
    API_VERSIONS,
    BEAT_FIELDS,
    HEARTBEAT,
    LIST_GROUPS,
    METADATA,
    PRODUCE,
    Parking,
    answer_at_once,
    beat_frame,
    framed,
    kafka,
    numbers,
    produce_frame,
    serving_kafka,
)
from structlog.testing import capture_logs
from waiting import until
from wire import KafkaWire, request_frame

from strandline.protocol import apis
from strandline.protocol.messages.admin import MetadataResponse
from strandline.protocol.rpc.request_memory import RequestMemory
from strandline.protocol.rpc.server import Limits, ServerRequest


def on_metadata(request: ServerRequest) -> None:
    request.reply(MetadataResponse([], "c", 1, []))


HANDLERS = {
    apis.HEARTBEAT: answer_at_once,
    apis.PRODUCE: answer_at_once,
    apis.LIST_GROUPS: answer_at_once,
    apis.METADATA: on_metadata,
}
VARINT_MAX = b"\xff\xff\xff\xff\x0f"


async def still_serves(wire: KafkaWire) -> bool:
    return bool((await wire.call(API_VERSIONS, 0)).error_code == 0)


def head(api_key: int, version: int, tags: bytes = b"") -> bytes:
    return api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\0\1c" + tags


def many_tags(count: int) -> bytes:
    """Tagged fields with empty values, after their count."""
    out = bytearray(varint(count))
    for tag in range(count):
        out += varint(tag) + b"\0"
    return bytes(out)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes((value,))


CLOSED_FOR = {
    "F01 length 0": b"\0\0\0\0",
    "F01 length -1": b"\xff\xff\xff\xff",
    "F01 length 2^31-1": b"\x7f\xff\xff\xff",
    "F01 one more than the limit": (100_001).to_bytes(4, "big"),
    "F02 an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "F02 a TLS hello": bytes.fromhex("16030100c5010000c10303") + bytes(200),
    "F02 a TLS alert": bytes.fromhex("15030100020228"),
    "F02 SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "F03 a frame of zeros": framed(bytes(32)),
    "F03 text": framed(b"hello, is this the place?"),
    "F05 less than a head": framed(b"\0\x12\0\0\0\0\0"),
    "F05 a client id longer than the frame": framed(b"\0\x0c\0\4\0\0\0\1\0\x09abc"),
    "F05 a negative client id": framed(b"\0\x0c\0\4\0\0\0\1\xff\xfeabc"),
    "F05 a client id that is no UTF-8": framed(b"\0\x0c\0\4\0\0\0\1\0\2\xff\xfe\0"),
    "F05 a head without tagged fields": framed(head(HEARTBEAT, 4)),
    "F05 a head with 10,001 tagged fields": framed(head(HEARTBEAT, 4, many_tags(10_001))),
    "F05 a head with 4 G tagged fields": framed(head(HEARTBEAT, 4, VARINT_MAX)),
    "F05 a head with a tagged field of 4 GiB": framed(head(HEARTBEAT, 4, b"\1\0" + VARINT_MAX)),
    "F06 an unknown API": framed(head(999, 0)),
    "F07 an unknown version": framed(head(HEARTBEAT, 99)),
    "F10 no body": framed(head(HEARTBEAT, 4, b"\0")),
    "F10 a string that is no UTF-8": framed(head(HEARTBEAT, 0) + b"\0\2\xff\xfe\0\0\0\1\0\0"),
    "F10 a string longer than the frame": framed(head(HEARTBEAT, 0) + b"\x7f\xff"),
    "F10 null where it is not permitted": framed(head(HEARTBEAT, 0) + b"\xff\xff\0\0\0\1\0\0"),
    "F10 an array of 2^31 - 1 items": framed(head(LIST_GROUPS, 4, b"\0") + VARINT_MAX),
    "F10 an array of 2^31 - 1 topics": framed(head(METADATA, 1) + b"\x7f\xff\xff\xff"),
    "F10 a body with 10,001 tagged fields": framed(head(LIST_GROUPS, 3, b"\0") + many_tags(10_001)),
}


@pytest.mark.parametrize("raw", CLOSED_FOR.values(), ids=CLOSED_FOR.keys())
def test_garbage_closes_the_connection_with_one_log_line(on_loop, raw):
    """The next such connection of the same host within a minute is closed without a log line."""

    async def scenario():
        limits = Limits(max_frame_bytes=100_000)
        async with serving_kafka(HANDLERS, limits=limits) as (server, port), kafka(port) as good:
            assert await still_serves(good)
            with capture_logs() as logs:
                for _ in range(2):
                    async with kafka(port) as bad:
                        bad.send_bytes(raw)
                        if raw[0] == 0x16:  # A TLS client gets an alert, because the port speaks plaintext.
                            assert (await bad._reader.readexactly(7))[0] == 0x15
                        assert await bad.is_closed()
            assert [entry["event"] for entry in logs] == ["peer.closed"]
            assert logs[0]["reason"]
            assert await still_serves(good)
            await until(lambda: len(server.connections) == 1)

    on_loop(scenario)


def test_ten_thousand_tagged_fields_are_accepted(on_loop):
    """Kafka accepts as many."""

    async def scenario():
        async with serving_kafka(HANDLERS) as (_, port), kafka(port) as wire:
            wire.send_frame(head(LIST_GROUPS, 3, many_tags(10_000)) + b"\1" + many_tags(10_000))
            assert await numbers(wire, 1) == [1]

    on_loop(scenario)


def test_a_good_request_that_is_cut_closes_the_connection(on_loop):
    """The cut is at every byte after the head of the request."""

    async def scenario():
        async with serving_kafka(HANDLERS) as (_, port), kafka(port) as good:
            for version in (0, 4):
                frame = request_frame(HEARTBEAT, version, 1, "c", BEAT_FIELDS)
                for cut in range(1, len(frame)):
                    async with kafka(port) as bad:
                        bad.send_frame(frame[:cut])
                        assert await bad.is_closed()
            assert await still_serves(good)

    on_loop(scenario)


def test_a_client_id_is_escaped_in_the_log(on_loop):
    """F35: the first request is good and has the client id; the second one is bad and is logged with it."""

    async def scenario():
        async with serving_kafka(HANDLERS) as (_, port), kafka(port) as bad:
            with capture_logs() as logs:
                bad.send_bytes(beat_frame(1, client_id="me\x1b[2J\nlevel=info"))
                assert await numbers(bad, 1) == [1]
                bad.send_frame(head(999, 0))
                assert await bad.is_closed()
            assert logs[0]["client_id"] == "me\\x1b[2J\\nlevel=info"

    on_loop(scenario)


@pytest.mark.parametrize(
    "raw", [b"\0", b"\0\0\0\x20", framed(head(HEARTBEAT, 4))[:-3], (60_000).to_bytes(4, "big") + bytes(5000)]
)
def test_half_a_frame_closes_the_connection(on_loop, raw):
    """F04: a client that sends nothing more must not keep the connection."""

    async def scenario():
        limits = Limits(frame_ms_max=40)
        async with serving_kafka(HANDLERS, limits=limits) as (_, port), kafka(port) as good, kafka(port) as slow:
            slow.send_bytes(raw)
            with capture_logs() as logs:
                assert await slow.is_closed()
            assert "not complete" in logs[0]["reason"]
            assert await still_serves(good)

    on_loop(scenario)


def test_an_idle_connection_is_closed_and_a_waiting_one_is_not(on_loop):
    """F08."""

    async def scenario():
        parking = Parking()
        async with (
            serving_kafka({apis.HEARTBEAT: parking}, limits=Limits(idle_ms_max=40)) as (server, port),
            kafka(port) as waiting,
            kafka(port) as idle,
        ):
            waiting.send_bytes(beat_frame(1))
            assert await idle.is_closed()
            await until(lambda: len(server.connections) == 1)
            parking.answer()
            assert await numbers(waiting, 1) == [1]

    on_loop(scenario)


def test_connections_have_a_limit(on_loop):
    """F08: connections above the limit are closed, and the others are served."""

    async def scenario():
        async with serving_kafka(HANDLERS, limits=Limits(max_connections=50)) as (server, port), kafka(port) as good:
            wires = [kafka(port) for _ in range(80)]
            with capture_logs() as logs:
                for wire in wires:
                    await wire.__aenter__()
                closed = 0
                for wire in wires[49:]:
                    closed += await wire.is_closed()
            assert closed == 31
            assert [line["event"] for line in logs] == ["peer.closed"]
            assert await still_serves(good)
            assert await still_serves(wires[0])
            for wire in wires:
                await wire.__aexit__()
            await until(lambda: len(server.connections) == 1)

    on_loop(scenario)


IDLE = [1000, pytest.param(9000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", IDLE)
def test_idle_connections_cost_little(on_loop, count):
    """F08: each costs a few kilobytes, and does not slow other connections down. (The clients' ends are in this process, too.)"""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files < 2 * count + 1000:
        pytest.skip(f"the process may open {open_files} files")

    async def scenario():
        async with serving_kafka(HANDLERS) as (server, port), kafka(port) as good:
            before = resident()
            sockets = [await raw_socket(port) for _ in range(count)]
            await until(lambda: len(server.connections) == count + 1)
            assert resident() - before < count * 20_000
            began_at = time.monotonic()
            for _ in range(100):
                assert await still_serves(good)
            assert time.monotonic() - began_at < 2
            for sock in sockets:
                sock.close()
            await until(lambda: len(server.connections) == 1)

    on_loop(scenario)


async def raw_socket(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return sock


def resident() -> int:
    """The memory of this process, in bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def hostile_frames() -> list[bytes]:
    """Frames whose counts and lengths claim much more than the frame has."""
    counts = (b"\x7f\xff\xff\xff", VARINT_MAX, b"\x81\x80\x04", b"\xff\xff\xff\x7f")
    heads = [
        head(METADATA, 1),
        head(METADATA, 12, b"\0"),
        head(LIST_GROUPS, 4, b"\0"),
        head(PRODUCE, 9, b"\0"),
        head(HEARTBEAT, 4),
    ]
    return [framed(begin + count + bytes(2000)) for begin in heads for count in counts]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of the process from /proc")
def test_a_storm_of_hostile_connections_leaves_no_memory_behind(on_loop):
    """Frames claim gigabytes, frames are cut, answers are not read, and connections are dropped at once. Another client is served
    meanwhile, and there is one log line."""

    async def scenario():
        rnd = random.Random(8)
        frames = [*hostile_frames(), *CLOSED_FOR.values(), b"", b"\x05\xf5\xe0\xff" + bytes(3000), beat_frame(1) * 50]
        async with serving_kafka(HANDLERS) as (server, port), kafka(port) as good:

            async def storm(count: int) -> None:
                for n in range(count):
                    async with kafka(port) as bad:
                        bad.send_bytes(rnd.choice(frames))
                        if n % 3:
                            bad._writer.write_eof()
                            while await bad._reader.read(65536):
                                pass

            with capture_logs() as logs:
                await storm(200)
                before = resident()
                for _ in range(4):
                    await storm(200)
                    assert await still_serves(good)
                assert resident() - before < 8_000_000
            assert [line["event"] for line in logs] == ["peer.closed"]
            await until(lambda: len(server.connections) == 1)
            assert not server._tasks

    on_loop(scenario)


def test_a_large_request_is_refused_within_a_second(on_loop):
    """Two megabytes of the smallest items, a million topics: the limit of items is reached before a second has passed."""

    async def scenario():
        parking = Parking()
        async with serving_kafka({apis.METADATA: parking}) as (_, port), kafka(port) as good, kafka(port) as bad:
            bad.send_bytes(framed(head(METADATA, 1) + (1_000_001).to_bytes(4, "big") + bytes(2_000_002)))
            began_at = time.monotonic()
            assert await still_serves(good)
            assert await bad.is_closed()
            assert time.monotonic() - began_at < 1
            assert not parking.parked

    on_loop(scenario)


def test_many_large_requests_at_once_are_read_one_after_the_other(on_loop):
    """The frames are several times larger than the buffer's limit, which is kept all the same."""

    async def scenario():
        memory = RequestMemory(8_000_000)
        parking = Parking()
        async with serving_kafka({apis.PRODUCE: parking}, memory=memory) as (_, port), kafka(port) as good:
            wires = [kafka(port) for _ in range(20)]
            for wire in wires:
                await wire.__aenter__()
                wire.send_bytes(produce_frame(1, size=2_000_000))
            await until(lambda: memory.waiting > 5)
            assert memory.used < 8_000_000 + 2_100_000
            assert await still_serves(good)
            answered = 0
            while answered < 20:
                await until(lambda: parking.parked)
                assert memory.used < 8_000_000 + 2_100_000
                parking.answer()
                answered += 1
            for wire in wires:
                assert await numbers(wire, 1) == [1]
                await wire.__aexit__()

    on_loop(scenario)
