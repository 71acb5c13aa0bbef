"""Server and connection over real sockets, on both event loops: which requests are answered, in which order, exactly once."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import time

import pytest
from rpc_world import Parking, on_produce, produce, produce_frame, raw_peer, serving
from structlog.testing import capture_logs
from waiting import until

from strandline.protocol import frames
from strandline.protocol.apis import API_VERSIONS, METADATA, PRODUCE
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError, UsageError
from strandline.protocol.messages.admin import (
    ApiVersionsRequest,
    MetadataBroker,
    MetadataRequest,
    MetadataResponse,
    MetadataTopicRequest,
)
from strandline.protocol.messages.data import ProduceResponse
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.server import Limits, Server


def base_offset(response):
    return response.partitions[0].base_offset


@pytest.mark.parametrize("size", [0, 1, 200, 5000, 70_000, 6_000_000])
def test_a_request_of_any_size_is_answered(on_loop, size):
    async def scenario():
        async with serving() as (_, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            assert base_offset(await connection.request(PRODUCE, *produce(size))) == size
            connection.close()

    on_loop(scenario)


def test_large_responses_arrive_whole(on_loop):
    """Several responses in one event-loop iteration are more than a socket takes at once, so the transport must keep the rest."""

    def metadata(request):
        request.reply(MetadataResponse([], "c" * 1000, 1, []))

    async def scenario():
        async with serving({METADATA: metadata}) as (_, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            answers = await asyncio.gather(*[connection.request(METADATA, MetadataRequest(None)) for _ in range(3000)])
            assert {a.cluster_id for a in answers} == {"c" * 1000}
            connection.close()

    on_loop(scenario)


def test_connections_of_one_loop_share_a_buffer_but_no_bytes(on_loop):
    """A connection copies the bytes of its incomplete frame before another connection reads."""

    def metadata(request):
        count = int(request.body.topics[0].name)
        request.reply(MetadataResponse([MetadataBroker(count, "h" * 200, 1)] * count, "c", 1, []))

    async def ask(connection, count):
        answer = await connection.request(METADATA, MetadataRequest([MetadataTopicRequest(str(count))]))
        assert answer.brokers == [MetadataBroker(count, "h" * 200, 1)] * count

    async def scenario():
        async with serving({METADATA: metadata}) as (_, port):
            connections = [await Connection.connect("127.0.0.1", port, client_id="me") for _ in range(5)]
            assert len({id(connection._reader._scratch) for connection in connections}) == 1
            await asyncio.gather(*[ask(connections[number % 5], number * 37 % 400) for number in range(400)])
            for connection in connections:
                connection.close()

    on_loop(scenario)


def test_no_request_of_a_held_connection_reaches_a_handler(on_loop):
    """The frames behind the first one are in the buffer already, or arrive while the connection is held. They are handled in
    order afterwards."""

    async def scenario():
        seen, first = [], []

        def handler(request):
            seen.append(len(request.body.records[0]))
            if not first:
                first.append(request)
                request.connection.hold()
                return
            on_produce(request)

        async with serving({PRODUCE: handler}) as (_, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            other = await Connection.connect("127.0.0.1", port, client_id="other")
            answers = [connection.request(PRODUCE, *produce(size)) for size in (1, 2, 3)]
            await until(lambda: bool(first))
            answers += [connection.request(PRODUCE, *produce(size)) for size in (4, 5)]
            assert base_offset(await other.request(PRODUCE, *produce(9))) == 9, "another connection is not held"
            assert seen == [1, 9]
            on_produce(first[0])
            assert base_offset(await answers[0]) == 1, "an answer does not release it"
            assert seen == [1, 9]
            first[0].connection.release()
            assert [base_offset(answer) for answer in await asyncio.gather(*answers)] == [1, 2, 3, 4, 5]
            assert seen == [1, 9, 2, 3, 4, 5]
            connection.close()
            other.close()

    on_loop(scenario)


def test_a_connection_that_is_released_within_its_handler_goes_on(on_loop):
    async def scenario():
        def handler(request):
            request.connection.hold()
            request.connection.release()
            on_produce(request)

        async with serving({PRODUCE: handler}) as (_, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            answers = await asyncio.gather(*[connection.request(PRODUCE, *produce(size)) for size in range(1, 200)])
            assert [base_offset(answer) for answer in answers] == list(range(1, 200))
            connection.close()

    on_loop(scenario)


def test_pipelined_requests_are_handled_in_order_and_answered_in_any(on_loop):
    async def scenario():
        seen, heard = [], []
        parking = Parking()

        def handler(request):
            seen.append(len(request.body.records[0]))
            if seen[-1] % 2:
                parking(request)
            else:
                on_produce(request)

        async with serving({PRODUCE: handler}) as (server, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            for n in range(200):
                connection.send(PRODUCE, *produce(n), on_response=lambda r: heard.append(base_offset(r)))
            await until(lambda: len(heard) == 100)
            assert heard == list(range(0, 200, 2)), "a parked request does not delay later ones"
            parking.answer_all()
            await until(lambda: len(heard) == 200)
            assert seen == list(range(200))
            assert heard[100:] == list(range(1, 200, 2))
            assert connection.in_flight == 0
            assert [c.in_flight for c in server.connections.values()] == [0]
            connection.close()

    on_loop(scenario)


def test_the_handshake_has_identity_and_versions(on_loop):
    async def scenario():
        async with serving() as (server, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            answer = await connection.request(API_VERSIONS, ApiVersionsRequest("test", "1"))
            assert (answer.error_code, answer.node_id, answer.role, answer.cluster_id) == (0, 1, "broker", "a cluster")
            assert answer.incarnation_id == bytes(range(16))
            assert [r.api_key for r in answer.api_keys] == [PRODUCE, API_VERSIONS]
            (accepted,) = server.connections.values()
            assert accepted.client_id == "me"
            assert accepted.peer.startswith("127.0.0.1:")
            connection.close()

    on_loop(scenario)


def test_an_exception_of_a_handler_becomes_an_error_code(on_loop):
    """This includes sync and async handlers; a bug is logged with its traceback, and the response has its name."""

    def sync_broker_error(request):
        raise BrokerError(ErrorCode.NOT_CONTROLLER, "ask another")

    async def async_bug(request):
        await asyncio.sleep(0)
        raise RuntimeError("a bug")

    async def scenario():
        async with serving({PRODUCE: sync_broker_error, METADATA: async_bug}) as (_, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            with pytest.raises(BrokerError, match="ask another") as e:
                await connection.request(PRODUCE, *produce())
            assert e.value.code is ErrorCode.NOT_CONTROLLER
            assert e.value.retriable
            with capture_logs() as logs, pytest.raises(BrokerError, match="a bug") as e:
                await connection.request(METADATA, MetadataRequest(None))
            assert e.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
            assert [entry["event"] for entry in logs] == ["request.failed"]
            connection.close()

    on_loop(scenario)


def test_an_async_handler_answers_when_it_is_done(on_loop):
    async def metadata(request):
        await asyncio.sleep(0)
        request.reply(MetadataResponse([], "later", 1, []))

    async def scenario():
        async with serving({METADATA: metadata}) as (_, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            assert (await connection.request(METADATA, MetadataRequest(None))).cluster_id == "later"
            connection.close()

    on_loop(scenario)


def test_answering_twice_raises_internal_error():
    async def scenario():
        parking = Parking()
        async with serving({PRODUCE: parking}) as (_, port), raw_peer(port) as peer:
            peer.send(produce_frame(1))
            await until(lambda: parking.parked)
            (request,) = parking.parked
            assert request.is_open
            parking.answer_all()
            assert not request.is_open
            with pytest.raises(InternalError):
                request.reply(ProduceResponse([]))

    asyncio.run(scenario())


def test_answering_on_a_lost_connection_does_nothing(on_loop):
    async def scenario():
        parking, lost = Parking(), []
        async with serving({PRODUCE: parking}, on_connection_lost=lost.append) as (server, port):
            async with raw_peer(port) as peer:
                peer.send(produce_frame(1))
                await until(lambda: parking.parked)
                (accepted,) = server.connections.values()
                accepted.tag = 7
            await until(lambda: lost)
            assert [c.tag for c in lost] == [7]
            assert accepted.closed
            assert not parking.parked[0].is_open
            parking.answer_all()
            assert not server.connections

    on_loop(scenario)


def test_acks_0_is_not_answered_and_does_not_count_as_in_flight(on_loop):
    async def scenario():
        async with serving() as (server, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            for _ in range(20):
                connection.send(PRODUCE, *produce(acks=0), on_response=None)
            assert base_offset(await connection.request(PRODUCE, *produce(5))) == 5
            assert connection.in_flight == 0
            assert [c.in_flight for c in server.connections.values()] == [0]
            connection.close()

    on_loop(scenario)


def test_an_api_that_is_not_served_is_refused_without_a_close(on_loop):
    async def scenario():
        async with serving() as (_, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            with pytest.raises(BrokerError, match="Metadata is not served") as e:
                await connection.request(METADATA, MetadataRequest(None))
            assert e.value.code is ErrorCode.UNSUPPORTED_VERSION
            assert base_offset(await connection.request(PRODUCE, *produce(5))) == 5
            connection.close()

    on_loop(scenario)


# -- the end of connections -------------------------------------------------------------------------------------------


def test_a_lost_connection_fails_pending_requests_and_then_notifies_its_owner(on_loop):
    async def scenario():
        events = []
        parking = Parking()
        async with serving({PRODUCE: parking}) as (server, port):
            connection = await Connection.connect(
                "127.0.0.1", port, client_id="me", on_lost=lambda c, e: events.append(("lost", c, e))
            )
            for n in range(3):
                connection.send(PRODUCE, *produce(n), on_response=lambda r: events.append(r.code))
            await until(lambda: len(parking.parked) == 3)
            for accepted in list(server.connections.values()):
                accepted.abort()
            await until(lambda: connection.closed)
            assert events[:3] == [ErrorCode.NETWORK_EXCEPTION] * 3
            kind, lost, why = events[3]
            assert (kind, lost) == ("lost", connection)
            assert why is not None
            assert len(events) == 4

    on_loop(scenario)


def test_a_connection_closed_on_purpose_has_no_error(on_loop):
    async def scenario():
        events = []
        async with serving() as (server, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me", on_lost=lambda c, e: events.append(e))
            connection.close()
            assert connection.closed
            connection.send(PRODUCE, *produce(), on_response=lambda r: events.append(r.code))
            assert events == [], "never called from within send"
            await until(lambda: len(events) == 2)
            assert sorted(events, key=str) == [ErrorCode.NETWORK_EXCEPTION, None]
            await until(lambda: not server.connections)

    on_loop(scenario)


def test_requests_sent_just_before_the_close_still_leave(on_loop):
    async def scenario():
        parking = Parking()
        async with serving({PRODUCE: parking}) as (_, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            connection.send(PRODUCE, *produce(100_000, acks=0), on_response=None)
            connection.close()
            await until(lambda: parking.parked)

    on_loop(scenario)


def test_a_refused_connection_names_address_and_reason(on_loop):
    async def scenario():
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        with pytest.raises(BrokerError, match=f"could not connect to 127.0.0.1:{port}: Connection refused") as e:
            await Connection.connect("127.0.0.1", port, client_id="me")
        assert e.value.code is ErrorCode.NETWORK_EXCEPTION
        assert isinstance(e.value.__cause__, ConnectionRefusedError)

    on_loop(scenario)


def test_an_error_names_the_address_that_is_in_use(on_loop):
    async def scenario():
        async with serving() as (_, port):
            second = Server({}, role="broker", node_id=2, cluster_id=None, incarnation_id=bytes(16))
            with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
                await second.start("127.0.0.1", port)
            await second.stop()

    on_loop(scenario)


def test_a_late_response_after_a_timeout_is_ignored(on_loop):
    async def scenario():
        parking = Parking()
        async with serving({PRODUCE: parking, METADATA: lambda r: r.reply(MetadataResponse([], None, 1, []))}) as (_, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            late = asyncio.ensure_future(connection.request(PRODUCE, *produce(), timeout_ms=50))
            await until(lambda: parking.parked)
            await connection.request(METADATA, MetadataRequest(None))  # something is received: the peer is alive
            with pytest.raises(BrokerError, match="Produce") as e:
                await late
            assert e.value.code is ErrorCode.REQUEST_TIMED_OUT
            parking.answer_all()
            await connection.request(METADATA, MetadataRequest(None))
            assert not connection.closed
            connection.close()

    on_loop(scenario)


def test_every_request_has_its_own_deadline(on_loop):
    async def scenario():
        order = []
        async with serving({PRODUCE: Parking(), METADATA: lambda r: r.reply(MetadataResponse([], None, 1, []))}) as (_, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            for timeout_ms in (60_000, 30, 90):
                connection.send(
                    PRODUCE, *produce(), timeout_ms=timeout_ms, on_response=lambda r, ms=timeout_ms: order.append((ms, r.code))
                )
            while len(order) < 2:
                await connection.request(METADATA, MetadataRequest(None))
            assert set(order) == {(ms, ErrorCode.REQUEST_TIMED_OUT) for ms in (30, 90)}
            connection.close()
            await until(lambda: order[2:] == [(60_000, ErrorCode.NETWORK_EXCEPTION)])

    on_loop(scenario)


def test_responses_that_arrived_during_a_pause_are_read_before_requests_expire(on_loop):
    """A process that was paused finds expired timers and, in its sockets, the responses."""

    async def scenario():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            connection = await Connection.connect("127.0.0.1", listener.getsockname()[1], client_id="me")
            peer, _ = listener.accept()
            asking = asyncio.ensure_future(connection.request(METADATA, MetadataRequest(None), timeout_ms=20))
            await until(lambda: connection.in_flight)
            for buffer in frames.encode_response(1, MetadataResponse([], "c", 1, [])):
                peer.sendall(buffer)
            time.sleep(0.2)  # noqa: ASYNC251 - the whole process is blocked
            assert (await asking).cluster_id == "c"
            connection.close()
            peer.close()

    on_loop(scenario)


def test_a_stopping_server_answers_requests_in_flight_and_takes_no_more(on_loop):
    async def scenario():
        parking = Parking()
        async with serving({PRODUCE: parking}) as (server, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            answer = asyncio.ensure_future(connection.request(PRODUCE, *produce(5)))
            await until(lambda: parking.parked)
            stopping = asyncio.ensure_future(server.stop(drain_ms=5000))
            await until(lambda: server.is_stopping)
            refused = asyncio.ensure_future(connection.request(PRODUCE, *produce(6)))
            with pytest.raises(BrokerError):
                await Connection.connect("127.0.0.1", port, client_id="too late", connect_timeout_ms=300)
            assert not stopping.done()
            parking.answer_all()
            assert base_offset(await answer) == 5
            await stopping
            with pytest.raises(BrokerError) as e:
                await refused
            assert e.value.code is ErrorCode.NETWORK_EXCEPTION
            assert not server.connections
            assert not parking.parked

    on_loop(scenario)


def test_a_stopping_server_does_not_wait_for_ever(on_loop):
    async def scenario():
        parking = Parking()
        async with serving({PRODUCE: parking}) as (server, port), raw_peer(port) as peer:
            peer.send(produce_frame(1))
            await until(lambda: parking.parked)
            await server.stop(drain_ms=30)
            assert await peer.is_closed()

    on_loop(scenario)


def test_a_failing_response_callback_is_logged_and_affects_no_other(on_loop):
    async def scenario():
        async with serving() as (_, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            with capture_logs() as logs:
                connection.send(PRODUCE, *produce(), on_response=lambda r: 1 / 0)
                assert base_offset(await connection.request(PRODUCE, *produce(3))) == 3
            assert [entry["event"] for entry in logs] == ["response.callback_failed"]
            connection.close()

    on_loop(scenario)


def test_sockets_send_at_once_and_detect_a_vanished_peer(on_loop):
    """F08: keepalive probes detect a peer that vanished without a FIN in less than half a minute."""

    async def scenario():
        async with serving() as (server, port):
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            await connection.request(PRODUCE, *produce())
            (accepted,) = server.connections.values()
            for transport in (connection._transport, accepted._transport):
                sock = transport.get_extra_info("socket")
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                if hasattr(socket, "TCP_KEEPIDLE"):
                    idle, interval, probes = (
                        sock.getsockopt(socket.IPPROTO_TCP, option)
                        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                    )
                    assert idle + interval * probes <= 30
            connection.close()

    on_loop(scenario)


def test_contradicting_limits_are_refused():
    with pytest.raises(UsageError):
        Limits(write_buffer_bytes_high=10, write_buffer_bytes_max=5)


def test_servers_share_nothing(on_loop):
    async def scenario():
        async with serving() as (first, port), serving({PRODUCE: Parking()}) as (second, other_port):
            assert isinstance(first, Server)
            assert port != other_port
            connection = await Connection.connect("127.0.0.1", port, client_id="me")
            await connection.request(PRODUCE, *produce())
            assert (len(first.connections), len(second.connections)) == (1, 0)
            connection.close()

    on_loop(scenario)


@pytest.mark.parametrize(
    ("ending", "by_peer"), [("FIN", True), ("RST", True), ("our close", False), ("our abort", False), ("time-out", False)]
)
def test_a_server_knows_which_side_closed_a_connection(on_loop, ending, by_peer):
    """A peer that closed was up a moment ago; one that the server or a timeout of the system closed may be cut off."""

    async def scenario():
        lost = []
        server = Server({}, role="broker", node_id=1, cluster_id="c", incarnation_id=bytes(16), on_connection_lost=lost.append)
        port = await server.start("127.0.0.1", 0)
        peer = socket.create_connection(("127.0.0.1", port))
        await until(lambda: server.connections)
        (connection,) = server.connections.values()
        if ending == "RST":
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if by_peer:
            peer.close()
        elif ending == "our close":
            connection.close()
        elif ending == "our abort":
            connection.abort()
        else:
            connection.connection_lost(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
        await until(lambda: lost)
        assert lost[0].closed_by_peer == by_peer
        peer.close()
        await server.stop()

    on_loop(scenario)


def test_a_server_says_which_address_another_process_took_after_it_had_bound_it(on_loop):
    """Two processes can bind the same port while neither accepts connections; only the first to accept them keeps it."""

    async def scenario():
        late, early = (Server({}, role="broker", node_id=1, cluster_id="c", incarnation_id=bytes(16)) for _ in range(2))
        port = await late.bind("127.0.0.1", 0)
        await early.start("127.0.0.1", port)
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            await late.serve()
        assert not late.is_serving
        await late.stop()
        await early.stop()

    on_loop(scenario)
