"""What a peer may do to a server: a bad connection is closed, a bad request is answered, and other peers are not affected.

Real sockets on loopback, with small limits. The ids are those of the project's list of bad input.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import socket

import msgpack
import pytest
from rpc_world import TOPIC_ID, Parking, produce, produce_frame, raw_peer, request_frame, serving
from structlog.testing import capture_logs
from waiting import until

from strandline.protocol.apis import API_VERSIONS, APIS, FETCH, PRODUCE
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import ProduceResponse
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.server import Limits


async def still_serves(peer, correlation_id=77):
    """Check that a well-behaved peer is answered as before."""
    peer.send(produce_frame(correlation_id, 9))
    answered, (partitions, _) = await peer.receive()
    return answered == correlation_id and partitions[0][3] == 9


CLOSED_FOR = {
    "F01 length 0": b"\0\0\0\0",
    "F01 length -1": b"\xff\xff\xff\xff",
    "F01 length 2^31-1": b"\x7f\xff\xff\xff",
    "F01 one more than the limit": (10_001).to_bytes(4, "big"),
    "F02 an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "F02 a TLS hello": bytes.fromhex("16030100c5010000c10303") + bytes(200),
    "F02 a TLS alert": bytes.fromhex("15030100020228"),
    "F03 a frame of zeros": b"\0\0\0\x20" + bytes(32),
    "F06 an unknown API": request_frame(126, []),
    "F06 an API key of two bytes": request_frame(1000, []),
    "F10 0xc1": b"\0\0\0\x05\x95\0\0\x01\xc1",
    "F10 nested arrays": b"\0\0\x20\0" + b"\x95\0\0\x01\xc0" + b"\x91" * (8192 - 5),
    "F10 an array of 4 G elements": b"\0\0\0\x0a\x95\0\0\x01\xc0\xdd\xff\xff\xff\xff",
    "F10 bad UTF-8": b"\0\0\0\x08\x95\0\0\x01\xa2\xff\xfe\xc0",
    "F10 trailing bytes": b"\0\0\0\x05\x90\0\0\0\0",
}


@pytest.mark.parametrize("raw", CLOSED_FOR.values(), ids=CLOSED_FOR.keys())
def test_garbage_closes_the_connection_with_one_log_line(on_loop, raw):
    """F01, F02, F03, F06, F10. The next such connection of the same host within a minute is closed without a line."""

    async def scenario():
        async with serving(limits=Limits(max_frame_bytes=10_000)) as (server, port), raw_peer(port) as good:
            assert await still_serves(good)
            with capture_logs() as logs:
                for _ in range(2):
                    async with raw_peer(port) as bad:
                        bad.send(raw)
                        if raw[0] == 0x16:  # An alert tells a TLS client that the port speaks plaintext.
                            assert (await bad.reader.readexactly(7))[0] == 0x15
                        assert await bad.is_closed()
            assert [entry["event"] for entry in logs] == ["peer.closed"]
            assert logs[0]["reason"]
            assert await still_serves(good)
            await until(lambda: len(server.connections) == 1)

    on_loop(scenario)


def test_a_storm_of_a_thousand_bad_connections_makes_one_line(on_loop):
    """Garbage, oversized frames, unknown APIs and bad bodies from one host make one line, and after a minute one more with
    the count. Good peers are served meanwhile, and connections that only open and close make no line."""

    async def scenario():
        kinds = [b"\0\0\0\x05hello", b"\x7f\xff\xff\xff", request_frame(126, []), b"GET / HTTP/1.1\r\n\r\n", b""]
        async with serving(limits=Limits(max_frame_bytes=10_000)) as (server, port), raw_peer(port) as good:
            with capture_logs() as logs:
                for n in range(1000):
                    async with raw_peer(port) as bad:
                        raw = kinds[n % len(kinds)]
                        bad.send(raw)
                        if raw:
                            assert await bad.is_closed()
                async with raw_peer(port) as malformed:
                    for n in range(10):
                        malformed.send(request_frame(PRODUCE, [None, "-1", 1000, [[TOPIC_ID, 0]], [b""]], n))
                        assert (await malformed.receive())[2] == ErrorCode.INVALID_REQUEST
                assert await still_serves(good)
                assert [entry["event"] for entry in logs] == ["peer.closed"]
                server.bad_peers.sweep(asyncio.get_running_loop().time() + 61)
            assert logs[1] == {"event": "peer.errors_suppressed", "peer": "127.0.0.1", "suppressed": 809, "log_level": "warning"}

    on_loop(scenario)


def test_a_client_id_is_escaped_in_the_log(on_loop):
    """F35: a client id with an escape sequence, in a request that is logged."""

    async def scenario():
        raw = msgpack.packb([PRODUCE, 99, 1, "me\x1b[2J\nlevel=info", []])
        async with serving() as (_, port), raw_peer(port) as bad:
            with capture_logs() as logs:
                bad.send(len(raw).to_bytes(4, "big") + raw)
                await bad.receive()
                assert await bad.is_closed()
            assert logs[0]["client_id"] == "me\\x1b[2J\\nlevel=info"

    on_loop(scenario)


def test_random_bytes_are_closed_or_refused_and_nothing_else_happens(on_loop):
    """F03: frames of random bytes, and good requests with changed bytes, sent to a live server."""

    async def scenario():
        rnd = random.Random(4)
        good_frame = produce_frame(1, 20)
        errors = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        with capture_logs() as logs:
            async with serving(limits=Limits(max_frame_bytes=10_000)) as (server, port), raw_peer(port) as good:
                for n in range(150):
                    async with raw_peer(port) as bad:
                        raw = bytearray(good_frame)
                        for _ in range(rnd.randrange(1, 5)):
                            raw[rnd.randrange(4, len(raw))] = rnd.randrange(256)
                        if n % 3 == 0:
                            noise = rnd.randbytes(rnd.randrange(1, 300))
                            raw = bytearray(len(noise).to_bytes(4, "big") + noise)
                        bad.send(raw)
                        bad.writer.write_eof()
                        await bad.reader.read()
                assert await still_serves(good)
                await until(lambda: len(server.connections) == 1)
        assert errors == []
        assert [entry["event"] for entry in logs if entry["event"] not in ("peer.closed", "peer.refused")] == []

    on_loop(scenario)


@pytest.mark.parametrize("raw", [b"\0", b"\0\0\0\x20", b"\0\0\0\x20\x95\0\0", (60_000).to_bytes(4, "big") + bytes(5000)])
def test_an_incomplete_frame_closes_the_connection(on_loop, raw):
    """F04: the head of a frame, then silence."""

    async def scenario():
        async with serving(limits=Limits(frame_ms_max=40)) as (_, port), raw_peer(port) as good, raw_peer(port) as slow:
            slow.send(raw)
            with capture_logs() as logs:
                assert await slow.is_closed()
            assert "not complete" in logs[0]["reason"]
            assert await still_serves(good)

    on_loop(scenario)


def test_a_byte_at_a_time_does_not_prolong_the_frame(on_loop):
    """F04, slow loris: the time limit counts from the frame's first byte, not from the last one received."""

    async def scenario():
        async with serving(limits=Limits(frame_ms_max=60)) as (_, port), raw_peer(port) as slow:
            closed = asyncio.ensure_future(slow.is_closed())
            for byte in (10_000).to_bytes(4, "big") + bytes(5000):
                slow.send(bytes((byte,)))
                done, _ = await asyncio.wait([closed], timeout=0.005)
                if done:
                    break
            assert closed.done()
            assert await closed

    on_loop(scenario)


def test_an_idle_connection_is_closed_and_a_waiting_one_is_not(on_loop):
    """F08: a peer that vanished without a FIN holds a file descriptor for at most the idle time, unless a request is parked."""

    async def scenario():
        parking = Parking()
        async with (
            serving({PRODUCE: parking}, Limits(idle_ms_max=40)) as (server, port),
            raw_peer(port) as waiting,
            raw_peer(port) as idle,
        ):
            waiting.send(produce_frame(1))
            assert await idle.is_closed()
            await until(lambda: len(server.connections) == 1)
            parking.answer_all()
            assert (await waiting.receive())[0] == 1
            assert await waiting.is_closed()

    on_loop(scenario)


def test_a_client_connection_closes_if_the_server_is_silent(on_loop):
    """F08, client side: a half-open connection is detected at the first request that times out."""

    async def scenario():
        lost = []
        with socket.create_server(("127.0.0.1", 0)) as silent:
            connection = await Connection.connect(
                "127.0.0.1", silent.getsockname()[1], client_id="me", on_lost=lambda c, e: lost.append(e)
            )
            with pytest.raises(BrokerError) as e:
                await connection.request(PRODUCE, *produce(), timeout_ms=30)
            assert e.value.code is ErrorCode.REQUEST_TIMED_OUT
            await until(lambda: lost)
            assert "nothing was received" in str(lost[0])
            assert connection.closed

    on_loop(scenario)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "claims"),
        (b"\0\0\0\x05hello", "malformed"),
        (b"\x7f\xff\xff\xff", "claims"),
        (b"\0\0\0\x03\x92\x01\x07", "malformed"),
        (b"\0\0\0\x07\x92\xd2\xff\xff\xff\xff\xc0", "never sent"),
    ],
)
def test_a_client_connection_closes_at_a_malformed_response(on_loop, raw, why):
    """F02, client side: pending requests fail once. Each event loop logs it once, because another loop may have met another
    server at the same address."""

    async def scenario():
        async def answer(reader, writer):
            await reader.read(10)
            writer.write(raw)
            await reader.read()
            writer.close()

        heard = []
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = await Connection.connect("127.0.0.1", port, client_id="me", on_lost=lambda c, e: heard.append(e))
        with capture_logs() as logs:
            connection.send(PRODUCE, *produce(), on_response=heard.append)
            await until(lambda: len(heard) == 2)
        assert [entry["event"] for entry in logs] == ["server.response_rejected"]
        assert heard[0].code is ErrorCode.NETWORK_EXCEPTION
        assert why in str(heard[1])
        server.close()

    on_loop(scenario)


def test_a_peer_that_never_reads_is_paused_and_then_closed(on_loop):
    """F05: responses wait in a bounded buffer. The server stops reading, and closes if the peer still does not read."""

    async def scenario():
        handled = 0

        def big_answer(request):
            nonlocal handled
            handled += 1
            request.reply(APIS[FETCH].response(0, 0, 0, [], []), [[b"x" * 100_000]])

        limits = Limits(write_buffer_bytes_high=200_000, write_stall_ms_max=60, max_in_flight_per_connection=50)
        async with serving({FETCH: big_answer}, limits) as (server, port), raw_peer(port) as bad:
            fetch = request_frame(FETCH, [-1, -1, 0, 0, 0, 0, 0, 0, []])
            total = 2000
            bad.writer.transport.pause_reading()
            with capture_logs() as logs:
                bad.send(fetch * total)
                await until(lambda: handled and not server.connections, "the close")
            assert handled < total // 10, "most requests were not read"
            assert "read nothing" in logs[0]["reason"]

    on_loop(scenario)


def test_too_many_unsent_bytes_close_the_connection(on_loop):
    """F05: a pause does not bound the responses of parked requests that are answered together."""

    async def scenario():
        parking = Parking()
        limits = Limits(write_buffer_bytes_high=100_000, write_buffer_bytes_max=5_000_000)
        async with serving({FETCH: parking}, limits) as (server, port), raw_peer(port) as bad:
            bad.writer.transport.pause_reading()
            bad.send(request_frame(FETCH, [-1, -1, 0, 0, 0, 0, 0, 0, []]) * 300)
            await until(lambda: len(parking.parked) == 300)
            with capture_logs() as logs:
                for request in parking.parked:
                    request.reply(APIS[FETCH].response(0, 0, 0, [], []), [[b"x" * 100_000]])
                await until(lambda: not server.connections)
            assert "too many bytes" in logs[0]["reason"]

    on_loop(scenario)


def test_an_unknown_version_of_the_handshake_is_answered_with_the_known_ones(on_loop):
    """F06: so that a newer client can use an older version."""

    async def scenario():
        async with serving() as (_, port), raw_peer(port) as peer:
            peer.send(request_frame(API_VERSIONS, ["of", ["the"], "future"], 5, version=99))
            correlation_id, body = await peer.receive()
            assert correlation_id == 5
            assert body[0] == ErrorCode.UNSUPPORTED_VERSION
            assert [r[0] for r in body[1]] == [PRODUCE, API_VERSIONS]
            assert await still_serves(peer)

    on_loop(scenario)


def test_an_unknown_version_of_another_api_is_refused_and_closed(on_loop):
    async def scenario():
        async with serving() as (_, port), raw_peer(port) as peer:
            peer.send(request_frame(PRODUCE, [], 6, version=99))
            correlation_id, body, code, text = await peer.receive()
            assert (correlation_id, body, code) == (6, None, ErrorCode.UNSUPPORTED_VERSION)
            assert "99" in text
            assert await peer.is_closed()

    on_loop(scenario)


@pytest.mark.parametrize("in_flight_max", [1, 7, 1000])
def test_pipelined_requests_are_taken_in_order_within_the_limit(on_loop, in_flight_max):
    """F07: ten thousand requests, all with one correlation id, which only the client interprets."""

    async def scenario():
        loop = asyncio.get_running_loop()
        sizes, worst = [], 0

        def handler(request):
            nonlocal worst
            sizes.append(len(request.body.records[0]))
            worst = max(worst, request.connection.in_flight)
            loop.call_soon(request.reply, ProduceResponse([], len(request.body.records[0])))

        count = 10_000 if in_flight_max > 1 else 1000
        limits = Limits(max_in_flight_per_connection=in_flight_max)
        async with serving({PRODUCE: handler}, limits) as (_, port), raw_peer(port) as peer:
            peer.send(b"".join(produce_frame(5, n % 100) for n in range(count)))
            answers = [await peer.receive() for _ in range(count)]
        assert answers == [[5, [[], n % 100]] for n in range(count)]
        assert sizes == [n % 100 for n in range(count)]
        assert worst <= in_flight_max

    on_loop(scenario)


def test_bytes_in_flight_are_bounded_too(on_loop):
    async def scenario():
        parking = Parking()
        limits = Limits(in_flight_bytes_max=100_000)
        async with serving({PRODUCE: parking}, limits) as (_, port), raw_peer(port) as peer:
            peer.send(b"".join(produce_frame(n, 30_000) for n in range(40)))
            answered = 0
            while answered < 40:
                await until(lambda: parking.parked)
                held = parking.parked[0].connection._in_flight_bytes
                assert held <= 100_000 + 30_100
                ready = len(parking.parked)
                parking.answer_all()
                for _ in range(ready):
                    assert (await peer.receive())[0] == answered
                    answered += 1

    on_loop(scenario)


@pytest.mark.parametrize(
    "body",
    [
        [None, "-1", 1000, [[TOPIC_ID, 0]], [b""]],
        [None, True, 1000, [[TOPIC_ID, 0]], [b""]],
        [None, -1, -5, [[TOPIC_ID, 0]], [b""]],
        [None, -1, 1000, [[TOPIC_ID, 2**63]], [b""]],
        [None, -1, 1000, [[TOPIC_ID, -1]], [b""]],
        [None, -1, 1000, [[b"short", 0]], [b""]],
        [None, -1, 1000, [[TOPIC_ID, 0]] * 100_001, []],
        [],
        {"a": 1, "b": 2},
    ],
    ids=lambda body: repr(body)[:40],
)
def test_a_well_formed_request_with_wrong_values_is_answered_with_invalid_request(on_loop, body):
    """F11: no handler is called, and the connection stays open."""

    async def scenario():
        async with serving() as (_, port), raw_peer(port) as peer:
            peer.send(request_frame(PRODUCE, body, 8))
            correlation_id, answer, code, text = await peer.receive()
            assert (correlation_id, answer, code) == (8, None, ErrorCode.INVALID_REQUEST)
            assert text.startswith("Produce: ")
            assert await still_serves(peer)

    on_loop(scenario)


def test_connections_over_the_limit_are_closed_and_the_others_served(on_loop):
    """F09."""

    async def scenario():
        async with serving(limits=Limits(max_connections=2)) as (server, port), raw_peer(port) as one, raw_peer(port) as two:
            assert await still_serves(one)
            assert await still_serves(two)
            with capture_logs() as logs:
                for _ in range(3):
                    async with raw_peer(port) as over:
                        assert await over.is_closed()
            assert len(logs) == 1
            assert await still_serves(one)
            assert len(server.connections) == 2
            two.close()
            await until(lambda: len(server.connections) == 1)
            async with raw_peer(port) as three:
                assert await still_serves(three)

    on_loop(scenario)


def test_the_limit_of_connections_reserves_files_for_the_logs(on_loop):
    """F09: connections may not use up the descriptors that segments need."""

    async def scenario():
        async with serving(limits=Limits(reserved_files=1_000_000)) as (server, _):
            assert server._connections_max == min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    on_loop(scenario)
    limits = Limits(max_connections=5000, reserved_files=256)
    assert [limits.connections_max(files) for files in (100, 256, 1024, 100_000)] == [50, 128, 768, 5000]


def test_running_out_of_file_descriptors_does_not_stop_or_spin_the_listener(on_loop):
    """F09: accept fails with EMFILE for a while. Afterwards new peers are served, and the process has not used its CPU up."""

    async def scenario():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: None)
        async with serving(limits=Limits(reserved_files=0)) as (_, port), raw_peer(port) as good:
            assert await still_serves(good)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            waiting = [socket.socket() for _ in range(10)]
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd) for fd in os.listdir("/dev/fd")) + 1, hard))
            try:
                fillers = fill_descriptors()
                for one in waiting:
                    one.setblocking(False)
                    one.connect_ex(("127.0.0.1", port))
                before = os.times()
                for _ in range(20):
                    assert await still_serves(good)
                    await asyncio.sleep(0.025)
                used = os.times()
                # At least half a second has passed. Twenty round trips may take 0.1 s of CPU; a spinning listener takes it all.
                assert used.user + used.system - before.user - before.system < 0.35
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                for fd in fillers:
                    os.close(fd)
                for one in waiting:
                    one.close()
            async with raw_peer(port) as late:
                assert await still_serves(late)

    on_loop(scenario)


def fill_descriptors():
    """Use up the remaining file descriptors."""
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        return taken
