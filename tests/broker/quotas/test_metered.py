"""Measured requests over real sockets: the answer comes at once with its throttle time, then the connection is muted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.broker.quotas.client_quotas import BrokerQuotas
from strandline.broker.quotas.installation import QuotaInstallation
from strandline.broker.quotas.metered import client_of
from strandline.controller.metadata.image import MetadataDelta, MetadataImage
from strandline.controller.metadata.security.budgets import Window
from strandline.protocol.apis import DESCRIBE_CLUSTER, LIST_OFFSETS, METADATA, PRODUCE
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import MetadataRequest, MetadataResponse
from strandline.protocol.messages.data import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from strandline.protocol.rpc.address_limits import AddressLimits
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.request_metrics import RequestMetrics
from strandline.protocol.rpc.server import Server
from strandline.protocol.security.principal import ANONYMOUS

TOPIC_ID = bytes(range(16))


class World:
    """A server whose handlers take as long as the test says, with quotas for its clients."""

    def __init__(self) -> None:
        self.clock = 1000.0
        """The stopwatch, in seconds."""
        self.cost_s = 0.0
        """The time that a handler takes, in seconds."""
        self.quotas = BrokerQuotas(Window())
        self.fails = False
        handlers = {PRODUCE: self.produce, METADATA: self.metadata, LIST_OFFSETS: self.list_offsets}
        metrics = RequestMetrics(lambda: self.clock)
        self.server = Server(handlers, role="broker", node_id=1, cluster_id="c", incarnation_id=bytes(16), metrics=metrics)
        self.before = dict(self.server.handlers)
        self.image = MetadataImage.EMPTY

    def produce(self, request: Any) -> None:
        self.work()
        if request.body.acks == 0:
            request.no_reply()
        else:
            request.reply(ProduceResponse([]))

    def metadata(self, request: Any) -> None:
        self.work()
        if self.fails:
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE)
        request.reply(MetadataResponse([], "c", 1, []))

    def list_offsets(self, request: Any) -> None:
        self.work()
        if self.fails:
            raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        request.reply(ListOffsetsResponse([]))

    def work(self) -> None:
        self.clock += self.cost_s

    def set_quotas(self, quotas: dict[Any, dict[str, float]]) -> None:
        from msgspec.structs import replace

        before, self.image = self.image, replace(self.image, client_quotas=quotas)
        delta = MetadataDelta(before, self.image, [], [], [], [], [], [], changed_client_quotas=[next(iter(quotas), ())])
        self.installation.apply_delta(delta)

    async def start(self) -> None:
        port = await self.server.start("127.0.0.1", 0)
        now = asyncio.get_running_loop().time
        self.addresses = AddressLimits()
        self.installation = QuotaInstallation(self.quotas, self.addresses, now, lambda: self.clock)
        self.installation.serve([self.server])
        self.connection = await Connection.connect("127.0.0.1", port, client_id="app")

    async def stop(self) -> None:
        self.connection.close()
        await self.server.stop()

    async def send(self, size: int, acks: int = 1) -> Any:
        body = ProduceRequest(None, acks, 1000, [ProducePartition(TOPIC_ID, 0)], [])
        return await self.connection.request(PRODUCE, body, [[bytes(size)]])

    async def ask(self) -> Any:
        return await self.connection.request(METADATA, MetadataRequest(None))

    @property
    def is_muted(self) -> bool:
        (connection,) = self.server.connections.values()
        return connection._mute_timer is not None


@pytest.fixture
def run() -> Callable[[Callable[[World], Awaitable[None]]], None]:
    def run(scenario: Callable[[World], Awaitable[None]]) -> None:
        async def whole() -> None:
            world = World()
            await world.start()
            try:
                await asyncio.wait_for(scenario(world), 20)
            finally:
                await world.stop()

        asyncio.run(whole())

    return run


USER_QUOTA = (("user", "ANONYMOUS"),)


def test_handlers_are_plain_without_quotas(run: Any) -> None:
    """A disabled feature costs nothing: before the first quota and after the last one, the server calls the very same
    functions."""

    async def scenario(world: World) -> None:
        assert world.server.handlers == world.before
        world.set_quotas({USER_QUOTA: {"producer_byte_rate": 1e9}})
        changed = {key for key, handler in world.server.handlers.items() if handler != world.before[key]}
        assert changed == {PRODUCE}
        world.set_quotas({USER_QUOTA: {"request_percentage": 100.0}})
        assert all(handler != world.before[key] for key, handler in world.server.handlers.items())
        world.set_quotas({USER_QUOTA: {"consumer_byte_rate": 1e9}})
        assert world.server.handlers == world.before
        world.set_quotas({})
        assert world.server.handlers == world.before

    run(scenario)


def test_answer_names_the_throttle_time_and_the_connection_is_muted(run: Any) -> None:
    """KIP-219: the client receives the throttle time at once, and not only after it has waited."""

    async def scenario(world: World) -> None:
        world.set_quotas({USER_QUOTA: {"producer_byte_rate": 10_000.0}})
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        response = await world.send(12_000)
        assert 150 < response.throttle_time_ms < 250
        assert loop.time() - began_at < 0.1
        assert world.is_muted
        assert (await world.send(10)).throttle_time_ms <= 50
        assert loop.time() - began_at > 0.15

    run(scenario)


def test_produce_without_answer_mutes_too(run: Any) -> None:
    """acks=0 is no way around the quota."""

    async def scenario(world: World) -> None:
        world.set_quotas({USER_QUOTA: {"producer_byte_rate": 10_000.0}})
        body = ProduceRequest(None, 0, 1000, [ProducePartition(TOPIC_ID, 0)], [])
        world.connection.send(PRODUCE, body, [[bytes(12_000)]], on_response=None)
        began_at = asyncio.get_running_loop().time()
        await world.ask()
        assert asyncio.get_running_loop().time() - began_at > 0.15

    run(scenario)


def test_client_within_its_quota_notices_nothing(run: Any) -> None:
    async def scenario(world: World) -> None:
        world.set_quotas({USER_QUOTA: {"producer_byte_rate": 1e9}})
        assert (await world.send(1000)).throttle_time_ms == 0
        assert not world.is_muted

    run(scenario)


def test_client_without_a_quota_is_not_measured(run: Any) -> None:
    async def scenario(world: World) -> None:
        world.set_quotas({(("user", "alice"),): {"producer_byte_rate": 1.0, "request_percentage": 1.0}})
        world.cost_s = 10.0
        assert (await world.send(1000)).throttle_time_ms == 0
        assert not world.is_muted

    run(scenario)


def test_time_in_handlers_counts(run: Any) -> None:
    """A quota of 50 % allows half a second of handler time per second. The response to the request that exceeds it has the
    throttle time, at most one window."""

    async def scenario(world: World) -> None:
        world.set_quotas({USER_QUOTA: {"request_percentage": 50.0}})
        world.cost_s = 0.4
        assert (await world.ask()).throttle_time_ms == 0
        response = await world.ask()
        assert 500 < response.throttle_time_ms <= 600
        world.cost_s = 100.0
        assert (await world.ask()).throttle_time_ms == 1000

    run(scenario)


def test_refused_requests_count_too(run: Any) -> None:
    """Requests that fail take time, too."""

    async def scenario(world: World) -> None:
        world.set_quotas({USER_QUOTA: {"request_percentage": 50.0}})
        world.cost_s, world.fails = 0.7, True
        with pytest.raises(BrokerError):
            await world.ask()
        assert world.is_muted

    run(scenario)


def test_requests_of_followers_are_not_counted(run: Any) -> None:
    """Replication must not wait for a client's quota."""

    async def scenario(world: World) -> None:
        world.set_quotas({USER_QUOTA: {"request_percentage": 1.0}})
        world.cost_s = 10.0
        answer: Any = await world.connection.request(LIST_OFFSETS, ListOffsetsRequest(2, 0, []))
        assert answer.throttle_time_ms == 0
        assert not world.is_muted
        answer = await world.connection.request(LIST_OFFSETS, ListOffsetsRequest(-1, 0, []))
        assert answer.throttle_time_ms > 0

    run(scenario)


def test_little_is_remembered_of_a_long_client_id() -> None:
    """A client that sends ever new client ids of 8 MiB would otherwise fill the memory of a broker that has quotas."""
    request: Any = SimpleNamespace(principal=ANONYMOUS, client_id="x" * 100_000)
    assert client_of(request) == ("ANONYMOUS", "x" * 1024)


def test_client_that_claims_to_be_a_follower_is_counted(run: Any) -> None:
    """Otherwise it could flood the broker with requests that fail for lack of CLUSTER_ACTION."""

    async def scenario(world: World) -> None:
        world.set_quotas({USER_QUOTA: {"request_percentage": 1.0}})
        world.cost_s, world.fails = 10.0, True
        with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await world.connection.request(LIST_OFFSETS, ListOffsetsRequest(2, 0, []))
        assert world.is_muted

    run(scenario)


def test_throttle_time_is_counted_by_user_and_client_id(run: Any) -> None:
    """An operator sees which clients are slowed down, and by how much."""

    async def scenario(world: World) -> None:
        world.set_quotas({(("client-id", None),): {"producer_byte_rate": 10_000.0}})
        await world.send(12_000)
        counted = world.quotas.metrics.throttled["producer_byte_rate"]["", "app"]
        assert counted.requests == 1
        assert 0.15 < counted.seconds < 0.25

    run(scenario)


def test_counters_are_bounded() -> None:
    """A client id is free text, so clients could make the metrics page arbitrarily large."""
    from strandline.broker.quotas.metrics import OTHERS, PAYERS_MAX, QuotaMetrics
    from strandline.controller.metadata.security.quota_lookup import Payer

    metrics = QuotaMetrics()
    for number in range(1000):
        metrics.on_throttled("producer_byte_rate", Payer(None, f"app-{number}\n"), 1.0)
    counted = metrics.throttled["producer_byte_rate"]
    assert len(counted) == PAYERS_MAX + 1
    assert counted[OTHERS].requests == 1000 - PAYERS_MAX
    assert all("\n" not in client_id for _, client_id in counted)


def test_rates_of_addresses_follow_the_quotas(run: Any) -> None:
    """`connection_creation_rate` is enforced where connections are accepted."""

    async def scenario(world: World) -> None:
        world.set_quotas({(("ip", None),): {"connection_creation_rate": 1.0}})
        waits = [world.addresses.check("10.0.0.1", 0.0, None)[0] for _ in range(3)]
        assert waits == pytest.approx([0.0, 1.0, 2.0])
        world.set_quotas({USER_QUOTA: {"producer_byte_rate": 1.0}})
        assert world.addresses.check("10.0.0.1", 0.0, None)[0] == 0.0

    run(scenario)


def test_api_without_a_handler_gets_none(run: Any) -> None:
    async def scenario(world: World) -> None:
        world.set_quotas({USER_QUOTA: {"request_percentage": 50.0}})
        assert DESCRIBE_CLUSTER not in world.server.handlers

    run(scenario)
