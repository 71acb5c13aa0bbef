"""A client at a listener of the other protocol: the error or the broker's log names the right address."""

from __future__ import annotations

import asyncio
from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.broker.config import BrokerConfig
from strandline.broker.process.kafka_door import set_other_addresses
from strandline.cli.doctor_checks import judge
from strandline.cli.doctor_facts import Facts
from strandline.cli.doctor_ports import try_port
from strandline.client import Admin
from strandline.client.cluster.port_probe import KAFKA, KAFKA_QUESTION
from strandline.client.errors import NoBrokersAvailable
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, PeerError
from strandline.protocol.frames import decode_request, encode_request, speaks_kafka
from strandline.protocol.messages.admin import ApiVersionsRequest, MetadataRequest
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity
from strandline.testing import Cluster
from strandline.testing.kit.lines import Line


def address(servers: str) -> tuple[str, int]:
    host, _, port = servers.partition(":")
    return host, int(port)


def said(cluster: Cluster) -> list[dict[str, Any]]:
    """The log lines of the nodes about peers whose connections were closed."""
    lines = (line for line in cluster.nodes.lines(1000) if isinstance(line, Line))
    return [dict(line.fields) for line in lines if line.event == "peer.closed"]


async def test_our_client_gets_the_address_of_strandlines_listener() -> None:
    async with Cluster(brokers=1, kafka=True) as cluster:
        text = (
            f"{cluster.kafka_bootstrap}: this port speaks Kafka's protocol; Strandline's is spoken at {cluster.bootstrap_servers}"
        )
        with pytest.raises(NoBrokersAvailable, match=text):
            async with Admin(bootstrap_servers=cluster.kafka_bootstrap, connect_timeout_ms=2000):
                pass
        (line,) = said(cluster)[:1]
    assert "it sent Strandline's protocol to listener KAFKA" in line["reason"]


async def ask_ours(servers: str, security: ClientSecurity) -> None:
    host, port = address(servers)
    connection = await Connection.connect(host, port, client_id="c", security=security)
    await connection.request(apis.METADATA, MetadataRequest(None))


@pytest.mark.parametrize("secure", [False, True])
async def test_any_first_request_of_ours_is_answered(secure: bool) -> None:
    """With security, the first request is one of the login."""
    async with Cluster(brokers=1, kafka=True, secure=secure) as cluster:
        security = cluster.security_of("admin") if secure else NO_SECURITY
        with pytest.raises(BrokerError, match="Strandline's is spoken at"):
            await ask_ours(cluster.kafka_bootstrap, security)


async def test_doctor_says_which_port_to_use() -> None:
    async with Cluster(brokers=1, kafka=True) as cluster:
        found = await try_port(*address(cluster.kafka_bootstrap))
        ours = cluster.bootstrap_servers
    assert (found.is_open, found.speaks) == (True, KAFKA)
    assert found.error == f"speaks Kafka's protocol; Strandline's is spoken at {ours}"
    (finding,) = [finding for finding in judge(Facts("1", [found])) if finding.check == "bootstrap"]
    assert "give the other address" in finding.advice


async def ask(servers: str, question: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address(servers))
    try:
        writer.write(question)
        return await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.close()


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("kafka", [False, True])
async def test_a_kafka_client_at_our_listener_is_logged_with_the_right_address(secure: bool, kafka: bool) -> None:
    """A Kafka client does not show the broker's text, so the broker logs the right address for its operator."""
    async with Cluster(brokers=1, kafka=kafka, secure=secure) as cluster:
        assert await ask(cluster.bootstrap_servers, KAFKA_QUESTION) == b""
        (line,) = said(cluster)
        right = cluster.kafka_bootstrap if kafka else "no listener of this node is for Kafka's clients"
    assert "it speaks Kafka's protocol, but listener" in line["reason"]
    assert right in line["reason"]


async def test_a_controller_says_that_it_has_no_such_listener() -> None:
    async with Cluster(brokers=1, kafka=True) as cluster:
        port = cluster.nodes.nodes[101].port.port  # type: ignore[attr-defined]
        assert await ask(f"127.0.0.1:{port}", KAFKA_QUESTION) == b""
        (line,) = said(cluster)
    assert "no listener of this node is for Kafka's clients" in line["reason"]


@pytest.mark.parametrize("key", [18, 3, 17])
def test_the_first_requests_of_kafkas_clients_are_recognised(key: int) -> None:
    frame = pack(">hhihs", key, 3, 1, 1, b"c") + bytes(20)
    with pytest.raises(PeerError):
        decode_request(frame)
    assert speaks_kafka(frame)


def test_no_request_of_ours_looks_like_kafkas() -> None:
    for correlation_id in (1, 300, 2**31 - 1):
        (frame,) = encode_request(apis.API_VERSIONS, 0, correlation_id, "c", ApiVersionsRequest())
        assert not speaks_kafka(bytes(frame)[4:])
    assert not speaks_kafka(b"HTTP/1.1 200 OK")


def test_clients_are_sent_to_the_listener_of_clients_and_not_to_that_of_brokers() -> None:
    listeners = "INTERNAL://a:1,CLIENTS://b:2,KAFKA://[::1]:3"
    config = BrokerConfig.from_mapping(
        {"node.id": 1, "log.dirs": "/d", "controller.quorum.voters": "101@c:1", "listeners": listeners}
    )
    servers: list[Any] = [SimpleNamespace(listener_name=listener.name) for listener in config.listeners]
    set_other_addresses(servers, config.listeners, config)
    internal, clients, kafka = servers
    assert internal.kafka_address == clients.kafka_address == "[::1]:3"
    assert kafka.strandline_address == "b:2"
