"""A muted connection (KIP-219): the server takes no request from it for a while, and sends its responses."""

from __future__ import annotations

import pytest
from rpc_world import Parking, produce, produce_frame, raw_peer, serving
from waiting import until

from strandline.protocol.apis import PRODUCE
from strandline.protocol.messages.data import ProduceResponse
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.server import ServerRequest
from strandline.protocol.rpc.sockets import plain_host


class Muting:
    """Answers each request, and mutes its connection for the time that the test chose."""

    def __init__(self, durations_s: list[float]) -> None:
        self.durations_s = durations_s
        self.served_at: list[float] = []

    def __call__(self, request: ServerRequest) -> None:
        self.served_at.append(request.connection._loop.time())
        request.reply(ProduceResponse([]))
        if self.durations_s:
            request.connection.mute(self.durations_s.pop(0))


def test_answer_leaves_at_once_and_the_next_request_waits(on_loop):
    async def scenario():
        handler = Muting([0.3])
        async with serving({PRODUCE: handler}) as (_, port), raw_peer(port) as peer:
            peer.send(b"".join(produce_frame(n) for n in range(3)))
            assert (await peer.receive())[0] == 0
            assert len(handler.served_at) == 1
            for n in (1, 2):
                assert (await peer.receive())[0] == n
            assert handler.served_at[1] - handler.served_at[0] >= 0.29
            assert handler.served_at[2] - handler.served_at[1] < 0.29  # it was muted once

    on_loop(scenario)


OFTEN = [0.3] * 10


@pytest.mark.parametrize(("durations_s", "expected_s"), [((0.4, *OFTEN), 0.4), ((*OFTEN, 0.4), 0.4), ((0.0, -1.0), 0.0)])
def test_mutes_do_not_add_up(on_loop, durations_s, expected_s):
    """The later of the two ends counts."""

    async def scenario():
        handler = Muting([])
        async with serving({PRODUCE: handler}) as (server, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            await until(lambda: server.connections)
            (at_server,) = server.connections.values()
            begun_at = at_server._loop.time()
            for duration_s in durations_s:
                at_server.mute(duration_s)
            await connection.request(PRODUCE, *produce())
            assert expected_s - 0.01 <= handler.served_at[0] - begun_at < expected_s + 2
            connection.close()

    on_loop(scenario)


def test_parked_requests_are_answered_while_muted(on_loop):
    async def scenario():
        parking = Parking()
        async with serving({PRODUCE: parking}) as (server, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            response = connection.request(PRODUCE, *produce())
            await until(lambda: parking.parked)
            (at_server,) = server.connections.values()
            at_server.mute(60)
            parking.answer_all()
            await response
            connection.close()
            await until(lambda: at_server._is_reading is False or at_server.closed)
            at_server.abort()
            await until(lambda: not server.connections)

    on_loop(scenario)


def test_mute_of_a_closed_connection_does_nothing(on_loop):
    async def scenario():
        async with serving() as (server, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            await until(lambda: server.connections)
            (at_server,) = server.connections.values()
            at_server.mute(60)
            at_server.close()
            at_server.mute(60)
            await until(lambda: not server.connections)
            assert at_server._mute_timer is None or at_server._mute_timer.cancelled()
            connection.close()

    on_loop(scenario)


def test_host_is_the_address_that_rules_name():
    """A dual-stack socket shows IPv4 addresses in another form, which no rule would match."""
    assert plain_host("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_host("10.0.0.1") == "10.0.0.1"
    assert plain_host("::1") == "::1"
    assert plain_host("fe80::ffff:1") == "fe80::ffff:1"
