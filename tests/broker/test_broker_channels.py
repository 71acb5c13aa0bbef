"""Requests from broker to broker: one connection for each, renewed when the other broker has registered again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from strandline.broker.broker_channels import BrokerChannels, BrokerTarget
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.transactions import (
    WritableTxnMarkerResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from strandline.protocol.rpc.server import Server, ServerRequest

REQUEST = WriteTxnMarkersRequest([])
TIMEOUT_MS = 5000


class Peer:
    """A real server that answers with the number of requests it has had, unless it is silent."""

    def __init__(self) -> None:
        self.connections: list[object] = []
        self.asked = 0
        self.is_silent = False
        self.server = Server(
            {apis.WRITE_TXN_MARKERS: self.handle}, role="broker", node_id=2, cluster_id="c", incarnation_id=bytes(16)
        )

    async def start(self) -> Peer:
        self.port = await self.server.start("127.0.0.1", 0)
        return self

    def handle(self, request: ServerRequest) -> None:
        self.asked += 1
        if request.connection not in self.connections:
            self.connections.append(request.connection)
        if not self.is_silent:
            request.reply(WriteTxnMarkersResponse([WritableTxnMarkerResult(self.asked, [])]))


class World:
    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.targets = {2: BrokerTarget("127.0.0.1", peer.port, 5)}
        self.channels = BrokerChannels(1, self.targets.get)

    async def ask(self, timeout_ms: int = TIMEOUT_MS) -> int:
        response = await self.channels.request(2, apis.WRITE_TXN_MARKERS, REQUEST, timeout_ms)
        assert isinstance(response, WriteTxnMarkersResponse)
        return response.markers[0].producer_id


@pytest.fixture
async def world() -> AsyncIterator[World]:
    peer = await Peer().start()
    made = World(peer)
    yield made
    made.channels.close()
    await peer.server.stop()


async def test_requests_share_one_connection(world: World) -> None:
    """Requests at the same time share a connection: a coordinator sends the markers of many transactions at once."""
    assert sorted(await asyncio.gather(world.ask(), world.ask(), world.ask())) == [1, 2, 3]
    assert await world.ask() == 4
    assert len(world.peer.connections) == 1
    assert world.channels.connected_to == [2]


async def test_a_broker_that_registered_again_gets_a_new_connection(world: World) -> None:
    """The old connection may lead to a process that is no longer the broker."""
    await world.ask()
    world.targets[2] = world.targets[2]._replace(broker_epoch=6)
    assert await world.ask() == 2
    assert len(world.peer.connections) == 2


async def test_a_lost_connection_is_opened_again(world: World) -> None:
    """Only the requests in flight fail; the next request opens a new connection."""
    world.peer.is_silent = True
    lost = asyncio.ensure_future(world.ask())
    while not world.peer.asked:
        await asyncio.sleep(0)
    port = world.peer.port
    await world.peer.server.stop(0)
    with pytest.raises(BrokerError) as failed:
        await lost
    assert failed.value.code == ErrorCode.NETWORK_EXCEPTION
    assert failed.value.retriable
    again = await Peer().start()
    world.targets[2] = BrokerTarget("127.0.0.1", again.port, 5)
    assert port != again.port
    assert await world.ask() == 1
    await again.server.stop()


async def test_a_broker_that_is_not_known_or_silent_is_a_retriable_error(world: World) -> None:
    """Callers repeat requests that fail with a retriable error, so this module must raise no other kind."""
    with pytest.raises(BrokerError) as failed:
        await world.channels.request(3, apis.WRITE_TXN_MARKERS, REQUEST, TIMEOUT_MS)
    assert failed.value.code == ErrorCode.BROKER_NOT_AVAILABLE
    assert failed.value.retriable
    world.peer.is_silent = True
    with pytest.raises(BrokerError) as failed:
        await world.ask(timeout_ms=20)
    assert failed.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert failed.value.retriable


async def test_closing_fails_the_requests_in_flight(world: World) -> None:
    """A broker that stops must not wait for answers, nor dial again."""
    world.peer.is_silent = True
    waiting, dialling = asyncio.ensure_future(world.ask()), asyncio.ensure_future(world.ask())
    await asyncio.sleep(0)
    world.channels.close()
    for request in (waiting, dialling):
        with pytest.raises(BrokerError) as failed:
            await request
        assert failed.value.code == ErrorCode.NETWORK_EXCEPTION
    with pytest.raises(BrokerError) as failed:
        await world.ask()
    assert failed.value.code == ErrorCode.BROKER_NOT_AVAILABLE
