"""What is done to several at once is done in an order that a seed can repeat.

Python sorts a set by the hashes of its members. Those of strings differ from process to process, those of objects are
addresses. Whoever walks through such a set does the same things in another order at the next run, and a simulation that
was started again from the same seed tells another story. So: `dict.fromkeys` is our ordered set, `sorted` the other way
out; and membership, size and set algebra may be asked of any set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from strandline.client.cluster import Cluster
from strandline.client.links import Link
from strandline.client.options import ConsumerOptions, parse_options
from strandline.client.positions import Positions
from strandline.client.subscription import Subscription
from strandline.protocol import apis
from strandline.protocol.messages.admin import ApiVersionsRequest, ApiVersionsResponse
from strandline.protocol.rpc import dial as dialling
from strandline.protocol.rpc.server import Server

# -- the places where many tasks end at once ----------------------------------------------------------------------------


def sleeper(name: int, told: list[int]) -> Callable[[], Any]:
    async def sleep() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append(name)

    return sleep


async def test_of_addresses_that_answer_in_one_turn_the_first_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "NEXT_ADDRESS_S", 0.0)
    answer = asyncio.get_running_loop().create_future()

    async def attempt(make: object, address: str, port: int) -> Any:
        await answer
        return address

    async def resolve(host: str) -> list[str]:
        return [f"10.0.0.{n}" for n in range(20)]

    monkeypatch.setattr(dialling, "_attempt", attempt)
    monkeypatch.setattr(dialling, "resolve", resolve)
    dropped: list[str] = []
    dialled = asyncio.ensure_future(dialling.dial(lambda: None, "name", 1, drop=dropped.append))  # type: ignore[arg-type, return-value]
    for _ in range(60):
        await asyncio.sleep(0)
    answer.set_result(None)
    assert await dialled == "10.0.0.0"
    await asyncio.sleep(0)
    assert dropped == [f"10.0.0.{n}" for n in range(1, 20)]


async def test_a_server_that_stops_ends_its_handlers_in_the_order_of_their_requests() -> None:
    server = Server({}, role="broker", node_id=1, cluster_id="c", incarnation_id=bytes(16))
    await server.start("127.0.0.1", 0)
    told: list[int] = []
    for n in range(20):
        server._run(None, sleeper(n, told)())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await server.stop()
    await asyncio.sleep(0)
    assert told == list(range(20))


def options() -> ConsumerOptions:
    return parse_options(ConsumerOptions, {"bootstrap_servers": ",".join(f"10.0.0.{n}:9092" for n in range(1, 21))})


async def test_a_consumer_that_stops_ends_its_questions_in_the_order_in_which_they_were_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[int] = []

    async def ask(self: Positions, leader_id: int, states: object) -> None:
        await sleeper(leader_id, told)()

    monkeypatch.setattr(Positions, "_ask", ask)
    positions = Positions(options(), Cluster(options(), Random(1)), Subscription(None), lambda state: None, lambda: None)
    positions._questions = {leader_id: {} for leader_id in range(20)}
    positions._ask_all()
    await asyncio.sleep(0)
    await positions.close()
    assert told == list(range(20))


async def test_of_brokers_that_answer_in_one_turn_the_one_asked_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.client.cluster.HEDGE_AFTER_MS", 0)
    answer = asyncio.get_running_loop().create_future()
    asked: list[Link] = []

    async def request(self: Cluster, link: Link, api_key: int, body: object, timeout_ms: float) -> ApiVersionsResponse:
        asked.append(link)
        await answer
        return ApiVersionsResponse(0, [], "c", len(asked), "broker", bytes(16))

    monkeypatch.setattr(Cluster, "_request", request)
    cluster = Cluster(options(), Random(1))
    first = asyncio.ensure_future(cluster._first_answer(apis.API_VERSIONS, ApiVersionsRequest(), 10_000))
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(asked) == 20
    answer.set_result(None)
    link, _ = await first
    assert link is asked[0]
