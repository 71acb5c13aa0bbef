"""Kafka's frames on listeners with TLS and SASL: what may be sent before the authentication, and that TLS changes nothing."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from kafka_world import API_VERSIONS, answer_at_once, beat_frame, framed, kafka, numbers, produce_frame, serving_kafka
from security_world import Authority, sasl, tls
from structlog.testing import capture_logs
from waiting import until
from wire import KafkaWire

from strandline.broker.kafka.connection import KafkaConnection
from strandline.protocol import apis

HANDLERS = {apis.HEARTBEAT: answer_at_once, apis.PRODUCE: answer_at_once}


async def test_before_the_authentication_only_its_requests_are_read():
    """A request of another API closes the connection before its body is read. The body of this one could not be read."""
    async with serving_kafka(HANDLERS, security=sasl()) as (_, port), kafka(port) as wire:
        for version in (0, 3):
            fields = {"client_software_name": "x", "client_software_version": "1"} if version else {}
            assert (await wire.call(API_VERSIONS, version, fields)).error_code == 0
        with capture_logs() as logs:
            wire.send_bytes(framed(b"\0\x0c\0\4\0\0\0\1\0\1c\xff\xff\xff"))
            assert await wire.is_closed()
        assert logs[0]["reason"] == "it sent Heartbeat before it was authenticated"


async def test_before_the_authentication_an_unknown_version_of_api_versions_is_answered():
    async with serving_kafka(HANDLERS, security=sasl()) as (_, port), kafka(port) as wire:
        wire.send_frame(b"\0\x12\0\x63\0\0\0\x07\0\x01c" + b"\xff" * 9)
        assert (await wire.receive_frame())[4:6] == b"\0\x23"
        assert (await wire.call(API_VERSIONS, 0)).error_code == 0


async def test_before_the_authentication_frames_are_small():
    async with serving_kafka(HANDLERS, security=sasl(receive_bytes_max=1000)) as (_, port), kafka(port) as wire:
        with capture_logs() as logs:
            wire.send_bytes(produce_frame(1, size=1000))
            assert await wire.is_closed()
        assert "between 1 and 1000" in logs[0]["reason"]


async def test_a_connection_that_does_not_authenticate_is_closed():
    security = sasl(authentication_ms_max=50)
    async with serving_kafka(HANDLERS, security=security) as (server, port), kafka(port) as wire:
        assert (await wire.call(API_VERSIONS, 0)).error_code == 0
        assert await wire.is_closed()
        await until(lambda: not server.connections)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


class TlsWire(KafkaWire):
    """A client that speaks TLS."""

    context: ssl.SSLContext

    async def __aenter__(self):
        self._reader, self._writer = await asyncio.open_connection(*self._address, ssl=self.context, server_hostname="localhost")
        return self


def test_tls_changes_nothing_for_the_requests_inside(on_loop, authority):
    """Requests are pipelined, split, and large."""
    context = ssl.create_default_context(cafile=authority.cafile)

    async def scenario():
        async with serving_kafka(HANDLERS, security=tls(authority.server())) as (server, port):
            wire = TlsWire("127.0.0.1", port)
            wire.context = context
            async with wire:
                wire.send_bytes(b"".join(beat_frame(n) for n in range(500)))
                assert await numbers(wire, 500) == list(range(500))
                large = produce_frame(1, size=3_000_000) + beat_frame(2)
                for at in range(0, len(large), 70_001):
                    wire.send_bytes(large[at : at + 70_001])
                assert await numbers(wire, 2) == [1, 2]
                (connection,) = server.connections.values()
                assert isinstance(connection, KafkaConnection)
                assert (await wire.call(API_VERSIONS, 0)).error_code == 0
            await until(lambda: not server.connections)

    on_loop(scenario)


def test_a_plain_client_at_a_listener_with_tls_is_closed(on_loop, authority):
    async def scenario():
        async with serving_kafka(HANDLERS, security=tls(authority.server())) as (server, port), kafka(port) as wire:
            wire.send_bytes(beat_frame(1))
            with pytest.raises((ConnectionError, AssertionError)):
                await numbers(wire, 1)
            await until(lambda: not server.connections and not server.tls_doors)

    on_loop(scenario)
