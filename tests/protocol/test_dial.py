"""Connecting to a host whose resolver hangs, or some of whose addresses do not answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest

from strandline.protocol.errors import BrokerError
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.rpc.dial import is_unknown_host, is_unreachable, resolve
from strandline.protocol.rpc.server import Server


def resolves(monkeypatch: pytest.MonkeyPatch, addresses: Callable[[str], list[str]]) -> None:
    """Replace the system's resolver."""

    def getaddrinfo(host: str, port: object, *args: object, **kwargs: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses(host)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@contextlib.contextmanager
def silent_at(address: str, port: int) -> Iterator[None]:
    """An address that answers no SYN, because the queue of a listener that accepts nothing is full."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((address, port))
        yield


async def serving() -> tuple[Server, int]:
    server = Server({}, role="broker", node_id=1, cluster_id="c", incarnation_id=bytes(16))
    return server, await server.start("127.0.0.1", 0)


@pytest.fixture
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str) -> list[str]:
        return ["127.0.0.9", "127.0.0.1"]

    monkeypatch.setattr("strandline.protocol.rpc.dial.resolve", resolve)


def test_a_silent_address_delays_the_next_one_only_briefly(on_loop, two_addresses) -> None:
    async def scenario() -> None:
        living, port = await serving()
        with silent_at("127.0.0.9", port):
            async with asyncio.timeout(2):
                connection = await Connection.connect("two-addresses", port, client_id="c", connect_timeout_ms=30_000)
            connection.close()
        await living.stop()

    on_loop(scenario)


def test_a_refusing_address_does_not_delay_the_next_one(on_loop, two_addresses, monkeypatch) -> None:
    monkeypatch.setattr("strandline.protocol.rpc.dial.NEXT_ADDRESS_S", 3600)

    async def scenario() -> None:
        living, port = await serving()
        async with asyncio.timeout(5):
            connection = await Connection.connect("two-addresses", port, client_id="c")
        connection.close()
        await living.stop()

    on_loop(scenario)


def test_of_two_answering_addresses_one_connection_is_kept(on_loop, two_addresses, monkeypatch) -> None:
    monkeypatch.setattr("strandline.protocol.rpc.dial.NEXT_ADDRESS_S", 0.0)

    async def scenario() -> None:
        living, port = await serving()
        other = Server({}, role="broker", node_id=2, cluster_id="c", incarnation_id=bytes(16))
        await other.start("127.0.0.9", port)
        lost: list[object] = []
        connections = [
            await Connection.connect("two-addresses", port, client_id="c", on_lost=lambda *args: lost.append(args))
            for _ in range(10)
        ]
        async with asyncio.timeout(5):
            while len(living.connections) + len(other.connections) != 10:
                await asyncio.sleep(0.001)
        assert lost == []
        for connection in connections:
            connection.close()
        await living.stop()
        await other.stop()

    on_loop(scenario)


async def test_a_hanging_look_up_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads for names are few, and a look-up cannot be cancelled: at most one per name may hang, not one per attempt."""
    answer, asked = threading.Event(), []

    def slow(host: str) -> list[str]:
        asked.append(host)
        answer.wait(10)
        return ["127.0.0.1"]

    resolves(monkeypatch, slow)
    try:
        for _ in range(3):
            with pytest.raises(BrokerError, match=r"cannot resolve slow:1 \(no answer within 30 ms\)"):
                await Connection.connect("slow", 1, client_id="c", connect_timeout_ms=30)
        waiting = asyncio.ensure_future(resolve("slow"))
        await asyncio.sleep(0)
        answer.set()
        assert await waiting == ["127.0.0.1"]
        assert asked == ["slow"]
        assert await resolve("slow") == ["127.0.0.1"]
        assert len(asked) == 2, "addresses are not cached: the host may have another one next time"
    finally:
        answer.set()


async def test_hanging_look_ups_delay_no_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead machine may take a broker, a controller and the resolver of their names with it. uvloop has two threads for
    names, and asyncio shares a handful with disk reads; connections to live hosts must not wait for them."""
    answer = threading.Event()

    def slow_when_dead(host: str) -> list[str]:
        if host.startswith("dead"):
            answer.wait(20)
        return ["127.0.0.1"]

    resolves(monkeypatch, slow_when_dead)
    hanging = [asyncio.ensure_future(resolve(f"dead-{i}")) for i in range(40)]
    try:
        async with asyncio.timeout(5):
            assert await resolve("living") == ["127.0.0.1"]
            assert await resolve("127.0.0.3") == ["127.0.0.3"]
            await asyncio.to_thread(lambda: None)
    finally:
        answer.set()
        await asyncio.gather(*hanging)


def test_an_exiting_process_does_not_wait_for_a_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container has ten seconds to stop, and a look-up without a network takes as long."""
    answer, asked = threading.Event(), threading.Event()

    def slow(host: str) -> list[str]:
        asked.set()
        answer.wait(20)
        return ["127.0.0.1"]

    resolves(monkeypatch, slow)

    async def scenario() -> None:
        waiting = asyncio.ensure_future(resolve("slow"))
        while not asked.is_set():
            await asyncio.sleep(0.001)
        waiting.cancel()

    began_at = monotonic()
    try:
        asyncio.run(scenario())
        assert monotonic() - began_at < 10
    finally:
        answer.set()


async def test_an_unreachable_host_is_told_from_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    living, port = await serving()
    await living.stop()
    with pytest.raises(BrokerError) as refused:
        await Connection.connect("127.0.0.1", port, client_id="c")
    assert is_unreachable(refused.value.__cause__)

    def nowhere(host: str) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    resolves(monkeypatch, nowhere)
    with pytest.raises(BrokerError, match="cannot resolve") as nameless:
        await Connection.connect("a-container-that-was", port, client_id="c")
    assert is_unknown_host(nameless.value.__cause__)
    assert is_unreachable(nameless.value.__cause__)
    resolves(monkeypatch, lambda host: [host])
    with silent_at("127.0.0.9", port), pytest.raises(BrokerError) as silent:
        await Connection.connect("127.0.0.9", port, client_id="c", connect_timeout_ms=50)
    assert not is_unreachable(silent.value.__cause__)
