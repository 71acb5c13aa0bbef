"""Request metrics of a server, with a stopwatch that the test moves."""

from __future__ import annotations

from rpc_world import Parking, on_produce, produce_frame, raw_peer, request_frame, serving
from waiting import until

from strandline.protocol.apis import API_VERSIONS, FETCH, PRODUCE
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import FetchResponse, ProducePartitionResponse, ProduceResponse
from strandline.protocol.rpc.request_metrics import FETCH_FOLLOWER, RequestMetrics
from strandline.protocol.rpc.server import Limits, Server, ServerRequest


class Stopwatch:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def answered(server: Server, count: int, key: int = PRODUCE) -> None:
    await until(lambda: server.metrics[key].total.count == count, f"{count} answers")


async def test_requests_of_one_read_wait_for_each_other() -> None:
    """Three requests in one read keep the handler for 2 s each: they queued for 0, 2 and 4 s, and the handler worked 6 s."""
    watch = Stopwatch()

    def slow(request: ServerRequest) -> None:
        watch.now += 2
        on_produce(request)

    async with serving({PRODUCE: slow}, metrics=RequestMetrics(watch)) as (server, port), raw_peer(port) as peer:
        peer.send(b"".join(produce_frame(number) for number in range(3)))
        await answered(server, 3)
        metrics = server.metrics[PRODUCE]
        assert (metrics.requests, metrics.queue.count, metrics.failed) == (3, 3, 0)
        assert metrics.queue.sum == 0 + 2 + 4
        assert metrics.local_s == 6
        assert metrics.total.sum == 2 + 4 + 6
        assert metrics.request_bytes == sum(len(produce_frame(number)) - 4 for number in range(3))


async def test_parked_time_counts_in_the_total_but_not_for_the_handler() -> None:
    watch, parking = Stopwatch(), Parking()
    async with serving({PRODUCE: parking}, metrics=RequestMetrics(watch)) as (server, port), raw_peer(port) as peer:
        peer.send(produce_frame(1))
        await until(lambda: parking.parked)
        watch.now += 10
        parking.answer_all()
        metrics = server.metrics[PRODUCE]
        assert metrics.total.sum == 10
        assert metrics.local_s == 0


async def test_time_of_paused_reading_counts_as_queue_time() -> None:
    """Back pressure: a request that was read and could not be passed to its handler has been waiting since then."""
    watch, parking = Stopwatch(), Parking()
    limits = Limits(max_in_flight_per_connection=1)
    async with serving({PRODUCE: parking}, limits, metrics=RequestMetrics(watch)) as (server, port), raw_peer(port) as peer:
        peer.send(produce_frame(1) + produce_frame(2))
        await until(lambda: parking.parked)
        watch.now += 5
        parking.answer_all()
        await until(lambda: parking.parked, "the second one")
        assert server.metrics[PRODUCE].queue.sum == 5
        parking.answer_all()


async def test_errors_are_counted_by_code_of_parts_and_refusals() -> None:
    def failing(request: ServerRequest) -> None:
        if request.correlation_id == 1:
            codes = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS)
            request.reply(ProduceResponse([ProducePartitionResponse(bytes(16), 0, error_code=code) for code in codes]))
        elif request.correlation_id == 2:
            raise BrokerError(ErrorCode.INVALID_REQUIRED_ACKS)
        elif request.correlation_id == 3:
            raise ZeroDivisionError
        else:
            on_produce(request)

    async with serving({PRODUCE: failing}) as (server, port), raw_peer(port) as peer:
        peer.send(b"".join(produce_frame(number) for number in range(1, 5)))
        await answered(server, 4)
        metrics = server.metrics[PRODUCE]
        assert metrics.error_codes == {
            ErrorCode.NOT_ENOUGH_REPLICAS: 2,
            ErrorCode.INVALID_REQUIRED_ACKS: 1,
            ErrorCode.UNKNOWN_SERVER_ERROR: 1,
        }
        assert metrics.failed == 3


async def test_fetches_of_followers_and_consumers_are_counted_apart() -> None:
    def on_fetch(request: ServerRequest) -> None:
        request.reply(FetchResponse(0, 0, 0, [], []), [])

    async with serving({FETCH: on_fetch}) as (server, port), raw_peer(port) as peer:
        for replica_id in (-1, 2, 3):
            peer.send(request_frame(FETCH, [replica_id, -1, 0, 0, 1, 0, 0, -1, [], []]))
        await answered(server, 2, FETCH_FOLLOWER)
        assert server.metrics[FETCH].requests == 1
        assert [server.metrics[key].name for key in (FETCH, FETCH_FOLLOWER)] == ["FetchConsumer", "FetchFollower"]


async def test_a_request_without_an_answer_is_timed_as_well() -> None:
    """A produce with acks=0 has no answer."""
    async with serving() as (server, port), raw_peer(port) as peer:
        peer.send(produce_frame(1, acks=0))
        await answered(server, 1)
        assert server.metrics[PRODUCE].error_codes == {}


async def test_two_listeners_may_share_their_counters() -> None:
    metrics = RequestMetrics(Stopwatch())
    async with (
        serving(metrics=metrics) as (_, port),
        serving(metrics=metrics) as (_, other),
        raw_peer(port) as peer,
        raw_peer(other) as another,
    ):
        peer.send(produce_frame(1))
        another.send(produce_frame(1))
        await until(lambda: metrics[PRODUCE].total.count == 2)


async def test_connections_and_bytes_are_counted() -> None:
    async with serving() as (server, port):
        async with raw_peer(port) as peer:
            frame = produce_frame(1)
            peer.send(frame)
            answer = await peer.receive()
            assert answer is not None
            assert (server.connections_accepted, server.connections_closed) == (1, 0)
            assert server.bytes_in == len(frame)
            assert server.bytes_out > 4
        await until(lambda: server.connections_closed == 1)
        assert server.connections_accepted == 1


async def test_errors_of_peers_are_counted_even_if_suppressed_in_the_log() -> None:
    async with serving() as (server, port):
        for _ in range(3):
            async with raw_peer(port) as peer:
                peer.send(b"GET / HTTP/1.1\r\n\r\n")
                assert await peer.is_closed()
        async with raw_peer(port) as peer:
            peer.send(request_frame(PRODUCE, ["no", "such", "request"]))
            await peer.receive()
            peer.send(request_frame(API_VERSIONS, ["a client", "1"]))
            await peer.receive()
        assert (server.bad_peers.closed_count, server.bad_peers.refused_count) == (3, 1)
