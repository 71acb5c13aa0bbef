"""Connections of Kafka's clients: the order of answers, which requests overlap or wait, and the ends of connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka_world import (
    ANSWER,
    BEAT_FIELDS,
    HEARTBEAT,
    LIST_GROUPS,
    PRODUCE,
    TEST_APIS,
    Body,
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
from wire import request_frame

from strandline.broker.kafka import codec
from strandline.broker.kafka.call import KafkaCall
from strandline.broker.kafka.inner_request import ask
from strandline.broker.quotas.client_quotas import BrokerQuotas
from strandline.broker.quotas.metered import Meter
from strandline.controller.metadata.security.budgets import Window
from strandline.controller.metadata.security.quota_lookup import REQUEST_PERCENTAGE
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.rpc.request_memory import RequestMemory
from strandline.protocol.rpc.server import Limits

MIB = 1 << 20


def at_server(server):
    (connection,) = server.connections.values()
    return connection


# -- the order of answers ---------------------------------------------------------------------------------------------


def test_produce_requests_overlap_and_are_answered_in_their_order(on_loop):
    """All five requests in flight of a producer are handled at the same time, in whatever order the followers catch up."""

    async def scenario():
        parking = Parking()
        async with serving_kafka({apis.PRODUCE: parking}) as (_, port), kafka(port) as wire:
            wire.send_bytes(b"".join(produce_frame(n) for n in range(5)))
            await until(lambda: len(parking.parked) == 5)
            for index in (4, 2, 2, 1):
                parking.answer(index)
            await asyncio.sleep(0.02)
            parking.answer()
            assert await numbers(wire, 5) == [0, 1, 2, 3, 4]

    on_loop(scenario)


def test_other_requests_wait_for_those_before_them(on_loop):
    """A request is read after the answer to the one before, as in Kafka, so it does not depend on an earlier one that may still
    fail."""

    async def scenario():
        parking = Parking()
        async with serving_kafka({apis.PRODUCE: parking, apis.HEARTBEAT: parking}) as (_, port), kafka(port) as wire:
            wire.send_bytes(produce_frame(1) + produce_frame(2) + beat_frame(3) + beat_frame(4) + produce_frame(5))
            for served in ([PRODUCE, PRODUCE], [HEARTBEAT], [HEARTBEAT], [PRODUCE]):
                await until(lambda served=served: len(parking.parked) == len(served))
                await asyncio.sleep(0.01)
                expected = [apis.PRODUCE if key == PRODUCE else apis.HEARTBEAT for key in served]
                assert [request.api_key for request in parking.parked] == expected
                while parking.parked:
                    parking.answer()
            assert await numbers(wire, 5) == [1, 2, 3, 4, 5]

    on_loop(scenario)


@pytest.mark.parametrize("frame_of", [beat_frame, produce_frame])
def test_a_thousand_requests_at_once_are_answered_in_their_order(on_loop, frame_of):
    """Each answer is given later, in an iteration of its own. The number of requests in flight keeps to the limit."""

    async def scenario():
        most = 0

        def later(request):
            nonlocal most
            most = max(most, request.connection.in_flight)
            asyncio.get_running_loop().call_soon(request.reply, ANSWER)

        limits = Limits(max_in_flight_per_connection=40)
        handlers = {apis.PRODUCE: later, apis.HEARTBEAT: later}
        async with serving_kafka(handlers, limits=limits) as (_, port), kafka(port) as wire:
            wire.send_bytes(b"".join(frame_of(n) for n in range(1000)))
            assert await numbers(wire, 1000) == list(range(1000))
        assert most == (1 if frame_of is beat_frame else 40)

    on_loop(scenario)


def test_a_request_without_an_answer_does_not_hold_up_the_next(on_loop):
    """A Produce with acks=0."""

    async def scenario():
        def on_produce(request):
            request.no_reply() if request.body.acks == 0 else request.reply(ANSWER)

        handlers = {apis.PRODUCE: on_produce, apis.HEARTBEAT: answer_at_once}
        async with serving_kafka(handlers) as (server, port), kafka(port) as wire:
            wire.send_bytes(b"".join(produce_frame(n, acks=0 if n % 2 else -1) for n in range(10)) + beat_frame(10))
            assert await numbers(wire, 6) == [0, 2, 4, 6, 8, 10]
            assert at_server(server).in_flight == 0

    on_loop(scenario)


def test_a_handler_may_be_a_coroutine(on_loop):
    async def scenario():
        async def on_beat(request):
            await asyncio.sleep(0)
            request.reply(ANSWER)

        async def refuses(request):
            await asyncio.sleep(0)
            raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "no")

        handlers = {apis.HEARTBEAT: on_beat, apis.LIST_GROUPS: refuses}
        async with serving_kafka(handlers) as (_, port), kafka(port) as wire:
            beats = [wire.send(HEARTBEAT, 4, BEAT_FIELDS) for _ in range(3)]
            assert await numbers(wire, 3) == beats
            assert (await wire.call(LIST_GROUPS, 3, {"states_filter": []})).error_code == 30

    on_loop(scenario)


# -- frames -----------------------------------------------------------------------------------------------------------


def test_a_frame_may_be_split_at_every_byte(on_loop):
    async def scenario():
        raw = beat_frame(1) + produce_frame(2, size=10)
        handlers = {apis.PRODUCE: answer_at_once, apis.HEARTBEAT: answer_at_once}
        async with serving_kafka(handlers) as (server, port), kafka(port) as wire:
            for cut in range(1, len(raw)):
                before = server.bytes_in
                wire.send_bytes(raw[:cut])
                await until(lambda before=before, cut=cut: server.bytes_in == before + cut)
                wire.send_bytes(raw[cut:])
                assert await numbers(wire, 2) == [1, 2]

    on_loop(scenario)


def test_a_frame_may_arrive_byte_by_byte(on_loop):
    async def scenario():
        async with serving_kafka({apis.HEARTBEAT: answer_at_once}) as (server, port), kafka(port) as wire:
            for n, byte in enumerate(beat_frame(7), 1):
                wire.send_bytes(bytes((byte,)))
                await until(lambda n=n: server.bytes_in == n)
            assert await numbers(wire, 1) == [7]

    on_loop(scenario)


@pytest.mark.parametrize("client_id", [None, "", "naïve ☕\n\x1b[2J", "x" * 0x7FFF], ids=["null", "empty", "odd", "huge"])
@pytest.mark.parametrize("version", [3, 4], ids=["head v1", "head v2"])
def test_client_ids_of_every_kind_are_read(on_loop, client_id, version):
    """The client id is a string with a length of two bytes in both kinds of heads. Only the beginning of a huge one is kept."""

    async def scenario():
        seen: list[Any] = []

        def on_beat(request):
            seen.append(request.client_id)
            request.reply(ANSWER)

        async with serving_kafka({apis.HEARTBEAT: on_beat}) as (server, port), kafka(port) as wire:
            wire.send_bytes(beat_frame(1, version, client_id))
            assert await numbers(wire, 1) == [1]
            kept = client_id and client_id[:1024]
            assert seen == [kept]
            assert at_server(server).client_id == kept

    on_loop(scenario)


def test_tagged_fields_of_a_head_are_skipped(on_loop):
    """A client that is newer than the broker may send some."""

    async def scenario():
        body = request_frame(HEARTBEAT, 4, 1, "c", BEAT_FIELDS)[12:]
        head = bytes((0, 12, 0, 4, 0, 0, 0, 9, 0, 1)) + b"c"
        tags = bytes((3, 0, 2)) + b"ab" + bytes((7, 0)) + bytes((0x80, 0x01, 1, 0xFF))
        async with serving_kafka({apis.HEARTBEAT: answer_at_once}) as (_, port), kafka(port) as wire:
            wire.send_frame(head + tags + body)
            assert await numbers(wire, 1) == [9]

    on_loop(scenario)


def test_head_of_the_response_has_tagged_fields_in_flexible_versions(on_loop):
    """The head of ApiVersions never has any, because the client does not know yet which versions the broker speaks."""

    async def scenario():
        async with serving_kafka({apis.HEARTBEAT: answer_at_once}) as (_, port), kafka(port) as wire:
            lengths = []
            for version in (3, 4):
                wire.send_bytes(beat_frame(version, version))
                lengths.append(len(await wire.receive_frame()))
            assert lengths == [4 + 6, 5 + 6 + 1]
            assert (await wire.call(18, 3, {"client_software_name": "x", "client_software_version": "1"})).error_code == 0

    on_loop(scenario)


# -- ApiVersions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [5, 99, 0x7FFF, -1])
def test_api_versions_of_an_unknown_version_is_answered_in_version_0(on_loop, version):
    """The answer names only the versions of ApiVersions, so that the client can ask again (KIP-511). The body is not read."""

    async def scenario():
        async with serving_kafka({apis.HEARTBEAT: answer_at_once}) as (_, port), kafka(port) as wire:
            wire.send_frame(b"\0\x12" + version.to_bytes(2, "big", signed=True) + b"\0\0\0\x07\0\x01c" + b"\xff" * 9)
            frame = await wire.receive_frame()
            assert frame == b"\0\0\0\x07" + b"\0\x23" + b"\0\0\0\x01" + b"\0\x12\0\0\0\x04"
            assert (await wire.call(18, 0)).error_code == 0

    on_loop(scenario)


def test_api_versions_lists_what_has_a_handler(on_loop):
    async def scenario():
        async with (
            serving_kafka({apis.HEARTBEAT: answer_at_once, apis.PRODUCE: answer_at_once}) as (_, port),
            kafka(port) as wire,
        ):
            for version in range(5):
                fields = {"client_software_name": "x", "client_software_version": "1"} if version >= 3 else {}
                answer = await wire.call(18, version, fields)
                rows = [(row.api_key, row.min_version, row.max_version) for row in answer.api_keys]
                assert rows == [(0, 3, 12), (12, 0, 4), (18, 0, 4)]

    on_loop(scenario)


SOFTWARE = {
    "a": 0,
    "librdkafka": 0,
    "apache-kafka-java": 0,
    "4.3.1": 0,
    "1-": 42,
    "": 42,
    "a b": 42,
    "é": 42,
    "-a": 42,
    "a\n": 42,
}


@pytest.mark.parametrize(("text", "code"), SOFTWARE.items(), ids=[repr(text) for text in SOFTWARE])
def test_software_names_have_certain_characters(on_loop, text, code):
    async def scenario():
        async with serving_kafka({}) as (_, port), kafka(port) as wire:
            for names in ((text, "1"), ("x", text)):
                fields = dict(zip(("client_software_name", "client_software_version"), names, strict=True))
                for version in (3, 4):
                    assert (await wire.call(18, version, fields)).error_code == code

    on_loop(scenario)


UNSERVED = {
    "an unknown API": b"\x03\xe7\0\0\0\0\0\1\0\0",
    "a negative API": b"\xff\xff\0\0\0\0\0\1\0\0",
    "an API without a handler": b"\0\x10\0\0\0\0\0\1\0\0",
    "a version that is not served": b"\0\x0c\0\x05\0\0\0\1\0\0",
    "a negative version": b"\0\x0c\xff\xff\0\0\0\1\0\0",
    "an old Produce": b"\0\0\0\x02\0\0\0\1\0\0",
}


@pytest.mark.parametrize("frame", UNSERVED.values(), ids=UNSERVED)
def test_what_is_not_served_closes_the_connection(on_loop, frame):
    """As in Kafka: the client would not understand any answer. Requests before it are answered first."""

    async def scenario():
        handlers = {apis.HEARTBEAT: answer_at_once, apis.PRODUCE: answer_at_once}
        async with serving_kafka(handlers) as (_, port), kafka(port) as wire:
            with capture_logs() as logs:
                wire.send_bytes(beat_frame(1) + framed(frame) + beat_frame(2))
                assert await numbers(wire, 1) == [1]
                assert await wire.is_closed()
            assert [line["event"] for line in logs] == ["peer.closed"]
            assert "serve" in logs[0]["reason"]

    on_loop(scenario)


# -- flow control -----------------------------------------------------------------------------------------------------


def test_a_mute_holds_up_the_request_that_waits_already(on_loop):
    """KIP-219: the answer to the first request mutes the connection; the second one has arrived, and waits for the answer."""

    async def scenario():
        parking, served_at = Parking(), []
        loop = asyncio.get_running_loop()

        def on_list(request):
            served_at.append(loop.time())
            request.reply(ANSWER)

        async with (
            serving_kafka({apis.HEARTBEAT: parking, apis.LIST_GROUPS: on_list}) as (server, port),
            kafka(port) as wire,
        ):
            wire.send_bytes(beat_frame(1) + framed(request_frame(LIST_GROUPS, 0, 2, "c", {})))
            await until(lambda: parking.parked and at_server(server)._next)
            answered_at = loop.time()
            parking.answer()
            at_server(server).mute(0.2)
            assert await numbers(wire, 2) == [1, 2]
            assert served_at[0] - answered_at >= 0.19

    on_loop(scenario)


def test_a_frame_that_waits_counts_among_the_bytes_of_requests(on_loop):
    """Otherwise each connection could hold a large frame after a request that takes long, beside the limit."""

    async def scenario():
        memory, parking = RequestMemory(64 * MIB), Parking()
        handlers = {apis.HEARTBEAT: parking, apis.PRODUCE: answer_at_once}
        async with serving_kafka(handlers, memory=memory) as (server, port), kafka(port) as wire:
            wire.send_bytes(beat_frame(1) + produce_frame(2, size=4 * MIB))
            await until(lambda: server.connections and at_server(server)._next)
            assert 4 * MIB < memory.used < 4.1 * MIB
            at_server(server).mute(0.1)
            parking.answer()
            assert await numbers(wire, 1) == [1]
            assert memory.used > 4 * MIB
            assert await numbers(wire, 1) == [2]
            assert memory.used == 0

    on_loop(scenario)


def test_memory_is_free_again_when_a_connection_with_a_waiting_frame_is_lost(on_loop):
    async def scenario():
        memory, parking = RequestMemory(64 * MIB), Parking()
        handlers = {apis.HEARTBEAT: parking, apis.PRODUCE: answer_at_once}
        async with serving_kafka(handlers, memory=memory) as (server, port):
            async with kafka(port) as wire:
                wire.send_bytes(beat_frame(1) + produce_frame(2, size=MIB))
                await until(lambda: server.connections and at_server(server)._next)
            connection = at_server(server)
            connection.abort()
            await until(lambda: not server.connections)
            assert memory.used == 0
            parking.answer()
            assert connection._calls == {}
            assert connection._next is None

    on_loop(scenario)


def test_memory_that_is_full_holds_up_produce_alone(on_loop):
    async def scenario():
        memory, parking = RequestMemory(100_000), Parking()
        handlers = {apis.HEARTBEAT: answer_at_once, apis.PRODUCE: parking}
        async with (
            serving_kafka(handlers, memory=memory) as (_, port),
            kafka(port) as full,
            kafka(port) as waits,
            kafka(port) as other,
        ):
            full.send_bytes(produce_frame(1, size=200_000))
            await until(lambda: memory.is_full)
            waits.send_bytes(produce_frame(2, size=10))
            await until(lambda: memory.waiting)
            other.send_bytes(beat_frame(3))
            assert await numbers(other, 1) == [3]
            parking.answer()
            assert await numbers(full, 1) == [1]
            await until(lambda: parking.parked)
            parking.answer()
            assert await numbers(waits, 1) == [2]
            assert memory.used == 0

    on_loop(scenario)


def test_a_client_that_reads_nothing_is_not_served_on(on_loop):
    """The bytes that wait for it are bounded."""

    async def scenario():
        served = 0

        def on_list(request):
            nonlocal served
            served += 1
            request.reply(ANSWER)

        api = TEST_APIS[LIST_GROUPS]
        groups = [{"group_id": "g" * 1000, "protocol_type": ""}] * 100
        large = api._replace(to_kafka=lambda call, body: {"error_code": 0, "throttle_time_ms": 0, "groups": groups})
        limits = Limits(write_buffer_bytes_high=200_000)
        async with (
            serving_kafka({apis.LIST_GROUPS: on_list}, limits=limits, changes={LIST_GROUPS: large}) as (server, port),
            kafka(port) as slow,
        ):
            frame = framed(request_frame(LIST_GROUPS, 0, 1, "c", {}))
            slow.send_bytes(frame * 2000)
            await until(lambda: server.connections and at_server(server)._is_peer_slow)
            count = 0
            while count < served:  # until the sockets' buffers are full
                count = served
                await asyncio.sleep(0.05)
            assert served < 1000
            assert at_server(server)._unsent_bytes() < 1_000_000
            assert await numbers(slow, 2000) == [1] * 2000

    on_loop(scenario)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_requests_that_are_parked_when_the_client_leaves_are_dropped(on_loop):
    async def scenario():
        parking = Parking()
        async with serving_kafka({apis.PRODUCE: parking}) as (server, port):
            async with kafka(port) as wire:
                wire.send_bytes(produce_frame(1) + produce_frame(2))
                await until(lambda: len(parking.parked) == 2)
            await until(lambda: not server.connections)
            with capture_logs() as logs:
                parking.answer(1)
                parking.answer()
            assert logs == []

    on_loop(scenario)


def test_answers_that_are_ready_leave_when_the_client_has_finished_sending(on_loop):
    """A client that shuts down its side after its last request still gets its answers."""

    async def scenario():
        async with serving_kafka({apis.HEARTBEAT: answer_at_once}) as (_, port), kafka(port) as wire:
            wire.send_bytes(beat_frame(1) + beat_frame(2))
            wire._writer.write_eof()
            assert await numbers(wire, 2) == [1, 2]
            assert await wire.is_closed()

    on_loop(scenario)


def test_a_stopping_server_answers_what_it_has_begun(on_loop):
    """A request that arrives later gets no answer: the client sends it to another broker."""

    async def scenario():
        parking = Parking()
        async with serving_kafka({apis.PRODUCE: parking, apis.HEARTBEAT: parking}) as (server, port), kafka(port) as wire:
            wire.send_bytes(produce_frame(1) + produce_frame(2) + beat_frame(3))
            await until(lambda: len(parking.parked) == 2 and at_server(server)._next)
            stopping = asyncio.ensure_future(server.stop(drain_ms=5000))
            await asyncio.sleep(0.02)
            parking.answer(1)
            await asyncio.sleep(0.02)
            assert not stopping.done()
            parking.answer()
            assert await numbers(wire, 2) == [1, 2]
            assert await wire.is_closed()
            await stopping
            assert parking.parked == []

    on_loop(scenario)


def test_a_handler_without_an_answer_to_report_an_error_with_closes(on_loop):
    """As in Kafka, a Produce with acks=0 that fails closes the connection."""

    async def scenario():
        def on_produce(request):
            request.no_reply()
            request.connection.close_because("a produce with acks=0 failed", request.client_id)

        handlers = {apis.PRODUCE: on_produce, apis.HEARTBEAT: answer_at_once}
        async with serving_kafka(handlers) as (_, port), kafka(port) as wire:
            wire.send_bytes(beat_frame(1) + produce_frame(2, acks=0) + beat_frame(3))
            assert await numbers(wire, 1) == [1]
            assert await wire.is_closed()

    on_loop(scenario)


# -- requests inside requests -----------------------------------------------------------------------------------------


def asking(parking: Parking, outcomes: list[str]) -> dict[int, Any]:
    """ListGroups, whose handler first sends a request to the handler of Heartbeat."""

    async def ask_first(request: Any, call: KafkaCall, handler: Any) -> None:
        try:
            await ask(request, apis.HEARTBEAT, Body(0))
            outcomes.append("answered")
            request.reply(ANSWER)
        except BaseException as e:
            outcomes.append(type(e).__name__)
            raise

    return {LIST_GROUPS: TEST_APIS[LIST_GROUPS]._replace(serve=ask_first)}


def test_what_waits_for_an_inner_request_ends_with_the_connection(on_loop):
    """Handlers do not answer requests of lost connections, so a task that waits for such an answer would never end."""

    async def scenario():
        parking, outcomes = Parking(), []
        handlers = {apis.HEARTBEAT: parking, apis.LIST_GROUPS: answer_at_once}
        async with serving_kafka(handlers, changes=asking(parking, outcomes)) as (server, port):
            async with kafka(port) as wire:
                wire.send(LIST_GROUPS, 0, {})
                await until(lambda: parking.parked)
                parking.answer()
                await wire.receive()
                wire.send(LIST_GROUPS, 0, {})
                await until(lambda: parking.parked)
            await until(lambda: not server._tasks)
            assert outcomes == ["answered", "CancelledError"]
            assert not server.connections

    on_loop(scenario)


def test_an_inner_request_is_charged_to_the_quota_of_its_client(on_loop):
    """The client does not get the inner answer, so that has no throttle time and mutes no connection."""

    async def scenario():
        parking, outcomes, clock = Parking(), [], [0.0]

        def slow(request):
            clock[0] += 5.0
            request.reply(ANSWER)

        now = asyncio.get_running_loop().time
        quotas = BrokerQuotas(Window())
        quotas.use({(("user", "ANONYMOUS"),): {REQUEST_PERCENTAGE: 1.0}}, now())
        meter = Meter(quotas, now, lambda: clock[0])
        handlers = {key: meter.wrap(key, handler) for key, handler in ((apis.HEARTBEAT, slow), (apis.LIST_GROUPS, parking))}
        async with serving_kafka(handlers, changes=asking(parking, outcomes)) as (_, port), kafka(port) as wire:
            assert (await wire.call(LIST_GROUPS, 0, {})).error_code == 0
            assert outcomes == ["answered"]
            budget = quotas.request.budget_of(("ANONYMOUS", "wire"), now())
            assert budget.bucket.wait_s(now()) > 0

    on_loop(scenario)


# -- bugs of this door ------------------------------------------------------------------------------------------------


def test_a_bug_in_a_translation_is_logged_once_and_ends_the_request_alone(on_loop):
    """If the request cannot be translated, the answer is UNKNOWN_SERVER_ERROR. If the answer cannot, the connection is closed."""

    async def scenario():
        def broken(call, *_):
            raise ZeroDivisionError

        beat, listing = TEST_APIS[HEARTBEAT], TEST_APIS[LIST_GROUPS]
        changes = {HEARTBEAT: beat._replace(to_ours=broken), LIST_GROUPS: listing._replace(to_kafka=broken)}
        handlers = {apis.HEARTBEAT: answer_at_once, apis.LIST_GROUPS: answer_at_once}
        async with serving_kafka(handlers, changes=changes) as (_, port), kafka(port) as good:
            with capture_logs() as logs:
                for _ in range(2):
                    async with kafka(port) as wire:
                        assert (await wire.call(HEARTBEAT, 4, BEAT_FIELDS)).error_code == -1
                        wire.send(LIST_GROUPS, 0, {})
                        assert await wire.is_closed()
            assert [(line["event"], line["api"]) for line in logs] == [
                ("request.failed", "Heartbeat"),
                ("request.failed", "ListGroups"),
            ]
            assert (await good.call(18, 0)).error_code == 0

    on_loop(scenario)


def test_an_own_error_code_never_leaves(on_loop):
    async def scenario():
        def refuses(request):
            raise BrokerError(ErrorCode.FENCED_BROKER, "not yet")

        async with serving_kafka({apis.HEARTBEAT: refuses}) as (_, port), kafka(port) as wire:
            assert (await wire.call(HEARTBEAT, 4, BEAT_FIELDS)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    on_loop(scenario)


def test_an_answer_that_is_too_large_is_not_written(on_loop, monkeypatch):
    """A small request can name the same large group thousands of times: its answer used to take a gigabyte before it was
    refused."""
    monkeypatch.setattr(codec, "WRITTEN_BYTES_MAX", 100_000)
    group = {"group_id": "g" * 1000, "protocol_type": "consumer", "group_state": "Stable", "group_type": "classic"}
    listed = {"error_code": 0, "throttle_time_ms": 0, "groups": [group] * 1_000}
    changes = {LIST_GROUPS: TEST_APIS[LIST_GROUPS]._replace(to_kafka=lambda call, body: listed)}

    async def scenario():
        async with serving_kafka({apis.LIST_GROUPS: answer_at_once}, changes=changes) as (_, port), kafka(port) as wire:
            with capture_logs() as logs, pytest.raises(ConnectionError):
                await wire.call(LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})
        assert [log["event"] for log in logs] == ["peer.closed"]
        assert "ListGroups request would have more than 100000 bytes" in logs[0]["reason"]

    on_loop(scenario)
